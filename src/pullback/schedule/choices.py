"""What of a schedule is free to choose: numbers by name; the model of costs says the rest.

    (("tasks", 4), ("terms.2", 512), ("tile.0", 64))

===============  ===================================================================
`tasks`          how many tasks the tiles are dealt to
`tile.O`         coordinates of outer axis O in a tile
`apart.N`        1: stage N begins a loop of its own
`column.N`       the axis of stage N that is the columns of a contraction; -1: it is a sweep
`dots.N`         rows up to which contraction N goes by dot products
`terms.N`        products of a block of k, 0: k is one block
`vectors.N`      of a row of the register tile
`rows.N`         of the register tile
`packed.N`       1: the right operand is copied where it could be read in place
`left.N`         0: the left operand is computed where it is used, 1: in front of a tile, 2: of each
                 block of k
`right.N`        0: the right operand is read where it lies, 1: from panels that are packed in front
                 of outer loops, 2: of blocks of k, 3: from one panel at a time
`scattered.N`    1: the left operand is packed, too
`ahead.N`        1: the next block of the right operand is fetched meanwhile
`lanes.N`        the axis in lanes of the sweep that stage N begins; -1: none
`unroll.N`       vectors in flight of it
`abreast.N`      rows of its sums that run side by side
`order`          the loops over tiles: the n-th of all orders, as `permutations` counts
`place.N`        0: stage N lives in scratch where a variable that is written later could hold it
===============
  ===================================================================

Of tiles, tasks, terms and rows every number that is legal may be asked for; `offered` names those
that are worth trying.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, permutations
from math import factorial, prod

from pullback.config import Cap, Caps, Ints
from pullback.cost.facts import elements
from pullback.errors import OptionError
from pullback.ir.expr import Extent, takes, upper
from pullback.ir.graph import Reduce
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.schedule.contraction import products, recognise
from pullback.schedule.cost import most_tasks
from pullback.schedule.schedule import Numbers, Schedule, Step, Way
from pullback.schedule.tiling import round_tile

Choices = tuple[tuple[str, int], ...]
Options = dict[str, Ints]

# What changes which stages share a loop or how they are seen: other choices may come or go with it.
STRUCTURE = ("apart", "column", "dots")

# What a search tries of numbers that may be any: products of a block of k, rows that go by dot
# products, rows of a register tile, vectors in flight, coordinates of a tile along one axis.
TERMS: Caps = (128, 256, 512, 1024, 2048)
DOTS: Caps = (0, 4, 8, 16, 32)
ROWS: Caps = (1, 2, 3, 4, 6, 8, 10, 12, 14)
UNROLLS: Caps = (1, 2, 4, 8)
ABREAST: Caps = (1, 2, 4)
WIDEST: Cap = 1 << 20
MOST_ORDERED: Cap = 4  # outer axes whose orders are tried

OPERANDS = ("left", "right", "scattered", "ahead")
# Of how innermost loops are written.
INNER = ("rows", "vectors", "packed", "unroll", "abreast", *OPERANDS)


def choices_of(given: Numbers) -> Choices:
    """Choices in order of their names."""
    return tuple(sorted(given.items()))


def joined(own: Choices, given: Numbers) -> Choices:
    """`given` before `own`, of which columns alone stay where that changes what is free."""
    other = any(name.partition(".")[0] in (*STRUCTURE, "order") for name in given)
    return choices_of({**{n: v for n, v in own if not other or n[:6] == "column"}, **given})


def order_of(kernel: Kernel, given: Numbers) -> Ints:
    """The outer axes, outermost loop first. Raises: OptionError for an order that there is not."""
    axes = range(len(kernel.outer))
    number = given.get("order", 0)
    order = next(islice(permutations(axes), number, None), None) if number >= 0 else None
    if order is None:
        what = f"kernel {kernel.name} has no order {number} of {len(axes)} outer axes"
        raise OptionError(what, code="E527")
    return order


def offered(kernel: Kernel, schedule: Schedule, target: Target, given: Numbers) -> Options:
    """The values worth trying of all that is free in a kernel that runs by `schedule`."""
    if kernel.tiling is not None:
        return {}
    free: Options = {"tasks": _tasks(kernel, target)}
    free.update((f"tile.{n}", _extents(extent)) for n, extent in enumerate(kernel.outer))
    free["order"] = _orders(kernel)
    homes = enumerate(schedule.residences[: len(kernel.stages)])
    free.update((f"place.{n}", (0, 1)) for n, home in homes if home.host is not None)
    for number, stage in enumerate(kernel.stages):
        seen = products(stage)
        if not seen:
            continue
        free[f"column.{number}"] = (-1, *seen)
        product = recognise(stage, target, given.get(f"column.{number}"))
        if product is not None and product.dots:
            free[f"dots.{number}"] = DOTS
    for step in schedule.steps:
        lead = step.lead
        free.update((f"apart.{n}", (1,)) for n in step.stages[1:])
        if f"apart.{lead}" in given and lead:
            free[f"apart.{lead}"] = (1,)
        free.update(
            (f"{name}.{lead}", v) for name, v in _of_step(kernel, step, target, given).items()
        )
    return {name: values for name, values in free.items() if values}


def refuse_unknown(kernel: Kernel, given: Numbers, free: Options) -> None:
    """Raises: OptionError for a choice that the kernel does not have, or a value not worth it."""
    for name, value in given.items():
        values = free.get(name, ())
        most = _most(kernel, name, values)
        if value not in values and not 1 <= value <= most:
            help = f"a number from 1 to {most}" if most else f"one of {values}"
            raise OptionError(
                f"kernel {kernel.name} has no schedule with {name} = {value!r}",
                help=help if values else f"free are {', '.join(free)}",
                code="E527",
            )


def with_choices(step: Step, given: Numbers) -> Step:
    """A step with what is chosen for its first stage.

    ``terms.2 = 512  ->  Step((2, 3), .., terms=512)``
    """
    lead = step.lead
    asked = tuple((n, given[f"{n}.{lead}"]) for n in INNER if f"{n}.{lead}" in given)
    if step.way is Way.SWEEP:
        axis = given.get(f"lanes.{lead}", step.vector)
        return replace(step, vector=None if axis == -1 else axis, asked=asked)
    terms = given.get(f"terms.{lead}", step.terms)
    return replace(step, terms=terms or None, asked=asked) if step.product else step


def _most(kernel: Kernel, name: str, values: Ints) -> int:
    """The largest number that may be asked for though it is not offered; 0: none."""
    kind, _, number = name.partition(".")
    if kind not in ("tile", "tasks", "terms", "rows") or not values:
        return 0
    return upper(kernel.outer[int(number)]) if kind == "tile" else max(values)


def _of_step(kernel: Kernel, step: Step, target: Target, given: Numbers) -> Options:
    stage = kernel.stages[step.lead]
    if step.way is Way.SWEEP:
        wide = tuple(n for n, extent in enumerate(stage.extents) if upper(extent) > 1)
        sums = step.vector is not None and isinstance(stage.form, Reduce)
        beside = sums and step.vector not in stage.over
        rows = {"abreast": ABREAST} if beside else {}
        return {"lanes": (-1, *wide), "unroll": UNROLLS, **rows} if wide else {}
    if step.product is None or step.way is Way.DOTS:
        return {}
    all_terms = prod(upper(stage.extents[a]) for a in stage.over)
    terms = tuple(n for n in TERMS if n < all_terms)
    widths = tuple(sorted(t.vectors for t in target.profile.tiles))
    reads = list(takes(step.product.left))
    computed = reads != [step.product.left] and not any(t.is_data for t in reads)
    blocks = given.get(f"terms.{step.lead}", step.terms or 0) > 0
    return {
        "left": ((0, 2) if blocks else (0, 1)) if computed else (),
        "right": (0, 2) if blocks else (0, 1, 3),
        "scattered": (0, 1) if blocks else (),
        "ahead": (0, 1) if blocks and step.product.direct else (),
        "terms": (0, *terms) if terms else (),
        "vectors": widths,
        "rows": ROWS,
        "packed": (0, 1) if step.product.direct else (),
    }


def _tasks(kernel: Kernel, target: Target) -> Ints:
    """Powers of two; partial results are kept of few tasks, but on a machine of many cores."""
    partial = any(s.partial for s in kernel.stages)
    launch = target.profile.tables["launch"]
    many = 2 * int(launch["processors"]) if launch["processors"] > launch["tasks"] else 0
    most = max(many, most_tasks(kernel, target) * (1 if partial else 2))
    most = min(most, elements(kernel.outer))
    return tuple(1 << n for n in range(most.bit_length()))


def _orders(kernel: Kernel) -> Ints:
    """All orders of outer loops; none of sums over tiles, whose terms they would put in another."""
    axes = len(kernel.outer)
    if not 1 < axes <= MOST_ORDERED or any(s.partial for s in kernel.stages):
        return ()
    return tuple(range(factorial(axes)))


def _extents(extent: Extent) -> Ints:
    """About the powers of two below an extent, and all of it."""
    size = upper(extent)
    powers = [1 << n for n in range(min(size, WIDEST).bit_length())]
    return tuple(sorted({*(round_tile(n, extent) for n in powers), size}))
