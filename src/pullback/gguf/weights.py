"""Products with blocks as they are: one kernel reads integers of few bits, scales and multiplies.

``y[n] = sum[b](d[n, b] sum[e](q[n, b, e] x[b, e]))``: the inner sum is of integers as floats, the
scale comes once a group. What is subtracted from every integer of a group, or is its least value,
meets the sum of its x, which all rows share.

Rows lie in panels of `ROWS`, the number of a row last: its lanes are rows, so nothing is summed
across them. That is another order of the same bytes, made once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.gguf.blocks import ELEMENTS, f32, fields_of
from pullback.gguf.reader import Stored

ROWS = 64  # of a panel: a cache line of bytes, four registers of sums of 64 bytes
Array = np.ndarray[Any, Any]
At = Callable[..., Any]  # field, row, block, places in the field -> a scalar


class Weight:
    """A matrix ``w[n, k]`` of a file, as it lies there: floats of its type, or panels of blocks.

    Example:
        >>> pb.gguf.write("m.gguf", {}, {"w": (np.ones((3, 34), np.uint8), "q8_0")})
        >>> w = pb.gguf.Weight(pb.gguf.read("m.gguf")["w"])
        >>> w(pb.ones(32)).shape, w(pb.ones((5, 32))).shape
        ((3,), (5, 3))
    """

    def __init__(self, stored: Stored) -> None:
        self.kind = stored.kind
        self.rows, self.columns = stored.shape
        if stored.kind.elements == 1:
            plain = np.ascontiguousarray(stored.raw.view(stored.kind.record))
            self.fields = {"w": pb.tensor(plain.reshape(stored.shape))}
            return
        fields = fields_of(stored).items()
        self.fields = {name: pb.tensor(panels(field)) for name, field in fields}

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return sum(t.numpy().nbytes for t in self.fields.values())

    def __call__(self, x: pb.Tensor) -> pb.Tensor:
        """``y[.., n] = sum[k] w[n, k] x[.., k]`` for one row of x or a table of them."""
        if self.kind.elements == 1:
            return _plain(self.fields["w"], x)
        count, blocks = -(-self.rows // ROWS), self.columns // self.kind.elements
        made = PRODUCTS[self.kind.name](self._at, x, count, blocks)
        whole: pb.Tensor = pb.reshape(pb.keep(made, "always"), (*x.shape[:-1], count * ROWS))[
            ..., : self.rows
        ]
        return whole

    def taken(self, places: pb.Tensor) -> pb.Tensor:
        """Rows of the matrix as float32, ``y[m, k] = w[places[m], k]``."""
        if self.kind.elements == 1:
            return pb.astype(pb.take(self.fields["w"], places, axis=0), pb.float32)
        element, within = ELEMENTS[self.kind.name], self.kind.elements

        def read(field: str, n: Any, b: Any, *inner: Any) -> Any:
            return self.fields[field][n // ROWS, b, *inner, n % ROWS]

        shape = (*places.shape, self.columns // within, within)
        made = pb.compute(shape, lambda m, b, e: element(read, places[m], b, e))
        return pb.reshape(made, (*places.shape, self.columns))

    def _at(self, field: str, row: Any, b: Any, *inner: Any) -> Any:
        """A field of a row, which is a panel and a place in it."""
        panel, place = row
        return self.fields[field][panel, b, *inner, place]


def panels(field: Array) -> Array:
    """``[rows, blocks, ..] -> [panels, blocks, .., ROWS]``, rows of zeros where some are missing"""
    missing = -len(field) % ROWS
    whole = np.concatenate([field, np.zeros((missing, *field.shape[1:]), field.dtype)])
    parted = whole.reshape(len(whole) // ROWS, ROWS, *field.shape[1:])
    return np.ascontiguousarray(np.moveaxis(parted, 1, -1))


def _plain(w: pb.Tensor, x: pb.Tensor) -> pb.Tensor:
    """The product with a matrix of floats; 16-bit ones are read as they are."""
    k = pb.axis(w.shape[1])
    shape = (*x.shape[:-1], w.shape[0])
    made: pb.Tensor = pb.compute(shape, lambda *i: pb.sum(f32(w[i[-1], k]) * x[*i[:-1], k], over=k))
    return made


# Each product is two definitions: inner sums of each group of a row, in the order in which memory
# has them, and the sum of those that are scaled. x has the leading axes `m`; a row is a panel and a
# place in it.


def _sums(x: pb.Tensor, group: int) -> pb.Tensor:
    """``s[.., g]``, the sum of each group of x; once, not in every panel"""
    lead = x.shape[:-1]
    parted = pb.reshape(x, (*lead, x.shape[-1] // group, group))
    return pb.keep(pb.sum(parted, axis=len(lead) + 1), "always")


def _inner(
    x: pb.Tensor, panels: int, groups: tuple[int, ...], extent: int, term: Callable[..., Any]
) -> pb.Tensor:
    """``s[m.., panel, group.., place] = sum[e < extent] term(m, (panel, place), group.., e)``"""
    lead, e = len(x.shape) - 1, pb.axis(extent)

    def body(*i: Any) -> Any:
        *m, panel = i[: lead + 1]
        return pb.sum(term(m, (panel, i[-1]), *i[lead + 1 : -1], e), over=e)

    made: pb.Tensor = pb.compute((*x.shape[:-1], panels, *groups, ROWS), body)
    return made


def _outer(x: pb.Tensor, panels: int, body: Callable[..., Any]) -> pb.Tensor:
    """``y[m.., panel, place] = body(m, panel, place)``"""
    made: pb.Tensor = pb.compute((*x.shape[:-1], panels, ROWS), lambda *i: body(i[:-2], *i[-2:]))
    return made


def _q8_0(at: At, x: pb.Tensor, panels: int, blocks: int) -> pb.Tensor:
    def term(m: Any, row: Any, b: Any, e: Any) -> Any:
        return f32(at("q", row, b, e)) * x[*m, b * 32 + e]

    inner, b = _inner(x, panels, (blocks,), 32, term), pb.axis(blocks)

    def body(m: Any, panel: Any, place: Any) -> Any:
        scale = f32(at("d", (panel, place), b))
        return pb.sum(scale * inner[*m, panel, b, place], over=b)

    return _outer(x, panels, body)


def _q4_0(at: At, x: pb.Tensor, panels: int, blocks: int) -> pb.Tensor:
    def term(m: Any, row: Any, b: Any, e: Any) -> Any:
        byte = at("q", row, b, e)
        return f32(byte & 15) * x[*m, b * 32 + e] + f32(byte >> 4) * x[*m, b * 32 + 16 + e]

    inner, b = _inner(x, panels, (blocks,), 16, term), pb.axis(blocks)
    sums = _sums(x, 16)

    def body(m: Any, panel: Any, place: Any) -> Any:
        scale = f32(at("d", (panel, place), b))
        eight = 8.0 * (sums[*m, b * 2] + sums[*m, b * 2 + 1])
        return pb.sum(scale * (inner[*m, panel, b, place] - eight), over=b)

    return _outer(x, panels, body)


def _q4_k(at: At, x: pb.Tensor, panels: int, blocks: int) -> pb.Tensor:
    def half(high: int) -> pb.Tensor:
        def term(m: Any, row: Any, b: Any, pair: Any, e: Any) -> Any:
            byte = at("q", row, b, pair, e)
            return (
                f32(byte >> 4 if high else byte & 15) * x[*m, b * 256 + (pair * 2 + high) * 32 + e]
            )

        return _inner(x, panels, (blocks, 4), 32, term)

    halves, sums = (half(0), half(1)), _sums(x, 32)
    b, pair = pb.axis(blocks), pb.axis(4)

    def body(m: Any, panel: Any, place: Any) -> Any:
        row, scaled, least = (panel, place), 0.0, 0.0
        for high, inner in enumerate(halves):
            group = pair * 2 + high
            scaled += f32(at("scale", row, b, group)) * inner[*m, panel, b, pair, place]
            least += f32(at("low", row, b, group)) * sums[*m, b * 8 + group]
        whole = f32(at("d", row, b)) * scaled - f32(at("least", row, b)) * least
        return pb.sum(whole, over=(b, pair))

    return _outer(x, panels, body)


def _q6_k(at: At, x: pb.Tensor, panels: int, blocks: int) -> pb.Tensor:
    def of(quarter: int) -> pb.Tensor:
        def term(m: Any, row: Any, b: Any, half: Any, part: Any, e: Any) -> Any:
            low, high = (at("bits", row, b, half, part, e, n) for n in (quarter % 2, 2))
            four = low >> 4 if quarter > 1 else low & 15
            pair = high & (3 << 2 * quarter)  # two bits, to be the highest of six
            two = pair << (4 - 2 * quarter) if quarter < 2 else pair >> (2 * quarter - 4)
            return f32(four | two) * x[*m, (b * 16 + half * 8 + quarter * 2 + part) * 16 + e]

        return _inner(x, panels, (blocks, 2, 2), 16, term)

    quarters, sums = [of(n) for n in range(4)], _sums(x, 16) * 32.0
    b, half, part = pb.axis(blocks), pb.axis(2), pb.axis(2)

    def body(m: Any, panel: Any, place: Any) -> Any:
        row, scaled = (panel, place), 0.0
        for quarter, inner in enumerate(quarters):
            group = half * 8 + quarter * 2 + part
            one = inner[*m, panel, b, half, part, place] - sums[*m, b * 16 + group]
            scaled += f32(at("scales", row, b, group)) * one
        return pb.sum(f32(at("d", row, b)) * scaled, over=(b, half, part))

    return _outer(x, panels, body)


Product = Callable[[At, pb.Tensor, int, int], pb.Tensor]
PRODUCTS: dict[str, Product] = {"q8_0": _q8_0, "q4_0": _q4_0, "q4_K": _q4_k, "q6_K": _q6_k}
