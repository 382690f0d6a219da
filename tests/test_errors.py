"""The catalogue of errors: every code has a page, whose example raises it with that message."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import pullback as pb
from error_pages import document, message, raised
from pullback import errors
from pullback.cli.main import commands
from pullback.cli.pages import pages

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "pullback"
PAGES = pages()
CODE = re.compile(r"""\bcode(?:: str)? ?= ?"(E\d{3})\"""")


# E328 is what is said where PyTorch is not installed.
IMPORTS = {"torch": r"\btorch\b|bridge\.kept", "jax": r"\bjax\b", "triton": r"\btriton\b",
           "onnx": r"\bonnx\b", "tokenizers": r"\bTokenizer\b"}  # fmt: skip
MARKS = {"triton": "torch"}  # both are needed
BRIDGES = {
    code: extra
    for code, page in PAGES.items()
    for extra, pattern in IMPORTS.items()
    if code != "E328" and re.search(pattern, page.example)
}
MARKED = {code: MARKS.get(e, e) for code, e in BRIDGES.items() if e != "tokenizers"}


def pages_with_marks() -> list[object]:
    """The codes; examples of PyTorch's operators want PyTorch, those of calls from JAX want JAX."""
    return [
        pytest.param(c, marks=getattr(pytest.mark, mark)) if (mark := MARKED.get(c)) else c
        for c in PAGES
    ]


@pytest.mark.parametrize("code", pages_with_marks())
def test_the_example_raises_exactly_this_message(code: str, tmp_path: Path) -> None:
    for needed in ("torch", "triton") if BRIDGES.get(code) == "triton" else ():
        pytest.importorskip(needed, reason=f"the example needs {needed}")
    if code in BRIDGES:
        pytest.importorskip(BRIDGES[code], reason=f"the example is of {BRIDGES[code]}")
    page = PAGES[code]
    error = raised(page, tmp_path)
    assert isinstance(error, errors.PullbackError)
    assert error.code == code
    assert message(error, tmp_path) == page.message
    assert f"[{code}]" in page.message
    assert "\n  help: " in page.message
    assert error.origin is None or ("-->" in page.message and "^" in page.message)


def test_every_code_has_a_page_and_every_page_is_used() -> None:
    used = {c for path in SOURCE.rglob("*.py") for c in CODE.findall(path.read_text())}
    assert used - {"E000"} == set(PAGES)
    assert len(PAGES) >= 100


@pytest.mark.parametrize("code", PAGES)
def test_a_page_says_what_to_do_in_one_line(code: str) -> None:
    assert PAGES[code].text.count("\nRepair: ") == 1
    assert 0 < len(errors.repair(code)) < 120
    assert f"Repair: {errors.repair(code)}\n" in PAGES[code].text


def test_the_document_is_current() -> None:
    """`python scripts/pages.py` writes it."""
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == document()


def test_the_command_shows_a_page() -> None:
    shown = CliRunner().invoke(commands, ["explain", "e110"])
    assert shown.exit_code == 0
    assert shown.output.startswith("E110 Shapes that do not broadcast\n")
    assert "z = x + y" in shown.output and "\nRepair: " in shown.output
    assert CliRunner().invoke(commands, ["explain", "E999"]).exit_code == 2


def test_a_code_without_a_page_has_no_repair() -> None:
    assert errors.repair("E000") == ""


# --- places --------------------------------------------------------------------------------------


def run(script: Path, **environment: str) -> str:
    """What a script writes to stderr."""
    env = {**os.environ, "PULLBACK_CACHE": "off", **environment}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


