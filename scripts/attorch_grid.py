"""attorch's own grid of tests, restated, on `pullback.torch.nn` beside PyTorch.

`python scripts/attorch_grid.py [--subset] [--only LAYER ..] [--every N] [--start N] [--most N]
[--cut N] [--backend NAME]`: each N-th case of the grid, its failures and how many of each layer
passed; 1 where any failed. The whole grid has 160,000 convolutions: `--every 997`. Shapes with more
than `--elements` elements are left out and counted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--most", type=int)
    parser.add_argument("--elements", type=int, default=1 << 30)
    parser.add_argument("--cut", type=int, default=1 << 30, help="the largest extent")
    parser.add_argument("--backend")
    args = parser.parse_args()
    if args.backend:
        os.environ["PULLBACK_BACKEND"] = args.backend
        os.environ["TRITON_INTERPRET"] = "1"  # before PyTorch imports it
    warnings.simplefilter("ignore")
    from attorch_grid import cases, check

    passed, failed, large = Counter[str](), Counter[str](), Counter[str]()
    began, ran = time.perf_counter(), 0
    wanted = (c for c in cases(args.subset, args.cut) if not args.only or c.layer in args.only)
    for number, case in enumerate(wanted):
        if number % args.every != args.start or (args.most and ran >= args.most):
            continue
        if math.prod(case.shapes[0]) > args.elements:
            large[case.layer] += 1
            continue
        ran += 1
        try:
            check(case)
            passed[case.layer] += 1
        except Exception as error:  # any: it is told, and the next one runs
            failed[case.layer] += 1
            print(f"{case}: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)
    for layer in sorted({*passed, *failed, *large}):
        left = f", {large[layer]} too large" * bool(large[layer])
        print(f"{layer:20} {passed[layer]} right, {failed[layer]} wrong{left}")
    seconds = time.perf_counter() - began
    print(f"{sum(passed.values())} of {ran} in {seconds:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
