"""Derivatives of reductions and scans, by any combiner: a recurrence that runs back.

    y_i = c(y_{i-1}, e_i)                            a scan; a reduction gives its last y
    G_i = g_i + (dc/da)(y_i, e_{i+1})^T G_{i+1}      what comes from behind y_i, of all that follow
    d_i = (dc/db)(y_{i-1}, e_i)^T G_i                of the element; d_0 = G_0

`G` is linear in what follows: pairs of a matrix and a vector, which have a scan of their own.
Source: Blelloch, Prefix Sums and Their Applications, 1990, section 1.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.triton import words
from pullback.triton.derivatives import Derivatives
from pullback.triton.facts import Facts, refused
from pullback.triton.forward import kind_of
from pullback.triton.nodes import Block, Function, Operation, Value
from pullback.triton.statements import written


def reduced(to: Derivatives, o: Operation) -> None:
    """Of sums, maxima and minima by what they are; of other combiners by the recurrence."""
    value, result, kind = o.operands[0], o.results[0], kind_of(o)
    if kind == "sum":
        with to.outside(o, lambda text: _repeated(to, o, text)) as g:
            to.add(value, spread(g, o))
        return
    g = to.d(result)
    if kind:
        ties = to.name("ties")
        whole = spread(to.short(result)[0], o)
        same = f"{to.wide(value, to.short(value)[0])} == {to.wide(result, whole)}"
        to.assign(ties, f"tl.cast({same}, {to.sums(value.type)})")
        share = f"{g} / tl.sum({ties}, {o.attribute('axis')})"
        to.add(value, f"{ties} * {spread(share, o)}")
    elif picks(to.facts, o):
        index, place = o.results[1], o.operands[1]
        same = f"{to.short(place)[0]} == {spread(to.short(index)[0], o)}"
        to.add(value, f"tl.where({same}, {spread(g, o)}, 0.0)")
    else:
        _Recurrence(to, o).write()


def _repeated(to: Derivatives, o: Operation, text: str) -> str | None:
    """A factor of a sum's result as one of its elements; nothing, where it has no use there.

    It is of use where what the elements have shares it, or what they are made by is divided by it:
    written by itself it would be so for each of them.
    """
    beside = text if to.extents(text) == () else _expanded(to, o, text)
    if beside is None:
        return None
    value = o.operands[0]
    if (holder := to.facts.makers.get(value)) is not None:
        to.algebra.meets(holder)
    shared = value in to.known and beside in dict(to.terms[value].factors)
    met = ((to.short(value)[0], 1), (beside, -1))
    return beside if shared or to.algebra.divided(met, value.type) != met else None


def _expanded(to: Derivatives, o: Operation, text: str) -> str | None:
    """What a sum's result is called where it stands beside the elements."""
    for other in to.facts.function.block.walk():
        if other.name != "tt.expand_dims" or other.attribute("axis") != o.attribute("axis"):
            continue
        if to.short(other.operands[0])[0] == text and to.holds(other.results[0]):
            to.algebra.meets(other)
            return to.short(other.results[0])[0]
    return None


def scanned(to: Derivatives, o: Operation) -> None:
    """Of sums a sum that runs back; of other combiners by the recurrence."""
    axis, forward = o.attribute("axis"), o.attribute("reverse") == "False"
    if kind_of(o) == "sum":
        g = to.d(o.results[0])
        to.add(o.operands[0], f"tl.cumsum({g}, {axis}, reverse={forward})")
    else:
        _Recurrence(to, o).write()


def spread(text: str, o: Operation) -> str:
    """A result of a reduction, repeated along what was reduced."""
    shape = o.operands[0].type.shape
    if len(shape) == 1:
        return f"tl.broadcast_to({text}, {words.shape_of(shape)})"
    inner = f"tl.expand_dims({text}, {o.attribute('axis')})"
    return f"tl.broadcast_to({inner}, {words.shape_of(shape)})"


