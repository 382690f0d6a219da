"""One call of every public function and layer that makes tensors of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.nn import functional as F

Array = np.ndarray[Any, Any]
Case = tuple[Callable[..., Any], tuple[Array, ...]]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def share(*shape: int) -> Array:
    """Numbers between 0 and 1."""
    return np.random.default_rng(1).uniform(0.1, 0.9, shape)


def called(function: Callable[..., Any], *arrays: Array, **settings: Any) -> Case:
    return (lambda *x: function(*x, **settings)), arrays


ROWS, LINE, IMAGE, SPACE = normal(6, 8), normal(2, 4, 9), normal(2, 4, 7, 6), normal(1, 2, 5, 4, 4)
OTHER, TARGET = normal(6, 8, seed=3), share(6, 8)
SIGNS = np.sign(normal(6))
LABELS = np.array([1, 0, 7, 3, 3, 5])
PLACES = np.array([1, 0, 5])
TOKENS = np.array([[3, 0, 4], [1, 3, 0]])
SQUARE = normal(5, 5)
A3, B3 = normal(3, 4, 5), normal(3, 5, 6, seed=1)

# --- pullback ------------------------------------------------------------------------------------

# What makes no float tensor of float tensors, and what takes functions of the user.
# Families with tests of their own (test_functions, test_stats, test_scattering, test_recurrences,
# test_integers): their gradients are checked there; what those cost is bounded by way of `MEMBERS`.
FAMILIES = {
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "allclose", "aminmax", "atleast_1d",
    "atleast_2d", "atleast_3d", "average", "baddbmm", "bincount", "block_diag", "broadcast_shapes",
    "bucketize", "cartesian_prod", "cdist", "chunk", "column_stack", "combinations", "complex128",
    "complex64", "convolve", "copysign", "corrcoef", "correlate", "count_nonzero", "cov", "cross",
    "cumulative_argmax", "cumulative_argmin", "cumulative_trapezoid", "deg2rad", "diag",
    "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "diff", "digitize", "dist", "dstack",
    "exp2", "flatten", "float_power", "fmax", "fmin", "fmod", "frac", "frexp", "gather", "gcd",
    "geomspace", "gradient", "heaviside", "histc", "histogram", "hstack", "hypot", "index_add",
    "index_copy", "index_fill", "index_put", "index_reduce", "inner", "int16", "interp", "isclose",
    "isin", "isneginf", "isposinf", "kron", "kthvalue", "lcm", "ldexp", "lerp", "logaddexp2",
    "logspace", "masked_fill", "masked_scatter", "median", "mode", "msort", "nan_to_num", "nanmax",
    "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanquantile", "nanstd", "nansum", "nanvar",
    "narrow", "nextafter", "pdist", "percentile", "polyval", "ptp", "put", "quantile", "rad2deg",
    "ravel", "recurrence", "renorm", "rot90", "scatter", "scatter_reduce", "searchsorted", "select",
    "select_scatter", "signbit", "slice_scatter", "special", "std_mean", "swapaxes", "tensor_split",
    "trace", "trapezoid", "tril_indices", "triu_indices", "uint16", "uint64", "unflatten", "unfold",
    "unwrap", "vander", "var_mean", "vstack",
}  # fmt: skip
OTHERWISE = FAMILIES | {
    "load_image",
    *("Cell", "Complex", "DType", "Dim", "Feeder", "Options", "Receiver", "State", "Tensor"),
    *("arange", "asarray", "axis", "bfloat16", "bool", "bool_", "dim", "dtype", "e", "empty"),
    *("float8_e4m3fn", "float8_e5m2"),
    *("empty_like", "eye", "float16", "float32", "float64", "from_dlpack", "full", "full_like"),
    *("inf", "int8", "int32", "int64", "linspace", "nan", "newaxis", "one_hot", "ones", "schedule"),
    *("ones_like", "pi", "random", "result_type", "tensor", "uint8", "uint32", "zeros"),
    *("zeros_like", "check_grads", "custom_jvp", "custom_vjp", "define", "differentiate", "grad"),
    *("hessian", "hvp", "jacobian", "jit", "jvp", "value_and_grad", "vjp", "vmap", "keep"),
    *("get_num_threads", "set_num_threads"),
    *("checkpoint", "cond", "loop", "scan", "while_loop"),
    *("all", "any", "argmax", "argmin", "argsort", "bitwise_and", "bitwise_invert"),
    *("bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "equal"),
    *("greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "not_equal", "stop_gradient"),
}
UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf"),
    *("exp", "expm1", "floor", "gelu", "gelu_tanh", "log", "log1p", "log2", "log10"),
    *("log_sigmoid", "negative", "positive", "reciprocal", "relu", "round", "rsqrt", "sigmoid"),
    *("sign", "silu", "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh", "trunc"),
)
BINARY = (
    *("add", "atan2", "divide", "floor_divide", "logaddexp", "maximum", "minimum", "multiply"),
    *("pow", "remainder", "subtract"),
)
REDUCED = (
    *("amax", "amin", "cumulative_logsumexp", "cumulative_max", "cumulative_min"),
    *("cumulative_prod", "cumulative_sum", "log_softmax", "logsumexp", "max", "mean", "min"),
    *("prod", "softmax", "sort", "std", "sum", "var"),
)


def weighted(a: Any, b: Any) -> tuple[Any, Any]:
    return a[0] * b[0], a[1] * b[0] + b[1]


def tripled(x: Any) -> Any:
    k = pb.axis(8)
    return pb.compute(
        (6,), lambda i: pb.reduce(weighted, (1.0, 0.0), (x[i, k], x[i, k]), over=k)[1]
    )


TENSORS: dict[str, Case] = {
    **{n: called(getattr(pb, n), 1.5 + share(6, 8) if n == "acosh" else TARGET) for n in UNARY},
    **{n: called(getattr(pb, n), TARGET, 0.5 + TARGET) for n in BINARY},
    **{n: called(getattr(pb, n), ROWS, axis=1) for n in REDUCED},
    "associative_scan": called(
        lambda a, b: pb.associative_scan(weighted, (a, b), axis=0)[1], ROWS, OTHER
    ),
    "astype": called(lambda x: pb.astype(x, pb.float64) * 1.0, ROWS),
    "broadcast_arrays": called(lambda x, y: sum(pb.broadcast_arrays(x, y)), ROWS, ROWS[:1]),
    "broadcast_to": called(pb.broadcast_to, ROWS, shape=(3, 6, 8)),
    "clip": called(pb.clip, ROWS, min=-0.5, max=0.5),
    "compute": called(lambda x: pb.compute((6, 8), lambda i, j: x[i, j] * x[i, 7 - j]), ROWS),
    "concat": called(lambda x, y: pb.concat([x, y], axis=1), ROWS, OTHER),
    "einsum": called(lambda a, b: pb.einsum("bij,bjk->bik", a, b), A3, B3),
    "expand_dims": called(pb.expand_dims, ROWS, axis=1),
    "flip": called(pb.flip, ROWS, axis=1),
    "linear_recurrence": called(lambda a, b: pb.linear_recurrence(a, b), ROWS, OTHER),
    "matmul": called(pb.matmul, A3, B3),
    "matrix_transpose": called(pb.matrix_transpose, A3),
    "meshgrid": called(lambda x, y: pb.meshgrid(x, y)[0], ROWS[0], ROWS[1]),
    "moveaxis": called(pb.moveaxis, A3, source=0, destination=2),
    "outer": called(pb.outer, ROWS[0], ROWS[1]),
    "pad": called(pb.pad, ROWS, pad_width=((1, 2), (0, 3))),
    "permute_dims": called(pb.permute_dims, A3, axes=(2, 0, 1)),
    "reduce": called(tripled, ROWS),
    "repeat": called(pb.repeat, ROWS, repeats=3, axis=0),
    "reshape": called(pb.reshape, ROWS, shape=(4, 12)),
    "roll": called(pb.roll, ROWS, shift=3, axis=1),
    "scatter_add": called(
        lambda x, y: pb.scatter_add(x, pb.tensor(LABELS[:3] % 6), y), ROWS, OTHER[:3]
    ),
    "split": called(lambda x: pb.split(x, 4, axis=1)[2], ROWS),
    "squeeze": called(pb.squeeze, ROWS[:, None], axis=1),
    "stack": called(lambda x, y: pb.stack([x, y], axis=1), ROWS, OTHER),
    "take": called(lambda x: pb.take(x, pb.tensor(LABELS % 6), axis=0), ROWS),
    "take_along_axis": called(
        lambda x: pb.take_along_axis(x, pb.tensor(LABELS[:, None]), axis=1), ROWS
    ),
    "tensordot": called(pb.tensordot, A3, B3, axes=([0, 2], [0, 1])),
    "tile": called(pb.tile, ROWS, repetitions=(2, 3)),
    "topk": called(lambda x: pb.topk(x, 3)[0], ROWS),
    "tril": called(pb.tril, SQUARE),
    "triu": called(pb.triu, SQUARE),
    "unstack": called(lambda x: pb.unstack(x, axis=0)[2], ROWS),
    "vecdot": called(pb.vecdot, ROWS, OTHER),
    "where": called(lambda x, y: pb.where(x < y, x * x, y), ROWS, OTHER),
}

MEMBERS: dict[str, Case] = {
    **{n: called(getattr(pb, n), TARGET) for n in ("exp2", "deg2rad", "rad2deg", "frac", "ravel")},
    **{
        n: called(getattr(pb, n), TARGET, 0.5 + TARGET)
        for n in ("copysign", "fmax", "fmin", "fmod", "hypot", "float_power", "logaddexp2", "dist")
    },
    **{
        n: called(getattr(pb, n), ROWS, axis=1)
        for n in ("nansum", "nanmean", "diff", "median", "nanmedian", "cumulative_trapezoid")
    },
    "addcdiv": called(pb.addcdiv, ROWS, OTHER, 0.5 + TARGET),
    "addcmul": called(pb.addcmul, ROWS, OTHER, TARGET),
    "addmm": called(pb.addmm, normal(4, 6), normal(4, 5), normal(5, 6)),
    "cdist": called(pb.cdist, ROWS, OTHER),
    "corrcoef": called(pb.corrcoef, ROWS),
    "cov": called(pb.cov, ROWS),
    "cross": called(pb.cross, normal(6, 3), normal(6, 3, seed=3)),
    "diag": called(pb.diag, SQUARE),
    "diag_embed": called(pb.diag_embed, ROWS),
    "diagonal": called(pb.diagonal, SQUARE),
    "flatten": called(pb.flatten, A3),
    "gather": called(lambda x: pb.gather(x, pb.tensor(LABELS[:, None]), axis=1), ROWS),
    "hstack": called(lambda x, y: pb.hstack([x, y]), ROWS, OTHER),
    "index_add": called(lambda x, y: pb.index_add(x, pb.tensor(PLACES), y), ROWS, OTHER[:3]),
    "inner": called(pb.inner, ROWS, OTHER),
    "kron": called(pb.kron, normal(2, 3), normal(4, 2)),
    "kthvalue": called(lambda x: pb.kthvalue(x, 3)[0], ROWS),
    "lerp": called(pb.lerp, ROWS, OTHER, TARGET),
    "masked_fill": called(lambda x: pb.masked_fill(x, pb.tensor(ROWS > 0), 1.5), OTHER),
    "narrow": called(lambda x: pb.narrow(x, 1, 2, 4), ROWS),
    "nan_to_num": called(pb.nan_to_num, ROWS),
    "pdist": called(pb.pdist, ROWS),
    "quantile": called(lambda x: pb.quantile(x, 0.3, axis=1), ROWS),
    "rot90": called(pb.rot90, SQUARE),
    "std_mean": called(lambda x: pb.std_mean(x, axis=1)[0], ROWS),
    "swapaxes": called(lambda x: pb.swapaxes(x, 0, 2), A3),
    "trace": called(pb.trace, SQUARE),
    "trapezoid": called(pb.trapezoid, ROWS),
    "vander": called(pb.vander, ROWS[0]),
    "var_mean": called(lambda x: pb.var_mean(x, axis=1)[0], ROWS),
    "vstack": called(lambda x, y: pb.vstack([x, y]), ROWS, OTHER),
}  # fmt: skip

# --- nn.functional -------------------------------------------------------------------------------

POINTWISE = (
    *("celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh"),
    *("leaky_relu", "logsigmoid", "mish", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu"),
    *("softplus", "softshrink", "softsign", "tanh", "tanhshrink", "dropout"),
    *("softmax", "log_softmax", "softmin", "glu", "gumbel_softmax", "normalize"),
)
BETWEEN = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"),
    *("kl_div", "poisson_nll_loss", "soft_margin_loss", "cosine_similarity"),
    *("pairwise_distance", "multilabel_soft_margin_loss"),
)


def images(name: str, space: int) -> Case:
    """A pooling or dropout over one, two or three axes of space."""
    x = (LINE, IMAGE, SPACE)[space - 1]
    full = f"{name}{space}d"
    settings: dict[str, Any] = {"kernel_size": 2}
    if "adaptive" in name:
        settings = {"output_size": 3}
    elif name == "dropout":
        settings = {}
    elif name == "lp_pool":
        settings["norm_type"] = 2.0
    return called(getattr(F, full), x, **settings)


def convolved(space: int, turned: bool) -> Case:
    x = (LINE, IMAGE, SPACE)[space - 1]
    kernel = (
        normal(x.shape[1], 3, *(2,) * space) if turned else normal(3, x.shape[1], *(2,) * space)
    )
    name = f"conv_transpose{space}d" if turned else f"conv{space}d"
    return called(getattr(F, name), x, kernel, normal(3), stride=2, padding=1)


def unpooled(space: int) -> Case:
    x = (LINE, IMAGE, SPACE)[space - 1][..., :4]
    y, places = getattr(F, f"max_pool{space}d")(pb.tensor(x), 2, return_indices=True)
    places = pb.tensor(places.numpy())
    return called(getattr(F, f"max_unpool{space}d"), y.numpy(), indices=places, kernel_size=2)


EVERY_SPACE = (
    *("max_pool", "avg_pool", "lp_pool", "adaptive_max_pool", "adaptive_avg_pool", "dropout"),
)
FUNCTIONS: dict[str, Case] = {
    **{n: called(getattr(F, n), ROWS) for n in POINTWISE},
    **{n: called(getattr(F, n), ROWS, TARGET) for n in BETWEEN},
    **{f"{n}{s}d": images(n, s) for n in EVERY_SPACE for s in (1, 2, 3)},
    **{f"conv{s}d": convolved(s, False) for s in (1, 2, 3)},
    **{f"conv_transpose{s}d": convolved(s, True) for s in (1, 2, 3)},
    "alpha_dropout": called(F.alpha_dropout, ROWS, training=True),
    "feature_alpha_dropout": called(F.feature_alpha_dropout, IMAGE, training=True),
    "affine_grid": called(F.affine_grid, normal(2, 2, 3), size=(2, 1, 4, 5), align_corners=False),
    "batch_norm": called(
        lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True), IMAGE, ROWS[0, :4],
        ROWS[1, :4],
    ),
    "bilinear": called(F.bilinear, normal(6, 3), normal(6, 4), normal(5, 3, 4), normal(5)),
    "binary_cross_entropy": called(F.binary_cross_entropy, TARGET, share(6, 8)),
    "channel_shuffle": called(F.channel_shuffle, IMAGE, groups=2),
    "cosine_embedding_loss": called(
        lambda x, y: F.cosine_embedding_loss(x, y, pb.tensor(SIGNS)), ROWS, OTHER
    ),
    "cross_entropy": called(lambda x: F.cross_entropy(x, pb.tensor(LABELS)), ROWS),
    "ctc_loss": called(
        lambda x: F.ctc_loss(x, pb.tensor(TOKENS + 1), (5, 4), (3, 2)), normal(5, 2, 6)
    ),
    "fractional_max_pool2d": called(
        F.fractional_max_pool2d, IMAGE, kernel_size=2, output_size=3
    ),
    "fractional_max_pool3d": called(
        F.fractional_max_pool3d, SPACE, kernel_size=2, output_size=2
    ),
    **{f"max_unpool{s}d": unpooled(s) for s in (1, 2, 3)},
    "embedding": called(lambda x: F.embedding(pb.tensor(TOKENS), x), ROWS),
    "embedding_bag": called(lambda x: F.embedding_bag(pb.tensor(TOKENS), x), ROWS),
    "fold": called(F.fold, normal(2, 8, 6), output_size=(3, 4), kernel_size=2),
    "gaussian_nll_loss": called(F.gaussian_nll_loss, ROWS, OTHER, TARGET),
    "grid_sample": called(F.grid_sample, IMAGE, 0.5 * normal(2, 5, 6, 2), align_corners=False),
    "group_norm": called(lambda x, g, b: F.group_norm(x, 2, g, b), IMAGE, normal(4), normal(4)),
    "hinge_embedding_loss": called(
        lambda x: F.hinge_embedding_loss(x, pb.tensor(np.sign(OTHER))), ROWS
    ),
    "instance_norm": called(F.instance_norm, IMAGE),
    "interpolate": called(F.interpolate, IMAGE, size=(9, 11), mode="bilinear"),
    "layer_norm": called(
        lambda x, g, b: F.layer_norm(x, (8,), g, b), ROWS, normal(8), normal(8)
    ),
    "linear": called(F.linear, ROWS, normal(5, 8), normal(5)),
    "local_response_norm": called(F.local_response_norm, IMAGE, size=3),
    "margin_ranking_loss": called(
        lambda x, y: F.margin_ranking_loss(x, y, pb.tensor(SIGNS)), normal(6), normal(6, seed=1)
    ),
    "multi_margin_loss": called(lambda x: F.multi_margin_loss(x, pb.tensor(LABELS)), ROWS),
    "multilabel_margin_loss": called(
        lambda x: F.multilabel_margin_loss(x, pb.tensor(np.full((6, 8), -1))), ROWS
    ),
    "nll_loss": called(lambda x: F.nll_loss(x, pb.tensor(LABELS)), ROWS),
    "pad": called(F.pad, IMAGE, pad=(1, 2, 2, 1), mode="reflect"),
    "pixel_shuffle": called(F.pixel_shuffle, IMAGE, upscale_factor=2),
    "pixel_unshuffle": called(F.pixel_unshuffle, normal(2, 2, 4, 6), downscale_factor=2),
    "prelu": called(F.prelu, IMAGE, normal(4)),
    "rms_norm": called(lambda x, g: F.rms_norm(x, (8,), g), ROWS, normal(8)),
    "scaled_dot_product_attention": called(
        F.scaled_dot_product_attention, *(normal(2, 3, 7, 8, seed=s) for s in range(3))
    ),
    "threshold": called(F.threshold, ROWS, threshold=0.1, value=0.0),
    "triplet_margin_loss": called(F.triplet_margin_loss, ROWS, OTHER, TARGET),
    "triplet_margin_with_distance_loss": called(
        F.triplet_margin_with_distance_loss, ROWS, OTHER, TARGET
    ),
    "unfold": called(F.unfold, IMAGE, kernel_size=2),
}  # fmt: skip
NO_FLOATS = {"rotary_embedding", "one_hot", "functional_call"}

# --- modules with weights: the others are the functions above ------------------------------------


def module(made: nn.Module, *arrays: Array) -> Case:
    return made, arrays


WIDE: dict[str, Any] = {"dtype": "float64"}
HEADS = nn.MultiheadAttention(8, 2, **WIDE)
MODULES: dict[str, Case] = {
    "LSTM": module(nn.LSTM(3, 4, **WIDE), normal(5, 2, 3)),
    "GRU": module(nn.GRU(3, 4, **WIDE), normal(5, 2, 3)),
    "RNN": module(nn.RNN(3, 4, **WIDE), normal(5, 2, 3)),
    "LSTMCell": module(nn.LSTMCell(3, 4, **WIDE), normal(2, 3)),
    "GRUCell": module(nn.GRUCell(3, 4, **WIDE), normal(2, 3)),
    "RNNCell": module(nn.RNNCell(3, 4, **WIDE), normal(2, 3)),
    "MultiheadAttention": (
        lambda x: HEADS(x, x, x, need_weights=False)[0],
        (normal(5, 2, 8),),
    ),
    "TransformerEncoderLayer": module(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **WIDE), normal(5, 2, 8)
    ),
    "TransformerDecoderLayer": module(
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, **WIDE), normal(5, 2, 8), normal(4, 2, 8)
    ),
    "Transformer": module(
        nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, **WIDE), normal(5, 2, 8), normal(4, 2, 8)
    ),
    "TransformerEncoder": module(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **WIDE), 2),
        normal(5, 2, 8),
    ),
}
