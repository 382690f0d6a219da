"""Images at other sizes and places, under torch's names.

Along each axis an output reads a few taps: ``y[t] = sum[j] w[j](t) x[i[j](t)]``. The place
``i + f`` that an output looks at is a fraction of integers, so that the sizes decide it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import product
from operator import add, mul
from typing import Any

from pullback.errors import UnsupportedError
from pullback.ir.dtype import DType, int64
from pullback.nn.base.build import common, written
from pullback.nn.base.layer import Layer
from pullback.nn.base.space import each, literal, padded
from pullback.nn.spatial.pooling import adaptive_avg_pool
from pullback.tensor.define.compute import axis as taps
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.ops import astype, clip, where
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32

Taps = list[tuple[Any, Any]]  # element, weight (None: 1)
RANKS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
REACH = {"bilinear": 1, "bicubic": 2}  # of a kernel, in elements to either side
FINEST = 1 << 12  # denominators of a scale factor
CUBIC = -0.75  # the slope of the cubic kernel at distance 1
SMOOTH = -0.5  # the same where it is stretched: PyTorch follows Pillow there


@shaped("input[n, c, ...]", where="int(size) >= 0, scale_factor > 0")
@in_float32
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """``(N, C, ..)`` at another size. Raises: ShapeError, UnsupportedError.

    Modes: nearest, nearest-exact, linear, bilinear, trilinear, bicubic, area. With `antialias`,
    of bilinear and bicubic, an element of a smaller image sees all that it stands for.

    Example:
        >>> F.interpolate(pb.ones((1, 2, 4, 4)), scale_factor=2).shape
        (1, 2, 8, 8)
    """
    common(input)
    _known(mode, len(input.shape), antialias)
    room = literal("interpolate", input.shape[2:])
    if (size is None) == (scale_factor is None):
        raise V.fail("interpolate takes either size or scale_factor", code="E124")
    factors = None if size is not None else each(scale_factor, len(room), "scale_factor")
    if factors is None:
        new = each(size, len(room), "size")
    else:
        new = tuple(math.floor(n * f) for n, f in zip(room, factors, strict=True))
    least = 0 if mode == "area" else 1
    if min(new, default=1) < least or (min(room) < 1 and min(new) > 0):
        raise V.fail(f"interpolate {room} to {new}", code="E126")
    if mode == "area":
        return adaptive_avg_pool(len(room), input, new)
    ratios = [Fraction(n, m) for n, m in zip(room, new, strict=True)]
    if factors is not None and not recompute_scale_factor:
        ratios = [1 / Fraction(f).limit_denominator(FINEST) for f in factors]
    along = _antialiased if antialias else _resampled
    for n, (old, wanted, ratio) in enumerate(zip(room, new, ratios, strict=True)):
        input = along(input, n + 2, _Grid(old, wanted, ratio, mode, bool(align_corners)))
    return input


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` to the nearest element."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """`interpolate` between corners that stay where they are."""
    return interpolate(input, size, scale_factor, "bilinear", True)


def _known(mode: str, rank: int, antialias: bool) -> None:
    """Raises: UnsupportedError for an unknown mode or antialias, ShapeError for another rank."""
    if antialias and mode not in REACH:
        raise UnsupportedError(f"{mode} with antialias")
    if mode not in (*RANKS, "nearest", "nearest-exact", "area"):
        raise UnsupportedError(f"interpolate with mode={mode!r}", code="E312")
    if RANKS.get(mode, rank) != rank or rank < 3:
        raise V.fail(f"{mode} of a tensor with {rank} axes", code="E111")


@dataclass(frozen=True, slots=True)
class _Grid:
    """One axis of `old` elements seen at `new` places, `ratio` apart."""

    old: int
    new: int
    ratio: Fraction
    mode: str
    corners: bool

    def taps(self, t: Any, kind: DType) -> Taps:
        """What place `t` reads: elements, and the weights of all but a lone one."""
        top, bottom = self._place(t)
        first = top // bottom
        if self.mode.startswith("nearest"):
            return [(clip(first, None, self.old - 1), None)]
        share = astype(top % bottom, kind) / float(bottom)
        if self.mode == "bicubic":
            return [(clip(first + n, 0, self.old - 1), w) for n, w in _cubic(share)]
        return [(first, 1.0 - share), (clip(first + 1, None, self.old - 1), share)]

    def _place(self, t: Any) -> tuple[Any, int]:
        """Where place `t` lies, as a fraction of integers."""
        a, b = self.ratio.numerator, self.ratio.denominator
        if self.mode == "nearest":
            return t * a, b
        if self.mode == "nearest-exact":
            return (2 * t + 1) * a, 2 * b
        if self.corners:
            return t * (self.old - 1), max(self.new - 1, 1)
        centre = (2 * t + 1) * a - b
        return centre if self.mode == "bicubic" else clip(centre, 0, None), 2 * b


def _cubic(share: Any) -> list[tuple[int, Any]]:
    """The four taps around a place, by Keys' kernel with slope `CUBIC`."""

    def near(d: Any) -> Any:
        return ((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0

    def far(d: Any) -> Any:
        return ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC

    rest = 1.0 - share
    return [(-1, far(share + 1.0)), (0, near(share)), (1, near(rest)), (2, far(rest + 1.0))]


def _resampled(input: Tensor, axis: int, grid: _Grid) -> Tensor:
    """``y[t] = sum[j] w[j](t) x[i[j](t)]`` along one axis."""
    shape = (*input.shape[:axis], grid.new, *input.shape[axis + 1 :])

    def body(*i: Any) -> Any:
        terms = []
        for element, weight in grid.taps(i[axis], input.dtype):
            x = input[(*i[:axis], element, *i[axis + 1 :])]
            terms.append(x if weight is None else x * weight)
        return reduce(add, terms)

    return written(shape, body, name="interpolate")


def _antialiased(input: Tensor, axis: int, grid: _Grid) -> Tensor:
    """``y[t] = sum[k] w(e - c(t)) x[e] / sum[k] w(e - c(t))``, the kernel w as wide as a step.

    c is the centre of t in elements; e runs over what w reaches. All places are fractions.
    """
    old, new = grid.old, grid.new
    ratio = grid.ratio
    if grid.corners:  # a lone result stands on the first corner
        ratio = Fraction(old - 1, new - 1) if new > 1 else Fraction(0)
    a, b = ratio.numerator, ratio.denominator
    wide, kind = max(a, b), input.dtype
    reach = 2 * REACH[grid.mode] * wide
    count = -(-reach // b) + 1

    def element(t: Any, k: Any) -> Any:
        return ((2 * t + 1) * a + b - reach) // (2 * b) + k

    def inside(t: Any, k: Any) -> list[Any]:
        e, end = element(t, k), ((2 * t + 1) * a + b + reach) // (2 * b)
        return [e >= 0, e < end, e < old]

    def weight(t: Any, k: Any) -> Any:
        away = (2 * element(t, k) + 1) * b - (2 * t + 1) * a
        share = _kernel(abs(astype(away, kind)) * (0.5 / wide), grid.mode)
        return padded(inside(t, k), share)

    weights = written((new, count), weight, name="weights")
    k = taps(count)
    sums = written((new,), lambda t: sum_of(weights[t, k], over=k), name="sums")
    shape = (*input.shape[:axis], new, *input.shape[axis + 1 :])

    def body(*i: Any) -> Any:
        t = i[axis]
        x = input[(*i[:axis], element(t, k), *i[axis + 1 :])]
        return sum_of(padded(inside(t, k), x * (weights[t, k] / sums[t])), over=k)

    return written(shape, body, name="interpolate")


def _kernel(d: Any, mode: str) -> Any:
    """The triangle, or Keys' kernel, at distance d."""
    if mode == "bilinear":
        return M.maximum(1.0 - d, 0.0)
    near = ((SMOOTH + 2.0) * d - (SMOOTH + 3.0)) * d * d + 1.0
    far = ((SMOOTH * d - 5.0 * SMOOTH) * d + 8.0 * SMOOTH) * d - 4.0 * SMOOTH
    return where(d < 1.0, near, where(d < 2.0, far, 0.0))


# --- places that are data ------------------------------------------------------------------------


@shaped("input[n, c, h, w] or [n, c, d, h, w], grid[n, _, _, 2] or [n, _, _, _, 3]")
@in_float32
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """``(N, C, ..)`` at the places ``grid[n, .., (x, y, z)]``, -1 and 1 being the ends.

    Raises: UnsupportedError for another mode, ShapeError.

    Example:
        >>> F.grid_sample(pb.ones((1, 2, 4, 4)), pb.zeros((1, 3, 3, 2)), align_corners=False).shape
        (1, 2, 3, 3)
    """
    common(input, grid)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise UnsupportedError(f"grid_sample with mode={mode!r}", code="E312")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise UnsupportedError(f"padding_mode={padding_mode!r}", code="E312")
    room = literal("grid_sample", input.shape[2:])
    space = len(room)
    fits = len(grid.shape) == space + 2 and grid.shape[-1] == space
    if space not in (2, 3) or not fits or grid.shape[0] != input.shape[0]:
        raise V.fail(f"grid {show(grid.value.shape)} for input {show(input.value.shape)}")
    if mode == "bicubic" and space == 3:
        raise UnsupportedError("grid_sample with mode='bicubic' in space")
    ends = [_Ends(n, padding_mode, bool(align_corners)) for n in room]

    def placed(k: int, n: Any, *t: Any) -> Any:
        place = ends[k].place(grid[(n, *t, space - 1 - k)])
        return place if mode == "bicubic" else ends[k].folded(place)

    places = [written(grid.shape[:-1], partial(placed, k), "place") for k in range(space)]

    def body(n: Any, c: Any, *t: Any) -> Any:
        taps = [_taps(e, p[(n, *t)], mode) for e, p in zip(ends, places, strict=True)]
        return reduce(add, (_corner(input, (n, c), ends, corner) for corner in product(*taps)))

    return written((*input.shape[:2], *grid.shape[1:-1]), body, name="grid_sample")


def _corner(input: Tensor, lead: Any, ends: Sequence[_Ends], corner: Sequence[Any]) -> Any:
    """One element and its weight; nothing outside."""
    index = [i for i, _ in corner]
    tests = [t for e, i in zip(ends, index, strict=True) for t in (i >= 0, i < e.extent)]
    element = padded(tests, input[(*lead, *index)])
    return reduce(mul, (w for _, w in corner if w is not None), element)


def _taps(ends: _Ends, place: Any, mode: str) -> Taps:
    """The elements around a place on one axis, and their weights."""
    if mode == "nearest":
        return [(astype(M.round(place), int64), None)]
    if mode == "bicubic":
        low = M.floor(place)
        return [(astype(ends.folded(low + n), int64), w) for n, w in _cubic(place - low)]
    low = M.floor(place)
    first = astype(low, int64)
    return [(first, low + 1.0 - place), (first + 1, place - low)]


@dataclass(frozen=True, slots=True)
class _Ends:
    """An axis of `extent` elements, and what lies beyond its ends."""

    extent: int
    beyond: str
    corners: bool

    def place(self, g: Any) -> Any:
        """The place of ``-1 <= g <= 1`` in elements; with `corners` the ends are elements."""
        if self.corners:
            return (g + 1.0) * (0.5 * (self.extent - 1))
        return ((g + 1.0) * self.extent - 1.0) * 0.5

    def folded(self, x: Any) -> Any:
        """A place brought back to the axis, as the padding mode says."""
        if self.beyond == "zeros":
            return x
        if self.beyond == "reflection":
            x = self._mirrored(x)
        return where(x <= 0.0, 0.0, where(x >= self.extent - 1.0, self.extent - 1.0, x))

    def _mirrored(self, x: Any) -> Any:
        low = 0.0 if self.corners else -0.5
        span = self.extent - 1.0 if self.corners else float(self.extent)
        if not span:
            return x * 0.0
        away = abs(x - low)
        turns = M.floor(away / span)
        rest = away - turns * span
        return where(turns % 2.0 == 0.0, rest + low, span - rest + low)


@shaped("theta[n, 2, 3] or [n, 3, 4]", where="int(size) >= 0")
@in_float32
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """``grid[n, .., k] = sum[j] theta[n, k, j] p[j]``, p the places -1..1 of `size` and a 1.

    Example:
        >>> F.affine_grid(pb.ones((1, 2, 3)), (1, 1, 4, 5), align_corners=False).shape
        (1, 4, 5, 2)
    """
    common(theta)
    room = tuple(size[2:])
    space = len(room)
    if theta.shape != (size[0], space, space + 1):
        raise V.fail(f"theta {show(theta.value.shape)} for size {tuple(size)}")

    def body(n: Any, *i: Any) -> Any:
        *t, k = i
        places = [
            _spread(y, e, bool(align_corners), theta.dtype) for y, e in zip(t, room, strict=True)
        ]
        terms = [theta[n, k, j] * p for j, p in enumerate(reversed(places))]
        return reduce(add, terms) + theta[n, k, space]

    return written((size[0], *room, space), body, name="affine_grid")


def _spread(y: Any, extent: int, corners: bool, kind: DType) -> Any:
    """Element `y` of an axis as a place in -1..1."""
    number = astype(y, kind)
    if corners:
        return number * (2.0 / max(extent - 1, 1)) - (1.0 if extent > 1 else 0.0)
    return (number * 2.0 + 1.0) / float(extent) - 1.0


class Upsample(Layer, function=interpolate):
    """Example:
    >>> nn.Upsample(scale_factor=2)(pb.ones((1, 2, 4, 4))).shape
    (1, 2, 8, 8)
    """


class UpsamplingNearest2d(Layer, function=upsample_nearest):
    """Example:
    >>> nn.UpsamplingNearest2d(scale_factor=2)(pb.ones((1, 2, 4, 4))).shape
    (1, 2, 8, 8)
    """


class UpsamplingBilinear2d(Layer, function=upsample_bilinear):
    """Example:
    >>> nn.UpsamplingBilinear2d(scale_factor=2)(pb.ones((1, 2, 4, 4))).shape
    (1, 2, 8, 8)
    """
