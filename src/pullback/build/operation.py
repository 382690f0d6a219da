"""An operation of a file as a function of C: a library, an object or an archive, and its header.

    int gemm(const float *A, const float *B, float *C, int64_t M, int64_t K, int64_t N)

Sizes that nobody fixed are arguments. Callers' arrays are dense; where an extent that is no first
one is an argument, kernels work on copies whose rows lie as far apart as at the largest size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pullback.backends.base import Compiler, CompileStats, Image, Job
from pullback.backends.host.lying import ApartError, apart
from pullback.backends.registry import named
from pullback.bridge.eject import Part, parts_of
from pullback.bridge.flat import Lying
from pullback.bridge.signature import Parameter, Signature
from pullback.build.alone import is_alone, linked
from pullback.build.artefact import KINDS, LANGUAGE, Writer, aimed
from pullback.build.interface import INTERFACE, Around, features, function_name, head, hidden
from pullback.build.sized import extent_in_c, in_c
from pullback.config import Options
from pullback.errors import ArgumentError, InvalidIR, ShapeError, UnsupportedError
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim, Expr, Extent, upper
from pullback.ir.graph import Variable
from pullback.ir.program import Program
from pullback.ir.target import Target
from pullback.operations import Operation
from pullback.operations.drawn import drawn_type
from pullback.operations.extents import free, opened, spelled
from pullback.operations.notation import RANK
from pullback.pipeline import image_of
from pullback.prepare.ahead import turned_ahead
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import chooser
from pullback.tensor.record.trace import held

PADDED = Path(__file__).with_name("padded.txt")
# Its C library has no aligned_alloc.
WINDOWS = """\
#if defined(_WIN32)
#include <malloc.h>
#define aligned_alloc(line, size) _aligned_malloc(size, line)
#define free _aligned_free
#define malloc(size) _aligned_malloc(size, 64)
#endif
"""
BOUNDS = 1, 1024  # of a size that is an argument
LARGEST = 1 << 31  # bytes of an array at its largest size


class Laying(Compiler, Protocol):
    """What compiles kernels over arrays with gaps, or without (`dense`)."""

    dense: bool


AnyWriter = TypeVar("AnyWriter", bound=Laying)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operation is built for: sizes (numbers, or bounds), the type of inputs without one,
    threads, another machine, and whether its adjoints are wanted.
    """

    sizes: Mapping[str, int | tuple[int, int]]
    dtype: DType
    grad: bool = False
    threads: int = 1
    machine: str = ""

    def target(self, options: Options, writer: Writer) -> Target:
        """Raises: OptionError."""
        return aimed(self.machine, options, writer)


@dataclass(frozen=True, slots=True)
class Built:
    """Two files of C that are one function, or a function and its adjoints, with their header."""

    around: Around
    source: str
    target: Target
    asked: Asked
    functions: Sequence[_Function]

    def data(self, whole: bool) -> bytes:
        """A shared library, or one object; without a C compiler, a library that LLVM and the linker
        of ours make. Raises: CompilerError, OptionError, UnsupportedError.
        """
        if not self.asked.machine and is_alone(LANGUAGE):
            return linked(self.functions, self.around.facts, whole, self.asked.threads)
        backend: Any = named(LANGUAGE)
        writer: Writer = backend.alone("")
        return writer.library(
            self.source, self.around.text(), self.target, whole, self.asked.machine
        )


def built(operation: Operation, asked: Asked) -> Built:
    """An operation, written down.

    Raises: ShapeError for a size that has to be a number; ArgumentError for a symbol that it does
        not have; UnsupportedError for what no file of C has, or arrays too large at their bounds.
    """
    lying, known, checks = _arguments(operation, asked)
    names = [s.name for s in operation.inputs]
    signature = Signature(tuple([Parameter(n, "Tensor") for n in names]))

    def function(*stored: Any) -> Any:
        return operation.of_extents(stored, known, checks)

    parts = parts_of(function, operation.name, signature, lying)
    outputs = [s.name for s in operation.outputs]
    sites: list[str] = []
    backend: Any = named(LANGUAGE)
    name = function_name(operation.name, backend.alone(""))
    written = [_Function(name, parts.forward, outputs, asked, [], [])]
    if asked.grad:
        if parts.backward is None:
            what = f"{operation.name} has no floating input and output: nothing is differentiated"
            raise UnsupportedError(what, code="E549")
        back = _heads(parts.backward, outputs, len(names))
        written.append(_Function(f"{name}_backward", back, parts.gradients, asked, [], []))
    extents = [e for w in written for v in w.state for e in v.shape]
    dims = free([*extents, *known.values()])
    written = [replace(w, dims=dims, checks=checks) for w in written]
    texts = [w.text(sites) for w in written]
    first = written[0]
    prelude = first.writer("").prelude(first.target, asked.threads)
    system = WINDOWS if "windows" in asked.machine else ""
    source = "\n".join([prelude, system, PADDED.read_text(), *texts])
    around = Around(
        dict(zip([w.name for w in written], texts, strict=True)), tuple(sites), first.facts(written)
    )
    return Built(around, source, first.target, asked, written)


