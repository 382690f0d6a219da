"""A libcuda that is none: it keeps the driver's contract, and says where a program does not.

Memory of the device is memory of this process. What a stream is given runs as late as it may: when
somebody waits for it. Every access is dated by the streams and events behind it, so that two of one
place that nothing puts in order are told. Kernels are functions of Python, by name. Between events
passes a millisecond for each step, and what `lasts` says for kernels.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

INVALID, OUT_OF_MEMORY, NO_DEVICE, NOT_FOUND = 1, 2, 100, 500
INVALID_HANDLE, NOT_READY = 400, 600
NO_BINARY, INVALID_PTX, NEW_PTX, INVALID_IMAGE = 209, 218, 222, 200
CAPTURING, INVALIDATED = 900, 901
NAMES = {
    INVALID: "CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
    NOT_FOUND: "CUDA_ERROR_NOT_FOUND",
    INVALID_HANDLE: "CUDA_ERROR_INVALID_HANDLE",
    NOT_READY: "CUDA_ERROR_NOT_READY",
    CAPTURING: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    INVALIDATED: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
}
DEFAULTS = (1, 2)  # streams that are always there
FILLED = 0xA5
FENCE = 256  # bytes after each block, which nobody writes
TYPES = {"u64": ctypes.c_uint64, "b64": ctypes.c_uint64, "u32": ctypes.c_uint32}
TYPES |= {"b32": ctypes.c_uint32, "f32": ctypes.c_float, "f64": ctypes.c_double}


class Violation(AssertionError):
    """The program breaks the driver's contract."""


Touch = tuple[int, int, bool]  # from, to, whether it is written
Clock = dict[int, int]


@dataclass
class Allocation:
    """A block of memory, of the device or pinned; `past`: who touched what of it, and when."""

    number: int
    base: int
    size: int
    memory: Any
    pinned: bool
    device: int = 0
    alive: bool = True
    past: list[tuple[int, int, bool, int, int, str]] = field(default_factory=list)


@dataclass
class Step:
    """Something a stream does."""

    name: str
    run: Callable[[], None]
    touches: list[Touch]
    blocks: list[Allocation] = field(default_factory=list)
    ms: float = 1.0


@dataclass
class Stream:
    """A queue: steps not yet run, and waits as (stream, how far)."""

    number: int
    clock: Clock = field(default_factory=dict)
    tick: int = 0
    queue: list[Any] = field(default_factory=list)
    done: int = 0
    given: int = 0
    capture: list[Step] | None = None
    broken: bool = False
    device: int = 0
    ms: float = 0.0  # of all that it was given


@dataclass
class Event:
    """Where a stream was when it was recorded."""

    stream: Stream | None = None
    at: int = 0
    clock: Clock = field(default_factory=dict)
    device: int = 0
    timed: bool = False
    ms: float = 0.0


@dataclass
class Kernel:
    """What a kernel does with its arguments, and what it touches of them: bytes, whether it writes;
    None: all of the block behind an address.
    """

    run: Callable[[Sequence[Any], int, int], None]
    touched: Callable[[Sequence[Any]], list[tuple[int, int, bool]]] | None = None


