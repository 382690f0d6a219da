"""Programs at every stage as text: definitions in mathematical notation, kernels, loop nests.

``c[i, j] = sum[k < 64](a[i, k] * b[k, j])``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pullback.errors import InvalidIR
from pullback.ir import nest as N
from pullback.ir import program as P
from pullback.ir.expr import Axis, Dim, Expr, Extent, Size
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Form,
    Graph,
    Keep,
    Reduce,
    Scan,
    Value,
    Variable,
)
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.markup import html, panel
from pullback.ir.node import Node, walk
from pullback.ir.notation import Names, Printer, axis_name, extent_text, shape_text

INDENT = "  "


def expr_text(e: Expr, names: Names | None = None) -> str:
    """One expression, shared parts after it. ``a[i] * $0 where $0 = ..``"""
    lines, (text,) = Printer(names or Names(), _nest_leaf).body((e,))
    return f"{text} where {'; '.join(lines)}" if lines else text


def definition_text(d: Definition, names: Names | None = None) -> str:
    """A header line with type and shape, then the definition."""
    names = names or Names()
    marks = (" stop" if d.stop else "") + ("" if d.keep is Keep.AUTO else f" keep={d.keep.value}")
    head = f"def {names(d)}: {shape_text(d.dtype, d.shape)}{marks}"
    return "\n".join([head, *_equation(names, d, d.shape, d.form, d.roots)])


def _equation(
    names: Names,
    target: Value,
    shape: Sequence[Extent],
    form: Form,
    roots: Sequence[Expr],
) -> list[str]:
    """``c[i, j] = sum[k < 64](..)``, shared parts before it."""
    lines, (body, *at) = Printer(names).body(roots)
    rank = len(shape)
    left = [axis_name(n) for n in range(rank)]
    if isinstance(form, Accumulate):
        left = at
        body = f"accumulate {form.combiner.name}[{_ranges(form.domain, 0)}]({body})"
    elif isinstance(form, Reduce):
        body = f"{form.combiner.name}[{_ranges(form.over, rank)}]({body})"
    elif isinstance(form, Scan):
        body = f"scan {form.combiner.name}[{axis_name(form.axis)}]({body})"
    lines.append(f"{names(target)}[{', '.join(left)}] = {body}")
    return [INDENT + line for line in lines]


def _ranges(extents: Iterable[Extent], first: int) -> str:
    return ", ".join(f"{axis_name(n)} < {extent_text(e)}" for n, e in enumerate(extents, first))


def graph_text(graph: Graph) -> str:
    """Extents, variables, definitions, assignments; `cli.graph_text` reads it back."""
    names = Names()
    lines = ["graph"]
    order = graph.definitions
    inputs = dict.fromkeys([*graph.inputs, *(t for t, _ in graph.assigns)])
    lines += [_dim(d) for d in _dims([*inputs, *order])]
    lines += [_variable(v, names) for v in inputs]
    lines += [definition_text(d, names) for d in order]
    lines += [f"assign {names(t)} = {names(v)}" for t, v in graph.assigns]
    return "\n".join(lines) + "\n"


def _variable(v: Variable, names: Names | None = None) -> str:
    return f"var {(names or Names())(v)}: {shape_text(v.dtype, v.shape)}"


def _dim(d: Dim) -> str:
    return f"dim {d.name}: {d.lo}, {d.hi}"


def _dims(values: Iterable[Value]) -> list[Dim]:
    """Symbolic extents, in order of use."""
    dims: dict[Dim, None] = {}
    for value in values:
        every: list[Extent] = list(value.shape)
        if isinstance(value, Definition):
            every += value.extents
            for node in walk(value.roots):
                if isinstance(node, Size):
                    every.append(node.dim)
                elif isinstance(node, Axis):
                    every.append(node.extent)
        dims.update((e, None) for e in every if isinstance(e, Dim))
    return list(dims)


def kernel_text(kernel: Kernel, names: Names | None = None) -> str:
    """Outer axes, stages with their access expressions, what is stored, why it ends there;
    `cli.graph_text` reads it back.
    """
    names = names or Names()
    reasons = [f"{INDENT}# {reason}" for reason in kernel.reasons]
    if kernel.parts:
        lines = [f"kernel {kernel.name} of {len(kernel.parts)} parts side by side", *reasons]
        return "\n".join([*lines, "", *(kernel_text(part, names) for part in kernel.parts)])
    lines = [_dim(d) for d in _dims([*kernel.arguments, *(s.target for s in kernel.stages)])]
    lines.append(f"kernel {kernel.name} over [{_ranges(kernel.outer, 0)}]")
    lines += reasons
    lines += [f"{INDENT}{_variable(v, names)}" for v in kernel.arguments]
    for stage in kernel.stages:
        lines += stage_lines(stage, names)
    if kernel.finish:
        lines.append(f"{INDENT}finish")
        for stage in kernel.finish:
            lines += [INDENT + line for line in stage_lines(stage, names)]
    return "\n".join(lines) + "\n"


@html.register
def _(definition: Definition) -> str:
    """The equation and the user's line."""
    title = f"{type(definition.form).__name__} {definition.name}"
    place = definition.origin.excerpt() if definition.origin else ""
    return panel(title, definition_text(definition), place)


