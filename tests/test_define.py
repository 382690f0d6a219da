"""The text form: what it means, and where its errors point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pullback as pb
from pullback.composite.syntax import Parser
from pullback.errors import (
    DTypeError,
    IndexRangeError,
    Origin,
    PullbackError,
    ShapeError,
    SyntaxFormError,
    UnboundNameError,
)

RNG = np.random.default_rng(5)
A, B, X = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3)), RNG.normal(size=6)


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("c[i, j] = sum[k](a[i, k] * b[k, j])", A @ B),
        ("c[j, i] = sum[k](a[i, k] * b[k, j])", (A @ B).T),
        ("c[i,j] = sum[k] a[i,k]*b[k,j]", A @ B),
        ("y[i] = sum[k] -a[i, k] ** 2 / 2 + x[i] - max[k] a[i, k]",
         -(A**2).sum(1) / 2 + X[:4] - A.max(1)),
        ("y[i] = sum[k] a[i, k] * sum[l] (a[i, l] - 1.0) + 1", A.sum(1) * (A - 1).sum(1) + 1),
        ("y[i] = sum[k](a[i, k]) ** 2 < max[k] (a[i, k])", A.sum(1) ** 2 < A.max(1)),
        ("s = sum[i, k](a[i, k])", A.sum()),
        ("s[] = max[i](x[i]) - min[i](x[i])", np.ptp(X)),
        ("y[i] = where(i > 0 & i < n - 1, x[i - 1] + x[i + 1], 0.0)", [0, *(X[:-2] + X[2:]), 0]),
        ("y[i] = where(0 < i < n - 1, x[i - 1], x[n - 1 - i])", [X[5], *X[:4], X[0]]),
        ("y[i] = where(not i == 0 and x[i] > 0 or i == 2, 1.5, -x[i])",
         np.where((np.arange(6) != 0) & (X > 0) | (np.arange(6) == 2), 1.5, -X)),
        ("y[i] = -x[i] ** 2 + 2 ** -1 * x[i]", -(X**2) + 0.5 * X),
        ("y[i] = x[i // 2] * (i % 2)", X[np.arange(6) // 2] * (np.arange(6) % 2)),
        ("y[i] = maximum(tanh(x[i]), erf(0.0)) + max(x[i], 1)",
         np.maximum(np.tanh(X), 0) + np.maximum(X, 1)),
        ("y[i] = argmax[k](a[i, k])", A.argmax(1)),
        ("y[i] = mean[k](a[i, k])", A.mean(1)),
        ("y[i] = any[k](a[i, k] > 1.0)", (A > 1).any(1)),
        ("y[i] = float64(i) * pi", np.arange(6) * np.pi),
        ("y[t, k] = a[ids[t], k]", A[[2, 0]]),
        ("y[i] = sum[k](a[i, k] * sum[l](a[i, l]))", A.sum(1) ** 2),
        ("y[i] = x[i] # a remark", X),
        ("y[i] = (x[i]\n  + x[i])", 2 * X),
    ],
)  # fmt: skip
def test_meaning(text: str, wanted: Any) -> None:
    names: dict[str, Any] = {"a": A, "b": B, "x": X, "ids": np.array([2, 0]), "n": 6}
    used = {n: v if n == "n" else pb.asarray(v) for n, v in names.items()}
    found = pb.define(text, sizes={"i": 4 if "a[i" in text else 6}, **used)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_several_definitions() -> None:
    m, s, p = pb.define(
        "m[i] = max[k](a[i, k]); s[i] = sum[k](exp(a[i, k] - m[i]))\n"
        "p[i, k] = exp(a[i, k] - m[i]) / s[i]\n",
        a=pb.asarray(A),
    )
    assert m.shape == s.shape == (4,)
    np.testing.assert_allclose(p.numpy(), pb.softmax(pb.asarray(A)).numpy(), rtol=1e-14)


def test_the_text_and_the_function_make_equal_bodies() -> None:
    a, b, k = pb.asarray(A), pb.asarray(B), pb.axis(5)
    text = pb.define("c[i, j] = sum[k](a[i, k] * b[k, j])", a=a, b=b)
    call = pb.compute((4, 3), lambda i, j: pb.sum(a[i, k] * b[k, j], over=k))
    assert text.value.body is call.value.body


def test_symbolic_sizes() -> None:
    n = pb.dim("n", 1, 9)
    x = pb.zeros((n, 2))
    y = pb.define("y[i] = x[i, 0] + n", x=x, sizes={"n": n})
    assert y.shape == (n,) and y.dtype == pb.float32


@pytest.mark.parametrize(
    ("text", "kind", "message", "column", "width"),
    [
        ("c[i] = a[i", SyntaxFormError, "expected ','", 11, 1),
        ("c[i = x[i]", SyntaxFormError, "expected ','", 5, 1),
        ("c[i] x[i]", SyntaxFormError, "expected '='", 6, 1),
        ("c[i] = x[i] +", SyntaxFormError, "end of the line", 14, 1),
        ("c[i] = x[i] x[i]", SyntaxFormError, "unexpected 'x'", 13, 1),
        ("c[i] = x[i] $ 2", SyntaxFormError, "unexpected character", 13, 1),
        ("c[i] = __import__('os')", SyntaxFormError, "unexpected character", 19, 1),
        ("c[i, i] = x[i]", SyntaxFormError, "named twice", 6, 1),
        ("c[i] = lambda: 1", SyntaxFormError, "unexpected ':'|unexpected character", 14, 1),
        ("", SyntaxFormError, "no definition", 1, 1),
        ("c[i] = sum[k]", SyntaxFormError, "end of the line", 14, 1),
        ("c[i] = sum[k] (a[i, k]) ** 2", SyntaxFormError, r"sum\[\.\.\] ends is not", 25, 2),
        ("c[i] = max[k] (a[i, k]) * 2", SyntaxFormError, r"max\[\.\.\] ends is not", 25, 1),
        ("c[i] = q[i]", UnboundNameError, "'q' is bound by nothing", 8, 4),
        ("c[i] = tnh(x[i])", UnboundNameError, "'tnh'", 8, 9),
        ("c[i] = x[i] * k", UnboundNameError, "'k' is bound", 15, 1),
        ("c[i] = a[i, k]", UnboundNameError, "'k' is bound", 13, 1),
        ("c[x] = x[i]", UnboundNameError, "name of something else", 3, 1),
        ("c[i] = a[i]", ShapeError, "has 2 axes", 8, 4),
        ("c[i] = x[i] + a[0, i]", ShapeError, "6 elements elsewhere and 5", 15, 7),
        ("c[i] = x[0]", ShapeError, "no read fixes", 3, 1),
        ("c[i] = sum(x[i])", ShapeError, "over which axis", 8, 9),
        ("c[i] = where(x[i])", ShapeError, "takes 3 arguments", 8, 11),
        ("c[i] = x[i] + x[x[i]]", DTypeError, "index of type float64", 15, 7),
        ("c[i] = x[i] & 1", DTypeError, "bitwise_and", 8, 8),
        ("c[i] = x[i] + x[i + 1]", IndexRangeError, "from 1 to 6", 15, 8),
    ],
)
def test_errors_carry_a_caret(
    text: str, kind: type[PullbackError], message: str, column: int, width: int
) -> None:
    with pytest.raises(kind, match=message) as caught:
        pb.define(text, a=pb.asarray(A), x=pb.asarray(X))
    shown = str(caught.value).splitlines()
    assert f"line 1, column {column} " in shown[1], shown
    marks = next(s for s in shown if "^" in s)
    assert marks.index("^") - len("   | ") == column - 1
    assert marks.count("^") == width


def test_an_error_on_a_later_line() -> None:
    with pytest.raises(UnboundNameError) as caught:
        pb.define("c[i] = x[i]\nd[i] = c[i] + zz", x=pb.asarray(X))
    assert "line 2, column 15" in str(caught.value) and "d[i] = c[i] + zz" in str(caught.value)


def test_a_runtime_index_error_points_into_the_text() -> None:
    found = pb.define("y[t] = x[ids[t]]", x=pb.asarray(X), ids=pb.tensor([0, 9]))
    with pytest.raises(IndexRangeError, match="index 9"):
        found.numpy()


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(SyntaxFormError, match="deeply"):
        pb.define("c[i] = " + "(" * 500 + "x[i]" + ")" * 500, x=pb.asarray(X))


def test_what_is_neither_tensor_nor_number_is_refused() -> None:
    with pytest.raises(DTypeError, match="f is a function"):
        pb.define("c[i] = x[i]", x=pb.asarray(X), f=lambda: 1)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="c[i]=xa(),+-*/%<>&|~^;\n 01.e_where sum$'\"", max_size=40))
def test_any_text_parses_or_is_refused_by_name(text: str) -> None:
    try:
        Parser(text, Origin.of_caller()).statements()
    except SyntaxFormError as problem:
        assert problem.origin is not None
        problem.origin.excerpt()
