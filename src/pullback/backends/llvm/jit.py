"""Text -> machine code: an object file, and an engine that holds it.

The emitter writes what LLVM's middle end would leave behind, so that is not run.

An object is compiled once and, given a store, kept for the next process. Its key is computed from
the routine before any text is written, so a warm start emits and compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from pullback.backends.llvm.emit import array_bytes, emit_routine
from pullback.backends.llvm.key import digest, routine_key, source_digest
from pullback.config import Options
from pullback.errors import InvalidIR, UnsupportedError
from pullback.ir.nest import Routine
from pullback.ir.target import Target

DECLARED = re.compile(r"^declare [^@]*@([\w.$]+)\(", re.MULTILINE)
DEFINED = re.compile(r"^define (?!internal)[^@]*@([\w.$]+)\(", re.MULTILINE)
LIBRARY_INTRINSIC = re.compile(r"llvm\.(exp|log|sin|tanh)\.(?:v\d+)?f(32|64)")
SPEED = 2  # code generation level


class ObjectStore(Protocol):
    """Where compiled objects are kept between processes."""

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`, if it is there and whole."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an object."""


@dataclass(slots=True)
class CompileStats:
    """What compiling did: `compiled` calls of the compiler, `loaded` objects from the store."""

    compiled: int = 0
    loaded: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """What of a `Code` outlives the process: `key` names the object that holds it."""

    name: str
    key: str
    finish: bool
    scratch: int
    shared: tuple[int, ...]
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Native code of a routine: addresses (`finish` 0: none), bytes it wants, what keeps it alive.

    `scratch` is bytes per thread, `shared` bytes of each shared array.
    """

    name: str
    body: int
    finish: int
    scratch: int
    shared: tuple[int, ...]
    sites: tuple[str, ...]
    key: str
    engine: Engine = field(repr=False)

    @property
    def stored(self) -> Stored:
        """What another process needs to load it."""
        shared, sites = self.shared, self.sites
        return Stored(self.name, self.key, self.finish != 0, self.scratch, shared, sites)


@cache
def library() -> Any:
    """llvmlite, imported lazily: loading LLVM takes a third of the time of `import pullback`."""
    import llvmlite.binding

    return llvmlite


def binding() -> Any:
    """LLVM as llvmlite shows it."""
    return library().binding


class Engine:
    """Loaded objects; their code lives as long as this does."""

    def __init__(self) -> None:
        llvm = binding()
        # The empty module is in the global context: one of its own might be collected first.
        module = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(module, _new_machine())
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


@cache
def _machine() -> Any:
    """The target machine that compiles."""
    return _new_machine()


@cache
def _layout() -> str:
    """The data layout of this process's processor."""
    return str(_machine().target_data)


def _new_machine() -> Any:
    """A target machine of this process's processor. An engine owns its own."""
    llvm = binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    triple = llvm.get_process_triple()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=SPEED,
        # Position-independent code finds constants through a table whose alignment the loader does
        # not keep once an engine holds several objects: aligned vector loads then fault.
        reloc="static",
        codemodel="jitdefault",
    )


@cache
def processor() -> str:
    """What machine code depends on besides its source."""
    llvm = binding()
    features = llvm.get_host_cpu_features().flatten()
    return f"{library().__version__} {llvm.get_host_cpu_name()} {features} {SPEED}"


# The feature that multiplies and adds words of a type.
DOTS = {"bfloat16": "avx512bf16", "int8": "avx512vnni"}


