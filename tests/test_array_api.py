"""`pullback.array_api` is the standard 2024.12, but for what docs/array_api.md lists."""

from __future__ import annotations

import inspect
import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pullback as pb
from pullback import array_api as xp
from pullback.errors import (
    DTypeError,
    GradientError,
    OptionError,
    PullbackError,
    ShapeError,
    UnsupportedError,
)
from pullback.tensor.face.arrays import as_arrays

PAGES = Path(__file__).parent.parent / "docs"
PAGE = (PAGES / "array_api.md").read_text()

# The functions of the standard under their parameters: by place before "/", by name after "*".
FUNCTIONS = {
    "x /": "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor"
    " imag isfinite isinf isnan log log10 log1p log2 logical_not matrix_transpose negative nonzero"
    " positive real reciprocal round sign signbit sin sinh sqrt square tan tanh trunc unique_all"
    " unique_counts unique_inverse unique_values",
    "type /": "finfo iinfo",
    "*arrays": "broadcast_arrays",
    "x / * k": "tril triu",
    "x1 x2 /": "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor"
    " copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp"
    " logical_and logical_or logical_xor matmul maximum minimum multiply nextafter not_equal pow"
    " remainder subtract",
    "x / axes": "permute_dims",
    "x / axis": "expand_dims squeeze",
    "x / shape": "broadcast_to",
    "dtype kind": "isdtype",
    "from_ to /": "can_cast",
    "x / * axis": "flip unstack",
    "x / min max": "clip",
    "x1 x2 / * axes": "tensordot",
    "x1 x2 / * axis": "vecdot",
    "arrays / * axis": "concat stack",
    "x repetitions /": "tile",
    "*arrays indexing": "meshgrid",
    "x / shape * copy": "reshape",
    "x / shift * axis": "roll",
    "condition x1 x2 /": "where",
    "x / * device copy": "from_dlpack",
    "*arrays_and_dtypes": "result_type",
    "x / * dtype device": "empty_like ones_like zeros_like",
    "x indices / * axis": "take take_along_axis",
    "x repeats / * axis": "repeat",
    "x / * axis keepdims": "all any argmax argmin count_nonzero max mean min",
    "shape * dtype device": "empty ones zeros",
    "x1 x2 / * side sorter": "searchsorted",
    "x source destination /": "moveaxis",
    "x dtype / * copy device": "astype",
    "obj / * dtype device copy": "asarray",
    "x / * axis dtype keepdims": "prod sum",
    "x / * axis n prepend append": "diff",
    "x / * axis descending stable": "argsort sort",
    "x / fill_value * dtype device": "full_like",
    "x / * axis correction keepdims": "std var",
    "shape fill_value * dtype device": "full",
    "n_rows n_cols / * k dtype device": "eye",
    "start / stop step * dtype device": "arange",
    "x / * axis dtype include_initial": "cumulative_prod cumulative_sum",
    "start stop / num * dtype device endpoint": "linspace",
    " /": "__array_namespace_info__",
}
LINALG = {
    "x /": "det eigh eigvalsh inv matrix_transpose slogdet svdvals",
    "x n /": "matrix_power",
    "x1 x2 /": "matmul outer solve",
    "x / * mode": "qr",
    "x / * rtol": "matrix_rank pinv",
    "x / * upper": "cholesky",
    "x / * offset": "diagonal",
    "x1 x2 / * axes": "tensordot",
    "x1 x2 / * axis": "cross vecdot",
    "x / * keepdims ord": "matrix_norm",
    "x / * offset dtype": "trace",
    "x / * full_matrices": "svd",
    "x / * axis keepdims ord": "vector_norm",
}
FACTS = (
    *("e", "inf", "nan", "newaxis", "pi", "bool", "int8", "int16", "int32", "int64", "uint8"),
    *("uint16", "uint32", "uint64", "float32", "float64", "complex64", "complex128", "linalg"),
    *("fft", "__array_api_version__"),
)
METHODS = (
    "abs add and array_namespace bool complex dlpack dlpack_device eq float floordiv ge getitem gt"
    " index int invert le lshift lt matmul mod mul ne neg or pos pow rshift setitem sub truediv xor"
)
REFLECTED = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
ATTRIBUTES = ("dtype", "device", "mT", "ndim", "shape", "size", "T", "to_device")

