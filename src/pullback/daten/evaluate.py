"""What main says, line by line: which lines results need, and what those make of tensors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pullback.composite.syntax import Name, Number
from pullback.composite.text import built, reads, within
from pullback.daten.syntax import Form, Line, Text
from pullback.errors import Origin, PullbackError, ShapeError, SyntaxFormError
from pullback.operations.code import moved
from pullback.operations.operation import Operation
from pullback.operations.sizes import Equation, Sizes, check, ranks_of
from pullback.tensor.library.creation import asarray, zeros

OUTPUT = "output"
T = TypeVar("T")


def forms(line: Line) -> Iterator[Form]:
    """Every form of a line, outer ones first."""
    stack = [] if line.form is None else [line.form]
    while stack:
        form = stack.pop()
        yield form
        stack += reversed(form.args or ())


def uses(line: Line) -> list[str]:
    """The names of tensors that a line reads; of a definition perhaps axes too."""
    if line.statement is None:
        named = [f.head for f in forms(line) if f.args is None and not _number(f)]
        return list(dict.fromkeys(named))
    body = line.statement.body
    names = [read.name for read in reads(body)]
    bound = {axis.name for axis in line.statement.axes}
    names += [tree.name for tree in within(body) if isinstance(tree, Name)]
    return [n for n in dict.fromkeys(names) if n not in bound]


def _number(form: Form) -> bool:
    return not form.head[0].isalpha() and form.head[0] != "_"


def needed(text: Text, names: Iterable[str]) -> list[Line]:
    """The lines of main that results of these names need, in order."""
    wanted, lines = set(names), []
    for line in reversed(text.main):
        if wanted & set(line.names):
            wanted |= {*uses(line)}
            lines.append(line)
    return lines[::-1]


def leaves(text: Text, lines: Iterable[Line]) -> list[str]:
    """Tensors that these lines are given, once each."""
    made = {n for line in text.main for n in line.names}
    own: dict[str, None] = {}
    for line in lines:
        known = {read.name for read in reads(line.statement.body)} if line.statement else None
        for name in uses(line):
            declared = name in text.parameters or name in text.inputs
            if name not in made and (declared or known is None or name in known):
                own[name] = None
    return list(own)


def outputs_of(text: Text) -> tuple[str, ...]:
    """What is computed: `output`, or what the last line of main makes."""
    made = [n for line in text.main for n in line.names]
    return (OUTPUT,) if OUTPUT in made else text.main[-1].names


def checked(text: Text, modules: Mapping[str, Operation]) -> None:
    """Raises: SyntaxFormError for a module or tensor that there is not, or not yet."""
    later = {n: line for line in text.main for n in line.names}
    known = [*text.parameters, *text.inputs]
    for line in text.main:
        for form in forms(line):
            if form.args is not None and form.head not in modules:
                raise _unknown("module", form.head, list(modules), form.origin)
        for name in leaves(text, [line]):
            if text.inputs and name not in known:
                raise _unknown("tensor", name, [*known, *later], line.origin)
        for name in uses(line):
            if name in later:
                what = f"{name} is made by this line or a later one"
                raise SyntaxFormError(what, origin=line.origin, code="E558")
        for name in line.names:
            del later[name]


def _unknown(what: str, name: str, known: Sequence[str], origin: Origin) -> SyntaxFormError:
    near = difflib.get_close_matches(name, known, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    help = f"{guess}these are known: {', '.join(known)}" if known else f"there is no {what}"
    return SyntaxFormError(f"no {what} is called {name}", origin=origin, help=help, code="E558")


@dataclass(slots=True)
class Evaluation:
    """Lines over tensors by name. `open`: tensors whose shapes follow from their first use."""

    modules: Mapping[str, Operation]
    scope: dict[str, Any]
    sizes: Sizes
    open: set[str] = field(default_factory=set)
    settled: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def run(self, lines: Iterable[Line]) -> dict[str, Any]:
        """All values by name. Raises: PullbackError, at the line of the file."""
        for line in lines:
            values = self.line(line)
            if len(values) != len(line.names):
                what = f"{len(values)} tensors are given, {len(line.names)} are named"
                raise SyntaxFormError(what, origin=line.origin, code="E558")
            self.scope.update(zip(line.names, values, strict=True))
        return self.scope

    def line(self, line: Line) -> tuple[Any, ...]:
        if line.form is not None:
            made = self.form(line.form)
            return made if isinstance(made, tuple) else (made,)
        assert line.reader is not None and line.statement is not None
        reader, statement = line.reader, line.statement
        names = {n: self.scope[n] for n in uses(line) if n in self.scope}
        for name in self.open & {read.name for read in reads(statement.body)}:
            raise self.shapeless(name, line.origin)
        numbers = {n: v for n, v in self.sizes.known.items() if n not in names}
        return tuple(placed(line.origin, lambda: built(reader, [statement], numbers, names)))

    def form(self, form: Form) -> Any:
        """The tensor, or tensors, of a form."""
        if form.args is None:
            if _number(form):
                return asarray(float(form.head), dtype="float32")
            if form.head in self.open:
                raise self.shapeless(form.head, form.origin)
            return self.scope[form.head]
        operation = self.modules[form.head]
        args: list[Any] = []
        for arg in form.args:
            left = arg.args is None and arg.head in self.open
            args.append(arg.head if left else self.form(arg))
            if isinstance(args[-1], tuple):
                what = f"{arg.head} gives {len(args[-1])} tensors"
                help = "name them: a, b = (F x)"
                raise SyntaxFormError(what, origin=arg.origin, help=help, code="E558")
        if any(isinstance(arg, str) for arg in args):
            placed(form.origin, lambda: self.settle(operation, args, form.origin))
            args = [self.scope[a] if isinstance(a, str) else a for a in args]
        return placed(form.origin, lambda: operation(*args))

    def settle(self, operation: Operation, args: Sequence[Any], origin: Origin) -> None:
        """Shapes of open tensors by the module's signature and its other tensors."""
        operation.counted(args)
        pairs = list(zip(operation.inputs, args, strict=True))
        known = [(one, tuple(arg.shape)) for one, arg in pairs if not isinstance(arg, str)]
        ranks = ranks_of([one for one, _ in known], [shape for _, shape in known], {})
        equations: list[Equation] = []
        for one, shape in known:
            for axis, (size, count) in enumerate(zip(one.expanded(ranks), shape, strict=True)):
                place = f"axis {axis} of `{one.name}`"
                equations.append((size.text, size.tree, Number(0, 0, count), place))
        sizes = Sizes()
        check(operation.conditions, sizes, equations)
        for one, arg in pairs:
            if not isinstance(arg, str) or arg not in self.open:
                continue
            names = {run.text for run in one.runs} - ranks.keys()
            if names or any(n not in sizes.known for n in one.symbols(ranks)):
                raise self.shapeless(arg, origin)
            self.settled[arg] = tuple(sizes.of(size) for size in one.expanded(ranks))
            self.scope[arg] = zeros(self.settled[arg], dtype=one.type or "float32")
            self.open.discard(arg)

    def shapeless(self, name: str, origin: Origin) -> ShapeError:
        """The error of a tensor whose shape nothing says."""
        help = f'give its shape: {name}[..] in the file, or --shape "{name}[3, 4]"'
        what = f"nothing says what shape {name} has"
        return ShapeError(what, origin=origin, help=help, code="E553")


def placed(origin: Origin, make: Callable[[], T]) -> T:
    """What `make` gives; what is wrong with it is told at this place of a file."""
    try:
        return make()
    except PullbackError as problem:
        raise moved(problem, origin) from None
