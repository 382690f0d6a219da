"""Where a processor waits for memory: what it cannot fetch ahead, and what is there already."""

from __future__ import annotations

import pytest

from pullback.backends.host.processor import named_target
from pullback.backends.nests.ports import WINDOW
from pullback.backends.nests.price import Walk, nest_price
from pullback.backends.nests.reuse import APART, Access, Level, Miss, missed, spanned
from pullback.ir.dtype import float32
from pullback.ir.expr import Add, Mul, index
from pullback.ir.graph import SUM
from pullback.ir.nest import Array, Combine, Declare, For, Load, Peek, Register, Routine, Store, Var
from pullback.machine.machine import LINE, Memory, chosen

ZEN3 = named_target("x86-64-v3").on(chosen("zen3"))
KB = 1024
ROWS = 1 << 18


def access(*loops: tuple[int, int], written_out: int = 0, scattered: bool = False) -> Access:
    """A read of loops ``(turns, bytes apart)``, the first outermost, the last ones written out."""
    levels = [Level(1), *(Level(turns) for turns, _ in loops)]
    terms = tuple(
        (level, step, turns) for level, (turns, step) in zip(levels[1:], loops, strict=True)
    )
    depth = len(levels) - written_out
    return Access(Array("x", float32, 1 << 30), tuple(levels), depth, terms, 4, False, scattered)


def leaps(*loops: tuple[int, int], written_out: int = 0, scattered: bool = False) -> float:
    made = access(*loops, written_out=written_out, scattered=scattered)
    return made.leaps(made.path[0], True)


def test_steps_of_one_length_are_fetched_ahead() -> None:
    assert leaps((100, 18 * KB)) == 1
    assert leaps((50, 64), (100, 18 * KB)) == 1, "few lines, each of which goes on"
    assert leaps((100, 18 * KB), (3, 4)) == 100, "three elements of each row"
    assert leaps((100, 512), (3, 4)) == 1, "near enough"
    assert leaps((100, 18 * KB), (12, 36), written_out=1) == 1, "twelve reads side by side"


def test_a_few_lines_in_turn_go_on() -> None:
    few, many = ((50, 64), (8, 4 * KB), (16, 4)), ((50, 64), (32, 4 * KB), (16, 4))
    assert leaps(*few) == 8
    assert leaps(*many) == 50 * 32


def test_what_is_at_random_leaps_each_time() -> None:
    assert leaps((100, APART), scattered=True) == 100
    assert leaps((100, APART), (16, 4), scattered=True) == 100


def test_windows_that_overlap_fetch_what_is_new() -> None:
    """A convolution of 7 x 7 at every second place: rows of 916 bytes, 3 channels of 229 rows."""
    rows, row, channel = 112, 916, 229 * 916
    windows = (rows, 2 * row), (18, 48), (3, channel), (7, row), (7, 4)
    assert spanned([(step, turns) for turns, step in windows], 4) < 1.1 * 3 * channel
    assert leaps(*windows) == rows * 3 * 2
    assert spanned([(APART, 7), (APART, 9)], 4) == 63 * LINE, "at random nothing overlaps"


def at_random(elements: int) -> Miss:
    """What 1,000 rows of 1 KB of a table fetch beyond 64 KB, beside another row each turn."""
    table = Array("table", float32, elements)
    around, turns, along = Level(1), Level(1000), Level(256)
    path = (around, turns, along)
    own = Access(table, path, 3, ((turns, APART, 1000), (along, 4, 256)), 4, False, True)
    rows = Array("rows", float32, 256_000)
    beside = Access(rows, path, 3, ((turns, KB, 1000), (along, 4, 256)), 4, False, False)
    for level in path:
        level.accesses += [own, beside]
    return missed([own, beside], 64 * KB)[own]


def test_a_small_table_at_random_stays() -> None:
    """16 rows are touched again after 16 turns of 2 KB, 64 rows after 128 KB."""
    assert at_random(16 * 256).bytes == pytest.approx(16 * KB, rel=0.01)
    assert at_random(64 * 256).bytes == pytest.approx(1000 * KB, rel=0.07)


def rows_apart(between: int) -> float:
    """Nanoseconds of rows of two lines, so many bytes apart, that are added up."""
    rows, columns = ROWS, 2 * LINE // 4
    x, y = Array("x", float32, rows * between // 4 + columns), Array("y", float32, 1)
    i, j, total = Var("i", 0, rows - 1), Var("j", 0, columns - 1), Register("sum", float32)
    place = Add(Mul(i, index(between // 4)), j)
    inner = For(j, index(0), index(columns), (Combine(total, (), SUM, Load(x, place)),))
    body = (
        Declare(total, SUM.identity(float32)),
        For(i, index(0), index(rows), (inner,)),
        Store(y, index(0), Peek(total, ())),
    )
    routine = Routine("sums", (x, y), (), (), (), Var("task", 0, 0), 1, body)
    return nest_price(routine, ZEN3).ns


def test_leaps_wait_for_the_latency_of_their_memory() -> None:
    """32 MB of lines: each row waits, as far as work until the next one does not hide it."""
    near, far = rows_apart(2 * LINE), rows_apart(16 * KB)
    latency = ZEN3.profile.memories[-1].latency
    ahead = WINDOW * ZEN3.profile.rate("unit", "scalar")
    own = near / ROWS
    assert far - near > 0.8 * ROWS * latency * min(1.0, own / ahead)


def test_one_line_is_hidden_for_a_while_and_four_are_not() -> None:
    """Of the third-level cache one line each 54 ns waits for 5 ns, four as long as for memory's
    first; the second-level cache for none.
    """
    body = (Declare(Register("t", float32), Load(Array("x", float32, 1), index(0))),)
    walk = Walk(Routine("one", (), (), (), (), Var("task", 0, 0), 1, body), ZEN3, 1)
    second, third, memory = ZEN3.profile.memories[1:]

    def each(lines: int, source: Memory) -> float:
        return walk.late(Miss(100.0 * lines * LINE, 100.0), 100 * 54.0, source) / 100

    assert each(1, second) == each(4, second) == 0
    assert 4 < each(1, third) < 6
    assert each(4, third) == third.latency
    assert each(1, memory) > 0.9 * memory.latency
    assert each(4, memory) == memory.latency
