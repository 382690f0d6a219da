"""Operations in files: the notation, what shapes say, every file of ops/, the command line."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.env import VARIABLES
from pullback.cli.main import commands
from pullback.errors import PullbackError, ShapeError, StateError
from pullback.operations import parse, read, written
from pullback.operations.drawn import drawn

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "ops").glob("*.toml"))
QUICK = ("arange", "attention", "bmm", "conv1d", "cross_entropy", "gather", "gemm", "gemm_columns",
         "im2col", "layer_norm", "max_pool2d", "mlp", "sin", "softmax")  # fmt: skip
DOUBLE = 'name = "d"\ninputs = ["x[M]"]\noutputs = ["y[K]"]\nwhere = ["K = 2*M"]\n'
DOUBLE += 'code = "y[k] = x[k // 2]"\n'


def ran(path: Path, backend: str) -> tuple[list[np.ndarray[Any, Any]], float]:
    operation = read(path)
    arrays, given = drawn(operation, {}, np.random.default_rng(0))
    options = pb.Options(backend=backend, threads=1)
    made = pb.jit(lambda *a: operation.of_stored(*a, **given), options=options)(*arrays)
    outputs = made if isinstance(made, tuple) else (made,)
    return [y.numpy().astype(np.float64) for y in outputs], operation.test.tolerance


def compared(path: Path, backend: str) -> None:
    (wanted, tolerance), (found, _) = ran(path, "reference"), ran(path, backend)
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
@pytest.mark.parametrize("backend", ["llvm", "kernels", "c"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_on_every_backend(path: Path, backend: str) -> None:
    compared(path, backend)


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


def test_unknown_keys_name_the_known() -> None:
    with pytest.raises(StateError, match="unknown key `output`") as caught:
        parse(DOUBLE.replace("outputs", "output"))
    assert "did you mean `outputs`" in caught.value.help and "where" in caught.value.help


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
    inline = invoked("compile", "-e", DOUBLE, "--backend", "reference", "--test", "M=4")
    assert inline.exit_code == 0 and "y [8]" in inline.output


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
