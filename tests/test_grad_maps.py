"""Adjoints of reads: every index map against differences, the loops and guards it may keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

from grad_support import (
    S,
    T,
    check_gradient,
    clamp,
    draw,
    fn,
    iterations,
    new_definitions,
    var,
    where,
    work,
)
from pullback.ir.expr import If
from pullback.ir.graph import Accumulate, Definition, Map, Reduce
from pullback.ir.node import walk


@dataclass(frozen=True)
class Case:
    """``out[i] = sum[k] x[index(i, k)]`` and what its adjoint may cost."""

    name: str
    source: tuple[int, ...]
    shape: tuple[int, ...]
    body: Callable[..., S]
    over: tuple[int, ...] = ()
    loops: tuple[int, ...] | None = ()
    guarded: bool = True


def at(*index: Any) -> Callable[[T], S]:
    return lambda x: x[index]


def case(
    name: str,
    source: tuple[int, ...],
    shape: tuple[int, ...],
    index: Callable[..., Any],
    over: tuple[int, ...] = (),
    loops: tuple[int, ...] | None = (),
    guarded: bool = True,
) -> Case:
    """A plain read ``x[index(axes)]``."""

    def body(x: T, *axes: S) -> S:
        found = index(*axes)
        return x[found] if isinstance(found, tuple) else x[(found,)]

    return Case(name, source, shape, body, over, loops, guarded)


FREE = False

PLAIN = [
    case("identity", (4, 5), (4, 5), lambda i, j: (i, j), guarded=FREE),
    case("transpose", (5, 4), (4, 5), lambda i, j: (j, i), guarded=FREE),
    case("permute3", (2, 3, 4), (4, 2, 3), lambda a, b, c: (b, c, a), guarded=FREE),
    case("expand", (4,), (4, 1), lambda i, j: i, guarded=FREE),
    case("squeeze", (4, 1), (4,), lambda i: (i, 0), guarded=FREE),
    case("broadcast rows", (5,), (4, 5), lambda i, j: j, loops=(4,), guarded=FREE),
    case("broadcast columns", (4,), (4, 5), lambda i, j: i, loops=(5,), guarded=FREE),
    case("broadcast outer", (3,), (2, 4, 3), lambda a, b, c: c, loops=(2, 4), guarded=FREE),
    case("broadcast scalar", (), (3, 4), lambda i, j: (), loops=(3, 4), guarded=FREE),
    case("broadcast one", (1, 5), (4, 5), lambda i, j: (0, j), loops=(4,), guarded=FREE),
    case("flip", (7,), (7,), lambda i: 6 - i, guarded=FREE),
    case("slice", (9,), (4,), lambda i: i + 2),
    case("strided slice", (9,), (4,), lambda i: i * 2 + 1),
    case("negative stride", (9,), (3,), lambda i: 8 - i * 3),
    case("row", (4, 5), (5,), lambda j: (2, j)),
    case("element", (4, 5), (), lambda: (3, 1)),
    case("diagonal", (4, 4), (4,), lambda i: (i, i)),
    case("antidiagonal", (4, 4), (4,), lambda i: (i, 3 - i)),
    case("trace", (4, 4), (), lambda k: (k, k), over=(4,)),
    case("roll", (10,), (10,), lambda i: (i + 3) % 10, guarded=FREE),
    case("roll back", (10,), (10,), lambda i: (i - 3) % 10, guarded=FREE),
    case("tile", (3,), (11,), lambda i: i % 3, loops=(4,)),
    case("repeat", (4,), (16,), lambda i: i // 4, loops=(4,), guarded=FREE),
    case("repeat ragged", (4,), (14,), lambda i: i // 4, loops=(4,)),
    case("flatten", (2, 5, 5), (50,), lambda j: (j // 25, j // 5 % 5, j % 5), guarded=FREE),
    case("flatten nested", (2, 5, 5), (50,), lambda j: (j // 25, j % 25 // 5, j % 5), guarded=FREE),
    case("flatten part", (2, 5, 5), (32,), lambda j: (j // 25, j % 25 // 5, j % 5)),
    case("unflatten", (50,), (2, 5, 5), lambda a, b, c: a * 25 + b * 5 + c, guarded=FREE),
    case(
        "reshape", (3, 8), (4, 6),
        lambda a, b: ((a * 6 + b) // 8, (a * 6 + b) % 8), guarded=FREE,
    ),
    case("split heads", (3, 8), (2, 3, 4), lambda h, t, d: (t, h * 4 + d), guarded=FREE),
    case("merge heads", (2, 3, 4), (3, 8), lambda t, c: (c // 4, t, c % 4), guarded=FREE),
    case("third of qkv", (3, 12), (2, 3, 2), lambda h, t, d: (t, h * 2 + d + 4)),
    case(
        "pixel shuffle", (8, 3, 3), (2, 6, 6),
        lambda c, h, w: (c * 4 + (h % 2) * 2 + w % 2, h // 2, w // 2), guarded=FREE,
    ),
    case("blocks ragged", (3, 8, 3), (20, 3), lambda c, h: (c // 8, c % 8, h)),
    case("window", (10,), (8,), lambda i, k: i + k, over=(3,), loops=(3,)),
    case("window stride 2", (10,), (4,), lambda i, k: i * 2 + k, over=(3,), loops=(2,)),
    case("window stride 3", (10,), (3,), lambda i, k: i * 3 + k, over=(3,)),
    case("pool 4", (8,), (2,), lambda i, k: i * 4 + k, over=(4,), guarded=FREE),
    case("window stride 5", (18,), (4,), lambda i, k: i * 5 + k, over=(3,)),
    case("dilated", (10,), (6,), lambda i, k: i + k * 2, over=(3,), loops=(3,)),
    case("stride 2 dilation 2", (10,), (3,), lambda i, k: i * 2 + k * 2, over=(3,), loops=(3,)),
    case("stride 2 dilation 3", (10,), (4,), lambda i, k: i * 2 + k * 3, over=(2,), loops=(1,)),
    case("stride 4 dilation 6", (60,), (7,), lambda i, k: i * 4 + k * 6, over=(5,), loops=(3,)),
    case(
        "pool 2d", (10, 9), (4, 4),
        lambda i, j, a, b: (i * 2 + a, j * 2 + b), over=(3, 3), loops=(2, 2),
    ),
    case("row sums", (4, 5), (4,), lambda i, k: (i, k), over=(5,), guarded=FREE),
    case("column sums", (4, 5), (5,), lambda j, k: (k, j), over=(4,), guarded=FREE),
    case("sum of all", (3, 4), (), lambda a, b: (a, b), over=(3, 4), guarded=FREE),
    case("toeplitz", (15,), (8, 8), lambda i, j: i - j + 7, loops=(8,)),
    case("shear", (16,), (5, 4), lambda i, k: i * 3 + k, loops=(2,)),
    case(
        "three coefficients", (95,), (5, 4, 3),
        lambda i, j, k: i * 6 + j * 10 + k * 15, loops=None,
    ),
    case("unused axis", (10, 10), (6, 7), lambda i, j, k: (k, k), over=(10,), loops=(6, 7)),
    case(
        "grouped", (6, 10), (8, 4),
        lambda o, i, c, k: (o // 4 * 3 + c, i * 2 + k), over=(3, 3), loops=(2, 4),
    ),
    case(
        "im2col", (10, 10), (64,),
        lambda m, k: (m // 8 + k // 3, m % 8 + k % 3), over=(9,), loops=(3, 3),
    ),
    case("downsample", (10,), (2,), lambda i, k: i * 4 + k, over=(4,)),
    case("empty", (0,), (0,), lambda i: i, guarded=FREE),
    case("one element", (1,), (1,), lambda i: i, guarded=FREE),
    case("sum over nothing", (3, 0), (3,), lambda i, k: (i, k), over=(0,), guarded=FREE),
]  # fmt: skip

GUARDED = [
    Case("pad", (5,), (9,), lambda x, i: where((i >= 2) & (i < 7), x[i - 2], 0.0), guarded=FREE),
    Case("pad one side", (5,), (7,), lambda x, i: where(i < 5, x[i], 0.0), guarded=FREE),
    Case(
        "pad 2d", (3, 4), (5, 6),
        lambda x, i, j: where((i > 0) & (i < 4) & (j > 0) & (j < 5), x[i - 1, j - 1], 0.0),
        guarded=FREE,
    ),
    Case("shift", (8,), (8,), lambda x, i: where(i >= 1, x[i - 1], 0.0)),
    Case("even", (4,), (8,), lambda x, i: where((i % 2).eq(0), x[i // 2], 0.0), guarded=FREE),
    Case("lower triangle", (6, 6), (6, 6), lambda x, i, j: where(j <= i, x[i, j], 0.0)),
    Case("prefix sums", (7,), (7,), lambda x, i, k: where(k <= i, x[k], 0.0), (7,), (7,)),
    Case(
        "band", (12,), (12,),
        lambda x, i, j: where((j - i <= 1) & (i - j <= 1), x[j], 0.0), (12,), (3,),
    ),
    Case("one position", (4,), (9,), lambda x, i, k: where(i.eq(5), x[k], 0.0), (4,), guarded=FREE),
    Case(
        "conv pad", (10,), (10,),
        lambda x, i, k: where((i + k >= 1) & (i + k < 11), x[i + k - 1], 0.0), (3,), (3,),
    ),
    Case(
        "conv pad stride", (10, 7), (5, 4),
        lambda x, i, j, a, b: where(
            (i * 2 + a >= 1) & (i * 2 + a < 11) & (j * 2 + b >= 1) & (j * 2 + b < 8),
            x[i * 2 + a - 1, j * 2 + b - 1],
            0.0,
        ),
        (3, 3), (2, 2),
    ),
    Case("other branch", (4,), (9,), lambda x, i: where(i < 5, 0.0, x[i - 5]), guarded=FREE),
    Case("either", (9,), (9,), lambda x, i: where((i < 2) | (i > 6), x[i], 0.0)),
    Case("edge", (10,), (10,), lambda x, i, k: x[clamp(i + k - 1, 0, 9)], (3,), None),
    Case("nearest", (4,), (7,), lambda x, i: x[i * 4 // 7], (), (2,)),
]  # fmt: skip


def build(c: Case) -> tuple[Definition, Any]:
    x = var("x", *c.source)
    return fn("y", c.shape, lambda *axes: c.body(T(x), *axes), c.over), x


def loops_of(definitions: list[Definition]) -> tuple[int, ...]:
    found: list[Any] = []
    for d in definitions:
        if isinstance(d.form, Reduce):
            found += d.form.over
    return tuple(found)


@pytest.mark.parametrize("c", PLAIN + GUARDED, ids=lambda c: c.name)
def test_gradient_of_a_read(c: Case) -> None:
    y, x = build(c)
    found = check_gradient(y, [x], draw([x]))
    made = new_definitions(found, y)
    if c.loops is not None:
        assert len(made) <= 2
        assert not any(isinstance(d.form, Accumulate) for d in made)
        assert tuple(n for n in loops_of(made) if n != 1) == tuple(n for n in c.loops if n != 1)
    if not c.guarded:
        assert not any(isinstance(n, If) for d in made for n in walk(d.roots))
    assert work(found, y) <= 8 * (iterations(y) + prod(c.source)) + 8


@pytest.mark.parametrize("s", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("p", [0, 1])
def test_convolution(s: int, d: int, k: int, p: int) -> None:
    x, w = var("x", 10), var("w", k)
    out = (10 + 2 * p - d * (k - 1) - 1) // s + 1

    def body(i: S, j: S) -> S:
        place = i * s + j * d
        inside = (place >= p) & (place < 10 + p)
        return where(inside, T(x)[place - p], 0.0) * T(w)[j]

    y = fn("y", (out,), body, (k,))
    found = check_gradient(y, [x, w], draw([x, w]))
    assert not any(isinstance(v.form, Accumulate) for v in new_definitions(found, y))
    assert work(found, y) <= 2 * 4 * (out * k + 10)


def test_concat_and_its_parts() -> None:
    a, b, c = var("a", 3, 2), var("b", 4, 2), var("c", 1, 2)

    def body(i: S, j: S) -> S:
        rest = where(i < 7, T(b)[i - 3, j], T(c)[i - 7, j])
        return where(i < 3, T(a)[i, j], rest)

    y = fn("y", (8, 2), body)
    for adjoint in check_gradient(y, [a, b, c], draw([a, b, c])):
        assert isinstance(adjoint, Definition)
        assert isinstance(adjoint.form, Map)
        assert not any(isinstance(n, If) for n in walk(adjoint.body))


def test_two_reads_of_one_tensor_are_one_map() -> None:
    x = var("x", 6, 6)
    y = fn("y", (6, 6), lambda i, j: T(x)[i, j] * T(x)[j, i])
    found = check_gradient(y, [x], draw([x]))
    (made,) = new_definitions(found, y)
    assert isinstance(made.form, Map)
