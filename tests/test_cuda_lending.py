"""Arrays of a device between libraries, on a libcuda that is none; capsules are PyTorch's own."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fake_warps
import pullback as pb
from fake_cuda import Violation
from fake_warps import Warps
from pullback.backends.cuda.driver import Driver
from pullback.errors import PullbackError
from test_cuda_tensors import copies
from test_nvptx import OPTIONS, needs_c

torch = pytest.importorskip("torch")
to_dlpack, from_dlpack = torch.utils.dlpack.to_dlpack, torch.utils.dlpack.from_dlpack
pytestmark = needs_c
X = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
CPU, CUDA = 1, 2
# Where dlpack.h has things: the tensor, and within it the device, its number, code, bits, lanes.
TENSORS = {b"dltensor": 0, b"dltensor_versioned": 32}
DEVICE, ORDINAL, CODE, BITS, LANES, SHAPE, STRIDES, OFFSET = 8, 12, 20, 21, 22, 24, 32, 40
FLAGS = 24
READ_ONLY, COPIED = 1, 2
DELETERS: list[Any] = []  # for good: what fails here must not end in one that is gone
_api = ctypes.pythonapi
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api))  # fmt: skip
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))  # fmt: skip


@pytest.fixture
def warps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warps]:
    yield fake_warps.device(monkeypatch, devices=2)[1]


def inside(capsule: Any) -> tuple[int, int]:
    """Where the structure of a capsule is, and the tensor in it."""
    name = next(n for n in TENSORS if _valid(capsule, n))
    place = _pointer(capsule, name)
    return place, place + TENSORS[name]


def moved(capsule: Any, device: int, ordinal: int = 0) -> Any:
    """The capsule, which tells of another device."""
    _, tensor = inside(capsule)
    ctypes.c_int32.from_address(tensor + DEVICE).value = device
    ctypes.c_int32.from_address(tensor + ORDINAL).value = ordinal
    return capsule


class Other:
    """An array of another library on the device: PyTorch's capsules over the fake's memory.

    What it holds is copied there on a stream of its own, and nobody has waited for that.
    """

    versioned = True

    def __init__(self, on: Driver, array: Any, kind: Any = None, byte: int = 0) -> None:
        self.on = on
        host = np.array(array, order="C")
        with on.here():
            self.stream = on.stream()
            self.address = on.allocate(host.nbytes + byte) + byte
            on.to_device(self.address, host.ctypes.data, host.nbytes, self.stream)
            on.wait(self.stream)
            self.late(host)
        own = (ctypes.c_ubyte * max(8, host.nbytes)).from_address(self.address)
        kind = kind or torch.from_numpy(np.zeros(1, host.dtype)).dtype
        flat = torch.frombuffer(own, dtype=kind, count=max(1, host.size))
        self.tensor = flat[: host.size].reshape(host.shape)
        self.asked: list[Any] = []

    def late(self, host: Any) -> None:
        """The contents again, after a while."""
        if host.nbytes:
            ctypes.memset(self.address, 0xEE, host.nbytes)
            self.on.to_device(self.address, host.ctypes.data, host.nbytes, self.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.on.ordinal

    def __dlpack__(self, *, stream: Any = None, **given: Any) -> Any:
        self.asked.append(stream)
        if given and not self.versioned:
            raise TypeError("no such argument")
        event = self.on.event()
        self.on.mark(event, self.stream)
        self.on.after(stream, event)
        capsule = self.tensor.__dlpack__(**given) if given else to_dlpack(self.tensor)
        return moved(capsule, CUDA, self.on.ordinal)


class Older:
    """An array of another library that knows `__cuda_array_interface__` alone."""

    def __init__(self, other: Other, **facts: Any) -> None:
        kind = np.dtype(str(other.tensor.dtype).removeprefix("torch.")).str
        shape = tuple(other.tensor.shape)
        self.own = {"shape": shape, "typestr": kind, "data": (other.address, False), "version": 3}
        self.own |= {"strides": None, "stream": other.stream, **facts}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.own


def driver(warps: Warps, ordinal: int = 0) -> Driver:
    from pullback.backends.nvptx import backend

    on: Driver = backend.driver(ordinal)
    return on


def code_of(call: Any) -> str:
    with pytest.raises(PullbackError) as error:
        call()
    return error.value.code


# --- in


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    "array",
    [X, X[0, 0], X > 0, X.astype(np.float64), (X * 9).astype(np.int8), X[:, :0],
     np.arange(7, dtype=np.int64), np.arange(7, dtype=np.uint8), X.astype(np.float16)],
    ids=lambda a: f"{a.dtype}{a.shape}",
)  # fmt: skip
def test_from_dlpack(array: Any, versioned: bool, warps: Warps) -> None:
    other = Other(driver(warps), array)
    other.versioned = versioned
    own = pb.from_dlpack(other)
    assert (own.device, own.shape, own.dtype.name) == ("cuda:0", array.shape, array.dtype.name)
    np.testing.assert_array_equal(own.numpy(), array)
    assert other.asked[-1] > 2, "a stream of ours is named"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("bfloat16", np.array([0x3F80, 0xC000], np.uint16).view(np.int16)),
     ("float8_e4m3fn", np.array([0x38, 0xC0], np.uint8)),
     ("float8_e5m2", np.array([0x3C, 0xC0], np.uint8))],
)  # fmt: skip
def test_types_that_numpy_lacks(kind: str, words: Any, warps: Warps) -> None:
    own = pb.from_dlpack(Other(driver(warps), words, getattr(torch, kind)))
    assert own.dtype == getattr(pb, kind) and own.tolist() == [1.0, -2.0]
    back = from_dlpack(moved(own.__dlpack__(max_version=(1, 0)), CPU))
    assert back.dtype == getattr(torch, kind)
    with pytest.raises(PullbackError, match=kind):
        _ = own.__cuda_array_interface__


@pytest.mark.parametrize("make", [lambda o: o, Older], ids=["dlpack", "interface"])
def test_a_program_reads_it_where_it_lies(make: Any, warps: Warps) -> None:
    """After what makes it: no copy, no wait of the host's, an event."""
    made = pb.jit(lambda x: x * 2, options=OPTIONS)
    own = pb.from_dlpack(make(Other(driver(warps), X)))
    before = copies(warps)
    result = made(own)
    assert copies(warps) == before
    np.testing.assert_array_equal(result.numpy(), X * 2)


