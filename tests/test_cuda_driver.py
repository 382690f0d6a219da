"""The driver on a libcuda that is none, which keeps the contract; and what breaks the contract."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cuda import FakeCuda, Kernel, Violation
from pullback.backends.cuda import driver as cuda
from pullback.backends.cuda.driver import Driver, Launching
from pullback.errors import DeviceError

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry double_it(
  .param .u64 .ptr .global .align 4 x,
  .param .u64 n
)
{
  ret;
}
"""
COUNT = 100


def doubled(values: Sequence[Any], blocks: int, threads: int) -> None:
    address, count = values
    assert blocks * threads >= count
    array = (ctypes.c_float * count).from_address(address)
    np.frombuffer(array, np.float32)[:] *= 2


@pytest.fixture
def fake() -> FakeCuda:
    made = FakeCuda()
    made.kernels["double_it"] = Kernel(doubled, lambda v: [(v[0], 4 * v[1], True)])
    return made


def opened(fake: FakeCuda) -> Driver:
    """The driver, in whose context this thread is from here on."""
    made = Driver(fake)
    fake.cuCtxPushCurrent_v2(made._context)
    return made


class Room:
    """A driver with a kernel, an array on the device and one that is pinned."""

    def __init__(self, fake: FakeCuda) -> None:
        self.driver = opened(fake)
        self.double = self.driver.function(self.driver.module(PTX), "double_it")
        self.stream, self.copies = self.driver.stream(), self.driver.stream()
        self.device = self.driver.allocate(4 * COUNT)
        self.pinned = self.driver.pinned(4 * COUNT)
        buffer = (ctypes.c_float * COUNT).from_address(self.pinned)
        self.host = np.frombuffer(buffer, np.float32)
        self.host[:] = np.arange(COUNT)
        self.event = self.driver.event()

    def launch(self, stream: int | None = None, address: int | None = None) -> None:
        given = [ctypes.c_uint64(address or self.device), ctypes.c_uint64(COUNT)]
        self.driver.launch(self.double, Launching(1, 128), given, stream or self.stream)

    def up(self, stream: int) -> None:
        self.driver.to_device(self.device, self.pinned, 4 * COUNT, stream)

    def down(self, stream: int) -> None:
        self.driver.to_host(self.pinned, self.device, 4 * COUNT, stream)


@pytest.fixture
def room(fake: FakeCuda) -> Room:
    return Room(fake)


def test_a_kernel_between_two_copies(room: Room) -> None:
    assert (room.driver.capability, room.driver.processors, room.driver.version) == (90, 4, 12080)
    room.up(room.stream)
    room.launch()
    room.down(room.stream)
    np.testing.assert_array_equal(room.host, np.arange(COUNT))  # nobody waited yet
    room.driver.wait(room.stream)
    np.testing.assert_array_equal(room.host, 2 * np.arange(COUNT))


def test_streams_in_order_by_an_event(room: Room) -> None:
    room.up(room.copies)
    room.driver.mark(room.event, room.copies)
    room.driver.after(room.stream, room.event)
    room.launch()
    room.down(room.stream)
    room.driver.wait(room.stream)
    np.testing.assert_array_equal(room.host, 2 * np.arange(COUNT))


def test_time_between_events(room: Room) -> None:
    """Of a kernel as long as the test says; of marks that are reached, and take times."""
    room.driver.api.lasts = lambda name, blocks, threads: blocks * threads / 100
    first, last = room.driver.event(timed=True), room.driver.event(timed=True)
    room.driver.mark(first, room.stream)
    room.launch()
    room.driver.mark(last, room.stream)
    with pytest.raises(DeviceError, match="NOT_READY"):
        room.driver.between(first, last)
    room.driver.reached(last)
    assert room.driver.between(first, last) == pytest.approx(1.28)
    room.driver.mark(room.event, room.stream)
    with pytest.raises(DeviceError, match="INVALID_HANDLE"):
        room.driver.between(first, room.event)


