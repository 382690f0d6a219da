"""Large products: packed panels and blocks of k, sums cut along their terms, axes that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lower_support import TABLES as HOST
from lower_support import ZEN5, agree, kernel, num, stage, start, variable
from pullback.fuse import fuse
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import bfloat16, float32
from pullback.ir.expr import Axis, Dim, Expr, Extent
from pullback.ir.graph import Graph, define, read
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.lower.whole import whole
from pullback.schedule.choose import choose, schedule_with
from pullback.schedule.schedule import Schedule, TileLoops, Way
from pullback.simplify.graph import simplify_graph
from pullback.verify.nest import verify_routine

# So little second-level cache that everything is far and is packed.
SMALL = replace(HOST, l2=1024)
SOME = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def product(m: Extent, n: Extent, k: Extent, layout: str, ending: str = "") -> Kernel:
    """``a b``, then nothing, a bias and relu ("map"), an update in place, or a sum of all."""
    a = variable("a", *((m, k) if layout[0] == "n" else (k, m)))
    b = variable("b", *((k, n) if layout[1] == "n" else (n, k)))
    y = variable("y", m, n, kind=bfloat16 if ending == "narrow" else float32)

    def body(i: Axis, j: Axis, t: Axis) -> Expr:
        one = read(a, i, t) if layout[0] == "n" else read(a, t, i)
        other = read(b, t, j) if layout[1] == "n" else read(b, j, t)
        found = E.Mul(one, F.relu(other) if ending == "guest" else other)
        return E.Mul(found, num(0.5)) if ending == "scale" else found

    z = define("z", (m, n), body, over=(k,))
    if ending == "map":
        bias = variable("bias", n)
        out = define("out", (m, n), lambda i, j: F.relu(E.Add(read(z, i, j), read(bias, j))))
        return kernel((m, n), stage(z, (0, 1)), stage(out, (0, 1), y))
    if ending == "update":
        out = define("out", (m, n), lambda i, j: E.Add(read(y, i, j), read(z, i, j)))
        return kernel((m, n), stage(z, (0, 1)), stage(out, (0, 1), y))
    if ending == "narrow":
        out = define("out", (m, n), lambda i, j: E.Cast(read(z, i, j), bfloat16))
        return kernel((m, n), stage(z, (0, 1)), stage(out, (0, 1), y))
    if ending == "sum":
        total = define("total", (), lambda i, j: read(z, i, j), over=(m, n))
        s = variable("s")
        return kernel((m, n), stage(z, (0, 1), y), stage(total, (0, 1), s))
    return kernel((m, n), stage(z, (0, 1), y))


def blocked(k: Kernel, tile: tuple[int, ...], tasks: int, terms: int, target: Target) -> Routine:
    """The routine with `terms` products in a block of k."""
    plan = schedule_with(k, target, tile, tasks)
    steps = tuple(s if s.product is None else replace(s, terms=terms) for s in plan.steps)
    routine = lower(k, whole(k, replace(plan, steps=steps), target))
    verify_routine(routine, "lower")
    return routine


@pytest.mark.parametrize("rows, columns", [(3, 5), (5, 3), (4, 20), (8, 16)])
def test_long_sums_that_registers_hold_wait_in_no_memory(rows: int, columns: int) -> None:
    """Blocks of k add up thousands of parts plainly: off by 3e-5 where all terms are equal."""
    p = product(rows, columns, 131_149, "nn")
    plan = choose(p, ZEN5)
    assert [step.terms for step in plan.steps] == [None]
    assert plan.tile == (rows, columns)


@pytest.mark.slow
@given(
    m=st.integers(2, 150),
    n=st.integers(2, 120),
    k=st.integers(2, 70),
    terms=st.integers(1, 40),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    ending=st.sampled_from(["", "map", "update", "scale", "guest", "sum", "narrow"]),
    data=st.data(),
)
@SOME
def test_blocks_of_k(
    m: int, n: int, k: int, terms: int, layout: str, ending: str, data: st.DataObject
) -> None:
    one = product(m, n, k, layout, ending)
    tile = tuple(data.draw(st.integers(1, e)) for e in (m, n))
    target = data.draw(st.sampled_from([HOST, SMALL]))
    routine = blocked(one, tile, data.draw(st.integers(1, 3)), terms, target)
    agree(one, routine, None, {}, native=True, scalar=False, tolerance=1e-2)


def weights(images: int, high: int, wide: int, rows: int, columns: int) -> Kernel:
    """The gradient of a convolution's weights: sums over images and pixels, none of which merge."""
    head = variable("head", images, columns, high, wide)
    x = variable("x", images, rows, high + 2, wide + 2)
    y = variable("y", columns, rows, 3, 3)
    out = define(
        "out",
        (columns, rows, 3, 3),
        lambda i, j, k, t, m, p, q: E.Mul(
            read(head, m, i, p, q), read(x, m, j, E.Add(p, k), E.Add(q, t))
        ),
        over=(images, high, wide),
    )
    return kernel((columns, rows, 3, 3), stage(out, (0, 1, 2, 3), y))


