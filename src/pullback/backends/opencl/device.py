"""The OpenCL runtime and its device, through ctypes: which there is, what it can, what it says."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np

from pullback.errors import DeviceError

VARIABLE = "PULLBACK_OPENCL"
PACKAGE, LIBRARY = "intel-opencl-rt", "libintelocl.so"  # the package and what of it is loaded
FLAGS = b"-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt"
EVERY_DEVICE = 0xFFFFFFFF
# Numbers of cl.h.
UNITS, NAME, DRIVER, SVM, DOUBLES = 0x1002, 0x102B, 0x102D, 0x1053, 0x1032
SYSTEM_MEMORY = 8  # of SVM: any address of this process is one of the device, without a map
BY_COUNTS = 0x1087
BUILD_LOG, BINARY_SIZES, BINARIES = 0x1183, 0x1165, 0x1166
CREATES = (
    "clCreateContext", "clCreateCommandQueue", "clCreateProgramWithSource",
    "clCreateProgramWithBinary", "clCreateKernel",
)  # fmt: skip
LAUNCHES = (
    "clSetKernelArgSVMPointer", "clSetKernelArg", "clEnqueueNDRangeKernel", "clFinish",
)  # fmt: skip
Handle = ctypes.c_void_p


@dataclass(frozen=True, eq=False, slots=True)
class Device:
    """A device with its queue. `units`: how many work-items it runs at a time.

    `functions`: whether the process is the one that it was opened in, then addresses of `LAUNCHES`.
    """

    api: ctypes.CDLL
    handle: int
    context: int
    queue: int
    name: str
    driver: str
    units: int
    doubles: bool
    functions: np.ndarray[tuple[int], np.dtype[np.int64]] = field(repr=False)

    def built(self, text: str) -> int:
        """A program of OpenCL C. Raises: DeviceError with what its compiler says."""
        error = ctypes.c_int()
        source = (ctypes.c_char_p * 1)(text.encode())
        program = self.api.clCreateProgramWithSource(
            Handle(self.context), 1, source, None, ctypes.byref(error)
        )
        self._build(program)
        return int(program)

    def loaded(self, binary: bytes) -> int:
        """A program that was built before. Raises: DeviceError."""
        error = ctypes.c_int()
        size = (ctypes.c_size_t * 1)(len(binary))
        data = (ctypes.c_char_p * 1)(binary)
        devices = (Handle * 1)(self.handle)
        program = self.api.clCreateProgramWithBinary(
            Handle(self.context), 1, devices, size, data, None, ctypes.byref(error)
        )
        sure(error.value, f"{self.name} does not take a stored program")
        self._build(program)
        return int(program)

    def _build(self, program: int) -> None:
        devices = (Handle * 1)(self.handle)
        status = self.api.clBuildProgram(Handle(program), 1, devices, FLAGS, None, None)
        if status:
            ask = self.api.clGetProgramBuildInfo
            failed(self.name, _text(ask, Handle(program), self.handle, BUILD_LOG))

    def binary(self, program: int) -> bytes:
        """What the compiler made, for another process."""
        size = ctypes.c_size_t()
        ask = self.api.clGetProgramInfo
        sure(ask(Handle(program), BINARY_SIZES, 8, ctypes.byref(size), None), "binary")
        data = ctypes.create_string_buffer(size.value)
        place = (ctypes.c_void_p * 1)(ctypes.addressof(data))
        sure(ask(Handle(program), BINARIES, 8, place, None), "binary")
        return data.raw

    def kernel(self, program: int, name: str) -> int:
        error = ctypes.c_int()
        kernel = self.api.clCreateKernel(Handle(program), name.encode(), ctypes.byref(error))
        sure(error.value, f"{self.name} has no kernel {name}")
        return int(kernel)


def device(threads: int | None = None) -> Device:
    """The first device that shares the memory of this process, or `threads` of its units.

    Raises: DeviceError where there is none, each with its reason, or in a forked process.
    """
    opened = _opened(os.environ.get(VARIABLE, ""), threads)
    if not opened.functions[0]:
        what = "the OpenCL runtime does not go on in a forked process"
        raise DeviceError(what, help="start processes by `spawn`", code="E362")
    return opened


@cache
def _opened(chosen: str, threads: int | None) -> Device:
    api = _runtime(chosen)
    every = _devices(api)
    names = [_text(api.clGetDeviceInfo, Handle(handle), NAME) for handle in every]
    number = sharing([(n, _number(api, h, SVM)) for n, h in zip(names, every, strict=True)])
    return _of(api, _part(api, every[number], threads), names[number])


def sharing(devices: Sequence[tuple[str, int]]) -> int:
    """Which of some devices is the first to share all memory, by names and what SVM they have.

    Raises: DeviceError that names them all.
    """
    for number, (_, memory) in enumerate(devices):
        if memory & SYSTEM_MEMORY:
            return number
    if devices:
        every = "; ".join(f"{name} does not share the memory of a process" for name, _ in devices)
        raise DeviceError(every, help="the backend `llvm` needs no device", code="E363")
    what, help_ = "an OpenCL runtime without a device", "pip install 'pullback[opencl]'"
    raise DeviceError(what, help=help_, code="E362")


def failed(device: str, log: str) -> None:
    """What the compiler of a device says is wrong with a program. Raises: DeviceError."""
    raise DeviceError(f"{device} fails to build: {log.strip()[:2000]}", code="E364")


def sure(status: int, what: str) -> None:
    """Raises: DeviceError for any answer of OpenCL but 0."""
    if status:
        raise DeviceError(f"{what}: OpenCL error {status}", code="E365")


def _runtime(chosen: str) -> ctypes.CDLL:
    """`PULLBACK_OPENCL`, the library of `intel-opencl-rt`, or the system's loader."""
    name = chosen or _packaged() or find_library("OpenCL")
    if not name:
        help_ = f"pip install 'pullback[opencl]', or {VARIABLE} names a library"
        raise DeviceError("there is no OpenCL runtime", help=help_, code="E362")
    try:
        api = ctypes.CDLL(name)
        for function in CREATES:
            getattr(api, function).restype = Handle
    except (OSError, AttributeError) as error:
        what = f"the OpenCL runtime {name} does not load: {error}"
        raise DeviceError(what, help=f"{VARIABLE} names another", code="E362") from error
    return api


