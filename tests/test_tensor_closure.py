"""Every library function is a composite: only primitives occur in what it builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.ir.expr import SCALARS, Size
from pullback.ir.graph import Accumulate, Definition, Map, Reduce, Scan, topological
from pullback.ir.node import walk
from pullback.tensor.library import maths
from pullback.tensor.values.functions import TESTS, UNARY, UNARY_ANY
from pullback.tensor.values.rules import RULES

N = pb.dim("n", 2, 9)
X = pb.tensor([[0.5, -1.0], [2.0, 0.25]])
IDS = pb.tensor([1, 0])
CALLS: dict[str, Callable[[], Any]] = {
    "sum": lambda: pb.sum(X, 0),
    "mean": lambda: pb.mean(pb.zeros((N, 2)), 0),
    "var": lambda: pb.std(X, 1, correction=1),
    "argmax": lambda: pb.argmax(X, 1),
    "logsumexp": lambda: pb.logsumexp(X, 1),
    "softmax": lambda: pb.softmax(pb.zeros((N, 3))),
    "log_softmax": lambda: pb.log_softmax(X),
    "cumulative_sum": lambda: pb.cumulative_sum(X, 0),
    "matmul": lambda: X @ X,
    "views": lambda: pb.flip(pb.roll(pb.pad(X, 1), 1, 0), 1).reshape(2, 8)[:, ::-3],
    "concat": lambda: pb.concat([X, X, pb.tile(X, (2, 1))]),
    "where": lambda: pb.where(X > 0, X, pb.tril(X)),
    "index": lambda: X[IDS, None, IDS],
    "take_along_axis": lambda: pb.take_along_axis(X, pb.argsort(X), 1),
    "one_hot": lambda: pb.one_hot(IDS, 3),
    "cast": lambda: X.astype("bfloat16").astype("int8"),
    "normal": lambda: pb.random.normal((3,)),
    "integers": lambda: pb.random.integers(3, 9, (N,)),
    "permutation": lambda: pb.random.permutation(10),
    "define": lambda: pb.define("y[i] = argmin[k](x[i, k]) % 2", x=X),
    "gradient": lambda: pb.grad(pb.softmax(X)[0, 1] + pb.gelu(X[IDS]).sum(), X),
}


def primitives_only(value: Any) -> None:
    definitions = topological([value])
    assert definitions
    for definition in definitions:
        assert isinstance(definition.form, Map | Reduce | Scan | Accumulate)
        for node in walk(definition.roots):
            assert type(node) in (*SCALARS, Size), f"{type(node).__name__} in {definition}"


@pytest.mark.parametrize("name", CALLS)
def test_functions(name: str) -> None:
    primitives_only(CALLS[name]().value)


@pytest.mark.parametrize("name", RULES)
def test_element_wise_functions(name: str) -> None:
    one = pb.tensor([1, 2]) if RULES[name].kind in ("bits", "integer") else X
    single = name in (*UNARY, *UNARY_ANY, *TESTS) or name in (
        "negative", "positive", "bitwise_invert", "logical_not",
    )  # fmt: skip
    found = getattr(maths, name)(*([one] if single else [one, one]))
    assert isinstance(found.value, Definition)
    primitives_only(found.value)


def test_every_rule_is_public() -> None:
    assert set(RULES) <= set(pb.__all__)
    assert all(hasattr(pb, name) for name in pb.__all__)
