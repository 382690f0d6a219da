"""PyTorch's operators, as OpInfo names and calls them, in pullback's functions.

`RULES[name](input, *args, **kwargs)` takes what a sample holds, tensors turned into ours. A name
that is missing is absent; `ABSENT` gives the families of those and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb

F = pb.nn.functional
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# Results are drawn: shapes are compared, not values.
DRAWN = {
    "bernoulli", "multinomial", "randint", "randint_like", "randn", "randn_like", "rand_like",
    "normal", "normal.number_mean", "normal.in_place", "uniform", "exponential", "cauchy",
    "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.rrelu",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "empty", "empty_like", "new_empty", "empty_permuted",
    "empty_strided", "new_empty_strided",
}  # fmt: skip
# Values are compared, gradients not: of the next float PyTorch's slope is 1, ours none, as of what
# rounds.
NO_SLOPE = {"nextafter"}


class LeftOut(Exception):
    """A sample that is not judged. No LookupError: coded errors of an index are of that class."""


ABSENT = {
    "storage": "as_strided, resize_, views of storage: tensors have values, not memory",
    "sparse": "sparse layouts",
    "private": "functions behind an underscore, and those of one of PyTorch's backends",
    "complex": "functions of complex numbers alone",
    "factors": "factorisations in LAPACK's packed form: geqrf, lu_factor, ldl, householder_product",
    "polynomials": "orthogonal polynomials and Bessel functions of other kinds",
    "masked": "torch.masked, a prototype: where and the reduction",
    "shape of data": "results whose shape depends on data, of which only eager forms exist",
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a function under its operators' names."""

    def enter(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return enter


def put(names: str, function: Rule) -> None:
    for name in names.split():
        RULES[name] = function


def kind(dtype: Any) -> Any:
    """A type of PyTorch's as ours."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def axes(dim: Any) -> Any:
    """An axis, several, or None for all; PyTorch takes () for all of them."""
    return tuple(dim) or None if isinstance(dim, list | tuple) else dim


def shape_of(sizes: Any) -> Any:
    """Sizes that came apart, or as one."""
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)


# --- element by element --------------------------------------------------------------------------

for name in [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "positive",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "deg2rad",
    "rad2deg",
    "frac",
]:
    RULES[name] = getattr(pb, name)
for name in [
    "add",
    "atan2",
    "copysign",
    "eq",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "heaviside",
    "hypot",
    "lcm",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "nextafter",
    "remainder",
    "pow",
    "ldexp",
    "float_power",
    "isclose",
]:
    RULES[name] = getattr(pb, {"eq": "equal"}.get(name, name))
for theirs, ours in {
    "neg": "negative", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less",
    "ne": "not_equal", "bitwise_not": "bitwise_invert", "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "true_divide": "divide",
    "bitwise_left_shift": "bitwise_left_shift", "bitwise_right_shift": "bitwise_right_shift",
    "max.binary": "maximum", "min.binary": "minimum", "sgn": "sign",
    "div.no_rounding_mode": "divide",
}.items():  # fmt: skip
    RULES[theirs] = getattr(pb, ours)

put("mul", pb.multiply)
put("add", lambda x, y, *, alpha=1: pb.add(x, y if alpha == 1 else pb.multiply(y, alpha)))
put("sub", lambda x, y, *, alpha=1: pb.subtract(x, y if alpha == 1 else pb.multiply(y, alpha)))
put("rsub", lambda x, y, *, alpha=1: pb.subtract(y, x if alpha == 1 else pb.multiply(x, alpha)))
put("div.trunc_rounding", lambda x, y, rounding_mode: pb.trunc(pb.divide(x, y)))
put("div.floor_rounding", lambda x, y, rounding_mode: pb.floor_divide(x, y))
put("__radd__", lambda x, y: y + x)
put("__rmul__", lambda x, y: y * x)
put("__rsub__", lambda x, y: y - x)
put("__rdiv__", lambda x, y: y / x)
put("__rmod__", lambda x, y: y % x)
put("__rpow__", lambda x, y: y**x)
put("__rand__", lambda x, y: y & x)
put("__ror__", lambda x, y: y | x)
put("__rxor__", lambda x, y: y ^ x)
put("__rmatmul__", lambda x, y: pb.matmul(y, x))
put("clamp", lambda x, min=None, max=None: pb.clip(x, min, max))
put("clamp_min", pb.maximum)
put("clamp_max", pb.minimum)
put("lerp", lambda x, y, weight: pb.lerp(x, y, weight))
put("addcmul", lambda x, a, b, *, value=1: pb.addcmul(x, a, b, value=value))
put("addcdiv", lambda x, a, b, *, value=1: pb.addcdiv(x, a, b, value=value))
put("nan_to_num", lambda x, nan=0.0, posinf=None, neginf=None: pb.nan_to_num(
    x, 0.0 if nan is None else nan, posinf, neginf))  # fmt: skip
put("round.decimals_0 round.decimals_3 round.decimals_neg_3",
    lambda x, *, decimals: pb.round(x * 10.0**decimals) / 10.0**decimals)  # fmt: skip
put("frexp", pb.frexp)
put("where", lambda x, condition, other: pb.where(condition, x, other))
put("angle", lambda x: pb.where(pb.isnan(x), x, pb.where(x < 0.0, math.pi, 0.0 * x)))
put("real conj conj_physical resolve_conj resolve_neg", lambda x: x)
put("isreal", lambda x: pb.ones_like(x, dtype="bool"))
put("allclose", lambda x, y, rtol=1e-5, atol=1e-8, equal_nan=False: pb.allclose(
    x, y, rtol=rtol, atol=atol, equal_nan=equal_nan))  # fmt: skip
put("equal", lambda x, y: x.shape == y.shape and pb.all(x == y))
put("isin", lambda x, y, *, assume_unique=False, invert=False: pb.isin(x, y, invert=invert))
put("to", lambda x, *args, **kw: _to(x, *args, **kw))


def _to(x: Any, *args: Any, dtype: Any = None, **rest: Any) -> Any:
    for a in args:
        name = str(a).removeprefix("torch.")
        dtype = a if name.startswith(("float", "int", "bfloat", "bool", "uint")) else dtype
        dtype = kind(a.dtype) if hasattr(a, "shape") else dtype
    return x.astype(kind(dtype)) if dtype is not None else x


for theirs, ours in {
    "bfloat16": "bfloat16", "bool": "bool", "byte": "uint8", "char": "int8", "double": "float64",
    "float": "float32", "half": "float16", "int": "int32", "long": "int64", "short": "int16",
}.items():  # fmt: skip
    RULES[theirs] = lambda x, ours=ours, **rest: x.astype(ours)

# --- special -------------------------------------------------------------------------------------

S: Any = getattr(pb, "special", None)
for theirs, ours in {
    "lgamma": "gammaln", "digamma": "digamma", "erfc": "erfc", "erfinv": "erfinv", "i0": "i0",
    "sinc": "sinc", "xlogy": "xlogy", "special.i0e": "i0e", "special.i1": "i1",
    "special.i1e": "i1e", "special.ndtr": "ndtr", "special.ndtri": "ndtri",
    "special.log_ndtr": "log_ndtr", "special.entr": "entr", "special.erfcx": "erfcx",
    "special.xlog1py": "xlog1py", "special.zeta": "zeta", "igamma": "gammainc",
    "igammac": "gammaincc", "special.bessel_j0": "j0", "special.bessel_j1": "j1",
    "special.modified_bessel_i0": "i0", "special.modified_bessel_i1": "i1",
    "special.spherical_bessel_j0": "spherical_bessel_j0",
    "special.bessel_y0": "y0", "special.bessel_y1": "y1",
    "special.modified_bessel_k0": "k0", "special.modified_bessel_k1": "k1",
    "special.scaled_modified_bessel_k0": "k0e", "special.scaled_modified_bessel_k1": "k1e",
}.items():  # fmt: skip
    if hasattr(S, ours):
        RULES[theirs] = getattr(S, ours)
for theirs in (
    *(f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
):  # fmt: skip
    RULES[f"special.{theirs}"] = getattr(S, theirs)
if hasattr(S, "logit"):
    put("logit", lambda x, eps=None: S.logit(x if eps is None else pb.clip(x, eps, 1.0 - eps)))
if hasattr(S, "polygamma"):
    for n in range(5):
        RULES[f"polygamma.polygamma_n_{n}"] = lambda x, n: S.polygamma(n, x)
    put("special.polygamma.special_polygamma_n_0", lambda x, n: S.polygamma(n, x))
if hasattr(S, "multigammaln"):
    for p in (1, 3, 5):
        RULES[f"mvlgamma.mvlgamma_p_{p}"] = lambda x, p: S.multigammaln(x, p)

# --- reductions ----------------------------------------------------------------------------------


def reduction(ours: Rule, by: str = "axis", **fixed: Any) -> Rule:
    def call(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        x = x if dtype is None else x.astype(kind(dtype))
        return ours(x, **{by: axes(dim)}, keepdims=keepdim, **fixed)

    return call


for name in [
    "all",
    "any",
    "amax",
    "amin",
    "mean",
    "nanmean",
    "logsumexp",
    "argmax",
    "argmin",
    "nansum",
    "sum",
]:
    RULES[name] = reduction(getattr(pb, name))
put("prod", reduction(pb.prod))


def moment(ours: Rule) -> Rule:
    def call(x: Any, dim: Any = None, *args: Any, **kw: Any) -> Any:
        unbiased, correction, keepdim = kw.get("unbiased"), kw.get("correction"), kw.get("keepdim")
        if isinstance(dim, bool):
            unbiased, dim = dim, None
        for a, known in zip(args, ("unbiased", "keepdim"), strict=False):
            unbiased = a if known == "unbiased" else unbiased
            keepdim = a if known == "keepdim" else keepdim
        by = 1.0 if correction is None else float(correction)
        by = by if unbiased is None else float(unbiased)
        return ours(x, axis=axes(dim), correction=by, keepdims=bool(keepdim))

    return call


for name in ["std", "var", "std_mean", "var_mean"]:
    put(f"{name} {name}.unbiased", moment(getattr(pb, name)))
put("max.reduction_no_dim", pb.max)
put("min.reduction_no_dim", pb.min)
put("max.reduction_with_dim", lambda x, dim, keepdim=False: (
    pb.max(x, dim, keepdims=keepdim), pb.argmax(x, dim, keepdims=keepdim)))  # fmt: skip
put("min.reduction_with_dim", lambda x, dim, keepdim=False: (
    pb.min(x, dim, keepdims=keepdim), pb.argmin(x, dim, keepdims=keepdim)))  # fmt: skip
put("aminmax", lambda x, *, dim=None, keepdim=False: pb.aminmax(x, dim, keepdims=keepdim))
put("count_nonzero", lambda x, dim=None: pb.count_nonzero(x, axes(dim)))
put("quantile nanquantile", lambda x, q, dim=None, keepdim=False, interpolation="linear": pb.quantile(
    x, q, dim, keepdims=keepdim, method=interpolation))  # fmt: skip
put("nanquantile", lambda x, q, dim=None, keepdim=False, interpolation="linear": pb.nanquantile(
    x, q, dim, keepdims=keepdim, method=interpolation))  # fmt: skip


def lower_median(ours: Rule) -> Rule:
    """PyTorch's median is the lower of the two in the middle, with its place where dim is told."""

    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            flat = x.reshape(-1)
            return ours(flat, -1, False)[0]
        return ours(x, dim, keepdim)

    return call


put("median", lower_median(lambda x, d, k: pb.kthvalue(
    x, (max(x.shape[d] if x.shape else 1, 1) + 1) // 2, d, keepdims=k)))  # fmt: skip
put("nanmedian", lambda x, dim=None, keepdim=False: pb.nanquantile(
    x, 0.5, dim, keepdims=keepdim, method="lower"))  # fmt: skip
put("kthvalue", lambda x, k, dim=-1, keepdim=False: pb.kthvalue(x, k, dim, keepdims=keepdim))
put("mode", lambda x, dim=-1, keepdim=False: pb.mode(x, dim, keepdims=keepdim)[0])
put("cumsum", lambda x, dim, *, dtype=None: pb.cumulative_sum(x, dim, dtype=kind(dtype)))
put("cumprod", lambda x, dim, *, dtype=None: pb.cumulative_prod(x, dim, dtype=kind(dtype)))
put("cummax", lambda x, dim: (pb.cumulative_max(x, dim), pb.cumulative_argmax(x, dim)))
put("cummin", lambda x, dim: (pb.cumulative_min(x, dim), pb.cumulative_argmin(x, dim)))
put("logcumsumexp", lambda x, dim: pb.cumulative_logsumexp(x, dim))
put("trapz trapezoid", lambda y, x=None, *, dx=1.0, dim=-1: pb.trapezoid(y, x, dx=dx, axis=dim))
put("cumulative_trapezoid", lambda y, x=None, *, dx=1.0, dim=-1: pb.cumulative_trapezoid(
    y, x, dx=dx, axis=dim))  # fmt: skip
put("cov", lambda x, *, correction=1, fweights=None, aweights=None: _one(pb.cov(
    x, correction=correction, fweights=fweights, aweights=aweights)))  # fmt: skip
put("corrcoef", lambda x: _one(pb.corrcoef(x)))


def _one(x: Any) -> Any:
    """PyTorch drops the axes of one variable, NumPy those of a vector alone."""
    return x.reshape(()) if x.shape == (1, 1) else x


put("histc", lambda x, bins=100, min=0, max=0: pb.histc(x, bins, min=min, max=max))
put("bincount", lambda x, weights=None, minlength=0: pb.bincount(
    x, int(np.max(np.append(x.numpy(), minlength - 1))) + 1, weights=weights))  # fmt: skip
put("bucketize", lambda x, boundaries, *, out_int32=False, right=False: pb.bucketize(
    x, boundaries, right=right).astype("int32" if out_int32 else "int64"))  # fmt: skip
put("dist", lambda x, y, p=2: pb.dist(x, y, p=float(p)))
put("cdist", lambda x, y, p=2.0, compute_mode=None: pb.cdist(x, y, p=p))
put("nn.functional.pdist", lambda x, p=2.0: pb.pdist(x, p=p))
put("renorm", lambda x, p, dim, maxnorm: pb.renorm(x, float(p), dim, maxnorm))
put("sort", lambda x, dim=-1, descending=False, stable=False: (
    pb.sort(x, axis=dim, descending=descending),
    pb.argsort(x, axis=dim, descending=descending)))  # fmt: skip
put("argsort", lambda x, dim=-1, descending=False, stable=False: pb.argsort(
    x, axis=dim, descending=descending))  # fmt: skip
put("msort", pb.msort)
put(
    "topk", lambda x, k, dim=-1, largest=True, sorted=True: pb.topk(x, k, axis=dim, largest=largest)
)
put("searchsorted", lambda s, v, *, side=None, right=False, out_int32=False, sorter=None:
    pb.searchsorted(s, v, side=side or ("right" if right else "left"), sorter=sorter).astype(
        "int32" if out_int32 else "int64"))  # fmt: skip
put("diff", lambda x, n=1, dim=-1, prepend=None, append=None: pb.diff(
    x, n=n, axis=dim, prepend=prepend, append=append))  # fmt: skip

# --- shapes --------------------------------------------------------------------------------------

put("broadcast_to expand expand_copy", lambda x, *s: pb.broadcast_to(x, _expanded(x, shape_of(s))))
put("expand_as", lambda x, other: pb.broadcast_to(x, other.shape))
put("broadcast_tensors", lambda *x: pb.broadcast_arrays(*(x[0] if len(x) == 1 else x)))
put("broadcast_shapes", lambda *s: pb.broadcast_shapes(*s))


def _expanded(x: Any, sizes: Any) -> Any:
    skip = len(sizes) - len(x.shape)
    return tuple(x.shape[n - skip] if s == -1 else s for n, s in enumerate(sizes))


put("reshape view view_copy", lambda x, *s: pb.reshape(x, shape_of(s)))
put("reshape_as view_as", lambda x, other: pb.reshape(x, other.shape))
put("flatten", lambda x, start_dim=0, end_dim=-1: pb.flatten(x, start_dim, end_dim))
put("unflatten", lambda x, dim, sizes: pb.unflatten(x, dim, sizes))
put("ravel", pb.ravel)
put("squeeze squeeze_copy", lambda x, dim=None: _squeezed(x, dim))
put("squeeze.multiple", lambda x, dim=None: _squeezed(x, dim))


def _squeezed(x: Any, dim: Any) -> Any:
    """PyTorch leaves axes alone that are not 1."""
    if dim is None:
        return pb.squeeze(x)
    rank = max(len(x.shape), 1)
    wanted = {d % rank for d in (dim if isinstance(dim, list | tuple) else (dim,))}
    return pb.squeeze(x, tuple(d for d in wanted if x.shape and x.shape[d] == 1))


put("unsqueeze unsqueeze_copy", lambda x, dim: pb.expand_dims(x, dim))
put("permute permute_copy", lambda x, *dims: pb.permute_dims(x, shape_of(dims)))
put("transpose transpose_copy", lambda x, a, b: pb.swapaxes(x, a, b) if x.shape else x)
put("t t_copy", lambda x: pb.matrix_transpose(x) if len(x.shape) == 2 else x)
put("T", lambda x: pb.permute_dims(x, tuple(range(len(x.shape)))[::-1]))
put("H mT mH adjoint", lambda x: pb.matrix_transpose(x) if x.shape else x)
put("movedim", lambda x, source, destination: pb.moveaxis(x, source, destination))
put("flip", lambda x, dims: pb.flip(x, tuple(dims)))
put("fliplr", lambda x: pb.flip(x, 1))
put("flipud", lambda x: pb.flip(x, 0))
put("rot90", lambda x, k=1, dims=(0, 1): pb.rot90(x, k, tuple(dims)))
put("roll", lambda x, shifts, dims=(): pb.roll(x, shifts, None if dims in ((), []) else dims))
put("cat", lambda x, dim=0: pb.concat(_told(x), dim))
put("stack", lambda x, dim=0: pb.stack(list(x), dim))


def _told(parts: Any) -> list[Any]:
    """PyTorch passes over one-axis tensors of nothing beside others."""
    rank = max(len(p.shape) for p in parts)
    return [p for p in parts if p.shape != (0,) or rank == 1]


put("hstack", lambda x: pb.hstack(list(x)))
put("vstack", lambda x: pb.vstack(list(x)))
put("dstack", lambda x: pb.dstack(list(x)))
put("column_stack", lambda x: pb.column_stack(list(x)))
put("block_diag", lambda *x: pb.block_diag(*x))
put("chunk unsafe_chunk", lambda x, chunks, dim=0: pb.chunk(x, chunks, dim))
put("split unsafe_split", lambda x, size, dim=0: pb.split(x, _parts(x, size, dim), dim))
put("split.list_args split_with_sizes split_with_sizes_copy", lambda x, split_sizes=None, dim=0:
    pb.split(x, _parts(x, split_sizes, dim), dim))  # fmt: skip
put("tensor_split", lambda x, sections, dim=0: pb.tensor_split(
    x, sections.tolist() if hasattr(sections, "tolist") else sections, dim))  # fmt: skip


def _parts(x: Any, size: Any, dim: int) -> list[int]:
    """Where the parts end, but for the last."""
    whole = x.shape[dim]
    if isinstance(size, int):
        return list(range(size, whole, size)) if size else []
    return list(np.cumsum(size)[:-1].tolist())


put("hsplit", lambda x, n: pb.tensor_split(x, n, 0 if len(x.shape) == 1 else 1))
put("vsplit", lambda x, n: pb.tensor_split(x, n, 0))
put("dsplit", lambda x, n: pb.tensor_split(x, n, 2))
put("unbind unbind_copy", lambda x, dim=0: pb.unstack(x, axis=dim))
put("narrow narrow_copy", lambda x, dim, start, length: pb.narrow(x, dim, int(start), length))
put("select", lambda x, dim, index: pb.select(x, dim, index))
put("slice", lambda x, dim=0, start=None, end=None, step=1: x[
    (slice(None),) * (dim % len(x.shape)) + (slice(start, end, step),)])  # fmt: skip
put("__getitem__", lambda x, index: x[index])
put("tile", lambda x, dims: pb.tile(x, dims))
put("repeat", lambda x, *sizes: pb.tile(x, shape_of(sizes)))
put(
    "repeat_interleave",
    lambda x, repeats, dim=None, **rest: (
        pb.array_api.repeat if hasattr(repeats, "shape") else pb.repeat
    )(x, repeats, axis=dim),
)
put("unfold unfold_copy", lambda x, dim, size, step: pb.unfold(x, dim, size, step))
put("diag", lambda x, diagonal=0: pb.diag(x, k=diagonal))
put("diagonal diagonal_copy linalg.diagonal", lambda x, offset=0, dim1=None, dim2=None: _diagonal(
    x, offset, dim1, dim2))  # fmt: skip
put("linalg.diagonal", lambda x, *, offset=0, dim1=-2, dim2=-1: pb.diagonal(
    x, offset=offset, axis1=dim1, axis2=dim2))  # fmt: skip


def _diagonal(x: Any, offset: int, dim1: Any, dim2: Any) -> Any:
    first, second = 0 if dim1 is None else dim1, 1 if dim2 is None else dim2
    return pb.diagonal(x, offset=offset, axis1=first, axis2=second)


put("diag_embed", lambda x, offset=0, dim1=-2, dim2=-1: pb.diag_embed(
    x, offset=offset, axis1=dim1, axis2=dim2))  # fmt: skip
put("diagflat", lambda x, offset=0: pb.diagflat(x, k=offset))
put("diagonal_scatter", lambda x, src, offset=0, dim1=0, dim2=1: pb.diagonal_scatter(
    x, src, offset=offset, axis1=dim1, axis2=dim2))  # fmt: skip
put("trace", pb.trace)
put("tril", lambda x, diagonal=0: pb.tril(x, k=diagonal))
put("triu", lambda x, diagonal=0: pb.triu(x, k=diagonal))
put(
    "tril_indices", lambda row, col, offset=0, **rest: pb.stack(pb.tril_indices(row, col, k=offset))
)
put(
    "triu_indices", lambda row, col, offset=0, **rest: pb.stack(pb.triu_indices(row, col, k=offset))
)
put("atleast_1d", lambda *x: _each(pb.atleast_1d, x))
put("atleast_2d", lambda *x: _each(pb.atleast_2d, x))
put("atleast_3d", lambda *x: _each(pb.atleast_3d, x))


def _each(function: Rule, x: Any) -> Any:
    listed = x[0] if len(x) == 1 and isinstance(x[0], list | tuple) else x
    made = [function(v) for v in listed]
    return made[0] if len(x) == 1 and listed is x else made


put("meshgrid.variadic_tensors", lambda *x, indexing="ij": pb.meshgrid(*x, indexing=indexing))
put("meshgrid.list_of_tensors", lambda x, indexing="ij": pb.meshgrid(*x, indexing=indexing))
put("cartesian_prod", lambda *x: pb.cartesian_prod(*x))
put("combinations", lambda x, r=2, with_replacement=False: pb.combinations(
    x, r, with_replacement=with_replacement))  # fmt: skip
put("linalg.vander", lambda x, *, N=None: pb.vander(pb.atleast_1d(x), N, increasing=True))
put("vander", lambda x, N=None, increasing=False: pb.vander(x, N, increasing=increasing))
put("clone contiguous alias_copy", lambda x, **rest: x)
put("constant_pad_nd nn.functional.pad.constant", lambda x, pad, value=0, **rest: F.pad(
    x, pad, value=value or 0))  # fmt: skip
put("nn.functional.pad.constant", lambda x, pad, mode="constant", value=None: F.pad(
    x, pad, mode, value))  # fmt: skip
for mode in ("reflect", "replicate", "circular"):
    RULES[f"nn.functional.pad.{mode}"] = lambda x, pad, mode, value=None: F.pad(x, pad, mode)
put("nn.functional.pad.replicate_negative", lambda x, pad, mode, value=None: F.pad(x, pad, mode))
