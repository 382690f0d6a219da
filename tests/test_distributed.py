"""Several ranks: collectives and their derivatives, data in parallel, ranks that differ or die."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from distributed_support import processes, threads
from pullback import nn, optim
from pullback.distributed import DataParallel, DistributedError
from pullback.errors import BackendError, PullbackError
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import Axis
from pullback.ir.graph import Definition, Graph, Variable, read
from pullback.ir.program import Compute, HostCall, Item, Loop, Program
from pullback.pipeline import compile_program
from pullback.tensor.record.late import late

D = pb.distributed
Array = np.ndarray[Any, Any]
REFERENCE = pb.Options(backend="reference")
CHECKED = pb.Options(cache=None, check=True)


def drawn(rank: int, *shape: int, kind: str = "float64") -> Array:
    return np.random.default_rng(rank).normal(size=shape).astype(kind)


# --- what they give ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("traced", [False, True])
def test_collectives(ranks: int, traced: bool) -> None:
    every = [drawn(r, 2 * ranks, 3) for r in range(ranks)]

    def work(group: Any) -> list[Array]:
        def f(x: Any) -> Any:
            return (
                D.all_reduce(x * 2.0, group=group),
                D.all_reduce(x, "mean", group=group),
                D.all_gather(x, group=group),
                D.reduce_scatter(x, group=group),
                D.reduce_scatter(x, "mean", group=group),
            )

        x = pb.tensor(every[group.rank])
        return [t.numpy() for t in (pb.jit(f)(x) if traced else f(x))]

    for rank, (total, mean, gathered, part, share) in enumerate(threads(ranks, work)):
        own = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_allclose(total, 2 * sum(every), rtol=1e-14)
        np.testing.assert_allclose(mean, sum(every) / ranks, rtol=1e-14)
        np.testing.assert_array_equal(gathered, np.concatenate(every))
        np.testing.assert_allclose(part, sum(every)[own], rtol=1e-14)
        np.testing.assert_allclose(share, sum(every)[own] / ranks, rtol=1e-14)


def test_sums_are_taken_in_the_order_of_the_ranks() -> None:
    """Bits of ((x0 + x1) + x2) + x3, in one frame and in many."""
    for length in (1, 7, 200_003):
        every = [drawn(r, 4 * length, kind="float32") for r in range(4)]

        def work(group: Any, every: list[Array] = every) -> list[Array]:
            x = pb.tensor(every[group.rank])
            sums = D.all_reduce(x, group=group), D.reduce_scatter(x, group=group)
            return [t.numpy() for t in sums]

        wanted = ((every[0] + every[1]) + every[2]) + every[3]
        for rank, (total, part) in enumerate(threads(4, work)):
            np.testing.assert_array_equal(total, wanted)
            np.testing.assert_array_equal(part, wanted[rank * length : (rank + 1) * length])


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "int8", "int64", "uint32"])
def test_types(kind: str) -> None:
    def work(group: Any) -> Any:
        x = pb.tensor([1.0, 2.0, 3.0, 4.0]).astype(kind) + group.rank
        y, z = D.all_reduce(x, group=group), D.all_gather(x, group=group)
        assert y.dtype.name == z.dtype.name == kind
        return y.astype("float64").tolist(), z.astype("float64").tolist()

    total, gathered = threads(2, work)[1]
    assert total == [3.0, 5.0, 7.0, 9.0]
    assert gathered == [1.0, 2.0, 3.0, 4.0, 2.0, 3.0, 4.0, 5.0]


def test_not_a_number_infinities_and_nothing() -> None:
    def work(group: Any) -> list[Array]:
        x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e308]) if group.rank else np.zeros(5)
        turned = np.array([np.inf, 1e308]) * (1.0 if group.rank else -1.0)
        assert np.isnan(D.all_reduce(turned, group=group).numpy()).tolist() == [True, False]
        empty = pb.zeros((0, 3))
        found = [D.all_reduce(x, group=group), D.all_reduce(np.float64(2.0), group=group)]
        found += [D.all_reduce(empty, group=group), D.all_gather(empty, group=group)]
        return [t.numpy() for t in (*found, D.reduce_scatter(empty, group=group))]

    total, two, *nothing = threads(2, work)[0]
    np.testing.assert_array_equal(total, [np.nan, np.inf, -np.inf, 0.0, 1e308])
    assert two.shape == () and two == 4.0
    assert all(n.shape == (0, 3) for n in nothing)


@pytest.mark.parametrize("options", [REFERENCE, CHECKED], ids=["reference", "checked"])
def test_interpreters_run_collectives_in_loops_and_branches(options: pb.Options) -> None:
    def program(group: Any, options: Any) -> Array:
        def f(x: Any) -> Any:
            def body(i: Any, c: Any) -> Any:
                return D.all_reduce(c, "mean", group=group) * 1.5 + i

            y = pb.loop(range(3), body, x)
            return pb.cond(
                y.sum() > -1e9, lambda: D.all_gather(y, group=group), lambda: pb.concat([y, y])
            )

        found: Array = pb.jit(f, options=options)(pb.tensor(drawn(group.rank, 3))).numpy()
        return found

    plain = threads(2, lambda g: program(g, pb.Options()))
    found = threads(2, lambda g: program(g, options))
    for a, b in zip(plain, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_samples_go_at_once() -> None:
    every = [drawn(r, 5, 4, 3) for r in range(2)]

    def work(group: Any) -> list[Array]:
        def f(x: Any) -> Any:
            return D.all_reduce(x, group=group), D.all_gather(x, group=group)

        def g(x: Any) -> Any:
            return D.reduce_scatter(x, group=group)

        x = pb.tensor(every[group.rank])
        a, b = pb.jit(pb.vmap(f))(x)
        return [a.numpy(), b.numpy(), pb.jit(pb.vmap(g))(x).numpy()]

    for rank, (a, b, c) in enumerate(threads(2, work)):
        np.testing.assert_allclose(a, every[0] + every[1])
        np.testing.assert_array_equal(b, np.concatenate(every, axis=1))
        np.testing.assert_allclose(c, (every[0] + every[1])[:, 2 * rank : 2 * rank + 2])


# --- derivatives ---------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": lambda x, g: D.all_reduce(x, group=g),
    "mean": lambda x, g: D.all_reduce(x, "mean", group=g),
    "all_gather": lambda x, g: D.all_gather(x, group=g),
    "reduce_scatter": lambda x, g: D.reduce_scatter(x, group=g),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_transposes(name: str) -> None:
    """sum[r] <u_r, J v_r> = sum[r] <J^T u_r, v_r>, and J v is the function, which is linear."""

    def work(group: Any) -> tuple[float, float]:
        def f(x: Any) -> Any:
            return FUNCTIONS[name](x, group)

        x, v = pb.tensor(drawn(group.rank, 4, 3)), pb.tensor(drawn(10 + group.rank, 4, 3))
        y, along = pb.jit(lambda x, v: pb.jvp(f, (x,), (v,)))(x, v)
        np.testing.assert_allclose(along.numpy(), pb.jit(f)(v).numpy())
        u = pb.tensor(drawn(20 + group.rank, *y.shape))
        (back,) = pb.jit(lambda x, u: pb.vjp(f, x)[1](u))(x, u)
        return float((u * along).sum().item()), float((back * v).sum().item())

    pairs = threads(2, work)
    assert np.isclose(sum(a for a, _ in pairs), sum(b for _, b in pairs), rtol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_finite_differences(name: str) -> None:
    """Of the sum over ranks of what each rank differentiates; the second derivative too."""
    start, step = [drawn(r, 2, 2) for r in range(2)], 1e-5

    def losses(given: list[Array]) -> list[tuple[float, Array]]:
        def work(group: Any) -> tuple[float, Array]:
            def loss(x: Any, weight: Any) -> Any:
                return (pb.sin(FUNCTIONS[name](x * x, group)) * weight).sum()

            weight = pb.tensor(1.0 + group.rank, dtype="float64")
            value, slope = pb.jit(pb.value_and_grad(loss))(pb.tensor(given[group.rank]), weight)
            return float(value.item()), slope.numpy()

        return threads(2, work)

    slopes = [s for _, s in losses(start)]
    for rank, place in ((0, (0, 1)), (1, (1, 0)), (0, (1, 1))):
        ends = []
        for sign in (1.0, -1.0):
            moved = [a.copy() for a in start]
            moved[rank][place] += sign * step
            ends.append(sum(v for v, _ in losses(moved)))
        wanted = (ends[0] - ends[1]) / (2 * step)
        assert np.isclose(slopes[rank][place], wanted, rtol=1e-7, atol=1e-8)


def test_loops_and_second_derivatives() -> None:
    def work(group: Any) -> tuple[Array, Array]:
        def loss(x: Any) -> Any:
            def body(i: Any, c: Any) -> Any:
                return D.all_reduce(pb.sin(c), "mean", group=group)

            return (pb.loop(range(3), body, x) ** 2).sum()

        x, v = pb.tensor(drawn(3, 4)), pb.tensor(drawn(4, 4))
        slope = pb.jit(pb.grad(loss))(x)
        return slope.numpy(), pb.jit(lambda x, v: pb.hvp(loss, x, v))(x, v).numpy()

    def alone(x: Any) -> Any:
        return (pb.sin(pb.sin(pb.sin(x))) ** 2).sum()

    x, v = pb.tensor(drawn(3, 4)), pb.tensor(drawn(4, 4))
    for slope, second in threads(2, work):  # equal on both ranks: the mean changes nothing
        np.testing.assert_allclose(slope, pb.grad(alone)(x).numpy(), rtol=1e-12)
        np.testing.assert_allclose(second, pb.hvp(alone, x, v).numpy(), rtol=1e-11)


# --- the form in programs ------------------------------------------------------------------------


def variables(*names: str) -> list[Variable]:
    return [Variable(name, (3,), float32) for name in names]


def assign(target: Variable, source: Variable) -> Compute:
    return Compute(Graph(((target, Definition("d", (3,), read(source, Axis(0, 3)))),)))


def waiting(x: Variable, y: Variable) -> list[HostCall]:
    ticket = Variable("ticket", (), int64)
    start = HostCall("s", "t", print, (x,), (y, ticket), writes=True)
    return [start, HostCall("w", "t", print, (ticket, x, y), (y,), writes=True)]


def test_a_wait_stands_before_what_reads_or_overwrites() -> None:
    x, y, a, b = variables("x", "y", "a", "b")
    start, wait = waiting(x, y)
    free, reads = assign(b, a), assign(a, y)
    overwrites = assign(x, a)

    def order(*block: Item) -> list[Item]:
        return list(late(Program(tuple(block), (x, a, b))).body)

    assert order(start, wait, free, reads) == [start, free, wait, reads]
    assert order(start, wait, free, overwrites) == [start, free, wait, overwrites]
    assert order(start, wait, free) == [start, free, wait]
    (loop,) = order(Loop((start, wait, free, reads), 3))
    assert isinstance(loop, Loop) and list(loop.body) == [start, free, wait, reads]
    inside = Loop((reads,), 3)
    assert order(start, wait, free, inside)[:3] == [start, free, wait]
    second = waiting(a, b)
    assert order(start, wait, *second, reads)[:3] == [start, second[0], wait]


def test_a_c_function_is_called_by_its_address() -> None:
    seen: list[tuple[int, ...]] = []
    words = ctypes.c_int64

    @ctypes.CFUNCTYPE(ctypes.c_int, *[words] * 8)
    def native(*given: int) -> int:
        seen.append(given)
        return 0 if given[1] else 7

    address = ctypes.cast(native, ctypes.c_void_p).value
    assert address is not None
    x, y = variables("x", "y")
    arrays = {x: np.ones(3, np.float32), y: np.zeros(3, np.float32)}
    for flag in (41, 0):
        given = (None, flag, -5, None)
        call = HostCall("f", "C", print, (x,), (y,), writes=True, native=(address, given))
        program = compile_program(Program((Loop((call,), 2),), (x, y)), pb.Options())
        if not flag:
            with pytest.raises(BackendError, match="f by C: error 7") as caught:
                program.run(arrays)
            assert caught.value.code == "E616" and len(seen) == 3
            continue
        program.run(arrays)
        places = [a.ctypes.data for a in arrays.values()]
        assert seen == [(places[0], 41, -5, places[1], 0, 0, 0, 0)] * 2


# --- data in parallel ----------------------------------------------------------------------------

BATCH, CONTEXT, VOCABULARY = 8, 8, 17


def batches(steps: int) -> Array:
    shape = (steps, BATCH, CONTEXT + 1)
    return np.random.default_rng(0).integers(0, VOCABULARY, shape).astype(np.int32)


drawing = threading.Lock()


class Chain(nn.Module):
    """The next token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 32)
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, VOCABULARY))

    def loss(self, x: Any, y: Any) -> Any:
        logits = self.layers(self.table(x))
        return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1))


