"""An operation with its derivative as one file that stands alone: of C, or of Python around C.

    y = NAME(x, w)   ->   NAME_forward(x, w, y), NAME_backward(dy, x, w, dx, dw)

What is written needs a C compiler and nothing of this package: shapes and types are fixed.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pullback.backends.base import Compiler, CompileStats, Image, Job
from pullback.backends.host.processor import named_target
from pullback.backends.registry import ORACLE, named
from pullback.bridge.derived import Derived
from pullback.bridge.flat import Lying, flat, refusal, traced
from pullback.bridge.signature import Signature
from pullback.config import Options
from pullback.errors import UnsupportedError
from pullback.ir.dtype import DType, is_short
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.program import Program
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.pipeline import image_of
from pullback.prepare.ahead import turned_ahead
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import chooser
from pullback.tensor.record.trace import Cell, held
from pullback.tensor.run.entry import Entry

LANGUAGE = "c"  # the backend
OUTSIDE = "a size is out of its bounds"
LARGEST = 1 << 16  # bytes of a captured array that is written down
TEMPLATE = Path(__file__).with_name("ejected.txt")
COMPILE = "cc -O3 -march=native -fwrapv -ffp-contract=off -fopenmp -shared -fPIC"


class Writer(Compiler, Protocol):
    """What writes programs as functions of one file; `bodies` are those of their kernels."""

    bodies: list[str]

    def prelude(self, target: Target) -> str:
        """What a file begins with."""

    def comment(self, text: str) -> str:
        """A comment that says `text`."""

    def kind(self, dtype: DType) -> str:
        """The type of an element in memory."""

    def names(self, names: Iterable[str], taken: Container[str] = ()) -> list[str]:
        """Each as an identifier that no other is."""

    def program(
        self,
        image: Image,
        inputs: Mapping[Variable, str],
        results: Mapping[Variable, str],
        constants: Mapping[Variable, Any],
        sizes: Mapping[Dim, str],
        sites: list[str],
    ) -> str:
        """The function of a program; what its checks of indices say is added to `sites`."""


@runtime_checkable
class Alone(Protocol):
    """A backend whose files stand alone."""

    def alone(self, prefix: str) -> Writer:
        """What writes a program as a function called `prefix`."""


def writer(prefix: str) -> Writer:
    """Of the backend whose files stand alone."""
    backend = named(LANGUAGE)
    assert isinstance(backend, Alone), "it writes whole files"
    return backend.alone(prefix)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function in C: its name there, shape and type."""

    name: str
    lying: Lying

    @property
    def c_type(self) -> str:
        return writer("").kind(self.lying.dtype)

    def line(self) -> str:
        """For people."""
        kind, shape = str(self.lying.dtype), ", ".join(map(str, self.lying.shape))
        bits = f", as {self.c_type}" if is_short(self.lying.dtype) or kind == "bool" else ""
        return f"{self.name}: {kind}[{shape}]{bits}"


@dataclass(frozen=True, slots=True)
class Written:
    """One function: its C, the text of its definitions, what it takes and gives."""

    name: str
    text: str
    definitions: str
    inputs: tuple[Argument, ...]
    results: tuple[Argument, ...]
    sizes: tuple[Dim, ...]

    def head(self) -> str:
        """What it is, for people."""
        lines = [f"{self.name}: reads"]
        lines += [f"  {a.line()}" for a in self.inputs]
        lines += ["and writes", *(f"  {a.line()}" for a in self.results)]
        lines += [f"for {d.name} in {d.lo}..{d.hi}" for d in self.sizes]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Ejected:
    """An operation, and its derivative by the inputs at `wanted`; None where it has none."""

    name: str
    target: Target
    forward: Written
    backward: Written | None
    wanted: tuple[int, ...]
    sites: tuple[str, ...]
    sizes: tuple[Dim, ...]

    @property
    def parts(self) -> list[Written]:
        return [self.forward] if self.backward is None else [self.forward, self.backward]

    def c(self) -> str:
        """A file of C11."""
        usage = f"{COMPILE} -o lib{self.name}.so {self.name}.c -lm"
        told = [
            f"{self.name}, written by `pullback eject`. It stands alone:",
            "",
            f"  {usage}",
            "",
            f"Any C11 compiler with GNU's extensions takes it, with fewer flags too: vectors of "
            f"{self.target.vector} bytes become",
            "narrower ones without -march, and one thread works without -fopenmp. Arrays lie in",
            "row-major order and do not overlap; any alignment. A call takes the memory that it",
            "needs by aligned_alloc and frees it; calls from many threads do not meet.",
            "Each returns 0, -1 where there is no memory, -2 for a size out of bounds, or n > 0",
            f"where an index is out of range: {self.name}_message(n) says which.",
            "",
            *[p.head() for p in self.parts],
            "",
            *[f"{p.name}, as pullback prints it:\n\n{p.definitions}\n" for p in self.parts],
        ]
        own, bodies = writer(""), [p.text for p in self.parts]
        head = [own.comment("\n".join(told)), own.prelude(self.target)]
        return "\n".join([*head, *bodies, self.said()])

    def said(self) -> str:
        """The function that gives messages."""
        rows = "".join(f"\n    {json.dumps(s)}," for s in self.sites)
        if not self.sites:
            return (
                f"const char *{self.name}_message(int code) {{\n"
                f'  return code == -2 ? "{OUTSIDE}" : code ? "no memory" : "";\n}}\n'
            )
        return (
            f"const char *{self.name}_message(int code) {{\n"
            f"  static const char *const said[] = {{{rows}\n    0}};\n"
            f"  return code > 0 && code <= {len(self.sites)} ? said[code - 1] : "
            f'code == -2 ? "{OUTSIDE}" : code ? "no memory" : "";\n}}\n'
        )

    def python(self) -> str:
        """A file of Python around it."""
        rows = {
            "NAME": self.name,
            "INPUTS": facts(self.forward.inputs),
            "RESULTS": facts(self.forward.results),
            "SIZES": "".join(f"\n    {d.name!r}: ({d.lo}, {d.hi})," for d in self.sizes),
            "WANTED": repr(self.wanted),
            "DEFINITIONS": "\n".join(equations(p) for p in self.parts),
            "CALL": ", ".join(a.name for a in self.forward.inputs),
            "SOURCE": self.c().replace("\\", "\\\\").replace('"""', '\\"\\"\\"'),
        }
        text = TEMPLATE.read_text()
        for key, value in rows.items():
            text = text.replace(f"@{key}@", value)
        return text


