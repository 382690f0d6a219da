"""The 27 primitives, in one table: what a backend must implement, and nothing else.

Layers, losses, optimisers and named scalar functions are composites of these. `ir.expr.Size` and
`ir.expr.Dim` spell an extent inside an expression; they compute nothing of their own.
`ir.program.HostCall` is none: a backend may have no host, and then it is refused by code.
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.ir import expr, graph, program


@dataclass(frozen=True, slots=True)
class Primitive:
    """One row: the class that stands for it, its meaning, its types and its derivative."""

    cls: type
    group: str
    meaning: str
    types: str
    derivative: str

    @property
    def name(self) -> str:
        return self.cls.__name__


def _scalar(cls: type, meaning: str, types: str, derivative: str) -> Primitive:
    return Primitive(cls, "scalar", meaning, types, derivative)


PRIMITIVES: tuple[Primitive, ...] = (
    _scalar(expr.Const, "a literal", "-> T", "0"),
    _scalar(expr.Axis, "the value of an axis", "-> int64", "0"),
    _scalar(
        expr.Take, "x[i, ..]; an index may be data", "T[], int64.. -> T", "solve for i: gather"
    ),
    _scalar(
        expr.If, "c ? a : b; the other is not read", "bool, T, T -> T", "(c ? g : 0, c ? 0 : g)"
    ),
    _scalar(expr.Cast, "a as type T", "S -> T", "cast back; 0 through integers"),
    _scalar(expr.Add, "a + b", "T, T -> T", "(g, g)"),
    _scalar(expr.Mul, "a * b", "T, T -> T", "(g b, g a)"),
    _scalar(expr.Div, "a / b", "F, F -> F", "(g / b, -g a / b^2)"),
    _scalar(expr.FloorDiv, "floor(a / b)", "T, T -> T", "0"),
    _scalar(expr.Mod, "a - floor(a / b) b", "T, T -> T", "(g, -g floor(a / b))"),
    _scalar(expr.Less, "a < b", "T, T -> bool", "0"),
    _scalar(expr.Equal, "a == b", "T, T -> bool", "0"),
    _scalar(expr.And, "a & b", "I, I -> I", "0"),
    _scalar(expr.Or, "a | b", "I, I -> I", "0"),
    _scalar(expr.Xor, "a ^ b", "I, I -> I", "0"),
    _scalar(expr.Exp, "e^a", "F -> F", "g e^a"),
    _scalar(expr.Log, "ln a", "F -> F", "g / a"),
    _scalar(expr.Sqrt, "square root", "F -> F", "g / (2 sqrt a)"),
    _scalar(expr.Sin, "sine", "F -> F", "g sin(a + pi / 2)"),
    Primitive(graph.Reduce, "form", "combine over axes", "T -> T", "by combiner"),
    Primitive(graph.Scan, "form", "running combine along an axis", "T -> T", "reversed scan"),
    Primitive(graph.Accumulate, "form", "out[at] = combine(out[at], a)", "T -> T", "g[at]"),
    Primitive(program.Compute, "program", "assign definitions to variables", "", "reverse sweep"),
    Primitive(program.Loop, "program", "repeat, counted or while", "", "refused by name"),
    Primitive(program.Branch, "program", "one of two blocks", "", "refused by name"),
    Primitive(program.Feed, "program", "the next batch, host to device", "", "none: an input"),
    Primitive(program.Receive, "program", "a snapshot, device to host", "", "none: an output"),
)