SHAPES = ((3, 5), (0, 5), ())
FLOATS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1"),
    *("floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "reciprocal"),
    *("round", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "abs", "negative"),
    *("positive", "sign", "square", "real", "conj", "imag"),
)
PAIRS = (
    *("add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less"),
    *("less_equal", "greater", "greater_equal"),
)
OF_FLOATS = ("atan2", "copysign", "divide", "hypot", "logaddexp", "pow", "nextafter")
OF_FLOATS += ("floor_divide", "remainder")
OF_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
TRUTHS = ("logical_and", "logical_or", "logical_xor")


def listed() -> set[str]:
    """The names that the page says are missing."""
    rows = [n for n in PAGE.splitlines() if n.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, parameters) for parameters, names in table.items() for name in names.split()]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).normal(size=shape))


def numbers(*shape: int) -> Any:
    return np.asarray(np.random.default_rng(1).integers(0, 7, shape))


def tensors(tree: Any) -> Any:
    return pb.asarray(tree) if isinstance(tree, np.ndarray) else tree


def compare(calls: dict[str, Callable[[Any, Any], Any]], *arrays: Any) -> None:
    """Each call with NumPy's namespace and with ours, which compute all of them as one program."""
    own = [pb.asarray(a) for a in arrays]
    found = as_arrays({name: call(xp, *own) for name, call in calls.items()})
    with np.errstate(all="ignore"):
        wanted = {name: call(np, *arrays) for name, call in calls.items()}
    for name in calls:
        pairs = [(found[name], wanted[name])]
        if isinstance(wanted[name], tuple | list):
            pairs = list(zip(found[name], wanted[name], strict=True))
        for a, b in pairs:
            assert a.shape == b.shape, (name, a.shape, b.shape)
            assert a.dtype == b.dtype or str(b.dtype) in ("uint64", "int16"), (name, a.dtype)
            assert np.allclose(a, b, rtol=1e-9, equal_nan=True), (name, a, b)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["", "linalg"])
def test_every_function_is_here_with_its_parameters_or_listed(space: str) -> None:
    module = getattr(xp, space) if space else xp
    for name, parameters in rows(LINALG if space else FUNCTIONS):
        if not hasattr(module, name):
            assert name in listed(), name
            continue
        assert name in module.__all__ and inspect.getdoc(getattr(module, name)), name
        positional, _, keywords = parameters.replace("*arrays", "/").partition("*")
        own = inspect.signature(getattr(module, name))
        first, _, both = positional.partition("/")
        count = len(first.split())
        own.bind(*range(count + len(both.split())), **dict.fromkeys(keywords.split()))
        if "/" in parameters:
            own.bind(*range(count), **dict.fromkeys([*both.split(), *keywords.split()]))
        else:
            own.bind(**dict.fromkeys([*first.split(), *keywords.split()]))


def test_every_other_name_is_here_or_listed_and_nothing_that_is_here() -> None:
    missing = {n for n in FACTS if not hasattr(xp, n)}
    missing |= {f"__{m}__" for m in METHODS.split() if not hasattr(pb.Tensor, f"__{m}__")}
    missing |= {f"__r{m}__" for m in REFLECTED.split() if not hasattr(pb.Tensor, f"__r{m}__")}
    missing |= {a for a in ATTRIBUTES if not hasattr(pb.Tensor, a)}
    assert missing == listed()


def test_the_table_is_the_standard() -> None:
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    for name, _ in rows(FUNCTIONS):
        assert hasattr(strict, name), name
    for name, _ in rows(LINALG):
        assert hasattr(strict.linalg, name), name


