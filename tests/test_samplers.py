"""Distributions: distances of Kolmogorov and Smirnov, frequencies; gradients; order of draws."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats as st

import pullback as pb
from pullback.conformance.cases import words
from pullback.errors import PullbackError
from pullback.ir.dtype import uint32
from pullback.tensor.library import steady
from pullback.tensor.library.scalars import applied
from pullback.tensor.values.rules import Rule
from test_conformance import BACKENDS, NEEDS

N = 20_000
R = pb.random
# Of 20,000 numbers of the key 5.
BITS = ["03efb49977ec5d42", "51c8eac62468e2dc", "995cc59dc9ea3967", "d8bfecec03cc4c5f",
        "255de5911aedc2e8", "e7c70bd62c05cbbc"]  # fmt: skip
SLOW = [pytest.param(n, marks=[m, pytest.mark.slow]) for n, m in NEEDS.items()]
SMALLEST = 1e-3  # probability of a worse draw, with these seeds


@pytest.fixture(autouse=True)
def _seed() -> None:
    R.manual_seed(0)


SMOOTH: dict[str, tuple[Callable[..., Any], Any]] = {
    "exponential": (lambda: R.exponential(2.0, (N,)), st.expon(scale=0.5)),
    "laplace": (lambda: R.laplace(1.0, 2.0, (N,)), st.laplace(1.0, 2.0)),
    "cauchy": (lambda: R.cauchy(1.0, 2.0, (N,), dtype="float64"), st.cauchy(1.0, 2.0)),
    "gumbel": (lambda: R.gumbel(1.0, 2.0, (N,)), st.gumbel_r(1.0, 2.0)),
    "logistic": (lambda: R.logistic(1.0, 2.0, (N,)), st.logistic(1.0, 2.0)),
    "log_normal": (lambda: R.log_normal(0.5, 0.7, (N,)), st.lognorm(0.7, scale=math.exp(0.5))),
    "weibull": (lambda: R.weibull(2.0, 1.7, (N,)), st.weibull_min(1.7, scale=2.0)),
    "truncated_normal": (
        lambda: R.truncated_normal(1.0, 2.0, 0.0, 2.5, (N,)), st.truncnorm(-0.5, 0.75, 1.0, 2.0)
    ),
    "truncated_normal far out": (
        lambda: R.truncated_normal(0.0, 1.0, 8.0, 9.0, (N,), dtype="float64"), st.truncnorm(8, 9)
    ),
    "gamma": (lambda: R.gamma(2.5, 2.0, (N,)), st.gamma(2.5, scale=0.5)),
    "gamma below 1": (lambda: R.gamma(0.3, 1.0, (N,), dtype="float64"), st.gamma(0.3)),
    "multivariate_normal": (
        lambda: R.multivariate_normal(
            pb.tensor([1.0, -2.0]), pb.tensor([[4.0, 2.0], [2.0, 5.0]]), (N,)
        )[:, 1] + 2.0,
        st.norm(0.0, math.sqrt(5.0)),
    ),
    "chisquare": (lambda: R.chisquare(3.0, (N,)), st.chi2(3.0)),
    "student_t": (lambda: R.student_t(4.0, (N,)), st.t(4.0)),
    "beta": (lambda: R.beta(0.5, 2.0, (N,), dtype="float64"), st.beta(0.5, 2.0)),
    "dirichlet": (lambda: R.dirichlet(pb.tensor([1.0, 2.0, 3.0]), (N,))[:, 1], st.beta(2.0, 4.0)),
}  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", SMOOTH)
def test_distributions(name: str) -> None:
    draw, wanted = SMOOTH[name]
    found = draw().numpy().astype(np.float64)
    assert found.shape == (N,) and np.isfinite(found).all()
    assert st.kstest(found, wanted.cdf).pvalue > SMALLEST


COUNTS: dict[str, tuple[Callable[..., Any], Any]] = {
    "geometric": (lambda: R.geometric(0.3, (N,)), st.geom(0.3)),
    "poisson": (lambda: R.poisson(3.5, (N,)), st.poisson(3.5)),
    "poisson of many": (lambda: R.poisson(60.0, (N,)), st.poisson(60.0)),
    "binomial": (lambda: R.binomial(12, 0.3, (N,)), st.binom(12, 0.3)),
    "binomial of many": (lambda: R.binomial(200, 0.8, (N,)), st.binom(200, 0.8)),
    "categorical": (
        lambda: R.categorical(pb.log(pb.tensor([0.2, 0.5, 0.3])), (N,)),
        st.rv_discrete(values=([0, 1, 2], [0.2, 0.5, 0.3])),
    ),
    "multinomial": (
        lambda: R.multinomial(pb.tensor([2.0, 0.0, 5.0, 3.0]), N, True),
        st.rv_discrete(values=([0, 2, 3], [0.2, 0.5, 0.3])),
    ),
    "choice": (
        lambda: R.choice(pb.tensor([4, 7, 9]), (N,), p=pb.tensor([0.2, 0.5, 0.3])),
        st.rv_discrete(values=([4, 7, 9], [0.2, 0.5, 0.3])),
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [n for n in COUNTS if n != "binomial of many"])
def test_frequencies(name: str) -> None:
    _frequencies(*COUNTS[name])


@pytest.mark.slow
def test_frequencies_of_many() -> None:
    _frequencies(*COUNTS["binomial of many"])


def _frequencies(draw: Callable[..., Any], wanted: Any) -> None:
    found = draw().numpy()
    assert found.dtype == np.int64 and found.shape == (N,)
    values = np.arange(found.min(), found.max() + 1)
    expected = wanted.pmf(values) * N
    seen = np.bincount(found - found.min(), minlength=values.size)
    assert seen[expected == 0].sum() == 0
    often = expected > 10
    chi = ((seen - expected) ** 2 / np.where(often, expected, 1))[often].sum()
    assert st.chi2.sf(chi, often.sum() - 1) > SMALLEST


@pytest.mark.slow
def test_without_replacement_each_place_once() -> None:
    weights = pb.tensor(np.tile([1.0, 2.0, 7.0], (4000, 1)))
    found = R.multinomial(weights, 2).numpy()
    assert (found[:, 0] != found[:, 1]).all()
    first = np.bincount(found[:, 0], minlength=3) / 4000
    np.testing.assert_allclose(first, [0.1, 0.2, 0.7], atol=0.03)
    some = R.choice(10, (10,), replace=False).numpy()
    np.testing.assert_array_equal(np.sort(some), np.arange(10))


@pytest.mark.slow
def test_rows_of_parameters() -> None:
    rates = np.array([[0.0], [2.0], [40.0]])
    found = R.poisson(pb.tensor(rates), (3, 4000)).numpy()
    np.testing.assert_allclose(found.mean(1), rates[:, 0], rtol=0.03)
    found = R.binomial(pb.tensor([0, 5, 300]), pb.tensor([[0.0], [1.0]])).numpy()
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 5, 300]])


@pytest.mark.slow
def test_a_key_decides_alone_and_draws_follow() -> None:
    key = R.key(7)
    for draw in (R.gamma, R.exponential):
        one, two = (draw(2.0, shape=(5,), key=key).numpy() for _ in range(2))
        np.testing.assert_array_equal(one, two)
        a, b = (draw(2.0, shape=(5,)).numpy() for _ in range(2))
        assert (a != b).any()


@pytest.mark.slow
def test_inside_programs_the_same_numbers() -> None:
    key = R.key(3)

    def drawn(key: pb.Tensor) -> Any:
        return R.gamma(0.7, shape=(6,), key=key), R.beta(0.5, 2.0, (6,), key=key)

    for own, compiled in zip(drawn(key), pb.jit(drawn)(key), strict=True):
        np.testing.assert_array_equal(own.numpy(), compiled.numpy())


@pytest.mark.slow
def test_gradients_reach_parameters() -> None:
    key = R.key(1)
    x = pb.tensor([0.7, 1.9], dtype="float64")
    for draw in (
        lambda p: R.exponential(p, dtype="float64", key=key),
        lambda p: R.laplace(p, p, dtype="float64", key=key),
        lambda p: R.weibull(2.0, p, dtype="float64", key=key),
        lambda p: R.truncated_normal(p, 1.0, 0.0, 2.0, dtype="float64", key=key),
        lambda p: R.gamma(2.0, p, dtype="float64", key=key),
    ):
        slope = pb.grad(lambda p, f=draw: pb.sum(f(p)))(x).numpy()
        step = 1e-6
        up, down = (draw(x + s).numpy() for s in (step, -step))
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5)


@pytest.mark.slow
def test_normal_vectors_have_their_covariance_and_its_gradient() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    cov, mean = root @ root.T + np.eye(3), rng.normal(size=(2, 3))
    drawn = R.multivariate_normal(mean[0], cov, (40_000,), dtype="float64").numpy()
    np.testing.assert_allclose(drawn.mean(0), mean[0], atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), cov, rtol=0.05, atol=0.06)
    assert R.multivariate_normal(mean, cov, dtype="float64").shape == (2, 3)
    key = R.key(3)

    def vectors(m: Any, c: Any) -> Any:
        return R.multivariate_normal(m, c, (4, 2), dtype="float64", key=key)

    assert pb.check_grads(vectors, [mean, cov], layouts=("contiguous",))
    signs = R.rademacher((1000, 3), dtype="int8").numpy()
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(signs.mean()) < 0.06


def test_the_shape_of_a_gamma_number_has_an_implicit_gradient() -> None:
    """As the quantile at the same probability moves; of small, usual and large shapes."""
    shapes = np.repeat([0.02, 0.3, 1.0, 2.5, 30.0, 990.0, 1010.0, 1e6], 25)
    a = pb.tensor(shapes)
    drawn, slope = pb.value_and_grad(lambda t: pb.sum(R.gamma(t, dtype="float64", key=R.key(5))))(a)
    x = R.gamma(a, dtype="float64", key=R.key(5)).numpy()
    step = shapes * 1e-4
    p = sp.gammainc(shapes, x)
    inside = (p > 1e-3) & (p < 1 - 1e-3) & (x > 1e-20)
    up, down = sp.gammaincinv(shapes + step, p), sp.gammaincinv(shapes - step, p)
    np.testing.assert_allclose(slope.numpy()[inside], ((up - down) / (2 * step))[inside], rtol=2e-5)
    assert np.isfinite(slope.numpy()).all() and float(drawn.numpy()) > 0


@pytest.mark.slow
def test_what_is_made_of_gamma_numbers_has_gradients() -> None:
    """The mean slope is that of the mean: of beta ``b / (a + b)^2``."""
    a, b = pb.tensor(2.0, "float64"), pb.tensor(3.0, "float64")
    by_a, by_b = pb.grad(
        lambda u, v: pb.mean(R.beta(u, v, (N,), dtype="float64", key=R.key(2))), argnums=(0, 1)
    )(a, b)
    np.testing.assert_allclose(float(by_a.numpy()), 3 / 25, rtol=0.02)
    np.testing.assert_allclose(float(by_b.numpy()), -2 / 25, rtol=0.02)
    c = pb.tensor([1.0, 2.0, 5.0], "float64")

    def first(t: Any) -> Any:
        return pb.mean(R.dirichlet(t, (N,), dtype="float64", key=R.key(3))[:, 0])

    np.testing.assert_allclose(
        pb.jit(pb.grad(first))(c).numpy(), [7 / 64, -1 / 64, -1 / 64], rtol=0.05
    )
    with pytest.raises(PullbackError) as caught:
        pb.grad(pb.grad(lambda t: R.gamma(t, dtype="float64", key=R.key(1))))(a).numpy()
    assert caught.value.code == "E355"


@pytest.mark.slow
def test_a_permutation_along_an_axis() -> None:
    x = pb.tensor(np.arange(24).reshape(4, 6))
    found = R.permutation(x, axis=-1, key=R.key(8)).numpy()
    order = R.permutation(6, key=R.key(8)).numpy()
    np.testing.assert_array_equal(found, x.numpy()[:, order])
    with pytest.raises(PullbackError):
        R.permutation(x, axis=2)


def test_refused_by_code() -> None:
    for code, call in (
        ("E176", lambda: R.exponential(-1.0)),
        ("E176", lambda: R.gamma(0.0)),
        ("E176", lambda: R.geometric(1.5)),
        ("E176", lambda: R.poisson(-2.0)),
        ("E176", lambda: R.binomial(2.5, 0.5)),
        ("E176", lambda: R.truncated_normal(0.0, 1.0, 2.0, 1.0)),
        ("E123", lambda: R.multinomial(pb.ones(3), 4)),
        ("E123", lambda: R.choice(3, (4,), replace=False)),
        ("E175", lambda: R.laplace(pb.ones(3), 1.0, (2,))),
        ("E119", lambda: R.gumbel(shape=(-1,))),
        ("E175", lambda: R.dirichlet(2.0)),
        ("E175", lambda: R.gumbel(pb.ones(3), pb.ones(2))),
        ("E176", lambda: R.choice(5, (2,), p=pb.ones(4))),
        ("E175", lambda: R.choice(pb.ones(5), (2,), p=pb.ones(4))),
        ("E176", lambda: R.binomial(float("inf"), 0.5)),
        ("E176", lambda: R.beta([1.0, -1.0], 2.0)),
    ):
        with pytest.raises(PullbackError) as caught:
            call()
        assert caught.value.code == code


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["llvm", "reference", *SLOW])
def test_numbers_have_the_same_bits_on_every_backend(backend: str) -> None:
    """One program of all: normal numbers of each type, gamma and beta ones; and they are those."""
    key = R.key(5)

    def drawn() -> list[pb.Tensor]:
        normal = [R.normal((N,), key=key, dtype=d) for d in ("float32", "float64", "bfloat16")]
        gamma = [R.gamma(a, 1.0, (N,), key=key, dtype="float64") for a in (0.2, 2.5)]
        return [*normal, *gamma, R.beta(0.5, 2.0, (N,), key=key, dtype="float64")]

    options = pb.Options(backend=backend, threads=2, cache=None)
    found = [t.numpy() for t in pb.jit(drawn, options=options)()]
    digests = [hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in found]
    assert digests == BITS
    laws = [st.norm(), st.norm(), None, st.gamma(0.2), st.gamma(2.5), st.beta(0.5, 2.0)]
    for numbers, law in zip(found, laws, strict=True):
        if law is not None:
            assert st.kstest(numbers.astype(np.float64), law.cdf).pvalue > SMALLEST


PUBLISHED = [  # by Random123: the first words of all three vectors, then the second ones
    [0x6B200159, 0x1CB996FC, 0xC4923A9C],
    [0x99BA4EFE, 0xBB002BE7, 0x483DF7A0],
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_threefry_gives_the_published_words_on_every_backend(backend: str) -> None:
    sample = words(uint32)
    options = pb.Options(backend=backend, cache=None)
    found = pb.jit(sample.function, options=options)(*sample.calls[0])
    assert [t.tolist() for t in found] == PUBLISHED


FUNCTIONS = {
    "log": (lambda x: steady.log(x, -53, 10), (1e-9, 1000.0), 3.0),
    "exp": (steady.exp, (-80.0, 80.0), 1.5),
    "sin": (steady.sine, (0.0, 1.0), 0.0),
    "cos": (steady.cosine, (0.0, 1.0), 0.0),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_made_of_arithmetic(name: str, kind: str) -> None:
    """Within so many ulp of mpmath's, or (0) within an ulp and a half of 1."""
    function, (low, high), ulps = FUNCTIONS[name]
    x = np.random.default_rng(0).uniform(low, high, 2000).astype(kind)
    x = np.append(x, np.array([1.0, 0.25], kind)) if name != "exp" else np.append(x, 0 * x[:1])
    own = pb.jit(lambda t: applied(Rule(name, function), t))(x).numpy()
    with mpmath.workdps(40):
        real = getattr(mpmath, name)
        turn = 2 * mpmath.pi if ulps == 0.0 else 1
        wanted = [real(turn * mpmath.mpf(float(v))) for v in x]
        unit = [np.spacing(np.dtype(kind).type(abs(float(w)) if ulps else 1.0)) for w in wanted]
        errors = [
            float(abs(mpmath.mpf(float(o)) - w) / mpmath.mpf(float(u)))
            for o, w, u in zip(own, wanted, unit, strict=True)
        ]
    assert max(errors) <= (ulps or 1.5)
