"""Text of every stage: exact for known definitions, and graphs are read back as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
from expressions import KINDS, expressions
from pullback.cli.graph_text import parse_graph
from pullback.errors import SyntaxFormError
from pullback.fuse.entry import fuse
from pullback.ir import expr as E
from pullback.ir import program as P
from pullback.ir.dtype import bfloat16, bool_, float16, float32, float64, int64, uint32
from pullback.ir.expr import Axis, Dim, Expr, Size, const, index
from pullback.ir.graph import (
    MAX,
    SUM,
    Accumulate,
    Definition,
    Graph,
    Keep,
    Reduce,
    Scan,
    Value,
    Variable,
    define,
    read,
)
from pullback.ir.notation import axis_name, axis_number
from pullback.ir.signature import graph_signature
from pullback.ir.target import Target
from pullback.ir.text import graph_text, kernel_text, routine_text, show
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled

A = Variable("a", (4, 5), float32)
B = Variable("b", (5, 6), float32)
T = Variable("t", (4,), int64)
I, J = Axis(0, 4), Axis(1, 5)
X = read(A, I, J)
Y = read(B, J, index(0))


def one(value: Value) -> Graph:
    return Graph(((Variable("out", value.shape, value.dtype), value),))


def test_matmul() -> None:
    c = define("c", (4, 6), lambda i, j, k: E.Mul(read(A, i, k), read(B, k, j)), over=(5,))
    assert show(c) == "def c: float32[4, 6]\n  c[i, j] = sum[k < 5](a[i, k] * b[k, j])"


@pytest.mark.parametrize(
    ("e", "want"),
    [
        (E.Add(E.Mul(X, Y), Y), "a[i, j] * b[j, 0] + b[j, 0]"),
        (E.Mul(X, E.Add(X, Y)), "a[i, j] * (a[i, j] + b[j, 0])"),
        (E.subtract(X, E.subtract(Y, X)), "a[i, j] - (b[j, 0] - a[i, j])"),
        (E.Add(X, const(-2, float32)), "a[i, j] - 2.0"),
        (E.Add(X, E.Mul(const(3, float32), const(-1, float32))), "a[i, j] + 3.0 * -1.0"),
        (E.negate(E.Add(X, Y)), "-(a[i, j] + b[j, 0])"),
        (E.negate(E.negate(X)), "-(-a[i, j])"),
        (E.Mul(E.negate(X), Y), "-a[i, j] * b[j, 0]"),
        (E.Div(X, E.Mul(Y, X)), "a[i, j] / (b[j, 0] * a[i, j])"),
        (E.maximum(X, const(0, float32)), "max(a[i, j], 0.0)"),
        (E.minimum(I, J), "min(i, j)"),
        (E.If(E.And(E.Less(I, J), E.Less(index(0), I)), X, Y),
         "if((i < j) & (0 < i), a[i, j], b[j, 0])"),
        (E.logical_not(E.Less(I, J)), "~(i < j)"),
        (E.Cast(E.FloorDiv(I, index(2)), float64), "float64(i // 2)"),
        (const(0.1, float64), "0.1f64"),
        (const(3, uint32), "3u32"),
        (const(-1.5, bfloat16), "-1.5bf16"),
        (const(float("-inf"), float16), "-inff16"),
        (const(False, bool_), "false"),
        (E.Mod(E.Add(I, index(3)), Size(Dim("n", 1, 9))), "(i + 3) % size(n)"),
        (E.Equal(E.Less(I, J), const(True, bool_)), "(i < j) == true"),
    ],
)  # fmt: skip
def test_notation(e: Expr, want: str) -> None:
    assert show(e) == want
    extents = (4, 5)
    body = E.Cast(e, float32) if e.dtype != float32 else e
    again = parse_graph(graph_text(one(Definition("d", extents, body))))
    assert graph_text(again) == graph_text(one(Definition("d", extents, body)))


def n_rows(kind: Keep = Keep.AUTO) -> Definition:
    n = Dim("n", 1, 64)
    x = Variable("x", (n, 3), float32)
    body = E.Div(read(x, Axis(1, n), Axis(0, 3)), E.Cast(Size(n), float32))
    return Definition("mean of", (3,), body, Reduce(SUM, (n,)), True, kind)


FORMS: dict[str, Definition] = {
    "reduce": define("c", (4,), lambda i, k: read(A, i, k), over=(5,), combiner=MAX),
    "scan": Definition("s", (4, 5), X, Scan(SUM, 1)),
    "write": Definition("w", (9, 5), X, Accumulate(SUM, (4, 5), (read(T, I), J))),
    "write of a sum": Definition(
        "w", (9,), X, Accumulate(SUM, (4, 5), (E.Mod(E.Add(I, J), index(2)),))
    ),
    "symbolic": n_rows(),
    "kept": n_rows(Keep.NEVER),
    "scalar": define("v", (), lambda: read(define("u", (), lambda: const(1, float32)))),
    "reserved name": define("sum", (4,), lambda i: read(Variable("max", (4,), float32), i)),
    "odd name": define("0 w/ü", (4,), lambda i: read(Variable("i", (4,), float32), i)),
    "many axes": define("m", (1,) * 20, lambda *i: E.Cast(E.Add(i[17], i[19]), float32)),
    "empty": define("z", (0, 3), lambda i, j: const(1, float32)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_read_back(name: str) -> None:
    graph = one(FORMS[name])
    text = graph_text(graph)
    again = parse_graph(text)
    assert graph_text(again) == text
    assert graph_signature(again) == graph_signature(graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda: graphs.net_step(2, 9),
        lambda: graphs.encoder_step(2, 8, 2, 12, 2),
        lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
    ],
)
def test_steps_are_read_back(make: Callable[[], Graph]) -> None:
    graph = make()
    text = graph_text(graph)
    again = parse_graph(text)
    assert graph_text(again) == text
    structures = [graph_signature(g, names=False) for g in (again, graph)]
    assert structures[0] == structures[1]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS).flatmap(expressions))
def test_any_body_is_read_back(e: Expr) -> None:
    graph = one(Definition("d", (3, 4, 2), e))
    text = graph_text(graph)
    again = parse_graph(text)
    assert graph_text(again) == text
    ((_, mine),), ((_, its),) = graph.assigns, again.assigns
    assert isinstance(mine, Definition) and isinstance(its, Definition)
    assert graph_signature(graph) == graph_signature(again)


def test_shared_parts_are_named_and_text_stays_small() -> None:
    e: Expr = X
    for _ in range(40):
        e = E.Add(E.Mul(e, e), E.Exp(e))
    graph = one(Definition("d", (4, 5), e))
    text = graph_text(graph)
    assert len(text) < 4000 and "$1 = " in text
    assert graph_text(parse_graph(text)) == text


def test_deep_bodies() -> None:
    e: Expr = X
    for _ in range(5000):
        e = E.Exp(e)
    text = graph_text(one(Definition("d", (4, 5), e)))
    assert graph_text(parse_graph(text)) == text


HEAD = "graph\nvar a: float32[4, 5]\ndef d: float32[4, 5]\n"


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        ("  d[i, j] = a[i, j] +", "expected an operand", 21),
        ("  d[i, j] = q[i, j]", "nothing is called q", 13),
        ("  d[i, j] = a[i, z]", "unknown name z", 17),
        ("  d[i, j] = tan(a[i, j])", "no function tan", 12),
        ("  d[i, j] = a[i]", "read of a with 1 indices", 16),
        ("  d[i, j] = a[i, j] + 1", r"Add over \[float32, int64\]", 23),
        ("  d[i, j] = a[i, j] $ 2", "unknown character", 19),
        ("  d[i, j] = __import__(1)", "no function", 12),
        ("  d[i, j] = a[i, j] 2", "unexpected text", 20),
        ("  e[i, j] = a[i, j]", "expected the definition of d", 3),
        ("  d[i, j] = exp(a[i, j], 1)", "exp takes 1 values, got 2", 12),
        ("  d[i, j] = 1", "the body is int64", 13),
    ],
)
def test_errors_point_at_the_token(line: str, message: str, column: int) -> None:
    with pytest.raises(SyntaxFormError, match=rf"line 4: {message}") as caught:
        parse_graph(HEAD + line + "\nassign a = d\n")
    caret = next(row for row in str(caught.value).splitlines() if row.strip(" |") == "^")
    assert caret.index("^") - len("   | ") == column


def test_axis_names() -> None:
    names = [axis_name(n) for n in range(40)]
    assert len(set(names)) == 40
    assert [axis_number(n) for n in names] == list(range(40))
    assert axis_number("n") is None and axis_number("i3") is None


def test_kernels_and_nests_print() -> None:
    (kernel, *_) = fuse(graphs.net_step(2, 9), Target())
    text = kernel_text(kernel)
    assert "sum[k < 9](x[i, k] * w1[j, k])" in text and "store w1" in text
    assert "reads " in text and text.startswith("kernel ")
    nest = routine_text(lower(kernel, scheduled(kernel, Target())))
    assert "vector" in nest and " sum= " in nest and "routine " in nest


def test_programs_print() -> None:
    graph = one(define("d", (4, 5), lambda i, j: read(A, i, j)))
    counter = Variable("step", (), int64)
    flag = Variable("flag", (), bool_)
    feed = P.Feed(lambda: None, (A,), True)
    receive = P.Receive(print, (A,), every=10)
    branch = P.Branch(flag, (receive,), (feed,))
    loop = P.Loop((feed, P.Compute(graph), branch), 7, counter, flag, 2, 3)
    text = show(P.Program((loop,), (A,)))
    assert text.splitlines() == [
        "program",
        "  state a: float32[4, 5]",
        "  loop step from 2 by 3 at most 7 times while flag",
        "    feed a",
        "    def d: float32[4, 5]",
        "      d[i, j] = a[i, j]",
        "    assign out = d",
        "    if flag",
        "      receive a every 10",
        "    else",
        "      feed a",
    ]
