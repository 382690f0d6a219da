"""What a launch costs on a GPU: ``ns = launch + latency + max(lanes, tensor, each memory)``.

Programs run side by side as far as registers, shared memory and warps of a multiprocessor allow;
each memory gives its rate where enough bytes are in flight (Little's law: rate x latency).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from pullback.backends.triton import atomics
from pullback.backends.triton import language as L
from pullback.backends.triton.again import Again, again_of
from pullback.backends.triton.atomics import lanes, turns
from pullback.backends.triton.attention import again
from pullback.backends.triton.blocks import Group, Way, columns, power, size, terms
from pullback.backends.triton.descriptors import Rectangle, rectangles
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.product import Product, kind_of, plain, product_of
from pullback.backends.triton.schedule import BlockSchedule, Precision, Reads
from pullback.ir import expr as E
from pullback.ir.dtype import is_short
from pullback.ir.expr import Expr, upper
from pullback.ir.graph import Value, Variable
from pullback.ir.kernel import Stage, stage_reads
from pullback.ir.node import walk

WARP = 32  # threads
WORD = 4  # bytes of a register
ADDRESS = 8  # bytes of where an element lies
OWN = 24  # registers of a thread beside its blocks: addresses, coordinates, masks (sm_90, ptxas)
VECTOR = 16  # bytes that a thread copies at once
# Instructions of a thread for each, beyond those of the same loop by descriptors: by ptxas (sm_90)
# 82 to 71 where it copies 6, with masks 209 to 87 where it copies 16.
COPY, MASKED = 2, 8
SPLIT = 3  # products of tf32 for one of float32, and copies of an operand that is split
SCHEDULERS = 4  # of a multiprocessor: so many warps issue at once
QUOTIENT = 8  # instructions of a division or a root that is rounded correctly, beside its estimate
FUNCTIONS = E.Exp, E.Log, E.Sin, E.Sqrt, E.Div
THREADS = 1024  # of one program
SECTOR = 32  # bytes that a memory gives or takes at least


@dataclass(frozen=True, slots=True)
class Price:
    """ns of a launch, and what each part would take alone. `occupancy`: warps of a multiprocessor
    that are there at once, of those that may be.
    """

    ns: float
    lanes: float
    tensor: float
    memories: tuple[tuple[str, float], ...]
    latency: float
    launch: float
    occupancy: float
    programs: int

    def __str__(self) -> str:
        parts = [("lanes", self.lanes), ("tensor cores", self.tensor), *self.memories]
        parts += [("latency", self.latency), ("launch", self.launch)]
        said = ", ".join(f"{name} {ns / 1e3:.2f}" for name, ns in parts if ns >= 5)
        where = f"{self.programs} programs, {self.occupancy:.0%} of the warps"
        return f"{self.ns / 1e3:.2f} us: {said}; {where}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What one program takes: registers of a thread, bytes of shared memory, bytes it reads and
    writes through the second cache, bytes of shared memory moved, those in flight at once.
    `lanes`: operations of ordinary lanes, `functions`: those of slow ones, `tensor`: multiply-adds
    of tensor cores. `waits`: times that it waits for memory, one after the other; `trips`: times to
    the second cache and back before it begins.
    """

    registers: int
    shared: int
    moved: float
    through: float
    flight: float
    lanes: float
    functions: float
    tensor: float
    waits: float
    trips: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """One group under all its schedules."""

    group: Group
    gpu: Gpu
    product: Product | None
    unique: float  # bytes of arrays, each once
    factors: tuple[Rectangle | str, ...] = ()  # of a product: where they lie

    @classmethod
    def of(cls, group: Group, gpu: Gpu) -> Work:
        """What of a group no schedule changes."""
        product = product_of(group.stages[0]) if group.way is Way.PRODUCT else None
        touched: dict[Value, None] = {}
        for stage in group.stages:
            touched.update(dict.fromkeys(t.source for t in stage_reads(stage)))
            touched.update(dict.fromkeys(v for v in (stage.store,) if v is not None))
        arrays = [v for v in touched if isinstance(v, Variable)]
        factors = () if product is None else rectangles(group.stages[0], product)
        return cls(group, gpu, product, float(sum(map(_bytes, arrays))), factors)

    def programs(self, schedule: BlockSchedule) -> int:
        """How many programs there are."""
        if self.group.way is Way.SCATTER:
            count = prod(map(upper, lanes(self.group, schedule)))
            return max(1, -(-count // schedule.rows))
        if self.product is None:
            count = prod(upper(e) for e in self.group.extents)
            return max(1, -(-count // schedule.rows)) * schedule.chunks
        stage = self.group.stages[0]
        across = -(-size(stage, self.product.columns) // schedule.columns)
        down = -(-size(stage, self.product.rows) // schedule.rows)
        return max(1, size(stage, self.product.batch) * down * across * schedule.chunks)

    def refusal(self, schedule: BlockSchedule) -> str | None:
        """Why the GPU does not take a schedule; None: it does."""
        reason = atomics.refusal(self.group, schedule)
        if reason is not None:
            return reason
        needs, gpu = self.needs(schedule), self.gpu
        threads = schedule.warps * WARP
        most = min(gpu.count("thread_registers"), gpu.count("registers") // threads)
        if threads > THREADS:
            return f"{threads} threads of a program, at most {THREADS}"
        if needs.shared > gpu.count("block_shared"):
            return f"{needs.shared} bytes of shared memory, at most {gpu.count('block_shared')}"
        if needs.registers > most:
            return f"{needs.registers} registers of a thread, at most {most}"
        return self.undescribed if schedule.reads is Reads.DESCRIPTORS else None

    @property
    def undescribed(self) -> str | None:
        """Why nothing is read by descriptors; None: a factor may be."""
        if not self.gpu.rate("descriptor", "bytes"):
            return f"no descriptors on {self.gpu.target}"
        if any(isinstance(f, Rectangle) for f in self.factors):
            return None
        sides = zip(("left", "right"), self.factors, strict=False)
        reasons = [f"its {side} factor {reason}" for side, reason in sides]
        return f"no descriptor: {', '.join(reasons) or 'it is no product'}"

    def needs(self, schedule: BlockSchedule) -> Needs:
        """What one program takes."""
        if self.product is not None:
            return self._tile(self.product, schedule)
        if self.group.way is Way.STREAM:
            return self._stream(schedule)
        if self.group.way is Way.AGAIN:
            return self._again(schedule)
        live = flight = moved = lanes = functions = 0.0
        kept = waits = 0.0
        for stage in self.group.stages:
            every, once, times = self._blocks(stage, schedule)
            plain_, slow = operations(stage.roots)
            loads = [self._loaded(stage, t, schedule) for t in _loads(stage)]
            live = max(live, once * max(WORD, stage.body.dtype.itemsize) * 2)
            kept += prod(self._kept(stage, schedule)) * WORD
            stored = self._stored(stage, schedule)
            flight += max(sum(loads), stored) / times
            moved += sum(loads) + stored
            lanes += every * plain_
            functions += every * slow
            waits += times if self.group.way is Way.SCATTER else 1
        threads = schedule.warps * WARP
        registers = OWN + int((live + kept) / threads / WORD)
        return Needs(registers, 0, moved, 0.0, flight, lanes, functions, 0.0, waits)

    def price(self, schedule: BlockSchedule) -> Price:
        """What the launch costs, with the second one where sums are made in parts."""
        gpu, needs, programs = self.gpu, self.needs(schedule), self.programs(schedule)
        processors = gpu.count("processors")
        resident = self.resident(schedule, needs)
        most = -(-programs // processors)  # of one multiprocessor
        waves = -(-most // resident)
        beside = min(most, resident)
        warps = beside * schedule.warps
        busy = min(1.0, warps / SCHEDULERS)
        lanes = most * processors * needs.lanes / gpu.rate("lanes", self._lane())
        lanes += most * processors * needs.functions / gpu.rate("lanes", "function")
        tensor = most * processors * needs.tensor / self._rate(schedule) if needs.tensor else 0.0
        near, second, far = gpu.memories
        used = min(programs, processors)
        flight = max(1.0, needs.flight * beside * used)
        traffic = self._traffic(schedule, needs, programs, used * beside)
        memories: tuple[tuple[str, float], ...] = (
            (near.name, most * processors * needs.through / near.rate),
            (second.name, programs * needs.moved / min(second.rate, flight / second.latency)),
            (far.name, traffic / min(far.rate, flight / far.latency)),
        )
        if schedule.atomic:
            memories += (("atomics", self._atomics(schedule)),)
        alone = waves if beside == 1 else 1  # others hide what a program waits for at its start
        latency = far.latency * alone + second.latency * waves * max(0.0, needs.waits - 1)
        latency += second.latency * alone * needs.trips
        if self.group.way is Way.SCATTER:  # what is looked at is near, what is taken far
            latency += near.latency * waves * turns(self.group, schedule)
        launch = gpu.rate("launch", "launch")
        longest = max(lanes / busy, tensor / busy, *(ns for _, ns in memories))
        ns = launch + latency + longest
        if schedule.chunks > 1:
            parts = 2 * programs * prod(self._kept(self.group.stages[0], schedule)) * WORD
            if self.group.way is Way.SCATTER:  # filled, read and added to
                parts = 2 * atomics.parts_bytes(self.group.stages[0], schedule.chunks)
            ns += launch + far.latency + parts / second.rate
        occupancy = warps / gpu.count("warps")
        return Price(
            ns, lanes / busy, tensor / busy, memories, latency, launch, occupancy, programs
        )

    def resident(self, schedule: BlockSchedule, needs: Needs) -> int:
        """Programs that a multiprocessor runs at once."""
        gpu, threads = self.gpu, schedule.warps * WARP
        by_shared = gpu.count("shared") // (needs.shared + gpu.count("program_shared"))
        by_registers = gpu.count("registers") // (needs.registers * threads)
        by_warps = gpu.count("warps") // schedule.warps
        return max(1, min(gpu.count("programs"), by_shared, by_registers, by_warps))

    # -- tiles of products

    def _tile(self, product: Product, schedule: BlockSchedule) -> Needs:
        """A tile: both factors go through shared memory, the sums are in registers."""
        stage, gpu = self.group.stages[0], self.gpu
        rows, cols, step = schedule.rows, schedule.columns, schedule.step
        item = self._factor(product)
        total = -(-size(stage, product.terms) // schedule.chunks)
        steps = max(1, -(-total // step))
        depth, threads = steps * step, schedule.warps * WARP
        wide = self._wide(schedule)
        least = int(gpu.rate("instruction", "rows"))
        if wide:  # operands are read where they lie, by each group of warps
            again, over = -(-cols // 256), max(1, rows // least)
        else:  # each warp loads what it multiplies
            over = 1 << (schedule.warps.bit_length() // 2)
            again = max(1, schedule.warps // over)
        through = depth * item * (rows * (again + 1) + cols * (over + 1))
        sums = rows * cols * max(WORD, stage.body.dtype.itemsize)
        held = sums if wide else sums + (rows * again + cols * over) * 16 * item
        split = item == WORD and schedule.precision is Precision.EXACT
        if split:
            held += (rows + cols) * step * WORD
        if split and gpu.capability >= 100:
            # by ptxas for sm_100, 8 warps: 128 x 128 in 156 registers, 256 x 128 in too many
            held += sums
        loaded = any(_loads(after) for after in self.group.stages[1:])
        epilogue = rows * cols * WORD if loaded else 0
        registers = OWN + int((held + epilogue) / threads / WORD)
        buffers = schedule.stages if gpu.capability >= 90 else max(1, schedule.stages - 1)
        shared = buffers * (rows + cols) * step * item
        tensor = float(rows * cols * depth * (SPLIT if split else 1))
        (lanes, trips), functions = self._reads(product, schedule, depth * item), 0.0
        for factor, area in ((product.left, rows * depth), (product.right, cols * depth)):
            simple, slow = (0, 0) if plain(factor) else operations([factor])
            lanes += area * (simple + (4 if split else 0))
            functions += area * slow
        for after in self.group.stages[1:]:
            simple, slow = operations(after.roots)
            lanes += rows * cols * simple
            functions += rows * cols * slow
        moved = depth * (rows + cols) * item
        moved += sum(rows * cols * s.store.dtype.itemsize for s in self.group.stages if s.store)
        flight = max(1, schedule.stages - 1) * (rows + cols) * step * item
        waits = steps / max(1, schedule.stages - 1) if flight < moved else 1
        waits = min(waits, 1)
        return Needs(
            registers, shared, moved, through, flight, lanes, functions, tensor, waits, trips
        )

    def _reads(self, product: Product, schedule: BlockSchedule, depth: int) -> tuple[float, int]:
        """Instructions that read both factors, with rows of `depth` bytes, and trips before that: a
        descriptor is written, for the copy engine to see, then the next one; all are fetched.
        """
        stage, lanes, count = self.group.stages[0], 0.0, 0
        terms = size(stage, product.terms) % (schedule.step * schedule.chunks)
        ends = (schedule.rows, product.rows), (schedule.columns, product.columns)
        for (side, axes), own in zip(ends, self.factors, strict=True):
            if schedule.reads is Reads.DESCRIPTORS and isinstance(own, Rectangle):
                count += 1
                continue
            masked = terms or size(stage, axes) % side
            lanes += side * depth / VECTOR * (MASKED if masked else COPY)
        return lanes, count + bool(count)

    def _stream(self, schedule: BlockSchedule) -> Needs:
        """A loop over keys: scores and sums in registers, keys through shared memory. A guard that
        ends it early is not counted.
        """
        made = again(self.group)
        stage, rows, step = made.scores, schedule.rows, schedule.step
        count, depth = upper(stage.shape[-1]), power(size(stage, made.product.terms))
        mixed = [s for s in made.sums if s.shape != stage.shape[:-1]]
        wide = sum(power(upper(s.shape[-1])) for s in mixed)
        halves = is_short(stage.body.dtype)
        item = stage.body.dtype.itemsize if halves else WORD
        times = max(1, -(-count // step))
        split = 1 if halves or schedule.precision is Precision.TF32 else SPLIT
        threads = schedule.warps * WARP
        held = rows * (step * 2 * WORD + wide * WORD + depth * item)
        held += (rows + wide) * step * WORD if split > 1 else 0
        held += (depth + wide) * step * ADDRESS
        shared = schedule.stages * step * (depth + wide) * item + rows * depth * item
        area = float(rows * step * times)
        lanes = functions = 0.0
        for inner in made.stages[1:]:
            simple, slow = operations(inner.roots)
            lanes += area * (simple + 1)
            functions += area * slow
        moved = times * step * (depth + wide) * item + rows * (depth + wide) * item
        through = times * step * (depth + wide) * item * 2.0
        flight = max(1, schedule.stages - 1) * step * (depth + wide) * item
        tensor = area * (depth + wide) * split
        registers = OWN + int(held / threads / WORD)
        return Needs(registers, shared, moved, through, flight, lanes, functions, tensor, 1)

    def _again(self, schedule: BlockSchedule) -> Needs:
        """A loop over terms: factors by rows and sums in registers, what is made again between
        them; the others go through shared memory.
        """
        made, rows, step = _loop(self.group), schedule.rows, schedule.step
        items = [
            self._factor(p) for p in (*made.products.values(), *(s.product for s in made.sums))
        ]
        item, exact = max(items), schedule.precision is Precision.EXACT
        split = SPLIT if item == WORD and exact else 1
        depths = sum(power(size(s, p.terms)) for s, p in made.products.items())
        wide = sum(power(size(s.stage, s.product.columns)) for s in made.sums)
        times = max(1, -(-made.count(made.parts[2]) // step))
        held = rows * (step * (1 + len(made.products)) * WORD + wide * WORD + depths * item)
        held += (rows + wide) * step * WORD if split > 1 else 0
        held += (depths + wide) * step * ADDRESS
        shared = schedule.stages * step * (depths + wide) * item + rows * depths * item
        area = float(rows * step * times)
        roots = [s.roots for s in made.inner if s not in made.products]
        roots += [(s.product.left,) for s in made.sums]
        counts = [operations(e) for e in roots]
        lanes, functions = (area * sum(n[k] for n in counts) for k in (0, 1))
        through = times * step * (depths + wide) * item * 2.0
        moved = through / 2 + rows * (depths + wide) * item
        flight = max(1, schedule.stages - 1) * step * (depths + wide) * item
        tensor = area * (depths + wide) * split
        registers = OWN + int(held / schedule.warps / WARP / WORD)
        return Needs(registers, shared, moved, through, flight, lanes, functions, tensor, 1)

    def _factor(self, product: Product) -> int:
        """Bytes of an element of a factor in shared memory."""
        kind = kind_of(product)
        if kind is not None and is_short(kind):
            return kind.itemsize
        return max(WORD, self.group.stages[0].body.dtype.itemsize)

    def _wide(self, schedule: BlockSchedule) -> bool:
        """Whether the GPU's widest instruction takes a tile."""
        gpu = self.gpu
        double = self.group.stages[0].body.dtype.name == "float64"
        tall = schedule.rows >= gpu.rate("instruction", "rows")
        own = gpu.rate("instruction", "warps")
        return own > 1 and tall and schedule.warps >= own and not double

    def _rate(self, schedule: BlockSchedule) -> float:
        """Multiply-adds of tensor cores a ns."""
        product = self.product
        if product is None and self.group.way is Way.AGAIN:
            product = next(iter(_loop(self.group).products.values()))
        product = product or again(self.group).product
        name = "tf32"
        if self.group.stages[0].body.dtype.name == "float64":
            name = "float64"
        elif self._factor(product) < WORD:
            name = "float16"
        share = 1.0 if self._wide(schedule) else self.gpu.rate("instruction", "narrow")
        return self.gpu.rate("tensor", name) * share

    def _traffic(self, schedule: BlockSchedule, needs: Needs, programs: int, beside: int) -> float:
        """Bytes from and to memory: arrays once, but for what the second cache cannot keep."""
        second = self.gpu.memory("L2")
        if self.product is None or self.unique <= second.bytes:
            return min(self.unique, programs * needs.moved)
        stage = self.group.stages[0]
        depth = size(stage, self.product.terms) * self._factor(self.product)
        down = -(-size(stage, self.product.rows) // schedule.rows)
        rows = min(schedule.group, down, beside)
        tiles = rows * schedule.rows + -(-beside // rows) * schedule.columns
        return max(self.unique, programs / beside * tiles * depth)

    # -- rows

    def _lane(self) -> str:
        double = any(s.body.dtype.name == "float64" for s in self.group.stages)
        return "float64" if double else "float32"

    def _blocks(self, stage: Stage, schedule: BlockSchedule) -> tuple[float, float, float]:
        """Elements of a program, of them at once, and times that it takes a block."""
        rows = schedule.rows
        match self.group.way:
            case Way.BLOCK | Way.SCAN:
                wide = power(size(stage, columns(stage, self.group.rows[stage])))
                wide *= power(size(stage, terms(stage)))
                return rows * wide, rows * wide, 1
            case Way.LOOP:
                length = -(-size(stage, terms(stage)) // schedule.chunks)
                times = max(1, -(-length // schedule.step))
                return rows * schedule.step * times, rows * schedule.step, times
            case Way.SCATTER:
                seen = max(1, turns(self.group, schedule))
                wide = max(rows, schedule.warps * WARP)  # threads without a lane do what others do
                return wide * seen, rows, max(1, atomics.taken(self.group, schedule, WARP))
        times = max(1, self._long(stage))
        return rows * times, rows, times

    def _long(self, stage: Stage) -> int:
        """Turns of a loop over everything that is no row."""
        every = range(len(stage.extents))
        return size(stage, [a for a in every if a not in self.group.rows[stage]])

    def _loaded(self, stage: Stage, take: E.Take, schedule: BlockSchedule) -> float:
        """Bytes that a program reads by one read."""
        rows = self.group.rows[stage]
        axes = frozenset().union(*(i.axes for i in take.indices))
        if self.group.way is Way.SCATTER:
            return atomics.seen(self.group, take, schedule) * take.source.dtype.itemsize
        extents = stage.extents
        others = [a for a in axes if a not in rows and a < len(extents)]
        count = prod(upper(extents[a]) for a in others)
        if self.group.way is Way.LOOP:
            count = -(-count // schedule.chunks)
        own = schedule.rows if axes & set(rows) else 1
        return float(own * count * take.source.dtype.itemsize)

    def _atomics(self, schedule: BlockSchedule) -> float:
        """ns that the second cache takes to add: a sector each at the rate of loads, those to one
        place one after the other.
        """
        (stage,) = self.group.stages
        count = prod(map(upper, atomics.form_of(stage).domain))
        item = L.held(stage.body.dtype).itemsize if atomics.neighbours(stage) else SECTOR
        each = atomics.places(stage) * schedule.chunks * self.gpu.rate("atomic", "place")
        return count * max(item / self.gpu.memory("L2").rate, 1 / each)

    def _kept(self, stage: Stage, schedule: BlockSchedule) -> Sequence[int]:
        """The block of a result."""
        if self.group.way is Way.PRODUCT:
            return schedule.rows, schedule.columns
        if self.group.way not in (Way.BLOCK, Way.SCAN):
            return (schedule.rows,)
        return schedule.rows, power(size(stage, columns(stage, self.group.rows[stage])))

    def _stored(self, stage: Stage, schedule: BlockSchedule) -> float:
        """Bytes that a program writes."""
        if stage.store is None:
            return 0.0
        times = 1.0
        if self.group.way is Way.SEQUENCE:
            times = self._long(stage)
        if self.group.way is Way.SCATTER:
            times = turns(self.group, schedule) / schedule.shares
        return float(prod(self._kept(stage, schedule)) * times * stage.store.dtype.itemsize)


def operations(roots: Iterable[Expr]) -> tuple[int, int]:
    """Operations of an element: plain ones, and those of the slow unit."""
    lanes = slow = 0
    for node in walk(list(roots)):
        if not isinstance(node, Expr) or isinstance(node, E.Const | E.Axis | E.Size | E.Take):
            continue
        if isinstance(node, FUNCTIONS):
            slow += 1
            lanes += QUOTIENT if isinstance(node, E.Div | E.Sqrt) else 1
        else:
            lanes += 1
    return lanes, slow


def _loads(stage: Stage) -> list[E.Take]:
    """Reads of memory."""
    return [t for t in stage_reads(stage) if isinstance(t.source, Variable)]


def _bytes(variable: Variable) -> int:
    return prod(upper(e) for e in variable.shape) * variable.dtype.itemsize


def _loop(group: Group) -> Again:
    """The loop of a group of matrices that are made again."""
    made = again_of(group.stages)
    assert made is not None, "groups are made so"
    return made