def picks(facts: Facts, o: Operation) -> bool:
    """Whether a reduction picks one element and its index."""
    if len(o.operands) != 2 or not _indices(facts, o.operands[1]):
        return False
    block = o.regions[0]
    a, i, b, j = block.arguments
    held = {v: q for q in block.operations for v in q.results}
    ends = [held.get(v) for v in block.yields]
    first, second = ends
    if first is None or second is None or first.name != "arith.select" != second.name:
        return False
    if second.name != "arith.select" or first.operands[0] is not second.operands[0]:
        return False
    return (first.operands[1:], second.operands[1:]) == ((a, b), (i, j))


def _indices(facts: Facts, value: Value) -> bool:
    """Whether a block holds 0, 1, 2, .. along an axis."""
    holder = facts.makers.get(value)
    if holder is None:
        return False
    if holder.name in ("tt.broadcast", "tt.expand_dims", "tt.reshape"):
        return _indices(facts, holder.operands[0])
    return holder.name == "tt.make_range"


class _Combiner(Derivatives):
    """The derivative of a combiner: its two elements are a block's arguments.

    `floats` are the places of an element's parts that have one.
    """

    def __init__(self, facts: Facts, block: Block, floats: Sequence[int]) -> None:
        own = Facts(
            Function("combine", block), facts.makers, facts.around, {}, frozenset(), {}
        )  # what stands before it are constants
        self.parts = [block.arguments[half + k] for half in (0, len(block.yields)) for k in floats]
        super().__init__(own, own.varying(frozenset(), frozenset(self.parts)))

    def guarded(self, o: Operation) -> bool:
        """Lanes that are left out of a fold hold anything."""
        return True

    def text_of(self, name: str, behind: Sequence[tuple[Value, str]]) -> str:
        """A function of both elements and of what comes from behind: the derivatives of both."""
        block = self.facts.function.block
        for inner in block.operations:
            if inner.regions:
                raise refused(inner, "a branch or a loop in a combiner")
            self.operation(inner, False)
        for value, text in behind:
            self.add(value, text)
        for inner in reversed(block.operations):
            if any(v in self.known for v in inner.results):
                with self.linear(inner, True):
                    self.elements(inner)
        if self.unknown:
            raise refused(self.unknown[0])
        given = [
            self.expression(v) if v in self.known else f"{behind[0][1]} * 0.0" for v in self.parts
        ]
        takes = [v.name for v in block.arguments] + [text for _, text in behind]
        head = f"@triton.jit\ndef {name}({', '.join(takes)}):"
        return "\n".join([head, *written(self.lines), f"    return {', '.join(given)}", ""])


