"""tinygrad's tests of operations (test/backend/test_ops.py) on pullback's tensors.

`python scripts/test_ops.py PLACE [NAME ..]`: PLACE is a checkout of tinygrad; names are those of
unittest. Its module is loaded with a `tinygrad` of ours beneath: a `Tensor` of its methods, each one
call of pullback. Prints every failure in a line, and the counts. Needs PyTorch.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import types
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import opinfo_rules_more
import pullback as pb
from opinfo_rules import RULES
from pullback.errors import PullbackError

F = pb.nn.functional


class DTypes:
    """tinygrad's names of types."""

    default_float = pb.float32
    default_int = pb.int32
    float = float32 = pb.float32
    double = float64 = pb.float64
    half = float16 = pb.float16
    bfloat16 = pb.bfloat16
    int = int32 = pb.int32
    int8 = char = pb.int8
    int16 = short = pb.int16
    int64 = long = pb.int64
    uint8 = uchar = pb.uint8
    uint16 = ushort = pb.uint16
    uint32 = uint = pb.uint32
    uint64 = ulong = pb.uint64
    bool = pb.bool_
    floats = (pb.float16, pb.bfloat16, pb.float32, pb.float64)
    ints = (pb.int8, pb.int16, pb.int32, pb.int64, pb.uint8, pb.uint16, pb.uint32, pb.uint64)


def bare(value: Any) -> Any:
    """Ours inside of theirs."""
    if isinstance(value, Tensor):
        return value.own
    if isinstance(value, list | tuple):
        return type(value)(bare(v) for v in value)
    if isinstance(value, slice):
        return slice(bare(value.start), bare(value.stop), bare(value.step))
    return value


def dressed(value: Any) -> Any:
    """Theirs around ours."""
    if isinstance(value, pb.Tensor):
        return Tensor(value)
    if isinstance(value, list | tuple):
        made = [dressed(v) for v in value]
        return made if isinstance(value, list) else tuple(made)
    return value


HEADS: list[Any] = []  # what `backward` was called of


class Tensor:
    """tinygrad's tensor: what it is asked for is looked up in `METHODS`, then in `RULES`."""

    training = False

    def __init__(self, data: Any = None, dtype: Any = None, **rest: Any) -> None:
        if isinstance(data, Tensor):
            data = data.own
        if not isinstance(data, pb.Tensor):
            kind = None if dtype is None else dtype
            whole = np.asarray(data if data is not None else [])
            if kind is None and not isinstance(data, np.ndarray):
                small = {"i": pb.int32, "f": pb.float32}.get(whole.dtype.kind)
                kind = small if not isinstance(data, bytes) else pb.uint8
            data = pb.tensor(whole, kind) if kind is not None else pb.tensor(whole)
        elif dtype is not None:
            data = data.astype(dtype)
        self.own = data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return method(name, self)

    def numpy(self) -> Any:
        return self.own.numpy()

    def realize(self, *others: Any) -> Tensor:
        self.own.numpy()
        return self

    def contiguous(self, *args: Any, **kw: Any) -> Tensor:
        return self

    detach = clone = contiguous_backward = contiguous

    def backward(self) -> Tensor:
        """Gradients by every tensor that this one was computed from: their `grad` asks for it."""
        HEADS.append(self.own)
        return self

    @property
    def grad(self) -> Tensor:
        return Tensor(pb.grad(HEADS[-1], [self.own])[0])

    def gradient(self, *targets: Tensor, **kw: Any) -> list[Tensor]:
        return [Tensor(g) for g in pb.grad(self.own, [t.own for t in targets])]

    def item(self) -> Any:
        return self.own.item()

    def tolist(self) -> Any:
        return self.own.tolist()

    def data(self) -> Any:
        return self.own.numpy().data

    @property
    def shape(self) -> Any:
        return self.own.shape

    @property
    def dtype(self) -> Any:
        return self.own.dtype

    @property
    def ndim(self) -> int:
        return len(self.own.shape)

    @property
    def T(self) -> Tensor:
        return dressed(RULES["T"](self.own))

    def size(self, dim: Any = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.own)

    def __bool__(self) -> bool:
        return bool(self.own)

    def __iter__(self) -> Any:
        return (Tensor(x) for x in self.own)

    def __getitem__(self, index: Any) -> Tensor:
        try:
            return dressed(selected(self.own, places(index)))
        except PullbackError as problem:
            raise Coded(worded(str(problem))) from problem

    def __hash__(self) -> int:
        return id(self)


