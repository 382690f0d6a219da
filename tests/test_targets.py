"""Targets by name: less of this processor runs, others compile; waits of other systems compile."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host import processor
from pullback.backends.host.engine import compile_object, compile_text
from pullback.backends.host.native_run import machine_text
from pullback.backends.host.native_waits import waits
from pullback.backends.host.processor import (
    APPLE,
    LEVELS,
    TARGETS,
    binding,
    chosen_target,
    host_target,
    machine,
)
from pullback.backends.host.system import address, function_table, memory, own_waits
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError
from pullback.ir.target import NATIVE

NAMES = [t.name for t in LEVELS]
RUNS = NAMES[NAMES.index(host_target().name) :] if host_target().name in NAMES else []
CROSS = ("aarch64", "apple")


def numbers(*shape: int, kind: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def bytes_product(a: Any, b: Any) -> Any:
    k = pb.axis(a.shape[1])
    wide = [lambda v: pb.astype(v, pb.int32)] * 2
    shape = a.shape[0], b.shape[1]
    return pb.compute(shape, lambda i, j: pb.sum(wide[0](a)[i, k] * wide[1](b)[k, j], over=k))


def softmax(x: Any) -> Any:
    e = pb.exp(x - pb.max(x, axis=1, keepdims=True))
    return e / pb.sum(e, axis=1, keepdims=True)


# Every float16, and what lies half way between two of them, or just off it.
HALVES = np.arange(1 << 16).astype(np.uint16).view(np.float16)
MIDDLES = np.sort(HALVES[np.isfinite(HALVES)].astype(np.float32))
MIDDLES = (MIDDLES[1:] + MIDDLES[:-1]) / 2
NEAR = np.nextafter(MIDDLES, np.float32(9e9)), np.nextafter(MIDDLES, np.float32(-9e9))
EDGES = np.array([65519.9, 65520.0, -65520.0, 1e6, 1e-8, np.inf, -np.inf, np.nan], np.float32)
with np.errstate(invalid="ignore"):  # AArch64 tells of NaNs that were signalling ones
    FLOATS = np.concatenate([MIDDLES, *NEAR, HALVES.astype(np.float32), EDGES])
SMALL = np.random.default_rng(1).integers(-128, 128, (37, 61)).astype(np.int8)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "contraction": (lambda a, b: a @ b, (numbers(61, 77), numbers(77, 53))),
    "contraction64": (
        lambda a, b: a @ b,
        (numbers(33, 40, kind="float64"), numbers(40, 29, kind="float64")),
    ),
    "packed": (lambda a, b: pb.tanh(a @ b.T), (numbers(40, 90), numbers(70, 90))),
    "large": (lambda a, b: a @ b, (numbers(260, 700), numbers(700, 420))),
    "rows": (softmax, (numbers(33, 131),)),
    "maths": (
        lambda x: pb.exp(x) + pb.tanh(x) * pb.sin(x * 9) + pb.log(x * x + 1) + pb.erf(x),
        (numbers(1003),),
    ),
    "maths64": (
        lambda x: pb.exp(x) + pb.tanh(x) * pb.sin(x * 9) + pb.log(x * x + 1) + pb.erf(x),
        (numbers(1003, kind="float64"),),
    ),
    "gather": (lambda x, p: pb.take(x, p, axis=0), (numbers(50, 17), np.arange(200) * 7 % 50)),
    "scatter": (
        lambda x, p, v: pb.scatter_add(x, p, v),
        (numbers(9, 17), np.arange(100) % 9, numbers(100, 17)),
    ),
    "scan": (lambda x: pb.cumulative_sum(x, axis=0), (numbers(65, 19),)),
    "sort": (lambda x: pb.sort(x, axis=1), (numbers(9, 70),)),
    "to half": (lambda x: pb.astype(x, pb.float16), (FLOATS,)),
    "from half": (lambda x: pb.astype(x, pb.float32), (HALVES,)),
    "to bfloat": (lambda x: pb.astype(x, pb.bfloat16), (FLOATS,)),
    "bytes": (bytes_product, (SMALL, SMALL.T.copy())),
    "rounding": (lambda x: pb.floor(x) + pb.round(x * 3) + x // 0.7, (numbers(333),)),
}
EXACT = {"gather", "sort", "to half", "from half", "to bfloat", "bytes"}


def run(name: str, **options: Any) -> tuple[Any, Any]:
    function, given = PROGRAMS[name]
    jitted = pb.jit(function, options=Options(cache=None, **options))
    return jitted(*given).numpy(), jitted.program


@pytest.mark.sampled(4)
@pytest.mark.skipif(not RUNS, reason="another kind of processor")
@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_less_of_this_processor_computes_the_same(name: str) -> None:
    """Beside the definitions' interpreter; whatever is one operation an element, to the bit."""
    wanted, _ = run(name, backend="reference")
    for target in RUNS:
        found, program = run(name, target=target)
        assert program.target == TARGETS[target]
        assert found.dtype == wanted.dtype
        if name in EXACT:
            wide = [a.astype(np.float64) for a in (found, wanted)]
            assert np.array_equal(*wide, equal_nan=True)
            assert np.array_equal(*map(np.signbit, wide))
        else:
            tight = 1e-12 if found.dtype == np.float64 else 1e-5
            assert np.allclose(found, wanted, rtol=tight, atol=10 * tight)


