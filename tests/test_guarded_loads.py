"""What a guarded load reads where its guard does not hold is zero, and is not selected again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.config import Options

Case = Callable[[Any, Any], Any]
N = 37


def each(f: Callable[[Any], Any]) -> Any:
    return pb.compute((N,), f)


def summed(x: Any) -> Any:
    m = pb.axis(31)
    return pb.compute(
        (9, 16),
        lambda i, j: pb.sum(pb.where(m + i < N, x[m + i], 0) * x[(m + j) % N], over=m),
    )


CASES: dict[str, Case] = {
    "neighbours": lambda x, k: each(lambda i: pb.where(i < 20, x[i], 0)),
    "the other side": lambda x, k: each(lambda i: pb.where(i < 20, 0, x[i])),
    "backwards": lambda x, k: each(lambda i: pb.where(i < 20, x[N - 1 - i], 0)),
    "in steps of two": lambda x, k: each(lambda i: pb.where(2 * i < N, x[2 * i], 0)),
    "in steps of nine": lambda x, k: each(lambda i: pb.where(9 * i < N, x[9 * i], 0)),
    "by data": lambda x, k: each(lambda i: pb.where(i % 3 > 0, x[k[i]], 0)),
    "neighbours by data": lambda x, k: each(lambda i: pb.where(k[i] < 20, x[i], 0)),
    "backwards by data": lambda x, k: each(lambda i: pb.where(k[i] < 20, x[N - 1 - i], 0)),
    "one for all lanes": lambda x, k: each(lambda i: pb.where(k[i] < 20, x[3], 0)),
    "one for a row of lanes": lambda x, k: pb.compute(
        (9, N), lambda i, j: pb.where((i >= 5) & (k[j] < 20), x[i - 5], 0)
    ),
    "one by data": lambda x, k: each(lambda i: pb.where(k[i] < 20, x[k[3]], 0)),
    "read beside its guard": lambda x, k: each(lambda i: pb.where(i < 20, x[i], 0) + x[i]),
    "guards in a guard": lambda x, k: each(
        lambda i: pb.where(i < 30, pb.where(i > 5, x[i - 5], 0), 0)
    ),
    "no zero outside": lambda x, k: each(lambda i: pb.where(i < 20, x[i], 1)),
    "sums under a scalar guard": lambda x, k: summed(x),
}
TYPES = ["float32", "float64", "bfloat16", "float16", "int32", "int64"]


def given(kind: str) -> tuple[Any, Any]:
    random = np.random.default_rng(2)
    x = random.integers(-9, 9, N).astype("f8")
    return pb.tensor(x).astype(kind), pb.tensor(random.integers(0, N, N))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name: str, kind: str) -> None:
    values = given(kind)
    got, wanted = (
        pb.jit(CASES[name], options=Options(backend=b))(*values).astype("float64").numpy()
        for b in ("llvm", "reference")
    )
    np.testing.assert_array_equal(got, wanted)


def test_zeros_keep_their_sign() -> None:
    x = pb.tensor(np.ones(N, "f"))
    k = pb.tensor(np.arange(N) * 7 % N)
    f = pb.jit(
        lambda x, k: each(lambda i: pb.where(k[i] < 20, x[i], -0.0)),
        options=Options(backend="llvm"),
    )
    np.testing.assert_array_equal(np.signbit(f(x, k).numpy()), np.arange(N) * 7 % N >= 20)


def test_what_is_no_number_stays_outside() -> None:
    data = np.where(np.arange(N) < 20, 1.0, np.nan).astype("f")
    f = pb.jit(
        lambda x: each(lambda i: pb.where(i < 20, x[i], 0.0)), options=Options(backend="llvm")
    )
    np.testing.assert_array_equal(f(pb.tensor(data)).numpy(), np.arange(N) < 20)


def test_one_test_for_all_lanes_is_no_mask(tmp_path: Path) -> None:
    """Three parts side by side in rows: which one a vector is of, all of its lanes agree on."""
    x, y, z = (pb.tensor(np.ones((12, 64), "float32") * n) for n in (1, 2, 3))

    def joined(x: Any, y: Any, z: Any) -> Any:
        parts = pb.concat([x, y, z], axis=0)
        return pb.compute((36, 64), lambda i, j: pb.where(i % 3 > 0, parts[i, j], 0) * 2)

    options = Options(cache=None, dump=tmp_path, backend="llvm")
    got = pb.jit(joined, options=options)(x, y, z).numpy()
    want = np.repeat([1, 2, 3], 12)[:, None] * 2.0 * (np.arange(36) % 3 > 0)[:, None]
    np.testing.assert_array_equal(got, np.broadcast_to(want, (36, 64)))
    texts = [path.read_text() for path in tmp_path.glob("*-llvm-*")]
    assert texts and not any("masked.load" in text for text in texts)