def test_a_missing_event_is_told(room: Room) -> None:
    room.up(room.copies)
    with pytest.raises(Violation, match=r"no event puts them in order"):
        room.launch()


def test_an_event_of_too_early_is_told(room: Room) -> None:
    room.driver.mark(room.event, room.copies)
    room.up(room.copies)
    room.driver.after(room.stream, room.event)
    with pytest.raises(Violation, match="double_it and a copy to the device"):
        room.launch()


def test_waiting_for_a_stream_is_an_order_too(room: Room) -> None:
    room.up(room.copies)
    room.driver.wait(room.copies)
    room.launch()
    room.driver.reached(room.event)  # never recorded: nothing to wait for


def test_a_launch_on_the_wrong_stream_is_told(room: Room) -> None:
    room.up(room.stream)
    with pytest.raises(Violation, match="two streams"):
        room.launch(room.copies)


def test_use_after_free_is_told(room: Room) -> None:
    room.driver.free(room.device)
    with pytest.raises(Violation, match="was freed"):
        room.launch()
    with pytest.raises(Violation, match="no block begins there"):
        room.driver.free(room.device)


def test_a_copy_beyond_the_end_is_told(room: Room) -> None:
    with pytest.raises(Violation, match="beyond the end"):
        room.driver.to_device(room.device + 4, room.pinned, 4 * COUNT, room.stream)


def test_memory_of_the_host_is_none_of_the_device(room: Room) -> None:
    with pytest.raises(Violation, match="memory of the host"):
        room.driver.fill(room.pinned, 0, 4, room.stream)


def test_a_graph_runs_again(room: Room) -> None:
    room.up(room.stream)
    with room.driver.capture(room.stream) as made:
        room.launch()
        room.launch()
    for _ in range(3):
        room.driver.replay(made[0], room.stream)
    room.down(room.stream)
    room.driver.wait(room.stream)
    np.testing.assert_array_equal(room.host, 64 * np.arange(COUNT))
    room.driver.end_graph(made[0])
    with pytest.raises(Violation, match="no longer"):
        room.driver.replay(made[0], room.stream)


def test_an_address_that_is_gone_under_a_graph_is_told(room: Room) -> None:
    with room.driver.capture(room.stream) as made:
        room.launch()
    room.driver.free(room.device)
    room.device = room.driver.allocate(4 * COUNT)
    with pytest.raises(Violation, match="a graph touches memory that was freed"):
        room.driver.replay(made[0], room.stream)


@pytest.mark.parametrize("what", ["wait", "allocate", "free", "reached"])
def test_nothing_waits_while_a_graph_is_captured(room: Room, what: str) -> None:
    driver = room.driver
    actions = {
        "wait": lambda: driver.wait(room.copies),
        "allocate": lambda: driver.allocate(8),
        "free": lambda: driver.free(room.device),
        "reached": lambda: driver.reached(room.event),
    }
    with (
        pytest.raises(DeviceError, match="STREAM_CAPTURE_UNSUPPORTED") as error,
        driver.capture(room.stream),
    ):
        room.launch()
        actions[what]()
    assert error.value.code == "E445"
    room.launch()  # the stream is as it was
    driver.wait(room.stream)


def test_a_capture_that_was_broken_is_told(room: Room, fake: FakeCuda) -> None:
    with (
        pytest.raises(DeviceError, match="CAPTURE_INVALIDATED"),
        room.driver.capture(room.stream),
    ):
        fake.cuStreamSynchronize(ctypes.c_void_p(room.copies))


def test_parameters_are_packed_as_the_driver_reads_them(fake: FakeCuda) -> None:
    seen: list[Sequence[Any]] = []
    fake.kernels["mixed"] = Kernel(lambda values, *_: seen.append(values), lambda values: [])
    text = PTX.replace(b"double_it", b"mixed").replace(b".param .u64 n", b".param .u32 n,\n"
        b" .param .f32 a, .param .f64 b")  # fmt: skip
    driver = opened(fake)
    function, stream = driver.function(driver.module(text), "mixed"), driver.stream()
    given = [ctypes.c_uint64(1 << 40), ctypes.c_uint32(7), ctypes.c_float(0.5), ctypes.c_double(3)]
    driver.launch(function, Launching(2, 64, shared=64 * 1024, cluster=2), given, stream)
    driver.wait(stream)
    assert seen == [[1 << 40, 7, 0.5, 3.0]] and fake.launched == [("mixed", 4, 64)]
    assert ctypes.sizeof(cuda.LaunchConfig) == 56 and ctypes.sizeof(cuda._Value) == 72


