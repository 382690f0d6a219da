"""1000 steps of about 5 ms each, fed or received asynchronously: how much of the waiting is hidden.

Three programs: a feeder that sleeps 5 ms, one that computes 5 ms of NumPy, and a receiver that
takes 5 ms. Done one after the other each would take 10 s; hidden, little more than 5 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import pullback as pb

STEPS = 1000
PAUSE = 0.005  # seconds
WIDTH = 128


def sleeps() -> np.ndarray:
    time.sleep(PAUSE)
    return np.ones(4, np.float32)


def computes() -> np.ndarray:
    """Keeps NumPy busy for 5 ms of this thread's processor time."""
    table = np.arange(65_536, dtype=np.float32)
    start = time.thread_time()
    while time.thread_time() - start < PAUSE:
        np.sqrt(table).sum()
    return np.ones(4, np.float32)


def program(
    feeder: Callable[[], np.ndarray] | None, receiver: Callable[..., None] | None, repeats: int
) -> Callable[[], None]:
    """1000 steps of `repeats` small products each."""
    state = pb.State(pb.ones((WIDTH, WIDTH)))
    weight = pb.tensor(np.full((WIDTH, WIDTH), 1.0 / WIDTH, np.float32))
    total = pb.State(pb.zeros(()))

    def work() -> None:
        state.assign(state @ weight)

    def step() -> None:
        if feeder is not None:
            total.assign(total + pb.Feeder(feeder, shape=(4,)).sum())
        pb.loop(range(repeats), work)
        if receiver is not None:
            pb.Receiver(receiver, [total])

    @pb.jit
    def run() -> None:
        pb.loop(range(STEPS), step)

    return run


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    trial = program(None, None, 10)
    trial()
    repeats = max(1, round(10 * PAUSE * STEPS / seconds(trial)))
    alone = program(None, None, repeats)
    alone()
    rows = {
        "steps alone": alone,
        "feeder sleeps 5 ms": program(sleeps, None, repeats),
        "feeder computes 5 ms": program(computes, None, repeats),
        "receiver takes 5 ms": program(None, lambda _: time.sleep(PAUSE), repeats),
    }
    print("| 1000 steps of 5 ms | seconds |")
    print("|---|---|")
    for name, run in rows.items():
        print(f"| {name} | {seconds(run):.2f} |")


if __name__ == "__main__":
    main()