def facts(arguments: Sequence[Argument]) -> str:
    """A row for each argument, in Python."""
    shapes = [
        tuple([e.name if isinstance(e, Dim) else e for e in a.lying.shape]) for a in arguments
    ]
    pairs = zip(arguments, shapes, strict=True)
    rows = [repr((a.name, str(a.lying.dtype), shape)) for a, shape in pairs]
    return "".join(f"\n    {row}," for row in rows)


def equations(part: Written) -> str:
    lines = [f"{part.name}:", *part.definitions.splitlines()]
    return "\n".join(f"#   {line}".rstrip() for line in lines)


@dataclass(frozen=True, slots=True)
class Parts:
    """A function and its derivative before they are written, with the names of what each gives;
    `wanted`: the places of the inputs that have a derivative.
    """

    name: str
    forward: Part
    results: Sequence[str]
    backward: Part | None
    gradients: Sequence[str]
    wanted: tuple[int, ...]


def parts_of(
    function: Callable[..., Any],
    name: str,
    signature: Signature,
    args: Sequence[Any],
    taken: Container[str] = (),
) -> Parts:
    """A function traced, for arguments in order: a `Lying` where a tensor is given, else its value.

    Raises: UnsupportedError for what does more than give results.
    """
    (own,) = writer("").names([name], dir(builtins))
    body = flat(function, own, signature)
    entry = _traced(body, args)
    body = replace(body, signature=replace(signature, outputs=len(entry.outputs)))
    given = [n for n in signature.tensors if isinstance(args[n], Lying)]
    wanted = [n for n in given if args[n].dtype.is_float]
    if not any(v.dtype.is_float for v in entry.outputs):
        wanted = []
    inputs = [signature.parameters[n].name for n in given]
    forward = Part(f"{own}_forward", entry, inputs, taken)
    names = [f"y{n}" for n in range(len(entry.outputs))] if len(entry.outputs) > 1 else ["y"]
    back = _backward(own, body, entry, args, wanted, taken) if wanted else None
    gradients = [f"d{signature.parameters[n].name}" for n in wanted]
    return Parts(own, forward, names, back, gradients, tuple(map(given.index, wanted)))


def ejected(
    function: Callable[..., Any], name: str, signature: Signature, args: Sequence[Any]
) -> Ejected:
    """A function as C, for arguments in order: a `Lying` where a tensor is given, else its value.

    Raises: UnsupportedError for what does more than give results.
    """
    parts = parts_of(function, name, signature, args)
    sites: list[str] = []
    first = parts.forward.written(parts.results, sites)
    back = parts.backward.written(parts.gradients, sites) if parts.backward is not None else None
    target = parts.forward.target
    return Ejected(parts.name, target, first, back, parts.wanted, tuple(sites), first.sizes)


def _backward(
    name: str,
    body: Derived,
    entry: Entry,
    args: Sequence[Any],
    wanted: Sequence[int],
    taken: Container[str],
) -> Part:
    """The adjoints of the inputs at `wanted`, of those of all floating results."""
    own = body.signature
    derived, places = body.pullback(), [own.tensors.index(n) for n in wanted]

    def call(*given: Any) -> tuple[Any, ...]:
        every = derived.call(*given)
        return tuple([every[n] for n in places])

    heads = [Lying(v.shape, v.dtype) if v.dtype.is_float else None for v in entry.outputs]
    mask = sum(1 << n for n in wanted)
    back = _traced(replace(derived, call=call), [*heads, *args, mask])
    many = len(heads) > 1
    names = [f"dy{n}" if many else "dy" for n, h in enumerate(heads) if h is not None]
    names += [own.parameters[n].name for n in own.tensors if isinstance(args[n], Lying)]
    return Part(f"{name}_backward", back, names, taken)


