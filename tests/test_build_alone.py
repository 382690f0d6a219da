"""`pullback build` where nothing compiles C: libraries by LLVM's objects and a linker of ours."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pullback.backends.c import compiler
from pullback.backends.host.engine import portable_object
from pullback.backends.host.processor import host_target
from pullback.build.alone import is_linux
from pullback.build.elf import shared_library
from pullback.errors import UnsupportedError
from pullback.operations import read
from pullback.operations.drawn import drawn
from pullback_cli import commands
from test_build import SCRIPT, after, loader, same
from test_build_operation import NAMES, PROGRAM, near, ran, wanted

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "ops").glob("*.toml"))
QUICK = ("argmax_rows", "gelu", "gather", "layer_norm", "conv2d", "cumsum", "cross_entropy")
linux = pytest.mark.skipif(not is_linux(), reason="libraries are linked on x86-64 Linux")
pytestmark = linux
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler links the program")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cc, gcc, clang, nor ziglang."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("PULLBACK_CC", raising=False)
    find = importlib.util.find_spec
    without = lambda name, *more: None if name == "ziglang" else find(name, *more)
    monkeypatch.setattr(importlib.util, "find_spec", without)

    def never(*_: object) -> None:
        raise AssertionError("a C compiler was called")

    monkeypatch.setattr(compiler.CC, "run", never)


def built(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(commands, ["build", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


BOUNDED = "--size", "M=1..300", "--size", "K=0..64", "--size", "N=1..90"


@pytest.fixture
def gemm(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """gemm.so with its adjoints; compilers are there again."""
    built(ROOT / "ops/gemm.toml", "--grad", *BOUNDED, "-o", tmp_path / "gemm.so")
    monkeypatch.undo()
    return tmp_path


@pytest.mark.slow
@needs_cc
def test_a_program_of_c_with_sizes(gemm: Path) -> None:
    (gemm / "main.c").write_text(PROGRAM)
    subprocess.run(["cc", "main.c", "./gemm.so", "-o", "main"], cwd=gemm, check=True)
    for sizes in ((5, 6, 7), (1, 1, 1), (300, 64, 90), (33, 0, 17), (128, 64, 64)):
        for name, got, want in zip(NAMES, ran(gemm / "main", *sizes), wanted(*sizes), strict=True):
            near(got, want, f"{sizes} {name}")
    for sizes in ((0, 3, 3), (301, 3, 3), (3, 65, 3), (3, 3, 91), (3, -1, 3)):
        line = ["./main", *map(str, sizes)]
        done = subprocess.run(line, cwd=gemm, capture_output=True, check=False, timeout=60)
        assert done.returncode == 9, sizes
        assert done.stdout == b"a size is out of its bounds [E544]\n"


@pytest.mark.slow
def test_what_it_says(gemm: Path) -> None:
    library = ctypes.CDLL(str(gemm / "gemm.so"))
    library.gemm_message.restype = ctypes.c_char_p
    assert library.gemm_check(ctypes.c_uint64(1)) == -6
    header = (gemm / "gemm.h").read_text()
    number = int(re.findall(r"UINT64_C\((\d+)\)", header)[0])
    assert library.gemm_check(ctypes.c_uint64(number)) == 0
    assert library.gemm_message(-6).endswith(b"[E541]")
    assert library.gemm_message(-5).endswith(b"[E542]")
    assert (library.gemm_message(0), library.gemm_message(9)) == (b"", b"an unknown status")


@pytest.mark.slow
def test_only_what_is_called_is_exported(gemm: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    done = subprocess.run(["nm", "-D", "--defined-only", gemm / "gemm.so"], capture_output=True)
    names = [line.split()[-1] for line in done.stdout.decode().splitlines()]
    assert sorted(names) == ["gemm", "gemm_backward", "gemm_check", "gemm_message"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[] if p.stem in QUICK else pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_files(path: Path, alone: None, tmp_path: Path) -> None:
    """Beside the interpreter: sizes as arguments where they may be, else as numbers."""
    operation = read(path)
    arrays, given = drawn(operation, {}, np.random.default_rng(0))
    library, known = tmp_path / "made.so", symbols(operation, arrays, given)
    rank = max(len([n for n in known if n.startswith("_")]), 1)
    words = [f"--size=~={rank}"] if any(x.runs for x in operation.inputs) else []
    first = CliRunner().invoke(commands, ["build", str(path), *words, "-o", str(library)])
    if first.exit_code:
        assert re.search(r"\[E55[23]\]", first.output), (first.output, first.exception)
        words += [f"--size={n}={v}" for n, v in known.items()]
        built(path, *words, "-o", library)
    want = operation.of_stored(*arrays, **given)
    outputs = [y.numpy() for y in (want if isinstance(want, tuple) else (want,))]
    got = [np.zeros_like(y) for y in outputs]
    head = library.with_suffix(".h").read_text()
    name, words = re.findall(rf"^int ({operation.name}_?)\((.*)\);", head, re.MULTILINE)[0]
    names = re.findall(r"int64_t (\w+)", words)
    memory = [ctypes.c_void_p(np.ascontiguousarray(a).ctypes.data) for a in (*arrays, *got)]
    status = getattr(ctypes.CDLL(str(library)), name)(
        *memory, *[ctypes.c_int64(known[n]) for n in names]
    )
    assert status == 0
    for a, b in zip(got, outputs, strict=True):
        near(a.astype(np.float64), b.astype(np.float64), path.stem)


def symbols(operation: Any, arrays: list[Any], given: dict[str, int]) -> dict[str, int]:
    """Sizes by the shapes of inputs, which lie as their order says."""
    shapes = []
    for one, array in zip(operation.inputs, arrays, strict=True):
        order = one.order or range(array.ndim)
        shapes.append([array.shape[list(order).index(n)] for n in range(array.ndim)])
    known: dict[str, int] = operation.sizes(shapes, given).known
    return known


def test_a_training_loop(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its feeder and receiver, as the compiled program: the same bits."""
    (tmp_path / "train.py").write_text(SCRIPT)
    built(tmp_path / "train.py", "-o", tmp_path / "out")
    monkeypatch.undo()
    names: dict[str, object] = {}
    exec(SCRIPT.removesuffix("train()\n"), names)  # its feeder
    module = loader(tmp_path)
    seen: list[float] = []
    module.program(batch=names["batch"], loss=lambda x: seen.append(float(x)))
    assert len(seen) == 10
    same([*module.program.state.values()], after(tmp_path))
    with pytest.raises(module.ProgramError, match="E545"):
        module.program(batch=names["batch"])

    def fails() -> None:
        raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own"):
        module.program(batch=fails, loss=print)
    assert "train_read" not in (tmp_path / "out/train.h").read_text()


