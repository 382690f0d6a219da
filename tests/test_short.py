"""Loops of a few turns written out, and single elements that exist, read without a guard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.nests.short import STATEMENTS, written_out
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import index
from pullback.ir.graph import SUM
from pullback.ir.nest import Array, For, Load, LoopKind, Routine, Stmt, StoreCombine, Var

Y, X = (Array(name, float32, 4096) for name in "yx")
AT = Array("at", int64, 4096)
OPTIONS = pb.Options(threads=1)


def nest(*turns: int, adds: int = 1, data: bool = True) -> Routine:
    """Loops of so many turns in one another, around so many statements, at places that are data."""
    loops = [Var(f"v{n}", 0, count - 1) for n, count in enumerate(turns)]
    place = index(0)
    for var in loops:
        place = E.Add(E.Mul(place, index(4)), var)
    there = Load(AT, place) if data else place
    body: tuple[Stmt, ...] = tuple(StoreCombine(Y, there, SUM, Load(X, place)) for _ in range(adds))
    for var, count in reversed(list(zip(loops, turns, strict=True))):
        body = (For(var, index(0), index(count), body),)
    return Routine("adds", (Y, X, AT), (), (), (), Var("task", 0, 0), 1, body)


def kinds(routine: Routine) -> str:
    """Of each loop, outermost first: u written out, s in order."""
    told, s = "", routine.body[0]
    while isinstance(s, For):
        told += "u" if s.kind is LoopKind.UNROLL else "s"
        s = s.body[0]
    return told


@pytest.mark.parametrize(
    ("turns", "adds", "want"),
    [
        ((100, 3, 3), 1, "suu"),
        ((3, 3), 1, "su"),  # the outermost loop stays
        ((3,), 1, "s"),
        ((100, 5), 1, "ss"),
        ((100, 3, 100), 1, "sss"),  # around a loop that stays
        ((100, 4, 4, 4), 1, "ssuu"),  # 64 statements
        ((100, 4), STATEMENTS // 4, "su"),
        ((100, 4), STATEMENTS // 4 + 1, "ss"),
        ((100, 0), 1, "su"),
    ],
)
def test_which_loops_are_written_out(turns: tuple[int, ...], adds: int, want: str) -> None:
    assert kinds(written_out(nest(*turns, adds=adds))) == want


def test_a_nest_without_such_loops_is_itself() -> None:
    for made in (nest(100, 5), nest(100, 3, data=False)):
        assert written_out(made).body[0] is made.body[0]


def spread(x: Any, places: Any) -> Any:
    """``y[i, j] = sum[p, a, b](at p's place and its neighbours, as far as they are there)``"""
    there = "(B[p, 0] + a == i) & (B[p, 1] + b == j)"
    return pb.define(
        f"g[i, j, c] = sum[p, a, b](where({there}, m[p, c] * (a + 2*b + 1), 0))",
        B=places, m=x, sizes={"i": 9, "j": 7, "a": 3, "b": 3},
    )  # fmt: skip


def assembly(function: Any, *given: Any) -> str:
    made = pb.jit(function, options=OPTIONS)
    made(*given)
    program = made.program
    target = program.target
    return "".join(
        program.texts["llvm"](k, program.chosen(k, target), target) for k in program.kernels
    )


def test_places_inside_and_outside_of_a_grid() -> None:
    """Values, and derivatives by what is added, of places that reach over each edge."""
    rng = np.random.default_rng(3)
    places = rng.integers(-3, 9, (40, 2)).astype(np.int32)
    m = rng.standard_normal((40, 3))
    h = rng.standard_normal((9, 7, 3))
    want, dm = np.zeros((9, 7, 3)), np.zeros((40, 3))
    for p, (r, s) in enumerate(places):
        for a in range(3):
            for b in range(3):
                if 0 <= r + a < 9 and 0 <= s + b < 7:
                    want[r + a, s + b] += m[p] * (a + 2 * b + 1)
                    dm[p] += h[r + a, s + b] * (a + 2 * b + 1)

    def both(m: Any, h: Any, places: Any) -> Any:
        y, pull = pb.vjp(lambda m: spread(m, places), m)
        return y, pull(h)[0]

    got = pb.jit(both, options=OPTIONS)(*map(pb.tensor, (m, h, places)))
    for name, one, exact in zip(("values", "slopes"), got, (want, dm), strict=True):
        bad = np.argwhere(~(np.abs(one.numpy() - exact) <= 1e-12))
        assert not len(bad), (
            f"{name} {bad[0]}: {one.numpy()[tuple(bad[0])]}, {exact[tuple(bad[0])]}"
        )


def test_single_elements_that_exist_are_read_without_a_guard() -> None:
    """``v[i]`` whether row i counts or not; ``v[i - 1]`` where there is one."""
    given = pb.ones(8), pb.ones((8, 32)), pb.tensor(np.arange(-2, 6))

    def own(v: Any, w: Any, c: Any) -> Any:
        return pb.compute((8, 32), lambda i, j: pb.where(c[i] > 0, v[i], 1.0) + w[i, j])

    def before(v: Any, w: Any, c: Any) -> Any:
        return pb.compute(
            (8, 32), lambda i, j: pb.where((c[i] > 0) & (i > 0), v[i - 1], 1.0) + w[i, j]
        )

    assert "ptr @safe" not in assembly(own, *given)
    assert "ptr @safe" in assembly(before, *given)


@pytest.mark.parametrize("backend", ["llvm", pytest.param("c", marks=pytest.mark.slow)])
def test_what_does_not_count_may_be_no_number(backend: str) -> None:
    v = np.array([1.0, np.nan, np.inf, 2.0])
    w = np.random.default_rng(0).standard_normal((4, 19))
    counts = np.array([True, False, False, True])

    def weighted(v: Any, w: Any, c: Any) -> Any:
        return pb.compute((4, 19), lambda i, j: pb.where(c[i], v[i] * w[i, j], 0.0))

    got = pb.jit(weighted, options=pb.Options(backend=backend))(*map(pb.tensor, (v, w, counts)))
    np.testing.assert_array_equal(got.numpy(), np.where(counts[:, None], v[:, None] * w, 0.0))