def test_an_owner_is_kept(warps: Warps) -> None:
    ends: list[str] = []

    class Told(Older):
        def __del__(self) -> None:
            ends.append("told")

    own = pb.from_dlpack(Told(Other(driver(warps), X)))
    made = own * 1
    gc.collect()
    assert not ends, "a tensor that waits wants it"
    np.testing.assert_array_equal(made.numpy(), X)
    del own, made
    gc.collect()
    assert ends == ["told"]


def test_a_deleter_is_called_once(warps: Warps, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Other(driver(warps), X)
    with other.on.here():
        held = [other.__dlpack__(stream=other.on.stream(), max_version=(1, 0))]
        other.on.wait(other.stream)
    place, _ = inside(held[0])
    deleter = ctypes.c_void_p.from_address(place + 16)  # it follows a version, and its own context
    kind, plain, calls = ctypes.CFUNCTYPE(None, ctypes.c_void_p), deleter.value, []

    def counted(at: int) -> None:
        calls.append(at)
        kind(plain)(at)

    DELETERS.append(kept := kind(counted))
    deleter.value = ctypes.cast(kept, ctypes.c_void_p).value
    monkeypatch.setattr(Other, "__dlpack__", lambda self, **_: held[0])
    shared = pb.from_dlpack(other)
    assert code_of(lambda: pb.from_dlpack(other)) == "E318", "it was taken"
    monkeypatch.undo()
    made = shared * 1
    del shared
    held.clear()
    gc.collect()
    assert not calls
    np.testing.assert_array_equal(made.numpy(), X)
    del made
    gc.collect()
    assert calls == [place]


def test_a_capsule_that_is_refused_ends_itself(warps: Warps, monkeypatch: Any) -> None:
    other = Other(driver(warps), X)
    other.tensor = other.tensor.T
    assert code_of(lambda: pb.from_dlpack(other)) == "E318"
    other.tensor = other.tensor.T.contiguous()
    np.testing.assert_array_equal(pb.from_dlpack(other).numpy().shape, X.shape)


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [(CODE, 5, ctypes.c_uint8), (BITS, 8, ctypes.c_uint8), (LANES, 4, ctypes.c_uint16),
     (DEVICE, 10, ctypes.c_int32), (ORDINAL, 1, ctypes.c_int32), (-32, 2, ctypes.c_uint32)],
    ids=["complex", "float8", "lanes", "rocm", "ordinal", "version 2"],
)  # fmt: skip
def test_what_is_refused(field: int, value: int, kind: Any, warps: Warps) -> None:
    class Changed(Other):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            kind.from_address(inside(capsule)[1] + field).value = value
            return capsule

    assert code_of(lambda: pb.from_dlpack(Changed(driver(warps), X))) == "E318"