@pytest.mark.parametrize("terms", [1, 7, 20, 35, 60, 200, 400])
def test_blocks_cut_the_loop_that_has_room(terms: int) -> None:
    """Blocks of one row of pixels and less, of some rows, of whole images, of all."""
    one = weights(3, 10, 7, 4, 40)
    agree(one, blocked(one, (40, 4, 3, 3), 1, terms, SMALL), None, {}, native=True, scalar=False)


def test_gradients_of_weights_are_in_blocks_as_chosen() -> None:
    """``64 x 147, 8 images of 112 x 112``: few columns, packed anyway; an even number of tiles."""
    plan = chosen(weights(8, 112, 112, 16, 64))
    assert plan.tasks % 2 == 0
    assert terms_of(plan) is not None


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("layout", "ending"), [("nt", "map"), ("tn", "map"), ("nn", "guest")])
def test_blocks_of_k_in_the_interpreter(layout: str, ending: str) -> None:
    one = product(65, 18, 9, layout, ending)
    agree(one, blocked(one, (65, 18), 1, 4, SMALL), None, {}, native=False, scalar=True)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_blocks_of_k_of_run_time_extents(layout: str) -> None:
    rows, columns, terms = (Dim(name, 1, 90) for name in ("m", "n", "k"))
    one = product(rows, columns, terms, layout, "map")
    routine = blocked(one, (90, 90), 1, 16, SMALL)
    for size in (1, 48, 90):
        sizes = {rows: 90, columns: size, terms: 47}
        agree(one, routine, None, sizes, native=True, scalar=False)


def chosen(k: Kernel) -> Schedule:
    """What was measured, on the machine that it was measured on."""
    return start(k, ZEN5)


def terms_of(plan: Schedule) -> int | None:
    """Products of a block of k; None: k is one block."""
    loops = plan.steps[0].loops
    return loops.terms if isinstance(loops, TileLoops) else None


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_large_products_as_chosen(layout: str) -> None:
    """``300 x 777, 1400 terms``: an even number of tiles, two blocks of k."""
    one = product(300, 777, 1400, layout, "map")
    plan = chosen(one)
    assert plan.tasks == 2
    assert terms_of(plan) is not None
    routine = lower(one, whole(one, plan, HOST))
    agree(one, routine, None, {}, native=True, scalar=False, tolerance=1e-3)


def test_small_products_stay_as_they_are() -> None:
    for size in ((1024, 128, 512), (512, 512, 512), (128, 784, 512)):
        assert terms_of(chosen(product(*size, "nn"))) is None


# Rows, columns, terms, layout: what is measured to be fastest of tiles of one block of terms (0),
# `right` read once, in order (its block of k), and packed blocks (1280). One Zen 5 core, ms.
CHEAPEST = {
    "from memory once, tiles read it eight times": (64, 3000, 3000, "nn", 64),  # 8.1, 26
    "the same of 128 rows": (128, 3000, 3000, "nn", 87),  # 14.6, 38
    "the same of many terms": (64, 1024, 4096, "nn", 64),  # 4.2, 10.3
    "more than a core's share of the last cache": (64, 8000, 256, "nn", 64),  # 1.3, 2.1
    "within a share tiles are as good": (192, 1024, 1024, "nn", 0),  # 2.1, 2.1
    "few terms": (300, 2000, 200, "nn", 0),  # 1.05, 1.07
    "narrow": (128, 784, 512, "nn", 0),  # 0.45, 0.47
    "few rows wait for memory": (32, 1000, 1000, "nn", 32),  # cold 0.42, 0.60; warm 0.32, 0.29
    "many rows pay for packing": (256, 1024, 1024, "nn", 1280),  # 2.8, 3.0 in order, 4.0 in tiles
    "and more of them": (1024, 1024, 1024, "nn", 1280),  # 10.2, 12.3 in order, 15.0 in tiles
    "panels of long sums: a loss": (512, 200, 12000, "nn", 1280),  # 15.0, 12.0 in order
    "few columns of them": (512, 100, 8000, "nn", 1280),  # 5.2, 5.2 in order
    "packed anyway, all rows at once": (1024, 1024, 1024, "nt", 0),  # 11.8, 13.0
    "few rows, contiguous along k: dot products": (8, 1024, 1024, "nt", 0),
    "near": (512, 512, 512, "nn", 0),
}


