"""NumPy's functions on tensors: ``np.sin(t)``, ``np.sum(t, axis=0)``, ``array + t`` give tensors.

A table leads from NumPy's functions to pullback's. What is not in it is refused by name: to go on
with the values alone would hide, silently, what they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback import fft as FT
from pullback import linalg as LA
from pullback.errors import Origin, UnsupportedError
from pullback.stats.places import diff
from pullback.tensor.face.arrays import as_arrays
from pullback.tensor.face.tensor import value_of
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library import sorting as S

Function = Callable[..., Any]

_SAME = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod"),
    *("negative", "positive", "sign", "copysign", "exp", "expm1", "log", "log1p", "log2"),
    *("log10", "logaddexp", "sqrt"),
    *("square", "reciprocal", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil"),
    *("trunc", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater"),
    *("greater_equal", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_xor"),
    *("logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
_OTHERWISE = {
    "power": M.pow, "absolute": M.abs, "rint": M.round, "invert": M.bitwise_invert,
    "left_shift": M.bitwise_left_shift, "right_shift": M.bitwise_right_shift,
    "arcsin": M.asin, "arccos": M.acos, "arctan": M.atan, "arctan2": M.atan2,
    "arcsinh": M.asinh, "arccosh": M.acosh, "arctanh": M.atanh,
    "matmul": O.matmul, "vecdot": O.vecdot,
}  # fmt: skip
UFUNCS: dict[str, Function] = {n: getattr(M, n) for n in _SAME} | _OTHERWISE
REDUCTIONS: dict[str, Function] = {
    "add": O.sum, "multiply": O.prod, "maximum": O.max, "minimum": O.min,
    "logical_and": O.all, "logical_or": O.any,
}  # fmt: skip


def of_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """What ``ufunc(*inputs)`` or ``ufunc.reduce(x)`` is. Raises: UnsupportedError by name."""
    settings = {k: v for k, v in given.items() if v is not None and v is not np._NoValue}
    name = ufunc.__name__
    if "out" in settings:
        raise _refused(f"np.{name} of a tensor into an array", "a += t: write a = a + t")
    if method == "__call__" and name in UFUNCS and not settings:
        return UFUNCS[name](*inputs)
    if method == "reduce" and name in REDUCTIONS and settings.keys() <= {"axis", "keepdims"}:
        return REDUCTIONS[name](*inputs, **{"axis": 0, **settings})
    what = name if method == "__call__" else f"{name}.{method}"
    with_settings = f" with {', '.join(settings)}" if settings else ""
    raise _refused(f"np.{what} of a tensor{with_settings}")


def of_function(function: Function, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """What NumPy's `function` of tensors is. Raises: UnsupportedError by name."""
    name = _name(function)
    if name in LOOKING:
        values, settings = as_arrays((list(args), dict(given)))
        return function(*values, **settings)
    entry = FUNCTIONS.get(name)
    if entry is None:
        raise _refused(f"np.{name} of a tensor")
    settings = {k: v for k, v in given.items() if v is not np._NoValue}
    if len(args) > len(entry.parameters) and not entry.several:
        raise _refused(f"np.{name} of a tensor with {len(args)} arguments")
    if entry.several:
        return entry.target(*args, **settings)
    settings |= dict(zip(entry.parameters, args, strict=False))
    return entry.call(name, settings)


@dataclass(frozen=True, slots=True)
class Known:
    """A function with the names that NumPy gives its parameters, in order; others must be None.

    `several`: it takes any number of arrays.
    """

    target: Function
    parameters: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    several: bool = False

    def call(self, name: str, given: Mapping[str, Any]) -> Any:
        """Raises: UnsupportedError for a parameter that is not here."""
        taken = {k: v for k, v in given.items() if k in self.parameters and k not in self.ignored}
        rest = [k for k, v in given.items() if k not in taken and not _idle(v)]
        if rest:
            raise _refused(f"np.{name} of a tensor with {', '.join(rest)}")
        return self.target(**taken)


def _idle(setting: Any) -> bool:
    """Whether a parameter says nothing."""
    return setting is None or (isinstance(setting, bool | int | str) and setting in (0, "C", "K"))


# What only looks: its results are numbers, text and files.
LOOKING = (
    *("allclose", "array_equal", "array_equiv", "isclose", "array_repr", "array_str"),
    *("array2string", "save", "savez", "savez_compressed", "savetxt"),
)


