"""Conformance of backends: the committed reports hold, and faults show as red cells."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pullback.cli.main import commands
from pullback.conformance import run
from pullback.conformance.case import Cell, Section, cells, special
from pullback.conformance.cases import SECTIONS
from pullback.conformance.report import read, report, summary, worse
from pullback.ir import expr as E
from pullback.ir.dtype import ALL, bfloat16, dtype, float16, float32, float64, int32
from pullback.ir.graph import Accumulate, Form, Map
from pullback.ir.program import Compute, HostCall, Item, Launch
from test_backends import needs_c
from test_opencl import needs_device
from test_triton import needs_triton

REPORTS = Path(__file__).parent.parent / "docs" / "conformance"
# Every so many cells of a default run, those of programs of their own left out.
EVERY = {"reference": 40, "kernels": 12, "llvm": 12, "c": 40, "opencl": 40, "triton": 12}
NEEDS = {"c": needs_c, "opencl": needs_device, "triton": needs_triton}
BACKENDS = [pytest.param(n, marks=NEEDS.get(n, ())) for n in EVERY]
# Triton is there where PyTorch is: its sample belongs to that stage of the gate.
SAMPLES = [p for p in BACKENDS if p.values != ("triton",)]
SAMPLES.append(pytest.param("triton", marks=[needs_triton, pytest.mark.torch]))
BY_NAME = {s.name: s for s in SECTIONS}


def of(text: str) -> list[Cell]:
    return cells(SECTIONS, text)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_the_committed_report(name: str) -> None:
    """In order, so that cells share programs; those that moved do so by rounding alone."""
    chosen = [c for c in cells(SECTIONS) if not c.case.alone][:: EVERY[name]]
    hold(name, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_the_committed_report(name: str) -> None:
    hold(name, cells(SECTIONS))


def hold(name: str, chosen: list[Cell]) -> None:
    text = (REPORTS / f"{name}.md").read_text()
    verdicts = run.conformance(name, chosen)
    assert not worse(text, verdicts)
    assert not [v for v in verdicts if v.state == "fail"]


@pytest.mark.parametrize("name", EVERY)
def test_reports_have_every_cell(name: str) -> None:
    """And say in one line what they hold."""
    text = (REPORTS / f"{name}.md").read_text()
    held = read(text)
    assert list(held) == [c.name for c in cells(SECTIONS)], "write the reports again"
    assert f"{name}: {len(held)} cells: " in text and " 0 fail" in text


def test_every_primitive_has_a_row() -> None:
    """Scalar nodes, forms but the plain map, items of programs but what runs definitions."""

    def leaves(of: type) -> set[type]:
        below = of.__subclasses__()
        return set().union(*map(leaves, below)) if below else {of}

    nodes = {n for n in leaves(E.Expr) if n.__module__ == E.__name__}
    forms = set(Form.__args__) - {Map}
    items = set(Item.__args__) - {Compute, Launch, HostCall}
    names = {n.__name__ for n in nodes | forms | items}
    assert {c.name for c in BY_NAME["primitives"].cases} == names
    assert len(names) == 27 and Accumulate in forms


# --- faults --------------------------------------------------------------------------------------

WRAPPED = """
import numpy as np
from pullback.backends.reference.definitions import evaluate, infer_sizes
from pullback.errors import UnsupportedError
from pullback.ir.graph import MAX, Reduce


class Wrapped:
    name = "wrapped"

    def run_graph(self, graph, values):
        {body}
        return evaluate(graph, {{v: values[v] for v in graph.inputs}}, infer_sizes(values))


backend = Wrapped()
"""
WRONG_NAN = """
        forms = [d.form for d in graph.definitions]
        if any(isinstance(f, Reduce) and f.combiner is MAX for f in forms):
            values = {
                v: np.where(np.isnan(a), -np.inf, a).astype(a.dtype) if v.dtype.is_float else a
                for v, a in values.items()
            }
"""
REFUSING = """
        if any(d.dtype.name == "bfloat16" for d in graph.definitions):
            raise UnsupportedError("bfloat16 is not there")
"""


def wrapped(folder: Path, body: str) -> str:
    path = folder / "wrapped.py"
    path.write_text(WRAPPED.format(body=body))
    return str(path)


def test_the_largest_of_nan_shows_in_its_cells(tmp_path: Path) -> None:
    """And in no other's, though programs hold several."""
    name = wrapped(tmp_path, WRONG_NAN)
    chosen = [c for c in of("forms: m") if c.case.name in ("max", "min", "map of two arrays")]
    red = [v.cell for v in run.conformance(name, chosen) if v.state == "fail"]
    assert red
    assert {c.case.name for c in red} == {"max"}
    assert {c.kind for c in red} == {float16, bfloat16, float32, float64}
    assert "| **fail** | **fail** | **fail** | **fail** |" in report(
        "n", run.conformance(name, red), 2
    )


