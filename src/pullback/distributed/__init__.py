"""Several processes: programs whose sums go over all of them."""

from typing import Any

from pullback.distributed.collectives import all_gather, all_reduce, reduce_scatter
from pullback.distributed.group import Group, init, loopback, rank, size
from pullback.distributed.parallel import DataParallel
from pullback.distributed.ring import Delay
from pullback.distributed.sharded import Sharded, sharded
from pullback.distributed.transport import DistributedError
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown

__all__ = [
    "DataParallel", "Delay", "DistributedError", "Group", "Sharded", "all_gather", "all_reduce",
    "init", "loopback", "rank", "reduce_scatter", "sharded", "size",
]  # fmt: skip

__dir__ = _shown(__all__)


def __getattr__(name: str) -> Any:
    raise _unknown("pullback.distributed", name, __all__)
