"""Tensors that are defined by themselves, against loops over cells, SciPy and each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import logsumexp

import pullback as pb
from pullback.errors import PullbackError
from pullback.tensor.forms.control import MODES
from pullback.tensor.run.apart import _program
from random_recurrences import check_recurrence

RNG = np.random.default_rng(7)
FAR = 1e8  # of a path that does not exist
Array = np.ndarray[Any, Any]


# --- what is computed -----------------------------------------------------------------------------


def summed_area(x: Any) -> Any:
    return pb.recurrence(
        x.shape,
        lambda s, i, j: (
            x[i, j]
            + pb.where(i > 0, s[i - 1, j], 0.0)
            + pb.where(j > 0, s[i, j - 1], 0.0)
            - pb.where((i > 0) & (j > 0), s[i - 1, j - 1], 0.0)
        ),
    )


def soft_dtw(d: Any, gamma: float = 0.5) -> Any:
    """Source: Cuturi and Blondel, Soft-DTW: a differentiable loss for time-series, 2017."""

    def body(r: Any, b: Any, i: Any, j: Any) -> Any:
        both = pb.where((i > 0) & (j > 0), r[b, i - 1, j - 1], pb.where(i + j > 0, FAR, 0.0))
        up = pb.where(i > 0, r[b, i - 1, j], FAR)
        left = pb.where(j > 0, r[b, i, j - 1], FAR)
        least = pb.minimum(both, pb.minimum(up, left))
        terms = [pb.exp((least - one) / gamma) for one in (both, up, left)]
        return d[b, i, j] + least - gamma * pb.log(terms[0] + terms[1] + terms[2])

    return pb.recurrence(d.shape, body)


def soft_dtw_by_cells(d: Array, gamma: float = 0.5) -> Array:
    batch, n, m = d.shape
    r = np.full((batch, n + 1, m + 1), FAR)
    r[:, 0, 0] = 0
    for i, j in itertools.product(range(n), range(m)):
        before = np.stack([r[:, i, j], r[:, i, j + 1], r[:, i + 1, j]], -1)
        r[:, i + 1, j + 1] = d[:, i, j] - gamma * logsumexp(-before / gamma, axis=-1)
    return r[:, 1:, 1:]


def edit_distance(a: Any, b: Any) -> Any:
    n, m = a.shape[0], b.shape[0]

    def body(f: Any, i: Any, j: Any) -> Any:
        differs = pb.where((i > 0) & (j > 0), pb.where(a[i - 1] == b[j - 1], 0, 1), 0)
        inner = (i > 0) & (j > 0)
        kept = pb.where(inner, f[i - 1, j - 1] + differs, i + j)
        gone = pb.where(i > 0, f[i - 1, j] + 1, i + j)
        new = pb.where(j > 0, f[i, j - 1] + 1, i + j)
        return pb.where(inner, pb.minimum(kept, pb.minimum(gone, new)), i + j)

    return pb.recurrence((n + 1, m + 1), body)


def edit_distance_by_cells(a: Array, b: Array) -> Array:
    f = np.add.outer(np.arange(len(a) + 1), np.arange(len(b) + 1))
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        swap = f[i - 1, j - 1] + (a[i - 1] != b[j - 1])
        f[i, j] = min(swap, f[i - 1, j] + 1, f[i, j - 1] + 1)
    return f


def affine_gaps(s: Any, opening: float = 1.5, longer: float = 0.4) -> Any:
    """Smith-Waterman with affine gaps: three tensors. Source: Gotoh, 1982."""

    def body(h: Any, e: Any, f: Any, i: Any, j: Any) -> Any:
        left = pb.maximum(
            pb.where(j > 0, h[i, j - 1] - opening, -FAR),
            pb.where(j > 0, e[i, j - 1] - longer, -FAR),
        )
        above = pb.maximum(
            pb.where(i > 0, h[i - 1, j] - opening, -FAR),
            pb.where(i > 0, f[i - 1, j] - longer, -FAR),
        )
        both = pb.where((i > 0) & (j > 0), h[i - 1, j - 1], 0.0) + s[i, j]
        found = pb.maximum(pb.maximum(both, 0.0), pb.maximum(e[i, j], f[i, j]))
        return found, left, above

    return pb.recurrence(s.shape, body)[0]


def affine_gaps_by_cells(s: Array, opening: float = 1.5, longer: float = 0.4) -> Array:
    n, m = s.shape
    h, e, f = np.zeros((n + 1, m + 1)), np.full((n + 1, m + 1), -FAR), np.full((n + 1, m + 1), -FAR)
    for i, j in itertools.product(range(1, n + 1), range(1, m + 1)):
        e[i, j] = max(h[i, j - 1] - opening if j > 1 else -FAR, e[i, j - 1] - longer)
        f[i, j] = max(h[i - 1, j] - opening if i > 1 else -FAR, f[i - 1, j] - longer)
        h[i, j] = max(h[i - 1, j - 1] + s[i - 1, j - 1], 0.0, e[i, j], f[i, j])
    return h[1:, 1:]


def states_and_places(s: Any) -> Any:
    """A small axis of states before the two that are ordered: smooth, all from all."""
    k = pb.axis(s.shape[0], "k")

    def body(f: Any, q: Any, i: Any, j: Any) -> Any:
        above = pb.where(i > 0, pb.sum(pb.tanh(f[k, i - 1, j]), over=k), 0.0)
        left = pb.where(j > 0, pb.max(f[k, i, j - 1], over=k), 0.0)
        return s[q, i, j] + 0.3 * above + 0.5 * left

    return pb.recurrence(s.shape, body)


def states_and_places_by_cells(s: Array) -> Array:
    f = np.zeros_like(s)
    for i, j in itertools.product(range(s.shape[1]), range(s.shape[2])):
        above = np.tanh(f[:, i - 1, j]).sum() if i else 0.0
        f[:, i, j] = s[:, i, j] + 0.3 * above + 0.5 * (f[:, i, j - 1].max() if j else 0.0)
    return f


def crf(x: Any, moves: Any) -> Any:
    """The log-partition of a linear chain, from the scores of all prefixes."""
    k = pb.axis(moves.shape[0], "k")

    def body(f: Any, t: Any, s: Any) -> Any:
        top = pb.where(t > 0, pb.max(f[t - 1, k] + moves[k, s], over=k), 0.0)
        terms = pb.where(t > 0, pb.sum(pb.exp(f[t - 1, k] + moves[k, s] - top), over=k), 1.0)
        return x[t, s] + top + pb.log(terms)

    return pb.logsumexp(pb.recurrence(x.shape, body)[-1], axis=0)


def crf_by_paths(x: Array, moves: Array) -> tuple[float, Array]:
    """The log-partition and the marginals, over every path."""
    steps, states = x.shape
    scores, paths = [], list(itertools.product(range(states), repeat=steps))
    for path in paths:
        along = sum(moves[a, b] for a, b in itertools.pairwise(path))
        scores.append(along + sum(x[t, s] for t, s in enumerate(path)))
    whole = logsumexp(scores)
    marginals = np.zeros_like(x)
    for path, score in zip(paths, scores, strict=True):
        marginals[np.arange(steps), list(path)] += np.exp(score - whole)
    return float(whole), marginals


def filtered(x: Any, a: Any, b: Any) -> Any:
    """``y[n] = sum[k] b[k] x[n-k] - sum[k] a[k+1] y[n-1-k]``: how far back, a reduction says."""
    p, q = pb.axis(a.shape[0] - 1, "p"), pb.axis(b.shape[0], "q")

    def body(y: Any, c: Any, n: Any) -> Any:
        ahead = pb.sum(pb.where(n >= q, b[q] * x[c, n - q], 0.0), over=q)
        back = pb.sum(pb.where(n >= p + 1, a[p + 1] * y[c, n - 1 - p], 0.0), over=p)
        return ahead - back

    return pb.recurrence(x.shape, body)


def forward_algorithm(start: Any, moves: Any, seen: Any, observed: Any) -> Any:
    """Alphas of a hidden Markov model; what is seen is data."""
    k = pb.axis(start.shape[0], "k")

    def body(f: Any, t: Any, s: Any) -> Any:
        reached = pb.where(t > 0, pb.sum(f[t - 1, k] * moves[k, s], over=k), start[s])
        return reached * seen[s, observed[t]]

    return pb.recurrence((observed.shape[0], start.shape[0]), body)


def forward_by_steps(start: Array, moves: Array, seen: Array, observed: Array) -> Array:
    rows = [start * seen[:, observed[0]]]
    for symbol in observed[1:]:
        rows.append((rows[-1] @ moves) * seen[:, symbol])
    return np.array(rows)


def three_axes(x: Any) -> Any:
    return pb.recurrence(
        x.shape,
        lambda f, i, j, k: (
            x[i, j, k]
            + 0.5 * pb.where(i > 0, pb.sin(f[i - 1, j, k]), 0.0)
            + 0.3 * pb.where(j > 0, f[i, j - 1, k], 0.0)
            + 0.2 * pb.where(k > 0, f[i, j, k - 1] * x[i, j, k - 1], 0.0)
        ),
    )


def three_axes_by_cells(x: Array) -> Array:
    f = np.zeros_like(x)
    for i, j, k in np.ndindex(*x.shape):
        f[i, j, k] = x[i, j, k] + 0.5 * (np.sin(f[i - 1, j, k]) if i else 0)
        f[i, j, k] += 0.3 * (f[i, j - 1, k] if j else 0)
        f[i, j, k] += 0.2 * (f[i, j, k - 1] * x[i, j, k - 1] if k else 0)
    return f


def downwards(x: Any) -> Any:
    """Ordered from the last rows to the first and from the first columns to the last."""
    n = x.shape[0]
    return pb.recurrence(
        x.shape,
        lambda f, i, j: (
            x[i, j]
            + 0.5 * pb.where((i + 1 < n) & (j > 0), f[i + 1, j - 1], 0.0)
            + 0.4 * pb.where(i + 2 < n, f[i + 2, j], 1.0)
            + 0.1 * pb.where(j > 0, f[i, j - 1] * f[i, j - 1], 0.0)
        ),
    )


def downwards_by_cells(x: Array) -> Array:
    n, m = x.shape
    f = np.zeros_like(x)
    for i, j in itertools.product(reversed(range(n)), range(m)):
        f[i, j] = x[i, j] + 0.5 * (f[i + 1, j - 1] if i < n - 1 and j > 0 else 0)
        f[i, j] += 0.4 * (f[i + 2, j] if i < n - 2 else 1)
        f[i, j] += 0.1 * (f[i, j - 1] ** 2 if j else 0)
    return f


def skewed(x: Any) -> Any:
    """A read ahead along one axis: times 3 i + j."""
    m = x.shape[1]
    return pb.recurrence(
        x.shape,
        lambda f, i, j: (
            x[i, j]
            + 0.5 * pb.where((i > 0) & (j < m - 2), f[i - 1, j + 2], 0.0)
            + 0.4 * pb.where(j > 0, f[i, j - 1], 0.0)
        ),
    )


def skewed_by_cells(x: Array) -> Array:
    f = np.zeros_like(x)
    for i, j in np.ndindex(*x.shape):
        f[i, j] = x[i, j] + 0.5 * (f[i - 1, j + 2] if i and j < x.shape[1] - 2 else 0)
        f[i, j] += 0.4 * (f[i, j - 1] if j else 0)
    return f


def chosen_by_data(x: Any, places: Any) -> Any:
    """The column of the row before is data."""
    return pb.recurrence(
        x.shape,
        lambda f, i, j: x[i, j] + pb.where(i > 0, 0.5 * pb.tanh(f[i - 1, places[i, j]]), 0.0),
    )


def chosen_by_data_by_cells(x: Array, places: Array) -> Array:
    f = x.copy()
    for i in range(1, len(x)):
        f[i] += 0.5 * np.tanh(f[i - 1, places[i]])
    return f


A, B = np.array([1.0, -0.6, 0.2, 0.05]), np.array([0.4, 0.3, -0.2])
WORDS = RNG.integers(0, 3, 9), RNG.integers(0, 3, 7)
HMM = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3), RNG.dirichlet(np.ones(4), 3)
CASES: dict[str, tuple[Callable[..., Any], tuple[Array, ...], Callable[..., Any]]] = {
    "summed area": (
        summed_area, (RNG.normal(size=(5, 7)),), lambda x: x.cumsum(0).cumsum(1)),
    "soft-DTW": (soft_dtw, (RNG.random(size=(2, 5, 6)),), soft_dtw_by_cells),
    "affine gaps": (affine_gaps, (RNG.normal(size=(6, 5)) + 0.3,), affine_gaps_by_cells),
    "states": (states_and_places, (RNG.normal(size=(3, 4, 3)),), states_and_places_by_cells),
    "linear chain": (
        crf, (RNG.normal(size=(5, 3)), RNG.normal(size=(3, 3))),
        lambda x, m: crf_by_paths(x, m)[0]),
    "filter": (
        filtered, (RNG.normal(size=(2, 11)), A, B), lambda x, a, b: lfilter(b, a, x, axis=1)),
    "forward algorithm": (
        forward_algorithm, (*HMM, RNG.integers(0, 4, 6)), forward_by_steps),
    "three axes": (three_axes, (RNG.normal(size=(3, 4, 3)),), three_axes_by_cells),
    "downwards": (downwards, (RNG.normal(size=(5, 4)),), downwards_by_cells),
    "skewed": (skewed, (RNG.normal(size=(3, 5)),), skewed_by_cells),
    "by data": (
        chosen_by_data, (RNG.normal(size=(4, 3)), RNG.integers(0, 3, (4, 3))),
        chosen_by_data_by_cells),
}  # fmt: skip


# --- values and derivatives -----------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_cells_are_what_a_loop_makes_them(name: str) -> None:
    function, given, by_cells = CASES[name]
    wanted = by_cells(*given)
    np.testing.assert_allclose(pb.jit(function)(*given), wanted, rtol=1e-12, atol=1e-12)
    eager = function(*map(pb.tensor, given))
    np.testing.assert_allclose(eager.numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [n for n in CASES if n not in ("soft-DTW", "by data")])
def test_derivatives_of_definitions_and_of_the_loop(name: str) -> None:
    """Differences, the dot product and the second order of the steps; the loop's against them."""
    function, given, _ = CASES[name]
    small = [x[:2, :4, :4] if x.ndim == 3 else x for x in given]
    report = pb.check_grads(function, small, layouts=("contiguous",), native=False)
    assert report, str(report)
    numbers = [n for n, x in enumerate(given) if x.dtype == np.float64]
    shape = function(*map(pb.tensor, given)).shape
    head = pb.tensor(np.random.default_rng(1).normal(size=shape))

    def weighted(*given: Any) -> Any:
        return pb.sum(function(*given) * head)

    wanted = pb.grad(weighted, argnums=numbers)(*map(pb.tensor, given))
    found = pb.jit(pb.grad(weighted, argnums=numbers))(*map(pb.tensor, given))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_soft_dtw_with_gradient_and_second_order() -> None:
    d = RNG.random(size=(2, 3, 4))
    report = pb.check_grads(soft_dtw, [d])
    assert report, str(report)

    def loss(d: Any) -> Any:
        return pb.sum(soft_dtw(d)[:, -1, -1])

    derived = pb.jit(pb.grad(loss))
    gradient = derived(d)
    v, step = RNG.normal(size=d.shape), 1e-6
    np.testing.assert_allclose(gradient[:, -1, -1], 1.0)
    ends = [soft_dtw_by_cells(d + s * v)[:, -1, -1].sum() for s in (step, -step)]
    np.testing.assert_allclose((gradient * v).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-7)
    curved = pb.jit(lambda d, v: pb.hvp(loss, d, v))(pb.tensor(d), pb.tensor(v)).numpy()
    ends = [derived(d + s * v) for s in (step, -step)]
    np.testing.assert_allclose(curved, (ends[0] - ends[1]) / (2 * step), atol=1e-7)
    out, along = pb.jit(lambda d, v: pb.jvp(loss, (d,), (v,)))(pb.tensor(d), pb.tensor(v))
    np.testing.assert_allclose(along.numpy(), (gradient * v).sum(), rtol=1e-12)
    np.testing.assert_allclose(out.numpy(), loss(pb.tensor(d)).numpy())


