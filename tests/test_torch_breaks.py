"""`pb.torch.report()` names where PyTorch broke a graph: why, and at whose line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def line_of(function: Any, text: str) -> str:
    """How a report names the line of this file that holds `text`."""
    code = function.__code__
    source = Path(code.co_filename).read_text(encoding="utf-8").splitlines()
    number = next(
        n for n, s in enumerate(source, 1) if n > code.co_firstlineno and s.strip() == text
    )
    return f'File "{code.co_filename}", line {number}, in {code.co_name}'


def test_breaks_have_a_reason_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(x: Any) -> Any:
        y = x + 1
        print("between")
        z = y.sin()
        torch._dynamo.graph_break()
        return z * 2

    run = torch.compile(broken, backend=pb.torch.backend)
    x = torch.randn(4)
    torch.testing.assert_close(run(x), broken(x))
    report = pb.torch.report()
    lines = [b.line for b in report.breaks]
    wanted = [line_of(broken, 'print("between")'), line_of(broken, "torch._dynamo.graph_break()")]
    assert lines == wanted
    assert "`print`" in report.breaks[0].reason and "graph_break" in report.breaks[1].reason
    assert [b.times for b in report.breaks] == [1, 1] and len(report.graphs) == 3
    assert str(report).count("graph break: ") == 2 and wanted[0] in str(report)


def test_a_place_that_breaks_again_is_one_entry() -> None:
    def broken(x: Any, scale: int) -> Any:
        y = x * scale
        torch._dynamo.graph_break()
        return y + 1

    run = torch.compile(broken, backend=pb.torch.backend, dynamic=False)
    for scale in (2, 3):
        torch.testing.assert_close(run(torch.ones(3), scale), torch.ones(3) * scale + 1)
    (one,) = pb.torch.report().breaks
    assert one.times == 2 and str(one).endswith(", 2 times")
    torch._dynamo.reset()
    assert pb.torch.report().breaks == ()


def test_the_innermost_line_is_told() -> None:
    def inner(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x.cos()

    run = torch.compile(lambda x: inner(x + 1) * 2, backend=pb.torch.backend)
    torch.testing.assert_close(run(torch.ones(3)), (torch.ones(3) + 1).cos() * 2)
    wanted = line_of(inner, "torch._dynamo.graph_break()")
    assert {b.line for b in pb.torch.report().breaks} == {wanted}


def test_a_whole_graph_has_none() -> None:
    torch.compile(lambda x: x.sin() + 1, backend=pb.torch.backend)(torch.ones(3))
    report = pb.torch.report()
    assert report.breaks == () and "graph break" not in str(report)


def test_a_report_loads_no_compiler() -> None:
    code = (
        "import pullback as pb, sys; before = 'torch._dynamo.utils' in sys.modules; "
        "assert not pb.torch.report().breaks; "
        "assert ('torch._dynamo.utils' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