def test_what_the_namespace_says() -> None:
    x = xp.zeros((2, 3))
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(UnsupportedError, match="2021"):
        x.__array_namespace__(api_version="2021.12")
    project = tomllib.loads((PAGES.parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["array_api"] == {"pullback": xp.__name__}
    assert pb.array_api is xp and xp.__array_api_version__ == "2024.12"
    info = xp.__array_namespace_info__()
    assert info.default_device() == "cpu" and info.devices() == ["cpu"]
    assert info.default_dtypes()["real floating"] == xp.float32 == x.dtype
    assert info.capabilities()["boolean indexing"] is True
    widths = (8, 16, 32, 64)
    wanted = {f"{kind}{bits}" for kind in ("int", "uint") for bits in widths}
    assert set(info.dtypes(kind="integral")) == wanted
    assert list(info.dtypes(kind=("bool", "real floating"))) == ["bool", "float32", "float64"]
    assert x.to_device("cpu") is x and x.device == "cpu"
    with pytest.raises(UnsupportedError, match="gpu"):
        xp.zeros(3, device="gpu")


# --- values --------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements(shape: tuple[int, ...]) -> None:
    x, y = normal(*shape), normal(*shape, seed=1)
    n, m = numbers(*shape), numbers(*shape) % 3
    alone = {name: lambda s, a, *_, f=name: getattr(s, f)(a) for name in FLOATS}
    both = {
        name: lambda s, a, b, *_, f=name: getattr(s, f)(s.abs(a) if f == "pow" else a, b)
        for name in (*PAIRS, *OF_FLOATS)
    }
    whole = {f"{n}, int": lambda s, a, b, c, d, f=n: getattr(s, f)(c, d) for n in PAIRS + OF_BITS}
    truth = {n: lambda s, a, b, *_, f=n: getattr(s, f)(a > 0, b > 0) for n in TRUTHS}
    more: dict[str, Any] = {
        "logical_not": lambda s, a, *_: s.logical_not(a > 0),
        "bitwise_invert": lambda s, a, b, c, d: s.bitwise_invert(c),
        "scalars": lambda s, a, b, c, d: (s.add(a, 2), s.multiply(3, c), s.subtract(1.5, b)),
        "clip": lambda s, a, b, c, d: (s.clip(a, -0.5, 0.5), s.clip(a, max=0.0), s.clip(c, 2, 4)),
        "where": lambda s, a, b, *_: s.where(a > b, a, b),
        "astype": lambda s, a, b, c, d: (s.astype(c, s.float32), s.astype(a > 0, s.int8)),
    }
    compare(alone | both | whole | truth | more, x, y, n, m)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_reductions(shape: tuple[int, ...]) -> None:
    rank = len(shape)
    x, n = normal(*shape), numbers(*shape)
    last = {"axis": -1} if rank else {}
    calls: dict[str, Any] = {
        "sum": lambda s, a, b: (s.sum(a), s.sum(b), s.sum(a, **last), s.sum(a, keepdims=True)),
        "prod": lambda s, a, b: (s.prod(a), s.prod(b), s.prod(a, **last)),
        "mean": lambda s, a, b: s.mean(a, **last),
        "var": lambda s, a, b: (s.var(a, **last), s.std(a, **last)),
        "truth": lambda s, a, b: (s.all(b > 1), s.any(b > 1, **last), s.all(b > 1, **last)),
        "count_nonzero": lambda s, a, b: (s.count_nonzero(b, **last), s.count_nonzero(b)),
        "like": lambda s, a, b: (s.zeros_like(a), s.ones_like(b), s.full_like(a, 2.5)),
        "flat": lambda s, a, b: (s.reshape(a, (-1,)) if a.size else s.reshape(a, (0,)), s.flip(a)),
        "expand_dims": lambda s, a, b: (s.expand_dims(a, axis=0), s.expand_dims(a, axis=-1)),
        "stack": lambda s, a, b: (s.stack([a, a]), s.stack([b, b], axis=-1)),
        "broadcast_to": lambda s, a, b: s.broadcast_to(a, (2, *shape)),
        "broadcast_arrays": lambda s, a, b: s.broadcast_arrays(a, s.stack([a, a])),
        "tile": lambda s, a, b: (s.tile(a, (2,)), s.tile(a, (2, 1, 3))),
        "concat": lambda s, a, b: s.concat([a, a], axis=None),
    }
    if rank:
        calls |= {
            "joined": lambda s, a, b: (s.concat([a, a]), s.concat([b, b], axis=-1)),
            "sort": lambda s, a, b: (s.sort(a, axis=1), s.sort(b, axis=0), s.argsort(b, axis=1)),
            "running": lambda s, a, b: s.cumulative_sum(a, axis=1, include_initial=True),
            "products": lambda s, a, b: s.cumulative_prod(a, axis=0),
            "permute_dims": lambda s, a, b: (s.permute_dims(a, (1, 0)), s.matrix_transpose(b)),
            "moveaxis": lambda s, a, b: (s.moveaxis(a, 0, 1), s.moveaxis(a, (0, 1), (1, 0))),
            "roll": lambda s, a, b: (s.roll(a, 2, axis=1), s.roll(b, 1)),
            "roll two": lambda s, a, b: s.roll(a, (1, 2), axis=(0, 1)),
            "repeat": lambda s, a, b: (s.repeat(a, 2, axis=1), s.repeat(b, 2)),
            "unstack": lambda s, a, b: s.unstack(a, axis=1),
            "squeeze": lambda s, a, b: s.squeeze(a[:, :1], axis=1),
            "triangles": lambda s, a, b: (s.tril(a), s.triu(b, k=1), s.tril(a, k=-1)),
            "diff": lambda s, a, b: (s.diff(a, axis=1), s.diff(a, axis=1, n=2)),
            "diff between": lambda s, a, b: s.diff(b, axis=1, prepend=b[:, :2], append=b[:, 1:2]),
            "take": lambda s, a, b: s.take(a, s.asarray([4, 0, 2]), axis=1),
            "max": lambda s, a, b: (s.max(a, axis=1), s.min(b, axis=1), s.argmax(a, axis=1)),
            "products of matrices": lambda s, a, b: (s.matmul(a, s.ones((5, 2), dtype=s.float64)),
                s.vecdot(a, a), s.tensordot(a, b * 1.0, axes=([0, 1], [0, 1]))),
        }  # fmt: skip
    compare(calls, x, n)


def test_places() -> None:
    x, ordered = normal(4, 6), np.sort(normal(7))
    calls: dict[str, Any] = {
        "take_along_axis": lambda s, a, o: s.take_along_axis(a, s.argsort(a, axis=1), axis=1),
        "searchsorted": lambda s, a, o: (s.searchsorted(o, a), s.searchsorted(o, o, side="right")),
        "sorter": lambda s, a, o: s.searchsorted(s.flip(o), a, sorter=s.argsort(s.flip(o))),
        "left": lambda s, a, o: s.searchsorted(o, o),
        "nonzero": lambda s, a, o: s.nonzero(a > 0),
        "repeat": lambda s, a, o: s.repeat(a, s.asarray([1, 0, 2, 3]), axis=0),
        "unique": lambda s, a, o: tuple(s.unique_all(s.round(a))),
        "unique_values": lambda s, a, o: s.unique_values(s.round(a)),
        "unique_counts": lambda s, a, o: tuple(s.unique_counts(s.round(a))),
        "unique_inverse": lambda s, a, o: tuple(s.unique_inverse(s.round(a))),
        "indices": lambda s, a, o: (a[1], a[..., -1], a[::2, 1:-1], a[None, 2:2], a[-1, ::-2]),
    }
    compare(calls, x, ordered)


def test_creation() -> None:
    f = "float64"
    calls: dict[str, Any] = {
        "filled": lambda s: (s.zeros((2, 0), dtype=getattr(s, f)), s.full((), 3), s.full(2, True)),
        "ones": lambda s: (s.ones(shape=3, dtype=s.int32), s.empty((0,), dtype=s.int8)),
        "arange": lambda s: (s.arange(5), s.arange(2, 11, 3)),
        "backwards": lambda s: s.arange(1.0, 0.0, -0.25, dtype=s.float64),
        "linspace": lambda s: s.linspace(0, 1, 7, dtype=s.float64),
        "no end": lambda s: s.linspace(1, 2, num=4, endpoint=False, dtype=s.float64),
        "eye": lambda s: (s.eye(3, dtype=s.float64), s.eye(2, 4, k=1, dtype=s.int32)),
        "asarray": lambda s: (s.asarray([[1, 2], [3, 4]]), s.asarray(True)),
        "a number": lambda s: s.asarray(2.5, dtype=s.float64),
        "meshgrid": lambda s: s.meshgrid(s.arange(3), s.arange(2)),
        "ij": lambda s: s.meshgrid(s.arange(3), s.arange(2), indexing="ij"),
    }  # fmt: skip
    compare(calls)


def test_ends_of_the_line_of_numbers() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, 3.0, 5e-324])
    y = np.array([-0.0, 0.0, 1.0, np.nan, np.inf, 1e300, -4.0, 0.0])
    compare(
        {
            "hypot": lambda s, a, b: s.hypot(a, b),
            "copysign": lambda s, a, b: s.signbit(s.copysign(a, b))[:4],
            "signbit": lambda s, a, b: s.signbit(a),
            "nextafter": lambda s, a, b: s.nextafter(a, b),
            "unique": lambda s, a, b: s.unique_values(a),
        },
        x,
        y,
    )