def test_a_feeder_that_ends(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    built(tmp_path / "train.py", "-o", tmp_path / "out")
    monkeypatch.undo()
    module = loader(tmp_path)
    seen: list[float] = []
    batches = iter([np.zeros((32, 8), np.float32)] * 250)
    module.program(batch=lambda: next(batches), loss=lambda x: seen.append(float(x)))
    assert len(seen) == 2


CONTROL = """
import numpy as np
import pullback as pb

w = pb.tensor(np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4))

@pb.jit
def solve(x, places):
    y = pb.while_loop(lambda y: pb.sum(y * y) > 1.0, lambda y: y * 0.5, x)
    z = pb.cond(pb.sum(x) > 0.0, lambda: y @ w, lambda: y @ (w * 2.0))
    return z, pb.compute((3,), lambda i: z[i, places[i]])

solve(np.ones((3, 3), np.float32) * 4, np.array([0, 1, 3], np.int64))
"""


def test_loops_branches_and_checks(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(CONTROL)
    built(tmp_path / "train.py", "--name", "solve", "-o", tmp_path / "out")
    monkeypatch.undo()
    names: dict[str, Any] = {}
    exec(CONTROL, names)  # the text above
    (tmp_path / "out/train_loader.py").write_text((tmp_path / "out/solve_loader.py").read_text())
    program = loader(tmp_path).program
    for sign in (4.0, -4.0, 0.1):
        x, places = np.full((3, 3), sign, np.float32), np.array([0, 1, 3], np.int64)
        for got, want in zip(program(x, places), names["solve"](x, places), strict=True):
            assert np.array_equal(got, want.numpy())
    with pytest.raises(RuntimeError, match="E548"):
        program(x, np.array([0, 9, 3], np.int64))


def test_what_is_refused(alone: None, tmp_path: Path) -> None:
    gemm = ROOT / "ops/gemm.toml"
    said = built(gemm, "-o", tmp_path / "gemm.o", code=2)
    assert "[E533]" in said
    assert "pip install ziglang" in said
    assert "[E533]" in built(gemm, "--static", "-o", tmp_path / "gemm.a", code=2)
    assert "[E533]" in built(gemm, "--threads", 2, "-o", tmp_path / "gemm.so", code=2)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = tmp_path / "train.py", "--threads", 2, "-o", tmp_path / "out"
    assert "[E533]" in built(*words, code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nothing", "train.py"]


def linked(text: str, *exports: str) -> bytes:
    return shared_library([portable_object(text, host_target(), others=True)], exports)


def called(data: bytes, folder: Path, name: str, kind: Any = ctypes.c_int64) -> Any:
    path = folder / f"{name}.so"
    path.write_bytes(data)
    function = getattr(ctypes.CDLL(str(path)), name)
    function.restype = kind
    return function


def test_the_linker(tmp_path: Path) -> None:
    """Constants, tables of addresses, data that is written, functions of two objects and of C."""
    one = """
    @table = constant [2 x ptr] [ptr @first, ptr @strlen]
    @count = global i64 40
    @zeros = internal global [3 x i64] zeroinitializer
    declare i64 @strlen(ptr)
    declare i64 @away(i64)
    define i64 @first(ptr %x) { ret i64 7 }
    define i64 @all(i64 %n, ptr %text) {
      %at = getelementptr ptr, ptr @table, i64 %n
      %f = load ptr, ptr %at
      %r = call i64 %f(ptr %text)
      %old = load i64, ptr @count
      %new = add i64 %old, %r
      store i64 %new, ptr @count
      %z = getelementptr i64, ptr @zeros, i64 2
      store i64 %new, ptr %z
      %s = call i64 @away(i64 %new)
      ret i64 %s
    }
    """
    two = """
    @more = internal constant [4 x i64] [i64 100, i64 200, i64 300, i64 400], align 64
    define i64 @away(i64 %n) {
      %k = and i64 %n, 3
      %at = getelementptr i64, ptr @more, i64 %k
      %m = load i64, ptr %at
      %s = add i64 %n, %m
      ret i64 %s
    }
    """
    objects = [portable_object(t, host_target(), others=True) for t in (one, two)]
    run = called(shared_library(objects, ["all"]), tmp_path, "all")
    assert run(ctypes.c_int64(0), b"abcde") == 47 + 400
    assert run(ctypes.c_int64(1), b"abcde") == 52 + 100


def test_the_linker_refuses_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no function none.*E533"):
        linked("define i64 @f() { ret i64 1 }", "none")
    with pytest.raises(UnsupportedError, match=r"section \.t.*E533"):
        linked("@x = thread_local global i64 3\ndefine ptr @f() { ret ptr @x }", "f")
    with pytest.raises(UnsupportedError, match=r"symbol f, which is weak.*E533"):
        linked("define weak i64 @f() { ret i64 1 }", "f")
    with pytest.raises(UnsupportedError, match=r"none of x86-64.*E533"):
        shared_library([b"\x7fELF" + bytes(100)], ["f"])
    own = portable_object("define i64 @f() { ret i64 1 }", host_target())
    with pytest.raises(UnsupportedError, match=r"two functions f.*E533"):
        shared_library([own, own], ["f"])
    small = 'module asm "movq $thing, %rax"\n@thing = global i64 1\ndefine i64 @f() { ret i64 1 }'
    with pytest.raises(UnsupportedError, match=r"R_X86_64_32S against thing.*E533"):
        linked(small, "f")


@pytest.mark.slow
@needs_cc
def test_as_objdump_and_ld_see_it(gemm: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    line = ["readelf", "-aW", str(gemm / "gemm.so")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr + done.stdout
    assert "Error" not in done.stderr
    assert sys.platform == "linux"
