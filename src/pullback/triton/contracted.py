"""The products of a derivative that are tiled again, as programs of pullback's own on tensors.

    d_left[b, m, k] = sum[n](d_total[b, m, n] * right[b, k, n])      and so by `right`

Matrices are read where they lie. What a program gives lies as the gradient does, where that is
dense; else it is copied there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.bridge import torch as bridge
from pullback.composite.text import define
from pullback.config import Options, frozen
from pullback.tensor.face.tensor import Tensor
from pullback.triton.layouts import Strided
from pullback.triton.products import Tiled

BACKEND = "triton"  # of tensors of the host; those of a device have that of `gpu`


@frozen
class Matrix:
    """A matrix in a tensor, or more of a batch, and the letters of their axes, ``bmn``."""

    tensor: Any
    lies: Strided
    letters: str

    @property
    def axes(self) -> list[int]:
        """Those that tell elements apart: no batch of one, none that all share."""
        shared = self.lies.extents[0] == 1 or self.lies.strides[0] == 0
        return [1, 2] if shared else [0, 1, 2]

    @property
    def named(self) -> str:
        """The letters of those axes."""
        return "".join(self.letters[axis] for axis in self.axes)

    def view(self) -> Any:
        """The tensor's elements as the matrix."""
        own = self.tensor.detach()
        first = own.storage_offset() + self.lies.offset
        extents, strides = self.lies.extents, self.lies.strides
        pairs = [(extents[axis], strides[axis]) for axis in self.axes]
        return own.as_strided([n for n, _ in pairs], [by for _, by in pairs], first)


Term = tuple[Matrix, Matrix, Matrix]  # of whom it is a gradient, and two that are multiplied


def gradients(
    tiled: Tiled, tensors: Mapping[str, Any], factors: Mapping[str, Any]
) -> dict[str, Any]:
    """The gradients that are products, of what comes from behind sums, by the names of those."""
    terms: dict[str, list[Term]] = {n: [] for n in sorted(tiled.targets)}
    kinds: dict[str, Any] = {}
    for product, layout in tiled.products:
        a, b, _ = product.arrays
        behind = factors[product.factor.total.name]
        left = Matrix(tensors[a], layout.left, "bmk")
        right = Matrix(tensors[b], layout.right, "bkn")
        total = Matrix(behind, layout.total, "bmn")
        if a in terms:
            terms[a].append((left, total, right))
        if b in terms:
            terms[b].append((right, left, total))
        kinds |= dict.fromkeys((a, b), behind.dtype)
    return {n: gradient(own, kinds[n]) for n, own in terms.items()}


def within(tiled: Tiled, tensors: Mapping[str, Any]) -> Tiled:
    """The products, where programs run and all matrices lie in the memory of their tensors."""
    why = ""
    for product, layout in tiled.products:
        matrices = (layout.left, layout.right, layout.total)
        for name, lies in zip(product.arrays, matrices, strict=True):
            if not runs(tensors[name].device):
                why = f"no programs run on {tensors[name].device.type}"
            elif lies.offset < 0 or lies.reach >= room_of(tensors[name]):
                why = f"places beyond {name} are read or stored"
    return Tiled(reasons=tuple((n, why) for n in sorted(tiled.targets))) if why else tiled


def gradient(terms: Sequence[Term], kind: Any) -> Any:
    """The gradient of a tensor: a sum of products of elements of `kind`, 0 beyond the matrices."""
    if len(terms) == 1:
        return term(*terms[0], kind, terms[0][0].tensor.dtype)
    wide = torch.promote_types(kind, torch.float32)
    return functools.reduce(torch.add, (term(*own, kind, wide) for own in terms))


def term(to: Matrix, one: Matrix, two: Matrix, kind: Any, result: Any) -> Any:
    """A product of elements of `kind`, which lies as the tensor that it is the gradient of."""
    order = sorted(to.axes, key=lambda axis: -to.lies.strides[axis])
    whole = product(one, two, "".join(to.letters[axis] for axis in order), kind, result)
    dense = dict(zip(order, whole.stride(), strict=True))
    same = all(dense[a] == to.lies.strides[a] or to.lies.extents[a] == 1 for a in order)
    shape, strides = to.tensor.shape, to.tensor.stride()
    if same and to.lies.offset == 0 and room_of(to.tensor) == whole.numel():
        return whole.as_strided(shape, strides)
    room = torch.zeros(room_of(to.tensor), dtype=result, device=whole.device)
    grown = Matrix(room.as_strided(shape, strides), to.lies, to.letters)
    grown.view().copy_(whole.permute([order.index(axis) for axis in to.axes]))
    return grown.tensor


def product(one: Matrix, two: Matrix, letters: str, kind: Any, result: Any) -> Any:
    """The product of two matrices, by the letters of its axes; over all others it is a sum."""
    summed = sorted({*one.named, *two.named} - {*letters})
    left, right = (", ".join(m.named) for m in (one, two))
    text = f"c[{', '.join(letters)}] = sum[{', '.join(summed)}](x[{left}] * y[{right}])"
    run = operator(text, *(str(k).removeprefix("torch.") for k in (kind, result)))
    with torch.no_grad():
        return run(one.view(), two.view())


@functools.cache
def operator(text: str, kind: str, result: str) -> Any:
    """The operator of a product of elements of `kind`; halves are added up in float32."""
    wide = "float32" if kind in ("float16", "bfloat16") else kind

    def contracted(x: Tensor, y: Tensor) -> Tensor:
        one, two = (t.astype(kind).astype(wide) for t in (x, y))
        made: Tensor = define(text, x=one, y=two)
        return made.astype(result)

    letters = "_".join("".join(c for c in part if c.isalpha()) for part in text.split("]")[:-1])
    options = replace(Options.from_environment(), backend=BACKEND)
    name = f"pullback_triton::{letters}_{kind}_{result}"
    return bridge.op(contracted, name=name, options=options)


def runs(device: Any) -> bool:
    """Whether programs run where a tensor lies."""
    return device.type == "cpu" or (device.type == "cuda" and torch.version.cuda is not None)


def room_of(tensor: Any) -> int:
    """How many elements lie from the first one of a tensor to the last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((n - 1) * by for n, by in pairs) if tensor.numel() else 0
