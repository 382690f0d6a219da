"""Norms under torch's names: one composite, told which axes a row is summed over.

    mean[r] = sum[k] x[r, k] / n        var[r] = sum[k] (x[r, k] - mean[r])^2 / n
    y[r, k] = (x[r, k] - mean[r]) / sqrt(var[r] + eps) * w + b

Layers and groups sum over the last axes, batches over all but the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import ShapeError, StateError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Add, Div, Expr, Extent, Mul
from pullback.ir.graph import Value
from pullback.nn.base.build import at, common, count, make, pointwise, written
from pullback.nn.base.space import Window, padded
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32, narrowed, widened

Shape = tuple[Extent, ...]
Index = tuple[Expr, ...]
Pair = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True, slots=True)
class Rows:
    """A box whose axes `over` are summed; the other axes number the rows."""

    shape: Shape
    over: tuple[int, ...]

    @property
    def lead(self) -> Shape:
        """Extents of the row axes."""
        return tuple(e for n, e in enumerate(self.shape) if n not in self.over)

    @property
    def box(self) -> Shape:
        """Extents of what one row holds."""
        return tuple(self.shape[n] for n in self.over)

    def row(self, index: Sequence[Expr]) -> Index:
        """Which row an element is in."""
        return tuple(i for n, i in enumerate(index) if n not in self.over)

    def place(self, index: Sequence[Expr]) -> Index:
        """The element of row axes, then axes within the row."""
        split = len(self.shape) - len(self.over)
        rows, inner = iter(index[:split]), iter(index[split:])
        return tuple(next(inner if n in self.over else rows) for n in range(len(self.shape)))


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """What is known of the rows of a tensor: ``x - mean``, its square sums, the mean."""

    rows: Rows
    away: Value
    squares: Value
    mean: Value
    number: Expr


def moments(x: Value, over: Sequence[int], kind: DType) -> Moments:
    """Mean, and the variance in two passes: digits survive a large mean."""
    rows = Rows(x.shape, tuple(over))
    lead, box, number = rows.lead, rows.box, count(rows.box, kind)
    sums = make("row_sum", lead, lambda *i: at(x, *rows.place(i), to=kind), over=box).value
    mean = make("mean", lead, lambda *i: Div(at(sums, *i), number)).value

    def centred(*i: Expr) -> Expr:
        return E.subtract(at(x, *i, to=kind), at(mean, *rows.row(i)))

    away = make("centred", x.shape, centred).value
    return Moments(rows, away, _squares(away, rows), mean, number)


def _squares(x: Value, rows: Rows) -> Value:
    def body(*i: Expr) -> Expr:
        return F.square(at(x, *rows.place(i)))

    return make("row_squares", rows.lead, body, over=rows.box).value


def scaled(
    name: str,
    moments: Moments,
    eps: float,
    affine: Pair,
    place: Callable[[Index], Index],
) -> Tensor:
    """``x / sqrt(squares / n + eps) * w + b``; `place` says which element of w and b."""
    x, squares, rows = moments.away, moments.squares, moments.rows
    kind = x.dtype
    small = E.const(eps, kind)

    def inverse(*i: Expr) -> Expr:
        return F.rsqrt(Add(Div(at(squares, *i), moments.number), small))

    scale = make("rstd", squares.shape, inverse).value
    weight, bias = (None if t is None else t.value for t in affine)

    def body(*i: Expr) -> Expr:
        y: Expr = Mul(at(x, *i), at(scale, *rows.row(i)))
        if weight is not None:
            y = Mul(y, at(weight, *place(i), to=kind))
        return y if bias is None else Add(y, at(bias, *place(i), to=kind))

    return make(name, x.shape, body)


@shaped(
    "input[b..., *normalized_shape], weight[*normalized_shape], bias[*normalized_shape] -> "
    "[b..., *normalized_shape]",
    where="int(normalized_shape) >= 0, eps < inf",
)
@in_float32
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * w + b`` over the last axes, variance in two passes.

    Example:
        >>> F.layer_norm(pb.tensor([[1.0, 3.0]]), 2)
        Tensor([[-0.999995,  0.999995]], dtype=float32)
    """
    kind = common(input, weight, bias)
    rank = _last(input.value.shape, normalized_shape)
    measured = moments(input.value, range(rank, len(input.shape)), kind)
    return scaled("layer_norm", measured, eps, (weight, bias), lambda i: i[rank:])


