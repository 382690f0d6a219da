"""Triton's kernels on a device that is none: launches of libcuda, each run by Triton's interpreter.

The binary of a function is a mark with its name; the fake's kernel of that name reads its
parameters where the driver would, and interprets the function program by program.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_cuda import FakeCuda, Kernel, Violation
from fake_warps import counted
from pullback.backends.cuda import driver
from pullback.backends.cuda.code import COUNT
from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.pool import VARIABLE
from pullback.backends.host.exchange import box
from pullback.backends.triton import backend, launched, offline
from pullback.backends.triton import device as interpreter
from pullback.backends.triton.function import Launch
from pullback.backends.triton.offline import Binary, Order
from pullback.ir.dtype import DType, int64
from pullback.ir.expr import Dim, upper
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel as Fused

SCRATCH = 64  # bytes of each block, so that somebody has to bring them
DESCRIPTOR = 128  # bytes of one that a block makes, and what they begin at a multiple of
MARK = 1.5  # in the place of what they hold


class Blocks:
    """Runs Triton's functions for a fake device."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake
        self.compiled = 0
        self._lock = threading.Lock()  # tuning compiles side by side
        fake.kernels[COUNT] = Kernel(counted, lambda given: [(given[0], 8, True)])

    def binaries(self, orders: Sequence[Order], capability: int) -> list[Binary]:
        """Marks in the place of cubins; names are those of no other function."""
        made = []
        for order in orders:
            with self._lock:
                self.compiled += 1
                name = f"{order.name}_{self.compiled}"
            count = descriptors(Path(order.path).read_text(), order.name)
            scratch, align = (DESCRIPTOR * count, DESCRIPTOR) if count else (SCRATCH, 1)
            facts = order.warps, 4096, scratch, align, 32, 0
            made.append(Binary(name, {}, marked(name.encode()), *facts))
        return made

    def add(self, launch: Launch, binary: Binary) -> None:
        """A function of a kernel."""
        function = getattr(backend.loaded([launch]), launch.name)
        head = launch.source.partition("):")[0]
        names = head.partition("(")[2].split(", ")
        heads = "tl.store({}", "where = {} + "  # an accumulating write says first where
        writes = [any(h.format(n) in launch.source for h in heads) for n in names]
        aligned = backend.aligned(launch)
        count, wrong = len(launch.arguments), 16 * len(launch.sites)
        described = DESCRIPTOR * descriptors(launch.source, launch.name)
        scratch, align = described or binary.scratch, DESCRIPTOR if described else 1
        most = prod(-(-prod(map(upper, extents)) // block) for extents, block in launch.grid)

        def sizes(given: Sequence[Any]) -> list[int]:
            """Bytes of the arguments in a launch: rows beyond what it is told are not there."""
            own = [dim.name for dim in launch.sizes]
            told = dict(zip(own, given[count : count + len(own)], strict=True))
            return [extent_bytes(v, told) for v in launch.arguments]

        def touched(given: Sequence[Any]) -> list[tuple[int, int, bool]]:
            if len(given) != len(names) + offline.HIDDEN:
                raise Violation(f"{binary.name} takes {len(names)} parameters, not {len(given)}")
            parts = list(zip(given[:count], sizes(given), writes[:count], strict=True))
            parts += [(given[len(names) - 1], wrong, True)] * bool(wrong)
            return [*parts, (given[len(names)], scratch * most, True)]

        def run(given: Sequence[Any], blocks: int, each: int) -> None:
            if each != 32 * launch.warps:
                raise Violation(f"{binary.name} has {launch.warps} warps, not {each} threads")
            kinds = [v.dtype for v in launch.arguments]
            own = given[len(names)]
            if own % align:
                raise Violation(f"scratch of {binary.name} begins at {own:#x}")
            kept = np.frombuffer((ctypes.c_ubyte * (scratch * blocks)).from_address(own))
            kept[:] = MARK  # as blocks write their descriptors, before they read by them
            for n in aligned:
                if given[n] % 16:
                    raise Violation(f"{names[n]} of {binary.name} begins at {given[n]:#x}")
            places = zip(given[:count], sizes(given), kinds, strict=True)
            arguments: list[Any] = [memory(*place) for place in places]
            arguments += [ctypes.c_int64(n).value for n in given[count : len(names) - bool(wrong)]]
            if wrong:
                arguments.append(memory(given[len(names) - 1], wrong, int64))
            interpreter.call(function, blocks, arguments)
            if not (kept == MARK).all():
                raise Violation(f"scratch of {binary.name} is something else's too")

        self.fake.kernels[binary.name] = Kernel(run, touched)


def descriptors(source: str, name: str) -> int:
    """How many a function makes."""
    own = source.partition(f"def {name}(")[2].partition("@triton.jit")[0]
    return own.count("tl.make_tensor_descriptor(")


def extent_bytes(variable: Variable, told: dict[str, int]) -> int:
    """Of a variable: an extent that a launch is not told has its least."""
    rows = [told.get(e.name, e.lo) if isinstance(e, Dim) else e for e in variable.shape[:1]]
    return prod((*rows, *box(variable)[1:])) * variable.dtype.itemsize


def marked(name: bytes) -> bytes:
    """An ELF file that ends with a name: where its table of sections would begin."""
    head = bytearray(64)
    head[:4] = b"\x7fELF"
    head[40:48] = (64 + len(name)).to_bytes(8, "little")
    return bytes(head) + name


def memory(address: int, size: int, kind: DType) -> interpreter.Memory:
    """Memory of the fake as the interpreter takes it."""
    array = np.frombuffer((ctypes.c_ubyte * size).from_address(address), kind.numpy)
    return interpreter.Memory(backend._bytes(array), kind)


def device(
    patch: pytest.MonkeyPatch, fake: FakeCuda | None = None, **facts: int
) -> tuple[Driver, Blocks]:
    """The backend `triton-cuda` on a fake device from here on."""
    patch.setenv(VARIABLE, "off")
    fake = FakeCuda(**facts) if fake is None else fake
    blocks, made = Blocks(fake), Driver(fake)
    plain = launched._code

    def code(kernel: Fused, launches: list[Launch], binaries: list[Binary]) -> Any:
        for launch, binary in zip(launches, binaries, strict=True):
            blocks.add(launch, binary)
        return plain(kernel, launches, binaries)

    patch.setattr(launched, "_code", code)
    patch.setattr(offline, "compiled", blocks.binaries)
    patch.setattr(driver, "_opened", cache(lambda n: Driver(fake, n) if n else made))
    return made, blocks
