"""An image as text: a line for each instruction and for each fact of it, all but the code.

    image 1
    made "llvm", "0.44.0 x86_64-unknown-linux-gnu ..", null, null, 2
    state "x", "float32", [["n", 1, 64], 4]
    code {"name": "exp", "key": "5b..", "scratch": 256, ..}
    plan [4096, 4096, 8192], [0], [256], [0]
    begin 1
      loop {"count": 9, "counter": 3, "condition": null, "start": 0, "step": 1}
        launch 0, "exp", [[0, [0, 1]]], [], [1], 2048
      end
    end

A line is a word and its values, as JSON. Variables and codes are numbers, in the order of their
lines. A launch names its computation, its kernel, {code, arguments} of each part, how the tasks of
several parts are shared out, what it writes and the bytes that it moves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pullback.backends.base import Call, Code, Image, Made, Part, Stored
from pullback.config import frozen
from pullback.errors import MALFORMED, FeedError, InvalidIR, PullbackError
from pullback.ir.dtype import BY_NAME
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import (
    Block,
    Branch,
    Feed,
    HostCall,
    Item,
    Launch,
    Loop,
    Receive,
    items,
)
from pullback.memory.budget import Repetition
from pullback.memory.plan import Buffer, Plan

VERSION = 1  # raised where the text, or what routines are passed, gets another meaning
HEAD = f"image {VERSION}"
INDENT = "  "


@frozen
class Named:
    """Stands for a function of the host of which an image has the name alone."""

    name: str

    def __call__(self, *arrays: Any) -> Any:
        raise FeedError(f"an image was given no `{self.name}`")


def callbacks(block: Block) -> Iterator[tuple[str, Feed | Receive]]:
    """Feeders and receivers, each by a name of its own: its function's, or its kind and number."""
    names: dict[str, int] = {}
    for item in items(block):
        if isinstance(item, Feed | Receive):
            called = "name" if isinstance(item.callback, Named) else "__name__"
            own = str(getattr(item.callback, called, ""))
            own = own if own.isidentifier() else type(item).__name__.lower()
            count = names[own] = names.get(own, 0) + 1
            yield (own if count == 1 else f"{own}_{count}"), item


# --- writing


def image_text(image: Image, own: Sequence[Variable] = ()) -> str:
    """All of an image but its code. `own`: variables that are numbered before others."""
    writer = _Writer(dict.fromkeys((*own, *image.state)), image)
    writer.block(image.block, 1)
    made = fact("made", *astuple(image.made))
    plan = image.plan
    totals = plan.arena_bytes, plan.lower_bound_bytes, plan.total_bytes
    lines = [fact("plan", totals, plan.scratch, plan.stride, plan.shared)]
    lines += [writer.buffer(b, at) for b, at in plan.placed]
    lines += [fact("again", *astuple(step)) for step in image.steps]
    state = frozenset(image.state)
    values = [_variable_line("state" if v in state else "value", v) for v in writer.numbers]
    codes = [fact("code", asdict(code.stored)) for code in writer.codes]
    begin = fact("begin", len(image.kernels), *(["split"] if image.split else []))
    return "\n".join([HEAD, made, *values, *codes, *lines, begin, *writer.lines, "end\n"])


def fact(word: str, *values: Any) -> str:
    """A line."""
    return f"{word} {json.dumps(values)[1:-1]}"


def facts(text: str, word: str) -> list[list[Any]]:
    """The values of each line of a word. Raises: ValueError for a line that is none."""
    lines = (line.strip().partition(" ") for line in text.splitlines())
    return [json.loads(f"[{values}]") for own, _, values in lines if own == word]


def _variable_line(word: str, variable: Variable) -> str:
    shape = [[e.name, e.lo, e.hi] if isinstance(e, Dim) else e for e in variable.shape]
    return fact(word, variable.name, variable.dtype.name, shape)


