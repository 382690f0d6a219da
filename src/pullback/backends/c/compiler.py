"""The C compiler: which one there is, how it is called, what it says."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pullback.errors import CompilerError, OptionError
from pullback.ir.target import NATIVE

VARIABLE = "PULLBACK_CC"
KNOWN = ("cc", "gcc", "clang")
X86 = ("x86_64", "amd64")  # what systems call it
# Integers wrap; nothing is contracted but what the text itself fuses.
FLAGS = (
    "-std=gnu11", "-O3", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-fPIC", "-shared", "-w", "-g0",
)  # fmt: skip
# A library stays where it is: threads of its own run its code. What is no library is one object.
WHOLE = ("-shared", "-Wl,-z,nodelete", "-pthread")
PART = ("-r", "-nostdlib")
MODULE = (
    "-mexec-model=reactor",
    "-Wl,--strip-all",
    "-Wl,--export=malloc",
    "-Wl,--export=free",
)
# Other machines, by their names: what a compiler that knows them all calls each.
TRIPLES = {
    "x86_64-linux": "x86_64-linux-gnu", "aarch64-linux": "aarch64-linux-gnu",
    "aarch64-macos": "aarch64-macos", "x86_64-windows": "x86_64-windows-gnu",
    "wasm32": "wasm32-wasi",
}  # fmt: skip
PATIENCE = 600.0  # seconds for one program


@dataclass(frozen=True, slots=True)
class CC:
    """A compiler by its command; `version` is what it says of itself. `triple`: what it compiles
    for, where that is not this machine.
    """

    command: tuple[str, ...]
    version: str
    triple: str = ""

    @property
    def is_zig(self) -> bool:
        return any("zig" in word for word in self.command)

    def flags(self, cpu: str) -> tuple[str, ...]:
        """Those for a processor, by LLVM's name of it."""
        if self.triple:
            own = [f for f in FLAGS if f != "-fPIC" or "windows" not in self.triple]
            wasm = ("-msimd128",) if self.triple.startswith("wasm") else ()
            named = (f"-mcpu={cpu.replace('-', '_')}",) if cpu and not wasm else ()
            return (*own, "-target", self.triple, *named, *wasm)
        if self.is_zig:
            return (*FLAGS, f"-mcpu={cpu.replace('-', '_')}")
        here = cpu == NATIVE and platform.machine().lower() in X86
        if here or cpu.startswith("x86-64"):
            wide = ("-mprefer-vector-width=512",) if "Free Software" in self.version else ()
            return (*FLAGS, f"-march={cpu}", *wide)
        return (*FLAGS, f"-mcpu={cpu}")

    def compile(self, text: str, cpu: str) -> bytes:
        """A shared library of a file of C.

        Raises: CompilerError with what the compiler says.
        """
        with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
            source, library = Path(folder) / "program.c", Path(folder) / "program.so"
            source.write_text(text)
            self.run([*self.flags(cpu), "-o", str(library), str(source), "-lm"], library)
            return library.read_bytes()

    def linked(self, texts: Mapping[str, str], whole: bool) -> bytes:
        """Files of C, each for a processor ("": any), as one shared library, or as one object.

        Raises: CompilerError with what the compiler says.
        """
        with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
            made = Path(folder) / "made"
            parts: list[str] = []
            if self.triple and not whole:  # not every kind of object is made of several
                texts = {"\n".join(texts): next(iter(texts.values()))}
            for number, (text, cpu) in enumerate(texts.items()):
                source, part = Path(folder) / f"{number}.c", Path(folder) / f"{number}.o"
                source.write_text(text)
                every = self.flags(cpu) if cpu or self.triple else FLAGS
                flags = [f for f in every if f != "-shared"]
                self.run([*flags, "-c", "-o", str(part), str(source)], part)
                parts.append(str(part))
            self.run([*self.kind(whole), "-o", str(made), *parts, *(["-lm"] * whole)], made)
            return made.read_bytes()

    def kind(self, whole: bool) -> tuple[str, ...]:
        """What makes a library, or one object, of objects."""
        if not self.triple:
            return WHOLE if whole else PART
        aimed = ("-target", self.triple)
        if self.triple.startswith("wasm"):
            return (*aimed, *MODULE)
        return (*aimed, *(("-shared",) if whole else PART))

    def run(self, arguments: Sequence[str], made: Path) -> None:
        """Call it. Raises: CompilerError where it does not make the file."""
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompilerError(f"{shlex.join(self.command)}: {error}") from error
        if done.returncode or not made.is_file():
            said = (done.stderr or done.stdout).strip() or f"exit {done.returncode}"
            raise CompilerError(f"{shlex.join(self.command)} fails: {said[:2000]}")


def compiler() -> CC:
    """`PULLBACK_CC`, or the first that is there: cc, gcc, clang, the package `ziglang`.

    Raises: CompilerError where there is none, or the one that was named does not run.
    """
    return _found(os.environ.get(VARIABLE, ""), os.environ.get("PATH", ""))


def compiles() -> bool:
    """Whether there is a C compiler, or one is named."""
    named = os.environ.get(VARIABLE) or any(map(shutil.which, KNOWN))
    return bool(named or importlib.util.find_spec("ziglang"))


def crossing(machine: str) -> CC:
    """What compiles for another machine: the package `ziglang`, or a `PULLBACK_CC` that is one.

    Raises: CompilerError where there is none, OptionError for a machine that is not known.
    """
    if machine not in TRIPLES:
        what = f"there is no machine {machine!r}"
        raise OptionError(what, help=f"one of {', '.join(TRIPLES)}", code="E549")
    named = os.environ.get(VARIABLE, "")
    if "zig" in named:
        return replace(_asked(tuple(shlex.split(named))), triple=TRIPLES[machine])
    if not importlib.util.find_spec("ziglang"):
        what = f"nothing here compiles for {machine}"
        raise CompilerError(what, help="pip install ziglang", code="E549")
    return CC((sys.executable, "-m", "ziglang", "cc"), "zig", TRIPLES[machine])


@cache
def _found(chosen: str, path: str) -> CC:
    if chosen:
        return _asked(tuple(shlex.split(chosen)))
    for name in KNOWN:
        if shutil.which(name, path=path):
            return _asked((name,))
    if importlib.util.find_spec("ziglang"):
        return _asked((sys.executable, "-m", "ziglang", "cc"))
    what = "there is no C compiler"
    raise CompilerError(what, help=f"install gcc or clang, `pip install ziglang`, or {VARIABLE}=..")


def _asked(command: tuple[str, ...]) -> CC:
    """A compiler that tells its version."""
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        what = f"{shlex.join(command)} --version fails: {error}"
        raise CompilerError(what, help=f"{VARIABLE} names the compiler") from error
    return CC(command, done.stdout.strip())
