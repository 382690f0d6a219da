"""Complex tensors as pairs: values as NumPy's, gradients by differences in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError

Array = np.ndarray[Any, Any]
Z = np.array([[1.5 - 0.5j, -0.25 + 2j, 0.5j], [0.75, -1 - 1j, 0.3 + 0.1j]])
W = np.array([[0.5 + 1j, -1j, 2.0], [1 - 2j, 0.25 + 0.5j, -0.5 + 0.1j]])
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda z, w: z + w * 2.0 - 1.5 + (1 + 2j),
    "reversed": lambda z, w: (2.0 - z) * (1j - w) + 3 * z + 1 / (w * w + 4.0),
    "product": lambda z, w: z * w * (2 - 1j),
    "quotient": lambda z, w: z / (w + (3 + 1j)) / 2.0,
    "conjugate": lambda z, w: z * w.conj() - (-z),
    "matmul": lambda z, w: z @ w.T,
    "parts": lambda z, w: (z[0] * w[1]).sum() + z.real[1, 2] * w.imag[0, 1],
}


# What `pb` is called where NumPy and PyTorch have another name.
ELSEWHERE = {"permute_dims": {"torch": "permute", "numpy": "transpose"}}
ELSEWHERE["concat"] = {"torch": "concat", "numpy": "concatenate"}
ELSEWHERE["pow"] = {"torch": "pow", "numpy": "power"}


def of(name: str, *args: Any) -> Any:
    """A public function of `pb`, NumPy or PyTorch, whichever the first argument is of."""
    first = args[0][0] if isinstance(args[0], list) else args[0]
    if isinstance(first, pb.Complex):
        return getattr(pb, name)(*args)
    home = type(first).__module__.partition(".")[0]
    space: Any = np if home == "numpy" else pytest.importorskip("torch")
    return getattr(space, ELSEWHERE.get(name, {}).get(home, name))(*args)


UNARY = ("abs", "cos", "cosh", "exp", "log", "negative", "reciprocal", "sigmoid")
UNARY += ("sin", "sinh", "sqrt", "square", "tan", "tanh")
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "exp of a product": lambda z, w: of("exp", z * w),
    "log of a quotient": lambda z, w: of("log", z / (w + 3.0)),
    "roots": lambda z, w: of("sqrt", z * z + w),
    "matmul": lambda z, w: of("matmul", z, w.T),
    "outer": lambda z, w: of("outer", z[0], w[1]),
    "sums": lambda z, w: of("sum", z, 1) * of("mean", w, 1),
    "running sum": lambda z, w: (of("cumsum", z, 1) if not isinstance(z, pb.Complex)
                                 else pb.cumulative_sum(z, axis=1)) * w,
    "shapes": lambda z, w: of("permute_dims", of("reshape", z, (3, 2)), (1, 0)) * w,
    "concat": lambda z, w: of("concat", [z, w * z, z], 0),
    "stack": lambda z, w: of("stack", [z, w * z], 1),
    "power": lambda z, w: of("pow", z, 3) - w,
    "negative power": lambda z, w: of("pow", w + 3.0, -2) * z,
    "fraction": lambda z, w: of("pow", z, 1.5) * w,
    "complex power": lambda z, w: of("pow", z, w),
    "operator": lambda z, w: z**2 * w,
}  # fmt: skip
CASES |= {f"{name}()": f for name, f in FUNCTIONS.items()}
CASES |= {name: lambda z, w, name=name: of(name, z) * w for name in UNARY if name != "sigmoid"}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    found = CASES[name](pb.Complex.of(Z), pb.Complex.of(W))
    np.testing.assert_allclose(found.numpy(), CASES[name](Z, W), rtol=1e-12)


def loss(name: str, z: Any, w: Any) -> Any:
    """A real number of complex ones, not holomorphic."""
    found = CASES[name](z, w)
    parts = abs(found) + found.real * 0.5 + found.imag * found.imag
    return pb.sum(parts) if isinstance(found, pb.Complex) else np.sum(parts)


@pytest.mark.parametrize("name", [n for n in CASES if n not in UNARY])
def test_gradients_point_uphill(name: str) -> None:
    """``df/dx + i df/dy``, in a compiled function of complex arguments."""
    derivative = pb.jit(pb.grad(lambda z, w: loss(name, z, w), argnums=(0, 1)))
    found = derivative(pb.Complex.of(Z), pb.Complex.of(W))
    step = 1e-6
    for n, gradient in enumerate(found):
        assert isinstance(gradient, pb.Complex)
        wanted = np.zeros(Z.shape, complex)
        for place in np.ndindex(*Z.shape):
            for unit in (1, 1j):
                ends = []
                for sign in (step, -step):
                    given = [Z.copy(), W.copy()]
                    given[n][place] += sign * unit
                    ends.append(loss(name, *given))
                wanted[place] += unit * (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_gradient_by_a_complex_tensor() -> None:
    z = pb.Complex.of(Z.astype(np.complex64))
    gradient = pb.grad(pb.sum(abs(z) * abs(z)), z)
    assert gradient.numpy().dtype == np.complex64
    np.testing.assert_allclose(gradient.numpy(), 2 * Z, rtol=1e-6)


def test_absolute_value_at_zero() -> None:
    z = pb.Complex.of(np.array([0j, 3 - 4j]))
    np.testing.assert_allclose(pb.grad(pb.sum(abs(z)), z).numpy(), [0, 0.6 - 0.8j])
    np.testing.assert_allclose(abs(z).numpy(), [0, 5])


def test_real_tensors_meet_complex_ones() -> None:
    x = pb.tensor(Z.real.copy())
    z = pb.Complex.of(Z)
    for found, wanted in ((x * z, Z.real * Z), (z - x, Z - Z.real), (pb.Complex.of(x), Z.real)):
        np.testing.assert_allclose(found.numpy(), wanted)
    with pytest.raises(DTypeError, match="int32"):
        pb.Complex.of(pb.tensor(np.arange(3, dtype=np.int32)))


def test_the_rest_of_the_functions() -> None:
    z, w = pb.Complex.of(Z), pb.Complex.of(W)
    x = pb.tensor(Z.real.copy())
    found = {
        "einsum": (pb.einsum("ij,kj->ik", z, w), Z @ W.T),
        "tensordot": (pb.tensordot(z, w, axes=([1], [1])), np.tensordot(Z, W, ([1], [1]))),
        "vecdot": (pb.vecdot(z, w), np.vecdot(Z, W)),
        "where": (pb.where(x > 0.0, z, 2.0), np.where(Z.real > 0, Z, 2.0)),
        "where turned": (pb.where(x > 0.0, 1j, w), np.where(Z.real > 0, 1j, W)),
        "take": (pb.take(z, np.array([2, 0]), axis=1), Z[:, [2, 0]]),
        "kept axes": (pb.sum(z, axis=1, keepdims=True), Z.sum(1, keepdims=True)),
        "real on the left": (x @ w.T, Z.real @ W.T),
        "real in a function": (pb.matmul(z, x.T), Z @ Z.real.T),
        "real in a list": (pb.concat([x, z], axis=0), np.concatenate([Z.real, Z])),
        "divide": (pb.divide(z, w + 3.0), Z / (W + 3.0)),
        "sigmoid": (pb.sigmoid(z), 1 / (1 + np.exp(-Z))),
        "equal": (pb.equal(z, z * 1.0), Z == Z),
        "other": (pb.not_equal(z, w), Z != W),
    }
    for name, (own, wanted) in found.items():
        np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-12, err_msg=name)
    assert pb.sqrt(pb.Complex.of(Z.astype(np.complex64))).numpy().dtype == np.complex64


def test_hyperbolic_functions_do_not_overflow() -> None:
    z = pb.Complex.of(np.array([800 + 1j, -800 + 0.5j]))
    np.testing.assert_allclose(pb.tanh(z).numpy(), [1, -1], atol=1e-12)


@pytest.mark.parametrize("name", ["maximum", "less", "floor", "gelu", "max", "softmax", "prod"])
def test_functions_of_real_numbers_are_refused(name: str) -> None:
    z = pb.Complex.of(Z)
    with pytest.raises(DTypeError, match="not defined for"):
        getattr(pb, name)(*[z] * (2 if name in ("maximum", "less") else 1))


@pytest.mark.torch
@pytest.mark.parametrize("name", [n for n in CASES if n not in ("sum", "reversed", "parts")])
def test_gradients_are_torch_s(name: str) -> None:
    """PyTorch's complex128: the same numbers, and the conjugate convention."""
    torch = pytest.importorskip("torch")
    given = [torch.tensor(a, requires_grad=True) for a in (Z, W)]
    found = CASES[name](*given)
    imag = found.imag if found.is_complex() else 0.0 * found
    (found.abs() + found.real * 0.5 + imag * imag).sum().backward()
    mine = pb.grad(lambda z, w: loss(name, z, w), argnums=(0, 1))
    for own, theirs in zip(mine(pb.Complex.of(Z), pb.Complex.of(W)), given, strict=True):
        slope = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        np.testing.assert_allclose(own.numpy(), slope.resolve_conj().numpy(), rtol=1e-9, atol=1e-12)