class _Writer:
    """Instructions as lines; variables and codes are numbered in order of appearance."""

    def __init__(self, variables: Mapping[Variable, Any], image: Image) -> None:
        self.numbers = {v: n for n, v in enumerate(variables)}
        self.codes: dict[Code, int] = {}
        self.calls = image.calls
        self.computations = {k: n for n, group in enumerate(image.kernels) for k in group}
        self.names: dict[Item, str] = {item: name for name, item in callbacks(image.block)}
        self.lines: list[str] = []

    def variables(self, variables: Sequence[Variable]) -> list[int]:
        return [self.numbers.setdefault(v, len(self.numbers)) for v in variables]

    def one(self, variable: Variable | None) -> int | None:
        return None if variable is None else self.variables([variable])[0]

    def put(self, depth: int, word: str, *values: Any) -> None:
        self.lines.append(INDENT * depth + (fact(word, *values) if values else word))

    def block(self, block: Block, depth: int) -> None:
        for item in block:
            self.item(item, depth)

    def item(self, item: Item, depth: int) -> None:
        match item:
            case Launch():
                self.launch(item.kernel, depth)
            case Loop():
                places = {"counter": self.one(item.counter), "condition": self.one(item.condition)}
                steps = {"start": item.start, "step": item.step}
                self.put(depth, "loop", {"count": item.count, **places, **steps})
                self.block(item.body, depth + 1)
                self.put(depth, "end")
            case Branch():
                self.put(depth, "branch", self.one(item.predicate))
                self.block(item.then, depth + 1)
                self.put(depth, "else")
                self.block(item.otherwise, depth + 1)
                self.put(depth, "end")
            case Feed():
                targets = self.variables(item.targets)
                self.put(depth, "feed", self.names[item], targets, item.single, item.depth)
            case Receive():
                sources = self.variables(item.sources)
                self.put(depth, "receive", self.names[item], sources, item.every, item.depth)
            case HostCall():
                given, made = self.variables(item.sources), self.variables(item.targets)
                self.put(depth, "call", item.name, item.library, given, made)
            case _:
                raise InvalidIR(f"{type(item).__name__} in an image")

    def launch(self, kernel: Kernel, depth: int) -> None:
        call = self.calls[kernel]
        number = self.computations[kernel]
        parts = [
            (self.codes.setdefault(p.code, len(self.codes)), self.variables(p.arguments))
            for p in call.parts
        ]
        writes = self.variables(call.writes)
        self.put(depth, "launch", number, call.name, parts, call.shares, writes, call.moved)

    def buffer(self, b: Buffer, at: int) -> str:
        places = b.name, b.size, b.align, b.first, b.last, self.one(b.variable), self.one(b.over)
        return fact("place", *places, at)


# --- reading


Functions = Mapping[str, Callable[..., Any]]
Load = Callable[[Made, Sequence[Stored]], Sequence[Code] | None]


