"""Tensors that lie on a device: what is copied, what is not, and what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_warps
import pullback as pb
from fake_warps import Warps
from pullback.backends.cuda import driver as cuda
from pullback.config import Options
from pullback.errors import DeviceError, PullbackError
from test_nvptx import OPTIONS, needs_c

pytestmark = needs_c
RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 33)).astype(np.float32)
UP, DOWN, WITHIN = "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2"


@pytest.fixture
def warps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warps]:
    yield fake_warps.device(monkeypatch, devices=2)[1]


def copies(warps: Warps) -> tuple[int, int, int]:
    """To the device, to the host and on the device so far; a run's words of errors are not one."""
    calls = warps.fake.calls
    ended = sum(n.startswith("cuMemsetD8") for n in calls)
    return calls.count(UP), calls.count(DOWN) - ended, calls.count(WITHIN)


def test_there_and_back(warps: Warps) -> None:
    for array in (X, X[:, ::2], np.float64(3.0), np.zeros((0, 3), np.int8), X > 0):
        there = pb.tensor(array).to("cuda")
        assert (there.device, there.shape) == ("cuda:0", np.shape(array))
        assert there.to("cuda:0") is there
        here = there.to("cpu")
        assert here.device == "cpu" and here.to("cpu") is here
        np.testing.assert_array_equal(here.numpy(), array)
    assert (pb.tensor(X).to("cuda:1").to("cuda").device, pb.tensor(X).device) == ("cuda:0", "cpu")
    np.testing.assert_array_equal((pb.tensor(X) * 2).to("cuda").numpy(), X * 2)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "", "CUDA"])
def test_what_is_no_device(name: str, warps: Warps) -> None:
    with pytest.raises(PullbackError) as error:
        pb.ones(3).to(name)
    assert error.value.code == "E314"


def test_a_device_that_is_not_there(warps: Warps) -> None:
    with pytest.raises(DeviceError, match="cuda:2") as error:
        pb.ones(3).to("cuda:2")
    assert error.value.code == "E440"


def test_a_chain_copies_its_ends_alone(warps: Warps) -> None:
    step = pb.jit(lambda x, w: pb.tanh(x * w + 1), options=OPTIONS)
    x, w, want = pb.tensor(X).to("cuda"), pb.tensor(X + 1).to("cuda"), X
    for _ in range(10):
        x = step(x, w)
        want = np.tanh(want * (X + 1) + 1)
        assert x.device == "cuda:0"
    assert copies(warps) == (2, 0, 0)
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-4, atol=1e-5)
    assert copies(warps) == (2, 1, 0)
    x.numpy()  # the host has it now
    assert copies(warps) == (2, 1, 0)


def test_arguments_of_the_host_are_copied(warps: Warps) -> None:
    made = pb.jit(lambda x, y: x + y, options=OPTIONS)
    there = pb.tensor(X).to("cuda")
    for y in (X, pb.tensor(X), there):
        np.testing.assert_array_equal(made(there, y).numpy(), X + X)
    np.testing.assert_array_equal(there.numpy(), X)


def test_states_stay(warps: Warps) -> None:
    """Parameters go there with the first step, and are read when somebody looks."""
    model = pb.nn.Linear(33, 4)
    optimizer = pb.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.numpy()

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = pb.mean(model(x) ** 2)
        loss.backward()
        optimizer.step()
        return loss

    def steps(options: Options) -> np.ndarray[Any, Any]:
        model.load_state_dict({"weight": before, "bias": np.zeros(4, np.float32)})
        made = pb.jit(step, options=options)
        x = pb.tensor(X)
        if options is OPTIONS:
            x = x.to("cuda")
        made(x)
        up, *others = copies(warps)
        for _ in range(3):
            made(x)
        if options is OPTIONS:  # the rate of learning is the host's
            assert copies(warps) == (up + 3, *others)
        return model.weight.numpy()

    np.testing.assert_allclose(steps(OPTIONS), steps(Options(backend="llvm")), atol=1e-5)
    assert not np.allclose(model.weight.numpy(), before)


