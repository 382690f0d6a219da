"""`pb.grad` and `pb.value_and_grad`: of a tensor by tensors, or from callable to callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from pullback.errors import GradientError, Origin
from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.graph import Definition, Value, Variable
from pullback.tensor import elementwise as W
from pullback.tensor.tensor import Tensor, value_of
from pullback.tensor.trace import Handle, refuse_gradient, twin
from pullback.tensor.tree import flatten


def grad(
    target: Any, wrt: Any = None, argnums: int | Sequence[int] = 0, *, head: Tensor | None = None
) -> Any:
    """The gradient of a scalar tensor by a tensor (or list of them), or the function of it.

    ``grad(y, x) -> tensor; grad(y, [x, w]) -> list; grad(f, argnums=0) -> callable``

    Raises: GradientError where the target is no scalar or an argument is no float.
    """
    if not isinstance(target, Handle) and callable(target):
        return _function(target, argnums, with_value=False)
    if not isinstance(target, Tensor):
        raise GradientError(f"a {type(target).__name__} has no gradient", origin=Origin.of_caller())
    if isinstance(wrt, Handle):
        return _gradients(target, [wrt], head)[0]
    if wrt is None:
        raise GradientError("the gradient by what? pb.grad(y, x)", origin=Origin.of_caller())
    found = _gradients(target, list(wrt), head)
    return tuple(found) if isinstance(wrt, tuple) else found


def value_and_grad(target: Any, wrt: Any = None, argnums: int | Sequence[int] = 0) -> Any:
    """The value too: ``(y, grad(y, x))``, or the function that gives both."""
    if not isinstance(target, Handle) and callable(target):
        return _function(target, argnums, with_value=True)
    return target, grad(target, wrt)


def _gradients(target: Handle, wrt: Sequence[Handle], head: Tensor | None = None) -> list[Tensor]:
    output = target.value
    refuse_gradient([output])
    _check(output, head)
    start = None if head is None else head.value
    inputs = [w.value for w in wrt]
    for value in inputs:
        if not value.dtype.is_float:
            raise GradientError(
                f"no gradient by a tensor of {value.dtype}", origin=Origin.of_caller()
            )
    return [Tensor(g) for g in _total(output, inputs, start)]


def _total(output: Value, inputs: Sequence[Value], head: Value | None) -> list[Value]:
    """Gradients by `inputs`; one that is a result is also met as the definition of it."""
    twins = {v: t for v in inputs if isinstance(v, Variable) and (t := twin(v)) is not None}
    found = gradients(output, [*inputs, *twins.values()], head)
    extra = dict(zip(twins, found[len(inputs) :], strict=True))
    return [
        W.elementwise("add", E.Add, [g, extra[v]]) if v in extra else g
        for v, g in zip(inputs, found[: len(inputs)], strict=True)
    ]


def _check(output: Value, head: Tensor | None) -> None:
    if not output.dtype.is_float:
        raise GradientError(
            f"a tensor of {output.dtype} has no gradient", origin=Origin.of_caller()
        )
    if head is None and output.shape != ():
        raise GradientError(
            f"the gradient of a tensor of shape {W.show(output.shape)}: a scalar is needed",
            origin=Origin.of_caller(),
            help="sum it first, or give the adjoint: pb.grad(y, x, head=dy)",
        )


def _function(
    function: Callable[..., Any], argnums: int | Sequence[int], *, with_value: bool
) -> Callable[..., Any]:
    single = isinstance(argnums, int)
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)

    @wraps(function)
    def derivative(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        trees = {}
        for n in numbers:
            place = n % len(given) if -len(given) <= n < len(given) else None
            if place is None:
                raise GradientError(
                    f"argnums={n} of {len(given)} arguments", origin=Origin.of_caller()
                )
            tree = flatten(given[place], _argument)
            trees[n] = tree, [Tensor(_fresh(h.value)) for h in tree.handles]
            given[place] = tree.rebuild(trees[n][1])
        result = function(*given, **kwargs)
        if not isinstance(result, Tensor):
            raise GradientError(
                f"the function returned a {type(result).__name__}, not a tensor",
                origin=Origin.of_caller(),
            )
        flat = [t for n in numbers for t in trees[n][1]]
        found = iter(_gradients(result, flat))
        parts = tuple(tree.rebuild([next(found) for _ in own]) for tree, own in trees.values())
        answer = parts[0] if single else parts
        return (result, answer) if with_value else answer

    return derivative


def _argument(leaf: Any) -> Handle:
    return leaf if isinstance(leaf, Handle) else Tensor(value_of(leaf))


def _fresh(value: Value) -> Definition:
    """A value of its own for an argument: ``f(x, x)`` has two gradients."""
    return W.copy(value, "argument")