def test_what_is_refused_is_told_and_is_no_failure(tmp_path: Path) -> None:
    name = wrapped(tmp_path, REFUSING)
    done = call(name, "--only", "forms: sort", "-o", str(tmp_path / "report.md"))
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.md").read_text()
    held = read(text)
    assert held["forms: sort, bfloat16"] == "refused" and held["forms: sort, float16"] == "0"
    assert "- bfloat16 is not there [E301]: forms: sort (bfloat16)" in text
    assert "12 cells: 11 pass, 0 fail, 1 refused" in done.output


def test_a_backend_that_breaks(tmp_path: Path) -> None:
    name = wrapped(tmp_path, 'raise RuntimeError("device lost")')
    done = call(name, "--only", "Xor, int", "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    assert (facts["cells"], facts["fail"]) == (4, 4)
    assert facts["failed"][0] == (
        "primitives: Xor, int8: backend 'wrapped' fails: RuntimeError: device lost [E359]"
    )


@pytest.mark.parametrize(
    ("code", "states"), [("E358", ["refused"]), ("E364", ["fail"]), ("E362", [])]
)
def test_a_compiler_that_fails_refuses_nothing(
    tmp_path: Path, code: str, states: list[str]
) -> None:
    """What fails on a program is red; what is absent is told once, as wrong use."""
    name = wrapped(tmp_path, f'raise UnsupportedError("no", code="{code}")')
    chosen = of("Xor, bool")
    if states:
        assert [v.state for v in run.conformance(name, chosen)] == states
        return
    assert call(name, "--only", "Xor, bool").exit_code == 2


def call(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["test-backend", *arguments])


def test_the_report_is_the_same_text_each_time(tmp_path: Path) -> None:
    texts = [
        report("llvm", run.conformance("llvm", of("composites: softmax")), 2) for _ in range(2)
    ]
    assert texts[0] == texts[1] and "ulp (composites: softmax, " in texts[0]


def test_worse_than_before(tmp_path: Path) -> None:
    chosen = of("forms: sort")
    before = tmp_path / "before.md"
    assert call("reference", "--only", "forms: sort", "-o", str(before)).exit_code == 0
    against = ("--only", "forms: sort", "--against", str(before))
    assert call("reference", *against).exit_code == 0
    done = call(wrapped(tmp_path, REFUSING), *against)
    assert done.exit_code == 1 and "forms: sort, bfloat16: refused, was 0" in done.output
    verdicts = [run.Verdict(chosen[0], "pass", error) for error in (2.0, 2.1)]
    assert [len(worse(before.read_text(), [v])) for v in verdicts] == [0, 1]
    assert call("reference", "--against", str(tmp_path / "none.md")).exit_code == 2
    assert call("reference", "--only", "no such cell").exit_code == 2


# --- comparing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float16, bfloat16, float32, float64], ids=str)
def test_units_in_the_last_place(kind: run.DType) -> None:
    x = np.abs(special(kind, 200))
    wide = x.astype(np.float64)
    x = x[np.isfinite(wide) & (wide > 0)]
    whole = x.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize])
    above = (whole + 1).view(kind.numpy)
    why, error = run.difference(above, x, whole=False)
    assert (why, error) == ("", 1.0)
    assert dtype(x.dtype) is kind


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([1.0, np.nan, np.inf, 2.0], ""),
        ([1.0, 0.0, np.inf, 2.0], "NaN or not at 1 of 4"),
        ([1.0, np.nan, 3e38, 2.0], "infinite or not at 1 of 4"),
        ([1.0, np.nan, -np.inf, 2.0], "an infinity of the other sign"),
        ([1.0, np.nan, np.inf, 2.5], "an error of 2.1e+06 ulp, 0 are allowed"),
    ],
)
def test_what_differs(got: list[float], says: str) -> None:
    cell = of("forms: max, float32")[0]
    wanted = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    verdict = run.compared(cell, [np.array(got, np.float32)], [wanted])
    assert verdict.state == ("fail" if says else "pass") and says in verdict.why
    other = run.compared(cell, [np.array(got)], [wanted])
    assert other.why == "float64[4], wanted float32[4]"
    assert run.compared(cell, [], [wanted]).why == "0 results, 1 are wanted"
    one = run.compared(cell, [np.array([1, 2])], [np.array([1, 3])])
    assert one.why == "1 of 2 elements differ"


def test_summary() -> None:
    first, second = of("forms: sort")[:2]
    verdicts = [run.Verdict(first, "pass", 1.5), run.Verdict(second, "fail", 9.0, "far off")]
    assert summary("x", verdicts) == (
        "x: 2 cells: 1 pass, 1 fail, 0 refused; largest error 1.5 ulp (forms: sort, int8)"
    )
    assert summary("x", []) == "x: 0 cells: 0 pass, 0 fail, 0 refused"
    assert isinstance(SECTIONS[0], Section) and int32 in ALL
    assert importlib.import_module("pullback.cli.test_backend")
