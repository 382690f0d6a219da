"""An operation of a file: read, called on tensors, written again."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pullback.composite.syntax import Call, Name, Parser, Statement
from pullback.composite.text import defined
from pullback.errors import ArgumentError, DTypeError, Origin, ShapeError, StateError
from pullback.operations.notation import Condition, Signature, Size, condition, signature, symbols
from pullback.operations.sizes import MOST_RANK, Sizes, rank_of, solved
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
MOST_CALLS = 16  # of files that call files
MARK = r"\s*~\s*"


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

    @property
    def conditions(self) -> list[Condition]:
        """What is said of sizes anywhere."""
        inside = [c for s in (*self.inputs, *self.outputs) for c in s.where]
        return [*self.where, *inside]

    @property
    def symbols(self) -> list[str]:
        """Names of sizes, in the order in which they are written."""
        trees = [z.tree for s in (*self.inputs, *self.outputs) for z in s.sizes if z]
        trees += [t for c in self.conditions for t in (c.left, c.right) if t]
        return list(dict.fromkeys(n for tree in trees for n in symbols(tree)))

    def sizes(self, shapes: Sequence[Sequence[int]], given: Mapping[str, int]) -> Sizes:
        """Symbols where the inputs have these shapes. Raises: ShapeError."""
        for name in given:
            if name not in self.symbols:
                what = f"{self.name} has no symbol {name}"
                raise ArgumentError(what, help=f"it has {', '.join(self.symbols)}", code="E554")
        return solved(self.inputs, shapes, self.conditions, given)

    def extent(self, size: Size, extents: Mapping[str, Any]) -> Any:
        """A size where symbols are numbers, or symbolic extents, which stand alone.

        Raises: ShapeError.
        """
        return Sizes(dict(extents), dict.fromkeys(extents, "what was given")).of(size)

    def __call__(self, *tensors: Any, **given: int) -> Any:
        return self._called(tensors, given, 0)

    def of_stored(self, *stored: Any, **given: int) -> Any:
        """The same where inputs lie as their order says, the slowest axis first."""
        self._counted(stored)
        turned: list[Any] = []
        for one, x in zip(self.inputs, stored, strict=True):
            back = None if one.order is None else [one.order.index(n) for n in range(x.ndim)]
            turned.append(x if back is None else permute_dims(x, back))
        return self._called(turned, given, 0)

    def _counted(self, tensors: Sequence[Any]) -> None:
        if len(tensors) != len(self.inputs):
            names = ", ".join(s.text for s in self.inputs)
            what = f"{self.name} takes {len(self.inputs)} tensors, not {len(tensors)}"
            raise ArgumentError(what, help=names, code="E554")

    def _called(self, tensors: Sequence[Any], given: Mapping[str, int], depth: int) -> Any:
        self._counted(tensors)
        if depth > MOST_CALLS:
            what = f"{self.name}: {MOST_CALLS} files call each other, one in the other"
            raise ArgumentError(what, help="a file that calls itself never ends", code="E554")
        names: dict[str, Any] = {}
        for one, x in zip(self.inputs, tensors, strict=True):
            names[one.name] = held = x if isinstance(x, Tensor) else asarray(x)
            if one.type is not None and held.dtype != one.type:
                raise DTypeError(f"{one.text} is given {held.dtype}", code="E554")
        shapes = [tuple(names[s.name].shape) for s in self.inputs]
        sizes = self.sizes(shapes, given)
        made = self._made(names, sizes, rank_of(self.inputs, shapes), depth)
        return made[0] if len(made) == 1 else tuple(made)

    def _made(self, scope: dict[str, Any], sizes: Sizes, rank: int, depth: int) -> list[Any]:
        text = expanded(self.code, rank)
        shapes = {s.name: [sizes.of(n) for n in s.expanded(rank)] for s in self.outputs}
        statements = Parser(text, self.caller).statements()
        ends = [*(s.start for s in statements[1:]), len(text)]
        for statement, end in zip(statements, ends, strict=True):
            callee = _callee(statement, self.folder, scope)
            if callee is not None:
                assert isinstance(statement.body, Call)
                args = [self._argument(a, scope) for a in statement.body.args]
                scope[statement.name] = callee._called(args, {}, depth + 1)
                continue
            extents = dict(sizes.known)
            for axis, extent in zip(statement.axes, shapes.get(statement.name, ()), strict=False):
                extents[axis.name] = extent
            source = text[statement.start : end]
            scope[statement.name] = defined(source, self.caller, extents, scope)
        for one in self.outputs:
            self._checked(one, scope.get(one.name), shapes[one.name])
        return [scope[one.name] for one in self.outputs]

    def _argument(self, tree: object, scope: Mapping[str, Any]) -> Any:
        if not isinstance(tree, Name) or tree.name not in scope:
            what = f"{self.name}: a file is called with names of tensors"
            raise ArgumentError(what, help=", ".join(scope), code="E554")
        return scope[tree.name]

    def _checked(self, one: Signature, made: Any, shape: Sequence[int]) -> None:
        if made is None or any(one.name == s.name for s in self.inputs):
            what = f"{self.name}: the code defines no {one.name}"
            raise ArgumentError(what, help=f"it is an output: {one.text}", code="E554")
        if list(made.shape) != list(shape):
            what = f"{self.name}: {one.text} is {tuple(shape)}, the code makes {made.shape}"
            raise ShapeError(what, code="E552")
        if one.type is not None and made.dtype != one.type:
            what = f"{self.name}: {one.text}, the code makes {made.dtype}"
            raise DTypeError(what, code="E554")


def expanded(code: str, rank: int) -> str:
    """The code where ``~`` among indices is `rank` axes."""
    names = ", ".join(f"_{n}" for n in range(rank))
    if names:
        return re.sub(rf"(?<=[\[,]){MARK}(?=[,\]])", names, code)
    code = re.sub(rf"\[{MARK},", "[", code)
    return re.sub(rf",{MARK}(?=[,\]])", "", re.sub(rf"\[{MARK}\]", "[]", code))


def _callee(
    statement: Statement, folder: Path | None, scope: Mapping[str, Any]
) -> Operation | None:
    """The file that ``h = gemm(x, w)`` calls: gemm.toml of the same folder, if there is one."""
    body = statement.body
    if statement.axes or not isinstance(body, Call) or folder is None:
        return None
    path = folder / f"{body.function}.toml"
    return read(path) if path.is_file() else None


def read(path: str | Path) -> Operation:
    """The operation in a file. Raises: StateError, SyntaxFormError, DTypeError."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StateError(f"{path} has more than {MOST_BYTES} bytes", code="E550")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        raise StateError(f"{path} cannot be read: {problem}", code="E550") from problem
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
    if any(s.ranked for s in outputs) and not any(s.ranked for s in inputs):
        raise StateError(f"{where}: ~ of an output is in no input", code="E550")
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
    if entries.get("sizes", {}).get("~", 0) > MOST_RANK:
        raise StateError(f"{where}, test: ~ is at most {MOST_RANK} axes", code="E550")
    return Test(**entries)


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
    lines.append(f"code = {_quoted(operation.code)}")
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
