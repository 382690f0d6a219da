"""Windows, sums of several factors, spans between places, the few first: beside the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ir.program import HostCall
from test_places import beside, both, run

RNG = np.random.default_rng(11)
SIDE, WINDOW, HEADS, WIDE = 12, 3, 2, 4


def windows(qkv: Any, table: Any) -> Any:
    """Attention in shifted windows with a table of relative positions."""
    n, m = SIDE, WINDOW
    k, s = n // m, m // 2
    d = pb.axis(WIDE)

    def at(part: int, w: Any, h: Any, i: Any, c: Any) -> Any:
        y, x = w // k * m + i // m + s, w % k * m + i % m + s
        return qkv[part, h, y % n, x % n, c]

    def zone(w: Any, i: Any) -> Any:
        y, x = w // k * m + i // m, w % k * m + i % m
        return pb.where(y < n - s, 0, 1) * 2 + pb.where(x < n - s, 0, 1)

    def score(w: Any, h: Any, i: Any, j: Any) -> Any:
        place = (i // m - j // m + m - 1) * (2 * m - 1) + i % m - j % m + m - 1
        dot = pb.sum(at(0, w, h, i, d) * at(1, w, h, j, d), over=d) + table[place, h]
        return pb.where(zone(w, i) == zone(w, j), dot, -pb.inf)

    p = pb.softmax(pb.compute((k * k, HEADS, m * m, m * m), score), axis=-1)
    return p @ pb.compute((k * k, HEADS, m * m, WIDE), lambda w, h, j, c: at(2, w, h, j, c))


def shifted() -> tuple[np.ndarray, np.ndarray]:
    image = RNG.normal(size=(3, HEADS, SIDE, SIDE, WIDE))
    return image, RNG.normal(size=((2 * WINDOW - 1) ** 2, HEADS))


@pytest.mark.slow
def test_windows_are_read_once_and_their_adjoint_goes_over_them() -> None:
    program = pb.jit(both(windows, 2), options=pb.Options(cache=None))
    program(*map(pb.tensor, shifted()))
    text = program.program.explain()
    assert "_view" in text and "_box" in text  # copies, and sums over what axes are divided into
    assert "dtable_part" in text or "_part" in text  # the table's adjoint is summed, then written
    beside(both(windows, 2), *shifted())


@pytest.mark.slow
def test_derivatives_of_windows_are_those_of_differences() -> None:
    image, table = shifted()
    whole = both(windows, 2)
    _, image_slope, table_slope = run(whole, [image, table])
    step = 1e-5
    for given, slope, place in (
        (image, image_slope, (1, 1, 5, 7, 2)),
        (table, table_slope, (9, 1)),
    ):
        sums = []
        for sign in (1, -1):
            moved = [np.array(image), np.array(table)]
            moved[0 if given is image else 1][place] += sign * step
            sums.append(float((run(whole, moved)[0] ** 2).sum()))
        assert abs((sums[0] - sums[1]) / (2 * step) - slope[place]) < 1e-6 * max(
            1, abs(slope[place])
        )


def test_a_condition_that_keeps_a_read_inside_stays_one() -> None:
    x = RNG.normal(size=(40, 30))

    def halves(x: Any) -> Any:
        def value(i: Any, j: Any) -> Any:
            return pb.where(j // 7 % 4 < 2, x[i, j // 7 % 4 * 15 + j % 7], 0.0)

        return pb.compute((40, 70), value)

    beside(both(halves, 1), x)


def test_a_read_that_its_lanes_keep_inside_stays_in_them() -> None:
    """``t[i + 3]`` is one for all lanes, and there for some of them alone."""
    x, t = RNG.normal(size=(12, 40)), RNG.normal(size=8)
    text = "y[i,j] = where(x[i,j] > 0, where(i + j < 5, t[i + 3], 0.0), 1.0)"
    beside(lambda x, t: [pb.define(text, x=x, t=t)], x, t)


def test_a_map_before_a_write_is_stored() -> None:
    """Its tiles would be columns of all rows."""
    m, key = RNG.normal(size=(20_000, 16)), RNG.integers(0, 500, 20_000)

    def exponentials(m: Any, key: Any) -> Any:
        p = pb.define("p[e,o] = exp(m[e,o])", m=m)
        text = "y[n,o] = sum[e](where(key[e] == n, p[e,o], 0))"
        y = pb.define(text, p=p, key=key, sizes={"n": 500})
        return [y, pb.define("q[e,o] = p[e,o] / y[key[e],o]", p=p, y=y, key=key)]

    program = pb.jit(exponentials, options=pb.Options(cache=None))
    y, q = (r.numpy() for r in program(pb.tensor(m), pb.tensor(key)))
    assert "-> scratch" not in program.program.explain()
    wanted = np.zeros((500, 16))
    np.add.at(wanted, key, np.exp(m))
    np.testing.assert_allclose(y, wanted, rtol=1e-12)
    np.testing.assert_allclose(q, np.exp(m) / wanted[key], rtol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(48, 16, 3), (33, 9, 5)])
def test_a_sum_of_several_factors_takes_its_axes_in_order(shape: tuple[int, int, int]) -> None:
    edges, wide, three = shape
    x, y = RNG.normal(size=(20, wide, three)), RNG.normal(size=(edges, 7))
    w, t = RNG.normal(size=(edges, wide)), RNG.normal(size=(three, 7, three))
    src, dst = RNG.integers(0, 20, edges), RNG.integers(-1, 21, edges)

    def tensor_product(x: Any, y: Any, w: Any, t: Any, src: Any, dst: Any) -> Any:
        m = pb.define(
            "m[e,u,k] = sum[i,j](w[e,u] * x[src[e],u,i] * y[e,j] * t[i,j,k])",
            x=x, y=y, w=w, t=t, src=src,
        )  # fmt: skip
        return pb.define(
            "o[n,u,k] = sum[e](where(dst[e] == n, m[e,u,k], 0))", m=m, dst=dst, sizes={"n": 20}
        )

    beside(both(tensor_product, 4), x, y, w, t, src, dst, wanted="_inner")


def test_a_place_outside_raises_where_an_axis_for_lanes_was_turned_last() -> None:
    x, src = RNG.normal(size=(30, 16, 3, 2)), RNG.integers(0, 30, 500)

    def looked_up(x: Any, src: Any) -> Any:
        return pb.define("y[e,u,i,k] = x[src[e],u,i,k]", x=x, src=src)

    beside(both(looked_up, 1), x, src)
    src[77] = 30
    with pytest.raises(pb.errors.IndexRangeError, match="30") as error:
        run(both(looked_up, 1), [x, src])
    assert "test_views.py" in str(error.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_spans_between_places(combiner: str, kind: str) -> None:
    """Empty spans, spans that overlap, begin before the first and end behind the last."""
    nothing = {"sum": "0", "max": "-inf", "min": "inf"}[combiner]
    begin = np.array([-3, 0, 5, 5, 30, 8, 64, 2], kind)
    end = np.array([4, 0, 9, 64, 90, 3, 70, 2], kind)
    m = RNG.normal(size=(64, 5))

    def spans(m: Any, begin: Any, end: Any) -> Any:
        text = f"y[n,o] = {combiner}[e](where((begin[n] <= e) & (e < end[n]), m[e,o], {nothing}))"
        return pb.define(text, m=m, begin=begin, end=end)

    beside(both(spans, 1), m, begin, end, wanted="accumulate" if combiner == "sum" else "")


def test_spans_of_rows_that_are_looked_up() -> None:
    """Bags of a table: adjoints of rows and weights; a place in no span is not looked at."""
    table, w = RNG.normal(size=(9, 4)), RNG.normal(size=50)
    index, start = RNG.integers(0, 9, 50), np.array([3, 3, 10, 31, 48])
    index[[0, 49]] = 99

    def bags(table: Any, w: Any, index: Any, start: Any) -> Any:
        guard = "(start[b] <= e) & (e < start[b+1])"
        text = f"y[b,c] = sum[e](where({guard}, w[e] * table[index[e],c], 0))"
        return pb.define(text, table=table, w=w, index=index, start=start, sizes={"b": 4})

    beside(both(bags, 2), table, w, index, start, wanted="_spans")
    index[20] = 9
    with pytest.raises(pb.errors.IndexRangeError, match="9"):
        run(both(bags, 2), [table, w, index, start])


def test_a_sum_by_key_looks_at_nothing_outside() -> None:
    """What is read by the key too, where that is nobody's."""
    x, g = RNG.normal(size=(40, 8)), RNG.normal(size=(40, 8))
    src, key = RNG.integers(0, 40, 200), RNG.integers(-2, 43, 200)

    def dots(x: Any, g: Any, src: Any, key: Any) -> Any:
        return pb.define(
            "y[n] = sum[e,c](where(key[e] == n, x[src[e],c] * g[key[e],c], 0))",
            x=x, g=g, src=src, key=key, sizes={"n": 40},
        )  # fmt: skip

    beside(both(dots, 2), x, g, src, key)


