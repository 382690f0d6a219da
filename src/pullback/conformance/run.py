"""Cases on a backend, beside the same on the reference: what came out, and how far it is off."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pullback.backends.registry import named
from pullback.config import Options
from pullback.conformance.case import Array, Cell, Sample
from pullback.errors import PullbackError, UnsupportedError
from pullback.ir.dtype import DType, dtype
from pullback.tensor.library.creation import ones
from pullback.tensor.run.program import jit

ORACLE = "reference"
TOGETHER = 24  # cells in one program, at most
THREADS = 2
ABSENT = ("E357", "E362", "E410", "E414", "E440")  # no compiler, no device: nothing can be tried
FAILS = (
    "E357",
    "E364",
    "E365",
    "E445",
)  # of a compiler or a device on what it was given: no refusals
PRECISION = {
    "float8_e4m3fn": (4, -5),
    "float8_e5m2": (3, -13),
    "bfloat16": (8, -125),
    "float16": (11, -13),
    "float32": (24, -125),
    "float64": (53, -1021),
}

Results = list[Array]


@dataclass(frozen=True)
class Verdict:
    """Of one cell: `state` is "pass", "fail" or "refused"; why, or the error in ulp."""

    cell: Cell
    state: str
    error: float = 0.0
    why: str = ""


def conformance(backend: str, wanted: Sequence[Cell]) -> list[Verdict]:
    """A verdict for each cell, in their order.

    Raises: UnsupportedError for a backend that is not there, or whose compiler or device is not.
    """
    options = options_of(backend)
    named(backend)
    probe(options)
    return [v for group in grouped(wanted) for v in judged(group, options)]


def probe(options: Options) -> None:
    """A program of nothing much. Raises: UnsupportedError where a compiler or device is absent."""
    try:
        jit(lambda x: x + x, options=options)(ones(3))
    except Exception as error:
        if isinstance(error, UnsupportedError) and error.code in ABSENT:
            raise
        return  # each cell tells its own


def options_of(backend: str) -> Options:
    """Nothing is kept: what is tested is what the backend makes now."""
    return Options(backend=backend, threads=THREADS, cache=None)


def grouped(wanted: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Cells that share a program, in order."""
    group: list[Cell] = []
    for cell in wanted:
        full = len(group) == TOGETHER
        if group and (full or cell.case.alone or cell.section != group[0].section):
            yield group
            group = []
        group.append(cell)
        if cell.case.alone:
            yield group
            group = []
    if group:
        yield group


def judged(group: list[Cell], options: Options) -> list[Verdict]:
    """Verdicts of one program; each by itself where the program does not run."""
    expected = [oracle(cell) for cell in group]
    try:
        results = outcomes(group, options)
    except UnsupportedError as error:
        if len(group) == 1:
            state = "fail" if error.code in FAILS else "refused"
            return [Verdict(group[0], state, why=said(error))]
    except Exception as error:
        if len(group) == 1:
            return [Verdict(group[0], "fail", why=said(error))]
    else:
        return list(map(compared, group, results, expected))
    return [v for cell in group for v in judged([cell], options)]


def said(error: Exception) -> str:
    """The first line of an error, with its code or class."""
    if isinstance(error, PullbackError):
        return f"{error.what.splitlines()[0]} [{error.code}]"
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:160]


@functools.cache
def oracle(cell: Cell) -> Results:
    """What the reference makes of a cell."""
    (outcome,) = outcomes([cell], options_of(ORACLE))
    return outcome


def outcomes(group: Sequence[Cell], options: Options) -> list[Results]:
    """The results of each cell, of one program that computes them all."""
    samples = [cell.case.make(cell.kind) for cell in group]
    results: list[Results] = [[] for _ in samples]
    with np.errstate(all="ignore"):
        made = jit(functools.partial(_together, samples), shapes=_shapes(samples), options=options)
        for call in zip(*(s.calls for s in samples), strict=True):
            rows = made(*(a for arrays in call for a in arrays))
            for own, row in zip(results, rows, strict=True):
                own += [np.array(t.numpy()) for t in row]
    for own, sample in zip(results, samples, strict=True):
        own += sample.received
    return results


def _together(samples: Sequence[Sample], *given: Any) -> list[list[Any]]:
    """All functions, each on its own arguments."""
    rest = iter(given)
    rows = [s.function(*islice(rest, len(s.calls[0]))) for s in samples]
    return [list(r) if isinstance(r, list | tuple) else [r] for r in rows]


def _shapes(samples: Sequence[Sample]) -> list[Any] | None:
    if all(s.shapes is None for s in samples):
        return None
    return [x for s in samples for x in s.shapes or [None] * len(s.calls[0])]


def compared(cell: Cell, results: Results, expected: Results) -> Verdict:
    """Results beside what they must be."""
    worst = 0.0
    if len(results) != len(expected):
        why = f"{len(results)} results, {len(expected)} are wanted"
        return Verdict(cell, "fail", why=why)
    for got, want in zip(results, expected, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            why = f"{got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
            return Verdict(cell, "fail", why=why)
        why, error = difference(got, want, cell.case.whole)
        if why:
            return Verdict(cell, "fail", why=why)
        worst = max(worst, error)
    if worst > cell.case.ulps:
        why = f"an error of {worst:.3g} ulp, {cell.case.ulps:g} are allowed"
        return Verdict(cell, "fail", worst, why)
    return Verdict(cell, "pass", worst)


def difference(got: Array, want: Array, whole: bool) -> tuple[str, float]:
    """What is plainly wrong, if anything, and the largest error in ulp of `want`."""
    kind = dtype(want.dtype)
    if not kind.is_float:
        wrong = int(np.sum(got != want))
        return (f"{wrong} of {want.size} elements differ" if wrong else ""), 0.0
    new, old = got.astype(np.float64), want.astype(np.float64)
    known = np.isfinite(old)
    for name, test in (("NaN", np.isnan), ("infinite", np.isinf)):
        wrong = int(np.sum(test(new) != test(old)))
        if wrong:
            return f"{name} or not at {wrong} of {want.size} elements", 0.0
    if np.any((new != old) & np.isinf(old)):
        return "an infinity of the other sign", 0.0
    if not known.any():
        return "", 0.0
    unit = ulp(np.abs(old[known]).max() if whole else old[known], kind)
    return "", float(np.max(np.abs(new[known] - old[known]) / unit))


def ulp(x: Any, kind: DType) -> Any:
    """The unit in the last place of `x` in a type of floats."""
    digits, least = PRECISION[kind.name]
    _, exponent = np.frexp(np.abs(x))
    return np.ldexp(1.0, np.maximum(np.where(x == 0, least, exponent), least) - digits)
