"""Types of results of two operands: one promotion for all functions; empty axes found in a call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
import pullback.array_api as xp
from pullback.errors import ShapeError

TYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
    "float32", "float64",
)  # fmt: skip
NUMBERS: dict[str, Callable[..., Any]] = {
    name: getattr(pb, name)
    for name in (
        *("add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "pow", "maximum"),
        *("minimum", "vecdot", "matmul"),
    )
} | {
    "where": lambda a, b: pb.where(pb.ones((2, 2)) > 0, a, b),
    "tensordot": lambda a, b: pb.tensordot(a, b, 1),
    "einsum": lambda a, b: pb.einsum("ij,jk->ik", a, b),
    "outer": lambda a, b: pb.outer(a[0], b[0]),
    "concat": lambda a, b: pb.concat([a, b]),
    "stack": lambda a, b: pb.stack([a, b]),
}
FLOATS = {name: getattr(pb, name) for name in ("divide", "logaddexp", "atan2", "copysign")}
BITS = {
    f"bitwise_{name}": getattr(pb, f"bitwise_{name}")
    for name in ("and", "or", "xor", "left_shift", "right_shift")
}
ONES = {name: pb.astype(pb.ones((2, 2)), name) for name in TYPES}
PAIRS = list(itertools.product(TYPES, TYPES))


def promoted(a: str, b: str) -> Any:
    """The common type; None where there is none."""
    try:
        return pb.result_type(ONES[a], ONES[b])
    except pb.errors.PullbackError:
        return None


@pytest.mark.parametrize("name", [*NUMBERS, *FLOATS, *BITS])
def test_one_promotion(name: str) -> None:
    function = (NUMBERS | FLOATS | BITS)[name]
    for a, b in PAIRS:
        wanted = promoted(a, b)
        if wanted is None or (name in BITS and wanted.is_float):
            continue
        if name in FLOATS and not wanted.is_float:
            wanted = pb.float32
        assert function(ONES[a], ONES[b]).dtype == wanted, (a, b)


def test_it_is_that_of_numpy_within_a_kind() -> None:
    for a, b in PAIRS:
        alike = ("float" in a) == ("float" in b)
        known = alike and "bfloat16" not in (a, b) and promoted(a, b) is not None
        if known:
            assert str(promoted(a, b)) == np.result_type(a, b).name


def test_python_numbers_take_the_type_of_the_tensor() -> None:
    for kind in ("float16", "float32", "float64"):
        x = ONES[kind]
        for function in (*FLOATS.values(), pb.fmod, xp.hypot, xp.copysign):
            assert str(function(3, x).dtype) == str(function(x, 3.0).dtype) == kind


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "amax", "amin", "softmax"])
def test_the_largest_of_an_axis_that_is_empty_in_a_call(name: str) -> None:
    function = getattr(pb, name)
    program = pb.jit(lambda t: function(t, axis=0), shapes=[(pb.dim("n", 0, 8), 3)])
    some = np.random.default_rng(0).random((5, 3))
    np.testing.assert_array_equal(program(some).numpy(), function(pb.tensor(some), axis=0).numpy())
    with pytest.raises(ShapeError, match=r"over no elements: `n` is 0 in this call") as caught:
        program(np.zeros((0, 3)))
    assert caught.value.code == "E118"
    assert "test_promotion.py" in str(caught.value)
    np.testing.assert_array_equal(program(some).numpy(), function(pb.tensor(some), axis=0).numpy())
    total = pb.jit(lambda t: pb.sum(t), shapes=[(pb.dim("n", 0, 8), 3)])
    assert total(np.zeros((0, 3))).numpy() == 0