def trained(
    group: Any, steps: int, bucket: int = 1 << 13, gpt: bool = False
) -> tuple[list[float], list[Array], list[str]]:
    """Losses, weights, and what the program calls of the host in order."""
    with drawing:
        pb.random.manual_seed(group.rank)  # what rank 0 has goes to all
        config = nn.GPTConfig(VOCABULARY, CONTEXT, layers=1, dim=16, heads=2)
        model = nn.GPT(config) if gpt else Chain()
    opt = optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    parallel = DataParallel(model, bucket=bucket, group=group)
    size = BATCH // group.size
    data, losses = iter(batches(steps)), list[float]()

    def feed() -> tuple[Array, Array]:
        own = next(data)[group.rank * size : (group.rank + 1) * size]
        return np.ascontiguousarray(own[:, :-1]), np.ascontiguousarray(own[:, 1:])

    def step() -> None:
        shapes = ((size, CONTEXT),) * 2
        x, y = pb.Feeder(feed, shape=shapes, dtype=("int32", "int32"))
        opt.zero_grad()
        with parallel.sharing():
            loss = model.loss(x, y)
        seen = D.all_reduce(loss, "mean", group=group)
        loss.backward()
        opt.step()
        pb.Receiver(lambda v: losses.append(float(v)), [seen])

    program = pb.jit(lambda: pb.loop(steps, step))
    program()
    names = [c.name for c in program.program.host_calls]
    return losses, [p.numpy() for p in model.parameters()], names