def _operator(name: str, swapped: bool = False) -> Any:
    def call(self: Tensor, other: Any = None) -> Any:
        args = (self.own,) if other is None else (self.own, bare(other))
        try:
            return dressed(getattr(args[0], name)(*args[1:]))
        except PullbackError as problem:
            raise Coded(f"{type(problem).__name__} {problem}") from problem

    return call


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rfloordiv",
    "rmod",
    "rpow",
    "rmatmul",
    "rand",
    "ror",
    "rxor",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "neg",
    "invert",
    "abs",
]:
    setattr(Tensor, f"__{_name}__", _operator(f"__{_name}__"))


def along(function: Any, name: str = "axis") -> Any:
    """A reduction whose axis 0 or -1 of a number without axes is no axis."""

    def call(
        x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = None, dim: Any = None
    ) -> Any:
        axis = dim if axis is None else axis
        axis = tuple(axis) if isinstance(axis, list) else axis
        if not x.shape and axis in (0, -1):
            axis = None
        rest = {} if dtype is None else {"dtype": dtype}
        return function(x, axis, keepdims=keepdim, **rest)

    return call


def running(function: Any) -> Any:
    def call(x: Any, axis: int = 0) -> Any:
        if not x.shape and axis in (0, -1):
            return x
        return function(x, axis)

    return call


def rows(function: Any) -> Any:
    def call(x: Any, axis: int = -1, dtype: Any = None, dim: Any = None) -> Any:
        axis = axis if dim is None else dim
        if not x.shape and axis in (0, -1):
            return function(x.reshape(1), 0).reshape(())
        return function(x, axis)

    return call


def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
              is_causal: bool = False, enable_gqa: bool = False) -> Any:  # fmt: skip
    if is_causal and attn_mask is not None:
        raise Coded("both a mask and is_causal")
    if enable_gqa:
        times = q.shape[-3] // k.shape[-3]
        k, v = (pb.repeat(t, times, axis=len(t.shape) - 3) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)


def resized(x: Any, size: Any, mode: str = "linear", align_corners: bool = False) -> Any:
    kind = x.dtype
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)] if mode == "linear" else mode
    corners = align_corners if mode.endswith("linear") else None
    y = F.interpolate(
        x if kind.is_float else x.astype("float32"), size, mode=mode, align_corners=corners
    )
    return y if kind.is_float else pb.round(y).astype(kind)


def chosen(c: Any, x: Any, y: Any) -> Any:
    small = isinstance(x, int) and isinstance(y, int) and not isinstance(x, bool)
    found = pb.where(c, x, y)
    return found.astype("int32") if small else found


def sized(x: Any, size: Any, fill: Any) -> Any:
    """Cut, or filled up, to `size` rows."""
    if size is None:
        return x
    if not isinstance(size, int) or size < 0:
        raise Coded(f"size={size!r}")
    kept = x[:size]
    rest = pb.full((size - kept.shape[0], *x.shape[1:]), fill, dtype=x.dtype)
    return pb.concat([kept, rest], 0)


def bounded(x: Any, min_: Any = None, max_: Any = None) -> Any:
    if min_ is None and max_ is None:
        raise Coded("clip without a bound")
    return pb.clip(x, min_, max_)


WORDS = {"more than one ellipsis": "single ellipsis", "too many": "too many",
         "indices for": "too many", "out of range": "out of bounds", "outside": "out of bounds"}  # fmt: skip


def worded(problem: str) -> str:
    """tinygrad's words for what is wrong with an index, before ours."""
    return next((theirs for ours, theirs in WORDS.items() if ours in problem), "") + ": " + problem


