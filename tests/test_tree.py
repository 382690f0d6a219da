"""Trees of parameters, leaf by leaf: every kind of node, what is refused, inside of programs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError


class Pair(NamedTuple):
    w: Any
    b: Any


@dataclass(frozen=True)
class Layer:
    weight: Any
    scale: float


TREE = {"layers": [Pair(1, 2), Pair(3, None)], "head": (4, Layer(5, 0.5)), "none": {}}


def test_every_kind_of_node() -> None:
    assert pb.tree.leaves(TREE) == [1, 2, 3, 4, 5, 0.5]
    doubled = pb.tree.map(lambda n: 2 * n, TREE)
    assert doubled == {
        "layers": [Pair(2, 4), Pair(6, None)], "head": (8, Layer(10, 1.0)), "none": {},
    }  # fmt: skip
    numbers, rebuild = pb.tree.flatten(TREE)
    assert rebuild(numbers) == TREE
    assert pb.tree.leaves(None) == []
    assert pb.tree.map(lambda n: -n, 3) == -3
    assert pb.tree.leaves(pb.ones(2))[0].shape == (2,)


def test_keys_decide_not_their_order() -> None:
    a, b = {"x": 1, "y": [2, 3]}, OrderedDict(y=[20, 30], x=10)
    assert pb.tree.map(lambda m, n: m + n, a, b) == {"x": 11, "y": [22, 33]}
    assert pb.tree.map(lambda m, n, k: m + n * k, a, b, a) == {"x": 11, "y": [42, 93]}


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ({"x": 1}, "a dict of 2, and a dict of 1"),
        ({"x": 1, "z": [2, 3]}, "a dict of 2, and a dict of 2"),
        ({"x": 1, "y": [2]}, r"a list of 2, and a list of 1 at \['y'\]"),
        ({"x": 1, "y": (2, 3)}, r"a list of 2, and a tuple of 2 at \['y'\]"),
        ({"x": 1, "y": 3}, r"a list of 2, and a int at \['y'\]"),
    ],
)
def test_other_structures_are_refused_by_place(other: Any, place: str) -> None:
    with pytest.raises(PullbackError, match=place) as told:
        pb.tree.map(lambda m, n: m, {"x": 1, "y": [2, 3]}, other)
    assert told.value.code == "E132"
    with pytest.raises(PullbackError, match="3 leaves for a tree of 2"):
        pb.tree.flatten([1, 2])[1]([1, 2, 3])


def test_a_step_of_descent_over_a_tree() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "first": {"w": rng.normal(size=(3, 4)), "b": np.zeros(4)},
        "last": rng.normal(size=4),
    }
    x = rng.normal(size=(5, 3))

    def loss(tree: Any, x: Any) -> Any:
        hidden = pb.tanh(x @ tree["first"]["w"] + tree["first"]["b"])
        return pb.mean((hidden @ tree["last"]) ** 2)

    @pb.jit
    def step(tree: Any, x: Any) -> Any:
        value, slopes = pb.value_and_grad(loss)(tree, x)
        return pb.tree.map(lambda w, g: w - 0.05 * g, tree, slopes), value

    before = None
    for _ in range(20):
        weights, value = step(weights, x)
        assert before is None or float(value.numpy()) < before
        before = float(value.numpy())
    assert set(weights) == {"first", "last"}