def test_marginals_of_a_linear_chain_are_its_gradient() -> None:
    x, moves = CASES["linear chain"][1]
    np.testing.assert_allclose(
        pb.jit(pb.grad(crf))(x, moves), crf_by_paths(x, moves)[1], rtol=1e-12
    )


def test_edit_distance_is_of_integers() -> None:
    a, b = WORDS
    found = edit_distance(pb.tensor(a), pb.tensor(b))
    assert found.dtype == pb.int64
    np.testing.assert_array_equal(found.numpy(), edit_distance_by_cells(a, b))
    np.testing.assert_array_equal(pb.jit(edit_distance)(a, b), edit_distance_by_cells(a, b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["llvm", "reference"])
def test_symbolic_extents(backend: str) -> None:
    n, m = pb.dim("n", 0, 9), pb.dim("m", 1, 8)
    options = pb.Options(backend=backend)
    table = pb.jit(downwards, shapes=[(n, m)], options=options)
    derived = pb.jit(
        pb.grad(lambda x: pb.sum(pb.sin(downwards(x)))), shapes=[(n, m)], options=options
    )
    for shape in ((5, 4), (9, 8), (1, 1), (2, 7), (0, 3)):
        x = np.random.default_rng(3).normal(size=shape) * 0.5
        np.testing.assert_allclose(table(x), downwards_by_cells(x), rtol=1e-12)
        fixed = pb.jit(pb.grad(lambda x: pb.sum(pb.sin(downwards(x)))))
        np.testing.assert_allclose(derived(x), fixed(x), rtol=1e-12, atol=1e-14)
    assert table.traces == derived.traces == 1


def test_many_at_once() -> None:
    x = RNG.normal(size=(3, 4, 3))
    wanted = np.stack([skewed_by_cells(one) for one in x])
    np.testing.assert_allclose(pb.jit(pb.vmap(skewed))(pb.tensor(x)).numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(pb.vmap(skewed)(pb.tensor(x)).numpy(), wanted, rtol=1e-12)
    rows = pb.jit(pb.vmap(pb.grad(lambda x: pb.sum(skewed(x) ** 2))))(pb.tensor(x)).numpy()
    one = pb.jit(pb.grad(lambda x: pb.sum(skewed(x) ** 2)))
    np.testing.assert_allclose(rows, np.stack([one(r) for r in x]), rtol=1e-12)
    jacobian = pb.jit(lambda x: pb.jacobian(skewed(x), x))(pb.tensor(x[0])).numpy()
    np.testing.assert_allclose(
        np.einsum("abcd,cd->ab", jacobian, x[0]), wanted[0], rtol=1e-12
    )  # linear


def test_a_head_that_is_the_same_everywhere_is_not_written_in_every_step() -> None:

    def scanned(x: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            c = pb.sin(c + v)
            return c, c

        return pb.scan(body, pb.zeros((), dtype="float64"), x)[1]

    def recurrent(x: Any) -> Any:
        return pb.recurrence(x.shape, lambda f, i: pb.sin(x[i] + pb.where(i > 0, f[i - 1], 0.0)))

    x = np.ones(200)
    for function in (scanned, recurrent):
        summed = pb.jit(pb.grad(lambda x, f=function: pb.sum(f(x))))
        weighted = pb.jit(pb.grad(lambda x, w, f=function: pb.sum(f(x) * w)))
        np.testing.assert_allclose(summed(x), weighted(x, x), rtol=1e-14)
        rows = [
            sum("drows" in kernel.name for kernel in made.program.kernels)
            for made in (summed, weighted)
        ]
        assert rows[0] <= rows[1]


@pytest.mark.slow
def test_outside_of_jit_it_is_a_program_of_its_own() -> None:
    d, v = RNG.random(size=(2, 9, 8)), RNG.normal(size=(2, 9, 8))

    def loss(d: Any) -> Any:
        return pb.sum(soft_dtw(d, 0.3)[:, -1, -1] ** 2)

    x, along = pb.tensor(d), pb.tensor(v)
    jitted = pb.jit(pb.grad(loss))
    np.testing.assert_allclose(pb.grad(loss)(x).numpy(), jitted(d), rtol=1e-12)
    curved = pb.jit(lambda x, v: pb.hvp(loss, x, v))(x, along).numpy()
    np.testing.assert_allclose(pb.hvp(loss, x, along).numpy(), curved, rtol=1e-10, atol=1e-12)
    moved = pb.jvp(loss, (x,), (along,))[1]
    np.testing.assert_allclose(moved.item(), (jitted(d) * v).sum(), rtol=1e-12)
    y = loss(x)
    np.testing.assert_allclose(pb.grad(y, x).numpy(), jitted(d), rtol=1e-12)
    doubled = pb.grad(lambda x: pb.sum(pb.grad(loss)(x) * along))(x)
    np.testing.assert_allclose(doubled.numpy(), curved, rtol=1e-10, atol=1e-12)

    made = _program.cache_info().misses
    other = RNG.random(size=d.shape)
    np.testing.assert_allclose(pb.grad(loss)(pb.tensor(other)).numpy(), jitted(other), rtol=1e-12)
    assert _program.cache_info().misses == made, "equal recurrences share a program"
    found = soft_dtw(x, 0.7).numpy()
    np.testing.assert_allclose(found, soft_dtw_by_cells(d, 0.7), rtol=1e-12)
    assert _program.cache_info().misses == made + 1, "another number is another recurrence"


def test_one_tensor_in_two_places_has_one_gradient() -> None:
    x = pb.tensor(RNG.normal(size=(5, 3)))

    def both(x: Any, y: Any) -> Any:
        return pb.recurrence(
            x.shape,
            lambda f, i, j: pb.where(i > 0, f[i - 1, j] * y[i, j], 1.0) + pb.sin(x[i, j]),
        )

    apart = pb.grad(lambda a, b: pb.sum(both(a, b) ** 2), argnums=(0, 1))(x, x)
    whole = pb.grad(lambda x: pb.sum(both(x, x) ** 2))(x)
    np.testing.assert_allclose(whole.numpy(), apart[0].numpy() + apart[1].numpy(), rtol=1e-12)
    head = pb.grad(lambda x: pb.sum(pb.vjp(lambda a: both(a, a), x)[1](x)[0]))(x)
    wanted = pb.jit(pb.grad(lambda x: pb.sum(pb.vjp(lambda a: both(a, a), x)[1](x)[0])))(x)
    np.testing.assert_allclose(head.numpy(), wanted.numpy(), rtol=1e-12)


def test_inside_loops_and_branches() -> None:
    x = RNG.normal(size=(4, 3)) * 0.3

    def twice(x: Any) -> Any:
        return pb.loop(range(2), lambda n, y: pb.sin(skewed(y)), x)

    wanted = np.sin(skewed_by_cells(np.sin(skewed_by_cells(x))))
    np.testing.assert_allclose(pb.jit(twice)(x), wanted, rtol=1e-12)
    by_two = pb.jit(pb.grad(lambda x: pb.sum(pb.sin(skewed(pb.sin(skewed(x)))))))(x)
    np.testing.assert_allclose(pb.jit(pb.grad(lambda x: pb.sum(twice(x))))(x), by_two, rtol=1e-10)

    def either(x: Any) -> Any:
        return pb.cond(pb.sum(x) > 1e9, lambda x: x, skewed, x)

    np.testing.assert_allclose(pb.jit(either)(x), skewed_by_cells(x), rtol=1e-12)
    one = pb.jit(pb.grad(lambda x: pb.sum(pb.sin(skewed(x)))))(x)
    found = pb.jit(pb.grad(lambda x: pb.sum(pb.sin(either(x)))))(x)
    np.testing.assert_allclose(found, one, rtol=1e-12)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_cells_of_half_types_are_rounded_each(kind: str) -> None:
    """A sum of ones stands still where one more no longer counts."""
    ones = pb.ones((600,), dtype=kind)

    def body(f: Any, i: Any) -> Any:
        return pb.where(i > 0, f[i - 1] + ones[i], ones[i])

    most = {"float16": 600, "bfloat16": 256}[kind]
    for found in (pb.jit(lambda: pb.recurrence((600,), body))(),):
        assert str(found.dtype) == kind
        assert float(found[-1].astype("float32").item()) == most


def test_what_the_backward_keeps_does_not_matter() -> None:
    x = RNG.normal(size=(4, 5))

    def loss(x: Any, mode: str) -> Any:
        def body(f: Any, i: Any, j: Any) -> Any:
            before = pb.where((i > 0) & (j > 0), pb.exp(-f[i - 1, j - 1]), 0.0)
            return x[i, j] + before

        return pb.sum(pb.recurrence(x.shape, body, checkpoint=mode))

    found = [pb.jit(pb.grad(lambda x, m=m: loss(x, m)))(x) for m in ("tape", "recompute")]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-14)


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("float64", m) for m in MODES),
        ("float32", "tape"),
        ("float16", "sqrt"),
        ("bfloat16", "tape"),
    ],
)
@pytest.mark.parametrize("shape", [(11,), (0,), (5, 7), (1, 4)])
def test_gradients_of_every_type_by_every_way_to_keep(
    shape: tuple[int, ...], kind: str, mode: str
) -> None:
    """Against float64 at the same inputs: a half is rounded where its cell ends."""
    drawn = pb.tensor(np.random.default_rng(sum(shape)).normal(size=shape)).astype(kind)

    def loss(x: Any, mode: str = mode) -> Any:
        def line(f: Any, i: Any) -> Any:
            return pb.where(i < 2, x[i], 0.6 * pb.sin(f[i - 1]) * x[i] + 0.3 * f[i - 2])

        def plane(f: Any, i: Any, j: Any) -> Any:
            before = pb.where((i > 0) & (j > 0), f[i - 1, j] * f[i, j - 1], 0.1)
            return x[i, j] + 0.5 * pb.tanh(before)

        body = line if len(shape) == 1 else plane
        return pb.sum(pb.recurrence(x.shape, body, checkpoint=mode) * pb.cos(x))

    wanted = pb.grad(lambda x: loss(x, "tape"))(drawn.astype("float64")).numpy()
    tolerance = {"float64": 1e-13, "float32": 4e-6, "float16": 8e-3, "bfloat16": 6e-2}[kind]
    for slope in (pb.grad(loss), pb.jit(pb.grad(loss))):
        found = slope(drawn)
        assert str(found.dtype) == kind
        np.testing.assert_allclose(
            found.astype("float64").numpy(), wanted, rtol=tolerance, atol=tolerance
        )


