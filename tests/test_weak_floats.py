"""What is made of axes and Python numbers alone takes the float type of what it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError, IndexRangeError

COUNT = 20
I = np.arange(COUNT)
X = np.random.default_rng(3).normal(size=COUNT) + 2.0
Body = Callable[..., Any]
k = pb.axis(5, "k")

# Scalar expressions of one axis, and what they are in float64.
OPEN: dict[str, tuple[Body, Any]] = {
    "a product with a float": (lambda i: i * 0.1, I * 0.1),
    "a function of it": (lambda i: pb.sin(i * 0.1), np.sin(I * 0.1)),
    "a division": (lambda i: i / 3, I / 3),
    "a function of an axis": (lambda i: pb.sqrt(i + 2), np.sqrt(I + 2)),
    "a chosen one": (lambda i: pb.where(i < 3, 0.1, i / 7), np.where(I < 3, 0.1, I / 7)),
    "numbers chosen by an axis": (lambda i: pb.where(i < 3, 0.1, 0.7), np.where(I < 3, 0.1, 0.7)),
    "a power": (lambda i: (i + 1) ** 0.3, (I + 1) ** 0.3),
    "a power of a number": (lambda i: 0.9**i, 0.9**I),
    "a clipped one": (lambda i: pb.clip(i * 0.1, 0.3, 1.1), np.clip(I * 0.1, 0.3, 1.1)),
    "a sum": (lambda i: pb.sum(k * 0.1 + i / 3, over=k), 1.0 + 5 * I / 3),
    "the largest": (lambda i: pb.max(k * 0.1 - i / 3, over=k), 0.4 - I / 3),
    "a mean": (lambda i: pb.mean(k, over=k) / 3 + i, 2 / 3 + I),
    "an integer of a float": (lambda i: pb.floor(i / 3).astype("int64") * 0.1, I // 3 * 0.1),
    "two arguments": (lambda i: pb.atan2(i + 1, i * 0.3), np.arctan2(I + 1, I * 0.3)),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_it_takes_the_type_of_what_it_meets(kind: str) -> None:
    tolerance = {"float64": 2e-15, "float32": 2e-6, "float16": 4e-3}[kind]

    @pb.jit
    def met(x: Any) -> Any:
        made = [pb.compute(COUNT, lambda i, f=f: f(i) + x[i]) for f, _ in OPEN.values()]
        return [*made, *(pb.compute(COUNT, lambda i, f=f: x[i] * f(i)) for f, _ in OPEN.values())]

    found = met(X.astype(kind))
    added, multiplied = found[: len(OPEN)], found[len(OPEN) :]
    for name, (_, wanted), y, z in zip(OPEN, OPEN.values(), added, multiplied, strict=True):
        assert str(y.dtype) == str(z.dtype) == kind, name
        x = X.astype(kind).astype(float)
        np.testing.assert_allclose(y.numpy(), wanted + x, rtol=tolerance, err_msg=name)
        np.testing.assert_allclose(z.numpy(), wanted * x, rtol=tolerance, err_msg=name)


def test_alone_it_is_float32() -> None:
    found = pb.jit(lambda: [pb.compute(COUNT, f) for f, _ in OPEN.values()])()
    for name, (_, wanted), y in zip(OPEN, OPEN.values(), found, strict=True):
        assert y.dtype == pb.float32, name
        np.testing.assert_allclose(y.numpy(), wanted, rtol=2e-6, err_msg=name)


def test_the_text_form_says_the_same() -> None:
    x = pb.tensor(X)
    text = (
        "y[i] = sin(i * 0.1) * x[i] + mean[k](k / 3) + where(i < n / 3, 0.1, i / 7) + float64(0.1)"
    )
    found = pb.define(text, x=x, sizes={"k": 5, "n": COUNT})
    wanted = np.sin(I * 0.1) * X + 2 / 3 + np.where(I < COUNT / 3, 0.1, I / 7) + 0.1
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-15)


def test_a_symbolic_extent_is_a_number_of_that_kind() -> None:
    n = pb.dim("n", 1, 30)
    ramp = pb.jit(lambda x: pb.compute(x.shape, lambda i: i / n * x[i]), shapes=[(n,)])
    np.testing.assert_allclose(ramp(X[:7]).numpy(), np.arange(7) / 7 * X[:7], rtol=1e-15)


def test_numbers_chosen_by_data_meet_floats_as_numbers_do() -> None:
    x = pb.tensor(X)
    found = pb.compute(COUNT, lambda i: pb.where(x[i] < 2.0, 0.1, 0.7) * x[i])
    np.testing.assert_array_equal(found.numpy(), np.where(X < 2, 0.1, 0.7) * X)


def test_a_type_that_is_said_stays() -> None:
    x = pb.tensor(X)
    found = pb.compute(COUNT, lambda i: (i * 0.1).astype("float32") + 0 * x[i])
    np.testing.assert_array_equal(found.numpy(), (I * np.float32(0.1)).astype(np.float32))
    assert pb.compute(COUNT, lambda i: (i * 0.1).astype("float16")).dtype == pb.float16


def test_decisions_are_made_in_float64() -> None:
    """In float32, 3 * 0.7 is not below 2.1, and 90 * 0.7 is not 63."""
    found = pb.compute(200, lambda i: pb.where(i * 0.7 < 2.1, 1.0, 0.0))
    np.testing.assert_array_equal(found.numpy(), np.arange(200) * 0.7 < 2.1)
    places = pb.compute(2000, lambda i: pb.floor(i * 0.7).astype("int64"))
    np.testing.assert_array_equal(places.numpy(), np.floor(np.arange(2000) * 0.7))


# --- indices that go through floats ---------------------------------------------------------------

WIDE = np.random.default_rng(4).normal(size=60)
INDICES: dict[str, tuple[Body, Any]] = {
    "floor": (lambda i: pb.floor(i / 3), I // 3),
    "ceil": (lambda i: pb.ceil(i * 0.7), np.ceil(I * 0.7)),
    "round": (lambda i: pb.round(i * 1.5), np.round(I * 1.5)),
    "trunc": (lambda i: pb.trunc(i * 0.3 + 0.5), np.trunc(I * 0.3 + 0.5)),
    "log2": (lambda i: pb.log2(2.0**i), I),
    "sqrt": (lambda i: pb.sqrt(i * i), I),
    "chosen": (lambda i: pb.where(i < 9, i * 0.5, 59.0), np.where(I < 9, I * 0.5, 59)),
    "a cast alone": (lambda i: i * 2.5, I * 2.5),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_may_go_through_a_float(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wanted = INDICES[name]
    at = np.asarray(wanted).astype(int)
    x = pb.tensor(WIDE)

    def picked(x: Any) -> Any:
        return pb.compute(COUNT, lambda i: x[place(i).astype("int64")] * (i + 1))

    np.testing.assert_array_equal(picked(x).numpy(), WIDE[at] * (I + 1))
    gradient = np.zeros(60)
    np.add.at(gradient, at, I + 1.0)
    derived = pb.jit(pb.grad(lambda x: pb.sum(picked(x))))
    np.testing.assert_allclose(derived(x).numpy(), gradient)
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    np.testing.assert_array_equal(picked(x).numpy(), WIDE[at] * (I + 1))


def test_the_derivative_of_a_read_through_a_float() -> None:
    def stretched(a: Any, b: Any) -> Any:
        q = pb.axis(7)
        return pb.compute(
            (10, 3), lambda i, j: pb.sum(a[pb.floor(i / 2).astype("int64"), q] * b[q, j], over=q)
        )

    a, b = (
        np.random.default_rng(5).normal(size=(5, 7)),
        np.random.default_rng(6).normal(size=(7, 3)),
    )
    np.testing.assert_allclose(
        stretched(pb.tensor(a), pb.tensor(b)).numpy(), np.repeat(a, 2, 0) @ b, rtol=1e-13
    )
    report = pb.check_grads(stretched, [a, b], layouts=("contiguous",))
    assert report, str(report)


@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_such_an_index_is_looked_at_in_every_run(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", backend)
    x = pb.tensor(X)
    with pytest.raises(IndexRangeError, match="20 elements") as problem:
        pb.compute(COUNT, lambda i: x[pb.floor(i * 1.5).astype("int64")]).numpy()
    assert "i * 1.5" in str(problem.value) and problem.value.code == "E106"
    guarded = pb.compute(
        COUNT, lambda i: pb.where(i < 13, x[pb.floor(i * 1.5).astype("int64")], 0.0)
    )
    np.testing.assert_array_equal(guarded.numpy()[:13], X[np.floor(I[:13] * 1.5).astype(int)])


def test_a_float_is_no_index() -> None:
    x = pb.tensor(X)
    with pytest.raises(DTypeError, match="index of type") as problem:
        pb.compute(COUNT, lambda i: x[pb.floor(i / 2)])
    assert problem.value.code == "E153"
