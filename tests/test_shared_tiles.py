"""Products over one table of scores, by its rows and by its columns, share its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import chosen_target, named_target
from pullback.backends.reference.kernels import run_kernel
from pullback.cli.graph_text import parse_kernel
from pullback.cli.resume import Fixed
from pullback.errors import InvalidIR, ShapeError
from pullback.ir.kernel import Kernel
from pullback.ir.program import Launch, Program
from pullback.ir.text import show
from pullback.lower import lower
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen
from pullback.nn.sequence.attention import Mask, adjoints, attended, with_mask
from pullback.pipeline import compile_program
from pullback.schedule.choices import choices_of
from pullback.schedule.schedule import Place, Schedule
from pullback.schedule.verify import verify_schedule

HOST = chosen_target("native", None)
ZEN3 = named_target("x86-64-v3").on(chosen("zen3"))
attention = pb.nn.functional.scaled_dot_product_attention


def gradients(causal: bool) -> Any:
    def loss(a: tuple[Any, Any, Any], g: Any) -> Any:
        return (attention(*a, is_causal=causal) * g).sum()

    return lambda q, k, v, g: pb.grad(loss)((q, k, v), g)


def kernels(shape: Sequence[int], causal: bool = False) -> list[Kernel]:
    run = pb.jit(gradients(causal), options=pb.Options(machine="zen3", target="x86-64-v3"))
    run(*(pb.ones(shape) for _ in range(4)))
    return list(run.program.distinct())


def joint(shape: Sequence[int], causal: bool = False) -> Kernel:
    """The kernel that sums over queries and over keys."""
    made = kernels(shape, causal)
    (one,) = (k for k in made if {"dq", "dk", "dv"} <= {s.target.name for s in k.stages})
    return one


def places(kernel: Kernel, made: Schedule) -> dict[str, Place]:
    """Where the sums by queries, keys and values live."""
    rows = zip(kernel.stages, made.residences, strict=False)
    return {s.target.name: home.place for s, home in rows if s.partial}


@pytest.mark.parametrize("causal", (False, True))
def test_gradients_of_attention_store_no_table(causal: bool) -> None:
    """Scores are computed once or, of many, once forward and once backward; none is stored."""
    for positions, times in (256, 1), (4096, 2):
        stages = [s for k in kernels((1, 2, positions, 64), causal) for s in k.every]
        assert not any(s.store is not None and s.shape[-2:] == (positions,) * 2 for s in stages)
        names = [s.target.name for s in stages]
        assert (names.count("dots"), names.count("dexps")) == (times, 1)


def test_both_axes_of_long_scores_have_tiles() -> None:
    one = joint((1, 2, 4096, 64))
    assert {s.target.name for s in one.stages if s.partial} == {"dq", "dk", "dv"}
    made = scheduled(one, ZEN3)
    assert len(made.tile) == 3
    assert made.scratch_bytes <= ZEN3.l2, "no rows of all keys"


def test_whole_heads_are_added_where_they_are_stored() -> None:
    """Eight heads by eight tasks; of two heads by four tasks two sums are each task's own."""
    one = joint((1, 8, 4096, 64))
    made = scheduled(one, ZEN3)
    assert (made.tasks, made.split) == (8, 1)
    assert set(places(one, made).values()) == {Place.MEMORY}
    assert not lower(one, made).shared
    twelve = joint((1, 12, 4096, 64))
    assert scheduled(twelve, ZEN3).tasks == 4, "of eight tasks some would share heads"
    two = joint((1, 2, 4096, 64))
    made = scheduled(two, ZEN3)
    assert (made.tasks, made.split) == (4, 2)
    assert sorted(p.value for p in places(two, made).values()) == ["memory", "shared", "shared"]


def test_sums_of_several_tasks_are_not_added_in_place() -> None:
    one = joint((1, 2, 4096, 64))
    made = scheduled(one, ZEN3)
    homes = made.residences
    wrong = tuple(replace(h, place=Place.MEMORY) if h.place is Place.SHARED else h for h in homes)
    with pytest.raises(InvalidIR, match="in memory"):
        verify_schedule(one, replace(made, residences=wrong), "test")


