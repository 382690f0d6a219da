"""The derivative of a kernel: its operations from the last to the first, each with its rule.

    d_operand += d_result * (derivative of result by operand)

A loop runs back as often as it ran: what it carried is a closed form of the step, or was kept on a
tape; its operations are computed again at each step, so that the code is as long as the loop's.
Source: Griewank, Walther, Evaluating Derivatives, 2008, chapters 3 and 12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pullback.config import frozen
from pullback.triton import folds, words
from pullback.triton.derivatives import Derivatives
from pullback.triton.facts import Facts, refused, starts
from pullback.triton.forward import order_of
from pullback.triton.kept import beyond
from pullback.triton.moments import Counted, Each, moments
from pullback.triton.nodes import Block, Operation, Value
from pullback.triton.products import Factor
from pullback.triton.shifts import cancelled
from pullback.triton.statements import Do, Either, Repeat, reads

ADDED = ("tt.store", "tt.atomic_rmw")


@frozen
class Wanted:
    """What is differentiated by what: names of arguments.

    Nothing comes from behind `silent` outputs. `stored` owns its elements' places; each element of
    `replaced` is read, and then written. Each place of the outputs `once` is stored once, and by
    all lanes of those that are `whole`. Of masks it is `counted` how many lanes hold. `factors` are
    stored, for products that are run apart.
    """

    wrt: frozenset[str]
    outputs: frozenset[str]
    silent: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    counted: Counted = frozenset()
    factors: tuple[Factor, ...] = ()


class Adjoint(Derivatives):
    """Writes the derivative of a kernel behind its values."""

    def __init__(self, facts: Facts, wanted: Wanted) -> None:
        still = cancelled(facts, wanted.silent)
        self.factors = {factor.total: factor for factor in wanted.factors}
        super().__init__(facts, facts.varying(wanted.wrt, frozenset(self.factors), still))
        self.wanted = wanted
        self.later: dict[Value, str] = {}  # what the next step of a loop began with
        self.visible: list[Block] = []  # those around what is undone
        self.arguments: dict[str, str] = {}  # of the gradients, by what they are of
        self.behind_sums: dict[str, str] = {}  # the arguments of factors, by what they are behind
        self.upstream: dict[Value, str] = {}  # of a function: what stands for a gradient's load
        self.results: dict[Value, str] = {}  # of a function: derivatives, by argument

    # --- derivatives by name ----------------------------------------------------------------------

    def gradient(self, base: Value) -> str:
        """The argument that holds the gradient of another one."""
        if base.name not in self.arguments:
            self.arguments[base.name] = self.name(f"d_{base.name}")
        return self.arguments[base.name]

    # --- operations -------------------------------------------------------------------------------

    def operation(self, o: Operation, tapes: bool) -> None:
        super().operation(o, tapes)
        for value in o.results:
            if value in self.later:
                self.assign(value.name, self.later[value])

    def reverse(self, block: Block) -> None:
        """The operations of a block, backwards."""
        self.visible.append(block)
        for operation in reversed(block.operations):
            self.undo(operation)
        self.visible.pop()

    def holds(self, value: Value) -> bool:
        """Whether a value is there, in all lanes what it was computed as."""
        if value in self.kept and not self.exact(self.kept[value]):
            return False
        return any(value in o.results for block in self.visible for o in block.operations)

    def exact(self, store: Operation) -> bool:
        """Whether what is loaded from where it was stored is right in each lane."""
        base = self.facts.bases[store.operands[0]].name
        return base in self.wanted.whole or beyond(self.facts, store) is not None

    def undo(self, o: Operation) -> None:
        if any(v in self.factors for v in o.results):
            self.factored(o)
        elif o.name in ADDED:
            if any(v in self.known for v in o.results):
                raise refused(o, "what it gives depends on the order of programs")
            self.stored(o)
        elif o.name == "scf.for":
            self.back(o, o.regions[0].arguments[1:])
        elif o.name == "scf.while":
            self.back(o, o.regions[1].arguments)
        elif o.name == "scf.if":
            self.branch(o)
        elif o.name == "tt.fp_to_fp" and not o.results[0].type.is_float:
            if o.operands[0] in self.vary:
                raise refused(o, "values of 8 bits have no derivative")
        elif any(v in self.known for v in o.results) and self.vary & set(o.operands + o.results):
            self.rule(o)

    def factored(self, o: Operation) -> None:
        """What comes from behind a sum of products is stored, where what it makes is stored."""
        for total in o.results:
            if total not in self.factors or total not in self.known:
                continue
            factor = self.factors[total]
            self.plain(total)
            pointer, _, *mask = factor.store.operands
            name = self.behind_sums[total.name] = self.name(f"behind_{total.name}")
            kept = f", mask={self.mask(mask[0])}" if mask else ""
            value = f"tl.cast({self.d(total)}, {name}.dtype.element_ty)"
            self.lines.append(Do(f"tl.store({self.address(pointer, name)}, {value}{kept})"))
            self.add(factor.start, self.d(total))

    def rule(self, o: Operation) -> None:
        """What an operation gives to the derivatives of its operands."""
        with self.linear(o, o.name not in RULES):
            RULES.get(o.name, Adjoint.elements)(self, o)

    def stored(self, o: Operation) -> None:
        """The gradient of what was stored is loaded; an earlier store to the place gave nothing."""
        pointer, value, *mask = o.operands
        base = self.facts.bases[pointer]
        if o.name == "tt.atomic_rmw" and o.attribute("word") != "fadd":
            if value in self.vary:
                raise refused(o, f"an atomic {o.attribute('word')}")
            return
        if value not in self.vary:
            if o.name == "tt.store" and self.behind(base):
                self.cleared(base, pointer, mask)
            return
        if base.name not in self.wanted.outputs:
            raise refused(o, f"{base.name}, which depends on what is differentiated, is no output")
        if base.name in self.wanted.silent:
            return
        if base in self.upstream:
            self.add(value, self.upstream[base])
            return
        name = self.gradient(base)
        at = self.address(pointer, name)
        kept = f", mask={self.mask(mask[0])}" if mask else ""
        other = ", other=0.0" if mask and value.type.shape else ""
        self.add(value, f"tl.cast(tl.load({at}{kept}{other}), {self.sums(value.type)})")
        if o.name == "tt.store":
            self.cleared(base, pointer, mask)

    def cleared(self, base: Value, pointer: Value, mask: Sequence[Value]) -> None:
        """What lay there before a store gave nothing to what comes from behind."""
        if base.name in self.wanted.replaced or self.again(base):
            at = self.address(pointer, self.gradient(base))
            kept = f", mask={self.mask(mask[0])}" if mask else ""
            self.lines.append(Do(f"tl.store({at}, 0.0{kept})"))
            self.lines.append(Do("tl.debug_barrier()"))

    def behind(self, base: Value) -> bool:
        """Whether what comes from behind an argument is of any other element than of numbers."""
        if base in self.upstream or base.name not in self.wanted.outputs - self.wanted.silent:
            return False
        stores = (o for o in self.facts.function.block.walk() if o.name in ADDED)
        values = (o.operands[1] for o in stores if self.facts.bases[o.operands[0]] is base)
        kept = base.name in self.wanted.replaced & self.wanted.wrt
        return kept or any(v in self.vary for v in values)

    def again(self, base: Value) -> bool:
        """Whether a kernel may store twice to a place of an argument."""
        if base.name in self.wanted.once:
            return False
        block = self.facts.function.block
        stores = [o for o in block.walk() if o.name == "tt.store"]
        own = [o for o in stores if self.facts.bases[o.operands[0]] is base]
        return len(own) > 1 or not any(o is own[0] for o in _once(block))

    def loaded_back(self, o: Operation) -> None:
        pointer, *mask = o.operands
        base = self.facts.bases[pointer]
        if base.name not in self.wanted.wrt:
            return
        if base in self.given:
            self.results[base] = self.expression(o.results[0])
            return
        g, name = self.expression(o.results[0]), self.gradient(base)
        kept = f", mask={self.mask(mask[0])}" if mask else ""
        at = self.address(pointer, name)
        value = f"tl.cast({g}, {name}.dtype.element_ty)"
        if base.name in self.wanted.stored:
            self.lines.append(Do(f"tl.store({at}, {value}{kept})"))
        else:
            self.lines.append(Do(f'tl.atomic_add({at}, {value}{kept}, sem="relaxed")'))

    # --- loops and branches -----------------------------------------------------------------------

    def outer(self, o: Operation) -> list[Value]:
        """Values from before an operation to whose derivatives its blocks add."""
        own = {v for r in o.regions for v in r.arguments}
        inner = [q for r in o.regions for q in r.walk()]
        own |= {v for q in inner for v in q.results}
        own |= {v for q in inner for r in q.regions for v in r.arguments}
        read = dict.fromkeys(v for q in inner for v in q.operands)
        return [v for v in read if v in self.vary and v not in own and v.type.is_float]

    def acts(self, o: Operation) -> bool:
        """Whether the blocks of an operation hold anything that varies, or is written over."""
        walk = [q for r in o.regions for q in r.walk()]
        over = (q for q in walk if q.name == "tt.store")
        return any(v in self.vary for q in walk for v in q.results + q.operands) or any(
            self.behind(self.facts.bases[q.operands[0]]) for q in over
        )

    def branch(self, o: Operation) -> None:
        if not self.acts(o):
            return
        self.begun([*self.outer(o), *(v for v in o.results if v in self.known)])
        taken = []
        for region in o.regions:
            with self.inside(), self.collected() as lines:
                self.block(region, True)
                for result, end in zip(o.results, region.yields, strict=False):
                    if result in self.known:
                        self.add(end, self.d(result))
                self.reverse(region)
            taken.append(tuple(lines))
        self.lines.append(Either(self.short(o.operands[0])[0], *taken))

    def back(self, o: Operation, carried: tuple[Value, ...]) -> None:
        """A loop from its last step to its first."""
        if not self.acts(o):
            return
        self.begun([*self.outer(o), *(v for v in o.results if v in self.known)])
        whole = moments(self.facts, self.vary, self.wanted.counted, o)
        places = whole.places if whole else frozenset()
        flows = [k for k, v in enumerate(carried) if k not in places and self.flows(o, k, v)]
        body = o.regions[-1]
        passed = {k: self.name(f"d_{carried[k].name}_next") for k in flows}
        for k in flows:
            result = o.results[k]
            self.assign(
                passed[k],
                self.d(result) if result in self.known else self.zero(result.type),
            )
        trips, back, step = self.name("trips"), self.name("back"), self.name("step")
        self.assign(trips, self.trips(o))
        after = self.after(o, carried)
        each = Each.step(self, o, whole) if whole else None
        with self.inside(), self.collected() as lines:
            self.assign(step, f"{trips} - 1 - {back}")
            self.at_step(o, carried, step)
            self.block(body, True)
            if each:
                each.add(self)
            for k in flows:
                if body.yields[k] in self.vary:
                    self.add(body.yields[k], passed[k])
            self.reverse(body)
            self.passed([(passed[k], carried[k]) for k in flows])
            for value, name in after:
                self.assign(name, value.name)
        self.lines.append(Repeat(f"for {back} in range(0, {trips})", tuple(lines)))
        for k in flows:
            self.add(starts(o)[k], passed[k])

    def after(self, o: Operation, carried: tuple[Value, ...]) -> list[tuple[Value, str]]:
        """Carried values, and names for those of the step that follows.

        A step's result is what the next one began with. Where it is made of what is carried, which
        is on a tape then, it is not computed again.
        """
        body, made = o.regions[-1], list[tuple[Value, str]]()
        for place, (value, end) in enumerate(zip(carried, body.yields, strict=True)):
            grows = self.facts.step(o, place) is not None
            if grows or end.type.pointer or not _made_of(body, end, value):
                continue
            name = self.name(f"{value.name}_after")
            self.assign(name, o.results[place].name)
            self.later[end] = name
            made.append((value, name))
        return made

    def passed(self, pairs: list[tuple[str, Value]]) -> None:
        """What the step before is given of each carried value, all at once."""
        names, made = {name for name, _ in pairs}, list[tuple[str, str]]()
        for name, value in pairs:
            text = self.expression(value) if value in self.known else self.zero(value.type)
            if reads(text) & names:
                self.assign(self.own(value), text)
                text = self.own(value)
            made.append((name, text))
        for name, text in made:
            self.assign(name, text)

    def flows(self, o: Operation, place: int, carried: Value) -> bool:
        return carried in self.vary and carried.type.is_float

    def at_step(self, o: Operation, carried: tuple[Value, ...], step: str) -> None:
        """What a loop carried at a step."""
        if o.name == "scf.for":
            low, _, stride = (self.short(v)[0] for v in o.operands[:3])
            text = step if stride == "1" else f"{step} * {stride}"
            self.assign(o.regions[0].arguments[0].name, text if low == "0" else f"{low} + {text}")
        for place, value in enumerate(carried):
            growth = self.facts.step(o, place)
            if growth is not None:
                start = self.whole(starts(o)[place])
                self.assign(value.name, f"{start} + {step} * {self.short(growth)[0]}")
                continue
            name = self.tape(o, place)
            text = f"tl.load({name} + {self.lanes(value.type, step)})"
            self.assign(value.name, f"{text} != 0" if value.type.element == "i1" else text)

    # --- rules of shapes --------------------------------------------------------------------------

    def summed(self, o: Operation) -> None:
        """Of a scalar that a block repeats."""
        with self.outside(o, lambda text: None if self.extents(text) else text) as g:
            self.add(o.operands[0], f"tl.sum({g})")

    def broadcast(self, o: Operation) -> None:
        (value,) = o.operands
        pairs = enumerate(zip(value.type.shape, o.results[0].type.shape, strict=True))
        axes = [axis for axis, (own, whole) in pairs if own != whole]

        def passed(text: str) -> str | None:
            shape = self.extents(text)
            wide = shape is None or any(shape[axis] > 1 for axis in axes if shape)
            return None if wide else text

        with self.outside(o, passed) as g:
            for axis in axes:
                g = f"tl.sum({g}, {axis}, keep_dims=True)"
            self.add(value, g)

    def expanded(self, o: Operation) -> None:
        def passed(text: str) -> str | None:
            if self.extents(text) == ():
                return text
            value = self.algebra.values.get(text)
            holder = None if value is None else self.facts.makers.get(value)
            if holder and (holder.name, holder.attributes) == (o.name, o.attributes):
                return self.short(holder.operands[0])[0]
            return None

        shape = words.shape_of(o.operands[0].type.shape)
        with self.outside(o, passed) as g:
            self.add(o.operands[0], f"tl.reshape({g}, {shape})")

    def reshaped(self, o: Operation) -> None:
        shape = words.shape_of(o.operands[0].type.shape)
        self.add(o.operands[0], f"tl.reshape({self.d(o.results[0])}, {shape})")

    def transposed(self, o: Operation) -> None:
        order = order_of(o)
        inverse = tuple(order.index(axis) for axis in range(len(order)))
        self.add(o.operands[0], f"tl.permute({self.d(o.results[0])}, {inverse})")

    def dotted(self, o: Operation) -> None:
        a, b, c = o.operands
        g, kind = self.d(o.results[0]), self.sums(o.results[0].type)
        options = f'input_precision="{o.attribute("inputPrecision", "ieee")}", out_dtype={kind}'
        rank = len(a.type.shape)
        order = (*range(rank - 2), rank - 1, rank - 2)
        turn = [f"tl.permute({self.whole(v)}, {order})" for v in (a, b)]
        cast = [f"tl.cast({g}, {self.element(v.type)})" for v in (b, a)]
        own = [g if v.type.element == o.results[0].type.element else c
               for v, c in zip((b, a), cast, strict=True)]  # fmt: skip
        self.add(c, g)
        self.add(a, f"tl.dot({own[0]}, {turn[1]}, {options})")
        self.add(b, f"tl.dot({turn[0]}, {own[1]}, {options})")

    def joined(self, o: Operation) -> None:
        pair = self.name("halves")
        self.assign(pair, f"tl.split({self.d(o.results[0])})")
        for place, value in enumerate(o.operands):
            self.add(value, f"{pair}[{place}]")

    def split_back(self, o: Operation) -> None:
        self.begun(o.results)
        self.add(o.operands[0], f"tl.join({', '.join(map(self.d, o.results))})")

    def gathered(self, o: Operation) -> None:
        """By a block of what is equal: places against places, one more axis."""
        value, index = o.operands
        axis, g = int(o.attribute("axis")), self.d(o.results[0])
        rank = len(value.type.shape)
        inside = ", ".join(":" if k == axis else "None" for k in range(rank + 1))
        own = f"tl.arange(0, {value.type.shape[axis]})[{inside}]"
        same = f"tl.expand_dims({self.whole(index)}, {axis}) == {own}"
        self.add(value, f"tl.sum(tl.where({same}, tl.expand_dims({g}, {axis}), 0.0), {axis + 1})")

    def bits(self, o: Operation) -> None:
        value = o.operands[0]
        if value.type.element == o.results[0].type.element:
            self.add(value, self.d(o.results[0]))
        elif value in self.vary:
            raise refused(o, "a float made of the bits of another")

    def cast(self, o: Operation) -> None:
        if o.operands[0] in self.vary:
            raise refused(o, "a float made of the bits of another")


def _made_of(block: Block, value: Value, other: Value) -> bool:
    """Whether an operation of a block makes a value of another one."""
    makers = {v: o for o in block.operations for v in o.results}
    todo, known = [value], set[Value]()
    while todo:
        one = todo.pop()
        if one == other:
            return value in makers
        holder = None if one in known else makers.get(one)
        known.add(one)
        if holder is not None:
            todo += [
                *holder.operands,
                *(v for r in holder.regions for q in r.walk() for v in q.operands),
            ]
    return False


def _once(block: Block) -> Iterator[Operation]:
    """The operations that no loop is around."""
    for operation in block.operations:
        yield operation
        for region in operation.regions if operation.name == "scf.if" else ():
            yield from _once(region)


RULES: dict[str, Callable[[Adjoint, Operation], None]] = {
    "tt.load": Adjoint.loaded_back,
    "tt.splat": Adjoint.summed,
    "tt.broadcast": Adjoint.broadcast,
    "tt.expand_dims": Adjoint.expanded,
    "tt.reshape": Adjoint.reshaped,
    "tt.trans": Adjoint.transposed,
    "tt.dot": Adjoint.dotted,
    "tt.reduce": folds.reduced,
    "tt.scan": folds.scanned,
    "tt.join": Adjoint.joined,
    "tt.split": Adjoint.split_back,
    "tt.gather": Adjoint.gathered,
    "tt.bitcast": Adjoint.bits,
    "arith.sitofp": Adjoint.cast,
    "arith.uitofp": Adjoint.cast,
}
