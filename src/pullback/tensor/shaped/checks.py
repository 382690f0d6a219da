"""`shaped`: a function's shapes, declared once and checked before it builds anything.

    @shaped("input[*b, k], weight[n, k], bias[n] -> [*b, n]")
    def linear(input, weight, bias=None): ...

What may be written stands in `declaration`. A tensor argument of another size, rank or kind, and a
number out of its limits, is an error at the user's line. The declaration is also the first line of
`Shapes:` in the docstring, the function's row in the reference, and what the property test reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import BoundArguments, Parameter, Signature, cleandoc, signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pullback.errors import DTypeError, ShapeError, SyntaxFormError
from pullback.ir.dtype import DType
from pullback.tensor.face.eager import eagerly
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.record.trace import Handle
from pullback.tensor.shaped.declaration import KINDS, Declaration, Shape, parse
from pullback.tensor.shaped.limits import check_limits, check_numbers, number_kinds
from pullback.tensor.shaped.matching import Bound, Misfit, NoAxis, Sizes, match
from pullback.tensor.values.answers import Answering

P = ParamSpec("P")
R = TypeVar("R")
REMEMBERED = 1024  # calls, of about 500 bytes each
LONGEST = 64  # lists that are part of what is remembered
SEVERAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


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


# --- the decorator -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shaped:
    """A declared function: its name for messages, its arguments' names, what was declared."""

    owner: str
    signature: Signature
    declared: Declaration
    tensors: frozenset[str]  # arguments that are tensors by their annotation: others become so
    texts: frozenset[str]  # arguments that may be text
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
        single = {n: p for n, p in made.parameters.items() if p.kind not in SEVERAL}
        annotations = {n: str(p.annotation) for n, p in single.items()}
        own = {n for n, a in annotations.items() if a in ("Tensor", "Tensor | None")}
        named = {s.name for s in declared.arguments}
        owner = name or function.__qualname__.removesuffix(".forward").removesuffix(".__init__")
        texts = frozenset(n for n, a in annotations.items() if "str" in a)
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
        check_limits(owner, self.declared.limits, Bound(settings), self.texts)

    def check(self, arguments: Mapping[str, Any]) -> Bound:
        """What is bound. Raises: ShapeError, DTypeError for arguments unlike their declaration."""
        arrays = {s.name for s in self.declared.arguments}
        told = {n: v for n, v in arguments.items() if not _holds_data(v, n in arrays)}
        bound = Bound(told)
        owner = self._name(bound)
        check_numbers(owner, self.numbers, told)
        check_limits(owner, self.declared.limits, bound, self.texts)
        try:
            bound = self._bound(arguments, bound)
        except NoAxis:
            return bound
        check_limits(owner, self.declared.limits, bound, self.texts)
        return bound

    def _bound(self, arguments: Mapping[str, Any], bound: Bound) -> Bound:
        later: list[tuple[Shape, Sizes]] = []
        for shape, value in self._tensors(arguments):
            sizes = self._sizes(shape, value)
            if sizes is None:
                continue
            later.append((shape, sizes))
            bound = self._matched(shape, sizes, bound)
        for shape, sizes in later:  # arithmetic of letters that came later
            bound = self._matched(shape, sizes, bound)
        return bound

    def _name(self, bound: Bound) -> str:
        """The function, or the class of the layer whose method it is."""
        layer = bound.arguments.get("self")
        return self.owner if layer is None else type(layer).__name__

    def _tensors(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Shape, Any]]:
        """Declared arguments, each of several by itself."""
        for shape in self.declared.arguments:
            value = arguments[shape.name]
            if not shape.several:
                yield shape, value
            elif isinstance(value, list | tuple):
                for n, one in enumerate(value):
                    yield replace(shape, name=f"{shape.name}[{n}]"), one

    def _sizes(self, shape: Shape, value: Any) -> Sizes | None:
        """The sizes of an argument; None where it is left out or answers for itself."""
        if value is None or isinstance(value, ScalarHandle | Answering):
            return None
        if isinstance(value, bool | int | float | list | tuple):
            return nested(value)
        if not isinstance(value, Handle):
            sizes = getattr(value, "shape", None)  # of arrays of others too
            return tuple(sizes) if isinstance(sizes, Sequence) else None
        if not is_of(value.dtype, shape.kind):
            raise DTypeError(
                f"{self.owner}: `{shape.name}` is {value.dtype}",
                help=f"it takes {KINDS[shape.kind]}",
                code="E177",
            )
        return tuple(value.shape)

    def _matched(self, shape: Shape, sizes: Sizes, bound: Bound) -> Bound:
        try:
            return match(shape, sizes, bound)
        except Misfit as problem:
            text = f"{self._name(bound)}: {problem}"
        raise ShapeError(text, help=self.declared.call(self._name(bound)), code="E175")


