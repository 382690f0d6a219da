"""Indices that are data: rows, kept places, writes by key; beside the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ir import expr as E
from pullback.ir.graph import Reduce

RNG = np.random.default_rng(7)
Made = Callable[..., Any]
NODES, EDGES, WIDE = 40, 96, 8


def run(function: Made, given: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    made = pb.jit(function, options=pb.Options(cache=None, **options))
    return [r.numpy() for r in made(*map(pb.tensor, given))]


def beside(function: Made, *given: np.ndarray, wanted: str = "") -> list[np.ndarray]:
    """The results, which are the interpreter's, of one bit pattern for one thread and two."""
    program = pb.jit(function, options=pb.Options(cache=None, threads=1))
    results = [r.numpy() for r in program(*map(pb.tensor, given))]
    assert wanted in program.program.explain()
    for result, other in zip(results, run(function, list(given), threads=2), strict=True):
        np.testing.assert_array_equal(result, other)
    for result, other in zip(results, run(function, list(given), backend="reference"), strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-12, atol=1e-12)
    return results


def both(function: Made, floats: int) -> Made:
    """The value, and the gradients of a sum of its squares."""

    def made(*xs: Any) -> Any:
        y = function(*xs)
        own = list(xs[:floats])
        return [y, *pb.grad(pb.sum(pb.where(abs(y) < 1e9, y * y, 0.0)), own)]

    return made


