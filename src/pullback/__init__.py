"""pullback: index expressions, their gradients, whole programs."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from pullback.backends.host.pool import get_num_threads, set_num_threads
from pullback.composite.text import define
from pullback.config import Options
from pullback.errors import ExtraError, Origin
from pullback.errors import report as _report
from pullback.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    dtype,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from pullback.ir.expr import Dim
from pullback.stats.counts import (
    bincount,
    histc,
    histogram,
)
from pullback.stats.curves import convolve, correlate, gradient, interp, polyval, unwrap
from pullback.stats.moments import (
    aminmax,
    average,
    corrcoef,
    count_nonzero,
    cov,
    nanmax,
    nanmean,
    nanmin,
    nanstd,
    nansum,
    nanvar,
    ptp,
    std_mean,
    var_mean,
)
from pullback.stats.order import (
    kthvalue,
    median,
    mode,
    msort,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from pullback.stats.places import (
    bucketize,
    cumulative_argmax,
    cumulative_argmin,
    cumulative_trapezoid,
    diff,
    digitize,
    searchsorted,
    trapezoid,
)
from pullback.tensor.complex.functions import Complex, complex64, complex128
from pullback.tensor.define.combine import (
    associative_scan,
    cumulative_logsumexp,
    linear_recurrence,
    reduce,
)
from pullback.tensor.define.compute import axis, compute
from pullback.tensor.define.recurrence import recurrence
from pullback.tensor.derive.autograd import grad, value_and_grad
from pullback.tensor.derive.check import check_grads
from pullback.tensor.derive.custom import custom_jvp, custom_vjp
from pullback.tensor.derive.differentiate import differentiate
from pullback.tensor.derive.jacobian import hessian, jacobian
from pullback.tensor.derive.modes import hvp, jvp, vjp
from pullback.tensor.derive.vmap import vmap
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown
from pullback.tensor.face.protocols import protocols as _protocols
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.forms.control import checkpoint, cond, loop, scan, while_loop
from pullback.tensor.library.creation import (
    arange,
    asarray,
    dim,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    one_hot,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from pullback.tensor.library.maths import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    erf,
    exp,
    expm1,
    floor,
    floor_divide,
    fmod,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    log_sigmoid,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    positive,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
)
from pullback.tensor.library.ops import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    astype,
    broadcast_arrays,
    broadcast_to,
    clip,
    concat,
    cumulative_max,
    cumulative_min,
    cumulative_prod,
    cumulative_sum,
    einsum,
    expand_dims,
    flip,
    keep,
    log_softmax,
    logsumexp,
    matmul,
    matrix_transpose,
    max,
    mean,
    min,
    moveaxis,
    outer,
    pad,
    permute_dims,
    prod,
    repeat,
    reshape,
    result_type,
    roll,
    softmax,
    split,
    squeeze,
    stack,
    std,
    stop_gradient,
    sum,
    take,
    take_along_axis,
    tensordot,
    tile,
    tril,
    triu,
    unstack,
    var,
    vecdot,
    where,
)
from pullback.tensor.library.products import (
    addbmm,
    addmm,
    addmv,
    addr,
    baddbmm,
    cdist,
    cross,
    dist,
    inner,
    kron,
    pdist,
    renorm,
)
from pullback.tensor.library.scalars import (
    addcdiv,
    addcmul,
    allclose,
    deg2rad,
    exp2,
    float_power,
    fmax,
    fmin,
    frac,
    frexp,
    gcd,
    heaviside,
    hypot,
    isclose,
    isin,
    isneginf,
    isposinf,
    lcm,
    ldexp,
    lerp,
    logaddexp2,
    nan_to_num,
    nextafter,
    rad2deg,
    signbit,
)
from pullback.tensor.library.scattering import (
    diagonal_scatter,
    gather,
    index_add,
    index_copy,
    index_fill,
    index_put,
    index_reduce,
    masked_fill,
    masked_scatter,
    put,
    scatter,
    scatter_add,
    scatter_reduce,
    select_scatter,
    slice_scatter,
)
from pullback.tensor.library.shapes import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block_diag,
    broadcast_shapes,
    cartesian_prod,
    chunk,
    column_stack,
    combinations,
    diag,
    diag_embed,
    diagflat,
    diagonal,
    dstack,
    flatten,
    geomspace,
    hstack,
    logspace,
    narrow,
    ravel,
    rot90,
    select,
    swapaxes,
    tensor_split,
    trace,
    tril_indices,
    triu_indices,
    unflatten,
    unfold,
    vander,
    vstack,
)
from pullback.tensor.library.sorting import argsort, sort, topk
from pullback.tensor.record.trace import Cell
from pullback.tensor.run.host import Feeder, Receiver
from pullback.tensor.run.images import load_image
from pullback.tensor.run.program import jit
from pullback.tensor.run.scheduled import schedule

if TYPE_CHECKING:  # what `__getattr__` imports, for editors and type checkers
    from pullback import array_api as array_api
    from pullback import distributed as distributed
    from pullback import fft as fft
    from pullback import gguf as gguf
    from pullback import linalg as linalg
    from pullback import models as models
    from pullback import nn as nn
    from pullback import onnx as onnx
    from pullback import optim as optim
    from pullback import quantised as quantised
    from pullback import random as random
    from pullback import rules as rules
    from pullback import sparse as sparse
    from pullback import special as special
    from pullback import torch as torch
    from pullback import tree as tree
    from pullback import triton as triton
    from pullback import winograd as winograd
    from pullback.bridge import jax as jax

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

e = 2.718281828459045
pi = 3.141592653589793
inf = float("inf")
nan = float("nan")
newaxis = None
bool = bool_

__all__ = [
    "Cell", "Complex", "DType", "Dim", "Feeder", "Options", "Receiver", "State", "Tensor",
    "abs", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr",
    "all", "allclose", "amax", "amin", "aminmax", "any", "arange", "argmax", "argmin",
    "argsort", "asarray", "asin", "asinh", "associative_scan", "astype", "atan", "atan2",
    "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "axis",
    "baddbmm", "bfloat16", "bincount", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "block_diag", "bool", "bool_",
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "bucketize",
    "cartesian_prod", "cdist", "ceil", "check_grads", "checkpoint", "chunk", "clip",
    "column_stack", "combinations", "complex64", "complex128",
    "compute", "concat", "cond", "convolve", "copysign", "corrcoef", "correlate", "cos",
    "cosh", "count_nonzero", "cov", "cross", "cumulative_argmax", "cumulative_argmin",
    "cumulative_logsumexp", "cumulative_max", "cumulative_min", "cumulative_prod",
    "cumulative_sum", "cumulative_trapezoid", "custom_jvp", "custom_vjp",
    "define", "deg2rad", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter",
    "diff", "differentiate", "digitize", "dim", "dist", "divide", "dstack", "dtype",
    "e", "einsum", "empty", "empty_like", "equal", "erf", "exp", "exp2", "expand_dims", "expm1",
    "eye",
    "flatten", "flip", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "float64",
    "float_power", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "frac", "frexp", "from_dlpack", "full", "full_like",
    "gather", "gcd", "gelu", "gelu_tanh", "geomspace", "get_num_threads", "grad", "gradient",
    "greater", "greater_equal",
    "heaviside", "hessian", "histc", "histogram", "hstack", "hvp", "hypot",
    "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "inf", "inner",
    "int8", "int16", "int32", "int64", "interp", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf",
    "jacobian", "jit", "jvp",
    "keep", "kron", "kthvalue",
    "lcm", "ldexp", "lerp", "less", "less_equal", "linear_recurrence", "linspace", "load_image",
    "log",
    "log1p", "log2", "log10", "log_sigmoid", "log_softmax", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logspace", "logsumexp", "loop",
    "masked_fill", "masked_scatter", "matmul", "matrix_transpose", "max", "maximum", "mean",
    "median", "meshgrid", "min", "minimum", "mode", "moveaxis", "msort", "multiply",
    "nan", "nan_to_num", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanquantile", "nanstd", "nansum", "nanvar", "narrow", "negative",
    "newaxis", "nextafter", "not_equal",
    "one_hot", "ones", "ones_like", "outer",
    "pad", "pdist", "percentile", "permute_dims", "pi", "polyval", "positive", "pow", "prod",
    "ptp", "put",
    "quantile",
    "rad2deg", "random", "ravel", "reciprocal", "recurrence", "reduce", "relu", "remainder",
    "renorm", "repeat", "reshape", "result_type", "roll", "rot90", "round", "rsqrt",
    "scan", "scatter", "scatter_add", "scatter_reduce", "schedule", "searchsorted", "select",
    "select_scatter", "set_num_threads", "sigmoid", "sign", "signbit", "silu", "sin", "sinh",
    "slice_scatter", "softmax", "softplus", "sort", "special", "split", "sqrt", "square",
    "squeeze", "stack", "std", "std_mean", "stop_gradient", "subtract", "sum", "swapaxes",
    "take", "take_along_axis", "tan", "tanh", "tensor", "tensor_split", "tensordot", "tile",
    "topk", "trace", "trapezoid", "tril", "tril_indices", "triu", "triu_indices", "trunc",
    "uint8", "uint16", "uint32", "uint64", "unflatten", "unfold", "unstack", "unwrap",
    "value_and_grad", "vander", "var", "var_mean", "vecdot", "vjp", "vmap", "vstack",
    "where", "while_loop",
    "zeros", "zeros_like",
]  # fmt: skip


# What tensors answer NumPy and the array API with is made of tensors: the two meet here.
_protocols.room = lambda name: importlib.import_module(f"{__name__}.{name}")

if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _report


_LAZY = (
    "array_api",
    "distributed",
    "fft",
    "gguf",
    "linalg",
    "models",
    "nn",
    "optim",
    "quantised",
    "random",
    "rules",
    "sparse",
    "special",
    "tree",
    "winograd",
)  # built of what is here
_EXTRAS = {
    "jax": ("JAX", "bridge.jax"),
    "onnx": ("ONNX", "onnx"),
    "torch": ("PyTorch", "torch"),
    "triton": ("Triton and PyTorch", "triton"),
}
__dir__ = _shown([*__all__, *_LAZY, *_EXTRAS])
_bounded(globals(), __all__)


@functools.cache
def _elsewhere() -> dict[str, str]:
    """What other rooms have, by its name: the first of them counts."""
    places: dict[str, str] = {}
    for room in ("linalg", "special", "random", "fft", "nn.functional", "nn", "optim", "sparse"):
        names = importlib.import_module(f"{__name__}.{room}").__all__
        places |= {name: f"{room}.{name}" for name in names if name not in places}
    return places


def __getattr__(name: str) -> Any:
    """`pb.nn`, `optim`, `fft`, `gguf`, `linalg`, `quantised`, .., imported lazily: they are built
    of what is here.

    Raises: ExtraError, an ImportError, for `pb.torch` where PyTorch is not installed, as for `jax`
    and `triton`.
    """
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _EXTRAS:
        try:
            return importlib.import_module(f"{__name__}.{_EXTRAS[name][1]}")
        except ModuleNotFoundError as error:
            if error.name not in (name, "torch"):
                raise
            raise ExtraError(
                f"pb.{name} needs {_EXTRAS[name][0]}",
                origin=Origin.of_caller(),
                help=f"pip install 'pullback[{name}]'",
            ) from error
    raise _unknown("pullback", name, __all__, {} if name.startswith("_") else _elsewhere())
