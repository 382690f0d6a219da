"""LLVM IR as text: typed operands, instructions with constant folding, one function at a time.

A `Module` collects declarations and helper functions; a `Builder` writes one function. Lines are
strings, or lists that are filled later (`slot`), so that code can be placed before a loop
after the loop's body is known.
"""

from __future__ import annotations

import math
import string
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from pullback.ir.target import Target

Number = int | float | bool
Line = str | list[str]
Key = tuple[object, ...]

FLOATS = ("float", "double")
SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
BITS = {
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
}


class Val(NamedTuple):
    """An operand: its text, element type and lanes (0: scalar). `literal`: of a constant; `loop`:
    the number of the loop in front of which it stands, where it is not computed in place.
    """

    text: str
    kind: str
    lanes: int = 0
    literal: Number | None = None
    loop: int = 0

    @property
    def type(self) -> str:
        return vector(self.kind, self.lanes)

    @property
    def typed(self) -> str:
        """`type operand`, as an argument of an instruction."""
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    @property
    def number(self) -> int:
        """How many names were made before it; 0 of a constant or an argument."""
        if self.loop:
            return self.loop - 1
        return 0 if self.literal is not None else int(self.text.lstrip(_STEMS) or 0)


_STEMS = f"%_{string.ascii_letters}"
State = dict[Key, Val]


def _phi(a: Val, a_block: str, c: Val, c_block: str) -> str:
    return f"phi {a.type} [{a.text}, %{a_block}], [{c.text}, %{c_block}]"


def vector(kind: str, lanes: int) -> str:
    """The type of `lanes` elements, or of one when 0."""
    return f"<{lanes} x {kind}>" if lanes else kind


def mangled(kind: str, lanes: int) -> str:
    """The type as intrinsic names spell it: v16f32, i64."""
    short = SUFFIX.get(kind, kind)
    return f"v{lanes}{short}" if lanes else short


def const(value: Number, kind: str, lanes: int = 0) -> Val:
    """A literal, splat over the lanes."""
    if kind in FLOATS:
        value = float(value)
        word = _float_text(value, kind)
    elif kind == "i1":
        value = bool(value)
        word = "true" if value else "false"
    else:
        value = _wrap(int(value), kind)
        word = str(value)
    text = word if not lanes else f"splat ({kind} {word})"
    return Val(text, kind, lanes, value)


def _float_text(value: float, kind: str) -> str:
    if kind == "float" and math.isfinite(value):
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isnan(value):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def iota(kind: str, lanes: int, scale: int = 1) -> Val:
    """``<0, scale, 2 scale, ..>``"""
    return literals(kind, [n * scale for n in range(lanes)])


def literals(kind: str, items: Sequence[int]) -> Val:
    """A vector of these integers."""
    return Val(f"<{', '.join(f'{kind} {n}' for n in items)}>", kind, len(items))


def prefix_mask(count: int, lanes: int) -> Val:
    """A constant mask whose first `count` lanes are on."""
    items = ", ".join(f"i1 {'true' if n < count else 'false'}" for n in range(lanes))
    return Val(f"<{items}>", "i1", lanes)


@dataclass
class Module:
    """Declarations and helper functions that several functions share."""

    target: Target
    declares: dict[str, None] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)

    @property
    def attributes(self) -> str:
        """Of a function in lanes: its stack begins with a whole vector.

        LLVM lays the frame out before it knows which vectors wait there; 16 bytes of the calling
        convention let each cross a line, in three of four processes (a tile: 13 ms, or 40).
        """
        return f'nounwind "stackrealign" "prefer-vector-width"="{8 * self.target.vector}"'

    def text(self) -> str:
        return "\n".join([*self.declares, *self.helpers.values(), *self.functions]) + "\n"


