"""Loop nests read back from their text: a reader for each kind of line, over the tokens of it.

``seq k3 in 0..16:``, ``acc[i, j] sum= a * b[j]``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from pullback.cli.graph_text import MAX_DEPTH, Scope, expression, joined, label
from pullback.errors import SyntaxFormError
from pullback.ir import dtype as D
from pullback.ir import nest as N
from pullback.ir.expr import Const, Expr, Take
from pullback.ir.graph import COMBINERS, Combiner, Variable, replace_reads
from pullback.ir.notation import BINARY
from pullback.ir.tokens import WHOLE, Tokens

NATIVES = {name: partial(lambda name, *args: N.Native(name, args), name) for name in N.NATIVES}
KINDS = {kind.value: kind for kind in N.LoopKind}
SPACES = ("argument", "scratch", "shared")
# Operators that bind as tight: those of what is compared, and of a term of a sum.
CHOICE, TERM = BINARY["<"][0] + 1, BINARY["*"][0]
PLACED = {"[", "=", *COMBINERS}  # what follows a place in a statement


@dataclass(slots=True)
class _Reader:
    """The lines of a nest, in order, and what the names of it mean: leaves by name, and what is
    read by index.
    """

    lines: list[tuple[int, str]]  # with their numbers
    at: int = 0
    leaves: dict[str, Expr] = field(default_factory=dict)
    places: dict[str, N.Array | N.Register] = field(default_factory=dict)
    stands: dict[str, Variable] = field(default_factory=dict)
    arrays: list[N.Array] = field(default_factory=list)
    streamed: list[N.Array] = field(default_factory=list)
    sizes: list[N.Var] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The next line, empty at the end."""
        return self.lines[self.at][1] if self.at < len(self.lines) else ""

    @property
    def depth(self) -> int:
        """How far the next line stands to the right."""
        return (len(self.line) - len(self.line.lstrip())) // 2

    def take(self) -> Tokens:
        """Pass a line."""
        if not self.line:
            raise SyntaxFormError("unexpected end of a nest", code="E172")
        number, line = self.lines[self.at]
        self.at += 1
        return Tokens(line, number)

    # --- a nest

    def routine(self) -> N.Routine:
        """``routine NAME, task NAME < 4``, what it is given, its body, and what runs once."""
        t = self.take()
        t.take("routine")
        name = label(t)
        t.said(", task")
        own = t.take()
        t.take("<")
        tasks = t.whole()
        t.end()
        task = N.Var(own, 0, max(tasks - 1, 0))
        self.leaves[own] = task
        while self.head(self.line.split(maxsplit=1)[:1]):
            pass
        body, finish = self.block(1), tuple[N.Stmt, ...]()
        if self.line:
            t = self.take()
            t.take("finish")
            t.end()
            finish = self.block(1)
        if self.line:
            self.take().fail("not a statement, or too far to the left")
        given, scratch, shared = (tuple(a for a in self.arrays if a.space == s) for s in SPACES)
        facts = tuple(self.sizes), scratch, shared, task, tasks, body, finish
        return N.Routine(name, given, *facts, tuple(self.sites), tuple(self.streamed))

    def head(self, words: list[str]) -> bool:
        """Whether the next line says what a nest is given; then it is read."""
        match words:
            case ["argument" | "scratch" | "shared" as space]:
                self.array(self.take(), space)
            case ["size"]:
                self.size(self.take())
            case ["site"]:  # a text for people, not of tokens
                number, line = self.lines[self.at]
                said, _, text = line.partition(":")
                t = Tokens(said, number)
                t.take()
                t.whole()
                t.end()
                self.at += 1
                self.sites.append(text.removeprefix(" "))
            case _:
                return False
        return True

    def array(self, t: Tokens, space: str) -> None:
        """``argument x: float32[64] past the caches``"""
        t.take(space)
        name = t.take()
        t.take(":")
        kind = t.one_of(D.BY_NAME, f"no element type {t.next}")
        t.take("[")
        array = N.Array(name, kind, t.whole(), space)
        t.take("]")
        if t.phrase("past the caches"):
            self.streamed.append(array)
        t.end()
        self.arrays.append(array)
        self.know(array)

    def size(self, t: Tokens) -> None:
        """``size n in 1..64``"""
        t.take("size")
        name = t.take()
        t.take("in")
        low = t.whole()
        t.take("..")
        size = N.Var(name, low, t.whole())
        t.end()
        self.sizes.append(size)
        self.leaves[name] = size

    def know(self, place: N.Array | N.Register) -> None:
        """A register without axes is a leaf; others are read by index."""
        shape = (place.size,) if isinstance(place, N.Array) else place.shape
        self.places[place.name] = place
        if isinstance(place, N.Register) and not shape:
            self.leaves[place.name] = N.Peek(place, ())
        else:
            self.stands[place.name] = Variable(place.name, shape, place.dtype)

    # --- expressions

    def scope(self) -> Scope:
        return Scope({**self.stands}, {}, parts=self.leaves, calls=NATIVES)

    def one(self, t: Tokens, least: int = 1) -> Expr:
        """An expression, of operators that bind at least as tight."""
        return self.loaded(expression(t, self.scope(), least))

    def loaded(self, value: Expr) -> Expr:
        """What is read by index, from arrays and registers."""
        return replace_reads(value, self._load)

    def _load(self, take: Take) -> Expr:
        place = self.places[take.source.name]
        if isinstance(place, N.Array):
            return N.Load(place, take.indices[0])
        return N.Peek(place, take.indices)

    def element(self, t: Tokens) -> tuple[N.Array, Expr]:
        """``x[i * 4]``"""
        array = self.named(t)
        t.take("[")
        index = self.one(t)
        t.take("]")
        return array, index

    def named(self, t: Tokens) -> N.Array:
        place = self.places.get(t.next)
        if not isinstance(place, N.Array):
            t.fail(f"no array is called {t.next}")
        t.take()
        return place

    # --- statements

    def block(self, depth: int) -> tuple[N.Stmt, ...]:
        """Statements at a depth, with what is deeper inside of them."""
        statements: list[N.Stmt] = []
        if depth > MAX_DEPTH:
            self.take().fail("nested too deeply")
        while self.line and self.depth == depth:
            t = self.take()
            if t.next.startswith("$"):
                name = t.take()
                t.take("=")
                self.leaves[name] = self.one(t)
                t.end()
                continue
            statements.append(self.statement(t, depth))
        if self.line and self.depth > depth:
            self.take().fail("too far to the right")
        return tuple(statements)

    def statement(self, t: Tokens, depth: int) -> N.Stmt:
        """What a line says, by its first word; a place may have the name of such a word."""
        follows = t.items[t.at + 1][1] if len(t.items) > 1 else ""
        if self.declares(t):
            made: N.Stmt = self.declare(t)
        elif follows in PLACED:
            made = self.transpose(t) if _turned(t) else self.assignment(t)
        elif t.next in KINDS:
            return self.loop(t, depth)
        elif t.skip("if"):
            condition = self.one(t)
            t.said(":")
            t.end()
            return N.Guard(condition, self.block(depth + 1))
        elif t.phrase("check 0 < ="):
            index = self.one(t, CHOICE)
            t.take("<")
            extent = self.one(t, CHOICE)
            t.said(", site")
            made = N.Check(index, extent, t.whole())
        elif t.skip("prefetch"):
            made = N.Prefetch(*self.element(t))
        else:
            t.fail("not a statement")
        t.end()
        return made

    def declares(self, t: Tokens) -> bool:
        """Whether a type begins a line, not a place of the same name."""
        start = t.at
        typed = t.take() in D.BY_NAME
        if typed and t.skip("["):
            while t.next not in ("", "]"):
                t.take()
            t.skip("]")
        typed = typed and t.kind == "name" and t.next not in COMBINERS
        t.at = start
        return typed

    def declare(self, t: Tokens) -> N.Declare:
        """``float32[4, 16] sums = 0.0``"""
        kind = D.BY_NAME[t.take()]
        shape = tuple(t.listed("[", "]", t.whole)) if t.next == "[" else ()
        register = N.Register(t.take(), kind, shape)
        t.take("=")
        made = N.Declare(register, self.one(t))
        self.know(register)
        return made

    def loop(self, t: Tokens, depth: int) -> N.For:
        """``vector x2 j in 0..n by 8 within 0..63:``"""
        kind = KINDS[t.take()]
        flights, name = "x1", t.take()
        if t.next != "in":
            flights, name = name, t.take()
        if flights[:1] != "x" or not flights[1:].isdecimal() or len(flights) > WHOLE:
            t.fail("so many in flight: x4")
        t.take("in")
        lo = self.one(t)
        t.take("..")
        hi = self.one(t)
        step = t.number_after("by")
        if t.skip("within"):
            least = _signed(t)
            t.take("..")
            most = _signed(t)
        else:
            least, most = _literal(t, lo, name), _literal(t, hi, name) - 1
        t.said(":")
        t.end()
        var = self.leaves[name] = N.Var(name, least, most)
        body = self.block(depth + 1)
        return N.For(var, lo, hi, body, kind, 1 if step is None else step, int(flights[1:]))

    def transpose(self, t: Tokens) -> N.Transpose:
        """``a[i + c*8 + r] = b[j + r*64 + c] for r < 8, c < n in words of 2``"""
        target, to, to_row = self.turned(t, "c", "r")
        t.take("=")
        source, of, of_row = self.turned(t, "r", "c")
        t.said("for r <")
        rows = self.one(t, CHOICE)
        t.said(", c <")
        columns = self.one(t, CHOICE)
        word = t.number_after("in words of")
        extents = rows, columns, 1 if word is None else word
        return N.Transpose(target, to, to_row, source, of, of_row, *extents)

    def turned(self, t: Tokens, row: str, along: str) -> tuple[N.Array, Expr, int]:
        """``a[i + c*8 + r]``: the array, where it begins, from row to row."""
        array = self.named(t)
        t.take("[")
        scope = self.scope()
        base = expression(t, scope, TERM)
        while True:
            start = t.at
            apart = t.number_after(f"+ {row} *")
            if apart is not None and t.phrase(f"+ {along} ]"):
                return array, self.loaded(base), apart
            t.at = start
            if t.next not in ("+", "-"):
                t.fail(f"expected + {row}*8 + {along}")
            base = joined(t, t.take(), base, expression(t, scope, TERM))

    def assignment(self, t: Tokens) -> N.Stmt:
        """``x[i] = a``, ``sums[0, j] sum= a``, ``y = a``"""
        place = self.places.get(t.next)
        if place is None:
            t.fail(f"not a statement: nothing is called {t.next}")
        t.take()
        indices = tuple(t.listed("[", "]", lambda: self.one(t))) if t.next == "[" else ()
        if isinstance(place, N.Array) and len(indices) != 1:
            t.fail("an array has one index")
        join: Combiner | None = None
        if t.next != "=":
            join = t.one_of(COMBINERS, f"no reduction {t.next}")
        t.take("=")
        value = self.one(t)
        if isinstance(place, N.Array):
            if join is None:
                return N.Store(place, indices[0], value)
            return N.StoreCombine(place, indices[0], join, value)
        if join is None:
            return N.Set(place, indices, value)
        return N.Combine(place, indices, join, value)


def _turned(t: Tokens) -> bool:
    """Whether a line copies a block the other way round."""
    words = [text for _, text, _ in t.items]
    return any(words[n : n + 3] == ["for", "r", "<"] for n in range(len(words)))


def _signed(t: Tokens) -> int:
    return -t.whole() if t.skip("-") else t.whole()


def _literal(t: Tokens, bound: Expr, name: str) -> int:
    if not isinstance(bound, Const) or not bound.dtype.is_integer:
        t.fail(f"{name} needs its bounds: within 0..7")
    return int(bound.value)


def parse_routine(text: str) -> N.Routine:
    """The loop nest that `text` (as printed) describes.

    Raises: SyntaxFormError with the line and a caret under the first wrong token.
    """
    lines = enumerate(text.splitlines(), 1)
    kept = [(n, line) for n, line in lines if line.strip() and line.lstrip()[:1] != "#"]
    return _Reader(kept).routine()
