"""`pullback resume`: every stage that is read back gives what the stage before it gives."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.graph_text import parse_kernel
from pullback.cli.main import commands
from pullback.cli.nest_text import parse_routine
from pullback.config import Options
from pullback.errors import SyntaxFormError
from pullback.ir.kernel import Kernel
from pullback.ir.program import Compute, items
from pullback.ir.target import Target
from pullback.ir.text import kernel_text, show
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.verify.kernel import verify_kernel
from pullback.verify.nest import verify_routine
from small_programs import PROGRAMS

TEXT = "y[i, j] = max(sum[k](x[i, k] * w[j, k]) + b[j], 0)"
QUIET = Options(backend="reference", cache=None)


def kernels_of(name: str) -> list[Kernel]:
    function, arguments = PROGRAMS[name]("float32")
    jitted = pb.jit(function, options=QUIET)
    jitted(*arguments)
    graphs = [i.graph for i in items(jitted.program.program.body) if isinstance(i, Compute)]
    return [k for g in graphs for k in fuse_graph(g, Target(), Reporter(QUIET))]


def same_again(kernel: Kernel) -> None:
    text = kernel_text(kernel)
    again = parse_kernel(text)
    for piece in again.pieces:
        verify_kernel(piece, "reading it back")
    assert kernel_text(again) == text


@pytest.mark.parametrize("name", list(PROGRAMS)[::3])
def test_kernels_are_read_back(name: str) -> None:
    for kernel in kernels_of(name):
        same_again(kernel)


def test_symbolic_parted_and_finished_kernels_are_read_back() -> None:
    n = pb.dim("n", 1, 64)
    jitted = pb.jit(lambda x: pb.softmax(x, axis=1), shapes=[(n, 8)], options=Options(cache=None))
    jitted(np.ones((3, 8), np.float32))
    a, b = (pb.State(pb.ones((s, 300), dtype="float32")) for s in (200, 301))

    @pb.jit(options=Options(cache=None))
    def clipped() -> None:
        norm = pb.sqrt(pb.sum(a * a) + pb.sum(b * b))
        a.assign(a / norm)
        b.assign(b / norm)

    clipped()
    found = [*jitted.program.kernels, *clipped.program.kernels]
    texts = "".join(map(kernel_text, found))
    assert "dim n: 1, 64" in texts and " parts side by side" in texts and "finish" in texts
    for kernel in found:
        same_again(kernel)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage of a small layer."""
    folder = tmp_path_factory.mktemp("dump")
    options = Options(dump=folder, cache=None)
    shapes = {"x": (32, 16), "w": (24, 16), "b": (24,)}
    layer = pb.jit(lambda x, w, b: pb.define(TEXT, x=x, w=w, b=b), options=options)
    layer(*(np.ones(s, np.float32) for s in shapes.values()))
    return folder


def resumed(file: Path, *options: str) -> str:
    done = CliRunner().invoke(commands, ["resume", str(file), *options])
    assert done.exit_code in (0, 2), done.output
    if done.exit_code == 2:
        raise SyntaxFormError(done.output)
    return done.output


def one(folder: Path, stage: str) -> Path:
    (found,) = folder.glob(f"*-{stage}*.txt")
    return found


def edited(folder: Path, stage: str, old: str, new: str, to: Path) -> Path:
    """A copy of a dump in which one file has other text."""
    to.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        (to / path.name).write_text(path.read_text())
    file = one(to, stage)
    assert re.search(old, file.read_text()), old
    file.write_text(re.sub(old, new, file.read_text()))
    return file


STAGES = ("traced-graph", "simplified-graph", "kernel", "schedule", "nest", "llvm", "assembly")


def test_every_stage_goes_on_to_the_same_numbers(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [resumed(one(dump, stage)) for stage in STAGES]
    assert found[0].startswith("result0: 768 x float32, sum ")
    assert len(set(found)) == 1
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    assert resumed(one(dump, "traced-graph")) == found[0]
    assert resumed(one(dump, "traced-graph"), "--seed", "1") != found[0]


EDITS = {
    "traced-graph": (r"\+ b\[j\]", "- b[j]"),
    "simplified-graph": (r"0\.0, _sum", "1.0, _sum"),
    "kernel": (r"x\[i, k\] \* w\[j, k\]\)", "x[i, k] * w[j, 15 - k])"),
    "nest": (r"v4 \+ ", "v4 + v4 + "),
    "llvm": (r"fadd <", "fsub <"),
}


@pytest.mark.parametrize("stage", EDITS)
def test_an_edit_is_what_runs(dump: Path, stage: str, tmp_path: Path) -> None:
    file = edited(dump, stage, *EDITS[stage], tmp_path / "edited")
    assert resumed(file) != resumed(one(dump, stage))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="edits instructions of x86")