# --- types, text, orders --------------------------------------------------------------------------


def test_the_type_is_that_of_what_the_cells_are_made_of() -> None:
    def ramp(start: Any, x: Any = None) -> Any:
        more = 1 if x is None else x
        return pb.recurrence((4,), lambda f, i: pb.where(i > 0, f[i - 1] + more, start))

    assert ramp(1).dtype == pb.int64
    assert ramp(0.5).dtype == pb.float32
    assert ramp(0.5, pb.tensor(np.float64(1))).dtype == pb.float64
    assert ramp(1, pb.tensor(np.float16(1))).dtype == pb.float16
    grown = pb.recurrence((4,), lambda f, i: pb.where(i > 0, f[i - 1] * 0.5, 1))
    assert grown.tolist() == [1.0, 0.5, 0.25, 0.125]
    assert (
        str(pb.recurrence((4,), lambda f, i: pb.where(i > 0, f[i - 1], 1), dtype="int8").dtype)
        == "int8"
    )


def test_the_text_form() -> None:
    x = RNG.normal(size=(4, 5))
    found = pb.define(
        "f[i, j] = where(i == 0 or j == 0, x[i, j],"
        " min(f[i-1, j], f[i, j-1], f[i-1, j-1]) + x[i, j])",
        x=pb.tensor(x),
    )
    wanted = x.copy()
    for i, j in itertools.product(range(1, 4), range(1, 5)):
        wanted[i, j] += min(wanted[i - 1, j], wanted[i, j - 1], wanted[i - 1, j - 1])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-14)
    e, f, g = pb.define(
        "e[n] = where(n == 0, 0.0, 2.0 * f[n - 1]); f[i] = e[i] + x[i, 0]; g[i] = f[i] + e[i]",
        x=pb.tensor(x),
    )
    assert f.tolist() == pytest.approx(
        [x[: n + 1, 0] @ 2.0 ** np.arange(n, -1, -1) for n in range(4)]
    )
    np.testing.assert_allclose(g.numpy(), f.numpy() + e.numpy())
    chain = pb.define(
        "f[t, s] = x[t, s] + where(t > 0, max[k](f[t-1, k] + m[k, s]), 0.0)",
        x=pb.tensor(x), m=pb.tensor(np.zeros((5, 5))),
    )  # fmt: skip
    best = np.cumsum(x.max(axis=1))
    np.testing.assert_allclose(chain.numpy()[1:], x[1:] + best[:-1, None], rtol=1e-14)


