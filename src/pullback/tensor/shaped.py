"""`shaped`: a function's shapes, declared once and checked before it builds anything.

    @shaped("input[*b, k], weight[n, k], bias[n] -> [*b, n]")
    def linear(input, weight, bias=None): ...

What may be written stands in `declaration`. A tensor argument of another size, rank or kind, and a
number out of its limits, is an error at the user's line. The declaration is also the first line of
`Shapes:` in the docstring, the function's row in the reference, and what the property test reads.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, cleandoc, signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pullback.errors import ArgumentError, DTypeError, ShapeError, SyntaxFormError
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim
from pullback.tensor.answers import Answering
from pullback.tensor.declaration import KINDS, Declaration, Extent, Free, Group, Items, Shape, parse
from pullback.tensor.eager import eagerly
from pullback.tensor.elementwise import show
from pullback.tensor.handles import ScalarHandle
from pullback.tensor.tensor import Tensor, value_of
from pullback.tensor.trace import Handle

P = ParamSpec("P")
R = TypeVar("R")
Size = int | Dim
Sizes = tuple[Size, ...]
REMEMBERED = 1024  # calls, of about 500 bytes each


class _Misfit(Exception):
    """Why a shape is not the one declared; caught where the argument is known.

    `of_rank`: not even the number of axes fits.
    """

    def __init__(self, text: str, of_rank: bool = False) -> None:
        super().__init__(text)
        self.of_rank = of_rank


@dataclass(frozen=True, slots=True)
class Place:
    """Where a letter got its number."""

    size: Size
    argument: str
    axis: int


@dataclass(slots=True)
class Bound:
    """Letters and groups of one call, as far as they are known."""

    arguments: Mapping[str, Any]
    letters: dict[str, Place] = field(default_factory=dict)
    groups: dict[str, tuple[Sizes, str]] = field(default_factory=dict)

    def branch(self) -> Bound:
        """A copy, to try a way with."""
        return Bound(self.arguments, dict(self.letters), dict(self.groups))

    def number(self, tree: ast.expr) -> Any:
        """What an expression of letters and arguments is; None while a name of it is not known."""
        match tree:
            case ast.Constant():
                return tree.value
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name():
                place = self.letters.get(tree.id)
                return self.arguments.get(tree.id) if place is None else place.size
            case ast.Attribute():
                return getattr(self.number(tree.value), tree.attr, None)
            case ast.BinOp():
                return _combined(tree.op, self.number(tree.left), self.number(tree.right))
            case ast.UnaryOp(op=ast.USub()):
                return _combined(ast.Sub(), 0, self.number(tree.operand))
        raise SyntaxFormError(f"no arithmetic: {ast.unparse(tree)}")


def _combined(op: ast.operator, a: Any, b: Any) -> Any:
    """Arithmetic of numbers; None where one is not known or is no integer."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return None
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.FloorDiv():
            return a // b if b else None
        case ast.Mod():
            return a % b if b else None
        case ast.Pow():
            return a**b
    raise SyntaxFormError(f"no arithmetic: {type(op).__name__}")


# --- sizes ---------------------------------------------------------------------------------------


def match(shape: Shape, sizes: Sizes, bound: Bound) -> Bound:
    """What is known once the argument `shape` has these sizes. Raises: _Misfit."""
    problems = []
    for way in shape.ways:
        trial = bound.branch()
        try:
            _match_way(shape.name, way, sizes, trial)
        except _Misfit as problem:
            problems.append(problem)
            continue
        return trial
    fitting = [p for p in problems if not p.of_rank]
    raise (fitting or problems)[0]


def _match_way(name: str, way: Items, sizes: Sizes, bound: Bound) -> None:
    fixed = sum(_width(item, bound) or 0 for item in way)
    open_ended = [item for item in way if _width(item, bound) is None]
    if len(sizes) < fixed or (len(sizes) > fixed and not open_ended):
        raise _Misfit(_rank_text(name, way, sizes, fixed, bool(open_ended)), of_rank=True)
    rest = len(sizes) - fixed
    axis = 0
    for item in way:
        width = _width(item, bound)
        taken = rest if width is None else width
        _match_item(name, item, axis, sizes[axis : axis + taken], bound)
        axis += taken


