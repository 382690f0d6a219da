"""`pullback build operation.toml`: libraries, objects, archives, modules; from C, with sizes."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pullback.build.artefact import written_files
from pullback.errors import StateError
from pullback.operations import read
from pullback_cli import commands

ROOT = Path(__file__).parent.parent
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
NAMES = ("C", "dA", "dB")
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("softmax", "layer_norm")]
Array = np.ndarray[Any, Any]
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
)
# Twenty lines: C = A B and its adjoints, of sizes that the command line gives.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "gemm.h"
int main(int count, char **args) {
  int64_t M = atol(args[1]), K = atol(args[2]), N = atol(args[3]);
  float *A = malloc(4 * M * K + 4), *B = malloc(4 * K * N + 4), *C = malloc(4 * M * N + 4);
  float *dA = malloc(4 * M * K + 4), *dB = malloc(4 * K * N + 4);
  for (int64_t n = 0; n < M * K; ++n) A[n] = (float)(n % 17) / 8 - 1;
  for (int64_t n = 0; n < K * N; ++n) B[n] = (float)(n % 13) / 8 - 1;
  int status = gemm_check(gemm_interface);
  if (!status) status = gemm(A, B, C, M, K, N);
  if (!status) status = gemm_backward(C, A, B, dA, dB, M, K, N);
  if (status) return puts(gemm_message(status)), 9;
  fwrite(C, 4, M * N, stdout);
  fwrite(dA, 4, M * K, stdout);
  fwrite(dB, 4, K * N, stdout);
  return 0;
}
"""