@pytest.mark.skipif(not RUNS, reason="another kind of processor")
def test_code_uses_what_its_target_has() -> None:
    _, program = run("contraction")
    code = {name: program.assembly(name) for name in TARGETS}
    assert "zmm" in code["x86-64-v4"] and "vfmadd" in code["x86-64-v4"]
    assert "zmm" not in code["x86-64-v3"] and re.search(r"vfmadd\w+ps.*ymm", code["x86-64-v3"])
    assert "ymm" not in code["x86-64"] and "vfmadd" not in code["x86-64"]
    assert re.search(r"mulps.*xmm", code["x86-64"])
    for name in CROSS:
        assert re.search(r"fmla(\.4s|\s+v\d+\.4s)", code[name]), name


def kernel_text(name: str, target: str) -> str:
    """The IR of the kernels of a program, for a target that need not run here."""
    _, program = run(name)
    program.target = TARGETS[target]
    return program.source()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", CROSS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_processors_get_objects(name: str, target: str) -> None:
    """Parsed, verified and compiled; the object's head says for whom."""
    for text in kernel_text(name, target).split("!0 = !{}\n"):
        if text.strip():
            made = compile_object(text + "!0 = !{}\n", TARGETS[target])
            heads = {"aarch64": b"\x7fELF", "apple": b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"}
            assert made.startswith(heads[target])


@pytest.mark.parametrize("inner", ["_host_target", "_host_cpu"])
def test_of_threads_that_ask_at_once_one_asks_llvm(
    monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    """While LLVM compiles it answers nobody: who asks again waits for as long as that takes."""
    made, both, asked = getattr(processor, inner)(), threading.Barrier(2), []

    def asking() -> Any:
        asked.append(inner)
        with suppress(threading.BrokenBarrierError):  # it is met where both threads ask
            both.wait(0.5)
        return made

    monkeypatch.setattr(processor, inner, cache(asking))
    native = replace(TARGETS["x86-64"], cpu=NATIVE)
    ways = {
        "_host_target": processor.host_target.__wrapped__,
        "_host_cpu": partial(processor._cpu, native),
    }
    ask = ways[inner]
    with ThreadPoolExecutor(2) as pool:
        assert [f.result() for f in [pool.submit(ask), pool.submit(ask)]] == [made, made]
    assert asked == [inner]


def test_a_target_is_known_and_within_this_processor() -> None:
    assert chosen_target(None) == chosen_target("native") == host_target()
    with pytest.raises(OptionError, match="there is no target 'z80'"):
        chosen_target("z80")
    if RUNS:
        with pytest.raises(UnsupportedError, match="cannot run aarch64"):
            pb.jit(lambda x: x + 1, options=Options(target="aarch64"))(numbers(3))


# -- waits of other systems

SYSTEMS = {
    ("linux", "x86_64"): "x86_64-unknown-linux-gnu",
    ("linux", "aarch64"): "aarch64-unknown-linux-gnu",
    ("darwin", "x86_64"): "x86_64-apple-macosx11.0.0",
    ("darwin", "aarch64"): "arm64-apple-macosx11.0.0",
    ("win32", "x86_64"): "x86_64-pc-windows-msvc",
    ("win32", "aarch64"): "aarch64-pc-windows-msvc",
}


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
def test_the_machine_compiles_for_every_system(system: tuple[str, str]) -> None:
    """No symbol is left to find but none: C functions come through the table."""
    llvm = binding()
    machine(APPLE if system[1] == "aarch64" else TARGETS["aarch64"])  # all targets are there
    text = machine_text(waits(*system))
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.verify()
    module.triple = SYSTEMS[system]
    own = llvm.Target.from_triple(SYSTEMS[system]).create_target_machine(opt=2)
    module.data_layout = str(own.target_data)
    code = own.emit_assembly(module)
    calls = set(re.findall(r"^\s+(?:callq?|bl|b|jmpq?)\s+(_?[a-z]\w+)\s*$", code, re.MULTILINE))
    assert {c.lstrip("_") for c in calls} <= {"now", "wait", "wake", "take", "give", "feed",
        "receive", "parts", "slot", "serial", "parallel", "timed", "copy", "yield", "function",
        "word", "pointer", "put", "bump", "relax"}  # fmt: skip
    assert len(own.emit_object(module)) > 4000


# Stand-ins for the C functions of macOS and Windows, on the futex of this system.
STAND_INS = r"""
define i32 @ulock_wait(i32 %op, ptr %at, i64 %value, i32 %us) {
  %ns0 = zext i32 %us to i64
  %ns1 = mul i64 %ns0, 1000
  %ever = icmp eq i32 %us, 0
  %ns = select i1 %ever, i64 -1, i64 %ns1
  %v = trunc i64 %value to i32
  call void @wait(ptr @table, ptr %at, i32 %v, i64 %ns)
  ret i32 0
}
define i32 @ulock_wake(i32 %op, ptr %at, i64 %value) {
  call void @wake(ptr @table, ptr %at)
  ret i32 0
}
define i64 @nsec(i32 %clock) {
  %t = call i64 @now(ptr @table)
  ret i64 %t
}
define i32 @wait_on(ptr %at, ptr %old, i64 %size, i32 %ms) {
  %wide = zext i32 %ms to i64
  %some = mul i64 %wide, 1000000
  %ever = icmp eq i32 %ms, -1
  %ns = select i1 %ever, i64 -1, i64 %some
  %v = load i32, ptr %old
  call void @wait(ptr @table, ptr %at, i32 %v, i64 %ns)
  ret i32 1
}
define void @wake_all(ptr %at) {
  call void @wake(ptr @table, ptr %at)
  ret void
}
define i32 @counter(ptr %at) {
  %t = call i64 @now(ptr @table)
  %ticks = sdiv i64 %t, 100
  store i64 %ticks, ptr %at
  ret i32 1
}
define i32 @frequency(ptr %at) {
  store i64 10000000, ptr %at
  ret i32 1
}
@table = global [8 x i64] zeroinitializer
define ptr @where() {
  ret ptr @table
}
"""
STANDS = {
    "darwin": ("ulock_wait", "ulock_wake", "nsec", "", ""),
    "win32": ("wait_on", "wake_all", "counter", "", "", "frequency"),
}


@pytest.mark.skipif(own_waits() != waits("linux", "x86_64"), reason="the stand-ins use its futex")
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_threads_wait_and_wake_by_the_text_of_each_system(system: str) -> None:
    """Run here, on stand-ins: a semaphore that times out, is given, and is waited for."""
    own = function_table(own_waits().functions)
    stand = compile_text(own_waits().text + STAND_INS)
    at = ctypes.CFUNCTYPE(ctypes.c_void_p)(stand["where"])()
    ctypes.memmove(at, address(own), 8 * len(own))
    table = own.copy()
    if system in STANDS:
        rest = [*own[3:5], 0]
        names = STANDS[system]
        found = [stand[n] if n else int(rest[k - 3]) for k, n in enumerate(names)]
        table = np.array(found, np.int64)
    code = compile_text(machine_text(waits(system, "x86_64")))
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    take = ctypes.CFUNCTYPE(word, pointer, pointer, word)(code["pb_take"])
    give = ctypes.CFUNCTYPE(None, pointer, pointer)(code["pb_give"])
    semaphore = memory(64)
    where, tabled = address(semaphore), address(table)
    before = time.perf_counter()
    assert take(tabled, where, 30_000_000) == 0
    assert 0.02 < time.perf_counter() - before < 5
    give(tabled, where)
    assert take(tabled, where, 0) == 1
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(take(tabled, where, -1)), daemon=True)
    waiter.start()
    time.sleep(0.1)
    assert not taken
    give(tabled, where)
    waiter.join(20)
    assert taken == [1] and not semaphore[:8].any()
