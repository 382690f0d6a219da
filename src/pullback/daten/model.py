"""A daten program that runs: its modules bound, its tensors given, its results computed."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pullback import nn
from pullback.composite.syntax import Number
from pullback.config import Options
from pullback.daten.evaluate import (
    Evaluation,
    checked,
    forms,
    leaves,
    needed,
    outputs_of,
    placed,
    uses,
)
from pullback.daten.syntax import MOST_BYTES, Leaf, Start, Text, text_of
from pullback.errors import GradientError, Origin, ShapeError, StateError, SyntaxFormError
from pullback.ir import dtype as D
from pullback.operations.drawn import MOST_ELEMENTS, drawn_type
from pullback.operations.operation import Operation
from pullback.operations.operation import read as read_operation
from pullback.operations.sizes import Equation, Sizes, solve
from pullback.runtime.executable import Executable
from pullback.tensor.derive.autograd import grad
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops
from pullback.tensor.library.creation import zeros
from pullback.tensor.run.program import jit

Array = np.ndarray[Any, Any]
LOSS = "loss"
LARGEST = 1e30  # of numbers that are drawn by
SUFFIXES = (".toml", ".daten")


@dataclass(eq=False, slots=True)
class Model:
    """A program of a file. `values`: parameters, as they were loaded, drawn or trained.

    `sizes` are those of symbols, `shapes` of tensors that the text does not say. `program`: what
    ran last.
    """

    text: Text
    path: str
    modules: Mapping[str, Operation]
    folder: Path | None
    seed: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    options: Options = field(default_factory=Options.from_environment)
    values: dict[str, Array] = field(default_factory=dict)
    program: Executable | None = None

    # --- what there is

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is computed: `output`, or what the last line of main makes."""
        return outputs_of(self.text)

    def marked(self) -> list[str]:
        """Parameters that have gradients. Raises: SyntaxFormError for none, or one unused."""
        own = [name for name, leaf in self.text.parameters.items() if leaf.grad]
        if not own:
            what = f"{self.path}: no parameter is marked"
            raise GradientError(what, help="parameters: w{Grad}[3, 2]", code="E560")
        used = {n for line in needed(self.text, self.goal()) for n in uses(line)}
        for name in own:
            if name not in used:
                origin = self.text.parameters[name].origin
                what = f"{name} is marked, and nothing that is minimised reads it"
                raise GradientError(what, origin=origin, code="E560")
        return own

    def goal(self) -> tuple[str, ...]:
        """What is minimised: `loss`, or the sum of the first output."""
        names = [name for line in self.text.main for name in line.names]
        return (LOSS,) if LOSS in names else self.outputs[:1]

    # --- what is given

    def bound(self, names: Sequence[str], data: Mapping[str, Any]) -> dict[str, Any]:
        """Every tensor that results of these names need.

        Raises: StateError for data of another name, ShapeError for one of another shape.
        """
        lines = needed(self.text, names)
        wanted = leaves(self.text, lines)
        known = dict.fromkeys([*leaves(self.text, self.text.main), *self.text.inputs])
        for name in data:
            if name not in known:
                raise unknown(self.path, name, list(known))
        for name in self.shapes:
            if name not in known and name not in self.text.parameters:
                raise unknown(self.path, name, [*known, *self.text.parameters])
        given = {n: self.given(n, data) for n in wanted if n in data or n in self.values}
        sizes = self.solved({n: a.shape for n, a in given.items()})
        for name in wanted:
            shape = self.shape(name, sizes)
            if name not in given and shape is not None:
                given[name] = self.drawn(name, shape)
        if len(given) < len(wanted):
            zero = {n: zeros(a.shape, dtype=str(a.dtype)) for n, a in given.items()}
            trial = Evaluation(self.modules, zero, sizes, set(wanted) - given.keys())
            trial.run(lines)
            given |= {n: self.drawn(n, shape) for n, shape in trial.settled.items()}
        for name in wanted:
            if name in self.text.parameters:
                self.values[name] = given[name]
        return {name: given[name] for name in wanted}

    def leaf(self, name: str) -> Leaf | None:
        return self.text.parameters.get(name) or self.text.inputs.get(name)

    def given(self, name: str, data: Mapping[str, Any]) -> Array:
        """An array that is given, in the type that the text says. Raises: StateError."""
        array = np.asarray(data[name] if name in data else self.values[name])
        leaf = self.leaf(name)
        said = None if leaf is None else leaf.signature.element
        kinds = {"f": D.float32, "i": D.int64, "u": D.int64, "b": D.bool_}
        kind = kinds.get(array.dtype.kind) if said is None else said.type
        if kind is None and said is not None:
            kind = kinds.get(array.dtype.kind)
        if kind is None:
            raise StateError(f"{name} has elements of {array.dtype}", code="E559")
        if said is not None and not said.fits(kind):
            raise StateError(f"{name} has elements of {array.dtype}, no {said.kind}", code="E559")
        return cast(name, array, kind)

    def solved(self, given: Mapping[str, tuple[Any, ...]]) -> Sizes:
        """Symbols by the shapes of what is given, and by what was said. Raises: ShapeError."""
        sizes = Sizes()
        for name, value in self.sizes.items():
            sizes.give(name, value, "what was given")
        equations: list[Equation] = []
        for name, shape in {**self.shapes, **given}.items():
            leaf = self.leaf(name)
            if leaf is None or not leaf.shaped:
                continue
            text = leaf.signature.text
            if len(shape) != len(leaf.signature.axes):
                what = f"{text} is given {len(shape)} axes: {tuple(shape)}"
                raise ShapeError(what, origin=leaf.origin, code="E552")
            for axis, (size, count) in enumerate(zip(leaf.signature.sizes, shape, strict=True)):
                place = f"axis {axis} of `{name}`"
                equations.append((size.text, size.tree, Number(0, 0, count), place))
        solve(equations, sizes)
        return sizes

    def shape(self, name: str, sizes: Sizes) -> tuple[int, ...] | None:
        """A shape that is said; None where it follows from a use."""
        if name in self.shapes:
            return self.shapes[name]
        leaf = self.leaf(name)
        if leaf is None or not leaf.shaped:
            return None
        own = leaf
        return placed(own.origin, lambda: tuple(sizes.of(s) for s in own.signature.sizes))

    def drawn(self, name: str, shape: Sequence[int]) -> Array:
        """Values to begin with, by the seed and the name. Raises: ShapeError."""
        if prod(shape) > MOST_ELEMENTS:
            raise ShapeError(f"{name} would be {tuple(shape)}", code="E552")
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        leaf = self.leaf(name)
        kind = D.float32 if leaf is None else drawn_type(leaf.signature)
        start = Start() if leaf is None else leaf.start
        way, numbers = start.kind, start.numbers
        if leaf is not None and not fits(start, kind):
            what = f"{name}: {way} {' '.join(f'{n:g}' for n in numbers)} is no {kind}"
            raise SyntaxFormError(what, origin=leaf.origin, code="E558")
        values: Any = np.full(shape, numbers[0])
        if way == "normal":
            values = rng.normal(0.0, abs(numbers[0]), shape)
        elif way == "below" or (way == "uniform" and not kind.is_float):
            values = rng.integers(0, max(1, int(numbers[0])) if way == "below" else 2, shape)
        elif way == "uniform":
            values = rng.uniform(min(numbers), max(numbers), shape)
        return np.asarray(values).astype(kind.numpy)

    # --- what is done

    def infer(self, /, **data: Any) -> dict[str, Array]:
        """The outputs. Raises: StateError, ShapeError, SyntaxFormError."""
        given = self.bound(self.outputs, data)
        return self.computed(given, self.outputs, ())[0]

    def gradients(self, /, **data: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs and what is minimised, and its gradient by each marked parameter."""
        names = tuple(dict.fromkeys((*self.outputs, *self.goal())))
        marked = self.marked()
        return self.computed(self.bound(names, data), names, marked)

    def computed(
        self, given: Mapping[str, Any], names: Sequence[str], marked: Sequence[str]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Results, and gradients by marked parameters, as one program."""

        def program(**own: Tensor) -> tuple[Any, ...]:
            made = self.evaluated(own, names)
            slopes = grad(self.minimised(made), [own[m] for m in marked]) if marked else []
            return (*(made[n] for n in names), *slopes)

        function = jit(program, options=self.options)
        results = [r.numpy() for r in function(**given)]
        self.program = function.program
        values = dict(zip(names, results, strict=False))
        return values, dict(zip(marked, results[len(names) :], strict=True))

    def evaluated(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Any]:
        """Results of main by name, traced."""
        sizes = self.solved({n: tuple(t.shape) for n, t in tensors.items()})
        evaluation = Evaluation(self.modules, dict(tensors), sizes)
        return evaluation.run(needed(self.text, names))

    def minimised(self, made: Mapping[str, Any]) -> Tensor:
        """One number: the loss, or the sum of the output. Raises: GradientError."""
        (name,) = self.goal()
        value = made[name]
        if name != LOSS:
            total: Tensor = ops.sum(value)
            return total
        if value.shape:
            origin = next(line.origin for line in self.text.main if name in line.names)
            what = f"{LOSS} is {value.shape}, no single number"
            raise GradientError(what, origin=origin, help="loss[] = mean[i](..)", code="E560")
        loss: Tensor = value
        return loss

    # --- weights

    def load(self, path: str | Path) -> None:
        """Parameters of a safetensors file. Raises: StateError where one is another's."""
        try:
            tensors = nn.load(path)
        except OSError as problem:
            raise StateError(f"{path} cannot be read: {problem}", code="E559") from problem
        for name in tensors:
            if name not in self.text.parameters:
                raise unknown(str(path), name, list(self.text.parameters))
        missing = [n for n in self.text.parameters if n not in tensors]
        if missing:
            raise StateError(f"{path} has no {', '.join(missing)}", code="E559")
        self.values |= {n: t.numpy() for n, t in tensors.items()}

    def save(self, path: str | Path) -> None:
        """Write all parameters. Raises: StateError before there are any."""
        missing = [n for n in self.text.parameters if n not in self.values]
        if missing:
            raise StateError(f"{', '.join(missing)}: not computed with yet", code="E559")
        try:
            nn.save({n: self.values[n] for n in self.text.parameters}, path)
        except OSError as problem:
            raise StateError(f"{path} cannot be written: {problem}", code="E559") from problem


def fits(start: Start, kind: D.DType) -> bool:
    """Whether a type holds what is drawn; whole numbers of no range are 0 and 1."""
    if start == Start():
        return True
    if kind.is_float:
        held = np.asarray([n if abs(n) <= LARGEST else np.inf for n in start.numbers])
        with np.errstate(over="ignore"):
            return bool(np.all(np.isfinite(held.astype(kind.numpy).astype(np.float64))))
    lo, hi = kind.range()
    most = max(start.numbers) - (start.kind == "below")
    whole = all(n.is_integer() for n in start.numbers)
    return (
        start.kind in ("number", "below")
        and whole
        and lo <= min(0.0, most)
        and most <= min(hi, 2**53)
    )


def cast(name: str, array: Array, kind: D.DType) -> Array:
    """An array in a type, where no number becomes another one. Raises: StateError."""
    if array.dtype.kind == "f" or kind.is_float:
        fits = kind.is_float and array.dtype.kind in "fiub"
    else:
        lo, hi = kind.range()
        fits = not array.size or (int(array.min()) >= lo and int(array.max()) <= hi)
    if not fits:
        raise StateError(f"{name} is {array.dtype}, which {kind} does not hold", code="E559")
    return np.ascontiguousarray(array.astype(kind.numpy)).reshape(array.shape)


def unknown(where: str, name: str, known: Sequence[str]) -> StateError:
    """The error of a name that is none."""
    near = difflib.get_close_matches(name, known, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    what = f"{where}: no tensor is called {name}"
    return StateError(what, help=f"{guess}these are known: {', '.join(known)}", code="E559")


def read(path: str | Path, plugins: Sequence[str | Path] = ()) -> Model:
    """The program of a file; `plugins` give modules: files of operations, or of other programs.

    Raises: StateError, SyntaxFormError, DTypeError.
    """
    path = Path(path)
    return parse(_text(path), path.parent, plugins, str(path))


def parse(
    text: str,
    folder: str | Path | None = None,
    plugins: Sequence[str | Path] = (),
    path: str = "the text",
) -> Model:
    """The program of a text; modules that it does not define are files of `folder`, or plugins.

    Raises: as `read`.
    """
    if len(text) > MOST_BYTES:
        raise StateError(f"{path} has more than {MOST_BYTES} characters", code="E559")
    own = text_of(text, path, Origin.of_caller())
    place = None if folder is None else Path(folder)
    given: dict[str, Operation] = {}
    for plugin in plugins:
        given |= modules_of(Path(plugin))
    modules = _bound(own, given, place)
    model = Model(own, path, modules, place)
    _marks(own)
    checked(own, modules)
    return model


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * MOST_BYTES:
            raise StateError(f"{path} has more than {MOST_BYTES} characters", code="E559")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        raise StateError(f"{path} cannot be read: {problem}", code="E559") from problem


def modules_of(path: Path) -> dict[str, Operation]:
    """Modules of a plugin: a file of an operation, the modules of a program, a folder of those.

    Raises: StateError.
    """
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix == ".toml")
        return {p.stem: read_operation(p) for p in files}
    if path.suffix == ".toml":
        operation = read_operation(path)
        return {operation.name: operation}
    if path.suffix != ".daten":
        help = f"a folder of operations, or a file of {' or '.join(SUFFIXES)}"
        raise StateError(f"{path} gives no modules", help=help, code="E559")
    own = text_of(_text(path), str(path), Origin.of_caller())
    bound = _bound(own, {}, path.parent)
    return {name: bound[name] for name in own.modules}


def _bound(text: Text, given: Mapping[str, Operation], folder: Path | None) -> dict[str, Operation]:
    """Modules with bodies: their own, or those of plugins and files. Raises: SyntaxFormError."""
    bound: dict[str, Operation] = dict(given)
    for name, operation in text.modules.items():
        own = replace(operation, folder=folder, others=bound)
        if name in text.bare:
            body = given.get(name) or _file(folder, name)
            if body is None:
                help = f"write it below the line, or give --plugin {name}.toml"
                what = f"{name} has no body"
                raise SyntaxFormError(what, origin=operation.caller, help=help, code="E558")
            own = replace(operation, others={name: body})
        bound[name] = own
    for name in [f.head for line in text.main for f in forms(line) if f.args is not None]:
        body = None if name in bound else _file(folder, name)
        if body is not None:
            bound[name] = body
    return bound


def _file(folder: Path | None, name: str) -> Operation | None:
    path = None if folder is None else folder / f"{name}.toml"
    return read_operation(path) if path is not None and path.is_file() else None


def _marks(text: Text) -> None:
    """Raises: SyntaxFormError for a mark on what has no gradient."""
    for leaf in text.parameters.values():
        kind = leaf.signature.element
        if leaf.grad and (kind.kind not in ("", "float") or (kind.type and not kind.type.is_float)):
            what = f"{leaf.name} is marked, and no float"
            raise SyntaxFormError(what, origin=leaf.origin, code="E558")