@shaped(
    "input[b..., *normalized_shape], weight[*normalized_shape] -> [b..., *normalized_shape]",
    where="int(normalized_shape) >= 0, eps < inf",
)
@in_float32
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axes.

    Example:
        >>> F.rms_norm(pb.tensor([[1.0, 3.0]]), 2)
        Tensor([[0.4472136, 1.3416407]], dtype=float32)
    """
    kind = common(input, weight)
    x = input.value if input.dtype == kind else elementwise.astype(input.value, kind)
    rank = _last(x.shape, normalized_shape)
    rows = Rows(x.shape, tuple(range(rank, len(x.shape))))
    measured = Moments(rows, x, _squares(x, rows), x, count(rows.box, kind))
    small = 2.0**-52 if kind.bits == 64 else 2.0**-23
    used = small if eps is None else eps
    return scaled("rms_norm", measured, used, (weight, None), lambda i: i[rank:])


@shaped(
    "input[n, c, s...], weight[c], bias[c] -> [n, c, s...]",
    where="int(num_groups) >= 1, c % num_groups == 0, eps < inf",
)
@in_float32
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean and variance over each of `num_groups` groups of channels, axis 1.

    Raises: ShapeError where the channels are symbolic.

    Example:
        >>> F.group_norm(pb.ones((1, 4, 3)), 2).shape
        (1, 4, 3)
    """
    kind = common(input, weight, bias)
    channels = channels_of("group_norm", input)
    size = channels // num_groups
    parts = input.reshape(input.shape[0], num_groups, size, *input.shape[2:])
    measured = moments(parts.value, range(2, len(parts.shape)), kind)

    def channel(i: Index) -> Index:
        return (Add(Mul(i[1], E.index(size)), i[2]),)

    y = scaled("group_norm", measured, eps, (weight, bias), channel)
    return y.reshape(*input.shape)


@shaped(
    "input[n, c, s...], running_mean[c], running_var[c], weight[c], bias[c] -> [n, c, s...]",
    where="eps < inf",
)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Mean and variance of each channel (axis 1) over all else; in training the running ones
    take a step, otherwise they are what is used. Raises: ShapeError, StateError.

    Example:
        >>> F.batch_norm(pb.ones((5, 2)), pb.zeros(2), pb.ones(2)).shape
        (5, 2)
    """
    channels_of("batch_norm", input)
    over = (0, *range(2, len(input.shape)))
    running = (running_mean, running_var)
    return _by_channel("batch_norm", input, over, running, (weight, bias), training, momentum, eps)


@shaped(
    "input[n, c, s...], running_mean[c], running_var[c], weight[c], bias[c] -> [n, c, s...]",
    where="eps < inf",
)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Mean and variance of each channel of each sample over space. Raises: ShapeError.

    Example:
        >>> F.instance_norm(pb.ones((1, 4, 3))).shape
        (1, 4, 3)
    """
    channels_of("instance_norm", input)
    over = range(2, len(input.shape))
    running = (running_mean, running_var)
    affine = (weight, bias)
    return _by_channel(
        "instance_norm", input, over, running, affine, use_input_stats, momentum, eps
    )


