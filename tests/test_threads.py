"""Threads: equal bits for any number, calls from many, forks, idleness, interrupts, the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host import machine
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError
from pullback.ir.dtype import float32
from pullback.tensor.record import held
from pullback.tensor.record.turns import Turns

PYTHON_THREADS = 16
CALLS = 200


@pytest.fixture(autouse=True)
def same_threads_after() -> Iterator[None]:
    before = pb.get_num_threads()
    yield
    pb.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    n, d = q.shape
    i, j = pb.arange(n), pb.arange(n)
    scores = pb.where(j[None, :] <= i[:, None], q @ k.T / d**0.5, -float("inf"))
    shifted = pb.exp(scores - pb.max(scores, axis=1, keepdims=True))
    return shifted @ v / pb.sum(shifted, axis=1, keepdims=True)


def normalised(x: Any) -> Any:
    centred = x - pb.mean(x, axis=1, keepdims=True)
    return pb.sum(centred / pb.sqrt(pb.mean(centred * centred, axis=1, keepdims=True) + 1e-5))


PLACES = np.random.default_rng(5).integers(0, 40, 30000)
# What splits work in every way there is; the sizes are such that each has several tasks.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (lambda a, b: a @ b, (numbers(256, 300), numbers(300, 320))),
    "blocks along k": (lambda a, b: a @ b, (numbers(280, 1500), numbers(1500, 300))),
    "packed panels": (lambda a, b: pb.tanh(a @ b.T), (numbers(300, 290), numbers(310, 290))),
    "tall sum": (lambda a, b: a.T @ b, (numbers(24000, 24), numbers(24000, 40))),
    "sum of all": (lambda a: pb.sum(pb.exp(a)), (numbers(700, 700),)),
    "sum of columns": (lambda a: pb.sum(a * a, axis=0), (numbers(3000, 130),)),
    "rows": (lambda a: pb.grad(normalised(a), a), (pb.tensor(numbers(900, 300)),)),
    "attention": (attention, (numbers(200, 64), numbers(200, 64, seed=1), numbers(200, 64))),
    "scatter": (
        lambda t, p, v: t.at[p].add(pb.tanh(v[p])),
        (numbers(40, 512), PLACES, numbers(40, 512)),
    ),
    "scan": (lambda a: pb.cumulative_sum(a, axis=1), (numbers(300, 700),)),
    "running product": (
        lambda a: pb.grad(pb.sum(pb.cumulative_prod(a, axis=0)), a),
        (pb.tensor(numbers(90, 200)),),
    ),
    "sort": (lambda a: pb.sort(a, axis=1), (numbers(300, 200),)),
    "gather": (lambda a, p: pb.take(a, p, axis=0) * 2.0, (numbers(40, 33), PLACES)),
}
PARALLEL = frozenset(PROGRAMS) - {"running product"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    """Of one compiled program, on fewer and on more threads than it was compiled for."""
    function, given = PROGRAMS[name]
    pb.set_num_threads(2)
    run = pb.jit(function, options=Options(cache=None))
    wanted = run(*given).numpy().tobytes()
    assert (run.program.barriers > 0) or name not in PARALLEL
    for threads in (1, 2, 4, 4, 1):
        pb.set_num_threads(threads)
        assert run(*given).numpy().tobytes() == wanted
        assert (run.program.barriers > 0) == (threads > 1) or name not in PARALLEL


@pytest.mark.slow
def test_a_training_step_gives_the_same_bits() -> None:
    def trained(threads: int) -> bytes:
        pb.random.manual_seed(3)
        model = pb.nn.Sequential(pb.nn.Linear(300, 280), pb.nn.GELU(), pb.nn.Linear(280, 10))
        rule = pb.optim.AdamW(model.parameters(), lr=0.01)
        x, wanted = pb.tensor(numbers(300, 300)), pb.tensor(numbers(300, 10, seed=1))

        @pb.jit(options=Options(threads=threads, cache=None))
        def step() -> None:
            rule.zero_grad()
            pb.nn.functional.mse_loss(model(x), wanted).backward()
            rule.step()

        for _ in range(3):
            step()
        assert (step.program.barriers > 0) == (threads > 1)
        return b"".join(p.numpy().tobytes() for p in model.parameters())

    assert trained(1) == trained(2) == trained(4)


def test_a_setting_is_a_whole_number() -> None:
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(OptionError, match="set_num_threads"):
            pb.set_num_threads(wrong)  # that is the point
    pb.set_num_threads(3)
    assert pb.get_num_threads() == 3


def test_options_of_a_program_go_first() -> None:
    function, given = PROGRAMS["product"]
    alone = pb.jit(function, options=Options(threads=1, cache=None))
    pb.set_num_threads(4)
    alone(*given)
    assert alone.program.barriers == 0


def test_a_budget_keeps_the_threads_it_was_planned_for() -> None:
    pb.set_num_threads(1)
    run = pb.jit(PROGRAMS["attention"][0], memory="8MB", options=Options(cache=None))
    wanted = run(*PROGRAMS["attention"][1]).numpy().tobytes()
    pb.set_num_threads(4)
    assert run(*PROGRAMS["attention"][1]).numpy().tobytes() == wanted
    assert run.program.barriers == 0


def on_threads(work: Callable[[int], None], count: int = PYTHON_THREADS) -> None:
    """Run ``work(n)`` on threads at once; nothing may hang."""
    ready = threading.Barrier(count)

    def one(number: int) -> None:
        ready.wait(60)
        work(number)

    pool = ThreadPoolExecutor(count)
    try:
        for future in [pool.submit(one, n) for n in range(count)]:
            future.result(100)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


CALLERS = 4
COLUMNS = (33, 40, 47, 54, 61)


def test_four_threads_race_for_the_first_calls_of_one_function() -> None:
    """All for one shape, then each for one of its own, then one after another for all of them."""
    traced: list[int] = []

    @pb.jit
    def run(a: Any, b: Any) -> Any:
        traced.append(b.shape[1])
        time.sleep(0.05)  # who does not wait for this trace begins another meanwhile
        return pb.tanh(a @ b)

    a = numbers(64, 48)
    wanted = {n: np.tanh(a @ numbers(48, n)) for n in COLUMNS}

    def work(number: int) -> None:
        for turn in range(len(COLUMNS)):
            columns = COLUMNS[(turn + number) % len(COLUMNS)] if turn else COLUMNS[0]
            assert np.allclose(run(a, numbers(48, columns)).numpy(), wanted[columns], atol=1e-4)

    on_threads(work, CALLERS)
    assert len(traced) == len(set(traced)) == run.traces


def test_calls_of_one_function_from_four_threads_do_not_meet() -> None:
    """Each has the result of its own arguments, to the bit, and so do calls that wait."""
    pb.set_num_threads(2)
    run = pb.jit(lambda a, b: pb.tanh(a @ b))
    b = numbers(160, 96)
    given = [numbers(72, 160, seed=n) for n in range(CALLERS)]
    wanted = [run(a, b).numpy().tobytes() for a in given]
    sums = [(pb.tensor(a) * 2.0 + 1.0).numpy().tobytes() for a in given]

    def work(number: int) -> None:
        a = given[number]
        for _ in range(CALLS):
            assert run(a, b).numpy().tobytes() == wanted[number]
            assert (pb.tensor(a) * 2.0 + 1.0).numpy().tobytes() == sums[number]

    on_threads(work, CALLERS)


def test_a_call_does_not_wait_for_another_of_the_same_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a machine of its own, as many as processors."""
    monkeypatch.setattr(machine, "processors", lambda: 2)
    run = pb.jit(lambda a, b: pb.tanh(a @ b) @ b)
    a, b = numbers(64, 64), numbers(64, 64, seed=1)
    wanted = run(a, b).numpy().tobytes()
    first = run.program.runner
    with first._lock:
        calls = ThreadPoolExecutor(1)
        made = [calls.submit(lambda: run(a, b).numpy().tobytes()) for _ in range(4)]
        assert all(one.result(10) == wanted for one in made)
        assert len(first._beside) == 1


