"""The driver of NVIDIA devices: libcuda through ctypes, and nothing else.

A call that fails is a `DeviceError` with the driver's own name of the failure. Every handle is an
integer; addresses on the device are integers, too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from pullback.errors import DeviceError

VARIABLE = "PULLBACK_CUDA"
SONAME = "libcuda.so.1"
# Numbers of cuda.h: answers, attributes of a device, options of the linker, flags.
OUT_OF_MEMORY = 2
NO_DEVICE = (100, 101, 999, 804)
TOO_OLD = (3, 35, 803)  # the driver is older than what asks it
WRONG_CODE = (200, 209, 218, 221, 222)  # no code for this device, or newer than the driver knows
PROCESSORS, MAJOR, MINOR = 16, 75, 76
SHARED_BYTES = 8
ERROR_LOG, ERROR_LOG_BYTES = 5, 6
CLUSTER = 4
BESIDE_DEFAULT = 1  # of a stream: it does not wait for the default one
OF_THIS_THREAD = 1  # of a capture: what it forbids, it forbids to this thread alone
UNTIMED = 2
DEFAULT, OF_THREADS = 1, 2  # streams that are always there: the device's, and that of each thread
DEVICE_OF = 9  # attribute of an address
ON_DEVICE = 2  # of a side of a copy: it is memory of the device
PLAIN_SHARED = 48 * 1024  # bytes of shared memory that need not be asked for
LOG_BYTES = 8192
# Architectures that code is made for.
KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)


class _Value(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", ctypes.c_char * 4), ("words", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """What `cuLaunchKernelEx` takes: `CUlaunchConfig`."""

    _fields_ = (
        *((name, c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Value)),
        ("count", c_uint),
    )


def _side(name: str) -> list[tuple[str, Any]]:
    """Of a copy: where rows are, how far apart (`pitch`), and how many to a slice (`height`)."""
    size, place = c_size_t, c_void_p
    kinds = (size, size, size, size, c_uint, place, c_uint64, place, place, size, size)
    parts = "x", "y", "z", "level", "kind", "host", "device", "array", "none", "pitch", "height"
    return [(f"{name}_{part}", kind) for part, kind in zip(parts, kinds, strict=True)]


class Copy3D(ctypes.Structure):
    """What `cuMemcpy3DAsync_v2` takes: `CUDA_MEMCPY3D_v2`."""

    _fields_ = (
        *_side("source"),
        *_side("to"),
        *((name, c_size_t) for name in ("width", "height", "depth")),
    )


@dataclass(frozen=True, slots=True)
class Side:
    """Of a copy of rows: the first one, bytes from each to the next, rows from slice to slice."""

    address: int
    pitch: int
    height: int


@dataclass(frozen=True, slots=True)
class Launching:
    """How a kernel is launched: blocks, threads of each, bytes of shared memory, blocks that form a
    cluster.
    """

    blocks: int
    threads: int
    shared: int = 0
    cluster: int = 1


class _Thread(threading.local):
    """`late`: what waits for the end of a capture in this thread; None where there is none."""

    late: list[Callable[[], object]] | None = None


_this = _Thread()


class Driver:
    """One device with its primary context. `api`: libcuda, or what answers as it does."""

    def __init__(self, api: Any, ordinal: int = 0) -> None:
        self.api = api
        self.process = os.getpid()
        started = api.cuInit(0)
        if started:
            self._no_device(started)
        self.version = self._number("cuDriverGetVersion")
        count = self._number("cuDeviceGetCount")
        if not 0 <= ordinal < count:
            what = f"there is no device cuda:{ordinal}: this machine has {count}"
            raise DeviceError(what, help="name one of them", code="E440")
        self.ordinal = ordinal
        self._handle = c_int(self._number("cuDeviceGet", c_int(ordinal)))
        major, minor, self.processors = (
            self._number("cuDeviceGetAttribute", c_int(n), self._handle)
            for n in (MAJOR, MINOR, PROCESSORS)
        )
        self.capability = 10 * major + minor
        name = ctypes.create_string_buffer(256)
        self("cuDeviceGetName", name, c_int(256), self._handle)
        self.name = name.value.decode()
        size = c_size_t()
        self("cuDeviceTotalMem_v2", byref(size), self._handle)
        self.bytes = size.value
        self._context = c_void_p()
        self("cuDevicePrimaryCtxRetain", byref(self._context), self._handle)

    def __call__(self, function: str, *arguments: Any) -> None:
        """One call. Raises: DeviceError with the driver's name of what is wrong."""
        status = getattr(self.api, function)(*arguments)
        if status:
            self.failed(function, status)

    def failed(self, function: str, status: int) -> NoReturn:
        """Raises: DeviceError for an answer that is not 0."""
        text = c_char_p()
        self.api.cuGetErrorName(c_int(status), byref(text))
        told = (text.value or b"an error that it has no name for").decode()
        help_ = "the driver's own page of this name says more"
        raise DeviceError(f"{function}: {told} ({status})", help=help_, code="E445")

    def _no_device(self, status: int) -> NoReturn:
        if status in TOO_OLD:
            what = f"the NVIDIA driver is older than {SONAME} asks for (error {status})"
            raise DeviceError(what, help="install a newer driver", code="E441")
        what = f"the NVIDIA driver has no device (error {status})"
        raise DeviceError(what, help="run without a GPU: the backend `llvm`", code="E440")

    def _number(self, function: str, *arguments: Any) -> int:
        made = c_int()
        self(function, byref(made), *arguments)
        return made.value

    @contextmanager
    def here(self) -> Iterator[None]:
        """The device's context is that of this thread inside; after it, what was before: who else
        uses devices in this thread, such as PyTorch, goes on with its own.

        Raises: DeviceError in a forked process.
        """
        if os.getpid() != self.process:
            what = "a CUDA context does not go on in a forked process"
            raise DeviceError(what, help="start processes by `spawn`", code="E440")
        self("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.api.cuCtxPopCurrent_v2(byref(c_void_p()))

    def ordinal_of(self, address: int) -> int:
        """The number of the device that has an address. Raises: DeviceError where none has."""
        made = c_int()
        self("cuPointerGetAttribute", byref(made), c_int(DEVICE_OF), c_uint64(address))
        return made.value

    # -- code

    def module(self, image: bytes) -> int:
        """Code from PTX (text) or a cubin. Raises: DeviceError where it is not for this driver."""
        handle, log = c_void_p(), ctypes.create_string_buffer(LOG_BYTES)
        options = (c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        data = c_char_p(image if image.endswith(b"\0") else image + b"\0")
        status = self.api.cuModuleLoadDataEx(byref(handle), data, c_uint(2), options, values)
        if status in WRONG_CODE:
            said = log.value.decode(errors="replace").strip() or f"error {status}"
            had = f"{self.name}, sm_{self.capability}, driver {self.version}"
            what = f"the driver does not take the code ({had}): {said}"
            raise DeviceError(what, help="install a newer driver, or clear the cache", code="E441")
        if status:
            self.failed("cuModuleLoadDataEx", status)
        return handle.value or 0

    def function(self, module: int, name: str, shared: int = 0) -> int:
        """A kernel of a module, which takes `shared` bytes of shared memory."""
        handle = c_void_p()
        self("cuModuleGetFunction", byref(handle), c_void_p(module), c_char_p(name.encode()))
        if shared > PLAIN_SHARED:
            self("cuFuncSetAttribute", handle, c_int(SHARED_BYTES), c_int(shared))
        return handle.value or 0

    def unload(self, module: int) -> None:
        """Forget a module."""
        self("cuModuleUnload", c_void_p(module))

    # -- memory

    def allocate(self, size: int, planned: str = "") -> int:
        """The address of `size` bytes. Raises: DeviceError that says what was planned."""
        address = self.tried(size)
        if address is None:
            out_of_memory(self.name, size, self.free_bytes(), planned)
        return address

    def tried(self, size: int) -> int | None:
        """The address of `size` bytes; None where there are not so many."""
        address = c_uint64()
        status = self.api.cuMemAlloc_v2(byref(address), c_size_t(max(size, 1)))
        if status and status != OUT_OF_MEMORY:
            self.failed("cuMemAlloc_v2", status)
        return None if status else address.value

    def free_bytes(self) -> tuple[int, int]:
        """Bytes of the device that are free, and all of them."""
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def free(self, address: int) -> None:
        """Give memory back, once the device is done with it."""
        self("cuMemFree_v2", c_uint64(address))

    def pinned(self, size: int) -> int:
        """The address of host memory that the device copies from and to by itself."""
        address = c_void_p()
        self("cuMemHostAlloc", byref(address), c_size_t(max(size, 1)), c_uint(0))
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        """Give such memory back."""
        self("cuMemFreeHost", c_void_p(address))

    def to_device(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy from the host; the source is not to change until the stream has come so far."""
        if size:
            what = c_uint64(to), c_void_p(source), c_size_t(size), c_void_p(stream)
            self("cuMemcpyHtoDAsync_v2", *what)

    def to_host(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy to the host."""
        if size:
            what = c_void_p(to), c_uint64(source), c_size_t(size), c_void_p(stream)
            self("cuMemcpyDtoHAsync_v2", *what)

    def within(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy on the device."""
        if size:
            what = c_uint64(to), c_uint64(source), c_size_t(size), c_void_p(stream)
            self("cuMemcpyDtoDAsync_v2", *what)

    def rows(self, to: Side, source: Side, block: tuple[int, int, int], stream: int) -> None:
        """Copy on the device: so many slices of so many rows of so many bytes."""
        if block[:2] == (1, 1):
            self.within(to.address, source.address, block[2], stream)
            return
        how = Copy3D()
        for name, side in (("to", to), ("source", source)):
            setattr(how, f"{name}_kind", ON_DEVICE)
            setattr(how, f"{name}_device", side.address)
            setattr(how, f"{name}_pitch", side.pitch)
            setattr(how, f"{name}_height", side.height)
        how.depth, how.height, how.width = block
        self("cuMemcpy3DAsync_v2", byref(how), c_void_p(stream))

    def across(self, to: int, source: int, other: Driver, size: int, stream: int) -> None:
        """Copy from another device; the stream is of this one, and comes after what made it."""
        if size:
            sides = c_uint64(to), self._context, c_uint64(source), other._context
            self("cuMemcpyPeerAsync", *sides, c_size_t(size), c_void_p(stream))

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Every byte is `byte`."""
        if size:
            what = c_uint64(address), ctypes.c_ubyte(byte), c_size_t(size), c_void_p(stream)
            self("cuMemsetD8Async", *what)

    # -- order

    def stream(self) -> int:
        """A queue of its own."""
        handle = c_void_p()
        self("cuStreamCreate", byref(handle), c_uint(BESIDE_DEFAULT))
        return handle.value or 0

    def end_stream(self, stream: int) -> None:
        """Forget a queue."""
        self("cuStreamDestroy_v2", c_void_p(stream))

    def wait(self, stream: int) -> None:
        """Until all of a stream is done. Raises: DeviceError for what failed in it."""
        self("cuStreamSynchronize", c_void_p(stream))

    def event(self, timed: bool = False) -> int:
        """A mark that streams reach."""
        handle = c_void_p()
        self("cuEventCreate", byref(handle), c_uint(0 if timed else UNTIMED))
        return handle.value or 0

    def end_event(self, event: int) -> None:
        """Forget a mark."""
        self("cuEventDestroy_v2", c_void_p(event))

    def mark(self, event: int, stream: int) -> None:
        """The event is reached when the stream has come to here."""
        self("cuEventRecord", c_void_p(event), c_void_p(stream))

    def after(self, stream: int, event: int) -> None:
        """What the stream is given next waits for the event."""
        self("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def reached(self, event: int) -> None:
        """Until the event is reached."""
        self("cuEventSynchronize", c_void_p(event))

    def between(self, first: int, last: int) -> float:
        """Milliseconds from one timed event to another, both reached."""
        made = ctypes.c_float()
        self("cuEventElapsedTime", byref(made), c_void_p(first), c_void_p(last))
        return made.value

    # -- launches

    def launch(self, function: int, how: Launching, arguments: Sequence[Any], stream: int) -> None:
        """One kernel. `arguments`: values of ctypes, which are read before this returns."""
        places = (c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
        values = (_Value * 1)()
        if how.cluster > 1:
            values[0].id = CLUSTER
            values[0].words[:3] = (how.cluster, 1, 1)
        shape = (how.blocks * how.cluster, 1, 1, how.threads, 1, 1, how.shared)
        config = LaunchConfig(*shape, stream, values, int(how.cluster > 1))
        self("cuLaunchKernelEx", byref(config), c_void_p(function), places, None)

    def after_capture(self, end: Callable[[], object]) -> None:
        """Call `end`, which frees something; once a capture of this thread is over, which allows
        no such call: the garbage collector may come at any time.
        """
        if _this.late is None:
            end()
        else:
            _this.late.append(end)

    @contextmanager
    def capture(self, stream: int) -> Iterator[list[int]]:
        """What the stream is given inside is not run: it becomes a graph, the one of the list."""
        made: list[int] = []
        self("cuStreamBeginCapture_v2", c_void_p(stream), c_int(OF_THIS_THREAD))
        graph, before, _this.late = c_void_p(), _this.late, _this.late or []
        try:
            yield made
        except BaseException:
            self.api.cuStreamEndCapture(c_void_p(stream), byref(graph))
            raise
        else:
            self("cuStreamEndCapture", c_void_p(stream), byref(graph))
        finally:
            late, _this.late = _this.late or [], before
            for end in late if before is None else ():
                end()
        ready = c_void_p()
        self("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
        self("cuGraphDestroy", graph)
        made.append(ready.value or 0)

    def replay(self, graph: int, stream: int) -> None:
        """All of a graph: by the addresses and numbers that were captured."""
        self("cuGraphLaunch", c_void_p(graph), c_void_p(stream))

    def end_graph(self, graph: int) -> None:
        """Forget a graph."""
        self("cuGraphExecDestroy", c_void_p(graph))


def out_of_memory(name: str, size: int, left: tuple[int, int], planned: str) -> NoReturn:
    """Raises: DeviceError that says what was asked for, what was left, and what was planned."""
    what = f"{name} has {left[0]} of {left[1]} bytes left, {size} were asked for"
    help_ = "Options(memory=..) plans for less, or make the batch smaller"
    raise DeviceError(f"{what}{planned and ': ' + planned}", help=help_, code="E442")


def architecture(capability: int) -> str:
    """What code is made for on a device. Raises: DeviceError for one that is not known."""
    if capability in KNOWN:
        return f"sm_{capability}"
    if capability > KNOWN[0]:  # code for an older one runs on it, where it is PTX
        older = [known for known in KNOWN if known <= capability]
        if older[-1] // 10 == capability // 10:
            return f"sm_{older[-1]}"
    known = ", ".join(f"sm_{n}" for n in KNOWN)
    what = f"no code is made for sm_{capability}"
    raise DeviceError(what, help=f"the architectures are {known}", code="E443")


def driver(ordinal: int = 0) -> Driver:
    """The driver of a device, opened once. Raises: DeviceError where there is none."""
    return _opened(ordinal)


@cache
def _opened(ordinal: int) -> Driver:
    return Driver(library(os.environ.get(VARIABLE, "")), ordinal)


def library(chosen: str) -> Any:
    """libcuda: `PULLBACK_CUDA` or the system's. Raises: DeviceError."""
    name = chosen or SONAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        other = None if chosen else find_library("cuda")
        if other is not None:
            return ctypes.CDLL(other)
        what = f"there is no NVIDIA driver: {error}"
        help_ = f"install one, or {VARIABLE} names its library"
        raise DeviceError(what, help=help_, code="E440") from error
