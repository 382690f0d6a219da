"""The code of an operation as lines: definitions, and calls of other files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pullback.composite.syntax import Call, Parser, Statement, TextOrigin
from pullback.errors import Origin, PullbackError
from pullback.operations.notation import RUN


@dataclass(frozen=True, slots=True)
class FileOrigin(TextOrigin):
    """A place in a file of text, which is no Python."""

    path: str

    @property
    def line(self) -> int:
        """Line in the file, counted from 1."""
        return self.row

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.row}"

    @property
    def source(self) -> str:
        """The line itself."""
        return self.text.split("\n")[self.row - 1].strip()

    def excerpt(self) -> str:
        """The line of the file with carets under the place."""
        _, _, marked = TextOrigin.excerpt(self).partition("\n")
        return f"  --> {self.path}:{self.row}:{self.column}\n{marked}"


def moved(
    problem: PullbackError, origin: Origin, kept: type[TextOrigin] = TextOrigin
) -> PullbackError:
    """The same error at a place of a file; what has a place of the kind `kept` keeps it."""
    if isinstance(problem.origin, kept):
        return problem
    return type(problem)(problem.what, origin=origin, help=problem.help, code=problem.code)


@dataclass(frozen=True, slots=True)
class Several(Statement):
    """``a, b = f(x)``: what a file of several outputs gives."""

    names: tuple[str, ...]


class Lines(Parser):
    """The parser of definitions, which reads calls of files with several outputs too."""

    def at(self, start: int, end: int) -> TextOrigin:
        """A place in the text, or in the file that the text is of."""
        origin = self.caller
        if not isinstance(origin, FileOrigin):
            return super().at(start, end)
        own = origin.code, origin.offset, origin.caller, self.text, start, end, origin.path
        return FileOrigin(*own)

    def statement(self) -> Statement:
        """``name[axes] = body``, or ``a, b = f(x)``."""
        first, comma, *_ = [*self.tokens[self.place : self.place + 2], None]
        if first is None or first.kind != "name" or comma is None or comma.text != ",":
            return super().statement()
        names = [self.advance()]
        while self.accept(","):
            names.append(self.advance())
            if names[-1].kind != "name":
                self.fail("names stand here", names[-1].start, names[-1].end, code="E163")
        self.expect("=", "after the names of what is made")
        body = self.expression(0)
        if not isinstance(body, Call):
            self.fail("several names are those of a call", body.start, body.end, code="E163")
        texts = tuple(token.text for token in names)
        if len(set(texts)) < len(texts):
            self.fail("a name stands twice", first.start, names[-1].end, code="E165")
        return Several(first.start, body.end, texts[0], (), body, texts)


def expanded(code: str, ranks: Mapping[str, int]) -> str:
    """The code where ``~`` and ``~a`` among indices are as many axes as they have."""
    for run, rank in ranks.items():
        match = RUN.fullmatch(run)
        name = "" if match is None or match["name"] is None else match["name"]
        mark = rf"\s*~\s*{name}\s*"
        axes = ", ".join(f"_{name}{n}" for n in range(rank))
        if axes:
            code = re.sub(rf"(?<=[\[,]){mark}(?=[,\]])", axes, code)
            continue
        code = re.sub(rf"\[{mark},", "[", code)
        code = re.sub(rf",{mark}(?=[,\]])", "", re.sub(rf"\[{mark}\]", "[]", code))
    return code