LONG = [pytest.param(ranks, 100, True, marks=pytest.mark.slow) for ranks in (2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "steps", "gpt"), [(2, 10, False), *LONG])
def test_several_ranks_equal_one_on_the_joined_batch(ranks: int, steps: int, gpt: bool) -> None:
    losses, weights, calls = trained(pb.distributed.Group(), steps, gpt=gpt)
    assert calls == []
    every = threads(ranks, lambda group: trained(group, steps, gpt=gpt), timeout=600.0)
    for other, theirs, _ in every:
        np.testing.assert_allclose(other, losses, atol=1e-6)
        for a, b in zip(theirs, weights, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    for other, theirs, _ in every[1:]:
        assert other == every[0][0]
        for a, b in zip(theirs, every[0][1], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_buckets_are_begun_within_the_backward_and_awaited_after_it() -> None:
    def work(group: Any) -> Any:
        return trained(group, 2, bucket=1 << 11)[2], trained(group, 2, bucket=1 << 30)[2]

    many, one = threads(2, work)[0]
    first = many.index("all_reduce_wait")
    assert many[:first].count("all_reduce") >= 3  # the loss, and buckets
    assert one.count("all_reduce") == 2


def test_gradients_of_a_batch_outside_of_programs() -> None:
    x = drawn(0, 6, 3, kind="float32")

    def work(group: Any) -> list[Array]:
        with drawing:
            pb.random.manual_seed(0)
            layer = nn.Linear(3, 2)
        size = 6 // group.size
        own = x[group.rank * size : (group.rank + 1) * size]
        (DataParallel(layer, group=group)(pb.tensor(own)) ** 2).mean().backward()
        return [p.grad.numpy() for p in layer.parameters() if p.grad is not None]

    (wanted,) = threads(1, work)
    for found in threads(2, work):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_parameters_that_are_frozen_or_of_two_types() -> None:
    def work(group: Any) -> int:
        with drawing:
            model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4, bias=False), nn.Linear(4, 1))
        model[1].requires_grad_(False)
        return len(DataParallel(model, group=group).buckets()[0])

    assert threads(2, work) == [4, 4]


