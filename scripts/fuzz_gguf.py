"""Damaged GGUF files: each is read, or refused by a code; anything else ends this with 1.

`python scripts/fuzz_gguf.py [--count N] [--start SEED]`: each number is one change, the same in
every run. Odd ones change a file with a fact of each type and a tensor of each kind, of which some
are dequantised; even ones a language model, which is built, with its vocabulary.
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

from gguf_support import damaged, example, model, outcome
from pullback.gguf import File, Tokenizer, dequantised
from pullback.gguf import model as decoder

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
        files = model(path), example(path)
        for number in range(given.start, given.start + given.count):
            path.unlink()
            path.write_bytes(damaged(number, files[number % 2]))

            def use(file: File, number: int = number) -> None:
                for stored in file.tensors.values() if number % EVERY == 1 else ():
                    dequantised(stored)
                if number % 2 == 0:
                    decoder(file)
                    Tokenizer(file).encode("ab a")

            try:
                seen[outcome(path, use)] += 1
            except Exception:
                wrong += 1
                print(f"{number}:", traceback.format_exc(), file=sys.stderr)
    print(f"{given.count} files: {dict(seen.most_common())}, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
