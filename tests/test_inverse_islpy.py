"""Index-map inversion beside islpy: 2,000 random maps, each inverse equal as a relation."""

from __future__ import annotations

import random

import pytest

from pullback.grad.invert import Empty, Unsolvable, invert
from pullback.grad.render import Inverse, rendered
from pullback.grad.system import System, variable
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.node import walk

isl = pytest.importorskip("islpy", reason="islpy is not installed (extra dev)")
MAPS = 2000
UNSOLVED = 0.02  # of all maps at most: a solver that gives up always would be right, too

SYMBOLS = {
    E.Add: "({} + {})", E.Mul: "({} * {})", E.FloorDiv: "floor({} / {})", E.Mod: "({} mod {})",
    E.Less: "({} < {})", E.Equal: "({} = {})", E.And: "({} and {})", E.Or: "({} or {})",
}  # fmt: skip


def text(root: Expr, names: list[str]) -> str:
    """An index expression or condition as isl writes it."""
    found: dict[object, str] = {}
    for node in walk(root):
        match node:
            case E.Axis():
                found[node] = names[node.number]
            case E.Const():
                found[node] = str(node.value).lower() if node.dtype.is_bool else str(node.value)
            case E.Xor():
                assert isinstance(node.right, E.Const) and node.right.value is True
                found[node] = f"(not {found[node.left]})"
            case E.Binary():
                found[node] = SYMBOLS[type(node)].format(found[node.left], found[node.right])
    return found[root]


def drawn(draw: random.Random, axes: list[Expr]) -> Expr:
    """``sum of c * axis + constant``, then perhaps ``// d`` or ``% d``, twice at most."""
    whole: Expr = E.index(draw.randint(-4, 8))
    for axis in axes:
        whole = E.Add(whole, E.Mul(axis, E.index(draw.choice([0, 1, -1, 2, 3, -2, 4, 6]))))
    for _ in range(draw.choice([0, 0, 1, 1, 2])):
        divided = draw.choice([E.FloorDiv, E.Mod])(whole, E.index(draw.randint(1, 5)))
        whole = E.Add(E.Mul(divided, E.index(draw.choice([1, 1, 2]))), draw.choice(axes))
        if draw.random() < 0.5:
            whole = divided
    return whole


def space(names: list[str], extents: list[int]) -> list[str]:
    return [f"0 <= {n} < {e}" for n, e in zip(names, extents, strict=True)]


def relation(inverse: Inverse, shape: list[int], extents: list[int]) -> tuple[str, str]:
    """What the inverse says: ``x -> v`` for some iteration of its loops, and all ``(x, loops)``."""
    xs, vs = (
        [f"{letter}{n}" for n in range(len(e))] for letter, e in (("x", shape), ("v", extents))
    )
    trips = [int(str(e)) for e in inverse.over]
    loops = [f"l{n}" for n in range(len(trips))]
    names = [*xs, *loops]
    guards = [text(g, names) for g in (*inverse.guards, *inverse.stepped(shape))]
    inside = " and ".join([*space(xs, shape), *space(loops, trips), *guards, "true"])
    values = [f"{v} = {text(inverse.axes[n], names)}" for n, v in enumerate(vs)]
    domain, target, every = (", ".join(n) for n in (xs, vs, names))
    some = f"exists {', '.join(loops)} : " if loops else ""
    wanted = f"{{ [{domain}] -> [{target}] : {some}{inside} and {' and '.join(values)} }}"
    return wanted, f"{{ [{every}] : {inside} }}"


def agrees(draw: random.Random) -> bool | None:
    """Whether isl finds the same inverse of a random map; None where ours gives up."""
    extents = [draw.randint(1, 7) for _ in range(draw.randint(1, 3))]
    axes: list[Expr] = [Axis(n, e) for n, e in enumerate(extents)]
    parts = [drawn(draw, axes) for _ in range(draw.randint(1, 2))]
    shape = [draw.randint(1, 20) for _ in parts]
    vs = [f"v{n}" for n in range(len(extents))]
    images = ", ".join(text(p, vs) for p in parts)
    inside = " and ".join(space(vs, extents))
    forward = isl.Map(f"{{ [{', '.join(vs)}] -> [{images}] : {inside} }}")
    xs = [f"x{n}" for n in range(len(shape))]
    box = isl.Set(f"{{ [{', '.join(xs)}] : {' and '.join(space(xs, shape))} }}")
    wanted = forward.reverse().intersect_domain(box)
    system = System(shape, extents)
    for parameter, part in zip(system.parameters, parts, strict=True):
        form = system.form(part)
        assert form is not None
        system.equations.append(form.minus(variable(parameter)))
    try:
        inverse = rendered(invert(system), tuple(shape), lambda e: e)
    except Unsolvable:
        return None
    except Empty:
        return bool(wanted.is_empty())
    found, points = relation(inverse, shape, extents)
    once = isl.Set(points).count_val() == wanted.wrap().count_val()
    return bool(once and isl.Map(found).is_equal(wanted))


def test_inverses_of_random_maps() -> None:
    draw = random.Random(0)
    unsolved = 0
    for number in range(MAPS):
        found = agrees(draw)
        assert found is not False, number
        unsolved += found is None
    assert unsolved <= UNSOLVED * MAPS
