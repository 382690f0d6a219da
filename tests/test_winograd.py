"""Convolutions by minimal filtering: what is one, within the bound, by price, told.

References are sums in float64 (of float64: in extended precision), never pullback's own.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import OptionError, RuleError, ShapeError
from pullback.nn import functional as F
from pullback.runtime.executable import Executable
from pullback.winograd import Winograd, bound, rule, weight_bound
from pullback.winograd import choose as choosing
from pullback.winograd.algorithms import ALGORITHMS
from pullback.winograd.choose import CHEAPEST
from test_opencl import needs_device
from test_triton import needs_triton

QUIET = pb.Options(cache=None)
NAMES = tuple(ALGORITHMS)
Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_exact(name: str) -> None:
    """In rational numbers the sums are those of a convolution, and of its adjoint by the weight."""
    own = ALGORITHMS[name]
    x = [Fraction(7 * i * i - 3, i + 2) for i in range(own.points)]
    w = [Fraction(5, 3), Fraction(-2), Fraction(9, 7)]
    v = [sum(b * e for b, e in zip(row, x, strict=True)) for row in own.inputs]
    u = [sum(g * e for g, e in zip(row, w, strict=True)) for row in own.weights]
    y = [sum(a * s * t for a, s, t in zip(row, u, v, strict=True)) for row in own.outputs]
    assert y == [sum(w[k] * x[i + k] for k in range(3)) for i in range(own.tile)]


# --- within the bound ----------------------------------------------------------------------------


def windows(x: Array, padding: int) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))


def exact(x: Array, w: Array, padding: int, groups: int) -> Array:
    """The convolution, in more digits than `x` has."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    x, w = x.astype(wide), w.astype(wide)
    v = windows(x, padding)
    v = v.reshape(len(x), groups, -1, *v.shape[2:])
    y = np.einsum("ngcyxkl,gockl->ngoyx", v, w.reshape(groups, -1, *w.shape[1:]))
    return y.reshape(len(x), len(w), *y.shape[3:])


def exact_weight(x: Array, dy: Array, padding: int, groups: int) -> Array:
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    v = windows(x.astype(wide), padding)
    v = v.reshape(len(x), groups, -1, *v.shape[2:])
    d = dy.astype(wide).reshape(len(x), groups, -1, *dy.shape[2:])
    return np.einsum("ngcyxkl,ngoyx->gockl", v, d).reshape(dy.shape[1], -1, 3, 3)


def turned(w: Array, groups: int) -> Array:
    """The weight that the adjoint by x is a convolution with."""
    own = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)[..., ::-1, ::-1]
    return np.ascontiguousarray(own.reshape(-1, own.shape[2], 3, 3))


def first_above(got: Array, want: Array, limit: Array) -> str:
    """The first index where the error is above the limit; empty where none is."""
    wrong = np.argwhere(~(np.abs(got - want) <= limit))
    if not len(wrong):
        return ""
    at = tuple(wrong[0])
    return f"{at}: got {got[at]!r}, want {want[at]!r}, at most {limit[at]!r} apart"


# Batch, channels in, out, height, width, padding, groups.
SHAPES = [
    (2, 4, 6, 9, 7, 1, 1),
    (1, 3, 2, 5, 6, 0, 1),
    (2, 3, 3, 5, 5, 1, 1),
    (1, 4, 6, 6, 11, 2, 2),
    (2, 4, 4, 4, 10, 1, 4),
    (3, 1, 5, 8, 8, 0, 1),
]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape)


