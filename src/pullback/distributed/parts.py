"""A rank's part of a bucket of parameters, n ranks with m elements each, zeros behind the last:

row     = w_0, w_1, .., 0            of n m elements
own     = row[r m : (r + 1) m]       what this rank updates
forward   w' = w
backward  d_own = mean[s] row(dw'_s)[r m : (r + 1) m]     one `reduce_scatter`
update    w_0, w_1, .. = own_0, own_1, ..                 one `all_gather`
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pullback.distributed.collectives import all_gather, reduce_scatter
from pullback.distributed.group import Group
from pullback.distributed.transport import Array
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Rule, Value
from pullback.nn.base.build import at, make
from pullback.nn.base.parameter import Buffer, Parameter
from pullback.tensor.face.leaves import register
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops
from pullback.tensor.record.trace import bind
from pullback.tensor.values import elementwise as W

Move = Callable[[Sequence[Value]], Sequence[Value | None]]
Push = Callable[[Sequence[Value]], Sequence[Value]]


def attach(
    name: str, sources: Sequence[Value], copies: Sequence[Definition], pull: Move, push: Push
) -> None:
    """Give `copies` one rule: their adjoints together become those of `sources`."""

    def again(here: Callable[[Value], Value]) -> Rule | None:
        fresh = [here(c) for c in copies]
        whole = [c for c in fresh if isinstance(c, Definition)]
        if len(whole) == len(fresh):
            attach(name, [here(v) for v in sources], whole, pull, push)
        return whole[0].rule if whole else None

    rule = Rule(name, tuple(copies), tuple(sources), pull, push, again)
    for copy in copies:
        copy.rule = rule


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in a row."""
    rows = [ops.reshape(t, (-1,)) for t in tensors]
    return rows[0] if len(rows) == 1 else ops.concat(rows)


def apart(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What `flat` put in a row, in the shapes of `like`."""
    ends = accumulate((t.size for t in like), initial=0)
    pieces = [row[low:high] for low, high in pairwise(ends)]
    return [ops.reshape(p, t.shape) for p, t in zip(pieces, like, strict=True)]


class Part(Parameter):
    """A parameter of m elements that has no memory of its own: it is read from whole parameters,
    and what it is assigned goes into those of all ranks. Which rank this is, is data: all ranks
    run one program. `state`: an optimiser's, of these elements.
    """

    __slots__ = ("group", "index", "owned", "state")

    def __init__(self, owned: Sequence[Parameter], group: Group) -> None:
        self.owned = tuple(owned)
        self.group = group
        self.state: dict[str, Buffer] = {}
        self.index = Buffer(Tensor(bind(np.asarray(group.rank, np.int64), "rank")))
        length = -(-sum(p.size for p in owned) // group.size)
        nothing = np.broadcast_to(np.zeros((), owned[0].dtype.numpy), (length,))
        super().__init__(Tensor(bind(nothing, "part", copy=False)))
        for parameter in owned:
            parameter._part = weakref.ref(self)

    @property
    def value(self) -> Value:
        """What this rank has of the parameters of now."""
        own = self._own(self.row([Tensor(p.value) for p in self.owned]))
        register(own, self)
        return own

    def row(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the parameters' shapes, side by side, with zeros behind."""
        short = self.group.size * self.size - sum(t.size for t in tensors)
        zeros = [Tensor(W.full((short,), 0, self.dtype))] if short else []
        return flat([*tensors, *zeros])

    def _own(self, row: Tensor) -> Value:
        if self.group.size == 1:
            return row.value
        rows = ops.reshape(row, (self.group.size, *self.shape)).value
        rank = self.index.value

        def body(place: Expr) -> Expr:
            return at(rows, at(rank), place)

        return make("part", self.shape, body).value

    def assign(self, value: Any) -> None:
        """Every rank's part into the whole parameters of all."""
        for parameter, piece in zip(self.owned, self.pieces(Tensor(_value(value))), strict=True):
            parameter.assign(piece)

    def pieces(self, own: Tensor) -> list[Tensor]:
        """What ranks have of something, together, in the shapes of the parameters."""
        return apart(all_gather(own, group=self.group), self.owned)

    def cut(self, arrays: Sequence[Array]) -> Array:
        """This rank's part of arrays of the parameters' shapes."""
        length = self.size
        row = np.zeros(self.group.size * length, self.dtype.numpy)
        whole = np.concatenate([np.ravel(a) for a in arrays])
        row[: whole.size] = whole
        return row[self.group.rank * length :][:length].copy()

    def copies(self) -> list[Definition]:
        """The parameters, with adjoints that come to this part as means over all ranks."""
        own = self.value
        copies = [W.copy(p.value, p.value.name) for p in self.owned]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            row = self.row([Tensor(h) for h in heads])
            return [reduce_scatter(row, "mean", group=self.group).value]

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            return [t.value for t in self.pieces(Tensor(tangents[0]))]

        attach("parameters in parts", [own], copies, pull, push)
        return copies


def _value(value: Any) -> Value:
    return value if isinstance(value, Value) else value.value
