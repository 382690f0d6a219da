"""The boundary: small backends that do little, refuse, fail or run programs by themselves."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pullback as pb
from pullback import pipeline
from pullback.backends import base, registry
from pullback.backends.c import compiler as cc
from pullback.backends.host.interpret import Interpreter
from pullback.backends.host.processor import host_target
from pullback.backends.llvm.backend import LLVM
from pullback.backends.loops import backend as loops
from pullback.cli.resume import resumed
from pullback.config import Options
from pullback.errors import (
    AbsentError,
    BackendError,
    CompilerError,
    InvalidIR,
    PullbackError,
    UnsupportedError,
)
from pullback.ir.dtype import float32
from pullback.ir.expr import const
from pullback.ir.graph import Graph, Scan, Variable, define
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.runtime.tuned import FILE, Key, Tuned, chooser, write
from pullback.schedule.schedule import Schedule
from pullback.tensor.run.tune import Bench

try:
    cc.compiler()
    HAS_C = True
except CompilerError:
    HAS_C = False
needs_c = pytest.mark.skipif(not HAS_C, reason="there is no C compiler")

X = np.arange(6, dtype=np.float32)
TIMES = {"llvm": 1.0, "c": 1.5}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a backend known for one test: through an entry point, as another package would."""

    def use(backend: Any, cache: Path | None = None) -> Options:
        point = importlib.metadata.EntryPoint("small", "nowhere:backend", registry.GROUP)
        monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: backend)
        monkeypatch.setattr(registry, "installed", lambda group: [point])
        registry._foreign.cache_clear()
        return Options(backend="small", threads=1, cache=cache)

    yield use
    registry._foreign.cache_clear()


class NoScans(LLVM):
    name = "no scans"

    def refuses(self, kernel: Kernel) -> base.Refusal | None:
        scans = [s for s in kernel.stages if isinstance(s.form, Scan)]
        return base.Refusal("it has no scans", scans[0].target.origin) if scans else None


def test_a_refusal_names_backend_kernel_reason_and_line(use: Any) -> None:
    options = use(NoScans)

    def running(x: pb.Tensor) -> pb.Tensor:
        y = pb.cumulative_sum(x * 2)  # this line
        return y + 1

    with pytest.raises(UnsupportedError, match="it has no scans") as error:
        pb.jit(running, options=options)(X)
    told = str(error.value)
    assert error.value.code == "E358" and "'no scans' refuses kernel" in told
    assert "# this line" in told and "return y" not in told
    assert pb.jit(pb.sum, options=options)(X).item() == 15.0  # what it does not refuse runs


def test_a_refusal_without_a_line_tells_the_kernels(use: Any) -> None:
    class Nothing(LLVM):
        name = "nothing"

        def refuses(self, kernel: Kernel) -> base.Refusal | None:
            return base.Refusal("it is Sunday")

    def exponential(x: pb.Tensor) -> pb.Tensor:
        return pb.exp(x)

    with pytest.raises(UnsupportedError, match="it is Sunday") as error:
        pb.jit(exponential, options=use(Nothing))(X)
    assert "pb.exp(x)" in str(error.value)


def test_a_budget_does_not_hide_a_refusal(use: Any) -> None:
    options = replace(use(NoScans), memory=1 << 20)
    with pytest.raises(UnsupportedError, match="it has no scans"):
        pb.jit(pb.cumulative_sum, options=options)(X)


def test_kernels_by_one_method(use: Any) -> None:
    class Own:
        name = "own"
        kernels: ClassVar[list[str]] = []

        def machine(self, options: Options) -> Target:
            return Target()

        def run_kernel(self, kernel: Kernel, values: Mapping[Variable, Any]) -> base.Values:
            self.kernels.append(kernel.name)
            kernels = registry.named("kernels")
            assert isinstance(kernels, base.KernelInterpreter)
            return kernels.run_kernel(kernel, values)

    assert pb.jit(lambda x: pb.sum(x * x), options=use(Own()))(X).item() == 55.0
    assert len(Own.kernels) == 1


def test_prepare_is_asked_before_fusion(use: Any) -> None:
    seen: list[Graph] = []

    class Preparing(LLVM):
        name = "preparing"

        def prepare(self, graph: Graph, target: Target) -> Graph:
            seen.append(graph)
            return Graph(graph.assigns)

    assert pb.jit(lambda x: pb.sum(x * x), options=use(Preparing))(X).item() == 55.0
    assert len(seen) == 1 and isinstance(seen[0], Graph)