class Counter:
    """A loop's counter, and multiples of it that are counted along.

    Each passes through an empty piece of assembly: that hides it from LLVM's loop strength
    reduction, which costs more than a third of code generation and gains nothing here (measured).
    """

    def __init__(self, builder: Builder, lo: Val, step: int, before: str, latch: str) -> None:
        self._builder = builder
        self.number = builder.count
        self._lo = lo
        self._step = step
        self._blocks = before, latch
        self.enter = builder.slot()
        self.phis: list[str] = []
        self.start: list[str] = []
        self.turn: list[str] = []
        self._multiples: dict[int, Val] = {}
        self.value, self.following = self._count(lo, step)

    def times(self, factor: int) -> Val:
        """``counter * factor``"""
        if factor == 1:
            return self.value
        multiple = self._multiples.get(factor)
        if multiple is None:
            if self._lo.literal is not None:
                first = const(int(self._lo.literal) * factor, "i64")
            else:
                first = Val(f"%{self._builder.name()}", "i64")
                self.enter.append(f"  {first.text} = mul i64 {self._lo.text}, {factor}")
            multiple = self._count(first, self._step * factor)[0]
            self._multiples[factor] = multiple
        return multiple

    def _count(self, first: Val, step: int) -> tuple[Val, Val]:
        phi, at, after = (f"%{self._builder.name(stem)}" for stem in ("p", "i", "n"))
        before, latch = self._blocks
        self.phis.append(f"  {phi} = phi i64 [{first.text}, %{before}], [{after}, %{latch}]")
        self.start.append(f'  {at} = call i64 asm "", "=r,0"(i64 {phi})')
        self.turn.append(f"  {after} = add i64 {at}, {step}")
        return Val(at, "i64"), Val(after, "i64")


