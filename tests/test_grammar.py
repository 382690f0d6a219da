"""docs/grammar.md is what printers print and parsers read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from grammar_support import Recogniser, rules
from pullback.composite import syntax
from pullback.errors import Origin, SyntaxFormError
from pullback.ir import dtype, nest, notation
from pullback.ir.graph import COMBINERS
from pullback.ir.program import Program
from pullback.ir.text import show
from pullback.runtime.executable import Executable
from pullback.schedule.schedule import Way
from pullback.schedule.text import schedule_text

GOLDENS = Path(__file__).parent / "goldens" / "x86-64-v3"
GRAMMAR = Recogniser(rules())
SAMPLE = 40  # every so many of the lines of all goldens, besides the first of each shape


def refused(rule: str, lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() and not GRAMMAR.fits(rule, line)]


def golden_lines() -> dict[str, list[str]]:
    """Lines of kernels and of nests, one of each shape and a sample of all."""
    found: dict[str, dict[str, str]] = {"kernel": {}, "schedule": {}, "nest": {}}
    for path in sorted(GOLDENS.glob("*.txt")):
        section = ""
        for number, line in enumerate(path.read_text().splitlines()):
            first = line.split(" ")[0]
            section = {"kernel": "kernel", "routine": "nest", "schedule": ""}.get(first, section)
            section = "schedule" if " tasks over tiles of " in line else section
            own = first == "kernel" and ": " in line  # a golden's own: as one before, or its parts
            if section and "#" not in line and not own:
                shape = re.sub(r"[\w.]+", "a", line)
                key = line if number % SAMPLE == 0 else shape
                found[section].setdefault(key, line)
    return {section: list(lines.values()) for section, lines in found.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("section", ["kernel", "schedule", "nest"])
def test_goldens_are_as_the_page_says(section: str) -> None:
    lines = [n for n in golden_lines()[section] if len(n) < 400]
    assert len(lines) > 50
    assert refused(section, lines) == []


def program() -> Executable:
    batches = iter(np.ones((3, 4), np.float32))

    def f(x: pb.Tensor, n: pb.Tensor) -> pb.Tensor:
        fed = pb.Feeder(lambda: next(batches), shape=(4,))
        y = pb.loop(3, lambda i, c: c * 2.0 + fed, x)
        y = pb.cond(pb.sum(n) > 0, lambda v: pb.linalg.inv(pb.eye(4), method="host") @ v, pb.exp, y)
        pb.Receiver(lambda a: None, y, every=2)
        return pb.cumulative_sum(y)

    jitted = pb.jit(f, options=pb.Options(cache=None))
    jitted(pb.ones(4), pb.ones(2))
    return jitted.program


def test_programs_and_graphs_are_as_the_page_says() -> None:
    made = program()
    traced, run = show(made.program), show(Program(made.fused, made.program.state))
    assert {"loop", "if", "else", "feed", "receive", "host", "state"} <= set(traced.split())
    lines = [line.split("#")[0] for line in (traced + run).splitlines()]
    assert refused("program", lines) == []


DEFINITIONS = [
    "c[i, j] = sum[k] a[i, k] * b[k, j] + 1",
    "y[i] = max(sum[k](x[i + k] * w[k]), 0) ** 2",
    "s = sum[i](x[i]); t[i] = x[i] / s",
    "m[i, j] = exp(-abs(x[i] - y[j])) if_ok x[i]",
    "r[i] = where(0 <= i - 1 and not i < 3, x[i - 1], 0.5e-3)",
    "p[i] = -x[i] ** -2",
    "y[i = x[i]",
    "y[i] = x[i",
    "y[i] = * x[i]",
    "y[i] + 1 = x[i]",
    "y[i] = x[i] $ 2",
    "y[i] = any[k](x[k] == i) | True",
]


@pytest.mark.parametrize("text", DEFINITIONS)
def test_the_page_takes_what_the_parser_takes(text: str) -> None:
    try:
        syntax.Parser(text, Origin.of_caller()).statements()
        taken = True
    except SyntaxFormError:
        taken = False
    assert GRAMMAR.fits("text", text) == taken


def words(rule: str) -> set[str]:
    """The texts that a rule has as alternatives."""
    kind, parts = rules()[rule]
    assert kind == "any"
    return {str(text) for _, part in parts for word, text in part if word == "text"}


def test_names_are_those_of_the_code() -> None:
    assert words("over") == set(syntax.REDUCTIONS)
    assert words("combiner") == set(COMBINERS)
    assert words("type") == set(dtype.BY_NAME)
    assert words("function") == {"if", "max", "min", "size", *notation.UNARY}
    assert words("native") == set(nest.NATIVES)


def test_schedules_are_as_the_page_says() -> None:
    made = program()
    texts = [schedule_text(made.chosen(k, made.target)) for k in made.kernels]
    assert refused("schedule", [line for text in texts for line in text.splitlines()]) == []
    assert words("way") == {way.value for way in Way}


def test_what_the_page_does_not_have_is_refused() -> None:
    for rule, line in (
        ("kernel", "kernel y on [i < 3]"),
        ("kernel", "stage y: float31[3] at (i) -> scratch"),
        ("nest", "parallel i1 in 0..4:"),
        ("nest", "y[3] plus= 2.0"),
        ("graph", "def y: float32[3] keep=sometimes"),
        ("program", "loop at most times"),
    ):
        assert not GRAMMAR.fits(rule, line), line
