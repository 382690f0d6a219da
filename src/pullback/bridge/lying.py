"""Tensors of symbolic sizes as they lie in PyTorch's memory: read there, or out of a room.

    x (n, 8), strides (8, 1)     ->  memory (n, 8)
    x (n, 8), strides (24, 1)    ->  memory (n, 24),  x[i, j] = memory[i, j]
    x (8, n), strides (1, 8)     ->  memory (n, 8),   x[i, j] = memory[j, i]
    x (n, 8), strides (0, 1)     ->  memory (8,),     x[i, j] = memory[j]
    x (8, n), n in 1..512        ->  a room (8, 512), where x is copied to if it lies elsewhere

Where a symbolic axis is the outermost in memory, rows are at the same places whatever their number
is, and nothing is copied. Behind another one a program has its rows as far apart as the upper bound
says; results are written so, too, and copied out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch

from pullback.bridge.layout import apart, contiguous, memory, row_major
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, upper
from pullback.ir.graph import Value
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import axes_of

Axes = Mapping[int, Dim]
"""The symbolic extents of a tensor, by axis; a negative one counts from the end."""
Terms = tuple[tuple[int, int], ...]
"""An index into memory: a sum of axes by strides."""


@dataclass(frozen=True, slots=True)
class Lying:
    """How a tensor of `shape` lies in a row-major variable of `box`, read at `terms`.

    `copied`: it is to be copied into a room of that shape first.
    """

    shape: tuple[Extent, ...]
    box: tuple[Extent, ...]
    terms: tuple[Terms, ...]
    copied: bool = field(default=False, compare=False)  # its program is the same

    @classmethod
    def of(cls, tensor: torch.Tensor, axes: Axes) -> Lying:
        """As a tensor lies whose `axes` are symbolic."""
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        shape = tuple([axes.get(n, size) for n, size in enumerate(sizes)])
        moving = [n for n, size in enumerate(sizes) if strides[n] and (n in axes or size != 1)]
        outward = sorted(moving, key=lambda n: -strides[n])
        if axes.keys().isdisjoint(moving):
            return cls(shape, *_fixed(moving, sizes, strides))
        if axes.keys().isdisjoint(outward[1:]):
            rows = _rows(outward, moving, sizes, strides)
            if rows is not None:
                return cls(shape, (shape[outward[0]], *rows[0]), rows[1])
        box = tuple([shape[n] for n in moving])
        pairs = zip(moving, row_major(tuple(map(upper, box))), strict=True)
        lies = all(strides[n] == step or sizes[n] == 1 for n, step in pairs)
        return cls(shape, box, tuple([((n, 1),) for n in moving]), not lies)

    def view(self, value: Value) -> Value:
        """The tensor, of the variable."""
        axes = axes_of(self.shape)
        index = [_index(axes, terms) for terms in self.terms]
        if self.shape == self.box and index == list(axes):
            return value
        return V.view(value.name, value, self.shape, index)

    def passed(self, tensor: torch.Tensor, sizes: Mapping[str, int], dense: bool) -> torch.Tensor:
        """What a program reads. `dense`: it reads all of its memory, which is of the sizes."""
        if not self.copied and not dense:
            return tensor
        own = room(self.box, tensor.dtype, sizes, dense)
        if self.copied:
            rows = self.rows(tensor, sizes)
            own[tuple(map(slice, rows.shape))].copy_(rows)
            return own
        end = reach(tensor)
        own.view(-1)[:end].copy_(tensor.as_strided((end,), (1,)))
        return own

    def rows(self, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """The elements of a tensor that does not lie so, in the shape of the variable."""
        moving = {axis for terms in self.terms for axis, _ in terms}
        part = tensor[tuple([slice(None if n in moving else 1) for n in range(tensor.ndim)])]
        return part.reshape(actual(self.box, sizes))


def reach(tensor: torch.Tensor) -> int:
    """Elements of memory from the first to the last that it has."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0


def _index(axes: Sequence[Expr], terms: Terms) -> Expr:
    """``((1, 8), (2, 1)) -> 8 j + k``"""
    if not terms:
        return E.index(0)
    return reduce(E.Add, [axes[n] if s == 1 else E.Mul(axes[n], E.index(s)) for n, s in terms])


def _fixed(
    moving: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Terms, ...]]:
    """The memory of axes whose sizes are numbers, and where it is read."""
    own, steps = tuple([sizes[n] for n in moving]), tuple([strides[n] for n in moving])
    box = memory(own, steps)
    if contiguous(own, steps):
        return box, tuple([((n, 1),) for n in moving])
    if len(box) == len(own) > 1:
        return box, tuple([((moving[k], 1),) for k in apart(own, steps)])
    return box, (tuple([(n, strides[n]) for n in moving]),)


def _rows(
    outward: Sequence[int], moving: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Terms, ...]] | None:
    """The memory of a row, the outermost axis being symbolic; None where rows share places."""
    first = outward[0]
    row, terms = _fixed([n for n in moving if n != first], sizes, strides)
    width, step = math.prod(row), strides[first]
    if width == step or 0 in row or (sizes[first] <= 1 and width > step):
        return row, (((first, 1),), *terms)
    if width > step:
        return None
    return (step,), (((first, 1),), tuple([(n, strides[n]) for n in moving if n != first]))


def room(
    shape: Sequence[Extent], kind: torch.dtype, sizes: Mapping[str, int], dense: bool
) -> torch.Tensor:
    """Memory of a shape: by sizes where rows lie the same whatever their number is."""
    own = actual(shape, sizes) if dense or led(shape) else [upper(e) for e in shape]
    return torch.empty(own, dtype=kind)


def out(filled: torch.Tensor, shape: Sequence[Extent], sizes: Mapping[str, int]) -> torch.Tensor:
    """A result without what lies beyond its sizes."""
    own = actual(shape, sizes)
    if list(filled.shape) == own:
        return filled
    return filled[tuple(map(slice, own))].contiguous()


def led(shape: Sequence[Extent]) -> bool:
    """Whether no axis but the first is symbolic."""
    return not any(isinstance(e, Dim) for e in shape[1:])


def actual(shape: Sequence[Extent], sizes: Mapping[str, int]) -> list[int]:
    """The sizes of a call."""
    return [sizes[e.name] if isinstance(e, Dim) else e for e in shape]