KINDS = ["float32", "float64", "int32", "int64", "uint8", "float16"]


def first(x: np.ndarray, k: int, axis: int, largest: bool) -> np.ndarray:
    """The places by NumPy: stable, NaN last."""
    keys = x.astype(np.float64)
    keys = np.where(np.isnan(keys), np.inf, -keys if largest else keys)
    keys += np.where(np.isnan(x.astype(np.float64)), 1, 0)
    order = np.lexsort((np.isnan(x.astype(np.float64)), keys), axis=axis)
    return np.asarray(order.take(range(k), axis=axis))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("undefined", [0.0, 0.5, 0.999])
def test_the_few_first_of_many(kind: str, largest: bool, undefined: float) -> None:
    """Ties of which some have no place; rows of fewer numbers than are asked for."""
    x = RNG.integers(0, 40, (20, 700)).astype(kind)
    if x.dtype.kind == "f":
        x[RNG.random(x.shape) < undefined] = np.nan
    for k in (2, 16, 60):
        values, places = pb.topk(pb.tensor(x), k, axis=1, largest=largest)
        np.testing.assert_array_equal(places.numpy(), first(x, k, 1, largest))
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, places.numpy(), 1))
    down = run(lambda x: [pb.topk(x, 20, axis=0, largest=largest)[1]], [np.array(x.T)])
    np.testing.assert_array_equal(down[0], first(x.T, 20, 0, largest))


