"""`pb.torch.report()` names where PyTorch broke a graph: why, and at whose line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

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


def positive(x: Any) -> Any:
    y = x * 2
    return y[y > 0].sin().sum()


def placed(x: Any) -> Any:
    rows = x.nonzero()
    return x * rows.sum() + x.sin()


def counted(x: Any) -> Any:
    rows = x.sin().nonzero()
    return x * rows.shape[0]


READS = {
    "positive": (positive, "return y[y > 0].sin().sum()"),
    "first of all": (placed, "rows = x.nonzero()"),
    "nonzero": (counted, "rows = x.sin().nonzero()"),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_of_a_shape_that_is_data_is_right_and_reported(name: str) -> None:
    """PyTorch runs it between two graphs, forward and backward."""
    function, text = READS[name]
    run = torch.compile(function, backend=pb.torch.backend)
    for count in (5, 9, 0):
        x = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
        got, want = (one(x) for one in (run, function))
        torch.testing.assert_close(got, want, msg=lambda m, n=count: f"{n}: {m}")
        grads = [torch.autograd.grad(y.cos().sum(), x) for y in (got, want)]
        torch.testing.assert_close(*grads, msg=lambda m, n=count: f"{n}: {m}")
    report = pb.torch.report()
    assert line_of(function, text) in {b.line for b in report.breaks} and not report.fallbacks
    assert all("data" in b.reason.lower() for b in report.breaks)


@pytest.mark.parametrize("name", READS)
def test_what_is_of_a_shape_that_is_data_is_refused_where_no_fallback_is_allowed(name: str) -> None:
    function, text = READS[name]
    run = torch.compile(function, backend=pb.torch.backend, options={"fallback": "error"})
    with pytest.raises(Exception, match="E386") as raised:
        run(torch.randn(5, 3))
    error = raised.value.inner_exception
    assert isinstance(error, UnsupportedError) and __file__ in str(error)
    assert line_of(function, text) in error.what and "nonzero" in error.what


def test_no_other_function_is_refused_for_it() -> None:
    """A read by a mask that another backend broke at, and breaks that are no operators."""
    x = torch.randn(5, 3)
    torch.compile(positive, backend="eager")(x)

    def f(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + (1 if y.sum() > 100 else 2)

    run = torch.compile(f, backend=pb.torch.backend, options={"fallback": "error"})
    torch.testing.assert_close(run(x), f(x))


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
