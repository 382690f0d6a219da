"""Operations in files: the notation, what shapes say, every file of ops/, the command line."""

from __future__ import annotations

import os
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.compile_file import CONFIG, configured
from pullback.cli.env import VARIABLES
from pullback.cli.main import commands
from pullback.errors import (
    DTypeError,
    PullbackError,
    ShapeError,
    StateError,
    UnsupportedError,
)
from pullback.operations import parse, read, written
from pullback.operations.drawn import drawn

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "ops").glob("*.toml"))
QUICK = ("arange", "attention", "bmm", "conv1d", "cross_entropy", "gather", "gemm", "gemm_columns",
         "im2col", "layer_norm", "max_pool2d", "mlp", "randn", "sin", "softmax")  # fmt: skip
DOUBLE = 'name = "d"\ninputs = ["x[M]"]\noutputs = ["y[K]"]\nwhere = ["K = 2*M"]\n'
DOUBLE += 'code = "y[k] = x[k // 2]"\n'


def missing(backend: str) -> str:
    """Why a backend cannot run here, or nothing."""
    try:
        pb.jit(lambda x: x + 1, options=pb.Options(backend=backend))(np.ones(1, np.float32))
    except UnsupportedError as problem:
        return problem.what
    return ""


def ran(path: Path, backend: str, slopes: bool = False) -> tuple[list[np.ndarray[Any, Any]], float]:
    """Outputs, and gradients of the sum of their products with numbers; the file's tolerance."""
    operation = read(path)
    arrays, given = drawn(operation, {}, np.random.default_rng(0))
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    slopes &= bool(floats) and operation.test.gradient != []
    options = pb.Options(backend=backend, threads=1)

    def called(*stored: Any) -> Any:
        made = operation.of_stored(*stored, **given)
        outputs = made if isinstance(made, tuple) else (made,)
        if not slopes:
            return outputs
        total = sum(pb.sum(y * pb.cos(pb.arange(y.size).reshape(y.shape) * 1.0))
                    for y in outputs if y.dtype.is_float)  # fmt: skip
        return (*outputs, *pb.grad(total, [stored[n] for n in floats]))

    outputs = pb.jit(called, options=options)(*arrays)
    assert len(outputs) == len(operation.outputs) + (len(floats) if slopes else 0)
    return [y.numpy().astype(np.float64) for y in outputs], operation.test.tolerance


def compared(path: Path, backend: str, slopes: bool = False) -> None:
    (wanted, tolerance), (found, _) = ran(path, "reference", slopes), ran(path, backend, slopes)
    for want, got in zip(wanted, found, strict=True):
        limit = tolerance * max(1.0, np.max(abs(want), initial=0.0))
        bad = np.argwhere(~(abs(got - want) <= limit))
        assert not len(bad), (
            f"{tuple(bad[0])}: got {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"
        )


@pytest.mark.parametrize("name", QUICK)
def test_files_on_llvm(name: str) -> None:
    compared(ROOT / "ops" / f"{name}.toml", "llvm")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["llvm", "kernels", "c", "opencl", "triton"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_on_every_backend(path: Path, backend: str) -> None:
    """Values and gradients; Triton's kernels are interpreted."""
    if why := missing(backend):
        pytest.skip(why)
    compared(path, backend, slopes=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", QUICK[::3])
def test_gradients_of_files_on_c(name: str) -> None:
    if why := missing("c"):
        pytest.skip(why)
    compared(ROOT / "ops" / f"{name}.toml", "c", slopes=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_gradients(path: Path) -> None:
    operation = read(path)
    if operation.test.gradient is not None and not operation.test.gradient:
        pytest.skip("its values are numbers of places")
    arrays, given = drawn(operation, {}, np.random.default_rng(1))

    def called(*stored: Any) -> Any:
        return operation.of_stored(*stored, **given)

    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    report = pb.check_grads(called, wide, layouts=("contiguous",), second=False)
    assert report, str(report)
    assert {c.name for c in report.checks} >= {"differences", "dot product"}


def test_values_beside_numpy() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((4, 5), (5, 3)))
    np.testing.assert_allclose(read(ROOT / "ops/gemm.toml")(a, b).numpy(), a @ b, rtol=1e-5)
    columns = read(ROOT / "ops/gemm_columns.toml")
    stored = np.ascontiguousarray(b.T)
    np.testing.assert_allclose(columns.of_stored(a, stored).numpy(), a @ b, rtol=1e-5)
    x = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    made = read(ROOT / "ops/im2col.toml")(x, P=2, Q=3).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (2, 3))
    assert np.array_equal(made, windows.reshape(12, 6).T)
    steps = read(ROOT / "ops/arange.toml")(np.float32(2), np.float32(3), N=4).numpy()
    assert steps.tolist() == [2, 5, 8, 11]


@pytest.mark.parametrize("rank", range(6))
def test_any_rank(rank: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 1, 2, 2)[:rank]).astype(np.float32)
    assert np.array_equal(read(ROOT / "ops/relu.toml")(x).numpy(), np.maximum(x, 0))


