"""Routines -> machine code: an object file each, and an engine that holds them.

An object is compiled once and, given a store, kept for the next process. Its key is computed from
the routine before any text is written, so a warm start emits and compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pullback.backends.base import Code, CompileStats, ObjectStore, Stored
from pullback.backends.host.engine import Engine, assembled, compile_object
from pullback.backends.host.processor import processor
from pullback.backends.llvm.emit import emit_routine
from pullback.backends.loops.backend import stored
from pullback.backends.loops.key import routine_key, source_digest
from pullback.config import Options
from pullback.errors import InvalidIR
from pullback.ir.nest import Routine
from pullback.ir.signature import digest
from pullback.ir.target import Target

ROOM = Path(__file__).parent
DEFINES = "define void @body("
ASSEMBLED = re.compile(r"^_?body:", re.MULTILINE)


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
        for key, data in objects.items():
            engine.add(_finished(data, key, store, stats))
    engine.finish()
    return [_located(stored(r, k), engine) for r, k in keyed]


def _text(routine: Routine, target: Target, key: str) -> str:
    """LLVM IR text whose functions carry the routine's key."""
    text = emit_routine(routine, target)
    for name in ("body", "finish"):
        text = text.replace(f"void @{name}(", f"void @{_symbol(key, name)}(")
    return text


def _finished(
    data: Future[bytes] | bytes, key: str, store: ObjectStore | None, stats: CompileStats
) -> bytes:
    """An object that was stored, or once it is compiled."""
    if isinstance(data, bytes):
        stats.loaded += 1
        return data
    made = data.result()
    stats.compiled += 1
    if store is not None:
        store.put(key, made)
    return made


def load_codes(
    kept: Sequence[Stored], store: ObjectStore, stats: CompileStats
) -> list[Code] | None:
    """Code that another process compiled; None where the store lacks an object."""
    objects = {s.key: store.get(s.key) for s in kept}
    engine = Engine()
    for data in objects.values():
        if data is None:
            return None
        engine.add(data)
    engine.finish()
    stats.loaded += len(objects)
    return [_located(s, engine) for s in kept]


def _symbol(key: str, name: str) -> str:
    return f"pb_{key[:24]}_{name}"


def _located(facts: Stored, engine: Engine) -> Code:
    body = engine.address(_symbol(facts.key, "body"))
    finish = engine.address(_symbol(facts.key, "finish")) if facts.finish else 0
    if not body or (facts.finish and not finish):
        raise InvalidIR(f"routine {facts.name}: the compiled object lacks its code")
    return Code(facts, body, finish, engine)


def assembly(routine: Routine, target: Target) -> str:
    """The routine's machine code as text, for people, of any processor that LLVM knows."""
    return assembled(emit_routine(routine, target), target)


def resumed(text: str, facts: Stored, target: Target) -> Code:
    """Code of LLVM IR or assembly that defines `body`."""
    if DEFINES not in text:
        text = _as_module(text)
    engine = Engine()
    engine.add(compile_object(text, target))
    engine.finish()
    return Code(facts, engine.address("body"), engine.address("finish"), engine)


def _as_module(text: str) -> str:
    """Assembly as a module of LLVM that has nothing else."""
    lines = (n.replace("\\", "\\5C").replace('"', "\\22") for n in text.splitlines())
    return "".join(f'module asm "{line}"\n' for line in lines)
