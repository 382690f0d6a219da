"""The text form: tokens, an allow-listed tree, a Pratt parser. Nothing is evaluated.

    c[i, j] = sum[k] a[i, k] * b[k, j]

A reduction takes what stands in parentheses after it, or the factors up to the next ``+`` or ``-``.
Comparisons bind tighter than ``&`` and ``|``, and may be chained: ``0 <= i < n``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from pullback.errors import Origin, SyntaxFormError


@dataclass(frozen=True, slots=True)
class TextOrigin(Origin):
    """A place in the text of a definition, beside the call that gave the text."""

    caller: Origin
    text: str
    start: int
    end: int

    @property
    def row(self) -> int:
        """Line in the text, counted from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """Column in that line, counted from 1."""
        return self.start - (self.text.rfind("\n", 0, self.start) + 1) + 1

    def excerpt(self) -> str:
        """The line of the text with carets under the sub-expression."""
        line = self.text.split("\n")[self.row - 1]
        width = max(1, min(self.end, self.start + len(line) - self.column + 1) - self.start)
        carets = " " * (self.column - 1) + "^" * width
        head = (
            f"  --> line {self.row}, column {self.column} of the definition at {self.caller.place}"
        )
        return f"{head}\n   | {line}\n   | {carets}"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text. `kind`: number, name, symbol, newline or end."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Tree:
    """A node of the parsed text, with its place."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Number(Tree):
    """A literal."""

    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Name(Tree):
    """An axis, a scalar, or a tensor without axes."""

    name: str


@dataclass(frozen=True, slots=True)
class Read(Tree):
    """``name[indices]``"""

    name: str
    indices: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Call(Tree):
    """``function(args)``"""

    function: str
    args: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Reduction(Tree):
    """``function[axes](body)``"""

    function: str
    axes: tuple[Name, ...]
    body: Tree


@dataclass(frozen=True, slots=True)
class Operation(Tree):
    """An operator over one or two operands."""

    operator: str
    args: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Statement(Tree):
    """``name[axes] = body``"""

    name: str
    axes: tuple[Name, ...]
    body: Tree


REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "mean")
WORDS = {"and": "&", "or": "|", "not": "~"}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
BINDING = {
    "|": 10, "^": 20, "&": 30, **dict.fromkeys(COMPARISONS, 40),
    "+": 50, "-": 50, "*": 60, "/": 60, "//": 60, "%": 60, "**": 80,
}  # fmt: skip
PREFIX = {"-": 70, "+": 70, "~": 35}
MAX_DEPTH = 100
MAX_DIGITS = 300  # of a whole number: as many as a float64 has

_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|#[^\n]*)"
    r"|(?P<number>(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<symbol>\*\*|//|<=|>=|==|!=|[-+*/%<>&|^~()\[\],=;])"
    r"|(?P<newline>\n)"
)


class Parser:
    """A recursive descent over the tokens, with binding powers for operators."""

    def __init__(self, text: str, caller: Origin) -> None:
        self.text = text
        self.caller = caller
        self.tokens = self._tokens()
        self.place = 0
        self.depth = 0
        self.open = 0

    # --- tokens

    def _tokens(self) -> list[Token]:
        tokens: list[Token] = []
        place = 0
        while place < len(self.text):
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(
                    f"unexpected character {self.text[place]!r}", place, place + 1, code="E160"
                )
            kind = str(match.lastgroup)
            text = match.group()
            number = match.start("number") >= 0
            if number or kind != "space":
                tokens.append(Token("number" if number else kind, text, place))
            place = match.end()
        tokens.append(Token("end", "", len(self.text)))
        return tokens

    def at(self, start: int, end: int) -> TextOrigin:
        """A place in the text."""
        caller = self.caller
        return TextOrigin(caller.code, caller.offset, caller, self.text, start, end)

    def fail(self, what: str, start: int, end: int, help: str = "", *, code: str = "") -> NoReturn:
        """Raises: SyntaxFormError at that place."""
        raise SyntaxFormError(what, origin=self.at(start, end), help=help, code=code)

    @property
    def token(self) -> Token:
        """The token to come; line breaks inside brackets mean nothing."""
        while self.open and self.tokens[self.place].kind == "newline":
            self.place += 1
        return self.tokens[self.place]

    def advance(self) -> Token:
        """That token, consumed."""
        token = self.token
        self.place += 1
        return token

    def accept(self, symbol: str) -> bool:
        """Consume `symbol` if it is next."""
        if self.token.kind == "symbol" and self.token.text == symbol:
            self.place += 1
            return True
        return False

    def expect(self, symbol: str, why: str) -> Token:
        """Consume `symbol`. Raises: SyntaxFormError where something else stands."""
        token = self.token
        if not self.accept(symbol):
            shown = f"{token.text!r}" if token.text.strip() else "the end of the line"
            self.fail(
                f"expected {symbol!r} {why}, found {shown}", token.start, token.end, code="E161"
            )
        return token

    # --- statements

    def statements(self) -> list[Statement]:
        """All definitions of the text."""
        statements: list[Statement] = []
        while True:
            while self.token.kind == "newline" or self.accept(";"):
                if self.token.kind == "newline":
                    self.place += 1
            if self.token.kind == "end":
                break
            statements.append(self.statement())
            token = self.token
            if token.kind not in ("end", "newline") and token.text != ";":
                self.fail(f"unexpected {token.text!r}", token.start, token.end)
        if not statements:
            self.fail("no definition", 0, 1, "write one: c[i] = a[i] * 2", code="E162")
        return statements

    def statement(self) -> Statement:
        """``name[axes] = body``"""
        head = self.advance()
        if head.kind != "name":
            self.fail("a definition begins with a name", head.start, head.end, code="E163")
        axes = self.names("axes of the result") if self.accept("[") else ()
        self.expect("=", "after the name and axes of the result")
        body = self.expression(0)
        return Statement(head.start, body.end, head.text, axes, body)

    def names(self, what: str) -> tuple[Name, ...]:
        """Distinct names up to the closing bracket."""
        self.open += 1
        names: list[Name] = []
        while not self.accept("]"):
            if names:
                self.expect(",", f"or ']' between {what}")
            token = self.advance()
            if token.kind != "name":
                self.fail(
                    f"{what} are names", token.start, max(token.end, token.start + 1), code="E164"
                )
            if any(n.name == token.text for n in names):
                self.fail(
                    f"axis {token.text!r} is named twice", token.start, token.end, code="E165"
                )
            names.append(Name(token.start, token.end, token.text))
        self.open -= 1
        return tuple(names)

    # --- expressions

    def expression(self, power: int) -> Tree:
        """An expression whose operators bind tighter than `power`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("nested too deeply", self.token.start, self.token.end, code="E166")
        left = self.prefix()
        while (operator := self.operator()) is not None and BINDING[operator] > power:
            self.advance()
            if operator in COMPARISONS:
                left = self.comparison(left, operator)
                continue
            tight = BINDING[operator] - (1 if operator == "**" else 0)
            right = self.expression(tight)
            left = Operation(left.start, right.end, operator, (left, right))
        self.depth -= 1
        return left

    def operator(self) -> str | None:
        """The binary operator that is next, if one is."""
        token = self.token
        text = WORDS.get(token.text, token.text) if token.kind == "name" else token.text
        return text if text in BINDING and token.kind in ("symbol", "name") else None

    def comparison(self, left: Tree, operator: str) -> Tree:
        """``a < b``, or a chain ``a < b <= c``, which means both."""
        right = self.expression(BINDING[operator])
        chain: Tree = Operation(left.start, right.end, operator, (left, right))
        while (following := self.operator()) in COMPARISONS and following is not None:
            self.advance()
            third = self.expression(BINDING[following])
            link = Operation(right.start, third.end, following, (right, third))
            chain = Operation(left.start, third.end, "&", (chain, link))
            right = third
        return chain

    def prefix(self) -> Tree:
        """A literal, a name, something in parentheses, or an operator before an operand."""
        token = self.advance()
        text = WORDS.get(token.text, token.text)
        if token.kind == "number":
            return Number(token.start, token.end, self.number(token))
        if text in PREFIX:
            operand = self.expression(PREFIX[text])
            return Operation(token.start, operand.end, f"prefix {text}", (operand,))
        if token.kind == "name":
            return self.named(token)
        if text == "(":
            self.open += 1
            inner = self.expression(0)
            self.expect(")", "to close the parenthesis")
            self.open -= 1
            return inner
        shown = repr(token.text) if token.text.strip() else "the end of the line"
        return self.fail(
            f"expected an expression, found {shown}",
            token.start,
            max(token.end, token.start + 1),
            code="E167",
        )

    def number(self, token: Token) -> int | float:
        """A literal. Raises: SyntaxFormError for a whole number that no float is near to."""
        if not token.text.isdigit():
            return float(token.text)
        if len(token.text) > MAX_DIGITS:
            what = f"a whole number of {len(token.text)} digits"
            self.fail(what, token.start, token.end, "write it as a float: 1e30")
        return int(token.text)

    def named(self, token: Token) -> Tree:
        """What follows a name: a call, a read, a reduction, or nothing."""
        name = token.text
        if name in ("True", "False"):
            return Number(token.start, token.end, name == "True")
        if self.accept("("):
            args, end = self.arguments(")")
            return Call(token.start, end, name, args)
        if not self.accept("["):
            return Name(token.start, token.end, name)
        if name in REDUCTIONS:
            return self.reduction(token)
        args, end = self.arguments("]")
        return Read(token.start, end, name, args)

    def reduction(self, token: Token) -> Reduction:
        """``sum[k](body)``, or ``sum[k] factor * factor``: then all factors are its body."""
        axes = self.names("reduced axes")
        apart = self.tokens[self.place - 1].end < self.token.start
        if not self.accept("("):
            body = self.expression(BINDING["+"])
            return Reduction(token.start, body.end, token.text, axes, body)
        args, end = self.arguments(")")
        if len(args) != 1:
            self.fail(f"{token.text}[..] reduces one expression", token.start, end, code="E168")
        operator = self.operator()
        if apart and operator is not None and BINDING[operator] > BINDING["+"]:
            self.fail(
                f"where {token.text}[..] ends is not clear",
                self.token.start,
                self.token.end,
                f"close the gap after ']', or put all of it in parentheses: {token.text}[k](..)",
                code="E169",
            )
        return Reduction(token.start, end, token.text, axes, args[0])

    def arguments(self, close: str) -> tuple[tuple[Tree, ...], int]:
        """Expressions up to the closing bracket, and where that ends."""
        self.open += 1
        args: list[Tree] = []
        while not self.accept(close):
            if args:
                self.expect(",", f"or {close!r} between arguments")
            args.append(self.expression(0))
        self.open -= 1
        return tuple(args), self.tokens[self.place - 1].end
