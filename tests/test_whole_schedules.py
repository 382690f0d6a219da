"""Whole schedules: read back from their text, verified, and any legal one means the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lower_support import HOST, agree
from pullback.backends.host.processor import named_target
from pullback.cli.graph_text import parse_kernel
from pullback.cli.schedule_text import read_schedule
from pullback.errors import InvalidIR, SyntaxFormError
from pullback.ir.expr import Dim
from pullback.ir.kernel import Kernel
from pullback.ir.text import show
from pullback.lower import lower
from pullback.lower.whole import scheduled, whole
from pullback.schedule.choose import choose, schedule_with
from pullback.schedule.schedule import TileLoops, Way
from pullback.schedule.text import schedule_text
from pullback.schedule.verify import verify_schedule
from pullback.verify.nest import verify_routine
from random_schedules import check_schedule

SOFTMAX = """kernel rows over [i < 64]
  var x: float32[64, 48]
  var w: float32[48, 40]
  var y: float32[64, 40]
  stage top: float32[64] at (i) -> scratch
    top[i] = max[j < 48](x[i, j])
  stage exps: float32[64, 48] at (i) -> scratch
    exps[i, j] = exp(x[i, j] - top[i])
  stage total: float32[64] at (i) -> scratch
    total[i] = sum[j < 48](exps[i, j])
  stage mixed: float32[64, 40] at (i) -> scratch
    mixed[i, j] = sum[k < 48](exps[i, k] * w[k, j])
  stage out: float32[64, 40] at (i) -> store y
    out[i, j] = mixed[i, j] / total[i]
"""


@pytest.fixture(scope="module")
def rows() -> Kernel:
    return parse_kernel(SOFTMAX)


@pytest.fixture(scope="module")
def text(rows: Kernel) -> str:
    return schedule_text(scheduled(rows, HOST))


def test_text_is_read_back(rows: Kernel, text: str) -> None:
    assert read_schedule(text, rows) == scheduled(rows, HOST)


def test_an_open_schedule_is_not_lowered(rows: Kernel) -> None:
    with pytest.raises(InvalidIR, match="not whole"):
        lower(rows, choose(rows, HOST))
    made = scheduled(rows, HOST)
    assert whole(rows, made, HOST) is made


def test_a_step_is_lowered_by_loops_of_its_way_alone(rows: Kernel) -> None:
    """Whoever lowers may have made the schedule: a backend from elsewhere, say."""
    made = scheduled(rows, HOST)
    kinds = {step.way: step.loops for step in made.steps}
    assert kinds.keys() == {Way.SWEEP, Way.TILES}
    for number, step in enumerate(made.steps):
        others = (kind for way, kind in kinds.items() if way is not step.way)
        ways = [replace(step, loops=loops) for loops in (None, *others)]
        ways += [replace(step, way=way) for way in Way if way is not step.way]
        for wrong in ways:
            steps = (*made.steps[:number], wrong, *made.steps[number + 1 :])
            with pytest.raises(InvalidIR, match=f" by {wrong.way.value}, with "):
                lower(rows, replace(made, steps=steps))


def test_lowering_looks_at_the_schedule_alone(rows: Kernel) -> None:
    made = whole(rows, schedule_with(rows, HOST, (16,), 2), HOST)
    assert show(lower(rows, made)) == show(lower(rows, read_schedule(schedule_text(made), rows)))


# An edit of the text, and what the verifier or the reader says of it.
EDITS = {
    "more tasks than tiles": (r"^\d+ tasks", "65 tasks", "tasks for"),
    "a tile beyond the axis": (r"tiles of \(\d+,\)", "tiles of (65,)", "of 65 along outer axis 0"),
    "a tile of two axes": (r"tiles of \(\d+,\)", "tiles of (4, 4)", "in a tile of 2 axes"),
    "no vector": (r"vectors of \d+", "vectors of 48", "vectors of 48 bytes"),
    "a stage twice": (r"stages \[0", "stages [1", "steps have stages"),
    "no such stage": (r"stages \[0", "stages [9", r"stages \[9\] of 5"),
    "outside of its loops": (r"\[0\] in 1 loops", "[0] in 0 loops", "stand in 0 loops"),
    "lanes of no axis": (r"(\[0\] .*), axis \d", r"\1, axis 7", "has no axis 7 for lanes"),
    "no loops": (r"(sweep of .*); .*", r"\1", "sweep without"),
    "too much in flight": (r"in flight \d+", "in flight 99", "99 vectors in flight"),
    "many sums": (r"\d+ x \d+ sums", "512 x 512 sums", "512 x 512 sums"),
    "no columns": (r"columns along \d", "columns along 5", "no contraction with columns 5"),
    "panels of blocks without blocks": (
        r"right in (place|one panel)",
        "right in panels of blocks",
        "blocks of k without their terms",
    ),
    "an unknown fact": (
        r"in flight (\d)",
        r"in flight \1, in haste 3",
        "no count is called in haste",
    ),
    "a word that is no line": (r"^  stage 0 .*$", "  stage zero", "expected a whole number"),
    "a word too many": (r"in flight (\d)", r"in flight \1, in haste", "sweep with in haste"),
    "a line of no kind": (r"^  stage 0 .*$", "  step 0", "not a line of a schedule"),
    "a number that no int64 holds": (r"split \d+", "split " + "9" * 19, "whole number"),
    "more than a line": (r"^(  stage 0 .*)$", r"\1 at last", "unexpected text"),
    "a register that others read": (r"stage 0 in .*", "stage 0 in register", "in a register"),
    "a map that others read": (r"stage 1 in .*", "stage 1 in register", "read by stages"),
    "a store in scratch": (r"stage 4 in memory", "stage 4 in scratch 0", "in scratch, and stored"),
    "no such place": (r"stage 0 in \w+", "stage 0 in heaven", "no place is called heaven"),
    "memory without a variable": (r"stage 0 in .*", "stage 0 in memory", "without a variable"),
    "two values in one place": (r"stage 1 in .*", "stage 1 in scratch 0", "are in scratch 0 at"),
    "a variable of another shape": (
        r"stage 1 in .*",
        "stage 1 in memory of stage 4",
        "which is not its like",
    ),
    "read and past the caches": (r"\Z", "\n  arguments [0] past the caches", "is read, and"),
    "no such argument": (r"\Z", "\n  arguments [7] past the caches", "argument 7 of"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_does_not_hold_is_refused(rows: Kernel, text: str, name: str) -> None:
    old, new, message = EDITS[name]
    edited = re.sub(old, new, text, count=1, flags=re.MULTILINE)
    assert edited != text, text
    with pytest.raises((InvalidIR, SyntaxFormError), match=message):
        verify_schedule(rows, read_schedule(edited, rows), "edit")


STREAMED = """kernel product over [i < 4096, j < 2048]
  var a: float32[4096, 2048]
  var b: float32[2048, 2048]
  var y: float32[4096, 2048]
  stage c: float32[4096, 2048] at (i, j) -> store y
    c[i, j] = sum[k < 2048](a[i, k] * b[k, j])