def test_what_is_prepared_is_what_runs(use: Any) -> None:
    class Ones(LLVM):
        name = "ones"

        def prepare(self, graph: Graph, target: Target) -> Graph:
            one = define("one", (6,), lambda _: const(1.0, float32))
            return Graph(tuple((target, one) for target, _ in graph.assigns))

    assert pb.jit(lambda x: x * 2, options=use(Ones))(X).numpy().tolist() == [1.0] * 6


def test_what_prepare_breaks_is_told(use: Any) -> None:
    class Breaking(LLVM):
        name = "breaking"

        def prepare(self, graph: Graph, target: Target) -> Graph:
            (target, _), *_ = graph.assigns
            return Graph(((target, Variable("other", (2,), target.dtype)),))

    with pytest.raises(InvalidIR, match="after prepare"):
        pb.jit(lambda x: x * 2, options=use(Breaking))(X)


def test_a_backend_may_run_programs_by_itself(use: Any) -> None:
    class Runner:
        """Items in Python, launches by the kernels' interpreter: no code is called."""

        def __init__(self, image: base.Image) -> None:
            self.image, self.launches = image, 0

        def run(self, bindings: Mapping[Variable, Any], sizes: Mapping[str, int]) -> None:
            kernels = registry.named("kernels")
            assert isinstance(kernels, base.KernelInterpreter)
            assert self.image.codes and self.image.plan.arena_bytes >= 0
            interpreter = Interpreter(dict(bindings), None, kernels.run_kernel, sizes)  # type: ignore[arg-type]
            interpreter.run(self.image.block)
            self.launches = interpreter.launches
            for variable, array in bindings.items():
                array[...] = interpreter.values[variable]

    made: list[Runner] = []

    class Self(LLVM):
        name = "self"

        def runner(self, image: base.Image) -> base.Runner | None:
            made.append(Runner(image))
            return made[-1]

    f = pb.jit(lambda x: pb.sum(pb.exp(x) + 1), options=use(Self))
    for _ in range(3):
        np.testing.assert_allclose(f(X).numpy(), np.sum(np.exp(X) + 1), rtol=1e-6)
    assert f.program.launches == made[0].launches >= 1 and f.program.barriers == 0


def test_a_backend_says_how_schedules_start(use: Any) -> None:
    asked: list[tuple[str, base.Choices]] = []

    class Starting(LLVM):
        name = "starting"

        def start(self, kernel: Kernel, target: Target, choices: base.Choices = ()) -> Schedule:
            asked.append((kernel.name, choices))
            return super().start(kernel, target, choices or (("tile.0", 2),))

    f = pb.jit(lambda x: x * 2 + 1, options=use(Starting))
    np.testing.assert_allclose(f(X).numpy(), X * 2 + 1, rtol=1e-6)
    (kernel,) = f.program.kernels
    assert asked[0] == (kernel.name, ())
    assert f.program.chosen(kernel, host_target()).tile == (2,)


# --- what is no backend, or fails