# --- ranks that differ, hang or end --------------------------------------------------------------


def codes(ranks: int, work: Callable[[Any], Any], **how: Any) -> list[str]:
    """The code that each rank raises."""

    def caught(group: Any) -> str:
        try:
            work(group)
        except PullbackError as error:
            return str(error.code)
        return ""

    return threads(ranks, caught, **how)


def test_programs_that_differ_are_refused_before_the_first_step() -> None:
    ran: list[int] = []

    def work(group: Any, shape: int, steps: int) -> None:
        def step() -> None:
            x = pb.Feeder(lambda: ran.append(1) or np.ones(shape, np.float32), shape=(shape,))
            pb.Receiver(print, [D.all_reduce(x, group=group)])

        pb.jit(lambda: pb.loop(steps, step))()

    assert codes(3, lambda g: work(g, 4 + (g.rank == 2), 3)) == ["E613"] * 3
    assert codes(2, lambda g: work(g, 4, 3 + g.rank)) == ["E613"] * 2
    assert codes(2, lambda g: D.all_reduce(pb.ones(2 + g.rank), group=g)) == ["E613"] * 2
    typed = [pb.ones(2, dtype=kind) for kind in ("int32", "int64")]
    assert codes(2, lambda g: D.all_gather(typed[g.rank], group=g)) == ["E613"] * 2
    assert codes(2, lambda g: DataParallel(nn.Linear(2 + g.rank, 1), group=g)) == ["E613"] * 2
    assert not ran