def _width(item: Any, bound: Bound) -> int | None:
    """How many axes an item takes; None: as many as there are."""
    if isinstance(item, Extent):
        return 1
    if isinstance(item, Free):
        return None if item.count is None else int(bound.number(item.count))
    listed = _listed(item, bound)
    if listed is not None:
        return len(listed)
    known = bound.groups.get(item.name) if item.same and not item.stretches else None
    return None if known is None else len(known[0])


def _listed(group: Group, bound: Bound) -> Sizes | None:
    """The extents that an argument of the group's name lists."""
    given = bound.arguments.get(group.name)
    if isinstance(given, int):
        return (given,)
    return tuple(given) if isinstance(given, list | tuple) else None


def _rank_text(name: str, way: Items, sizes: Sizes, fixed: int, more: bool) -> str:
    wanted = ", ".join(map(str, way))
    least = " or more" if more else ""
    return f"`{name}` of {show(sizes)} has {len(sizes)} axes, [{wanted}] has {fixed}{least}"


def _match_item(name: str, item: Any, axis: int, sizes: Sizes, bound: Bound) -> None:
    if isinstance(item, Extent):
        _match_extent(name, item, axis, sizes[0], bound)
    elif isinstance(item, Group):
        _match_group(name, item, axis, sizes, bound)


def _match_extent(name: str, item: Extent, axis: int, size: Size, bound: Bound) -> None:
    if item.stretches and size == 1:
        return
    letter = item.letter
    wanted = bound.number(item.tree)
    if wanted is None:
        if letter is not None:
            bound.letters[letter] = Place(size, name, axis)
        return
    if wanted == size or not isinstance(wanted, int | Dim):
        return
    raise _Misfit(_size_text(name, axis, size, item.text, wanted, bound))


def _size_text(name: str, axis: int, size: Size, text: str, wanted: Size, bound: Bound) -> str:
    place = bound.letters.get(text.removesuffix("?"))
    if place is None:
        why = f"{text} is {wanted}" if text != str(wanted) else f"it must be {wanted}"
    else:
        why = f"{text} is {wanted}, axis {place.axis} of `{place.argument}`"
    return f"axis {axis} of `{name}` has {size} elements, {why}"


def _match_group(name: str, item: Group, axis: int, sizes: Sizes, bound: Bound) -> None:
    listed = _listed(item, bound)
    if listed is not None:
        for n, (size, wanted) in enumerate(zip(sizes, listed, strict=True)):
            if size != wanted:
                text = f"*{item.name}"
                raise _Misfit(_size_text(name, axis + n, size, text, wanted, bound))
        return
    before = bound.groups.get(item.name)
    if before is None:
        if not item.stretches:
            bound.groups[item.name] = (sizes, name)
        return
    known, owner = before
    if item.stretches:
        _match_stretching(name, item, axis, sizes, known, owner)
    elif item.same:
        for n, (size, wanted) in enumerate(zip(sizes, known, strict=True)):
            if size != wanted:
                raise _Misfit(
                    f"axis {axis + n} of `{name}` has {size} elements, "
                    f"axis {n} of {item.name}... has {wanted} in `{owner}`"
                )
    else:
        bound.groups[item.name] = (_stretched(name, item, axis, sizes, known, owner), owner)


def _match_stretching(
    name: str, item: Group, axis: int, sizes: Sizes, known: Sizes, owner: str
) -> None:
    """Raises: _Misfit where these sizes do not stretch to those known."""
    skip = len(known) - len(sizes)
    if skip < 0:
        raise _Misfit(f"`{name}` of {show(sizes)} has more axes than `{owner}`", of_rank=True)
    for n, (size, wanted) in enumerate(zip(sizes, known[skip:], strict=True)):
        if size not in (1, wanted):
            raise _Misfit(
                f"axis {axis + n} of `{name}` has {size} elements, "
                f"axis {skip + n} of {item.name}... has {wanted} in `{owner}`: it must be that or 1"
            )


