"""Plain user code fuses: act(linear(x)), drop(act(x)), relu(bn(x) + r), act(conv(x))."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import TWO_THREADS, Array, normal, run_once, stored
from pullback import nn
from pullback.ir.kernel import Kernel
from pullback.nn import functional as F
from pullback.runtime.executable import Executable

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def exp(y: Array) -> Array:
    return np.exp(np.minimum(y, 0.0))


def sigmoid(y: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-y))


def cdf(y: Array) -> Array:
    return np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2.0)))(y)


def cubic(y: Array) -> Array:
    return math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)


def where(test: Any, y: Any, other: Any) -> Array:
    return np.where(test, y, other)


# The names that attorch's layers take as `act_func`, each with its equation.
ACTIVATIONS: dict[str, tuple[nn.Module, Callable[[Array], Array]]] = {
    "sigmoid": (nn.Sigmoid(), sigmoid),
    "logsigmoid": (nn.LogSigmoid(), lambda y: -np.logaddexp(-y, 0.0)),
    "tanh": (nn.Tanh(), np.tanh),
    "relu": (nn.ReLU(), lambda y: np.maximum(y, 0.0)),
    "gelu": (nn.GELU(), lambda y: y * cdf(y)),
    "geluapprox": (nn.GELU("tanh"), lambda y: 0.5 * y * (1.0 + np.tanh(cubic(y)))),
    "silu": (nn.SiLU(), lambda y: y * sigmoid(y)),
    "relu6": (nn.ReLU6(), lambda y: np.clip(y, 0.0, 6.0)),
    "hardsigmoid": (nn.Hardsigmoid(), lambda y: np.clip(y / 6.0 + 0.5, 0.0, 1.0)),
    "hardtanh": (nn.Hardtanh(), lambda y: np.clip(y, -1.0, 1.0)),
    "hardswish": (nn.Hardswish(), lambda y: y * np.clip(y / 6.0 + 0.5, 0.0, 1.0)),
    "selu": (nn.SELU(), lambda y: SELU_SCALE * where(y > 0.0, y, SELU_ALPHA * (exp(y) - 1.0))),
    "mish": (nn.Mish(), lambda y: y * np.tanh(np.logaddexp(y, 0.0))),
    "softplus": (nn.Softplus(), lambda y: np.logaddexp(y, 0.0)),
    "softsign": (nn.Softsign(), lambda y: y / (1.0 + np.abs(y))),
    "tanhshrink": (nn.Tanhshrink(), lambda y: y - np.tanh(y)),
    "leaky_relu_0.01": (nn.LeakyReLU(0.01), lambda y: where(y > 0.0, y, 0.01 * y)),
    "elu_0.7": (nn.ELU(0.7), lambda y: where(y > 0.0, y, 0.7 * (exp(y) - 1.0))),
    "celu_0.7": (nn.CELU(0.7), lambda y: where(y > 0.0, y, 0.7 * (exp(y / 0.7) - 1.0))),
    "hardshrink_0.5": (nn.Hardshrink(0.5), lambda y: where(np.abs(y) > 0.5, y, 0.0)),
    "softshrink_0.5": (nn.Softshrink(0.5), lambda y: np.sign(y) * np.maximum(np.abs(y) - 0.5, 0.0)),
}


def heavy(program: Executable) -> list[Kernel]:
    """The kernels that touch more than a state of a few numbers."""
    return [k for k in program.kernels if any(math.prod(s.shape) > 3 for s in k.stages)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_joins_the_linear_before_it(name: str) -> None:
    act, equation = ACTIVATIONS[name]
    x, layer = normal(64, 40), nn.Linear(40, 48)
    found, program = run_once(lambda x: act(layer(x)), x, options=TWO_THREADS)
    assert program.launches == len(program.kernels) == 1
    wide = [np.asarray(p.numpy(), np.float64) for p in layer.parameters()]
    y = x.astype(np.float64) @ wide[0].T + wide[1]
    ends = np.abs(np.abs(y) - 0.5) < 1e-5  # where a step of hardshrink may fall either way
    np.testing.assert_allclose(found[~ends], equation(y)[~ends], rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["relu", "gelu", "mish", "softplus", "elu_0.7", "hardswish"])
def test_dropout_joins_an_activation_forward_and_backward(name: str) -> None:
    act = ACTIVATIONS[name][0]
    drop = nn.Dropout(0.3)
    x, head = normal(40, 48), normal(40, 48, seed=1)
    found, program = run_once(lambda x: drop(act(x)), x, options=TWO_THREADS)
    assert len(heavy(program)) == 1
    kept = found != 0.0
    assert 0.6 < kept.mean() / (act(pb.tensor(x)).numpy() != 0.0).mean() < 0.8

    def slope(x: Any, head: Any) -> Any:
        y = drop(act(x))
        return y, pb.grad((y * head).sum(), x)

    (y, dx), program = run_once(slope, x, head, options=TWO_THREADS)
    assert len(heavy(program)) <= 2
    written = [v for v in stored(program) if v.shape == (40, 48)]
    assert len(written) == 2, "the mask is drawn again, not stored"
    t = pb.tensor(x)
    plain = pb.grad((act(t) * pb.tensor(head)).sum(), t).numpy() / 0.7
    np.testing.assert_allclose(dx, where(y != 0.0, plain, 0.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 16, 7, 9), (33, 16, 5), (65, 16)], ids=str)
def test_a_batch_norm_with_residual_and_activation(shape: tuple[int, ...]) -> None:
    norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(16)
    norm.weight.assign(pb.tensor(normal(16, seed=3)))
    x, r, head = normal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    found, program = run_once(lambda x, r: F.relu(norm(x) + r), x, r, options=TWO_THREADS)
    assert program.launches <= 2
    assert len(heavy(program)) == 1
    over = (0, *range(2, len(shape)))
    tail = (1,) * (len(shape) - 2)
    weight = norm.weight.numpy().reshape(16, *tail)
    wide = x.astype(np.float64)
    mean, var = wide.mean(over, keepdims=True), wide.var(over, keepdims=True)
    before = (wide - mean) / np.sqrt(var + 1e-5) * weight + r
    np.testing.assert_allclose(found, np.maximum(before, 0.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.1 * mean.ravel(), atol=1e-6)

    def slopes(x: Any, r: Any, head: Any) -> Any:
        y = F.relu(norm(x) + r)
        return pb.grad((y * head).sum(), [x, r, norm.weight])

    (dx, dr, dw), program = run_once(slopes, x, r, head, options=TWO_THREADS)
    assert len(heavy(program)) <= 2
    g = where(before > 0.0, head, 0.0)
    scale, normed = weight / np.sqrt(var + 1e-5), (wide - mean) / np.sqrt(var + 1e-5)
    flat = g - g.mean(over, keepdims=True) - normed * (g * normed).mean(over, keepdims=True)
    np.testing.assert_allclose(dr, g, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, (g * normed).sum(over), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dx, scale * flat, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gate", [F.sigmoid, F.relu, F.gelu, F.silu])
def test_gated_units_are_one_kernel(gate: Callable[[Any], Any]) -> None:
    def unit(x: Any) -> Any:
        left, right = pb.split(x, 2, axis=-1)
        return left * gate(right)

    program = run_once(unit, normal(64, 48), options=TWO_THREADS)[1]
    assert len(program.kernels) == 1


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_with_bias_and_activation_is_one_kernel(groups: int) -> None:
    layer = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=groups)
    program = run_once(lambda x: F.relu(layer(x)), normal(2, 8, 17, 15), options=TWO_THREADS)[1]
    assert len(program.kernels) <= 2, "one, and one where the padding is stored first"


@pytest.mark.parametrize("make", [lambda: nn.GroupNorm(4, 16), lambda: nn.InstanceNorm2d(16)])
def test_norms_over_groups_are_one_kernel(make: Callable[[], nn.Module]) -> None:
    program = run_once(make(), normal(8, 16, 7, 9), options=TWO_THREADS)[1]
    assert len(program.kernels) == 1
