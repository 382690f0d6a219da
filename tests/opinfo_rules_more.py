"""PyTorch's operators in pullback's functions, continued: products, places, creation, layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import pullback as pb
from opinfo_rules import RULES, LeftOut, axes, kind, put, shape_of

F = pb.nn.functional

# --- products ------------------------------------------------------------------------------------

put("matmul bmm mm mv dot bmm.triton_optimized", pb.matmul)
put("vdot linalg.vecdot", lambda x, y, dim=-1: pb.vecdot(x, y, axis=dim))
put("outer", pb.outer)
put("inner", pb.inner)
put("kron", pb.kron)
put("tensordot", lambda x, y, dims=2: pb.tensordot(x, y, axes=dims))
put("einsum", lambda x, equation: pb.einsum(equation, *x))
put("cross", lambda x, y, dim=None: pb.cross(x, y, axis=_third(x, y) if dim is None else dim))
put("linalg.cross", lambda x, y, *, dim=-1: pb.cross(x, y, axis=dim))


def _third(x: Any, y: Any) -> int:
    return next(n for n, e in enumerate(pb.broadcast_shapes(x.shape, y.shape)) if e == 3)


for name in ["addmm", "addmv", "addr", "addbmm", "baddbmm"]:
    ours = getattr(pb, name)
    RULES[name] = lambda x, a, b, *, beta=1, alpha=1, f=ours: f(x, a, b, beta=beta, alpha=alpha)
RULES["addmm.decomposed"] = RULES["addmm"]

# --- places --------------------------------------------------------------------------------------

put("gather", lambda x, dim, index, sparse_grad=False: pb.gather(x, index, dim) if x.shape else x)
put("take_along_dim", lambda x, index, dim=None: pb.take_along_axis(x, index, dim)
    if dim is not None else pb.take_along_axis(x.reshape(-1), index.reshape(-1), 0))  # fmt: skip
put("index_select", lambda x, dim, index: pb.take(x, index, axis=dim) if x.shape else x)
put("take", lambda x, index: x.reshape(-1)[index])
put("put", lambda x, index, source, accumulate=False: pb.put(
    x, index, source, accumulate=accumulate))  # fmt: skip
put("index_put", lambda x, indices, values, accumulate=False: pb.index_put(
    x, indices, values, accumulate=accumulate))  # fmt: skip
put("index_add", lambda x, dim, index, source, *, alpha=1: pb.index_add(
    x, index, source, axis=dim, alpha=alpha))  # fmt: skip
put("index_copy", lambda x, dim, index, source: pb.index_copy(x, index, source, axis=dim))
put("index_fill", lambda x, dim, index, value: pb.index_fill(x, index, value, axis=dim))
for how in ("mean", "prod", "amin", "amax"):
    RULES[f"index_reduce.{how}"] = lambda x, dim, index, source, reduce, include_self=True: (
        pb.index_reduce(x, index, source, reduce, axis=dim, include_self=include_self)
    )
for how in ("sum", "mean", "prod", "amin", "amax"):
    RULES[f"scatter_reduce.{how}"] = lambda x, dim, index, src, reduce, include_self=True: (
        pb.scatter_reduce(x, index, src, reduce, axis=dim, include_self=include_self)
    )
put("scatter_add", lambda x, dim, index, src: pb.scatter_reduce(x, index, src, "sum", axis=dim))
put("scatter", lambda x, dim, index, src, reduce=None: pb.scatter(
    x, index, src, axis=dim) if reduce is None else pb.scatter_reduce(
    x, index, _spread(src, index, x), {"add": "sum", "multiply": "prod"}[reduce], axis=dim))  # fmt: skip


def _spread(src: Any, index: Any, x: Any) -> Any:
    return src if hasattr(src, "shape") else pb.full(index.shape, src, dtype=x.dtype)


put("masked_fill", lambda x, mask, value: pb.masked_fill(x, mask, value))
put("masked_scatter", lambda x, mask, source: pb.masked_scatter(x, mask, source))
put("masked_select", lambda x, mask: pb.broadcast_to(x, pb.broadcast_shapes(x.shape, mask.shape))[
    pb.broadcast_to(mask, pb.broadcast_shapes(x.shape, mask.shape))])  # fmt: skip
put("select_scatter", lambda x, src, dim, index: pb.select_scatter(x, src, dim, index))
put("slice_scatter", lambda x, src, dim=0, start=None, end=None, step=1: pb.slice_scatter(
    x, src, dim, start, end, step))  # fmt: skip
put("nonzero", lambda x, as_tuple=False: pb.stack(pb.array_api.nonzero(x), 1)
    if x.shape else pb.zeros((int(bool(x)), 0), dtype="int64"))  # fmt: skip
put("argwhere", RULES["nonzero"])
put("nonzero", lambda x, as_tuple=False: tuple(pb.array_api.nonzero(x)) if as_tuple and x.shape
    else RULES["argwhere"](x))  # fmt: skip
put("fill", lambda x, value: pb.full(x.shape, value, dtype=x.dtype)
    if not hasattr(value, "shape") else pb.broadcast_to(value.astype(x.dtype), x.shape))  # fmt: skip
put("zero_", lambda x: pb.zeros_like(x))
put("item", lambda x: x.reshape(()))
put("unique", lambda x, sorted=True, return_inverse=False, return_counts=False, dim=None: _unique(
    x, return_inverse, return_counts, dim))  # fmt: skip


def _unique(x: Any, inverse: bool, counts: bool, dim: Any) -> Any:
    if dim is not None and len(x.shape) > 1:
        raise LeftOut("unique along an axis: its samples are left out")
    parts_of = pb.array_api.unique_all(x)
    parts = [parts_of.values] + [parts_of.inverse_indices] * inverse + [parts_of.counts] * counts
    return parts if len(parts) > 1 else parts[0]


# --- creation ------------------------------------------------------------------------------------

put(
    "arange",
    lambda *a, end=None, dtype=None, **rest: pb.arange(
        *(a if end is None else (*a, end) if a and a[0] is not None else (end,)), dtype=kind(dtype)
    ),
)
put("linspace", lambda a, b, n, dtype=None, **rest: pb.linspace(a, b, n, dtype=kind(dtype)))
put("logspace", lambda a, b, n, base=10.0, dtype=None, **rest: pb.logspace(
    a, b, n, base=base, dtype=kind(dtype)))  # fmt: skip
put("eye", lambda n, m=None, dtype=None, **rest: pb.eye(n, m, dtype=kind(dtype)))
put("full", lambda size, value, dtype=None, **rest: pb.full(tuple(size), value, dtype=kind(dtype)))
put("ones", lambda *s, dtype=None, **rest: pb.ones(shape_of(s), dtype=kind(dtype) or "float32"))
put("zeros", lambda *s, dtype=None, **rest: pb.zeros(shape_of(s), dtype=kind(dtype) or "float32"))
put("empty", lambda *s, dtype=None, **rest: pb.empty(shape_of(s), dtype=kind(dtype) or "float32"))
put("ones_like", lambda x, dtype=None, **rest: pb.ones_like(x, dtype=kind(dtype)))
put("zeros_like", lambda x, dtype=None, **rest: pb.zeros_like(x, dtype=kind(dtype)))
put("empty_like", lambda x, dtype=None, **rest: pb.empty_like(x, dtype=kind(dtype)))
put("full_like", lambda x, value, dtype=None, **rest: pb.full_like(x, value, dtype=kind(dtype)))
put("new_ones", lambda x, s, dtype=None, **rest: pb.ones(tuple(s), dtype=kind(dtype) or x.dtype))
put("new_zeros", lambda x, s, dtype=None, **rest: pb.zeros(tuple(s), dtype=kind(dtype) or x.dtype))
put("new_empty", lambda x, s, dtype=None, **rest: pb.empty(tuple(s), dtype=kind(dtype) or x.dtype))
put("new_full", lambda x, s, value, dtype=None, **rest: pb.full(
    tuple(s), value, dtype=kind(dtype) or x.dtype))  # fmt: skip
put("empty_permuted", lambda s, order, dtype=None, **rest: pb.empty(
    tuple(s), dtype=kind(dtype) or "float32"))  # fmt: skip
put("scalar_tensor", lambda x, dtype=None, **rest: pb.full((), x, dtype=kind(dtype) or "float32"))
R = pb.random
put("randn", lambda *s, dtype=None, **rest: R.normal(shape_of(s)))
put("randn_like", lambda x, **rest: R.normal(x.shape))
put("rand_like", lambda x, **rest: R.uniform(x.shape))
put("uniform", lambda x, a=0.0, b=1.0: R.uniform(x.shape, a, b))
put("normal.in_place", lambda x, mean=0.0, std=1.0: R.normal(x.shape, mean, std))
put("randint", lambda *a, dtype=None, **rest: R.integers(*a[:-1], shape=tuple(a[-1])))
put("randint_like", lambda x, *a, high=None, **rest: R.integers(
    *(a if high is None else (*a, high)), shape=x.shape))  # fmt: skip
put("bernoulli", lambda x, *a, **rest: R.bernoulli(x, x.shape, dtype=x.dtype))
for theirs in ("exponential", "cauchy", "geometric", "log_normal"):
    if hasattr(R, theirs):
        RULES[theirs] = lambda x, *a, f=getattr(R, theirs): (
            f(*a, shape=x.shape) if a else f(shape=x.shape)
        )
if hasattr(R, "multinomial"):
    put("multinomial", lambda x, n, replacement=False, **rest: R.multinomial(
        x, n, replacement=replacement))  # fmt: skip
put("normal", lambda mean, std=1.0, **rest: R.normal(
    pb.broadcast_shapes(np.shape(mean), np.shape(std))) * std + mean)  # fmt: skip

# --- layers --------------------------------------------------------------------------------------

for name in F.__all__:
    if f"nn.functional.{name}" not in RULES:
        RULES[f"nn.functional.{name}"] = getattr(F, name)
put("nn.functional.instance_norm", lambda x, running_mean=None, running_var=None, **kw:
    F.instance_norm(x, None, None, **kw))  # fmt: skip
put("nn.functional.upsample_bilinear", lambda x, size=None, scale_factor=None: F.interpolate(
    x, size, scale_factor, "bilinear", True))  # fmt: skip
put("nn.functional.upsample_nearest", lambda x, size=None, scale_factor=None: F.interpolate(
    x, size, scale_factor))  # fmt: skip
for mode in ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"):
    RULES[f"nn.functional.interpolate.{mode}"] = lambda x, *a, antialias=False, **kw: F.interpolate(
        x, *a, antialias=antialias, **kw
    )
for n in (1, 2, 3):
    RULES[f"nn.functional.max_unpool{n}d.grad"] = getattr(F, f"max_unpool{n}d")
put("nn.functional.feature_alpha_dropout.with_train", F.feature_alpha_dropout)
put("nn.functional.feature_alpha_dropout.without_train", F.feature_alpha_dropout)
put("nn.functional.batch_norm.without_cudnn", F.batch_norm)
put("nn.functional.batch_norm", lambda x, mean, var, weight=None, bias=None, training=False,
    momentum=0.1, eps=1e-5: F.batch_norm(x, *(None if training or m is None else m
    for m in (mean, var)), weight, bias, training, momentum, eps))  # fmt: skip
RULES["nn.functional.batch_norm.without_cudnn"] = RULES["nn.functional.batch_norm"]
put("nn.functional.softmin.with_dtype", lambda x, dim=None, dtype=None, **rest: F.softmin(
    x.astype(kind(dtype)), dim))  # fmt: skip
put("softmax", lambda x, dim, dtype=None: pb.softmax(x, dim))
put("log_softmax", lambda x, dim, dtype=None: pb.log_softmax(x, dim))
put("softmax.with_dtype", lambda x, dim, dtype=None: pb.softmax(x.astype(kind(dtype)), dim))
put("log_softmax.with_dtype", lambda x, dim, dtype=None: pb.log_softmax(x.astype(kind(dtype)), dim))
put("nn.functional.softmin", lambda x, dim=None, **rest: F.softmin(x, dim))
put("nn.functional.embedding", lambda weight, x, **kw: F.embedding(x, weight, **kw))
put("nn.functional.embedding_bag", lambda weight, x, *a, **kw: F.embedding_bag(x, weight, *a, **kw))
put("nn.functional.avg_pool2d", lambda x, *a, stride=None, **kw: F.avg_pool2d(
    x, *(None if v == () else v for v in a), stride=stride or None, **kw)
    if len(a) < 2 else F.avg_pool2d(x, *(None if v == () else v for v in a), **kw))  # fmt: skip
put("nn.functional.triplet_margin_with_distance_loss", lambda a, p, n, *, distance_function=None,
    **kw: F.triplet_margin_with_distance_loss(a, p, n, **kw))  # fmt: skip
put("nn.functional.one_hot", lambda x, num_classes=-1: F.one_hot(
    x, int(x.numpy().max()) + 1 if num_classes == -1 else num_classes))  # fmt: skip
put("nn.functional.silu.complex", lambda x, **rest: F.silu(x))
put("nn.functional.layer_norm", lambda x, shape, *a, **kw: F.layer_norm(x, tuple(shape), *a, **kw))
put("nn.functional.rms_norm", lambda x, shape, *a, **kw: F.rms_norm(x, tuple(shape), *a, **kw))
put("grid_sampler_2d grid_sampler_3d", lambda x, grid, mode, padding, align: F.grid_sample(
    x, grid, ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding],
    align))  # fmt: skip
put("torch.ops.aten._safe_softmax.default", lambda x, dim, dtype=None: pb.where(
    pb.all(x == -math.inf, dim, keepdims=True), 0.0, pb.softmax(x, dim)))  # fmt: skip
# --- masked: where, and the reduction ------------------------------------------------------------


def masked(neutral: float, theirs: str, ours: Any) -> None:
    def call(
        x: Any, dim: Any = None, *, mask: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Any:
        x = x if dtype is None else x.astype(kind(dtype))
        return ours(
            x if mask is None else pb.where(mask, x, neutral), axis=axes(dim), keepdims=keepdim
        )

    RULES[f"masked.{theirs}"] = call


masked(0.0, "sum", pb.sum)
masked(1.0, "prod", pb.prod)
masked(-math.inf, "amax", pb.amax)
masked(math.inf, "amin", pb.amin)
masked(-math.inf, "logsumexp", pb.logsumexp)

# --- linear algebra, transforms ------------------------------------------------------------------

L: Any = getattr(pb, "linalg", None)
for theirs, ours in {
    "linalg.det": "det", "linalg.inv": "inv", "linalg.slogdet": "slogdet", "linalg.solve": "solve",
    "linalg.eigvalsh": "eigvalsh", "linalg.svdvals": "svdvals", "matrix_exp": "matrix_exp",
    "linalg.multi_dot": "multi_dot", "linalg.pinv": "pinv", "pinverse": "pinv",
}.items():  # fmt: skip
    if hasattr(L, ours):
        RULES[theirs] = getattr(L, ours)
if L is not None:
    put("linalg.matrix_power", lambda x, n: L.matrix_power(x, n))
    put("linalg.cholesky", lambda x, *, upper=False: L.cholesky(x, upper=upper))
    put("cholesky", lambda x, upper=False: L.cholesky(x, upper=upper))
    put("linalg.inv_ex", lambda x, **rest: L.inv(x))
    put("linalg.cholesky_ex", lambda x, *, upper=False, check_errors=False: L.cholesky(
        x, upper=upper))  # fmt: skip
    put("logdet", lambda x: pb.log(L.det(x)))
    put(
        "linalg.pinv linalg.pinv.hermitian pinverse",
        lambda x, *a, hermitian=False, **rest: L.pinv(
            _whole(x, "L") if hermitian else x,
            rtol=a[0] if a else rest.get("rcond", rest.get("rtol")),
        ),
    )
    put("linalg.pinv.singular", lambda a, b: L.pinv(pb.matmul(a, b.mT)))
    put("linalg.solve", lambda a, b, left=True: _solved(a, b, left))
    RULES["linalg.solve_ex"] = lambda a, b, *, left=True, check_errors=False: RULES["linalg.solve"](
        a, b, left
    )
    put("linalg.solve_triangular", lambda a, b, *, upper, left=True, unitriangular=False:
        L.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular))  # fmt: skip
    put("linalg.vector_norm", lambda x, ord=2, dim=None, keepdim=False, dtype=None: L.vector_norm(
        x, ord=ord, axis=axes(dim), keepdims=keepdim))  # fmt: skip
    put("linalg.matrix_norm", lambda x, ord="fro", dim=(-2, -1), keepdim=False, dtype=None:
        L.matrix_norm(x, ord=ord, axis=tuple(dim), keepdims=keepdim))  # fmt: skip
    put("linalg.norm linalg.norm.subgradients_at_zero", lambda x, ord=None, dim=None, keepdim=False,
        dtype=None: L.norm(x, ord, axes(dim), keepdims=keepdim))  # fmt: skip
    put("norm norm.fro norm.inf norm.nuc", lambda x, p="fro", dim=None, keepdim=False, dtype=None:
        _norm(x, p, dim, keepdim))  # fmt: skip
    put("linalg.eigh", lambda x, UPLO="L": L.eigh(_whole(x, UPLO)))
    put("linalg.eigvalsh", lambda x, UPLO="L": L.eigvalsh(_whole(x, UPLO)))
    put("linalg.svd", lambda x, full_matrices=True, **kw: L.svd(x, full_matrices=full_matrices))
    put("svd", lambda x, some=True, compute_uv=True: _svd(x, some))
    put("linalg.matrix_rank linalg.matrix_rank.hermitian", lambda x, tol=None, hermitian=False,
        atol=None, rtol=None: _rank(x, tol, atol, rtol))  # fmt: skip
    put("linalg.cond", lambda x, p=None: L.cond(x, p))
    put("linalg.lstsq linalg.lstsq.grad_oriented", lambda a, b, **kw: _solution(L.lstsq(a, b)))
    put("linalg.qr qr", lambda x, mode="reduced": L.qr(x, mode=mode))
    put("cholesky_inverse", lambda x, upper=False: L.inv(
        pb.matmul(x.mT, x) if upper else pb.matmul(x, x.mT)))  # fmt: skip
    put("cholesky_solve", lambda b, x, upper=False: L.solve(
        pb.matmul(x.mT, x) if upper else pb.matmul(x, x.mT), b))  # fmt: skip


def _svd(x: Any, some: bool) -> Any:
    u, s, vh = L.svd(x, full_matrices=not some)
    return u, s, vh.mT


def _first(parts: Any) -> Any:
    return parts[0] if isinstance(parts, tuple) else parts


def _signless(parts: Any) -> Any:
    return tuple(abs(p) for p in parts)


# Factors are told up to the signs of their columns: what is compared, of both.
PROCESS = dict.fromkeys(("linalg.eigh", "linalg.svd", "svd", "linalg.qr", "qr"), _signless)
PROCESS |= dict.fromkeys(("linalg.lstsq", "linalg.lstsq.grad_oriented", "mode"), _first)


def _whole(x: Any, part: str) -> Any:
    """A symmetric matrix of one of its triangles."""
    if part == "L":
        return pb.tril(x) + pb.matrix_transpose(pb.tril(x, k=-1))
    return pb.triu(x) + pb.matrix_transpose(pb.triu(x, k=1))


def _norm(x: Any, p: Any, dim: Any, keepdim: bool) -> Any:
    p = 2 if p is None or p == "fro" else p
    if p == "nuc":
        return L.matrix_norm(x, ord="nuc", axis=tuple(dim) if dim else (-2, -1), keepdims=keepdim)
    return L.vector_norm(x, ord=p, axis=axes(dim), keepdims=keepdim)


def _solved(a: Any, b: Any, left: bool) -> Any:
    """PyTorch takes a batch of vectors where the shapes of both but for the last axis agree."""
    rows = len(a.shape) > 2 and b.shape == a.shape[:-1]
    if len(b.shape) == 1:
        return L.solve(a, b) if left else L.solve(pb.matrix_transpose(a), b)
    b = pb.expand_dims(b, -1) if rows else b
    if left:
        x = L.solve(a, b)
        return pb.squeeze(x, -1) if rows else x
    return pb.matrix_transpose(L.solve(pb.matrix_transpose(a), pb.matrix_transpose(b)))


def _rank(x: Any, tol: Any, atol: Any, rtol: Any) -> Any:
    """How many singular values are above both limits; by default the array API's."""
    if atol is None and rtol is None and tol is None:
        return L.matrix_rank(x)
    sizes = L.svdvals(x)
    least = 0.0 if tol is not None or atol is None else atol
    share = rtol if rtol is not None else 0.0 if atol is not None else max(x.shape[-2:]) * 2.0**-23
    least = least if tol is None else tol
    low = pb.maximum(sizes.max(-1, keepdims=True) * share, least) if sizes.shape[-1] else 0.0
    return pb.sum((sizes > low).astype("int64"), -1)