def test_one_axis_is_a_loop_over_it_and_two_are_wavefronts() -> None:
    def steps(function: Any, *given: Any) -> int:
        whole = pb.jit(function)
        whole(*given)
        return whole.program.launches

    x = np.ones((6, 9))
    along = pb.jit(
        lambda x: pb.recurrence(x.shape, lambda f, i, j: pb.where(i > 0, f[i - 1, j], x[i, j]))
    )
    along(x)
    assert along.program.launches < 6 * 4
    assert steps(summed_area, x) < (6 + 9) * 4
    assert steps(skewed, x) < (3 * 5 + 9) * 4


def test_any_order_of_nested_loops_is_met() -> None:
    """Reads so far ahead that no small weights have them before."""
    shape = (3, 4, 20)
    x = RNG.normal(size=shape)

    def body(f: Any, i: Any, j: Any, k: Any) -> Any:
        far = pb.where((i > 0) & (j < 2) & (k < 9), f[i - 1, j + 2, k + 11], 0.0)
        near = pb.where((j > 0) & (k < 9), f[i, j - 1, k + 11], 0.0)
        return x_[i, j, k] + 0.5 * far + 0.3 * near + 0.2 * pb.where(k > 0, f[i, j, k - 1], 0.0)

    x_ = pb.tensor(x)
    wanted = np.zeros(shape)
    for i, j, k in np.ndindex(*shape):
        far = wanted[i - 1, j + 2, k + 11] if i and j < 2 and k < 9 else 0.0
        near = wanted[i, j - 1, k + 11] if j and k < 9 else 0.0
        before = wanted[i, j, k - 1] if k else 0.0
        wanted[i, j, k] = x[i, j, k] + 0.5 * far + 0.3 * near + 0.2 * before
    np.testing.assert_allclose(pb.recurrence(shape, body).numpy(), wanted, rtol=1e-12)


