"""Sums of products: made without the products, each matrix read once; large sums in tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb

RNG = np.random.default_rng(11)
Made = Callable[..., Any]


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def explained(function: Made, *given: np.ndarray) -> str:
    """The kernels of a program, whose results are the interpreter's, for one thread as for two."""
    program = pb.jit(function, options=pb.Options(cache=None, threads=1))
    results = [r.numpy() for r in program(*map(pb.tensor, given))]
    options = (pb.Options(cache=None, threads=2), pb.Options(cache=None, backend="reference"))
    two, plain = (pb.jit(function, options=o)(*map(pb.tensor, given)) for o in options)
    for result, other, wanted in zip(results, two, plain, strict=True):
        np.testing.assert_array_equal(result, other.numpy())
        np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-9, atol=1e-9)
    return str(program.program.explain()).partition("== as run")[2].partition("== memory")[0]


def products(text: str) -> list[str]:
    """The sums of products of two matrices."""
    lines = [line for line in text.splitlines() if "= sum[k" in line]
    return [line for line in lines if "i, k]" in line and "k, j]" in line]


A, B, C = drawn(60, 70), drawn(70, 80), drawn(60, 80)


def mixed(a: Any, b: Any, c: Any) -> Any:
    return [pb.sum(1.5 * (a @ b) + 1.25 * c)]


def with_slopes(a: Any, b: Any, c: Any) -> Any:
    y = pb.sum(a @ b - c)
    return [y, *pb.grad(y, [a, b])]


def rows(a: Any, b: Any, c: Any) -> Any:
    return [pb.sum(a @ b, axis=1) + pb.sum(c, axis=1)]


def chain(a: Any, b: Any, c: Any) -> Any:
    return [pb.sum((a @ b) @ c.T)]


def batches(a: Any, b: Any, c: Any) -> Any:
    """The sample stays: ``y[n] = sum[i, j, k](x[n, i, k] * b[k, j])``."""
    x = pb.stack([a, a * 2.0])
    return [pb.sum(x @ b, axis=(1, 2)) * pb.sum(c)]


def in_both(a: Any, b: Any, c: Any) -> Any:
    """The samples are summed, but in both factors."""
    return [pb.sum(pb.stack([a, c[:, :70]]) @ pb.stack([b, b * b]))]


@pytest.mark.parametrize("function", [mixed, with_slopes, rows, chain, batches, in_both])
def test_a_product_that_is_only_summed_is_not_made(function: Made) -> None:
    assert not products(explained(function, A, B, C))


def read_elsewhere(a: Any, b: Any, c: Any) -> Any:
    p = a @ b
    return [pb.sum(p), p]


def squared(a: Any, b: Any, c: Any) -> Any:
    p = a @ b
    return [pb.sum(p * p)]


@pytest.mark.parametrize("function", [read_elsewhere, squared])
def test_one_that_is_read_otherwise_is_made(function: Made) -> None:
    text = explained(function, A, B, C)
    assert len(products(text)) == 1 and "_inner" not in text


def test_small_ones_stay() -> None:
    assert products(explained(mixed, drawn(4, 5), drawn(5, 6), drawn(4, 6)))


def test_products_with_vectors_read_their_matrix_once() -> None:
    """Both, and the gradient, are one kernel over the rows of the matrix."""

    def both(a: Any, x: Any, y: Any) -> Any:
        value = pb.sum(a @ x) + pb.sum(y @ a)
        return [value, *pb.grad(value, [a])]

    text = explained(both, drawn(300, 200), drawn(200), drawn(300))
    assert text.count("\n  kernel ") == 1


def test_sums_that_one_number_reads_are_made_in_tasks() -> None:
    text = explained(
        lambda a, b: [pb.sum(a * a) * 1.5 + pb.sum(b * b)], drawn(300, 200), drawn(300, 200)
    )
    before, after = text.split("finish\n")
    assert before.count(", partial") == 2 and "= sum[" not in after


def test_rows_are_not_cut_for_what_reads_columns() -> None:
    """The gradient `x[j]` of each row shares columns alone with the sums, whose rows are long."""

    def value(a: Any, b: Any, x: Any) -> Any:
        y = pb.sum(a @ x) + pb.sum(b @ x)
        return [y, *pb.grad(y, [a])]

    text = explained(value, drawn(600, 600), drawn(600, 600), drawn(600))
    assert text.count("\n  kernel ") == 2 and "at (j)" not in text
