"""An operation with its derivative as one file of Triton that stands alone.

y = NAME(x, w)   ->   functions of Triton, their launches, an `autograd.Function` around them
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from pullback.backends.registry import named
from pullback.bridge.eject import Named, Part, equations, facts, parts_of
from pullback.bridge.signature import Signature
from pullback.config import Options
from pullback.errors import UnsupportedError
from pullback.ir.expr import Dim, Extent, Shape
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Compute, Launch
from pullback.ir.target import Target
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter

LANGUAGE = "triton"  # the backend
TEMPLATE = Path(__file__).with_name("ejected_triton.txt")
TAKEN = ("os", "torch", "triton", "tl")  # names of the file that arguments may not take


class Call(Protocol):
    """A function of Triton, as it is called; `sites`: what its checks of indices say."""

    name: str
    source: str
    arguments: tuple[Variable, ...]
    sizes: tuple[Dim, ...]
    grid: tuple[tuple[Shape, int], ...]
    sites: tuple[str, ...]
    warps: int
    stages: int


class Renderer(Protocol):
    """The backend whose functions stand alone."""

    def machine(self, options: Options) -> Target:
        """What kernels are fused for."""

    def alone(self, kernel: Kernel, target: Target) -> tuple[str, list[Call]]:
        """What stands before functions, and those of a kernel."""


def ejected_triton(
    function: Callable[..., Any], name: str, signature: Signature, args: Sequence[Any]
) -> tuple[str, list[str]]:
    """The file of a function, for arguments in order: a `Lying` where a tensor is given, else its
    value; and the names of its parts.

    Raises: UnsupportedError for what does more than give results, and for loops.
    """
    parts = parts_of(function, name, signature, args, TAKEN)
    first = _Writer(parts.forward, parts.results, "_forward")
    every = [first]
    if parts.backward is not None:
        every.append(_Writer(parts.backward, parts.gradients, "_backward"))
    told = [w.part.told(w.named, "") for w in every]
    rows = {
        "NAME": parts.name,
        "INPUTS": facts(told[0].inputs),
        "RESULTS": facts(told[0].results),
        "SIZES": "".join(f"\n    {d.name!r}: ({d.lo}, {d.hi})," for d in told[0].sizes),
        "WANTED": repr(parts.wanted),
        "DEFINITIONS": "\n".join(map(equations, told)),
        "CALL": ", ".join(a.name for a in told[0].inputs),
        "PRELUDE": first.prelude,
        "KERNELS": "\n\n".join(source for w in every for source in w.sources),
        "LAUNCHES": "\n\n\n".join(w.text for w in every),
    }
    text = TEMPLATE.read_text()
    for key, value in rows.items():
        text = text.replace(f"@{key}@", value.rstrip("\n") if key in BLOCKS else value)
    return text, [w.part.name for w in every]


# A comment that says where a definition was written.
WRITTEN = re.compile(r"^( *# .*\]): (.*)  \((\S+):(\d+)\)$", re.MULTILINE)
FOREIGN = re.compile(r"-packages/|/pullback/|<|/lib/python")
PLACE = re.compile(r" \(\S+:\d+\)")
BLOCKS = ("PRELUDE", "KERNELS", "LAUNCHES", "DEFINITIONS")


class _Writer:
    """Writes the launches of one part: memory, then each function."""

    def __init__(self, part: Part, results: Sequence[str], name: str) -> None:
        self.part, self.name = part, name
        self.named: Named = part.named(results)
        self.renderer = cast(Renderer, named(LANGUAGE))
        self.options = replace(Options.from_environment(), backend=LANGUAGE, cache=None)
        self.target = self.renderer.machine(self.options)
        self.prelude, self.sources = "", list[str]()
        self.memory = {**self.named.inputs, **self.named.results}
        self.lines: list[str] = []
        self.text = self._written()

    def _written(self) -> str:
        device = next(iter(self.named.inputs.values()), None)
        if device is None:
            raise _refusal(self.part, "takes no tensor")
        self.lines.append(f"device = {device}.device")
        for variable, array in self.named.constants.items():
            kind = f"torch.{variable.dtype.name}"
            values = f"torch.tensor({array.tolist()!r}, dtype={kind}, device=device)"
            self.memory[variable] = self._fresh(variable)
            self.lines.append(f"{self.memory[variable]} = {values}")
        self.lines += [self._empty(v, name) for v, name in self.named.results.items()]
        for kernel in self._kernels():
            self._launched(kernel)
        sizes = [str(name) for name in self.named.sizes.values()]
        given = [*self.named.inputs.values(), *(["*", *sizes] if sizes else [])]
        results = ", ".join(self.named.results.values())
        body = textwrap.indent("\n".join([*self.lines, f"return ({results},)"]), "    ")
        return f"def {self.name}({', '.join(given)}):\n{body}"

    def _kernels(self) -> Iterator[Kernel]:
        """In launch order. Raises: UnsupportedError for a loop."""
        program = self.part.entry.executable.program
        for rule in self.options.rules:
            program = rule.program(program)
        for item in program.body:
            match item:
                case Compute():
                    yield from fuse_graph(item.graph, self.target, Reporter(self.options))
                case Launch():
                    yield item.kernel
                case _:
                    raise _refusal(self.part, "has a loop or a branch")

    def _launched(self, kernel: Kernel) -> None:
        self.prelude, calls = self.renderer.alone(kernel, self.target)
        for call in calls:
            own = f"{self.part.name}_{len(self.sources)}"
            head = f"def {call.name}("
            source = call.source.replace(head, f"def {own}(", 1)
            self.sources.append(WRITTEN.sub(_place, source))
            for variable in call.arguments:
                if variable not in self.memory:
                    self.memory[variable] = self._fresh(variable)
                    self.lines.append(self._empty(variable, self.memory[variable]))
            arguments = [self.memory[v] for v in call.arguments]
            arguments += [self.named.sizes[d] for d in call.sizes]
            if call.sites:
                arguments.append(f"sites={tuple(map(_bare, call.sites))!r}")
            counts = [self._programs(extents, block) for extents, block in call.grid]
            programs = " * ".join([c for c in counts if c != "1"]) or "1"
            how = f"{programs}, {call.warps}, {call.stages}"
            line = f"_launch({own}, {how}, {', '.join(arguments)})"
            self.lines.append(line)

    def _programs(self, extents: Shape, block: int) -> str:
        """One for each `block` of what runs together."""
        count = 1
        names = [self._extent(e) for e in extents if isinstance(e, Dim)]
        for extent in extents:
            count *= 1 if isinstance(extent, Dim) else extent
        if not names:
            return str(-(-count // block))
        return f"triton.cdiv({' * '.join([*names, str(count)])}, {block})"

    def _extent(self, extent: Extent) -> str:
        return self.named.sizes[extent] if isinstance(extent, Dim) else str(extent)

    def _empty(self, variable: Variable, name: str) -> str:
        shape = "".join(f"{self._extent(e)}, " for e in variable.shape)
        kind = f"torch.{variable.dtype.name}"
        return f"{name} = torch.empty(({shape.rstrip()}), dtype={kind}, device=device)"

    def _fresh(self, variable: Variable) -> str:
        """A name that nothing else has."""
        taken = {*self.memory.values(), *self.named.sizes.values(), "device", *TAKEN}
        base = "".join(c if c.isalnum() and c.isascii() else "_" for c in variable.name)
        base = f"kept_{base}"
        number = sum(1 for name in taken if name == base or name.startswith(f"{base}_"))
        return f"{base}_{number}" if number else base


def _place(comment: re.Match[str]) -> str:
    """The user's line with the name of its file; nothing of a line of a package."""
    head, line, path, number = comment.groups()
    return head if FOREIGN.search(path) else f"{head}: {line}  ({Path(path).name}:{number})"


def _bare(site: str) -> str:
    """What a check says, without lines of files that are not there."""
    return PLACE.sub("", site.partition("\n")[0])


def _refusal(part: Part, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"`{part.name}` {what}: a file of Triton cannot",
        help="write it as C: pullback eject .. -o file.c",
        code="E395",
    )
