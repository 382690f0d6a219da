"""Operators of complex numbers: pairs of real tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import pullback as pb
from pullback.bridge.aten.table import COMPLEX, RULES, Rule, aten, rule
from pullback.bridge.complexes import ELEMENTS, PAIRS
from pullback.tensor.complex.pairs import Complex


@rule(aten.view_as_real.default)
def view_as_real(z: Complex) -> Any:
    return pb.stack([z.real, z.imag], axis=-1)


@rule(aten.view_as_complex.default)
def view_as_complex(x: Any) -> Any:
    return pb.Complex(x[..., 0], x[..., 1])


@rule(aten.complex.default)
def joined(real: Any, imag: Any) -> Any:
    return pb.Complex(*pb.broadcast_arrays(real, imag))


@rule(aten.polar.default)
def polar(size: Any, angle: Any) -> Any:
    return pb.Complex.polar(size, angle)


@rule(
    aten._conj.default, aten._conj_physical.default, aten.conj_physical.default,
    aten.resolve_conj.default,
)  # fmt: skip
def conj(z: Any) -> Any:
    if isinstance(z, complex):
        return z.conjugate()
    return z.conj() if isinstance(z, Complex) else z


# --- rules of real numbers that are not those of complex ones ------------------------------------


def _half(given: Any, half: str) -> Any:
    """A part of what is complex, inside of lists too; real arguments are places and counts."""
    if isinstance(given, Complex | complex):
        return getattr(given, half)
    if isinstance(given, list | tuple):
        return type(given)([_half(g, half) for g in given])
    return given


def of_parts(overload: Any, value: int | None = None) -> Rule:
    """The rule of what is linear, of each part; `value`: which argument is a number of elements."""

    def run(*args: Any, **named: Any) -> Any:
        function = RULES[overload]
        own = list(args)
        if value is not None and value < len(args):
            own[value] = args[value] if isinstance(args[value], Complex) else complex(args[value])
        real, imag = (
            function(*_half(own, half), **_half(named, half)) for half in ("real", "imag")
        )
        return pb.Complex(real, imag)

    return run


for _overload in (
    aten.transpose.int, aten.transpose_copy.int, aten.slice_scatter.default,
    aten.slice_backward.default, aten.select_scatter.default, aten.select_backward.default,
    aten.diagonal.default, aten.diagonal_copy.default, aten.diagonal_scatter.default,
    aten.diagonal_backward.default, aten.index_put.default, aten._unsafe_index_put.default,
    aten.index_copy.default, aten.index_fill.int_Tensor, aten.gather.default, aten.scatter.src,
    aten.scatter_add.default, aten.put.default, aten.trace.default, aten.unfold.default,
    aten.unfold_copy.default, aten.as_strided_scatter.default, aten.im2col.default,
    aten.col2im.default, aten.masked_scatter.default, aten.masked_scatter_backward.default,
    aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default,
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default,
    aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default,
    aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default,
):  # fmt: skip
    COMPLEX[_overload] = of_parts(_overload)
COMPLEX[aten.constant_pad_nd.default] = of_parts(aten.constant_pad_nd.default, 2)
COMPLEX[aten.index_fill.int_Scalar] = of_parts(aten.index_fill.int_Scalar, 3)
COMPLEX[aten.scatter.value] = of_parts(aten.scatter.value, 3)


def complex_rule(*overloads: Any) -> Callable[[Rule], Rule]:
    """A decorator: the rule of these overloads, of complex numbers."""

    def add(function: Rule) -> Rule:
        COMPLEX.update(dict.fromkeys(overloads, function))
        return function

    return add


@complex_rule(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def converted(z: Any, dtype: Any = None, **_: Any) -> Any:
    if dtype is None or dtype in PAIRS:
        return z if dtype is None else pb.astype(z, PAIRS[dtype])
    return pb.not_equal(z, 0) if dtype == torch.bool else pb.astype(z.real, ELEMENTS[dtype])


@complex_rule(aten.sgn.default)
def sgn(z: Any) -> Any:
    """``z / |z|``, of 0 it is 0."""
    size = pb.abs(z)
    some = pb.where(size == 0, 1, size)
    return pb.Complex(z.real / some, z.imag / some)


@complex_rule(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(pb.matmul(a, b), x, beta, alpha)


@complex_rule(aten.addbmm.default)
def addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _added(pb.sum(pb.matmul(a, b), axis=0), x, beta, alpha)


def _added(product: Any, x: Any, beta: Any, alpha: Any) -> Any:
    own = product if alpha == 1 else product * alpha
    if beta == 0:
        return own
    return own + (x if beta == 1 else x * beta)


@complex_rule(aten.index_add.default)
def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    values = source if alpha == 1 else source * alpha
    return of_parts(aten.index_add.default)(x, dim, index, values)


@complex_rule(aten.linalg_vector_norm.default)
def vector_norm(z: Any, *args: Any, dtype: Any = None, **named: Any) -> Any:
    given = z if dtype is None else converted(z, dtype)
    return RULES[aten.linalg_vector_norm.default](pb.abs(given), *args, **named)


@complex_rule(aten.dist.default)
def dist(z: Any, w: Any, p: float = 2) -> Any:
    return vector_norm(z - w, p)


@complex_rule(aten.var.correction)
def var(z: Any, *args: Any, **named: Any) -> Any:
    """``mean |z - mean z|**2``, which is real."""
    function = RULES[aten.var.correction]
    return function(z.real, *args, **named) + function(z.imag, *args, **named)


@complex_rule(aten.std.correction)
def std(z: Any, *args: Any, **named: Any) -> Any:
    return pb.sqrt(var(z, *args, **named))


@complex_rule(aten.var_mean.correction)
def var_mean(z: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    middle = RULES[aten.mean.dim](z, dim, keepdim)
    return var(z, dim, correction=correction, keepdim=keepdim), middle


@complex_rule(aten.angle.default)
def angle(z: Any) -> Any:
    return z.angle


@complex_rule(aten.sinc.default)
def sinc(z: Any) -> Any:
    """``sin(pi z) / (pi z)``, 1 at 0."""
    turn = z * math.pi
    zero = pb.equal(z, 0)
    return pb.where(zero, 1.0, pb.sin(turn) / pb.where(zero, 1.0, turn))


@complex_rule(aten.tanh_backward.default)
def tanh_backward(head: Any, y: Any) -> Any:
    return head * (1 - y * y).conj()


@complex_rule(aten.sigmoid_backward.default)
def sigmoid_backward(head: Any, y: Any) -> Any:
    return head * (y * (1 - y)).conj()


@complex_rule(aten.silu.default)
def silu(z: Any) -> Any:
    return z * pb.sigmoid(z)


@complex_rule(aten.rsqrt.default)
def rsqrt(z: Any) -> Any:
    return 1 / pb.sqrt(z)


@complex_rule(aten.exp2.default)
def exp2(z: Any) -> Any:
    return pb.exp(z * math.log(2.0))


@complex_rule(aten.lerp.Tensor, aten.lerp.Scalar)
def lerp(z: Any, w: Any, weight: Any) -> Any:
    return z + weight * (w - z)


@complex_rule(aten.linalg_cross.default)
def cross(z: Any, w: Any, *, dim: int = -1) -> Any:
    def at(x: Any, by: int) -> Any:
        return pb.roll(x, by, axis=dim)

    return at(z, 2) * at(w, 1) - at(z, 1) * at(w, 2)


def _of_truth(overload: Any) -> None:
    """An operator of what is not 0."""

    def run(*given: Any) -> Any:
        truths = [pb.not_equal(g, 0) if isinstance(g, Complex) else g for g in given]
        return RULES[overload](*truths)

    COMPLEX[overload] = run


for _overload in (
    aten.logical_not.default, aten.logical_and.default, aten.logical_or.default,
    aten.logical_xor.default,
):  # fmt: skip
    _of_truth(_overload)
