"""Complex tensors as pairs: values as NumPy's, gradients by differences in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import array_api as xp
from pullback.errors import DTypeError
from pullback.tensor.record.trace import compiled_programs

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


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    found = CASES[name](pb.Complex.of(Z), pb.Complex.of(W))
    np.testing.assert_allclose(found.numpy(), CASES[name](Z, W), rtol=1e-12)


def loss(name: str, z: Any, w: Any) -> Any:
    """A real number of complex ones, not holomorphic."""
    found = CASES[name](z, w)
    parts = abs(found) + found.real * 0.5 + found.imag * found.imag
    return pb.sum(parts) if isinstance(found, pb.Complex) else np.sum(parts)


@pytest.mark.sampled(20)
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
        "pad": (pb.pad(z, [(0, 0), (2, 1)], 3.0), np.pad(Z, [(0, 0), (2, 1)], constant_values=3)),
        "pad of real": (pb.pad(x, 1, 1j), np.pad(Z.real + 0j, 1, constant_values=1j)),
        "complex pad": (pb.pad(z, 1, 2 - 1j), np.pad(Z, 1, constant_values=2 - 1j)),
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


@pytest.mark.parametrize("name", ["maximum", "less", "floor", "gelu", "max", "softmax"])
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


# --- complex arrays of the array API -------------------------------------------------------------

GRID = (0.0, -0.0, 1.0, -1.0, 0.5, -0.25, 3.7, -2.5, 1e-8, 40.0, -1e5, 1e30, -1e-30)
ENDS = (np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0)
NUMPY = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh"}
NUMPY |= {"atan": "arctan", "atanh": "arctanh"}
MATHS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log")
MATHS += ("log10", "log2", "sin", "sinh", "sqrt", "tan", "tanh")


def close(found: float, wanted: float, scale: float, signs: bool) -> bool:
    """Equal to 1e-13, with `signs` those of zero too; NaN says nothing."""
    if np.isnan(wanted):
        return True
    if wanted == 0 and signs:
        tiny = 0 < abs(found) < 1e-15 * scale
        return tiny or (found == 0 and np.signbit(found) == np.signbit(wanted))
    return found == wanted or abs(found - wanted) <= 1e-13 * max(abs(wanted), 1e-3 * scale)


def test_both_parts_are_one_program() -> None:
    z = xp.sin(pb.Complex.of(Z * 0.731)) * 0.37
    count = compiled_programs()
    z.numpy()
    assert compiled_programs() == count + 1


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", MATHS)
def test_branch_cuts_are_those_of_c(name: str) -> None:
    ends = [complex(a, b) for a in ENDS for b in ENDS if np.isfinite(a) != np.isfinite(b)]
    points = np.array([*(complex(a, b) for a in GRID for b in GRID), *ends])
    found = getattr(xp, name)(pb.Complex.of(points)).numpy()
    with np.errstate(all="ignore"):
        wanted = getattr(np, NUMPY.get(name, name))(points)
    for z, own, theirs in zip(points, found, wanted, strict=True):
        scale = abs(theirs) if np.isfinite(abs(theirs)) else 1.0
        signs = np.isfinite(z) or name not in ("cos", "cosh")  # where C leaves them open
        assert close(own.real, theirs.real, scale, signs), (z, own, theirs)
        assert close(own.imag, theirs.imag, scale, signs), (z, own, theirs)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", [*MATHS, "log1p", "sign", "square", "reciprocal", "sigmoid"])
def test_gradients_on_the_axes(name: str) -> None:
    """Where a part is 0 the other still has its slope: ``conj(f'(z))`` of a holomorphic f."""
    points = np.array([0.5 + 0j, 0.3 - 0j, 0.7j, -0.2j, 0.4 - 0.6j])
    z = pb.Complex.of(points)
    gradient = pb.grad(lambda z: pb.sum(getattr(xp if name != "sigmoid" else pb, name)(z).real))
    space = getattr(xp if name != "sigmoid" else pb, name)
    step = 1e-6
    parts = []
    for unit in (1, 1j):
        up, down = (space(pb.Complex.of(points + s * unit)).numpy().real for s in (step, -step))
        parts.append((up - down) / (2 * step))
    found = gradient(z).numpy()
    if name in ("log", "log2", "log10", "sqrt", "acosh", "asin", "acos", "atanh", "asinh", "atan"):
        found, parts = found[[0, 1, 4]], [p[[0, 1, 4]] for p in parts]
    if name in ("acosh",):  # 0.5 and 0.3 lie on its cut
        found, parts = found[2:], [p[2:] for p in parts]
    np.testing.assert_allclose(found, parts[0] + 1j * parts[1], rtol=1e-6, atol=1e-7)


def test_arrays_of_the_array_api() -> None:
    z, x = xp.asarray(Z), xp.asarray(Z.real.copy())
    found = {
        "list": (xp.asarray([1, 2j]), np.array([1, 2j], np.complex64)),
        "lists": (xp.asarray([[1j], [2.0]], dtype=xp.complex128), np.array([[1j], [2.0]])),
        "zeros": (xp.zeros((2, 3), dtype=xp.complex64), np.zeros((2, 3), np.complex64)),
        "ones": (xp.ones_like(z), np.ones_like(Z)),
        "eye": (xp.eye(3, dtype=xp.complex128), np.eye(3, dtype=complex)),
        "full": (xp.full(2, 1 - 2j), np.full(2, 1 - 2j, np.complex64)),
        "full_like": (xp.full_like(z, 2j), np.full_like(Z, 2j)),
        "linspace": (xp.linspace(0, 1j, 4, dtype=xp.complex128), np.linspace(0, 1j, 4)),
        "astype": (xp.astype(x, xp.complex64), Z.real.astype(np.complex64)),
        "method": (x.astype(pb.complex128), Z.real.astype(complex)),
        "number": (x + 1j, Z.real + 1j),
        "number before": (2j * x - 1j, 2j * Z.real - 1j),
        "number in a function": (xp.multiply(x, 1j), Z.real * 1j),
        "prod": (xp.prod(z, axis=1), Z.prod(1)),
        "prod of all": (xp.prod(z), Z.prod()),
        "prod of none": (xp.prod(z[:, :0], axis=1, keepdims=True), np.ones((2, 1), complex)),
        "running": (xp.cumulative_prod(z, axis=1), Z.cumprod(1)),
        "sum": (
            xp.sum(xp.astype(z, xp.complex64), dtype=xp.complex128),
            Z.astype("c8").sum(dtype=complex),
        ),
        "isnan": (xp.isnan(z * np.nan), np.isnan(Z * np.nan)),
        "isinf": (xp.isinf(z / 0.0), np.ones(Z.shape, bool)),
        "any": (xp.any(z, axis=0), Z.any(0)),
        "real": (xp.real(z), Z.real),
        "imag": (xp.imag(z), Z.imag),
        "nonzero": (xp.nonzero(z - Z[0, 0])[1], np.nonzero(Z - Z[0, 0])[1]),
        "unique": (xp.unique_values(z), np.unique(Z)),
        "expand": (xp.expand_dims(z, axis=0), Z[None]),
        "unstack": (xp.unstack(z)[1], Z[1]),
        "grid": (xp.meshgrid(z[0], z[1])[1], np.meshgrid(Z[0], Z[1])[1]),
        "diff": (xp.diff(z), np.diff(Z)),
        "fft": (xp.fft.fft(z), np.fft.fft(Z)),
        "norm": (xp.linalg.vector_norm(z), np.linalg.norm(Z)),
        "dlpack": (xp.from_dlpack(Z.copy()), Z),
        "large": (abs(xp.asarray(Z * 1e200)) / 1e200, abs(Z)),
        "wide": (1.0 / xp.asarray(Z * 1e200) * 1e200, 1.0 / Z),
    }
    for name, (own, wanted) in found.items():
        assert own.dtype.numpy == wanted.dtype, name
        np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(np.from_dlpack(z), Z)
    assert complex(z[0, 0]) == Z[0, 0] and xp.isdtype(z.dtype, "complex floating")
    assert xp.result_type(x, xp.complex64) == xp.complex128 and z.__array_namespace__() is xp
    assert xp.can_cast(xp.float32, xp.complex64) and not xp.can_cast(xp.complex64, xp.float64)


def test_assignment_to_complex_elements() -> None:
    z = xp.asarray(Z)
    z[0, 1] = 5j
    z[1] = xp.asarray([1.0, 2.0, 3.0], dtype=xp.float64)
    wanted = Z.copy()
    wanted[0, 1], wanted[1] = 5j, [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(z.numpy(), wanted)


WRONG: dict[str, Callable[[Any], Any]] = {
    "a real type": lambda z: xp.astype(z, xp.float64),
    "an integer beside": lambda z: xp.add(z, xp.asarray([1, 2, 3])),
    "an order": lambda z: z < z,
    "a float": lambda z: float(z[0, 0]),
    "a real array of it": lambda z: xp.asarray([1j], dtype=xp.float32),
    "a real sort": lambda z: xp.sort(z),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_complex_meaning_is_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=r"E1\d\d") as refused:
        WRONG[name](xp.asarray(Z))
    assert "test_complex.py" in str(refused.value)


def test_linear_algebra_of_complex_matrices() -> None:
    a = np.random.default_rng(0).normal(size=(3, 3)) + 1j * np.eye(3)
    h = a @ a.conj().T
    z, y, own, theirs = xp.asarray(a), xp.asarray(h), xp.linalg, np.linalg
    found = {
        "cholesky": (own.cholesky(y, upper=True), theirs.cholesky(h, upper=True)),
        "det": (own.det(z), theirs.det(a)),
        "eigh": (own.eigh(y).eigenvalues, theirs.eigh(h)[0]),
        "inv": (own.inv(z), theirs.inv(a)),
        "qr": (own.qr(z).R, theirs.qr(a)[1]),
        "slogdet": (own.slogdet(z).sign, theirs.slogdet(a)[0]),
        "solve": (own.solve(z, y), theirs.solve(a, h)),
        "svd": (own.svd(z).S, theirs.svd(a)[1]),
        "pinv": (own.pinv(z), theirs.pinv(a)),
        "nuclear": (own.matrix_norm(z, ord="nuc"), theirs.matrix_norm(a, ord="nuc")),
        "columns": (own.matrix_norm(z, ord=1), theirs.matrix_norm(a, ord=1)),
        "length": (own.vector_norm(z, ord=3), theirs.vector_norm(a, ord=3)),
        "power": (own.matrix_power(z, -2), theirs.matrix_power(a, -2)),
        "trace": (own.trace(z), theirs.trace(a)),
        "diagonal": (own.diagonal(z, offset=1), theirs.diagonal(a, offset=1)),
        "cross": (own.cross(z, y), theirs.cross(a, h)),
    }
    for name, (mine, wanted) in found.items():
        assert mine.dtype.numpy == wanted.dtype, name
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-9, atol=1e-12, err_msg=name)
    with pytest.raises(ValueError, match="Singular"):
        own.inv(xp.zeros((2, 2), dtype=xp.complex64))
