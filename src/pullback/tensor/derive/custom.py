"""`pb.custom_vjp` and `pb.custom_jvp`: functions whose derivative is given by hand.

@pb.custom_vjp
def f(x): ...
f.defvjp(lambda x: (f(x), x), lambda x, g: (g * 2.0 * x,))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import GradientError
from pullback.grad.reverse import Reverse, zeros
from pullback.ir import expr as E
from pullback.ir.graph import Rule, Value, Variable, topological, variables
from pullback.ir.node import walk
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.face.tree import Tree, flatten
from pullback.tensor.record.trace import placeholder
from pullback.tensor.shaped.given import functions
from pullback.tensor.values import elementwise as W


class _Custom:
    """A function of tensors whose results carry a rule. `nondiff_argnums` are given as they are."""

    kind: str

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        functions(function=function)
        functools.update_wrapper(self, function)
        self.function = function
        self.name = str(getattr(function, "__name__", "function"))
        self.static = frozenset(nondiff_argnums)

    def __call__(self, *args: Any) -> Any:
        call = _Call(self, args)
        results = flatten(self.function(*args))
        values = [W.copy(h.value, self.name) for h in results.handles]
        if any(v.dtype.is_float for v in values):
            rule = self.rule(call, results, [v for v in values if v.dtype.is_float])
            for value in rule.outputs:
                assert not isinstance(value, Variable)
                value.rule = rule
        return results.rebuild([Tensor(v) for v in values])

    def rule(self, call: _Call, results: Tree, outputs: Sequence[Value]) -> Rule:
        """The rule between the float arguments of a call and its float results."""
        raise NotImplementedError

    def missing(self, method: str) -> GradientError:
        """The error of a function whose rule was never given."""
        return GradientError(f"{self.name} has no derivative yet: call .{method}", code="E209")


class _Call:
    """The arguments of one call: the static ones and the trees of the others."""

    def __init__(self, custom: _Custom, args: Sequence[Any]) -> None:
        self.kind = custom.kind
        self.args = args
        self.fixed = [a for n, a in enumerate(args) if n in custom.static]
        self.tree = flatten([a for n, a in enumerate(args) if n not in custom.static])
        self.floats = tuple(h.value for h in self.tree.handles if h.dtype.is_float)

    def spread(self, tree: Tree, floats: Sequence[Value]) -> Any:
        """`tree` with values for its float leaves, zeros for the others."""
        given = iter(floats)
        leaves = [next(given) if h.dtype.is_float else zeros(h.value) for h in tree.handles]
        return tree.rebuild([Tensor(v) for v in leaves])

    def adjoints(self, returned: Any) -> list[Value | None]:
        """What a backward function returned, for each float leaf of the arguments.

        Raises: GradientError where it is not shaped like the arguments.
        """
        parts = list(returned) if isinstance(returned, tuple | list) else [returned]
        own = self.tree.rebuild(self.tree.handles)
        if len(parts) != len(own):
            raise GradientError(
                f"a {self.kind} gave {len(parts)} adjoints for {len(own)} arguments", code="E207"
            )
        values: list[Value | None] = []
        for part, argument in zip(parts, own, strict=True):
            wanted = flatten(argument)
            given = flatten(part)
            if part is not None and given.key != wanted.key and wanted.handles:
                raise GradientError(
                    f"a {self.kind} gave an adjoint of another structure than its argument",
                    code="E208",
                )
            whole = given.handles if given.key == wanted.key else [None] * len(wanted.handles)
            pairs = zip(whole, wanted.handles, strict=True)
            values += [None if g is None else g.value for g, h in pairs if h.dtype.is_float]
        return values


class custom_vjp(_Custom):
    """A function with its own reverse mode, given by ``defvjp(fwd, bwd)``.

    ``fwd(*args) -> (out, residuals)``, ``bwd(*nondiff, residuals, dout) -> (dargs, ..)``; None is
    no influence. Forward mode is the transpose of `bwd`, which must be linear in `dout`.

    Example:
        >>> f = pb.custom_vjp(lambda x: x * x)
        >>> f.defvjp(lambda x: (x * x, x), lambda x, dout: (2 * x * dout,))
        >>> pb.grad(f)(pb.tensor(3.0))
        Tensor(6., dtype=float32)
    """

    kind = "custom_vjp"
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Say how adjoints go back."""
        self.forward, self.backward = forward, backward

    def rule(self, call: _Call, results: Tree, outputs: Sequence[Value]) -> Rule:
        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            if self.forward is None or self.backward is None:
                raise self.missing("defvjp(fwd, bwd)")
            _, residuals = self.forward(*call.args)
            return call.adjoints(self.backward(*call.fixed, residuals, call.spread(results, heads)))

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            return _transposed(pull, outputs, tangents, f"the backward of {self.name}")

        return Rule(self.kind, tuple(outputs), call.floats, pull, push)


