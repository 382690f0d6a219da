"""Weights of few bits, and how they lie in memory.

Rows stand in panels of 64, a panel column by column: a product reads all of it once, in order, 64
rows at a time, and an element of the other operand serves 64 rows. Two weights of 4 bits share a
byte, those of columns 2k and 2k + 1: ``byte = 16 q[2k + 1] + q[2k] + 8``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.errors import OptionError, ShapeError, UnsupportedError
from pullback.ir.dtype import float32, int8, int32
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import zeros
from pullback.tensor.shaped import shaped

PANEL = 64
TOP = {8: 127, 4: 7}  # the largest integer of so many bits


@dataclass(frozen=True, eq=False)
class Weights:
    """``w[n, k] = scales[n // 64, k // group, n % 64] q[n, k]``: `rows` by `columns` numbers.

    `values`: int8[panels, columns, 64], of 4 bits half as many columns. Rows and columns that fill
    up are 0. A tree of tensors: an argument of programs, `scales` may be differentiated by.

    Example:
        >>> pb.quantised.weights(pb.ones((3, 4))).values.shape
        (1, 4, 64)
    """

    values: Tensor
    scales: Tensor
    rows: int
    columns: int
    bits: int = 8

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return -(-self.depth // max(literal(self.scales.shape[1]), 1))

    @property
    def depth(self) -> int:
        """Columns, with those that fill up."""
        return literal(self.values.shape[1]) * (1 if self.bits == 8 else 2)

    def dense(self) -> Tensor:
        """The weights as float32[rows, columns]. Raises: ShapeError, E590, for parts that differ.

        Example:
            >>> pb.quantised.weights(pb.ones((3, 4))).dense().shape
            (3, 4)
        """
        fitting(self)
        panels, groups = literal(self.scales.shape[0]), literal(self.scales.shape[1])
        whole = O.reshape(integers(self), (panels, groups, self.group, PANEL))
        scaled = O.astype(whole, self.scales.dtype) * O.expand_dims(self.scales, 2)
        turned = O.permute_dims(scaled, (0, 3, 1, 2))
        rows: Tensor = O.reshape(turned, (panels * PANEL, self.depth))[: self.rows, : self.columns]
        return rows


@shaped("w: float[n, k]")
def weights(w: Tensor, bits: int = 8, group: int | None = None) -> Weights:
    """`w` in 8 or 4 bits: ``q = round(w / scale)``, ``scale = max |w| / 127`` (4 bits: ``/ 7``).

    `group` columns of a row share a scale; None: the whole row. Halves round to even. So
    ``|w - scale q| <= scale / 2``: 1/254 (4 bits: 1/14) of the largest of its group.
    Raises: OptionError, E591, for other `bits` and groups that do not divide the columns.

    Example:
        >>> pb.quantised.weights(pb.ones((3, 4)), bits=4, group=2).scales.shape
        (1, 2, 64)
    """
    rows, columns = map(literal, w.shape)
    if bits not in TOP:
        raise OptionError(f"weights of {bits!r} bits", help="8 or 4", code="E591")
    even = 8 // bits
    width = columns if group is None else group
    odd = group is not None and (type(group) is not int or group < 1 or group % even)
    if odd or columns % max(width, 1):
        of = " of 4 bits, an even number" if bits == 4 else ""
        raise OptionError(
            f"groups of {group!r} in {columns} columns{of}",
            help="a divisor of the columns; None for whole rows",
            code="E591",
        )
    panels, groups = -(-rows // PANEL), columns // width if columns else 1
    fill = (panels * PANEL - rows, -columns % even if group is None else 0)
    own = O.pad(O.astype(w, float32), [(0, fill[0]), (0, fill[1])])
    split = O.reshape(own, (panels, PANEL, groups, (columns + fill[1]) // groups))
    turned = O.permute_dims(split, (0, 2, 3, 1))
    scales = _scales(turned, TOP[bits])
    shown = O.where(scales > 0, scales, 1.0)
    q = O.astype(M.round(turned / O.expand_dims(shown, 2)), int32)
    flat = O.reshape(q, (panels, columns + fill[1], PANEL))
    stored = flat if bits == 8 else flat[:, 1::2] * 16 + flat[:, 0::2] + 8
    return Weights(O.astype(stored, int8), scales, rows, columns, bits)


def _scales(turned: Tensor, top: int) -> Tensor:
    """``max over a group of |w| / top``; what is not finite is NaN, as all products with it are."""
    panels, groups, width, _ = turned.shape
    if not width or not panels:
        return zeros((panels, groups, PANEL), dtype=float32)
    return of_largest(O.max(M.abs(turned), axis=2), top)


def of_largest(largest: Tensor, top: int) -> Tensor:
    """The scale under which the largest number is `top`; NaN for what is not finite."""
    scale: Tensor = O.where(M.isfinite(largest), largest, float("nan")) / float(top)
    return scale


def integers(w: Weights) -> Tensor:
    """``q`` as int32[panels, columns, 64], with what fills up."""
    own: Tensor = O.astype(w.values, int32)
    if w.bits == 8:
        return own
    both = O.stack([M.bitwise_and(own, 15) - 8, M.bitwise_right_shift(own, 4)], axis=2)
    whole: Tensor = O.reshape(both, (own.shape[0], w.depth, PANEL))
    return whole


def literal(extent: object) -> int:
    """An extent that is a number. Raises: UnsupportedError for a symbolic one."""
    if not isinstance(extent, int):
        raise UnsupportedError(f"weights with the symbolic axis {extent}", code="E315")
    return extent


def fitting(w: Weights) -> None:
    """Raises: ShapeError, E590, where the parts of some weights do not belong together."""
    panels = -(-w.rows // PANEL)
    even = 1 if w.bits == 8 else 2
    wanted = (panels, -(-w.columns // even), PANEL)
    groups = w.scales.shape[1] if len(w.scales.shape) == 3 else 0
    known = w.bits in TOP and w.values.dtype is int8 and w.scales.dtype.is_float
    whole = isinstance(groups, int) and groups > 0 and wanted[1] % groups == 0
    if not known or not whole or w.values.shape != wanted or _ends(w) != (panels, PANEL):
        raise ShapeError(
            f"weights of {w.bits} bits, {w.rows} x {w.columns}: values {w.values.dtype}"
            f"{list(w.values.shape)}, scales {w.scales.dtype}{list(w.scales.shape)}",
            help=f"values int8{list(wanted)}, scales [{panels}, groups, {PANEL}], "
            "as `quantised.weights` makes them",
            code="E590",
        )


def _ends(w: Weights) -> tuple[object, ...]:
    shape = w.scales.shape
    return (shape[0], shape[2]) if len(shape) == 3 else ()
