"""`pb.grad` and `pb.value_and_grad`: of a tensor by tensors, or from callable to callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from pullback.config import frozen
from pullback.errors import GradientError
from pullback.grad.reverse import Reverse
from pullback.ir import expr as E
from pullback.ir.graph import Definition, Value, Variable
from pullback.tensor.face.arrays import Derivative
from pullback.tensor.face.tensor import Tensor, from_array, value_of
from pullback.tensor.face.tree import flatten, has_tensors
from pullback.tensor.record.trace import Handle, together, transformed, twin
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


@overload
def grad(target: Callable[Concatenate[A, P], Any]) -> Callable[Concatenate[A, P], A]: ...
@overload
def grad(
    target: Callable[P, Any],
    *,
    argnums: int | Sequence[int] = 0,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Callable[P, Any]: ...
@overload
def grad(target: Tensor, wrt: Tensor, *, head: Tensor | None = None) -> Tensor: ...
@overload
def grad(
    target: Any,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    *,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Any: ...
def grad(
    target: Any,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    *,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Any:
    """The gradient of a scalar tensor by a tensor (or list of them), or the function of it.

    ``grad(y, x) -> tensor; grad(y, [x, w]) -> list; grad(f, argnums=0) -> callable``, whose
    gradients by NumPy arrays are NumPy arrays. `grad(f, 0)` is `grad(f, argnums=0)`. With `has_aux`
    the function returns a pair, whose second is passed on: ``dx, more = grad(f, has_aux=True)(x)``.

    Raises: GradientError where the target is no scalar or an argument is no float.

    Example:
        >>> pb.grad(lambda x: pb.sum(x * x))(pb.tensor([1.0, 2.0]))
        Tensor([2., 4.], dtype=float32)
    """
    if not isinstance(target, Handle) and callable(target):
        return _function(target, argnums, (wrt, head), Answer(has_aux=has_aux))
    if has_aux:
        raise GradientError(
            "has_aux: a tensor comes with nothing else",
            help="pb.grad(f, has_aux=True)(x), of a function that returns (value, more)",
            code="E219",
        )
    if not isinstance(target, Tensor):
        raise GradientError(f"a {type(target).__name__} has no gradient")
    if isinstance(wrt, Handle):
        return _gradients(target, [wrt], head)[0]
    if wrt is None:
        raise GradientError("the gradient by what? pb.grad(y, x)", code="E212")
    if has_tensors(wrt):
        tree = flatten(wrt)
        return tree.rebuild(_gradients(target, tree.handles, head))
    slopes = _gradients(target, list(wrt), head)
    return tuple(slopes) if isinstance(wrt, tuple) else slopes


@overload
def value_and_grad(
    target: Callable[Concatenate[A, P], R],
) -> Callable[Concatenate[A, P], tuple[R, A]]: ...
@overload
def value_and_grad(
    target: Callable[P, R],
    *,
    argnums: int | Sequence[int] = 0,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    target: Tensor, wrt: Tensor, *, head: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def value_and_grad(
    target: Any,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    *,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Any: ...
def value_and_grad(
    target: Any,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    *,
    head: Tensor | None = None,
    has_aux: bool = False,
) -> Any:
    """The value too: ``(y, grad(y, x))``, or the function that gives both: of arrays, arrays.

    With `has_aux`: ``(y, more), dx = value_and_grad(f, has_aux=True)(x)``.

    Example:
        >>> pb.value_and_grad(lambda x: pb.sum(x * x))(pb.tensor([1.0, 2.0]))
        (Tensor(5., dtype=float32), Tensor([2., 4.], dtype=float32))
    """
    if not isinstance(target, Handle) and callable(target):
        return _function(target, argnums, (wrt, head), Answer(with_value=True, has_aux=has_aux))
    return target, grad(target, wrt, head=head, has_aux=has_aux)


def _gradients(target: Handle, wrt: Sequence[Handle], head: Tensor | None = None) -> list[Tensor]:
    output = target.value
    _check(output, head)
    start = None if head is None else from_array(head).value
    slopes = derive([output], [w.value for w in wrt], [start])
    together(slopes)
    return [Tensor(g) for g in slopes]


def derive(
    outputs: Sequence[Value], inputs: Sequence[Value], heads: Sequence[Value | None]
) -> list[Value]:
    """Gradients by `inputs`; one that is a result is also met as the definition of it."""
    differentiable(inputs)
    twins = twins_of(inputs)
    state = Reverse(outputs, [*inputs, *twins.values()], heads)
    return [
        W.elementwise("add", E.Add, [state.gradient(v), state.gradient(twins[v])])
        if v in twins
        else state.gradient(v)
        for v in inputs
    ]


def differentiable(inputs: Sequence[Value]) -> None:
    """Raises: GradientError for what is no float."""
    for value in inputs:
        if not value.dtype.is_float:
            raise GradientError(f"no gradient by a tensor of {value.dtype}", code="E204")


def twins_of(inputs: Sequence[Value]) -> dict[Value, Definition]:
    """The definitions of those inputs that are results."""
    return {v: t for v in inputs if isinstance(v, Variable) and (t := twin(v)) is not None}


def _check(output: Value, head: Tensor | None) -> None:
    if not output.dtype.is_float:
        raise GradientError(f"a tensor of {output.dtype} has no gradient", code="E202")
    if head is None and output.shape != ():
        raise GradientError(
            f"the gradient of a tensor of shape {W.show(output.shape)}: a scalar is needed",
            help="sum it first, or give the adjoint: pb.grad(y, x, head=dy)",
            code="E203",
        )


class Arguments:
    """Trees of tensors that a derivative is taken by.

    `fresh`: each leaf as a value of its own, for a call: ``f(x, x)`` has two gradients.
    """

    def __init__(self, trees: Sequence[Any], *, fresh: bool) -> None:
        self.tree = flatten(list(trees), _argument)
        own = [h.value for h in self.tree.handles]
        self.leaves: list[Value] = [W.copy(v, "argument") for v in own] if fresh else own
        differentiable(self.leaves)
        self.values: list[Any] = self.rebuild([Tensor(v) for v in self.leaves])

    def rebuild(self, leaves: Sequence[Any]) -> list[Any]:
        """One tree per argument around other leaves."""
        trees: list[Any] = self.tree.rebuild(leaves)
        return trees


@frozen
class Answer:
    """What a derived function returns beside the gradient: the value, what came with it."""

    with_value: bool = False
    has_aux: bool = False

    def of(self, value: Any, aux: Any, slope: Any) -> Any:
        """``((value, aux), slope)``, or what is asked for of it."""
        first = (value, aux) if self.has_aux else value
        if self.with_value:
            return first, slope
        return (slope, aux) if self.has_aux else slope


def parted(result: Any, has_aux: bool) -> tuple[Any, Any]:
    """What a function returned, and what came with it.

    Raises: GradientError where it should be a pair and is none.
    """
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise GradientError(
            f"has_aux: the function returned a {type(result).__name__}, not a pair (value, more)",
            code="E213",
        )
    return result


def _function(
    function: Callable[..., Any],
    argnums: int | Sequence[int],
    given: tuple[Any, Any],
    answer: Answer,
) -> Callable[..., Any]:
    """Raises: GradientError for what only a tensor's gradient takes."""
    if argnums == 0 and given[0] is not None and _numbers(given[0]):
        argnums, given = given[0], (None, given[1])
    if any(g is not None for g in given):
        raise GradientError(
            "a function's gradient is a function: by arguments, and from a scalar",
            help="pb.grad(f, argnums=1)(x, w); with a head it is pb.vjp(f, x, w)",
            code="E219",
        )
    single = not isinstance(argnums, Sequence)
    listed = argnums if isinstance(argnums, Sequence) else [argnums]
    numbers = [V.whole(n, "argnums") for n in listed]

    def derivative(*args: Any, **kwargs: Any) -> Any:
        places = [_place(n, len(args)) for n in numbers]
        own = Arguments([args[n] for n in places], fresh=True)
        given = list(args)
        for n, value in zip(places, own.values, strict=True):
            given[n] = value
        result, aux = parted(transformed(function, *given, **kwargs), answer.has_aux)
        if not isinstance(result, Tensor):
            raise GradientError(
                f"the function returned a {type(result).__name__}, not a tensor", code="E213"
            )
        _check(result.value, None)
        slopes = derive([result.value], own.leaves, [None])
        beside = [h.value for h in flatten(aux).handles] if answer.has_aux else []
        together([*([result.value] if answer.with_value else ()), *slopes, *beside])
        by_argument = own.rebuild([Tensor(g) for g in slopes])
        return answer.of(result, aux, by_argument[0] if single else tuple(by_argument))

    return Derivative(function, derivative, numbers)


def _numbers(wrt: Any) -> bool:
    """Whether these are places of arguments, which stand where a tensor would."""
    listed = wrt if isinstance(wrt, list | tuple) else [wrt]
    return bool(listed) and all(isinstance(n, int) and not isinstance(n, bool) for n in listed)


def _place(number: int, count: int) -> int:
    """`number` counted from the front. Raises: GradientError where there is no such argument."""
    if not -count <= number < count:
        raise GradientError(f"argnums={number} of {count} arguments", code="E211")
    return number % count


def _argument(leaf: Any) -> Handle:
    return leaf if isinstance(leaf, Handle) else Tensor(value_of(leaf))