@pytest.mark.parametrize(
    "facts",
    [{"version": 1}, {"typestr": "<c8"}, {"typestr": ">f4"}, {"typestr": "|V2"}, {"stream": 0},
     {"mask": 1}, {"strides": (4, 20)}, {"strides": (133, 4)}],
    ids=str,
)  # fmt: skip
def test_interfaces_that_are_refused(facts: dict[str, Any], warps: Warps) -> None:
    older = Older(Other(driver(warps), X), **facts)
    assert code_of(lambda: pb.from_dlpack(older)) == "E318"


def test_interfaces_that_are_not(warps: Warps) -> None:
    on = driver(warps)
    other = Other(on, X)
    with on.here():
        on.wait(other.stream)
    for facts in ({"version": 2, "stream": None}, {"strides": (132, 4)}, {"stream": 1}, {}):
        np.testing.assert_array_equal(pb.from_dlpack(Older(other, **facts)).numpy(), X)
    empty = Older(other, shape=(0, 3), data=(0, False), strides=(5, 5))
    assert pb.from_dlpack(empty).shape == (0, 3)


def test_a_producer_that_refuses_is_told(warps: Warps) -> None:
    class Refuses(Other):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it needs a gradient")

    with pytest.raises(PullbackError, match="needs a gradient") as error:
        pb.from_dlpack(Refuses(driver(warps), X))
    assert error.value.code == "E318"


def test_elements_across_words_are_copied(warps: Warps) -> None:
    """A program takes no element from half of its address on."""
    other = Other(driver(warps), X, byte=2)
    assert code_of(lambda: pb.from_dlpack(other, copy=False)) == "E324"
    own = pb.from_dlpack(other)
    with other.on.here():
        other.on.free(other.address - 2)
    np.testing.assert_array_equal(pb.jit(lambda x: x * 2, options=OPTIONS)(own).numpy(), X * 2)


def test_copies_and_devices(warps: Warps) -> None:
    other = Other(driver(warps), X)
    copied = pb.from_dlpack(other, copy=True)
    shared = pb.from_dlpack(other, copy=False)
    assert code_of(lambda: pb.from_dlpack(other, device="cpu", copy=False)) == "E324"
    assert pb.from_dlpack(other, device="cpu").device == "cpu"
    assert pb.from_dlpack(X, device="cuda").device == "cuda:0"
    assert pb.asarray(other).device == "cuda:0" and pb.from_dlpack(shared).device == "cuda:0"
    assert pb.asarray(other, dtype="float64").dtype == pb.float64
    np.testing.assert_array_equal(shared.numpy(), X)
    with other.on.here():
        other.on.free(other.address)
    np.testing.assert_array_equal(copied.numpy(), X)
    with pytest.raises(PullbackError, match="inside a program"):
        pb.jit(lambda: pb.from_dlpack(other) * 2)()


