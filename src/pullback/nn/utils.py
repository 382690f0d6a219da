"""Clipping of gradients, under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Add, Div, Expr, If, Less, Mul
from pullback.ir.graph import MAX, SUM, Value
from pullback.nn.base.build import at, cast, make
from pullback.nn.base.parameter import Parameter, check_whole
from pullback.tensor.face.dialect import shown
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values.functions import constant_power
from pullback.tensor.values.precise import narrowed

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
__dir__ = shown(__all__)

TINY = 1e-6  # torch's: keeps a zero norm from dividing


@shaped("", where="max_norm >= 0, norm_type != 0")
def clip_grad_norm_(
    parameters: Iterable[Parameter] | Parameter, max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """``g = g * min(1, max_norm / (norm + 1e-6))``, norm over all gradients; returns the norm.

    `norm_type` is 2, 1 or infinity; another finite one works through powers.

    Example:
        >>> w = nn.Parameter(pb.tensor([3.0, 4.0]))
        >>> (pb.sum(w * w) / 2).backward()
        >>> pb.optim.clip_grad_norm_([w], 1.0)
        Tensor(5., dtype=float32)
        >>> w.grad.tolist()
        [0.5999999046325684, 0.7999998331069946]
    """
    owners = _with_grad(parameters)
    grads = [p.grad for p in owners if p.grad is not None]
    return clip(owners, grads, norm_of(grads, norm_type), max_norm)


def clip(
    owners: Sequence[Parameter], grads: Sequence[Tensor], norm: Tensor, max_norm: float
) -> Tensor:
    """``g = g * min(1, max_norm / (norm + 1e-6))``; the norm, of the gradients' type."""
    length = norm.value
    one = E.const(1, norm.dtype)

    def share() -> Expr:
        ratio = Div(E.const(max_norm, norm.dtype), Add(at(length), E.const(TINY, norm.dtype)))
        return E.minimum(ratio, one)

    scale = make("clip", (), share).value
    for parameter, grad in zip(owners, grads, strict=True):
        parameter.grad = make("clipped", grad.shape, _scaled(grad.value, scale))
    whole: Tensor = narrowed(norm, grads[0].dtype) if grads else norm
    return whole


def _scaled(grad: Value, scale: Value) -> Callable[..., Expr]:
    kind = scale.dtype if is_short(grad.dtype) else grad.dtype
    return lambda *i: cast(Mul(at(grad, *i, to=kind), at(scale, to=kind)), grad.dtype)


def norm_of(grads: Sequence[Tensor], order: float) -> Tensor:
    """The norm of all gradients together, from one sum for each."""
    kind = grads[0].dtype if grads and not is_short(grads[0].dtype) else float32
    infinite = order == float("inf")

    def term(x: Expr) -> Expr:
        if order == 2.0:
            return F.square(x)
        return F.absolute(x) if order == 1.0 or infinite else constant_power(F.absolute(x), order)

    by = MAX if infinite else SUM
    parts = [
        make("part_norm", (), _terms(term, g.value, kind), over=g.shape, combiner=by).value
        for g in grads
    ]

    def whole() -> Expr:
        join = E.maximum if infinite else Add
        total = reduce(join, map(at, parts)) if parts else E.const(0, kind)
        if order == 2.0:
            return E.Sqrt(total)
        return total if order == 1.0 or infinite else constant_power(total, 1.0 / order)

    return make("grad_norm", (), whole)


def _terms(term: F.Scalar, grad: Value, kind: DType) -> Callable[..., Expr]:
    return lambda *i: term(at(grad, *i, to=kind))


@shaped("", where="clip_value >= 0")
def clip_grad_value_(parameters: Iterable[Parameter] | Parameter, clip_value: float) -> None:
    """``g = min(max(g, -clip), clip)``

    Example:
        >>> w = nn.Parameter(pb.tensor([3.0, 4.0]))
        >>> (pb.sum(w * w) / 2).backward()
        >>> pb.optim.clip_grad_value_([w], 3.5)
        >>> w.grad.tolist()
        [3.0, 3.5]
    """
    for parameter in _with_grad(parameters):
        if parameter.grad is None:
            continue
        grad = parameter.grad.value
        high = E.const(clip_value, grad.dtype)
        low = E.const(-clip_value, grad.dtype)

        def body(*i: Expr, grad: Value = grad, low: Expr = low, high: Expr = high) -> Expr:
            x = at(grad, *i)
            return If(Less(x, low), low, If(Less(high, x), high, x))

        parameter.grad = make("clipped", grad.shape, body)


def _with_grad(parameters: Iterable[Parameter] | Parameter) -> list[Parameter]:
    listed = [parameters] if isinstance(parameters, Parameter) else list(parameters)
    check_whole(listed)
    return [p for p in listed if p.grad is not None]