def _traced(function: Derived, args: Sequence[Any]) -> Entry:
    """Raises: UnsupportedError for what does more than give results."""
    quiet = replace(Options.from_environment(), backend=ORACLE, host=False, cache=None)
    entry = traced(function, args, quiet)
    more = refusal(entry)
    states = [h._value.name for h in entry.read if isinstance(h, Cell)]
    if more is None and states:
        more = f"reads the state `{states[0]}`"
    if more is not None:
        raise UnsupportedError(
            f"`{function.name}` {more}: a file that stands alone cannot",
            help="pass what it needs as an argument (random numbers: a key), return the rest",
            code="E395",
        )
    return entry


@dataclass(frozen=True, slots=True)
class Named:
    """The names of what a function takes, gives and has sizes of; the arrays that it captures."""

    inputs: Mapping[Variable, str]
    results: Mapping[Variable, str]
    sizes: Mapping[Dim, str]
    constants: Mapping[Variable, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A traced function on its way to a file; `inputs` are the names of its arguments, which are
    called otherwise where a name is `taken`.
    """

    name: str
    entry: Entry
    inputs: Sequence[str]
    taken: Container[str] = ()

    @property
    def options(self) -> Options:
        """Those of the user, but for one thread's memory and no cache."""
        asked = Options.from_environment()
        return replace(asked, backend=LANGUAGE, threads=1, cache=None, memory=None, host=False)

    @property
    def target(self) -> Target:
        """What is compiled for: this processor, or the one that is named, which may be any."""
        named = self.options.target
        return writer("").machine(self.options) if named is None else named_target(named)

    def image(self) -> tuple[Image, Writer]:
        """Kernels written down, memory planned."""
        options, own = self.options, writer(self.name)
        job = Job(options, self.target, None, CompileStats(), Reporter(options))
        program = self.entry.executable.program
        for rule in options.rules:
            program = rule.program(program)
        program = Program(turned_ahead(program.body, self.target.profile), program.state)
        image, _ = image_of(program, own, job, chooser(None, 1, (), own.name, own.start))
        return image, own

    def named(self, results: Sequence[str]) -> Named:
        """What each variable that is given or made is called."""
        state, count = self.entry.executable.program.state, len(self.inputs)
        sizes = _sizes(state)
        names = writer("").names([*self.inputs, *results, *(d.name for d in sizes)], self.taken)
        return Named(
            dict(zip(state[:count], names, strict=False)),
            dict(zip(self.entry.outputs, names[count:], strict=False)),
            dict(zip(sizes, names[len(names) - len(sizes) :], strict=True)),
            dict(zip(state[count:], self._captured(), strict=False)),
        )

    def written(self, results: Sequence[str], sites: list[str]) -> Written:
        """Its C."""
        image, own = self.image()
        to = self.named(results)
        text = own.program(image, to.inputs, to.results, to.constants, to.sizes, sites)
        return self.told(to, "\n".join([*own.bodies, text]))

    def told(self, to: Named, text: str) -> Written:
        """The text of a function with what it is."""
        shown = {v.name: name for v, name in (*to.inputs.items(), *to.results.items())}
        return Written(
            self.name,
            text,
            _renamed(show(self.entry.executable.program), shown),
            tuple([_argument(n, v) for v, n in to.inputs.items()]),
            tuple([_argument(n, v) for v, n in to.results.items()]),
            tuple(to.sizes),
        )

    def _captured(self) -> list[Any]:
        """Raises: UnsupportedError for an array that is too large to be written down."""
        arrays = [v.array for v in held(self.entry.read)]
        for array in arrays:
            if array.nbytes > LARGEST:
                what = f"`{self.name}` captures an array of {array.nbytes:,} bytes"
                raise UnsupportedError(what, help="pass it as an argument", code="E395")
        return arrays


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A program with its variables called as they are in C, where nothing else is called so."""
    clear = {old: new for old, new in names.items() if not re.search(rf"\b{new}\b", text)}
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: clear.get(word[0], word[0]), text)


def _sizes(state: Sequence[Variable]) -> tuple[Dim, ...]:
    """The symbolic extents of a program.

    Raises: UnsupportedError for one that is not that of a first axis: memory is laid out by bounds.
    """
    for variable in state:
        for axis, extent in enumerate(variable.shape):
            if isinstance(extent, Dim) and axis:
                what = f"`{extent}` along axis {axis} of `{variable.name}`, in a file of its own"
                help = "symbolic extents are those of first axes there"
                raise UnsupportedError(what, help=help, code="E395")
    return tuple(dict.fromkeys(e for v in state for e in v.shape if isinstance(e, Dim)))


def _argument(name: str, variable: Variable) -> Argument:
    return Argument(name, Lying(variable.shape, variable.dtype))