LACKING = {
    "it has `compile` alone": ("def compile(self, work, job): ...", "lacks .*machine.*prepare"),
    "no name": ("def run_graph(self, graph, values): ...", "has `run_graph` and lacks name"),
    "no machine": ("name = 'x'\n    def run_kernel(self, k, v): ...", "lacks machine"),
    "nothing of it": ("name = 'x'", "is Small"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_is_lacking_is_named(case: str, tmp_path: Path) -> None:
    body, says = LACKING[case]
    path = tmp_path / "small.py"
    path.write_text(f"class Small:\n    {body}\n\n\nbackend = Small()\n")
    with pytest.raises(UnsupportedError, match=says) as error:
        pb.jit(pb.sin, options=Options(backend=str(path)))(X)
    assert error.value.code == "E313" and "base" in str(error.value)


def test_a_class_that_cannot_be_made(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text("class backend:\n    def __init__(self):\n        raise OSError('no device')\n")
    with pytest.raises(UnsupportedError, match="OSError: no device") as error:
        registry.named(str(path))
    assert error.value.code == "E313"


@pytest.mark.parametrize(
    ("name", "meant"), [("lvm", "llvm"), ("refrence", "reference"), ("kernel", "kernels")]
)
def test_close_names_are_suggested(name: str, meant: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no backend '{name}'") as error:
        pb.jit(pb.sin, options=Options(backend=name))(X)
    assert f"did you mean {meant!r}?" in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match=r"no backend '.*absent\.py'") as error:
        pb.jit(pb.sin, options=Options(backend="absent.py"))(X)
    assert error.value.code == "E313" and "No such file" in str(error.value)


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is another one of the same relative name; bytecode that is as old to the second is not."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    made = []
    for number, folder in enumerate(("one", "two", "two")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        path = Path("small.py")
        path.write_text(f"class backend:\n    name = 'v{number}'\n    run_graph = print\n")
        os.utime(path, ns=(number, number))
        made.append(registry.named("small.py").name)
    assert made == ["v0", "v1", "v2"]


def given(*results: Any) -> Any:
    """An interpreter that gives this for the first variable that is assigned."""

    class Giving:
        name = "giving"

        def run_graph(self, graph: Graph, values: Mapping[Variable, Any]) -> base.Values:
            targets = [target for target, _ in graph.assigns]
            return dict(zip(targets, results, strict=False))

    return Giving()


WRONG = {
    "nothing": ((), "gives nothing for"),
    "a shape": ((np.zeros(5, np.float32),), r"float32\[5\], not float32\[6\]"),
    "a type": ((np.zeros(6, np.float64),), r"float64\[6\], not float32\[6\]"),
    "an axis": ((np.zeros((1, 6), np.float32),), r"float32\[1, 6\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_results_are_looked_at(case: str, use: Any) -> None:
    results, says = WRONG[case]
    with pytest.raises(BackendError, match=says) as error:
        pb.jit(lambda x: x * 2, options=use(given(*results)))(X)
    assert error.value.code == "E359"


def test_an_error_of_its_own_is_told_as_its_own(use: Any) -> None:
    class Failing(LLVM):
        name = "failing"

        def compile(self, work: Any, job: base.Job) -> list[base.Code]:
            raise ZeroDivisionError("by nought")

    class Refusing(given().__class__):  # type: ignore[misc]
        def run_graph(self, graph: Graph, values: Mapping[Variable, Any]) -> base.Values:
            raise UnsupportedError("not today")

    with pytest.raises(BackendError, match="'failing' fails: ZeroDivisionError: by nought"):
        pb.jit(lambda x: x * 2, options=use(Failing))(X)
    with pytest.raises(UnsupportedError, match="not today"):
        pb.jit(lambda x: x * 2, options=use(Refusing))(X)


@pytest.mark.parametrize("method", ["machine", "refuses", "compile", "runner"])
def test_any_method_that_fails_is_told_of(method: str, use: Any) -> None:
    def fails(self: Any, *given: Any) -> Any:
        raise KeyError("lost")

    failing = type("Failing", (LLVM,), {"name": "failing", method: fails})
    with pytest.raises(BackendError, match="'failing' fails: KeyError: 'lost'"):
        pb.jit(lambda x: x * 2, options=use(failing))(X)


def test_too_few_codes(use: Any) -> None:
    class Lazy(LLVM):
        name = "lazy"

        def compile(self, work: Any, job: base.Job) -> list[base.Code]:
            return super().compile(work, job)[1:]

    with pytest.raises(BackendError, match="gives 0 codes for 1 kernels") as error:
        pb.jit(lambda x: x * 2, options=use(Lazy))(X)
    assert isinstance(error.value, PullbackError) and error.value.code == "E359"


# --- records of every compiler


def counted(monkeypatch: pytest.MonkeyPatch, options: Options) -> list[str]:
    """What a compilation enters, as it does."""
    entered: list[str] = []

    def counting(place: Any, name: str) -> None:
        function = getattr(place, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            entered.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(place, name, call)

    for place, name in [(pipeline, "simplify_graph"), (pipeline, "fuse"), (loops, "lowered")]:
        counting(place, name)
    counting(cc.CC, "compile")
    np.testing.assert_allclose(
        pb.jit(program, options=options)(X).numpy(), np.cumsum(np.exp(X)), 1e-5
    )
    return entered


def program(x: pb.Tensor) -> pb.Tensor:
    return pb.cumulative_sum(pb.exp(x))


@needs_c
def test_a_record_of_c_spares_passes_and_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = Options(backend="c", threads=1, cache=tmp_path)
    with monkeypatch.context() as patch:
        assert set(counted(patch, options)) == {"simplify_graph", "fuse", "lowered", "compile"}
    with monkeypatch.context() as patch:
        assert counted(patch, options) == []


@needs_c
def test_backends_do_not_share_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("llvm", "c"):
        with monkeypatch.context() as patch:
            entered = counted(patch, Options(backend=name, threads=1, cache=tmp_path))
            assert "lowered" in entered, name


@pytest.mark.parametrize("kept", [True, False])
def test_without_an_identity_nothing_is_kept(
    kept: bool, use: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Small(LLVM):
        name = "small"
        version = "1"

        def identity(self, target: Target) -> str:
            return self.version if kept else ""

    options = use(Small, tmp_path)
    for version, fresh in [("1", True), ("1", not kept), ("2", True)]:
        Small.version = version
        with monkeypatch.context() as patch:
            assert ("lowered" in counted(patch, options)) == fresh


def test_an_identity_is_not_inherited(
    use: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who changes what the class below it does would be given what that one recorded."""

    class Changed(LLVM):
        name = "llvm"

    counted(monkeypatch, Options(threads=1, cache=tmp_path))
    for _ in range(2):
        with monkeypatch.context() as patch:
            assert "lowered" in counted(patch, use(Changed, tmp_path))


def test_tuned_schedules_are_of_a_backend(tmp_path: Path) -> None:
    kernel = Kernel("k", (), ())
    choices = (("tasks", 1),)
    keys = [Key.of(kernel, Target(), 1, name) for name in TIMES]
    tuned = [Tuned("k", choices, 2.0, us) for us in TIMES.values()]
    rows = dict(zip(keys, tuned, strict=True))
    write(tmp_path / FILE, rows)
    for name, us in TIMES.items():
        known = chooser(tmp_path, 1, (), name, scheduled)
        record = known.record(kernel, Target())
        assert record is not None and record.us == us
    assert chooser(tmp_path, 1, (), "other", scheduled).record(kernel, Target()) is None
    assert len({chooser(tmp_path, 1, (), name, scheduled).digest for name in TIMES}) == len(TIMES)


def test_older_rows_are_of_the_default_backend(tmp_path: Path) -> None:
    kernel = Kernel("k", (), ())
    write(tmp_path / FILE, {Key.of(kernel, Target(), 1): Tuned("k", (), 2.0, 1.0)})
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace(', "backend": "llvm"', ""))
    assert "backend" not in (tmp_path / FILE).read_text()
    assert (
        chooser(tmp_path, 1, (), Options().backend, scheduled).record(kernel, Target()) is not None
    )


# --- texts


@needs_c
def test_texts_are_those_of_the_backend() -> None:
    f = pb.jit(program, options=Options(backend="c", cache=None))
    f(X)
    assert list(f.program.texts) == ["loops", "c", "price"]
    assert "void body(" in f.program.source() and "define" not in f.program.source()
    with pytest.raises(AbsentError, match="'c' shows no assembly"):
        f.program.assembly()
    g = pb.jit(program, options=Options(backend="reference"))
    g(X)
    assert g.program.source() == "" and g.program.assembly() == ""


@pytest.mark.slow
@needs_c
def test_c_is_read_back(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    options = Options(backend="c", threads=1, cache=None, dump=dump)
    pb.jit(lambda x: x * 2 + 1, options=options)(X)
    (file,) = dump.glob("*-c-*.txt")
    before = next(iter(resumed(file).values()))
    text = file.read_text()
    assert text.count(" + ") and not list(dump.glob("*-llvm-*"))
    file.write_text(text.replace("2.0", "3.0").replace("0x1.0000000000000p+1", "0x1.8p+1"))
    assert not np.array_equal(before, next(iter(resumed(file).values())))


# --- what a search asks a backend for


@pytest.mark.parametrize("name", ["llvm", "c", "opencl"])
def test_prices_are_those_of_the_nest(name: str) -> None:
    """The nest is one, and so is the machine: what it costs does not depend on who writes it."""
    kernel = pb.schedule(lambda x: pb.sum(pb.exp(x), axis=1), np.ones((64, 64), np.float32)).kernel
    backend = registry.compiler(name)
    target = host_target()
    price = backend.price(kernel, backend.start(kernel, target), target)
    assert price is not None and price.ns > 0 and "price" in backend.texts()
    other = registry.compiler("llvm")
    assert other.price(kernel, other.start(kernel, target), target) == price


def test_a_search_goes_where_the_backend_says(use: Any) -> None:
    """It starts there, too."""

    class Still(LLVM):
        name = "still"

        def start(self, kernel: Kernel, target: Target, choices: Any = ()) -> Any:
            started.append(choices)
            return super().start(kernel, target, choices)

        def moves(self, kernel: Kernel, target: Target) -> Any:
            moved.append(kernel)
            return Nowhere()

    class Nowhere:
        def near(self, choices: Any) -> list[Any]:
            return []

        def draw(self, random: Any) -> None:
            return None

    started: list[Any] = []
    moved: list[Kernel] = []
    options = use(Still)
    f = pb.jit(lambda x: pb.sum(x * x), options=options)
    made = pb.schedule(f, np.ones(4096, np.float32))
    assert made.best(lambda s: s.price.ns, tries=5) == made and moved and started
    outcome = Bench(made.kernel, options).tuned(0.3, ["beam", "random"])
    assert not outcome.choices and len(moved) >= 3
