"""What one process leaves to the next: the image of a program, without its passes.

``program -> signature; image over numbered variables -> text, under the signature's key``

The program's own variables have their number in the signature, the temporaries that fusion made
come after them. Lengths of loops, feeds, receives and callbacks are those of the fresh trace.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pullback.backends.base import Code, Compiler, Image, Job, Made, Stored
from pullback.errors import MALFORMED, InvalidIR
from pullback.ir.graph import Graph
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Compute, Item, Launch, Program, expand
from pullback.ir.signature import digest, signature
from pullback.runtime.image import image_text, read_image

ROOT = Path(__file__).parent.parent


class Recorder:
    """The record of one program. `identity`: what of the backend decides its code, `facts`: what
    else does.
    """

    def __init__(
        self,
        program: Program,
        backend: Compiler,
        job: Job,
        threads: int,
        facts: tuple[str, ...] = (),
    ) -> None:
        self._program = program
        self._backend = backend
        self._job = job
        self._signature = signature(program)
        own = self._signature.digest
        machine = backend.name, backend.identity(job.target), repr(job.target), str(threads)
        self._key = digest("program", own, *machine, *facts, compiler())

    @classmethod
    def of(
        cls, program: Program, backend: Compiler, job: Job, threads: int, facts: tuple[str, ...]
    ) -> Recorder | None:
        """None where nothing is kept: without a store, or by a backend whose class does not say
        what its code depends on. That of another class is not its own.
        """
        says = "identity" in vars(type(backend)) and backend.identity(job.target)
        kept = job.store is not None and says
        return cls(program, backend, job, threads, facts) if kept else None

    def find(self) -> Image | None:
        """What an equal program left; None where that or its code is not whole."""
        data = None if self._job.store is None else self._job.store.get(self._key)
        if data is None:
            return None
        try:
            image = read_image(data.decode(), self._load, self._signature.variables)
            if image is None:
                return None
            rest = iter(image.kernels)
            block = each(self._program.body, lambda _: next(rest))
            return replace(image, state=self._program.state, block=block)
        except (InvalidIR, StopIteration, *MALFORMED):
            return None

    def _load(self, made: Made, kept: Sequence[Stored]) -> Sequence[Code] | None:
        return self._backend.load(kept, self._job)

    def keep(self, image: Image) -> None:
        """Leave it for the next process."""
        if self._job.store is not None:
            self._job.store.put(self._key, image_text(image, self._signature.variables).encode())


@functools.cache
def compiler() -> str:
    """Which compiler this is: path, size and time of change of each of its files."""
    facts = []
    for folder, _, names in os.walk(ROOT):
        for path in (os.path.join(folder, name) for name in names if name.endswith(".py")):
            own = os.stat(path)
            facts.append(f"{path} {own.st_size} {own.st_mtime_ns}")
    return digest(*sorted(facts))


def each(block: Block, change: Callable[[Graph], Sequence[Kernel]]) -> Block:
    """`block` with every `Compute` replaced by the launches of its kernels."""

    def launched(item: Item) -> list[Item] | None:
        return [Launch(k) for k in change(item.graph)] if isinstance(item, Compute) else None

    return expand(block, launched)
