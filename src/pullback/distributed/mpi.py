"""MPI, by mpi4py: what `mpiexec` starts. Programs call its C functions by their addresses."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from pullback.distributed.transport import ALL_GATHER, ALL_REDUCE, Array, gone, late
from pullback.errors import ExtraError, UnsupportedError
from pullback.ir.expr import upper
from pullback.tensor.forms.collective import Native
from pullback.tensor.forms.hosted import Kind

STATUS = 64  # bytes: more than any MPI_Status has
PAUSE = 50e-6  # seconds between two looks at a request
MOST = 2**31 - 1  # elements of one call
NAMES = {ALL_REDUCE: "MPI_Iallreduce", ALL_GATHER: "MPI_Iallgather"}
SCATTER = "MPI_Ireduce_scatter_block"


class Mpi:
    """A copy of COMM_WORLD, whose functions return errors."""

    library = "MPI"

    def __init__(self, timeout: float) -> None:
        self._mpi = _engine()
        self._timeout = timeout
        self._comm = self._mpi.COMM_WORLD.Dup()
        self._comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._status = (ctypes.c_char * STATUS)()
        self._functions: dict[str, int] = {}

    def run(self, kind: str, source: Array, target: Array) -> None:
        """See `Transport.run`."""
        try:
            request = self._begun(kind, source, target)
            deadline = time.monotonic() + self._timeout
            while not request.Test():
                if time.monotonic() > deadline:
                    late(f"rank {self.rank} waited for {kind}", self._timeout)
                time.sleep(PAUSE)
        except self._mpi.Exception as error:
            gone(f"rank {self.rank} lost another rank: {error}")

    def _begun(self, kind: str, source: Array, target: Array) -> Any:
        if kind == ALL_REDUCE:
            return self._comm.Iallreduce(source, target)
        if kind == ALL_GATHER:
            return self._comm.Iallgather(source, target)
        return self._comm.Ireduce_scatter_block(source, target)

    def begin(self, kind: str, source: Array, target: Array) -> None:
        """None: programs call C functions."""

    def natives(self, kind: str, x: Kind, y: Kind) -> tuple[Native, Native] | None:
        """MPI's own functions; the ticket is the request."""
        (shape, dtype), (given, _) = x, y
        own = self._type(dtype.numpy)
        if own is None:
            return None
        count = 1
        for extent in given if kind != ALL_GATHER else shape:
            count *= upper(extent)
        if count > MOST:
            return None
        element, comm = self._word(own), self._word(self._comm)
        name = NAMES.get(kind, SCATTER)
        words: tuple[int | None, ...]
        if kind == ALL_GATHER:
            words = (None, count, element, None, count, element, comm, None)
        else:
            words = (None, None, count, element, self._word(self._mpi.SUM), comm, None)
        waits = (None, ctypes.addressof(self._status))
        return (self._function(name), words), (self._function("MPI_Wait"), waits)

    def _type(self, kind: np.dtype[Any]) -> Any:
        """MPI's name of an element type; None where it has none."""
        plain = kind.kind in "iuf" and kind.itemsize * 8 in (8, 16, 32, 64) and kind.char != "e"
        return self._mpi._typedict.get(kind.char) if plain else None

    def _word(self, handle: Any) -> int:
        """A handle of MPI as C passes it: a number, or an address."""
        kind = ctypes.c_int if self._mpi._sizeof(handle) == 4 else ctypes.c_void_p
        return kind.from_address(self._mpi._addressof(handle)).value or 0

    def _function(self, name: str) -> int:
        """The address of a C function. Raises: UnsupportedError where MPI has none."""
        if name not in self._functions:
            pointer = getattr(_library(self._mpi), name, None)
            address = ctypes.cast(pointer, ctypes.c_void_p).value if pointer else None
            if address is None:
                raise UnsupportedError(f"the process has no function {name}", code="E528")
            self._functions[name] = address
        return self._functions[name]

    def close(self) -> None:
        """`mpiexec` ends all ranks where one fails; nothing is freed, others may be in a call."""


def _library(mpi: Any) -> ctypes.CDLL:
    """The MPI that mpi4py has loaded: what it is linked to, else what the process has mapped."""
    own = ctypes.CDLL(mpi.__file__)
    if hasattr(own, "MPI_Wait"):
        return own
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/libmpi" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Wait"):
            return library
    return own


def _engine() -> Any:
    """mpi4py, imported lazily: it joins the others. Raises: ExtraError."""
    try:
        from mpi4py import MPI
    except (ModuleNotFoundError, RuntimeError) as error:
        raise ExtraError(
            f"the transport `mpi` needs mpi4py and an MPI: {error}",
            help="pip install 'pullback[mpi]'",
        ) from error
    return MPI