def _stretched(name: str, item: Group, axis: int, sizes: Sizes, known: Sizes, owner: str) -> Sizes:
    """Both broadcast. Raises: _Misfit where they do not."""
    rank = max(len(sizes), len(known))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in (sizes, known)]
    both: list[Size] = []
    for n, (size, other) in enumerate(zip(*padded, strict=True)):
        if size != other and 1 not in (size, other):
            own = axis + n - (rank - len(sizes))
            raise _Misfit(
                f"axis {own} of `{name}` has {size} elements, {other} in *{item.name} of `{owner}`"
                ": they must be equal or 1"
            )
        both.append(other if size == 1 else size)
    return tuple(both)


def result_sizes(shape: Shape, bound: Bound) -> tuple[Size | None, ...] | None:
    """The sizes that a declared result has; None where they are not told."""
    if len(shape.ways) > 1:
        return None
    sizes: list[Size | None] = []
    for item in shape.ways[0]:
        if isinstance(item, Extent):
            sizes.append(bound.number(item.tree))
        elif isinstance(item, Free):
            if item.count is None:
                return None
            sizes += [None] * int(bound.number(item.count))
        else:
            listed = _listed(item, bound)
            known = bound.groups.get(item.name, ((), ""))[0]
            sizes += known if listed is None else listed
    return tuple(sizes)


# --- kinds and numbers ---------------------------------------------------------------------------


def is_of(dtype: DType, kind: str) -> bool:
    """Whether an element type is of a kind."""
    match kind:
        case "float":
            return dtype.is_float
        case "int":
            return dtype.is_integer
        case "bool":
            return dtype.is_bool
        case "number":
            return not dtype.is_bool
    return True


def _numbers(tree: ast.expr, bound: Bound) -> Iterator[Any]:
    """What stands on one side of a limit: one number, or each of a sequence."""
    if isinstance(tree, ast.Call):
        for value in _numbers(tree.args[0], bound):
            yield _integer(value)
        return
    value = bound.number(tree)
    if isinstance(tree, ast.Name) and tree.id in bound.arguments:
        value = bound.arguments[tree.id]
    yield from value if isinstance(value, list | tuple) else (value,)


def _integer(value: Any) -> Any:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is None or whole or isinstance(value, str | Handle | Dim):
        return value
    raise _Misfit("it must be an integer")


def _compared(op: ast.cmpop, a: Any, b: Any) -> bool:
    """Whether a comparison holds; NaN fails every one, what is no number yet is let through."""
    if not (_known(a) and _known(b)):
        return True
    match op:
        case ast.Lt():
            return bool(a < b)
        case ast.LtE():
            return bool(a <= b)
        case ast.Gt():
            return bool(a > b)
        case ast.GtE():
            return bool(a >= b)
        case ast.Eq():
            return bool(a == b)
        case ast.NotEq():
            return bool(a != b) and not math.isnan(a)
    raise SyntaxFormError(f"no comparison: {type(op).__name__}")


def _known(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)


def check_limits(
    owner: str, declared: Declaration, bound: Bound, texts: Mapping[str, bool]
) -> None:
    """Raises: ArgumentError for a number out of its limits. `texts`: what may be text."""
    for limit in declared.limits:
        sides = [limit.tree.left, *limit.tree.comparators]
        names = [n.id for n in ast.walk(limit.tree) if isinstance(n, ast.Name)]
        names = [n for n in names if n in bound.arguments]
        for name in names:
            _check_type(owner, name, bound.arguments[name], texts.get(name, False), limit.text)
        for op, left, right in zip(limit.tree.ops, sides, sides[1:], strict=False):
            if not _holds(op, left, right, bound):
                shown = ", ".join(_told(limit.tree, bound))
                raise ArgumentError(f"{owner}: {shown}", help=f"it must hold: {limit.text}")


def _told(tree: ast.AST, bound: Bound) -> Iterator[str]:
    """What the names of a limit are."""
    for name in dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)):
        place = bound.letters.get(name)
        if place is not None:
            yield f"{name}={place.size} (axis {place.axis} of `{place.argument}`)"
        elif name in bound.arguments:
            yield f"{name}={bound.arguments[name]!r}"


def _holds(op: ast.cmpop, left: ast.expr, right: ast.expr, bound: Bound) -> bool:
    try:
        ends = list(_numbers(right, bound))
        return all(_compared(op, a, b) for a in _numbers(left, bound) for b in ends)
    except _Misfit:
        return False


