"""Derivatives by NumPy arrays are NumPy arrays, and SciPy's optimisers take them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import GradientError

EXAMPLES = Path(__file__).parent.parent / "examples"
X = np.array([1.5, -0.5, 0.25])


def scipy(name: str) -> Any:
    return pytest.importorskip(f"scipy.{name}", reason="SciPy is not installed (extra test)")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def cubes(x: Any, scale: Any = 1.0) -> Any:
    return pb.sum(scale * x**3)


def rosenbrock(x: Any) -> Any:
    return pb.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


@pytest.mark.parametrize("wrapped", [lambda f: f, pb.jit], ids=["eager", "jit"])
def test_arrays_in_arrays_out(wrapped: Any) -> None:
    value, slope = wrapped(pb.value_and_grad(cubes))(X)
    assert type(value) is np.float64 and type(slope) is np.ndarray
    assert slope.dtype == np.float64 and slope.flags.writeable and slope.flags.c_contiguous
    assert np.isclose(value, np.sum(X**3)) and np.allclose(slope, 3 * X**2)
    assert type(wrapped(pb.grad(cubes))(X)) is np.ndarray
    curved = wrapped(pb.hvp(cubes))(X, np.ones(3))
    assert type(curved) is np.ndarray and np.allclose(curved, 6 * X)
    assert np.allclose(wrapped(pb.jacobian(lambda x: x * x))(X), np.diag(2 * X))


@pytest.mark.parametrize("wrapped", [lambda f: f, pb.jit], ids=["eager", "jit"])
def test_tensors_in_tensors_out(wrapped: Any) -> None:
    value, slope = wrapped(pb.value_and_grad(cubes))(pb.tensor(X))
    assert type(value) is pb.Tensor and type(slope) is pb.Tensor
    both = wrapped(pb.grad(cubes, argnums=(0, 1)))(pb.tensor(X), X)
    assert [type(g) for g in both] == [pb.Tensor, pb.Tensor]


def test_what_is_not_derived_by_does_not_matter() -> None:
    scale = pb.tensor(np.array([1.0, 2.0, 3.0]))
    assert np.array_equal(pb.grad(cubes)(X, scale), 3 * scale.numpy() * X**2)
    assert type(pb.grad(cubes)(scale, X)) is pb.Tensor
    slopes = pb.grad(lambda p: cubes(p["a"], p["b"][0]))({"a": X, "b": [np.float64(2.0)]})
    assert np.allclose(slopes["a"], 6 * X**2) and np.isclose(slopes["b"][0], np.sum(X**3))
    assert type(slopes["b"][0]) is np.float64


def test_calls_of_modes_too() -> None:
    out, moved = pb.jvp(cubes, X, np.ones(3))
    assert type(out) is np.float64 and np.isclose(moved, np.sum(3 * X**2))
    out, back = pb.vjp(lambda x: x * x, X)
    (pulled,) = back(np.ones(3))
    assert type(out) is np.ndarray and type(pulled) is np.ndarray
    rows, columns, entries = pb.jacobian(lambda x: x * x, X, "sparse")
    assert (rows == columns).all() and np.array_equal(entries, 2 * X)


def test_an_array_never_hides_what_it_depends_on() -> None:
    """Where another derivative is being taken, that by an array is a tensor of it."""

    def outer(w: Any) -> Any:
        inner = pb.grad(lambda x: pb.sum(w * x**2))(X)
        assert type(inner) is pb.Tensor
        return pb.sum(inner**2)

    w = np.array([1.0, 2.0, 3.0])
    assert np.allclose(pb.grad(outer)(w), 8 * w * X**2)
    assert np.allclose(pb.jit(pb.grad(outer))(w), 8 * w * X**2)


def test_what_is_given_is_not_kept() -> None:
    given = X.copy()
    slope = pb.grad(cubes)(given)
    compiled = pb.jit(pb.grad(cubes))
    first = compiled(given)
    given[:] = 0.0
    again = compiled(given)
    assert np.allclose(slope, 3 * X**2) and np.allclose(first, 3 * X**2) and not again.any()
    assert compiled.traces == 1


def test_a_method_is_derived_and_names_stay() -> None:
    class Model:
        @pb.value_and_grad
        def loss(self, x: Any) -> Any:
            """What it costs."""
            return cubes(x)

        gradient = pb.grad(lambda self, x: cubes(x), argnums=1)

    assert np.allclose(Model().gradient(X), 3 * X**2)
    assert Model.loss.__name__ == "loss" and Model.loss.__doc__ == "What it costs."
    with pytest.raises(GradientError, match="by what"):
        pb.hvp(pb.tensor(1.0))


def test_minimize() -> None:
    optimize = scipy("optimize")
    start = np.linspace(-1.0, 1.0, 6)
    fun, hessp = pb.jit(pb.value_and_grad(rosenbrock)), pb.jit(pb.hvp(rosenbrock))
    for method in ("L-BFGS-B", "trust-ncg"):
        given = {"hessp": hessp} if method == "trust-ncg" else {}
        found = optimize.minimize(fun, start, jac=True, method=method, tol=1e-9, **given)
        assert np.allclose(found.x, 1.0, atol=1e-4), method
    assert fun.traces == 1 and hessp.traces == 1
    gradient = pb.jit(pb.grad(rosenbrock))
    error = optimize.check_grad(lambda x: fun(x)[0], gradient, start)
    assert error < 1e-4


def test_least_squares_and_roots_by_the_jacobian() -> None:
    optimize = scipy("optimize")
    times = pb.tensor(np.linspace(0.0, 2.0, 9))
    seen = pb.tensor(2.0 * np.exp(-0.7 * times.numpy()))

    def residual(p: Any) -> Any:
        return p[0] * pb.exp(-p[1] * times) - seen

    slopes = pb.jit(pb.jacobian(residual))
    found = optimize.least_squares(pb.jit(residual), np.ones(2), jac=slopes)
    assert np.allclose(found.x, [2.0, 0.7]) and slopes.traces == 1


def differences(function: Any, x: Any, step: float = 1e-5) -> Any:
    rows = step * np.eye(x.size)
    return np.array([(function(x + r) - function(x - r)) / (2 * step) for r in rows])


def test_the_stencil_has_the_gradient_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    kpp = example("scipy_fisher_kpp")
    monkeypatch.setattr(kpp, "SIDE", 12)
    monkeypatch.setattr(kpp, "STEPS", 24)
    p, seen = np.array([0.5, 0.25, 5.0, 7.0]), np.zeros((12, 12))
    fun = pb.jit(pb.value_and_grad(kpp.misfit))
    value, slope = fun(p, seen)
    guess = differences(lambda q: fun(q, seen)[0], p)
    assert np.allclose(slope, guess, rtol=1e-7)
    u = 0.5 * np.exp(-((np.arange(12)[:, None] - p[2]) ** 2 + (np.arange(12) - p[3]) ** 2) / 18.0)
    for _ in range(24):
        around = sum(np.roll(u, s, a) for s in (1, -1) for a in (0, 1)) - 4.0 * u
        u = u + kpp.DT * (p[0] * around + p[1] * u * (1.0 - u))
    assert np.isclose(value, 0.5 * np.sum(u**2), rtol=1e-12)
    direction = np.array([1.0, -2.0, 0.5, 0.25])
    moved = pb.jit(pb.hvp(kpp.misfit))(p, direction, seen)
    assert np.allclose(moved, directed(lambda q: fun(q, seen)[1], p, direction), rtol=1e-6)


def directed(function: Any, x: Any, along: Any, step: float = 1e-5) -> Any:
    return (function(x + step * along) - function(x - step * along)) / (2 * step)


def test_the_mixture_has_the_gradient_in_closed_form() -> None:
    """By the logits it is the weights less the mean responsibilities, by means their pull."""
    mixture = example("scipy_mixture")
    x = mixture.samples(60)
    theta = mixture.start(x) + 0.1 * np.arange(18) / 18
    value, slope = pb.jit(pb.value_and_grad(mixture.loss))(theta, x)
    logits, means, factors = mixture.unpacked(theta)
    lower = np.zeros((3, 2, 2))
    lower[:, 0, 0], lower[:, 1, 1] = np.exp(factors[:, 0]), np.exp(factors[:, 1])
    lower[:, 1, 0] = factors[:, 2]
    weights = np.exp(logits) / np.exp(logits).sum()
    away = x[:, None, :] - means
    z = np.einsum("kij,nkj->nki", lower, away)
    density = weights * np.linalg.det(lower) * np.exp(-0.5 * (z**2).sum(-1)) / (2 * np.pi)
    assert np.isclose(value, -np.log(density.sum(1)).mean(), rtol=1e-12)
    share = density / density.sum(1, keepdims=True)
    assert np.allclose(slope[:3], weights - share.mean(0), atol=1e-14)
    pull = -(share[..., None] * np.einsum("kij,nki->nkj", lower, z)).mean(0)
    assert np.allclose(slope[3:9], pull.ravel(), atol=1e-13)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["scipy_fisher_kpp", "scipy_mixture"])
def test_examples_find_what_was_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    scipy("optimize")
    module = example(name)
    if name == "scipy_fisher_kpp":
        module.STEPS = 60
    found = module.main()
    assert found.success
    if name == "scipy_fisher_kpp":
        assert np.allclose(found.x[:3], module.TRUTH[:3], rtol=0.1)
    assert capsys.readouterr().out
