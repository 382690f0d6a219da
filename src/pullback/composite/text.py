"""`pb.define`: tensors from the text form. The tree is walked, names are looked up; no evaluation.

define("c[i, j] = sum[k](a[i, k] * b[k, j])", a=a, b=b)
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from pullback.composite.syntax import (
    Call,
    Name,
    Number,
    Operation,
    Parser,
    Read,
    Reduction,
    Statement,
    TextOrigin,
    Tree,
)
from pullback.errors import (
    DTypeError,
    Origin,
    PullbackError,
    ShapeError,
    UnboundNameError,
)
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Extent
from pullback.ir.graph import Definition
from pullback.simplify.rules import simplify
from pullback.tensor.define.compute import close
from pullback.tensor.define.recurrence import Itself, recurrent
from pullback.tensor.face import handles
from pullback.tensor.face.handles import ScalarHandle, new_axis
from pullback.tensor.face.tensor import Tensor, shape_of, value_of
from pullback.tensor.values.elementwise import Scalar, literal, show
from pullback.tensor.values.rules import RULES

OPERATORS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide",
    "%": "remainder", "**": "pow", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal", "==": "equal", "!=": "not_equal", "&": "bitwise_and",
    "|": "bitwise_or", "^": "bitwise_xor", "prefix -": "negative", "prefix +": "positive",
    "prefix ~": "bitwise_invert",
}  # fmt: skip
GROWING: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "pow": operator.pow,
}  # fmt: skip
CONSTANTS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}
ALIASES = {"min": "minimum", "max": "maximum"}
ARITY = {"where": 3, "clip": 3}
FOLDED = ("minimum", "maximum", "logaddexp")  # of three and more, from the left


def define(text: str, /, *, sizes: Mapping[str, Extent] | None = None, **names: Any) -> Any:
    """The tensor that `text` defines; of several definitions (``;`` or a line each) a tuple.

    Extents follow from reads ``a[i, k]``; `sizes` gives those that do not. Names may be tensors or
    Python numbers.

    Raises: SyntaxFormError, UnboundNameError, ShapeError, with a caret under the text.

    Example:
        >>> x = pb.ones((2, 3))
        >>> pb.define("y[i] = sum[k] x[i, k]", x=x)
        Tensor([3., 3.], dtype=float32)
    """
    return defined(text, Origin.of_caller(), sizes or {}, names)


def defined(
    text: str, caller: Origin, sizes: Mapping[str, Extent], names: Mapping[str, Any]
) -> Any:
    """`define` of a text that `caller` gave."""
    parser = Parser(text, caller)
    tensors = built(parser, parser.statements(), sizes, names)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def built(
    parser: Parser,
    statements: Sequence[Statement],
    sizes: Mapping[str, Extent],
    names: Mapping[str, Any],
) -> list[Tensor]:
    """The tensors of statements that `parser` has read."""
    scope: dict[str, Any] = {n: _given(n, v) for n, v in names.items()}
    given = {n: shape_of(e)[0] for n, e in sizes.items()}
    tensors: list[Tensor] = []
    while len(tensors) < len(statements):
        rest = statements[len(tensors) :]
        together = rest[: _recurring(rest, scope)]
        made = _System(parser, scope, given, together).build() if together else []
        made = made or [_Builder(parser, scope, given).build(rest[0])]
        scope.update((s.name, t) for s, t in zip(rest, made, strict=False))
        tensors += made
    return tensors


def _recurring(statements: Sequence[Statement], scope: Mapping[str, Any]) -> int:
    """How many of the first statements read themselves or each other: 0 where the first does not.

    ``e[i] = .. f[i-1] ..; f[i] = .. e[i] ..`` are two.
    """
    last, at = -1, 0
    while at <= max(last, 0):
        names = {read.name for read in reads(statements[at].body)} - scope.keys()
        last = max([last, *(n for n, s in enumerate(statements) if s.name in names and n >= at)])
        at += 1
    return last + 1


def _given(name: str, value: Any) -> Tensor | Scalar:
    if isinstance(value, Scalar):
        return value
    if isinstance(value, Tensor):
        return value
    try:
        return Tensor(value_of(value))
    except DTypeError as problem:
        raise DTypeError(
            f"{name} is a {type(value).__name__}, neither a tensor nor a number", code="E143"
        ) from problem


def _children(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Read):
        return tree.indices
    if isinstance(tree, Call | Operation):
        return tree.args
    return (tree.body,) if isinstance(tree, Reduction) else ()


def within(tree: Tree) -> Iterator[Tree]:
    """A tree and all below it, left to right."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(_children(node)))