def _solution(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found


T = pb.fft
for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    RULES[f"fft.{name}"] = lambda x, n=None, dim=-1, norm=None, f=getattr(T, name): f(
        x, n, dim, norm or "backward"
    )
for name in ("fft2", "ifft2", "rfft2", "irfft2"):
    RULES[f"fft.{name}"] = lambda x, s=None, dim=(-2, -1), norm=None, f=getattr(T, name): f(
        x, _all(s), _all(dim), norm or "backward"
    )
for name in ("fftn", "ifftn", "rfftn", "irfftn"):
    RULES[f"fft.{name}"] = lambda x, s=None, dim=None, norm=None, f=getattr(T, name): f(
        x, _all(s), _all(dim), norm or "backward"
    )


def _all(value: Any) -> Any:
    """Several, where one number may stand for one."""
    return value if value is None else (value,) if isinstance(value, int) else tuple(value)


for name in ("fftshift", "ifftshift"):
    RULES[f"fft.{name}"] = lambda x, dim=None, f=getattr(T, name): f(x, axes(dim))

# --- adaptors of what is called another way ------------------------------------------------------

for theirs, ours in {"igamma": "gammainc", "igammac": "gammaincc"}.items():
    RULES[theirs] = getattr(pb.special, ours)
put("cauchy", lambda x, loc=0.0, scale=1.0: R.cauchy(loc, scale, x.shape))
put("exponential", lambda x, rate=1.0: R.exponential(rate, x.shape))
put("geometric", lambda x, p: R.geometric(p, x.shape))
put("log_normal", lambda x, mean=1.0, std=2.0: R.log_normal(mean, std, x.shape))
put("multinomial", lambda x, n, replacement=False: R.multinomial(x, n, replacement))
put("normal.number_mean", lambda mean, std=1.0, size=None, **rest: R.normal(
    tuple(size) if size is not None else np.shape(std)) * std + mean)  # fmt: skip
put("linspace.tensor_overload", lambda a, b, n, dtype=None, **rest: pb.linspace(
    _number(a), _number(b), n, dtype=kind(dtype)))  # fmt: skip
put("logspace.tensor_overload", lambda a, b, n, base=10.0, dtype=None, **rest: pb.logspace(
    _number(a), _number(b), n, base=base, dtype=kind(dtype)))  # fmt: skip
put("sum_to_size", lambda x, *sizes: _summed(x, shape_of(sizes)))
put("histogram", lambda x, bins, *, range=None, weight=None, density=False: _histogram(
    x, bins, range, weight, density))  # fmt: skip
put("native_layer_norm", lambda x, shape, weight, bias, eps: F.layer_norm(
    x, tuple(shape), weight, bias, eps))  # fmt: skip
put("native_group_norm", lambda x, weight, bias, n, c, size, groups, eps: F.group_norm(
    x, groups, weight, bias, eps))  # fmt: skip
put("native_batch_norm _native_batch_norm_legit", lambda x, weight, bias, *a: RULES[
    "nn.functional.batch_norm"](x, *(a[:-3] or (None, None)), weight, bias, *a[-3:]))  # fmt: skip
put("linalg.tensorinv", lambda x, ind=2: L.inv(x.reshape(
    math.prod(x.shape[:ind]), -1)).reshape(*x.shape[ind:], *x.shape[:ind]))  # fmt: skip
put("linalg.tensorsolve", lambda a, b, dims=None: _tensorsolved(a, b, dims))
put("triangular_solve", lambda b, a, upper=True, transpose=False, unitriangular=False: (
    L.solve_triangular(pb.matrix_transpose(a) if transpose else a, b, upper=upper != transpose,
                       unitriangular=unitriangular)))  # fmt: skip
PROCESS |= dict.fromkeys(
    ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
     "triangular_solve"), _first)  # fmt: skip


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _summed(x: Any, sizes: tuple[int, ...]) -> Any:
    ahead = len(x.shape) - len(sizes)
    thin = [n + ahead for n, s in enumerate(sizes) if s == 1]
    return pb.sum(x, (*range(ahead), *thin), keepdims=True).reshape(sizes)