def selected(x: Any, index: Any) -> Any:
    """An index of PyTorch's: numbers in it take their rows before tensors place theirs.

    In NumPy's a number beside tensors is one of them, and its axis one of those that move ahead.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not x.shape and any(isinstance(p, slice) for p in parts):
        raise Coded("a slice of a tensor without axes")
    for p in parts:
        if isinstance(p, slice) and any(
            isinstance(v, pb.Tensor) for v in (p.start, p.stop, p.step)
        ):
            raise Coded("a slice by tensors")
    mixed = any(isinstance(p, pb.Tensor) for p in parts) and any(type(p) is int for p in parts)
    if not mixed or Ellipsis in [p for p in parts if not isinstance(p, pb.Tensor)]:
        return x[index]
    rows = tuple(p if type(p) is int else slice(None) for p in parts if p is not None)
    return x[rows][tuple(p for p in parts if type(p) is not int)]


def places(index: Any) -> Any:
    """An index, lists in it as tensors of places."""
    if isinstance(index, tuple):
        return tuple(map(places_in, index))
    return places_in(index)


def places_in(index: Any) -> Any:
    if isinstance(index, list | tuple):
        parts = [bare(i) for i in index]
        if any(isinstance(p, pb.Tensor) for p in parts):
            return pb.stack([p if isinstance(p, pb.Tensor) else pb.tensor(p) for p in parts])
        array = np.array(index)
        stays = array.dtype.kind == "b" or (array.dtype.kind == "f" and array.size)
        return pb.tensor(array if stays else array.astype("int64"))
    return bare(index)


def flat(args: Any) -> tuple[Any, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else tuple(args)


def windows(value: Any, space: int) -> Any:
    return value if isinstance(value, int) else tuple(value)[:space]


def conv(x: Any, w: Any, bias: Any = None, groups: int = 1, stride: Any = 1, dilation: Any = 1,
         padding: Any = 0, dtype: Any = None) -> Any:  # fmt: skip
    space = len(w.shape) - 2
    if isinstance(padding, int) and padding < 0:
        padding = (padding,) * (2 * space)
    if isinstance(padding, list | tuple) and len(padding) == space and min(padding) < 0:
        padding = tuple(p for end in reversed(padding) for p in (end, end))
    if isinstance(padding, list | tuple) and len(padding) == 2 * space:
        x, padding = F.pad(x, tuple(padding)), 0
    return getattr(F, f"conv{space}d")(x, w, bias, stride, padding, dilation, groups)


def conv_transpose(x: Any, w: Any, bias: Any = None, groups: int = 1, stride: Any = 1,
                   dilation: Any = 1, padding: Any = 0, output_padding: Any = 0) -> Any:  # fmt: skip
    space = len(w.shape) - 2
    function = getattr(F, f"conv_transpose{space}d")
    return function(x, w, bias, stride, padding, output_padding, groups, dilation)


def pool(name: str) -> Any:
    def call(x: Any, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1,
             padding: Any = 0, ceil_mode: bool = False, **kw: Any) -> Any:  # fmt: skip
        space = 2 if isinstance(kernel_size, int) else len(kernel_size)
        kind = x.dtype
        x = x if kind.is_float else x.astype("float64")
        if isinstance(padding, list | tuple) and len(padding) == 2 * space:
            fill = -math.inf if name == "max_pool" else 0.0
            x, padding = F.pad(x, tuple(padding), value=fill), 0
        lead = x.shape[: len(x.shape) - space]
        flat_x = x.reshape(-1, *x.shape[len(x.shape) - space :]) if len(lead) > 2 else x
        told = dict(kw, dilation=dilation) if name == "max_pool" else kw
        stride = stride if stride != () else None
        y = getattr(F, f"{name}{space}d")(
            flat_x, kernel_size, stride, padding, ceil_mode=ceil_mode, **told
        )
        parts = y if isinstance(y, tuple) else (y,)
        parts = tuple(p.reshape(*lead, *p.shape[len(p.shape) - space :]) for p in parts)
        parts = tuple(p if n == 0 else p.astype("int32") for n, p in enumerate(parts))
        parts = (parts[0].astype(kind), *parts[1:])
        return parts if isinstance(y, tuple) else parts[0]

    return call


def pad(x: Any, padding: Any, mode: str = "constant", value: float = 0.0) -> Any:
    if all(isinstance(p, int) for p in padding):
        return F.pad(x, tuple(padding), mode, value if mode == "constant" else None)
    if len(padding) != len(x.shape):
        raise Coded(f"{len(padding)} pairs for {len(x.shape)} axes")
    around = [end for p in reversed(list(padding)) for end in ((0, 0) if p is None else p)]
    return F.pad(x, around, mode, value if mode == "constant" else None)


def moment(ours: Any) -> Any:
    def call(
        x: Any, axis: Any = None, keepdim: bool = False, correction: float = 1, dim: Any = None
    ) -> Any:
        axis = dim if axis is None else axis
        axis = tuple(axis) if isinstance(axis, list) else axis
        return ours(x, axis, correction=float(correction), keepdims=keepdim)

    return call


def quotient(x: Any, y: Any, rounding_mode: Any) -> Any:
    if rounding_mode is None:
        return pb.divide(x, y)
    if rounding_mode not in ("trunc", "floor"):
        raise Coded(f"rounding_mode={rounding_mode!r}")
    kind = pb.result_type(x, y) if not isinstance(y, float) else pb.float32
    if rounding_mode == "floor":
        return pb.floor_divide(x, y)
    return pb.trunc(pb.divide(x, y)).astype(kind)


def entropy(logits: Any, labels: Any, ignore_index: int = -1, label_smoothing: float = 0.0,
            reduction: str = "mean") -> Any:  # fmt: skip
    return F.cross_entropy(
        pb.moveaxis(logits, -1, 1) if len(logits.shape) > 2 else logits, labels.astype("int64"), ignore_index=ignore_index, label_smoothing=label_smoothing,
        reduction=reduction,
    )  # fmt: skip


def whole(x: Any, y: Any, reduction: str = "mean", pos_weight: Any = None) -> Any:
    return F.binary_cross_entropy_with_logits(x, y, reduction=reduction, pos_weight=pos_weight)


def rolled(x: Any, shifts: Any, dims: Any = None) -> Any:
    numbers = [v if isinstance(v, list | tuple) else (v,) for v in (shifts, dims) if v is not None]
    if len(numbers[0]) != len(numbers[-1]) or (dims is None and len(numbers[0]) > 1):
        raise Coded(f"shifts={shifts!r} along dims={dims!r}")
    return pb.roll(x, shifts, dims)


def repeated(x: Any, *times: Any) -> Any:
    if len(flat(times)) < len(x.shape):
        raise Coded(f"{len(flat(times))} repeats of {len(x.shape)} axes")
    return pb.tile(x, flat(times))


def reshaped(x: Any, *sizes: Any) -> Any:
    """None keeps the extent of its axis."""
    sizes = tuple(x.shape[n] if s is None else s for n, s in enumerate(flat(sizes)))
    return pb.reshape(x, sizes)


def squeezed(x: Any, dim: Any = None) -> Any:
    rank = max(len(x.shape), 1)
    if isinstance(dim, int) and not -rank <= dim < rank:
        raise Coded(f"axis {dim} of {rank}")
    return RULES["squeeze"](x, dim)


def stacked(x: Any, *rest: Any, dim: int = 0) -> Any:
    if isinstance(x, list | tuple) and rest:
        raise Coded("a list of tensors, and more")
    return pb.stack(list(x) if isinstance(x, list | tuple) else [x, *rest], dim)


def same_kind(x: Any, src: Any) -> None:
    """PyTorch's scatter takes no other type's values."""
    if isinstance(src, pb.Tensor) and src.dtype != x.dtype:
        raise Coded(f"{src.dtype} scattered into {x.dtype}")


def scattered(x: Any, dim: int, index: Any, src: Any, reduce: Any = None) -> Any:
    same_kind(x, src)
    return RULES["scatter"](x, dim, index, src, reduce=reduce)


def scatter_reduced(x: Any, dim: int, index: Any, src: Any, reduce: Any,
                    include_self: bool = True) -> Any:  # fmt: skip
    same_kind(x, src)
    return pb.scatter_reduce(x, index, src, reduce, axis=dim, include_self=include_self)


def hot(x: Any, n: int) -> Any:
    if n < 0:
        raise Coded(f"{n} classes")
    return F.one_hot(x.astype("int64"), n).astype("int32")


METHODS: dict[str, Any] = {
    "conv2d": conv, "conv_transpose2d": conv_transpose, "max_pool2d": pool("max_pool"),
    "avg_pool2d": pool("avg_pool"), "pad": pad, "var": moment(pb.var), "std": moment(pb.std),
    "std_mean": moment(pb.std_mean), "var_mean": moment(pb.var_mean),
    "max": lambda x, axis=None, keepdim=False: pb.amax(x, axis, keepdims=keepdim),
    "min": lambda x, axis=None, keepdim=False: pb.amin(x, axis, keepdims=keepdim),
    "sum": along(pb.sum),
    "prod": along(pb.prod),
    "mean": lambda x, axis=None, keepdim=False, dim=None: pb.mean(
        x.astype("float32") if not x.dtype.is_float else x, RAXES(axis, dim), keepdims=keepdim),
    "any": lambda x, axis=None, keepdim=False: pb.any(x, axis, keepdims=keepdim),
    "all": lambda x, axis=None, keepdim=False: pb.all(x, axis, keepdims=keepdim),
    "argmax": lambda x, axis=None, keepdim=False: pb.argmax(x, axis, keepdims=keepdim).astype("int32"),
    "argmin": lambda x, axis=None, keepdim=False: pb.argmin(x, axis, keepdims=keepdim).astype("int32"),
    "logsumexp": along(pb.logsumexp),
    "softmax": rows(pb.softmax),
    "log_softmax": rows(pb.log_softmax),
    "cumsum": running(pb.cumulative_sum),
    "cumprod": running(pb.cumulative_prod),
    "logcumsumexp": running(pb.cumulative_logsumexp),
    "cast": lambda x, dtype: x.astype(dtype), "type": lambda x, dtype: x.astype(dtype),
    "dot": pb.matmul, "div": lambda x, y, rounding_mode=None: quotient(x, y, rounding_mode),
    "permute": lambda x, *order: pb.permute_dims(x, flat(order)),
    "reshape": reshaped, "view": reshaped,
    "expand": lambda x, *s: RULES["expand"](x, flat(s)),
    "flip": lambda x, *axes: pb.flip(x, flat(axes)) if flat(axes) else x,
    "transpose": lambda x, a=1, b=0: pb.swapaxes(x, a, b) if x.shape else x,
    "squeeze": squeezed,
    "unsqueeze": lambda x, dim: pb.expand_dims(x, dim),
    "repeat": repeated, "gather": lambda x, dim, index: pb.gather(x, index, dim),
    "tril": lambda x, diagonal=0: pb.tril(x, k=diagonal),
    "triu": lambda x, diagonal=0: pb.triu(x, k=diagonal),
    "cat": lambda x, *rest, dim=0: pb.concat([x, *rest], dim) if not isinstance(x, list | tuple)
    else pb.concat(list(x), dim),
    "stack": stacked,
    "relu": F.relu, "sigmoid": pb.sigmoid, "gelu": lambda x, approximate="tanh": F.gelu(x, approximate),
    "quick_gelu": lambda x: x * pb.sigmoid(x * 1.702), "swish": F.silu,
    "leaky_relu": lambda x, neg_slope=0.01: F.leaky_relu(x, neg_slope),
    "leakyrelu": lambda x, neg_slope=0.01: F.leaky_relu(x, neg_slope),
    "hardtanh": lambda x, a=-1, b=1: F.hardtanh(x, a, b),
    "clip": bounded, "clamp": bounded,
    "minimum": pb.minimum, "maximum": pb.maximum, "neg": pb.negative, "logical_not": pb.logical_not,
    "scaled_dot_product_attention": attention,
    "sparse_categorical_crossentropy": entropy, "binary_crossentropy_logits": whole,
    "binary_crossentropy": lambda x, y, reduction="mean": F.binary_cross_entropy(
        x, y, reduction=reduction),
    "layernorm": lambda x, axis=-1, eps=1e-5: F.layer_norm(x, x.shape[axis:], eps=eps)
    if isinstance(axis, int) else F.layer_norm(x, tuple(x.shape[a] for a in axis), eps=eps),
    "linear": lambda x, w, b=None: (x @ w if len(w.shape) > 1 else x * w) + (0.0 if b is None else b),
    "where": chosen, "contiguous": lambda x: x,
    "interpolate": resized,
    "float": lambda x: x.astype("float32"), "int": lambda x: x.astype("int32"),
    "half": lambda x: x.astype("float16"), "bool": lambda x: x.astype("bool"),
    "sort": lambda x, dim=-1, descending=False: tuple(v if n == 0 else v.astype("int32")
        for n, v in enumerate(RULES["sort"](x, dim, descending))),
    "argsort": lambda x, dim=-1, descending=False: RULES["argsort"](x, dim, descending).astype("int32"),
    "topk": lambda x, k, dim=-1, largest=True, sorted_=True: tuple(v if n == 0 else v.astype("int32")
        for n, v in enumerate(RULES["topk"](x, k, dim, largest))),
    "scatter": scattered, "scatter_reduce": scatter_reduced,
    "nll_loss": lambda x, y, weight=None, ignore_index=None, reduction="mean": F.nll_loss(
        x, y.astype("int64"), weight, -100 if ignore_index is None else ignore_index, reduction),
    "cross_entropy": lambda x, y, reduction="mean", label_smoothing=0.0: F.cross_entropy(
        x, y if y.dtype.is_float else y.astype("int64"), reduction=reduction,
        label_smoothing=label_smoothing),
    "normalize": lambda x, p=2.0, dim=1, eps=1e-12: F.normalize(x, p, dim, eps),
    "unfold": lambda x, dim, size, step: pb.unfold(x, dim, size, step),
    "flatten": lambda x, start_dim=0, end_dim=-1: pb.flatten(x, start_dim, end_dim),
    "cummax": lambda x, axis=0: _with_places(RULES["cummax"], x, axis),
    "cummin": lambda x, axis=0: _with_places(RULES["cummin"], x, axis),
    "nonzero": lambda x, size=None, fill_value=0: sized(RULES["argwhere"](x).astype("int32"), size, fill_value), "isclose": pb.isclose,
    "pow": lambda x, y, reverse=False: pb.pow(y, x) if reverse else pb.pow(x, y),
    "sub": lambda x, y, reverse=False: y - x if reverse else x - y, "mul": pb.multiply,
    "add": pb.add, "mod": pb.remainder, "idiv": pb.floor_divide, "bitwise_not": pb.bitwise_invert,
    "lshift": pb.bitwise_left_shift, "rshift": pb.bitwise_right_shift, "eq": pb.equal, "ne": pb.not_equal,
    "diag": pb.diag, "diagonal": lambda x, offset=0, dim1=0, dim2=1: RULES["diagonal"](
        x, offset, dim1, dim2), "rearrange": None, "dropout": F.dropout, "softsign": F.softsign,
    "mish": F.mish, "softplus": F.softplus, "elu": F.elu, "celu": F.celu, "selu": F.selu,
    "hardsigmoid": lambda x, *a: F.hardsigmoid(x), "hardswish": F.hardswish, "relu6": F.relu6,
    "logsigmoid": F.logsigmoid, "silu": F.silu, "roll": rolled, "erf": pb.erf,
    "meshgrid": lambda *x, indexing="ij": pb.meshgrid(*x, indexing=indexing),
    "softmin": rows(lambda x, axis: F.softmin(x, axis)),
    "one_hot": hot,
    "isinf": lambda x, detect_positive=True, detect_negative=True: pb.logical_or(
        pb.logical_and(pb.isposinf(x), detect_positive),
        pb.logical_and(pb.isneginf(x), detect_negative),
    ),
    "masked_select": lambda x, mask, size=None, fill_value=0: sized(
        RULES["masked_select"](x, mask), size, fill_value
    ),
    "inverse": lambda x: pb.linalg.inv(x),
}  # fmt: skip


def RAXES(axis: Any, dim: Any) -> Any:
    axis = dim if axis is None else axis
    return tuple(axis) if isinstance(axis, list) else axis


def _with_places(function: Any, x: Any, axis: int) -> Any:
    if not x.shape and axis in (0, -1):
        return x, pb.zeros((), dtype="int32")
    values, places = function(x, axis)
    return values, places.astype("int32")


def method(name: str, owner: Any) -> Any:
    """A method bound to a tensor, or a function of the class (owner None)."""
    function = METHODS.get(name) or RULES.get(name) or RULES.get(f"nn.functional.{name}")
    if function is None:
        raise NotImplementedError(f"Tensor.{name}")
    first = () if owner is None else (owner.own,)

    def call(*args: Any, **kw: Any) -> Any:
        told = {k: bare(v) for k, v in kw.items() if k != "requires_grad"}
        try:
            return dressed(function(*first, *(bare(a) for a in args), **told))
        except PullbackError as problem:
            raise Coded(f"{type(problem).__name__} {problem}") from problem

    return call


class Coded(
    NotImplementedError, ValueError, IndexError, KeyError, TypeError, AssertionError,
    OverflowError, AttributeError,
):  # fmt: skip
    """A coded error of ours, whichever class tinygrad has for it."""


def bound(name: str) -> Any:
    """The method, also as a function of the class: `Tensor.add(a, b)`."""

    def call(*args: Any, **kw: Any) -> Any:
        return method(name, None)(*args, **kw)

    return call


def coded(function: Any) -> Any:
    """A function of the class whose coded errors are tinygrad's too."""

    def call(*args: Any, **kw: Any) -> Any:
        try:
            return function(*args, **kw)
        except PullbackError as problem:
            raise Coded(f"{type(problem).__name__} {problem}") from problem

    return staticmethod(call)


