"""Processors by name: what kernels are shaped for, and what LLVM is told to compile for.

A target is chosen by name to compile for less than this processor has (and run it), or for another
kind of processor (and look at it).
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import cache
from typing import Any

from pullback.errors import OptionError, UnsupportedError
from pullback.ir.target import NATIVE, Target
from pullback.machine.machine import Machine, chosen, like, with_numbers

SPEED = 2  # code generation level

# x86-64 by the levels of its ABI. Second-level caches: Zen 4; Neoverse; Apple's are shared by four.
V4 = Target("x86-64-v4", vector=64, vectors=32)
V3 = Target("x86-64-v3", vector=32, vectors=16, powers=False)
V1 = Target("x86-64", vector=16, vectors=16, fused=False, halves=False, powers=False)
ARM = Target("aarch64", vector=16, vectors=32, l1=64 * 1024, powers=False)
APPLE = Target("apple", vector=16, vectors=32, l1=128 * 1024, l2=4096 * 1024, powers=False)
LEVELS = {
    V4: ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    V3: ("avx2", "fma", "f16c"),
    V1: (),
}
CPUS = {"x86-64-v4": "x86-64-v4", "x86-64-v3": "x86-64-v3", "x86-64": "x86-64"}
CPUS |= {"aarch64": "generic", "apple": "apple-m1"}
TARGETS = {t.name: replace(t, cpu=CPUS[t.name]) for t in (V4, V3, V1, ARM, APPLE)}
# The feature that multiplies and adds words of a type.
DOTS = {"bfloat16": "avx512bf16", "int8": "avx512vnni"}
TRIPLES = {"aarch64": "aarch64-unknown-linux-gnu", "apple": "arm64-apple-macosx11.0.0"}


class _Forks:
    """A fork waits for what another thread is importing or compiling: a child could not wait for
    that thread.
    """

    def __init__(self) -> None:
        self.importing = threading.RLock()
        self.compiling: Any = None  # LLVM's own lock, once it is there
        if hasattr(os, "register_at_fork"):
            after = self.after
            os.register_at_fork(before=self.before, after_in_parent=after, after_in_child=after)

    def before(self) -> None:
        self.importing.acquire()
        if self.compiling is not None:
            self.compiling.__enter__()

    def after(self) -> None:
        if self.compiling is not None:
            self.compiling.__exit__(None, None, None)
        self.importing.release()


_forks = _Forks()


@cache
def library() -> Any:
    """llvmlite; of threads that ask for it at once, one imports it."""
    with _forks.importing:
        return _imported()


@cache
def _imported() -> Any:
    """llvmlite, imported lazily: loading LLVM takes a third of the time of `import pullback`.

    Instructions stay in the order in which they are emitted: LLVM's scheduler may take all loads
    of a register tile first and spill its sums (3x3 of 14x14x256, gradient: 65 -> 22 ms).
    """
    import llvmlite.binding

    llvmlite.binding.set_option("pullback", "-enable-misched=false")
    _forks.compiling = llvmlite.binding.ffi.lib._lock
    return llvmlite


def binding() -> Any:
    """LLVM as llvmlite shows it."""
    return library().binding


@cache
def host_target() -> Target:
    """The processor that this process runs on; of threads that ask at once, one asks LLVM."""
    with _forks.importing:
        return _host_target()


@cache
def _host_target() -> Target:
    triple = binding().get_process_triple()
    cpu = binding().get_host_cpu_name()
    if not _is_x86():
        if not triple.startswith(("aarch64", "arm64")):
            return replace(V1, name=triple.partition("-")[0])  # of no known machine
        host = APPLE if "apple" in triple else ARM
        return host.on(_of_cores(like(cpu, host.name)))
    features = binding().get_host_cpu_features()
    host = next(t for t, needs in LEVELS.items() if all(features.get(f) for f in needs))
    dots = tuple(name for name, wanted in DOTS.items() if features.get(wanted))
    host = replace(host, dots=dots) if host is V4 else host
    return host.on(_of_cores(like(cpu, host.name)))


def _of_cores(machine: Machine) -> Machine:
    """The machine, whose large launches are dealt for all processors of the system: these stay the
    same where a process may use fewer, and so do the last bits of sums.
    """
    return with_numbers(machine, "launch", processors=os.cpu_count() or 1)


def named_target(name: str) -> Target:
    """A target of `TARGETS`, which this processor need not be able to run.

    Raises: OptionError.
    """
    target = TARGETS.get(name)
    if target is None:
        raise OptionError(f"there is no target {name!r}", help=f"one of {', '.join(TARGETS)}")
    return target


def chosen_target(name: str | None, machine: str | None = None) -> Target:
    """The target of programs that are to run: this processor, or less of it.

    `machine`: the name or file of the numbers that schedules are chosen by.

    Raises: OptionError, UnsupportedError for what it cannot run, or of which no numbers are known.
    """
    if machine is not None:
        return _named_or_host(name).on(chosen(machine))
    target = _named_or_host(name)
    assert target.profile, "or it is an error that no machine is known"
    return target


def _named_or_host(name: str | None) -> Target:
    if name is None or name == NATIVE:
        return host_target()
    target = named_target(name)
    host = host_target()
    order = [t.name for t in LEVELS]
    runs = target.name == host.name
    if target.name in order and host.name in order:
        runs = order.index(target.name) >= order.index(host.name)
    if not runs:
        what = f"this processor ({host.name}) cannot run {name}"
        raise UnsupportedError(
            what, help=f"program.assembly({name!r}) shows code for it", code="E323"
        )
    return target


def _is_x86() -> bool:
    return bool(binding().get_process_triple().startswith(("x86_64", "i686")))


def triple(target: Target) -> str:
    """What LLVM calls the system and processor of a target."""
    own: str = binding().get_process_triple()
    if target.cpu == NATIVE:
        return own
    if target.name in TRIPLES:
        return TRIPLES[target.name]
    return own if _is_x86() else "x86_64-unknown-linux-gnu"


@cache
def processor(target: Target) -> str:
    """What machine code depends on besides its source."""
    return " ".join([library().__version__, triple(target), *_cpu(target), str(SPEED)])


def _cpu(target: Target) -> tuple[str, str]:
    """LLVM's name of the processor, and its features beyond that name."""
    if target.cpu != NATIVE:
        return target.cpu, ""
    with _forks.importing:
        return _host_cpu()


@cache
def _host_cpu() -> tuple[str, str]:
    llvm = binding()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def new_machine(target: Target, moves: bool = False) -> Any:
    """LLVM's compiler for a target. An engine owns its own. `moves`: of code for libraries."""
    llvm = binding()
    if target.name == host_target().name or target.cpu == NATIVE:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    cpu, features = _cpu(target)
    # Position-independent code finds constants through a table whose alignment the loader does
    # not keep once an engine holds several objects: aligned vector loads then fault.
    placed = {"reloc": "static", "codemodel": "jitdefault"}
    if not triple(target).startswith("x86_64"):
        placed = {"reloc": "default", "codemodel": "default"}
    if moves:
        placed = {"reloc": "pic", "codemodel": "small"}
    made = llvm.Target.from_triple(triple(target))
    return made.create_target_machine(cpu=cpu, features=features, opt=SPEED, **placed)


@cache
def machine(target: Target) -> Any:
    """The compiler for a target."""
    return new_machine(target)


@cache
def layout(target: Target) -> str:
    """The data layout of a target."""
    return str(machine(target).target_data)
