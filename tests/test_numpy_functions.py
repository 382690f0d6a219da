"""NumPy's functions on tensors give tensors, with gradients, or are refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.bridge import dispatch
from pullback.errors import CapturedArrayError, DTypeError, PullbackError, UnsupportedError

A = np.array([[0.5, -0.25, 0.75], [0.125, 0.25, -0.5]])
B = np.array([[1.5, 0.5, 2.0], [-1.0, 3.0, 0.25]])
BITS = np.array([[5, 3, 1], [2, 0, 7]])


def square(x: Any) -> Any:
    """Positive definite."""
    return x @ x.T + np.eye(2)


LINEAR: dict[str, list[Callable[[Any], Any]]] = {
    "linalg.cholesky": [lambda x: np.linalg.cholesky(square(x))],
    "linalg.det": [lambda x: np.linalg.det(square(x))],
    "linalg.eig": [lambda x: np.linalg.eig(square(x))[0].real],
    "linalg.eigvals": [lambda x: np.linalg.eigvals(square(x)).real],
    "linalg.eigh": [lambda x: np.linalg.eigh(square(x))[0]],
    "linalg.eigvalsh": [lambda x: np.linalg.eigvalsh(square(x))],
    "linalg.inv": [lambda x: np.linalg.inv(square(x))],
    "linalg.pinv": [np.linalg.pinv],
    "linalg.slogdet": [lambda x: np.linalg.slogdet(square(x))[1]],
    "linalg.solve": [lambda x: np.linalg.solve(square(x), x)],
    "linalg.qr": [lambda x: np.linalg.qr(x)[1], lambda x: np.linalg.qr(x.T, mode="complete")[1]],
    "linalg.svd": [lambda x: np.linalg.svd(x, full_matrices=False)[1]],
    "linalg.svdvals": [np.linalg.svdvals],
    "linalg.norm": [np.linalg.norm, lambda x: np.linalg.norm(x, 1, axis=0, keepdims=True)],
    "linalg.cond": [np.linalg.cond],
    "linalg.matrix_power": [lambda x: np.linalg.matrix_power(square(x), 3)],
    "linalg.multi_dot": [lambda x: np.linalg.multi_dot([x, x.T, x])],
    "fft.fft": [np.fft.fft, lambda x: np.fft.fft(x, 4, 0, "ortho")],
    "fft.ifft": [np.fft.ifft],
    "fft.rfft": [np.fft.rfft],
    "fft.irfft": [lambda x: np.fft.irfft(x, 5, axis=0)],
    "fft.hfft": [np.fft.hfft],
    "fft.ihfft": [np.fft.ihfft],
}
UNARY = [n for n in dispatch.UFUNCS if getattr(np, n).nin == 1]
BINARY = [n for n in dispatch.UFUNCS if getattr(np, n).nin == 2 and n not in ("matmul", "vecdot")]
CALLS: dict[str, list[Callable[[Any], Any]]] = {
    **LINEAR,
    "sum": [np.sum, lambda x: np.sum(x, 0), lambda x: np.sum(x, axis=1, keepdims=True)],
    "prod": [lambda x: np.prod(x, axis=-1)],
    "mean": [np.mean, lambda x: np.mean(x, axis=0)],
    "max": [np.max, lambda x: np.max(x, 1)],
    "min": [lambda x: np.min(x, axis=0, keepdims=True)],
    "all": [lambda x: np.all(x > 0, axis=1)],
    "any": [lambda x: np.any(x > 0, axis=1)],
    "argmax": [lambda x: np.argmax(x, axis=1), np.argmax],
    "argmin": [lambda x: np.argmin(x, axis=0)],
    "var": [lambda x: np.var(x, axis=1, ddof=1)],
    "std": [np.std, lambda x: np.std(x, axis=0)],
    "cumsum": [np.cumsum, lambda x: np.cumsum(x, axis=1)],
    "cumprod": [lambda x: np.cumprod(x, 0)],
    "cumulative_sum": [lambda x: np.cumulative_sum(x, axis=1, include_initial=True)],
    "cumulative_prod": [lambda x: np.cumulative_prod(x, axis=0)],
    "dot": [lambda x: np.dot(x, B.T), lambda x: np.dot(2.0, x), lambda x: np.dot(x, B[0])],
    "tensordot": [lambda x: np.tensordot(x, B, ([0, 1], [0, 1]))],
    "einsum": [lambda x: np.einsum("ij,kj->ik", x, B)],
    "outer": [lambda x: np.outer(x[0], B[1])],
    "concatenate": [lambda x: np.concatenate([x, B], axis=1), lambda x: np.concatenate((x, x))],
    "stack": [lambda x: np.stack([x, x], axis=1)],
    "hstack": [lambda x: np.hstack([x, x]), lambda x: np.hstack([x[0], x[1]])],
    "vstack": [lambda x: np.vstack([x, x]), lambda x: np.vstack([x[0], x[1]])],
    "reshape": [lambda x: np.reshape(x, (3, 2)), lambda x: np.reshape(x, -1)],
    "ravel": [np.ravel],
    "transpose": [np.transpose, lambda x: np.transpose(x, (1, 0))],
    "matrix_transpose": [np.matrix_transpose],
    "swapaxes": [lambda x: np.swapaxes(x, 0, 1)],
    "moveaxis": [lambda x: np.moveaxis(x, 0, 1)],
    "squeeze": [lambda x: np.squeeze(x[:, :1]), lambda x: np.squeeze(x[:1], axis=0)],
    "expand_dims": [lambda x: np.expand_dims(x, 1)],
    "broadcast_to": [lambda x: np.broadcast_to(x, (4, 2, 3))],
    "broadcast_arrays": [lambda x: np.broadcast_arrays(x, x[0])[1]],
    "atleast_1d": [lambda x: np.atleast_1d(x[0, 0]), lambda x: np.atleast_1d(x[0], x[0, 0])[1]],
    "meshgrid": [lambda x: np.meshgrid(x[0], x[1], indexing="ij")[1]],
    "flip": [np.flip, lambda x: np.flip(x, 1)],
    "roll": [lambda x: np.roll(x, 1), lambda x: np.roll(x, -1, axis=1)],
    "tile": [lambda x: np.tile(x, (2, 1))],
    "repeat": [lambda x: np.repeat(x, 2), lambda x: np.repeat(x, 2, axis=1)],
    "tril": [np.tril],
    "triu": [lambda x: np.triu(x, 1)],
    "where": [lambda x: np.where(x > 0, x, B)],
    "clip": [lambda x: np.clip(x, -0.25, 0.5), lambda x: np.clip(x, None, 0.5)],
    "take": [lambda x: np.take(x, [4, 0]), lambda x: np.take(x, np.array([2, 0]), axis=1)],
    "take_along_axis": [lambda x: np.take_along_axis(x, np.array([[2], [0]]), 1)],
    "sort": [np.sort, lambda x: np.sort(x, axis=0)],
    "argsort": [lambda x: np.argsort(x, axis=1)],
    "split": [lambda x: np.split(x, 3, axis=1)[1], lambda x: np.split(x, [1], axis=1)[1]],
    "pad": [lambda x: np.pad(x, ((1, 0), (0, 2)))],
    "diff": [np.diff, lambda x: np.diff(x, 2, axis=1), lambda x: np.diff(x, axis=0, append=B[:1])],
    "round": [np.round],
    "zeros_like": [np.zeros_like],
    "ones_like": [np.ones_like],
    "empty_like": [lambda x: 0 * np.empty_like(x)],
    "full_like": [lambda x: np.full_like(x, 2.5)],
}
FACTS = ("shape", "ndim", "size")


def same(found: Any, wanted: Any) -> None:
    assert type(found) is (pb.Complex if np.iscomplexobj(wanted) else pb.Tensor)
    assert found.shape == wanted.shape and np.allclose(found.numpy(), wanted, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one(name: str) -> None:
    function = getattr(np, name)
    x = BITS if name == "invert" else A + 1.5 if name == "arccosh" else A
    with np.errstate(all="ignore"):
        same(function(pb.tensor(x)), function(x))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_with_arrays_on_either_side(name: str) -> None:
    function = getattr(np, name)
    integers = name.startswith("bitwise") or name.endswith("shift")
    a, b = (BITS, BITS[:1] % 4) if integers else (abs(A), B)
    same(function(pb.tensor(a), b), function(a, b))
    same(function(a, pb.tensor(b)), function(a, b))


def test_every_function_of_the_table_is_called_here() -> None:
    assert {*CALLS, *FACTS} == dispatch.FUNCTIONS.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_functions(name: str) -> None:
    for call in CALLS[name]:
        same(call(pb.tensor(A)), call(A))


def test_names_of_parameters_are_those_of_numpy() -> None:
    for name, known in dispatch.FUNCTIONS.items():
        try:
            wanted = list(inspect.signature(attrgetter(name)(np)).parameters)
        except ValueError:  # written in C, without a signature
            continue
        if not known.several and "kwargs" not in wanted:
            own = [n for n in known.parameters if n in wanted]
            assert len(own) == len(known.parameters), (name, wanted)
            assert own == sorted(own, key=wanted.index), (name, wanted)


def test_operators_with_an_array_first() -> None:
    x = pb.tensor(A)
    same(B + x, B + A)
    same(B @ x.T, B @ A.T)
    same(np.float64(2.0) * x, 2.0 * A)
    same(np.add.reduce(x, axis=1), A.sum(1))
    same(np.maximum.reduce(x), A.max(0))
    assert (x == B).dtype == np.equal(B, x).dtype == pb.bool_
    assert np.shape(x) == (2, 3) and np.ndim(x) == 2 and np.size(x) == 6


def test_gradients_pass() -> None:
    def energy(u: Any) -> Any:
        around = np.roll(u, 1, axis=0) + np.roll(u, -1, axis=0) - 2.0 * u
        return 0.5 * np.sum(np.square(around)) + np.mean(np.exp(u))

    u = np.linspace(0.0, 1.0, 7) ** 2
    for derive in (pb.grad(energy), pb.jit(pb.grad(energy))):
        step = 1e-6 * np.eye(7)
        guess = [(energy(u + s) - energy(u - s)) / 2e-6 for s in step]
        assert np.allclose(derive(u), guess, atol=1e-8)


def test_what_only_looks_is_given_values() -> None:
    x = pb.tensor(A)
    assert np.allclose(x, A) is True and np.array_equal(x, B) is False
    with pytest.raises(UnsupportedError, match="being traced"):
        pb.jit(lambda t: np.allclose(t, t))(A)


def test_what_is_not_there_is_refused_by_name() -> None:
    x = pb.tensor(A)
    array = A.copy()
    refused: dict[str, Callable[[], Any]] = {
        "np.cbrt of a tensor": lambda: np.cbrt(x),
        "np.linalg.tensorinv of a tensor": lambda: np.linalg.tensorinv(x),
        "np.linalg.eigh of a tensor with UPLO": lambda: np.linalg.eigh(x, UPLO="U"),
        "np.gradient": lambda: np.gradient(x),
        "into an array": lambda: array.__iadd__(x),
        "np.sin of a tensor with where": lambda: np.sin(x, where=A > 0),
        "np.sum of a tensor with initial": lambda: np.sum(x, initial=1.0),
        "np.round of a tensor with decimals": lambda: np.round(x, 2),
        "np.reshape of a tensor with order": lambda: np.reshape(x, -1, order="F"),
        "np.add.outer": lambda: np.add.outer(x, A),
        "np.where of one": lambda: np.where(x),
        "mode 'wrap'": lambda: np.pad(x, 1, mode="wrap"),
        "2 and 3 axes": lambda: np.dot(x, np.ones((3, 3, 3))),
    }
    for text, call in refused.items():
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert text in str(caught.value), text
    assert np.array_equal(array, A)
    with pytest.raises(DTypeError, match="list is no tensor"):
        np.add([1.0, 2.0, 3.0], x)
    with pytest.raises(PullbackError):
        np.add(np.array(["a"]), x)


def test_an_array_is_never_frozen_into_a_program() -> None:
    a = A.copy()
    for function in (lambda x: a + x, lambda x: np.add(a, x), lambda x: np.where(x > 0, x, a)):
        compiled = pb.jit(function)
        for step in range(3):
            a[...] = A + step
            np.testing.assert_allclose(compiled(A), np.asarray(function(pb.asarray(A))))
        assert compiled.traces == 3
    large = np.ones(2000)
    with pytest.raises(CapturedArrayError):
        pb.jit(lambda x: x * large)(large)


def test_small_arrays_are_constants_wherever_a_program_meets_them() -> None:
    c = np.array([1.0, 2.0, 3.0])
    x = pb.tensor(np.ones(3))
    uses: dict[str, Any] = {
        "literal": lambda x: x * c + np.array([1, 0, 0]),
        "cond": lambda x: pb.cond(x.sum() > 0, lambda: x * c, lambda: x * np.zeros(3)),
        "loop": lambda x: pb.loop(3, lambda i, s: s + c, x),
        "vmap": lambda x: pb.vmap(lambda r: r * c[0])(x),
        "tensor": lambda x: pb.asarray(c, dtype="float64") * pb.tensor(c) * x,
        "slope": lambda x: pb.grad(lambda x: pb.sum(pb.square(x) * c))(x),
    }
    wanted = {
        "literal": c + [1, 0, 0], "cond": c, "loop": 1 + 3 * c, "vmap": [1.0] * 3,
        "tensor": c * c, "slope": 2 * c,
    }  # fmt: skip
    for name, use in uses.items():
        compiled = pb.jit(use)
        for _ in range(2):
            np.testing.assert_allclose(compiled(x).numpy(), wanted[name], err_msg=name)
        assert compiled.traces == 1, name
