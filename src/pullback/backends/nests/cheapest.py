"""What prices choose for a kernel where nobody else did, one after the other.

``matmul  ->  (column.0, 1), (packed.0, 1), (tile.0, 64), (tasks, 2)``
"""

from __future__ import annotations

from functools import lru_cache

from pullback.backends.nests.columns import columns
from pullback.backends.nests.cores import for_cores
from pullback.backends.nests.flight import in_flight
from pullback.backends.nests.operands import operands
from pullback.backends.nests.rows import few_rows
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.schedule.choices import Choices


@lru_cache(maxsize=64)
def cheapest(kernel: Kernel, target: Target) -> Choices:
    """Columns first, dot products of few rows, how operands reach them next, vectors of other sums;
    tasks and tiles for machines of many cores.

    Once for a kernel: a search over its schedules asks for each.
    """
    own = few_rows(kernel, target, columns(kernel, target))
    own = in_flight(kernel, target, (*own, *operands(kernel, target, own)))
    return for_cores(kernel, target, own)
