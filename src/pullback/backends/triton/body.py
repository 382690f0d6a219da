"""Scalar expressions as blocks: which axes of a block each value has, masks where it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from pullback.algebra.bounds import bounds
from pullback.backends.triton import language as L
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Dim, Expr, Extent, Take, upper
from pullback.ir.graph import Variable
from pullback.ir.node import walk

LONGEST = 64  # characters of an expression that stands inside another one


@dataclass(frozen=True, slots=True)
class Text:
    """A value as written; `dims`: the axes of the block that it has, in order of the block's."""

    text: str
    dims: frozenset[int] = frozenset()
    atom: bool = True

    def __str__(self) -> str:
        return self.text if self.atom else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of an index: where it is kept, and where it is not."""

    right: Text
    wrong: Text


@dataclass(frozen=True, slots=True)
class Mark:
    """An index that may be out of range: its check, where it is wrong, and its value."""

    site: int
    wrong: Text
    value: Text


@dataclass(slots=True)
class Block:
    """A block of coordinates: its extent along each of its axes, the masks of those that are longer
    than what they cover, the coordinate of each axis of a definition, `index`: their type.
    """

    extents: list[int]
    masks: dict[int, str] = field(default_factory=dict)
    coordinates: dict[int, Text] = field(default_factory=dict)
    index: str = "tl.int64"

    def spread(self, text: str, dim: int) -> str:
        """A row along one axis, as it broadcasts over the block."""
        rank = len(self.extents)
        places = ", ".join(":" if n == dim else "None" for n in range(rank))
        return f"{text}[{places}]" if rank > 1 else text

    def each(self, text: str) -> Text:
        """A number, for each row: the interpreter makes no block of a scalar truth."""
        shape = [self.extents[0], *(1 for _ in self.extents[1:])]
        return Text(f"tl.zeros({shape}, {self.index}) + {text}", frozenset([0]), atom=False)

    def inside(self, dims: frozenset[int]) -> list[str]:
        """The masks of axes."""
        return [self.masks[d] for d in sorted(dims) if d in self.masks]

    def filled(self, text: Text, body: Expr | None) -> str:
        """What `body` became, over the whole block; a literal has no type of its own."""
        if len(text.dims) == len(self.extents):
            return text.text
        if isinstance(body, E.Const):
            return f"tl.broadcast_to({L.typed(body)}, {self.extents})"
        return f"tl.broadcast_to({text}, {self.extents})"


class Lines:
    """Lines of a function, and names that no two of them share."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.taken: dict[str, int] = {}

    def put(self, text: str) -> None:
        """One more line."""
        self.lines.append("    " * self.depth + text)

    def fresh(self, hint: str) -> str:
        """A name like `hint`."""
        count = self.taken.get(hint, 0)
        self.taken[hint] = count + 1
        return self.fresh(f"{hint}_{count}") if count else hint

    def name(self, hint: str, text: str) -> str:
        """A name for a value."""
        name = self.fresh(hint)
        self.put(f"{name} = {text}")
        return name


Known = Callable[[Take], Text | None]
Site = Callable[[Take, int], int]