"""


def test_what_is_read_again_is_not_written_past_the_caches() -> None:
    """Sums of blocks of k wait in the result: only with k in one block is it written once."""
    target = named_target("x86-64-v4")
    kernel = parse_kernel(STREAMED)
    made = scheduled(kernel, target)
    assert made.streamed == ()
    past = replace(made, streamed=(2,))
    with pytest.raises(InvalidIR, match="is written past the caches, and read"):
        verify_routine(lower(kernel, past), "lower")
    loops = made.steps[0].loops
    assert isinstance(loops, TileLoops)
    whole_k = replace(made.steps[0], loops=replace(loops, terms=2048))
    verify_routine(lower(kernel, replace(past, steps=(whole_k,))), "lower")


@pytest.mark.sampled(24)
@pytest.mark.parametrize("seed", range(24))
def test_any_legal_schedule_means_the_same(seed: int) -> None:
    check_schedule(seed, "llvm")


FRAMED = """kernel depthwise over [i < 8]
  var x: float32[8, 32, 32]
  var w: float32[8, 5, 5]
  var y: float32[8, 32, 32]
  stage padded: float32[8, 36, 36] at (i) -> scratch
    padded[i, j, k] = if((1 < j) & (j < 34) & (1 < k) & (k < 34), x[i, j - 2, k - 2], 0.0)
  stage z: float32[8, 32, 32] at (i) -> store y
    z[i, j, k] = sum[l < 5, m < 5](padded[i, j + l, k + m] * w[i, l, m])
"""


def test_sums_take_a_frame_of_zeros_with_them() -> None:
    """Cheaper to add than to leave out; what a mask leaves out is not looked at."""
    kernel = parse_kernel(FRAMED)
    made = scheduled(kernel, HOST)
    assert schedule_text(made).count("sums through zeros") == 1
    assert read_schedule(schedule_text(made), kernel) == made
    agree(kernel, lower(kernel, made), None, {}, native=True, scalar=False)
    masked = FRAMED.replace("(1 < j) & (j < 34) & (1 < k) & (k < 34)", "k < j")
    assert "through" not in schedule_text(scheduled(parse_kernel(masked), HOST))


COLUMNS = """kernel layer over [i < 64]
  dim n: 1, 170
  var x: float32[64, 40]
  var w: float32[40, n]
  var y: float32[64, n]
  stage z: float32[64, n] at (i) -> scratch
    z[i, j] = sum[k < 40](x[i, k] * w[k, j])
  stage out: float32[64, n] at (i) -> store y
    out[i, j] = if(z[i, j] < 0.0, 0.0, z[i, j])
"""


def test_symbolic_columns_of_three_vectors_end_where_they_end() -> None:
    """Maps after a block of three vectors, which are no power of two, of any width."""
    kernel = parse_kernel(COLUMNS)
    made = scheduled(kernel, HOST)
    wide = replace(made.steps[0].loops, rows=8, columns=3 * HOST.lanes(4))  # type: ignore[type-var]
    routine = lower(kernel, replace(made, steps=(replace(made.steps[0], loops=wide),)))
    (dim,) = (e for e in kernel.stages[0].shape if isinstance(e, Dim))
    for n in (1, 15, 16, 17, 31, 47, 48, 49, 64, 80, 100, 165, 170):
        agree(kernel, routine, None, {dim: n}, native=True, scalar=False)