def test_another_collective_within_a_program_is_seen_by_the_ring() -> None:
    """Where the way through a program is decided by data of one rank."""

    def work(group: Any) -> Any:
        def f(x: Any) -> Any:
            return pb.cond(
                x.sum() > 0.0,
                lambda: D.all_reduce(x, group=group),
                lambda: D.all_reduce(pb.concat([x, x]), group=group)[:2],
            )

        return pb.jit(f)(pb.tensor([1.0, 1.0]) * (1.0 - 2.0 * group.rank)).numpy()

    found = codes(2, work)
    assert "E613" in found and set(found) <= {"E613", "E611"}


def test_a_rank_that_ends_or_hangs() -> None:
    def gone(group: Any) -> None:
        if group.rank == 1:
            group.close()
        else:
            D.all_reduce(pb.ones(100_000), group=group)

    assert codes(3, gone) == ["E611", "", "E611"]

    def hangs(group: Any) -> None:
        began = time.monotonic()
        try:
            D.all_reduce(pb.ones(3), group=group) if group.rank == 0 else time.sleep(1.0)
        finally:
            assert group.rank or 0.3 < time.monotonic() - began < 10.0

    assert codes(2, hangs, timeout=0.4) == ["E612", ""]

    def twice(group: Any) -> None:
        with pytest.raises(DistributedError):
            gone(group)
        D.all_reduce(pb.ones(3), group=group)  # at once: the group is broken

    assert codes(2, lambda g: twice(g) if g.rank == 0 else gone(g)) == ["E611", ""]


