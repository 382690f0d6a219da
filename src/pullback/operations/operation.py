"""An operation of a file: read, called on tensors, written again."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pullback.composite.syntax import Call, Name, Number, Statement
from pullback.composite.text import built
from pullback.errors import ArgumentError, DTypeError, Origin, ShapeError, StateError
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.operations.code import Lines, Several, expanded
from pullback.operations.extents import Extents, measured
from pullback.operations.notation import (
    RANK,
    Condition,
    Signature,
    Size,
    condition,
    signature,
    symbols,
)
from pullback.operations.sizes import MOST_RANK, Sizes, check, ranks_of, runs_of, solve, solved
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import asarray
from pullback.tensor.library.ops import permute_dims

KEYS = ("documentation", "name", "inputs", "outputs", "where", "code", "test")
NEEDED = ("name", "inputs", "outputs", "code")
NUMBER = (int, float)
TEST_KEYS: dict[str, Any] = {
    "sizes": dict, "low": NUMBER, "high": NUMBER, "tolerance": NUMBER, "below": dict,
    "gradient": list,
}  # fmt: skip
MOST_BYTES = 1 << 18  # of a file
FARTHEST = 1e300  # of values that are drawn
MOST_CALLS = 16  # of files that call files


Types = dict[str, tuple[DType, str]]  # of variables: what each is, and who said so
Known = tuple[Sizes, Mapping[str, int], Types]


@dataclass(frozen=True, slots=True)
class Test:
    """How an operation is tried: sizes of symbols, values of inputs, error, derivatives."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    low: float = -1.0
    high: float = 1.0
    tolerance: float = 1e-5
    below: Mapping[str, int] = field(default_factory=dict)
    gradient: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of tensors that a file defines.

    ``operation(a, b, M=3)`` gives a tensor, or a tuple where it has several outputs. Symbols that
    shapes do not say are given by name.
    """

    name: str
    documentation: str
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    where: tuple[Condition, ...]
    code: str
    test: Test
    folder: Path | None
    caller: Origin
    others: Mapping[str, Operation] = field(default_factory=dict, compare=False)
    open: bool = False  # sizes of outputs that nothing says are those of what the code makes

    @property
    def conditions(self) -> list[Condition]:
        """What is said of sizes anywhere."""
        inside = [c for s in (*self.inputs, *self.outputs) for c in s.where]
        return [*self.where, *inside]

    @property
    def symbols(self) -> list[str]:
        """Names of sizes, in the order in which they are written."""
        trees = [z.tree for s in (*self.inputs, *self.outputs) for z in s.sizes]
        trees += [t for c in self.conditions for t in (c.left, c.right) if t]
        return list(dict.fromkeys(n for tree in trees for n in symbols(tree)))

    def sizes(
        self,
        shapes: Sequence[Sequence[int]],
        given: Mapping[str, int],
        facts: Sequence[Expr] | None = None,
    ) -> Sizes:
        """Symbols where the inputs have these shapes, and `facts` are true of symbolic ones.

        Raises: ShapeError.
        """
        runs = {run.text for one in self.inputs for run in one.runs}
        for name in given:
            if name not in self.symbols and name not in runs:
                what = f"{self.name} has no symbol {name}"
                raise ArgumentError(what, help=f"it has {', '.join(self.symbols)}", code="E554")
        if facts is not None:
            return measured(self.inputs, shapes, self.conditions, given, facts)
        return solved(self.inputs, shapes, self.conditions, given)

    def __call__(self, *tensors: Any, **given: int) -> Any:
        return self._called(tensors, given, 0)

    def of_stored(self, *stored: Any, **given: int) -> Any:
        """The same where inputs lie as their order says, the slowest axis first."""
        return self._called(self._turned(stored), given, 0)

    def of_extents(
        self, stored: Sequence[Any], given: Mapping[str, Any], facts: Sequence[Expr]
    ) -> Any:
        """The same where sizes may be expressions of symbolic ones, of which `facts` are true.

        Raises: ShapeError for what does not follow from those.
        """
        return self._called(self._turned(stored), given, 0, facts)

    def _turned(self, stored: Sequence[Any]) -> list[Any]:
        """Inputs with their axes in the order of the notation."""
        self.counted(stored)
        turned: list[Any] = []
        for one, x in zip(self.inputs, stored, strict=True):
            back = None if one.order is None else [one.order.index(n) for n in range(x.ndim)]
            turned.append(x if back is None else permute_dims(x, back))
        return turned

    def counted(self, tensors: Sequence[Any]) -> None:
        """Raises: ArgumentError for another number of tensors."""
        if len(tensors) != len(self.inputs):
            names = ", ".join(s.text for s in self.inputs)
            what = f"{self.name} takes {len(self.inputs)} tensors, not {len(tensors)}"
            raise ArgumentError(what, help=names, code="E554")

    def _called(
        self,
        tensors: Sequence[Any],
        given: Mapping[str, int],
        depth: int,
        facts: Sequence[Expr] | None = None,
    ) -> Any:
        self.counted(tensors)
        if depth > MOST_CALLS:
            what = f"{self.name}: {MOST_CALLS} files call each other, one in the other"
            raise ArgumentError(what, help="a file that calls itself never ends", code="E554")
        names: dict[str, Any] = {}
        types: Types = {}
        for one, x in zip(self.inputs, tensors, strict=True):
            names[one.name] = held = x if isinstance(x, Tensor) else asarray(x)
            _typed(one, held.dtype, types, f"is given {held.dtype}")
        shapes = [tuple(names[s.name].shape) for s in self.inputs]
        sizes = self.sizes(shapes, given, facts)
        ranks = ranks_of(self.inputs, shapes, runs_of(given))
        made = self._made(names, (sizes, ranks, types), depth)
        return made[0] if len(made) == 1 else tuple(made)

    def _made(self, scope: dict[str, Any], known: Known, depth: int) -> list[Any]:
        sizes, ranks, types = known
        facts = sizes.facts if isinstance(sizes, Extents) else None
        shapes = {s.name: [self._asked(n, sizes) for n in s.expanded(ranks)] for s in self.outputs}
        parser = Lines(expanded(self.code, ranks), self.caller)
        for statement in parser.statements():
            callee = self._callee(statement, scope)
            if callee is not None:
                assert isinstance(statement.body, Call)
                args = [self._argument(a, scope) for a in statement.body.args]
                self._named(statement, callee._called(args, {}, depth + 1, facts), scope)
                continue
            extents = dict(sizes.known)
            for axis, extent in zip(statement.axes, shapes.get(statement.name, ()), strict=False):
                extents |= {} if extent is None else {axis.name: extent}
            (scope[statement.name],) = built(parser, [statement], extents, scope)
        for one in self.outputs:
            self._checked(one, scope.get(one.name), shapes[one.name], types)
            if self.open:
                self._closed(one, scope[one.name].shape, sizes, ranks)
        if self.open:
            check(self.conditions, sizes)
        return [scope[one.name] for one in self.outputs]

    def _asked(self, size: Size, sizes: Sizes) -> Any:
        """The extent of an output; None where it is left open."""
        left = self.open and any(n not in sizes.known for n in symbols(size.tree))
        return None if left else sizes.of(size)

    def _closed(
        self, one: Signature, shape: Sequence[int], sizes: Sizes, ranks: Mapping[str, int]
    ) -> None:
        """Symbols by what the code made of an output. Raises: ShapeError."""
        for axis, (size, made) in enumerate(zip(one.expanded(ranks), shape, strict=True)):
            place = f"axis {axis} of `{one.name}`"
            solve([(size.text, size.tree, Number(0, 0, made), place)], sizes)

    def _callee(self, statement: Statement, scope: Mapping[str, Any]) -> Operation | None:
        """What ``h = gemm(x, w)`` calls: one of `others`, or gemm.toml of the same folder."""
        body = statement.body
        several = isinstance(statement, Several)
        if statement.axes or not isinstance(body, Call) or body.function in scope:
            return None
        path = None if self.folder is None else self.folder / f"{body.function}.toml"
        callee = self.others.get(body.function)
        if callee is None and path is not None and path.is_file():
            callee = read(path)
        if callee is None and several:
            what = f"{self.name}: no operation is called {body.function}"
            raise ArgumentError(what, help="several names are those of a file", code="E554")
        return callee

    def _named(self, statement: Statement, made: Any, scope: dict[str, Any]) -> None:
        """What a file gives, by the names in front of it. Raises: ArgumentError."""
        names = statement.names if isinstance(statement, Several) else (statement.name,)
        values = made if isinstance(made, tuple) else (made,)
        if len(names) != len(values):
            assert isinstance(statement.body, Call)
            what = f"{statement.body.function} gives {len(values)} tensors, {len(names)} are named"
            raise ArgumentError(f"{self.name}: {what}", help="a, b = f(x)", code="E554")
        scope.update(zip(names, values, strict=True))

    def _argument(self, tree: object, scope: Mapping[str, Any]) -> Any:
        if not isinstance(tree, Name) or tree.name not in scope:
            what = f"{self.name}: a file is called with names of tensors"
            raise ArgumentError(what, help=", ".join(scope), code="E554")
        return scope[tree.name]

    def _checked(self, one: Signature, made: Any, shape: Sequence[int], types: Types) -> None:
        if made is None or any(one.name == s.name for s in self.inputs):
            what = f"{self.name}: the code defines no {one.name}"
            raise ArgumentError(what, help=f"it is an output: {one.text}", code="E554")
        same = [a is None or a == b for a, b in zip(shape, made.shape, strict=False)]
        if len(shape) != len(made.shape) or not all(same):
            what = f"{self.name}: {one.text} is {tuple(shape)}, the code makes {made.shape}"
            raise ShapeError(what, code="E552")
        _typed(one, made.dtype, types, f"of {self.name}: the code makes {made.dtype}")


def _typed(one: Signature, given: DType, types: Types, what: str) -> None:
    """A type against what is declared; the first of a variable is its type. Raises: DTypeError."""
    element = one.element
    if element.type is not None and given != element.type:
        raise DTypeError(f"{one.text} {what}", code="E554")
    name = element.variable
    if not name:
        return
    known, by = types.setdefault(name, (given, one.name))
    if known != given:
        raise DTypeError(f"{one.text} {what}: {name} is {known}, by `{by}`", code="E556")
    if not element.fits(given):
        raise DTypeError(f"{one.text} {what}: no {element.kind}", code="E556")


def read(path: str | Path) -> Operation:
    """The operation in a file. Raises: StateError, SyntaxFormError, DTypeError."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StateError(f"{path} has more than {MOST_BYTES} bytes", code="E550")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        what, help = f"{path} cannot be read: {problem}", "a file of TOML, in UTF-8"
        raise StateError(what, help=help, code="E550") from problem
    return _parsed(text, str(path), path.parent)