class _Recurrence:
    """One fold's derivative: `floats` are the places of its operands that have one."""

    def __init__(self, to: Derivatives, o: Operation) -> None:
        self.to, self.o = to, o
        self.axis, self.shape = int(o.attribute("axis")), o.operands[0].type.shape
        self.back = o.attribute("reverse") == "True"  # the fold begins at the last element
        self.floats = self.varying()
        self.kind = to.sums(o.operands[self.floats[0]].type)
        self.place = to.name("place")

    def varying(self) -> list[int]:
        """The parts of an element that change, as the results of the combiner do that read them."""
        block, floats = self.o.regions[0], list[int]()
        own = [k for k, v in enumerate(self.o.operands) if v.type.is_float and v in self.to.vary]
        while own != floats:
            floats = own
            vary = _Combiner(self.to.facts, block, floats).vary
            own = [k for k, v in enumerate(block.yields) if k in floats or v in vary]
            own = [k for k in own if self.o.operands[k].type.is_float]
        return floats

    def write(self) -> None:
        to, o, many = self.to, self.o, len(self.floats)
        derivative = self.derivative()
        to.assign(self.place, self.lane())
        last = self.shape[self.axis] - 1
        later = f"tl.minimum({self.place} + 1, {last})"
        earlier = f"tl.maximum({self.place} - 1, 0)"
        if self.back:
            later, earlier = earlier, later
        elements = [to.whole(v) for v in o.operands]
        states = self.states()
        following = [self.moved(text, later) for text in elements]
        matrix = [self.call(derivative, [*states, *following], row) for row in range(many)]
        behind = self.behind(matrix, 0 if self.back else last)
        before = [self.moved(text, earlier) for text in states]
        made = self.named("parts", f"{derivative}({', '.join([*before, *elements, *behind])})")
        first = f"{self.place} == {last if self.back else 0}"
        for k, place in enumerate(self.floats):
            to.add(o.operands[place], f"tl.where({first}, {behind[k]}, {made}[{many + k}])")

    def named(self, stem: str, text: str) -> str:
        name = self.to.name(stem)
        self.to.assign(name, text)
        return name

    def lane(self) -> str:
        """The place of each element along the axis."""
        inside = ", ".join(":" if k == self.axis else "None" for k in range(len(self.shape)))
        index = f"[{inside}]" if len(self.shape) > 1 else ""
        text = f"tl.arange(0, {self.shape[self.axis]}){index}"
        return f"tl.broadcast_to({text}, {words.shape_of(self.shape)})" if index else text

    def moved(self, text: str, place: str) -> str:
        return self.named("moved", f"tl.gather({text}, {place}, {self.axis})")

    def call(self, derivative: str, given: list[str], row: int) -> str:
        """The row of the matrix that one result gives."""
        shape = words.shape_of(self.shape)
        units = [
            f"tl.full({shape}, {float(row == k)}, {self.kind})" for k, _ in enumerate(self.floats)
        ]
        return self.named("slopes", f"{derivative}({', '.join([*given, *units])})")

    def derivative(self) -> str:
        """The name of the combiner's derivative, a function beside."""
        to, block = self.to, self.o.regions[0]
        name = to.name("combine_grad")
        own = _Combiner(to.facts, block, self.floats)
        ends = [block.yields[k] for k in self.floats]
        behind = [(end, own.name(f"d_result_{k}")) for k, end in enumerate(ends)]
        to.helpers[name] = own.text_of(name, behind)
        return name

    def states(self) -> list[str]:
        """What the fold is after each element."""
        to, o = self.to, self.o
        if o.name == "tt.scan":
            return [to.short(v)[0] for v in o.results]
        operands = ", ".join(map(to.whole, o.operands))
        operands = operands if len(o.operands) == 1 else f"({operands})"
        text = f"tl.associative_scan({operands}, {self.axis}, {to.helper(o)})"
        made = self.named("states", text)
        return (
            [made] if len(o.operands) == 1 else [f"{made}[{k}]" for k, _ in enumerate(o.operands)]
        )

    def behind(self, matrix: list[str], last: int) -> list[str]:
        """What comes from behind each state, of all that follow."""
        to, many = self.to, range(len(self.floats))
        vector = []
        for place in self.floats:
            result = self.o.results[place]
            g = to.d(result) if result in to.known else to.zero(result.type)
            if self.o.name == "tt.reduce":
                g = f"tl.where({self.place} == {last}, {spread(g, self.o)}, 0.0)"
            vector.append(self.named("own", f"tl.cast({g}, {self.kind})"))
        entries = [f"tl.cast({matrix[r]}[{f}], {self.kind})" for f in many for r in many]
        made = self.named(
            "behind",
            f"tl.associative_scan(({', '.join([*entries, *vector])}), {self.axis}, "
            f"{self.follow()}, reverse={not self.back})",
        )
        size = len(self.floats)
        return [self.named("whole", f"{made}[{size * size + k}]") for k in many]

    def follow(self) -> str:
        """The name of: a matrix and a vector after others. The later element's come first."""
        name, many = f"follow_{len(self.floats)}", range(len(self.floats))
        cells = [f"{r}_{c}" for r in many for c in many]
        one = [f"m_{at}" for at in cells] + [f"v_{k}" for k in many]
        two = [f"n_{at}" for at in cells] + [f"w_{k}" for k in many]
        gives = [" + ".join(f"n_{r}_{k} * m_{k}_{c}" for k in many) for r in many for c in many]
        gives += [" + ".join([f"w_{r}", *(f"n_{r}_{k} * v_{k}" for k in many)]) for r in many]
        head = f"@triton.jit\ndef {name}({', '.join(one + two)}):\n"
        self.to.helpers[name] = f"{head}    return {', '.join(gives)}\n"
        return name
