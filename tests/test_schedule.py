"""Schedules: index forms, contractions recognised, tiles within scratch, tasks by shape alone."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lower_support import HOST, ZEN4, ZEN5, kernel, num, stage, start, variable
from pullback.algebra.linear import Linear, coarser, divide, linear, offset, stepped
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, index
from pullback.ir.graph import MAX, SUM, Accumulate, Definition, Scan, define, read
from pullback.ir.kernel import Kernel, plain_places
from pullback.ir.nest import Var
from pullback.ir.node import walk
from pullback.lower.guards import less
from pullback.machine.machine import chosen, names
from pullback.schedule.choose import choose, schedule_with
from pullback.schedule.contraction import products, recognise, register_tile
from pullback.schedule.cost import Model, most_tasks, task_count
from pullback.schedule.schedule import Place, Way
from pullback.schedule.slots import tile_counts

T, X, Y = Var("t", 0, 3), Var("x", 0, 7), Var("y", 0, 4)
RANGES = {v: range(v.lo, v.hi + 1) for v in (T, X, Y)}


def value(e: Expr, env: dict[Expr, int]) -> int:
    known: dict[object, int] = dict(env)
    for node in walk(e):
        match node:
            case E.Const(v):
                known[node] = int(v)
            case E.Add(a, b):
                known[node] = known[a] + known[b]
            case E.Mul(a, b):
                known[node] = known[a] * known[b]
            case E.FloorDiv(a, b):
                known[node] = known[a] // known[b]
            case E.Mod(a, b):
                known[node] = known[a] % known[b]
            case E.Less(a, b):
                known[node] = known[a] < known[b]
    return known[e]


@st.composite
def indices(draw: st.DrawFn) -> Expr:
    e: Expr = draw(st.sampled_from([T, X, Y]))
    for _ in range(draw(st.integers(1, 5))):
        other = draw(st.sampled_from([T, X, Y, index(draw(st.integers(-9, 9)))]))
        match draw(st.integers(0, 3)):
            case 0:
                e = E.Add(e, other)
            case 1:
                e = E.Mul(e, index(draw(st.integers(-4, 8))))
            case 2:
                e = E.FloorDiv(e, index(draw(st.integers(1, 8))))
            case _:
                e = E.Mod(e, index(draw(st.integers(1, 8))))
    return e


def environments() -> list[dict[Expr, int]]:
    names = list(RANGES)
    return [dict(zip(names, v, strict=True)) for v in product(*RANGES.values())]


@given(indices(), indices(), st.integers(1, 9))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_linear_forms_keep_the_value(a: Expr, b: Expr, by: int) -> None:
    forms = linear(a), linear(a).plus(linear(b), -3)
    quotient, rest = divide(forms[0], by)
    lo, hi = forms[0].range()
    smaller = less(a, b)
    for env in environments()[::3]:
        x, y = value(a, env), value(b, env)
        assert value(forms[0].expr(), env) == x
        assert value(forms[1].expr(), env) == x - 3 * y
        assert (value(quotient.expr(), env), value(rest.expr(), env)) == divmod(x, by)
        assert lo <= x <= hi
        assert value(smaller, env) == (x < y)


def test_reshapes_fold() -> None:
    at = Axis(0, 120)
    digits = [
        E.FloorDiv(at, index(12)),
        E.Mod(E.FloorDiv(at, index(3)), index(4)),
        E.Mod(at, index(3)),
    ]
    assert offset(digits, (12, 3, 1)).expr() is at
    tile = E.Add(E.Mul(T, index(8)), X)
    assert linear(E.FloorDiv(tile, index(16))).expr() is E.FloorDiv(T, index(2))
    form = coarser(linear(E.Add(E.Mul(T, index(8)), E.Add(X, index(-8)))))
    assert form is not None and form == Linear(-1, {T: 1})


def test_contractions_are_recognised_by_form() -> None:
    a, b, w = variable("a", 40, 30), variable("b", 30, 50), variable("w", 50, 30)
    plain = define("z", (40, 50), lambda i, j, k: E.Mul(read(a, i, k), read(b, k, j)), over=(30,))
    found = products(stage(plain, (0,)))
    assert (found[1].row, found[1].direct, found[0].row, found[0].direct) == (0, True, 1, False)
    turned = define("z", (40, 50), lambda i, j, k: E.Mul(read(a, i, k), read(w, j, k)), over=(30,))
    found = products(stage(turned, (0,)))
    assert not found[1].direct and not found[0].direct
    scaled = define(
        "z",
        (40, 50),
        lambda i, j, k: E.Mul(E.Mul(read(a, i, k), num(2)), read(b, k, j)),
        over=(30,),
    )
    assert products(stage(scaled, (0,)))[1].scale is num(2)
    square = define("q", (40,), lambda i, k: E.Mul(read(a, i, k), read(a, i, k)), over=(30,))
    assert recognise(stage(square, (0,)), HOST) is None
    most = define(
        "m", (40, 50), lambda i, j, k: E.Mul(read(a, i, k), read(b, k, j)), over=(30,), combiner=MAX
    )
    assert recognise(stage(most, (0,)), HOST) is None


def test_columns_that_need_no_panels_may_be_cut() -> None:
    """``z[i, j, k] = sum[l] x[i, j, l] w[l, k]`` in tiles of k reads w where it lies."""
    assert column_of(48, turned=False)[0] == 2


def test_packed_columns_are_cut_where_tiles_keep_whole_vectors() -> None:
    """``z[i, j, k] = sum[l] x[i, j, l] v[k, l]`` in tiles of k: of few k others stay whole."""
    assert column_of(512, turned=True) == (2, False)
    assert column_of(40, turned=True)[0] != 2


@pytest.mark.parametrize(("rows", "terms", "column"), [(24, 64, 0), (17, 300, 1)])
def test_weights_of_a_layer_are_packed_where_rows_share_them(
    rows: int, terms: int, column: int
) -> None:
    """``z[i, j] = sum[k] x[i, k] w[j, k]``, 17 x 512 of 300 terms: 29 us, and 48 with the rows in
    lanes, one Zen 5 core; 24 x 512 of 64: 28 and 23, one Zen 4 core.
    """
    x, w = variable("x", rows, terms), variable("w", 512, terms)
    z = define("z", (rows, 512), lambda i, j, k: E.Mul(read(x, i, k), read(w, j, k)), over=(terms,))
    (step,) = start(kernel((rows, 512), stage(z, (0, 1), variable("y", rows, 512))), ZEN4).steps
    assert step.product is not None and step.product.column == column


def column_of(extent: int, turned: bool) -> tuple[int, bool]:
    """The columns of a product in tiles of them, and whether they need no panels."""
    x = variable("x", 16, 64, 128)
    w = variable("w", extent, 128) if turned else variable("w", 128, extent)

    def body(i: Expr, j: Expr, k: Expr, m: Expr) -> Expr:
        return E.Mul(read(x, i, j, m), read(w, k, m) if turned else read(w, m, k))

    z = define("z", (16, 64, extent), body, over=(128,))
    one = kernel((extent,), stage(z, (2,), variable("y", 16, 64, extent)))
    product = start(one, HOST).steps[0].product
    assert product is not None
    return product.column, product.direct


@pytest.mark.parametrize(
    ("rows", "columns", "most"), [(64, 48, 28), (64, 64, 28), (2, 255, 24), (1000, 32, 28)]
)
def test_register_tiles_fit_the_registers(rows: int, columns: int, most: int) -> None:
    height, vectors = register_tile(rows, columns, 16, chosen("x86-64-v4"))
    assert 1 <= height <= rows
    assert 8 <= height * vectors <= most


def test_two_rows_take_eight_vectors() -> None:
    """Four in a row leave too few sums in flight."""
    assert register_tile(2, 128, 16, chosen("x86-64-v4")) == (2, 8)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_register_tile_leaves_room_for_operands(name: str, lanes: int) -> None:
    """A register for each sum, each vector of a row and one of the left operand."""
    machine = chosen(name)
    for rows in range(1, 40):
        for columns in (1, 7, 16, 24, 32, 64, 255, 256):
            height, vectors = register_tile(rows, columns, lanes, machine)
            assert height * vectors + vectors + 1 <= machine.registers


def softmax(rows: int, columns: int) -> Kernel:
    x, y = variable("x", rows, columns), variable("y", rows, columns)
    m = define("m", (rows,), lambda i, k: read(x, i, k), over=(columns,), combiner=MAX)
    e = define("e", (rows, columns), lambda i, j: E.Exp(E.subtract(read(x, i, j), read(m, i))))
    s = define("s", (rows,), lambda i, k: read(e, i, k), over=(columns,))
    p = define("p", (rows, columns), lambda i, j: E.Div(read(e, i, j), read(s, i)))
    return kernel((rows,), stage(m, (0,)), stage(e, (0,)), stage(s, (0,)), stage(p, (0,), y))


@pytest.mark.parametrize("columns", [16, 512, 4096, 12000])
def test_scratch_stays_within_its_budget(columns: int) -> None:
    k = softmax(4096, columns)
    plan = choose(k, HOST)
    least = schedule_with(k, HOST, (1,) * len(k.outer), 1).scratch_bytes
    assert plan.scratch_bytes <= max(HOST.scratch, least)
    assert least <= 4 * columns + 256
    assert -(-4096 // plan.tile[0]) >= plan.tasks >= 4


@pytest.mark.parametrize(("columns", "most"), [(64, 64), (512, 8), (1024, 4), (32000, 1)])
def test_rows_that_are_read_again_stay_in_the_first_cache(columns: int, most: int) -> None:
    rows = choose(softmax(4096, columns), HOST).tile[0]
    assert most // 4 <= rows <= most


def test_panels_that_rows_share_are_packed_once() -> None:
    """Scores of 2048 x 2048 a head: panels of k serve all rows, so tiles beat dot products."""
    q, k, v, y = (variable(n, 8, 2048, 64) for n in "qkvy")
    s = define(
        "s",
        (8, 2048, 2048),
        lambda h, i, j, e: E.Mul(read(q, h, i, e), read(k, h, j, e)),
        over=(64,),
    )
    m = define("m", (8, 2048), lambda h, i, j: read(s, h, i, j), over=(2048,), combiner=MAX)
    p = define(
        "p",
        (8, 2048, 2048),
        lambda h, i, j: E.Exp(E.subtract(read(s, h, i, j), read(m, h, i))),
    )
    z = define(
        "z",
        (8, 2048, 64),
        lambda h, i, e, j: E.Mul(read(p, h, i, j), read(v, h, j, e)),
        over=(2048,),
    )
    stages = [stage(d, (0, 1)) for d in (s, m, p)]
    plan = choose(kernel((8, 2048), *stages, stage(z, (0, 1), y)), HOST)
    assert [step.way for step in plan.steps if step.product] == [Way.TILES, Way.TILES]
    assert plan.tile[1] >= 8


def test_neighbours_share_a_loop_and_registers() -> None:
    plan = choose(softmax(64, 64), HOST)
    assert [s.stages for s in plan.steps] == [(0,), (1, 2), (3,)]
    x, y = variable("x", 50), variable("y", 50)
    a = define("a", (50,), lambda i: E.Exp(read(x, i)))
    b = define("b", (50,), lambda i: E.Mul(read(a, i), read(a, i)))
    plan = choose(kernel((50,), stage(a, (0,)), stage(b, (0,), y)), HOST)
    assert [s.stages for s in plan.steps] == [(0, 1)]
    assert plan.residences[0].place is Place.REGISTER
    shifted = define("b", (49,), lambda i: read(a, E.Add(i, index(1))))
    plan = choose(kernel((), stage(a, ()), stage(shifted, (), variable("z", 49))), HOST)
    assert [s.stages for s in plan.steps] == [(0,), (1,)]


def test_a_write_waits_for_readers_elsewhere() -> None:
    w, y = variable("w", 50), variable("y", 50)
    turned = define("t", (50,), lambda i: read(w, E.Add(index(49), E.negate(i))))
    update = define("u", (50,), lambda i: E.Mul(read(w, i), num(2)))
    plan = choose(kernel((), stage(turned, (), y), stage(update, (), w)), HOST)
    assert [s.stages for s in plan.steps] == [(0,), (1,)]


def test_tasks_depend_on_shapes_only() -> None:
    x, total = variable("x", 4096, 512), variable("total", 512)
    s = define("s", (512,), lambda j, i: F.tanh(read(x, i, j)), over=(4096,))
    k = kernel((4096,), stage(s, (1,), total))
    assert choose(k, HOST).tasks == most_tasks(k, HOST)
    assert choose(softmax(2, 64), HOST).tasks == 1
    assert str(choose(softmax(512, 512), HOST)) == str(choose(softmax(512, 512), HOST))


def test_few_rows_choose_dot_products() -> None:
    a, w, y = variable("a", 2, 255), variable("w", 255, 255), variable("y", 2, 255)
    z = define("z", (2, 255), lambda i, j, k: E.Mul(read(a, i, k), read(w, j, k)), over=(255,))
    assert choose(kernel((2,), stage(z, (0,), y)), HOST).steps[0].way is Way.DOTS
    a, y = variable("a", 64, 255), variable("y", 64, 255)
    z = define("z", (64, 255), lambda i, j, k: E.Mul(read(a, i, k), read(w, j, k)), over=(255,))
    assert choose(kernel((64,), stage(z, (0,), y)), HOST).steps[0].way is Way.TILES


@pytest.mark.parametrize(("side", "way", "lanes"), [(8, Way.TILES, 2), (2, Way.DOTS, 3)])
def test_few_dot_products_across_memory(side: int, way: Way, lanes: int) -> None:
    """A small picture's 1x1 convolution: along the channels its rows would be gathered. Of 2 x 2
    they are few: 9.6 us by dot products, 21 with a row of the picture in lanes, one Zen 5 core.
    """
    x, w, y = (
        variable("x", 368, side, side),
        variable("w", 368, 368),
        variable("y", 368, side, side),
    )
    z = define(
        "z", (368, side, side),
        lambda o, i, j, c: E.Mul(read(x, c, i, j), read(w, o, c)), over=(368,),
    )  # fmt: skip
    step = start(kernel((368,), stage(z, (0,), y)), ZEN5).steps[0]
    assert (step.way, step.vector) == (way, lanes)


def test_two_wide_axes_are_both_tiled() -> None:
    """A weight gradient of two evaluated operands: neither side in tiles of one."""
    x, dy, w = variable("x", 1024, 128), variable("dy", 1024, 384), variable("w", 384, 128)
    a = define("a", (1024, 128), lambda r, k: F.tanh(read(x, r, k)))
    b = define("b", (1024, 384), lambda r, n: F.tanh(read(dy, r, n)))
    z = define("z", (384, 128), lambda n, k, r: E.Mul(read(b, r, n), read(a, r, k)), over=(1024,))
    k = kernel((384, 128), stage(a, (None, 1)), stage(b, (1, None)), stage(z, (0, 1), w))
    plan = choose(k, HOST)
    assert min(plan.tile) >= 16
    assert plan.scratch_bytes <= HOST.l2 // 2


def test_estimates_are_cheap_and_ordered() -> None:
    model = Model(HOST)
    k = softmax(512, 512)
    model.work_us(k)
    start = perf_counter()
    for _ in range(10):
        model.work_us(k)
    assert perf_counter() - start < 0.01
    assert model.work_us(softmax(1024, 512)) > model.work_us(k)
    assert task_count(k, model.work_us(k), HOST) > 1


@pytest.mark.parametrize(("rows", "alone"), [(8192, True), (1024, False)])
def test_a_write_that_mostly_fills_goes_along_memory(rows: int, alone: bool) -> None:
    places, g = variable("p", 1024, kind=int64), variable("g", 1024, 512)
    w = variable("w", rows, 512)
    i, j = Axis(0, 1024), Axis(1, 512)
    form = Accumulate(SUM, (1024, 512), (read(places, i), j))
    add = Definition("w", (rows, 512), read(g, i, j), form)
    plan = choose(kernel((512,), stage(add, (1,), w)), HOST)
    assert (plan.tasks == 1) == alone


@pytest.mark.parametrize("columns", [32, 48, 256])
def test_a_task_owns_whole_vectors_of_an_accumulating_write(columns: int) -> None:
    """Messages along edges."""
    x, f = variable("x", 1000, 16), variable("f", 16, columns)
    z = define(
        "z", (1000, columns), lambda i, j, t: E.Mul(read(x, i, t), read(f, t, j)), over=(16,)
    )
    source, target = variable("s", 4000, kind=int64), variable("p", 4000, kind=int64)
    w = variable("w", 1000, columns)
    i, j = Axis(0, 4000), Axis(1, columns)
    form = Accumulate(SUM, (4000, columns), (read(target, i), j))
    add = Definition("w", (1000, columns), read(z, read(source, i), j), form)
    plan = choose(kernel((columns,), stage(z, (1,)), stage(add, (1,), w)), HOST)
    assert 1 < plan.tasks <= columns // HOST.lanes(4)
    assert plan.tile[0] % HOST.lanes(4) == 0


def test_scans_and_plain_places() -> None:
    x = variable("x", 9, 21)
    s = Definition("s", (9, 21), read(x, Axis(0, 9), Axis(1, 21)), Scan(SUM, 0))
    plan = choose(kernel((), stage(s, (), variable("y", 9, 21))), HOST)
    assert plan.steps[0].way is Way.SCAN
    assert plan.steps[0].vector == 1
    i, j = Axis(0, 9), Axis(1, 4)
    form = Accumulate(SUM, (9, 4), (j, E.Mod(i, index(3)), j))
    assert plain_places(form, (4, 3, 4)) == {1: 0}
    assert plain_places(form, (5, 3, 4)) == {1: 2}, "row 4 of the first axis has no iteration"


def test_two_threads_get_equal_work() -> None:
    """34 rows for two tasks in tiles of 17, not of 32 and 2."""
    x, w, y = variable("x", 34, 400), variable("w", 400, 64), variable("y", 34, 64)
    z = define("z", (34, 64), lambda i, j, t: E.Mul(read(x, i, t), read(w, t, j)), over=(400,))
    plan = choose(kernel((34,), stage(z, (0,), y)), HOST)
    assert (plan.tasks, plan.tile) == (2, (17,))


@pytest.mark.parametrize(("channels", "side", "tasks"), [(160, 14, 10), (40, 56, 10), (128, 14, 8)])
def test_tasks_have_as_many_tiles_each(channels: int, side: int, tasks: int) -> None:
    """Depthwise 7 x 7: two threads take ten tiles of ten tasks five and five, of eight 6 and 4."""
    x, w = variable("x", 2, channels, side + 6, side + 6), variable("w", channels, 7, 7)
    z = define(
        "z", (2, channels, side, side),
        lambda n, c, i, j, p, q: E.Mul(read(x, n, c, E.Add(i, p), E.Add(j, q)), read(w, c, p, q)),
        over=(7, 7),
    )  # fmt: skip
    y = variable("y", 2, channels, side, side)
    one = kernel((2, channels), stage(z, (0, 1), y))
    plan = choose(one, HOST)
    tiles = prod(tile_counts(one, plan.tile))
    assert (plan.tasks, tiles % plan.tasks) == (tasks, 0), f"tiles of {plan.tile}: {tiles}"


def test_partial_sums_are_of_few_tasks() -> None:
    """They are added in the order of tasks: 6 tiles by 4 tasks, not by 6."""
    x, total = variable("x", 48, 4096), variable("total", 4096)
    s = define("s", (4096,), lambda j, i: F.tanh(read(x, i, j)), over=(48,))
    one = kernel((48,), stage(s, (1,), total))
    plan = choose(one, HOST)
    assert (plan.tasks, prod(tile_counts(one, plan.tile))) == (4, 6)


def test_what_all_tiles_share_does_not_make_them_narrow() -> None:
    """Half a megabyte of scratch of each head, whatever the tile: columns still go by vectors."""
    heads, rows, wide = 6, 384, 64
    a, b = variable("a", heads, rows, wide), variable("b", heads, rows, wide)
    y = variable("y", heads, rows, wide)
    dots = define(
        "dots",
        (heads, rows, rows),
        lambda h, i, j, t: E.Mul(read(a, h, i, t), read(b, h, j, t)),
        over=(wide,),
    )
    exps = define("exps", dots.shape, lambda h, i, j: E.Exp(read(dots, h, i, j)))
    z = define(
        "z", (heads, rows, wide), lambda h, i, j, t: E.Mul(read(exps, h, t, i), read(b, h, t, j)),
        over=(rows,),
    )  # fmt: skip
    stages = stage(dots, (0, None)), stage(exps, (0, None)), stage(z, (0, 2), y)
    plan = choose(kernel((heads, wide), *stages), HOST)
    assert plan.scratch_bytes > HOST.l2 // 2 and plan.tile[1] >= HOST.lanes(4)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_steps_of_a_form(inner: int, outer: int, factor: int, start: int) -> None:
    """``f(x + 1) - f(x)`` is the step but where a run ends."""
    at = Axis(0, inner * outer * 8)
    whole = E.FloorDiv(E.Mul(at, index(factor)), index(inner * factor))
    rest = E.Mod(E.Add(E.Mul(at, index(factor)), index(start * inner * factor)), index(inner * 12))
    form = linear(E.Add(E.Mul(E.Mod(whole, index(outer)), index(100)), E.Mul(rest, index(3))))
    step, run = stepped(form, at) or (0, 0)
    made = [value(form.expr(), {at: n}) for n in range(at.extent)]
    ends = sum(b - a != step for a, b in pairwise(made))
    assert not run or ends <= 2 * at.extent // run + 1, f"{made}: not by {step} in {run} on end"


def test_steps_through_quotients() -> None:
    at, other = Axis(0, 6272), Axis(1, 4)
    lane = E.Add(E.Mul(E.FloorDiv(at, index(32)), index(64)), E.Mod(at, index(32)))
    assert stepped(linear(lane), at) == (1, 32)
    row = E.Mod(E.FloorDiv(at, index(49)), index(3))
    assert stepped(linear(E.Add(row, other)), at) == (0, 49)
    assert stepped(linear(E.Mul(E.Mod(E.Mul(at, index(2)), index(9)), index(5))), at) == (10, 4)
    assert stepped(linear(E.FloorDiv(E.Mul(at, index(6)), index(4))), at) == (0, 0)
    assert stepped(linear(E.Mod(at, E.Add(other, index(1)))), at) is None


def test_lanes_go_along_memory_through_quotients() -> None:
    """Sums over windows, ``sum[j] x[j // 7, i // 32, j % 7, i % 32]``: lanes are columns i."""
    x = variable("x", 640, 2, 7, 32)

    def body(i: Expr, j: Expr) -> Expr:
        (window, row), (head, column) = (
            (E.FloorDiv(a, index(by)), E.Mod(a, index(by))) for a, by in ((j, 7), (i, 32))
        )
        return read(x, window, head, row, column)

    summed = define("s", (64,), body, over=(4480,))
    made = choose(kernel((64,), stage(summed, (0,))), HOST)
    assert made.steps[0].vector == 0, made
