"""The values of a kernel, computed again: what its derivative reads. Nothing is stored.

An address is an argument and an offset. Constants, and scalars that a block repeats, are written
where they are used, as one writes them by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pullback.triton import kept, words
from pullback.triton.facts import Facts, refused, starts
from pullback.triton.nodes import Block, Operation, Type, Value
from pullback.triton.statements import Assign, Do, Either, Repeat, Statement, written

UNKNOWN = "refused__"  # a name that no kernel has: what stands there has no words
KINDS = {"arith.addf": "sum", "arith.addi": "sum", "arith.xori": "xor_sum",
         "arith.maxnumf": "max", "arith.maximumf": "max", "arith.maxsi": "max",
         "arith.minnumf": "min", "arith.minimumf": "min", "arith.minsi": "min"}  # fmt: skip

# Of bfloat16 what the interpreter gives too: it takes the bits.
_OF_BITS = ("arith.select", "math.absf")
_LOGIC = {"arith.andi": "tl.where({0}, {1}, False)", "arith.ori": "tl.where({0}, True, {1})"}


class Forward:
    """Writes the operations of blocks, in order."""

    def __init__(self, facts: Facts, counts: frozenset[str] = frozenset()) -> None:
        self.facts = facts
        self.counts = counts  # the tapes for which it is counted how often loops run
        self.lines: list[Statement] = []
        self.helpers: dict[str, str] = {}
        self.combiners: dict[Operation, str] = {}
        self.unknown: list[Operation] = []
        self.tapes: dict[str, Type] = {}
        self.counters: dict[Operation, str] = {}
        self.given: dict[Value, str] = {}  # what stands for the loads of an argument
        self.kept: dict[Value, Operation] = {}  # values that are loaded from where they are stored
        values = {*facts.makers, *facts.around, *facts.function.block.arguments}
        self.taken = {v.name for v in values} | {
            "tl", "triton", "program", "tape_length", "trips", "math", "range", "float"
        }  # fmt: skip

    # --- names and texts --------------------------------------------------------------------------

    def name(self, stem: str) -> str:
        """A name that nothing has yet."""
        unique, count = stem, 0
        while unique in self.taken:
            count += 1
            unique = f"{stem}_{count}"
        self.taken.add(unique)
        return unique

    def assign(self, name: str, text: str) -> None:
        self.lines.append(Assign(name, text))

    @contextmanager
    def collected(self) -> Iterator[list[Statement]]:
        """What is written meanwhile, apart."""
        outer, self.lines = self.lines, []
        try:
            yield self.lines
        finally:
            self.lines = outer

    def element(self, type: Type, base: Value | None = None) -> str:
        """The type of an element; of an address that of its offset."""
        if type.pointer:
            return "tl.int64" if base in self.facts.wide else "tl.int32"
        return words.ELEMENTS[type.element]

    def short(self, value: Value) -> tuple[str, tuple[int, ...]]:
        """A value as it may stand among others that broadcast, and the shape that it has there."""
        holder = self.facts.makers.get(value)
        if value.type.pointer and self.facts.is_argument(self.facts.bare(value)):
            return "0", ()
        if holder is None:
            return value.name, value.type.shape
        if holder.name == "tt.load" and self.facts.bases[holder.operands[0]] in self.given:
            return self.given[self.facts.bases[holder.operands[0]]], value.type.shape
        if holder.name == "arith.constant":
            return words.literal(holder.attribute("value"), value.type), ()
        if holder.name == "tt.splat":
            return self.short(holder.operands[0])
        if holder.name == "tt.broadcast":
            text, shape = self.short(holder.operands[0])
            return text, shape
        return value.name, value.type.shape

    def whole(self, value: Value) -> str:
        """A value with all of its elements."""
        text, shape = self.short(value)
        if shape == value.type.shape and not (value.type.shape == () and self.is_literal(value)):
            return text
        if shape:
            return value.name
        base = self.facts.bases.get(value)
        kind = self.element(value.type, base)
        if kind == "tl.int1" and value.type.shape and not self.is_literal(value):
            return f"(tl.full({words.shape_of(value.type.shape)}, {text}, tl.int32) != 0)"
        if value.type.shape:
            return f"tl.full({words.shape_of(value.type.shape)}, {text}, {kind})"
        return f"tl.cast({text}, {kind})"

    def is_literal(self, value: Value) -> bool:
        """Whether a value is written as a number."""
        holder = self.facts.makers.get(self.facts.bare(value))
        return self.short(value)[0] == "0" or bool(holder and holder.name == "arith.constant")

    def among(self, operands: Iterable[Value], shape: tuple[int, ...]) -> list[str]:
        """Operands of an operation of elements: as short as they have its shape together."""
        operands = list(operands)
        short = [self.short(v) for v in operands]
        texts = [text for text, _ in short]
        together = _broadcast([s for _, s in short], len(shape))
        numbers = all(self.is_literal(v) for v in operands)
        if together == shape and not numbers:
            return texts
        for place, value in enumerate(operands):
            if value.type.shape == shape and (value.type.element != "i1" or len(operands) == 1):
                texts[place] = self.whole(value)
                return texts
        return [self.whole(v) for v in operands]

    # --- operations -------------------------------------------------------------------------------

    def block(self, block: Block, tapes: bool) -> None:
        """The operations of a block; loops keep what they carry, where `tapes` is set."""
        for operation in block.operations:
            self.operation(operation, tapes)

    def operation(self, o: Operation, tapes: bool) -> None:
        """Its results, computed, or loaded from where they were stored."""
        self.computed(o, tapes)
        for result in o.results:
            if result in self.kept:
                pointer, _, *mask = self.kept[result].operands
                other = self.other(self.kept[result])
                options = f", mask={self.mask(mask[0])}, other={other}" if mask else ""
                self.assign(result.name, f"tl.load({self.address(pointer)}{options})")

    def other(self, store: Operation) -> str:
        """What stands in lanes that a mask leaves out: what was there, or what harms nothing."""
        made = kept.beyond(self.facts, store)
        number = 1.0 if made is None else made
        return f'float("{number}")' if math.isinf(number) else repr(number)

    def computed(self, o: Operation, tapes: bool) -> None:
        if o.name in ("tt.store", *words.SILENT):
            return
        if o.name == "tt.atomic_rmw":
            self.refuse(o)
        elif o.name == "scf.for":
            self.loop(o, tapes)
        elif o.name == "scf.while":
            self.while_loop(o, tapes)
        elif o.name == "scf.if":
            self.branches(o)
        elif o.name in ("tt.reduce", "tt.scan"):
            self.folded(o)
        elif not o.results:
            raise refused(o)
        elif o.name != "arith.constant":
            text = self.text(o)
            if text is None:
                self.refuse(o)
            elif text:
                self.assign(o.results[0].name, text)

    def refuse(self, o: Operation) -> None:
        """An error, where anything needs the results."""
        for result in o.results:
            self.assign(result.name, f"{UNKNOWN}{len(self.unknown)}")
        self.unknown.append(o)

    def text(self, o: Operation) -> str | None:
        """The right side of an assignment; nothing, where it is written in place."""
        if o.name in FORMS:
            return FORMS[o.name](self, o)
        result = o.results[0]
        texts = self.among(o.operands, result.type.shape)
        if o.name in _LOGIC and result.type.element == "i1" and result.type.shape:
            shapes = [self.short(v)[1] for v in o.operands]
            if () in shapes:  # the interpreter makes numbers of a truth and a block of them
                one, block = texts if shapes[0] == () else reversed(texts)
                return _LOGIC[o.name].format(one, block)
        if o.name in words.UNSIGNED:
            whole = [self.unsigned(v) for v in o.operands]
            kind = self.element(result.type)
            return f"tl.cast({words.UNSIGNED[o.name].format(*whole)}, {kind}, bitcast=True)"
        if (name := words.named(o)) in words.ELEMENTWISE:
            if result.type.element != "bf16" or name in _OF_BITS:
                return words.ELEMENTWISE[name].format(*texts)
            wide = map(self.wide, o.operands, texts)
            return f"tl.cast({words.ELEMENTWISE[name].format(*wide)}, tl.bfloat16)"
        if o.name in words.CASTS:
            return self.converted_to(result.type, o.operands[0], self.whole(o.operands[0]))
        if o.name in words.UNSIGNED_CASTS:
            return self.converted_to(result.type, o.operands[0], self.unsigned(o.operands[0]))
        return None

    def converted_to(self, type: Type, value: Value, text: str) -> str:
        """A value as another type; to bfloat16 by way of float32, as on a device."""
        if type.element == "bf16" and value.type.element not in words.NUMBERS.keys() - {"f64"}:
            text = f"tl.cast({text}, tl.float32)"
        return f"tl.cast({text}, {self.element(type)})"

    def rounded(self, o: Operation) -> str:
        """Between floats, where it is said how it is rounded."""
        how = ', fp_downcast_rounding="rtz"' if o.attribute("rounding") == "rtz" else ""
        return f"tl.cast({self.whole(o.operands[0])}, {self.element(o.results[0].type)}{how})"

    def unsigned(self, value: Value) -> str:
        """The same bits as a number without a sign."""
        if value.type.element == "i1" or value.type.is_float:
            return self.whole(value)
        kind = f"tl.uint{value.type.element[1:]}"
        return f"tl.cast({self.whole(value)}, {kind}, bitcast=True)"

    def compared(self, o: Operation) -> str:
        word = o.attribute("word")
        a, b = map(self.wide, o.operands, self.among(o.operands, o.results[0].type.shape))
        if o.name == "arith.cmpi" and word in words.WITHOUT_SIGN:
            a, b = (self.unsigned(v) for v in o.operands)
            return f"{a} {words.WITHOUT_SIGN[word]} {b}"
        if word in words.OPPOSITES:
            return f"({a} {words.OPPOSITES[word]} {b}) == 0"
        if word == "uno":
            return f"({a} != {a}) | ({b} != {b})"
        if word == "ord":
            return f"({a} == {a}) & ({b} == {b})"
        if word == "one":
            return f"({a} < {b}) | ({a} > {b})"
        if word == "ueq":
            return f"(({a} < {b}) | ({a} > {b})) == 0"
        return f"{a} {words.COMPARISONS[word]} {b}"

    def cast_bits(self, o: Operation) -> str:
        value, result = o.operands[0], o.results[0]
        if value.type.pointer or value.type.element == result.type.element:
            return self.whole(value)
        return f"tl.cast({self.whole(value)}, {self.element(result.type)}, bitcast=True)"

    def shifted(self, o: Operation) -> str:
        pointer, offset = o.operands
        base = self.facts.bases[pointer]
        if self.facts.is_argument(self.facts.bare(pointer)):
            text = self.whole(offset)
            return f"tl.cast({text}, tl.int64)" if base in self.facts.wide else text
        return f"{self.short(pointer)[0]} + {self.short(offset)[0]}"

    def address(self, pointer: Value, name: str = "") -> str:
        """An argument and an offset; `name` stands for the argument."""
        name = name or self.facts.bases[pointer].name
        if self.short(pointer)[0] == "0" and not pointer.type.shape:
            return name
        return f"{name} + {self.whole(pointer)}"

    def load(self, o: Operation) -> str:
        pointer, *rest = o.operands
        if self.facts.bases[pointer] in self.given:
            return ""
        options = [f", mask={self.mask(rest[0])}"] if rest else []
        options += [f", other={self.short(v)[0]}" for v in rest[1:]]
        return f"tl.load({self.address(pointer)}{''.join(options)})"

    def wide(self, value: Value, text: str) -> str:
        """A bfloat16 as float32, the same number: of bfloat16 the interpreter takes the bits."""
        exact = value.type.element != "bf16" or words.is_literal(text)
        return text if exact else f"tl.cast({text}, tl.float32)"

    def mask(self, value: Value) -> str:
        """A truth of a whole block as a block."""
        text, shape = self.short(value)
        return text if shape or self.is_literal(value) else self.whole(value)

    def dot(self, o: Operation) -> str:
        a, b, c = o.operands
        precision = o.attribute("inputPrecision", "ieee")
        kind = self.element(o.results[0].type)
        options = f'input_precision="{precision}", out_dtype={kind}'
        total = "" if self.is_literal(c) and self.short(c)[0] == "0.0" else f"{self.whole(c)}, "
        return f"tl.dot({self.whole(a)}, {self.whole(b)}, {total}{options})"

    def split(self, o: Operation) -> str:
        pair = self.name("halves")
        self.assign(pair, f"tl.split({self.whole(o.operands[0])})")
        for place, result in enumerate(o.results):
            self.assign(result.name, f"{pair}[{place}]")
        return ""

    # --- folds ------------------------------------------------------------------------------------

    def folded(self, o: Operation) -> None:
        """A reduction or a scan: by its name, or with its combiner as a function beside."""
        axis, kind = o.attribute("axis"), kind_of(o)
        back = f", reverse={o.attribute('reverse')}" if o.name == "tt.scan" else ""
        keeps_nan = o.regions[0].operations[0].name in ("arith.maximumf", "arith.minimumf")
        if o.operands[0].type.element == "bf16":
            kind = ""
        if kind == "sum" or (kind and o.name == "tt.reduce" and not keeps_nan):
            name = "cumsum" if o.name == "tt.scan" else kind
            text = f"tl.{name}({self.whole(o.operands[0])}, {axis}{back})"
            self.assign(o.results[0].name, text)
            return
        text = self.combined(o, axis, back)
        if len(o.results) == 1:
            self.assign(o.results[0].name, text)
            return
        both = self.name("folded")
        self.assign(both, text)
        for place, result in enumerate(o.results):
            self.assign(result.name, f"{both}[{place}]")

    def combined(self, o: Operation, axis: str, back: str) -> str:
        operands = ", ".join(map(self.whole, o.operands))
        operands = operands if len(o.operands) == 1 else f"({operands})"
        word = "tl.reduce" if o.name == "tt.reduce" else "tl.associative_scan"
        return f"{word}({operands}, {axis}, {self.helper(o)}{back})"

    def helper(self, o: Operation) -> str:
        """The combiner of a fold, a function of its own."""
        if o in self.combiners:
            return self.combiners[o]
        block, name = o.regions[0], self.name("combine")
        arguments = ", ".join(v.name for v in block.arguments)
        with self.collected() as lines:
            for inner in block.operations:
                self.operation(inner, False)
        gives = ", ".join(self.short(v)[0] for v in block.yields)
        text = "\n".join([f"def {name}({arguments}):", *written(lines), f"    return {gives}"])
        self.helpers[name] = f"@triton.jit\n{text}\n"
        self.combiners[o] = name
        return name

    # --- loops and branches -----------------------------------------------------------------------

    def branches(self, o: Operation) -> None:
        made = []
        for region in o.regions:
            with self.collected() as lines:
                self.block(region, False)
                for result, end in zip(o.results, region.yields, strict=False):
                    self.assign(result.name, self.whole(end))
            made.append(tuple(lines))
        self.lines.append(Either(self.short(o.operands[0])[0], *made))

    def trips(self, o: Operation) -> str:
        """How often a loop runs."""
        if o.name == "scf.while":
            return self.counter(o)
        low, high, step = (self.short(v)[0] for v in o.operands[:3])
        span = high if low == "0" else f"{high} - {low}"
        return span if step == "1" else f"tl.cdiv({span}, {step})"

    def counter(self, o: Operation) -> str:
        if o not in self.counters:
            self.counters[o] = self.name("steps")
        return self.counters[o]

    def loop(self, o: Operation, tapes: bool) -> None:
        body = o.regions[0]
        index, *carried = body.arguments
        self.begin(o, carried)
        with self.collected() as lines:
            if tapes:
                low, _, step = (self.short(v)[0] for v in o.operands[:3])
                at = index.name if low == "0" else f"({index.name} - {low})"
                self.keep(o, carried, at if step == "1" else f"{at} // {step}")
            self.block(body, False)
            self.carry(carried, body)
        low, high, step = (self.short(v)[0] for v in o.operands[:3])
        bounds = ", ".join([low, high, step])
        self.lines.append(Repeat(f"for {index.name} in range({bounds})", tuple(lines)))
        self.end(o, carried, tapes)

    def while_loop(self, o: Operation, tapes: bool) -> None:
        before, after = o.regions
        if before.yields[1:] != before.arguments:
            raise refused(o, "its condition changes what it carries")
        steps = self.counter(o)
        self.assign(steps, "0")
        self.begin(o, before.arguments)
        self.block(before, False)
        condition = before.yields[0]
        with self.collected() as lines:
            for outer, inner in zip(before.arguments, after.arguments, strict=True):
                self.assign(inner.name, outer.name)
            if tapes:
                self.keep(o, after.arguments, steps)
            self.block(after, False)
            self.carry(before.arguments, after)
            self.assign(steps, f"{steps} + 1")
            self.block(before, False)
        self.lines.append(Repeat(f"while {self.short(condition)[0]}", tuple(lines)))
        self.end(o, before.arguments, tapes)

    def begin(self, o: Operation, carried: Iterable[Value]) -> None:
        for value, start in zip(carried, starts(o), strict=True):
            self.assign(value.name, self.whole(start))

    def carry(self, carried: Iterable[Value], body: Block) -> None:
        """The next step's values, all at once: one may be another's last."""
        pairs = list(zip(carried, body.yields, strict=True))
        names = {v.name for v, _ in pairs}
        crossed = [end for _, end in pairs if end.name in names]
        held = {end: self.name(f"{end.name}_next") for end in crossed}
        for end, name in held.items():
            self.assign(name, end.name)
        for value, end in pairs:
            self.assign(value.name, held.get(end) or self.whole(end))

    def end(self, o: Operation, carried: Iterable[Value], tapes: bool) -> None:
        names = frozenset(self.tape(o, k) for k, _ in enumerate(o.results))
        if tapes and names:
            self.lines.append(Do("tl.debug_barrier()", names))
        if self.counts & names:
            self.lines.append(Do(f"tl.atomic_max(trips, {self.trips(o)})"))
        for result, value in zip(o.results, carried, strict=True):
            self.assign(result.name, value.name)

    def tape(self, o: Operation, place: int) -> str:
        """The name of the array that keeps a carried value of each step."""
        name = f"tape_{o.results[place].name}"
        self.tapes.setdefault(name, o.results[place].type)
        return name

    def keep(self, o: Operation, carried: Iterable[Value], at: str) -> None:
        for place, value in enumerate(carried):
            name = self.tape(o, place)
            text = f"tl.store({name} + {self.lanes(value.type, at)}, {value.name})"
            self.lines.append(Do(text, frozenset({name})))

    def lanes(self, type: Type, at: str) -> str:
        """Where a tape has the elements of one step of this program."""
        first = f"(program * tape_length + {at}) * {type.size}"
        if not type.shape:
            return first
        terms, stride = [], 1
        for axis in reversed(range(len(type.shape))):
            inside = ", ".join(":" if a == axis else "None" for a in range(len(type.shape)))
            index = f"[{inside}]" if len(type.shape) > 1 else ""
            scale = "" if stride == 1 else f" * {stride}"
            terms.append(f"tl.arange(0, {type.shape[axis]}){index}{scale}")
            stride *= type.shape[axis]
        return f"{first} + {' + '.join(reversed(terms))}"


def kind_of(o: Operation) -> str:
    """`sum`, `max`, `min`: what a fold of one operand does; nothing for another combiner."""
    inner = [q.name for q in o.regions[0].operations]
    return KINDS.get(inner[0], "") if len(inner) == 2 and len(o.operands) == 1 else ""


def order_of(o: Operation) -> tuple[int, ...]:
    """The permutation of a transpose."""
    text = o.attribute("order").removeprefix("array<i32:").removesuffix(">")
    return tuple(int(axis) for axis in text.split(","))


def _shape(value: Value) -> str:
    return words.shape_of(value.type.shape)


def _broadcast(shapes: list[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    """The shape of operands together; a scalar takes any."""
    full = [s for s in shapes if len(s) == rank]
    return tuple(max(extents) for extents in zip(*full, strict=True)) if full else ()


# The right sides of assignments, of what has more to it than its operands.
FORMS: dict[str, Callable[[Forward, Operation], str | None]] = {
    "arith.cmpi": Forward.compared,
    "arith.cmpf": Forward.compared,
    "tt.bitcast": Forward.cast_bits,
    "tt.fp_to_fp": Forward.rounded,
    "tt.addptr": Forward.shifted,
    "tt.load": Forward.load,
    "tt.dot": Forward.dot,
    "tt.splat": lambda self, o: self.whole(o.results[0]),
    "tt.broadcast": lambda self, o: (
        f"tl.broadcast_to({self.whole(o.operands[0])}, {_shape(o.results[0])})"
    ),
    "tt.expand_dims": lambda self, o: (
        f"tl.expand_dims({self.whole(o.operands[0])}, {o.attribute('axis')})"
    ),
    "tt.reshape": lambda self, o: (
        f"tl.reshape({self.whole(o.operands[0])}, {_shape(o.results[0])})"
    ),
    "tt.trans": lambda self, o: f"tl.permute({self.whole(o.operands[0])}, {order_of(o)})",
    "tt.join": lambda self, o: f"tl.join({', '.join(map(self.whole, o.operands))})",
    "tt.split": Forward.split,
    "tt.gather": lambda self, o: (
        f"tl.gather({', '.join(map(self.whole, o.operands))}, {o.attribute('axis')})"
    ),
    "tt.make_range": lambda _, o: f"tl.arange({o.attribute('start')}, {o.attribute('end')})",
    "tt.get_program_id": lambda _, o: f"tl.program_id({'xyz'.index(o.attribute('word'))})",
    "tt.get_num_programs": lambda _, o: f"tl.num_programs({'xyz'.index(o.attribute('word'))})",
}
