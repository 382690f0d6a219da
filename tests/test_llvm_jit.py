"""Compiling: equal routines once, objects from a store, missing symbols named."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest

from llvm_support import HOST, Loaded, routine, vector
from pullback.backends.base import CompileStats
from pullback.backends.host.engine import compile_text
from pullback.backends.llvm import jit
from pullback.backends.llvm.jit import assembly, compile_routines
from pullback.backends.loops.key import routine_key
from pullback.config import Options
from pullback.errors import InvalidIR, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, float64
from pullback.ir.graph import MAX, SUM, Combiner
from pullback.ir.nest import Array, Combine, Declare, Load, Peek, Register, Routine, Store, Var
from pullback.ir.target import Target


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.items.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.items[key] = data


def scaled(factor: float, name: str = "x", kind: DType = float32, count: int = 20) -> Routine:
    """``y[v] = factor x[v]``"""
    x, y, v = Array(name, kind, count), Array("y", kind, count), Var(f"v{name}", 0, count - 1)
    store = Store(y, v, E.Mul(Load(x, v), E.Const(factor, kind)))
    return routine([x, y], [vector(v, count, store)])


def total(combiner: Combiner) -> Routine:
    x, y, r = Array("x", float32, 9), Array("y", float32, 1), Register("r", float32)
    v = Var("v", 0, 8)
    loop = vector(v, 9, Combine(r, (), combiner, Load(x, v)))
    body = [Declare(r, E.Const(0.0, float32)), loop, Store(y, E.index(0), Peek(r, ()))]
    return routine([x, y], body)


def test_the_compiler_works_while_the_next_routine_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second routine is made only once the first is being compiled: in turn, none would end."""
    begun, made = Event(), Event()
    compiler = jit.compile_object

    def waiting(text: str, target: Target) -> bytes:
        begun.set()
        assert made.wait(20)
        return compiler(text, target)

    def routines() -> Iterator[Routine]:
        yield scaled(5.0)
        assert begun.wait(20)
        made.set()
        yield scaled(6.0)

    monkeypatch.setattr(jit, "compile_object", waiting)
    codes = compile_routines(routines(), Options(), HOST)
    data, result = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    Loaded(codes[1])([data, result])
    np.testing.assert_array_equal(result, data * 6)


def test_a_fault_of_the_compiler_beside_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(text: str, target: Target) -> bytes:
        raise InvalidIR("no such instruction")

    monkeypatch.setattr(jit, "compile_object", failing)
    with pytest.raises(InvalidIR, match="no such instruction"):
        compile_routines([scaled(5.0), scaled(6.0)], Options(), HOST)


def test_equal_routines_are_compiled_once_and_names_do_not_count() -> None:
    stats = CompileStats()
    pair = [scaled(3.0), scaled(3.0, "other"), scaled(4.0)]
    codes = compile_routines(pair, Options(), HOST, stats=stats)
    assert (stats.compiled, stats.shared) == (2, 1)
    assert codes[0].body == codes[1].body != codes[2].body


def test_keys_tell_routines_apart() -> None:
    own = Combiner("sum", lambda t: E.const(0, t), lambda a, b: E.Add(b, E.Mul(a, a)))
    routines = [
        scaled(3.0), scaled(-3.0), scaled(3.0, kind=float64), scaled(3.0, count=21),
        total(SUM), total(MAX), total(own),
    ]  # fmt: skip
    assert len({routine_key(r) for r in routines}) == len(routines)
    assert routine_key(total(own)) == routine_key(total(own))


def test_a_warm_start_compiles_nothing() -> None:
    shelf, cold, warm = Shelf(), CompileStats(), CompileStats()
    routines = [scaled(float(n)) for n in range(5)]
    compile_routines(routines, Options(), HOST, shelf, cold)
    codes = compile_routines(routines, Options(), HOST, shelf, warm)
    assert (cold.compiled, cold.loaded) == (5, 0)
    assert (warm.compiled, warm.loaded) == (0, 5)
    x, y = np.arange(20, dtype=np.float32), np.zeros(20, np.float32)
    Loaded(codes[4])([x, y])
    np.testing.assert_array_equal(y, 4 * x)


def test_other_targets_have_other_keys() -> None:
    shelf = Shelf()
    for lanes in (16, 32):
        narrow = type(HOST)("narrow", vector=lanes)
        compile_routines([scaled(2.0)], Options(), narrow, shelf)
    assert len(shelf.items) == 2


def test_text_is_compiled_with_its_symbols() -> None:
    text = "define i64 @twice(i64 %a) {\n  %b = add i64 %a, %a\n  ret i64 %b\n}\n"
    shelf, stats = Shelf(), CompileStats()
    for _ in range(2):
        symbols = compile_text(text, shelf, stats)
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(symbols["twice"])(21) == 42
    assert (stats.compiled, stats.loaded) == (1, 1)


def test_a_missing_symbol_is_named() -> None:
    text = (
        "declare void @no_such_function_anywhere()\n"
        "define void @f() {\n  call void @no_such_function_anywhere()\n  ret void\n}\n"
    )
    with pytest.raises(UnsupportedError, match="no_such_function_anywhere"):
        compile_text(text)


def test_wrong_text_is_the_compilers_mistake() -> None:
    with pytest.raises(InvalidIR, match="LLVM refuses"):
        compile_text("define void @f() {\n  %a = add i64 1, i32 2\n  ret void\n}\n")


def test_assembly_is_readable() -> None:
    assert "ret" in assembly(scaled(2.0), HOST)