def host_target(threads: int = 2) -> Target:
    """The processor that this process runs on."""
    features = binding().get_host_cpu_features()
    if all(features.get(f) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl")):
        dots = frozenset(name for name, wanted in DOTS.items() if features.get(wanted))
        return Target(threads=threads, dots=dots)
    if features.get("avx2") and features.get("fma"):
        return Target("x86-64-v3", vector=32, vectors=16, threads=threads)
    return Target("generic", vector=16, vectors=16, threads=threads)


def compile_routines(
    routines: Sequence[Routine],
    options: Options,
    target: Target,
    store: ObjectStore | None = None,
    stats: CompileStats | None = None,
) -> list[Code]:
    """Native code of each routine; equal routines are compiled once.

    Raises: UnsupportedError where a routine asks for what this backend does not do.
    """
    stats = CompileStats() if stats is None else stats
    engine = Engine()
    keys = []
    known: set[str] = set()
    for routine in routines:
        key = digest(routine_key(routine), repr(target), source_digest(), processor())
        keys.append(key)
        if key in known:
            stats.shared += 1
            continue
        known.add(key)
        engine.add(_routine_object(routine, target, key, store, stats))
    engine.finish()
    return [_code(r, k, engine) for r, k in zip(routines, keys, strict=True)]


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


def _routine_object(
    routine: Routine, target: Target, key: str, store: ObjectStore | None, stats: CompileStats
) -> bytes:
    found = store.get(key) if store is not None else None
    if found is not None:
        stats.loaded += 1
        return found
    text = emit_routine(routine, target)
    for name in ("body", "finish"):
        text = text.replace(f"void @{name}(", f"void @{_symbol(key, name)}(")
    made = compile_object(text)
    stats.compiled += 1
    if store is not None:
        store.put(key, made)
    return made


def _symbol(key: str, name: str) -> str:
    return f"pb_{key[:24]}_{name}"


def _code(routine: Routine, key: str, engine: Engine) -> Code:
    scratch = sum(array_bytes(a) for a in routine.scratch)
    shared = tuple(array_bytes(a) for a in routine.shared)
    finish = bool(routine.finish)
    return _located(Stored(routine.name, key, finish, scratch, shared, routine.sites), engine)


def _located(stored: Stored, engine: Engine) -> Code:
    key = stored.key
    body = engine.address(_symbol(key, "body"))
    finish = engine.address(_symbol(key, "finish")) if stored.finish else 0
    if not body or (stored.finish and not finish):
        raise InvalidIR(f"routine {stored.name}: the compiled object lacks its code")
    scratch, shared, sites = stored.scratch, stored.shared, stored.sites
    return Code(stored.name, body, finish, scratch, shared, sites, key, engine)


def compile_text(
    text: str,
    store: ObjectStore | None = None,
    stats: CompileStats | None = None,
) -> Symbols:
    """Addresses of every external function that LLVM IR `text` defines.

    Raises: UnsupportedError for a symbol that this process does not have.
    """
    stats = CompileStats() if stats is None else stats
    key = digest(text, processor())
    made = store.get(key) if store is not None else None
    if made is None:
        made = compile_object(text)
        stats.compiled += 1
        if store is not None:
            store.put(key, made)
    else:
        stats.loaded += 1
    engine = Engine()
    engine.add(made)
    engine.finish()
    return Symbols({name: engine.address(name) for name in DEFINED.findall(text)}, engine)


def compile_object(text: str) -> bytes:
    """LLVM IR text -> an object file for this processor."""
    module = _parsed(text)
    with module:
        return bytes(_machine().emit_object(module))


def assembly(routine: Routine, target: Target) -> str:
    """The routine's machine code as text, for people."""
    with _parsed(emit_routine(routine, target)) as module:
        return str(_machine().emit_assembly(module))


def _parsed(text: str) -> Any:
    llvm = binding()
    check_symbols(text)
    try:
        module = llvm.parse_assembly(text, context=llvm.create_context())
    except RuntimeError as error:
        raise InvalidIR(f"LLVM refuses the emitted text: {error}") from error
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise InvalidIR(f"LLVM refuses the emitted text: {error}") from error
    module.triple = llvm.get_process_triple()
    module.data_layout = _layout()
    return module


def check_symbols(text: str) -> None:
    """Every function that `text` calls must exist: the linker would not say that one is missing.

    Raises: UnsupportedError naming it.
    """
    for name in _externals(text):
        if not binding().address_of_symbol(name):
            raise UnsupportedError(f"the process has no function {name}")


def _externals(text: str) -> Iterable[str]:
    for name in DECLARED.findall(text):
        if not name.startswith("llvm."):
            yield name
    for name, bits in LIBRARY_INTRINSIC.findall(text):
        yield name if bits == "64" else f"{name}f"
