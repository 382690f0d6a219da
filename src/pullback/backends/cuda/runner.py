"""Runs a program on a device: its arena by the memory plan, launches in order on one stream.

Launches that follow one another in a loop are captured once and replayed; a loop's counter is
counted on the device. What decides a branch or a loop is read by the host. Feeders fill pinned
memory, which a second stream copies while the first computes; receivers get snapshots later.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from pullback.backends.base import Call, Image, lined
from pullback.backends.cuda.code import COUNT, COUNTING, ERROR_BYTES, CudaCode, Entry
from pullback.backends.cuda.driver import Driver, Launching
from pullback.backends.cuda.exchange import Feeding, Held, Outgoing
from pullback.backends.cuda.extents import Planned, Rooms, boxed, leading, lies
from pullback.backends.cuda.memory import Pointed, Resident
from pullback.backends.cuda.pool import pool_of
from pullback.backends.host.exchange import OUTSIDE, box, call_host
from pullback.errors import DeviceError, FeedError, IndexRangeError, InvalidIR, UnsupportedError
from pullback.ir import program as P
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel

Array = np.ndarray[Any, Any]
# Of a pointer, bytes: code reads and writes whole vectors. Memory of the device begins at 256.
ALIGNED = 16


class Ended(Exception):
    """A feeder has no more batches."""


class CudaRunner:
    """A program on a device; its memory is taken at the first run and kept."""

    def __init__(self, image: Image, driver: Driver) -> None:
        self.image, self.driver = image, driver
        self.launches = 0
        self.replays = 0
        self._lock = threading.Lock()
        self._order = {
            item: n
            for n, item in enumerate(i for i in P.items(image.block) if isinstance(i, P.Launch))
        }
        self._errors, self._error_bytes = _errors(image)
        self._watched = any(len(call.sites) > 1 for call in image.calls.values())
        self._functions: dict[CudaCode, list[tuple[int, Entry]]] = {}
        self._held = Held(driver)
        self._graphs: dict[P.Launch, int] = {}
        self._entire = _entire(image.block)
        self._plans, self._plan = Planned(image.plan, self._entire), image.plan
        self._sizes: dict[str, int] | None = None
        self._rooms: Rooms | None = None
        self._reads, self._whole = _read(image.block), _whole(image)
        self._written = {*P.written(image.block), *image.written}
        self._bound: dict[Variable, int] = {}
        self._loops = any(isinstance(i, P.Loop) for i in P.items(image.block))

    # -- what a run needs

    @property
    def _planned(self) -> str:
        """What the memory is for, for who has not enough."""
        most, kept = self._plan.arena_bytes, sum(map(self._bytes, self.image.state))
        what = f"the plan has {len(self._order)} launches, {most} bytes of temporaries"
        return f"{what}, {kept} of what outlives a run"

    def _prepared(self) -> None:
        """Streams and code, made once. Raises: DeviceError."""
        if self._rooms is not None:
            return
        driver, image, held = self.driver, self.image, self._held
        done = self._done = driver.event()
        weakref.finalize(self, _freed, driver, held, done).atexit = False
        rooms, pool = Rooms(driver, held, done), pool_of(driver)
        self._wrong = held.keep(pool.give, pool.take(self._error_bytes, self._planned))
        self.stream, self.copies = (held.keep(driver.end_stream, driver.stream()) for _ in range(2))
        for code in image.codes:
            own: CudaCode = code.engine
            if own not in self._functions:
                images = [held.keep(driver.unload, driver.module(i)) for i in own.images]
                self._functions[own] = [
                    (driver.function(images[e.image], e.name, e.shared), e) for e in own.entries
                ]
        self._count = driver.function(held.keep(driver.unload, driver.module(COUNTING)), COUNT)
        self._now = self.stream
        self._feeding = Feeding(driver, self.stream, self.copies, held)
        self._outgoing = Outgoing(driver, self.stream, held)
        self._rooms = rooms

    def _address(self, variable: Variable) -> int:
        assert self._rooms is not None
        own = self._bound.get(variable) or self._rooms.at(variable)
        return self._arena + self._plan.offsets[variable] if own is None else own

    def _bytes(self, variable: Variable) -> int:
        """Of a variable in this run; feeders and receivers know it by its bounds alone."""
        return leading(variable, {} if variable in self._entire else self._sizes or {})

    # -- a run

    def run(
        self,
        bindings: Mapping[Variable, Any],
        sizes: Mapping[str, int],
        stream: int | None = None,
    ) -> None:
        """Run on arrays of the host or of the device. `stream`: another library's, in whose order
        all of it stands; the host waits then for what it checks and for arrays of its own alone.

        Raises: IndexRangeError at the user's line, DeviceError, UnsupportedError for an array of
            another device, what callbacks raise.
        """
        with self._lock, self.driver.here():
            self._prepared()
            self._sized(sizes)
            self._turn(self.stream if stream is None else stream)
            self.launches = self.replays = 0
            self._feeding.begin()
            self._outgoing.begin()
            waits = True
            try:
                self._given(bindings)
                self._items()
                if stream is None or self._watched:
                    self._checked()
                waits = self._back(bindings) or stream is None
            finally:  # whoever has the memory next need not wait
                self.driver.mark(self._done, self._now)
                if waits:
                    self.driver.wait(self.copies)
                    self.driver.wait(self._now)

    def repeated(self, times: int) -> Callable[[], float]:
        """What the last run launched outside of loops and branches, so often in one graph: each
        call replays it, and gives the nanoseconds of one time, between two events.
        """
        driver, held = self.driver, self._held
        row = [item for item in self.image.block if isinstance(item, P.Launch)]
        with self._lock, driver.here():
            first, last = (held.keep(driver.end_event, driver.event(timed=True)) for _ in range(2))
            with driver.capture(self.stream) as made:
                for item in times * row:
                    self._launch(item.kernel, self._order[item])
            graph = held.keep(driver.end_graph, made[0])

        def ns() -> float:
            with self._lock, driver.here():
                driver.mark(first, self.stream)
                driver.replay(graph, self.stream)
                driver.mark(last, self.stream)
                driver.reached(last)
                return 1e6 * driver.between(first, last) / times

        return ns

    def _turn(self, stream: int) -> None:
        """What the stream is given next comes after the run before, which used the same memory."""
        if stream != self._now:
            self.driver.after(stream, self._done)
        self._now = stream

    def _back(self, bindings: Mapping[Variable, Any]) -> bool:
        """What is written goes to where it is wanted; whether some of that is the host's."""
        host = False
        for variable, array in bindings.items():
            if variable in self._written and variable not in self._bound:
                self._down(variable, array)
                host = host or not isinstance(array, Resident)
        return host

    def _given(self, bindings: Mapping[Variable, Any]) -> None:
        """What the program reads is on its way to where it reads it."""
        self.driver.fill(self._wrong, 0, self._error_bytes, self._now)
        self._places(bindings)
        for variable, array in bindings.items():
            wanted = variable in self._reads or variable not in self._whole
            if wanted and variable not in self._bound:
                self._up(variable, array)

    def _items(self) -> None:
        """All items. Raises: FeedError, what callbacks raise."""
        try:
            self._block(self.image.block, False)
        except Ended:
            raise FeedError(OUTSIDE, code="E413") from None
        finally:
            self._outgoing.finish()

    def room(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Resident:
        """An array of this device, which a run takes by its address."""
        return Resident(self.driver, shape, kind, self._planned)

    def at(
        self, address: int, shape: tuple[int, ...], kind: np.dtype[Any], nbytes: int
    ) -> Resident:
        """Memory of another library as a run takes it, in the order of its stream."""
        return Pointed(self.driver, shape, kind, address, nbytes)

    def _places(self, bindings: Mapping[Variable, Array | Resident]) -> None:
        """What lies on the device is used where it lies; but graphs, which loops are, have their
        addresses for good: theirs is copied on the device, as is what begins inside of a vector.

        Raises: UnsupportedError for an array of another device.
        """
        self._bound = {}
        for variable, array in bindings.items():
            if isinstance(array, Resident):
                if array.driver is not self.driver:
                    own = f"cuda:{self.driver.ordinal}"
                    what = f"`{variable.name}` lies on {array.device}, the program runs on {own}"
                    help_ = f'.to("{own}"), or pb.Options(.., target="{array.device}")'
                    raise UnsupportedError(what, help=help_, code="E314")
                array.awaited(self._now)
                if not self._loops and array.nbytes and self._fits(variable, array):
                    self._bound[variable] = array.address
        for variable in self.image.state:
            if variable not in self._bound:
                self._room(variable, self._bytes(variable))

    def _fits(self, variable: Variable, array: Resident) -> bool:
        """Whether code takes an array where it lies."""
        whole = array.shape == box(variable) or variable not in self._entire
        return whole and array.address % ALIGNED == 0 and lies(variable, array.shape)

    def _sized(self, sizes: Mapping[str, int]) -> None:
        """Memory for the extents of a run. Graphs have those that they were captured with, and the
        addresses: what moves does so where extents differ.
        """
        if self._sizes == sizes:
            return
        for graph in self._graphs.values():
            self._held.end(graph)
        self._graphs.clear()
        self._sizes, self._plan = None, self._plans.of(sizes)
        self._arena = self._room(None, self._plan.arena_bytes)
        self._sizes = dict(sizes)

    def _room(self, what: Variable | None, size: int) -> int:
        """Memory of so many bytes; None: the arena."""
        assert self._rooms is not None
        return self._rooms.wanted(what, size, self._planned)

    def _up(self, variable: Variable, array: Array | Resident) -> None:
        size = self._bytes(variable)
        if isinstance(array, Resident):
            for wide, dense, block in boxed(variable, self._address(variable), array):
                self.driver.rows(wide, dense, block, self._now)
            return
        if not array.flags.c_contiguous:
            raise InvalidIR(f"{variable} is not contiguous")
        self.driver.to_device(self._address(variable), array.ctypes.data, size, self._now)

    def _down(self, variable: Variable, array: Array | Resident) -> None:
        size = self._bytes(variable)
        if isinstance(array, Resident):
            for wide, dense, block in boxed(variable, self._address(variable), array):
                self.driver.rows(dense, wide, block, self._now)
            return
        self.driver.to_host(array.ctypes.data, self._address(variable), size, self._now)

    def _checked(self) -> None:
        """Raises: IndexRangeError for what a check of an index told."""
        words = np.zeros(self._error_bytes // 8, np.int64)
        self.driver.to_host(words.ctypes.data, self._wrong, words.nbytes, self._now)
        self.driver.wait(self._now)
        for call, at in self._errors.items():
            code: CudaCode = call.parts[0].code.engine
            wrong = code.failed(words[at // 8 : (at + code.error_bytes) // 8].tolist())
            if wrong is not None:
                raise IndexRangeError.checked(wrong[1], call.sites[wrong[0]])

    # -- items

    def _block(self, block: P.Block, again: bool) -> None:
        """Items in order; `again`: of a loop, whose launches are captured."""
        row: list[P.Launch] = []
        for item in block:
            if isinstance(item, P.Launch):
                row.append(item)
                continue
            self._launched(row, again)
            row = []
            self._item(item)
        self._launched(row, again)

    def _item(self, item: P.Item) -> None:
        if isinstance(item, P.Loop):
            self._loop(item)
        elif isinstance(item, P.Branch):
            chosen = item.then if self._truth(item.predicate) else item.otherwise
            self._block(chosen, False)
        elif isinstance(item, P.Feed):
            if not self._feeding.feed(item, [self._address(v) for v in item.targets]):
                raise Ended
        elif isinstance(item, P.Receive):
            self._outgoing.receive(item, [self._address(v) for v in item.sources])
        elif isinstance(item, P.HostCall):
            self._host(item)
        else:
            raise InvalidIR(f"{type(item).__name__} in a fused program")

    def _loop(self, loop: P.Loop) -> None:
        if loop.counter is not None:
            start = np.array(loop.start, np.int64)
            self._up(loop.counter, start)
        for _ in range(loop.count):
            if loop.condition is not None and not self._truth(loop.condition):
                return
            try:
                self._block(loop.body, True)
            except Ended:
                return
            if loop.counter is not None:
                given = ctypes.c_uint64(self._address(loop.counter)), ctypes.c_int64(loop.step)
                self.driver.launch(self._count, Launching(1, 1), given, self._now)

    def _truth(self, variable: Variable) -> bool:
        array = np.zeros((), np.bool_)
        self._down(variable, array)
        self.driver.wait(self._now)
        return bool(array)

    def _host(self, item: P.HostCall) -> None:
        boxes = [np.zeros(box(v), v.dtype.numpy) for v in item.sources]
        for variable, array in zip(item.sources, boxes, strict=True):
            self._down(variable, array)
        self.driver.wait(self._now)
        if item.writes:
            what = f"{item.name} by {item.library} in a program that runs on a GPU"
            raise UnsupportedError(what, origin=item.origin, code="E617")
        made = call_host(item, boxes, self._sizes or {})
        for variable, array in zip(item.targets, made, strict=True):
            whole = np.zeros(box(variable), variable.dtype.numpy)
            whole[tuple(map(slice, array.shape))] = array
            self._up(variable, whole)

    # -- launches

    def _launched(self, row: Sequence[P.Launch], again: bool) -> None:
        """Launches that follow one another; of a loop, as a graph from the first time on."""
        self.launches += len(row)
        if not again or not row:
            for item in row:
                self._launch(item.kernel, self._order[item])
            return
        graph = self._graphs.get(row[0])
        if graph is None:
            now, self._now = self._now, self.stream  # others' streams may be none to capture
            with self.driver.capture(self._now) as made:
                for item in row:
                    self._launch(item.kernel, self._order[item])
            self._now = now
            graph = self._graphs[row[0]] = self._held.keep(self.driver.end_graph, made[0])
        self.replays += 1
        self.driver.replay(graph, self._now)

    def _launch(self, kernel: Kernel, number: int) -> None:
        call, plan, sizes = self.image.calls[kernel], self._plan, self._sizes or {}
        shared, scratch = (self._arena + at[number] for at in (plan.shared, plan.scratch))
        errors = self._wrong + self._errors[call]
        for part in call.parts:
            facts = part.code.stored
            words = [self._address(v) for v in part.arguments]
            for size in facts.shared:
                words.append(shared)
                shared += lined(size)
            words += [sizes[name] for name in facts.sizes]
            code: CudaCode = part.code.engine
            begin = -(-scratch // code.align) * code.align
            for function, entry in self._functions[code]:
                how = entry.how(sizes)
                if how is not None:
                    own = entry.words([*words, errors, begin], code.error)
                    self.driver.launch(function, how, [*map(ctypes.c_uint64, own)], self._now)


def _errors(image: Image) -> tuple[dict[Call, int], int]:
    """Where what the checks of a launch write begins, behind what nobody checks; bytes of all."""
    starts: dict[Call, int] = {}
    end = ERROR_BYTES
    for call in image.calls.values():
        if call not in starts:
            starts[call] = end
            end += max(part.code.engine.error_bytes for part in call.parts)
    return starts, end


def _freed(driver: Driver, held: Held, done: int) -> None:
    """Once the last run is over: whoever has the memory next need not wait."""

    def end() -> None:
        with suppress(DeviceError), driver.here():  # another process, or a context that failed
            driver.reached(done)
            driver.end_event(done)
            held.end()

    driver.after_capture(end)


def _entire(block: P.Block) -> set[Variable]:
    """What feeders fill, and receivers are shown."""
    fed = [v for item in P.items(block) if isinstance(item, P.Feed) for v in item.targets]
    taken = [v for item in P.items(block) if isinstance(item, P.Receive) for v in item.sources]
    return {*fed, *taken}


def _read(block: P.Block) -> set[Variable]:
    """What launches, the host and what decides read."""
    read: set[Variable | None] = set()
    for item in P.items(block):
        if isinstance(item, P.Launch):
            read.update(item.kernel.reads)
        elif isinstance(item, P.Receive | P.HostCall):
            read.update(item.sources)
        elif isinstance(item, P.Branch):
            read.add(item.predicate)
        elif isinstance(item, P.Loop):
            read.add(item.condition)
    return {v for v in read if v is not None}


def _whole(image: Image) -> set[Variable]:
    """What is written in any case, so that its old contents are not asked for."""
    launches = [i.kernel for i in image.block if isinstance(i, P.Launch)]
    return {v for kernel in launches for v in image.calls[kernel].writes}