def test_a_read_may_be_of_one_time_or_of_others() -> None:
    """``f[i - k]`` with k from 0: of itself it is refused; of a tensor before it in turn, too."""
    k = pb.axis(2, "k")

    def upto(f: Any, i: Any) -> Any:
        return pb.sum(pb.where(i >= k, f[i - k], 0.0), over=k)

    with pytest.raises(PullbackError) as problem:
        pb.recurrence((6,), lambda f, g, i: (upto(g, i), upto(f, i) + 1.0))
    assert problem.value.code == "E193"


def test_no_cells() -> None:
    for shape in ((0, 3), (3, 0)):
        x = np.zeros(shape)
        assert pb.jit(summed_area)(x).shape == shape
        assert summed_area(pb.tensor(x)).shape == shape
    assert pb.recurrence((5,), lambda f, i: i * 2).tolist() == [0, 2, 4, 6, 8]
    assert pb.recurrence((1, 1), lambda f, i, j: pb.where(i > 0, f[i - 1, j], 3)).tolist() == [[3]]


X = pb.tensor(np.arange(6.0))
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "itself": ("E193", lambda: pb.recurrence((6,), lambda f, i: f[i] + X[i])),
    "before and after": (
        "E193",
        lambda: pb.define("f[i] = where(i > 0, f[i-1], 0.) + where(i < 5, f[i+1], x[i])", x=X)),
    "each other at one place": (
        "E193", lambda: pb.recurrence((6,), lambda f, g, i: (g[i] + 1, f[i] + 1))),
    "no distance": ("E194", lambda: pb.define("f[i] = where(i > 0, f[i // 2], x[i])", x=X)),
    "by data": (
        "E194", lambda: pb.recurrence((6,), lambda f, i: f[pb.clip(X[i].astype("int64"), 0, 5)])),
    "mirrored": ("E194", lambda: pb.recurrence((6,), lambda f, i: pb.where(i > 2, f[5 - i], 0))),
    "the whole": ("E195", lambda: pb.recurrence((6,), lambda f, i: f + 1)),
    "truth of the whole": ("E195", lambda: pb.recurrence((6,), lambda f, i: f if f else 1)),
    "no tensor": ("E195", lambda: pb.recurrence((6,), lambda i: 1)),
    "one body for two": ("E195", lambda: pb.recurrence((6,), lambda f, g, i: 1)),
    "no guard": ("E152", lambda: pb.recurrence((6,), lambda f, i: f[i - 1] + X[i])),
    "a guard of data": (
        "E152", lambda: pb.recurrence((6,), lambda f, i: pb.where(X[i] > 0, f[i - 1], 0.0))),
    "a guard too weak": (
        "E152", lambda: pb.recurrence((6,), lambda f, i: pb.where(i > 0, f[i - 2], 0.0))),
    "two indices": ("E130", lambda: pb.recurrence((6,), lambda f, i: f[i - 1, 0])),
    "a float": ("E153", lambda: pb.recurrence((6,), lambda f, i: f[i * 0.5])),
    "a mode": (
        "E312", lambda: pb.recurrence((6,), lambda f, i: 0 * i, checkpoint="all")),
    "a type that never settles": (
        "E142",
        lambda: pb.recurrence((6,), lambda f, i: X[i] if f.variable.dtype == pb.int64 else 1)),
    "axes that differ": (
        "E128", lambda: pb.define("e[i, j] = f[i]; f[i] = e[i, 0]", sizes={"i": 2, "j": 2})),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_order_is_refused(name: str) -> None:
    code, attempt = WRONG[name]
    with pytest.raises(PullbackError) as problem:
        attempt()
    assert problem.value.code == code, str(problem.value)
    assert "test_recurrences.py" in str(problem.value)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(6))
def test_random_ones(seed: int) -> None:
    """A share of `scripts/fuzz.py --recurrences`."""
    assert check_recurrence(seed)
