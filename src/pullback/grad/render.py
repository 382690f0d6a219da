"""Solutions as expressions: where element `x` is read, over its axes (0..) and the loops left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pullback.algebra.affine import make, to_expr
from pullback.config import Pair, frozen
from pullback.grad.invert import Condition, Solution
from pullback.grad.system import Form, System
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, Extent, Less, Shape


@frozen
class Inverse:
    """Domain axes as expressions, loops that follow the axes of x, and guards.

    `steps`: of axes of x the (modulus, remainder) outside of which nothing is read; not in guards.
    """

    axes: Mapping[int, Expr]
    over: Shape
    guards: Exprs
    steps: Mapping[int, Pair]

    def stepped(self, shape: Sequence[Extent]) -> list[Expr]:
        """The steps as conditions: ``x % modulus == remainder``."""
        return [
            E.Equal(E.Mod(Axis(n, shape[n]), E.index(modulus)), E.index(remainder))
            for n, (modulus, remainder) in self.steps.items()
        ]


def rendered(solution: Solution, shape: Shape, simplify: Callable[[Expr], Expr]) -> Inverse:
    """The solution with parameters as axes 0.., loops after them."""
    system = solution.system
    names: dict[int, Expr] = {
        v: Axis(n, e) for n, (v, e) in enumerate(zip(system.parameters, shape, strict=True))
    }
    names |= {v: E.extent_expr(dim) for dim, v in system.dims.items()}
    for n, loop in enumerate(solution.loops):
        names[loop.variable] = Axis(len(shape) + n, loop.extent)
    for v, (inner, divisor, _) in system.floors.items():
        names[v] = E.FloorDiv(_expression(system, inner, names), E.index(divisor))
    axes = {n: simplify(_expression(system, f, names)) for n, f in enumerate(solution.axes)}
    steps: dict[int, Pair] = {}
    rest: list[Condition] = []
    for guard in solution.guards:
        step = _step(system, guard)
        if step is None or steps.setdefault(step[0], step[1]) != step[1]:
            rest.append(guard)
    guards = tuple(simplify(_condition(system, g, names)) for g in rest)
    over = tuple(loop.extent for loop in solution.loops)
    return Inverse(axes, over, guards, steps)


def _step(system: System, guard: Condition) -> tuple[int, Pair] | None:
    """``(x - 1) % 3 == 0`` of parameter x as its number and (3, 1)."""
    variables = guard.form.atoms
    if guard.kind != "div" or len(variables) > 1 or variables[0] not in system.parameters:
        return None
    remainder = -guard.form.const % guard.modulus
    return system.parameters.index(variables[0]), (guard.modulus, remainder)


def _expression(system: System, form: Form, names: Mapping[int, Expr]) -> Expr:
    """A form over variables by their names.."""
    return to_expr(make(*_terms(system, form, names)))


def _terms(
    system: System, form: Form, names: Mapping[int, Expr]
) -> tuple[list[tuple[Expr, int]], int]:
    """``x - x // 3 * 3 + 2 -> [(x % 3, 1)], 2``"""
    rest, remainders = system.rejoined(form)
    terms = [(names[v], c) for v, c in rest.terms]
    for inner, divisor, factor in remainders:
        whole = _expression(system, inner, names)
        terms.append((E.Mod(whole, E.index(divisor)), factor))
    return terms, rest.const


def _condition(system: System, guard: Condition, names: Mapping[int, Expr]) -> Expr:
    """``x - 2 >= 0 -> 1 < x``; ``n - x >= 0 -> x < n + 1``."""
    if guard.kind == "div":
        whole = _expression(system, guard.form, names)
        return E.Equal(E.Mod(whole, E.index(guard.modulus)), E.index(0))
    terms, rest = _terms(system, guard.form, names)
    low = [(e, -c) for e, c in terms if c < 0]
    high = [(e, c) for e, c in terms if c > 0]
    if guard.kind == "eq":
        return E.Equal(to_expr(make(high, 0)), to_expr(make(low, -rest)))
    if not low:
        return Less(E.index(-rest - 1), to_expr(make(high, 0)))
    return Less(to_expr(make(low, 0)), to_expr(make(high, rest + 1)))
