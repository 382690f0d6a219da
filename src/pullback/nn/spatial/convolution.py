"""Convolutions and their transposes under torch's names, as functions.

    y[n, o, y] = sum[c, k] x[n, c, y stride + k dilation - padding] * w[o, c, k] + b[o]
    z[n, o, t] = sum[c, k] x[n, c, y] * w[c, o, k]   where  y stride + k dilation - padding = t

A group of channels is an axis of its own, so that each is one sum of products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.errors import ArgumentError, ShapeError, UnsupportedError
from pullback.ir.expr import Extent
from pullback.nn.base.build import common, wide, written
from pullback.nn.base.space import Ints, Taps, Window, each, literal, of_space, padded, split
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped


@shaped(
    "input: float[n, c, _ * space] or [c, _ * space], "
    "weight: float[o, c // groups, _ * space], bias[o] -> [n, o, _ * space]",
    where="int(stride) >= 1, int(padding) >= 0, int(dilation) >= 1, int(groups) >= 1, "
    "c % groups == 0, o % groups == 0",
)
def conv(
    space: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of ``(N, C, ..)`` by ``(O, C / groups, ..)``, without N too.

    `padding` is a number for each axis, "valid" (none) or "same" (stride 1).

    Example:
        >>> F.conv1d(pb.ones((1, 2, 8)), pb.ones((5, 2, 3)), padding=1).shape
        (1, 5, 8)
        >>> F.conv2d(pb.ones((1, 2, 8, 8)), pb.ones((5, 2, 3, 3)), padding=1).shape
        (1, 5, 8, 8)
        >>> F.conv3d(pb.ones((1, 2, 4, 4, 4)), pb.ones((5, 2, 3, 3, 3)), padding=1).shape
        (1, 5, 4, 4, 4)
    """
    kind = common(input, weight, bias)
    lead, room = split("conv", input, space)
    kernel = literal("conv", weight.shape)[2:]
    steps, spread = each(stride, space, "stride"), each(dilation, space, "dilation")
    ends = margins(padding, kernel, steps, spread)
    windows = [
        Window(e, k, s, *p, d)
        for e, k, s, p, d in zip(room, kernel, steps, ends, spread, strict=True)
    ]
    made = (*lead[:-1], *(w.count() for w in windows))
    return finished(slid(input, weight, windows, made, groups), bias, groups, space).astype(kind)


def slid(
    input: Tensor, weight: Tensor, windows: Sequence[Window], made: Sequence[Extent], groups: int
) -> Tensor:
    """A convolution by windows, before groups are joined. `made`: the extents of the result
    without its channels; they and the windows may be symbolic.
    """
    space = len(windows)
    size, inner, *kernel = literal("conv", weight.shape)
    outer = size // groups
    c, taps = axis(inner), [axis(k) for k in kernel]

    def body(*i: Any) -> Any:
        n, g, o, y = _parts(i, space, groups)
        met = list(zip(windows, y, taps, strict=True))
        tests = [t for w, y, k in met for t in w.inside(y, k)]
        x = padded(tests, input[(*n, g * inner + c, *(w.place(y, k) for w, y, k in met))])
        return sum_of(wide(x) * wide(weight[(g * outer + o, c, *taps)]), over=(c, *taps))

    return written(_shape(made, groups, outer, space), body, name="conv")