def _arguments(
    operation: Operation, asked: Asked
) -> tuple[list[Lying], dict[str, Any], list[Expr]]:
    """Inputs as they lie; every symbol, and numbers of axes; what has to be true of sizes."""
    runs = list(dict.fromkeys(run for one in operation.inputs for run in one.runs))
    ranks: dict[str, int] = {}
    for run in runs:
        rank = asked.sizes.get(run.text, 1)
        if not isinstance(rank, int):
            raise ShapeError(f"{run.text} is a number of axes, not bounds", code="E553")
        ranks[run.text] = rank
    axes = {run.axis(n) for run in runs for n in range(ranks[run.text])}
    names = list(dict.fromkeys([*operation.symbols, *sorted(axes)]))
    for name in asked.sizes:
        if name not in names and not name.startswith(RANK):
            what = f"{operation.name} has no symbol {name}"
            raise ArgumentError(what, help=f"it has {', '.join(sorted(names))}", code="E554")
    made = opened(names, operation.conditions, asked.sizes, BOUNDS)
    lying: list[Lying] = []
    for one in operation.inputs:
        shape = [made.of(size) for size in one.expanded(ranks)]
        laid = [shape[n] for n in one.order or range(len(shape))]
        free_type = one.type is None and one.element.fits(asked.dtype)
        kind = asked.dtype if free_type else drawn_type(one)
        _fits(one.text, laid, kind)
        lying.append(Lying(tuple(laid), kind))
    for one in operation.outputs:
        _fits(one.text, [made.of(size) for size in one.expanded(ranks)], one.type or asked.dtype)
    return lying, {**{n: made.known[n] for n in operation.symbols}, **ranks}, made.checks


def _fits(text: str, shape: Sequence[Extent], kind: DType) -> None:
    """Raises: ShapeError for an array that is too large at its largest."""
    largest = tuple(map(upper, shape))
    if prod(largest) * kind.itemsize > LARGEST:
        what = f"{text} is {largest} at its largest"
        raise ShapeError(what, help="bounds by --size M=1..512", code="E552")


def _heads(part: Part, outputs: Sequence[str], inputs: int) -> Part:
    """The adjoints that it is given are called by their outputs."""
    heads = len(part.inputs) - inputs
    own = part.inputs[:heads]
    places = [int(n[2:] or 0) for n in own]
    return replace(part, inputs=[*(f"d{outputs[n]}" for n in places), *part.inputs[heads:]])