def test_edited_assembly_runs(dump: Path, tmp_path: Path) -> None:
    file = edited(dump, "assembly", r"\bv?addps", "vsubps", tmp_path / "edited")
    assert resumed(file) != resumed(one(dump, "assembly"))


SPLIT = "4 tasks over tiles of (8, 12), split 2"


def test_an_edited_schedule_decides_tile_and_tasks(dump: Path, tmp_path: Path) -> None:
    file = edited(dump, "schedule", r"^.*?, split \d", SPLIT, tmp_path)
    assert resumed(file, "--out", str(tmp_path / "later")) == resumed(one(dump, "schedule"))
    assert "task < 4" in one(tmp_path / "later", "nest").read_text()
    wrong = edited(dump, "schedule", r"\(.*\)", "(8,)", tmp_path)
    with pytest.raises(SyntaxFormError, match="in a tile of 1 axes"):
        resumed(wrong)


@pytest.mark.parametrize("stage", ["trace.txt", "plan"])
def test_what_is_not_read_back_is_refused(dump: Path, stage: str) -> None:
    (file,) = dump.glob(f"*-{stage}*")
    with pytest.raises(SyntaxFormError, match="is not read back"):
        resumed(file)


WRONG = {
    "stage y": ("stag y", "expected kernel, dim, var, reads, stage or finish"),
    "store result0": ("store result1", "a variable to store to"),
    "w[j, k])": ("w[j, m])", "unknown name m"),
    "kernel y over": ("kernel y of", "a kernel has parts"),
}


@pytest.mark.parametrize("old", WRONG)
def test_wrong_kernels_are_typed_errors(dump: Path, old: str) -> None:
    new, message = WRONG[old]
    text = one(dump, "kernel").read_text()
    assert old in text
    with pytest.raises(SyntaxFormError, match=message):
        parse_kernel(text.replace(old, new, 1))


def test_a_kernel_that_breaks_a_rule_is_not_run(dump: Path, tmp_path: Path) -> None:
    file = edited(dump, "kernel", r"_sum\[i, j\] \+", "_sum[j, i] +", tmp_path)
    with pytest.raises(SyntaxFormError, match=r"after resume: y: .*same_coordinates"):
        resumed(file)


def test_text_that_llvm_refuses_is_said(dump: Path, tmp_path: Path) -> None:
    file = edited(dump, "llvm", r"fadd <", "fade <", tmp_path / "edited")
    with pytest.raises(SyntaxFormError, match="LLVM refuses"):
        resumed(file)


@pytest.mark.parametrize("name", [*list(PROGRAMS)[1::4], "causal attention", "sort", "scan"])
def test_loop_nests_are_read_back(name: str) -> None:
    for kernel in kernels_of(name):
        for piece in kernel.pieces:
            routine = lower(piece, scheduled(piece, Target()))
            again = parse_routine(show(routine))
            verify_routine(again, "reading it back")
            assert show(again) == show(routine)


NESTS = {
    r"(vector .*:)\n": (r"\1 now\n", "unexpected text"),
    r"= x\[": ("= z[", "no array is called z"),
    r"^  scratch.*\n": ("", "nothing is called|no array is called|not a statement"),
    r"in 0\.\.16:": ("in 0..17:", "does not hold"),
}


@pytest.mark.parametrize("old", NESTS)
def test_wrong_nests_are_typed_errors(dump: Path, old: str, tmp_path: Path) -> None:
    new, message = NESTS[old]
    file = edited(dump, "nest", f"(?m){old}", new, tmp_path / "edited")
    with pytest.raises(SyntaxFormError, match=message):
        resumed(file)


def test_code_needs_its_nest(dump: Path, tmp_path: Path) -> None:
    alone = tmp_path / "0006-llvm-y.txt"
    alone.write_text(one(dump, "llvm").read_text())
    with pytest.raises(SyntaxFormError, match=r"needs NUMBER-nest-y\.txt"):
        resumed(alone)