def _check_type(owner: str, name: str, value: Any, text: bool, limit: str) -> None:
    """Raises: ArgumentError for what is no number, nor a sequence of them."""
    parts = value if isinstance(value, list | tuple) else (value,)
    for part in parts:
        fine = part is None or isinstance(part, Handle | Dim) or _known(part)
        if not fine and not (text and isinstance(part, str)):
            raise ArgumentError(f"{owner}: {name}={value!r} is no number", help=limit)


NUMBERS = {"int", "float", "Ints", "Sequence[int]", "None", "str"}
LISTED = {"Ints", "Sequence[int]"}


def number_kinds(made: Signature) -> Mapping[str, frozenset[str]]:
    """The words of each annotation that is one of numbers."""
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    single = {n: str(p.annotation) for n, p in made.parameters.items() if p.kind not in several}
    words = {n: frozenset(map(str.strip, text.split("|"))) for n, text in single.items()}
    return {n: w for n, w in words.items() if w <= NUMBERS and w - {"None", "str"}}


def check_numbers(
    owner: str, kinds: Mapping[str, frozenset[str]], settings: Mapping[str, Any]
) -> None:
    """Raises: ArgumentError for what is no number where one is asked for, a list among them."""
    for name in kinds.keys() & settings.keys():
        value, words = settings[name], kinds[name]
        listed = isinstance(value, list | tuple)
        none = value is None and "None" not in words
        text = isinstance(value, str) and "str" not in words
        many = listed and not words & LISTED
        if none or text or many or (listed and any(v is None or isinstance(v, str) for v in value)):
            wanted = " or ".join(sorted(words))
            raise ArgumentError(
                f"{owner}: {name}={value!r} is no number", help=f"it takes {wanted}"
            )