def test_files_that_call_files_are_one_kernel() -> None:
    linear = read(ROOT / "ops/linear.toml")
    program = pb.jit(lambda *a: linear(*a))
    program(*drawn(linear, {}, np.random.default_rng(0))[0])
    assert len(program.program.kernels) == 1


def test_conditions_are_solved() -> None:
    double = parse(DOUBLE)
    assert double(np.ones(3, np.float32)).shape == (6,)
    with pytest.raises(ShapeError, match=r"K is 5.*M is 3"):
        double(np.ones(3, np.float32), K=5)


def test_shapes_that_contradict_name_the_symbol_and_both_values() -> None:
    gemm = read(ROOT / "ops/gemm.toml")
    said = r"axis 0 of `B` has 5 elements, not K: K is 4, by axis 1 of `A`"
    with pytest.raises(ShapeError, match=said):
        gemm(np.ones((3, 4)), np.ones((5, 2)))
    with pytest.raises(ShapeError, match=r"nothing says what N is.*E553"):
        read(ROOT / "ops/arange.toml")(0.0, 1.0)


TWO = 'name = "t"\ninputs = ["x[M + N, M - N]"]\noutputs = ["y[M]", "z[N]"]\n'
TWO += 'code = """y[i] = x[i, 0]\nz[i] = x[0, 0] + i"""\n'


def test_equations_that_need_each_other() -> None:
    two = parse(TWO)
    y, z = two(np.ones((7, 3), np.float32))
    assert (y.shape, z.shape) == ((5,), (2,))
    with pytest.raises(ShapeError, match=r"M would be 9/2, by axis 0 of `x` and axis 1 of `x`"):
        two(np.ones((7, 2)))
    with pytest.raises(ShapeError, match=r"N would be -2, by"):
        two(np.ones((3, 7)))
    with pytest.raises(ShapeError, match=r"axis 1 of `x` has 3 elements, not M - N: .*M is 6"):
        two(np.ones((7, 3)), M=6)
    three = parse(
        'name = "s"\ninputs = ["x[M + N]", "y[N + K]", "z[M + K]"]\n'
        'outputs = ["w[M, N, K]"]\ncode = "w[i, j, k] = x[i] + y[j] + z[k]"'
    )
    assert three(np.ones(5), np.ones(7), np.ones(6)).shape == (2, 3, 4)
    with pytest.raises(ShapeError, match=r"M would be 5/2"):
        three(np.ones(5), np.ones(7), np.ones(7))
    again = parse(TWO.replace("M - N]", "M - N, 2*M + 2*N]").replace(", 0]", ", 0, 0]"))
    assert again(np.ones((7, 3, 14)))[0].shape == (5,)
    said = r"axis 2 of `x` has 12 elements, not 2\*M \+ 2\*N: it is 14, by axis 0 of `x`"
    with pytest.raises(ShapeError, match=said):
        again(np.ones((7, 3, 12)))
    even = parse(TWO.replace("M + N, M - N", "2*M + 4*N, M"))
    with pytest.raises(ShapeError, match="7"):
        even(np.ones((7, 2)))
    many = ", ".join(f"A{i} + A{i + 1} + A{(i + 7) % 130}" for i in range(128))
    text = 'name = "s"\ninputs = ["x[M]"]\noutputs = ["y[A1]"]\ncode = "y[i] = x[0]"\n'
    text += "where = [" + ", ".join(f'"{one.strip()} = 9"' for one in many.split(",")) + "]"
    with pytest.raises(ShapeError, match="more than 100 equations"):
        parse(text)(np.ones(2))