def test_a_traceback_hides_the_library(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(PAGES["E132"].example)
    brief, full = run(script), run(script, PULLBACK_TRACEBACK="full")
    frames = re.findall(r'File "(.*?)"', brief)
    assert frames == [str(script)] * 2
    hidden = re.search(r"\((\d+) frames of the library hidden: PULLBACK_TRACEBACK=full", brief)
    assert hidden is not None
    assert full.count('  File "') == len(frames) + int(hidden[1])
    assert "both branches must return the same structure" in brief


def test_other_exceptions_keep_their_frames(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("import pullback as pb\n\npb.jit(lambda x: 1 / 0)(pb.ones(1))\n")
    assert errors.LIBRARY in run(script)


def test_a_fault_outside_of_the_passes_asks_to_be_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors.report(errors.InvalidIR, errors.InvalidIR("planted"), None)
    assert "planted\nThis is a fault of the compiler: please report" in capsys.readouterr().err


def test_notebooks_get_the_same_lines() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        pb.ones(3) + pb.ones(4)
    lines = caught.value._render_traceback_()
    assert lines == errors.brief(caught.value)
    assert not any(errors.LIBRARY in line for line in lines)


def test_causes_are_shortened_too() -> None:
    with pytest.raises(errors.DTypeError) as caught:
        pb.define("y[i] = a[i]", a=object())
    assert caught.value.__cause__ is not None
    assert not any(errors.LIBRARY in line for line in errors.brief(caught.value))


def test_the_caret_stands_under_the_expression() -> None:
    ß = pb.ones(3)
    with pytest.raises(errors.ShapeError) as caught:
        "äöü", ß + pb.ones(4)  # columns count characters, not bytes
    lines = str(caught.value).splitlines()
    place = lines[2].index("ß + pb.ones(4)")
    assert lines[3] == "   | ".ljust(place) + "^" * len("ß + pb.ones(4)")


def test_of_several_lines_the_first_is_marked() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        pb.add(
            pb.ones(3),
            pb.ones(4),
        )
    lines = str(caught.value).splitlines()
    assert lines[2].endswith("pb.add(")
    assert lines[3].strip("| ") == "^" * len("pb.add(")


def test_a_context_manager_is_not_the_user() -> None:
    with pytest.raises(errors.StateError) as caught:
        pb.nn.functional.functional_call(pb.nn.Linear(1, 1), {"none": pb.ones(1)}, (pb.ones(1),))
    assert Path(__file__).name in str(caught.value)


# --- indices out of range name the read ----------------------------------------------------------

READS = """
import pullback as pb

table = pb.ones((4, 2))
good, bad = pb.tensor([0, 1]), pb.tensor([0, 7])


def both(rows, others):
    first = pb.exp(table[rows])
    second = pb.exp(table[others])
    return pb.sum(first), pb.sum(second * 2.0)


def apart(x, y, rows, others):
    first = x[rows]
    second = y[others]
    return first, second
"""


def out_of_range(script: Path, call: str, **environment: str) -> str:
    script.write_text(f"{READS}\n\n{call}\n")
    return run(script, **environment)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("wrap", ["both", "pb.jit(both)"])
@pytest.mark.parametrize(
    ("rows", "line", "marked"),
    [("bad, good", 9, "table[rows]"), ("good, bad", 10, "table[others]")],
)
def test_an_index_out_of_range_names_its_read(
    tmp_path: Path, check: str, wrap: str, rows: str, line: int, marked: str
) -> None:
    call = f"for found in {wrap}({rows}):\n    found.numpy()"
    text = out_of_range(tmp_path / "example.py", call, PULLBACK_CHECK=check)
    place = f"  --> {tmp_path}/example.py:{line} in both\n"
    assert "index 7 is out of range: axis 0 of `full`" in text
    assert place in text
    source, carets = text.partition(place)[2].splitlines()[:2]
    start, end = carets.index("^"), len(carets)
    assert source[start:end] == marked


def test_of_a_definition_the_read_itself_is_marked(tmp_path: Path) -> None:
    body = "good[i] + pb.sum(table[bad[i], k], over=k)"
    call = f"k = pb.axis(2)\ny = pb.compute((2,), lambda i: {body})\ny.numpy()"
    text = out_of_range(tmp_path / "example.py", call)
    source, carets = text.partition("in <lambda>\n")[2].splitlines()[:2]
    assert source[carets.index("^") : len(carets)] == "table[bad[i], k]"
    assert f"\n  run at {tmp_path}/example.py:" in text


def test_equal_kernels_and_later_processes_name_their_own_reads(tmp_path: Path) -> None:
    for rows, line in (("bad, good", 15), ("good, bad", 16), ("good, bad", 16)):
        call = f"pb.jit(apart)(table, table + 1.0, {rows})"
        text = out_of_range(tmp_path / "example.py", call, PULLBACK_CACHE=str(tmp_path / "cache"))
        assert f"example.py:{line} in apart\n" in text


def test_a_gradient_names_the_read_of_the_function(tmp_path: Path) -> None:
    call = "pb.jit(pb.grad(lambda t: pb.sum(pb.exp(t[bad]))))(table)"
    text = out_of_range(tmp_path / "example.py", call)
    source, carets = text.partition("in <lambda>\n")[2].splitlines()[:2]
    assert source[carets.index("^") : len(carets)] == "t[bad]"
