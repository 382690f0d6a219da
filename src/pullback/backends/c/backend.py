"""The backend that writes C: a file a program, compiled by what is there, loaded as a library."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from pullback.backends.base import Code, Job, Stored
from pullback.backends.c.compiler import compiler, compiles
from pullback.backends.c.emit import emit_program, emit_routine, standalone
from pullback.backends.c.language import C11
from pullback.backends.c.whole import Writer
from pullback.backends.host.processor import processor
from pullback.backends.loops.backend import Loops, NestText, stored
from pullback.ir.nest import Routine
from pullback.ir.signature import digest
from pullback.ir.target import Target

DEFINES = re.compile(r"^void body\(", re.MULTILINE)


class C(Loops):
    """Routines as C11; what it needs is a compiler."""

    name = "c"

    def host(self) -> str:
        """The compiler, as it tells of itself. Raises: CompilerError."""
        return compiler().version.partition("\n")[0]

    def identity(self, target: Target) -> str:
        """Raises: CompilerError where there is none."""
        tool = compiler()
        return " ".join([tool.version, *tool.flags(target.cpu), processor(target)])

    def emit(self, routines: Iterable[Routine], job: Job) -> list[Code]:
        """Code of each routine, of one library. Raises: CompilerError."""
        every = list(routines)
        language = C11(job.target.vector)
        texts = [emit_routine(r, language) for r in every]
        first = {text: n for n, text in reversed(list(enumerate(texts)))}
        kept = sorted(first.values())
        job.stats.shared += len(every) - len(kept)
        if not every:
            return []
        text = emit_program([every[n] for n in kept], language)
        key = digest(text, self.identity(job.target))
        library = _loaded(_library(text, key, job))
        places = {n: f"_{place}" for place, n in enumerate(kept)}
        return [
            _code(stored(r, key, places[first[text]]), library)
            for r, text in zip(every, texts, strict=True)
        ]

    def load(self, kept: Sequence[Stored], job: Job) -> list[Code] | None:
        keys = dict.fromkeys(s.key for s in kept)
        data = {key: None if job.store is None else job.store.get(key) for key in keys}
        libraries = {key: _loaded(binary) for key, binary in data.items() if binary is not None}
        if len(libraries) < len(keys):
            return None
        job.stats.loaded += len(libraries)
        return [_code(s, libraries[s.key]) for s in kept]

    def reads(self, text: str) -> bool:
        return DEFINES.search(text) is not None

    def resume(self, text: str, routine: Routine, target: Target) -> Code:
        program = f"{emit_program([], C11(target.vector))}\n{text}"
        return _code(stored(routine, ""), _loaded(compiler().compile(program, target.cpu)))

    def sources(self, routines: Sequence[Routine], target: Target) -> list[str]:
        return standalone(routines, C11(target.vector))

    def alone(self, prefix: str) -> Writer:
        """What writes a program as a function called `prefix` in a file that stands alone."""
        return Writer(prefix)

    def compiles(self) -> bool:
        """Whether there is a C compiler, or one is named."""
        return compiles()

    def written(self) -> Mapping[str, NestText]:
        return {self.name: lambda nest, target: emit_routine(nest, C11(target.vector))}


def _library(text: str, key: str, job: Job) -> bytes:
    """The library of a program, from the store where it is there."""
    store, stats = job.store, job.stats
    data = None if store is None else store.get(key)
    if data is not None:
        stats.loaded += 1
        return data
    data = compiler().compile(text, job.target.cpu)
    stats.compiled += 1
    if store is not None:
        store.put(key, data)
    return data


def _loaded(data: bytes) -> ctypes.CDLL:
    """A library out of memory: through a file that is gone once it is open."""
    handle, name = tempfile.mkstemp(prefix="pullback-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return ctypes.CDLL(name)
    finally:
        os.unlink(name)


def _code(facts: Stored, library: ctypes.CDLL) -> Code:
    finish = _address(library, f"finish{facts.symbol}") if facts.finish else 0
    return Code(facts, _address(library, f"body{facts.symbol}"), finish, library)


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