# --- linalg --------------------------------------------------------------------------------------


NORMS = (
    *((None, 2, False), (1, 1, True), (2, 3, False)),
    *((0, np.inf, False), (0, -np.inf, False), (1, 0, False)),
)  # axis, order, whether axes stay


def test_linear_algebra() -> None:
    a = normal(2, 3, 3)
    positive = a @ a.swapaxes(-1, -2) + np.eye(3)
    calls: dict[str, Any] = {
        "det": lambda s, a, p: (s.det(a), s.inv(a), s.solve(a, p), s.matrix_rank(a), s.pinv(a)),
        "slogdet": lambda s, a, p: tuple(s.slogdet(a)),
        "cholesky": lambda s, a, p: (s.cholesky(p), s.cholesky(p, upper=True)),
        "symmetric": lambda s, a, p: (s.eigvalsh(p), s.eigh(p).eigenvalues),
        "svd": lambda s, a, p: (s.svdvals(a), s.svd(a).S, s.svd(a, full_matrices=False).S),
        "qr": lambda s, a, p: (s.qr(a).Q, s.qr(a, mode="reduced").R),
        "diagonals": lambda s, a, p: tuple(s.diagonal(a, offset=n) for n in (0, 1, -2)),
        "no diagonal": lambda s, a, p: s.diagonal(a, offset=5),
        "wide": lambda s, a, p: (s.diagonal(a[:, :2], offset=-1), s.diagonal(a[:, :2], offset=2)),
        "trace": lambda s, a, p: (s.trace(a), s.trace(a, offset=-1)),
        "cross": lambda s, a, p: (s.cross(a, p), s.cross(a, p, axis=1)),
        "power": lambda s, a, p: tuple(s.matrix_power(a, n) for n in (0, 1, 2, 5, -2)),
        "norms": lambda s, a, p: tuple(
            s.vector_norm(a, axis=k, ord=o, keepdims=d)
            for k, o, d in NORMS
        ),
        "of matrices": lambda s, a, p: tuple(
            s.matrix_norm(a, ord=o) for o in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
        ),
        "kept": lambda s, a, p: tuple(s.matrix_norm(a, keepdims=True, ord=o) for o in ("fro", 1)),
        "outer": lambda s, a, p: (s.outer(a[0, 0], a[0, 1]), s.matmul(a, p), s.matrix_transpose(a)),
    }  # fmt: skip
    own = [pb.asarray(x) for x in (a, positive)]
    found = as_arrays({name: call(xp.linalg, *own) for name, call in calls.items()})
    for name, call in calls.items():
        wanted = call(np.linalg, a, positive)
        own, wanted = ((t if isinstance(t, tuple) else (t,)) for t in (found[name], wanted))
        for x, y in zip(own, wanted, strict=True):
            assert x.shape == y.shape and np.allclose(x, y), name