def sampled(x: Any, at: Any) -> Any:
    """Bilinear, channels first, zero outside."""
    low = pb.floor(at)
    part, base = at - low, low.astype(pb.int32)
    a, b = pb.axis(2), pb.axis(2)

    def value(p: Any, c: Any) -> Any:
        y, q = base[p, 0] + a, base[p, 1] + b
        inside = (y >= 0) & (y < x.shape[1]) & (q >= 0) & (q < x.shape[2])
        weight = pb.where(a == 0, 1 - part[p, 0], part[p, 0])
        weight = weight * pb.where(b == 0, 1 - part[p, 1], part[p, 1])
        return pb.sum(pb.where(inside, weight * x[c, y, q], 0.0), over=(a, b))

    return pb.compute((at.shape[0], x.shape[0]), value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("channels", [4, 5, 16])
def test_sampling_reads_and_writes_rows(channels: int) -> None:
    x = RNG.normal(size=(channels, 7, 6))
    at = RNG.random((300, 2)) * 9 - 1.5
    beside(both(sampled, 2), x, at, wanted="_rows")


def test_what_lies_outside_is_not_looked_at() -> None:
    """Infinite and no numbers beside places that no guard lets through."""
    x = np.full((8, 7, 6), np.nan)
    x[:, 1:, 1:] = RNG.normal(size=(8, 6, 5))
    at = RNG.random((300, 2)) * 4.9 + 1
    at[::7] = -40.0
    at[::11] = np.inf
    y, *_ = beside(lambda x, at: [sampled(x, at)], x, at)
    assert np.isfinite(np.delete(y, np.s_[::11], axis=0)).all()


def largest(m: Any, key: Any) -> Any:
    return pb.define(
        "y[n,o] = max[e](where(key[e] == n, m[e,o], -inf))", m=m, key=key, sizes={"n": NODES}
    )


def summed(m: Any, key: Any) -> Any:
    return pb.define(
        "y[n,o] = sum[e](where(key[e] == n, m[e,o] * m[e,o], 0))", m=m, key=key, sizes={"n": NODES}
    )


@pytest.mark.parametrize("function", [largest, summed])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_by_key(function: Made, kind: str) -> None:
    """Keys of nobody, keys outside, ties; the first of equal ones takes the gradient."""
    key = RNG.integers(-3, NODES + 3, EDGES).astype(kind)
    key[key == 5] = 6
    m = RNG.integers(-4, 4, (EDGES, WIDE)).astype(np.float64)
    m[3] = -np.inf if function is largest else 0
    beside(both(function, 1), m, key, wanted="accumulate")


def test_maps_that_are_read_twice_at_each_level_are_looked_at_once() -> None:
    """Of 60 levels there are 2**60 ways down to the table."""

    def made(table: Any, places: Any, weights: Any) -> Any:
        rows = table[places]
        for _ in range(60):
            rows = 0.5 * rows + 0.5 * rows[::-1]
        return (rows @ weights,)

    given = RNG.random((EDGES, WIDE)), RNG.integers(0, EDGES, NODES), RNG.random((WIDE, 3))
    (product,) = run(made, list(given))
    rows = given[0][given[1]]
    np.testing.assert_allclose(product, (rows + rows[::-1]) / 2 @ given[2])


def test_no_number_wins_its_group_alone() -> None:
    key = RNG.integers(0, NODES, EDGES)
    m = RNG.normal(size=(EDGES, WIDE))
    m[4, 2] = np.nan
    y, _ = run(both(largest, 1), [m, key])
    wanted = np.full((NODES, WIDE), -np.inf)
    np.maximum.at(wanted, key, m)
    np.testing.assert_array_equal(y, wanted)


def test_products_are_summed_before_they_are_written() -> None:
    """``x[src] @ w``: its adjoint writes once for each edge and channel."""
    x, w = RNG.normal(size=(NODES, WIDE)), RNG.normal(size=(WIDE, 12))
    src = RNG.integers(0, NODES, EDGES)

    def messages(x: Any, w: Any, src: Any) -> Any:
        return pb.define("m[e,o] = sum[c](x[src[e],c] * w[c,o])", x=x, w=w, src=src)

    beside(both(messages, 2), x, w, src, wanted="_part")


def test_softmax_by_key() -> None:
    """Adjoints of what is read by key and summed by key are neither: nothing visits all pairs."""
    x, s = RNG.normal(size=(NODES, WIDE)), RNG.normal(size=EDGES)
    src, key = RNG.integers(0, NODES, EDGES), RNG.integers(0, NODES, EDGES)

    def attended(x: Any, s: Any, src: Any, key: Any) -> Any:
        n = {"n": NODES}
        p = pb.exp(s)
        z = pb.define("z[n] = sum[e](where(key[e] == n, p[e], 0))", p=p, key=key, sizes=n)
        return pb.define(
            "y[n,c] = sum[e](where(key[e] == n, p[e] / z[key[e]] * x[src[e],c], 0))",
            p=p, z=z, x=x, src=src, key=key, sizes=n,
        )  # fmt: skip

    beside(both(attended, 2), x, s, src, key, wanted="accumulate")


def test_a_clipped_place_beside_data_is_one_write() -> None:
    x, depth = RNG.normal(size=(8, 6, 6)), RNG.integers(0, 6, (24, 24))
    k = pb.axis(2)

    def sliced(x: Any, depth: Any) -> Any:
        def value(c: Any, i: Any, j: Any) -> Any:
            low = pb.astype(pb.floor((i + 0.5) / 4 - 0.5), pb.int32)
            return pb.sum(x[c, depth[i, j], pb.clip(low + k, 0, 5)], over=k)

        return pb.compute((8, 24, 24), value)

    program = pb.jit(both(sliced, 1), options=pb.Options(cache=None))
    program(pb.tensor(x), pb.tensor(depth))
    stages = 3  # traced, simplified, fused
    assert program.program.explain().count("= accumulate") == stages
    beside(both(sliced, 1), x, depth)


@pytest.mark.parametrize("bad", [-1, 7])
def test_a_place_outside_raises_at_the_line(bad: int) -> None:
    x, place = RNG.normal(size=(16, 7, 6)), RNG.integers(0, 3, (300, 2))
    place[17, 0] = bad

    def value(x: Any, place: Any) -> Any:
        k = pb.axis(2)
        return pb.compute(
            (300, 16),
            lambda p, c: pb.sum(x[c, place[p, 0] + 0 * k, place[p, 1] + k], over=k),
        )

    with pytest.raises(pb.errors.IndexRangeError, match=f"{bad}") as error:
        run(lambda x, place: [value(x, place)], [x, place])
    assert "test_places.py" in str(error.value)


def splatted(base: Any, w: Any, m: Any) -> Any:
    """What particles weigh, added to 3 x 3 nodes of a grid each; beyond its edge nothing."""
    return pb.define(
        "g[i,j,c] = sum[p,a,b](where((B[p,0] + a == i) & (B[p,1] + b == j), "
        "w[p,a] * w[p,b] * m[p,c], 0))",
        B=base, w=w, m=m, sizes={"i": 20, "j": 24, "a": 3, "b": 3},
    )  # fmt: skip


def test_both_places_of_a_write_are_solved_in_its_adjoint() -> None:
    """Nobody looks through all nodes for those of a particle."""
    base = RNG.integers(-3, 25, (50, 2))
    w, m = RNG.standard_normal((50, 3)), RNG.standard_normal((50, 4))
    beside(lambda w, m, b: both(lambda w, m: splatted(b, w, m), 2)(w, m), w, m, base)
    made = pb.jit(lambda w, m, b: both(lambda w, m: splatted(b, w, m), 2)(w, m))
    made(w, m, base)
    every = [s for k in made.program.kernels for s in k.every if isinstance(s.form, Reduce)]
    widest = max(E.upper(e) for s in every for e in s.form.over)
    assert widest <= 4, "taps and components, no nodes"