def test_who_looked_at_a_state_keeps_what_was_seen(warps: Warps) -> None:
    state = pb.nn.Parameter(np.ones(3, np.float32))

    def step() -> None:
        state.assign(state * 2)

    made = pb.jit(step, options=OPTIONS)
    made()
    assert copies(warps) == (1, 0, 0)
    kept, seen = state + 0, state.numpy()
    made()
    assert (seen.tolist(), kept.tolist()) == ([2.0] * 3, [2.0] * 3)
    assert state.tolist() == [4.0] * 3


@pytest.mark.parametrize("looks", [(), (2,), range(7)])
def test_a_state_is_written_here_and_there(looks: Any, warps: Warps) -> None:
    state = pb.nn.Parameter(np.ones(3, np.float32))

    def step() -> None:
        state.assign(state * 2)

    there = pb.jit(step, options=OPTIONS)
    here = pb.jit(step, options=Options(backend="llvm"))
    for n, made in enumerate([there, here, there, there, here, here, there]):
        made()
        if n in (*looks, 6):
            assert state.tolist() == [2.0 ** (n + 1)] * 3


def test_a_loop_of_graphs_takes_them(warps: Warps) -> None:
    made = pb.jit(lambda x: pb.loop(4, lambda i, h: h * 0.5 + i, x), options=OPTIONS)
    want = pb.jit(lambda x: pb.loop(4, lambda i, h: h * 0.5 + i, x))(X).numpy()
    kept = [made(pb.tensor(X).to("cuda")) for _ in range(3)]
    for result in kept:
        np.testing.assert_allclose(result.numpy(), want)
    assert copies(warps)[1] == 3


def test_two_devices_are_told(warps: Warps) -> None:
    made = pb.jit(lambda left, right: left + right, options=OPTIONS)
    with pytest.raises(PullbackError, match=r"`right` lies on cuda:1, .* on cuda:0") as error:
        made(pb.tensor(X).to("cuda"), pb.tensor(X).to("cuda:1"))
    assert error.value.code == "E314"
    assert '.to("cuda:0"), or pb.Options(.., target="cuda:1")' in str(error.value)


SECOND = replace(OPTIONS, target="cuda:1")


def test_a_program_on_the_second_device(warps: Warps) -> None:
    """Its kernels, memory and streams are of that device: the fake tells of any other."""
    step = lambda x, w: pb.tanh(x * w + 1)
    first, second = pb.jit(step, options=OPTIONS), pb.jit(step, options=SECOND)
    x, w = pb.tensor(X).to("cuda:1"), pb.tensor(X + 1).to("cuda:1")
    there = second(second(x, w), w)
    assert there.device == "cuda:1" and copies(warps) == (2, 0, 0)
    here = first(first(X, X + 1), X + 1)
    assert here.device == "cuda:0" and warps.fake.contexts == []
    np.testing.assert_array_equal(there.numpy(), here.numpy())
    loop = pb.jit(lambda x: pb.loop(4, lambda i, h: h * 0.5 + i, x), options=SECOND)
    np.testing.assert_allclose(loop(x).numpy(), X / 16 + 4.25, rtol=1e-5)
    with pytest.raises(PullbackError, match=r"`x` lies on cuda:0, .* on cuda:1"):
        second(here, w)


def test_records_of_two_devices_are_two(warps: Warps, tmp_path: Path) -> None:
    """What is kept of one device's program is not taken for the other's."""
    for target in ("cuda:0", "cuda:1", "cuda:1", None):
        options = Options(backend="nvptx", cache=tmp_path, target=target)
        made = pb.jit(lambda x: x * 3, options=options)(X)
        assert made.device == (target or "cuda:0")
        np.testing.assert_array_equal(made.numpy(), X * 3)