def kind_of_range(ends: Any) -> Any:
    if any(isinstance(v, float) for v in ends):
        return pb.float32
    return pb.int32 if max(map(abs, ends)) < 2**31 else pb.int64


def created(ours: Any) -> Any:
    def call(*shape: Any, dtype: Any = None, **rest: Any) -> Tensor:
        return Tensor(ours(flat(shape), dtype=dtype or pb.float32))

    return staticmethod(call)


for _name in {*METHODS, *(n for n in RULES if n.isidentifier() and not n.startswith("_"))}:
    if _name not in vars(Tensor):
        setattr(Tensor, _name, bound(_name))
for _name in ("relu", "dropout", *F.__all__):
    if _name not in vars(Tensor):
        setattr(Tensor, _name, bound(_name))
for _name in ("zeros", "ones", "empty"):
    setattr(Tensor, _name, created(getattr(pb, _name)))
Tensor.full = coded(lambda shape, value, dtype=None, **kw: Tensor(pb.full(
    shape, value, dtype=dtype or (pb.float32 if isinstance(value, float) else pb.bool_
    if isinstance(value, bool) else pb.int32))))  # fmt: skip
Tensor.arange = coded(lambda *a, dtype=None, **kw: Tensor(pb.arange(
    *a, dtype=dtype or kind_of_range(a))))  # fmt: skip
