"""Every operator of a graph-level list, on its shapes: values beside NumPy, derivatives checked.

The list is the one that TVM's automatic gradients were tried on, with those that failed there.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.config import Options
from pullback.errors import DTypeError, GradientError, IndexRangeError, ShapeError
from pullback.ir.graph import Graph, Variable
from pullback.ir.program import Compute, Program
from pullback.nn import functional as NF
from pullback.pipeline import compile_program
from pullback.tensor.derive.check import Checker, Problem, Report

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
v5, X, Y, W = (5,), (5, 7), (5, 10), (7, 10)
Y1, Y2, A, w, w1 = (1, 2, 5, 5), (3, 2, 5, 5), (2, 5, 7, 7), (4, 5, 3, 3), (5, 4, 3, 3)
SMALL, POSITIVE = (-1.0, 1.0), (0.1, 10.0)
TOKENS = np.array([3, 0, 0, 4, 1, 3])


@dataclass(frozen=True)
class Op:
    """A function of ours, the same in NumPy, and what it is tried on."""

    own: Callable[..., Any]
    other: Callable[..., Any]
    shapes: tuple[Shape, ...]
    range: tuple[float, float] = SMALL


# --- NumPy's side --------------------------------------------------------------------------------


def pairs(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def windows(x: Array, size: Any, stride: Any, dilation: Any = 1) -> Array:
    """``out[n, c, y, x, a, b]``"""
    (kh, kw), (sh, sw), (dh, dw) = pairs(size), pairs(stride), pairs(dilation)
    reach = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)
    found = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    return found[:, :, ::sh, ::sw, ::dh, ::dw]


def padded(x: Array, padding: Any, value: float = 0.0) -> Array:
    p, q = pairs(padding)
    return np.pad(x, ((0, 0), (0, 0), (p, p), (q, q)), constant_values=value)


def conv(x: Array, k: Array, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Array:
    found = windows(padded(x, padding), k.shape[2:], stride, dilation)
    return np.einsum("ncyxab,fcab->nfyx", found, k, optimize=True)


def transposed(x: Array, k: Array, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Array:
    """What a convolution's adjoint adds up."""
    (sh, sw), (ph, pw), (dh, dw) = pairs(stride), pairs(padding), pairs(dilation)
    (n, _, h, u), (_, f, kh, kw) = x.shape, k.shape
    rows, columns = (h - 1) * sh + dh * (kh - 1) + 1, (u - 1) * sw + dw * (kw - 1) + 1
    full = np.zeros((n, f, rows, columns))
    for a, b in itertools.product(range(kh), range(kw)):
        part = np.einsum("ncyx,cf->nfyx", x, k[:, :, a, b])
        top, left = a * dh, b * dw
        full[:, :, top : top + h * sh : sh, left : left + u * sw : sw] += part
    return full[:, :, ph : rows - ph, pw : columns - pw]


def max_pool(x: Array, size: Any, stride: Any, padding: Any = 0) -> Array:
    return windows(padded(x, padding, -np.inf), size, stride).max((4, 5))


def avg_pool(x: Array, size: Any, stride: Any, padding: Any = 0) -> Array:
    """The padding does not count."""
    sums = windows(padded(x, padding), size, stride).sum((4, 5))
    return sums / windows(padded(np.ones_like(x), padding), size, stride).sum((4, 5))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    half = size // 2
    wide = np.pad(x * x, ((0, 0), (half, half), (0, 0), (0, 0)))
    sums = sum(wide[:, n : n + x.shape[1]] for n in range(size))
    return np.asarray(x / (bias + alpha / size * sums) ** beta)


