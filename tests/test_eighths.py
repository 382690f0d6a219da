"""Floats of 8 bits: stored, computed with in float32, rounded where a definition ends.

As for 16 bits (`test_halves.py`, which has these types too), but for what is theirs alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from eighths import EIGHTHS, check_cells, check_conversions, every, narrow, numbers
from pullback import nn
from pullback.cli.resume import resumed
from pullback.config import Options
from pullback.errors import DTypeError, PullbackError
from pullback.ir.dtype import promote
from test_backends import needs_c

KINDS = tuple(EIGHTHS)
RNG = np.random.default_rng(0)
BACKENDS = ["reference", "llvm", pytest.param("c", marks=needs_c)]
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # ml_dtypes


def options(backend: str) -> Options:
    return Options(backend=backend, cache=None)


# --- conversions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_conversions(backend: str, kind: str) -> None:
    check_conversions(options(backend), kind, numbers(kind, 50_000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_float16_is_rounded(backend: str, kind: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    function = pb.jit(lambda x: pb.astype(x, kind), options=options(backend))
    got = function(halves).numpy().view(np.uint8)
    np.testing.assert_array_equal(got, narrow(halves, kind).view(np.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_processors_without_conversions_of_float16(kind: str) -> None:
    check_conversions(Options(target="x86-64", cache=None), kind, numbers(kind, 9_000))


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_is_rounded_at_once(backend: str) -> None:
    """Beside a tie by less than float32 can tell, where by its way it would be even."""
    beside = 1 + np.array([-1, 0, 1]) * 2.0**-40
    for kind, digits in zip(KINDS, (4, 3), strict=True):
        step = 2.0 ** (1 - digits)
        function = pb.jit(lambda x, kind=kind: pb.astype(x, kind), options=options(backend))
        got = function((1 + step / 2) * beside).numpy().astype(np.float64)
        assert got.tolist() == [1.0, 1.0, 1.0 + step]


def test_what_is_too_large() -> None:
    """NaN of e4m3fn, which has no infinity; 464 is half way to what would be 480, and even."""
    given = [464.0, 464.1, np.inf, -np.inf, 61439.0, 61440.0]
    got = pb.astype(pb.tensor(np.array(given, np.float32)), "float8_e4m3fn").tolist()
    np.testing.assert_array_equal(got, [448.0, *[np.nan] * 5])
    got = pb.astype(pb.tensor(np.array(given, np.float32)), "float8_e5m2").tolist()
    assert got == [448.0, 448.0, np.inf, -np.inf, 57344.0, np.inf]


@pytest.mark.parametrize("to", ["int8", "uint8", "int64", "bool", *KINDS, "float16", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_casts_to_other_types(kind: str, to: str) -> None:
    """Towards zero and at the ends of integers, NaN as 0: as of float32."""
    wide = pb.astype(pb.tensor(every(kind).astype(np.float32)), to)
    own = pb.astype(pb.tensor(every(kind)), to)
    assert own.dtype == wide.dtype
    one, other = (t.numpy().astype(np.float64) for t in (own, wide))
    np.testing.assert_array_equal(one, other)


# --- types ---------------------------------------------------------------------------------------


def test_promotion() -> None:
    a, b = pb.float8_e4m3fn, pb.float8_e5m2
    assert promote(a, a) is a
    assert promote(a, b) is promote(b, a) is pb.float32
    for wide in (pb.float16, pb.bfloat16, pb.float32, pb.float64):
        assert promote(a, wide) is promote(wide, b) is wide
    assert promote(a, pb.int64) is a
    x = pb.tensor(narrow([1.5, 3.0], "float8_e4m3fn"))
    assert (x + 1.0).dtype is a
    assert (x * pb.tensor(np.float16([2, 2]))).dtype is pb.float16


def test_operations_of_integers_are_refused() -> None:
    x = pb.tensor(narrow([1.0, 2.0], "float8_e5m2"))
    for run in (lambda: x & x, lambda: x << 1, lambda: pb.ones(3)[x]):
        with pytest.raises(PullbackError) as error:
            run()
        assert error.value.code
    with pytest.raises(DTypeError, match="float8_e4m3fn, float8_e5m2") as unknown:
        pb.dtype("float8")
    assert unknown.value.code == "E140"
    with pytest.raises(PullbackError) as shared:
        x.__dlpack__()
    assert shared.value.code == "E318"


@pytest.mark.parametrize("kind", KINDS)
def test_tests_of_numbers(kind: str) -> None:
    x, wide = pb.tensor(every(kind)), every(kind).astype(np.float32)
    for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf"):
        np.testing.assert_array_equal(getattr(pb, name)(x).numpy(), getattr(np, name)(wide))
    known = ~np.isnan(wide)
    np.testing.assert_array_equal(pb.signbit(x).numpy()[known], np.signbit(wide)[known])
    limit = np.asarray(448.0, EIGHTHS[kind])
    for to in (limit, -limit):
        want = np.nextafter(every(kind), to).astype(np.float32)
        got = pb.nextafter(x, pb.tensor(to)).numpy().astype(np.float32)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_what_begins_with_the_least_number(kind: str) -> None:
    """Where float32 has an infinity, e4m3fn has none: beside the same of float32."""
    own = narrow(RNG.standard_normal((1, 4, 9)) - 3.0, kind)
    holes = own.copy()
    holes[0, :, ::2] = np.nan

    def run(x: Any, y: Any) -> list[Any]:
        F = nn.functional
        return [
            F.max_pool1d(x, 3, 1, 1),
            pb.topk(x, 3)[0],
            pb.nanmax(y, axis=2),
            pb.sort(x, axis=2),
            pb.cumulative_max(x, axis=2),
            pb.max(x),
            pb.argmin(x, axis=1),
        ]

    narrowed = pb.jit(run)(own, holes)
    wide = pb.jit(run)(own.astype(np.float32), holes.astype(np.float32))
    for a, b in zip(narrowed, wide, strict=True):
        np.testing.assert_array_equal(a.numpy().astype(np.float32), b.numpy())


# --- uses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_weights(kind: str, rows: int, turned: bool) -> None:
    """Forward, and the gradient by what they are multiplied with beside differences."""
    w = narrow(RNG.standard_normal((37, 53)), kind)
    x = RNG.standard_normal((rows, 37)).astype(np.float32)
    wide = w.astype(np.float64)

    def loss(x: Any, w: Any) -> Any:
        y = x @ pb.astype(w.T if turned else w, "float32")
        return pb.sum(pb.sin(y))

    value, slope = pb.jit(lambda x, w: (loss(x, w), pb.grad(loss)(x, w)))(x, w.T if turned else w)

    def exact(x: Any) -> Any:
        return np.sin(x @ wide).sum()

    np.testing.assert_allclose(value.numpy(), exact(x.astype(np.float64)), rtol=1e-4, atol=1e-4)
    along = RNG.standard_normal(x.shape)
    step = 1e-5
    moved = exact(x + step * along) - exact(x - step * along)
    np.testing.assert_allclose(
        (slope.numpy() * along).sum(), moved / (2 * step), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_by_them_is_one_of_them(kind: str) -> None:
    """As PyTorch's is: what float32 would have, rounded once."""
    w = narrow(RNG.standard_normal(65), kind)
    slope = pb.grad(lambda w: pb.sum(pb.astype(w, "float32") ** 2))
    got, wide = slope(pb.tensor(w)).numpy(), slope(pb.tensor(w.astype(np.float32))).numpy()
    assert got.dtype == w.dtype
    np.testing.assert_array_equal(got.view(np.uint8), narrow(wide, kind).view(np.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_keys(kind: str) -> None:
    """A state of 8 bits that rows are written to, read by attention in float32."""
    heads, places, width = 2, 7, 8
    keys, values = (pb.State(pb.zeros((heads, places, width), dtype=kind)) for _ in range(2))

    @pb.jit
    def step(q: Any, k: Any, v: Any, at: Any) -> Any:
        for cell, row in ((keys, k), (values, v)):
            here = pb.arange(places)[None, :, None] == at
            cell.assign(pb.where(here, pb.astype(row, kind)[:, None], cell))
        scores = pb.sum(pb.astype(keys, "float32") * q[:, None], axis=2) * width**-0.5
        scores = pb.where(pb.arange(places) <= at, scores, -np.inf)
        weights = pb.softmax(scores, axis=1)
        return pb.sum(weights[..., None] * pb.astype(values, "float32"), axis=1)

    kept = np.zeros((2, heads, places, width))
    for at in range(places):
        q, k, v = (RNG.standard_normal((heads, width)).astype(np.float32) for _ in range(3))
        got = step(q, k, v, np.int64(at)).numpy()
        kept[0, :, at], kept[1, :, at] = (narrow(a, kind).astype(np.float64) for a in (k, v))
        scores = np.einsum("hpw,hw->hp", kept[0, :, : at + 1], q) * width**-0.5
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        want = np.einsum("hp,hpw->hw", weights, kept[1, :, : at + 1])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert keys.numpy().dtype == EIGHTHS[kind]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (31,), (33, 65)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_and_strides(backend: str, shape: tuple[int, ...]) -> None:
    for kind in KINDS:
        own = narrow(np.asarray(RNG.standard_normal(shape)), kind)
        wide = own.astype(np.float32)
        given = own[::2, 1::3] if len(shape) == 2 else own
        whole = wide[::2, 1::3] if len(shape) == 2 else wide

        def run(x: Any) -> Any:
            return (pb.flip(x, 1).T if len(shape) == 2 else x) * 1.5

        function = pb.jit(run, options=options(backend))
        got = function(given).numpy()
        want = (whole[:, ::-1].T if len(shape) == 2 else whole) * np.float32(1.5)
        assert got.dtype == own.dtype
        np.testing.assert_array_equal(got.view(np.uint8), narrow(want, kind).view(np.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_of_float32(kind: str) -> None:
    """1000 ones are 1000, rounded at the end."""
    ones = pb.ones((1000,), dtype=kind)
    assert float(pb.mean(ones * 2)) == 2.0
    assert float(pb.astype(pb.sum(pb.astype(ones, "float32")), "float32")) == 1000.0
    half = pb.ones((300,), dtype=kind)
    assert float(pb.sum(half)) == float(narrow(300.0, kind))


# --- texts and files -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_stages_are_read_back(kind: str, tmp_path: Path) -> None:
    function = pb.jit(
        lambda x: pb.astype(x, kind) * 2.5 + 1.5, options=Options(dump=tmp_path, cache=None)
    )
    function(np.ones(5, np.float32))
    suffix = {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}[kind]
    (traced,) = tmp_path.glob("*traced-graph*")
    assert f"1.5{suffix}" in traced.read_text()
    made = [
        resumed(path)["result0"]
        for path in sorted(tmp_path.glob("*-*"))
        if re.search(r"graph|kernel|nest|llvm", path.name)
    ]
    assert len(made) >= 5
    assert all(
        np.array_equal(m.ravel().view(np.uint8), made[0].ravel().view(np.uint8)) for m in made
    )


def test_weights_of_safetensors(tmp_path: Path) -> None:
    held = {kind: every(kind).reshape(16, 16) for kind in KINDS}
    nn.save(held, tmp_path / "w.safetensors")
    assert b'"F8_E4M3"' in (tmp_path / "w.safetensors").read_bytes()
    for kind, back in nn.load(tmp_path / "w.safetensors").items():
        assert str(back.dtype) == kind
        np.testing.assert_array_equal(back.numpy().view(np.uint8), held[kind].view(np.uint8))


# --- code ----------------------------------------------------------------------------------------


def test_weights_are_widened_in_lanes(tmp_path: Path) -> None:
    """By vectors of 16 bits, without a call, whether read in place or packed."""
    for rows in (1, 64):
        folder = tmp_path / str(rows)
        own = Options(target="x86-64-v3", dump=folder, cache=None)
        function = pb.jit(lambda x, w: x @ pb.astype(w, "float32"), options=own)
        function(np.ones((rows, 64), np.float32), narrow(np.ones((64, 96)), "float8_e4m3fn"))
        (path,) = folder.glob("*-assembly-*")
        text = path.read_text()
        assert "vpmovsxbw" in text and re.search(r"vcvtph2ps\s+%xmm\d+, %ymm", text)
        assert not re.search(r"\bcall", text)
        (nest,) = folder.glob("*-nest-*")
        assert ("panel" in nest.read_text()) == (rows > 8)


@pytest.mark.parametrize("backend", ["kernels", "llvm"])
def test_some_cells_of_conformance(backend: str) -> None:
    check_cells(backend, 12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["kernels", "llvm", pytest.param("c", marks=needs_c)])
def test_cells_of_conformance(backend: str) -> None:
    check_cells(backend, 1)