class FakeCuda:
    """Answers as libcuda does. `kernels`: by name; a function may have a module of any text."""

    def __init__(
        self, capability: int = 90, version: int = 12080, total: int = 1 << 30, devices: int = 1
    ) -> None:
        self.capability, self.version, self.total, self.devices = (
            capability, version, total, devices)  # fmt: skip
        self.kernels: dict[str, Kernel] = {}
        self.blocks: list[Allocation] = []
        self.handles: dict[int, Any] = {}
        self.host: Clock = {}
        self.used = [0] * devices
        self.next = 0x1000
        self._thread = threading.local()
        self._lock = threading.RLock()
        self.calls: list[str] = []
        self.launched: list[tuple[str, int, int]] = []
        self.lasts: Callable[[str, int, int], float] = lambda name, blocks, threads: 1.0  # ms

    def __getattribute__(self, name: str) -> Any:
        got = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return got
        self.calls.append(name)

        def alone(*arguments: Any) -> Any:
            with self._lock:
                return got(*arguments)

        return alone

    # -- handles

    def _new(self, what: Any) -> int:
        self.next += 0x10
        self.handles[self.next] = what
        return self.next

    @property
    def contexts(self) -> list[int]:
        """Those of this thread, the current one last; the context of device n is n + 1."""
        if not hasattr(self._thread, "contexts"):
            self._thread.contexts = []
        own: list[int] = self._thread.contexts
        return own

    def _handle(self, handle: Any, kind: type) -> Any:
        number = handle if isinstance(handle, int) else handle.value
        what = self.handles.get(number or 0)
        if not isinstance(what, kind):
            raise Violation(f"{number} is no {kind.__name__}, or one no longer")
        return what

    def _stream(self, handle: Any) -> Stream:
        number = handle if isinstance(handle, int) else handle.value
        if number in DEFAULTS:  # of the device whose context this is
            number = -3 * self._ready() - number
            self.handles.setdefault(number, Stream(number, device=self._ready()))
            handle = number
        stream: Stream = self._handle(handle, Stream)
        return stream

    # -- the device

    def cuInit(self, flags: Any) -> int:
        return 0 if self.devices else NO_DEVICE

    def cuGetErrorName(self, status: Any, place: Any) -> int:
        place._obj.value = NAMES.get(status.value, "CUDA_ERROR_UNKNOWN").encode()
        return 0

    def cuDriverGetVersion(self, place: Any) -> int:
        place._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, place: Any) -> int:
        place._obj.value = self.devices
        return 0

    def cuDeviceGet(self, place: Any, ordinal: Any) -> int:
        place._obj.value = ordinal.value
        return 0 if ordinal.value < self.devices else 101

    def cuDeviceGetAttribute(self, place: Any, what: Any, device: Any) -> int:
        facts = {75: self.capability // 10, 76: self.capability % 10, 16: 4}
        place._obj.value = facts[what.value]
        return 0

    def cuDeviceGetName(self, place: Any, size: Any, device: Any) -> int:
        place.value = b"a device that is none"
        return 0

    def cuDeviceTotalMem_v2(self, place: Any, device: Any) -> int:
        place._obj.value = self.total
        return 0

    def cuDevicePrimaryCtxRetain(self, place: Any, device: Any) -> int:
        place._obj.value = 1 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, place: Any) -> int:
        if not self.contexts:
            return INVALID
        place._obj.value = self.contexts.pop()
        return 0

    def _ready(self) -> int:
        """The device whose context is current."""
        if not self.contexts:
            raise Violation("no context is current")
        return self.contexts[-1] - 1

    def _of_here(self, thing: Any, what: str) -> None:
        if thing.device != self._ready():
            where = f"the context is that of device {self._ready()}"
            raise Violation(f"{what} is of device {thing.device}, {where}")

    def cuPointerGetAttribute(self, place: Any, what: Any, address: Any) -> int:
        for block in self.blocks:
            if block.base <= address.value < block.base + block.size and block.alive:
                place._obj.value = block.device
                return 0
        return INVALID

    # -- code

    def cuModuleLoadDataEx(
        self, place: Any, image: Any, count: Any, options: Any, values: Any
    ) -> int:
        self._ready()
        text = image.value
        if text.startswith(b"\x7fELF"):
            text = _elf(ctypes.cast(image, ctypes.c_void_p).value or 0)
        if text.startswith(b"\x7fELF"):
            place._obj.value = self._new(text)
            return 0
        version = re.search(rb"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
        target = re.search(rb"^\.target sm_(\d+)", text, re.MULTILINE)
        if version is None or target is None:
            return INVALID_IMAGE
        major, minor = int(version[1]), int(version[2])
        most = 10 * (self.version // 1000 - 4) + self.version % 1000 // 10  # CUDA 12.8: 8.7
        if 10 * major + minor > most:
            return NEW_PTX
        if int(target[1]) > self.capability:
            return NO_BINARY
        place._obj.value = self._new(text)
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self._handle(module, bytes)
        del self.handles[module.value]
        return 0

    def cuModuleGetFunction(self, place: Any, module: Any, name: Any) -> int:
        text = self._handle(module, bytes)
        wanted = name.value
        entry = re.search(rb"\.entry " + re.escape(wanted) + rb"\((.*?)\)", text, re.DOTALL)
        if entry is None and (not text.startswith(b"\x7fELF") or wanted not in text):
            return NOT_FOUND
        kinds = None
        if entry is not None:
            kinds = [k.decode() for k in re.findall(rb"\.param \.(\w+)", entry[1])]
        place._obj.value = self._new((wanted.decode(), kinds, self._ready()))
        return 0

    def cuFuncSetAttribute(self, function: Any, what: Any, value: Any) -> int:
        self._handle(function, tuple)
        return 0 if value.value <= 227 * 1024 else INVALID

    # -- memory

    def _capturing(self) -> bool:
        streams = [s for s in self.handles.values() if isinstance(s, Stream)]
        for stream in streams:
            if stream.capture is not None:
                stream.broken = True
        return any(stream.capture is not None for stream in streams)

    def _block(self, size: int, pinned: bool) -> Allocation:
        memory = (ctypes.c_ubyte * (size + 256 + FENCE))()
        base = -(-ctypes.addressof(memory) // 256) * 256
        ctypes.memset(base, FILLED, size + FENCE)
        self.blocks.append(Allocation(len(self.blocks), base, size, memory, pinned, self._ready()))
        return self.blocks[-1]

    def cuMemAlloc_v2(self, place: Any, size: Any) -> int:
        self._ready()
        if self._capturing():
            return CAPTURING
        if not size.value:
            return INVALID
        if self.used[self._ready()] + size.value > self.total:
            return OUT_OF_MEMORY
        self.used[self._ready()] += size.value
        place._obj.value = self._block(size.value, False).base
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = self.total - self.used[self._ready()], self.total
        return 0

    def _freed(self, address: int, pinned: bool) -> int:
        self._ready()
        if self._capturing():
            return CAPTURING
        block = next((b for b in self.blocks if b.base == address and b.alive), None)
        if block is None or block.pinned is not pinned:
            raise Violation(f"{address:#x} is freed, and no block begins there")
        self._everything()  # both calls wait for the device
        block.alive = False
        self.used[block.device] -= 0 if pinned else block.size
        ctypes.memset(block.base, 0xDD, block.size)
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        return self._freed(address.value, False)

    def cuMemHostAlloc(self, place: Any, size: Any, flags: Any) -> int:
        self._ready()
        if self._capturing():
            return CAPTURING
        place._obj.value = self._block(size.value, True).base
        return 0

    def cuMemFreeHost(self, address: Any) -> int:
        return self._freed(address.value, True)

    def adopt(self, address: int, size: int) -> None:
        """Memory of this process is the first device's: another library's allocator took it."""
        if not any(b.base == address and b.size == size and b.alive for b in self.blocks):
            self.blocks.append(Allocation(len(self.blocks), address, size, None, False))

    def holder(self, low: int, size: int, name: str) -> Allocation:
        """The living block that has so many bytes. Raises: Violation."""
        for block in self.blocks:
            if block.base <= low and low + size <= block.base + block.size and block.alive:
                return block
        for block in self.blocks:
            if block.base <= low < block.base + block.size:
                why = "beyond the end of its block" if block.alive else "that was freed"
                raise Violation(f"{name} touches {size} bytes at {low:#x}, {why}")
        raise Violation(f"{name} touches {size} bytes at {low:#x}: no memory of the device")

    # -- order

    def cuStreamCreate(self, place: Any, flags: Any) -> int:
        place._obj.value = self._new(Stream(self.next + 0x10, device=self._ready()))
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:
        self._run(self._stream(stream))
        del self.handles[stream.value]
        return 0

    def cuStreamSynchronize(self, handle: Any) -> int:
        self._ready()
        stream = self._stream(handle)
        if self._capturing():
            return CAPTURING
        self._run(stream)
        _merge(self.host, stream.clock)
        return 0

    def cuEventCreate(self, place: Any, flags: Any) -> int:
        place._obj.value = self._new(Event(device=self._ready(), timed=not flags.value & 2))
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self._handle(event, Event)
        del self.handles[event.value]
        return 0

    def cuEventRecord(self, handle: Any, stream: Any) -> int:
        event, own = self._handle(handle, Event), self._stream(stream)
        if event.device != own.device:
            return INVALID_HANDLE
        if own.capture is not None:
            own.broken = True
            return CAPTURING
        event.stream, event.at, event.clock = own, own.given, dict(own.clock)
        event.ms = own.ms
        return 0

    def cuStreamWaitEvent(self, stream: Any, handle: Any, flags: Any) -> int:
        event, own = self._handle(handle, Event), self._stream(stream)
        if own.capture is not None:
            own.broken = True
            return CAPTURING
        if event.stream is not None:
            _merge(own.clock, event.clock)
            own.queue.append((event.stream, event.at))
        return 0

    def cuEventSynchronize(self, handle: Any) -> int:
        event = self._handle(handle, Event)
        if self._capturing():
            return CAPTURING
        if event.stream is not None:
            self._run(event.stream, event.at)
            _merge(self.host, event.clock)
        return 0

    def cuEventElapsedTime(self, place: Any, first: Any, last: Any) -> int:
        events = [self._handle(event, Event) for event in (first, last)]
        if not all(e.timed and e.stream is not None for e in events):
            return INVALID_HANDLE
        if any(e.stream.done < e.at for e in events):
            return NOT_READY
        place._obj.value = events[1].ms - events[0].ms
        return 0

    def _run(self, stream: Stream, upto: int | None = None) -> None:
        upto = stream.given if upto is None else upto
        while stream.queue and (stream.done < upto or isinstance(stream.queue[0], tuple)):
            step = stream.queue.pop(0)
            if isinstance(step, tuple):
                self._run(*step)
                continue
            stream.done += 1
            step.run()

    def _everything(self) -> None:
        for stream in [s for s in self.handles.values() if isinstance(s, Stream)]:
            self._run(stream)
            _merge(self.host, stream.clock)

    def _give(self, handle: Any, step: Step) -> int:
        """A step for a stream, or for the graph that it captures."""
        self._ready()
        stream = self._stream(handle)
        self._of_here(stream, f"the stream of {step.name}")
        step.blocks = [self.holder(low, high - low, step.name) for low, high, _ in step.touches]
        if stream.capture is not None:
            stream.capture.append(step)
            return 0
        _merge(stream.clock, self.host)
        stream.tick += 1
        stream.given += 1
        stream.ms += step.ms
        stream.clock[stream.number] = stream.tick
        self._dated(stream, [step])
        stream.queue.append(step)
        return 0

    def _dated(self, stream: Stream, steps: Sequence[Step]) -> None:
        """Raises: Violation where nothing puts an access after an earlier one of its place."""
        for step in steps:
            for (low, high, writes), block in zip(step.touches, step.blocks, strict=True):
                for other_low, other_high, wrote, other, tick, name in block.past:
                    meets = low < other_high and other_low < high and (writes or wrote)
                    if meets and stream.clock.get(other, 0) < tick:
                        what = f"{step.name} and {name} touch the same memory in two streams"
                        raise Violation(f"{what}, and no event puts them in order")
                own = (low, high, writes, stream.number, stream.tick, step.name)
                block.past = [p for p in block.past if not _hidden(p, own)]
                block.past.append(own)

    # -- copies

    def _copy(self, to: int, source: int, size: int, stream: Any, name: str) -> int:
        touches = [(source, source + size, False), (to, to + size, True)]
        touches = [t for t in touches if self._known(t[0])]
        data = None if self._known(source) else ctypes.string_at(source, size)

        def run() -> None:
            ctypes.memmove(to, source if data is None else data, size)

        return self._give(stream, Step(name, run, touches))

    def _known(self, address: int) -> bool:
        return any(b.base <= address < b.base + b.size for b in self.blocks)

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        self._on_device(to.value, size.value, "a copy to the device")
        return self._copy(to.value, source.value, size.value, stream, "a copy to the device")

    def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        self._on_device(source.value, size.value, "a copy to the host")
        return self._copy(to.value, source.value, size.value, stream, "a copy to the host")

    def cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        for place in (to, source):
            self._on_device(place.value, size.value, "a copy on the device")
        return self._copy(to.value, source.value, size.value, stream, "a copy on the device")

    def cuMemcpy3DAsync_v2(self, place: Any, stream: Any) -> int:
        """Rows on the device, by pitches: what is touched, and nothing between rows."""
        how = place._obj
        name = "a copy of rows on the device"
        if how.to_kind != 2 or how.source_kind != 2 or not how.width:
            return INVALID
        sides = {}
        for side in ("to", "source"):
            at, pitch, high = (getattr(how, f"{side}_{n}") for n in ("device", "pitch", "height"))
            if pitch < how.width or high < how.height:
                return INVALID
            places = [(z, y) for z in range(how.depth) for y in range(how.height)]
            sides[side] = [at + (z * high + y) * pitch for z, y in places]
        size, pairs = how.width, list(zip(sides["to"], sides["source"], strict=True))
        for address in (a for pair in pairs for a in pair):
            self._on_device(address, size, name)

        def run() -> None:
            for to, source in pairs:
                ctypes.memmove(to, source, size)

        touches = [(a, a + size, a == to) for to, source in pairs for a in (source, to)]
        return self._give(stream, Step(name, run, touches))

    def cuMemcpyPeerAsync(
        self, to: Any, to_context: Any, source: Any, source_context: Any, size: Any, stream: Any
    ) -> int:
        name = "a copy from device to device"
        for place, context in ((to, to_context), (source, source_context)):
            self._on_device(place.value, size.value, name)
            device = self.holder(place.value, size.value, name).device
            if device != context.value - 1:
                raise Violation(f"{name}: memory of device {device}, a context of another")
        return self._copy(to.value, source.value, size.value, stream, name)

    def cuMemsetD8Async(self, to: Any, byte: Any, size: Any, stream: Any) -> int:
        self._on_device(to.value, size.value, "a fill")
        touches = [(to.value, to.value + size.value, True)]
        number = byte.value

        def run() -> None:
            ctypes.memset(to.value, number, size.value)

        return self._give(stream, Step("a fill", run, touches))

    def _on_device(self, address: int, size: int, name: str) -> None:
        if self.holder(address, size, name).pinned:
            raise Violation(f"{name}: {address:#x} is memory of the host")

    # -- launches

    def cuLaunchKernelEx(self, config: Any, function: Any, places: Any, extra: Any) -> int:
        how = config._obj
        name, kinds, device = self._handle(function, tuple)
        kernel = self.kernels.get(name)
        if device != self._ready():
            raise Violation(f"{name} is code of device {device}, not of {self._ready()}")
        if kernel is None:
            raise Violation(f"the fake has no kernel {name}")
        if how.bx > 1024 or not how.bx or not how.gx:
            return INVALID
        count = len(places) if kinds is None else len(kinds)
        types = [TYPES[k] for k in kinds] if kinds is not None else [ctypes.c_uint64] * count
        values = [t.from_address(a).value for t, a in zip(types, places, strict=False)]
        if len(values) != len(types):
            raise Violation(f"{name} takes {len(types)} arguments, not {len(values)}")
        if kernel.touched is not None:
            parts = [(low, low + size, writes) for low, size, writes in kernel.touched(values)]
        else:
            blocks = [self.holder(v, 0, name) for v in values if self._known(v)]
            parts = [(b.base, b.base + b.size, True) for b in blocks]
        for low, high, _ in parts:
            self._of_here(self.holder(low, high - low, name), f"memory that {name} touches")
        blocks, threads = how.gx, how.bx

        def run() -> None:
            self.launched.append((name, blocks, threads))
            kernel.run(values, blocks, threads)
            for block in [b for b in self.blocks if b.memory is not None]:
                if ctypes.string_at(block.base + block.size, FENCE) != bytes([FILLED]) * FENCE:
                    raise Violation(f"{name} writes beyond the end of its memory")

        touches = [p for p in parts if p[0] < p[1]]
        return self._give(
            how.stream, Step(name, run, touches, ms=self.lasts(name, blocks, threads))
        )

    def cuStreamBeginCapture_v2(self, handle: Any, mode: Any) -> int:
        stream = self._stream(handle)
        if stream.capture is not None:
            return INVALID
        stream.capture, stream.broken = [], False
        return 0

    def cuStreamEndCapture(self, handle: Any, place: Any) -> int:
        stream = self._stream(handle)
        steps, stream.capture = stream.capture, None
        if steps is None:
            return INVALID
        if stream.broken:
            return INVALIDATED
        place._obj.value = self._new(steps)
        return 0

    def cuGraphInstantiateWithFlags(self, place: Any, graph: Any, flags: Any) -> int:
        place._obj.value = self._new(tuple(self._handle(graph, list)))
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        self._handle(graph, list)
        del self.handles[graph.value]
        return 0

    def cuGraphExecDestroy(self, graph: Any) -> int:
        self._handle(graph, tuple)
        del self.handles[graph.value]
        return 0

    def cuGraphLaunch(self, graph: Any, stream: Any) -> int:
        steps = self._handle(graph, tuple)
        for step in steps:
            for block in step.blocks:
                if not block.alive:
                    raise Violation(f"{step.name} of a graph touches memory that was freed")
        touches = [t for step in steps for t in step.touches]

        def run() -> None:
            for step in steps:
                step.run()

        ms = sum(step.ms for step in steps)
        return self._give(stream, Step("a graph", run, touches, ms=ms))


def _elf(address: int) -> bytes:
    """All of an ELF file in memory: its table of sections is the last part."""
    head = ctypes.string_at(address, 64)
    tables = [int.from_bytes(head[at : at + 8], "little") for at in (32, 40)]
    sizes = [int.from_bytes(head[at : at + 2], "little") for at in (54, 56, 58, 60)]
    ends = tables[0] + sizes[0] * sizes[1], tables[1] + sizes[2] * sizes[3]
    return ctypes.string_at(address, max(ends))


def _merge(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        clock[stream] = max(tick, clock.get(stream, 0))


def _hidden(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Whether whoever comes after the new access comes after the old one, too."""
    inside = new[0] <= old[0] and old[1] <= new[1]
    return bool(inside and (new[2] or (not old[2] and old[3] == new[3])))
