"""Elements moved between channels and space, under torch's names."""

from __future__ import annotations

from typing import Any

from pullback.nn.base.build import written
from pullback.nn.base.layer import Layer
from pullback.nn.base.space import Ints, Taps, Window, each, literal, padded, split
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import show


@shaped(
    "input[b..., c, h, w]",
    where="int(upscale_factor) >= 1, c % (upscale_factor * upscale_factor) == 0",
)
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """``y[c, h, w] = x[c r^2 + (h % r) r + w % r, h // r, w // r]``. Raises: ShapeError.

    Example:
        >>> F.pixel_shuffle(pb.ones((1, 4, 2, 2)), 2).shape
        (1, 1, 4, 4)
    """
    r = upscale_factor
    *lead, channels, high, wide = _image("pixel_shuffle", input)
    if channels % (r * r):
        raise V.fail(f"pixel_shuffle by {r} of {channels} channels", code="E125")

    def body(*i: Any) -> Any:
        *n, c, h, w = i
        return input[(*n, c * (r * r) + h % r * r + w % r, h // r, w // r)]

    return written((*lead, channels // (r * r), high * r, wide * r), body, name="pixel_shuffle")


@shaped(
    "input[b..., c, h, w]",
    where="int(downscale_factor) >= 1, h % downscale_factor == 0, w % downscale_factor == 0",
)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """``y[c, h, w] = x[c // r^2, h r + c // r % r, w r + c % r]``. Raises: ShapeError.

    Example:
        >>> F.pixel_unshuffle(pb.ones((1, 1, 4, 4)), 2).shape
        (1, 4, 2, 2)
    """
    r = downscale_factor
    *lead, channels, high, wide = _image("pixel_unshuffle", input)
    if high % r or wide % r:
        raise V.fail(f"pixel_unshuffle by {r} of {high} x {wide}", code="E125")

    def body(*i: Any) -> Any:
        *n, c, h, w = i
        return input[(*n, c // (r * r), h * r + c // r % r, w * r + c % r)]

    return written((*lead, channels * r * r, high // r, wide // r), body, name="pixel_unshuffle")


@shaped("input[n, c, s...] -> [n, c, s...]", where="int(groups) >= 1, c % groups == 0")
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """``y[n, c] = x[n, c % g C / g + c // g]``. Raises: ShapeError.

    Example:
        >>> F.channel_shuffle(pb.ones((1, 4, 2, 2)), 2).shape
        (1, 4, 2, 2)
    """
    channels = literal("channel_shuffle", input.shape[1:2])[0]
    if channels % groups:
        raise V.fail(f"channel_shuffle of {channels} channels in {groups} groups", code="E125")
    size = channels // groups

    def body(n: Any, c: Any, *i: Any) -> Any:
        return input[(n, c % groups * size + c // groups, *i)]

    return written(input.shape, body, name="channel_shuffle")


def _image(name: str, input: Tensor) -> tuple[Any, ...]:
    """The extents of an image. Raises: ShapeError below three axes."""
    if len(input.shape) < 3:
        raise V.fail(f"{name} of {show(input.value.shape)}", code="E111")
    return (*input.shape[:-3], *literal(name, input.shape[-3:]))


@shaped(
    "input[n, c, h, w] or [c, h, w]",
    where="int(kernel_size) >= 1, int(stride) >= 1, int(padding) >= 0, int(dilation) >= 1",
)
def unfold(
    input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Tensor:
    """The windows of an image as columns: ``(N, C K K, L)``. Raises: ShapeError.

    Example:
        >>> F.unfold(pb.ones((1, 2, 4, 4)), 2).shape
        (1, 8, 9)
    """
    lead, room = split("unfold", input, 2)
    sizes, ends = each(kernel_size, 2, "kernel_size"), each(padding, 2, "padding")
    steps, spread = each(stride, 2, "stride"), each(dilation, 2, "dilation")
    windows = [Window(*row) for row in zip(room, sizes, steps, ends, ends, spread, strict=True)]
    before = len(lead)

    def body(*i: Any) -> Any:
        met = list(zip(windows, i[before + 2 :], i[before : before + 2], strict=True))
        tests = [t for w, y, k in met for t in w.inside(y, k)]
        return padded(tests, input[(*i[:before], *(w.place(y, k) for w, y, k in met))])

    places = [w.count() for w in windows]
    parts = written((*lead, *sizes, *places), body, name="unfold")
    rows = literal("unfold", lead[-1:])[0] * sizes[0] * sizes[1]
    return parts.reshape(*lead[:-1], rows, places[0] * places[1])


@shaped(
    "input[n, rows, columns] or [rows, columns]",
    where="int(output_size) >= 0, int(kernel_size) >= 1, int(stride) >= 1, int(padding) >= 0, "
    "int(dilation) >= 1",
)
def fold(
    input: Tensor,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> Tensor:
    """The adjoint of `unfold`: columns added up to an image. Raises: ShapeError.

    Example:
        >>> F.fold(pb.ones((1, 8, 9)), 4, 2).shape
        (1, 2, 4, 4)
    """
    sizes, ends = each(kernel_size, 2, "kernel_size"), each(padding, 2, "padding")
    steps, spread = each(stride, 2, "stride"), each(dilation, 2, "dilation")
    room = each(output_size, 2, "output_size")
    rows = list(zip(room, sizes, steps, ends, ends, spread, strict=True))
    places = [Window(*row).count() for row in rows]
    lead = input.shape[:-2]
    columns, blocks = literal("fold", input.shape[-2:])
    area = sizes[0] * sizes[1]
    if len(lead) > 1 or columns % area or blocks != places[0] * places[1]:
        raise V.fail(
            f"fold of {show(input.value.shape)}",
            f"it takes a multiple of {area} rows and {places[0] * places[1]} columns",
        )
    parts = input.reshape(*lead, columns // area, *sizes, *places)
    settings = zip(places, sizes, steps, ends, (0, 0), spread, strict=True)
    windows = [Taps(*row) for row in settings]
    taps = [axis(w.steps) for w in windows]

    def body(*i: Any) -> Any:
        met = [w.meet(t, j) for w, t, j in zip(windows, i[-2:], taps, strict=True)]
        index = (*i[:-2], *(m.tap for m in met), *(m.place for m in met))
        return sum_of(padded([t for m in met for t in m.tests], parts[index]), over=taps)

    return written((*lead, columns // area, *room), body, name="fold")


class PixelShuffle(Layer, function=pixel_shuffle):
    """Example:
    >>> nn.PixelShuffle(2)(pb.ones((1, 4, 2, 2))).shape
    (1, 1, 4, 4)
    """


class PixelUnshuffle(Layer, function=pixel_unshuffle):
    """Example:
    >>> nn.PixelUnshuffle(2)(pb.ones((1, 1, 4, 4))).shape
    (1, 4, 2, 2)
    """


class ChannelShuffle(Layer, function=channel_shuffle):
    """Example:
    >>> nn.ChannelShuffle(2)(pb.ones((1, 4, 2, 2))).shape
    (1, 4, 2, 2)
    """


class Unfold(Layer, function=unfold):
    """Example:
    >>> nn.Unfold(2)(pb.ones((1, 2, 4, 4))).shape
    (1, 8, 9)
    """


class Fold(Layer, function=fold):
    """Example:
    >>> nn.Fold(4, 2)(pb.ones((1, 8, 9))).shape
    (1, 2, 4, 4)
    """