# --- what is wrong outside


def code_of(call: Any) -> DeviceError:
    with pytest.raises(DeviceError) as error:
        call()
    return error.value


def test_no_device() -> None:
    assert code_of(lambda: Driver(FakeCuda(devices=0))).code == "E440"
    error = code_of(lambda: Driver(FakeCuda(), 1))
    assert error.code == "E440" and "cuda:1" in str(error)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    error = code_of(lambda: cuda.library("libabsent.so"))
    assert error.code == "E440" and cuda.VARIABLE in str(error)


@pytest.mark.parametrize("status", cuda.TOO_OLD)
def test_a_driver_that_is_too_old(status: int) -> None:
    assert code_of(lambda: Driver(SimpleNamespace(cuInit=lambda _: status))).code == "E441"


@pytest.mark.parametrize(
    ("old", "new"),
    [(b".version 8.0", b".version 9.9"), (b".target sm_80", b".target sm_120"),
     (b".version", b"version")],
)  # fmt: skip
def test_code_that_the_driver_does_not_take(fake: FakeCuda, old: bytes, new: bytes) -> None:
    error = code_of(lambda: opened(fake).module(PTX.replace(old, new)))
    assert error.code == "E441" and "sm_90" in str(error)


def test_out_of_memory_says_what_was_planned() -> None:
    driver = opened(FakeCuda(total=1000))
    driver.allocate(600)
    error = code_of(lambda: driver.allocate(500, "3 launches, 480 bytes of values"))
    assert error.code == "E442"
    assert "400 of 1000 bytes left, 500" in str(error) and "3 launches" in str(error)


def test_architectures() -> None:
    assert [cuda.architecture(n) for n in (80, 90, 100)] == ["sm_80", "sm_90", "sm_100"]
    assert cuda.architecture(88) == "sm_87"  # an older one of its generation
    for unknown in (50, 130):
        assert code_of(lambda unknown=unknown: cuda.architecture(unknown)).code == "E443"


def test_a_forked_process_is_told(fake: FakeCuda) -> None:
    driver = Driver(fake)
    driver.process = -1
    assert code_of(lambda: driver.here().__enter__()).code == "E440"


def test_the_context_of_before_is_there_after(fake: FakeCuda) -> None:
    """Who else uses devices in this thread, such as PyTorch, goes on with its own."""
    fake.devices, fake.used = 2, [0, 0]
    first, second = Driver(fake), Driver(fake, 1)
    assert fake.contexts == []
    with first.here():
        with second.here():
            assert fake.contexts == [1, 2]
            assert second.ordinal_of(second.allocate(8)) == 1
        with pytest.raises(DeviceError), second.here():
            first.ordinal_of(1)
        assert fake.contexts == [1]
        stream = first.stream()
    with second.here(), pytest.raises(Violation, match="is of device 0"):
        second.fill(second.allocate(8), 0, 8, stream)
    assert fake.contexts == []


def test_a_kernel_that_is_not_there(fake: FakeCuda) -> None:
    driver = opened(fake)
    error = code_of(lambda: driver.function(driver.module(PTX), "other"))
    assert error.code == "E445" and "NOT_FOUND" in str(error)


def test_a_device_is_opened_once(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses belong to one driver, however it was asked for."""
    monkeypatch.setattr(cuda, "library", lambda chosen: fake)
    cuda._opened.cache_clear()
    try:
        assert cuda.driver() is cuda.driver(0)
    finally:
        cuda._opened.cache_clear()
