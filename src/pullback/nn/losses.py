"""Losses as functions, under torch's names: composites of maps and sums."""

from __future__ import annotations

from pullback.errors import Origin, ShapeError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, Div, Expr, Extent, If, Mul
from pullback.ir.graph import Value
from pullback.nn.build import at, common, count, make, total
from pullback.tensor.elementwise import show
from pullback.tensor.tensor import Tensor

Shape = tuple[Extent, ...]


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``(x - t)^2``"""
    return _pairwise("squared_error", input, target, reduction, F.square)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``|x - t|``"""
    return _pairwise("absolute_error", input, target, reduction, _distance)


def _distance(x: Expr) -> Expr:
    """``|x|`` with derivative 0 at 0."""
    zero = F.like(0, x)
    positive = If(E.Less(zero, x), x, zero)
    return If(E.Less(x, zero), E.negate(x), positive)


def _pairwise(
    name: str, input: Tensor, target: Tensor, reduction: str, function: F.Scalar
) -> Tensor:
    kind = common(input, target)
    _same_shape(name, input, target)
    x, t = input.value, target.value

    def body(*i: Expr) -> Expr:
        return function(E.subtract(at(x, *i, to=kind), at(t, *i, to=kind)))

    return reduced(make(name, x.shape, body), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """``-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))``, stable for large |x|."""
    kind = common(input, target)
    _same_shape("binary cross entropy", input, target)
    x, t = input.value, target.value
    one = E.const(1, kind)

    def plain(*i: Expr) -> Expr:
        value, wanted = at(x, *i, to=kind), at(t, *i, to=kind)
        gate = E.negate(F.log_sigmoid(value))
        if pos_weight is not None:
            heavy = at(pos_weight.value, *_stretched(pos_weight.value, x.shape, i), to=kind)
            factor = Add(one, Mul(E.subtract(heavy, one), wanted))
            gate = Mul(factor, gate)
        return Add(Mul(E.subtract(one, wanted), value), gate)

    def body(*i: Expr) -> Expr:
        found = plain(*i)
        if weight is None:
            return found
        return Mul(found, at(weight.value, *_stretched(weight.value, x.shape, i), to=kind))

    return reduced(make("binary_cross_entropy", x.shape, body), reduction)


def _stretched(value: Value, shape: Shape, index: tuple[Expr, ...]) -> list[Expr]:
    """The index of `value` broadcast to `shape`, aligned at the end."""
    tail = list(index[len(shape) - len(value.shape) :])
    return [E.index(0) if e == 1 else i for e, i in zip(value.shape, tail, strict=True)]


def _same_shape(name: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ShapeError(
            f"{name}: input {show(input.shape)}, target {show(target.shape)}",
            origin=Origin.of_caller(),
            help="both must have one shape",
        )


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The losses themselves ("none"), their "sum" or their "mean"."""
    known_reduction(reduction)
    if reduction == "none":
        return losses
    if reduction == "sum" or not losses.shape:
        return total(losses)
    return divided(total(losses), count(losses.value.shape, losses.dtype))


def divided(losses: Tensor, by: Expr) -> Tensor:
    """``loss / by``"""
    value = losses.value
    return make("mean_loss", (), lambda: Div(at(value), by))


def known_reduction(reduction: str) -> None:
    """Raises: UnsupportedError for an unknown reduction."""
    if reduction not in ("none", "mean", "sum"):
        raise UnsupportedError(
            f"reduction={reduction!r}",
            origin=Origin.of_caller(),
            help='use "none", "mean" or "sum"',
        )
