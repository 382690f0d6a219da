"""Random functions of PyTorch's tensors through `torch.compile(backend="pullback")`.

`python scripts/fuzz_torch.py N [--start SEED] [--jobs N] [--dynamic]`: values, gradients, shapes
and types beside eager, in float64. Each number is one function, the same in every run. Exits with 1
where one differs, and prints its row of operators. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from random_torch import check_torch, drawn


def checked(dynamic: bool, seeds: Sequence[int]) -> list[str]:
    """What is wrong with the functions of these numbers, told as it is seen."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # of Dynamo's own, where it traces no symbol
    torch.set_num_threads(1)
    wrong = []
    for seed in seeds:
        faults = check_torch(seed, dynamic)
        print(*faults, sep="\n", end="\n" if faults else "", flush=True)
        wrong += faults
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--dynamic", action="store_true", help="all sizes are symbolic")
    given = parser.parse_args()
    began = time.perf_counter()
    seeds = range(given.start, given.start + given.count)
    with get_context("spawn").Pool(given.jobs) as pool:
        parts = pool.map(
            partial(checked, given.dynamic), [seeds[n :: given.jobs] for n in range(given.jobs)]
        )
    operators = sum(len(drawn(seed).operators) for seed in seeds)
    wrong, spent = list(chain.from_iterable(parts)), time.perf_counter() - began
    print(f"{given.count} functions of {operators} operators, {len(wrong)} wrong, {spent:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
