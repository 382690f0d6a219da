"""The same model on every rank, each with its own part of a batch.

forward     w' = w               of a bucket of parameters
backward    dw = mean[r] dw'_r   one `all_reduce` of the bucket, begun as soon as its last
                                 adjoint is there; the rest of the backward runs beside it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pullback.distributed.collectives import all_reduce
from pullback.distributed.group import Group, group_of
from pullback.distributed.parts import Part, apart, attach, flat
from pullback.distributed.transport import DistributedError
from pullback.ir.graph import Definition, Value
from pullback.nn.base.module import Module
from pullback.nn.base.parameter import Parameter
from pullback.tensor.face.leaves import standing
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import array_of, bind, realize
from pullback.tensor.values import elementwise as W

BUCKET = 1 << 22  # bytes


class DataParallel(Module):
    """A module whose gradients are the mean over all ranks; each is given its part of a batch.

    At first the parameters and buffers of rank 0 go to all. Gradients are reduced in buckets of
    about `bucket` bytes, the last layers' first, beside the rest of the backward. `sharing` is for
    other functions of the module than `forward`. `parts`: what `sharded` optimisers update.

    Raises: DistributedError for what is no module, or no size of a bucket.

    Example:
        >>> model = pb.distributed.DataParallel(nn.Linear(2, 1))
        >>> model(pb.ones((3, 2))).shape
        (3, 1)
    """

    def __init__(self, module: Module, *, bucket: int = BUCKET, group: Group | None = None) -> None:
        super().__init__()
        if not isinstance(module, Module):
            what = f"DataParallel of a {type(module).__name__}"
            raise DistributedError(what, help="a module of pb.nn is wanted", code="E614")
        if isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1:
            what = f"bucket={bucket!r}"
            raise DistributedError(what, help="bytes, 1 or more", code="E614")
        self.module = module
        self.group = group_of(group)
        self.bucket = bucket
        self.parts: list[Part] = []
        self._begin()

    def _begin(self) -> None:
        """Every rank starts with what rank 0 has."""
        cells = self.module._cells()
        said = ", ".join(f"{n} {c.dtype}{list(c.shape)}" for n, c in cells.items())
        self.group.agree("the module", said)
        if self.group.size == 1:
            return
        for cell in {id(c): c for c in cells.values()}.values():
            own = Tensor(cell.value)
            realize([own])
            cell.assign(bind(self.group.broadcast(array_of(own)), "parameter", copy=False))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's function."""
        with self.sharing():
            return self.module(*args, **kwargs)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """What is computed of the module in here has gradients that are means over all ranks.

        Example:
            >>> model = pb.distributed.DataParallel(nn.Linear(2, 1))
            >>> with model.sharing():
            ...     loss = pb.sum(model.module(pb.ones((3, 2))))
        """
        with ExitStack() as stack:
            for part in self.parts:
                for parameter, value in zip(part.owned, part.copies(), strict=True):
                    stack.enter_context(standing(parameter, value))
            for bucket in self.buckets() if self.group.size > 1 else ():
                shared = _shared([p.value for p in bucket], self.group)
                for parameter, value in zip(bucket, shared, strict=True):
                    stack.enter_context(standing(parameter, value))
            yield

    def buckets(self) -> list[list[Parameter]]:
        """Trained parameters that are in no part, those of one type in a bucket."""
        apart = {id(p) for part in self.parts for p in part.owned}
        return buckets([p for p in self.module.parameters() if id(p) not in apart], self.bucket)


def buckets(parameters: Sequence[Parameter], length: int) -> list[list[Parameter]]:
    """Trained parameters of one type each, the last first, as they get their gradients; about
    `length` bytes in one.
    """
    made: list[list[Parameter]] = []
    room = 0
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        size = parameter.size * parameter.dtype.itemsize
        if not made or size > max(room, 0) or made[-1][0].dtype != parameter.dtype:
            made.append([])
            room = length
        made[-1].append(parameter)
        room -= size
    return made


def _shared(values: Sequence[Value], group: Group) -> list[Definition]:
    """Copies whose adjoints are means over all ranks, in one message."""
    copies = [W.copy(v, v.name) for v in values]

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        return [t.value for t in means(list(map(Tensor, heads)), group)]

    attach("shared parameters", values, copies, pull, lambda tangents: tangents)
    return copies


def means(tensors: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The mean of each over all ranks, by one `all_reduce` of them side by side."""
    whole = all_reduce(flat(tensors), "mean", group=group)
    return apart(whole, tensors)