def parse(text: str, folder: str | Path | None = None) -> Operation:
    """The operation in a text; the files that it calls are in `folder`. Raises: as `read`."""
    return _parsed(text, "the text", None if folder is None else Path(folder))


def _parsed(text: str, where: str, folder: Path | None) -> Operation:
    caller = Origin.of_caller()
    try:
        entries = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as problem:
        raise StateError(f"{where} is no TOML: {problem}", code="E550") from problem
    _known(entries, KEYS, where)
    for key in NEEDED:
        if key not in entries:
            raise StateError(f"{where} has no `{key}`", help=", ".join(NEEDED), code="E550")
    for key, kind in {**dict.fromkeys(KEYS, str), "inputs": list, "outputs": list,
                      "where": list, "test": dict}.items():  # fmt: skip
        if not isinstance(entries.get(key, kind()), kind):
            raise StateError(f"{where}: `{key}` is no {kind.__name__}", code="E550")
    inputs = tuple(signature(s, caller) for s in entries["inputs"])
    outputs = tuple(signature(s, caller) for s in entries["outputs"])
    names = [s.name for s in (*inputs, *outputs)]
    if not outputs or len(set(names)) < len(names):
        raise StateError(f"{where}: no output, or two of one name: {names}", code="E550")
    if taken := {f"~{n}" for n in names} & {run.text for s in inputs for run in s.runs}:
        what = f"{where}: {' and '.join(sorted(taken))} has the name of a tensor"
        raise StateError(what, code="E550")
    ranked = {run.text for s in inputs for run in s.runs}
    for run in (run.text for s in outputs for run in s.runs):
        if run not in ranked:
            raise StateError(f"{where}: {run} of an output is in no input", code="E550")
    return Operation(
        entries["name"], entries.get("documentation", ""), inputs, outputs,
        tuple(condition(c, caller) for c in entries.get("where", [])), entries["code"],
        _test(entries.get("test", {}), where), folder, caller,
    )  # fmt: skip