@shaped("input[n, c, s...] -> [n, c, s...]", where="int(size) >= 1")
@in_float32
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """``x / (k + alpha / size sum[d] x[c + d]^2)^beta``, d over `size` channels around c.

    Example:
        >>> F.local_response_norm(pb.ones((1, 4, 3)), 2).shape
        (1, 4, 3)
    """
    channels = channels_of("local_response_norm", input)
    near = Window(channels, size, 1, size // 2, (size - 1) // 2)
    d = axis(size)

    def squares(*i: Any) -> Any:
        x = input[(i[0], near.place(i[1], d), *i[2:])]
        return sum_of(padded(near.inside(i[1], d), x * x), over=d)

    total = written(input.shape, squares, name="squares")
    share = alpha / size
    return pointwise("response", lambda x, s: x / (s * share + k) ** beta, input, total)


def _by_channel(
    name: str,
    input: Tensor,
    over: Sequence[int],
    running: Pair,
    affine: Pair,
    own: bool,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    """A norm whose scale and running statistics have one element for each channel."""
    result = common(input, *affine)
    kind = float32 if is_short(result) else result
    x: Value = widened(input.value)
    if own:
        measured = moments(x, over, kind)
        _step(running, measured, momentum)
        return _typed(scaled(name, measured, eps, affine, lambda i: (i[1],)), result)
    if running[0] is None or running[1] is None:
        raise StateError(f"{name} without running statistics", code="E332")
    mean, var = running[0].value, running[1].value

    def away(*i: Expr) -> Expr:
        return E.subtract(at(x, *i, to=kind), at(mean, i[1], to=kind))

    centred = make("centred", x.shape, away).value
    spread = elementwise.astype(var, kind)
    rows = Rows(x.shape, tuple(n for n in range(len(x.shape)) if n != 1))
    known = Moments(rows, centred, spread, mean, E.const(1, kind))
    return _typed(scaled(name, known, eps, affine, lambda i: (i[1],)), result)


def _typed(y: Tensor, kind: DType) -> Tensor:
    rounded: Tensor = narrowed(y, kind)
    return rounded


def by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm by its input's statistics; these, by channel, the variance unbiased."""
    result = common(x, weight, bias)
    kind = float32 if is_short(result) else result
    measured = moments(widened(x.value), (0, *range(2, len(x.shape))), kind)
    y = _typed(scaled("batch_norm", measured, eps, (weight, bias), lambda i: (i[1],)), result)
    return y, Tensor(measured.mean), _unbiased(measured)


def _unbiased(measured: Moments) -> Tensor:
    """``squares / (n - 1)``"""
    squares = measured.squares
    less = E.subtract(measured.number, E.const(1, squares.dtype))
    return make("var", squares.shape, lambda *i: Div(at(squares, *i), less))


def _step(running: Pair, measured: Moments, momentum: float | Tensor) -> None:
    """``running = (1 - m) running + m new``, the new variance unbiased.

    Rows of several samples are averaged. Raises: StateError for what cannot be assigned.
    """
    for state, new in zip(running, (Tensor(measured.mean), _unbiased(measured)), strict=True):
        if state is None:
            continue
        if not isinstance(state, State):
            raise StateError(
                "running statistics take a step in training: they must be buffers",
                help="make them nn.Buffer(..)",
                code="E332",
            )
        once = new.mean(0) if len(new.shape) == 2 else new
        before: Tensor = widened(state)
        step = (before * (1.0 - momentum) + once * momentum).detach()
        state.assign(step.astype(state.dtype, copy=False))


def channels_of(name: str, input: Tensor) -> int:
    """The extent of axis 1. Raises: ShapeError where there is none."""
    if len(input.shape) < 2 or not isinstance(input.shape[1], int):
        raise ShapeError(
            f"{name}: {show(input.value.shape)} has no channels in axis 1", code="E111"
        )
    return input.shape[1]


def _last(shape: Shape, wanted: int | Sequence[int]) -> int:
    """The first axis normalised over. Raises: ShapeError where no extents are told."""
    if isinstance(wanted, list | tuple):
        return len(shape) - len(wanted)
    if not isinstance(wanted, int | np.integer):
        raise ShapeError(f"normalized_shape {wanted!r} is no whole number", code="E360")
    return len(shape) - 1
