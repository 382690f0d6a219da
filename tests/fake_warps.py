"""Kernels of the backend `nvptx` on a device that is none: their own code, for this processor.

The LLVM IR that becomes PTX is compiled for the host, with functions for what a GPU has: where a
thread is, meeting, shuffles. The threads of a warp take turns (fake_warps.c); those that meet at
different places are told, as are launches that break the contract (`fake_cuda`).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from fake_cuda import FakeCuda, Kernel, Violation
from pullback.backends.c.compiler import compiler
from pullback.backends.cuda import driver
from pullback.backends.cuda.code import COUNT
from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.pool import VARIABLE
from pullback.backends.host.engine import Engine, compile_object
from pullback.backends.host.processor import binding, host_target
from pullback.backends.llvm.emit import written
from pullback.backends.nvptx import backend
from pullback.backends.nvptx.warp import scratch_bytes
from pullback.ir.nest import Array, Routine

SOURCE = __file__.replace(".py", ".c")
NAMES = {
    f"llvm.nvvm.read.ptx.sreg.{what}.x": f"pb_{what}" for what in ("tid", "ctaid", "ntid")
} | {
    f"llvm.nvvm.shfl.sync.{way}.{kind}": f"pb_{way}_{kind}"
    for way in ("idx", "bfly")
    for kind in ("i32", "f32")
}  # fmt: skip
NAMES["llvm.nvvm.bar.warp.sync"] = "pb_meet"
HEAD = re.compile(r"define ptx_kernel void @(\w+)\(([^)]*)\)")


@cache
def threads() -> ctypes.CDLL:
    """The warp. Skips where there is no C compiler."""
    import tempfile
    from pathlib import Path

    data = compiler().compile(Path(SOURCE).read_text(), "native")
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(data)
    library = ctypes.CDLL(file.name)
    for name in NAMES.values():
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        binding().add_symbol(name, address)
    return library


def for_host(text: str) -> str:
    """Kernels as functions of this processor, each with one that reads its parameters."""
    calls = []
    for name, given in HEAD.findall(text):
        lines, passed = [], []
        for n, one in enumerate(given.split(", ")):
            kind = one.split()[0]
            lines += [f"  %at{n} = getelementptr ptr, ptr %given, i64 {n}",
                      f"  %place{n} = load ptr, ptr %at{n}",
                      f"  %value{n} = load {kind}, ptr %place{n}"]  # fmt: skip
            passed.append(f"{kind} %value{n}")
        body = "\n".join(lines)
        calls.append(
            f"define void @call_{name}(ptr %given) {{\n{body}\n"
            f"  call void @{name}({', '.join(passed)})\n  ret void\n}}\n"
        )
    for old, new in NAMES.items():
        text = text.replace(f"@{old}(", f"@{new}(")
    text = text.replace("ptx_kernel ", "").replace('"=l,0"', '"=r,0"')
    return text + "".join(calls)


class Warps:
    """Runs kernels for a fake device. `backwards`: threads begin with the last one."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.backwards = False
        self.engines: list[Engine] = []
        fake.kernels[COUNT] = Kernel(counted, lambda given: [(given[0], 8, True)])

    def add(self, routine: Routine, text: str) -> None:
        """The kernels of a routine."""
        library = threads()
        engine = Engine()
        engine.add(compile_object(for_host(text), host_target()))
        engine.finish()
        self.engines.append(engine)
        for (name, _), body in zip(
            HEAD.findall(text), (routine.body, routine.finish), strict=False
        ):
            address = engine.address(f"call_{name}")
            self.fake.kernels[name] = self._kernel(name, address, routine, body, library)

    def _kernel(
        self, name: str, address: int, routine: Routine, body: Any, library: ctypes.CDLL
    ) -> Kernel:
        arrays = (*routine.arguments, *routine.shared)
        writes = {cell for cell in written(body) if isinstance(cell, Array)}
        scratch = scratch_bytes(routine) * backend.warps_of(routine)

        def touched(given: Sequence[Any]) -> list[tuple[int, int, bool]]:
            parts = [
                (at, self._extent(routine, name, at, a), a in writes)
                for at, a in zip(given, arrays, strict=False)
            ]
            return [*parts, (given[-2], 24, True), (given[-1], scratch, True)]

        def run(given: Sequence[Any], blocks: int, each: int) -> None:
            values = [ctypes.c_uint64(g) for g in given]
            places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            back = int(self.backwards)
            if library.pb_launch(ctypes.c_void_p(address), places, blocks, each, back):
                raise Violation(f"threads of a warp of {name} meet at different places")

        return Kernel(run, touched)

    def _extent(self, routine: Routine, name: str, at: int, array: Array) -> int:
        """Bytes of an argument; where extents are symbolic, at most those of its block: code does
        not say which of its arguments have them.
        """
        most = array.size * array.dtype.itemsize
        if not routine.sizes:
            return most
        block = self.fake.holder(at, 0, name)
        return min(most, block.base + block.size - at)


def counted(given: Sequence[Any], blocks: int, each: int) -> None:
    place = ctypes.c_int64.from_address(given[0])
    place.value += ctypes.c_int64(given[1]).value


def device(patch: pytest.MonkeyPatch, pool: bool = False, **facts: int) -> tuple[Driver, Warps]:
    """The backend `nvptx` on a fake device from here on. Without a pool, the fake sees what is used
    after it was given back.
    """
    patch.setenv(VARIABLE, "" if pool else "off")
    fake = FakeCuda(**facts)
    warps, made = Warps(fake), Driver(fake)
    plain = backend._text

    def text(routine: Routine, target: Any, *names: str) -> str:
        ir = plain(routine, target, *names)
        warps.add(routine, ir)
        return ir

    patch.setattr(backend, "_text", text)
    patch.setattr(driver, "_opened", cache(lambda n: Driver(fake, n) if n else made))
    return made, warps