# --- the decorator -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shaped:
    """A declared function: its name for messages, its arguments' names, what was declared."""

    owner: str
    signature: Signature
    declared: Declaration
    tensors: frozenset[str]  # arguments that are tensors by their annotation: others become so
    texts: Mapping[str, bool]
    numbers: Mapping[str, frozenset[str]]
    passed: set[Hashable] = field(default_factory=set)  # keys of calls that were right

    @classmethod
    def of(cls, function: Callable[..., Any], declared: Declaration, name: str = "") -> Shaped:
        """`name`: for messages, where it is not the function's.

        Raises: SyntaxFormError for a declared argument that the function does not have.
        """
        made = signature(function)
        for shape in declared.arguments:
            if shape.name not in made.parameters:
                raise SyntaxFormError(f"{function.__qualname__} has no argument {shape.name!r}")
        annotations = {n: str(p.annotation) for n, p in made.parameters.items()}
        own = {n for n, a in annotations.items() if a in ("Tensor", "Tensor | None")}
        named = {s.name for s in declared.arguments}
        owner = name or function.__qualname__.removesuffix(".forward").removesuffix(".__init__")
        texts = {n: "str" in a for n, a in annotations.items()}
        return cls(owner, made, declared, frozenset(own & named), texts, number_kinds(made))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
        """Arguments by name, defaults included, tensors made of arrays and numbers.

        Raises: TypeError as Python does.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in self.tensors:
            given = bound.arguments[name]
            if given is not None and not isinstance(given, Handle | Answering | ScalarHandle):
                bound.arguments[name] = Tensor(value_of(given))
        return bound

    def checked(self, arguments: Mapping[str, Any]) -> None:
        """`check`, once for each combination of shapes, types and numbers."""
        key = tuple(map(_key, arguments.values()))
        try:
            known = key in self.passed
        except TypeError:  # an argument without a hash, a list of strides
            known = False
            key = ()
        if known:
            return
        self.check(arguments)
        if len(self.passed) >= REMEMBERED:
            self.passed.clear()
        if key and "self" not in arguments:  # a layer is not kept alive
            self.passed.add(key)

    def limited(self, owner: str, settings: Mapping[str, Any]) -> None:
        """Raises: ArgumentError for settings, of a layer of this function, out of their limits."""
        check_numbers(owner, self.numbers, settings)
        check_limits(owner, self.declared, Bound(settings), self.texts)

    def check(self, arguments: Mapping[str, Any]) -> Bound:
        """What is bound. Raises: ShapeError, DTypeError for arguments unlike their declaration."""
        told = {n: v for n, v in arguments.items() if not isinstance(v, Handle | np.ndarray)}
        bound = Bound(told)
        owner = self._name(bound)
        check_numbers(owner, self.numbers, told)
        check_limits(owner, self.declared, bound, self.texts)
        later: list[tuple[Shape, Sizes]] = []
        for shape in self.declared.arguments:
            sizes = self._sizes(shape, arguments[shape.name])
            if sizes is None:
                continue
            later.append((shape, sizes))
            bound = self._matched(shape, sizes, bound)
        for shape, sizes in later:  # arithmetic of letters that came later
            bound = self._matched(shape, sizes, bound)
        check_limits(owner, self.declared, bound, self.texts)
        return bound

    def _name(self, bound: Bound) -> str:
        """The function, or the class of the layer whose method it is."""
        layer = bound.arguments.get("self")
        return self.owner if layer is None else type(layer).__name__

    def _sizes(self, shape: Shape, value: Any) -> Sizes | None:
        """The sizes of an argument; None where it is left out or answers for itself."""
        if value is None or isinstance(value, ScalarHandle | Answering):
            return None
        if isinstance(value, bool | int | float):
            return ()
        if not isinstance(value, Handle | np.ndarray | np.generic):
            return None
        if isinstance(value, Handle) and not is_of(value.dtype, shape.kind):
            raise DTypeError(
                f"{self.owner}: `{shape.name}` is {value.dtype}",
                help=f"it takes {KINDS[shape.kind]}",
                code="E177",
            )
        return tuple(value.shape)

    def _matched(self, shape: Shape, sizes: Sizes, bound: Bound) -> Bound:
        try:
            return match(shape, sizes, bound)
        except _Misfit as problem:
            text = f"{self._name(bound)}: {problem}"
        raise ShapeError(text, help=self.declared.call(self._name(bound)), code="E175")


def _key(value: Any) -> Any:
    """What of an argument decides whether it is right. 1, 1.0 and True are three keys."""
    if isinstance(value, Handle):
        return value.shape, value.dtype
    return type(value), value


def shaped(
    text: str, where: str = "", name: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the shapes of a function's tensors, and the limits of its numbers.

    A tensor argument (by annotation) that is an array or a number becomes a tensor.
    Raises: SyntaxFormError for a declaration that cannot be read, where the function is made.
    """
    declared = parse(text, where)

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        own = Shaped.of(function, declared, name)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = own.bind(args, kwargs)
            own.checked(bound.arguments)
            return function(*bound.args, **bound.kwargs)

        call.__shapes__ = own  # type: ignore[attr-defined]  # for the reference and the tests
        call.__doc__ = documented(function.__doc__ or "", declared, _refusals(declared))
        return eagerly(call)

    return declare


def declared(text: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`shaped` of a function whose own operations check just that: it is called as it is.

    For what is called millions of times; the property test holds the declaration all the same.
    """
    whole = parse(text)

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        function.__shapes__ = Shaped.of(function, whole)  # type: ignore[attr-defined]  # as above
        function.__doc__ = documented(function.__doc__ or "", whole)
        return function

    return declare


def documented(text: str, declared: Declaration, refusals: str = "") -> str:
    """A docstring with what is declared, and what others are refused with, before its example."""
    told, mark, example = cleandoc(text).partition("\n\nExample:")
    lines = [str(declared)] if declared.arguments else []
    lines += [limit.text for limit in declared.limits]
    lines += [refusals] if refusals else []
    return f"{told}\n\nShapes:\n    " + "\n    ".join(lines) + mark + example


def _refusals(declared: Declaration) -> str:
    """What is raised for other arguments."""
    errors = {
        "ShapeError (E175)": bool(declared.arguments),
        "ArgumentError (E176)": bool(declared.limits),
        "DTypeError (E177)": any(s.kind != "any" for s in declared.arguments),
    }
    return f"else {', '.join(name for name, raised in errors.items() if raised)}"


def declaration(function: Any) -> Declaration | None:
    """What a public function or layer declares."""
    own = getattr(function, "__shapes__", None)
    return None if own is None else own.declared
