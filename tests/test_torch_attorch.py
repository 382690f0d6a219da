"""attorch's four examples: the loss curves of pullback's layers are those of PyTorch's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pullback.torch import nn  # noqa: E402  # it needs PyTorch

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FOLDER = Path(__file__).parent.parent / "examples" / "attorch"
# Steps, and how far apart losses may be: a relu before a batch norm may flip by a rounding.
CURVES = {"digits": (30, 1e-4), "images": (8, 1e-2), "text": (12, 1e-4), "regression": (60, 1e-4)}


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    for shared in ("beside", name):
        monkeypatch.delitem(sys.modules, shared, raising=False)
    spec = importlib.util.spec_from_file_location(f"attorch_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CURVES)
def test_a_loss_curve_is_pytorchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "images":
        pytest.importorskip("PIL", reason="Pillow is not installed, which reads its photographs")
    module = example(name, monkeypatch)
    steps, apart = CURVES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours, theirs = module.run(nn, steps)[1], module.run(torch.nn, steps)[1]
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(ours, theirs, rtol=apart, atol=apart)
    assert ours[-1] < 0.9 * ours[0]