@pytest.mark.parametrize("name", CHEAPEST)
def test_the_cheapest_way_is_the_fastest(name: str) -> None:
    rows, columns, terms, layout, block = CHEAPEST[name]
    made = chosen(product(rows, columns, terms, layout))
    (step,) = made.steps
    assert (terms_of(made) or 0) == block
    assert (step.way is Way.DOTS) == ("dot products" in name)


@pytest.mark.parametrize("size", [(8, 112, 112, 16, 64), (64, 24, 24, 32, 32), (8, 28, 28, 4, 64)])
def test_gradients_of_weights_keep_their_panels_near(size: tuple[int, ...]) -> None:
    """64 images of 24 x 24, 32 channels to 32: 9.6 ms in tiles, 5.0 in blocks, one Zen 5 core."""
    assert terms_of(chosen(weights(*size))) == 1280


def test_tiles_are_even_in_number() -> None:
    for m, n in ((1500, 1100), (2048, 2048), (1000, 4000), (600, 1024)):
        plan = chosen(product(m, n, 1024, "nn"))
        tiles = [-(-e // t) for e, t in zip((m, n), plan.tile, strict=True)]
        assert tiles[0] * tiles[1] % 2 == 0


def tall(m: int, n: int, k: int) -> Graph:
    x, w, y = variable("x", m, k), variable("w", k, n), variable("y", m, n)
    z = define("z", (m, n), lambda i, j, t: E.Mul(read(x, i, t), read(w, t, j)), over=(k,))
    bias = define("b", (m, n), lambda i, j: F.relu(E.Add(read(z, i, j), num(1.0))))
    return simplify_graph(Graph(((y, bias),)))


def test_a_tall_sum_is_cut_along_its_terms() -> None:
    first, *_ = fuse(tall(8, 130, 20000), ZEN5)
    assert first.outer == (20000,)
    assert first.stages[0].partial
    plan = chosen(first)
    assert plan.tasks == 4
    assert terms_of(plan) == 59
    first, *_ = fuse(tall(8, 130, 20000), HOST)
    plan = start(first, HOST)
    routine = lower(first, whole(first, plan, HOST))
    verify_routine(routine, "lower")
    agree(first, routine, None, {}, native=True, scalar=False, tolerance=1e-2)


def test_a_sum_of_fewer_terms_is_not() -> None:
    assert all(not s.partial for k in fuse(tall(8, 130, 1000), HOST) for s in k.stages)


def test_a_large_product_keeps_its_axes() -> None:
    """A sum over an operand, and one over the result, leave both axes to the product."""
    a, b = variable("a", 600, 500), variable("b", 500, 700)
    s, r = variable("s", 500), variable("r")
    z = define("z", (600, 700), lambda i, j, t: E.Mul(read(a, i, t), read(b, t, j)), over=(500,))
    across = define("across", (500,), lambda t, j: read(b, t, j), over=(700,))
    total = define("total", (), lambda i, j: read(z, i, j), over=(600, 700))
    kernels = fuse(simplify_graph(Graph(((s, across), (r, total)))), HOST)
    products = [k for k in kernels if any(len(p.extents) == 3 for p in k.stages)]
    assert [k.outer for k in products] == [(600, 700)]


def test_a_sum_over_what_repeats_is_made_once() -> None:
    """``sum[k] 2 s[k] b[k, j]`` for every i is one row, though the map between has i."""
    s, b, y = variable("s", 30), variable("b", 30, 40), variable("y", 20, 40)
    wide = define("wide", (20, 30), lambda i, k: E.Mul(read(s, k), num(2.0)))
    z = define("z", (20, 40), lambda i, j, k: E.Mul(read(wide, i, k), read(b, k, j)), over=(30,))
    kernels = fuse(simplify_graph(Graph(((y, z),))), HOST)
    sums = [p for k in kernels for p in k.stages if len(p.over)]
    assert [p.shape for p in sums] == [(40,)]
