"""Text of LLVM IR -> machine code of this process, or of another processor.

What it is asked for is written as what LLVM's middle end would leave behind, so that is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pullback.backends.base import CompileStats, ObjectStore
from pullback.backends.host.processor import (
    binding,
    host_target,
    layout,
    machine,
    new_machine,
    processor,
    triple,
)
from pullback.errors import InvalidIR, UnsupportedError
from pullback.ir.signature import digest
from pullback.ir.target import Target

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


def portable_object(text: str, target: Target, others: bool = False) -> bytes:
    """An object for a library; `others`: it calls functions of other objects."""
    with _parsed(text, target, not others) as module:
        return bytes(new_machine(target, moves=True).emit_object(module))


def assembled(text: str, target: Target) -> str:
    """The machine code of LLVM IR."""
    with _parsed(text, target) as module:
        return str(machine(target).emit_assembly(module))


def _parsed(text: str, target: Target, checked: bool = True) -> Any:
    llvm = binding()
    if checked:
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
    missing = [n for n in _externals(text, target) if not binding().address_of_symbol(n)]
    if missing:
        Engine()  # the first of a process shows LLVM what the process has
    for name in missing:
        if not binding().address_of_symbol(name):
            raise UnsupportedError(f"the process has no function {name}", code="E528")


def _externals(text: str, target: Target) -> Iterable[str]:
    for name in DECLARED.findall(text):
        if not name.startswith("llvm."):
            yield name
    patterns = [LIBRARY_INTRINSIC] if target.fused else [LIBRARY_INTRINSIC, PLAIN_INTRINSIC]
    for name, bits in (intrinsic for p in patterns for intrinsic in p.findall(text)):
        yield name if bits == "64" else f"{name}f"