def test_what_is_refused() -> None:
    group, other = D.loopback(2)
    x = pb.ones((3, 2))
    n = pb.dim("n", 1, 4)
    wrong: list[Callable[[], Any]] = [
        lambda: D.all_reduce(x, "max", group=group),
        lambda: D.all_reduce(x > 0.0, group=group),
        lambda: D.all_reduce(pb.arange(3), "mean", group=group),
        lambda: D.all_gather(pb.tensor(1.0), group=group),
        lambda: D.reduce_scatter(x, group=group),
        lambda: D.reduce_scatter(pb.tensor(1.0), group=group),
        lambda: pb.jit(lambda t: D.all_reduce(t, group=group), shapes=[(n,)])(np.ones(3)),
        lambda: DataParallel(print, group=group),  # type: ignore[arg-type]
        lambda: DataParallel(nn.Linear(1, 1), bucket=0, group=group),
    ]
    for call in wrong:
        with pytest.raises(DistributedError) as caught:
            call()
        assert caught.value.code == "E614"
    for own in (3, "ring", other.transport):
        with pytest.raises(DistributedError, match="a Group is wanted"):
            D.all_reduce(x, group=own)  # type: ignore[arg-type]
    for ranks in (0, -1, True, 1.5):
        with pytest.raises(DistributedError, match="ranks"):
            D.loopback(ranks)  # type: ignore[arg-type]
    with pytest.raises(DistributedError) as caught:
        pb.vmap(lambda t: D.all_reduce(t, group=group))(x)
    assert caught.value.code == "E615"
    with pytest.raises(DistributedError, match="calls no host"):
        pb.jit(lambda t: D.all_reduce(t, group=group), options=pb.Options(host=False))(x)


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert D.init().size == 1 and (D.rank(), D.size()) == (0, 1)
    for name, text in (("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "x")):
        monkeypatch.setenv(name, text)
    with pytest.raises(DistributedError, match="RANK=2 of WORLD_SIZE=2"):
        D.init("ring")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(DistributedError, match="MASTER_PORT='x' is no number"):
        D.init()
    for timeout in (0, -1.0):
        with pytest.raises(DistributedError, match="timeout"):
            D.init(timeout=timeout)


# --- processes -----------------------------------------------------------------------------------

NEAREST = "shared memory" if sys.platform == "linux" else "the ring"
SCRIPT = """\
import os, signal, sys
import numpy as np
import pullback as pb

group = pb.distributed.init(*sys.argv[2:], timeout=20.0)
calls = [0]

def feed():
    calls[0] += 1
    if calls[0] == 6 and group.rank == 1 and sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full(3, group.rank + 1.0, np.float32)

total = pb.State(pb.zeros(3))

def step():
    total.assign(total + pb.distributed.all_reduce(pb.Feeder(feed, shape=(3,))))

pb.jit(lambda: pb.loop(10, step))()
print(total.tolist(), pb.distributed.rank(), pb.distributed.size(), group.transport.library)
"""


@pytest.mark.parametrize("transport", [[], ["shared"], ["ring"]])
def test_two_processes_of_a_host(tmp_path: Path, transport: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = processes(2, [str(script), "lives", *transport], tmp_path)
    name = "the ring" if transport == ["ring"] else NEAREST
    assert [e.stdout for e in ended] == [f"[30.0, 30.0, 30.0] {r} 2 {name}\n" for r in range(2)]
    began = time.monotonic()
    first, second = processes(2, [str(script), "dies", *transport], tmp_path)
    assert second.returncode == -9 and time.monotonic() - began < 20.0
    assert first.returncode == 1 and "[E611]" in first.stderr


SIZES = "--steps 8 --layers 1 --dim 16 --heads 2 --context 8 --batch 4"
TRAIN = f"train {SIZES} --save-every 2 -q --text text.txt --out"
DYING = """\
import os, signal
from pullback.cli import train
from pullback.cli.main import main

draw, calls = train.batch, [0]

def batch(*given):
    calls[0] += 1
    if calls[0] == 7 and os.environ["RANK"] == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(*given)

train.batch = batch
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_training_survives_a_rank(tmp_path: Path, shard: list[str]) -> None:
    """Four ranks' run is cut off; two go on from its last checkpoint."""
    (tmp_path / "text.txt").write_text("every rank has its part of the batch. " * 60)
    (tmp_path / "dying.py").write_text(DYING)

    def run(ranks: int, *more: str) -> list[Any]:
        return processes(ranks, ["-m", "pullback", *TRAIN.split(), *more], tmp_path)

    assert [e.returncode for e in run(1, "whole")] == [0]
    cut = processes(4, ["dying.py", *TRAIN.split(), "cut", *shard], tmp_path)
    assert cut[3].returncode == -9 and all(e.returncode != 0 for e in cut)
    kept = nn.load(tmp_path / "cut" / "checkpoint.safetensors")
    assert int(kept["optimizer.step"].item()) in (2, 4)
    resumed = run(2, "cut", "--resume", *shard)
    assert [e.returncode for e in resumed] == [0, 0], resumed[0].stderr
    whole, other = (nn.load(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    for name, value in whole.items():
        np.testing.assert_allclose(other[name].numpy(), value.numpy(), atol=2e-4)
