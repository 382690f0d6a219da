"""What is known of a kernel before its derivative is written: who makes what, what varies."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.config import frozen
from pullback.errors import UnsupportedError
from pullback.triton.nodes import Block, Function, Operation, Value
from pullback.triton.words import REASONS, SILENT, literal

LOOPS = ("scf.for", "scf.while")
PASSING = ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
           "tt.bitcast")  # fmt: skip
# Pure, and so may stand before a loop that does not change their operands.
STAY = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.dot", *SILENT)

# Not finite where the last operand is 0.
_POLES = ("arith.divf", "tt.precise_divf", "math.log", "math.log2", "math.sqrt", "math.rsqrt",
          "tt.precise_sqrt")  # fmt: skip
# Flat almost everywhere: what they give does not vary.
_FLAT = ("arith.cmpf", "arith.cmpi", "arith.fptosi", "arith.fptoui")


def refused(operation: Operation, why: str = "") -> UnsupportedError:
    """The error of an operation that has no derivative here, at the user's line."""
    reason = why or REASONS.get(operation.name, "an operation that is not known here")
    what = f"no derivative of {operation.name} at {operation.place}: {reason}"
    return UnsupportedError(what, code="E423")


def hoisted(block: Block) -> Block:
    """What a loop does not change stands before it: so an address of a loop has a closed form."""
    made: list[Operation] = []
    for operation in block.operations:
        regions = tuple(map(hoisted, operation.regions))
        if operation.name != "scf.for":
            made.append(_with(operation, regions))
            continue
        before, body = _split(regions[0])
        made.extend(before)
        made.append(_with(operation, (body,)))
    return Block(block.arguments, tuple(made))


def _with(operation: Operation, regions: tuple[Block, ...]) -> Operation:
    o = operation
    return Operation(o.name, o.operands, o.results, o.attributes, regions, o.place)


def _split(body: Block) -> tuple[list[Operation], Block]:
    inside = set(body.arguments) | {v for o in body.operations for v in o.results}
    before, kept = [], []
    for operation in body.operations:
        stays = operation.regions or operation.name in STAY or not operation.results
        if stays or inside & set(operation.operands):
            kept.append(operation)
        else:
            before.append(operation)
            inside -= set(operation.results)
    return before, Block(body.arguments, tuple(kept))


