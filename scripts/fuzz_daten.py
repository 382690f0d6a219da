"""daten programs with places of their text changed at random: they run, or an error has a code.

`python scripts/fuzz_daten.py COUNT [--start SEED]`: each seed changes a text of
tests/daten_support.py, reads it, gives it data and runs it with its gradients. Whatever else is
raised ends the run with the seed and the text; `python scripts/fuzz_daten.py 1 --start SEED` tries
it again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from daten_support import mutated, tried

SECONDS = 30  # of processor time, of one text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    told = parser.parse_args()
    codes = Counter[str]()
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    warnings.simplefilter("ignore")
    for seed in range(told.start, told.start + told.count):
        text = mutated(seed)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with np.errstate(all="ignore"):
                codes[tried(text)] += 1
        except BaseException:
            print(f"seed {seed}:\n{text}")
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(f"{told.count} texts: {dict(sorted(codes.items()))}")


if __name__ == "__main__":
    main()
