"""Shapes, products and element-wise functions beside NumPy and PyTorch; derivatives checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pullback as pb
from pullback.errors import PullbackError

Array = np.ndarray[Any, Any]
torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, 1.5, -3.7, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e300, 1.0])


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape)


A, B, V, W = drawn(4, 5), drawn(4, 5), drawn(5), drawn(4)
CUBE = drawn(3, 4, 5)
LEFT, RIGHT = drawn(3, 2, 4), drawn(3, 4, 5)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sequence[Array]]] = {
    "diagonal": (lambda x: pb.diagonal(x, offset=1), lambda x: np.diagonal(x, 1, -2, -1), [CUBE]),
    "diagonal below": (
        lambda x: pb.diagonal(x, offset=-2, axis1=0, axis2=1), lambda x: np.diagonal(x, -2), [A]
    ),
    "diagonal beside": (lambda x: pb.diagonal(x, offset=9), lambda x: np.diagonal(x, 9), [A]),
    "diag of a vector": (lambda x: pb.diag(x, k=-1), lambda x: np.diag(x, -1), [V]),
    "diag of a matrix": (pb.diag, np.diag, [A]),
    "diagflat": (lambda x: pb.diagflat(x, k=2), lambda x: np.diagflat(x, 2), [A[:2, :2]]),
    "diag_embed": (
        lambda x: pb.diag_embed(x, offset=1, axis1=0, axis2=2),
        lambda x: torch.diag_embed(torch.tensor(x), 1, 0, 2).numpy(), [A],
    ),
    "trace": (pb.trace, lambda x: np.trace(x, axis1=-2, axis2=-1), [CUBE]),
    "swapaxes": (lambda x: pb.swapaxes(x, 0, -1), lambda x: np.swapaxes(x, 0, -1), [CUBE]),
    "ravel": (pb.ravel, np.ravel, [CUBE]),
    "flatten": (lambda x: pb.flatten(x, 1), lambda x: x.reshape(3, 20), [CUBE]),
    "unflatten": (lambda x: pb.unflatten(x, 1, (2, -1)), lambda x: x.reshape(3, 2, 2, 5), [CUBE]),
    "atleast_3d": (pb.atleast_3d, np.atleast_3d, [V]),
    "rot90": (pb.rot90, np.rot90, [A]),
    "rot90 back": (lambda x: pb.rot90(x, -1, (1, 2)), lambda x: np.rot90(x, -1, (1, 2)), [CUBE]),
    "rot90 twice": (lambda x: pb.rot90(x, 2), lambda x: np.rot90(x, 2), [A]),
    "vstack": (lambda *x: pb.vstack(x), lambda *x: np.vstack(x), [A, V]),
    "hstack": (lambda *x: pb.hstack(x), lambda *x: np.hstack(x), [V, W]),
    "hstack of matrices": (lambda *x: pb.hstack(x), lambda *x: np.hstack(x), [A, B]),
    "dstack": (lambda *x: pb.dstack(x), lambda *x: np.dstack(x), [A, B]),
    "column_stack": (lambda *x: pb.column_stack(x), lambda *x: np.column_stack(x), [W, A]),
    "block_diag": (pb.block_diag, scipy.linalg.block_diag, [A, V, B]),
    "cartesian_prod": (
        pb.cartesian_prod, lambda *x: torch.cartesian_prod(*map(torch.tensor, x)).numpy(), [V, W]
    ),
    "combinations": (
        lambda x: pb.combinations(x, 3, with_replacement=True),
        lambda x: torch.combinations(torch.tensor(x), 3, True).numpy(), [V],
    ),
    "tensor_split": (lambda x: pb.tensor_split(x, 3), lambda x: np.array_split(x, 3), [A]),
    "tensor_split at": (
        lambda x: pb.tensor_split(x, [1, 4], axis=1), lambda x: np.array_split(x, [1, 4], 1), [A]
    ),
    "chunk": (
        lambda x: pb.chunk(x, 3, axis=1),
        lambda x: [t.numpy() for t in torch.tensor(x).chunk(3, 1)], [A],
    ),
    "narrow": (lambda x: pb.narrow(x, 1, -3, 2), lambda x: x[:, 2:4], [A]),
    "select": (lambda x: pb.select(x, 1, -1), lambda x: x[:, -1], [A]),
    "unfold": (
        lambda x: pb.unfold(x, 1, 3, 2),
        lambda x: torch.tensor(x).unfold(1, 3, 2).numpy(), [CUBE],
    ),
    "vander": (pb.vander, np.vander, [V]),
    "vander up": (lambda x: pb.vander(x, 3, increasing=True), lambda x: np.vander(x, 3, True), [V]),
    "addmm": (
        lambda *x: pb.addmm(*x, beta=0.5, alpha=2.0),
        lambda x, a, b: 0.5 * x + 2.0 * (a @ b), [V, A, drawn(5, 5)],
    ),
    "addmv": (pb.addmv, lambda x, a, b: x + a @ b, [W, A, V]),
    "addr": (pb.addr, lambda x, a, b: x + np.outer(a, b), [A, W, V]),
    "baddbmm": (
        lambda *x: pb.baddbmm(*x, alpha=3.0), lambda x, a, b: x + 3.0 * (a @ b),
        [drawn(3, 1, 5), LEFT, RIGHT],
    ),
    "addbmm": (pb.addbmm, lambda x, a, b: x + (a @ b).sum(0), [drawn(2, 5), LEFT, RIGHT]),
    "inner": (pb.inner, np.inner, [CUBE, V]),
    "inner with a number": (pb.inner, np.inner, [A, np.array(2.0)]),
    "kron": (pb.kron, np.kron, [A, drawn(2, 3)]),
    "kron of other ranks": (pb.kron, np.kron, [CUBE, W]),
    "cross": (lambda a, b: pb.cross(a, b, axis=0), lambda a, b: np.cross(a, b, axis=0),
              [CUBE[:, :2, 0], CUBE[:, :2, 1]]),
    **{
        f"cdist {p}": (
            lambda a, b, p=p: pb.cdist(a, b, p=p),
            lambda a, b, p=p: torch.cdist(torch.tensor(a), torch.tensor(b), p).numpy(),
            [LEFT, drawn(3, 5, 4)],
        )
        for p in (0.0, 1.0, 2.0, 2.5, np.inf)
    },
    "pdist": (pb.pdist, lambda x: torch.pdist(torch.tensor(x)).numpy(), [A]),
    "dist": (
        lambda a, b: pb.dist(a, b, p=3.0),
        lambda a, b: torch.dist(torch.tensor(a), torch.tensor(b), 3.0).numpy(), [A, B],
    ),
    "renorm": (
        lambda x: pb.renorm(x, 2.0, 1, 1.0),
        lambda x: torch.renorm(torch.tensor(x), 2.0, 1, 1.0).numpy(), [CUBE],
    ),
    "copysign": (pb.copysign, np.copysign, [A, B]),
    "fmax": (pb.fmax, np.fmax, [A, B]),
    "fmin": (pb.fmin, np.fmin, [A, B]),
    "heaviside": (pb.heaviside, np.heaviside, [np.array([-1.0, 0.0, 2.0]), drawn(3)]),
    "lerp": (
        pb.lerp, lambda a, b, w: torch.lerp(*map(torch.tensor, (a, b, w))).numpy(), [A, B, V]
    ),
    "hypot": (pb.hypot, np.hypot, [A, B]),
    "logaddexp2": (pb.logaddexp2, np.logaddexp2, [A, B]),
    "exp2": (pb.exp2, np.exp2, [A]),
    "ldexp": (pb.ldexp, np.ldexp, [A, np.array([1, -3, 0, 60, 2], np.int32)]),
    "frexp": (lambda x: pb.frexp(x)[0], lambda x: np.frexp(x)[0], [A]),
    "float_power": (pb.float_power, np.float_power, [np.abs(A), B]),
    "deg2rad": (pb.deg2rad, np.deg2rad, [A]),
    "rad2deg": (pb.rad2deg, np.rad2deg, [A]),
    "frac": (pb.frac, lambda x: torch.frac(torch.tensor(x)).numpy(), [A]),
    "addcmul": (lambda *x: pb.addcmul(*x, value=0.5), lambda x, a, b: x + 0.5 * a * b, [A, B, V]),
    "addcdiv": (lambda *x: pb.addcdiv(*x, value=0.5), lambda x, a, b: x + 0.5 * a / b, [A, B, V]),
    "nan_to_num": (pb.nan_to_num, np.nan_to_num, [A]),
}  # fmt: skip


STEPS = ("diagonal beside", "cdist 0.0", "heaviside")  # nothing to differentiate, or steps


NATIVE = ("diag_embed", "kron", "cdist 2.0", "cdist inf", "hypot", "exp2", "unfold", "vander")


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    own, theirs, arrays = CASES[name]
    found = listed(own(*(pb.tensor(a) for a in arrays)))
    wanted = listed(theirs(*arrays))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert tuple(a.shape) == np.shape(b)
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in CASES if n not in STEPS])
def test_derivatives(name: str) -> None:
    own, _, arrays = CASES[name]
    floats = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    native = name in NATIVE
    report = pb.check_grads(own, floats, layouts=("contiguous",), native=native, second=native)
    assert report, report


PAIRS = {
    "copysign": np.copysign,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "heaviside": np.heaviside,
    "hypot": np.hypot,
    "logaddexp2": np.logaddexp2,
    "nextafter": np.nextafter,
    "isclose": np.isclose,
}
SINGLES = {
    "signbit": np.signbit,
    "isposinf": np.isposinf,
    "isneginf": np.isneginf,
    "nan_to_num": np.nan_to_num,
    "exp2": np.exp2,
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_zeros_infinities_and_nan_of_two(name: str, kind: str) -> None:
    with np.errstate(all="ignore"):
        x = SPECIAL.astype(kind)
        grid = np.broadcast_arrays(x[:, None], x)
        wanted = PAIRS[name](*grid)
    found = getattr(pb, name)(pb.tensor(x[:, None]), pb.tensor(x)).numpy()
    close = 1e-15 if kind == "float64" else 2e-3
    np.testing.assert_allclose(found, wanted, rtol=close)
    if name == "copysign" or (name == "nextafter" and kind != "float16"):  # -0 to 0: as C has it
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("name", SINGLES)
def test_zeros_infinities_and_nan_of_one(name: str) -> None:
    with np.errstate(all="ignore"):
        wanted = SINGLES[name](SPECIAL)
    found = getattr(pb, name)(pb.tensor(SPECIAL)).numpy()
    sure = ~np.isnan(SPECIAL) if name == "signbit" else np.ones(SPECIAL.shape, bool)
    np.testing.assert_allclose(found[sure], wanted[sure], rtol=1e-15)


def test_powers_of_two_are_exact() -> None:
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        x = rng.integers(0, 2**63, 1000, dtype=np.uint64).view(np.float64)
        x = np.concatenate([x, -x, SPECIAL])
        n = rng.integers(-2200, 2200, x.size).astype(np.int32)
        near = (-1060 - np.frexp(x)[1] + rng.integers(0, 60, x.size)).astype(np.int32)
        for power in (n, near):
            found = pb.ldexp(pb.tensor(x), pb.tensor(power)).numpy()
            np.testing.assert_array_equal(found, np.ldexp(x, power))
        m, e = pb.frexp(pb.tensor(x))
        np.testing.assert_array_equal(m.numpy(), np.frexp(x)[0])
        np.testing.assert_array_equal(e.numpy(), np.frexp(x)[1])
        whole = np.arange(-1080.0, 1030.0)
        np.testing.assert_array_equal(pb.exp2(pb.tensor(whole)).numpy(), np.exp2(whole))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_neighbours_of_all_floats(kind: str) -> None:
    own = pb.dtype(kind).numpy
    if kind == "float32":
        words = np.random.default_rng(2).integers(0, 2**32, 20_000, dtype=np.uint32)
    else:
        words = np.arange(2**16, dtype=np.uint16)
    x = words.view(own)
    with np.errstate(all="ignore"):
        for to in (np.inf, -1.0):
            there = np.array(to, own)
            found = pb.nextafter(pb.tensor(x), pb.tensor(there)).numpy()
            wanted = np.nextafter(x, there)
            np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_whole_numbers() -> None:
    a, b = np.meshgrid(np.arange(-12, 13), np.array([0, 1, 4, -6, 9, 2**40]))
    x, y = pb.tensor(a), pb.tensor(b)
    np.testing.assert_array_equal(pb.gcd(x, y).numpy(), np.gcd(a, b))
    np.testing.assert_array_equal(pb.lcm(x, y).numpy(), np.lcm(a, b))
    np.testing.assert_array_equal(pb.jit(pb.gcd)(x, y).numpy(), np.gcd(a, b))
    found = pb.isin(x, pb.tensor([3, -4]), invert=True)
    np.testing.assert_array_equal(found.numpy(), np.isin(a, [3, -4], invert=True))


def test_truths_about_nearness() -> None:
    x = pb.tensor([1.0, np.nan, np.inf])
    assert not bool(pb.allclose(x, x)) and bool(pb.allclose(x, x, equal_nan=True))
    assert bool(pb.allclose(pb.tensor([1, 2]), pb.tensor([1, 2])))
    assert pb.isclose(pb.tensor([np.inf, 1.0]), pb.tensor([1.0, np.inf])).tolist() == [False] * 2


def test_numbers_in_order() -> None:
    for own, theirs in (
        (pb.logspace(0, 3, 7, dtype="float64"), np.logspace(0, 3, 7)),
        (pb.logspace(1, 4, 4, base=2.0, endpoint=False), np.logspace(1, 4, 4, False, 2.0)),
        (pb.geomspace(1, 1000, 9, dtype="float64"), np.geomspace(1, 1000, 9)),
        (pb.geomspace(-8, -1, 4, endpoint=False), np.geomspace(-8, -1, 4, False)),
        (pb.geomspace(3, 5, 1), np.geomspace(3, 5, 1)),
    ):
        close = 1e-13 if own.dtype == pb.float64 else 1e-6
        np.testing.assert_allclose(own.numpy(), theirs, rtol=close)
    for name in ("tril_indices", "triu_indices"):
        found = getattr(pb, name)(4, 6, k=1)
        wanted = getattr(np, name)(4, 1, 6)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    assert pb.broadcast_shapes((3, 1), (4,), 1) == (3, 4)


def test_scalars_inside_a_definition() -> None:
    x = pb.tensor(A)
    found = pb.compute((4, 5), lambda i, j: pb.hypot(x[i, j], 2.0) + pb.fmax(x[i, j], 0.0))
    np.testing.assert_allclose(found.numpy(), np.hypot(A, 2.0) + np.fmax(A, 0.0), rtol=1e-14)


def test_nothing_there() -> None:
    none = pb.zeros((0, 3))
    assert pb.diagonal(none).shape == (0,) and pb.diag_embed(none).shape == (0, 3, 3)
    assert pb.cdist(none, pb.ones((2, 3))).shape == (0, 2)
    assert pb.cdist(pb.zeros((2, 0)), pb.zeros((3, 0)), p=np.inf).numpy().sum() == 0.0
    assert pb.combinations(pb.ones(1)).shape == (0, 2)
    assert pb.block_diag(none, pb.ones((2, 2))).shape == (2, 5)


X = pb.tensor(A)
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "diag": ("E111", lambda: pb.diag(pb.ones((2, 2, 2)))),
    "diagonal": ("E113", lambda: pb.diagonal(X, axis1=0, axis2=-2)),
    "diagonal by a fraction": ("E360", lambda: pb.diagonal(X, offset=0.5)),
    "diag_embed": ("E112", lambda: pb.diag_embed(X, axis1=3)),
    "flatten": ("E124", lambda: pb.flatten(X, 1, 0)),
    "unflatten": ("E114", lambda: pb.unflatten(X, 1, (2, 3))),
    "rot90": ("E134", lambda: pb.rot90(X, 1, (0,))),
    "block_diag": ("E175", lambda: pb.block_diag(pb.ones((2, 2, 2)))),
    "cartesian_prod": ("E175", lambda: pb.cartesian_prod(X, X)),
    "combinations": ("E123", lambda: pb.combinations(pb.ones(3), -1)),
    "tensor_split": ("E123", lambda: pb.tensor_split(X, 0)),
    "chunk": ("E123", lambda: pb.chunk(X, -1)),
    "narrow": ("E123", lambda: pb.narrow(X, 1, 3, 4)),
    "select": ("E155", lambda: pb.select(X, 1, 5)),
    "unfold": ("E126", lambda: pb.unfold(X, 1, 6, 1)),
    "unfold in steps of 0": ("E123", lambda: pb.unfold(X, 1, 2, 0)),
    "geomspace": ("E123", lambda: pb.geomspace(-1, 1, 3)),
    "addmm": ("E175", lambda: pb.addmm(X, X, pb.ones(5))),
    "addmm to a larger one": ("E175", lambda: pb.addmm(pb.ones((2, 4, 4)), X, X.T)),
    "cross": ("E110", lambda: pb.cross(X, X)),
    "cdist": ("E175", lambda: pb.cdist(X, pb.ones((4, 6)))),
    "cdist of p": ("E176", lambda: pb.cdist(X, X, p=-1.0)),
    "renorm": ("E176", lambda: pb.renorm(X, 2.0, 0, -1.0)),
    "ldexp": ("E145", lambda: pb.ldexp(X, 0.5)),
    "nextafter": ("E144", lambda: pb.nextafter(pb.tensor([1]), 2)),
    "gcd": ("E177", lambda: pb.gcd(X, 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_by_code(name: str) -> None:
    code, call = WRONG[name]
    with pytest.raises(PullbackError) as caught:
        call()
    assert caught.value.code == code


def test_the_gradient_of_no_distance_is_none() -> None:
    x = pb.tensor(np.vstack([A, A[:1]]))
    for p in (1.0, 2.0, 2.5):
        slope = pb.grad(pb.sum(pb.cdist(x, x, p=p)), x).numpy()
        assert np.isfinite(slope).all()
        np.testing.assert_allclose(slope.sum(0), 0.0, atol=1e-12)
