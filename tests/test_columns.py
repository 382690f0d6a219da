"""Columns of sums of products: those of the lowest price, the same in all pieces of a launch."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pullback as pb
from lower_support import kernel, num, stage, start, variable
from pullback.backends.host.processor import named_target
from pullback.backends.nests.cheapest import cheapest
from pullback.backends.nests.columns import apart, columns
from pullback.backends.nests.price import price
from pullback.cli.graph_text import parse_kernel
from pullback.ir import expr as E
from pullback.ir.dtype import bfloat16, float32
from pullback.ir.graph import define, read
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Declare
from pullback.ir.statements import statements
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen, with_numbers
from pullback.schedule.choices import Choices
from pullback.schedule.contraction import products, ways
from pullback.schedule.schedule import TileLoops
from pullback.schedule.split import split

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from suite import model  # noqa: E402

TARGET = named_target("x86-64-v4").on(chosen("zen5"))
ZEN3 = named_target("x86-64-v3").on(with_numbers(chosen("zen3"), "launch", processors=2))


def drawn(function: Any, *shapes: tuple[int, ...]) -> list[Kernel]:
    given = model.both(function, shapes)
    return list(model.kernels(Random(0), lambda _: given, TARGET))


def test_weights_that_a_kernel_widens_are_packed_each_time() -> None:
    """The gradient of a picture by a stride of 2: 178 us with channels in lanes, 25 with a row."""
    convolve = partial(model.F.conv2d, stride=2, padding=2)
    every = drawn(convolve, (4, 18, 8, 8), (8, 18, 5, 5))
    (one,) = (k for k in every if len(k.stages) == 3)
    (sum_,) = (s for s in one.stages if len(products(s)) > 1)
    assert len(apart(one, sum_, ways(sum_, TARGET)).stages) == 2, "behind the map that it reads"
    assert columns(one, TARGET) == (("column.1", 5),)


def test_columns_have_the_price_of_all_of_them() -> None:
    """18 channels by 5x5 of 379 x 6 x 6, seven pictures: 3.9 ms by places, 2.1 by all channels of
    half the places, one Zen 3 core; since panels of few rows ask for no edge 1.7 by pictures.
    """
    convolve = partial(model.F.conv2d, padding=2)
    given = model.both(convolve, ((7, 18, 6, 6), (379, 18, 5, 5)))
    every = model.kernels(Random(0), lambda _: given, ZEN3)
    (one,) = (k for k in every if k.stages[-1].shape == (7, 18, 6, 6) and products(k.stages[-1]))
    ways_ = [(("column.0", column),) for column in range(4)]
    prices = {way: price(one, scheduled(one, ZEN3, way), ZEN3).ns for way in ways_}
    given = price(one, scheduled(one, ZEN3, columns(one, ZEN3)), ZEN3).ns
    assert given <= 1.1 * min(prices.values()), prices


def test_columns_have_the_price_of_the_tiles_that_operands_choose() -> None:
    """235 x 12 of 211 terms, rows of them in lanes: 14.1 us in tiles of all, 16.9 by the 12."""
    given = model.both(lambda a, b: a @ b, ((211, 235), (235, 12)))
    every = model.kernels(Random(0), lambda _: given, ZEN3)
    (one,) = (k for k in every if k.stages[-1].shape == (235, 12))
    assert columns(one, ZEN3) == (("column.0", 0),)


def mixed(x: Any, w: Any, order: str = "b o p") -> Kernel:
    """Channels mixed by a matrix of its own at each place p."""
    spelled = f"y[{', '.join(order.split())}] = sum[i](x[b, i, p] * w[i, o, p])"
    given = (lambda x, w: pb.define(spelled, x=x, w=w)), model.floats(x, w)
    (one,) = model.kernels(Random(0), lambda _: given, TARGET)
    return one


@pytest.mark.parametrize("target", [TARGET, named_target("x86-64-v3").on(chosen("zen3"))], ids=str)
@pytest.mark.parametrize("places", [32, 144, 999])
def test_products_along_an_axis_of_all_factors_are_a_sweep(places: int, target: Target) -> None:
    """8 of 16 to 16 channels at 1024 places, one Zen 4 core: 1.43 ms with channels in panels, 0.16
    with places in lanes. Of matrices whose columns follow one another it is not looked at.
    """
    one = mixed((8, 16, places), (16, 16, places))
    assert columns(one, target) == (("column.0", -1),)
    plain = price(one, scheduled(one, target), target).ns
    own = scheduled(one, target, cheapest(one, target))
    assert own.steps[0].vector == 2
    assert price(one, own, target).ns < plain


def test_tiles_are_widest_along_the_axis_in_lanes() -> None:
    """Wherever it stands among the axes of the result: 3.2 ms in tiles of one place, 0.4 of all."""
    spelled = "y[p, b, o] = sum[i](x[b, i, p] * w[i, o, p])"

    def product(x: Any, w: Any, v: Any) -> Any:
        one, two, three = (pb.define(spelled, x=x, w=m) for m in (w, v, w + 1))
        return one - two, three

    given = product, model.floats((4, 64, 32), (64, 64, 32), (64, 64, 32))
    (one,) = model.kernels(Random(0), lambda _: given, TARGET)
    swept = [(f"column.{n}", -1) for n, s in enumerate(one.stages) if products(s)]
    schedule = scheduled(one, TARGET, tuple(swept))
    assert schedule.steps[0].vector == 0
    assert schedule.tile[0] >= TARGET.lanes(4), schedule.tile


@pytest.mark.slow
def test_columns_of_stages_alone_are_confirmed_by_the_whole_kernel() -> None:
    """Causal attention: stages alone would have columns of 15.5 ms for a gradient, not 9."""
    attended = partial(model.F.scaled_dot_product_attention, is_causal=True)
    several = [k for k in drawn(attended, *[(3, 2, 905, 64)] * 3) if len(k.stages) > 1]
    assert several
    for one in several:
        given, plain = (
            price(one, scheduled(one, TARGET, c), TARGET).ns for c in (columns(one, TARGET), ())
        )
        assert given <= plain, f"{one.name}: got {given:.0f} ns, {plain:.0f} without a choice"


def test_a_word_is_one_multiply_add() -> None:
    """bfloat16: words of 131 terms 4.9 us, priced 14 where each part was an instruction."""
    target = replace(TARGET, dots=("bfloat16",))

    def wide(e: E.Expr) -> E.Expr:
        return E.Cast(e, float32)

    x, w = variable("x", 40, 131, kind=bfloat16), variable("w", 131, 169, kind=bfloat16)
    z = define(
        "z", (40, 169), lambda i, j, k: E.Mul(wide(read(x, i, k)), wide(read(w, k, j))), over=(131,)
    )
    last = define("y", (40, 169), lambda i, j: E.Cast(read(z, i, j), bfloat16))
    y = variable("y", 40, 169, kind=bfloat16)
    one = kernel((), stage(z, ()), stage(last, (), y))
    plain, words = (
        price(one, scheduled(one, on, (("column.0", 1),)), on).ns for on in (TARGET, target)
    )
    assert words < plain, f"{words:.0f} ns in words, {plain:.0f} without"
    assert dict(columns(one, target)).get("column.0", 1) == 1


@pytest.mark.parametrize(("m", "k", "n"), [(97, 285, 202), (285, 97, 202), (16, 512, 23)])
def test_the_price_of_the_kernel_is_the_lowest(m: int, k: int, n: int) -> None:
    """Of a stage alone, as one task and roughly, it says the same as of the whole kernel."""
    for one in drawn(lambda a, b: a @ b, (m, k), (k, n)):
        prices = {
            p.column: price(one, scheduled(one, TARGET, (("column.0", p.column),)), TARGET).ns
            for p in ways(one.stages[0], TARGET)
        }
        product = start(one, TARGET).steps[0].product
        assert product is not None
        assert prices[product.column] == min(prices.values()), prices


@pytest.mark.parametrize("target", [TARGET, ZEN3], ids=["zen5", "zen3"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 20, 1000), (16, 10, 784), (128, 10, 256)])
def test_few_columns_are_not_taken_by_gathers(m: int, n: int, k: int, target: Target) -> None:
    """By dot products of some of 20 columns 131 us, by tiles of all 36; 15.2 and 7.3; 34 and 14."""
    (one,) = drawn(lambda a, b: a @ b, (m, k), (k, n))[:1]
    (step,) = scheduled(one, target, cheapest(one, target)).steps
    assert isinstance(step.loops, TileLoops)


def test_a_long_sum_keeps_its_losses_where_registers_hold_them() -> None:
    """Its sums, their parts and what those lose: 8 vectors of each at most, of 32 registers."""
    convolve = partial(model.F.conv2d, padding=2)
    every = drawn(convolve, (7, 18, 6, 6), (379, 18, 5, 5))
    (one,) = (k for k in every if k.stages[-1].shape == (7, 18, 6, 6) and products(k.stages[-1]))
    rows = drawn(lambda a, b: a @ b, (7, 9000), (9000, 16))[0]
    assert vectors_lost(rows, (("column.0", 1), ("tile.0", 7))) == [7]
    assert vectors_lost(one, (("column.0", 1), ("tile.0", 7), ("tile.1", 18))) == []


def vectors_lost(one: Kernel, given: Choices) -> list[int]:
    """Vectors of 64 bytes that hold what a register tile's sums lose."""
    nest = lower(one, scheduled(one, TARGET, given))
    kept = [s.register for s in statements(nest.body) if isinstance(s, Declare)]
    shapes = {r.shape for r in kept if r.name.startswith("lost")}
    return [rows * -(-columns // 16) for rows, columns in shapes]


def test_no_way_that_another_is_better_than_is_priced() -> None:
    """Rows of w lie side by side, and so do results: the rows of x in lanes have nothing better."""
    x, w = variable("x", 64, 30), variable("w", 30, 128)
    z = define("z", (64, 128), lambda i, j, k: E.Mul(read(x, i, k), read(w, k, j)), over=(30,))
    assert [p.column for p in ways(stage(z, ()), TARGET)] == [1]
    assert columns(kernel((), stage(z, (), variable("y", 64, 128))), TARGET) == ()


def test_pieces_of_a_launch_keep_their_columns() -> None:
    x, w, y = variable("x", 285, 97), variable("w", 202, 97), variable("y", 285, 202)
    v, u = variable("v", 202, 33), variable("u", 285, 33)
    z = define("z", (285, 202), lambda i, j, k: E.Mul(read(x, i, k), read(w, j, k)), over=(97,))
    t = define("t", (285, 33), lambda i, j, k: E.Mul(read(z, i, k), read(v, k, j)), over=(202,))
    last = define("u", (285, 33), lambda i, j: E.Add(read(t, i, j), num(1)))
    one = kernel((285,), stage(z, (0,), y), stage(t, (0,)), stage(last, (0,), u))

    def other(given: Kernel, target: Any) -> Any:
        """Never what the compiler itself would choose."""
        if given.tiling is not None:
            return start(given, target)
        made = start(given, target)
        (first, *_) = (s.product for s in made.steps if s.product is not None)
        return start(given, target, (("column.0", 1 - first.column),))

    whole = other(one, TARGET)
    wanted = [s.product.column for s in whole.steps if s.product is not None]
    pieces = split(one, TARGET, other)
    assert len(pieces) == 2
    found = [s.product for piece in pieces for s in start(piece, TARGET).steps]
    assert [p.column for p in found if p is not None] == wanted
    assert columns(pieces[0], TARGET) == ()
    assert columns(replace(pieces[0], tiling=None), TARGET) != (("column.0", wanted[0]),)


def test_columns_say_how_often_scores_are_computed_again() -> None:
    """The gradient of values: its own columns alone cost less, with 256 x 256 scores for each of
    two tiles of them 170 us, not 118.
    """

    one = parse_kernel(
        """kernel dv over [i < 2, j < 256, k < 64]
  var q: float32[2, 256, 64]
  var k: float32[2, 256, 64]
  var top: float32[2, 256]
  var g: float32[2, 256, 64]
  var norm: float32[2, 256]
  var result: float32[2, 256, 64]
  stage dots: float32[2, 256, 256] at (i, k, -) -> scratch
    dots[i, j, k] = sum[l < 64](q[i, j, l] * k[i, k, l])
    reads q[i, j, l], k[i, k, l]
  stage exps: float32[2, 256, 256] at (i, k, -) -> scratch
    exps[i, j, k] = if(k < j + 1, exp(dots[i, j, k] * 0.125 - top[i, j]), 0.0)
    reads dots[i, j, k], top[i, j]
  stage dv: float32[2, 256, 64] at (i, j, k) -> store result
    dv[i, j, k] = sum[l < 256](g[i, l, k] / norm[i, l] * exps[i, l, j])
    reads g[i, l, k], norm[i, l], exps[i, l, j]
"""
    )
    seen = ways(one.stages[2], TARGET)
    assert apart(one, one.stages[2], seen) is one
    assert columns(apart(one, one.stages[2], ()), TARGET) == (("column.0", 2),)
    assert dict(columns(one, TARGET))["column.2"] == 1
