"""What a product costs whose right operand lies beyond the second-level cache, nanoseconds."""

from __future__ import annotations

from pullback.config import frozen
from pullback.cost.price import together
from pullback.ir.target import Target


@frozen
class Travel:
    """How the right operand comes to the tiles of a product: `size` bytes, `sample` of them in each
    sample of a batch, in so many turns; `again` is what register tiles read once more because the
    bytes that one goes along do not stay near. `direct`: it is read where it lies, `ahead`: and
    while the block of terms before is multiplied. `sums`: bytes that wait between blocks.
    """

    size: int
    sample: int
    turns: int
    again: int
    sums: int
    direct: bool
    ahead: bool


def product_ns(
    work: float,
    packing: float,
    right: Travel,
    target: Target,
) -> float:
    """Multiply-adds that take `work`, and `packing`, with what it takes to bring the operand.

    It comes from memory once, or in each turn, if it is more than a core's share of the third-level
    cache; before it is packed, or overlapping with the multiply-adds.
    """
    machine = target.profile
    rates = machine.tables["whole"]
    tasks = machine.rate("launch", "tasks")
    share = target.l3 / tasks
    far = right.size / rates["memory_sweep"]
    if right.sample > share:
        far *= right.turns
    work = together(work, right.again / rates["cache"])
    work += right.sums / rates["near"]
    if not right.direct:
        return work + packing + far
    if right.sample > target.l2:
        work *= machine.rate("block", "apart")
    if right.ahead:
        return max(work, far)
    return together(work, far)
