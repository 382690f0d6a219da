"""`examples/backend`: a package outside of this one, installed, found and right."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.run import conformance
from pullback.errors import IndexRangeError, UnsupportedError

FOLDER = Path(__file__).parent.parent / "examples" / "backend"
SOURCE = FOLDER / "src" / "pullback_numpy" / "__init__.py"
needs_pip = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("pip", "hatchling"))), reason="nothing builds packages"
)


@pytest.fixture
def by_file(tmp_path: Path) -> Callable[..., pb.Options]:
    path = tmp_path / "numpy_backend.py"
    path.write_text(SOURCE.read_text() + "\n\nbackend = NumPy\n")
    return lambda: pb.Options(backend=str(path))


def test_it_is_small() -> None:
    files = [p for p in FOLDER.rglob("*") if p.suffix in (".py", ".md", ".toml")]
    assert sum(len(p.read_text().splitlines()) for p in files) <= 300


@needs_pip
def test_installed_it_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """Into a folder of its own, offline; a program and a part of its report run from there."""
    shutil.copytree(FOLDER, tmp_path / "source")
    target = tmp_path / "target"
    install = ["pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    script = "import pullback as pb, numpy as np; x = pb.ones((3, 4)); print((x @ x.T).tolist())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *sys.path])}
    for command in (
        [*install, "--target", str(target), str(tmp_path / "source")],
        ["pullback_cli", "test-backend", "numpy", "--only", "forms: product"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "numpy: 12 cells: 12 pass, 0 fail, 0 refused" in done.stdout
    env["PULLBACK_BACKEND"] = "numpy"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == str([[4.0] * 3] * 3), done.stderr


@pytest.mark.parametrize(("text", "every"), [("", 12), ("composites", 6)])
def test_it_conforms(by_file: Callable[[], pb.Options], text: str, every: int) -> None:
    chosen = [c for c in cells(SECTIONS, text) if not c.case.alone][::every]
    verdicts = conformance(by_file().backend, chosen)
    assert [v.state for v in verdicts] == ["pass"] * len(chosen)


def test_parts_of_arrays_are_multiplied(by_file: Callable[[], pb.Options]) -> None:
    """Sums of products of parts: einsum is given no more than is read."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 7)), rng.normal(size=(7, 4))
    product = pb.jit(lambda a, b: a[:3, :6] @ b[:6], options=by_file())
    np.testing.assert_allclose(product(a, b).numpy(), a[:3, :6] @ b[:6], rtol=1e-13)
    k = pb.axis(9)
    equal = pb.jit(
        lambda a, b: pb.compute((5,), lambda i: pb.sum(a[i, 0] * b[i, 0], over=k)),
        options=by_file(),
    )
    np.testing.assert_allclose(equal(a, b).numpy(), 9 * a[:, 0] * b[:5, 0], rtol=1e-13)
    shared = pb.jit(
        lambda a, b: pb.compute((5,), lambda i: pb.sum(a[i, i] * b[i, 0], over=k)),
        options=by_file(),
    )
    np.testing.assert_allclose(shared(a, b).numpy(), 9 * np.diag(a) * b[:5, 0], rtol=1e-13)
    outer = pb.axis(4)
    plain = pb.jit(
        lambda a, b: pb.compute((5,), lambda i: pb.sum(a[i, outer] * a[i, outer], over=(outer, k))),
        options=by_file(),
    )
    np.testing.assert_allclose(plain(a, b).numpy(), 9 * (a[:, :4] ** 2).sum(1), rtol=1e-13)


def test_what_it_refuses_and_what_is_wrong(by_file: Callable[[], pb.Options]) -> None:
    far = pb.jit(lambda x, i: pb.compute((2,), lambda n: x[i[n]]), options=by_file())
    with pytest.raises(IndexRangeError, match="outside of an array"):
        far(pb.ones(3), pb.tensor([1, 3]))
    large = pb.jit(lambda x: pb.exp(x[:, None] + x[None, :]).sum(), options=by_file())
    with pytest.raises(UnsupportedError, match="more than it holds"):
        large(pb.ones(20_000))