def _key(value: Any) -> Any:
    """What of an argument decides whether it is right. 1, 1.0 and True are three keys."""
    if isinstance(value, Handle):
        return value.shape, value.dtype
    if isinstance(value, list | tuple) and len(value) <= LONGEST:
        return type(value), tuple(map(_key, value))
    return type(value), value


def _holds_data(value: Any, declared: bool) -> bool:
    """Whether an argument is a tensor: its elements have no limits."""
    if declared and isinstance(value, list | tuple):
        return any(isinstance(one, Handle | np.ndarray | list | tuple) for one in value)
    return isinstance(value, Handle | np.ndarray)


def nested(value: Any) -> Sizes | None:
    """The extents of Python's lists of numbers; None where something else is in them."""
    sizes: list[int] = []
    while isinstance(value, list | tuple):
        sizes.append(len(value))
        value = value[0] if value else 0
    return tuple(sizes) if isinstance(value, bool | int | float | np.generic) else None


def shaped(
    text: str, where: str = "", name: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the shapes of a function's tensors, and the limits of its numbers.

    A tensor argument (by annotation) that is an array or a number becomes a tensor. Where no tensor
    is declared, only limits, the function is called as it is and may have effects.
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
        call.__doc__ = documented(function.__doc__ or "", declared, refusals(declared))
        return eagerly(call) if declared.arguments else call

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


def documented(text: str, declared: Declaration, refused: Sequence[str] = ()) -> str:
    """A docstring with what is declared, and what others are refused with, before its example."""
    told, mark, example = cleandoc(text).partition("\n\nExample:")
    told, own = _without_raises(told)
    shapes = bool(declared.arguments or declared.results)
    lines = [str(declared).strip()] if shapes else []
    lines += [limit.text for limit in declared.limits]
    title = "Shapes" if shapes else "Limits"
    parts = [told, f"{title}:\n    " + "\n    ".join(lines)]
    if own or refused:
        parts.append("Raises:\n    " + "\n    ".join([*refused, *own]))
    return "\n\n".join(parts) + mark + example


def _without_raises(text: str) -> tuple[str, list[str]]:
    """A docstring's text without its part of errors, and that part's lines."""
    kept: list[str] = []
    raised: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.startswith("Raises:")
        inside = starts or (inside and line.startswith(" "))
        if inside:
            raised += [line.removeprefix("Raises:").strip()]
        else:
            kept.append(line)
    return "\n".join(kept).rstrip(), [line for line in raised if line]


def refusals(declared: Declaration) -> list[str]:
    """What is raised for arguments that are not as declared."""
    errors = {
        "ShapeError (E175) for other sizes": bool(declared.arguments),
        "ArgumentError (E176) for a number out of its limits": bool(declared.limits),
        "DTypeError (E177) for other kinds": any(s.kind != "any" for s in declared.arguments),
    }
    return [text for text, raised in errors.items() if raised]


def declaration(function: Any) -> Declaration | None:
    """What a public function or layer declares."""
    own = getattr(function, "__shapes__", None)
    return None if own is None else own.declared