def _histogram(x: Any, bins: Any, ends: Any, weight: Any, density: bool) -> Any:
    counts, edges = pb.histogram(
        x, bins, range=None if ends is None else tuple(ends), weights=weight, density=density
    )
    return counts.astype("float32"), edges


def _tensorsolved(a: Any, b: Any, dims: Any) -> Any:
    moved = a if dims is None else pb.moveaxis(a, tuple(dims), tuple(range(-len(dims), 0)))
    rest = moved.shape[len(b.shape) :]
    return L.solve(moved.reshape(b.size, -1), b.reshape(-1)).reshape(rest)


def _over(x: Any, mask: Any) -> Any:
    return pb.ones_like(x, dtype="bool") if mask is None else pb.broadcast_to(mask, x.shape)


def _masked_moment(root: bool) -> Any:
    def call(x: Any, dim: Any = None, unbiased: Any = None, *, correction: Any = None,
             keepdim: bool = False, mask: Any = None, dtype: Any = None) -> Any:  # fmt: skip
        by = float(unbiased) if unbiased is not None else 1.0 if correction is None else correction
        over, axis = _over(x, mask), axes(dim)
        count = pb.sum(over.astype("float32"), axis, keepdims=True)
        middle = pb.sum(pb.where(over, x, 0.0), axis, keepdims=True) / count
        squares = pb.sum(pb.where(over, (x - middle) ** 2, 0.0), axis, keepdims=keepdim)
        made = squares / pb.maximum(
            pb.sum(over.astype("float32"), axis, keepdims=keepdim) - by, 0.0
        )
        return pb.sqrt(made) if root else made

    return call


