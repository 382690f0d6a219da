"""How operands reach register tiles: by price, where the pages of a machine are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends import nests
from pullback.backends.host.processor import named_target
from pullback.backends.nests.operands import DEEP, operands
from pullback.backends.nests.price import price
from pullback.backends.nests.reuse import Access, Level, spanned, translated
from pullback.backends.nests.rows import few_rows
from pullback.errors import OptionError
from pullback.ir.dtype import float32
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Array
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen, with_numbers
from pullback.schedule.choices import Choices, joined
from pullback.schedule.schedule import Right, Schedule, TileLoops, Way

ZEN3 = named_target("x86-64-v3").on(chosen("zen3"))
TWO = ZEN3.on(with_numbers(ZEN3.profile, "launch", processors=2))
ANY = named_target("x86-64-v3")
ZEN4 = named_target("x86-64-v4").on(chosen("zen4"))


def drawn(function: Any, *shapes: tuple[int, ...]) -> Kernel:
    """The kernel of a product."""
    program = pb.jit(function, options=pb.Options(machine="zen3", target="x86-64-v3"))
    given = [pb.ones(shape) for shape in shapes]
    program(*given)
    return pb.schedule(program, *given).kernel


def chosen_by(kernel: Kernel, target: Target = ZEN3) -> tuple[Schedule, TileLoops]:
    made = scheduled(kernel, target, operands(kernel, target, ()))
    (loops,) = (s.loops for s in made.steps if isinstance(s.loops, TileLoops))
    return made, loops


def rows_apart(machine_pages: int, rows: int) -> float:
    """Nanoseconds of addresses, of `rows` rows 2 KB apart that each of 22 turns reads."""
    around, down = Level(22), Level(rows)
    whole = Level(1)
    array = Array("b", float32, rows * 512)
    read = Access(array, (whole, around, down), 3, ((down, 2048, rows),), 64, False, False)
    for level in read.path:
        level.accesses.append(read)
    memory = replace(ZEN3.profile.memories[0], pages=machine_pages, translate=1.0)
    return translated([read], [memory]).get(read, 0.0)


def test_pages_are_the_lines_of_a_cache_of_addresses() -> None:
    """784 rows, two a page: 392 pages in each of 22 turns; 96 rows are in 48, which are kept."""
    assert spanned([(2048, 784)], 64, 4096) == pytest.approx(392 * 4096, rel=0.01)
    assert rows_apart(64, 784) == pytest.approx(22 * 392, rel=0.05)
    assert rows_apart(64, 96) == 0
    assert rows_apart(0, 784) == 0, "a machine that says nothing of pages"


def test_operands_in_place_cost_their_pages() -> None:
    """128 x 512 of 784 terms, one Zen 3 core: 1.54 ms in place, 1.17 in panels."""
    one = drawn(lambda a, b: a @ b, (128, 784), (784, 512))
    tile = (("tile.0", 128), ("tile.1", 64))
    place, panels = (
        price(one, scheduled(one, ZEN3, (("packed.0", n), *tile)), ZEN3).ns for n in (0, 1)
    )
    assert panels < place, f"in panels {panels:.0f} ns, in place {place:.0f}"
    unpaged = tuple(replace(memory, pages=0) for memory in ZEN3.profile.memories)
    other = ZEN3.on(replace(ZEN3.profile, memories=unpaged))
    known = price(one, scheduled(one, ZEN3, (("packed.0", 0), *tile)), other).ns
    assert known < 0.95 * place, f"without pages {known:.0f} ns, with them {place:.0f}"


def test_panels_that_all_rows_share() -> None:
    one = drawn(lambda a, b: a @ b, (128, 784), (784, 512))
    made, loops = chosen_by(one)
    assert made.tile == (128, 64) and loops.right is Right.ONE and loops.terms is None


def test_a_tile_of_all_columns_for_each_processor() -> None:
    one = drawn(lambda a, b: a @ b, (128, 784), (784, 512))
    made, loops = chosen_by(one, TWO)
    assert made.tile == (64, 512) and loops.right is Right.ONE and made.tasks == 2
    many = TWO.on(with_numbers(ZEN3.profile, "launch", processors=64))
    assert chosen_by(one, many)[0].tasks >= 8, "as many tasks as without a price"


def test_terms_that_lie_apart_go_in_blocks() -> None:
    """512 x 512 of 512 terms, the left operand by columns: 3.43 ms in blocks of 128, 3.89 whole."""
    one = drawn(lambda a, b: a.T @ b, (512, 512), (512, 512))
    made, loops = chosen_by(one)
    assert (loops.right, loops.terms) in [(Right.BLOCKS, 128), (Right.BLOCKS, 256)]
    assert made.tile == (256, 512), "no tile is better, where blocks cost what they are priced"


def test_tasks_of_all_rows_have_wide_tiles() -> None:
    """The gradients of a linear layer of 394 rows in one kernel: 2.6 ms by 12 tasks, 1.5 by two."""

    def both(g: Any, c: Any) -> Any:
        return (c.T @ g).T, g.sum(0)

    one = drawn(both, (394, 192), (394, 768))
    assert len(one.outer) == 1, "the sum and the product are one kernel"
    made, loops = chosen_by(one)
    assert made.tile == (96,)
    assert loops.right in (Right.BLOCKS, Right.ONE)


def test_what_is_gathered_goes_in_blocks() -> None:
    """Gradients of queries, keys and values as the left operand, 394 x 192 of 576 terms: chosen in
    place for each tile of columns 5.2 ms, copied in blocks of 256 1.05.
    """

    def joined_heads(q: Any, k: Any, v: Any, w: Any) -> Any:
        heads = pb.permute_dims(pb.stack([q, k, v]), (1, 3, 0, 2, 4))
        y = heads.reshape(394, 576) @ w
        return y, y.reshape(2, 197, 192).sum((0, 1))

    one = drawn(joined_heads, *[(2, 3, 197, 64)] * 3, (576, 192))
    _, loops = chosen_by(one)
    assert loops.terms == 256


def test_blocks_twice_as_deep_where_they_are_cheaper() -> None:
    """512 x 512 of 8,192 terms whose rows and columns lie side by side."""
    one = drawn(lambda a, b: a.T @ b, (8192, 512), (8192, 512))
    made = scheduled(one, ZEN3, operands(one, ZEN3, (("column.0", 1),)))
    (loops,) = (s.loops for s in made.steps if isinstance(s.loops, TileLoops))
    assert (loops.right, loops.terms) == (Right.BLOCKS, 1024)


def test_few_rows_across_memory_go_by_what_costs_less() -> None:
    """Scores of 16 rows of 12,288 positions: keys are transposed in panels for each of them."""
    shape = (1, 2, 12288, 64)
    one = drawn(pb.nn.functional.scaled_dot_product_attention, shape, shape, shape)
    assert dict(few_rows(one, ZEN3, ())) == {"dots.0": 8}
    near = drawn(lambda a, w: a @ w.T, (12, 512), (4096, 512))
    assert few_rows(near, ZEN3, ()) == ()


def test_dot_products_of_all_rows_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are no more than either cap, so the other one gives the schedule that there is; 12
    are more than eight.
    """
    asked: list[Choices] = []
    eight = (("dots.0", 8),)

    def noted(kernel: Kernel, target: Target, choices: Choices) -> Schedule:
        asked.append(choices)
        return scheduled(kernel, target, choices)

    monkeypatch.setattr(nests.rows, "scheduled", noted)
    for count, others in ((2, []), (12, [eight])):
        one = drawn(lambda a, w: a @ w.T, (count, 512), (4096, 512))
        own = scheduled(one, ZEN3, ())
        assert own.steps[0].way is Way.DOTS
        assert (scheduled(one, ZEN3, eight) == own) == (not others)
        asked.clear()
        assert few_rows(one, ZEN3, ()) == () and asked == [(), *others]


