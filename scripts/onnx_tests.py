"""Onnx's node tests through `pb.onnx.Backend`, and the record of them, tests/onnx_nodes.txt.

`python scripts/onnx_tests.py [--accept] [--why] [PATTERN ..]`: the tests whose names hold a
pattern, or all, each compiled. A line each: right, near (by the rounding of what is expected),
refused with its code, or wrong. Fails where one is wrong, or worse than the record says;
`--accept` writes the record.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

import pullback as pb
from pullback.errors import PullbackError

RECORD = Path(__file__).parent.parent / "tests" / "onnx_nodes.txt"
HALF = 2**-9  # two units in the last place of float16; the runner has two for bfloat16
FULL = 2**-22  # two of float32


def cases() -> list[Any]:
    """The node tests, by name."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda c: c.name)


def verdict(case: Any) -> tuple[str, str]:
    """What became of one test, and why."""
    told = "right", ""
    try:
        rep = pb.onnx.Backend.prepare(case.model)
        for inputs, wanted in case.data_sets:
            results = rep.run([_normalize_tensor(x) for x in inputs])
            outputs = flat([_normalize_tensor(y) for y in wanted])
            results = flat(results)
            try:
                Runner.assert_similar_outputs(outputs, results, case.rtol, case.atol)
            except AssertionError as error:
                near(case, outputs, results)
                told = "near", " ".join(str(error).split())
    except PullbackError as error:
        return f"refused {error.code}", error.what
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    return told


def flat(values: Any) -> list[Any]:
    """Sequences by their lengths and their tensors: the runner takes none of scalars."""
    made: list[Any] = []
    for y in values:
        one = isinstance(y, list | tuple)
        made += (
            [np.asarray(len(y)), *flat(y)] if one else [np.asarray(y is None) if y is None else y]
        )
    return made


def near(case: Any, wanted: Any, results: Any) -> None:
    """Raises: AssertionError for what is not within two units in the last place: of each element of
    float16, of the largest of float32, where the runner's bounds are less than that.
    """
    for y, z in zip(wanted, results, strict=True):
        unit = np.abs(y.astype(np.float64)).max(initial=0) * FULL
        half = y.dtype == np.float16
        bounds = (max(case.rtol, HALF), case.atol) if half else (case.rtol, max(case.atol, unit))
        Runner.assert_similar_outputs([y], [z], *bounds)


def recorded() -> dict[str, str]:
    """The record: what became of each test."""
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return dict(line.split(" ", 1) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="write the record")
    parser.add_argument("--why", action="store_true", help="say what was refused")
    parser.add_argument("patterns", nargs="*")
    told = parser.parse_args()
    start, own, before = time.process_time(), {}, recorded()
    for case in cases():
        if told.patterns and not any(re.search(p, case.name) for p in told.patterns):
            continue
        own[case.name], why = verdict(case)
        worse = before.get(case.name) == "right" != own[case.name]
        if worse or own[case.name] in ("wrong", "raw") or (told.why and why):
            print(f"{case.name} {own[case.name]}{' (was right)' * worse}: {why[:400]}")
    counts = collections.Counter(v.split()[0] for v in own.values())
    seconds = time.process_time() - start
    print(f"onnx {onnx.__version__}: {dict(counts)}, {seconds:.0f} s of processor time")
    fell = any(before.get(n) == "right" != v for n, v in own.items())
    if told.accept and not told.patterns:
        RECORD.write_text("".join(f"{n} {v}\n" for n, v in own.items()), encoding="utf-8")
    sys.exit(bool(counts["wrong"] + counts["raw"] or fell))


if __name__ == "__main__":
    main()
