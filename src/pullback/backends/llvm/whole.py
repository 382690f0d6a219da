"""A whole program as objects: kernels of LLVM, and what launches them, as a function of LLVM IR.

    define i32 @NAME(ptr %x, ptr %w, ptr %y, i64 %M)

What `backends/c/whole.py` writes as C, for where nothing compiles C: launches in order, loops,
branches, working memory. One thread; what talks to the caller is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from pullback.backends.base import Code, Image, Job, Part, lined
from pullback.backends.host.engine import portable_object
from pullback.backends.host.lines import LINE, NEEDS, Lines
from pullback.backends.host.native_pool import SERIAL
from pullback.backends.host.processor import named_target, processor
from pullback.backends.llvm.emit import emit_routine
from pullback.backends.loops.backend import Loops, launched, stored
from pullback.backends.loops.key import routine_key
from pullback.backends.nests.dense import dense
from pullback.errors import UnsupportedError
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Branch, Feed, Item, Launch, Loop, Receive
from pullback.ir.signature import digest
from pullback.schedule.schedule import Schedule

Array = np.ndarray[Any, Any]
Talks = Feed | Receive
NOBODY: Mapping[Talks, str] = MappingProxyType({})
ANY = "x86-64"  # what no kernel needs runs on any processor
LIBRARY = """\
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
"""


class Objects(Loops):
    """Compiles kernels for libraries, each as an object; writes what launches them."""

    name = "llvm"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.dense = False  # arrays of symbolic sizes have no gaps

    def laid(self, routine: Routine, kernel: Kernel, schedule: Schedule) -> Routine:
        """The nest over arrays as they lie. Raises: ApartError."""
        return dense(kernel, schedule) if self.dense else routine

    def emit(self, routines: Iterable[Routine], job: Job) -> list[Code]:
        codes = []
        for routine in routines:
            key = digest(routine_key(routine), repr(job.target), processor(job.target))
            symbol = f"pb_{key[:24]}"
            if symbol not in self.objects:
                text = emit_routine(routine, job.target)
                for name in ("body", "finish"):
                    text = text.replace(f"void @{name}(", f"void @{symbol}_{name}(")
                self.objects[symbol] = portable_object(text, job.target)
            codes.append(Code(stored(routine, "", symbol), 0, 0, None))
        return codes

    def program(
        self,
        name: str,
        image: Image,
        arguments: Mapping[Variable, str],
        constants: Mapping[Variable, Array],
        sizes: Mapping[Dim, str],
        sites: list[str],
        calls: Mapping[Talks, str] = NOBODY,
    ) -> str:
        """The function of a program, which is given arrays, then sizes, then `calls`: its feeders
        and receivers, and what they are passed. What its checks of indices say is added to
        `sites`: it returns 1 + the place there.

        Raises: UnsupportedError for a program that calls its host otherwise.
        """
        return _Program(name, image, arguments, constants, sizes, sites, calls).text()

    def driver(self, texts: Sequence[str]) -> bytes:
        """The object of functions that launch kernels, for any processor of the kind."""
        heads = [
            f"declare void @{symbol}_{name}(ptr, i64, ptr)\n"
            for symbol in self.objects
            for name in ("body", "finish")
        ]
        text = "\n".join([LIBRARY, *heads, SERIAL, *texts])
        return portable_object(text, named_target(ANY), others=True)


@dataclass(slots=True)
class _Program:
    """Writes one function."""

    name: str
    image: Image
    arguments: Mapping[Variable, str]
    constants: Mapping[Variable, Array]
    sizes: Mapping[Dim, str]
    sites: list[str]
    calls: Mapping[Talks, str]
    b: Lines = field(default_factory=Lines)
    order: int = 0
    words: int = 1  # of the longest list of arguments
    turns: int = 0
    ends: list[str] = field(default_factory=list)  # of the loops around

    def text(self) -> str:
        given = [f"ptr %{n}" for n in self.arguments.values()]
        given += [f"i64 %{n}" for n in self.sizes.values()]
        given += [f"ptr %{n}" for n in self.calls.values()]
        given += ["ptr %user"] if self.calls else []
        for name in self.calls.values():
            self.b.fails(self.b.value(f"icmp eq ptr %{name}, null"), "-3")
        plan = self.image.plan
        arena, stride = lined(plan.arena_bytes), max(plan.stride, default=0)
        room = _up(arena + stride) or LINE
        self.b.emit(f"%.memory = call ptr @aligned_alloc(i64 {LINE}, i64 {room})")
        self.b.fails(self.b.value("icmp eq ptr %.memory, null"), "-1")
        self.b.emit(f"%.scratch = getelementptr i8, ptr %.memory, i64 {arena}")
        self.block(self.image.block)
        self.b.emit("call void @free(ptr %.memory)")
        self.b.emit("ret i32 0")
        first = [
            "  %.error = alloca [3 x i64], align 64",
            "  store [3 x i64] zeroinitializer, ptr %.error",
            f"  %.block = alloca [{self.words} x ptr], align 64",
            *(f"  %.turn{n} = alloca i64" for n in range(self.turns)),
            *(f"  %.of_{n} = alloca i64" for n in self.calls.values()),
            *(f"  store i64 0, ptr %.of_{n}" for n in self.calls.values()),
        ]
        constants = [
            f"@{self.constant(v)} = internal constant [{a.nbytes} x i8] {_bytes(a)}, align {LINE}"
            for v, a in self.constants.items()
        ]
        head = f"define internal i32 @{self.name}({', '.join(given)}) nounwind {{\n.entry:"
        return "\n".join([*constants, head, *first, *self.b.lines, "}", ""])

    def constant(self, variable: Variable) -> str:
        return f"{self.name}_constant_{list(self.constants).index(variable)}"

    def at(self, variable: Variable) -> str:
        """Where a variable lies."""
        if variable in self.arguments:
            return f"%{self.arguments[variable]}"
        if variable in self.constants:
            return f"@{self.constant(variable)}"
        return self.memory(self.image.plan.offsets[variable])

    def memory(self, offset: int) -> str:
        return self.b.value(f"getelementptr i8, ptr %.memory, i64 {offset}")

    def block(self, block: Sequence[Item]) -> None:
        for item in block:
            if isinstance(item, Launch):
                self.launch(item)
            elif isinstance(item, Loop):
                self.loop(item)
            elif isinstance(item, Branch):
                self.branch(item)
            elif isinstance(item, Feed | Receive) and item in self.calls:
                self.talk(item, self.calls[item])
            else:
                what = f"a {type(item).__name__} in a program that no C compiler builds"
                raise UnsupportedError(what, help=NEEDS, code="E533")

    def branch(self, item: Branch) -> None:
        then, other, end = map(self.b.label, ("then", "else", "end"))
        self.b.emit(f"br i1 {self.holds(item.predicate)}, label %{then}, label %{other}")
        for label, block in ((then, item.then), (other, item.otherwise)):
            self.b.lines.append(f"{label}:")
            self.block(block)
            self.b.emit(f"br label %{end}")
        self.b.lines.append(f"{end}:")

    def holds(self, variable: Variable) -> str:
        byte = self.b.value(f"load i8, ptr {self.at(variable)}")
        return self.b.value(f"icmp ne i8 {byte}, 0")

    def loop(self, loop: Loop) -> None:
        """Tested, counted, run."""
        turn, self.turns = f"%.turn{self.turns}", self.turns + 1
        test, body, end = map(self.b.label, ("test", "loop", "end"))
        self.b.emit(f"store i64 0, ptr {turn}")
        self.b.begin(test)
        now = self.b.value(f"load i64, ptr {turn}")
        more = self.b.value(f"icmp slt i64 {now}, {loop.count}")
        if loop.condition is not None:
            look = self.b.label("look")
            self.b.emit(f"br i1 {more}, label %{look}, label %{end}")
            self.b.lines.append(f"{look}:")
            more = self.holds(loop.condition)
        self.b.emit(f"br i1 {more}, label %{body}, label %{end}")
        self.b.lines.append(f"{body}:")
        if loop.counter is not None:
            far = self.b.value(f"mul i64 {now}, {loop.step}")
            place = self.b.value(f"add i64 {far}, {loop.start}")
            self.b.emit(f"store i64 {place}, ptr {self.at(loop.counter)}")
        self.ends.append(end)
        self.block(loop.body)
        self.ends.pop()
        again = self.b.value(f"add i64 {now}, 1")
        self.b.emit(f"store i64 {again}, ptr {turn}")
        self.b.emit(f"br label %{test}")
        self.b.lines.append(f"{end}:")

    def talk(self, item: Talks, name: str) -> None:
        """Call a function of the caller's: a feeder gives 1 where there is no more, which ends the
        innermost loop; anything else but 0 ends the program.
        """
        b, over = self.b, self.b.label("over")
        if isinstance(item, Receive):
            times = b.value(f"add i64 {b.value(f'load i64, ptr %.of_{name}')}, 1")
            b.emit(f"store i64 {times}, ptr %.of_{name}")
            rest, due = b.value(f"urem i64 {times}, {item.every}"), b.label("due")
            b.emit(f"br i1 {b.value(f'icmp eq i64 {rest}, 0')}, label %{due}, label %{over}")
            b.lines.append(f"{due}:")
        variables = item.targets if isinstance(item, Feed) else item.sources
        self.words = max(self.words, len(variables))
        self.stored([f"ptr {self.at(v)}" for v in variables])
        ended = b.value(f"call i32 %{name}(ptr %user, ptr %.block)")
        if isinstance(item, Feed) and self.ends:
            more = b.label("more")
            done = b.value(f"icmp eq i32 {ended}, 1")
            b.emit(f"br i1 {done}, label %{self.ends[-1]}, label %{more}")
            b.lines.append(f"{more}:")
        b.fails(b.value(f"icmp ne i32 {ended}, 0"), "-4", "call void @free(ptr %.memory)")
        b.begin(over)

    def stored(self, words: Sequence[str]) -> None:
        """Write what is passed on."""
        for number, word in enumerate(words):
            to = self.b.value(f"getelementptr i64, ptr %.block, i64 {number}")
            self.b.emit(f"store {word}, ptr {to}")

    def launch(self, item: Launch) -> None:
        """One kernel, part by part: tasks of each are independent."""
        for part, shared in launched(self.image, item, self.order):
            self.part(part, shared)
        self.order += 1

    def part(self, part: Part, shared: int) -> None:
        facts = part.code.stored
        words = [f"ptr {self.at(v)}" for v in part.arguments]
        for size in facts.shared:
            words.append(f"ptr {self.memory(shared)}")
            shared += lined(size)
        named = {dim.name: name for dim, name in self.sizes.items()}
        words += [f"i64 %{named[n]}" for n in facts.sizes]
        words.append("ptr %.error")
        self.words = max(self.words, len(words))
        self.stored(words)
        given = f"ptr @{facts.symbol}_body, ptr %.block, i64 {facts.tasks}, ptr %.scratch"
        self.b.emit(f"call void @serial({given})")
        if facts.finish:
            self.b.emit(f"call void @{facts.symbol}_finish(ptr %.block, i64 0, ptr %.scratch)")
        if facts.sites:
            bad = self.b.value("load i64, ptr %.error")
            at = self.b.value("getelementptr i64, ptr %.error, i64 1")
            site = self.b.value(f"load i64, ptr {at}")
            short = self.b.value(f"trunc i64 {site} to i32")
            status = self.b.value(f"add i32 {short}, {1 + len(self.sites)}")
            wrong = self.b.value(f"icmp ne i64 {bad}, 0")
            self.b.fails(wrong, status, "call void @free(ptr %.memory)")
            self.sites += [site.partition("\n")[0] for site in facts.sites]


def _up(size: int) -> int:
    """A size that `aligned_alloc` takes."""
    return -(-size // LINE) * LINE


def _bytes(array: Array) -> str:
    data = np.ascontiguousarray(array).tobytes()
    return 'c"' + "".join(f"\\{byte:02X}" for byte in data) + '"'