def test_panels_that_few_rows_share_go_by_dot_products() -> None:
    """Rows that make a tile of all of them, and those whose tiles run what comes after them: 14 x
    227 of 512 terms and relu is priced 55.5 us in tiles of 7 rows, 42.4 by dot products.
    """
    column = (("column.0", 1),)
    for rows, cap in ((14, 16), (24, 32)):
        one = drawn(lambda a, w: pb.maximum(a @ w.T, 0.0), (rows, 512), (227, 512))
        given = few_rows(one, ZEN4, column)
        assert dict(given) == {"column.0": 1, "dots.0": cap}
        assert scheduled(one, ZEN4, column).steps[0].way is Way.TILES
        assert scheduled(one, ZEN4, given).steps[0].way is Way.DOTS
    many = drawn(lambda a, w: a @ w.T, (100, 512), (227, 512))
    assert few_rows(many, ZEN4, column) == column


def test_blocks_no_deeper_than_they_pay() -> None:
    """512 x 200 of 12,000 terms side by side: 38.9 ms in blocks of 256, 40.8 of 1024."""
    one = drawn(lambda a, b: a @ b.T, (512, 12000), (200, 12000))
    made = scheduled(one, ZEN3, operands(one, ZEN3, (("column.0", 1),)))
    (loops,) = (s.loops for s in made.steps if isinstance(s.loops, TileLoops))
    assert (loops.right, loops.terms) == (Right.BLOCKS, 256)