def test_a_second_device(warps: Warps) -> None:
    for make in (lambda o: o, Older):
        own = pb.from_dlpack(make(Other(driver(warps, 1), X)))
        assert own.device == "cuda:1" and own.__dlpack_device__() == (CUDA, 1)
        np.testing.assert_array_equal(own.numpy(), X)


def test_a_state_never_writes_to_lent_memory(warps: Warps) -> None:
    other = Other(driver(warps), np.ones(3, np.float32))
    state = pb.nn.Parameter(np.zeros(3, np.float32))
    state.assign(pb.from_dlpack(other))

    def step() -> None:
        state.assign(state * 2)

    made = pb.jit(step, options=OPTIONS)
    made()
    made()
    assert state.tolist() == [4.0] * 3 and other.tensor.tolist() == [1.0] * 3


# --- out


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_a_capsule_is_a_copy(version: Any, warps: Warps) -> None:
    own = pb.tensor(X).to("cuda")
    capsule = own.__dlpack__(stream=1, max_version=version)
    place, tensor = inside(capsule)
    assert ctypes.c_int32.from_address(tensor + DEVICE).value == CUDA
    assert not (version and version[0]) or ctypes.c_uint64.from_address(place + FLAGS).value == 2
    with driver(warps).here():
        driver(warps).wait(1)  # what the default stream does comes after the copy
    made = from_dlpack(moved(capsule, CPU))
    np.testing.assert_array_equal(made.numpy(), X)
    made += 1
    np.testing.assert_array_equal(own.numpy(), X)
    del own
    gc.collect()
    np.testing.assert_array_equal(made.numpy(), X + 1)


def alive(warps: Warps) -> int:
    return sum(block.alive for block in warps.fake.blocks)


def test_its_memory_is_given_back_once(warps: Warps) -> None:
    own = pb.tensor(X).to("cuda")
    before = alive(warps)
    for taken in (True, False):
        capsule = own.__dlpack__(stream=-1, max_version=(1, 0))
        assert alive(warps) == before + 1
        made = from_dlpack(moved(capsule, CPU)) if taken else None
        del capsule
        assert alive(warps) == before + taken
        del made
        assert alive(warps) == before


def test_sharing_is_to_be_read(warps: Warps) -> None:
    own = pb.tensor(X).to("cuda")
    before = alive(warps)
    capsule = own.__dlpack__(max_version=(1, 0), copy=False)
    assert alive(warps) == before
    assert ctypes.c_uint64.from_address(inside(capsule)[0] + FLAGS).value == READ_ONLY
    made = from_dlpack(moved(capsule, CPU))
    del own, capsule
    gc.collect()
    np.testing.assert_array_equal(made.numpy(), X)
    del made
    gc.collect()
    assert alive(warps) == before - 1


def test_a_state_that_is_shared_keeps_what_was_seen(warps: Warps) -> None:
    state = pb.nn.Parameter(np.ones(3, np.float32))

    def step() -> None:
        state.assign(state * 2)

    made = pb.jit(step, options=OPTIONS)
    made()
    shared = from_dlpack(moved(state.__dlpack__(max_version=(1, 0), copy=False), CPU))
    made()
    assert (shared.tolist(), state.tolist()) == ([2.0] * 3, [4.0] * 3)
    assert code_of(lambda: state.__cuda_array_interface__) == "E324"