@pytest.mark.parametrize("sort", [pb.sort, pb.argsort])
def test_rows_are_sorted_by_whoever_takes_less(sort: Any) -> None:
    """Few elements by comparing all pairs, in the program; many of the same rows by the host."""
    calls = {}
    for rows in (1, 600):
        x = RNG.normal(size=(rows, 200)).astype(np.float32)
        program = pb.jit(sort, options=pb.Options(cache=None))
        wanted = {pb.sort: np.sort, pb.argsort: np.argsort}[sort](x, -1, kind="stable")
        np.testing.assert_array_equal(program(pb.tensor(x)).numpy(), wanted)
        calls[rows] = any(isinstance(item, HostCall) for item in program.program.program.body)
    assert calls == {1: False, 600: True}


def test_the_few_first_are_called_for_where_that_is_less_work() -> None:
    calls = {}
    for size in (300, 3000):
        program = pb.jit(lambda x: pb.topk(x, 8, axis=1), options=pb.Options(cache=None))
        program(pb.tensor(RNG.normal(size=(20, size))))
        calls[size] = "NumPy" in program.program.explain() or "order" in program.program.explain()
    assert calls == {300: False, 3000: True}
    x, head = RNG.normal(size=(20, 3000)), RNG.normal(size=(20, 8))
    (slope,) = run(lambda x, h: pb.grad(pb.topk(x, 8, axis=1)[0], [x], head=h), [x, head])
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, first(x, 8, 1, True), head, 1)
    np.testing.assert_array_equal(slope, wanted)
