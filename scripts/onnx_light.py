"""Onnx's light models, and the small ones that PyTorch wrote, beside the outputs in the package.

`python scripts/onnx_light.py [PATTERN ..]`: real networks whose weights are made by the model
itself, on the inputs that onnx's runner takes; a line each with the largest difference.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

import pullback as pb
from pullback.errors import PullbackError

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
Case = tuple[str, Path, list[Any], list[Any]]


def tensor(path: Path) -> Any:
    """A tensor of a file."""
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def light() -> Iterator[Case]:
    """Nine networks for images."""
    for path in sorted((DATA / "light").glob("light_*.onnx")):
        graph = onnx.ModelProto.FromString(path.read_bytes()).graph
        inner = {t.name for t in graph.initializer}
        given = [Runner.generate_dummy_data(v) for v in graph.input if v.name not in inner]
        yield path.stem, path, given, [tensor(path.with_name(f"{path.stem}_output_0.pb"))]


def written() -> Iterator[Case]:
    """What PyTorch once wrote, and what is simple."""
    for folder in ("pytorch-converted", "pytorch-operator", "simple"):
        for path in sorted((DATA / folder).glob("*/model.onnx")):
            for own in sorted(path.parent.glob("test_data_set_*")):
                try:
                    both = [
                        [
                            tensor(own / f"{kind}_{n}.pb")
                            for n in range(len([*own.glob(f"{kind}_*")]))
                        ]
                        for kind in ("input", "output")
                    ]
                except Exception:  # values that are no tensors
                    both = [[], []]
                yield path.parent.name, path, both[0], both[1]


def verdict(case: Case) -> str:
    """What became of one."""
    _, path, given, wanted = case
    try:
        results = pb.onnx.Backend.prepare(onnx.ModelProto.FromString(path.read_bytes())).run(given)
        Runner.assert_similar_outputs(wanted, results, 1e-3, 1e-7)
    except PullbackError as error:
        return f"refused {error.code}: {error.what[:200]}"
    except AssertionError as error:
        return "wrong: " + " ".join(str(error).split())[:300]
    except Exception as error:
        return f"raw: {type(error).__name__}: {error}"
    differences = [
        np.abs(a.astype("d") - b).max(initial=0) for a, b in zip(results, wanted, strict=True)
    ]
    return f"right, to {max(differences):.1e}"


def main() -> None:
    patterns, bad = sys.argv[1:], 0
    for case in (*light(), *written()):
        if patterns and not any(re.search(p, case[0]) for p in patterns):
            continue
        start = time.process_time()
        result = verdict(case)
        bad += result.startswith(("wrong", "raw"))
        print(f"{case[0]}: {result} ({time.process_time() - start:.1f} s)", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