def test_a_state_goes_to_another_device_where_it_is_told(warps: Warps) -> None:
    state = pb.nn.Parameter(np.ones(3, np.float32))

    def step() -> None:
        state.assign(state * 2)

    first, second = pb.jit(step, options=OPTIONS), pb.jit(step, options=SECOND)
    first()
    with pytest.raises(PullbackError, match="lies on cuda:0") as error:
        second()
    assert error.value.code == "E314" and state.tolist() == [2.0] * 3
    state.assign(state.to("cuda:1"))
    second()
    assert state.tolist() == [4.0] * 3


@pytest.mark.parametrize("target", ["sm_90", "x86-64-v4", "cuda", "cuda:x", "gpu:1", "cuda:-1"])
def test_a_target_that_is_no_device(target: str, warps: Warps) -> None:
    with pytest.raises(PullbackError, match="target") as error:
        pb.jit(lambda x: x * 2, options=replace(OPTIONS, target=target))(X)
    assert error.value.code == "E375"


def test_a_program_on_a_device_that_is_not_there(warps: Warps) -> None:
    with pytest.raises(DeviceError, match="cuda:2") as error:
        pb.jit(lambda x: x * 2, options=replace(OPTIONS, target="cuda:2"))(X)
    assert error.value.code == "E440"


def test_two_threads_on_two_devices(warps: Warps) -> None:
    """Each thread has the context of its own program."""
    made = [pb.jit(lambda x: x * 2 + 1, options=o) for o in (OPTIONS, SECOND)]
    for one in made:
        one(X)
    wrong: list[str] = []

    def work(one: Any) -> None:
        try:
            for _ in range(5):
                np.testing.assert_array_equal(one(X).numpy(), X * 2 + 1)
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(one,)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_copy_inside_a_program_is_refused(warps: Warps) -> None:
    with pytest.raises(PullbackError, match="inside a program") as error:
        pb.jit(lambda x: x.to("cuda"), options=OPTIONS)(X)
    assert error.value.code == "E314"


def test_the_host_computes_with_a_copy(warps: Warps) -> None:
    there = pb.tensor(X).to("cuda")
    got = there * 2 + pb.sum(there)
    np.testing.assert_allclose(got.numpy(), X * 2 + X.sum(), rtol=1e-5, atol=1e-5)
    assert got.device == "cpu" and copies(warps)[1] == 1


def test_symbolic_extents_are_taken_where_they_lie(warps: Warps) -> None:
    """In any order of sizes, without a copy: rows lie the same whatever their number is."""
    n = pb.dim("n", 0, 64)
    made = pb.jit(lambda x: pb.tanh(x) * 2 + pb.sum(x, axis=0), shapes=[(n, 5)], options=OPTIONS)
    for size in (3, 64, 7, 0, 1, 33, 3):
        x = np.random.default_rng(size).standard_normal((size, 5)).astype(np.float32)
        there = pb.tensor(x).to("cuda")
        before = copies(warps)
        got = made(there)
        assert got.device == "cuda:0" and copies(warps) == before
        np.testing.assert_allclose(got.numpy(), np.tanh(x) * 2 + x.sum(0), rtol=1e-4, atol=1e-5)
    assert made.traces == 1


def test_extents_behind_others_are_copied_on_the_device(warps: Warps) -> None:
    n, m, k = pb.dim("n", 1, 4), pb.dim("m", 1, 5), pb.dim("k", 1, 6)
    made = pb.jit(lambda x: x * 2 + 1, shapes=[(2, n, 3, m, k)], options=OPTIONS)
    for sizes in ((2, 3, 4), (4, 5, 6), (1, 5, 2), (4, 2, 6), (1, 1, 1)):
        x = RNG.standard_normal((2, sizes[0], 3, *sizes[1:])).astype(np.float32)
        there = pb.tensor(x).to("cuda")
        up, down, _ = copies(warps)
        got = made(there)
        assert got.device == "cuda:0" and copies(warps)[:2] == (up, down), "none by the host"
        np.testing.assert_array_equal(got.numpy(), x * 2 + 1)
    assert "cuMemcpy3DAsync_v2" in warps.fake.calls


