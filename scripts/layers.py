"""Counts the kernels of attorch's layers in `pullback.torch.nn` for docs/layers.md.

`python scripts/layers.py` says whether the page is as it should be; `--accept` rewrites it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "layers.md"
START, END = "<!-- counted: scripts/layers.py -->\n", "<!-- end -->\n"
sys.path.insert(0, str(ROOT / "tests"))


def main() -> int:
    """Run; returns the exit status."""
    import torch

    from attorch_layers import table
    from pullback.torch import nn

    before = PAGE.read_text(encoding="utf-8")
    head, _, rest = before.partition(START)
    tail = rest.partition(END)[2]
    after = f"{head}{START}\n{table(torch, nn)}\n{END}{tail}"
    if "--accept" in sys.argv:
        PAGE.write_text(after, encoding="utf-8")
    print("as it was" if after == before else f"{PAGE.name} differs")
    return int(after != before and "--accept" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
