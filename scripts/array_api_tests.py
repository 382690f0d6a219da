"""The public suite of the array API standard, run against `pullback.array_api`.

`python scripts/array_api_tests.py FOLDER [--max-examples N] [PYTEST ARGUMENT ..]`

FOLDER is a checkout of github.com/data-apis/array-api-tests with its submodule; its requirements
are to be installed. What is expected to fail stands in docs/array_api.md, each with its reason:
the list there becomes the suite's file of expected failures. Prints counts; fails where a test
fails that is not listed, and names it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "array_api.md"
LISTED = re.compile(r"^array_api_tests/\S+::.*$", re.MULTILINE)
TESTS = "array_api_tests"


def expected() -> list[str]:
    """The tests that docs/array_api.md lists, as the suite names them."""
    return LISTED.findall(PAGE.read_text(encoding="utf-8"))


def name_of(case: ElementTree.Element) -> str:
    """``array_api_tests/test_x.py::test_y[..]`` of a test case in pytest's report."""
    *folders, file = case.get("classname", "").split(".")
    inner = ""
    if file[:1].isupper():  # a class of tests
        inner, file = file, folders.pop()
    return f"{'/'.join([*folders, file])}.py::{inner + '::' if inner else ''}{case.get('name')}"


def outcome(case: ElementTree.Element) -> str:
    """What became of a test."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "listed" if skipped.get("type") == "pytest.xfail" else "skipped"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-examples", type=int, default=20, help="of hypothesis, each test")
    given, rest = parser.parse_known_args()
    work = Path(tempfile.mkdtemp())
    listed, report = work / "listed.txt", work / "report.xml"
    listed.write_text("".join(f"{name}\n" for name in expected()), encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {"ARRAY_API_TESTS_MODULE": "pullback.array_api", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "--disable-deadline", "-p", "no:cacheprovider"]
    command += [f"--max-examples={given.max_examples}", f"--xfails-file={listed}"]
    command += [f"--junitxml={report}", *(rest or [TESTS])]
    subprocess.run(command, cwd=given.folder, env=os.environ | environment, check=False)
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found.setdefault(outcome(case), []).append(name_of(case))
    counts = {kind: len(names) for kind, names in sorted(found.items())}
    print(f"{sum(counts.values())} tests: {counts}; {len(expected())} listed")
    for name in found.get("failed", []):
        print(f"not listed: {name}", file=sys.stderr)
    return 1 if "failed" in found else 0


if __name__ == "__main__":
    sys.exit(main())
