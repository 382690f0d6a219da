"""Backends by name: the same results from all, and a coded error from what is none."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import arrays, close
from accuracy import ELSEWHERE, WANTED, points, points64, ulps, ulps64
from pullback.backends import registry
from pullback.backends.c import backend
from pullback.backends.c import compiler as cc
from pullback.cli.stages import parts
from pullback.config import Options
from pullback.errors import CompilerError, UnsupportedError
from small_programs import PROGRAMS

Array = np.ndarray[Any, Any]
SOME = ["matmul", "layer norm", "causal attention", "gather", "integers", "scan", "normal"]


def c_compiler() -> bool:
    try:
        cc.compiler()
    except CompilerError:
        return False
    return True


needs_c = pytest.mark.skipif(not c_compiler(), reason="there is no C compiler")


def results(name: str, backend: str, kind: str = "float32") -> list[Any]:
    function, arguments = PROGRAMS[name](kind)
    options = Options(backend=backend, threads=2, cache=None)
    made = arrays(pb.jit(function, options=options)(*arguments))
    return made if isinstance(made, list) else [made]


def agree(name: str, backend: str, kind: str = "float32") -> None:
    """As the reference within 1e-5 of the largest number so far, and 4 times what rounding alone
    does to the reference: the gradients by a softmax's operands lose 3.4e-6 in float32 there.
    """
    scale = 0.0
    wanted, exact = results(name, "reference", kind), results(name, "reference", "float64")
    for want, got, whole in zip(wanted, results(name, backend, kind), exact, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want)
            continue
        scale = max(scale, float(np.abs(want.astype(np.float64)).max()))
        rounding = float(np.abs(want.astype(np.float64) - whole).max())
        close(got, want, max(scale, 4 * rounding / 1e-5), kind)


@pytest.mark.parametrize("name", SOME)
def test_kernels_agree(name: str) -> None:
    agree(name, "kernels")


@pytest.mark.sampled(10)
@needs_c
@pytest.mark.parametrize("name", SOME)
def test_c_agrees(name: str) -> None:
    agree(name, "c")


@needs_c
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_in_c(name: str, kind: str) -> None:
    agree(name, "c", kind)


@needs_c
def test_register_tiles_have_the_same_bits_in_c() -> None:
    """Sums of products in the order of the nest, each step a fused multiply-add."""
    rng = np.random.default_rng(3)
    a, b = (pb.tensor(rng.normal(size=shape).astype("float32")) for shape in ((40, 50), (50, 60)))
    made = [
        pb.jit(lambda x, y: pb.maximum(x @ y, 0.0), options=Options(backend=name, cache=None))(a, b)
        for name in ("llvm", "c")
    ]
    np.testing.assert_array_equal(made[0].numpy(), made[1].numpy())


def worst_errors(backend: str) -> dict[str, float]:
    """Of elementary functions, those in units in the last place that are above the bound."""
    options, found = Options(backend=backend, cache=None), {}
    program = pb.jit(lambda t: tuple(getattr(pb, n)(t) for n in WANTED), options=options)
    for kind, x in (("float32", points(16384)), ("float64", points64(500))):
        wide = x.astype("float64" if kind == "float32" else "longdouble")
        for name, y in zip(WANTED, program(x), strict=True):
            exact = WANTED[name](x.astype("float64") if name == "erf" else wide)
            units = ulps(y.numpy(), exact) if kind == "float32" else ulps64(y.numpy(), exact)
            if units.max() > ELSEWHERE[kind]:
                found[f"{name} of {kind}"] = float(units.max())
    return found


@pytest.mark.sampled(12)
@needs_c
@needs_c
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("terms", [32, 77, 1000])
def test_sums_in_lanes_have_the_same_bits_in_c(target: str, terms: int) -> None:
    """Of four vectors side by side neighbours are joined first, then halves of the last one."""
    x = np.random.default_rng(terms).standard_normal((5, terms)).astype(np.float32)

    def sums(x: pb.Tensor) -> Any:
        return pb.sum(x * 0.3), pb.sum(pb.exp(x), axis=1), pb.max(x, axis=1)

    first, second = (
        pb.jit(sums, options=Options(backend=name, target=target))(x) for name in ("llvm", "c")
    )
    for one, other in zip(first, second, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_in_c_are_close() -> None:
    assert worst_errors("c") == {}


def own_tasks(program: Any, folder: Path, *flags: str) -> Array:
    """What the standalone C of a program of one kernel gives for a million numbers, by itself."""
    ((_, text),) = parts(program, "c")
    source, library = folder / "own.c", folder / "own.so"
    source.write_text(text)
    command = [*cc.compiler().command, *cc.FLAGS, "-march=native", "-Wall", "-Werror", *flags]
    command.remove("-w")
    told = subprocess.run(
        [*command, "-Wno-unused-function", "-Wno-unknown-pragmas", "-Wno-unused-const-variable",
         "-o", str(library), str(source), "-lm"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    if told.returncode and "omp" in told.stderr:
        pytest.skip("this compiler has no OpenMP")
    assert told.returncode == 0, told.stderr
    x, y = np.linspace(0, 3, 1_000_000, dtype="float32"), np.empty(1_000_000, "float32")
    block = (ctypes.c_void_p * 3)(x.ctypes.data, y.ctypes.data, 0)
    ctypes.CDLL(str(library)).run_0(block)
    return y


@pytest.mark.slow
@needs_c
def test_standalone_c_runs_by_openmp(tmp_path: Path) -> None:
    """The text compiles without a warning, and its tasks run by threads of its own or in order."""
    program = pb.jit(lambda x: pb.exp(x) * 2, options=Options(cache=None))
    x = np.linspace(0, 3, 1_000_000, dtype="float32")
    wanted = program(x).numpy()
    (kernel,) = program.program.kernels
    assert len(kernel.reads) == 1
    for flags in ((), ("-fopenmp",)):
        folder = tmp_path / "".join(["c", *flags])
        folder.mkdir()
        np.testing.assert_array_equal(own_tasks(program.program, folder, *flags), wanted)


@pytest.mark.slow
@needs_c
def test_a_chain_of_branches_is_written_once() -> None:
    """Its text grows by a link, and does not double."""

    def chain(x: Any, count: int) -> Any:
        def body(i: Any) -> Any:
            y = x[i] * 3
            for n in range(count):
                y = pb.where(x[i] < 0.5**n, y, y * 0.75)
            return y

        return pb.compute((50,), body)

    sizes = []
    for count in (4, 8, 12):
        f = pb.jit(functools.partial(chain, count=count), options=Options(backend="c", cache=None))
        f(pb.ones(50))
        sizes.append(len(f.program.source()))
    assert sizes[2] - sizes[1] < 1.2 * (sizes[1] - sizes[0])


@needs_c
def test_c_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(backend="c", threads=1, cache=tmp_path)

    def stats() -> Any:
        f = pb.jit(lambda x: pb.exp(x) + 1, options=options)
        f(pb.ones(5))
        return f.program.stats

    assert (stats().compiled, stats().loaded) == (1, 1)
    monkeypatch.setattr(backend, "processor", lambda target: "another")
    assert stats().compiled == 1  # `native` is another processor there


def test_eager_values_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled for one backend is not run for another."""
    x = pb.ones(7)
    for _ in range(3):
        (x * 3).numpy()
    monkeypatch.setenv("PULLBACK_BACKEND", "absent")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="no backend 'absent'"):
            (x * 3).numpy()
    monkeypatch.delenv("PULLBACK_BACKEND")
    assert (x * 3).numpy().sum() == 21.0