Tensor.eye = coded(lambda n, m=None, dtype=None, **kw: Tensor(pb.eye(n, m, dtype=dtype)))
Tensor.linspace = coded(lambda a, b, n, dtype=None, **kw: Tensor(pb.linspace(a, b, n, dtype=dtype)))
Tensor.einsum = coded(lambda text, *x, **kw: Tensor(pb.einsum(text, *(
    bare(v) for v in (x[0] if len(x) == 1 and isinstance(x[0], list | tuple) else x)))))  # fmt: skip
Tensor.randn = coded(lambda *s, **kw: Tensor(pb.random.normal(flat(s))))
Tensor.rand = coded(lambda *s, **kw: Tensor(pb.random.uniform(flat(s))))
Tensor.randint = coded(lambda *s, low=0, high=10, **kw: Tensor(pb.random.integers(
    low, high, flat(s)).astype("int32")))  # fmt: skip
for _name, _made in {
    "normal": pb.random.normal, "uniform": pb.random.uniform,
    "scaled_uniform": pb.random.uniform, "glorot_uniform": pb.random.uniform,
    "kaiming_uniform": pb.random.uniform, "kaiming_normal": pb.random.normal,
}.items():  # fmt: skip
    setattr(Tensor, _name, coded(lambda *s, made=_made, **kw: Tensor(made(
        flat(s) if all(isinstance(v, int) for v in s) else tuple(s[0])))))  # fmt: skip