put("masked.mean", lambda x, dim=None, *, keepdim=False, mask=None, dtype=None: pb.sum(
    pb.where(_over(x, mask), x, 0.0), axes(dim), keepdims=keepdim) / pb.sum(
    _over(x, mask).astype("float32"), axes(dim), keepdims=keepdim))  # fmt: skip
put("masked.var", _masked_moment(False))
put("masked.std", _masked_moment(True))
for theirs, ours, neutral in [
    ("argmax", pb.argmax, -math.inf), ("argmin", pb.argmin, math.inf),
]:  # fmt: skip
    RULES[f"masked.{theirs}"] = lambda x, dim=None, *, keepdim=False, mask=None, dtype=None, f=ours, \
        v=neutral: f(pb.where(_over(x, mask), x, v), dim, keepdims=keepdim)  # fmt: skip
for theirs, ours, neutral in [
    ("softmax", pb.softmax, -math.inf), ("log_softmax", pb.log_softmax, -math.inf),
    ("softmin", F.softmin, math.inf), ("cumsum", pb.cumulative_sum, 0.0),
    ("cumprod", pb.cumulative_prod, 1.0),
]:  # fmt: skip
    RULES[f"masked.{theirs}"] = lambda x, dim, *, mask=None, dtype=None, f=ours, v=neutral: f(
        x if mask is None else pb.where(_over(x, mask), x, v), dim)  # fmt: skip