def _refused(what: str, instead: str = "") -> UnsupportedError:
    help = instead or "use pb's functions, or NumPy's on its values: t.numpy()"
    return UnsupportedError(what, origin=Origin.of_caller(), help=help)


def _name(function: Function) -> str:
    module = str(getattr(function, "__module__", "numpy"))
    own = str(getattr(function, "__name__", function))
    return own if module == "numpy" else f"{module.removeprefix('numpy.')}.{own}"


# --- functions whose parameters differ -----------------------------------------------------------


def _reduced(function: Function) -> Function:
    def call(a: Any, axis: Any = None, keepdims: bool = False, **settings: Any) -> Any:
        return function(a, axis=axis, keepdims=bool(keepdims), **settings)

    return call


def _spread(function: Function) -> Function:
    def call(a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
        return function(a, axis=axis, correction=ddof, keepdims=bool(keepdims))

    return call


def _running(function: Function) -> Function:
    def call(a: Any, axis: int | None = None, dtype: Any = None) -> Any:
        flat = O.reshape(a, (-1,)) if axis is None else a
        return function(flat, axis=0 if axis is None else axis, dtype=dtype)

    return call


def _dot(a: Any, b: Any) -> Any:
    ranks = [len(value_of(x).shape) for x in (a, b)]
    if 0 in ranks:
        return M.multiply(a, b)
    if max(ranks) > 2:
        raise _refused(f"np.dot of tensors of {ranks[0]} and {ranks[1]} axes", "use pb.tensordot")
    return O.matmul(a, b)


def _transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    order = range(len(value_of(a).shape))[::-1] if axes is None else axes
    return O.permute_dims(a, tuple(order))


def _swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    order = list(range(len(value_of(a).shape)))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return O.permute_dims(a, order)


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        raise _refused("np.where of one tensor (its result has no fixed shape)")
    return O.where(condition, x, y)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, min: Any = None, max: Any = None) -> Any:
    return O.clip(a, min if a_min is None else a_min, max if a_max is None else a_max)


def _take(a: Any, indices: Any, axis: int | None = None) -> Any:
    flat = O.reshape(a, (-1,)) if axis is None else a
    return O.take(flat, indices, axis=0 if axis is None else axis)


def _sorted(function: Function) -> Function:
    def call(a: Any, axis: int | None = -1) -> Any:
        flat = O.reshape(a, (-1,)) if axis is None else a
        return function(flat, axis=-1 if axis is None else axis)

    return call


