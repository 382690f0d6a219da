"""Schedules by hand: how one kernel runs, changed move by move, saved and read back.

    s = pb.schedule(f, a, b)            # the compiler's own
    s.tile(i=64, j=256).parallel(2).block(rows=8, vectors=2)

A move names choices (`schedule/choices.py`): what `pullback tune` searches over, and what the
compiler's model of costs decides where nothing is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any

from pullback.backends.registry import compiler
from pullback.config import Options, Schedules
from pullback.cost.price import Price
from pullback.errors import MALFORMED, OptionError
from pullback.ir import expr as E
from pullback.ir.expr import upper
from pullback.ir.graph import Map
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.node import walk
from pullback.ir.notation import axis_name, axis_number
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import kernel_text
from pullback.schedule.choices import OPERANDS, Choices, choices_of, joined, offered
from pullback.schedule.choices import Options as Free
from pullback.schedule.choose import choose
from pullback.schedule.contraction import products
from pullback.schedule.schedule import Place, Schedule, Step, TileLoops, Way
from pullback.schedule.text import schedule_text
from pullback.tensor.run.search import Trials, best
from pullback.tensor.run.tune import SEARCHES, Bench

VERSION = 1  # of files; raised where choices get another meaning

# What is chosen for the lead of a loop in lanes, and for a contraction.
OF_SWEEPS = ("lanes", "unroll", "abreast")
OF_PRODUCTS = ("column", "dots", "terms", "vectors", "rows", "packed", *OPERANDS)

LONG_SUM = 4096  # terms from which register tiles add up in blocks, which depend on their size

Changes = Mapping[str, int | None]


@dataclass(frozen=True, repr=False)
class UserSchedule:
    """How one kernel runs: by `choices`, else as the compiler finds best.

    Each move gives a new schedule, or raises OptionError (E381) with what is free. Axes are named
    as ``print(schedule)`` names them, ``i``, ``j``, .. by position, or are numbers; so are stages.
    """

    kernel: Kernel
    target: Target
    choices: Choices = ()
    options: Options = field(default_factory=Options.from_environment, compare=False)

    # --- looking at it

    @property
    def schedule(self) -> Schedule:
        """All that was decided."""
        return compiler(self.options.backend).start(self.kernel, self.target, self.choices)

    @property
    def _asked(self) -> Schedule:
        """What was asked for, before the loops of each step are decided."""
        return choose(self.kernel, self.target, choices_of(self._given))

    @property
    def free(self) -> Free:
        """The choices that this schedule has, by name, and values of each worth trying."""
        return offered(self.kernel, self._asked, self.target, self._given)

    @property
    def _given(self) -> dict[str, int]:
        """The choices, and what the backend has where they say none."""
        unchosen = compiler(self.options.backend).unchosen(self.kernel, self.target)
        return dict(joined(unchosen, dict(self.choices)))

    @property
    def price(self) -> Price:
        """What one launch costs by the model of the backend, by parts.

        Raises: OptionError where the backend has none.
        """
        price = compiler(self.options.backend).price(self.kernel, self.schedule, self.target)
        if price is None:
            raise OptionError(f"backend {self.options.backend!r} has no prices", code="E384")
        return price

    def __repr__(self) -> str:
        asked = ", ".join(f"{name} = {value}" for name, value in self.choices)
        return f"<schedule of kernel {self.kernel.name}: {asked or 'as found best'}>"

    def __str__(self) -> str:
        lines = [f"  {name}: {_shown(values)}" for name, values in self.free.items()]
        return "\n".join(
            [kernel_text(self.kernel), schedule_text(self.schedule), "free are", *lines]
        )

    def same_sums(self, other: UserSchedule) -> bool:
        """Whether both add up the terms of every sum in one order, so that results have one bits.

        False says that they may differ in their last digits.
        """
        if kernel_digest(self.kernel) != kernel_digest(other.kernel):
            return False
        pair = [_sums(s.kernel, s.schedule) for s in (self, other)]
        return pair[0] == pair[1]

    # --- moves

    def plain(self) -> UserSchedule:
        """A nest of loops for each stage: one task, no lanes, no register tiles, nothing packed.

        Tiles are all of an axis; from the outermost on one coordinate where that has no room.
        """
        given: dict[str, int | None] = {"tasks": 1}
        for number, stage in enumerate(self.kernel.stages):
            if number:
                given[f"apart.{number}"] = 1
            if products(stage):
                given[f"column.{number}"] = -1
        bare = self._by(())._with(given, "plain")
        for name, values in bare.free.items():
            if name.startswith("lanes"):
                given[name] = -1
            elif name.startswith(("unroll", "abreast")):
                given[name] = min(values)
        extents = [upper(e) for e in self.kernel.outer]
        least = bare._with({**given, **_tile([1] * len(extents))}, "plain")
        for cut in range(len(extents)):
            tile = [1] * cut + extents[cut:]
            with contextlib.suppress(OptionError):
                return bare._with({**given, **_tile(tile)}, "plain")
        return least

    def tile(self, *sizes: int, **named: int) -> UserSchedule:
        """Tiles of so many coordinates of each outer axis: ``tile(i=64, j=256)``, ``tile(64)``."""
        if len(sizes) > len(self.kernel.outer):
            what = f"tile{sizes} of {len(self.kernel.outer)} outer axes"
            raise self._refused(what, "one size for each outer axis")
        changes = _tile(sizes)
        for name, size in named.items():
            axis = self._axis(name, len(self.kernel.outer), "outer axes")
            changes[f"tile.{axis}"] = _whole(size)
        return self._with(changes, "tile")

    def reorder(self, *axes: str | int) -> UserSchedule:
        """The loops over tiles, outermost first; axes that are not named follow as they come."""
        rank = len(self.kernel.outer)
        first = [self._axis(axis, rank, "outer axes") for axis in axes]
        if len(set(first)) < len(first):
            raise self._refused(f"reorder{axes}", "each axis once")
        sums = [s.target.name for s in self.kernel.stages if s.partial]
        if sums:
            reason = f"tiles of {sums[0]} are parts of one sum, whose order decides its bits"
            raise self._refused(f"reorder{axes}", reason)
        wanted = (*first, *(n for n in range(rank) if n not in first))
        return self._with({"order": [*permutations(range(rank))].index(wanted)}, "reorder")

    def parallel(self, tasks: int) -> UserSchedule:
        """Tiles are dealt to so many tasks; results do not depend on how many threads run them."""
        return self._with({"tasks": _whole(tasks)}, "parallel")

    def vectorize(self, axis: str | int | None, stage: str | int | None = None) -> UserSchedule:
        """An axis in lanes; of register tiles, their columns. None: no lanes.

        A product whose columns cannot be the axis becomes a loop in lanes.
        """
        step = self._step(stage, "vectorize", lambda step: True)
        lead = step.stages[0]
        own = self.kernel.stages[lead]
        number = -1 if axis is None else self._axis(axis, len(own.extents), f"axes of {lead}")
        if step.way in (Way.SCAN, Way.SCATTER) and number not in (-1, step.vector):
            reason = f"a {step.way.value} has its own axis in lanes, or none"
            raise self._refused(f"vectorize({axis!r})", reason)
        if step.product is None:
            return self._with({f"lanes.{lead}": number}, "vectorize")
        changes = _reset(OF_PRODUCTS, lead)
        if number in products(own):
            return self._with({**changes, f"column.{lead}": number}, "vectorize")
        apart: Changes = {f"apart.{lead}": 1} if lead else {}
        plain = {f"column.{lead}": -1, f"lanes.{lead}": number}
        return self._with({**changes, **apart, **plain}, "vectorize")

    def unroll(self, vectors: int, stage: str | int | None = None) -> UserSchedule:
        """So many vectors in flight of a loop in lanes; of register tiles see `block`."""
        step = self._step(stage, "unroll", lambda step: step.way is Way.SWEEP)
        if step.way is not Way.SWEEP:
            reason = f"stage {step.stages[0]} runs in {step.way.value}: block(rows=.., vectors=..)"
            raise self._refused(f"unroll({vectors})", reason)
        return self._with({f"unroll.{step.stages[0]}": _whole(vectors)}, "unroll")

    def block(
        self,
        rows: int | None = None,
        vectors: int | None = None,
        terms: int | None = None,
        stage: str | int | None = None,
    ) -> UserSchedule:
        """Register tiles of `rows` x `vectors`, sums of `terms` products at a time (0: of all).

        A loop over a sum of products becomes register tiles, its lanes their columns.
        """
        step = self._step(stage, "block", self._is_product)
        lead = step.stages[0]
        if not self._is_product(step):
            reason = f"stage {lead} is no sum of products, or of too few"
            raise self._refused("block", reason)
        changes: dict[str, int | None] = {}
        if step.product is None:
            seen = products(self.kernel.stages[lead])
            column = step.vector if step.vector in seen else None
            changes = {**_reset(OF_SWEEPS, lead), f"column.{lead}": column}
        asked = {"rows": rows, "vectors": vectors, "terms": terms}
        changes.update((f"{n}.{lead}", _whole(v)) for n, v in asked.items() if v is not None)
        return self._with(changes, "block")

    def pack(self, yes: bool = True, stage: str | int | None = None) -> UserSchedule:
        """The right operand of register tiles is copied into panels, or read where it lies."""
        step = self._step(stage, "pack", lambda step: step.product is not None)
        if step.product is None:
            reason = f"stage {step.stages[0]} has no register tiles: block() makes them"
            raise self._refused(f"pack({yes})", reason)
        if not step.product.direct:
            if yes:
                return self
            axis = axis_name(step.product.column)
            reason = f"along {axis} its right operand does not lie side by side: it is packed"
            raise self._refused("pack(False)", reason)
        return self._with({f"packed.{step.stages[0]}": int(bool(yes))}, "pack")

    def apart(self, stage: str | int) -> UserSchedule:
        """A stage begins a loop of its own."""
        return self._with({f"apart.{self._stage(stage)}": 1}, "apart")

    def place(self, stage: str | int, where: str) -> UserSchedule:
        """Where a stage lives until its last reader is done: register, scratch or memory.

        From a register it leaves by the first of its readers beginning a loop of its own; memory
        is that of a result which is not yet written.
        """
        number = self._stage(stage)
        text = f"place({stage!r}, {where!r})"
        if where not in ("register", "scratch", "memory"):
            raise self._refused(text, "register, scratch or memory")
        home = self._asked.residences[number]
        if home.place.value == where:
            return self
        reason = _fixed(self.kernel.stages[number], home.place)
        if reason:
            raise self._refused(text, reason)
        if where == "register":
            readers = {f"apart.{n}": None for n in self._readers(number)}
            moved = self._with({**readers, f"place.{number}": None}, "place")
            reason = "one of its readers runs in another loop"
        elif home.place is Place.REGISTER:
            first = min(self._readers(number))
            moved = self._with({f"apart.{first}": 1}, "place")
            return moved.place(number, where)
        else:
            reason = "no result of its shape and type is written after its last reader"
            if home.host is None:
                raise self._refused(text, reason)
            moved = self._with({f"place.{number}": int(where == "memory")}, "place")
        if moved._asked.residences[number].place.value != where:
            raise self._refused(text, reason)
        return moved

    def choose(self, name: str, value: int) -> UserSchedule:
        """One of the choices in `free`, by its name."""
        return self._with({name: _whole(value)}, "choose")

    # --- searches

    def best(
        self, evaluate: Callable[[UserSchedule], float], tries: int = 100, seed: int = 0
    ) -> UserSchedule:
        """The least by `evaluate` of at most so many schedules, from this one on.

        The search of `pullback tune` by another measure: one move of the best few so far at a time,
        ``s.best(lambda t: t.schedule.scratch_bytes)``. Infinity refuses a schedule.
        """

        def values(batch: Sequence[Choices]) -> list[float]:
            return [evaluate(self._by(c)) for c in batch]

        trials = Trials(values, lambda: len(trials.times) < _whole(tries))
        space = compiler(self.options.backend).moves(self.kernel, self.target)
        return self._by(best([self.choices], space, trials, seed))

    def tuned(
        self,
        seconds: float = 10.0,
        search: str = "beam",
        seed: int = 0,
        options: Options | None = None,
    ) -> UserSchedule:
        """The fastest that a search finds in so many seconds, by a stopwatch on random inputs.

        `search`: "beam" goes by moves from this schedule, "price" measures only what is cheapest by
        its price, "random" draws, for comparison. Gains of
        less than 3 % over the compiler's own schedule are taken for noise: then it is that.
        """
        if search not in SEARCHES:
            raise OptionError(
                f"search={search!r}", help=f"one of {', '.join(SEARCHES)}", code="E381"
            )
        bench = Bench(self.kernel, options or self.options)
        return self._by(bench.tuned(seconds, [search], self.choices, seed).choices)

    # --- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that `load` and ``pb.jit(schedules=..)`` read."""
        facts = {
            "schedule": VERSION,
            "kernel": self.kernel.name,
            "structure": kernel_digest(self.kernel),
            "choices": dict(self.choices),
        }
        try:
            Path(path).write_text(json.dumps(facts, indent=2) + "\n")
        except OSError as error:
            raise OptionError(f"cannot write {path}: {error.strerror}", code="E382") from error

    def load(self, path: str | os.PathLike[str]) -> UserSchedule:
        """The schedule of this kernel that a file has. Raises: OptionError for another's."""
        structure, choices = read(path)
        if structure != kernel_digest(self.kernel):
            what = f"{path} has the schedule of another kernel than {self.kernel.name}"
            raise OptionError(what, code="E383")
        return self._by(())._with(dict(choices), f"load({str(path)!r})")

    # --- what moves share

    def _by(self, choices: Choices) -> UserSchedule:
        return replace(self, choices=choices)

    def _with(self, changes: Changes, what: str) -> UserSchedule:
        """This schedule with other choices. Raises: OptionError with what is free."""
        given = {**dict(self.choices), **changes}
        choices = choices_of({n: v for n, v in given.items() if v is not None})
        try:
            made = self._by(choices).schedule
        except OptionError as error:
            reason = error.what.removeprefix(f"kernel {self.kernel.name} has ")
            raise self._refused(what, reason, error.help) from None
        tasks = given.get("tasks") or made.tasks
        if made.tasks != tasks:
            reason = f"tiles of {made.tile} are too few for {tasks} tasks"
            raise self._refused(what, reason, "smaller tiles first, or fewer tasks")
        return self._by(choices)

    def _refused(self, what: str, reason: str, help: str = "") -> OptionError:
        help = help or f"free are {', '.join(self.free)}"
        return OptionError(f"{what} of kernel {self.kernel.name}: {reason}", help=help, code="E381")

    def _axis(self, axis: str | int, rank: int, of: str) -> int:
        number = axis_number(axis) if isinstance(axis, str) else _whole(axis)
        if number is None or not 0 <= number < rank:
            names = ", ".join(map(axis_name, range(rank)))
            raise self._refused(f"axis {axis!r}", f"the {of} are {names or 'none'}")
        return number

    def _stage(self, stage: str | int) -> int:
        names = [s.target.name for s in self.kernel.stages]
        if isinstance(stage, str) and names.count(stage) == 1:
            return names.index(stage)
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < len(names):
            known = ", ".join(f"{n} {name}" for n, name in enumerate(names))
            raise self._refused(f"stage {stage!r}", f"its stages are {known}")
        return stage

    def _step(self, stage: str | int | None, what: str, fits: Any) -> Step:
        """The loop that a stage begins; without one, the only loop that a move fits."""
        steps = self._asked.steps
        if stage is None:
            fitting = [s for s in steps if fits(s)] or list(steps)
            if len(fitting) > 1:
                leads = ", ".join(str(s.stages[0]) for s in fitting)
                raise self._refused(what, "which stage?", f"stage= one of {leads}")
            return fitting[0]
        number = self._stage(stage)
        step = next(s for s in steps if number in s.stages)
        if step.stages[0] != number:
            lead = step.stages[0]
            reason = f"stage {number} runs in the loop of stage {lead}"
            raise self._refused(what, reason, f"stage={lead}, or apart({number}) first")
        return step

    def _is_product(self, step: Step) -> bool:
        return bool(products(self.kernel.stages[step.stages[0]]))

    def _readers(self, number: int) -> list[int]:
        value = self.kernel.stages[number].target
        stages = enumerate(self.kernel.stages)
        return [n for n, s in stages if any(t.source is value for t in stage_reads(s))]


