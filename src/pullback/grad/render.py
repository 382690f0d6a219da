"""Solutions as expressions: where element `x` is read, over its axes (0..) and the loops left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pullback.grad.invert import Guard, Solution
from pullback.grad.system import ONE, Form, System, constant, plus
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, Less
from pullback.simplify.affine import make, to_expr


@dataclass(frozen=True, slots=True)
class Inverse:
    """Domain axes as expressions, loops that follow the axes of x, and guards."""

    axes: Mapping[int, Expr]
    over: tuple[Extent, ...]
    guards: tuple[Expr, ...]


def rendered(
    solution: Solution, shape: tuple[Extent, ...], simplify: Callable[[Expr], Expr]
) -> Inverse:
    """The solution with parameters as axes 0.., loops after them."""
    system = solution.system
    names: dict[int, Expr] = {
        v: Axis(n, e) for n, (v, e) in enumerate(zip(system.parameters, shape, strict=True))
    }
    names |= {v: E.Size(dim) for dim, v in system.dims.items()}
    for n, loop in enumerate(solution.loops):
        names[loop.variable] = Axis(len(shape) + n, loop.extent)
    for v, (inner, divisor, _) in system.floors.items():
        names[v] = E.FloorDiv(_expression(system, inner, names), E.index(divisor))
    axes = {n: simplify(_expression(system, f, names)) for n, f in enumerate(solution.axes)}
    guards = tuple(simplify(_condition(system, g, names)) for g in solution.guards)
    over = tuple(loop.extent for loop in solution.loops)
    return Inverse(axes, over, guards)


def _expression(system: System, form: Form, names: Mapping[int, Expr]) -> Expr:
    """``{x: 2, ONE: 3} -> x * 2 + 3``."""
    rest, remainders = system.rejoined(form)
    terms = [(names[v], c) for v, c in rest.items() if v != ONE]
    for inner, divisor, factor in remainders:
        whole = _expression(system, inner, names)
        terms.append((E.Mod(whole, E.index(divisor)), factor))
    return to_expr(make(terms, rest.get(ONE, 0)))


def _condition(system: System, guard: Guard, names: Mapping[int, Expr]) -> Expr:
    """``x - 2 >= 0 -> 1 < x``; ``n - x >= 0 -> x < n + 1``."""
    if guard.kind == "div":
        whole = _expression(system, guard.form, names)
        return E.Equal(E.Mod(whole, E.index(guard.modulus)), E.index(0))
    low = {v: -c for v, c in guard.form.items() if c < 0 and v != ONE}
    high = {v: c for v, c in guard.form.items() if c > 0 and v != ONE}
    rest = guard.form.get(ONE, 0)
    if guard.kind == "eq":
        right = plus(low, constant(-rest))
        return E.Equal(_expression(system, high, names), _expression(system, right, names))
    if not low:
        return Less(E.index(-rest - 1), _expression(system, high, names))
    right = plus(high, constant(rest + 1))
    return Less(_expression(system, low, names), _expression(system, right, names))
