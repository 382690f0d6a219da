"""The backend that writes C: a file a program, compiled by what is there, loaded as a library."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from pullback.backends.base import Code, CompileStats, ObjectStore, Stored
from pullback.backends.c.compiler import compiler
from pullback.backends.c.emit import emit_program, emit_routine, standalone
from pullback.backends.c.language import C11
from pullback.backends.host.processor import chosen_target, processor
from pullback.config import Options
from pullback.ir.nest import Routine
from pullback.ir.target import Target


class C:
    """Routines as C11; what it needs is a compiler."""

    name = "c"
    recorded = False

    def host(self) -> str:
        """The compiler, as it tells of itself. Raises: CompilerError."""
        return compiler().version.partition("\n")[0]

    def sources(self, routines: Sequence[Routine], target: Target) -> list[str]:
        """Parts of a file that compiles by itself: what is shared, then one for each routine."""
        return standalone(routines, C11(target.vector))

    def target(self, options: Options) -> Target:
        return chosen_target(options.target, options.machine)

    def compile(
        self,
        routines: Iterable[Routine],
        options: Options,
        target: Target,
        store: ObjectStore | None,
        stats: CompileStats,
    ) -> list[Code]:
        """Code of each routine, of one library. Raises: CompilerError."""
        every = list(routines)
        language = C11(target.vector)
        texts = [emit_routine(r, language) for r in every]
        first = {text: n for n, text in reversed(list(enumerate(texts)))}
        kept = sorted(first.values())
        stats.shared += len(every) - len(kept)
        if not every:
            return []
        tool = compiler()
        text = emit_program([every[n] for n in kept], language)
        parts = "\0".join([text, tool.version, *tool.flags(target.cpu), processor(target)])
        key = blake2b(parts.encode(), digest_size=32).hexdigest()
        data = None if store is None else store.get(key)
        if data is None:
            data = tool.compile(text, target.cpu)
            stats.compiled += 1
            if store is not None:
                store.put(key, data)
        else:
            stats.loaded += 1
        library = _loaded(data)
        places = {n: place for place, n in enumerate(kept)}
        return [
            _code(r, key, library, places[first[text]])
            for r, text in zip(every, texts, strict=True)
        ]


def _loaded(data: bytes) -> ctypes.CDLL:
    """A library out of memory: through a file that is gone once it is open."""
    handle, name = tempfile.mkstemp(prefix="pullback-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return ctypes.CDLL(name)
    finally:
        os.unlink(name)


def _code(routine: Routine, key: str, library: ctypes.CDLL, number: int) -> Code:
    stored = Stored.of(routine, key)
    finish = _address(library, f"finish_{number}") if stored.finish else 0
    return Code.at(stored, _address(library, f"body_{number}"), finish, library)


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