def built(*words: object) -> str:
    done = CliRunner().invoke(commands, ["build", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: object) -> str:
    done = CliRunner().invoke(commands, ["build", *map(str, words)])
    assert done.exit_code == 2, (done.output, done.exception)
    return done.output


def ran(program: Path, m: int, k: int, n: int) -> list[Array]:
    line = [str(program), str(m), str(k), str(n)]
    done = subprocess.run(line, cwd=program.parent, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, (done.stdout, done.stderr)
    data = np.frombuffer(done.stdout, np.float32)
    ends = np.cumsum([m * n, m * k])
    c, da, db = np.split(data, ends)
    return [c.reshape(m, n), da.reshape(m, k), db.reshape(k, n)]


def wanted(m: int, k: int, n: int) -> list[Array]:
    a = (np.arange(m * k) % 17 / 8 - 1).reshape(m, k)
    b = (np.arange(k * n) % 13 / 8 - 1).reshape(k, n)
    c = a @ b
    return [c, c @ b.T, a.T @ c]


def near(got: Array, want: Array, name: str) -> None:
    assert got.shape == want.shape
    limit = 1e-5 * max(1.0, float(np.max(abs(want), initial=0)))
    bad = np.argwhere(~(abs(got - want) <= limit))
    if len(bad):
        at = tuple(bad[0])
        raise AssertionError(f"{name}{at}: got {got[at]}, want {want[at]}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gemm with its adjoints, its sizes as arguments."""
    home = tmp_path_factory.mktemp("operation")
    (home / "main.c").write_text(PROGRAM)
    words = ["--grad", "--size", "M=1..300", "--size", "K=0..64", "--size", "N=1..90"]
    built(ROOT / "ops/gemm.toml", *words, "-o", home / "gemm.so", "-H", home / "gemm.h")
    return home


@pytest.mark.slow
@needs_cc
def test_a_program_of_c_with_sizes(home: Path) -> None:
    subprocess.run(["cc", "main.c", "./gemm.so", "-o", "main"], cwd=home, check=True)
    for sizes in ((5, 6, 7), (1, 1, 1), (300, 64, 90), (33, 0, 17), (128, 64, 64)):
        for name, got, want in zip(NAMES, ran(home / "main", *sizes), wanted(*sizes), strict=True):
            near(got, want, f"{sizes} {name}")
    for sizes in ((0, 3, 3), (301, 3, 3), (3, 65, 3), (3, 3, 91), (3, -1, 3)):
        line = ["./main", *map(str, sizes)]
        done = subprocess.run(line, cwd=home, capture_output=True, check=False, timeout=60)
        assert done.returncode == 9, sizes
        assert done.stdout == b"a size is out of its bounds [E544]\n"


@needs_cc
@pytest.mark.parametrize("end", ["a", pytest.param("o", marks=pytest.mark.slow)])
def test_objects_and_archives(tmp_path: Path, end: str) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    file = tmp_path / f"gemm.{end}"
    built(ROOT / "ops/gemm.toml", "--static", "--grad", "--size", "M=1..8", "-o", file)
    command = ["cc", "main.c", file.name, "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for name, got, want in zip(
        NAMES, ran(tmp_path / "main", 5, 6, 7), wanted(5, 6, 7), strict=True
    ):
        near(got, want, name)


@pytest.mark.slow
@needs_cc
def test_what_is_exported(home: Path, tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    done = subprocess.run(["nm", "-D", "--defined-only", home / "gemm.so"], capture_output=True)
    names = [line.split()[-1] for line in done.stdout.decode().splitlines()]
    assert sorted(names) == ["gemm", "gemm_backward", "gemm_check", "gemm_message"]


@needs_cc
@pytest.mark.parametrize("name", ["gemm_columns", *SLOW])
def test_other_files(name: str, tmp_path: Path) -> None:
    """Beside the operation itself; what stands for ~ is an argument too."""
    operation = read(ROOT / "ops" / f"{name}.toml")
    path = tmp_path / f"{name}.so"
    built(ROOT / "ops" / f"{name}.toml", "-o", path)
    head = next(x for x in path.with_suffix(".h").read_text().splitlines() if f"int {name}(" in x)
    sizes = dict(zip(re.findall(r"int64_t (\w+)", head), (7, 5, 11), strict=False))
    rng = np.random.default_rng(0)
    inputs = []
    for one in operation.inputs:
        rank = one.expanded({"~": 1})
        shape = [sizes[s.text] for s in rank]
        inputs.append(rng.uniform(0.5, 1, [shape[n] for n in one.order or range(len(shape))]))
    stored = [x.astype(np.float32) for x in inputs]
    want = operation.of_stored(*stored).numpy()
    got = np.full(want.shape, np.nan, np.float32)
    function = getattr(ctypes.CDLL(str(path)), name)
    memory = [ctypes.c_void_p(a.ctypes.data) for a in (*stored, got)]
    assert function(*memory, *map(ctypes.c_int64, sizes.values())) == 0
    near(got, want, name)


@needs_cc
def test_names_of_the_c_library(tmp_path: Path) -> None:
    """A file may be called as a function of C is."""
    path = tmp_path / "sin.so"
    built(ROOT / "ops/sin.toml", "-o", path)
    head = next(x for x in path.with_suffix(".h").read_text().splitlines() if "int sin_(" in x)
    x = np.linspace(-3, 3, 9, dtype=np.float32)
    y = np.zeros(9, np.float32)
    memory = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
    assert head.count("int64_t") == 1
    assert ctypes.CDLL(str(path)).sin_(*memory, ctypes.c_int64(9)) == 0
    near(y, np.sin(x.astype(np.float64)), "sin")


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("end", ["so", "o"])
def test_by_ziglang_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """No cc in the path; an object is linked by ziglang too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PULLBACK_CC", raising=False)
    built(ROOT / "ops/sin.toml", "-o", tmp_path / f"sin.{end}")
    if end == "o":
        line = [sys.executable, "-m", "ziglang", "cc", "-shared", "sin.o", "-lm", "-o", "sin.so"]
        subprocess.run(line, cwd=tmp_path, check=True)
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    memory = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
    assert ctypes.CDLL(str(tmp_path / "sin.so")).sin_(*memory, ctypes.c_int64(3)) == 0
    near(y, np.sin(x.astype(np.float64)), "sin")


@pytest.mark.skipif(sys.platform != "linux", reason="PATH is that of Unix")
def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and nothing is half-written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PULLBACK_CC", raising=False)
    found = importlib.util.find_spec
    without = lambda n, *more: None if n == "ziglang" else found(n, *more)
    monkeypatch.setattr(importlib.util, "find_spec", without)
    gemm = ROOT / "ops/gemm.toml"
    said = refused(gemm, "-o", tmp_path / "gemm.o")
    assert "pip install ziglang" in said
    assert "[E549]" in refused(gemm, "--target", "wasm32", "-o", tmp_path / "gemm.wasm")
    assert not [*tmp_path.iterdir()]


@needs_cc
def test_what_is_refused(tmp_path: Path) -> None:
    gemm, out = ROOT / "ops/gemm.toml", tmp_path / "gemm.so"
    assert "[E554]" in refused(gemm, "-o", out, "--size", "Q=3")
    assert "[E552]" in refused(gemm, "-o", out, "--size", "M=1..999999", "--size", "K=1..999999")
    assert "write it like M=64" in refused(gemm, "-o", out, "--size", "M=a")
    assert "8 is more than 2" in refused(gemm, "-o", out, "--size", "M=8..2")
    assert "ends in .so" in refused(gemm, "-o", tmp_path / "gemm.txt")
    assert "--static ends in .a or .o" in refused(gemm, "-o", out, "--static")
    assert "[E549]" in refused(ROOT / "ops/argmax_rows.toml", "-o", out, "--grad")
    assert "[E549]" in refused(gemm, "-o", tmp_path / "gemm.o", "--target", "pdp11")
    assert "[E550]" in refused(tmp_path / "none.toml", "-o", out)
    script = tmp_path / "a.py"
    script.write_text("")
    assert "is no operation" in refused(script, "-o", out, "--grad")
    assert "is no file" in refused(tmp_path, "-o", out)
    for end in ("wasm", "dll", "dylib"):
        assert "which --target did not name" in refused(gemm, "-o", tmp_path / f"gemm.{end}")
    assert not out.exists() and len([*tmp_path.iterdir()]) == 1
    built(ROOT / "ops/double.toml", "-o", out, "--size", "M=5", "--size", "K=10")


@needs_cc
def test_all_files_or_none(tmp_path: Path) -> None:
    """Where the header cannot be written, no library is left; what was there stays."""
    out = tmp_path / "double.so"
    assert "[E513]" in refused(ROOT / "ops/double.toml", "-o", out, "-H", tmp_path)
    assert not [*tmp_path.iterdir()]
    before = os.umask(0o022)
    written_files({out: b"old"})
    os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o644
    with pytest.raises(StateError, match="E513"):
        written_files({out: b"new", tmp_path / "double.h": b"", out / "double.h": b""})
    assert [*tmp_path.iterdir()] == [out]


MACHINES = {  # how an object begins
    "x86_64-linux": b"\x7fELF", "aarch64-linux": b"\x7fELF", "aarch64-macos": b"\xcf\xfa\xed\xfe",
    "x86_64-windows": b"\x64\x86",
}  # fmt: skip
ELF_MACHINES = {"x86_64-linux": 62, "aarch64-linux": 183}


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_objects_for_other_machines(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "gemm.o"
    built(ROOT / "ops/gemm.toml", "-o", path, "--target", machine)
    data = path.read_bytes()
    assert data.startswith(MACHINES[machine])
    if machine in ELF_MACHINES:
        assert int.from_bytes(data[18:20], "little") == ELF_MACHINES[machine]
    assert b"gemm_check" in data
    assert b"pullback-" not in data, "the folder that it was compiled in"


@needs_zig
@needs_cc
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor")
def test_an_object_for_any_x86(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    words = ["--grad", "--target", "x86_64-linux", "-o", tmp_path / "gemm.o"]
    built(ROOT / "ops/gemm.toml", *words)
    subprocess.run(["cc", "main.c", "gemm.o", "-lm", "-o", "main"], cwd=tmp_path, check=True)
    got_all = ran(tmp_path / "main", 5, 6, 7)
    for name, got, want in zip(NAMES, got_all, wanted(5, 6, 7), strict=True):
        near(got, want, name)


@needs_zig
@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed")
def test_an_object_for_aarch64_runs(tmp_path: Path) -> None:
    """Interpreted by qemu."""
    (tmp_path / "main.c").write_text(PROGRAM)
    built(ROOT / "ops/gemm.toml", "--grad", "--target", "aarch64-linux", "-o", tmp_path / "gemm.o")
    line = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"]
    subprocess.run([*line, "main.c", "gemm.o", "-o", "main.bin"], cwd=tmp_path, check=True)
    (tmp_path / "main").write_text(f'#!/bin/sh\nexec {QEMU} ./main.bin "$@"\n')
    (tmp_path / "main").chmod(0o755)
    for sizes in ((5, 6, 7), (64, 33, 20)):
        got_all = ran(tmp_path / "main", *sizes)
        for name, got, want in zip(NAMES, got_all, wanted(*sizes), strict=True):
            near(got, want, name)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gemm with its adjoints for WebAssembly."""
    path = tmp_path_factory.mktemp("wasm") / "gemm.wasm"
    built(ROOT / "ops/gemm.toml", "--grad", "--target", "wasm32", "-o", path)
    return path


@needs_zig
@pytest.mark.slow
def test_a_module_has_vectors(module: Path) -> None:
    data = module.read_bytes()
    assert data[:8] == b"\0asm\1\0\0\0"
    assert data.count(b"\xfd\xe6\x01") > 8, "f32x4.mul"


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5, 6, 7), (64, 33, 20)])
def test_a_module_runs(module: Path, sizes: tuple[int, int, int]) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime is not installed")
    store = wasmtime.Store()
    linker = wasmtime.Linker(store.engine)
    linker.define_wasi()
    store.set_wasi(wasmtime.WasiConfig())
    made = linker.instantiate(store, wasmtime.Module.from_file(store.engine, str(module)))
    call = made.exports(store)
    call["_initialize"](store)
    m, k, n = sizes
    a = (np.arange(m * k) % 17 / 8 - 1).astype(np.float32)
    b = (np.arange(k * n) % 13 / 8 - 1).astype(np.float32)
    shapes = [(m, k), (k, n), (m, n), (m, k), (k, n)]
    places = [call["malloc"](store, 4 * int(np.prod(s))) for s in shapes]
    for array, place in ((a, places[0]), (b, places[1])):
        call["memory"].write(store, array.tobytes(), place)
    assert call["gemm"](store, *places[:3], *sizes) == 0
    assert call["gemm_backward"](store, places[2], *places[:2], *places[3:], *sizes) == 0
    assert call["gemm"](store, *places[:3], 2000, k, n) == -2
    for name, place, shape, want in zip(NAMES, places[2:], shapes[2:], wanted(*sizes), strict=True):
        data = call["memory"].read(store, place, place + 4 * int(np.prod(shape)))
        near(np.frombuffer(bytes(data), np.float32).reshape(shape), want, name)


@needs_zig
@pytest.mark.slow
def test_a_module_runs_in_node(module: Path) -> None:
    """What the page does, by V8."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    script = module.with_name("run.mjs")
    script.write_text(NODE)
    line = ["node", str(script), str(module)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    got = np.array(json.loads(done.stdout), np.float32).reshape(5, 7)
    near(got, wanted(5, 6, 7)[0], "C")


NODE = """
import { readFileSync } from "node:fs";
const none = new Proxy({}, { get: () => () => 0 });
const source = readFileSync(process.argv[2]);
const { instance } = await WebAssembly.instantiate(source, { wasi_snapshot_preview1: none });
const c = instance.exports;
c._initialize();
const a = c.malloc(4 * 30), b = c.malloc(4 * 42), y = c.malloc(4 * 35);
const view = (place, size) => new Float32Array(c.memory.buffer, place, size);
view(a, 30).set(Array.from({ length: 30 }, (_, n) => (n % 17) / 8 - 1));
view(b, 42).set(Array.from({ length: 42 }, (_, n) => (n % 13) / 8 - 1));
if (c.gemm(a, b, y, 5n, 6n, 7n) !== 0) throw new Error("it failed");
console.log(JSON.stringify([...view(y, 35)]));
"""
