"""Damaged GGUF files: each is read, or refused by a code; anything else ends this with 1.

`python scripts/fuzz_gguf.py [--count N] [--start SEED]`: each number is one change of a file that
has a fact of each type and a tensor of each kind, the same in every run. What is read is
dequantised, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gguf_support import damaged, example, outcome
from pullback.gguf import File, dequantised

EVERY = 100  # of the files that are read, one is dequantised


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        data = example(path)
        for number in range(given.start, given.start + given.count):
            path.unlink()
            path.write_bytes(damaged(number, data))

            def use(file: File, number: int = number) -> None:
                for stored in file.tensors.values() if number % EVERY == 0 else ():
                    dequantised(stored)

            try:
                seen[outcome(path, use)] += 1
            except Exception:
                wrong += 1
                print(f"{number}:", traceback.format_exc(), file=sys.stderr)
    print(f"{given.count} files: {dict(seen.most_common())}, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