# --- types, boundaries ---------------------------------------------------------------------------


def test_types() -> None:
    assert xp.isdtype(xp.int32, "integral") and not xp.isdtype(xp.uint8, "signed integer")
    assert xp.isdtype(xp.float32, ("bool", xp.float32)) and not xp.isdtype(xp.bool, "numeric")
    with pytest.raises(DTypeError, match="no kind"):
        xp.isdtype(xp.int32, "whole")
    assert xp.can_cast(xp.int8, xp.int32) and not xp.can_cast(xp.int32, xp.float64)
    assert not xp.can_cast(xp.float64, xp.float32) and xp.can_cast(xp.uint8, xp.int32)
    assert xp.result_type(xp.zeros(2), xp.float64) == xp.float64
    for name in ("float32", "float64"):
        own, wanted = xp.finfo(getattr(xp, name)), np.finfo(name)
        for fact in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(own, fact) == getattr(wanted, fact), fact
    assert xp.iinfo(xp.asarray([1], dtype=xp.uint8)).max == 255 and xp.iinfo(xp.int32).bits == 32
    for wrong in (lambda: xp.finfo(xp.int32), lambda: xp.iinfo(xp.float32)):
        with pytest.raises(DTypeError):
            wrong()


def test_kinds_do_not_mix() -> None:
    x, n, b = xp.ones(3), xp.arange(3), xp.asarray([True, False, True])
    mixed: list[Callable[[], Any]] = [
        lambda: xp.add(x, n),
        lambda: xp.multiply(n, 2.5),
        lambda: xp.add(b, 1),
        lambda: xp.where(b, x, n),
        lambda: xp.concat([x, n]),
        lambda: xp.stack([n, b]),
        lambda: xp.clip(n, 0.5, 2.5),
        lambda: xp.result_type(xp.int32, xp.float32),
        lambda: xp.equal(b, x),
    ]
    for call in mixed:
        with pytest.raises(DTypeError, match="mix"):
            call()
    with pytest.raises(DTypeError, match="two Python numbers"):
        xp.add(1, 2)
    assert xp.add(x, 1).dtype == xp.float32 and (x + n).dtype == xp.float32
    with pytest.raises(ShapeError):
        xp.take(xp.ones((2, 2)), n)