@pytest.mark.parametrize("stream", [None, 1, 2, "own"])
def test_who_takes_it_comes_after_the_copy(stream: Any, warps: Warps) -> None:
    """Of the array API's streams, and one by its handle; without an event that is a violation."""
    on = driver(warps)
    own, host = pb.tensor(X).to("cuda"), np.zeros_like(X)
    with on.here():
        taker = on.stream() if stream == "own" else stream
        capsule = own.__dlpack__(stream=taker, max_version=(1, 0))
        _, tensor = inside(capsule)
        address = ctypes.c_uint64.from_address(tensor).value
        on.to_host(host.ctypes.data, address, host.nbytes, 1 if taker is None else taker)
        with pytest.raises(Violation, match="no event"):
            on.fill(address, 0, 4, on.stream())
        on.wait(1 if taker is None else taker)
    np.testing.assert_array_equal(host, X)


@pytest.mark.parametrize("copy", [None, False])
def test_what_came_in_goes_out_after_who_made_it(copy: Any, warps: Warps) -> None:
    on = driver(warps)
    own, host = pb.from_dlpack(Other(on, X)), np.zeros_like(X)
    with on.here():
        taker = on.stream()
        capsule = own.__dlpack__(stream=taker, max_version=(1, 0), copy=copy)
        address = ctypes.c_uint64.from_address(inside(capsule)[1]).value
        on.to_host(host.ctypes.data, address, host.nbytes, taker)
        on.wait(taker)
    np.testing.assert_array_equal(host, X)


@pytest.mark.parametrize(
    "wrong",
    [{"stream": 0}, {"stream": -2}, {"stream": True}, {"stream": "x"}, {"copy": False},
     {"copy": False, "max_version": (0, 8)}, {"dl_device": (CUDA, 1)}, {"dl_device": (10, 0)},
     {"dl_device": (CPU, 0), "copy": False}, {"dl_device": (CPU, 0), "stream": 1}],
    ids=str,
)  # fmt: skip
def test_what_is_not_handed_over(wrong: dict[str, Any], warps: Warps) -> None:
    own = pb.tensor(X).to("cuda")
    assert code_of(lambda: own.__dlpack__(**wrong)) == "E324"


def test_a_capsule_of_the_host(warps: Warps) -> None:
    capsule = pb.tensor(X).to("cuda").__dlpack__(dl_device=(CPU, 0), max_version=(1, 0))
    np.testing.assert_array_equal(from_dlpack(capsule).numpy(), X)


def test_the_interface(warps: Warps) -> None:
    assert not hasattr(pb.tensor(X), "__cuda_array_interface__")
    own = pb.tensor(X).to("cuda")
    facts = own.__cuda_array_interface__
    assert {**facts, "data": ()} == {
        "shape": (5, 33), "typestr": "<f4", "data": (), "version": 3, "strides": None,
        "stream": None,
    }  # fmt: skip
    address, read_only = facts["data"]
    assert read_only
    again = pb.from_dlpack(Held(own))
    assert again.__cuda_array_interface__["data"] == (address, True)
    np.testing.assert_array_equal(again.numpy(), X)
    empty = pb.zeros((0, 3)).to("cuda").__cuda_array_interface__
    assert (empty["data"], empty["shape"]) == ((0, True), (0, 3))


def test_who_was_told_of_an_address_has_it(warps: Warps) -> None:
    own = pb.tensor(np.arange(3)).to("cuda")
    again = pb.from_dlpack(Held(own))
    own[0] = 7  # it means another value from here on
    assert own.tolist() == [7, 1, 2]
    gc.collect()
    assert again.tolist() == [0, 1, 2]


class Held:
    """What holds a tensor, and passes its interface on."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.__cuda_array_interface__ = own.__cuda_array_interface__


def test_the_interface_waits_for_what_came_in(warps: Warps) -> None:
    own = pb.from_dlpack(Other(driver(warps), X))
    address = own.__cuda_array_interface__["data"][0]
    got = np.frombuffer(ctypes.string_at(address, X.nbytes), np.float32).reshape(X.shape)
    np.testing.assert_array_equal(got, X)
