"""The Python array API standard, 2024.12, over pullback's tensors.

``xp = x.__array_namespace__()``. Functions are those of `pb` where the standard says the same;
two operands must be of one kind, where `pb` promotes. What is missing: docs/array_api.md.
"""

from pullback.array_api import fft, linalg
from pullback.array_api.dtypes import (
    astype,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
    strict,
)
from pullback.array_api.functions import (
    clip,
    concat,
    conj,
    empty,
    from_dlpack,
    imag,
    ones,
    real,
    searchsorted,
    stack,
    take,
    where,
    zeros,
)
from pullback.array_api.hosted import (
    nonzero,
    repeat,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from pullback.array_api.info import array_namespace_info as __array_namespace_info__
from pullback.ir.dtype import bool_ as bool
from pullback.ir.dtype import (
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
from pullback.stats.moments import count_nonzero
from pullback.stats.places import diff
from pullback.tensor.complex.pairs import complex64, complex128
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.library import maths as _maths
from pullback.tensor.library import scalars as _scalars
from pullback.tensor.library.creation import (
    arange,
    asarray,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones_like,
    zeros_like,
)
from pullback.tensor.library.maths import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    bitwise_invert,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logical_not,
    negative,
    positive,
    reciprocal,
    round,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)
from pullback.tensor.library.ops import (
    all,
    any,
    argmax,
    argmin,
    broadcast_arrays,
    broadcast_to,
    cumulative_prod,
    cumulative_sum,
    expand_dims,
    flip,
    matmul,
    matrix_transpose,
    max,
    mean,
    min,
    moveaxis,
    permute_dims,
    prod,
    reshape,
    roll,
    squeeze,
    std,
    sum,
    take_along_axis,
    tensordot,
    tile,
    tril,
    triu,
    unstack,
    var,
    vecdot,
)
from pullback.tensor.library.scalars import signbit
from pullback.tensor.library.sorting import argsort, sort

__array_api_version__ = "2024.12"

e = 2.718281828459045
pi = 3.141592653589793
inf = float("inf")
nan = float("nan")
newaxis = None

add = strict(_maths.add)
atan2 = strict(_maths.atan2)
bitwise_and = strict(_maths.bitwise_and)
bitwise_left_shift = strict(_maths.bitwise_left_shift)
bitwise_or = strict(_maths.bitwise_or)
bitwise_right_shift = strict(_maths.bitwise_right_shift)
bitwise_xor = strict(_maths.bitwise_xor)
copysign = strict(_maths.copysign)
divide = strict(_maths.divide)
equal = strict(_maths.equal)
floor_divide = strict(_maths.floor_divide)
greater = strict(_maths.greater)
greater_equal = strict(_maths.greater_equal)
hypot = strict(_scalars.hypot)
less = strict(_maths.less)
less_equal = strict(_maths.less_equal)
logaddexp = strict(_maths.logaddexp)
logical_and = strict(_maths.logical_and)
logical_or = strict(_maths.logical_or)
logical_xor = strict(_maths.logical_xor)
maximum = strict(_maths.maximum)
minimum = strict(_maths.minimum)
multiply = strict(_maths.multiply)
nextafter = strict(_scalars.nextafter)
not_equal = strict(_maths.not_equal)
pow = strict(_maths.pow)
remainder = strict(_maths.remainder)
subtract = strict(_maths.subtract)

__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "complex64",
    "complex128",
    "concat",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "fft",
    "finfo",
    "flip",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hypot",
    "iinfo",
    "imag",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "searchsorted",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]

__dir__ = _shown(__all__)