@frozen
class Facts:
    """A kernel, and by value: the operation that makes it, the argument that its address is of."""

    function: Function
    makers: dict[Value, Operation]
    around: dict[Value, Operation]
    bases: dict[Value, Value]
    wide: frozenset[Value]
    lanes: dict[Value, bool]

    @classmethod
    def of(cls, function: Function) -> Facts:
        """Read off the kernel, whose loops are hoisted."""
        function = Function(function.name, hoisted(function.block))
        makers = {v: o for o in function.block.walk() for v in o.results}
        around = {
            value: operation
            for operation in function.block.walk()
            for region in operation.regions
            for value in region.arguments
        }
        made = cls(function, makers, around, {}, frozenset(), {})
        for operation in function.block.walk():
            for value in operation.operands + operation.results:
                if value.type.pointer:
                    made.base(value)
        return cls(function, makers, around, made.bases, frozenset(made.far()), {})

    def base(self, pointer: Value) -> Value:
        """The argument of the kernel that an address is of.

        Raises: UnsupportedError (E423) where it is of one or another.
        """
        if pointer not in self.bases:
            self.bases[pointer] = pointer if self.is_argument(pointer) else self._base(pointer)
        return self.bases[pointer]

    def is_argument(self, value: Value) -> bool:
        """Whether the kernel takes this value."""
        return value not in self.makers and value not in self.around

    def _base(self, pointer: Value) -> Value:
        holder = self.makers.get(pointer)
        if holder is None:
            return self.base(start_of(self.around[pointer], pointer))
        if holder.name in PASSING:
            return self.base(holder.operands[0])
        if holder.name in LOOPS:
            return self.base(starts(holder)[holder.results.index(pointer)])
        if holder.name == "scf.if":
            either = [r.yields[holder.results.index(pointer)] for r in holder.regions]
        elif holder.name == "arith.select":
            either = list(holder.operands[1:])
        else:
            raise refused(holder)
        bases = {self.base(p) for p in either}
        if len(bases) > 1:
            names = " or ".join(sorted(base.name for base in bases))
            raise refused(holder, f"an address of {names}")
        return bases.pop()

    def infinite(self, value: Value) -> bool:
        """Whether a lane that a mask leaves out may hold what is not finite."""
        if value not in self.lanes:
            self.lanes[value] = False  # what a loop carries
            self.lanes[value] = self._infinite(value)
        return self.lanes[value]

    def _infinite(self, value: Value) -> bool:
        holder = self.makers.get(value)
        if holder is None or not value.type.is_float or not value.type.shape:
            return False
        if holder.name == "tt.load":
            return len(holder.operands) > 2 and self._unbounded(holder.operands[2])
        if holder.name in ("math.exp", "math.exp2", "tt.reduce", "tt.dot"):
            return False  # of -inf, as of what is summed up, it is 0
        if holder.name in _POLES and self.masked(holder.operands[-1]):
            return True
        if holder.name == "arith.select" and any(map(self._unbounded, holder.operands)):
            return True
        return any(map(self.infinite, holder.operands))

    def _unbounded(self, value: Value) -> bool:
        holder = self.makers.get(self.bare(value))
        if holder is None or holder.name != "arith.constant":
            return False
        return "inf" in literal(holder.attribute("value"), value.type)

    def masked(self, value: Value) -> bool:
        """Whether lanes of a block come from a load with a mask."""
        holder = self.makers.get(value)
        if holder is None or not value.type.is_float or holder.name in ("tt.reduce", "tt.dot"):
            return False
        if holder.name == "tt.load":
            return len(holder.operands) > 1
        return any(map(self.masked, holder.operands))

    def far(self) -> Iterator[Value]:
        """Arguments to whose addresses several offsets are added: their sum has 64 bits."""
        for operation in self.function.block.walk():
            if operation.name != "tt.addptr":
                continue
            pointer, offset = operation.operands
            if offset.type.element == "i64" or not self.is_argument(self.bare(pointer)):
                yield self.bases[pointer]

    def bare(self, value: Value) -> Value:
        """The scalar that a block repeats; the value itself, where there is none."""
        holder = self.makers.get(value)
        if holder and holder.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
            return self.bare(holder.operands[0])
        return value

    def step(self, loop: Operation, place: int) -> Value | None:
        """What a carried value grows by at each step, where nothing else happens to it."""
        body = loop.regions[-1]
        carried = body.arguments[place + (loop.name == "scf.for")]
        grown = self.makers.get(body.yields[place])
        if grown is None or grown.name not in ("arith.addi", "tt.addptr"):
            return None
        inside = set(body.arguments) | {v for o in body.walk() for v in o.results}
        others = [v for v in grown.operands if v is not carried]
        return others[0] if len(others) == 1 and others[0] not in inside else None

    def varying(
        self,
        wrt: frozenset[str],
        seeds: frozenset[Value] = frozenset(),
        still: frozenset[Value] = frozenset(),
    ) -> frozenset[Value]:
        """Values that change with what is loaded of these arguments; with bits of floats too.

        `seeds` are values that do so of themselves, and `still` are those that need not.
        """
        vary: set[Value] = set(seeds)
        count = -1
        while count != len(vary):
            count = len(vary)
            for operation in self.function.block.walk():
                vary.update(v for v in self._vary(operation, vary, wrt) if v not in still)
        return frozenset(vary)

    def _vary(self, o: Operation, vary: set[Value], wrt: frozenset[str]) -> Iterator[Value]:
        if o.name == "tt.load":
            if self.bases[o.operands[0]].name in wrt:
                yield from (v for v in o.results if v.type.is_float)
        elif o.name in LOOPS:
            carried = o.regions[-1].arguments[o.name == "scf.for" :]
            first = o.regions[0].arguments if o.name == "scf.while" else carried
            gives = zip(o.results, carried, first, starts(o), o.regions[-1].yields, strict=True)
            for *all_of_one, start, end in gives:
                if start in vary or end in vary:
                    yield from all_of_one
        elif o.name == "scf.if":
            for result, *ends in zip(o.results, *(r.yields for r in o.regions), strict=True):
                if vary & set(ends):
                    yield result
        elif o.name not in _FLAT and (vary & set(o.operands) or self._reads(o, wrt)):
            yield from (v for v in o.results if self._carries(o, v, vary))

    def _reads(self, o: Operation, wrt: frozenset[str]) -> bool:
        """Whether an operation, which is no load, may give elements of these arguments."""
        pointers = (v for v in o.operands if v.type.pointer)
        return o.name not in PASSING and any(self.bases[v].name in wrt for v in pointers)

    def _carries(self, o: Operation, result: Value, vary: set[Value]) -> bool:
        bits = any(v in vary and not v.type.is_float for v in o.operands)
        return result.type.is_float or bits or o.name == "tt.bitcast"


def starts(loop: Operation) -> tuple[Value, ...]:
    """What the carried values of a loop are at first."""
    return loop.operands[3:] if loop.name == "scf.for" else loop.operands


def start_of(loop: Operation, carried: Value) -> Value:
    """What a value that a loop carries is at first."""
    for region in loop.regions:
        if carried in region.arguments:
            place = region.arguments.index(carried) - (loop.name == "scf.for")
            return starts(loop)[place]
    raise refused(loop, f"{carried.name} is not carried")
