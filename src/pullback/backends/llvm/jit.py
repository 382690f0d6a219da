"""Text -> machine code: an object file, and an engine that holds it.

The emitter writes what LLVM's middle end would leave behind, so that is not run.

An object is compiled once and, given a store, kept for the next process. Its key is computed from
the routine before any text is written, so a warm start emits and compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pullback.backends.base import Code, CompileStats, ObjectStore, Stored
from pullback.backends.host.processor import (
    binding,
    host_target,
    layout,
    machine,
    new_machine,
    processor,
    triple,
)
from pullback.backends.llvm.emit import emit_routine
from pullback.backends.loops.key import digest, routine_key, source_digest
from pullback.config import Options
from pullback.errors import InvalidIR, UnsupportedError
from pullback.ir.nest import Routine
from pullback.ir.target import Target

ROOM = Path(__file__).parent
DECLARED = re.compile(r"^declare [^@]*@([\w.$]+)\(", re.MULTILINE)
DEFINED = re.compile(r"^define (?!internal)[^@]*@([\w.$]+)\(", re.MULTILINE)
LIBRARY_INTRINSIC = re.compile(r"llvm\.(exp|log|sin|tanh)\.(?:v\d+)?f(32|64)")
# Without an instruction they become calls of the C library too.
PLAIN_INTRINSIC = re.compile(r"llvm\.(fma|floor|rint)\.(?:v\d+)?f(32|64)")


class Engine:
    """Loaded objects; their code lives as long as this does."""

    def __init__(self) -> None:
        llvm = binding()
        # The empty module is in the global context: one of its own might be collected first.
        module = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(module, new_machine(host_target()))
        self._object = llvm.ObjectFileRef

    def add(self, data: bytes) -> None:
        """Add an object file."""
        self._engine.add_object_file(self._object.from_data(data))

    def finish(self) -> None:
        """Make the code executable."""
        self._engine.finalize_object()
        self._engine.run_static_constructors()

    def address(self, name: str) -> int:
        """The address of a function or global, 0 where it is not defined."""
        return int(self._engine.get_function_address(name)) or int(
            self._engine.get_global_value_address(name)
        )


@dataclass(frozen=True, slots=True)
class Symbols:
    """Addresses by name of compiled text, and what keeps them alive."""

    addresses: dict[str, int]
    engine: Engine = field(repr=False)

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]


def compile_routines(
    routines: Iterable[Routine],
    options: Options,
    target: Target,
    store: ObjectStore | None = None,
    stats: CompileStats | None = None,
) -> list[Code]:
    """Native code of each routine; equal routines are compiled once.

    LLVM works in a thread beside this one, without Python's lock: meanwhile the next routine is
    made, if `routines` makes them as they are asked for, and written as text.
    Raises: UnsupportedError where a routine asks for what this backend does not do.
    """
    stats = CompileStats() if stats is None else stats
    objects: dict[str, Future[bytes] | bytes] = {}
    keyed = []
    with ThreadPoolExecutor(1, "pullback-llvm") as beside:
        for routine in routines:
            key = digest(routine_key(routine), repr(target), source_digest(ROOM), processor(target))
            keyed.append((routine, key))
            if key in objects:
                stats.shared += 1
                continue
            known = store.get(key) if store is not None else None
            if known is None:
                text = _text(routine, target, key)
                objects[key] = beside.submit(compile_object, text, target)
            else:
                objects[key] = known
        engine = Engine()
        for key, found in objects.items():
            engine.add(_finished(found, key, store, stats))
    engine.finish()
    return [_located(Stored.of(r, k), engine) for r, k in keyed]


def _text(routine: Routine, target: Target, key: str) -> str:
    """LLVM IR text whose functions carry the routine's key."""
    text = emit_routine(routine, target)
    for name in ("body", "finish"):
        text = text.replace(f"void @{name}(", f"void @{_symbol(key, name)}(")
    return text


def _finished(
    found: Future[bytes] | bytes, key: str, store: ObjectStore | None, stats: CompileStats
) -> bytes:
    """An object that was stored, or once it is compiled."""
    if isinstance(found, bytes):
        stats.loaded += 1
        return found
    made = found.result()
    stats.compiled += 1
    if store is not None:
        store.put(key, made)
    return made


def load_codes(
    stored: Sequence[Stored], store: ObjectStore, stats: CompileStats
) -> list[Code] | None:
    """Code that another process compiled; None where the store lacks an object."""
    objects = {s.key: store.get(s.key) for s in stored}
    engine = Engine()
    for data in objects.values():
        if data is None:
            return None
        engine.add(data)
    engine.finish()
    stats.loaded += len(objects)
    return [_located(s, engine) for s in stored]


def _symbol(key: str, name: str) -> str:
    return f"pb_{key[:24]}_{name}"


def _located(stored: Stored, engine: Engine) -> Code:
    key = stored.key
    body = engine.address(_symbol(key, "body"))
    finish = engine.address(_symbol(key, "finish")) if stored.finish else 0
    if not body or (stored.finish and not finish):
        raise InvalidIR(f"routine {stored.name}: the compiled object lacks its code")
    return Code.at(stored, body, finish, engine)


def compile_text(
    text: str,
    store: ObjectStore | None = None,
    stats: CompileStats | None = None,
) -> Symbols:
    """Addresses of every external function that LLVM IR `text` defines.

    Raises: UnsupportedError for a symbol that this process does not have.
    """
    stats = CompileStats() if stats is None else stats
    target = host_target()
    key = digest(text, processor(target))
    made = store.get(key) if store is not None else None
    if made is None:
        made = compile_object(text, target)
        stats.compiled += 1
        if store is not None:
            store.put(key, made)
    else:
        stats.loaded += 1
    engine = Engine()
    engine.add(made)
    engine.finish()
    return Symbols({name: engine.address(name) for name in DEFINED.findall(text)}, engine)


def compile_object(text: str, target: Target) -> bytes:
    """LLVM IR text -> an object file for a processor."""
    with _parsed(text, target) as module:
        return bytes(machine(target).emit_object(module))


def assembly(routine: Routine, target: Target) -> str:
    """The routine's machine code as text, for people, of any processor that LLVM knows."""
    return assembled(emit_routine(routine, target), target)


def assembled(text: str, target: Target) -> str:
    """The machine code of LLVM IR."""
    with _parsed(text, target) as module:
        return str(machine(target).emit_assembly(module))


def _parsed(text: str, target: Target) -> Any:
    llvm = binding()
    check_symbols(text, target)
    try:
        module = llvm.parse_assembly(text, context=llvm.create_context())
    except RuntimeError as error:
        raise InvalidIR(f"LLVM refuses the emitted text: {error}") from error
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise InvalidIR(f"LLVM refuses the emitted text: {error}") from error
    module.triple = triple(target)
    module.data_layout = layout(target)
    return module


def check_symbols(text: str, target: Target) -> None:
    """Every function that `text` calls must exist: the linker would not say that one is missing.

    Raises: UnsupportedError naming it.
    """
    for name in _externals(text, target):
        if not binding().address_of_symbol(name):
            raise UnsupportedError(f"the process has no function {name}", code="E528")


def _externals(text: str, target: Target) -> Iterable[str]:
    for name in DECLARED.findall(text):
        if not name.startswith("llvm."):
            yield name
    patterns = [LIBRARY_INTRINSIC] if target.fused else [LIBRARY_INTRINSIC, PLAIN_INTRINSIC]
    for name, bits in (found for p in patterns for found in p.findall(text)):
        yield name if bits == "64" else f"{name}f"