def signs(rng: np.random.Generator, *shape: int) -> Array:
    """Signs that alternate as the rows of the matrices do: nothing cancels within a transform."""
    grid = np.indices(shape[2:]).sum(0)
    return np.broadcast_to((-1.0) ** (grid // 1) * 1e3, shape) + rng.random(shape)


def ranged(rng: np.random.Generator, *shape: int) -> Array:
    """Neighbours of very different sizes: what is small is lost beside what is large."""
    return rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)


def cancelling(rng: np.random.Generator, *shape: int) -> Array:
    """Large equal numbers, which the transforms take from each other, beside small ones."""
    return 1e4 + rng.standard_normal(shape)


DRAWS = (normal, signs, ranged, cancelling)


def check(name: str, shape: tuple[int, ...], kind: str, draw: Any, backend: str = "llvm") -> None:
    """Forward and both adjoints, each within its bound."""
    n, c, o, h, width, padding, groups = shape
    rng = np.random.default_rng(sum(shape))
    x, w = draw(rng, n, c, h, width).astype(kind), draw(rng, o, c // groups, 3, 3).astype(kind)
    dy = draw(rng, n, o, h + 2 * padding - 2, width + 2 * padding - 2).astype(kind)

    def step(x: pb.Tensor, w: pb.Tensor, dy: pb.Tensor) -> tuple[pb.Tensor, ...]:
        y = F.conv2d(x, w, padding=padding, groups=groups)
        return y, *pb.grad(pb.sum(y * dy), [x, w])

    chosen = rule(name)
    options = pb.Options(cache=None, backend=backend)
    made = pb.jit(step, options=options, rules=[chosen])(*map(pb.tensor, (x, w, dy)))
    assert [choice.algorithm for choice in chosen.choices] == [name] * 3
    y, dx, dw = (t.numpy() for t in made)
    back = turned(w, groups)
    limits = (
        bound(name, x, w, padding, groups),
        bound(name, dy, back, 2 - padding, groups),
        weight_bound(name, x, dy, padding, groups),
    )
    wanted = (
        exact(x, w, padding, groups),
        exact(dy, back, 2 - padding, groups),
        exact_weight(x, dy, padding, groups),
    )
    for what, got, want, limit in zip(("y", "dx", "dw"), (y, dx, dw), wanted, limits, strict=True):
        assert not (wrong := first_above(got, want, limit)), f"{what} {wrong}"


@pytest.mark.sampled(24)
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_within_the_bound(shape: tuple[int, ...], name: str, kind: str) -> None:
    check(name, shape, kind, normal)


@pytest.mark.parametrize("name", NAMES)
def test_within_the_bound_in_double_precision(name: str) -> None:
    check(name, SHAPES[1], "float64", normal)


@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.slow), NAMES[1]])
@pytest.mark.parametrize("draw", DRAWS[1:], ids=lambda d: d.__name__)
def test_within_the_bound_where_much_is_lost(draw: Any, name: str) -> None:
    check(name, SHAPES[2], "float32", draw)


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_within_the_bound_at_random(name: str, draw: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(12):
        groups = int(rng.integers(1, 4))
        c, o = groups * rng.integers(1, 9, 2)
        h, width = rng.integers(5, 20, 2)
        shape = (rng.integers(1, 4), c, o, h, width, rng.integers(0, 3), groups)
        kind = ("float32", "float64")[int(rng.integers(2))]
        check(name, tuple(map(int, shape)), kind, draw)


BACKENDS = [
    "reference", "kernels", pytest.param("c", marks=pytest.mark.slow),
    pytest.param("opencl", marks=[needs_device, pytest.mark.slow]),
    pytest.param("triton", marks=[needs_triton, pytest.mark.torch, pytest.mark.slow]),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_backends(backend: str) -> None:
    for name in NAMES:
        check(name, SHAPES[1], "float32", normal, backend)


def test_the_bound_tells_something() -> None:
    """Of plain sums it is theirs; each algorithm's is above it, by what its matrices say."""
    x, w = (np.ones(s, np.float32) for s in ((1, 3, 8, 8), (2, 3, 3, 3)))
    plain, two, four = (bound(name, x, w).max() / 2.0**-24 for name in ("direct", *NAMES))
    # The largest of |a| (|g| 1 * |b| 1) over the places of a tile: 3, 8 and 48, along each axis.
    # Roundings: those of the channels, and of three matrices along two axes.
    wanted = 27 * 27, 3 * 8**2 * (3 + 2 * (2 + 3 + 3)), 3 * 48**2 * (3 + 2 * (4 + 4 + 5))
    assert np.allclose((plain, two, four), wanted, rtol=1e-4)


# --- what is one ---------------------------------------------------------------------------------


def choices(function: Any, *arrays: Array, algorithm: str = "winograd2") -> dict[str, str]:
    chosen = rule(algorithm)
    plain = pb.jit(function, options=QUIET)(*map(pb.tensor, arrays))
    made = pb.jit(function, options=QUIET, rules=[chosen])(*map(pb.tensor, arrays))
    both = zip(*((t,) if isinstance(t, pb.Tensor) else t for t in (made, plain)), strict=True)
    for got, want in both:
        assert np.allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)
    return {choice.name: choice.algorithm + choice.why for choice in chosen.choices}


def ones(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype("float32")


def test_convolutions_by_other_names() -> None:
    """What a definition computes counts, not what it is called."""
    x, w = ones(2, 3, 6, 7), ones(3, 4, 3, 3)
    assert choices(lambda x, w: F.conv_transpose2d(x, w, padding=1), x, w) == {
        "conv_transpose": "winograd2"
    }

    def mine(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        c, k, j = pb.axis(3), pb.axis(3), pb.axis(3)
        body = lambda o, u, v: pb.sum(w[c, o, j, k] * x[1, c, u + k, v + j], over=(c, j, k))
        return pb.compute((4, 4, 5), body, name="mine")

    assert choices(mine, x, w) == {"mine": "winograd2"}


def test_a_frame_that_is_left_out() -> None:
    """A guard may keep more than the ends of the image out: what is inside is found, not taken."""
    x, w = ones(8, 8), ones(3, 3)
    k, j = pb.axis(3), pb.axis(3)

    def inner(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        def body(u: Any, v: Any) -> Any:
            inside = (u + k >= 2) & (u + k < 6) & (v + j >= 1)
            return pb.sum(pb.where(inside, x[u + k, v + j], 0.0) * w[k, j], over=(k, j))

        return pb.compute((6, 6), body, name="inner")

    assert choices(inner, x, w) == {"inner": "winograd2"}


def test_images_without_a_batch_and_padding_of_two_kinds() -> None:
    x, w = ones(3, 6, 7), ones(4, 3, 3, 3)
    assert choices(lambda x, w: F.conv2d(x, w, padding="same"), x, w) == {"conv": "winograd2"}
    assert choices(lambda x, w: F.conv2d(x, w, padding=(0, 2)), x, w) == {"conv": "winograd2"}


def test_a_batch_of_any_size() -> None:
    n = pb.dim("n", 1, 8)
    chosen = rule("winograd4")
    conv = pb.jit(
        lambda x, w: F.conv2d(x, w, padding=1),
        options=QUIET, rules=[chosen], shapes=[(n, 2, 6, 6), (3, 2, 3, 3)],
    )  # fmt: skip
    w = ones(3, 2, 3, 3)
    for count in (1, 5):
        x = ones(count, 2, 6, 6)
        got = conv(pb.tensor(x), pb.tensor(w)).numpy()
        assert not first_above(got, exact(x, w, 1, 1), bound("winograd4", x, w, 1))


def refused(function: Any, *arrays: Array) -> str:
    """Why a program has no convolution by tiles, where one is asked for."""
    with pytest.raises(RuleError) as caught:
        pb.jit(function, options=QUIET, rules=[rule("winograd2")])(*map(pb.tensor, arrays))
    assert caught.value.code == "E595"
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "taps"), [({"stride": 2}, 3), ({"dilation": 2}, 3), ({}, 5), ({}, 1)], ids=str
)
def test_other_convolutions_stay(settings: dict[str, int], taps: int) -> None:
    x, w = ones(1, 2, 9, 9), ones(2, 2, taps, taps)
    conv = lambda x, w: F.conv2d(x, w, **settings)
    refused(conv, x, w)
    assert all(way.startswith("direct") for way in choices(conv, x, w, algorithm=CHEAPEST).values())


K, J = pb.axis(3), pb.axis(3)
NEARLY: dict[str, tuple[Any, str]] = {
    "a triangle": (lambda x, w, u, v: pb.where(u <= v, x[u + K, v + J] * w[K, J], 0.0), "several"),
    "a triangle of elements": (
        lambda x, w, u, v: pb.where(u + K <= v + J, x[u + K, v + J] * w[K, J], 0.0), "several",
    ),
    "some pairs": (lambda x, w, u, v: pb.where(u < K + 3, x[u + K, v + J] * w[K, J], 0.0), "no p"),
    "a hole": (lambda x, w, u, v: pb.where(u + K != 3, x[u + K, v + J] * w[K, J], 0.0), ""),
    "every second tap": (lambda x, w, u, v: pb.where(K != 1, x[u + K, v + J] * w[K, J], 0.0), ""),
    "a diagonal": (lambda x, w, u, v: x[u + K, u + J] * w[K, J] + 0.0 * v, ""),
    "an axis twice": (lambda x, w, u, v: x[u + K, v + J] * w[K, J] * w[J, K], ""),
    "a weight by place": (lambda x, w, u, v: x[u + K, v + J] * x[K, J], ""),
}  # fmt: skip


@pytest.mark.parametrize("what", NEARLY)
def test_what_is_nearly_one_stays(what: str) -> None:
    """Other guards than padding, axes that are read twice, weights that are a part of more."""
    term, why = NEARLY[what]
    body = lambda x, w: lambda u, v: pb.sum(term(x, w, u, v), over=(K, J))
    function = lambda x, w: pb.compute((6, 6), body(x, w))
    assert why in refused(function, ones(8, 8), ones(3, 3))


def test_other_sums_stay() -> None:
    largest = lambda x, w: pb.compute(
        (6, 6), lambda u, v: pb.max(x[u + K, v + J] * w[K, J], over=(K, J))
    )
    refused(largest, ones(8, 8), ones(3, 3))


def test_sixteen_bits_stay() -> None:
    x, w = (pb.tensor(ones(*s)).astype("bfloat16") for s in ((1, 2, 6, 6), (2, 2, 3, 3)))
    with pytest.raises(RuleError, match="E595"):
        pb.jit(F.conv2d, options=QUIET, rules=[rule("winograd2")])(x, w)


def drawn_sum(rng: np.random.Generator) -> tuple[Any, list[Array]]:
    """A sum over two axes of taps, or its adjoint, with axes in any order, turned and guarded."""
    names = [n for n in "noc" if rng.random() < 0.7]
    sizes = {"n": 2, "o": 3, "c": 4, "u": int(rng.integers(3, 9)), "v": int(rng.integers(3, 9))}
    sizes |= {"k": 3 if rng.random() < 0.9 else 2, "j": 3}
    adjoint = rng.random() < 0.3
    image = list(rng.permutation([n for n in names if n != "o"] + ["u", "v"]))
    other = [n for n in names if n != "n"] + (["u", "v"] if adjoint else ["k", "j"])
    if adjoint and "n" in names:
        other.append("n")
    other = list(rng.permutation(other))
    kept = [n for n in names if n != ("n" if adjoint else "c")]
    kept = list(rng.permutation(kept + (["k", "j"] if adjoint else ["u", "v"])))
    summed = [n for n in dict.fromkeys([*image, *other, "k", "j"]) if n not in kept]
    steps = {"u": int(rng.choice([1, -1])), "v": int(rng.choice([1, -1]))}
    shifts = {n: int(rng.integers(-2, 3)) for n in "uv"}
    extents = {n: sizes[n] + int(rng.integers(0, 4)) for n in "uv"}
    axes = {n: pb.axis(sizes[n]) for n in summed}
    ends = {n: sorted(int(e) for e in rng.integers(0, extents[n] + 1, 2)) for n in "uv"}
    narrow = rng.random() < 0.3

    def function(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        def body(*i: Any) -> Any:
            at = {**axes, **dict(zip(kept, i, strict=True))}
            met, tests = dict(at), []
            for n, tap in (("u", "k"), ("v", "j")):
                met[n] = at[n] + steps[n] * at[tap] + shifts[n]
                low, high = ends[n] if narrow and ends[n][0] < ends[n][1] else (0, extents[n])
                tests += [met[n] >= low, met[n] < high]
            inside = tests[0] & tests[1] & tests[2] & tests[3]
            read = x[tuple(met[n] for n in image)]
            weight = w[tuple(at[n] for n in other)]
            return pb.sum(pb.where(inside, read, 0.0) * weight, over=tuple(axes.values()))

        return pb.compute(tuple(sizes[n] for n in kept), body, name="drawn")

    shapes = [tuple(extents.get(n, sizes[n]) for n in image), tuple(sizes[n] for n in other)]
    return function, [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_sums_drawn_at_random(seed: int) -> None:
    """What the rule takes for a convolution is one: its result is that of the plain sum."""
    rng = np.random.default_rng(seed)
    taken = 0
    count = 20 if seed else 8
    for n in range(count):
        function, given = drawn_sum(rng)
        name = NAMES[n % 2]
        try:
            got = pb.jit(function, options=QUIET, rules=[rule(name)])(*map(pb.tensor, given))
        except RuleError as problem:
            assert problem.code == "E595"
            continue
        taken += 1
        want = pb.jit(function, options=QUIET)(*map(pb.tensor, given)).numpy()
        limit = np.full(want.shape, 2e-4 * (1 + np.abs(want).max()))
        assert not (wrong := first_above(got.numpy(), want, limit)), f"{n}, {name}: {wrong}"
    assert 2 * taken >= count, taken


# --- by price, and told --------------------------------------------------------------------------


def conv(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
    return F.conv2d(x, w, padding=1)


def program(x: pb.Tensor, w: pb.Tensor, options: pb.Options, *rules: Winograd) -> Executable:
    made = pb.jit(conv, options=options, rules=rules)
    made(x, w)
    return made.program


def test_without_the_rule_nothing_changes() -> None:
    x, w = pb.tensor(ones(1, 8, 16, 16)), pb.tensor(ones(8, 8, 3, 3))
    assert "winograd" not in program(x, w, QUIET).explain()


def prices_of(chosen: Winograd) -> dict[str, float]:
    (choice,) = chosen.choices
    return dict(choice.prices)


def test_the_lowest_price_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = pb.tensor(ones(1, 8, 12, 12)), pb.tensor(ones(8, 8, 3, 3))
    for cheapest in ("direct", *NAMES):
        price = lambda way, *_, low=cheapest: 1e3 if low == way_of(way) else 2e3
        monkeypatch.setattr(choosing, "_price", price)
        chosen = rule()
        made = pb.jit(conv, options=QUIET, rules=[chosen])
        got = made(x, w).numpy()
        assert np.allclose(got, conv(x, w).numpy(), atol=1e-4)
        assert chosen.choices[0].algorithm == cheapest
        assert f"conv_{cheapest}" in made.program.explain()
        assert f"conv ({__file__}:" in str(chosen.choices[0])
        assert f"): {cheapest}; us: direct " in str(chosen.choices[0])


def test_a_little_less_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, taken in ((0.8, "direct"), (0.7, "winograd2")):
        prices = {"direct": 100.0, "winograd2": 100.0 * part, "winograd4": 99.0}
        monkeypatch.setattr(choosing, "_price", lambda way, *_, p=prices: p[way_of(way)])
        chosen = rule()
        pb.jit(conv, options=QUIET, rules=[chosen])(pb.ones((1, 1, 6, 6)), pb.ones((1, 1, 3, 3)))
        assert chosen.choices[0].algorithm == taken


def way_of(way: Any) -> str:
    return next((name for name in NAMES if name in way.name), "direct")


@pytest.mark.slow
def test_the_price_is_that_of_the_program() -> None:
    """The sum of what `explain` says of its kernels: one currency."""
    x, w = pb.tensor(ones(2, 8, 14, 14)), pb.tensor(ones(8, 8, 3, 3))
    chosen = rule(target="x86-64-v3")
    options = dataclasses.replace(QUIET, target="x86-64-v3", threads=1)
    pb.jit(conv, options=options, rules=[chosen])(x, w)
    known = prices_of(chosen)
    lowest = min(known, key=lambda name: known[name])
    below = known[lowest] < choosing.GAIN * known["direct"]
    assert chosen.choices[0].algorithm == (lowest if below else "direct")
    for name, us in known.items():
        made = program(x, w, options, rule(name))
        told = [n for n in made.explain().splitlines() if n.startswith("price ")]
        total = sum(float(line.split()[1]) for line in told)
        assert abs(total - us) <= 0.01 * len(told) + 1e-3 * us, name


@pytest.mark.slow
def test_a_transform_that_is_there_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adjoint by the weight reads the transformed input of the result, and so its price."""
    x, w = pb.tensor(ones(4, 64, 28, 28)), pb.tensor(ones(64, 64, 3, 3))
    monkeypatch.setattr(choosing, "GAIN", 1.0)

    def adjoint(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        return pb.grad(lambda w: pb.sum(conv(x, w) * x))(w)

    def both(x: pb.Tensor, w: pb.Tensor) -> tuple[pb.Tensor, pb.Tensor]:
        return conv(x, w), adjoint(x, w)

    told = []
    for function in (adjoint, both):
        chosen = rule(target="x86-64-v3")
        made = pb.jit(function, options=QUIET, rules=[chosen])
        made(x, w)
        told.append(dict(chosen.choices[-1].prices))
        inputs = [d for d in made.program.definitions if d.name.endswith("_inputs")]
    assert chosen.choices[0].algorithm == chosen.choices[1].algorithm != "direct", told
    name = chosen.choices[0].algorithm
    assert told[1][name] < 0.95 * told[0][name] and told[1]["direct"] == told[0]["direct"], told
    assert len(inputs) == 1, "it is computed once"


@pytest.mark.slow
def test_a_wide_convolution_has_a_lower_price_by_tiles() -> None:
    """64 channels to 64, 28 x 28: a quarter of the products, and what transforms cost beside."""
    x, w = pb.tensor(ones(4, 64, 28, 28)), pb.tensor(ones(64, 64, 3, 3))
    chosen = rule(target="x86-64-v3")
    program(x, w, QUIET, chosen)
    known = prices_of(chosen)
    assert known["winograd4"] < known["direct"], known


def test_transforms_are_few_kernels() -> None:
    """Matrices, weights, inputs, products with what follows: not one launch for each position."""
    x, w = pb.tensor(ones(4, 64, 28, 28)), pb.tensor(ones(64, 64, 3, 3))
    own = pb.Options(cache=None, machine="x86-64-v4")  # of a second-level cache of 1 MB
    kernels = program(x, w, own, rule("winograd4")).kernels
    stages = [[s.target.name for s in k.stages] for k in kernels]
    inputs = [names for names in stages if "winograd4_inputs" in names]
    product = [names for names in stages if "winograd4_product" in names]
    assert len(kernels) <= 7
    assert inputs == [["winograd4_phases", "winograd4_columns", "winograd4_inputs"]]
    assert ["winograd4_a"] in stages, "matrices are stored once"
    assert "winograd4_rows" in product[0], "what follows the product stands beside it"


def test_rules_of_different_settings_have_different_records() -> None:
    digests = {rule(n, t).digest for n in choosing.WAYS for t in (None, "x86-64-v3")}
    assert len(digests) == 2 * len(choosing.WAYS) and "" not in digests


# --- what is refused -----------------------------------------------------------------------------


def test_unknown_algorithms_name_the_known_ones() -> None:
    for ask in (
        lambda: rule("winograd3"),
        lambda: bound("winograd3", ones(1, 1, 4, 4), ones(1, 1, 3, 3)),
        lambda: weight_bound("fft", ones(1, 1, 4, 4), ones(1, 1, 2, 2)),
    ):
        with pytest.raises(OptionError, match="winograd2, winograd4") as caught:
            ask()
        assert caught.value.code == "E594"


def test_nothing_to_rewrite_is_told() -> None:
    with pytest.raises(RuleError, match="no convolution is of 3 x 3 taps") as caught:
        pb.jit(lambda a, b: a @ b, options=QUIET, rules=[rule("winograd4")])(ones(3, 4), ones(4, 2))
    assert caught.value.code == "E595"
    with pytest.raises(RuleError, match="conv, taps of 5 x 5"):
        given = pb.tensor(ones(1, 2, 9, 9)), pb.tensor(ones(2, 2, 5, 5))
        pb.jit(F.conv2d, options=QUIET, rules=[rule("winograd4")])(*given)


def test_bounds_of_arrays_that_do_not_fit() -> None:
    x, w, dy = ones(2, 4, 6, 6), ones(6, 2, 3, 3), ones(2, 6, 4, 4)
    assert bound("winograd4", x, w, groups=2).shape == (2, 6, 4, 4)
    for ask in (
        lambda: bound("winograd4", x, w),
        lambda: bound("winograd4", x, w[:, :, :2], groups=2),
        lambda: bound("winograd4", x[0], w, groups=2),
        lambda: bound("winograd4", x, w[:5], groups=2),
        lambda: bound("winograd4", x[:, :, :2], w, groups=2),
        lambda: weight_bound("winograd4", x, dy, padding=1),
        lambda: weight_bound("winograd4", x, dy[:1]),
        lambda: weight_bound("winograd4", x, dy, groups=4),
    ):
        with pytest.raises(ShapeError) as caught:
            ask()
        assert caught.value.code == "E596"