def resized(x: Array, size: tuple[int, int], corners: bool) -> Array:
    """Bilinear."""

    def taps(old: int, new: int) -> Array:
        at = np.arange(new)
        place = at * (old - 1) / (new - 1) if corners else (at + 0.5) * old / new - 0.5
        place = np.clip(place, 0, old - 1)
        low = np.floor(place).astype(int)
        share = np.zeros((new, old))
        share[at, low] += 1 - (place - low)
        share[at, np.minimum(low + 1, old - 1)] += place - low
        return share

    rows, columns = taps(x.shape[2], size[0]), taps(x.shape[3], size[1])
    return np.einsum("ab,ncbd,ed->ncae", rows, x, columns)


def nearest(x: Array, size: tuple[int, int]) -> Array:
    rows, columns = (np.arange(n) * o // n for n, o in zip(size, x.shape[2:], strict=True))
    return x[:, :, rows][:, :, :, columns]


def batch_norm(x: Array, gamma: Array, beta: Array) -> Array:
    mean, var = (f(x, (0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    wide = (1, -1, 1, 1)
    return (x - mean) / np.sqrt(var + 1e-5) * gamma.reshape(wide) + beta.reshape(wide)


# F(4, 3): ``U = G g G^T``, Winograd's minimal filtering.
G = np.array([
    [1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
    [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1],
])  # fmt: skip


def winograd(k: Any) -> Any:
    g = pb.tensor(G)
    return pb.einsum("pa,fcab,qb->pqfc", g, k, g)


def blocked(x: Any) -> Any:
    """NCHW as NHCW2c, the last block filled up with zeros."""
    n, c, h, u = x.shape
    x = pb.pad(x, ((0, 0), (0, c % 2), (0, 0), (0, 0)))
    return pb.permute_dims(pb.reshape(x, (n, -1, 2, h, u)), (0, 3, 1, 4, 2))


def blocked_by_numpy(x: Array) -> Array:
    n, c, h, u = x.shape
    x = np.pad(x, ((0, 0), (0, c % 2), (0, 0), (0, 0)))
    return x.reshape(n, -1, 2, h, u).transpose(0, 3, 1, 4, 2)


# --- the list ------------------------------------------------------------------------------------


def same(name: str, *shapes: Shape, range: tuple[float, float] = SMALL) -> Op:
    """The function has one name on both sides."""
    return Op(getattr(pb, name), getattr(np, name), shapes, range)


def reduction(name: str, axis: Any = None) -> Op:
    own, other = getattr(pb, name), getattr(np, name)
    return Op(lambda x: own(x, axis=axis), lambda x: other(x, axis=axis), (X,))


def convolution(**given: Any) -> Op:
    return Op(
        lambda x, k: NF.conv2d(x, k, **given), lambda x, k: conv(x, k, **given), (A, w)
    )  # fmt: skip


def transpose(**given: Any) -> Op:
    return Op(
        lambda x, k: NF.conv_transpose2d(x, k, **given),
        lambda x, k: transposed(x, k, **given),
        (A, w1),
    )


def pools(size: Any, stride: Any, padding: Any = 0) -> dict[str, Op]:
    name = f"{size} s{stride} p{padding}"
    return {
        f"max_pool2d {name}": Op(
            lambda x: NF.max_pool2d(x, size, stride, padding),
            lambda x: max_pool(x, size, stride, padding), (A,),
        ),
        f"avg_pool2d {name}": Op(
            lambda x: NF.avg_pool2d(x, size, stride, padding, count_include_pad=False),
            lambda x: avg_pool(x, size, stride, padding), (A,),
        ),
    }  # fmt: skip


def resize(corners: bool) -> Op:
    return Op(
        lambda x: NF.interpolate(x, (12, 10), mode="bilinear", align_corners=corners),
        lambda x: resized(x, (12, 10), corners),
        (A,),
    )


PASSED: dict[str, Op] = {
    "x * x": Op(lambda x: x * x, lambda x: x * x, (v5,)),
    "x * y": Op(lambda x, y: x * y, lambda x, y: x * y, (v5, v5)),
    "x * y + x + y": Op(lambda x, y: x * y + x + y, lambda x, y: x * y + x + y, (v5, v5)),
    "log": same("log", v5, range=POSITIVE),
    "sqrt": same("sqrt", v5, range=POSITIVE),
    "exp": same("exp", v5),
    "sigmoid": Op(pb.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (v5,)),
    "add": same("add", v5, v5),
    "subtract": same("subtract", v5, v5),
    "multiply": same("multiply", v5, v5),
    "divide": same("divide", v5, v5, range=POSITIVE),
    "tanh": same("tanh", v5),
    "expand_dims 1 1": Op(lambda x: x[:, None], lambda x: x[:, None], (X,)),
    "expand_dims 2 3": Op(
        lambda x: pb.expand_dims(x, axis=(2, 3, 4)), lambda x: x[:, :, None, None, None], (X,),
    ),
    "softmax": Op(lambda x: pb.softmax(x, axis=-1), softmax, (v5,)),
    "log_softmax": Op(lambda x: pb.log_softmax(x, axis=-1), lambda x: np.log(softmax(x)), (X,)),
    "relu": Op(pb.relu, lambda x: np.maximum(x, 0), (X,)),
    "bias_add": Op(lambda x, b: x + b[:, None], lambda x, b: x + b[:, None], (X, v5)),
    "conv2d": convolution(),
    "conv2d strides": convolution(stride=(2, 1)),
    "conv2d padding": convolution(padding=(1, 0)),
    "conv2d dilation": convolution(dilation=(1, 2)),
    "conv2d_transpose": transpose(),
    "conv2d_transpose strides": transpose(stride=(2, 1)),
    "conv2d_transpose padding": transpose(padding=(1, 0)),
    "dense": Op(NF.linear, lambda x, k: x @ k.T, (Y, W)),
    **pools(1, 1), **pools(2, 2), **pools(2, (2, 1)), **pools(3, (3, 2), 1),
    "global max pool": Op(lambda x: pb.max(x, axis=(2, 3)), lambda x: x.max((2, 3)), (A,)),
    "global avg pool": Op(lambda x: pb.mean(x, axis=(2, 3)), lambda x: x.mean((2, 3)), (A,)),
    "upsampling": Op(
        lambda x: NF.interpolate(x, scale_factor=2), lambda x: nearest(x, (14, 14)), (A,),
    ),
    "batch_flatten": Op(lambda x: pb.reshape(x, (2, -1)), lambda x: x.reshape(2, -1), (A,)),
    "pad": Op(
        lambda x: pb.pad(x, ((0, 0), (0, 1), (1, 2), (2, 3))),
        lambda x: np.pad(x, ((0, 0), (0, 1), (1, 2), (2, 3))), (A,),
    ),
    "lrn": Op(
        lambda x: NF.local_response_norm(x, 5, 1e-5, 0.75, 2.0),
        lambda x: lrn(x, 5, 1e-5, 0.75, 2.0), (A,),
    ),
    "lrn strong": Op(
        lambda x: NF.local_response_norm(x, 5, 0.8, 0.75, 1.0),
        lambda x: lrn(x, 5, 0.8, 0.75, 1.0), (A,),
    ),
    "l2_normalize": Op(
        lambda x: x / pb.sqrt(pb.maximum(pb.sum(x * x, axis=1, keepdims=True), 0.01)),
        lambda x: x / np.sqrt(np.maximum((x * x).sum(1, keepdims=True), 0.01)), (X,),
    ),
    "normalize": Op(
        lambda x: NF.normalize(x, dim=1),
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)), (X,),
    ),
    "winograd_weight_transform": Op(
        winograd, lambda k: np.einsum("pa,fcab,qb->pqfc", G, k, G), (w,),
    ),
    "leaky_relu": Op(
        lambda x: NF.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x), (X,),
    ),
    "prelu": Op(
        NF.prelu, lambda x, a: np.where(x > 0, x, a[:, None, None] * x), (A, v5),
    ),
    "reshape": Op(lambda x: pb.reshape(x, (2, 5, 5)), lambda x: x.reshape(2, 5, 5), (Y,)),
    "reshape_like": Op(
        lambda x, y: pb.reshape(x, y.shape) * y, lambda x, y: x.reshape(y.shape) * y,
        (Y, Y1[1:]),
    ),
    "copy": Op(lambda x: +x, np.copy, (X,)),
    "transpose": Op(lambda x: x.T, np.transpose, (X,)),
    "squeeze": Op(lambda x: pb.squeeze(x, axis=0), lambda x: x[0], (Y1,)),
    "floor": same("floor", X, range=POSITIVE),
    "ceil": same("ceil", X, range=POSITIVE),
    "trunc": same("trunc", X, range=POSITIVE),
    "round": same("round", X, range=POSITIVE),
    "abs": same("abs", X),
    "negative": same("negative", X),
    "zeros_like": same("zeros_like", X),
    "ones_like": same("ones_like", X),
    "zeros": Op(lambda k: k * pb.zeros((3, 2)), lambda k: k * np.zeros((3, 2)), ((),)),
    "ones": Op(lambda k: k * pb.ones((3, 2)), lambda k: k * np.ones((3, 2)), ((),)),
    "full": Op(lambda k: pb.broadcast_to(k, (5, 7)), lambda k: np.full((5, 7), k), ((),)),
    "full_like": Op(
        lambda x, k: pb.broadcast_to(k, x.shape), lambda x, k: np.full_like(x, k), (X, ()),
    ),
    "maximum": same("maximum", X, X),
    "minimum": same("minimum", X, X),
    "power": Op(
        lambda x, y: pb.pow(pb.abs(x), y), lambda x, y: np.abs(x) ** y, (v5, v5),
    ),
    **{
        f"{name} {axis}": reduction(name, axis)
        for name in ("sum", "max", "min", "mean", "prod")
        for axis in (None, 1)
    },
    "strided_slice": Op(
        lambda x: x[0:1, 4:2:-1, 2:5:2, 0:6:3], lambda x: x[0:1, 4:2:-1, 2:5:2, 0:6:3], (A,),
    ),
    "broadcast_to": Op(
        lambda x: pb.broadcast_to(x, (2, 5, 7)), lambda x: np.broadcast_to(x, (2, 5, 7)), (X,),
    ),
    "broadcast_to_like": Op(
        lambda x, y: pb.broadcast_to(x, y.shape) * y, lambda x, y: x * y, (Y1, Y2),
    ),
    "collapse_sum_like": Op(
        lambda x, y: pb.sum(x, axis=0, keepdims=True) * y,
        lambda x, y: x.sum(0, keepdims=True) * y, (Y2, Y1),
    ),
    "resize bilinear": resize(False),
    "resize bilinear corners": resize(True),
    "slice_like": Op(
        lambda x, y: x[tuple(slice(n) for n in y.shape)] * y, lambda x, y: x[:1, :2, :3] * y,
        ((3, 4, 5), (1, 2, 3)),
    ),
    "layout_transform": Op(blocked, blocked_by_numpy, (Y2,)),
    "layout_transform ragged": Op(blocked, blocked_by_numpy, (A,)),
}  # fmt: skip
DISABLED: dict[str, Op] = {
    "mod": Op(lambda x, y: x % y, lambda x, y: x % y, (v5, v5), (1.0, 10.0)),
    "concatenate": Op(
        lambda x, y: pb.concat((x, y, x), axis=1),
        lambda x, y: np.concatenate((x, y, x), axis=1), (X, Y),
    ),
    "batch_norm": Op(
        lambda x, g, b: NF.batch_norm(x, None, None, g, b, training=True), batch_norm,
        (A, v5, v5),
    ),
    "conv2d_transpose dilation": transpose(dilation=(1, 2)),
    "conv2d_transpose dilation and stride": transpose(dilation=(2, 3), stride=(2, 1)),
    "clip": Op(lambda x: pb.clip(x, -0.3, 0.4), lambda x: np.clip(x, -0.3, 0.4), (X,)),
    "take": Op(
        lambda x: pb.take(x, pb.tensor(TOKENS), axis=0), lambda x: x[TOKENS], (X,),
    ),
    "cast": Op(lambda x: pb.astype(x, pb.float64), np.copy, (X,)),
    "split": Op(
        lambda x: pb.split(x, [2, 5], axis=1)[1] * pb.split(x, [3], axis=1)[0],
        lambda x: x[:, 2:5] * x[:, :3], (X,),
    ),
    "where": Op(
        lambda x, y: pb.where(x < y, x * x, y), lambda x, y: np.where(x < y, x * x, y), (X, X),
    ),
    "resize nearest": Op(
        lambda x: NF.interpolate(x, (12, 10)), lambda x: nearest(x, (12, 10)), (A,),
    ),
}  # fmt: skip
OPS = {**PASSED, **DISABLED}


@functools.cache
def checked(name: str) -> tuple[Checker, Report, Sequence[Array]]:
    op = OPS[name]
    rng = np.random.default_rng(5)
    inputs = [rng.uniform(*op.range, s) for s in op.shapes]
    report = Report(name)
    made = Checker(Problem.of(op.own, inputs), report, 1e-5, rng)
    made.modes("", False)
    return made, report, inputs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPS)
def test_values_and_derivatives(name: str) -> None:
    """Beside NumPy; by differences and by ``<J v, h> = <v, J' h>``."""
    made, report, inputs = checked(name)
    assert report, str(report)
    assert {c.name for c in report.checks} == {"differences", "dot product"}
    wanted = np.asarray(OPS[name].other(*inputs))
    (found, *_) = made.exact[0].arrays
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_native_code_equals_the_interpreter(part: int) -> None:
    """Values, gradients and tangents of a quarter of the operators, as one program."""
    names = list(OPS)[part::4]
    exact = [checked(n)[0].exact[0] for n in names]
    wanted = [(v, a) for e in exact for v, a in zip(e.values, e.arrays, strict=True)]
    results = [Variable(f"r{n}", v.shape, v.dtype) for n, (v, _) in enumerate(wanted)]
    graph = Graph(tuple(zip(results, (v for v, _ in wanted), strict=True)))
    env = {k: a for n in names for k, a in checked(n)[0].env.items()}
    bindings = {v: np.array(env[v], order="C") for v in graph.inputs}
    bindings |= {v: np.zeros(a.shape) for v, (_, a) in zip(results, wanted, strict=True)}
    program = Program((Compute(graph),), (*graph.inputs, *results))
    compile_program(program, Options(cache=None)).run(bindings)
    for v, (_, array) in zip(results, wanted, strict=True):
        np.testing.assert_allclose(bindings[v], array, rtol=1e-9, atol=1e-9)


# --- what has no slope ---------------------------------------------------------------------------

COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_have_slope_zero(name: str) -> None:
    x, y = np.arange(5.0), np.array([0.0, 2.0, 1.0, 3.0, 4.0])
    own = getattr(pb, name)
    np.testing.assert_array_equal(own(pb.tensor(x), pb.tensor(y)).numpy(), getattr(np, name)(x, y))
    slopes = pb.grad(lambda x, y: pb.sum(pb.astype(own(x, y), pb.float64) + x), argnums=(0, 1))
    found = [s.numpy().tolist() for s in slopes(pb.tensor(x), pb.tensor(y))]
    assert found == [[1.0] * 5, [0.0] * 5]


@pytest.mark.parametrize("name", ["left", "right"])
def test_shifts_are_of_integers(name: str) -> None:
    shift = getattr(pb, f"bitwise_{name}_shift")
    numbers = pb.tensor(np.arange(5))
    wanted = getattr(np, f"{name}_shift")(np.arange(5), 1)
    np.testing.assert_array_equal(shift(numbers, 1).numpy(), wanted)
    with pytest.raises(DTypeError, match="shift is not defined for float64"):
        shift(pb.tensor(np.ones(3)), 1)
    with pytest.raises(GradientError, match="int64"):
        pb.grad(pb.sum(pb.astype(shift(numbers, 1), pb.float64)), numbers)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_are_integers_without_a_slope(name: str) -> None:
    x = np.random.default_rng(1).normal(size=X)
    found = getattr(pb, name)(pb.tensor(x), axis=1)
    np.testing.assert_array_equal(found.numpy(), getattr(np, name)(x, axis=1))
    with pytest.raises(GradientError, match="int64"):
        pb.grad(lambda x: pb.sum(getattr(pb, name)(x, axis=1)))(pb.tensor(x))


def test_dropout_has_its_mask_for_a_slope() -> None:
    x = pb.tensor(np.random.default_rng(1).uniform(0.5, 1.0, X))
    y = NF.dropout(x, 0.4)
    slope = pb.grad(pb.sum(y), x)
    values, found = y.numpy(), slope.numpy()
    np.testing.assert_allclose(found, np.where(values == 0.0, 0.0, 1 / 0.6))
    assert math.isclose(values.sum(), float((found * x.numpy()).sum()))


# --- scattering ----------------------------------------------------------------------------------

SCATTERED: dict[str, tuple[Shape, Array, Shape, int]] = {
    "rows": ((5, 3), np.array([3, 0, 3, 3]), (4, 3), 0),
    "columns": ((5, 3), np.array([2, 2]), (5, 2), 1),
    "elements": ((5, 3), np.array([[1, 4, 1], [1, 0, 1]]), (2, 3), 0),
    "a vector": ((4,), np.array([1, 1, 0, 1, 3]), (5,), 0),
    "nothing": ((4,), np.zeros(0, np.int64), (0,), 0),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_scattering(name: str) -> None:
    shape, places, given, axis = SCATTERED[name]
    rng = np.random.default_rng(0)
    x, values = rng.normal(size=shape), rng.normal(size=given)
    wanted = x.copy()
    index: list[Any] = list(np.indices(given, sparse=True))
    wide = [1] * axis + [-1] + [1] * (len(given) - axis - 1)
    index[axis] = places if places.shape == given else places.reshape(wide)
    np.add.at(wanted, tuple(index), values)
    held = pb.tensor(places)

    def own(x: Any, values: Any) -> Any:
        return pb.scatter_add(x, held, values, axis=axis)

    np.testing.assert_allclose(own(pb.tensor(x), pb.tensor(values)).numpy(), wanted, rtol=1e-12)
    report = pb.check_grads(own, [x, values], layouts=("contiguous",))
    assert report, report


def test_scattering_is_the_same_on_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    places = pb.tensor(rng.integers(0, 7, 5000))
    x = pb.tensor(np.zeros((7, 8), np.float32))
    values = pb.tensor(rng.normal(size=(5000, 8)).astype(np.float32))
    found = [
        pb.jit(pb.scatter_add, options=Options(threads=n, cache=None))(x, places, values).numpy()
        for n in (1, 2, 3)
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_places_outside_are_refused() -> None:
    x, values = pb.tensor(np.zeros((5, 3))), pb.tensor(np.ones((2, 3)))
    for place in (5, -6):
        with pytest.raises(IndexRangeError, match=f"index {place} is out of range"):
            pb.scatter_add(x, pb.tensor(np.array([0, place])), values).numpy()
    with pytest.raises(ShapeError, match="scatter_add to"):
        pb.scatter_add(x, pb.tensor(np.array([0, 1, 2])), values)
    with pytest.raises(DTypeError):
        pb.scatter_add(x, pb.tensor(np.array([0.0, 1.0])), values)
