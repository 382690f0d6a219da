"""What a product costs beside its multiply-adds: panels, blocks of k, a right operand far away."""

from __future__ import annotations

from pullback.config import frozen
from pullback.ir.target import Target

OVERLAP = 1.5  # exponent: parts that take equally long take 2 ** (2/3) times as long together


def together(*parts: float) -> float:
    """Nanoseconds of parts that overlap but for what is lost where they are alike."""
    return float(sum(part**OVERLAP for part in parts) ** (1 / OVERLAP))


@frozen
class Travel:
    """The right operand of a product: `size` bytes, which tiles read `turns` times, `between` bytes
    from one time to the next. `lies`: it is read where it lies; `ahead`: a block of k while the one
    before is multiplied.
    """

    size: int
    turns: int
    between: int
    lies: bool
    ahead: bool


def product_ns(work: float, packing: float, right: Travel, waiting: int, target: Target) -> float:
    """A product of `work` multiply-adds and `packing`, in nanoseconds.

    What is read beyond the second-level cache comes from memory the first time; again from a core's
    share of the third-level cache, which is hidden, if that holds it. `waiting`: bytes of sums
    between blocks of k.
    """
    if right.size <= target.l2:
        return work + packing
    rates = target.profile.tables["whole"]
    far, again = right.size / rates["memory_sweep"], right.size * (right.turns - 1)
    if right.between > target.l3 // int(target.profile.rate("launch", "tasks")):
        far *= right.turns
    elif right.between > target.l2:
        work = max(work, again / rates["cache"])
    sums = waiting / rates["near"]
    if not right.lies:
        return work + packing + far + sums
    work *= target.profile.rate("block", "apart") if right.between > target.l2 else 1.0
    return sums + (max(work, far) if right.ahead else together(work, far))
