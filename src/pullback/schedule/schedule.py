"""A schedule: how one kernel runs, as data. The algorithm is not in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pullback.ir.dtype import DType
from pullback.ir.expr import Expr


class Place(Enum):
    """Where the value of a stage lives until its last reader in the kernel is done."""

    REGISTER = "register"
    SCRATCH = "scratch"
    MEMORY = "memory"
    SHARED = "shared"


class Way(Enum):
    """How the stages of a step are computed.

    SWEEP: one loop over a box, `vector` in lanes. TILES: outer-product register tiles of a
    contraction. DOTS: a contraction with its reduced axis in lanes. SCAN and SCATTER as named.
    """

    SWEEP = "sweep"
    TILES = "tiles"
    DOTS = "dots"
    SCAN = "scan"
    SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products: ``out[row, column] = scale * sum[k] left[row, k] * right[k, column]``.

    `left` has the factors without axis `column`. `direct`: `right` is one read with unit stride
    along `column`, used where it lies; otherwise it is packed into panels. `word`: so many
    neighbours along k are multiplied and added by one instruction, from panels of such words.
    `dots`: up to so many rows dot products along k need no panels; 0: they have no use.
    """

    left: Expr
    right: Expr
    scale: Expr | None
    row: int
    column: int
    direct: bool
    word: int = 1
    dots: int = 0


@dataclass(frozen=True, slots=True)
class Inner:
    """How innermost loops are shaped; None: as lowering finds best.

    `rows`, `vectors`: of a register tile. `packed`: whether its right operand is copied into panels
    where it could be read in place. `unroll`: vectors in flight of a sweep.
    """

    rows: int | None = None
    vectors: int | None = None
    packed: bool | None = None
    unroll: int | None = None

    def __str__(self) -> str:
        facts = {name: getattr(self, name) for name in self.__slots__}
        return ", ".join(f"{name} {v}" for name, v in facts.items() if v is not None)


@dataclass(frozen=True, slots=True)
class Step:
    """Stages computed in one loop. `level`: how many outer loops enclose it.

    `terms`: of a contraction whose operands are packed a block of k at a time, so many.
    """

    stages: tuple[int, ...]
    way: Way
    level: int
    vector: int | None = None
    product: Product | None = None
    terms: int | None = None
    inner: Inner = Inner()

    def __str__(self) -> str:
        lane = "" if self.vector is None else f", axis {self.vector} in lanes"
        found = f"{self.way.value} of stages {list(self.stages)} in {self.level} loops{lane}"
        return found if self.inner == Inner() else f"{found}; {self.inner}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of scratch that stages use one after the other. `size` in elements."""

    dtype: DType
    size: int

    @property
    def bytes(self) -> int:
        """Size rounded up to a cache line, bytes."""
        return -(-self.size * self.dtype.itemsize // 64) * 64


@dataclass(frozen=True, slots=True)
class Residence:
    """Where a stage lives; `slot` numbers the scratch slot, if it lives in one.

    `host`: the stage whose variable, not yet written, holds the value meanwhile; of one in scratch:
    could hold it.
    """

    place: Place
    slot: int | None = None
    host: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel runs.

    `tile[o]` coordinates of outer axis `o` form a tile. The tiles of the first `split` axes are
    dealt to `tasks` tasks in contiguous ranges; the rest are loops inside a task.
    `residences` covers the stages and then the finish stages. `order`: the outer axes, outermost
    loop first; none: as they come. Levels and `split` count loops in that order. `asked`: what of
    it was asked for by name (`choices`).
    """

    tile: tuple[int, ...]
    tasks: int
    split: int
    steps: tuple[Step, ...]
    finish: tuple[Step, ...]
    residences: tuple[Residence, ...]
    slots: tuple[Slot, ...]
    order: tuple[int, ...] = ()
    asked: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one task without packed panels, bytes."""
        return sum(s.bytes for s in self.slots)

    def __str__(self) -> str:
        size = self.scratch_bytes
        lines = [f"{self.tasks} tasks over tiles of {self.tile}, {size} bytes scratch"]
        lines += [f"  outer axes in the order {self.order}"] if self.order else []
        lines += [f"  {step}" for step in self.steps]
        lines += [f"  finish: {step}" for step in self.finish]
        for number, home in enumerate(self.residences):
            where = home.place.value if home.slot is None else f"{home.place.value} {home.slot}"
            lines.append(f"  stage {number} in {where}")
        if self.asked:
            lines.append("  # asked for: " + ", ".join(f"{n} = {v}" for n, v in self.asked))
        return "\n".join(lines)