def read_image(
    text: str, load: Load, own: Sequence[Variable] = (), functions: Functions = MappingProxyType({})
) -> Image | None:
    """The image of a text. `load` gives its code; None: that is not there, so neither is this.

    `own` are the variables that come first, `functions` its callbacks by name.

    Raises: InvalidIR for a text that is none.
    """
    head, _, rest = text.partition("\n")
    if head != HEAD:
        raise InvalidIR(f"{head[:40]!r} is not {HEAD!r}")
    reader = _Reader(load, list(own), functions)
    try:
        for line in rest.splitlines():
            word, _, values = line.strip().partition(" ")
            reader.line(word, json.loads(f"[{values}]"))
            if reader.missing:
                return None
        return reader.image()
    except PullbackError:
        raise
    except MALFORMED as error:
        raise InvalidIR(f"a text is no image: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _Open:
    """A block that has not ended: what it is of, and the first half of a branch."""

    kind: str
    values: list[Any]
    items: list[Item] = field(default_factory=list)
    then: Block = ()


@dataclass(slots=True)
class _Reader:
    """Lines as they come."""

    load: Load
    own: list[Variable]
    functions: Functions
    variables: list[Variable] = field(default_factory=list)
    state: list[Variable] = field(default_factory=list)
    facts: list[Stored] = field(default_factory=list)
    codes: Sequence[Code] = ()
    missing: bool = False
    made: Made | None = None
    plan: Plan | None = None
    placed: list[tuple[Buffer, int]] = field(default_factory=list)
    steps: list[Repetition] = field(default_factory=list)
    groups: list[list[Kernel]] = field(default_factory=list)
    calls: dict[Kernel, Call] = field(default_factory=dict)
    open: list[_Open] = field(default_factory=list)
    body: Block | None = None
    split: bool = False

    def line(self, word: str, values: list[Any]) -> None:
        """One line. Raises: InvalidIR, and what `MALFORMED` lists."""
        match word:
            case "made":
                self.made = Made(*values)
            case "state" | "value":
                self.variable(word, *values)
            case "code":
                self.facts.append(_stored(*values))
            case "plan":
                (arena, bound, total), *offsets = values
                scratch, stride, shared = map(tuple, offsets)
                self.plan = Plan({}, scratch, stride, shared, arena, bound, total, ())
            case "place":
                name, size, align, first, last, *held, at = values
                variable, over = map(self.one, held)
                self.placed.append((Buffer(name, size, align, first, last, variable, over), at))
            case "again":
                self.steps.append(Repetition(*values))
            case "begin":
                self.begin(*values)
            case "loop" | "branch":
                self.open.append(_Open(word, values))
            case "else":
                last = self.open[-1]
                last.then, last.items = tuple(last.items), []
            case "end":
                self.end(self.open.pop())
            case "interface" | "object" | "contents":  # what a file says of itself
                pass
            case _:
                self.open[-1].items.append(self.item(word, *values))

    def variable(self, word: str, name: str, kind: str, shape: list[Any]) -> None:
        number = len(self.variables)
        if number < len(self.own):
            variable = self.own[number]
        else:
            extents: list[Extent] = [Dim(*e) if isinstance(e, list) else int(e) for e in shape]
            variable = Variable(name, tuple(extents), BY_NAME[kind])
        self.variables.append(variable)
        if word == "state":
            self.state.append(variable)

    def one(self, number: int | None) -> Variable | None:
        return None if number is None else self.known(number)

    def known(self, number: int) -> Variable:
        if number < 0:
            raise InvalidIR(f"there is no variable {number}")
        return self.variables[number]

    def many(self, numbers: Sequence[int]) -> tuple[Variable, ...]:
        return tuple([self.known(n) for n in numbers])

    def begin(self, computations: int, *marks: str) -> None:
        """The code is loaded before the first instruction."""
        if self.made is None:
            raise InvalidIR("an image does not say what made it")
        codes = self.load(self.made, self.facts)
        self.missing = codes is None
        self.codes = codes or ()
        self.split = bool(marks)
        self.groups = [[] for _ in range(computations)]
        self.open.append(_Open("begin", []))

    def end(self, block: _Open) -> None:
        items = tuple(block.items)
        if block.kind == "begin":
            self.body = items
            return
        (values,) = block.values
        if block.kind == "branch":
            item: Item = Branch(self.known(values), block.then, items)
        else:
            counter = self.one(values["counter"])
            condition = self.one(values["condition"])
            places = values["start"], values["step"]
            item = Loop(items, values["count"], counter, condition, *places)
        self.open[-1].items.append(item)

    def item(self, word: str, *values: Any) -> Item:
        match word:
            case "launch":
                return self.launch(*values)
            case "feed":
                name, targets, single, depth = values
                return Feed(self.function(name), self.many(targets), single, depth)
            case "receive":
                name, sources, every, depth = values
                return Receive(self.function(name), self.many(sources), every, depth)
            case "call":
                name, library, sources, targets = values
                return HostCall(name, library, Named(name), self.many(sources), self.many(targets))
        raise InvalidIR(f"{word!r} is no instruction")

    def function(self, name: str) -> Callable[..., Any]:
        return self.functions.get(name) or Named(name)

    def launch(
        self,
        computation: int,
        name: str,
        parts: list[Any],
        shares: list[int],
        writes: list[int],
        moved: int,
    ) -> Launch:
        kernel = Kernel(name, (), ())
        given = tuple([Part(self.codes[code], self.many(numbers)) for code, numbers in parts])
        self.calls[kernel] = Call(name, given, tuple(shares), self.many(writes), moved)
        self.groups[computation].append(kernel)
        return Launch(kernel)

    def image(self) -> Image:
        """All that was read. Raises: InvalidIR where something lacks."""
        if self.made is None or self.plan is None or self.body is None or self.open:
            raise InvalidIR("an image ends before its end")
        if any(at < 0 or at + b.size > self.plan.arena_bytes for b, at in self.placed):
            raise InvalidIR("an image places something outside of its memory")
        offsets = {b.variable: at for b, at in self.placed if b.variable is not None}
        plan = replace(self.plan, offsets=offsets, placed=tuple(self.placed))
        known = self.made, tuple(self.state), self.body, self.groups, self.calls, plan
        return Image(*known, tuple(self.steps), self.split)


def _stored(facts: dict[str, Any]) -> Stored:
    lists = {name: tuple(facts[name]) for name in ("shared", "sites", "sizes")}
    return Stored(**{**facts, **lists})