def test_what_the_compiler_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "broken cc"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no space left" >&2; exit 1\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv(cc.VARIABLE, f"'{script}'")
    options = Options(backend="c", cache=None)
    with pytest.raises(CompilerError, match="no space left") as error:
        pb.jit(pb.sin, options=options)(pb.ones(3))
    assert error.value.code == "E357"
    monkeypatch.setenv(cc.VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(CompilerError, match="absent --version"):
        pb.jit(pb.cos, options=options)(pb.ones(3))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(cc.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompilerError, match="no C compiler") as error:
        cc.compiler()
    assert "ziglang" in str(error.value)


OWN = """
from pullback.backends.reference.definitions import evaluate, infer_sizes


class Counting:
    name = "counting"
    graphs = 0

    def run_graph(self, graph, values):
        self.graphs += 1
        return evaluate(graph, {v: values[v] for v in graph.inputs}, infer_sizes(values))


backend = Counting()
"""


def test_a_file_is_a_backend(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    f = pb.jit(lambda x: x * 2 + 1, options=Options(backend=str(path)))
    np.testing.assert_array_equal(f(pb.ones(3)).numpy(), np.full(3, 3.0))
    assert getattr(registry.named(str(path)), "graphs") == 1  # noqa: B009 - of the file's class


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backend = 3\n", "is int"),
        ("import absent_module\n", "absent_module"),
        ("", "has no `backend`"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(UnsupportedError, match=says) as error:
        registry.named(str(path))
    assert error.value.code == "E313"


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another package; one that fails to import is told so, not left out."""
    points = [
        importlib.metadata.EntryPoint(
            "again", "pullback.backends.reference.backend:Reference", registry.GROUP
        ),
        importlib.metadata.EntryPoint("gone", "pullback_gone:Backend", registry.GROUP),
        importlib.metadata.EntryPoint("part", "pullback:absent_backend", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "installed", lambda group: points)
    registry._foreign.cache_clear()
    assert registry.named("again").name == "reference"
    assert registry.names() == [*registry.OWN, registry.GPU, "again", "gone", "part"]
    for name, says in (
        ("gone", "pullback_gone"),
        ("part", "absent_backend"),
        ("cuda", "no backend 'cuda'"),
    ):
        with pytest.raises(UnsupportedError, match=says) as error:
            registry.named(name)
        assert error.value.code == "E313"
    registry._foreign.cache_clear()


def test_a_compiler_is_told_of_the_processor_as_its_kind_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GCC of AArch64 refuses the width of vectors that x86-64 has a word for."""
    gcc = cc.CC(("gcc",), "gcc 12, Free Software")
    for machine, flags in (
        ("x86_64", ("-march=native", "-mprefer-vector-width=512")),
        ("aarch64", ("-mcpu=native",)),
    ):
        monkeypatch.setattr(cc.platform, "machine", lambda machine=machine: machine)
        assert gcc.flags("native") == (*cc.FLAGS, *flags)
    assert gcc.flags("x86-64-v3")[-2:] == ("-march=x86-64-v3", "-mprefer-vector-width=512")