def _pad(array: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    if mode != "constant":
        raise _refused(f"np.pad of a tensor by mode {mode!r}", "concat slices, or index modulo")
    return O.pad(array, pad_width, constant_values)


def _stacked(axis: int) -> Function:
    def call(tup: Sequence[Any]) -> Any:
        rank = max(len(value_of(x).shape) for x in tup)
        if rank < 2 and axis == 0:
            return O.stack(tup)
        return O.concat(tup, axis=axis if rank > 1 else 0)

    return call


def _transformed(function: Function) -> Function:
    def call(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return function(a, n, axis, norm or "backward")

    return call


def _known(target: Function, parameters: str, ignored: str = "", several: bool = False) -> Known:
    return Known(target, tuple(parameters.split()), tuple(ignored.split()), several)


def _under(names: str, function: Function) -> Function:
    """`function` with its parameters called as NumPy calls them."""
    own = names.split()

    def call(**given: Any) -> Any:
        first = [given.pop(n) for n in own if n in given]
        return function(*first, **given)

    return call


def _at_least_1d(*given: Any) -> Any:
    tensors = tuple(O.reshape(a, (1,)) if a.ndim == 0 else a for a in map(C.asarray, given))
    return tensors[0] if len(tensors) == 1 else tensors


def _like(function: Function) -> Known:
    return _known(_under("a fill_value", function), "a dtype")


FUNCTIONS: dict[str, Known] = {
    **{n: _known(_reduced(getattr(O, n)), "a axis dtype out keepdims", "out")
       for n in ("sum", "prod")},
    "mean": _known(_reduced(O.mean), "a axis dtype out keepdims", "dtype out"),
    **{n: _known(_reduced(getattr(O, n)), "a axis out keepdims", "out")
       for n in ("max", "min", "all", "any", "argmax", "argmin")},
    **{n: _known(_spread(getattr(O, n)), "a axis dtype out ddof keepdims", "dtype out")
       for n in ("var", "std")},
    "cumsum": _known(_running(O.cumulative_sum), "a axis dtype out", "out"),
    "cumprod": _known(_running(O.cumulative_prod), "a axis dtype out", "out"),
    "cumulative_sum": _known(_under("x", O.cumulative_sum), "x axis dtype include_initial"),
    "cumulative_prod": _known(_under("x", O.cumulative_prod), "x axis dtype include_initial"),
    "dot": _known(_dot, "a b out", "out"),
    "tensordot": _known(_under("a b axes", O.tensordot), "a b axes"),
    "einsum": _known(O.einsum, "", several=True),
    "outer": _known(_under("a b", O.outer), "a b out", "out"),
    "concatenate": _known(_under("arrays", O.concat), "arrays axis out", "out"),
    "stack": _known(_under("arrays", O.stack), "arrays axis out", "out"),
    "hstack": _known(_stacked(1), "tup"),
    "vstack": _known(_stacked(0), "tup"),
    "reshape": _known(_under("a shape", O.reshape), "a shape order", "order"),
    "ravel": _known(lambda a: O.reshape(a, (-1,)), "a order", "order"),
    "transpose": _known(_transpose, "a axes"),
    "matrix_transpose": _known(_under("x", O.matrix_transpose), "x"),
    "swapaxes": _known(_swapaxes, "a axis1 axis2"),
    "moveaxis": _known(_under("a source destination", O.moveaxis), "a source destination"),
    "squeeze": _known(_under("a", O.squeeze), "a axis"),
    "expand_dims": _known(_under("a", O.expand_dims), "a axis"),
    "broadcast_to": _known(_under("array shape", O.broadcast_to), "array shape"),
    "atleast_1d": _known(_at_least_1d, "", several=True),
    "broadcast_arrays": _known(O.broadcast_arrays, "", several=True),
    "meshgrid": _known(C.meshgrid, "", several=True),
    "flip": _known(_under("m", O.flip), "m axis"),
    "roll": _known(_under("a shift", O.roll), "a shift axis"),
    "tile": _known(_under("A reps", O.tile), "A reps"),
    "repeat": _known(_under("a repeats", O.repeat), "a repeats axis"),
    "tril": _known(_under("m", O.tril), "m k"),
    "triu": _known(_under("m", O.triu), "m k"),
    "where": _known(_where, "condition x y"),
    "clip": _known(_clip, "a a_min a_max out min max", "out"),
    "take": _known(_take, "a indices axis out mode", "out mode"),
    "take_along_axis": _known(_under("arr indices axis", O.take_along_axis), "arr indices axis"),
    "sort": _known(_sorted(S.sort), "a axis kind", "kind"),
    "argsort": _known(_sorted(S.argsort), "a axis kind", "kind"),
    "split": _known(_under("ary indices_or_sections axis", O.split),
                    "ary indices_or_sections axis"),
    "pad": _known(_pad, "array pad_width mode constant_values"),
    "diff": _known(_under("a", diff), "a n axis prepend append"),
    "round": _known(_under("a", M.round), "a decimals out", "decimals out"),
    "zeros_like": _like(C.zeros_like),
    "ones_like": _like(C.ones_like),
    "empty_like": _known(_under("prototype", C.empty_like), "prototype dtype"),
    "full_like": _known(_under("a fill_value", C.full_like), "a fill_value dtype"),
    "shape": _known(lambda a: a.shape, "a"),
    "ndim": _known(lambda a: a.ndim, "a"),
    "size": _known(lambda a: a.size, "a"),
    **{f"linalg.{n}": _known(_under("a", getattr(LA, n)), "a")
       for n in ("cholesky", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "pinv",
                 "slogdet")},
    "linalg.solve": _known(_under("a b", LA.solve), "a b"),
    "linalg.qr": _known(_under("a", LA.qr), "a mode"),
    "linalg.svd": _known(_under("a", LA.svd), "a full_matrices"),
    "linalg.svdvals": _known(_under("x", LA.svdvals), "x"),
    "linalg.norm": _known(_under("x", LA.norm), "x ord axis keepdims"),
    "linalg.cond": _known(_under("x", LA.cond), "x p"),
    "linalg.matrix_power": _known(_under("a n", LA.matrix_power), "a n"),
    "linalg.multi_dot": _known(_under("arrays", LA.multi_dot), "arrays out", "out"),
    **{f"fft.{n}": _known(_transformed(getattr(FT, n)), "a n axis norm out", "out")
       for n in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
}  # fmt: skip
