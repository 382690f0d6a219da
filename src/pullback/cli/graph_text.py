"""Graphs and kernels read back from their text: an allow-listed grammar, no evaluation.

``c[i, j] = sum[k < 64](a[i, k] * b[k, j])``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from pullback.errors import InvalidIR, SyntaxFormError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Const, Dim, Expr, Extent, Take
from pullback.ir.graph import (
    COMBINERS,
    Accumulate,
    Combiner,
    Definition,
    Form,
    Graph,
    Keep,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
)
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.notation import BINARY, SUFFIX, UNARY, axis_number
from pullback.ir.tokens import Tokens

Heads = dict[str, Callable[["Tokens"], None]]
_TYPES = {suffix: name for name, suffix in SUFFIX.items() if suffix}
_LEVELS = {symbol: level for symbol, (level, _) in BINARY.items()} | {"-": 5}
_CALLS: dict[str, tuple[int, Callable[..., Expr]]] = {
    **{name: (1, cls) for name, cls in UNARY.items()},
    **{name: (1, lambda x, kind=kind: E.Cast(x, kind)) for name, kind in D.BY_NAME.items()},
    "if": (3, E.If),
    "max": (2, E.maximum),
    "min": (2, E.minimum),
}
MAX_DEPTH = 64  # of brackets and signs; what is printed names its parts long before
MAX_DIGITS = 300


@dataclass(slots=True)
class Scope:
    """What the names of an expression mean."""

    values: dict[str, Value]
    dims: dict[str, Dim]
    extents: tuple[Extent, ...] = ()
    parts: dict[str, Expr] = field(default_factory=dict)
    calls: Mapping[str, Callable[..., Expr]] = field(default_factory=dict)


def expression(t: Tokens, scope: Scope, least: int = 1) -> Expr:
    """Operators that bind at least as tight as `least`, left to right."""
    left = _operand(t, scope)
    while t.kind == "symbol" and _LEVELS.get(t.next, 0) >= least:
        symbol = t.take()
        level = _LEVELS[symbol]
        left = joined(t, symbol, left, expression(t, scope, level + 1))
        if level == 1:
            break
    return left


def joined(t: Tokens, symbol: str, left: Expr, right: Expr) -> Expr:
    """Two operands. Raises: SyntaxFormError where their types do not go together."""
    return _checked(t, partial(_join, symbol, left, right))


def label(t: Tokens) -> str:
    """Pass the name of a kernel, of any tokens without space or comma between: ``a..b``."""
    parts = [t.take()]
    while t.next not in ("", ",") and not t.line[t.items[t.at][2] - 1].isspace():
        parts.append(t.take())
    return "".join(parts)


def _join(symbol: str, left: Expr, right: Expr) -> Expr:
    if symbol != "-":
        return BINARY[symbol][1](left, right)
    if isinstance(right, Const):
        return E.Add(left, Const(-right.value, right.kind))
    return E.Add(left, E.negate(right))


def _checked(t: Tokens, build: Callable[[], Expr]) -> Expr:
    try:
        return build()
    except InvalidIR as wrong:
        t.fail(str(wrong))


def _operand(t: Tokens, scope: Scope) -> Expr:
    if t.depth == MAX_DEPTH:
        t.fail("nested too deeply")
    t.depth += 1
    operand = _prefixed(t, scope)
    t.depth -= 1
    return operand


def _prefixed(t: Tokens, scope: Scope) -> Expr:
    if t.skip("-"):
        value = _operand(t, scope)
        if isinstance(value, Const) and value.value == value.value and t.items[t.at - 1][1] != ")":
            return Const(-value.value, value.kind)
        return E.negate(value)
    if t.skip("~"):
        value = _operand(t, scope)
        return _checked(t, lambda: E.logical_not(value))
    if t.skip("("):
        inner = expression(t, scope)
        t.take(")")
        return inner
    if t.kind == "number":
        return _number(t)
    if t.kind != "name":
        t.fail("expected an operand")
    return _named(t, scope)


def _number(t: Tokens) -> Const:
    text = t.take()
    suffix = max((s for s in _TYPES if text.endswith(s)), key=len, default="")
    digits = text.removesuffix(suffix)
    real = bool(re.search(r"[.en]", digits))
    kind = D.BY_NAME[_TYPES[suffix]] if suffix else D.float32 if real else D.int64
    if kind.is_float != real:
        t.fail(f"{digits} is no {kind}")
    if real:
        return Const(float(digits), kind)
    lo, hi = kind.range()
    if len(digits) > MAX_DIGITS or not lo <= int(digits) <= hi:
        t.fail(f"the number does not fit {kind}")
    return Const(int(digits), kind)


def _named(t: Tokens, scope: Scope) -> Expr:
    name = t.take()
    if name in ("true", "false"):
        return Const(name == "true", D.bool_)
    if name in scope.parts:
        return scope.parts[name]
    if t.next == "[":
        return _read(t, scope, name)
    if t.next == "(":
        return _call(t, scope, name)
    number = axis_number(name)
    if number is None or number >= len(scope.extents):
        t.at -= 1
        t.fail(f"unknown name {name}")
    return E.Axis(number, scope.extents[number])


def _read(t: Tokens, scope: Scope, name: str) -> Expr:
    source = scope.values.get(name)
    if source is None:
        t.fail(f"nothing is called {name}")
    indices = t.listed("[", "]", lambda: expression(t, scope))
    return _checked(t, lambda: Take(source, tuple(indices)))


def _call(t: Tokens, scope: Scope, name: str) -> Expr:
    if name == "size":
        t.take("(")
        dim = scope.dims.get(t.take())
        if dim is None:
            t.fail("unknown extent")
        t.take(")")
        return E.Size(dim)
    place = t.items[t.at - 1][2]
    if name in scope.calls:
        native = t.listed("(", ")", lambda: expression(t, scope))
        return _checked(t, lambda: scope.calls[name](*native))
    if name not in _CALLS:
        t.fail(f"no function {name}", place)
    args = t.listed("(", ")", lambda: expression(t, scope))
    count, make = _CALLS[name]
    if len(args) != count:
        t.fail(f"{name} takes {count} values, got {len(args)}", place)
    return _checked(t, lambda: make(*args))


def _nothing(t: Tokens) -> None:
    """What follows is not looked at."""


class _Reader:
    """Lines of a graph, in order."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.dims: dict[str, Dim] = {}
        self.assigns: list[tuple[Variable, Value]] = []
        self.head: tuple[str, tuple[Extent, ...], D.DType, bool, Keep] | None = None
        self.lets: list[Tokens] = []

    def line(self, text: str, number: int) -> None:
        """One line."""
        bare = text.split("#")[0]
        if not bare.strip():
            return
        t = Tokens(bare, number)
        first = t.next
        if self.head is not None:
            if first.startswith("$"):
                self.lets.append(t)
            else:
                self.finish(t)
            return
        readers = self.readers()
        if first not in readers:
            t.fail(f"expected {', '.join(list(readers)[:-1])} or {list(readers)[-1]}")
        t.take()
        readers[first](t)

    def readers(self) -> Heads:
        """What a line may start with, and who reads the rest of it."""
        heads: Heads = {"graph": _nothing, "dim": self.dim, "var": self.var}
        return heads | {"def": self.define, "assign": self.assign}

    def extent(self, t: Tokens) -> Extent:
        if t.kind == "number":
            return t.whole()
        return t.one_of(self.dims, f"no extent {t.next}")

    def dim(self, t: Tokens) -> None:
        """``dim n: 1, 64``"""
        name = t.take()
        t.take(":")
        lo = t.whole()
        t.take(",")
        self.dims[name] = Dim(name, lo, t.whole())

    def typed(self, t: Tokens) -> tuple[str, D.DType, tuple[Extent, ...]]:
        """``name: float32[2, n]``"""
        name = t.take()
        t.take(":")
        kind = t.one_of(D.BY_NAME, "unknown element type")
        return name, kind, tuple(t.listed("[", "]", lambda: self.extent(t)))

    def var(self, t: Tokens) -> None:
        name, kind, shape = self.typed(t)
        self.values.setdefault(name, Variable(name, shape, kind))

    def define(self, t: Tokens) -> None:
        name, kind, shape = self.typed(t)
        stop = t.skip("stop")
        keep = Keep.AUTO
        if t.skip("keep"):
            t.take("=")
            keep = t.one_of({k.value: k for k in Keep}, "never, again, late, always or auto")
        self.head = name, shape, kind, stop, keep

    def assign(self, t: Tokens) -> None:
        """``assign target = value``"""
        target = self.values.get(t.take())
        t.take("=")
        value = self.values.get(t.take())
        if not isinstance(target, Variable) or value is None:
            t.fail("unknown name")
        self.assigns.append((target, value))

    def finish(self, t: Tokens) -> None:
        """``name[i, j] = body``"""
        assert self.head is not None
        name, shape, kind, stop, keep = self.head
        if t.take() != name:
            t.fail(f"expected the definition of {name}")
        start = t.at
        depth = 0
        while t.next and (depth or t.next != "="):
            depth += {"[": 1, "]": -1}.get(t.take(), 0)
        t.take("=")
        reading = t.at
        form, extents = self.form(t, shape)
        after = t.at
        scope = Scope(self.values, self.dims, extents)
        for let in self.lets:
            part = let.take()
            let.take("=")
            scope.parts[part] = expression(let, scope)
        t.at = start
        at = tuple(t.listed("[", "]", lambda: expression(t, scope)))
        t.at = after
        body = expression(t, scope)
        if reading != after:
            t.take(")")
        t.end()
        if isinstance(form, Accumulate):
            form = Accumulate(form.combiner, form.domain, at)
        if body.dtype != kind:
            t.fail(f"the body is {body.dtype}, the definition {kind}")
        self.values[name] = Definition(name, shape, body, form, stop, keep)
        self.head, self.lets = None, []

    def form(self, t: Tokens, shape: tuple[Extent, ...]) -> tuple[Form, tuple[Extent, ...]]:
        """What stands before the body: ``sum[k < 3](``, ``scan sum[i](``, or nothing."""
        kind = "reduce"
        if t.next in ("scan", "accumulate"):
            kind = t.take()
        follows = t.items[t.at + 1][1] if t.next else ""
        if follows != "[" or (kind == "reduce" and t.next not in COMBINERS):
            return Map(), shape
        combiner = self.combiner(t)
        axes = t.listed("[", "]", lambda: self.axis(t))
        t.take("(")
        if kind == "scan" and not axes:
            t.fail("expected an axis")
        if kind == "scan":
            return Scan(combiner, axes[0][0]), shape
        extents = tuple(e for _, e in axes if e is not None)
        if kind == "accumulate":
            return Accumulate(combiner, extents, ()), extents
        return Reduce(combiner, extents), shape + extents

    def combiner(self, t: Tokens) -> Combiner:
        return t.one_of(COMBINERS, f"no reduction {t.next}")

    def axis(self, t: Tokens) -> tuple[int, Extent | None]:
        """``k < 3``, or ``k`` alone"""
        number = axis_number(t.take())
        if number is None:
            t.fail("expected an axis")
        return number, self.extent(t) if t.skip("<") else None