def reads(tree: Tree) -> Iterator[Read]:
    """Every read in `tree`, left to right."""
    return (node for node in within(tree) if isinstance(node, Read))


class _Builder:
    """One statement on its way to a tensor."""

    def __init__(
        self, parser: Parser, scope: Mapping[str, Any], sizes: Mapping[str, Extent]
    ) -> None:
        self.parser = parser
        self.scope = scope
        self.sizes = sizes
        self.axes: dict[str, ScalarHandle] = {}
        self.pending: frozenset[str] = frozenset()

    def build(self, statement: Statement) -> Tensor:
        """The tensor of a statement."""
        own = [self.bind(name, statement.body) for name in statement.axes]
        inner = _stopped(statement.body)
        body = self.visit(statement.body if inner is None else inner)
        place = self.place(statement)
        try:
            made = close(own, body, statement.name, place)
        except PullbackError as problem:
            raise self.moved(problem, statement) from None
        if inner is not None and isinstance(made.value, Definition):
            made.value.stop = True
        return made

    def place(self, tree: Tree) -> TextOrigin:
        """Where `tree` stands."""
        return self.parser.at(tree.start, tree.end)

    def moved(self, problem: PullbackError, tree: Tree) -> PullbackError:
        """The same error, pointing into the text."""
        if isinstance(problem.origin, TextOrigin):
            return problem
        where = self.place(tree)
        return type(problem)(problem.what, origin=where, help=problem.help, code=problem.code)

    # --- axes

    def bind(self, name: Name, body: Tree) -> ScalarHandle:
        """A new axis. Raises: ShapeError where its extent is not known or not one."""
        if name.name in self.axes or name.name in self.scope:
            raise UnboundNameError(
                f"axis {name.name!r} has the name of something else",
                origin=self.place(name),
                code="E150",
            )
        axis = new_axis(self.extent(name, body), name.name)
        self.axes[name.name] = axis
        return axis

    def extent(self, name: Name, body: Tree) -> Extent:
        """The extent of an axis: as given, or that of every axis that it reads alone."""
        if name.name in self.sizes:
            return self.sizes[name.name]
        known: Extent | None = None
        for read in reads(body):
            if read.name in self.pending:
                continue
            shape = self.shape(read)
            for index, extent in zip(read.indices, shape, strict=False):
                if not isinstance(index, Name) or index.name != name.name:
                    continue
                if known is not None and known != extent:
                    raise ShapeError(
                        f"axis {name.name!r} has {known} elements elsewhere and {extent} here",
                        origin=self.place(read),
                        code="E128",
                    )
                known = extent
        if known is None:
            raise ShapeError(
                f"no read fixes the extent of axis {name.name!r}",
                origin=self.place(name),
                help=f'give it: sizes={{"{name.name}": n}}',
                code="E129",
            )
        return known

    def shape(self, read: Read) -> tuple[Extent, ...]:
        """The shape of what is read. Raises: UnboundNameError, ShapeError."""
        tensor = self.scope.get(read.name)
        if tensor is None:
            raise self.unbound(read.name, read)
        shape: tuple[Extent, ...] = () if isinstance(tensor, Scalar) else tensor.shape
        if len(shape) != len(read.indices):
            raise ShapeError(
                f"{len(read.indices)} indices read {read.name!r}, which has {len(shape)} axes:"
                f" its shape is {show(shape)}",
                origin=self.place(read),
                code="E130",
            )
        return shape

    def unbound(self, name: str, tree: Tree) -> UnboundNameError:
        """The error for an unknown name, with a guess."""
        known = [*self.axes, *self.scope, *self.sizes, *RULES, *ARITY]
        close_ones = difflib.get_close_matches(name, known, 1)
        help = f"did you mean {close_ones[0]!r}?" if close_ones else f"give it: {name}=.."
        return UnboundNameError(f"{name!r} is bound by nothing", origin=self.place(tree), help=help)

    # --- expressions

    def visit(self, tree: Tree) -> Any:
        """A scalar handle or a Python number for `tree`.

        ``a + b + .. + z`` leans to the left, as long as it is: what leans so is no recursion.
        """
        above: list[Operation] = []
        while isinstance(tree, Operation):
            above.append(tree)
            tree = tree.args[0]
        value = self.located(tree, lambda: self.made(tree))
        for operation in reversed(above):
            first, rest = value, operation.args[1:]
            value = self.located(operation, partial(self.operated, operation.operator, first, rest))
        return value

    def located(self, tree: Tree, make: Callable[[], Any]) -> Any:
        """What `make` makes of `tree`; what it is, or is wrong with it, has the tree's place."""
        try:
            value = make()
        except PullbackError as problem:
            raise self.moved(problem, tree) from None
        if isinstance(value, ScalarHandle) and not isinstance(tree, Name):
            handles.locate(value.expr, self.place(tree))
        return value

    def operated(self, operator: str, first: Any, rest: Sequence[Tree]) -> Any:
        return self.operation(OPERATORS[operator], [first, *map(self.visit, rest)])

    def made(self, tree: Tree) -> Any:
        if isinstance(tree, Number):
            return tree.value
        if isinstance(tree, Name):
            return self.name(tree)
        if isinstance(tree, Read):
            self.shape(tree)
            indices = [self.visit(i) for i in tree.indices]
            return handles.read_at(self.scope[tree.name].value, indices)
        if isinstance(tree, Call):
            return self.call(tree)
        assert isinstance(tree, Reduction)
        return self.reduction(tree)

    def name(self, tree: Name) -> Any:
        """An axis, a number, or a tensor without axes."""
        for known in (self.axes, self.scope, CONSTANTS, self.sizes):
            if tree.name in known:
                value = known[tree.name]
                return handles.scalar_of(value)
        raise self.unbound(tree.name, tree)

    def operation(self, name: str, args: Sequence[Any]) -> Any:
        """An element-wise operation; on numbers alone it is worked out in float64."""
        if not all(isinstance(a, Scalar) for a in args):
            return handles.combine(name, *args)
        rule = RULES[name]
        kind = rule.dtype(args)
        if kind.is_float or (name == "pow" and args[1] < 0):
            kind = D.float64
        body = simplify(rule.body(*(literal(a, kind) for a in args)))
        if not isinstance(body, E.Const):
            return ScalarHandle(body)
        if name in GROWING and kind == D.int64 and not _fits(name, args):
            what = f"{name} of {' and '.join(map(str, args))} does not fit {kind}"
            raise DTypeError(what, help="write one of them as a float", code="E141")
        return body.value

    def call(self, tree: Call) -> Any:
        """A function by its name. Raises: UnboundNameError for one that there is not."""
        name = ALIASES.get(tree.function, tree.function)
        if tree.function in ("sum", "prod", "any", "all", "argmax", "argmin", "mean"):
            raise ShapeError(
                f"{tree.function}(..) over which axis?",
                origin=self.place(tree),
                help=f"write {tree.function}[k](expression)",
                code="E170",
            )
        special: dict[str, Callable[..., Any]] = {"where": handles.where, "clip": handles.clip}
        args = [self.visit(a) for a in tree.args]
        if name in special:
            self.arity(tree, ARITY[name])
            return special[name](*args)
        if name in D.BY_NAME:
            self.arity(tree, 1)
            return handles.astype(args[0], D.dtype(name))
        if name in FOLDED and len(args) > 2:
            return reduce(lambda a, b: self.operation(name, [a, b]), args)
        if name not in RULES:
            raise self.unbound(tree.function, tree)
        self.arity(tree, handles.arity(name))
        return self.operation(name, args)

    def arity(self, tree: Call, wanted: int) -> None:
        """Raises: ShapeError for another number of arguments."""
        if len(tree.args) != wanted:
            raise ShapeError(
                f"{tree.function} takes {wanted} arguments, not {len(tree.args)}",
                origin=self.place(tree),
                code="E171",
            )

    def reduction(self, tree: Reduction) -> ScalarHandle:
        """``sum[k](body)``; its axes are known inside only."""
        over = [self.bind(name, tree.body) for name in tree.axes]
        body = self.visit(tree.body)
        for name in tree.axes:
            del self.axes[name.name]
        if not over:
            raise ShapeError(
                f"{tree.function}[] over no axis", origin=self.place(tree), code="E170"
            )
        if tree.function in ("argmax", "argmin"):
            return handles.arg_fold(tree.function, body, over)
        if tree.function == "mean":
            return handles.mean(body, over)
        return handles.fold(tree.function, body, over)