def test_exponentials_are_written_over_scores() -> None:
    (one,) = (k for k in kernels((1, 2, 4096, 64)) if "mixed" in {s.target.name for s in k.stages})
    made = scheduled(one, ZEN3)
    number = {s.target.name: n for n, s in enumerate(one.stages)}
    homes = made.residences
    assert homes[number["exps"]].slot == homes[number["dots"]].slot is not None
    wrong = list(homes)
    wrong[number["exps"]] = replace(homes[number["exps"]], slot=homes[number["dots"]].slot)
    wrong[number["top"]] = replace(homes[number["top"]], place=Place.SCRATCH, slot=0)
    with pytest.raises(InvalidIR, match="top"):
        verify_schedule(one, replace(made, residences=tuple(wrong)), "test")


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    """Differences of neighbours: the map reads two elements of the sums for one of its own."""
    text = """kernel apart over [i < 40]
  var x: float32[40, 30, 9]
  var y: float32[40]
  stage s: float32[40, 30] at (i) -> scratch
    s[i, j] = sum[k < 9](x[i, j, k])
    reads x[i, j, k]
  stage d: float32[40, 30] at (i) -> scratch
    d[i, j] = s[i, j] - s[i, PLACE]
    reads s[i, j], s[i, PLACE]
  stage t: float32[40] at (i) -> store y
    t[i] = sum[j < 30](d[i, j] * d[i, 29 - j])
    reads d[i, j], d[i, 29 - j]
"""
    for place, slots in ("j", 1), ("29 - j", 2):
        made = scheduled(parse_kernel(text.replace("PLACE", place)), HOST)
        assert len(made.slots) == slots, place


# Of 2 heads, 50 queries and 70 keys; GUARD: which scores there are.
TEXT = """kernel both over [i < 2, j < 50, k < 70]
  var q: float32[2, 50, 9]
  var k: float32[2, 70, 9]
  var dq: float32[2, 50, 9]
  var dk: float32[2, 70, 9]
  stage dots: float32[2, 50, 70] at (i, j, k) -> scratch
    dots[i, j, k] = sum[l < 9](q[i, j, l] * k[i, k, l])
    reads q[i, j, l], k[i, k, l]
  stage p: float32[2, 50, 70] at (i, j, k) -> scratch
    p[i, j, k] = if(GUARD, exp(dots[i, j, k] * 0.25), 0.0)
    reads dots[i, j, k]
  stage by_rows: float32[2, 50, 9] at (i, j, l) -> store dq, partial
    by_rows[i, j, k] = sum[l < 70](p[i, j, l] * k[i, l, k])
    reads p[i, j, l], k[i, l, k]
  stage by_columns: float32[2, 70, 9] at (i, l, j) -> store dk, partial
    by_columns[i, j, k] = sum[l < 50](p[i, l, j] * q[i, l, k])
    reads p[i, l, j], q[i, l, k]
"""
BAND = "(k < j + 9) & (j < k + 4)"
GUARDS = {"all": "k < 70", "below": "k < j + 1", "band": BAND, "none": "k < 0"}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("tile", [(1, 16, 32), (2, 7, 70), (1, 50, 9), (2, 33, 40)])
@pytest.mark.parametrize("tasks", (1, 2, 4))
def test_any_tiles_and_tasks(guard: str, tile: tuple[int, int, int], tasks: int) -> None:
    """Beside the interpreter of kernels, on memory that holds no number before."""
    kernel = parse_kernel(TEXT.replace("GUARD", GUARDS[guard]))
    wish = {f"tile.{n}": extent for n, extent in enumerate(tile)} | {"tasks": tasks}
    made = scheduled(kernel, HOST, choices_of(wish))
    random = np.random.default_rng(8)
    given = {
        v: random.standard_normal(v.shape).astype("float32")
        if v.name in "qk"
        else np.full(v.shape, np.nan, "float32")
        for v in kernel.arguments
    }
    wanted = run_kernel(kernel, given)
    program = Program((Launch(kernel),), kernel.arguments)
    compile_program(program, pb.Options(cache=None, threads=2), Fixed(made)).run(given)
    for variable in kernel.writes:
        np.testing.assert_allclose(given[variable], wanted[variable], rtol=1e-5, atol=1e-4)


