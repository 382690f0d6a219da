"""A schedule: how one kernel runs, as data. The algorithm is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum

from pullback.config import Ints, frozen
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.ir.kernel import Kernel, reordered


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


@frozen
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


class Left(Enum):
    """What of a contraction's left operand is computed before it is used: nothing, all of it for
    a tile, that of each block of k, or all of it in front of the outer loops that do not change it.
    """

    IN_PLACE = "in place"
    EVALUATED = "evaluated"
    BLOCKS = "evaluated in blocks"
    FRONT = "evaluated in front"


class Right(Enum):
    """Where the right operand of register tiles is read: where it lies, in panels that are all
    packed in front of some outer loops, in panels of each block of k, or from one panel that is
    packed anew for each column of tiles.
    """

    IN_PLACE = "in place"
    PANELS = "in panels"
    BLOCKS = "in panels of blocks"
    ONE = "in one panel"


@frozen
class TileLoops:
    """The loops of register tiles of `rows` x `columns` sums.

    `terms`: products of a block of k; None: k is one block. `scattered`: `left` is copied into
    panels, too. `level`: right panels are packed inside of so many outer loops. `ahead`: the next
    block of `right` is fetched meanwhile. `exact`: tiles of up to so many sums add up long ones in
    blocks, elements. `turned`: what rows have side by side in memory goes there by squares.
    """

    rows: int
    columns: int
    exact: int
    terms: int | None = None
    left: Left = Left.IN_PLACE
    scattered: bool = False
    right: Right = Right.IN_PLACE
    level: int = 0
    ahead: bool = False
    turned: bool = False


@frozen
class DotLoops:
    """The loops of dot products, `rows` x `columns` at a time.

    `pitch`: elements from one row of an evaluated left operand to the next; None: it is read where
    it lies. `ahead`: the next columns are fetched meanwhile.
    """

    rows: int
    columns: int
    pitch: int | None = None
    ahead: bool = False


@frozen
class SweepLoops:
    """The loops in lanes of a sweep: `unroll` vectors in flight, `long` where the body is long, of
    `abreast` rows, where a loop around lanes is around sums.

    `block`: lanes whose sums have bounds of their own are cut into blocks of at most so many
    elements. `through`: sums take the zeros around what they read with them, in loops of one
    length.
    """

    unroll: int
    long: int
    block: int
    through: bool = False
    abreast: int = 1


Numbers = Mapping[str, int]  # what is chosen, by name
Tile = Ints  # an extent for each outer axis
Loops = TileLoops | DotLoops | SweepLoops
LOOPS: dict[Way, type[Loops]] = {
    Way.SWEEP: SweepLoops,
    Way.TILES: TileLoops,
    Way.DOTS: DotLoops,
}


@frozen
class Step:
    """Stages computed in one loop. `level`: how many outer loops enclose it.

    `terms`, products of a block of k of a contraction, and `asked`, what else of its loops is asked
    for by name (`choices.INNER`), are wishes. `loops` is how they are written; None: that is still
    open.
    """

    stages: Ints
    way: Way
    level: int
    vector: int | None = None
    product: Product | None = None
    terms: int | None = None
    asked: tuple[tuple[str, int], ...] = ()
    loops: Loops | None = None

    @property
    def lead(self) -> int:
        """The stage that the others follow."""
        return self.stages[0]


Steps = tuple[Step, ...]


@frozen
class Slot:
    """A piece of scratch that stages use one after the other. `size` in elements."""

    dtype: DType
    size: int

    @property
    def bytes(self) -> int:
        """Size rounded up to a cache line, bytes."""
        return -(-self.size * self.dtype.itemsize // 64) * 64


@frozen
class Residence:
    """Where a stage lives; `slot` numbers the scratch slot, if it lives in one.

    `host`: the stage whose variable, not yet written, holds the value meanwhile; of one in scratch:
    could hold it.
    """

    place: Place
    slot: int | None = None
    host: int | None = None


@frozen
class Schedule:
    """How a kernel runs.

    `tile[o]` coordinates of outer axis `o` form a tile. The tiles of the first `split` axes are
    dealt to `tasks` tasks in contiguous ranges; the rest are loops inside a task.
    `residences` covers the stages and then the finish stages. `order`: the outer axes, outermost
    loop first; none: as they come. Levels and `split` count loops in that order. `asked`: what of
    it was asked for by name (`choices`). `vector`: bytes of a vector; 0: some loops are still open.
    `streamed`: numbers of the arguments that are written past the caches.
    """

    tile: Tile
    tasks: int
    split: int
    steps: Steps
    finish: Steps
    residences: tuple[Residence, ...]
    slots: tuple[Slot, ...]
    order: Ints = ()
    asked: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    vector: int = 0
    streamed: Ints = ()

    @property
    def whole(self) -> bool:
        """Whether all that decides code is in it."""
        return self.vector > 0

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one task without packed panels, bytes."""
        return sum(s.bytes for s in self.slots)


def in_order(kernel: Kernel, schedule: Schedule) -> tuple[Kernel, Schedule]:
    """A kernel and its schedule with outer axes as the loops over them stand.

    ``tile (8, 64), order (1, 0)  ->  tile (64, 8)``
    """
    if not schedule.order:
        return kernel, schedule
    tile = tuple(schedule.tile[axis] for axis in schedule.order)
    return reordered(kernel, schedule.order), replace(schedule, tile=tile, order=())
