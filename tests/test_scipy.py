"""SciPy and scikit-learn on tensors: functions written for the array API, which mask and assign."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# SciPy reads its setting when it is imported, so this is a process of its own.
PROGRAM = """
import warnings

import numpy as np
from scipy import optimize, special, stats
from scipy.optimize import elementwise
from scipy.cluster import vq

import pullback as pb

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
a, b, m = rng.normal(size=60), rng.normal(size=60), rng.normal(size=(20, 3))
p = rng.uniform(0.1, 0.9, 9)


def root(x):
    return elementwise.find_root(lambda z: z**2 - 2, (0 * x, 0 * x + 3)).x


cases = {
    "ttest_ind": (lambda x, y: stats.ttest_ind(x, y).pvalue, (a, b)),
    "pearsonr": (lambda x, y: stats.pearsonr(x, y).statistic, (a, b)),
    "zscore": (stats.zscore, (a,)),
    "rankdata": (stats.rankdata, (a,)),
    "mannwhitneyu": (lambda x, y: stats.mannwhitneyu(x, y).pvalue, (a, b)),
    "logsumexp": (special.logsumexp, (a,)),
    "rel_entr": (special.rel_entr, (p, p[::-1].copy())),
    "rosen_der": (optimize.rosen_der, (a[:9],)),
    "find_root": (root, (p[:3],)),
    "whiten": (vq.whiten, (m,)),
}
for name, (function, given) in cases.items():
    found = function(*map(pb.asarray, given))
    assert isinstance(found, pb.Tensor), name
    wanted = function(*given)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-12, err_msg=name)

try:
    import sklearn
except ImportError:
    raise SystemExit
from sklearn import metrics, preprocessing
from sklearn.linear_model import Ridge

labels = (a > 0).astype("int64")
cases = {
    "MinMaxScaler": (preprocessing.MinMaxScaler().fit_transform, (m,)),
    "Normalizer": (preprocessing.Normalizer().fit_transform, (m,)),
    "LabelEncoder": (preprocessing.LabelEncoder().fit_transform, (labels,)),
    "Ridge": (lambda x, y: Ridge(solver="svd").fit(x, y).predict(x), (m, m[:, 0] * 2.0)),
    "accuracy": (metrics.accuracy_score, (labels, (b > 0).astype("int64"))),
    "confusion": (metrics.confusion_matrix, (labels, (b > 0).astype("int64"))),
    "r2": (metrics.r2_score, (a, b)),
}
for name, (function, given) in cases.items():
    wanted = function(*given)
    with sklearn.config_context(array_api_dispatch=True):
        found = function(*map(pb.asarray, given))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-7, atol=1e-9, err_msg=name)
"""


@pytest.mark.slow
def test_functions_written_for_the_array_api(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")
    file = tmp_path / "scipy_on_tensors.py"
    file.write_text(PROGRAM)
    source = str(Path(__file__).parent.parent / "src")
    own = {"SCIPY_ARRAY_API": "1", "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
