"""Long sums in blocks: errors that do not grow with the length, whatever is summed along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.config import Options

Array = np.ndarray[Any, Any]
MANY = 10**7
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def exact(x: Array, axis: int | None = None) -> Array:
    """In 64 bits of mantissa, pairwise."""
    return np.asarray(x.astype(np.longdouble).sum(axis))


def worst(draws: list[Array], total: Callable[[Array], Any]) -> float:
    return max(float(abs(np.longdouble(total(x)) - exact(x))) for x in draws)


@pytest.mark.slow
@pytest.mark.parametrize("draws", [6, 20])
def test_ten_million_numbers(draws: int) -> None:
    """At most twice NumPy's largest error, over random draws and of equal values."""
    total = pb.jit(lambda t: pb.sum(t))
    random = np.random.default_rng(11)
    found, theirs = [0.0, 0.0], [0.0, 0.0]
    for n in range(draws):
        one = random.random(MANY, np.float32) - np.float32(0.5 * (n % 2))
        found[n % 2] = max(found[n % 2], worst([one], lambda x: total(pb.tensor(x)).numpy()))
        theirs[n % 2] = max(theirs[n % 2], worst([one], np.sum))
    assert found[0] <= 2 * theirs[0]
    assert found[1] <= 2 * theirs[1]
    equal = np.full(MANY, 0.1, np.float32)
    error = worst([equal], lambda x: total(pb.tensor(x)).numpy())
    assert error <= 2 * worst([equal], np.sum)
    assert float(pb.mean(pb.tensor(equal)).numpy()) == pytest.approx(0.1, rel=3e-7)