def stage_lines(stage: Stage, names: Names) -> list[str]:
    bound = ", ".join("-" if a is None else axis_name(a) for a in stage.outer)
    kept = "scratch" if stage.store is None else f"store {names(stage.store)}"
    partial = ", partial" if stage.partial else ""
    head = f"stage {names(stage.target)}: {shape_text(stage.body.dtype, stage.shape)}"
    reads = dict.fromkeys(expr_text(take, names) for take in stage_reads(stage))
    lines = [f"{head} at ({bound}) -> {kept}{partial}"]
    lines += _equation(names, stage.target, stage.shape, stage.form, stage.roots)
    if reads:
        lines.append(f"{INDENT}reads {', '.join(reads)}")
    return [INDENT + line for line in lines]


def _nest_leaf(node: Node, text: Callable[[Node], str]) -> str | None:
    """Leaves of loop nests."""
    if isinstance(node, N.Var):
        return node.name
    if isinstance(node, N.Load):
        return f"{node.array}[{text(node.offset)}]"
    if isinstance(node, N.Peek):
        indices = ", ".join(map(text, node.indices))
        return f"{node.register}[{indices}]" if node.indices else node.register.name
    if isinstance(node, N.Native):
        return f"{node.name}({', '.join(map(text, node.args))})"
    return None


class _Nest:
    """Statements as indented lines."""

    def __init__(self) -> None:
        self.printer = Printer(Names(), _nest_leaf)
        self.lines: list[str] = []

    def text(self, depth: int, *roots: Expr) -> list[str]:
        """Texts of expressions; lines that name their shared parts go first."""
        lines, texts = self.printer.body(roots)
        self.lines += [INDENT * depth + line for line in lines]
        return texts

    def block(self, body: Iterable[N.Stmt], depth: int) -> None:
        for statement in body:
            self.statement(statement, depth)

    def put(self, depth: int, line: str) -> None:
        self.lines.append(INDENT * depth + line)

    def statement(self, s: N.Stmt, depth: int) -> None:
        match s:
            case N.For():
                self.loop(s, depth)
            case N.Guard():
                (condition,) = self.text(depth, s.condition)
                self.put(depth, f"if {condition}:")
                self.block(s.body, depth + 1)
            case N.Declare():
                (init,) = self.text(depth, s.init)
                kind = shape_text(s.register.dtype, s.register.shape).removesuffix("[]")
                self.put(depth, f"{kind} {s.register} = {init}")
            case N.Set() | N.Combine():
                self.element(s, depth)
            case N.Store() | N.StoreCombine():
                offset, value = self.text(depth, s.offset, s.value)
                self.put(depth, f"{s.array}[{offset}] {_operator(s)} {value}")
            case N.Check():
                at, extent = self.text(depth, s.index, s.extent)
                self.put(depth, f"check 0 <= {at} < {extent}, site {s.site}")
            case N.Transpose():
                self.transpose(s, depth)
            case N.Mark():
                self.put(depth, mark_text(s, "#"))
            case N.Prefetch():
                self.put(depth, f"prefetch {s.array}[{self.text(depth, s.offset)[0]}]")

    def loop(self, s: N.For, depth: int) -> None:
        lo, hi = self.text(depth, s.lo, s.hi)
        step = f" by {s.step}" if s.step != 1 else ""
        flights = f" x{s.unroll}" if s.unroll != 1 else ""
        own = f"{s.var.lo}..{s.var.hi + 1}"
        within = "" if own == f"{lo}..{hi}" else f" within {s.var.lo}..{s.var.hi}"
        self.put(depth, f"{s.kind.value}{flights} {s.var.name} in {lo}..{hi}{step}{within}:")
        self.block(s.body, depth + 1)

    def element(self, s: N.Set | N.Combine, depth: int) -> None:
        value, *indices = self.text(depth, s.value, *s.indices)
        place = f"[{', '.join(indices)}]" if indices else ""
        self.put(depth, f"{s.register}{place} {_operator(s)} {value}")

    def transpose(self, s: N.Transpose, depth: int) -> None:
        exprs = (s.target_offset, s.source_offset, s.rows, s.columns)
        target, source, rows, columns = self.text(depth, *exprs)
        to = f"{s.target}[{target} + c*{s.target_row} + r]"
        of = f" in words of {s.word}" if s.word > 1 else ""
        self.put(depth, f"{to} = {s.source}[{source} + r*{s.source_row} + c]"
                        f" for r < {rows}, c < {columns}{of}")  # fmt: skip