def test_what_numpy_computes_is_visible() -> None:
    """No derivative passes, and none is silently 0; a program does not contain it."""
    a = np.eye(3) + 0.1 * normal(3, 3)
    for name in ("unique_values",):
        function = getattr(xp, name)
        for derive in (pb.grad, lambda f: lambda x: pb.jvp(f, x, x)):
            with pytest.raises(GradientError, match=r"unique_all runs in NumPy"):
                derive(lambda x, f=function: pb.sum(f(x)))(pb.tensor(a))
        with pytest.raises(UnsupportedError, match=r"unique_all inside a compiled"):
            pb.jit(function)(a)
    still = pb.grad(lambda x: pb.sum(x * xp.linalg.inv(pb.stop_gradient(x))))(a)
    assert np.allclose(still, np.linalg.inv(a))
    for derive in (pb.grad, lambda f: pb.jit(pb.grad(f))):
        slope = derive(lambda x: xp.linalg.slogdet(x).logabsdet)(pb.tensor(a)).numpy()
        assert np.allclose(slope, np.linalg.inv(a).T)
    picked = pb.grad(lambda x: pb.sum(xp.take(x, xp.nonzero(x > 0)[0])))(np.array([1.0, -2.0, 3.0]))
    assert np.array_equal(picked, [1.0, 0.0, 1.0])
    assert np.allclose(pb.grad(lambda x: xp.linalg.trace(xp.linalg.matrix_power(x, 2)))(a), 2 * a.T)