def _lines(reader: _Reader, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        reader.line(line, number)
    if reader.head is not None:
        raise SyntaxFormError(f"{reader.head[0]} has no body", code="E172")


def parse_graph(text: str) -> Graph:
    """The graph that `text` (as printed) describes.

    Raises: SyntaxFormError with the line and a caret under the first wrong token.
    """
    reader = _Reader()
    _lines(reader, text)
    return Graph(tuple(reader.assigns))


@dataclass(slots=True)
class _Draft:
    """What has been read of a kernel. `parts`: the kernels that follow are its parts."""

    name: str
    outer: tuple[Extent, ...]
    parts: bool
    stages: list[Stage] = field(default_factory=list)
    last: list[Stage] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def kernel(self, parts: tuple[Kernel, ...] = ()) -> Kernel:
        stages, last = tuple(self.stages), tuple(self.last)
        return Kernel(self.name, self.outer, stages, last, tuple(self.reasons), parts)


class _KernelReader(_Reader):
    """Lines of kernels, in order: their stages are definitions with a place."""

    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[_Draft] = []
        self.into: list[Stage] = []
        self.place: tuple[tuple[int | None, ...], Variable | None] = ((), None)

    def readers(self) -> Heads:
        heads: Heads = {"kernel": self.kernel, "dim": self.dim, "var": self.var, "reads": _nothing}
        return heads | {"stage": self.stage, "finish": self.last}

    def line(self, text: str, number: int) -> None:
        if text.strip().startswith("# ") and self.drafts:
            self.drafts[-1].reasons.append(text.strip()[2:])
        super().line(text, number)

    def kernel(self, t: Tokens) -> None:
        """``y over [i < 3, j < n]``, or ``y of 2 parts side by side``"""
        name = label(t)
        parts = t.take() == "of"
        axes = [] if parts else t.listed("[", "]", lambda: self.axis(t)[1])
        outer = tuple([e for e in axes if e is not None])
        self.drafts.append(_Draft(name, outer, parts))
        self.into = self.drafts[-1].stages

    def last(self, t: Tokens) -> None:
        """What follows runs once, after all tiles."""
        if not self.drafts:
            t.fail("expected a kernel first")
        self.into = self.drafts[-1].last

    def stage(self, t: Tokens) -> None:
        """``y: float32[3, n] at (i, -) -> store out``, or ``-> scratch``"""
        name, kind, shape = self.typed(t)
        t.take("at")
        outer = t.listed("(", ")", lambda: None if t.skip("-") else self.axis(t)[0])
        t.take("->")
        self.place = tuple(outer), self.store(t) if t.take() == "store" else None
        self.head = name, shape, kind, False, Keep.AUTO

    def store(self, t: Tokens) -> Variable:
        target = self.values.get(t.next)
        if not self.drafts or not isinstance(target, Variable):
            t.fail("expected a kernel, and a variable to store to")
        return target

    def finish(self, t: Tokens) -> None:
        assert self.head is not None
        name = self.head[0]
        super().finish(t)
        made = self.values[name]
        assert isinstance(made, Definition)
        self.into.append(Stage(made, made.form, made.body, *self.place))


def parse_kernel(text: str) -> Kernel:
    """The kernel that `text` (as printed) describes. What it says it reads is not looked at.

    Raises: SyntaxFormError with the line and a caret under the first wrong token.
    """
    reader = _KernelReader()
    _lines(reader, text)
    if not reader.drafts:
        raise SyntaxFormError("there is no kernel", code="E172")
    first, *others = reader.drafts
    if bool(others) != first.parts:
        raise SyntaxFormError("a kernel has parts, and says so, or stands alone", code="E172")
    return first.kernel(tuple(d.kernel() for d in others))