@dataclass(slots=True)
class Body:
    """Writes the bodies of one block. `pointer` names memory, `held` gives values in registers."""

    lines: Lines
    block: Block
    pointer: Callable[[Variable], str]
    held: Known
    site: Site
    given: Mapping[Expr, Text] = field(default_factory=dict)
    known: dict[Expr, Text] = field(default_factory=dict)
    marks: dict[Expr, list[Mark]] = field(default_factory=dict)

    def values(self, roots: Sequence[Expr]) -> list[Text]:
        """What expressions are; of short floats in float32."""
        uses: dict[Expr, int] = {}
        nodes = [n for n in walk(roots) if isinstance(n, Expr)]
        for node in nodes:
            for child in node.children:
                if isinstance(child, Expr):
                    uses[child] = uses.get(child, 0) + 1
        checked = {i for n in nodes if isinstance(n, Take) for i in n.indices}
        for node in nodes:
            if node in self.known:
                continue
            made = self.given.get(node) or self.value(node)
            often = uses.get(node, 0) > 1 or len(made.text) > LONGEST or node in checked
            if often and not made.atom:
                made = Text(self.lines.name("t", made.text), made.dims)
            self.known[node] = made
            self.mark(node)
        return [self.known[root] for root in roots]

    def value(self, node: Expr) -> Text:
        match node:
            case E.Const():
                return Text(L.number(node.value))
            case E.Size():
                return self.block.each(L.extent_text(node.dim))
            case E.Axis():
                return self.block.coordinates[node.number]
            case Take():
                return self.held(node) or self.load(node)
            case E.Cast():
                return self.cast(node)
        kids = [c for c in node.children if isinstance(c, Expr)]
        dims = frozenset().union(*(self.known[k].dims for k in kids))
        return Text(self.operation(node, kids), dims, atom=False)

    def operation(self, node: Expr, kids: Sequence[Expr]) -> str:
        texts = [str(self.known[k]) for k in kids]
        sign = L.SIGNS.get(type(node))
        if sign is not None:
            return self.signed(node, kids, sign)
        match node:
            case E.Div():
                return self.quotient(node, kids)
            case E.FloorDiv() | E.Mod():
                return self.floored(node, kids)
            case E.Sqrt():
                name = "tl.sqrt" if node.dtype.bits == 64 else "tl.sqrt_rn"
                return f"{name}({self.exact(kids[0])})"
            case E.If():
                _, then, otherwise = kids
                sides = f"{self.typed(then)}, {self.typed(otherwise)}"
                return f"tl.where({texts[0]}, {sides})"
        call = L.CALLS.get(type(node))
        if call is None:
            raise InvalidIR(f"{type(node).__name__} in a kernel")
        return f"{call}({self.exact(kids[0])})"

    def signed(self, node: Expr, kids: Sequence[Expr], sign: str) -> str:
        """An operator. 16-bit floats are rounded where they are compared; truth is a number."""
        if not isinstance(node, E.Less | E.Equal):
            return f"{self.known[kids[0]]} {sign} {self.known[kids[1]]}"
        left, right = (self.rounded(k) for k in kids)
        if kids[0].dtype.is_bool and isinstance(node, E.Less):
            left, right = (f"({side}).to(tl.int32)" for side in (left, right))
        return f"{left} {sign} {right}"

    def quotient(self, node: Expr, kids: Sequence[Expr]) -> str:
        if node.dtype.bits == 64:
            return f"{self.typed(kids[0])} / {self.known[kids[1]]}"
        left, right = (self.exact(k) for k in kids)
        return f"tl.div_rn({left}, {right})"

    def floored(self, node: Expr, kids: Sequence[Expr]) -> str:
        """Plain signs round towards zero: so they do where neither side is below it."""
        name = "div" if isinstance(node, E.FloorDiv) else "mod"
        if node.dtype.is_float:
            wide = [f"({self.exact(k)}).to(tl.float64)" for k in kids]
            if name == "mod":
                return f"float_mod({self.exact(kids[0])}, {self.exact(kids[1])})"
            return f"float_floor_div({', '.join(wide)}).to({L.spelled(L.held(node.dtype))})"
        left, right = kids
        if bounds(left)[0] >= 0 and bounds(right)[0] > 0:
            return f"{self.known[left]} {'//' if name == 'div' else '%'} {self.known[right]}"
        return f"floor_{name}({self.exact(left)}, {self.exact(right)})"

    def typed(self, e: Expr) -> str:
        """A literal of its type, where the other side does not tell it."""
        if isinstance(e, E.Const) and not (e.dtype.is_bool or L.held(e.dtype) is float32):
            return L.typed(e)
        return str(self.known[e])

    def exact(self, e: Expr) -> str:
        """A block or a scalar of its type, never a bare literal."""
        if isinstance(e, E.Const):
            return L.typed(e)
        return f"({self.block.each('0')})" if self.known[e].text == "0" else str(self.known[e])

    def rounded(self, e: Expr) -> str:
        text = self.known[e]
        leaf = isinstance(e, Take | E.Const | E.Cast)
        return str(text) if leaf else L.rounded(str(text), e.dtype)

    # -- conversions

    def cast(self, node: E.Cast) -> Text:
        source, to, dims = node.value.dtype, node.to, self.known[node.value].dims
        text = self.rounded(node.value) if source.is_float else self.exact(node.value)
        if isinstance(node.value, E.Const):
            text = self.exact(node.value)
        if source is to:
            return Text(text, dims, atom=False)
        if to.is_bool:
            return Text(f"{text} != 0", dims, atom=False)
        if source.is_float and to.is_integer:
            return Text(self.truncated(text, source, to), dims)
        if is_short(to):
            wide = text if source.is_float else f"({text}).to(tl.float32)"
            return Text(L.rounded(wide, to), dims)
        if is_short(source) and to.name == "float32":
            return Text(text, dims, atom=False)
        whole = (
            f"{text}.to({L.spelled(to)})"
            if text.isidentifier()
            else f"({text}).to({L.spelled(to)})"
        )
        return Text(whole, dims)

    def truncated(self, text: str, source: DType, to: DType) -> str:
        low, high = to.range()
        wide = f"({text}).to(tl.float64)"
        ends = f"{float(low)!r}, {float(high + 1)!r}, {low}, {high}"
        return f"float_to_int({wide}, {ends}, {L.spelled(to)})"

    # -- reads

    def load(self, take: Take) -> Text:
        source = take.source
        if not isinstance(source, Variable):
            raise InvalidIR(f"{source} is read before it is computed")
        offset = self.offset(take.indices, source.shape)
        if not offset.dims:
            offset = self.block.each(str(offset))
        guards = [*self.block.inside(offset.dims), *map(str, self.ranges(take))]
        pointer = self.pointer(source)
        where = pointer if offset.text == "0" else f"{pointer} + {offset}"
        mask = f", mask={' & '.join(guards)}, other=0" if guards else ""
        text = L.computed(f"tl.load({where}{mask})", source.dtype)
        return Text(self.lines.name(L.word(source.name), text), offset.dims)

    def ranges(self, take: Take) -> list[Text]:
        """Conditions of indices that are not proved to lie in their axes."""
        conditions: list[Text] = []
        for index, extent in zip(take.indices, take.source.shape, strict=True):
            conditions += [b.right for b in self.within(index, extent)]
        return conditions

    def within(self, index: Expr, extent: Extent) -> list[Bound]:
        """``0 <= index < extent``, as far as it is not known."""
        low, high = bounds(index)
        at = self.known[index]
        made: list[Bound] = []
        if isinstance(index, E.Axis) and index.extent == extent:
            return []
        if low < 0:
            made.append(Bound(Text(f"({at} >= 0)", at.dims), Text(f"({at} < 0)", at.dims)))
        if high >= E.lower(extent):
            size = L.extent_text(extent)
            right = Text(f"({at} < {size})", at.dims)
            made.append(Bound(right, Text(f"({at} >= {size})", at.dims)))
        return made

    def offset(self, indices: Sequence[Expr], shape: Sequence[Extent]) -> Text:
        """Where an element lies, row-major in an array of upper bounds."""
        terms, dims = [], frozenset[int]()
        for n, (index, extent) in enumerate(zip(indices, shape, strict=True)):
            if extent == 1 and not isinstance(extent, Dim):
                continue
            at, stride = self.known[index], str(prod(map(upper, shape[n + 1 :])))
            dims |= at.dims
            terms.append(at.text if at.atom and stride == "1" else f"{at} * {stride}")
            if stride == "1":
                terms[-1] = str(at)
        return Text(" + ".join(terms) or "0", dims, atom=len(terms) < 2)

    # -- checks

    def mark(self, node: Expr) -> None:
        """Which indices below are wrong; an `If` drops those of the branch it does not take."""
        kids = [c for c in node.children if isinstance(c, Expr)]
        marks = [m for k in kids for m in self.marks.get(k, ())]
        if isinstance(node, E.If):
            marks = list(self.marks.get(node.condition, ()))
            for branch, negative in ((node.then, ""), (node.otherwise, " ^ True")):
                taken = self.known[node.condition]
                for m in self.marks.get(branch, ()):
                    both = Text(f"({m.wrong} & ({taken}{negative}))", m.wrong.dims | taken.dims)
                    marks.append(Mark(m.site, both, m.value))
        if isinstance(node, Take) and node.is_data and self.held(node) is None:
            for n, (index, extent) in enumerate(zip(node.indices, node.source.shape, strict=True)):
                for bound in self.within(index, extent):
                    marks.append(Mark(self.site(node, n), bound.wrong, self.known[index]))
        if marks:
            self.marks[node] = marks