def _test(entries: Mapping[str, Any], where: str) -> Test:
    _known(entries, tuple(TEST_KEYS), f"{where}, test")
    for key, value in entries.items():
        if not isinstance(value, TEST_KEYS[key]):
            raise StateError(f"{where}, test: `{key}` = {value!r}", code="E550")
    for key in ("sizes", "below"):
        for name, value in entries.get(key, {}).items():
            if type(value) is not int or not 0 <= value < 2**31:
                raise StateError(f"{where}, test: {name} = {value!r} is no size", code="E550")
    for name, value in entries.get("sizes", {}).items():
        if name.startswith(RANK) and value > MOST_RANK:
            raise StateError(f"{where}, test: {name} is at most {MOST_RANK} axes", code="E550")
    test = Test(**entries)
    if not (-FARTHEST <= test.low <= test.high <= FARTHEST and 0 <= test.tolerance <= FARTHEST):
        what = f"{where}, test: values of {test.low} to {test.high} within {test.tolerance}"
        raise StateError(what, help="low <= high, tolerance >= 0, all finite", code="E550")
    return test


def _known(entries: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entries:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            guess = f"did you mean `{near[0]}`? " if near else ""
            help = f"{guess}these are known: {', '.join(keys)}"
            raise StateError(f"{where}: unknown key `{key}`", help=help, code="E550")


def written(operation: Operation) -> str:
    """The text of a file that reads as the same operation."""
    lines = [f"documentation = {_quoted(operation.documentation)}"]
    lines.append(f"name = {_quoted(operation.name)}")
    for key, parts in (("inputs", operation.inputs), ("outputs", operation.outputs),
                       ("where", operation.where)):  # fmt: skip
        lines.append(f"{key} = [{', '.join(_quoted(p.text) for p in parts)}]")
    plain = operation.code.isprintable() or all(
        line.isprintable() and "'''" not in line for line in operation.code.split("\n")
    )
    several = plain and "\n" in operation.code
    code = f"'''\n{operation.code}'''" if several else _quoted(operation.code)
    lines.append(f"code = {code}")
    test = operation.test
    lines += ["", "[test]", f"low = {test.low}", f"high = {test.high}"]
    lines.append(f"tolerance = {test.tolerance}")
    for key, table in (("sizes", test.sizes), ("below", test.below)):
        inside = ", ".join(f"{_quoted(n)} = {v}" for n, v in table.items())
        lines.append(f"{key} = {{{inside}}}")
    if test.gradient is not None:
        lines.append(f"gradient = [{', '.join(map(_quoted, test.gradient))}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")