def _operator(s: N.Set | N.Combine | N.Store | N.StoreCombine) -> str:
    return f"{s.combiner.name}=" if isinstance(s, N.Combine | N.StoreCombine) else "="


MARK = re.compile(r"^( *(?:#|;|//) )stage (\d+(?:, \d+)*)$", re.MULTILINE)


def mark_text(mark: N.Mark, sign: str) -> str:
    """``# stage 0, 2``, which `placed` makes ``# file.py:12  y = x @ w``"""
    return f"{sign} stage {', '.join(map(str, mark.stages))}"


def placed(text: str, kernel: Kernel) -> str:
    """Loops or LLVM of a kernel, marked with the user's lines instead of numbers of stages."""
    origins = [stage.target.origin for stage in (*kernel.stages, *kernel.finish)]

    def lines(mark: re.Match[str]) -> str:
        known = [origins[int(n)] for n in mark[2].split(", ")]
        texts = dict.fromkeys(f"{o.place}  {o.source}" for o in known if o is not None)
        return "\n".join(f"{mark[1]}{text}" for text in texts) if texts else mark[0]

    return MARK.sub(lines, text)


def routine_text(routine: N.Routine) -> str:
    """A loop nest in an indented notation."""
    nest = _Nest()
    nest.put(0, f"routine {routine.name}, task {routine.task.name} < {routine.tasks}")
    groups = {
        "argument": routine.arguments,
        "scratch": routine.scratch,
        "shared": routine.shared,
    }
    for space, arrays in groups.items():
        for a in arrays:
            past = " past the caches" if a in routine.streamed else ""
            nest.put(1, f"{space} {a}: {a.dtype}[{a.size}]{past}")
    for var in routine.sizes:
        nest.put(1, f"size {var.name} in {var.lo}..{var.hi}")
    for n, site in enumerate(routine.sites):
        nest.put(1, f"site {n}: {site.splitlines()[0] if site else ''}")
    nest.block(routine.body, 1)
    if routine.finish:
        nest.put(0, "finish")
        nest.block(routine.finish, 1)
    return "\n".join(nest.lines) + "\n"


def program_text(program: P.Program) -> str:
    """Items in order, indented by their loops and branches."""
    names = Names()
    lines = ["program"]
    lines += [f"{INDENT}state {_variable(v, names)[4:]}" for v in program.state]
    lines += _items(program.body, names, 1)
    return "\n".join(lines) + "\n"


def _items(block: P.Block, names: Names, depth: int) -> list[str]:
    lines: list[str] = []
    for item in block:
        lines += [INDENT * depth + line for line in _item(item, names)]
        if isinstance(item, P.Loop):
            lines += _items(item.body, names, depth + 1)
        elif isinstance(item, P.Branch):
            lines += _items(item.then, names, depth + 1)
            if item.otherwise:
                lines.append(f"{INDENT * depth}else")
                lines += _items(item.otherwise, names, depth + 1)
    return lines


def _item(item: P.Item, names: Names) -> list[str]:
    match item:
        case P.Compute():
            texts = (definition_text(d, names) for d in item.graph.definitions)
            lines = [line for text in texts for line in text.splitlines()]
            return lines + [f"assign {names(t)} = {names(v)}" for t, v in item.graph.assigns]
        case P.Launch():
            return kernel_text(item.kernel, names).splitlines()
        case P.Loop():
            return [_loop(item, names)]
        case P.Branch():
            return [f"if {names(item.predicate)}"]
        case P.Feed():
            return [f"feed {', '.join(map(names, item.targets))}"]
        case P.Receive():
            often = f" every {item.every}" if item.every != 1 else ""
            return [f"receive {', '.join(map(names, item.sources))}{often}"]
        case P.HostCall():
            given, made = (", ".join(map(names, row)) for row in (item.sources, item.targets))
            return [f"host {made} = {item.name}({given}) by {item.library}"]
    raise InvalidIR(f"no text for {item}")


def _loop(item: P.Loop, names: Names) -> str:
    counter = "" if item.counter is None else f" {names(item.counter)} from {item.start}"
    step = f" by {item.step}" if item.step != 1 else ""
    condition = "" if item.condition is None else f" while {names(item.condition)}"
    return f"loop{counter}{step} at most {item.count} times{condition}"


_TEXTS: dict[type, Callable[[Any], str]] = {
    Definition: definition_text,
    Variable: _variable,
    Graph: graph_text,
    Kernel: kernel_text,
    N.Routine: routine_text,
    P.Program: program_text,
}


def show(thing: Expr | Value | Graph | Kernel | N.Routine | P.Program) -> str:
    """Anything of the IR as text."""
    return _TEXTS.get(type(thing), expr_text)(thing)