class custom_jvp(_Custom):
    """A function with its own forward mode, given by ``defjvp``; reverse mode is its transpose.

    ``jvp(*nondiff, primals, tangents) -> (out, tangent)``, linear in `tangents`.

    Example:
        >>> f = pb.custom_jvp(lambda x: x * x)
        >>> rule = f.defjvp(lambda x, t: (x[0] * x[0], 2 * x[0] * t[0]))
        >>> pb.grad(f)(pb.tensor(3.0))
        Tensor(6., dtype=float32)
    """

    kind = "custom_jvp"
    along: Callable[..., Any] | None = None

    def defjvp(self, along: Callable[..., Any]) -> Callable[..., Any]:
        """Say how tangents go forward; a decorator."""
        self.along = along
        return along

    def rule(self, call: _Call, results: Tree, outputs: Sequence[Value]) -> Rule:
        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            if self.along is None:
                raise self.missing("defjvp(jvp)")
            primals = tuple(call.tree.rebuild(call.tree.handles))
            moved = tuple(call.spread(call.tree, tangents))
            _, pushed = self.along(*call.fixed, primals, moved)
            floats = zip(flatten(pushed).handles, results.handles, strict=True)
            return [h.value for h, own in floats if own.dtype.is_float]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            return _transposed(push, call.floats, heads, f"the jvp of {self.name}")

        return Rule(self.kind, tuple(outputs), call.floats, pull, push)


def _transposed(
    linear: Callable[[Sequence[Value]], Sequence[Value | None]],
    like: Sequence[Value],
    given: Sequence[Value],
    what: str,
) -> list[Value]:
    """``A' given`` of a function ``x -> A x``, whose arguments are shaped as `like`.

    Raises: GradientError where it is not linear.
    """
    moved = [placeholder("tangent", v.shape, v.dtype) for v in like]
    pairs = [(f, g) for f, g in zip(linear(moved), given, strict=True) if f is not None]
    results = [f for f, _ in pairs]
    state = Reverse(results, moved, [g for _, g in pairs])
    pulled = [state.gradient(v) for v in moved]
    if any(v in moved for v in variables(pulled)) or _steps(results, moved):
        raise GradientError(
            f"{what} is not linear in what it is given, so it has no transpose",
            origin=like[0].origin,
            help="give a custom_jvp with a linear rule",
            code="E210",
        )
    return pulled


def _steps(results: Sequence[Value], moved: Sequence[Value]) -> bool:
    """Whether a derivative of 0 hides what `results` do with `moved`: rounding, comparing."""
    reached = set(moved)
    for definition in topological(results):
        if not any(s in reached for s in definition.sources):
            continue
        reached.add(definition)
        uses: set[E.Expr] = set()
        for node in walk(definition.roots):
            if not isinstance(node, E.Expr):
                continue
            taken = isinstance(node, E.Take) and node.source in reached
            if taken or any(c in uses for c in node.children):
                uses.add(node)
        hidden = (E.FloorDiv, E.Mod)
        steps = any(isinstance(n, hidden) or not n.dtype.is_float for n in uses)
        if definition.stop or steps:
            return True
    return False
