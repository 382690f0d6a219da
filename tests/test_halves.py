"""16-bit floats: rounded where a definition ends, whoever reads it; sums in float32, rounded once.

The same program gives the same bits, whether or not what lies between is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from llvm_support import RUNS_V3
from pullback.ir import expr as E
from pullback.ir.graph import Map, Reduce
from pullback.ir.node import walk

Array = np.ndarray[Any, Any]
Look = Callable[[Any], Any]
HALVES = ("bfloat16", "float16")
SHORT = (*HALVES, "float8_e4m3fn", "float8_e5m2")
ROWS, COLUMNS = 9, 33


def array(values: Any, dtype: str) -> Array:
    """`values` as NumPy has them in a type, or ml_dtypes."""
    kind: Any = getattr(ml_dtypes, dtype, dtype)
    return np.asarray(values).astype(kind)


def bits(x: Any) -> bytes:
    return np.asarray(x if isinstance(x, np.ndarray) else x.numpy()).tobytes()


# --- the same bits, looked at or not -------------------------------------------------------------

MAPS: list[Callable[..., Any]] = [
    lambda a, b: a * b + 0.1,
    lambda a, b: a * a - b,
    lambda a, b: a / (b * b + 1.3),
    lambda a, b: pb.tanh(a) * b,
    lambda a, b: pb.where(a * 3.0 < b, a + b, a * 0.7),
    lambda a, b: pb.maximum(a * b, b - a),
    lambda a, b: pb.clip(a * 1.7, -1.0, 1.0) + b,
    lambda a, b: pb.exp(a * 0.3) - pb.sqrt(abs(b) + 0.2),
    lambda a, b: pb.flip(a, 1) * 1.1 + b,
    lambda a, b: pb.roll(a * 0.9, 1, 0) - b,
    lambda a, b: pb.concat([a[:, 3:] * 0.3, b[:, :3]], 1),
    lambda a, b: pb.astype(pb.astype(a * b, "float32") * 1.01, a.dtype),
    lambda a, b: pb.astype(pb.astype(a * 1.3, "float16") - pb.astype(b, "bfloat16"), a.dtype),
    lambda a, b: a % (abs(b) + 0.5),
]
FOLDS: list[Callable[..., Any]] = [
    lambda a, b: a - pb.max(a * b, axis=1, keepdims=True),
    lambda a, b: a * 0.5 + pb.min(b * 1.1, axis=0, keepdims=True),
    lambda a, b: pb.cumulative_max(a * 1.2, axis=1) - b,
    lambda a, b: pb.sort(a * b, axis=1) + a,
]
SUMS: list[Callable[..., Any]] = [
    lambda a, b: a - pb.sum(a * b, axis=1, keepdims=True) * 0.1,
    lambda a, b: b * pb.mean(a, axis=0, keepdims=True) + a,
    lambda a, b: (a @ b.T) @ b * 0.05,
    lambda a, b: pb.softmax(a, axis=1) * b,
    lambda a, b: pb.cumulative_sum(a * 0.1, axis=1) - b,
    lambda a, b: a / (pb.std(b, axis=1, keepdims=True) + 1.0),
]


def program(seed: int, steps: int, choices: list[Callable[..., Any]]) -> Callable[..., Any]:
    """A random chain of maps and reductions; `look` is given every intermediate."""
    draw = random.Random(seed)
    plan = [(draw.choice(choices), draw.randrange(99), draw.randrange(99)) for _ in range(steps)]

    def run(x: Any, y: Any, look: Look) -> Any:
        known = [x, y]
        for step, i, j in plan:
            known.append(look(step(known[-1 - i % 2], known[j % len(known)])))
        return known[-1]

    return run


def unseen(x: Any) -> Any:
    return x


def seen(x: Any) -> Any:
    x.numpy()
    return x


def inputs(seed: int, dtype: str, whole: bool = False) -> list[Array]:
    """Numbers; `whole`: small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    draws = [rng.standard_normal((ROWS, COLUMNS)) for _ in range(2)]
    return [array(np.round(d * 2) if whole else d, dtype) for d in draws]