def test_an_arena_is_as_large_as_runs_want_it(warps: Warps) -> None:
    """It grows with what comes, not to the bound; what is smaller runs in it."""
    most = 1 << 16
    n, w = pb.dim("n", 1, most), np.eye(8, dtype=np.float32) * 0.5

    def chain(x: Any) -> Any:
        y = pb.tanh(x @ w)
        z = pb.tanh((y * pb.sum(y, axis=0)) @ w)
        return pb.sum(z * y, axis=0)

    made = pb.jit(chain, shapes=[(n, 8)], options=OPTIONS)
    bytes_of = {}
    for size in (3, 100, 20, 104, 1, 800):
        x = RNG.standard_normal((size, 8)).astype(np.float32)
        got = made(pb.tensor(x).to("cuda")).numpy()
        want = pb.jit(chain)(x).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        bytes_of[size] = sum(b.size for b in warps.fake.blocks if b.alive)
    arena = made.program.plan.arena_bytes
    assert bytes_of[800] < arena - 2 * (most - 1000) * 32, "y and z, as many rows as they have"
    assert bytes_of[3] < bytes_of[100] == bytes_of[104] < bytes_of[800]
    assert made.traces == 1


def test_memory_is_given_back(warps: Warps) -> None:
    x = pb.tensor(X).to("cuda")
    made = pb.jit(lambda x: x * 2, options=OPTIONS)
    y = made(x)
    assert any(block.alive for block in warps.fake.blocks)
    del x, y, made
    gc.collect()
    assert not any(block.alive for block in warps.fake.blocks)


def test_out_of_memory_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_warps.device(monkeypatch, total=1 << 12)
    with pytest.raises(DeviceError, match="a tensor of 40000 bytes") as error:
        pb.zeros(10000).to("cuda")
    assert error.value.code == "E442"


def test_from_device_to_device(warps: Warps) -> None:
    """By no way of the host, in the contexts of both; what another library lends is waited for."""
    there = pb.tensor(X).to("cuda:0")
    before = copies(warps)
    other = there.to("cuda:1")
    assert other.device == "cuda:1" and copies(warps) == before
    assert warps.fake.calls.count("cuMemcpyPeerAsync") == 1
    np.testing.assert_array_equal(other.numpy(), X)
    np.testing.assert_array_equal(other.to("cuda:0").numpy(), X)
    assert pb.tensor(X[:0]).to("cuda:0").to("cuda:1").shape == (0, 33)
    made = pb.jit(lambda x: x * 2, options=replace(OPTIONS, target="cuda:1"))
    np.testing.assert_array_equal(made(other).numpy(), X * 2)


def test_what_is_lent_is_waited_for_by_the_other_device(warps: Warps) -> None:
    """The maker's stream is late: an event of its device holds the copy back."""
    on = cuda.driver(0)
    whole = pb.tensor(X * 0).to("cuda:0")
    with on.here():
        stream = on.stream()
        facts = dict(whole.__cuda_array_interface__, stream=stream)
        lent = pb.asarray(Shown(facts))
        on.to_device(facts["data"][0], X.ctypes.data, X.nbytes, stream)
        again = pb.asarray(Shown(facts))
    np.testing.assert_array_equal(again.to("cuda:1").numpy(), X)
    del lent


class Shown:
    """An array of another library's, in order of a stream."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = facts


def test_what_receivers_are_shown_is_as_large_as_its_bound(warps: Warps) -> None:
    """They copy all of it: a tensor that is smaller goes to memory that is not."""
    n, seen = pb.dim("n", 1, 64), []

    def show(x: Any) -> Any:
        pb.Receiver(lambda a: seen.append(np.array(a)), [x])
        return x * 2

    made = pb.jit(show, shapes=[(n, 3)], options=OPTIONS)
    for size in (5, 64, 2):
        x = RNG.standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_array_equal(made(pb.tensor(x).to("cuda")).numpy(), x * 2)
        np.testing.assert_array_equal(seen[-1][:size], x)
