"""Numbers that a type has no place for are refused wherever a tensor is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError, PullbackError

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]

BYTES = np.array([1, 2, 3], np.int8)


def made(number: Any, kind: str) -> dict[str, Callable[[], Any]]:
    """Every way to make a tensor of `kind` of one number."""
    ways: dict[str, Callable[[], Any]] = {
        "a number": lambda: pb.tensor(number, dtype=kind),
        "a list": lambda: pb.tensor([[1], [number]], dtype=kind),
        "asarray": lambda: pb.asarray([number], dtype=kind),
        "full": lambda: pb.full((2,), number, dtype=kind),
        "full_like": lambda: pb.full_like(pb.ones(2, dtype=kind), number),
        "arange": lambda: pb.arange(number, number + 1, dtype=kind),
    }
    x = pb.ones(3, dtype=kind)
    if isinstance(number, int):
        ways |= {
            "beside a tensor": lambda: x + number,
            "where": lambda: pb.where(x > 0, x, number),
            "maximum": lambda: pb.maximum(x, number),
            "at": lambda: x.at[0].set(number),
            "a list at": lambda: x.at[1:].set([1, number]),
            "a list added": lambda: x.at[1:].add([1, number]),
            "assigned": lambda: x.__setitem__(slice(2), [number, 1]),
            "in a program": lambda: pb.jit(lambda a: a * number)(x),
        }
    if -(2**63) <= number < 2**63:
        array = np.array([1, number])
        ways |= {
            "an array": lambda: pb.tensor(array, dtype=kind),
            "a shared array": lambda: pb.asarray(array, dtype=kind),
            "numbers of NumPy": lambda: pb.tensor([array[1]], dtype=kind),
            "an array assigned": lambda: x.at[:2].set(array),
        }
    return ways


@pytest.mark.parametrize("kind", INTEGERS)
def test_one_beyond_the_range_is_refused_and_the_ends_are_not(kind: str) -> None:
    info = np.iinfo(kind)
    for number in (int(info.min), int(info.max)):
        assert pb.tensor([number], dtype=kind).numpy().tolist() == [number]
        assert pb.tensor(np.array([number], kind).astype(object).tolist()).tolist() == [number]
        assert pb.full((1,), number, dtype=kind).tolist() == [number]
    for number in (int(info.min) - 1, int(info.max) + 1):
        for name, way in made(number, kind).items():
            with pytest.raises(DTypeError, match=f"{number} does not fit {kind}") as caught:
                way()
            assert caught.value.code == "E141", name


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("number", [300.5, -1e30, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("source", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_floats_that_are_no_integer_of_the_type(number: float, source: Any, kind: str) -> None:
    for way in (
        lambda: pb.tensor([number], dtype=kind),
        lambda: pb.tensor(np.array([number], source), dtype=kind),
        lambda: pb.full((2,), number, dtype=kind),
        lambda: pb.full_like(pb.ones(2, dtype=kind), number),
    ):
        with pytest.raises(DTypeError) as caught:
            way()
        assert caught.value.code == "E141"


def test_the_edges_of_wide_integers_as_floats() -> None:
    assert pb.tensor([2.0**63 - 1024], dtype="int64").tolist() == [2**63 - 1024]
    assert pb.tensor([-(2.0**63)], dtype="int64").tolist() == [-(2**63)]
    assert pb.tensor([-0.5, 255.9], dtype="uint8").tolist() == [0, 255]
    for number in (2.0**63, -(2.0**63) - 2048):
        with pytest.raises(DTypeError, match="does not fit int64"):
            pb.tensor([number], dtype="int64")


def test_integers_that_no_type_holds() -> None:
    for data in ([2**70], 2**70, [2**63, -1], [[1, -(2**63) - 1]]):
        with pytest.raises(DTypeError, match="does not fit int64"):
            pb.tensor(data)
    with pytest.raises(DTypeError, match="-1 does not fit uint64"):
        pb.tensor([2**63, -1], dtype="uint64")
    with pytest.raises(DTypeError, match="an integer of 1329 bits does not fit float64"):
        pb.tensor([10**400], dtype="float64")
    assert pb.tensor([2**63]).dtype == pb.uint64
    assert pb.tensor([2**70, 0.5]).tolist() == [2.0**70, 0.5]


@pytest.mark.filterwarnings("error")
def test_what_a_cast_does_stays_what_it_was() -> None:
    assert pb.tensor([300]).astype("int8").tolist() == [44]
    assert pb.tensor(pb.tensor([300]), dtype="int8").tolist() == [44]
    assert pb.tensor([1e39], dtype="float32").tolist() == [float("inf")]
    assert pb.tensor([1e6], dtype="float16").tolist() == [float("inf")]
    assert pb.tensor([2, 0], dtype="bool").tolist() == [True, False]
    assert pb.tensor(np.array([], np.int64), dtype="int8").shape == (0,)
    assert pb.tensor(BYTES, dtype="uint8").tolist() == [1, 2, 3]
    # one rounding: by float32 this would be 1.0
    assert pb.tensor([1 + 2.0**-11 + 2.0**-30], dtype="float16").tolist() == [1 + 2.0**-10]


@pytest.mark.parametrize("data", ["text", ["a", "b"], None, [None, 1.0], object(), b"x", {1}, {}])
def test_what_is_no_number_has_a_coded_error(data: Any) -> None:
    for kind in (None, "int8", "float32"):
        with pytest.raises(PullbackError):
            pb.tensor(data, dtype=kind)