Given = UserSchedule | str | os.PathLike[str] | Sequence[UserSchedule | str | os.PathLike[str]]


def given(schedules: Given) -> Schedules:
    """Choices by the structure of kernels, of schedules and of files. Raises: OptionError."""
    one = isinstance(schedules, UserSchedule | str | os.PathLike)
    every: Any = [schedules] if one else schedules
    if not isinstance(every, list | tuple):
        raise OptionError(f"schedules={schedules!r}: a list of schedules or files", code="E225")
    by_structure: dict[str, Choices] = {}
    for item in every:
        if isinstance(item, UserSchedule):
            structure, choices = kernel_digest(item.kernel), item.choices
        elif isinstance(item, str | os.PathLike):
            structure, choices = read(item)
        else:
            raise OptionError(f"schedules={item!r}: a schedule or a file's path", code="E225")
        if by_structure.setdefault(structure, choices) != choices:
            raise OptionError("two schedules of one kernel differ", code="E383")
    return tuple(by_structure.items())


def read(path: str | os.PathLike[str]) -> tuple[str, Choices]:
    """A kernel's structure and choices from a file. Raises: OptionError for what is none."""
    try:
        return _record(json.loads(Path(path).read_text()))
    except (OSError, *MALFORMED) as error:
        raise OptionError(f"{path} is no schedule ({error})", code="E382") from error