Tensor.tri = staticmethod(lambda n, m=None, diagonal=0, **kw: Tensor(pb.tril(
    pb.ones((n, n if m is None else m)), k=diagonal)))  # fmt: skip


def kind_of(dtype: Any) -> Any:
    return dtype.numpy


def installed() -> None:
    """A `tinygrad` of ours in `sys.modules`."""

    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(names)
        sys.modules[name] = made

    class Nothing:
        def __init__(self, *args: Any, **kw: Any) -> None: ...
        def __enter__(self) -> Nothing:
            return self

        def __exit__(self, *args: Any) -> None: ...

        interface = renderer = device = ""

    module("tinygrad", Tensor=Tensor, Device=Devices(), dtypes=DTypes)
    module("tinygrad.helpers", getenv=lambda name, default=0: default, DEBUG=0, IMAGE=0,
           DEV=Nothing(), Context=Nothing, CI=False)  # fmt: skip
    module("tinygrad.tensor", _to_np_dtype=kind_of)
    module("tinygrad.renderer")
    module("tinygrad.renderer.nir", NIRRenderer=Nothing)
    module("tinygrad.device", is_dtype_supported=lambda *a: True)
    module("tinygrad.dtype", DType=pb.DType)


class Devices:
    """The one device."""

    DEFAULT = "CPU"

    def __getitem__(self, name: str) -> Any:
        every = {*DTypes.floats, *DTypes.ints, DTypes.bool}
        return types.SimpleNamespace(renderer=types.SimpleNamespace(supported_dtypes=lambda: every))


