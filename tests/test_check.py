"""`pb.check_grads`: right derivatives pass in every layout, wrong ones fail by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import GradientError
from pullback.grad import scalar
from pullback.ir import expr as E
from pullback.tensor.derive.check import LAYOUTS, check_grads
from pullback.tensor.derive.layouts import VIEWS, Layout

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))


def dense(x: Any, w: Any) -> Any:
    return pb.tanh(x @ w.T)


def test_a_function_passes_in_every_layout() -> None:
    report = check_grads(dense, [X, W])
    assert report, str(report)
    assert not report.skipped
    subjects = " ".join(c.subject for c in report.checks)
    assert all(name in subjects for name in LAYOUTS if name != "contiguous")
    assert {c.name for c in report.checks} == {
        "differences", "dot product", "second order", "layout", "native",
    }  # fmt: skip


def test_a_tensor_by_its_inputs() -> None:
    x = pb.tensor(X.astype(np.float32))
    y = pb.softmax(x * 2, axis=-1)
    report = check_grads(y, [x])
    assert report, str(report)
    assert sorted(report.skipped) == ["size 0", "size 1"]
    y.numpy()
    assert check_grads(y, [x], layouts=["contiguous"], native=False)


def test_single_precision_is_checked_in_double() -> None:
    report = check_grads(dense, [X.astype(np.float32), W.astype(np.float32)], layouts=[LAYOUTS[0]])
    assert report
    assert max(c.error for c in report.checks) < 1e-8


def test_a_scalar_by_a_scalar_is_compared_with_native_code() -> None:
    report = check_grads(lambda x, s: pb.sum(x) * s, [X, np.array(2.0)], layouts=["contiguous"])
    assert report, str(report)
    assert [c.subject for c in report.checks if c.name == "native"] == [
        "first order", "second order",
    ]  # fmt: skip


def test_integer_inputs_and_several_outputs() -> None:
    def pick(table: Any, tokens: Any) -> Any:
        rows = pb.take(table, tokens, axis=0)
        return rows, pb.sum(rows * rows)

    report = check_grads(pick, [X, np.array([3, 0, 0, 1])], native=False)
    assert report, str(report)
    assert {c.subject.split(",")[0] for c in report.checks if c.name == "layout"} == {"table"}


def test_the_report_as_json() -> None:
    report = check_grads(pb.exp, X, layouts=["contiguous", "step 2"], native=False, second=False)
    found = json.loads(report.json())
    assert found["passed"] is True
    assert [c["name"] for c in found["checks"]] == ["differences", "dot product", "layout"]


FAULTS: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda node, g: ((node.value, g),),
    "twice": lambda node, g: ((node.value, E.Mul(E.Mul(g, node), E.const(2, g.dtype))),),
    "nan": lambda node, g: ((node.value, E.Log(E.const(-1, g.dtype))),),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_derivative_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalar.PARTIALS, E.Exp, FAULTS[name])
    report = check_grads(pb.exp, X, layouts=["contiguous"], native=False, second=False)
    assert not report
    assert "FAIL differences" in str(report)
    assert json.loads(report.json())["passed"] is False


def test_sizes_that_a_function_refuses_are_told() -> None:
    def fixed(x: Any) -> Any:
        return pb.reshape(x, (12,))

    report = check_grads(fixed, X, layouts=["contiguous", "size 0"], native=False)
    assert report
    assert "size 0" in report.skipped


def test_nothing_to_differentiate() -> None:
    with pytest.raises(GradientError, match="nothing to differentiate"):
        check_grads(lambda x: x + 1, np.arange(3))
    with pytest.raises(GradientError, match="nothing to differentiate"):
        check_grads(lambda x: pb.argmax(x), X)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0), (1, 1, 2)])
def test_layouts_are_views_of_their_bases(name: str, shape: tuple[int, ...]) -> None:
    layout = Layout(name, shape, "base")
    shown = np.ones(shape) if name == "stride 0" else RNG.normal(size=shape)
    base = layout.filled(shown)
    view = pb.Tensor(layout.view)
    assert view.shape == shape
    assert np.array_equal(base[layout.spots], shown)
    assert np.sum(layout.gathered(np.ones(shape))) == np.prod(shape)