def test_systems_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(60):
        count = int(rng.integers(2, 5))
        rows, values = rng.integers(0, 4, (count, count)), rng.integers(1, 6, count)
        inputs = [
            " + ".join(f"{f}*S{n}" for n, f in enumerate(row) if f) or "0" for row in rows.tolist()
        ]
        text = (
            f'name = "s"\ninputs = ["x[{", ".join(inputs)}]"]\n'
            f'outputs = ["y[{", ".join(f"S{n}" for n in range(count))}]"]\n'
            f'code = "y[{", ".join("ijkl"[:count])}] = 1.0"'
        )
        x = np.broadcast_to(np.float32(0), tuple((rows @ values).tolist()))
        one = parse(text)
        try:
            assert one(x).shape == tuple(values)
            solved += 1
        except ShapeError as problem:
            assert problem.code == "E553" and np.linalg.matrix_rank(rows) < count
    assert solved > 40


def test_variables_of_types() -> None:
    text = 'name = "t"\ninputs = ["x{T}[M]", "y{T: float}[M]"]\noutputs = ["z{T}[M]"]\n'
    add = parse(text + 'code = "z[i] = x[i] + y[i]"')
    for kind in (np.float32, np.float64, np.float16):
        assert add(np.ones(2, kind), np.ones(2, kind)).dtype.name == np.dtype(kind).name
    said = r"y\{T: float\}\[M\] is given float64: T is float32, by `x` \[E556\]"
    with pytest.raises(DTypeError, match=said):
        add(np.ones(2, np.float32), np.ones(2))
    with pytest.raises(DTypeError, match=r"is given int64: no float \[E556\]"):
        add(np.ones(2, int), np.ones(2, int))
    wide = parse(text + 'code = "z[i] = float64(x[i] + y[i])"')
    with pytest.raises(DTypeError, match=r"the code makes float64: T is float32.*E556"):
        wide(np.ones(2, np.float32), np.ones(2, np.float32))
    assert parse(DOUBLE.replace("x[M]", "x{Dense}[M]"))(np.ones(2)).shape == (4,)
    for stored in ("Sparse", "Complex"):
        with pytest.raises(DTypeError, match="tensors of files are dense"):
            parse(DOUBLE.replace("x[M]", f"x{{{stored}}}[M]"))
    for wrong in ("{}", "{flot32}", "{T: flot}", "{T S}", "{Grad}{T}"):
        with pytest.raises(PullbackError, match="E551"):
            parse(DOUBLE.replace("x[M]", f"x{wrong}[M]"))
    assert drawn(parse(text.replace("float", "int") + 'code = "z[i] = x[i] + y[i]"'),
                 {"M": 3}, np.random.default_rng(0))[0][1].dtype == np.int64  # fmt: skip


def test_several_numbers_of_axes() -> None:
    text = 'name = "o"\ninputs = ["x[~a]", "y[~b, N]"]\noutputs = ["z[~a, ~b]"]\n'
    outer = parse(text + 'code = "z[~a, ~b] = x[~a] * sum[n](y[~b, n])"')
    rng = np.random.default_rng(0)
    for first in ((), (2,), (2, 3)):
        for second in ((), (4,), (1, 5, 2)):
            x, y = rng.normal(size=first), rng.normal(size=(*second, 3))
            wanted = np.multiply.outer(x, y.sum(-1))
            np.testing.assert_allclose(outer(x, y).numpy(), wanted, rtol=1e-12)
    both = parse(
        'name = "s"\ninputs = ["x[~a, ~b]", "s[~b]"]\noutputs = ["y[~a]"]\n'
        'code = "y[~a] = sum[~b](x[~a, ~b] * s[~b])"'
    )
    x, y = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4))
    np.testing.assert_allclose(both(x, y).numpy(), np.tensordot(x, y, 2), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"nothing says how many axes ~a is.*E553"):
        parse('name = "s"\ninputs = ["x[~a, ~b]"]\noutputs = ["y[~a]"]\ncode = "y[~a] = 1.0"')(
            np.ones((2, 3))
        )
    with pytest.raises(ShapeError, match=r"~a would be -1, by `x`"):
        both(np.ones(3), np.ones((3, 2)))
    with pytest.raises(ShapeError, match=r"`y` has 3 axes, not ~a: ~a is 1, by `x`"):
        parse(text.replace("~b, N", "~a").replace(", ~b", "") + 'code = "z[~a] = x[~a] + y[~a]"')(
            np.ones(2), np.ones((2, 2, 2))
        )
    with pytest.raises(StateError, match="~x has the name of a tensor"):
        parse(text.replace("~a", "~x") + 'code = "z[~x, ~b] = 1.0"')
    made = invoked("compile", "-e", text + "code = \"z[~a, ~b] = x[~a] * sum[n](y[~b, n])\"",
                   "--backend", "kernels", "--test", "~a=2, ~b=0, N=3")  # fmt: skip
    assert made.exit_code == 0 and "z [4, 4]" in made.output, made.output