def _record(facts: dict[str, Any]) -> tuple[str, Choices]:
    """Raises: LookupError, TypeError, ValueError for what is none."""
    if facts["schedule"] != VERSION:
        raise ValueError(f"version {facts['schedule']!r}, not {VERSION}")
    structure, choices = facts["structure"], facts["choices"]
    if not isinstance(structure, str) or not isinstance(choices, dict):
        raise TypeError("structure is a text, choices are numbers by name")
    if not all(type(v) is int for v in choices.values()):
        raise TypeError("a choice is no whole number")
    return structure, choices_of(choices)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{value!r}: a whole number is needed", code="E381")
    return value


def _tile(sizes: Sequence[int]) -> dict[str, int | None]:
    return {f"tile.{n}": _whole(size) for n, size in enumerate(sizes)}


def _reset(names: Sequence[str], lead: int) -> dict[str, int | None]:
    return {f"{name}.{lead}": None for name in names}


def _shown(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _fixed(stage: Stage, place: Place) -> str:
    """Why a stage can live nowhere else; empty where it can."""
    if place is Place.SHARED:
        return "it is a sum over tiles, and each task keeps its part"
    if stage.store is not None:
        return f"it is {stage.store.name}, which others read"
    return ""


# --- the order of sums


def _sums(kernel: Kernel, schedule: Schedule) -> list[Any]:
    """What decides in which order floats are added up, stage by stage."""
    return [
        _order(schedule, step, stage, number)
        for step in schedule.steps
        for number, stage in ((n, kernel.stages[n]) for n in step.stages)
        if stage.body.dtype.is_float and not isinstance(stage.form, Map)
    ]


def _order(schedule: Schedule, step: Step, stage: Stage, number: int) -> Any:
    sizes = (schedule.tile, schedule.tasks, schedule.order)
    among = sizes if stage.partial else ()
    word = 1 if step.product is None else step.product.word
    every = (step.stages, step.way, step.vector, step.loops, word, sizes)
    if any(upper(e) != e for e in stage.extents) or _guards(stage):
        return every
    if step.way is Way.SWEEP and step.vector not in stage.over:
        return (number, Way.SWEEP, among)
    terms = prod(upper(stage.extents[axis]) for axis in stage.over)
    if isinstance(step.loops, TileLoops) and terms < LONG_SUM:
        return (number, Way.TILES, step.loops.terms, word, among)
    return every


def _guards(stage: Stage) -> bool:
    """Whether a sum may leave terms out."""
    return any(isinstance(node, E.If) for node in walk(stage.body))