def test_terms_side_by_side_go_whole() -> None:
    """100 x 1000 of 1000 terms: 2.37 ms whole, 2.53 in blocks of 256, priced 2.68 and 2.32."""
    one = drawn(lambda a, b: a @ b, (100, 1000), (1000, 1000))
    _, loops = chosen_by(one)
    assert loops.right is not Right.IN_PLACE and loops.terms is None
    assert DEEP > 1


def test_nothing_is_chosen_where_pages_are_not_known() -> None:
    one = drawn(lambda a, b: a @ b, (128, 784), (784, 512))
    assert operands(one, ANY, ()) == ()
    assert operands(one, named_target("x86-64-v4"), ()) == ()


def test_what_is_given_goes_before() -> None:
    own = (("column.0", 1), ("packed.0", 1), ("tile.0", 128))
    assert joined(own, {}) == own
    assert joined(own, {"packed.0": 0}) == (("column.0", 1), ("packed.0", 0), ("tile.0", 128))
    assert joined(own, {"column.0": 2}) == (("column.0", 2),)
    assert joined(own, {"order": 1}) == (("column.0", 1), ("order", 1))


SIZES = ((64, 64, 64), (33, 301, 129), (128, 784, 512), (100, 515, 250), (1, 700, 300), (300, 7, 9))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turned", ("nn", "tn", "nt"))
def test_products_are_right(size: tuple[int, int, int], turned: str) -> None:
    """The same bits on one thread and on two, near NumPy's; operands may be taken as asked."""
    m, k, n = size
    rng = np.random.default_rng(m)
    a = rng.standard_normal((k, m) if turned == "tn" else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if turned == "nt" else (k, n)).astype(np.float32)

    def f(x: Any, y: Any) -> Any:
        return (x.T if turned == "tn" else x) @ (y.T if turned == "nt" else y)

    program = pb.jit(f, options=pb.Options(machine="zen3", target="x86-64-v3"))
    given = pb.tensor(a), pb.tensor(b)
    before = pb.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            pb.set_num_threads(threads)
            results.append(program(*given).numpy())
    finally:
        pb.set_num_threads(before)
    assert results[0].tobytes() == results[1].tobytes()
    exact = f(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(results[0], exact, atol=1e-6 * k + 1e-5)


@pytest.mark.parametrize("m, n, k", [(392, 512, 2048), (512, 768, 768), (1024, 1024, 1024)])
def test_rows_kilobytes_apart_are_packed_in_deep_panels(m: int, n: int, k: int) -> None:
    """In place 13.0, in panels 10.4 ms (392 x 512 of 2048 terms, one Zen 3 core), and 128 terms at
    a time 32, all of them 26 to 28 (1024^3): panels that go along the second-level cache.
    """
    _, loops = chosen_by(drawn(lambda a, b: a @ b, (m, k), (k, n)))
    assert loops.right is not Right.IN_PLACE
    assert loops.terms is None or loops.terms >= 256


def test_what_no_cache_holds_is_read_in_order() -> None:
    kernel = drawn(lambda a, b: a @ b, (64, 4096), (4096, 4096))
    assert operands(kernel, ZEN3, ()) == ()


def test_what_goes_along_memory_is_there_by_the_time() -> None:
    """A panel does, a row of the other operand too, beside rows written out; a column does not."""
    whole, terms, rows = Level(1), Level(512), Level(6, written=True)
    steps = {"panel": 64, "column": 4096, "row": 4}
    made = {}
    for name, step in steps.items():
        moves = ((terms, step, 512), *([(rows, 4096, 6)] if name == "row" else []))
        array = Array(name, float32, 1 << 20)
        made[name] = Access(array, (whole, terms, rows), 2, moves, 64, False, False).streamed
    assert made == {"panel": True, "column": False, "row": True}


def test_a_schedule_by_hand_begins_at_it() -> None:
    f = pb.jit(lambda a, b: a @ b, options=pb.Options(machine="zen3", target="x86-64-v3"))
    given = pb.ones((128, 784)), pb.ones((784, 512))
    f(*given)
    own = pb.schedule(f, *given)
    assert own.schedule.tile == (128, 64)
    assert own.pack(False).schedule.tile == (128, 64)
    assert own.tile(i=64).schedule.tile == (64, 64)
    try:
        turned = own.reorder("j", "i").schedule
    except OptionError:
        pytest.fail("an order is free whatever the tile")
    assert turned.order == (1, 0)


CHOICE = (
    "y[i, j] = sum[k](where(k < 32, a[{0}] * 2.0, where(k < 64, b[{0}], c[{0}])) * w[k, j])",
    "y[i, j] = sum[k](w[k, i] * where(k < 32, a[{0}] * 2.0, where(k < 64, b[{0}], c[{0}])))",
)


@pytest.mark.parametrize("text", CHOICE, ids=["left", "right"])
@pytest.mark.parametrize("place", ["k % 32, {}", "{}, k % 32"], ids=["rows", "columns"])
def test_tables_by_ranges_are_read_one_at_a_time(text: str, place: str, tmp_path: Path) -> None:
    """6272 x 96 of 288 terms of three tables, one Zen 3 core: all of each vector 15.7 ms, 9.3."""
    random = np.random.default_rng(0)
    shape = (32, 49) if place.startswith("k") else (49, 32)
    tables = [random.normal(size=shape).astype("f") for _ in range(3)]
    w = random.normal(size=(96, 40)).astype("f")
    own = text.format(place.format("i" if text is CHOICE[0] else "j"))
    program = pb.jit(
        lambda a, b, c, w: pb.define(own, a=a, b=b, c=c, w=w),
        options=pb.Options(machine="zen3", target="x86-64-v3", cache=None, dump=tmp_path),
    )
    made = program(*tables, w).numpy()
    tall = [t if place.startswith("k") else t.T for t in tables]
    wanted = np.concatenate([2 * tall[0], *tall[1:]]).T @ w
    np.testing.assert_allclose(made, wanted if text is CHOICE[0] else wanted.T, atol=1e-4)
    (nest,) = tmp_path.glob("*-nest-*")
    assert "if(" not in nest.read_text()


def test_tiles_of_all_rows() -> None:
    """256^3 by tasks of a share of the columns each."""
    made, _ = chosen_by(drawn(lambda a, b: a @ b, (256, 256), (256, 256)))
    assert made.tile == (256, 32)


def test_all_channels_share_a_row_of_places() -> None:
    """64 channels by 7x7 of three, stride 2."""
    x, w = (2, 3, 230, 230), (64, 3, 7, 7)
    one = drawn(lambda x, w: pb.nn.functional.conv2d(x, w, stride=2), x, w)
    made = scheduled(one, ZEN3, operands(one, ZEN3, (("column.0", 1),)))
    assert made.tile[1::2] == (64, 112)


def test_blocks_of_all_channels_of_a_picture() -> None:
    """77 channels by 3x3 of 97 x 39 x 39, stride 2: blocks of k of a whole picture."""
    x, w = (2, 97, 39, 39), (77, 97, 3, 3)
    one = drawn(lambda x, w: pb.nn.functional.conv2d(x, w, stride=2), x, w)
    made = scheduled(one, TWO, operands(one, TWO, (("column.0", 1),)))
    (loops,) = (s.loops for s in made.steps if isinstance(s.loops, TileLoops))
    assert made.tile == (1, 77, 19, 19) and (loops.right, loops.terms) == (Right.BLOCKS, 128)
    assert made.tasks > 1
