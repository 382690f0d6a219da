"""Feeders and receivers: order, counts, errors, interrupts, and that they overlap with work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from program_support import Batches, add, cell, floats, mul, product, value
from pullback.config import Options
from pullback.errors import FeedError
from pullback.tensor.run import program as pb


def counting(feed, steps, state, receive=None, every=1):
    """``state += batch`` for a number of steps."""

    @pb.jit
    def train():
        def step():
            x = pb.Feeder(feed, shape=(4,))
            state.assign(add(state, x))
            if receive is not None:
                pb.Receiver(receive, [state], every=every)

        pb.loop(range(steps), step)

    return train


def test_a_feeder_is_called_once_per_step_in_order_and_never_beyond_the_last():
    feed, seen, p = Batches(), [], cell([0.0] * 4)
    train = counting(feed, 50, p, lambda a: seen.append(float(a[0])))
    train()
    assert feed.calls == 50 and seen == np.cumsum(range(50)).tolist()
    train()
    assert feed.calls == 100 and value(p)[0] == sum(range(100))


def test_snapshots_are_read_only_every_nth_and_all_delivered():
    seen = []
    train = counting(Batches(), 25, cell([0.0] * 4), seen.append, every=10)
    train()
    assert [float(a[0]) for a in seen] == [sum(range(10)), sum(range(20))]
    assert not any(a.flags.writeable for a in seen)
    slow = []
    train = counting(Batches(), 8, cell([0.0] * 4), lambda a: (time.sleep(0.01), slow.append(a)))
    train()
    assert len(slow) == 8


def test_stop_iteration_ends_the_loop_and_only_it():
    p = cell([0.0] * 4)
    feed = Batches(stop=7)
    train = counting(feed, 50, p)
    train()
    assert value(p)[0] == sum(range(7)) and feed.calls == 7
    feed.stop = 9
    train()
    assert value(p)[0] == sum(range(9)) and feed.calls == 9


def test_epochs_each_end_by_stop_iteration():
    p, made = cell(0.0), []

    def feed():
        made.append(len(made))
        if len(made) % 4 == 0:
            raise StopIteration
        return np.float32(1.0)

    @pb.jit
    def train():
        def epoch():
            pb.loop(range(100), lambda: p.assign(add(p, pb.Feeder(feed, shape=()))))
            p.assign(mul(p, 10.0))

        pb.loop(range(3), epoch)

    train()
    assert value(p) == ((3 * 10) + 3) * 10 * 10 + 30 and len(made) == 12


def test_several_feeders_and_several_arrays_of_one():
    p, order = cell([0.0, 0.0]), []

    def pair():
        order.append("pair")
        return np.ones(2, np.float32), np.full((2,), 3, np.int32)

    def single():
        order.append("single")
        return [1.0, 2.0]

    @pb.jit
    def train():
        def step():
            a, b = pb.Feeder(pair, shape=((2,), (2,)), dtype=("float32", "int32"))
            c = pb.Feeder(single, shape=(2,))
            p.assign(add(add(p, mul(a, c)), floats(b)))

        pb.loop(range(10), step)

    train()
    assert value(p).tolist() == [40.0, 50.0]
    assert order == ["pair", "single"] * 10


def test_a_feeder_in_a_branch_is_called_only_when_reached():
    feed, p = Batches(), cell([0.0] * 4)

    @pb.jit
    def train():
        def step(i):
            from_host = lambda: p.assign(add(p, pb.Feeder(feed, shape=(4,))))
            pb.cond(_even(i), from_host, lambda: None)

        pb.loop(range(10), step)

    train()
    assert feed.calls == 5 and value(p)[0] == sum(range(5))


def _even(i):
    from program_support import apply
    from pullback.ir import expr as E

    return apply(lambda n: E.Equal(E.Mod(n, E.index(2)), E.index(0)), i)


def test_a_raising_feeder_stops_at_the_last_whole_step():
    p = cell([0.0] * 4)
    feed = Batches()

    def failing():
        if feed.calls == 6:
            raise ValueError("disk on fire")
        return feed()

    train = counting(failing, 50, p)
    with pytest.raises(ValueError, match="disk on fire") as caught:
        train()
    assert value(p)[0] == sum(range(6))
    assert any("Feeder" in note for note in caught.value.__notes__)
    feed.calls = 0
    with pytest.raises(ValueError):
        train()
    assert value(p)[0] == 2 * sum(range(6))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\).*\(4,\)"),
        (np.zeros(4, np.float64), "float64.*float32"),
        ((np.zeros(4, np.float32),) * 2, "shape"),
    ],
)
def test_a_wrong_batch_is_refused_with_the_facts(batch, message):
    p, calls = cell([1.0] * 4), []

    def feed():
        calls.append(1)
        return batch if len(calls) == 3 else np.ones(4, np.float32)

    with pytest.raises(FeedError, match=message) as caught:
        counting(feed, 50, p)()
    assert value(p)[0] == 3.0 and len(calls) == 3
    assert __file__ in str(caught.value), "the error points at the user's line"


def test_a_raising_receiver_stops_the_program():
    p, seen = cell([0.0] * 4), []

    def receive(a):
        seen.append(a)
        if len(seen) == 3:
            raise RuntimeError("no space left")

    train = counting(Batches(), 100_000, p, receive)
    with pytest.raises(RuntimeError, match="no space left"):
        train()
    assert len(seen) == 3
    steps = next(n for n in range(100_000) if sum(range(n)) == value(p)[0])
    assert steps < 100_000, "the state is that of a whole step"


def test_an_unconsumed_batch_survives_an_interrupt():
    p, seen = cell([0.0] * 4), []
    feed = Batches()

    def interrupting():
        if feed.calls in (20, 120):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
        return feed()

    train = counting(interrupting, 150, p, lambda a: seen.append(float(a[0])))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train()
        done = len(seen)
        assert seen == np.cumsum(range(done)).tolist() and value(p)[0] == seen[-1]
        assert feed.calls - done <= 3
    train()
    assert seen == np.cumsum(range(done + 150)).tolist()
    assert feed.calls == done + 150, "no batch is lost, none is made too many"


def test_a_blocked_feeder_can_be_interrupted():
    gate = threading.Event()
    p = cell([0.0] * 4)

    def stuck():
        gate.wait(20)
        return np.ones(4, np.float32)

    train = counting(stuck, 5, p)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train()
    assert time.monotonic() - begin < 5
    gate.set()
    train()
    assert value(p)[0] == 5.0


def test_a_long_loop_without_callbacks_can_be_interrupted():
    p = cell(0.0)

    @pb.jit
    def train():
        pb.loop(range(10**9), lambda: p.assign(add(p, 1.0)))

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        train()
    assert value(p) > 0


def test_without_jit_the_same_step_runs_eagerly():
    p, seen, feed = cell([0.0] * 4), [], Batches(stop=5)

    def step():
        x = pb.Feeder(feed, shape=(4,))
        p.assign(add(p, x))
        pb.Receiver(seen.append, [p])

    pb.loop(range(10), step)
    assert value(p)[0] == 10.0 and len(seen) == 5


def test_no_thread_outlives_its_run():
    before = threading.active_count()
    for _ in range(5):
        train = counting(Batches(), 10, cell([0.0] * 4), lambda a: None)
        train()
    assert threading.active_count() == before


def _wide(feed, receive, steps, inner, state, weight, acc):
    @pb.jit
    def train():
        def step():
            if feed is not None:
                state.assign(add(state, pb.Feeder(feed, shape=(4,))))
            pb.loop(range(inner), lambda: acc.assign(mul(product(acc, weight), 0.001)))
            if receive is not None:
                pb.Receiver(receive, [state])

        pb.loop(range(steps), step)

    return train


@pytest.mark.slow
def test_feeding_and_receiving_overlap_with_work():
    state, weight = cell([0.0] * 4), cell(np.ones((64, 64)))
    acc = cell(np.ones((64, 64)))
    pause = 0.005

    def sleep(*_):
        time.sleep(pause)
        return np.ones(4, np.float32)

    def timed(feed, receive, inner, steps=40):
        train = _wide(feed, receive, steps, inner, state, weight, acc)
        train()
        begin = time.perf_counter()
        train()
        return (time.perf_counter() - begin) / steps

    one = timed(None, None, 200) / 200
    inner = max(1, round(pause / one))
    for feed, receive in ((sleep, None), (None, sleep)):
        # Other processes disturb the clock: the best of a few tries counts.
        ratios = []
        while len(ratios) < 5 and min(ratios, default=1.0) > 0.85:
            alone = timed(None, None, inner)
            ratios.append(timed(feed, receive, inner) / (alone + pause))
        assert min(ratios) <= 0.85


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_a_feeder_that_ends_outside_of_a_loop_is_an_error(backend):
    """Not zeros; and the program can be called again."""
    batches = iter([np.ones(4, np.float32)])
    run = pb.jit(lambda: pb.Feeder(lambda: next(batches), shape=(4,)), options=Options(backend))
    assert value(run()).tolist() == [1.0] * 4
    for _ in range(2):
        with pytest.raises(FeedError, match="outside of a loop"):
            run()


PROGRAM = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from program_support import Batches, add, cell, product, value
from pullback.tensor.run import program as pb
p, w = cell(np.ones((96, 96))), cell(np.eye(96) * 1.01)
@pb.jit
def train():
    pb.loop(range(20), lambda: p.assign(product(p, w)))
train()
child = os.fork()
train()
if child:
    assert os.waitpid(child, 0)[1] == 0
np.testing.assert_allclose(value(p), 1.01 ** 40, rtol=1e-4)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_a_forked_process_has_its_own_threads(threads):
    here = os.path.dirname(__file__)
    env = {**os.environ, "PULLBACK_THREADS": threads}
    subprocess.run([sys.executable, "-c", PROGRAM, here], check=True, timeout=60, env=env)
