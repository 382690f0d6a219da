"""Built operations read and write arrays of any sizes as they lie, and nothing beside them."""

from __future__ import annotations

import ctypes
import mmap
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.build.operation import Asked, built
from pullback.ir.dtype import float32
from pullback.operations import Operation, read
from pullback.operations.drawn import drawn
from test_build_alone import alone, linux  # noqa: F401  (alone is a fixture)
from test_build_sizes import arguments, called

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "ops").glob("*.toml"))
QUICK = ("gemm", "gemm_columns", "softmax", "attention", "conv2d", "concat", "transpose", "tril",
         "layer_norm", "cumsum", "max_pool2d", "flip", "cross_entropy")  # fmt: skip
MOST = 48  # a size at most: no power of two, and more than a vector
PAGE = mmap.PAGESIZE
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def fenced(data: Array) -> Iterator[Array]:
    """A copy that ends where a page begins that nobody may touch."""
    room = -(-max(data.nbytes, 1) // PAGE) * PAGE
    block = mmap.mmap(-1, room + PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(block))
    assert libc.mprotect(ctypes.c_void_p(at + room), PAGE, 0) == 0
    raw = (ctypes.c_char * data.nbytes).from_address(at + room - data.nbytes)
    own = np.frombuffer(raw, data.dtype).reshape(data.shape) if data.size else data.copy()
    own[...] = data
    yield own
    libc.mprotect(ctypes.c_void_p(at + room), PAGE, mmap.PROT_READ | mmap.PROT_WRITE)


def sizes_of(operation: Operation, factor: int) -> dict[str, int]:
    """Sizes a few times those of the test, as far as conditions let them."""
    sizes = {n: v for n, v in operation.test.sizes.items() if n[0] != "~"}
    free = [n for n in sizes if not any(n in c.text for c in operation.conditions)]
    return {n: v * (factor if n in free else 1) for n, v in sizes.items()}


def tried(path: Path, folder: Path) -> None:
    operation = read(path)
    grad = any(s.type is None or s.type.is_float for s in operation.inputs) and bool(
        operation.inputs
    )
    bounds = dict.fromkeys(operation.symbols, (1, MOST))
    ranks = {n: v for n, v in operation.test.sizes.items() if n[0] == "~"}
    try:
        made = built(operation, Asked({**bounds, **ranks}, float32, grad))
    except pb.errors.UnsupportedError as problem:
        assert problem.code == "E549"  # nothing is differentiated
        grad = False
        made = built(operation, Asked({**bounds, **ranks}, float32))
    (folder / "op.so").write_bytes(made.data(True))
    assert not any(f.copied for f in made.functions), path.stem
    header, library = made.around.header(), ctypes.CDLL(str(folder / "op.so"))
    name = made.around.name
    for factor in (1, 3):
        run(operation, header, library, name, grad, sizes_of(operation, factor), ranks)


def run(
    operation: Operation, header: str, library: ctypes.CDLL, name: str, grad: bool,
    sizes: dict[str, int], ranks: dict[str, int],
) -> None:  # fmt: skip
    """Beside the operation itself, every array in front of a page that nobody may touch."""
    rng = np.random.default_rng(5)
    arrays, given = drawn(operation, {**sizes, **ranks}, rng)
    runs = [run for s in operation.inputs for run in s.runs]
    arrays = [x.astype(np.float32) if x.dtype == np.float64 else x for x in arrays]
    tensors = [pb.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
    results = operation.of_stored(*tensors, **given)
    results = results if isinstance(results, tuple) else (results,)
    heads = [rng.uniform(-1, 1, y.shape).astype(np.float32) for y in results]
    wanted = {s.name: y.numpy() for s, y in zip(operation.outputs, results, strict=True)}
    if grad:
        floats = [x for x in tensors if x.requires_grad]
        pairs = [(y, h) for y, h in zip(results, heads, strict=True) if y.dtype.is_float]
        total = sum((pb.sum(y * h) for y, h in pairs), start=pb.tensor(np.float32(0)))
        own = iter(pb.grad(total, floats))
        for one, x in zip(operation.inputs, tensors, strict=True):
            wanted |= {f"d{one.name}": next(own).numpy()} if x.requires_grad else {}
    known = {s.name: x for s, x in zip(operation.inputs, arrays, strict=True)}
    known |= {f"d{s.name}": h for s, h in zip(operation.outputs, heads, strict=True)}
    for function in (name, f"{name}_backward") if grad else (name,):
        names, places = arguments(header, function)
        counts = [size_of(p, operation, arrays, sizes, bool(runs)) for p in places]
        with_room: dict[str, Array] = {}
        fences = []
        for n in names:
            data = known[n] if n in known else np.full_like(wanted[n], 77)
            fence = fenced(np.array(data, order="C"))
            fences.append(fence)
            with_room[n] = fence.__enter__()
        assert called(library, header, function, with_room, counts) == 0
        for n in names:
            if n in wanted and n not in known:
                np.testing.assert_allclose(with_room[n], wanted[n], 1e-4, 1e-4, err_msg=n)
            elif n in known:
                assert np.array_equal(with_room[n], known[n]), f"{n} was written"
        for fence in fences:
            fence.__exit__(None, None, None)


def size_of(
    place: str, operation: Operation, arrays: list[Array], sizes: dict[str, int], runs: bool
) -> int:
    """A size that is an argument, by the arrays or by what the test says."""
    plain = place.rstrip("_") if place not in operation.symbols else place
    if plain in sizes:
        return sizes[plain]
    assert runs
    ranks = {run.text: 1 for s in operation.inputs for run in s.runs}
    for one, x in zip(operation.inputs, arrays, strict=True):
        for run in one.runs:
            ranks[run.text] = x.ndim - len(one.sizes)
        for size, count in zip(one.expanded(ranks), x.shape, strict=True):
            if size.text == place:
                return int(count)
    raise AssertionError(f"{place} of {operation.name}")


@needs_cc
@pytest.mark.parametrize(
    "path",
    [p if p.stem in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_files(path: Path, tmp_path: Path) -> None:
    tried(path, tmp_path)


@linux
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "path",
    [p if p.stem in QUICK[:6] else pytest.param(p, marks=pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_files_without_a_compiler(path: Path, tmp_path: Path) -> None:
    tried(path, tmp_path)