@dataclass(slots=True)
class _Function:
    """One of the functions on its way to a file."""

    name: str
    part: Part
    results: Sequence[str]
    asked: Asked
    dims: Sequence[Dim]  # those of all functions, in one order
    checks: Sequence[Expr]  # what has to be true of them, beside bounds
    copied: bool = False  # whether kernels work on copies of arrays of symbolic sizes

    def writer(self, prefix: str) -> Writer:
        backend: Any = named(LANGUAGE)
        made: Writer = backend.alone(prefix)
        return made

    @property
    def target(self) -> Target:
        return self.asked.target(self.part.options, self.writer(""))

    @property
    def state(self) -> list[Variable]:
        """What it is given, then what it gives."""
        entry = self.part.entry
        return [*entry.executable.program.state[: len(self.part.inputs)], *entry.outputs]

    def names(self) -> list[str]:
        """Of inputs, results and sizes."""
        every = [*self.part.inputs, *self.results, *(d.name for d in self.dims)]
        return self.writer("").names(every)

    def text(self, sites: list[str]) -> str:
        """Kernels, the function of them, and one of dense arrays around it."""
        inner = f"{self.name}_kernels"
        writer, image = self.compiled(lambda: self.writer(inner))
        count, sizes = len(self.part.inputs), self.sizes
        pairs = list(zip(self.state, self.names(), strict=False))
        text = writer.program(
            image, dict(pairs[:count]), dict(pairs[count:]), self.constants, sizes, sites, {}
        )
        return "\n".join([hidden(text, inner), *writer.bodies, text, self.outer(text, sizes)])

    def compiled(self, start: Callable[[], AnyWriter]) -> tuple[AnyWriter, Image]:
        """Kernels over arrays as they are given, or, where one cannot have that, over copies."""
        for self.copied in (False, True):
            writer = start()
            writer.dense = not self.copied
            try:
                return writer, self.image(writer)
            except ApartError:
                continue
        raise InvalidIR("arrays that lie apart lie as lowering has them")

    def image(self, writer: Compiler) -> Image:
        """Kernels by a backend, memory planned."""
        options, target = self.part.options, self.target
        job = Job(options, target, None, CompileStats(), Reporter(options))
        program = self.part.entry.executable.program
        for rule in options.rules:
            program = rule.program(program)
        program = Program(turned_ahead(program.body, target.profile), program.state)
        return image_of(program, writer, job, chooser(None, 1, (), writer.name, writer.start))[0]

    @property
    def given(self) -> int:
        """How many of its state it is given."""
        return len(self.part.inputs)

    @property
    def constants(self) -> dict[Variable, Any]:
        """What it captures, with contents."""
        state = self.part.entry.executable.program.state[len(self.part.inputs) :]
        return dict(zip(state, [v.array for v in held(self.part.entry.read)], strict=False))

    @property
    def sizes(self) -> dict[Dim, str]:
        """Those that are arguments, each by its name."""
        names = self.names()
        return dict(zip(self.dims, names[len(names) - len(self.dims) :], strict=True))

    def outer(self, text: str, sizes: Mapping[Dim, str]) -> str:
        """Of dense arrays: copies of those whose rows lie further apart at the largest size."""
        line = head(text, f"{self.name}_kernels").replace(f"{self.name}_kernels(", "X(", 1)
        line = line.replace(" X(", f" {self.name}_run(")
        lines = [hidden(f"{line} {{", f"{self.name}_run"), f"{line} {{"]
        for dim, name in sizes.items():
            lines.append(f"  if ({name} < {dim.lo} || {name} > {dim.hi}) return -2;")
        lines += [f"  if (!{in_c(check, sizes)}) return -2;" for check in self.checks]
        count, given, back, frees = len(self.part.inputs), [], [], []
        lines.append("  int status = 0;")
        for place, (variable, name) in enumerate(zip(self.state, self.names(), strict=False)):
            if not (self.copied and apart(variable.shape)):
                given.append(name)
                continue
            own = f"wide_{name}"
            into, out = _copies(variable, name, own, sizes)
            row = prod(map(upper, variable.shape[1:])) * variable.dtype.itemsize
            room = f"{extent_in_c(variable.shape[0], sizes)} * (size_t){max(row, 1)}"
            inner = [e for e in variable.shape[1:] if isinstance(e, Dim)]
            far = " || ".join([f"{extent_in_c(e, sizes)} != {e.hi}" for e in inner])
            lines.append(f"  const int far_{name} = {far};")
            lines.append(
                f"  char *const {own} = far_{name} ? malloc({room} + 64) : (char *){name};"
            )
            lines.append(f"  if (far_{name} && !{own}) status = -1;")
            if place < count:
                lines.append(f"  if (!status) {into}")
            else:
                back.append(f"  if (!status) {out}")
            given.append(f"(void *){own}")
            frees.append(f"  if (far_{name}) free({own});")
        call = f"{self.name}_kernels({', '.join([*given, *sizes.values()])})"
        lines += [f"  if (!status) status = {call};", *back, *frees, "  return status;", "}", ""]
        return "\n".join(lines)

    def facts(self, functions: Sequence[_Function]) -> dict[str, Any]:
        """What a header says, and a signature is made of."""
        rows, *more = [
            [
                {"name": n, "kind": KINDS[str(v.dtype)], "shape": [*map(_extent, v.shape)]}
                for n, v in zip(f.names(), f.state, strict=False)
            ]
            for f in functions
        ]
        count = len(self.part.inputs)
        return {
            "interface": INTERFACE,
            "name": self.name,
            "machine": self.asked.machine,
            "inputs": rows[:count],
            "state": [],
            "results": rows[count:],
            **({"adjoints": more[0]} if more else {}),
            "calls": [],
            "features": features(self.target) if self.asked.machine != "wasm32" else [],
            "sizes": [(d.name, d.lo, d.hi) for d in self.dims],
            "checks": [spelled(check) for check in self.checks],
        }


def _extent(extent: Extent) -> str | int:
    return extent.name if isinstance(extent, Dim) else extent


def _copies(variable: Variable, dense: str, wide: str, sizes: Mapping[Dim, str]) -> tuple[str, str]:
    """Statements that copy an array of a caller's apart, and together again."""
    shape = [extent_in_c(e, sizes) for e in variable.shape]
    far = [str(upper(e)) for e in variable.shape]
    near = [" * ".join(["(int64_t)1", *shape[n + 1 :]]) for n in range(len(shape))]
    apart = [" * ".join(["(int64_t)1", *far[n + 1 :]]) for n in range(len(shape))]
    rows = [f"(const int64_t[]){{{', '.join(r)}}}" for r in (apart, near, shape)]
    size = variable.dtype.itemsize
    end = f"{rows[2]}, {len(shape)}, {size});"
    return (
        f"pb_lay({wide}, {rows[0]}, (const char *){dense}, {rows[1]}, {end}",
        f"pb_lay((char *){dense}, {rows[1]}, {wide}, {rows[0]}, {end}",
    )