LENGTH = 2**17 + 77
SHAPES = ((LENGTH,), (3, LENGTH), (LENGTH, 5), (LENGTH // 64, 3, 64), (70, 2000, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=lambda k: np.dtype(k).name)
def test_along_any_axis(shape: tuple[int, ...], kind: Any) -> None:
    """Equal terms, whose errors add up where they are added one by one."""
    x = np.full(shape, 0.1, kind)
    eps = float(np.finfo(kind).eps)
    for axis in (None, *range(len(shape))):
        found = pb.sum(pb.tensor(x), axis=axis).numpy().astype(np.longdouble)
        wanted = exact(x, axis)
        count = np.asarray(x.sum(axis)).size and x.size // wanted.size
        bound = (24 if count > 64 * 16 else count) * eps
        assert (np.abs(found / wanted - 1) <= bound).all(), axis


PLACES = [np.inf, -np.inf, np.nan, 3.4e38]


@pytest.mark.parametrize("value", PLACES)
def test_infinities_pass(value: float) -> None:
    for count in (2**15, 2**15 + 5):
        x = np.ones((3, count), np.float32)
        x[0, 7] = x[1, -1] = value
        x[1, 100] = -value if np.isinf(value) else 1.0
        x[0, 200] = value
        for axis, data in ((1, x), (0, np.ascontiguousarray(x.T))):
            found = pb.sum(pb.tensor(data), axis=axis).numpy()
            wanted = data.astype(np.float64).sum(axis).astype(np.float32)
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_same_bits_on_any_number_of_threads() -> None:
    x = pb.tensor(np.random.default_rng(3).standard_normal(3 * LENGTH).astype(np.float32))
    bits = {
        pb.jit(lambda t: pb.sum(t), options=Options(threads=n))(x).numpy().tobytes()
        for n in (1, 2, 3)
    }
    assert len(bits) == 1


def moments(t: Any) -> Any:
    return pb.mean(t), pb.var(t), pb.logsumexp(t), pb.sum(t * t), pb.sum(pb.softmax(t))


def test_what_is_made_of_sums() -> None:
    x = (np.random.default_rng(4).standard_normal(LENGTH) + 3).astype(np.float32)
    wide = x.astype(np.float64)
    found = [float(v.numpy()) for v in pb.jit(moments)(pb.tensor(x))]
    wanted = [wide.mean(), wide.var(), np.log(np.exp(wide).sum()), (wide * wide).sum(), 1.0]
    np.testing.assert_allclose(found, wanted, rtol=4e-7)


def test_of_a_symbolic_length_and_below_a_diagonal() -> None:
    length = pb.dim("length", 0, 2**18)
    total = pb.jit(lambda t: pb.sum(t), shapes=[(length,)])
    for count in (0, 1, 1000, 2**15, LENGTH):
        x = np.full(count, 0.1, np.float32)
        found = float(total(pb.tensor(x)).numpy())
        assert found == pytest.approx(float(exact(x)), rel=2e-6)
    n = 3000
    k = pb.axis(n)
    x = np.full((n, n), 0.1, np.float32)
    t = pb.tensor(x)
    found = pb.compute((n,), lambda r: pb.sum(pb.where(k <= r, t[r, k], 0.0), over=k)).numpy()
    wanted = np.tril(x.astype(np.float64)).sum(1)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_slopes_of_long_sums() -> None:
    x = np.full((LENGTH, 2), 0.1, np.float32)
    w = np.ones(2, np.float32)
    slope = pb.grad(lambda v: pb.sum(pb.tensor(x) * v))(pb.tensor(w)).numpy()
    np.testing.assert_allclose(slope, x.astype(np.float64).sum(0), rtol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("columns", [1, 2, 5, 16, 33])
@pytest.mark.parametrize("rows", [1, 2])
def test_products_of_few_rows_and_columns(rows: int, columns: int, length: int = LENGTH) -> None:
    """Of equal terms, no worse than NumPy's by more than a few units."""
    x, y = np.full((rows, length), 0.1, np.float32), np.full((length, columns), 0.3, np.float32)
    exact_one = np.longdouble(x[0, 0]) * np.longdouble(y[0, 0]) * length
    found = pb.matmul(pb.tensor(x), pb.tensor(y)).numpy().astype(np.longdouble)
    theirs = np.abs(np.matmul(x, y) / exact_one - 1).max()
    assert np.abs(found / exact_one - 1).max() <= max(theirs, 24 * float(np.finfo(np.float32).eps))
    x[0, 5] = np.inf
    assert np.isinf(pb.matmul(pb.tensor(x), pb.tensor(y)).numpy()[0]).all()


def test_products_of_a_quarter_of_a_million_terms() -> None:
    """Without a loss: added plainly, blocks would be off by 1e-5."""
    test_products_of_few_rows_and_columns(3, 5, 2 * LENGTH)


PRODUCTS = {
    "nn": lambda a, b: a @ b,
    "nt": lambda a, b: a @ b.mT,
    "tn": lambda a, b: a.mT @ b,
    "columns known when it runs": lambda a, b: a @ b,
    "terms known when it runs": lambda a, b: a @ b,
    "below a diagonal": lambda a, b: pb.tril(a) @ b,
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_many_terms(kind: str) -> None:
    """Tiles add up blocks: errors of normal numbers are near those of BLAS, equal terms too."""
    m, n, k = 72, 57, 3000
    product, options, shapes = PRODUCTS[kind], Options(threads=1), None
    if kind == "below a diagonal":
        m = k = 2000
    if kind == "columns known when it runs":
        shapes = [(m, k), (k, pb.dim("n", 1, 100))]
    if kind == "terms known when it runs":
        terms = pb.dim("k", 1, 4000)
        shapes = [(m, terms), (terms, n)]
    run = pb.jit(product, options=options, shapes=shapes)
    random = np.random.default_rng(8)
    for draw in (lambda *s: random.standard_normal(s), lambda *s: np.full(s, 0.1)):
        a = draw(*((k, m) if kind == "tn" else (m, k))).astype(np.float32)
        b = draw(*((n, k) if kind == "nt" else (k, n))).astype(np.float32)
        wide = np.asarray(product(pb.tensor(a.astype(float)), pb.tensor(b.astype(float))).numpy())
        error = np.abs(run(pb.tensor(a), pb.tensor(b)).numpy() - wide).max() / np.abs(wide).max()
        assert error <= 1.2e-6