SEEDS = [(n, d) for d in HALVES for n in range(8)]
SEEDS += [(n, d) for d in SHORT[2:] for n in range(2)]
SEEDS += [(n, d) for d in ("float32", "float64") for n in range(3)]


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("seed", "dtype"), SEEDS)
def test_bits_do_not_depend_on_who_looks(seed: int, dtype: str) -> None:
    """Eager, with every intermediate computed, kept by jit, and as one program."""
    run = program(seed, 5, MAPS + FOLDS)
    given = inputs(seed, dtype)
    x, y = map(pb.tensor, given)
    lazy = bits(run(x, y, unseen))
    assert bits(run(x, y, seen)) == lazy
    assert bits(run(x, y, lambda t: pb.keep(t, "always"))) == lazy
    assert bits(pb.jit(lambda a, b: run(a, b, unseen))(*given)) == lazy
    made: list[Any] = []

    def shown(a: Any, b: Any) -> Any:
        made.clear()
        found = run(a, b, lambda t: (made.append(t), t)[1])
        return found, tuple(made)

    assert bits(pb.jit(shown)(*given)[0]) == lazy


EXACT: list[Callable[..., Any]] = [
    lambda a, b: pb.sum(a * b + a, axis=1, keepdims=True) * 0.01 + b,
    lambda a, b: pb.mean(a * a, axis=0, keepdims=True) - b,
    lambda a, b: (a @ (b - a).T) @ pb.ones_like(b) + a,
    lambda a, b: pb.einsum("ik,jk->ij", a * b, b)[:, :1] * b,
    lambda a, b: pb.cumulative_sum(a * b, axis=1) * 0.3,
    lambda a, b: pb.var(a, axis=1, keepdims=True) + b,
    lambda a, b: pb.prod(pb.where(a > 20.0, a, 1.0), axis=1, keepdims=True) - b,
    lambda a, b: pb.scatter_add(a, pb.tensor([0, 2, 0]), b[:3] * 3.0) * 1.1,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fold", EXACT)
def test_sums_are_rounded_whoever_reads_them(fold: Callable[..., Any], dtype: str) -> None:
    """Of integers, so that float32 adds them up exactly in any order, beyond 11 bits."""
    maps = program(len(dtype) + EXACT.index(fold), 2, MAPS)
    rng = np.random.default_rng(1)
    given = [array(rng.integers(-30, 30, (ROWS, COLUMNS)), dtype) for _ in range(2)]
    x, y = map(pb.tensor, given)

    def run(a: Any, b: Any, look: Look) -> Any:
        return maps(look(fold(a, b)), look(b * 0.2), look)

    lazy = bits(run(x, y, unseen))
    assert bits(run(x, y, seen)) == lazy
    assert bits(pb.jit(lambda a, b: run(a, b, unseen))(*given)) == lazy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_halves_are_rounded_alike(seed: int, dtype: str) -> None:
    maps = [m for m in MAPS if m not in (MAPS[8], MAPS[9], MAPS[10])]
    run = program(seed, 3, maps)
    given = inputs(seed, dtype)

    def loss(a: Any, b: Any) -> Any:
        return pb.sum(pb.astype(run(a, b, unseen), "float32"))

    gradient = pb.grad(loss, argnums=(0, 1))
    eager = [bits(g) for g in gradient(*map(pb.tensor, given))]
    assert [bits(g) for g in pb.jit(gradient)(*given)] == eager

    def both(a: Any, b: Any) -> Any:
        return gradient(a, b), run(a, b, lambda t: pb.keep(t, "always"))

    assert [bits(g) for g in pb.jit(both)(*given)[0]] == eager


# --- one rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SHORT)
def test_a_cast_sees_what_is_looked_at(dtype: str) -> None:
    x = pb.tensor(array(np.linspace(-4, 4, 333), dtype))
    square = x * x
    seen(square)
    assert bits(pb.astype(square, "float32")) == bits(pb.astype(x * x, "float32"))
    whole = pb.compute((333,), lambda i: pb.astype(x[i] * x[i], "float32"))
    assert bits(whole) == bits(pb.astype(square, "float32"))


@pytest.mark.parametrize("dtype", SHORT)
def test_what_is_compared_is_rounded(dtype: str) -> None:
    """A product within a definition, beside the same product as one of its own."""
    x, y = (pb.tensor(a[0]) for a in inputs(3, dtype))
    product = x * y
    below = pb.compute((COLUMNS,), lambda i: x[i] * y[i] < product[i])
    assert not below.numpy().any()
    best = pb.max(product)
    places = pb.compute((COLUMNS,), lambda i: x[i] * y[i] == best)
    assert places.numpy().sum() == 1


@pytest.mark.parametrize("dtype", SHORT)
def test_literals_are_of_their_type(dtype: str) -> None:
    """0.1 as a value and in a comparison; as a factor it is of float32, as PyTorch's scalars."""
    tenth = float(array(0.1, dtype))
    assert pb.astype(pb.full((3,), 0.1, dtype=dtype), "float32").tolist() == [np.float32(tenth)] * 3
    x = pb.tensor(array([tenth, 1.0], dtype))
    assert (x == 0.1).tolist() == [True, False]
    scaled = pb.compute((2,), lambda i: pb.where(x[i] > 0.5, 0.1, x[i]))
    assert scaled.tolist() == [tenth, tenth]


@pytest.mark.parametrize("dtype", HALVES)
def test_ranges_are_rounded_once(dtype: str) -> None:
    line = np.linspace(-3.0, 900.0, 1000)
    assert np.array_equal(pb.linspace(-3.0, 900.0, 1000, dtype=dtype).numpy(), array(line, dtype))
    steps = np.arange(700, dtype=np.float32) * np.float32(0.3) + np.float32(0.1)
    assert np.array_equal(pb.arange(0.1, 210.0, 0.3, dtype=dtype).numpy(), array(steps, dtype))


@pytest.mark.parametrize("dtype", SHORT)
def test_the_interpreter_rounds_alike(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of exact operations; within a definition as across them."""
    given = inputs(8, dtype)

    def body(a: Any, b: Any) -> Any:
        within = pb.compute(
            (ROWS, COLUMNS), lambda i, j: (a[i, j] * b[i, j] + 0.1) * a[i, j] // (b[i, j] * 0.7)
        )
        rest = pb.compute(
            (ROWS, COLUMNS), lambda i, j: pb.where(a[i, j] * 3.0 < b[i, j], 0.3, a[i, j] % 0.7)
        )
        return within + rest, pb.max(a * b + 0.1, axis=1)

    native = [bits(t) for t in pb.jit(body)(*given)]
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    assert [bits(t) for t in pb.jit(body)(*given)] == native


@pytest.mark.parametrize("dtype", SHORT)
def test_winners_are_found_among_rounded_values(dtype: str) -> None:
    """The gradient of a maximum of products reaches one place of each row."""
    given = [pb.tensor(a) for a in inputs(9, dtype)]
    slope = pb.grad(lambda a, b: pb.sum(pb.astype(pb.max(a * b, axis=1), "float32")))(*given)
    assert (slope.numpy() != 0).sum(1).tolist() == [1] * ROWS

    def within(a: Any, b: Any) -> Any:
        k = pb.axis(COLUMNS)
        most = pb.compute((ROWS,), lambda i: pb.max(a[i, k] * b[i, k], over=k))
        return pb.sum(pb.astype(most, "float32"))

    assert (pb.grad(within)(*given).numpy() != 0).sum(1).tolist() == [1] * ROWS


def test_no_pass_computes_in_16_bits() -> None:
    """What is fused holds casts, moves and comparisons of 16-bit floats alone."""
    given = inputs(2, "bfloat16")
    function = pb.jit(lambda a, b: pb.tanh(a @ b.T)[:, :1] * 2.0 + pb.sum(a * b) - a)
    function(*given)
    bodies = [stage.body for k in function.program.kernels for stage in k.stages]
    assert any(node.dtype == pb.bfloat16 for node in walk(bodies))
    computed = [n for n in walk(bodies) if isinstance(n, E.Unary | E.Add | E.Mul | E.Div)]
    assert computed
    assert not [n for n in computed if n.dtype == pb.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_float64_is_rounded_to_16_bits_at_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside ties of 16 bits by less than float32 can tell; beyond the largest, below the least."""
    digits = 8 if dtype == "bfloat16" else 11
    tie = 1.0 + 2.0**-digits
    values = [tie * (1 + n * 2.0**-40) for n in (-1, 0, 1)] + [
        1.0 / 3.0,
        1e-300,
        0.0,
        np.inf,
        1e300,
    ]
    third = float(array(1.0 / 3.0, dtype))
    wanted = [1.0, 1.0, 1.0 + 2.0 ** (1 - digits), third, 0.0, 0.0, np.inf, np.inf]
    both = np.array(values + [-v for v in values] + [np.nan])
    for backend in ("llvm", "reference"):
        monkeypatch.setenv("PULLBACK_BACKEND", backend)
        found = pb.astype(pb.tensor(both), dtype).numpy().astype(np.float64)
        assert np.array_equal(found, wanted + [-v for v in wanted] + [np.nan], equal_nan=True)
    literal = pb.astype(pb.full((), values[2], dtype="float64"), dtype)
    assert literal.item() == wanted[2]


@pytest.mark.parametrize("dtype", HALVES)
def test_random_numbers_stay_below_one(dtype: str) -> None:
    found = pb.random.uniform((1 << 14,), dtype=dtype, key=pb.random.key(3)).numpy()
    values = found.astype(np.float64)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    assert abs(values.mean() - 0.5) < 0.02


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", HALVES)
def test_guards_leave_sums_of_halves(dtype: str) -> None:
    """A padded convolution and its adjoints are plain products, as those of float32 are."""
    x, w = (array(a, dtype) for a in (np.ones((2, 8, 20, 20)), np.ones((16, 8, 3, 3))))

    def loss(x: Any, w: Any) -> Any:
        y = pb.nn.functional.conv2d(x, w, padding=1)
        return pb.sum(pb.astype(y, "float32") ** 2)

    function = pb.jit(pb.grad(loss, argnums=(0, 1)))
    function(x, w)
    stages = [s for k in function.program.kernels for s in k.stages]
    sums = [s.body for s in stages if isinstance(s.form, Reduce) and isinstance(s.body, E.Mul)]
    assert len(sums) >= 3
    assert not [n for n in walk(sums) if isinstance(n, E.If)]


def test_wider_copies_are_not_stored() -> None:
    """Only sums and what is computed reach memory in float32."""
    rng, F = np.random.default_rng(0), pb.nn.functional
    shapes = ((64, 128), (256, 128), (256,), (128, 256), (128,))
    given = [array(rng.standard_normal(s), "bfloat16") for s in shapes]

    def loss(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = x + F.linear(F.gelu(F.linear(F.layer_norm(x, 128), w, b)), v, c)
        return pb.mean(F.softmax(y, -1) * y)

    function = pb.jit(pb.grad(loss, argnums=tuple(range(5))))
    function(*given)
    for kernel in function.program.kernels:
        for stage in kernel.stages:
            wide = isinstance(stage.form, Map) and isinstance(stage.body, E.Cast)
            wide = wide and stage.body.dtype == pb.float32
            assert not (wide and stage.store is not None), stage


@pytest.mark.skipif(not RUNS_V3, reason="it runs what is compiled for x86-64-v3")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_few_rows_read_weights_of_float16_where_they_lie(
    rows: int, turned: bool, tmp_path: Path
) -> None:
    """1024 x 1024 of them for one row, one Zen 4 core: 2450 us from a panel of float32, 51 so."""
    own = pb.Options(target="x86-64-v3", dump=tmp_path, cache=None)
    random = np.random.default_rng(3)
    x, w = random.standard_normal((rows, 96)), random.standard_normal((96, 96)).astype(np.float16)
    x = x.astype(np.float32)
    product = pb.jit(lambda x, w: x @ (w.T if turned else w).astype("float32"), options=own)
    want = x.astype(np.float64) @ (w.T if turned else w).astype(np.float64)
    np.testing.assert_allclose(product(x, w).numpy(), want, rtol=0, atol=1e-4)
    (nest,) = tmp_path.glob("*-nest-*")
    assert ("panel" in nest.read_text()) == (rows > 8)
