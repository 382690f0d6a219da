"""`pb.vjp`, `pb.jvp`, `pb.hvp`: both modes and their mixture, of functions and of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from pullback.errors import GradientError
from pullback.grad.forward import tangents
from pullback.ir.graph import Value
from pullback.tensor.derive.autograd import (
    Arguments,
    derive,
    differentiable,
    grad,
    parted,
    twins_of,
)
from pullback.tensor.face.arrays import Derivative, as_arrays, as_given, given_arrays
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.face.tree import Tree, flatten, has_tensors
from pullback.tensor.record.trace import Handle, transformed

Pull = Callable[[Any], tuple[Any, ...]]


@overload
def vjp(target: Any, *primals: Any, has_aux: Literal[False] = False) -> tuple[Any, Pull]: ...
@overload
def vjp(target: Any, *primals: Any, has_aux: bool) -> tuple[Any, ...]: ...
def vjp(target: Any, *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value and its pullback: ``out, back = vjp(f, *primals); dprimals = back(dout)``.

    Of a tensor: ``y, back = vjp(y, x, w); dx, dw = back(dy)``. With `has_aux` the function returns
    a pair, whose second is passed on: ``out, back, more = vjp(f, *primals, has_aux=True)``.
    Raises: GradientError for integers.

    Example:
        >>> y, back = pb.vjp(lambda x: x * x, pb.tensor([1.0, 2.0]))
        >>> back(pb.ones(2))
        (Tensor([2., 4.], dtype=float32),)
    """
    _has_derivative(target)
    given = Arguments(primals, fresh=callable(target))
    result = transformed(target, *given.values) if callable(target) else target
    out, aux = parted(result, has_aux)
    results = flatten(out)

    def back(head: Any) -> tuple[Any, ...]:
        heads = matching(head, results, "the adjoint")
        slopes = derive([h.value for h in results.handles], given.leaves, heads)
        pulled: tuple[Any, ...] = tuple(given.rebuild([Tensor(v) for v in slopes]))
        return pulled if as_tensors else as_arrays(pulled)

    as_tensors = not given_arrays(primals)
    made = (out, aux) if as_tensors else (as_arrays(out), as_arrays(aux))
    return (made[0], back, made[1]) if has_aux else (made[0], back)


def _has_derivative(target: Any) -> None:
    """Raises: GradientError for what is neither a function nor made of tensors."""
    if (
        not callable(target)
        and not isinstance(target, Handle | list | tuple | dict)
        and (not has_tensors(target))
    ):
        raise GradientError(f"a {type(target).__name__} has no derivative")


def jvp(target: Any, primals: Any, tangent: Any) -> Any:
    """``out, dout = jvp(f, primals, tangents)``; of tensors ``dy = jvp(y, x, dx)``.

    `primals` and `tangents` are one tensor or a sequence of (trees of) them.
    Raises: GradientError for integers, or where a tangent does not fit its primal.

    Example:
        >>> pb.jvp(lambda x: x * x, (pb.tensor([1.0, 2.0]),), (pb.tensor([1.0, 0.0]),))
        (Tensor([1., 4.], dtype=float32), Tensor([2., 0.], dtype=float32))
    """
    _has_derivative(target)
    single = isinstance(primals, Handle | np.ndarray)
    given = Arguments([primals] if single else list(primals), fresh=callable(target))
    along = matching([tangent] if single else list(tangent), given.tree, "a tangent")
    out = transformed(target, *given.values) if callable(target) else target
    results = flatten(out)
    tangents = results.rebuild(forward([h.value for h in results.handles], given.leaves, along))
    return as_given((out, tangents) if callable(target) else tangents, primals)


def hvp(target: Any, primals: Any = None, tangent: Any = None) -> Any:
    """The Hessian of a scalar function, or tensor, times `tangents`: forward over reverse.

    Of several primals, a tuple: row by row the sum over all of them. Of a function alone the
    function of ``(x, dx, *args)``, which is what SciPy calls `hessp`.

    Example:
        >>> pb.hvp(lambda x: pb.sum(x**3), pb.tensor([1.0, 2.0]), pb.tensor([1.0, 0.0]))
        Tensor([6., 0.], dtype=float32)
    """
    if primals is None and callable(target):
        return Derivative(target, functools.partial(_hessp, target), [0, 1])
    if primals is None or not callable(target):
        return jvp(grad(target, primals), primals, tangent)
    if isinstance(primals, Sequence) and not primals:
        raise GradientError("hvp along no tensor", help="give one, or a pair", code="E213")
    numbers = 0 if isinstance(primals, Handle | np.ndarray) else tuple(range(len(primals)))
    return jvp(grad(target, argnums=numbers), primals, tangent)[1]


def _hessp(function: Callable[..., Any], x: Any, dx: Any, *args: Any) -> Any:
    """``d2f(x, *args)/dx2 dx``"""
    return jvp(grad(lambda x: function(x, *args)), [x], [dx])[1]


def forward(
    outputs: Sequence[Value], inputs: Sequence[Value], along: Sequence[Value]
) -> list[Tensor]:
    """The tangents of `outputs`; an input that is a result moves the definition of it too."""
    differentiable(inputs)
    known = dict(zip(inputs, along, strict=True))
    known |= {twin: known[v] for v, twin in twins_of(inputs).items()}
    return [Tensor(t) for t in tangents(outputs, list(known), list(known.values()))]


def matching(given: Any, wanted: Tree, what: str) -> list[Value]:
    """The values of a tree that is shaped like another.

    Raises: GradientError where structure, shape or type differ.
    """
    tree = flatten(given, from_array)
    if tree.key != wanted.key:
        raise GradientError(f"{what} has another structure than what it belongs to", code="E217")
    values = [h.value for h in tree.handles]
    for value, own in zip(values, wanted.handles, strict=True):
        if (value.shape, value.dtype) != (own.shape, own.dtype):
            raise GradientError(
                f"{what} is {value.dtype}{value.shape}, its tensor {own.dtype}{own.shape}",
                code="E217",
            )
    return values