def main() -> int:
    place, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    installed()
    path = Path(place) / "test" / "backend" / "test_ops.py"
    spec = importlib.util.spec_from_file_location("test_ops", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["test_ops"] = loaded
    spec.loader.exec_module(loaded)
    loader = unittest.defaultTestLoader
    suite = (
        loader.loadTestsFromNames(names, loaded) if names else loader.loadTestsFromModule(loaded)
    )
    result = Result()
    suite.run(result)
    counts = Counter(result.outcomes.values())
    print(f"{sum(counts.values())} tests: " + ", ".join(f"{n} {w}" for w, n in counts.items()))
    return 0


class Result(unittest.TestResult):
    """What became of each test, a line for each that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def _tell(self, test: Any, what: str, why: str = "") -> None:
        self.outcomes[test.id()] = what
        if what not in ("passed", "skipped"):
            print(f"{what:8} {test.id().split('.')[-1]}: {why[:230]}", flush=True)

    def addSuccess(self, test: Any) -> None:
        self._tell(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._tell(test, "skipped")

    def addFailure(self, test: Any, err: Any) -> None:
        self._tell(test, "failed", " ".join(str(err[1]).split()))

    def addError(self, test: Any, err: Any) -> None:
        kind = err[0].__name__
        what = "refused" if issubclass(err[0], PullbackError | Coded) else "error"
        self._tell(test, what, f"{kind}: {' '.join(str(err[1]).split())}")


if __name__ == "__main__":
    assert opinfo_rules_more
    raise SystemExit(main())
