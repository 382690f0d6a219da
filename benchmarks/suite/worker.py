"""One system, one workload, one number of threads, in a process of its own.

Reads a line of JSON that says which, answers with cold seconds and what is compared, then with
the seconds of a warm call for every line that comes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sides import summary

LEAST = 0.05  # seconds of calls that make one sample
MOST = 2000  # calls of a sample


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def sample(ready: Any, clock: Callable[[], float]) -> float:
    """Seconds of a call (of a step), from calls in a row."""
    start = clock()
    ready.call()
    once = clock() - start
    if once > LEAST:
        return once / ready.steps
    count = min(MOST, max(1, int(LEAST / max(once, LEAST / MOST))))
    start = clock()
    for _ in range(count):
        ready.call()
    return (clock() - start) / count / ready.steps


def prepare(spec: dict[str, Any]) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: spec["threads"]])
    from suite.classes import made
    from suite.systems import SYSTEMS, flush_denormals
    from suite.workload import Training, weights

    w = made(spec["workload"])
    flush_denormals()
    try:
        system = SYSTEMS[spec["system"]](spec["threads"], spec["mode"])
    except ImportError as error:
        say(missing=str(error.name))
        return
    rng = np.random.default_rng(11)
    clock = CLOCKS[spec["clock"]]
    start = clock()
    if isinstance(w, Training):
        batch = w.batch(rng)
        shapes = spec["shapes"] or {
            k: list(map(int, v.shape)) for k, v in w.model(system).state_dict().items()
        }
        ready = system.training(w, batch, weights(shapes))
        moved = 0
    else:
        shapes, arrays = {}, w.data(rng)
        start = clock()
        ready = system.operation(w, arrays)
    found = ready.first()
    cold = clock() - start
    if isinstance(w, Training):
        found = [found[0], *(ready.first()[0] for _ in range(2))]
        found = [np.array(found)]
        moved = 2 * 4 * sum(int(np.prod(s)) for s in shapes.values())
    else:
        item = 2 if w.dtype == "bfloat16" else 4
        moved = sum(a.nbytes * item // 4 for a in arrays) + sum(f.size * item for f in found)
    say(cold=cold, shapes=shapes, moved=moved, sums=[summary(f) for f in found])
    answer(ready, CLOCKS[spec["clock"]])


def answer(ready: Any, clock: Callable[[], float]) -> None:
    """What is asked, line by line. Before the first sample: two calls that nobody times."""
    rested = True
    for line in sys.stdin:
        if line.strip() == "memory":
            say(memory=ready.memory())
            continue
        if rested:
            ready.call()
            ready.call()
        rested = False
        say(seconds=sample(ready, clock))


if __name__ == "__main__":
    prepare(json.loads(sys.argv[1]))