class Builder:
    """Writes the body of one function."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.lines: list[Line] = []
        self.block = "entry"
        self.loop = 0  # in front of which lines are written, by its number
        self.count = 0  # of names so far: those that are made inside of a loop are above its own
        self._splats: list[dict[tuple[str, int], Val]] = [{}]
        # The 16 bits in memory of a float by the name of its wider form, and their type.
        self.narrow: dict[tuple[str, str], Val] = {}

    # -- lines, names, blocks

    def emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def name(self, stem: str = "t") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, text: str, kind: str, lanes: int = 0) -> Val:
        """A fresh name for the result of instruction `text`."""
        name = f"%{self.name()}"
        self.emit(f"{name} = {text}")
        return Val(name, kind, lanes, loop=self.loop)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch(self, condition: Val, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def slot(self) -> list[str]:
        """A place for lines that are known later."""
        place: list[str] = []
        self.lines.append(place)
        return place

    @contextmanager
    def before(self, loop: Counter | None) -> Iterator[None]:
        """Straight lines that stand in front of a loop; without one, here."""
        if loop is None:
            yield
            return
        around = self.lines, self.loop
        lines: list[Line] = []
        self.lines, self.loop = lines, loop.number
        yield
        self.lines, self.loop = around
        for line in lines:
            assert isinstance(line, str)  # no loop stands in there
            loop.enter.append(line)

    @contextmanager
    def region(self) -> Iterator[None]:
        """Blocks that do not dominate what follows: splats made inside are forgotten after."""
        self._splats.append({})
        yield
        self._splats.pop()

    def repeat(
        self,
        lo: Val,
        hi: Val,
        step: int,
        sure: bool,
        body: Callable[[Counter], None],
        state: State | None = None,
        carried: Sequence[Key] = (),
    ) -> None:
        """``for at in lo, lo+step, .. < hi``; `sure`: at least one turn.

        The values of `state` at `carried` pass from turn to turn; what `body` adds is dropped.
        """
        state = {} if state is None else state
        before, head = self.name("pre"), self.name("loop")
        latch, done = self.name("latch"), self.name("done")
        entry = dict(state)
        self.jump(before)
        self.label(before)
        counter = Counter(self, lo, step, before, latch)
        if sure:
            self.jump(head)
        else:
            self.branch(self.compare("slt", lo, hi), head, done)
        self.label(head)
        phis = counter.phis
        self.lines += [phis, counter.start]
        inside = {key: self._named(entry[key]) for key in carried}
        state.update(inside)
        with self.region():
            body(counter)
        final = {key: state[key] for key in carried}
        self.jump(latch)
        self.label(latch)
        self.lines.append(counter.turn)
        self.branch(self.compare("slt", counter.following, hi), head, done)
        self.label(done)
        for key, one in inside.items():
            phis.append(f"  {one.text} = {_phi(entry[key], before, final[key], latch)}")
        state.clear()
        state.update(entry)
        for key, last in final.items():
            state[key] = last if sure else self.merge(entry[key], before, last, latch)

    def merge(self, a: Val, a_block: str, c: Val, c_block: str) -> Val:
        """The value that came with control; the blocks that it came from."""
        if a == c:
            return a
        return self.value(_phi(a, a_block, c, c_block), a.kind, a.lanes)

    def _named(self, like: Val) -> Val:
        return Val(f"%{self.name()}", like.kind, like.lanes)

    def body(self) -> str:
        """All lines of the function."""
        flat: list[str] = []
        for line in self.lines:
            flat.extend([line] if isinstance(line, str) else line)
        return "\n".join(flat)

    # -- lanes

    def splat(self, a: Val, lanes: int) -> Val:
        """The scalar in every lane."""
        if a.lanes == lanes:
            return a
        if a.literal is not None:
            return const(a.literal, a.kind, lanes)
        for known in self._splats:
            if (splat := known.get((a.text, lanes))) is not None:
                return splat
        wide = vector(a.kind, lanes)
        one = self.value(f"insertelement {wide} poison, {a.typed}, i64 0", a.kind, lanes)
        zeros = f"<{lanes} x i32> zeroinitializer"
        text = f"shufflevector {one.typed}, {wide} poison, {zeros}"
        splat = self.value(text, a.kind, lanes)
        self._splats[-1][a.text, lanes] = splat
        return splat

    def unify(self, *items: Val) -> list[Val]:
        """All with the lanes of the widest."""
        lanes = max(i.lanes for i in items)
        return [self.splat(i, lanes) if i.lanes != lanes else i for i in items]

    def shuffle(self, a: Val, b: Val, picks: Sequence[int]) -> Val:
        """Lanes of `a` (0..) and `b` (a.lanes..) by number."""
        order = ", ".join(f"i32 {p}" for p in picks)
        text = f"shufflevector {a.typed}, {b.typed}, <{len(picks)} x i32> <{order}>"
        return self.value(text, a.kind, len(picks))

    def reverse(self, a: Val) -> Val:
        """Lanes in the opposite order."""
        return self.shuffle(a, a, range(a.lanes - 1, -1, -1))

    # -- arithmetic

    def binary(self, op: str, a: Val, b: Val, flags: str = "") -> Val:
        """``op a, b``; integer literals are folded."""
        folded = _fold(op, a, b)
        if folded is not None:
            return folded
        a, b = self.unify(a, b)
        name = f"{op} {flags}" if flags else op
        return self.value(f"{name} {a.typed}, {b.text}", a.kind, a.lanes)

    def compare(self, op: str, a: Val, b: Val) -> Val:
        """``icmp`` or ``fcmp`` by type; integer literals are folded."""
        if not a.is_float and not a.lanes and not b.lanes:
            x, y = a.literal, b.literal
            if x is not None and y is not None and op in _RELATIONS:
                return const(_RELATIONS[op](x, y), "i1")
        a, b = self.unify(a, b)
        word = "fcmp" if a.is_float else "icmp"
        return self.value(f"{word} {op} {a.typed}, {b.text}", "i1", a.lanes)

    def select(self, condition: Val, yes: Val, no: Val) -> Val:
        """``condition ? yes : no``; a scalar condition picks all lanes."""
        if condition.literal is not None:
            return yes if condition.literal else no
        if yes == no:
            return yes
        lanes = max(condition.lanes, yes.lanes, no.lanes)
        yes = self.splat(yes, lanes)
        no = self.splat(no, lanes)
        return self.value(f"select {condition.typed}, {yes.typed}, {no.typed}", yes.kind, lanes)

    def convert(self, op: str, a: Val, kind: str) -> Val:
        """A conversion instruction; integer literals are folded."""
        if a.kind == kind and op != "bitcast":
            return a
        if op in ("sext", "zext", "trunc") and a.literal is not None and a.kind != "i1":
            return const(a.literal, kind, a.lanes)
        return self.value(f"{op} {a.typed} to {vector(kind, a.lanes)}", kind, a.lanes)

    def negate(self, a: Val) -> Val:
        """``not a`` of a mask."""
        return self.binary("xor", a, const(True, "i1"))

    def any(self, mask: Val) -> Val:
        """Whether a lane is on."""
        if not mask.lanes:
            return mask
        if mask.literal is not None:
            return const(mask.literal, "i1")
        word = f"i{mask.lanes}"
        bits = self.value(f"bitcast {mask.typed} to {word}", word)
        return self.value(f"icmp ne {bits.typed}, 0", "i1")

    def intrinsic(self, name: str, *args: Val, kind: str = "", flags: str = "") -> Val:
        """``llvm.name`` mangled by the type of its first argument; all arguments alike."""
        args = tuple(self.unify(*args))
        first = args[0]
        kind = kind or first.kind
        full = f"llvm.{name}.{mangled(first.kind, first.lanes)}"
        if kind != first.kind:
            full = f"llvm.{name}.{mangled(kind, first.lanes)}.{mangled(first.kind, first.lanes)}"
        result = vector(kind, first.lanes)
        return self.call(full, args, result, kind, first.lanes, flags)

    def multiply_add(self, a: Val, b: Val, c: Val) -> Val:
        """``a * b + c``, in one instruction where there is one."""
        if self.module.target.fused:
            return self.intrinsic("fma", a, b, c)
        return self.binary("fadd", self.binary("fmul", a, b), c)

    def call(
        self, name: str, args: Sequence[Val], result: str, kind: str, lanes: int, flags: str = ""
    ) -> Val:
        """A call of a declared function."""
        self.declare(name, [a.type for a in args], result)
        listed = ", ".join(a.typed for a in args)
        words = f"call {flags} {result}" if flags else f"call {result}"
        if result == "void":
            self.emit(f"{words} @{name}({listed})")
            return Val("", "void")
        return self.value(f"{words} @{name}({listed})", kind, lanes)

    def declare(self, name: str, args: Sequence[str], result: str) -> None:
        if name not in self.module.helpers:
            self.module.declares[f"declare {result} @{name}({', '.join(args)})"] = None

    # -- memory

    def offset(self, pointer: Val, kind: str, index: Val) -> Val:
        """``&pointer[index]``"""
        if index.literal == 0:
            return pointer
        text = f"getelementptr {kind}, {pointer.typed}, {index.typed}"
        return self.value(text, "ptr", index.lanes)

    def load(self, pointer: Val, kind: str, lanes: int = 0, align: int = 0, note: str = "") -> Val:
        tail = f", align {align}" if align else ""
        return self.value(f"load {vector(kind, lanes)}, {pointer.typed}{tail}{note}", kind, lanes)

    def store_past_caches(self, value: Val, pointer: Val, align: int) -> None:
        """A store of a whole vector that reads no cache line first, where it is aligned.

        `align`: of an element, bytes.
        """
        yes, no, done = (self.name("at") for _ in range(3))
        place = self.value(f"ptrtoint {pointer.typed} to i64", "i64")
        size = value.lanes * align
        low = self.binary("and", place, const(size - 1, "i64"))
        self.branch(self.compare("eq", low, const(0, "i64")), yes, no)
        self.label(yes)
        self.emit(f"store {value.typed}, {pointer.typed}, align {size}, !nontemporal !1")
        self.jump(done)
        self.label(no)
        self.store(value, pointer, align)
        self.jump(done)
        self.label(done)

    def fence_stores(self) -> None:
        """Stores past the caches come before what follows."""
        self.declare("llvm.x86.sse.sfence", [], "void")
        self.emit("call void @llvm.x86.sse.sfence()")

    def store(self, value: Val, pointer: Val, align: int = 0) -> None:
        tail = f", align {align}" if align else ""
        self.emit(f"store {value.typed}, {pointer.typed}{tail}")

    def masked_load(self, pointer: Val, kind: str, align: int, mask: Val) -> Val:
        """Neighbours in the lanes that are on, zeros in others."""
        wide = f"<{mask.lanes} x {kind}>"
        name = f"llvm.masked.load.{mangled(kind, mask.lanes)}.p0"
        self.declare(name, ["ptr", mask.type, wide], wide)
        args = f"ptr align {align} {pointer.text}, {mask.typed}, {wide} zeroinitializer"
        return self.value(f"call {wide} @{name}({args})", kind, mask.lanes)

    def store_first(self, value: Val, first: int, to: Val, reverse: bool, align: int) -> None:
        """The first lanes in parts of powers of two, the longest first; or against their order."""
        begin = 0
        while begin < first:
            size = 1 << ((first - begin).bit_length() - 1)
            end = begin + size
            picks = range(end - 1, begin - 1, -1) if reverse else range(begin, end)
            part = self.shuffle(value, value, picks)
            if size == 1:
                part = self.value(f"extractelement {value.typed}, i64 {begin}", value.kind)
            place = const(1 - end if reverse else begin, "i64")
            self.store(part, self.offset(to, value.kind, place), align)
            begin = end

    def masked_store(self, word: str, value: Val, to: Val, align: int, mask: Val) -> None:
        """The lanes that are on, side by side (`word`: store) or each at its pointer (scatter)."""
        name = f"llvm.masked.{word}.{mangled(value.kind, value.lanes)}.{mangled('ptr', to.lanes)}"
        self.declare(name, [value.type, to.type, mask.type], "void")
        where = f"{to.type} align {align} {to.text}"
        self.emit(f"call void @{name}({value.typed}, {where}, {mask.typed})")


_RELATIONS = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "slt": lambda x, y: x < y,
    "sle": lambda x, y: x <= y,
    "sgt": lambda x, y: x > y,
    "sge": lambda x, y: x >= y,
}


def _wrap(value: int, kind: str) -> int:
    half = 1 << (BITS[kind] - 1)
    return (value + half) % (2 * half) - half


def _fold(op: str, a: Val, b: Val) -> Val | None:
    x, y = a.literal, b.literal
    if a.kind == "i1":
        return _fold_mask(op, a, b)
    if a.is_float or op not in ("add", "sub", "mul"):
        return None
    lanes = max(a.lanes, b.lanes)
    if isinstance(x, int) and isinstance(y, int):
        result = {"add": x + y, "sub": x - y, "mul": x * y}[op]
        return const(result, a.kind, lanes)
    unit = 1 if op == "mul" else 0
    if y == unit and a.lanes == lanes:
        return a
    if x == unit and b.lanes == lanes and op != "sub":
        return b
    if op == "mul" and (x == 0 or y == 0):
        return const(0, a.kind, lanes)
    return None


def _fold_mask(op: str, a: Val, b: Val) -> Val | None:
    for one, other in ((a, b), (b, a)):
        if one.literal is None or one.lanes > other.lanes:
            continue
        if op == "and":
            return other if one.literal else const(False, "i1", other.lanes)
        if op == "or":
            return const(True, "i1", other.lanes) if one.literal else other
        if op == "xor" and not one.literal:
            return other
        if op == "xor" and other.literal is not None:
            return const(not other.literal, "i1", other.lanes)
    return None
