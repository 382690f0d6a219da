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
SMALL = {"im2col": {"P": (1, 3), "Q": (1, 3), "H": (3, 18), "W": (3, 18)}}  # five axes are large
QUICK = ("gemm", "softmax", "concat", "tril", "cumsum", "max_pool2d")
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
    bounds = {**dict.fromkeys(operation.symbols, (1, MOST)), **SMALL.get(path.stem, {})}
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
    every = known_sizes(operation, arrays, given)
    for function in (name, f"{name}_backward") if grad else (name,):
        names, places = arguments(header, function)
        counts = [every[p if p in every else p.rstrip("_")] for p in places]
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


def known_sizes(operation: Operation, arrays: list[Array], given: dict[str, int]) -> Any:
    """Every symbol, by the arrays as they lie and what is given."""
    shapes = [
        x.shape if s.order is None else [x.shape[s.order.index(n)] for n in range(x.ndim)]
        for s, x in zip(operation.inputs, arrays, strict=True)
    ]
    return operation.sizes(shapes, given).known


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
    [p if p.stem in QUICK[:2] else pytest.param(p, marks=pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_files_without_a_compiler(path: Path, tmp_path: Path) -> None:
    tried(path, tmp_path)


@pytest.mark.sampled(2)
@needs_cc
@pytest.mark.parametrize("copied", [False, True])
def test_more_axes_than_offsets_can_say_are_copied(copied: bool, tmp_path: Path) -> None:
    """Each size is told by one array; behind four symbolic axes kernels work on copies."""
    axes = "A, B, C, D, E" if copied else "A, B, C, D"
    names = axes.lower()
    text = f'name = "five"\ninputs = ["x[{axes}]"]\noutputs = ["y[{axes}]"]\n'
    (tmp_path / "five.toml").write_text(text + f'code = "y[{names}] = x[{names}] * (d + 1)"')
    operation = read(tmp_path / "five.toml")
    made = built(operation, Asked(dict.fromkeys(operation.symbols, (1, 9)), float32, grad=True))
    assert [f.copied for f in made.functions] == [copied, copied]
    (tmp_path / "five.so").write_bytes(made.data(True))
    library = ctypes.CDLL(str(tmp_path / "five.so"))
    for shape in ((2, 3, 9, 4, 5), (9, 9, 9, 9, 9), (1, 1, 1, 1, 1)):
        shape = shape[: 4 + copied]
        x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        y, dx = np.zeros_like(x), np.zeros_like(x)
        scale = np.arange(1, shape[3] + 1, dtype=np.float32).reshape((-1,) + (1,) * copied)
        header = made.around.header()
        assert called(library, header, "five", {"x": x, "y": y}, list(shape)) == 0
        assert np.array_equal(y, x * scale)
        given = {"dy": x, "x": x, "dx": dx}
        assert called(library, header, "five_backward", given, list(shape)) == 0
        assert np.array_equal(dx, x * scale)
