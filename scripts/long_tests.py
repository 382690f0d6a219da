"""Write `tests/long.txt` anew, the tests of a second and more, from what pytest prints:

    pytest tests/test_*.py --durations=0 --durations-min=1 | python scripts/long_tests.py

They are not in a run of all tests; `pytest -m long` runs them, the gate some of them. The list is
of two cores of a Zen 3, both busy with tests, in an environment without PyTorch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LIST = Path(__file__).parent.parent / "tests" / "long.txt"
LINE = re.compile(r"([\d.]+)s (?:call|setup) +(tests/\S+?::.*)")
LONG = 1.0  # seconds
# What holds the shape of the house, the pages and the goldens is in every run, however long.
ALWAYS = ("tests/test_house.py", "tests/test_docs.py", "tests/test_goldens.py")


def main() -> None:
    """Names of the tests that took long, in order."""
    rows = [match.groups() for match in map(LINE.match, sys.stdin) if match]
    names = {name for seconds, name in rows if float(seconds) >= LONG}
    kept = sorted(name for name in names if not name.startswith(ALWAYS))
    LIST.write_text("".join(f"{name}\n" for name in kept))
    print(f"{len(kept)} tests in {LIST.name}")


if __name__ == "__main__":
    main()
