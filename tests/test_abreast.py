"""Rows of sums side by side: the bits of one at a time, by price, and where they may be."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import named_target
from pullback.backends.nests.cheapest import cheapest
from pullback.backends.nests.flight import in_flight
from pullback.backends.nests.price import price
from pullback.cli.graph_text import parse_kernel
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen
from pullback.nn.functional import conv2d
from test_flight import model

NARROW = named_target("x86-64-v3").on(chosen("zen3"))
WIDE = named_target("x86-64-v4").on(chosen("zen4"))


def depthwise(x: Any, w: Any) -> Any:
    """Sums of 49 elements of rows of `x`, which begin and end with zeros."""
    return conv2d(x, w, None, 1, 3, 1, x.shape[1])


def windows(x: Any, w: Any) -> Any:
    """Sums of 15 elements of rows of `x`."""
    sizes = {"i": x.shape[1] - 4, "j": x.shape[2] - 2}
    text = "y[c, i, j] = sum[k, l](x[c, i + k, j + l] * w[c, k, l])"
    return pb.define(text, x=x, w=w, sizes=sizes)


def last(function: Any, *shapes: tuple[int, ...], target: Target = WIDE) -> Kernel:
    drawn = function, model.floats(*shapes)
    return list(model.kernels(Random(0), lambda _: drawn, target))[-1]


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("size", [(1, 7), (2, 40), (5, 17), (8, 16), (11, 65)])
def test_results_have_the_bits_of_one_row(size: tuple[int, int], rows: int) -> None:
    """Also of rows that no number of them makes whole, and of fewer than run side by side."""
    rng = np.random.default_rng(0)
    high, wide = size
    x = rng.standard_normal((3, high + 4, wide + 2), np.float32)
    w = rng.standard_normal((3, 5, 3), np.float32)
    schedule = pb.schedule(windows, x, w).choose("lanes.0", 2)
    got = pb.jit(windows, schedules=schedule.choose("abreast.0", rows))(x, w).numpy()
    want = pb.jit(windows, schedules=schedule.choose("abreast.0", 1))(x, w).numpy()
    assert np.array_equal(got, want), f"first {np.argwhere(got != want)[:1]}, {got.shape}"
    exact = sum(
        x[:, k : k + high, m : m + wide].astype(np.float64) * w[:, k, m, None, None]
        for k in range(5)
        for m in range(3)
    )
    np.testing.assert_allclose(got, exact, atol=2e-5)


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["narrow", "wide"])
def test_rows_of_one_vector_are_side_by_side(target: Target) -> None:
    """A sum of 49 waits 49 times for its own last addition; four rows wait together."""
    kernel = last(depthwise, (6, 192, 16, 16), (192, 1, 7, 7), target=target)
    given = dict(in_flight(kernel, target, ()))
    name = next(n for n in given if n.startswith("abreast"))
    assert given[name] in (2, 4)

    def ns(count: int) -> float:
        own = tuple({**given, name: count}.items())
        return price(kernel, scheduled(kernel, target, own), target).ns

    assert ns(given[name]) < 0.9 * ns(1)


@pytest.mark.parametrize("terms", [9, 300])
def test_rows_of_symbolic_sizes(terms: int) -> None:
    """As many blocks of four as a call has, then what is left; sums of many terms keep what an
    addition loses.
    """
    rng = np.random.default_rng(0)

    def scaled(x: Any, w: Any) -> Any:
        return pb.define("y[i, j] = sum[k](x[k, i, j] * w[k, i])", x=x, w=w)

    rows = pb.dim("n", 1, 40)
    shapes = [(terms, rows, 16), (terms, rows)]
    plain = pb.jit(scaled, shapes=shapes)
    most = [np.ones([40 if e is rows else e for e in shape], np.float32) for shape in shapes]
    schedule = pb.schedule(plain, *most).choose("abreast.0", 4)
    four = pb.jit(scaled, shapes=shapes, schedules=schedule)
    for count in (1, 3, 4, 10, 40):
        x = rng.standard_normal((terms, count, 16), np.float32)
        w = rng.standard_normal((terms, count), np.float32)
        got, want = four(x, w).numpy(), plain(x, w).numpy()
        assert np.array_equal(got, want), f"first {np.argwhere(got != want)[:1]} of {count} rows"


def test_more_rows_than_can_be_written_out_are_refused() -> None:
    x, w = np.ones((3, 40, 40), np.float32), np.ones((3, 5, 3), np.float32)
    with pytest.raises(pb.errors.OptionError, match="abreast"):
        pb.schedule(windows, x, w).choose("abreast.0", 99)


# Of the backward of a Mixer's block: sums of products along channels, in a loop that has several.
SHARED = """\
kernel mean..reshape over [i < 16]
  var matmul: float32[1024, 16]
  var primals_4_: float32[512]
  var convolution_: float32[2, 512, 4, 4]
  var getitem_1_: float32[2, 16, 1]
  var getitem_2_: float32[2, 16, 1]
  var add: float32[2, 16, 512]
  var add_2: float32[2, 16, 512]
  var result2: float32[512]
  var result3: float32[512]
  var result7: float32[16]
  stage _sum: float32[2, 16] at (j) -> scratch
    _sum[i, j] = sum[k < 512](matmul[i * 512 + k, j] * primals_4_[k])
  stage mean: float32[2, 16, 1] at (j) -> scratch
    mean[i, j, k] = _sum[i, j] * 0.001953125
  stage multiply: float32[2, 16, 512] at (j) -> scratch
    multiply[i, j, k] = (convolution_[i, k, j // 4, j % 4] - getitem_1_[i, j, 0]) * getitem_2_[i, j, 0]
  stage _sum_2: float32[2, 16] at (j) -> scratch
    _sum_2[i, j] = sum[k < 512](matmul[i * 512 + k, j] * primals_4_[k] * multiply[i, j, k])
  stage mean_2: float32[2, 16, 1] at (j) -> scratch
    mean_2[i, j, k] = _sum_2[i, j] * 0.001953125
  stage add_3: float32[2, 16, 512] at (j) -> store add_2
    add_3[i, j, k] = add[i, j, k] + (matmul[i * 512 + k, j] * primals_4_[k] - mean[i, j, 0] - multiply[i, j, k] * mean_2[i, j, 0]) * getitem_2_[i, j, 0]
  stage _sum_3: float32[512] at (k) -> store result2, partial
    _sum_3[i] = sum[j < 2, k < 16](matmul[i + j * 512, k] * multiply[j, k, i])
  stage _sum_4: float32[512] at (k) -> store result3, partial
    _sum_4[i] = sum[j < 2, k < 16](matmul[i + j * 512, k])
  stage _sum_5: float32[16] at (i) -> scratch
    _sum_5[i] = sum[j < 1024](add[j // 512, i, j % 512])
  stage reshape: float32[16] at (i) -> store result7
    reshape[i] = _sum_5[i]
"""  # noqa: E501  # as the compiler prints it


def test_rows_that_a_loop_does_not_have_are_not_taken() -> None:
    """Numbers of rows are tried by price; those that this loop does not have are left out."""
    one = parse_kernel(SHARED)
    chosen_ = cheapest(one, WIDE)
    assert price(one, scheduled(one, WIDE, chosen_), WIDE).ns > 0
