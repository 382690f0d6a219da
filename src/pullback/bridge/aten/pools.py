"""The largest element of windows with its place, in one pass.

``best, place = (x[k], k) if x[k] > best or x[k] is NaN else (best, place)``, tap by tap, as PyTorch
has it: the first of equal ones, the last of several NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import pullback as pb
from pullback.ir.expr import Extent
from pullback.nn import functional as F
from pullback.nn.base.space import Window, each, padded

# Taps that are written out, 3x3x3: 9 take 1.3 ms where a reduction takes 12 (2x64x112x112,
# float32); 25 take .7 of its time and 0.4 s to compile (0.05), 49 take 1.1 s.
MOST_TAPS = 27
_POOLS = {2: F.max_pool2d, 3: F.max_pool3d}
NONE = -1
"""The place before any tap."""


def largest(
    x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Any, Any]:
    """The largest elements of windows over the last axes of ``[n, c, ..]``, and their places."""
    space = x.ndim - 2
    sizes = each(kernel, space, "kernel_size")
    if math.prod(sizes) > MOST_TAPS or not x.dtype.is_float:
        y, places = _POOLS[space](x, kernel, stride, padding, dilation, ceil, True)
        return y, places
    more = (each(v, space, "max_pool") for v in (stride, padding, padding, dilation))
    rows = zip(x.shape[2:], sizes, *more, strict=True)
    windows = [Window(*row) for row in rows]
    return chained(x, windows, (*x.shape[:2], *(w.count(ceil) for w in windows)))


def chained(x: Any, windows: Sequence[Window], shape: Sequence[Extent]) -> tuple[Any, Any]:
    """Tap by tap. `shape`: of the results, also where windows are over symbolic axes."""
    both = [
        pb.compute(shape, lambda *i, n=n: _chain(x, windows, i)[n], name=f"max_pool_{n}")
        for n in range(2)
    ]
    return both[0], pb.astype(both[1], pb.int64)


def row_major(shape: Sequence[Extent], index: Sequence[Any]) -> Any:
    """The place of an element among all of a tensor."""
    pairs = zip(shape[1:], index[1:], strict=True)
    return reduce(lambda flat, pair: flat * pair[0] + pair[1], pairs, index[0])


def _chain(x: Any, windows: Sequence[Window], index: Sequence[Any]) -> tuple[Any, Any]:
    best: Any = -math.inf
    place: Any = NONE
    for taps in itertools.product(*(range(w.size) for w in windows)):
        met = list(zip(windows, index[2:], taps, strict=True))
        at = [w.place(y, k) for w, y, k in met]
        tests = [t for w, y, k in met for t in w.inside(y, k)]
        value = padded(tests, x[(*index[:2], *at)], -math.inf)
        flat = row_major([w.extent for w in windows], at)
        wins = (value > best) | (value != value) | (place == NONE)
        wins = reduce(and_, tests, wins)
        best, place = pb.where(wins, value, best), pb.where(wins, flat, place)
    return best, place
