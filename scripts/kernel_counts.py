"""Writes the table of docs/kernel_counts.md: kernels of the programs of Caten's tests, and ours."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_kernel_counts import PAGE, table

COUNTED = re.compile(r"(<!-- counted: [^\n]* -->\n\n).*?(\n?<!-- end -->)", re.DOTALL)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = table()
    written = COUNTED.sub(lambda found: f"{found[1]}{rows}\n\n<!-- end -->", text)
    PAGE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
