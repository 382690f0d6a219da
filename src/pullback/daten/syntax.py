"""The text of a daten program, as data. Nothing is evaluated.

modules:
  function linear: x[M, K] w[K, N] -> y[M, N]
    y[m, n] = sum[k](x[m, k] * w[k, n])
parameters:
  w{Grad}[3, 2] = (normal 0.1)
main:
  output = (linear x w)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn, TypeVar

from pullback.composite.syntax import Statement
from pullback.errors import Origin, PullbackError, SyntaxFormError
from pullback.operations.code import FileOrigin, Lines, moved
from pullback.operations.notation import Condition, Run, Signature, condition, signature
from pullback.operations.operation import Operation, Test

SECTIONS = ("modules", "parameters", "inputs", "main", "train")
GRAD = "Grad"
STARTS = {"normal": 1, "uniform": 2, "below": 1}  # how values are drawn, by how many numbers
MOST_BYTES = 1 << 16  # of a file
MOST_DEPTH = 100  # of calls within calls
TENSOR = re.compile(r"[^\W\d]\w*[ ]*(\{[^{}]*\})?[ ]*(\[[^\[\]]*\])?(<[\s\d,]*>)?")
NUMBER = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")
WORD = re.compile(r"[^\W\d]\w*")
HEAD = re.compile(r"(?P<names>[^\W\d]\w*(\s*,\s*[^\W\d]\w*)*)\s*=(?!=)")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Start:
    """Values to begin with: ``uniform -1 1`` where nothing is said."""

    kind: str = "uniform"
    numbers: tuple[float, ...] = (-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that is given. Not `shaped`: its sizes follow from its first use."""

    signature: Signature
    shaped: bool
    start: Start
    origin: FileOrigin

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def grad(self) -> bool:
        """Whether it is marked: it has a gradient, and is trained."""
        return GRAD in self.signature.marks


@dataclass(frozen=True, slots=True)
class Form:
    """A name, a number, or a module applied to such: ``(L1 (L2 A B) C)``."""

    head: str
    args: tuple[Form, ...] | None
    origin: FileOrigin


@dataclass(frozen=True, slots=True)
class Line:
    """``a, b = form``, or a definition ``a[i] = ..``, of which `statement` is what was read."""

    names: tuple[str, ...]
    form: Form | None
    reader: Lines | None
    statement: Statement | None
    origin: FileOrigin


