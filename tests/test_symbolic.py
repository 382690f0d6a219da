"""One compiled program for every value of a named extent: both backends, forward to training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from layers_support import normal
from pullback import nn, optim
from pullback.config import Options
from pullback.errors import IndexRangeError, ShapeError
from pullback.nn import functional as F
from pullback.tensor.record.trace import realize

BACKENDS = {name: Options(backend=name, threads=2) for name in ("llvm", "reference")}
SIZES = (1, 2, 3, 7, 12)
Array = np.ndarray[Any, Any]


def small(*shape: int, seed: int = 0) -> Array:
    return 0.5 * normal(*shape, seed=seed)


KERNEL, SHIFT, TURNED = small(4, 2, 3, 3), small(4, seed=1), small(2, 3, 3, 2, seed=2)
GAMMA, BETA = small(4, seed=3), small(4, seed=4)


def convolution(x: Any, k: Any, b: Any) -> Any:
    return F.relu(F.conv2d(x, k, b, stride=2, padding=1))


def pooled(x: Any, k: Any, b: Any) -> Any:
    return F.max_pool2d(F.conv2d(x, k, b, dilation=2), 2).sum((2, 3))


def transposed(x: Any, k: Any) -> Any:
    return F.conv_transpose2d(x, k, stride=2, padding=1)


def normed(x: Any, k: Any, g: Any, b: Any) -> Any:
    return F.batch_norm(F.conv2d(x, k), None, None, g, b, training=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rows(x: Any) -> Any:
    return F.softmax(x, dim=-1) * F.log_softmax(x, dim=0)


# A function, its inputs with None where the extent is named, and the rest of its inputs.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int | None, ...]], list[Array]]] = {
    "convolution": (convolution, [(None, 2, 6, 5)], [KERNEL, SHIFT]),
    "convolution and pool": (pooled, [(None, 2, 8, 7)], [KERNEL, SHIFT]),
    "transposed": (transposed, [(None, 2, 4, 3)], [TURNED]),
    "batch norm": (normed, [(None, 2, 4, 5)], [KERNEL, GAMMA, BETA]),
    "softmax": (rows, [(None, 6)], []),
    "softmax over it": (rows, [(6, None)], []),
    "attention": (attention, [(2, None, 4)] * 3, []),
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, backend: str) -> None:
    """As of programs that are made for one size."""
    function, shapes, rest = CASES[name]
    n = pb.dim("n", 1, 12)
    held = [pb.tensor(a) for a in rest]

    def both(*given: Any) -> list[Any]:
        y = function(*given, *held)
        return [y, *pb.grad((y * y).sum() + y.sum(), [*given, *held])]

    declared = [tuple(n if e is None else e for e in s) for s in shapes]
    made = pb.jit(both, shapes=declared, options=BACKENDS[backend])
    for size in SIZES:
        given = [
            small(*(size if e is None else e for e in s), seed=10 * size + k)
            for k, s in enumerate(shapes)
        ]
        found = made(*(pb.tensor(a) for a in given))
        wanted = both(*(pb.tensor(a) for a in given))
        realize(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)
    assert made.traces == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1, dtype="float64")
        self.norm = nn.BatchNorm2d(3, dtype="float64")
        self.out = nn.Linear(12, 4, dtype="float64")

    def forward(self, x: Any) -> Any:
        y = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(y.reshape(-1, 12))


def trained(backend: str, symbolic: bool) -> tuple[list[float], list[Array], int]:
    """Losses of steps on batches of several sizes, the parameters then, how often it traced."""
    pb.random.manual_seed(3)
    model = Net()
    opt = optim.Adam(model.parameters(), lr=0.05)
    n = pb.dim("n", 1, 12)
    shapes = [(n, 1, 4, 4), (n,)] if symbolic else None

    def step(x: Any, labels: Any) -> Any:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        opt.step()
        return loss

    compiled = pb.jit(step, shapes=shapes, options=BACKENDS[backend])
    losses = []
    for k, size in enumerate((4, 12, 3, 7, 4)):
        labels = np.random.default_rng(k).integers(0, 4, size)
        losses.append(compiled(pb.tensor(small(size, 1, 4, 4, seed=k)), pb.tensor(labels)).item())
    return losses, [p.numpy() for p in model.parameters()], compiled.traces


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", BACKENDS)
def test_training(backend: str) -> None:
    """A net with convolution, statistics and Adam, on batches of any size."""
    losses, weights, traces = trained(backend, symbolic=True)
    wanted, plain, many = trained("llvm", symbolic=False)
    assert (traces, many) == (1, 4)
    np.testing.assert_allclose(losses, wanted, rtol=1e-9)
    for a, b in zip(weights, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_rows_of_a_table(backend: str) -> None:
    """``table[:n]``, as positions are added to tokens, and its gradient."""
    table, n = pb.tensor(small(12, 3)), pb.dim("n", 1, 12)

    def slope(x: Any, table: Any) -> list[Any]:
        rows = x * table[: x.shape[0]]
        return [rows, *pb.grad(rows.sum(), [table])]

    f = pb.jit(slope, shapes=[(n, 3), None], options=BACKENDS[backend])
    for size in SIZES:
        x = small(size, 3, seed=size)
        rows, slopes = f(pb.tensor(x), table)
        np.testing.assert_allclose(rows.numpy(), x * table.numpy()[:size], rtol=1e-12)
        np.testing.assert_allclose(slopes.numpy(), np.pad(x, ((0, 12 - size), (0, 0))), rtol=1e-12)
    assert f.traces == 1


@pytest.mark.parametrize("part", [slice(1, "n"), slice(None, "n", 2), slice(None, "m")])
def test_a_symbolic_end_that_may_lie_outside_is_refused(part: slice) -> None:
    ends = {"n": pb.dim("n", 1, 12), "m": pb.dim("m", 1, 13)}
    with pytest.raises(ShapeError, match="of an axis of 12"):
        pb.zeros((12, 3))[slice(part.start, ends[part.stop], part.step)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_outside_the_range_is_refused(backend: str) -> None:
    n = pb.dim("n", 2, 5)
    f = pb.jit(lambda x: x * 2.0, shapes=[(n, 3)], options=BACKENDS[backend])
    assert f(pb.tensor(small(5, 3))).shape == (5, 3)
    for size in (1, 6):
        with pytest.raises(ShapeError, match="declared"):
            f(pb.tensor(small(size, 3)))


READS: dict[str, Any] = {
    "of another axis": lambda x, y: pb.compute(y.shape, lambda i: x[i] + y[i]),
    "of every second": lambda x, y: pb.compute(y.shape, lambda i: x[i * 2] + y[i]),
    "of the next": lambda x, y: pb.compute(y.shape, lambda i: y[i + 1]),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_that_may_leave_a_symbolic_axis_is_refused(name: str) -> None:
    """Whatever the bounds of the two axes: a program is for all sizes within them."""
    n, m = pb.dim("n", 2, 64), pb.dim("m", 2, 32)
    run = pb.jit(READS[name], shapes=((n,), (m,)))
    with pytest.raises(IndexRangeError, match=r"runs from .* \[E152\]"):
        run(np.ones(3, np.float32), np.ones(9, np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_of_another_axis_are_looked_at(backend: str) -> None:
    n, m = pb.dim("n", 2, 64), pb.dim("m", 2, 32)

    def rows(x: pb.Tensor, y: pb.Tensor) -> pb.Tensor:
        return pb.take(x, pb.arange(y.shape[0])) + y

    run = pb.jit(rows, shapes=((n,), (m,)), options=BACKENDS[backend])
    x, y = np.arange(9, dtype=np.float32), np.zeros(5, np.float32)
    np.testing.assert_array_equal(run(x, y).numpy(), x[:5])
    with pytest.raises(IndexRangeError, match="E106"):
        run(y, x)


SIZED: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.sum() / x.shape[0],
    "of all": lambda x: x.sum() / x.size,
    "first": lambda x: x.shape[0] * x,
    "scaled": lambda x: x @ x.T * x.shape[0] ** -0.5,
    "inverse": lambda x: x * (1 / x.shape[0]),
    "variance": lambda x: ((x - x.sum(0) / x.shape[0]) ** 2).sum(0) / (x.shape[0] - 1 + 1e-3),
    "root": lambda x: x / x.shape[0] ** 0.5,
    "over a tensor": lambda x: -x.shape[0] / x,
    "power": lambda x: x ** x.shape[0],
    "remainder": lambda x: x % x.shape[0] + x.shape[0] % 2 + x.shape[0] // 2,
    "winners": lambda x: pb.maximum(x, x.shape[0]) + pb.clip(x, 0, x.shape[0]),
    "choice": lambda x: pb.where(x < x.shape[0] / 2, x, -x.shape[0]),
    "choice of numbers": lambda x: (
        pb.where(x > 1, x.shape[0], 0) + pb.where(x > 1, 0.5, x.shape[0])
    ),
    "both": lambda x: (x.shape[0] * x.shape[1]) * x,
    "backwards": lambda x: pb.compute(x.shape, lambda i, j: x[x.shape[0] - 1 - i, j] / x.shape[0]),
}  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "int32"])
def test_an_extent_is_a_number_of_its_programs(name: str, kind: str) -> None:
    """As Python's own numbers: the types and values of the function that knows the sizes."""
    n, function = pb.dim("n", 1, 12), SIZED[name]
    compiled = pb.jit(function, shapes=[(n, 3)])
    close = {"float16": 5e-3, "float64": 1e-13}.get(kind, 1e-5)
    for size in (1, 3, 7):
        x = pb.tensor(np.abs(small(size, 3)) + 0.5).astype(kind)
        got, want = compiled(x), function(x)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=close, atol=close)


def test_gradients_know_their_extents() -> None:
    def loss(x: Any) -> Any:
        return (x * x).sum() / x.shape[0] * x.shape[0] ** 0.5

    n = pb.dim("n", 1, 12)
    compiled = pb.jit(pb.value_and_grad(loss), shapes=[(n, 3)])
    for size in (1, 4):
        x = small(size, 3)
        value, gradient = compiled(x)
        np.testing.assert_allclose(np.asarray(value), (x * x).sum() / size**0.5, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(gradient), 2 * x / size**0.5, rtol=1e-5)


def test_an_extent_beside_a_tensor_without_axes_in_a_definition() -> None:
    n = pb.dim("n", 1, 12)

    def chosen(x: Any, s: Any) -> Any:
        return pb.compute(x.shape, lambda i: pb.where(i < x.shape[0] // 2, s, x.shape[0]) * x[i])

    x, s = small(7), np.float32(0.5)
    want = np.where(np.arange(7) < 3, s, 7) * x
    got = pb.jit(chosen, shapes=[(n,), ()])(x, s)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