def _packaged() -> str:
    """The path of the runtime that the extra `opencl` installs, or nothing."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        return ""
    paths = [Path(str(file.locate())) for file in listed if file.name == LIBRARY]
    return next((str(path.resolve()) for path in paths if path.exists()), "")


def _devices(api: ctypes.CDLL) -> list[int]:
    """Every device of every platform."""
    count = ctypes.c_uint()
    devices: list[int] = []
    if api.clGetPlatformIDs(0, None, ctypes.byref(count)) or not count.value:
        return devices
    platforms = (Handle * count.value)()
    sure(api.clGetPlatformIDs(count.value, platforms, None), "clGetPlatformIDs")
    for platform in platforms:
        kind = ctypes.c_ulong(EVERY_DEVICE)
        if api.clGetDeviceIDs(Handle(platform), kind, 0, None, ctypes.byref(count)):
            continue
        handles = (Handle * count.value)()
        api.clGetDeviceIDs(Handle(platform), kind, count.value, handles, None)
        devices += [int(h) for h in handles if h]
    return devices


def _part(api: ctypes.CDLL, handle: int, threads: int | None) -> int:
    """A device of `threads` units, where it has more."""
    if threads is None or threads >= _number(api, handle, UNITS):
        return handle
    how = (ctypes.c_ssize_t * 4)(BY_COUNTS, threads, 0, 0)
    part, count = (Handle * 1)(), ctypes.c_uint()
    status = api.clCreateSubDevices(Handle(handle), how, 1, part, ctypes.byref(count))
    sure(status, f"a part of the device with {threads} units")
    return int(part[0] or 0)


def _of(api: ctypes.CDLL, handle: int, name: str) -> Device:
    error = ctypes.c_int()
    devices = (Handle * 1)(handle)
    context = api.clCreateContext(None, 1, devices, None, None, ctypes.byref(error))
    sure(error.value, f"a context of {name}")
    queue = api.clCreateCommandQueue(
        Handle(context), Handle(handle), ctypes.c_ulong(0), ctypes.byref(error)
    )
    sure(error.value, f"a queue of {name}")
    places = [ctypes.cast(getattr(api, f), Handle).value or 0 for f in LAUNCHES]
    functions = np.array([1, *places], np.int64)
    os.register_at_fork(after_in_child=lambda: functions.__setitem__(0, 0))
    units, doubles = _number(api, handle, UNITS), bool(_number(api, handle, DOUBLES))
    driver = _text(api.clGetDeviceInfo, Handle(handle), DRIVER)
    return Device(api, handle, context, queue, name, driver, units, doubles, functions)


def _number(api: ctypes.CDLL, handle: int, what: int) -> int:
    value = ctypes.c_ulong()
    api.clGetDeviceInfo(Handle(handle), what, 8, ctypes.byref(value), None)
    return value.value


def _text(ask: ctypes._NamedFuncPointer, *which: Handle | int) -> str:
    """What a query answers as text. The last of `which` is the number of the question."""
    *owners, what = which
    given: Sequence[Handle] = [Handle(o) if isinstance(o, int) else o for o in owners]
    size = ctypes.c_size_t()
    ask(*given, what, 0, None, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value + 1)
    ask(*given, what, ctypes.c_size_t(size.value), data, None)
    return data.value.decode(errors="replace")
