"""Many threads compile and run at once; children are forked and spawned beside them.

The programs of the threads are partly the same, so that first calls, cache entries and eager
programs meet; all results are compared with NumPy's.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.config import Options
from robust_support import Found, Tell, silent

THREADS = 16
PATIENCE = 600  # seconds after which threads that are not done hang
CHILD = 60  # seconds that a forked child has
Array = np.ndarray[Any, Any]


# --- programs by number --------------------------------------------------------------------------


@lru_cache(maxsize=8)
def given(rows: int, columns: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows * 100 + columns)
    a, b = rng.uniform(-1, 1, (2, rows, columns)).astype(np.float32)
    return a, b


def _product(a: Any, b: Any, factor: float) -> Any:
    return pb.tanh(a @ b.T) * factor


def _rows(a: Any, b: Any, factor: float) -> Any:
    return pb.softmax(a * factor, axis=1) + pb.sum(b, axis=0)


def _slope(a: Any, b: Any, factor: float) -> Any:
    return pb.grad(pb.sum(pb.sin(a * factor) * b), a)


def _text(a: Any, b: Any, factor: float) -> Any:
    return pb.define("y[i, j] = sum[k](a[i, k] * b[j, k]) + f * a[i, 0]", a=a, b=b, f=factor)


def _scan(a: Any, b: Any, factor: float) -> Any:
    return pb.cumulative_sum(a * factor, axis=1) * b


def _softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


KINDS: tuple[tuple[Callable[..., Any], Callable[..., Array]], ...] = (
    (_product, lambda a, b, f: np.tanh(a @ b.T) * f),
    (_rows, lambda a, b, f: _softmax(a * f) + b.sum(0)),
    (_slope, lambda a, b, f: np.cos(a * f) * f * b),
    (_text, lambda a, b, f: a @ b.T + f * a[:, :1]),
    (_scan, lambda a, b, f: np.cumsum(a * f, 1) * b),
)


def program(number: int) -> tuple[Callable[[Any, Any], Any], Array, Array, Array]:
    """Program `number`, its arguments and what it gives; of other numbers other shapes, texts."""
    kind, wanted = KINDS[number % len(KINDS)]
    rows, columns = 3 + number // 5 % 7, 4 + number // 35 % 9
    factor = 0.5 + number // 315 * 0.25
    a, b = given(rows, columns)
    exact = wanted(a.astype(np.float64), b.astype(np.float64), factor)
    return (lambda x, y: kind(x, y, factor)), a, b, exact


def wrong_with(number: int, options: Options | None = None) -> str:
    """Compile program `number`, run it as one and eagerly, compare; what is wrong."""
    function, a, b, wanted = program(number)
    tensors = pb.tensor(a), pb.tensor(b)
    results = {
        "compiled": pb.jit(function, options=options)(*tensors).numpy(),
        "eager": function(*tensors).numpy(),
    }
    for how, got in results.items():
        if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=1e-4, atol=1e-4):
            return f"program {number}, {how}: a wrong result"
    return ""


# --- threads -------------------------------------------------------------------------------------


def compiles(count: int, seed: int, tell: Tell = silent) -> Found:
    """16 threads, each with `count` compilations, half of them those of other threads too."""
    found, lock = Found(), threading.Lock()

    def one(thread: int, options: Options) -> None:
        dice = random.Random(seed * 1000 + thread)
        for turn in range(count):
            shared = dice.random() < 0.5
            number = seed + (turn if shared else count + thread * count + turn)
            try:
                wrong = wrong_with(number, options)
            except Exception as problem:  # of any kind: it is what the check is for
                wrong = f"program {number}: {type(problem).__name__}: {problem}"
            with lock:
                found.count += 1
                found.wrong += [wrong] if wrong else []
                tell(found.count)

    with tempfile.TemporaryDirectory() as name:
        pool = ThreadPoolExecutor(THREADS)
        options = [Options(threads=1 + n % 3, cache=Path(name)) for n in range(THREADS)]
        waiting = [pool.submit(one, n, options[n]) for n in range(THREADS)]
        try:
            for future in waiting:
                future.result(PATIENCE)
        except TimeoutError:
            found.wrong.append(f"threads that are not done after {PATIENCE} s")
        pool.shutdown(wait=False, cancel_futures=True)
    return found


# --- children ------------------------------------------------------------------------------------


def forks(count: int, seed: int, tell: Tell = silent) -> Found:
    """Forks while other threads compile and run; child and parent compute on."""
    found, stop = Found(), threading.Event()
    numbers = iter(range(seed, 10**9))
    before = pb.get_num_threads()
    pb.set_num_threads(3)

    def busy() -> None:
        while not stop.is_set():
            if wrong := wrong_with(next(numbers)):
                found.wrong.append(wrong)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(count):
            time.sleep(0.01 + turn % 7 * 0.01)
            if wrong := _forked(seed + turn):
                found.wrong.append(f"{turn}: {wrong}")
            if wrong := wrong_with(seed + turn):
                found.wrong.append(f"{turn}: the parent: {wrong}")
            found.count += 1
            tell(found.count)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        pb.set_num_threads(before)
    return found


def _forked(number: int) -> str:
    """A child that compiles and runs, and forks once more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: on purpose
        child = os.fork()
    if child == 0:
        signal.alarm(CHILD)
        code = 1
        try:
            code = int(bool(wrong_with(number) or wrong_with(number + 1)))
            if os.fork() == 0:
                signal.alarm(CHILD)
                os._exit(int(bool(wrong_with(number + 2))))
            code |= os.wait()[1]
        finally:
            os._exit(min(code, 255))
    code = os.waitpid(child, 0)[1]
    return f"a child ended with {code}" if code else ""


def pools(count: int, seed: int, tell: Tell = silent) -> Found:
    """Programs made in the children of pools, forked and spawned, `count` in each."""
    found = Found()
    if wrong := wrong_with(seed):  # this process has compiled, and has its threads
        found.wrong.append(wrong)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        numbers = range(seed, seed + count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                for wrong in pool.map(wrong_with, numbers, timeout=PATIENCE):
                    found.wrong += [f"{method}: {wrong}"] if wrong else []
                    found.count += 1
                    tell(found.count)
    return found
