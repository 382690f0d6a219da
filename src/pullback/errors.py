"""The errors: classes to catch, and a code for each kind of mistake.

A user's mistake is a `PullbackError`; it carries the origin of the expression that caused it and
what to do about it; `pullback explain CODE` shows the page of its code. A compiler's mistake is an
`InvalidIR`: a pass broke the invariant that the next stage relies on.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import CodeType, FrameType, TracebackType
from typing import ClassVar

LIBRARY = str(Path(__file__).parent)
PAGES = Path(__file__).with_suffix(".md")  # a section for each code
_INSIDE = (LIBRARY, contextlib.__file__)
_OPTIONS = "pullback.config"


@dataclass(frozen=True, slots=True)
class Origin:
    """The user expression that made something: a code object and an instruction offset.

    Recording it is two references; line, columns and text are looked up only when asked for.
    """

    code: CodeType
    offset: int

    @classmethod
    def of_caller(cls) -> Origin:
        """The innermost frame that is not inside the library."""
        frame: FrameType = sys._getframe(1)
        while frame.f_back is not None and (
            frame.f_code.co_filename.startswith(_INSIDE)
            or frame.f_globals.get("__name__") == _OPTIONS  # what a dataclass is made by
        ):
            frame = frame.f_back
        return cls(frame.f_code, frame.f_lasti)

    @property
    def line(self) -> int:
        """Line number in the user's file, counted from 1."""
        return self._position()[0]

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.code.co_filename}:{self.line}"

    @property
    def source(self) -> str:
        """The line itself."""
        return linecache.getline(self.code.co_filename, self.line).strip()

    def excerpt(self) -> str:
        """The source line with carets under the exact sub-expression (PEP 657)."""
        line, start, end = self._position()
        head = f"  --> {self.code.co_filename}:{line} in {self.code.co_name}"
        text = linecache.getline(self.code.co_filename, line).rstrip()
        if start is None or end is None or not text:
            return head if not text else f"{head}\n   | {text}"
        return f"{head}\n   | {text}\n   | {' ' * start}{'^' * max(1, end - start)}"

    def _position(self) -> tuple[int, int | None, int | None]:
        position = next(islice(self.code.co_positions(), self.offset // 2, None), None)
        if position is None or position[0] is None:
            return self.code.co_firstlineno, None, None
        line, last, start, end = position
        text = linecache.getline(self.code.co_filename, line or 0).rstrip().encode()

        def column(place: int | None) -> int | None:
            """In characters; co_positions counts bytes."""
            return None if place is None else len(text[:place].decode())

        # of an expression of several lines the first one is marked
        return position[0], column(start), column(end if line == last else len(text))


@dataclass(frozen=True, slots=True)
class Told(Origin):
    """The user's expression as a compiled program has it, beside the call that ran into it."""

    told: str

    def excerpt(self) -> str:
        """The expression; and the call, where it is on another line."""
        place = f"{self.code.co_filename}:{self.line}"
        if f"--> {place} " in self.told:
            return self.told
        return f"{self.told}\n  run at {place}"


class PullbackError(Exception):
    """The user's program is wrong. Says what, where, and what to try.

    `code` names the kind of mistake, finer than the class. `origin`: None is the user's innermost
    call; a class that is not `placed` has none.
    """

    code: str = "E000"
    placed: ClassVar[bool] = True

    def __init__(
        self, what: str, *, origin: Origin | None = None, help: str = "", code: str = ""
    ) -> None:
        if origin is None and self.placed:
            origin = Origin.of_caller()
        self.what = what
        self.origin = origin
        self.code = code or self.code
        self.help = help or repair(self.code)
        parts = [f"{what} [{self.code}]"]
        if origin is not None:
            parts.append(origin.excerpt())
        if self.help:
            parts.append(f"  help: {self.help}")
        super().__init__("\n".join(parts))

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show."""
        return brief(self)


def repair(code: str) -> str:
    """What the page of a code says to do."""
    _, _, page = PAGES.read_text(encoding="utf-8").partition(f"\n### {code} ")
    _, _, repair = page.partition("\nRepair: ")
    return repair.partition("\n")[0]


def brief(error: BaseException) -> list[str]:
    """A traceback, line by line, without the frames of the library."""
    hidden = 0
    whole: TracebackException | None = TracebackException.from_exception(error)
    link = whole
    while link is not None:
        frames = [f for f in link.stack if not f.filename.startswith(_INSIDE)]
        hidden += len(link.stack) - len(frames)
        link.stack = StackSummary.from_list(frames)
        link = link.__cause__ or link.__context__
    assert whole is not None
    lines = "".join(whole.format()).splitlines()
    if hidden:
        lines.append(f"({hidden} frames of the library hidden: PULLBACK_TRACEBACK=full shows them)")
    return lines


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: a user's mistake without the frames of the library."""
    if isinstance(error, PullbackError) and os.environ.get("PULLBACK_TRACEBACK") != "full":
        print(*brief(error), sep="\n", file=sys.stderr)
        return
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, InvalidIR) and not hasattr(error, "__notes__"):
        print(
            "This is a fault of the compiler: please report it with these lines.", file=sys.stderr
        )


class ShapeError(PullbackError, ValueError):
    """Shapes, ranks or extents do not fit together."""

    code = "E101"


class ArgumentError(PullbackError, ValueError):
    """A number beside the tensors is out of its limits: a stride of 0, a probability of 2."""

    code = "E176"


class AxisError(ShapeError, IndexError):
    """An axis that the tensor does not have; NumPy's too is both of these."""

    code = "E112"


class DTypeError(PullbackError, TypeError):
    """An operation is not defined for these element types."""

    code = "E102"


class FreeAxisError(PullbackError, ValueError):
    """An expression uses an axis that nothing binds."""

    code = "E103"


class UnboundNameError(PullbackError, NameError):
    """The text form names a tensor or axis that was not given."""

    code = "E104"


class TruthError(PullbackError, TypeError):
    """A symbolic value was used as a Python truth value."""

    code = "E105"


class IndexRangeError(PullbackError, IndexError):
    """An index lies outside its axis."""

    code = "E106"

    @classmethod
    def checked(cls, value: int, site: str) -> IndexRangeError:
        """What a check found; `site`: what it checks, and below that the user's expression."""
        what, _, told = site.partition("\n")
        here = Origin.of_caller()
        origin = Told(here.code, here.offset, told) if told else here
        return cls(f"index {value} is out of range: {what}", origin=origin)


class RecurrenceError(PullbackError, ValueError):
    """A tensor that is defined by itself cannot be computed cell by cell."""

    code = "E193"


class SyntaxFormError(PullbackError, SyntaxError):
    """The text form of an operation cannot be read."""

    code = "E107"


class DialectError(PullbackError, AttributeError, TypeError):
    """A name of the other dialect: `pb` and `Tensor` spell as the array API, `nn` as PyTorch."""

    code = "E108"


class GradientError(PullbackError, ValueError):
    """A gradient was asked for where none is defined."""

    code = "E201"


class UnsupportedError(PullbackError, NotImplementedError):
    """Asked for something that this version refuses by name."""

    code = "E301"


class CompilerError(UnsupportedError):
    """A compiler outside of this package is missing or fails."""

    code = "E357"
    placed = False


class DeviceError(UnsupportedError):
    """A device, or the runtime that reaches it, is missing, cannot do it, or fails."""

    code = "E362"
    placed = False


class BackendError(PullbackError, RuntimeError):
    """A backend fails, or gives what it was not asked for."""

    code = "E359"
    placed = False


class ExtraError(UnsupportedError, ImportError):
    """A package that only an extra installs is wanted."""

    code = "E328"
    placed = False


class CapturedArrayError(PullbackError, TypeError):
    """A NumPy array was captured by a jitted function."""

    code = "E302"


class StateError(PullbackError, RuntimeError):
    """A state_dict or a file of weights does not fit what it is loaded into."""

    code = "E303"


class MemoryBudgetError(PullbackError, MemoryError):
    """A program cannot be made to fit its memory budget; `smallest` bytes would do."""

    code = "E304"
    smallest = 0


class FeedError(PullbackError, RuntimeError):
    """A feeder or receiver callback misbehaved."""

    code = "E401"


class AbsentError(PullbackError, AttributeError):
    """An attribute that is not there, or not yet."""

    code = "E340"


class UnrelatedError(GradientError, KeyError):
    """An adjoint was asked for of what is not between the output and an input."""

    code = "E221"
    __str__ = Exception.__str__  # KeyError's shows a name in quotes


class SingularError(PullbackError, ValueError):
    """A matrix that has no such factors: singular, not positive definite, or not converging."""

    code = "E352"


class CacheError(PullbackError, RuntimeError):
    """The on-disk cache cannot be used."""

    code = "E501"


class OptionError(PullbackError, ValueError):
    """An option, or the environment variable that sets it, has no such value."""

    code = "E502"


class RuleError(PullbackError, ValueError):
    """A rule of the user's is none, or breaks the program that it is given."""

    code = "E372"


class NaNError(PullbackError, ArithmeticError):
    """A checked program made NaN of numbers."""

    code = "E701"


class DivisionError(PullbackError, ZeroDivisionError):
    """A checked program divided integers by zero, or took a negative power of one."""

    code = "E702"


# What a reader of JSON, and of what it should hold, raises where the text is something else.
MALFORMED = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip


class InvalidIR(AssertionError):
    """The compiler is wrong: a pass broke the invariant of the stage it feeds."""