def test_files_of_several_outputs_are_called(tmp_path: Path) -> None:
    (tmp_path / "ends.toml").write_text(
        'name = "ends"\ninputs = ["x[N]"]\noutputs = ["a[]", "b[]"]\n'
        'code = "a[] = x[0]; b[] = x[N - 1]"'
    )
    text = 'name = "span"\ninputs = ["x[N]"]\noutputs = ["y[]"]\ncode = """{}\ny[] = b - a"""'
    (tmp_path / "span.toml").write_text(text.format("a, b = ends(x)"))
    span = read(tmp_path / "span.toml")
    assert float(span(np.float32([3, 9, 10]))) == 7.0
    (tmp_path / "span.toml").write_text(text.format("a = ends(x)"))
    with pytest.raises(PullbackError, match=r"ends gives 2 tensors, 1 are named \[E554\]"):
        read(tmp_path / "span.toml")(np.ones(3))
    for wrong in ("a, b = x", "a, a = ends(x)", "a, 3 = ends(x)", "a, b = sqrt(x)"):
        with pytest.raises(PullbackError, match=r"E163|E165|E554"):
            parse(text.format(wrong), tmp_path)(np.ones(3))


def test_a_place_in_the_code_is_told_by_its_line() -> None:
    text = 'name = "t"\ninputs = ["x[N]"]\noutputs = ["y[N]"]\n'
    with pytest.raises(PullbackError, match="line 3, column 8"):
        parse(text + 'code = """h[n] = x[n]\n\ny[n] = q[n]"""')(np.ones(2))


def test_unknown_keys_name_the_known() -> None:
    with pytest.raises(StateError, match="unknown key `output`") as caught:
        parse(DOUBLE.replace("outputs", "output"))
    assert "did you mean `outputs`" in caught.value.help and "where" in caught.value.help


@pytest.mark.parametrize(
    "values",
    ["low = 2.0", "high = -3", "high = inf", "low = nan", f"high = 1{'0' * 400}", "tolerance = -1"],
)
def test_values_that_nothing_can_be_drawn_from(values: str) -> None:
    with pytest.raises(StateError, match="E550"):
        parse(f"{DOUBLE.partition('[test]')[0]}\n[test]\n{values}\n")


def test_a_file_that_calls_itself_ends(tmp_path: Path) -> None:
    text = DOUBLE.replace("y[k] = x[k // 2]", "y = d(x)")
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(PullbackError, match="call each other"):
        read(tmp_path / "d.toml")(np.ones(3, np.float32))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_written_files_read_as_the_same(path: Path) -> None:
    operation = read(path)
    again = parse(written(operation), path.parent)
    assert written(again) == written(operation)
    assert (again.code, again.test) == (operation.code, operation.test)


def test_there_are_forty_files() -> None:
    assert len(FILES) >= 40
    for path in FILES:
        found = tomllib.loads(path.read_text())
        assert found["name"] == path.stem and found["documentation"] and "test" in found


def invoked(*words: str) -> Any:
    return CliRunner().invoke(commands, list(words))


def test_compile_command() -> None:
    gemm = str(ROOT / "ops/gemm.toml")
    done = invoked("compile", "-i", gemm, "--runtime", "kernels", "--test", "M=3, N=4,K=5")
    assert done.exit_code == 0, done.output
    assert "C [3, 4]: largest error" in done.output
    wrong = invoked("compile", "-i", gemm, "--config", "OPM=1")
    assert wrong.exit_code == 2 and "OMP, THREADS" in wrong.output
    asked = invoked("compile", "-i", gemm, "--test", "Q=3")
    assert asked.exit_code == 2 and "it has M, K, N" in asked.output
    nowhere = invoked("compile", "-i", gemm, "-o", "nowhere/gemm.toml")
    assert nowhere.exit_code == 2 and "[E619]" in nowhere.output
    inline = invoked("compile", "-e", DOUBLE, "--backend", "reference", "--test", "M=4")
    assert inline.exit_code == 0 and "y [8]" in inline.output