def test_programs_that_assign_a_state_have_one_machine() -> None:
    """Read and then written; so have those with a limit of memory, and those that are timed."""
    state = pb.State(numbers(8, 8))

    @pb.jit
    def assigned(a: Any) -> Any:
        state.assign(pb.tanh(state @ a))
        return a + 1.0

    assigned(numbers(8, 8))
    assert assigned.program.runner._alike is None
    for options in (Options(memory=1 << 30), Options(profile=True)):
        run = pb.jit(lambda a: a @ a, options=options)
        run(numbers(8, 8))
        assert run.program.runner._alike is None
    plain = pb.jit(lambda a: a @ a)
    plain(numbers(8, 8))
    assert plain.program.runner._alike is not None


def test_a_state_is_made_of_an_array() -> None:
    """Or a number, as it is assigned one."""
    array = numbers(3, 4)
    state = pb.State(array)
    state.assign(state * 2.0)
    assert np.array_equal(state.numpy(), array * 2) and pb.State(3).numpy() == 3


def test_there_is_one_kind_of_a_shape_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads make it at once: what they hold is looked up by identity."""
    both = threading.Barrier(2, timeout=20)

    class Slow(held.Kind):
        __slots__ = ()

        def __init__(self, *facts: Any) -> None:
            both.wait()
            super().__init__(*facts)

    monkeypatch.setattr(held, "Kind", Slow)
    made: list[held.Kind] = []
    on_threads(lambda _: made.append(held.kind_of((3, 1, 4, 1, 5, 9, 2, 6), float32)), 2)
    assert made[0] is made[1]


@pytest.mark.slow
def test_many_threads_call_programs_that_share_a_pool() -> None:
    """One program from all, one of each thread's own; the first calls race: one trace each."""
    traced: list[str] = []
    pb.set_num_threads(3)

    def named(name: str, factor: float) -> Any:
        def function(a: Any, b: Any) -> Any:
            traced.append(name)
            return (a @ b) * factor

        return pb.jit(function)

    common = named("common", 2.0)
    own = [named(f"own {n}", float(n)) for n in range(4)]
    a, b = numbers(72, 160), numbers(160, 96)

    def work(number: int) -> None:
        mine = own[number % len(own)]
        scaled = a * np.float32(number + 1)
        wanted = common(scaled, b).numpy().tobytes(), mine(scaled, b).numpy().tobytes()
        for _ in range(CALLS // 2):
            found = common(scaled, b).numpy().tobytes(), mine(scaled, b).numpy().tobytes()
            assert found == wanted
        eager = pb.sum(pb.tensor(scaled) * float(number)).item()
        assert np.isclose(eager, float((scaled * np.float32(number)).sum()), rtol=1e-3)

    on_threads(work)
    assert sorted(traced) == ["common", *(f"own {n}" for n in range(4))]
    assert np.allclose(common(a, b).numpy(), 2 * (a @ b), atol=1e-3)


@pytest.mark.slow
def test_no_update_of_a_state_is_lost_or_seen_half() -> None:
    """Writers take turns; who looks sees a state between two calls, all of it."""
    state = pb.State(pb.zeros((64, 257)))
    other = pb.State(pb.zeros((3,)))

    @pb.jit
    def grow(x: Any) -> None:
        state.assign(state + x)

    @pb.jit
    def both(x: Any) -> Any:
        other.assign(other + 1.0)
        return pb.sum(state[0, :2]) + x

    @pb.jit
    def spread() -> Any:
        return pb.max(state), pb.min(state)

    def work(number: int) -> None:
        for _ in range(CALLS):
            if number % 4 == 3:
                high, low = spread()
                assert high.item() == low.item()
                seen = state.numpy()
                assert seen.min() == seen.max()
            elif number % 4 == 2:
                both(np.float32(0))
            else:
                grow(np.float32(1))

    on_threads(work)
    assert np.all(state.numpy() == 8 * CALLS)
    assert np.all(other.numpy() == 4 * CALLS)


def test_who_has_a_turn_does_not_wait_for_who_waits_for_it() -> None:
    """A call that reads a state once more while another waits to write it."""
    line = Turns()
    one = frozenset([1])
    first = line.begin(one, one)
    behind = threading.Thread(target=lambda: line.end(line.begin(one, one)), daemon=True)
    behind.start()
    while len(line.line) < 2:
        time.sleep(0.001)
    nested = threading.Timer(20, line.end, [line.line[-1]])  # what ends a wait that never ends
    nested.start()
    again = line.begin(one, frozenset())
    assert nested.is_alive(), "it waited for the thread behind it"
    nested.cancel()
    assert line.line.index(again) == 1
    line.end(again)
    line.end(first)
    behind.join(20)
    assert not line.line


def test_a_callback_calls_other_programs_but_not_its_own() -> None:
    state = pb.State(pb.zeros((4,)))
    seen: list[float] = []

    @pb.jit
    def double(x: Any) -> Any:
        state.assign(state + 1.0)
        return x * 2.0

    @pb.jit
    def run() -> None:
        def step() -> None:
            pb.Receiver(lambda a: seen.append(double(a).numpy()[0]), [state])
            state.assign(state * 1.0)

        pb.loop(3, step)

    double(np.zeros(4, np.float32))
    run()
    assert len(seen) == 3

    @pb.jit
    def again() -> None:
        pb.loop(2, lambda: pb.Receiver(lambda a: again(), [state]))

    with pytest.raises(UnsupportedError, match="of its own"):
        again()
    assert double(np.ones(4, np.float32)).tolist() == [2.0] * 4


def square_sum(count: int) -> float:
    """What a child computes, on several threads."""
    a = numbers(300, count)
    run = pb.jit(lambda x: x @ x.T)
    found = run(a).numpy()
    assert run.program.barriers > 0
    return float(found.sum())


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX in the same process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_compute_on_threads_of_their_own(method: str) -> None:
    pb.set_num_threads(2)
    wanted = square_sum(280)
    with multiprocessing.get_context(method).Pool(2) as children:
        found = children.map_async(square_sum, [280] * 4).get(60)
    assert found == [wanted] * 4
    assert square_sum(280) == wanted


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX in the same process
def test_a_fork_beside_a_compilation() -> None:
    """LLVM has locks of its own."""
    stop = threading.Event()
    number = iter(range(1000))

    def compiling() -> None:
        while not stop.is_set():
            factor = float(next(number))
            made = pb.jit(lambda x, factor=factor: pb.exp(x) * factor, options=Options(cache=None))
            made(numbers(8))

    thread = threading.Thread(target=compiling)
    thread.start()
    codes = []
    for n in range(4):
        time.sleep(0.05)
        child = os.fork()
        if child == 0:
            signal.alarm(40)
            made = pb.jit(lambda x, n=n: x + n, options=Options(cache=None))
            os._exit(int(made(numbers(8)).shape != (8,)))
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join(30)
    assert codes == [0] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX in the same process
def test_a_fork_beside_running_threads() -> None:
    """Other threads run programs and hold locks at that moment; the child has neither."""
    pb.set_num_threads(2)
    a = numbers(200, 300)
    run = pb.jit(lambda x: x @ x.T)
    state = pb.State(pb.zeros((4,)))
    grow = pb.jit(lambda: state.assign(state + 1.0))
    wanted = run(a).numpy().tobytes()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            run(a)
            grow()

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            grow()
            os._exit(int(run(a).numpy().tobytes() != wanted))
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    for thread in threads:
        thread.join(30)
    assert codes == [0] * 8
    assert run(a).numpy().tobytes() == wanted


def test_an_idle_pool_sleeps() -> None:
    pb.set_num_threads(4)
    square_sum(280)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


LONG = """
import numpy as np, signal, threading, time
import pullback as pb
pb.set_num_threads(2)
state = pb.State(pb.zeros((300, 300)))

@pb.jit
def train(x):
    pb.loop(1_000_000, lambda: state.assign(state + x @ x * 0.0 + 1.0))

@pb.jit
def once(x):
    return x @ x

x = pb.zeros((300, 300))
once(x)
"""


def python(text: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LONG + text]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
def test_an_interrupt_leaves_whole_steps_and_a_usable_program() -> None:
    found = python("""
threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    train(x)
except KeyboardInterrupt:
    seen = state.numpy()
    assert seen.min() == seen.max() > 0
    try:
        threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
        train(x)
    except KeyboardInterrupt:
        assert state.numpy().min() == state.numpy().max() > seen.max()
        assert once(x).numpy().sum() == 0
        print("whole")
""")
    assert (found.stdout, found.stderr, found.returncode) == ("whole\n", "", 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(0.1)",
        "threading.Thread(target=train, args=(x,), daemon=True).start(); time.sleep(0.5)",
        "threading.Thread(target=lambda: [once(x) for _ in iter(int, 1)], daemon=True).start();"
        " time.sleep(0.3)",
        "import sys; sys.exit(0)",
    ],
    ids=["asleep", "in a loop", "calling for ever", "exit"],
)
def test_a_process_ends_cleanly(text: str) -> None:
    found = python(text, 30)
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0)
