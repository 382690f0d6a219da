"""Loop nests read back from their text, line by line.

``seq k3 in 0..16:``, ``acc[i, j] sum= a * b[j]``
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

from pullback.cli.graph_text import Scope, expression
from pullback.errors import SyntaxFormError
from pullback.ir import dtype as D
from pullback.ir import nest as N
from pullback.ir.expr import Const, Expr, Take
from pullback.ir.graph import COMBINERS, Variable, replace_reads
from pullback.ir.tokens import Tokens

# Numbers of more than 18 digits are none that an int64 holds.
ROUTINE = re.compile(r"routine (\S+), task (\S+) < (\d{1,18})")
ARRAY = re.compile(r"  (argument|scratch|shared) (\S+): (\w+)\[(\d{1,18})\]( past the caches)?")
SIZE = re.compile(r"  size (\S+) in (\d{1,18})\.\.(\d{1,18})")
SITE = re.compile(r"  site \d+: ?(.*)")
RANGE = r"in (.+?)\.\.(.+?)(?: by (\d{1,18}))?(?: within (-?\d{1,18})\.\.(-?\d{1,18}))?:"
LOOP = re.compile(rf"(seq|unroll|vector)(?: x(\d{{1,18}}))? (\S+) {RANGE}")
DECLARE = re.compile(r"(\w+)(?:\[(\d{1,18}(?:, \d{1,18})*)\])? ([^\s\[]+) = (.*)")
ASSIGN = re.compile(rf" ({'|'.join(COMBINERS)})?= ")
CHECK = re.compile(r"check 0 <= (.*) < (.*), site (\d{1,18})")
PREFETCH = re.compile(r"prefetch ([^\s\[]+)\[(.*)\]")
TRANSPOSE = re.compile(
    r"([^\s\[]+)\[(.*) \+ c\*(\d{1,18}) \+ r\] = ([^\s\[]+)\[(.*) \+ r\*(\d{1,18}) \+ c\]"
    r" for r < (.*), c < (.*?)(?: in words of (\d{1,18}))?"
)
NATIVES = {name: partial(lambda name, *args: N.Native(name, args), name) for name in N.NATIVES}
Line = tuple[int, int, str]  # number, depth, text


@dataclass(slots=True)
class _Reader:
    """What the names of a nest mean: leaves by name, and what is read by index."""

    leaves: dict[str, Expr] = field(default_factory=dict)
    places: dict[str, N.Array | N.Register] = field(default_factory=dict)
    stands: dict[str, Variable] = field(default_factory=dict)

    def know(self, place: N.Array | N.Register) -> None:
        """A register without axes is a leaf; others are read by index."""
        shape = (place.size,) if isinstance(place, N.Array) else place.shape
        self.places[place.name] = place
        if isinstance(place, N.Register) and not shape:
            self.leaves[place.name] = N.Peek(place, ())
        else:
            self.stands[place.name] = Variable(place.name, shape, place.dtype)

    def several(self, text: str, number: int) -> tuple[Expr, ...]:
        """Expressions between commas."""
        tokens = Tokens(text, number)
        scope = Scope({**self.stands}, {}, parts=self.leaves, calls=NATIVES)
        expressions = [expression(tokens, scope)]
        while tokens.skip(","):
            expressions.append(expression(tokens, scope))
        tokens.end()
        return tuple([replace_reads(e, self._load) for e in expressions])

    def one(self, text: str, number: int) -> Expr:
        return self.several(text, number)[0]

    def _load(self, take: Take) -> Expr:
        place = self.places[take.source.name]
        if isinstance(place, N.Array):
            return N.Load(place, take.indices[0])
        return N.Peek(place, take.indices)

    def place(self, inner: str, number: int) -> Expr:
        """Where in an array."""
        indices = self.several(inner, number)
        if len(indices) != 1:
            raise SyntaxFormError(f"line {number}: an array has one index", code="E172")
        return indices[0]

    def array(self, name: str, number: int) -> N.Array:
        place = self.places.get(name)
        if not isinstance(place, N.Array):
            raise SyntaxFormError(f"line {number}: no array is called {name}", code="E172")
        return place

    def block(self, lines: list[Line], depth: int) -> tuple[N.Stmt, ...]:
        """Statements at a depth, with what is deeper inside of them; taken off `lines`."""
        statements: list[N.Stmt] = []
        while lines and lines[0][1] == depth:
            number, _, text = lines.pop(0)
            if text.startswith("$"):
                name, _, value = text.partition(" = ")
                self.leaves[name] = self.one(value, number)
                continue
            statements.append(self.statement(text, number, lines, depth))
        if lines and lines[0][1] > depth:
            raise SyntaxFormError(f"line {lines[0][0]}: too far to the right", code="E172")
        return tuple(statements)

    def statement(self, text: str, number: int, lines: list[Line], depth: int) -> N.Stmt:
        if match := LOOP.fullmatch(text):
            return self.loop(match, number, lines, depth)
        if text.startswith("if ") and text.endswith(":"):
            condition = self.one(text[3:-1], number)
            return N.Guard(condition, self.block(lines, depth + 1))
        if match := CHECK.fullmatch(text):
            index, extent = (self.one(match[n], number) for n in (1, 2))
            return N.Check(index, extent, int(match[3]))
        if match := PREFETCH.fullmatch(text):
            return N.Prefetch(self.array(match[1], number), self.place(match[2], number))
        if match := TRANSPOSE.fullmatch(text):
            return self.transpose(match, number)
        if (match := DECLARE.fullmatch(text)) and match[1] in D.BY_NAME:
            shape = tuple([int(n) for n in (match[2] or "").split(",") if n])
            register = N.Register(match[3], D.BY_NAME[match[1]], shape)
            init = self.one(match[4], number)
            self.know(register)
            return N.Declare(register, init)
        return self.assignment(text, number)

    def loop(self, match: re.Match[str], number: int, lines: list[Line], depth: int) -> N.For:
        kind, flights, name, low, high, step, least, most = match.groups()
        lo, hi = self.one(low, number), self.one(high, number)
        if least is None:
            least, most = _literal(lo, name, number), _literal(hi, name, number) - 1
        var = N.Var(name, int(least), int(most))
        self.leaves[name] = var
        body = self.block(lines, depth + 1)
        return N.For(var, lo, hi, body, N.LoopKind(kind), int(step or 1), int(flights or 1))

    def transpose(self, match: re.Match[str], number: int) -> N.Transpose:
        target, to, to_row, source, at, at_row, rows, columns, word = match.groups()
        return N.Transpose(
            self.array(target, number), self.one(to, number), int(to_row),
            self.array(source, number), self.one(at, number), int(at_row),
            self.one(rows, number), self.one(columns, number), int(word or 1),
        )  # fmt: skip

    def assignment(self, text: str, number: int) -> N.Stmt:
        match = ASSIGN.search(text)
        name, _, inner = text[: match.start()].partition("[") if match else ("", "", "")
        place = self.places.get(name)
        if match is None or place is None:
            raise SyntaxFormError(f"line {number}: not a statement: {text}", code="E172")
        value = self.one(text[match.end() :], number)
        inner = inner.removesuffix("]")
        join = COMBINERS[match[1]] if match[1] else None
        if isinstance(place, N.Register):
            indices = self.several(inner, number) if inner else ()
            if join is None:
                return N.Set(place, indices, value)
            return N.Combine(place, indices, join, value)
        index = self.place(inner, number)
        if join is None:
            return N.Store(place, index, value)
        return N.StoreCombine(place, index, join, value)


def _literal(bound: Expr, name: str, number: int) -> int:
    if not isinstance(bound, Const) or not bound.dtype.is_integer:
        what = f"line {number}: {name} needs its bounds: within 0..7"
        raise SyntaxFormError(what, code="E172")
    return int(bound.value)


def parse_routine(text: str) -> N.Routine:
    """The loop nest that `text` (as printed) describes.

    Raises: SyntaxFormError with the line.
    """
    first, *rest = text.splitlines() or [""]
    match = ROUTINE.fullmatch(first)
    if match is None:
        raise SyntaxFormError("expected: routine NAME, task NAME < NUMBER", code="E172")
    reader = _Reader()
    spaces: dict[str, list[N.Array]] = {"argument": [], "scratch": [], "shared": []}
    sizes, sites, streamed = [], [], []
    lines: list[Line] = []
    for number, line in enumerate(rest, 2):
        if head := ARRAY.fullmatch(line):
            if head[3] not in D.BY_NAME:
                raise SyntaxFormError(f"line {number}: no element type {head[3]}", code="E172")
            array = N.Array(head[2], D.BY_NAME[head[3]], int(head[4]), head[1])
            spaces[head[1]].append(array)
            streamed += [array] if head[5] else []
            reader.know(array)
        elif head := SIZE.fullmatch(line):
            sizes.append(N.Var(head[1], int(head[2]), int(head[3])))
        elif head := SITE.fullmatch(line):
            sites.append(head[1])
        elif line.strip() and not line.lstrip().startswith("#"):
            lines.append((number, (len(line) - len(line.lstrip())) // 2, line.strip()))
    tasks = int(match[3])
    task = N.Var(match[2], 0, max(tasks - 1, 0))
    reader.leaves |= {v.name: v for v in (task, *sizes)}
    body = reader.block(lines, 1)
    finish: tuple[N.Stmt, ...] = ()
    if lines and lines.pop(0)[2] == "finish":
        finish = reader.block(lines, 1)
    given, scratch, shared = map(tuple, spaces.values())
    return N.Routine(
        match[1],
        given,
        tuple(sizes),
        scratch,
        shared,
        task,
        tasks,
        body,
        finish,
        tuple(sites),
        tuple(streamed),
    )