def test_every_setting_of_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CC", "")
    values = {
        "OMP": "1", "THREADS": "2", "MARCH": "x86-64-v3", "SIMD_LEN": "8", "CC": "cc",
        "MACHINE": "generic", "MEMORY": "64MB", "CACHE": "off", "DUMP": str(tmp_path / "d"),
        "HOST": "0", "CHECK": "0", "PROFILE": "1",
    }  # fmt: skip
    assert set(values) == set(CONFIG)
    plain = pb.Options()
    for key, value in values.items():
        changed = configured(plain, f"{key}={value}")
        assert (changed != plain) == (key not in ("OMP", "CC", "CHECK")), key
        with pytest.raises(click.ClickException):
            configured(plain, f"{key}=")
    assert os.environ["PULLBACK_CC"] == "cc"
    every = configured(plain, "OMP=0, MARCH=native,SIMD_LEN=4,CHECK=1,MEMORY=1KB")
    assert (every.threads, every.target, every.check, every.memory) == (1, "x86-64", True, 1024)
    said_of = {"SLEEF=1": "bound", "ARM_NEON=1": "MARCH", "OPT=3": "schedules",
               "SIMD_LEN=5": "4, 8 or 16", "OPM=1": "did you mean OMP?",
               "THREADS=many": "how many", "MACHIN=x": "these are known: OMP, "}  # fmt: skip
    for text, said in said_of.items():
        with pytest.raises(click.ClickException, match=re.escape(said)):
            configured(plain, text)
    for text in ("THREADS=0", "MEMORY=much"):
        with pytest.raises(PullbackError):
            configured(plain, text)


@pytest.mark.parametrize("level", range(5))
def test_levels_of_debug(level: int, capfd: pytest.CaptureFixture[str]) -> None:
    words = (
        "compile",
        "-e",
        DOUBLE,
        "--debug",
        str(level),
        "--config",
        "CACHE=off",
        "--test",
        "M=4",
    )
    assert invoked(*words).exit_code == 0
    said = capfd.readouterr().err + invoked(*words).stderr
    for least, text in ((1, "ms"), (2, "def y"), (3, "kernel y"), (4, "define void")):
        assert (text in said) == (level >= least), (level, text)
    assert invoked("compile", "-e", DOUBLE, "--debug", "5").exit_code == 2


def test_env_names_every_variable_that_is_read() -> None:
    text = "".join(p.read_text() for p in (ROOT / "src").rglob("*.py") if p.name != "env.py")
    assert set(re.findall(r"PULLBACK_[A-Z]+(?:_[A-Z]+)*", text)) == set(VARIABLES)
    assert all(name in invoked("env").output for name in VARIABLES)


def test_test_runtime_is_test_backend() -> None:
    done = invoked("test-runtime", "reference", "--only", "no cell")
    assert done.exit_code == 2 and "no cell has" in done.output


def mutations(count: int) -> list[str]:
    """Files with a few characters changed, doubled, cut out or swapped for another file's."""
    rng = random.Random(0)
    texts = [p.read_text() for p in FILES]
    made = []
    for _ in range(count):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 4)):
            at, other = rng.randrange(len(text) + 1), rng.choice(texts)
            end, start = at + rng.choice((0, 1, 1, 5)), rng.randrange(len(other))
            text = text[:at] + other[start : start + rng.choice((0, 1, 1, 6))] + text[end:]
        made.append(text)
    return made


def tried(text: str) -> None:
    """Read, draw small inputs, trace: whatever happens is a typed error or none."""
    try:
        operation = parse(text, ROOT / "ops")
        parse(written(operation), ROOT / "ops")
        arrays, given = drawn(operation, {}, np.random.default_rng(0))
        operation.of_stored(*arrays, **given)
    except PullbackError as problem:
        assert problem.code != "E000"


def test_some_changed_files() -> None:
    for text in mutations(60):
        tried(text)


@pytest.mark.slow
def test_changed_files() -> None:
    for text in mutations(3000):
        tried(text)
