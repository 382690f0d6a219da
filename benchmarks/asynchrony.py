"""1000 steps of about 5 ms each, fed or received asynchronously: how much of the waiting is hidden.

Three programs: a feeder that sleeps 5 ms, one that computes 5 ms of NumPy, and a receiver that
takes 5 ms. Done one after the other each would take 10 s; hidden, little more than 5 s. Steps of
small products keep one core busy. Steps of larger ones keep two: then 5 ms of NumPy beside 10 ms
of step cannot take less than 7.5 s on two cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import pullback as pb

STEPS = 1000
PAUSE = 0.005  # seconds
WIDTHS = {48: "one core", 128: "two cores"}


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
    width: int,
    repeats: int,
    feeder: Callable[[], np.ndarray] | None = None,
    receiver: Callable[..., None] | None = None,
) -> Callable[[], None]:
    """1000 steps of `repeats` products of `width` each."""
    state = pb.State(pb.ones((width, width)))
    weight = pb.tensor(np.full((width, width), 1.0 / width, np.float32))
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


def measure(width: int) -> dict[str, float]:
    """Seconds of each program, by name."""
    trial = program(width, 10)
    trial()
    repeats = max(1, round(10 * PAUSE * STEPS / seconds(trial)))
    alone = program(width, repeats)
    alone()
    programs = {
        "steps alone": alone,
        "feeder sleeps 5 ms": program(width, repeats, sleeps),
        "feeder computes 5 ms": program(width, repeats, computes),
        "receiver takes 5 ms": program(width, repeats, None, lambda _: time.sleep(PAUSE)),
    }
    return {name: seconds(run) for name, run in programs.items()}


def main() -> None:
    found = {width: measure(width) for width in WIDTHS}
    print("| 1000 steps of 5 ms, seconds |", " | ".join(WIDTHS.values()), "|")
    print("|---|" + "---|" * len(WIDTHS))
    for name in next(iter(found.values())):
        cells = " | ".join(f"{rows[name]:.2f}" for rows in found.values())
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