put("masked.normalize", lambda x, ord, dim, *, eps=1e-12, mask=None, dtype=None: F.normalize(
    pb.where(_over(x, mask), x, 0.0), ord, dim, eps))  # fmt: skip
put("masked.logaddexp", lambda x, y, *, input_mask=None, other_mask=None, dtype=None: pb.logaddexp(
    pb.where(_over(x, input_mask), x, -math.inf),
    pb.where(_over(y, other_mask), y, -math.inf)))  # fmt: skip
# PyTorch takes a number for a row, an index of fewer axes, and targets of a row less.
for theirs in ("multi_margin_loss", "multilabel_margin_loss"):
    RULES[f"nn.functional.{theirs}"] = lambda x, target, f=getattr(F, theirs), **kw: f(
        x if x.shape else x.reshape(1), target.reshape(()) if not x.shape and
        f is F.multi_margin_loss else target.reshape(1) if not x.shape else target, **kw)  # fmt: skip
put("nn.functional.gaussian_nll_loss", lambda x, target, var, **kw: F.gaussian_nll_loss(
    x, pb.broadcast_to(target, x.shape), var, **kw))  # fmt: skip


def _of_number(function: Any) -> Any:
    """PyTorch takes axes 0 and -1 of a number as of a row of one, and gives a number."""

    def call(x: Any, *args: Any, **kw: Any) -> Any:
        if getattr(x, "shape", None) != ():
            return function(x, *args, **kw)
        made = function(x.reshape(1), *args, **kw)
        parts = [p.reshape(()) for p in (made if isinstance(made, tuple) else (made,))]
        return tuple(parts) if isinstance(made, tuple) else parts[0]

    return call


for theirs in [
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
    "prod",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "kthvalue",
    "max.reduction_with_dim",
    "min.reduction_with_dim",
    "topk",
    "mode",
    "sort",
    "argsort",
    "median",
    "nanmedian",
    "std",
    "var",
    "std.unbiased",
    "var.unbiased",
    "std_mean",
    "var_mean",
    "aminmax",
    "count_nonzero",
    "softmax",
    "log_softmax",
    "softmax.with_dtype",
    "log_softmax.with_dtype",
    "masked.sum",
    "masked.prod",
    "masked.amax",
    "masked.amin",
    "masked.mean",
    "masked.var",
    "masked.std",
    "masked.argmax",
    "masked.argmin",
    "masked.logsumexp",
    "masked.softmax",
    "masked.log_softmax",
    "masked.softmin",
    "masked.cumsum",
    "masked.cumprod",
    "masked.normalize",
    "linalg.vector_norm",
    "norm",
    "norm.inf",
    "nn.functional.softmin",
    "nn.functional.softmin.with_dtype",
]:
    if theirs in RULES:
        RULES[theirs] = _of_number(RULES[theirs])
