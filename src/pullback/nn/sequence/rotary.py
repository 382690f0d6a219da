"""Rotary position embedding: pairs of features turned by angles that grow with the position.

Source: Su, Lu, Pan, Murtadha, Wen, Liu 2021, RoFormer: enhanced transformer with rotary position
embedding.
"""

from __future__ import annotations

import math
from typing import Any

from pullback.errors import ShapeError
from pullback.ir.dtype import float32, float64
from pullback.nn.base.build import written
from pullback.nn.base.module import Module
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.shaped import shaped


@shaped(
    "input: float[b..., t, d], positions: number[b...?, t] -> [b..., t, d]",
    where="base > 0, int(dim) >= 0, dim % 2 == 0, dim <= d",
)
def rotary_embedding(
    input: Tensor,
    positions: Any = None,
    *,
    offset: Any = 0,
    base: float = 10000.0,
    interleaved: bool = False,
    dim: int = 0,
) -> Tensor:
    """``y[a] = x[a] cos w - x[b] sin w, y[b] = x[b] cos w + x[a] sin w``, ``w = p base^(-2 i / d)``

    As in ``q, k = (F.rotary_embedding(x, offset=seen) for x in (q, k))``.

    Pair i is (i, i + d / 2), or (2 i, 2 i + 1) if `interleaved`. Position p of row t is
    ``positions[.., t]``, or ``t + offset``: a number, or a tensor of one (how far a cache is
    filled). Of `dim` features the first ones are turned, by default all. Angles are computed in
    float64.

    Raises: ShapeError for an odd number of features.

    Example:
        >>> F.rotary_embedding(pb.ones((1, 2, 3, 4))).shape
        (1, 2, 3, 4)
    """
    *lead, rows, width = input.shape
    turned = dim or width
    if not isinstance(turned, int) or turned % 2:
        raise ShapeError(f"rotary_embedding of {turned} features: pairs are turned", code="E125")
    if not turned:
        return input
    half = turned // 2
    place = _places(positions, offset, rows)
    kind = input.dtype
    work = float64 if kind == float64 else float32
    table = _table(place, half, float(base), turned)
    cosine, sine = (O.astype(t, work) for t in table)

    def body(*index: Any) -> Any:
        *n, t, c = index
        pair = c // 2 if interleaved else c % half
        first = c % 2 < 1 if interleaved else c < half
        step = 1 if interleaved else half
        inside = c < turned
        other = O.where(first, c + step, c - step)
        at = O.clip(other, 0, turned - 1)
        angle = (*_broadcast(place, n, lead), t, O.clip(pair, 0, half - 1))
        own = O.astype(input[(*n, t, c)], work)
        partner = O.astype(input[(*n, t, at)], work)
        signed = O.where(first, -partner, partner)
        moved = own * cosine[angle] + signed * sine[angle]
        return O.astype(O.where(inside, moved, own), kind)

    return written((*lead, rows, width), body, name="rotary_embedding")


def _places(positions: Any, offset: Any, rows: Any) -> Tensor:
    """The position of each row, in float64."""
    shift = O.astype(value_tensor(offset), float64)
    if positions is not None:
        places: Tensor = O.astype(value_tensor(positions), float64) + shift
        return places
    counted: Tensor = written((rows,), lambda t: O.astype(t, float64)) + shift
    return counted


def _table(place: Tensor, half: int, base: float, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles, a column a pair, in float64."""
    rate = written((half,), lambda i: M.exp(O.astype(i, float64) * (-2.0 / width * math.log(base))))
    angle = O.stop_gradient(O.expand_dims(place, -1) * rate)
    return M.cos(angle), M.sin(angle)


def _broadcast(place: Tensor, index: Any, lead: Any) -> list[Any]:
    """The part of an index that positions have an axis for, 0 where that has extent 1."""
    own = place.shape[:-1]
    skip = len(lead) - len(own)
    return [0 if e == 1 else i for e, i in zip(own, index[skip:], strict=True)]


class RotaryEmbedding(Module):
    """Pairs of features turned by angles that grow with the position: `rotary_embedding`.

    As in ``rope = nn.RotaryEmbedding(64); q, k = rope(q), rope(k)``.

    Example:
        >>> nn.RotaryEmbedding(4)(pb.ones((1, 2, 3, 4))).shape
        (1, 2, 3, 4)
    """

    @shaped("", where="int(dim) >= 2, dim % 2 == 0, base > 0")
    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.base = base
        self.interleaved = interleaved

    def forward(self, input: Tensor, positions: Any = None, offset: Any = 0) -> Tensor:
        return rotary_embedding(
            input,
            positions,
            offset=offset,
            base=self.base,
            interleaved=self.interleaved,
            dim=self.dim,
        )

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, interleaved={self.interleaved}"