class _System:
    """Statements that read themselves and each other, on their way to tensors."""

    def __init__(
        self,
        parser: Parser,
        scope: Mapping[str, Any],
        sizes: Mapping[str, Extent],
        statements: Sequence[Statement],
    ) -> None:
        self.statements = statements
        self.names = frozenset(s.name for s in statements)
        self.builders = [_Builder(parser, scope, sizes) for _ in statements]
        for builder in self.builders:
            builder.pending = self.names

    def build(self) -> list[Tensor]:
        """The tensors. Raises: RecurrenceError where there is no order for their cells."""
        first = self.statements[0]
        places = [b.place(s) for b, s in zip(self.builders, self.statements, strict=True)]
        axes = self.axes()
        try:
            return recurrent([s.name for s in self.statements], axes, self.bodies, places[0])
        except PullbackError as problem:
            raise self.builders[0].moved(problem, first) from None

    def axes(self) -> list[ScalarHandle]:
        """The axes that all have in common, extents by the reads of any."""
        first = self.statements[0]
        for builder, other in zip(self.builders, self.statements, strict=True):
            if len(other.axes) != len(first.axes):
                raise ShapeError(
                    f"{first.name!r} with {len(first.axes)} axes and {other.name!r} with"
                    f" {len(other.axes)} define each other",
                    origin=builder.place(other),
                    code="E128",
                )
        axes: list[ScalarHandle] = []
        for number, name in enumerate(first.axes):
            problems: list[ShapeError] = []
            for builder, statement in zip(self.builders, self.statements, strict=True):
                try:
                    extent = builder.extent(statement.axes[number], statement.body)
                except ShapeError as problem:
                    if problem.code != "E129":
                        raise
                    problems.append(problem)
                    continue
                axes.append(new_axis(extent, name.name))
                break
            else:
                raise problems[0]
        return axes

    def bodies(self, itself: Sequence[Itself], axes: Sequence[ScalarHandle]) -> list[Any]:
        """What each statement says, of the tensors themselves."""
        known = {s.name: t for s, t in zip(self.statements, itself, strict=True)}
        bodies: list[Any] = []
        for builder, statement in zip(self.builders, self.statements, strict=True):
            builder.scope = {**builder.scope, **known}
            builder.pending = frozenset()
            builder.axes = {n.name: a for n, a in zip(statement.axes, axes, strict=True)}
            bodies.append(builder.visit(statement.body))
        return bodies


def _stopped(body: Tree) -> Tree | None:
    """What ``stop(..)`` is around, where that is all of a definition: no derivative passes."""
    whole = isinstance(body, Call) and body.function == "stop" and len(body.args) == 1
    return body.args[0] if isinstance(body, Call) and whole else None


def _fits(name: str, args: Sequence[Any]) -> bool:
    """Whether whole numbers give one that int64 holds."""
    a, b = (int(v) for v in args)
    lo, hi = D.int64.range()
    if name == "pow" and abs(a) > 1 and b >= D.int64.bits:
        return False
    return bool(lo <= GROWING[name](a, b) <= hi)