@dataclass(frozen=True, slots=True)
class Text:
    """A whole file. `bare`: modules that have no body, which others must give."""

    modules: Mapping[str, Operation]
    bare: frozenset[str]
    parameters: Mapping[str, Leaf]
    inputs: Mapping[str, Leaf]
    main: tuple[Line, ...]
    settings: Mapping[str, tuple[str, FileOrigin]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line and those further to the right below it; `start`: where it begins in the file."""

    row: int
    start: int
    indent: int
    text: str
    below: tuple[str, ...] = ()


@dataclass(slots=True)
class Reader:
    """A text on its way to data."""

    text: str
    path: str
    caller: Origin
    modules: dict[str, Operation] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)
    parameters: dict[str, Leaf] = field(default_factory=dict)
    inputs: dict[str, Leaf] = field(default_factory=dict)
    main: list[Line] = field(default_factory=list)
    settings: dict[str, tuple[str, FileOrigin]] = field(default_factory=dict)

    # --- places

    def at(self, start: int, end: int) -> FileOrigin:
        """A place in the file."""
        caller = self.caller
        return FileOrigin(caller.code, caller.offset, caller, self.text, start, end, self.path)

    def fail(self, what: str, start: int, end: int, help: str = "") -> NoReturn:
        """Raises: SyntaxFormError at that place."""
        origin = self.at(start, max(end, start + 1))
        raise SyntaxFormError(what, origin=origin, help=help, code="E558")

    def placed(self, start: int, end: int, make: Callable[[], T]) -> T:
        """What `make` gives; what is wrong with it is told at this place of the file."""
        try:
            return make()
        except PullbackError as problem:
            raise moved(problem, self.at(start, end), FileOrigin) from None

    def unknown(self, what: str, name: str, known: Sequence[str], start: int) -> NoReturn:
        """Raises: SyntaxFormError that names what is known."""
        near = difflib.get_close_matches(name, known, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        help = f"{guess}these are known: {', '.join(known)}"
        self.fail(f"no {what} is called {name}", start, start + len(name), help)

    # --- sections

    def read(self) -> Text:
        """The whole text. Raises: SyntaxFormError, DTypeError."""
        entries: dict[str, list[Entry]] = {}
        section = ""
        for entry in self.entries():
            if entry.indent == 0:
                section = self.section(entry, entries)
            elif not section:
                self.fail("a line before the first section", entry.start, self.end(entry))
            else:
                entries[section].append(entry)
        if not entries.get("main"):
            self.fail("no main: with a line below it", len(self.text), len(self.text))
        readers = {
            "modules": self.module, "parameters": self.parameter, "inputs": self.input,
            "main": self.line, "train": self.setting,
        }  # fmt: skip
        for name, read in readers.items():
            for entry in self.nested(entries.get(name, [])):
                read(entry)
        for name in (*self.parameters, *self.inputs):
            if name in self.parameters and name in self.inputs:
                self.fail(f"{name} is a parameter and an input", 0, 0)
        for operation in self.modules.values():
            assert isinstance(operation.others, dict)
            operation.others.update(self.modules)
        return Text(
            self.modules, frozenset(self.bare), self.parameters, self.inputs, tuple(self.main),
            self.settings,
        )  # fmt: skip

    def entries(self) -> list[Entry]:
        """Every line that says something, without its remark."""
        made: list[Entry] = []
        start = 0
        for row, line in enumerate(self.text.split("\n"), 1):
            said = line.partition("#")[0].rstrip()
            indent = len(said) - len(said.lstrip(" "))
            if said.strip():
                if said[indent] == "\t":
                    self.fail("a tab in front of a line", start + indent, start + indent + 1,
                              "lines are set off by spaces")  # fmt: skip
                made.append(Entry(row, start + indent, indent, said[indent:]))
            start += len(line) + 1
        return made

    def section(self, entry: Entry, entries: dict[str, list[Entry]]) -> str:
        """``main:``"""
        match = re.fullmatch(r"(\w+)\s*:", entry.text)
        if match is None:
            help = f"sections are {', '.join(f'{s}:' for s in SECTIONS)}; what is in them stands"
            help += " further to the right"
            self.fail("a section begins with its name and a colon", entry.start, self.end(entry),
                      help)  # fmt: skip
        name = match[1]
        if name not in SECTIONS:
            self.unknown("section", name, SECTIONS, entry.start)
        if name in entries:
            self.fail(f"{name}: stands twice", entry.start, self.end(entry))
        entries[name] = []
        return name

    def nested(self, entries: list[Entry]) -> list[Entry]:
        """Entries with the lines further to the right below them."""
        made: list[Entry] = []
        below: list[str] = []
        for entry in entries:
            if made and entry.indent > made[0].indent:
                gap = entry.row - made[-1].row - len(below) - 1
                below += [""] * gap + [" " * entry.indent + entry.text]
                continue
            if made and entry.indent < made[0].indent:
                self.fail("a line further to the left than the first of its section", entry.start,
                          self.end(entry))  # fmt: skip
            if made:
                made[-1] = replace(made[-1], below=tuple(below))
            made.append(entry)
            below = []
        return [*made[:-1], replace(made[-1], below=tuple(below))] if made else []

    def end(self, entry: Entry) -> int:
        return entry.start + len(entry.text)

    # --- modules

    def module(self, entry: Entry) -> None:
        """``function L1: A[M, N] B[N, K] -> C[M, K] where K = 2*M`` and its body."""
        match = re.match(r"function\s+([^\W\d]\w*)\s*:", entry.text)
        if match is None:
            self.fail("a module begins with function NAME:", entry.start, self.end(entry))
        name = match[1]
        if name in self.modules:
            self.fail(f"{name} is there already", entry.start, self.end(entry))
        inputs, at = self.tensors(entry, match.end())
        if not entry.text.startswith("->", at):
            self.fail("-> and what the module gives", entry.start + at, entry.start + at + 1)
        outputs, at = self.tensors(entry, at + 2)
        if not outputs:
            self.fail("a module gives something", entry.start, self.end(entry))
        where = self.conditions(entry, at)
        code, returned = self.body(entry)
        inside = {s.name for s in inputs}
        names = returned or [s.name for s in outputs]
        if len(names) != len(outputs):
            what = f"{name} gives {len(outputs)} tensors, {len(names)} are returned"
            self.fail(what, entry.start, self.end(entry))
        if not code:
            self.bare.add(name)
            names = [f"{s.name}_made{n}" for n, s in enumerate(outputs)]
            code = f"{', '.join(names)} = {name}({', '.join(s.name for s in inputs)})"
        made = tuple(replace(s, name=n) for s, n in zip(outputs, names, strict=True))
        if len(inside) < len(inputs) or len(set(names)) < len(names):
            self.fail("two tensors of one name", entry.start, self.end(entry))
        if taken := sorted(inside & set(names)):
            help = "end the body with what is given: return z"
            self.fail(f"{taken[0]} is given to it", entry.start, self.end(entry), help)
        runs = {run.text for s in inputs for run in s.runs}
        for run in (run for s in made for run in s.runs if run.text not in runs):
            self.fail(f"{run.text} is in no input", entry.start, self.end(entry))
        origin = self.at(entry.start, self.end(entry))
        self.modules[name] = Operation(
            name, "", tuple(inputs), made, where, code, Test(), None, origin, {}, True
        )

    def tensors(self, entry: Entry, at: int) -> tuple[list[Signature], int]:
        """Tensors one after the other, and where they end."""
        made: list[Signature] = []
        while True:
            while at < len(entry.text) and entry.text[at] in " ,":
                at += 1
            match = TENSOR.match(entry.text, at)
            if match is None or match[0].strip() == "where":
                return made, at
            made.append(self.tensor(match[0], entry.start + at))
            at = match.end()

    def tensor(self, text: str, start: int) -> Signature:
        """A tensor from its notation; without brackets one without axes."""
        whole = text.strip()
        end = start + len(whole)
        told = whole if "[" in whole else f"{whole}[]"
        own = self.placed(start, end, lambda: signature(told, self.caller, (GRAD,)))
        self.named(own.name, start)
        return own

    def named(self, name: str, start: int) -> None:
        """Raises: SyntaxFormError for a name that Python has for something else."""
        if name == "self":
            self.fail("self is no name of a tensor", start, start + 4)

    def conditions(self, entry: Entry, at: int) -> tuple[Condition, ...]:
        """``where K = 2*M, M >= 2`` to the end of the line."""
        rest = entry.text[at:]
        if not rest.strip():
            return ()
        match = re.match(r"where\b", rest)
        if match is None:
            self.fail(f"unexpected {rest.split()[0]!r}", entry.start + at, self.end(entry))
        start, end = entry.start + at, self.end(entry)
        parts = rest[match.end() :].split(",")
        return tuple(self.placed(start, end, partial(condition, p, self.caller)) for p in parts)

    def body(self, entry: Entry) -> tuple[str, list[str]]:
        """Code, at the rows and columns where it stands; and what is returned."""
        lines = list(entry.below)
        returned: list[str] = []
        match = re.fullmatch(r"\s*return\s+([\w\s,]+)", lines[-1]) if lines else None
        if match is not None:
            returned = [w.strip() for w in match[1].split(",")]
            lines.pop()
        code = "\n" * entry.row + "\n".join(lines) if "".join(lines).strip() else ""
        return code, returned

    # --- parameters and inputs

    def parameter(self, entry: Entry) -> None:
        leaf = self.leaf(entry, self.parameters)
        self.parameters[leaf.name] = leaf

    def input(self, entry: Entry) -> None:
        leaf = self.leaf(entry, self.inputs)
        if leaf.grad:
            help = "parameters are marked"
            self.fail(f"{leaf.name} is data", entry.start, self.end(entry), help)
        self.inputs[leaf.name] = leaf

    def leaf(self, entry: Entry, known: Mapping[str, Leaf]) -> Leaf:
        """``w{Grad}[3, 2] = (normal 0.1)``"""
        self.alone(entry)
        match = TENSOR.match(entry.text)
        if match is None:
            self.fail("a tensor stands here: w{Grad}[3, 2]", entry.start, self.end(entry))
        own = self.tensor(match[0], entry.start)
        if own.name in known:
            self.fail(f"{own.name} is there already", entry.start, self.end(entry))
        if any(isinstance(axis, Run) for axis in own.axes) or own.order is not None:
            self.fail("what is given has axes in their order", entry.start, self.end(entry))
        rest = entry.text[match.end() :]
        start = Start()
        if rest.strip():
            if not rest.lstrip().startswith("="):
                self.fail(f"unexpected {rest.strip()!r}", entry.start + match.end(),
                          self.end(entry))  # fmt: skip
            start = self.starting(entry, match.end() + rest.index("=") + 1)
        origin = self.at(entry.start, entry.start + len(match[0].rstrip()))
        return Leaf(own, "[" in match[0], start, origin)

    def starting(self, entry: Entry, at: int) -> Start:
        """``0.5``, ``(normal 0.1)``, ``(uniform -1 1)``, ``(below 10)``"""
        text = entry.text[at:].strip()
        place = entry.start + entry.text.index(text, at) if text else self.end(entry)
        if NUMBER.fullmatch(text):
            return Start("number", (float(text),))
        match = re.fullmatch(r"\(\s*(\w+)\s*([^()]*)\)", text)
        if match is None:
            help = "a number, (normal 0.1), (uniform -1 1), (below 10)"
            self.fail("no values to begin with", place, self.end(entry), help)
        if match[1] not in STARTS:
            self.unknown("way to draw values", match[1], list(STARTS), place)
        words = match[2].split()
        if len(words) != STARTS[match[1]] or not all(NUMBER.fullmatch(w) for w in words):
            what = f"{match[1]} takes {STARTS[match[1]]} numbers"
            self.fail(what, place, self.end(entry))
        return Start(match[1], tuple(map(float, words)))

    def alone(self, entry: Entry) -> None:
        """Raises: SyntaxFormError for lines below one that has none."""
        if entry.below:
            below = self.text.index("\n", entry.start) + 1
            self.fail("a line too far to the right", below, below + 1)

    # --- main

    def line(self, entry: Entry) -> None:
        """``output = (L1 A B)``, or ``loss[] = sum[i](output[i])``."""
        origin = self.at(entry.start, self.end(entry))
        match = HEAD.match(entry.text)
        if match is None:
            self.definition(entry, origin)
            return
        self.alone(entry)
        names = tuple(w.strip() for w in match["names"].split(","))
        form, at = self.form(entry, match.end(), 0)
        if entry.text[at:].strip():
            self.fail("more than one thing is given", entry.start + at, self.end(entry),
                      "write (L1 A B)")  # fmt: skip
        self.assigned(names, entry)
        self.main.append(Line(names, form, None, None, origin))

    def assigned(self, names: Sequence[str], entry: Entry) -> None:
        """Raises: SyntaxFormError for a name that is taken."""
        taken = {*self.parameters, *self.inputs, *(n for line in self.main for n in line.names)}
        for number, name in enumerate(names):
            if name in taken or name in names[:number]:
                self.fail(f"{name} is there already", entry.start, self.end(entry))

    def definition(self, entry: Entry, origin: FileOrigin) -> None:
        """``loss[] = mean[i](..)``: the text form of definitions."""
        lead = "\n" * (entry.row - 1) + " " * entry.indent
        reader = Lines("\n".join([lead + entry.text, *entry.below]), origin)
        first, *rest = reader.statements()
        if rest:
            self.fail("a definition a line", entry.start, self.end(entry))
        self.assigned((first.name,), entry)
        self.main.append(Line((first.name,), None, reader, first, origin))

    def form(self, entry: Entry, at: int, depth: int) -> tuple[Form, int]:
        """A name, a number, or ``(L1 A B)``, and where it ends."""
        text = entry.text
        while at < len(text) and text[at] == " ":
            at += 1
        start = entry.start + at
        if depth > MOST_DEPTH:
            self.fail("nested too deeply", start, start + 1)
        number = NUMBER.match(text, at)
        word = WORD.match(text, at)
        single = word or number
        if single is not None:
            origin = self.at(start, entry.start + single.end())
            return Form(single[0], None, origin), single.end()
        if not text.startswith("(", at):
            self.fail("a name or (MODULE A B) stands here", start, start + 1)
        head = WORD.match(text, at := at + 1 + len(text[at + 1 :]) - len(text[at + 1 :].lstrip()))
        if head is None:
            self.fail("the name of a module stands here", start, start + 1)
        args: list[Form] = []
        at = head.end()
        while not text.startswith(")", at):
            if at >= len(text):
                self.fail("a parenthesis is not closed", start, start + 1)
            if text[at] == " ":
                at += 1
                continue
            arg, at = self.form(entry, at, depth + 1)
            args.append(arg)
        origin = self.at(start, entry.start + at + 1)
        return Form(head[0], tuple(args), origin), at + 1

    # --- settings

    def setting(self, entry: Entry) -> None:
        """``lr = 0.1``"""
        self.alone(entry)
        name, equals, value = (p.strip() for p in entry.text.partition("="))
        if not equals or not WORD.fullmatch(name):
            self.fail("a setting is NAME = VALUE", entry.start, self.end(entry))
        if name in self.settings:
            self.fail(f"{name} is there already", entry.start, self.end(entry))
        self.settings[name] = value, self.at(entry.start, self.end(entry))


def text_of(text: str, path: str, caller: Origin) -> Text:
    """A text as data. Raises: SyntaxFormError, DTypeError, at its line and column."""
    return Reader(text, path, caller).read()
