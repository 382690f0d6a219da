"""Onnx's node tests through `pb.onnx.Backend`, and the record of them.

`python scripts/onnx_tests.py [--accept] [PATTERN ..]`: every test whose name holds a pattern, or
all, compiled; a line each in tests/onnx_nodes.txt: right, refused (with the code) or wrong.
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

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "onnx_nodes.txt"

import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

import pullback as pb
from pullback.errors import PullbackError


def verdict(case: Any) -> tuple[str, str]:
    """What became of one test, and why."""
    try:
        rep = pb.onnx.Backend.prepare(case.model)
        for inputs, wanted in case.data_sets:
            given = [_normalize_tensor(x) for x in inputs]
            results = rep.run(given)
            Runner.assert_similar_outputs([_normalize_tensor(y) for y in wanted], results,
                                          case.rtol, case.atol)  # fmt: skip
    except PullbackError as error:
        return f"refused {error.code}", error.what
    except AssertionError as error:
        return "wrong", " ".join(str(error).split())
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    return "right", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--why", action="store_true")
    parser.add_argument("patterns", nargs="*")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind="node")
    start, lines, counts = time.process_time(), [], collections.Counter()
    for case in sorted(cases, key=lambda c: c.name):
        if told.patterns and not any(re.search(p, case.name) for p in told.patterns):
            continue
        result, why = verdict(case)
        counts[result.split()[0]] += 1
        lines.append(f"{case.name} {result}")
        if told.why and result != "right":
            print(f"{case.name} {result}: {why[:300]}")
    print(dict(counts), f"{time.process_time() - start:.0f} s of processor time, onnx {onnx.__version__}")
    if told.accept and not told.patterns:
        RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(bool(counts["wrong"] + counts["raw"]))


if __name__ == "__main__":
    main()
