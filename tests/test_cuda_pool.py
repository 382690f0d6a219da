"""Memory of a device that is kept for who wants some next."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fake_warps
import pullback as pb
from fake_cuda import FakeCuda
from fake_warps import Warps
from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.pool import Pool, pool_of, rounded
from pullback.errors import DeviceError
from test_nvptx import OPTIONS, needs_c

pytestmark = needs_c
X = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
ALLOCATED, FREED = "cuMemAlloc_v2", "cuMemFree_v2"


@pytest.fixture
def warps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warps]:
    yield fake_warps.device(monkeypatch, pool=True)[1]


def own_pool() -> Pool:
    from pullback.backends.nvptx import backend

    return pool_of(backend.driver(0))


def count(warps: Warps) -> tuple[int, int]:
    """How often memory was taken from the driver, and given back."""
    return warps.fake.calls.count(ALLOCATED), warps.fake.calls.count(FREED)


def test_an_eighth_is_wasted_at_most() -> None:
    for size in [*range(5000), *(2**n + k for n in range(12, 40) for k in (-1, 0, 1, 77))]:
        own = rounded(size)
        assert size <= own <= max(256, size + max(255, size // 8)), (size, own)
        assert own % 256 == 0 and rounded(own) == own, (size, own)


def test_steps_take_nothing_from_the_driver(warps: Warps) -> None:
    step = pb.jit(lambda x: pb.tanh(x) * 2, options=OPTIONS)
    x = step(step(pb.tensor(X).to("cuda")))
    gc.collect()
    before = count(warps)
    for _ in range(10):
        x = step(x)
    assert count(warps) == before
    want = X
    for _ in range(12):
        want = np.tanh(want) * 2
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-4)


def test_sizes_of_one_class_share(warps: Warps) -> None:
    pool = own_pool()
    with pool.on.here():
        first = pool.take(1000)
        pool.give(first)
        assert (pool.kept, pool.lent) == (1024, 0)
        assert pool.take(1024) == first and pool.take(1000) != first
        assert (pool.kept, pool.lent) == (0, 2048)


def test_emptied_it_holds_nothing(warps: Warps) -> None:
    x = pb.tensor(X).to("cuda")
    made = pb.jit(lambda x: x * 2, options=OPTIONS)
    y = made(x)
    del x, y, made
    gc.collect()
    assert own_pool().lent == 0 < own_pool().kept
    assert own_pool().empty() > 0 == own_pool().kept
    assert not any(block.alive for block in warps.fake.blocks if not block.pinned)


def test_out_of_memory_empties_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    on, _ = fake_warps.device(monkeypatch, pool=True, total=10000)
    small = [pb.zeros(500).to("cuda") for _ in range(4)]
    del small[1:]
    large = pb.ones(1900).to("cuda")  # 7600 of the 7952 bytes that are left, rounded none of them
    assert large.tolist() == [1.0] * 1900
    with pytest.raises(DeviceError) as error:
        pb.zeros(500).to("cuda")
    assert error.value.code == "E442"
    told = str(error.value)
    assert "a tensor of 2000 bytes; tensors and programs have 9648 bytes, 0 were given back" in told
    with on.here():
        assert on.free_bytes()[0] == 10000 - 2048 - 7600
    del large
    gc.collect()
    with pytest.raises(DeviceError, match="have 2048 bytes, 7600 were given back"):
        pb.zeros(5000).to("cuda")


def test_a_program_that_is_too_large_says_what_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_warps.device(monkeypatch, pool=True, total=4000)
    made = pb.jit(lambda x: pb.sum(pb.exp(x) @ pb.exp(x.T)), options=OPTIONS)
    with pytest.raises(DeviceError, match=r"bytes of temporaries.*were given back") as error:
        made(np.ones((40, 40), np.float32))
    assert error.value.code == "E442"


@pytest.mark.slow
def test_what_others_have_seen_is_the_driver_s(warps: Warps) -> None:
    """They may use it still; the driver waits for that, the pool would not."""
    before = count(warps)[1]
    for look in (lambda x: x.__cuda_array_interface__, lambda x: x.__dlpack__(max_version=(1, 0)),
                 lambda x: x.__dlpack__(max_version=(1, 0), copy=False)):  # fmt: skip
        x = pb.tensor(X).to("cuda")
        seen = look(x)
        del x, seen
        gc.collect()
        before += 1
        assert count(warps)[1] == before


@pytest.mark.slow
def test_frees_in_a_capture_come_after_it(warps: Warps, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may come while a graph is captured, which allows no call that frees."""
    tensor, seen = pb.tensor(X).to("cuda"), pb.tensor(X).to("cuda")
    assert seen.__cuda_array_interface__
    other = pb.jit(lambda x: pb.loop(3, lambda i, h: h * 2, x), options=OPTIONS)
    other(X)
    lost = [tensor, seen, other]
    del tensor, seen, other
    before = count(warps)[1]
    plain = FakeCuda.cuLaunchKernelEx
    inside: list[int] = []

    def launched(self: Any, *given: Any) -> int:
        if lost and any(getattr(s, "capture", None) is not None for s in self.handles.values()):
            lost.clear()
            gc.collect()
            inside.append(count(warps)[1])
        return plain(self, *given)

    monkeypatch.setattr(FakeCuda, "cuLaunchKernelEx", launched)
    made = pb.jit(lambda x: pb.loop(4, lambda i, h: h * 0.5 + i, x), options=OPTIONS)
    np.testing.assert_allclose(made(X).numpy(), X / 16 + 4.25, rtol=1e-5)
    assert inside == [before] and count(warps)[1] == before + 1


def test_a_capture_in_a_capture_frees_at_the_end() -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    ends: list[str] = []
    with driver.here():
        first, second = driver.stream(), driver.stream()
        with driver.capture(first):
            driver.after_capture(lambda: ends.append("first"))
            with driver.capture(second):
                driver.after_capture(lambda: ends.append("second"))
            assert not ends
            thread = threading.Thread(
                target=driver.after_capture, args=(lambda: ends.append("other"),)
            )
            thread.start()
            thread.join()
            assert ends == ["other"]
        assert ends == ["other", "first", "second"]
        with pytest.raises(ValueError), driver.capture(first):
            driver.after_capture(lambda: ends.append("third"))
            raise ValueError
        assert ends[-1] == "third"


def test_a_run_that_fails_leaves_nothing_running(warps: Warps) -> None:
    """Its memory is somebody else's next, who waits for nothing."""
    turns: list[int] = []

    def batch() -> Any:
        turns.append(1)
        if len(turns) > 1:
            raise ValueError("enough")
        return X

    def step(x: Any) -> Any:
        return pb.loop(3, lambda i, h: h * 2 + pb.Feeder(batch, shape=X.shape, dtype="float32"), x)

    made = pb.jit(step, options=OPTIONS)
    with pytest.raises(ValueError, match="enough"):
        made(pb.tensor(X).to("cuda"))
    assert not any(getattr(s, "queue", None) for s in warps.fake.handles.values())