def test_masks_are_refused_by_name_in_programs() -> None:
    x = xp.arange(3)
    assert x[x > 1].tolist() == [2]
    with pytest.raises(UnsupportedError, match="mask"):
        pb.jit(lambda x: x[x > 1])(x)


def test_exchange() -> None:
    x = xp.asarray(np.arange(6.0).reshape(2, 3))
    assert np.array_equal(np.from_dlpack(x), x.numpy())
    assert np.array_equal(xp.from_dlpack(np.arange(3)).numpy(), [0, 1, 2])
    assert xp.from_dlpack(x, device=x.__dlpack_device__(), copy=True) is not x
    assert list(inspect.signature(x.__dlpack__).parameters) == [
        "stream", "max_version", "dl_device", "copy",
    ]  # fmt: skip
    assert x.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=True) is not None
    for wrong in ({"copy": False}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(OptionError):
            x.__dlpack__(**wrong)
    assert float(x[1, 2]) == 5.0 and int(xp.asarray(3)) == 3 and bool(xp.asarray(True))
    assert complex(x[1, 2]) == 5.0 and [1, 2, 3][xp.asarray(1)] == 2


def test_code_for_the_standard_runs_in_programs() -> None:
    """A function written against the namespace of its argument, compiled and derived."""

    def standardized(x: Any) -> Any:
        space = x.__array_namespace__()
        mean = space.mean(x, axis=0, keepdims=True)
        return space.sum(space.square(x - mean) / (1.0 + space.var(x, axis=0, keepdims=True)))

    x = normal(4, 3)
    value, slope = pb.jit(pb.value_and_grad(standardized))(x)
    assert np.isclose(value, standardized(x))
    step = np.zeros((4, 3))
    step[2, 1] = 1e-6
    assert np.isclose(slope[2, 1], (standardized(x + step) - standardized(x - step)) / 2e-6)


def test_no_differences_and_rows_of_boundaries() -> None:
    x = xp.asarray([1.0, 4.0, 9.0])
    assert xp.diff(x, n=0, prepend=xp.zeros(2), append=xp.zeros(1)).shape == (3,)
    assert xp.diff(x, n=2, prepend=xp.zeros(2)).shape == (3,)
    with pytest.raises(PullbackError) as caught:
        xp.searchsorted(xp.ones((2, 2)), xp.ones((2, 2)))
    assert caught.value.code == "E111"


SUITE = """
<testsuite>
<testcase classname="array_api_tests.test_a" name="test_x[1 -&gt; -0]"/>
<testcase classname="array_api_tests.test_a.TestY" name="test_z"><failure/></testcase>
<testcase classname="array_api_tests.test_b" name="test_u"><skipped type="pytest.xfail"/></testcase>
<testcase classname="array_api_tests.test_b" name="test_v"><skipped type="pytest.skip"/></testcase>
</testsuite>
"""


def test_the_public_suite_is_counted_as_it_reports() -> None:
    script = runpy.run_path(str(PAGES.parent / "scripts" / "array_api_tests.py"))
    cases = list(ElementTree.fromstring(SUITE).iter("testcase"))
    assert [script["outcome"](c) for c in cases] == ["passed", "failed", "listed", "skipped"]
    assert script["name_of"](cases[0]) == "array_api_tests/test_a.py::test_x[1 -> -0]"
    assert script["name_of"](cases[1]) == "array_api_tests/test_a.py::TestY::test_z"
    listed = script["expected"]()
    assert len(listed) == len(set(listed)) == 10 and all(" " in n or "[" not in n for n in listed)