def innermost(text: str) -> list[str]:
    """What the loop over the innermost tiles begins with, of a kernel in tiles of 16 x 32."""
    kernel = parse_kernel(text)
    made = scheduled(kernel, HOST, choices_of({"tile.0": 1, "tile.1": 16, "tile.2": 32}))
    lines = [line.strip() for line in show(lower(kernel, made)).splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith("seq t2"))
    return lines[first + 1 : first + 3]


def test_tiles_without_terms_are_left_out() -> None:
    """One test a tile where a tile may be without terms, none where each has some."""
    every = innermost(TEXT.replace("if(GUARD, exp(dots[i, j, k] * 0.25), 0.0)", "dots[i, j, k]"))
    below = innermost(TEXT.replace("GUARD", GUARDS["below"]))
    assert not any(line.startswith("if ") for line in every), every
    assert any(line.startswith("if ") for line in below), below


SIZES = [(1, 2, 300, 20), (2, 1, 257, 33), (1, 3, 130, 8), (1, 1, 512, 16)]


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("threads", (1, 2))
def test_as_numpy_says(shape: tuple[int, ...], causal: bool, threads: int) -> None:
    """Also with tiles that do not divide the axes, and none of the sizes of a vector."""
    random = np.random.default_rng(7)
    q, k, v, g = (random.standard_normal(shape) for _ in range(4))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(shape[-1])
    wanted = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g
    run = pb.jit(gradients(causal), options=pb.Options(threads=threads, cache=None))
    got = run(*(pb.tensor(a.astype("float32")) for a in (q, k, v, g)))
    for name, one, other in zip("qkv", got, wanted, strict=True):
        error = np.abs(one.numpy() - other).max() / np.abs(other).max()
        assert error < 3e-6, f"d{name} of {shape}: {error}"


SHAPES = ((1, 1, 1, 1, 4, 4), (2, 3, 17, 17, 8, 8), (1, 2, 5, 33, 8, 12), (2, 1, 31, 3, 16, 5))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", ("no", "causal", "allowed", "added"))
def test_adjoints_by_what_was_computed(shape: tuple[int, ...], masked: str) -> None:
    """Beside the gradients of attention itself, also of a row without a column left."""
    b, h, t, s, e, f = shape
    rng = np.random.default_rng(t)
    q, k, v, g = (
        pb.tensor(rng.standard_normal(n).astype("float32"))
        for n in ((b, h, t, e), (b, h, s, e), (b, h, s, f), (b, h, t, f))
    )
    left = np.arange(t)[:, None] % 3 + np.zeros(s, int) > 0
    masks = {"allowed": left, "added": np.where(left, 0.5, -np.inf).astype("float32")}
    causal, mask = masked == "causal", pb.tensor(masks[masked]) if masked in masks else None

    def forward(q: Any, k: Any, v: Any) -> Any:
        return attended(q, k, v, mask, 0.0, causal)

    def own(q: Any, k: Any, v: Any, g: Any) -> Any:
        made = forward(q, k, v)
        logs = pb.reshape(made.logs, (b, h, t))
        seen = with_mask(Mask(causal=causal), mask)
        return adjoints(g, q, k, v, made.output, logs, seen)

    wanted = pb.grad(lambda a: (forward(*a).output * g).sum())((q, k, v))
    for name, one, other in zip("qkv", pb.jit(own)(q, k, v, g), wanted, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=2e-5, atol=2e-5, err_msg=f"d{name} of {shape}"
        )


def test_keys_and_values_are_as_many() -> None:
    q, k, v = (pb.ones((1, 2, n, 4)) for n in (3, 5, 6))
    with pytest.raises(ShapeError, match="E175"):
        attended(q, k, v)
    with pytest.raises(ShapeError, match="E175"):
        adjoints(q, q, k, v, q, pb.ones((1, 2, 3)), Mask())