@shaped(
    "input: float[n, c, _ * space] or [c, _ * space], "
    "weight: float[c, o, _ * space], bias[o * groups] -> [n, o * groups, _ * space]",
    where="int(stride) >= 1, int(padding) >= 0, int(output_padding) >= 0, int(dilation) >= 1, "
    "int(groups) >= 1, c % groups == 0",
)
def conv_transpose(
    space: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """The adjoint of `conv` in its input: ``(N, C, ..)`` by ``(C, O / groups, ..)``.

    Example:
        >>> F.conv_transpose1d(pb.ones((1, 2, 8)), pb.ones((2, 5, 3)), stride=2).shape
        (1, 5, 17)
        >>> F.conv_transpose2d(pb.ones((1, 2, 8, 8)), pb.ones((2, 5, 3, 3)), stride=2).shape
        (1, 5, 17, 17)
        >>> F.conv_transpose3d(pb.ones((1, 2, 4, 4, 4)), pb.ones((2, 5, 3, 3, 3)), stride=2).shape
        (1, 5, 9, 9, 9)
    """
    kind = common(input, weight, bias)
    lead, room = split("conv_transpose", input, space)
    settings = zip(
        room,
        literal("conv", weight.shape)[2:],
        each(stride, space, "stride"),
        each(padding, space, "padding"),
        each(output_padding, space, "output_padding"),
        each(dilation, space, "dilation"),
        strict=True,
    )
    windows = [Taps(*s) for s in settings]
    if any(w.more >= max(w.stride, w.dilation) for w in windows):
        raise ArgumentError(
            f"conv_transpose: output_padding={output_padding!r}",
            help="it must be below the stride or the dilation",
        )
    made = (*lead[:-1], *(w.count for w in windows))
    y = slid_back(input, weight, windows, made, groups)
    return finished(y, bias, groups, space).astype(kind)


def slid_back(
    input: Tensor, weight: Tensor, windows: Sequence[Taps], made: Sequence[Extent], groups: int
) -> Tensor:
    """What taps meet, as `slid` for the adjoint."""
    space = len(windows)
    size, outer = literal("conv", weight.shape)[:2]
    inner = size // groups
    c, steps = axis(inner), [axis(w.steps) for w in windows]

    def body(*i: Any) -> Any:
        n, g, o, t = _parts(i, space, groups)
        met = [w.meet(t, j) for w, t, j in zip(windows, t, steps, strict=True)]
        x = input[(*n, g * inner + c, *(m.place for m in met))]
        w = weight[(g * inner + c, o, *(m.tap for m in met))]
        terms = padded([t for m in met for t in m.tests], wide(x) * wide(w))
        return sum_of(terms, over=(c, *steps))

    return written(_shape(made, groups, outer, space), body, name="conv_transpose")


conv1d, conv2d, conv3d = (of_space(conv, n) for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    of_space(conv_transpose, n) for n in (1, 2, 3)
)


def margins(
    padding: Ints | str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding before and after, for each axis. Raises: UnsupportedError, ShapeError."""
    space = len(kernel)
    if not isinstance(padding, str):
        return [(p, p) for p in each(padding, space, "padding")]
    if padding == "valid":
        return [(0, 0)] * space
    if padding != "same":
        raise UnsupportedError(f"padding={padding!r}", code="E312")
    if any(s != 1 for s in stride):
        raise ShapeError('padding="same" with a stride', code="E124")
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(t // 2, t - t // 2) for t in totals]


def _shape(made: Sequence[Extent], groups: int, outer: int, space: int) -> tuple[Extent, ...]:
    """The extents of a result; one group has no axis."""
    channels = (outer,) if groups == 1 else (groups, outer)
    return (*made[:-space], *channels, *made[-space:])


def _parts(index: Sequence[Any], space: int, groups: int) -> tuple[Any, Any, Any, Any]:
    """Batch, group, channel within the group, place."""
    *n, o = index[:-space]
    g = n.pop() if groups > 1 else 0
    return n, g, o, index[-space:]


def finished(y: Tensor, bias: Tensor | None, groups: int, space: int) -> Tensor:
    """Groups side by side in one axis of channels, and the bias."""
    if groups > 1:
        side = literal("conv", y.shape[-space - 2 : -space])
        y = y.reshape(*y.shape[: -space - 2], math.prod(side), *y.shape[-space:])
    return y if bias is None else y + bias.reshape(*bias.shape, *(1,) * space)
