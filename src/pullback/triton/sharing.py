"""Whether two elements that a kernel loads may have one address: then gradients are added up by
atomic operations, and stored where not.

    offset = sum stride_k * i_k    each stride is more than all smaller ones reach together

What is not proved is shared. `i_k` are programs, lanes of a block and steps of loops; a mask may
bound what some of them reach together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pullback.config import frozen
from pullback.triton.facts import Facts
from pullback.triton.forward import order_of
from pullback.triton.nodes import Block, Operation, Value

# A sum: strides by what they are of, `program0`, `lane0` (a block's axis), a loop; "" is a number.
Form = dict[str, int]
_MEMORY = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")


@frozen
class Reach:
    """A kernel of one call: the numbers it is given, its grid, and how often loops run."""

    facts: Facts
    numbers: Mapping[str, int]
    grid: tuple[int, int, int]

    def owns(self, name: str) -> bool:
        """Whether each element of an argument is loaded at most once by all programs together."""
        loads = [o for o in self.touching(name) if o.name == "tt.load"]
        return len(loads) == 1 and self.apart(loads[0], loads[0].operands[1:2])

    def once(self, name: str) -> bool:
        """Whether each element of an argument is stored at most once, and nothing else is done."""
        own = self.touching(name)
        if [o.name for o in own] != ["tt.store"]:
            return False
        return self.apart(own[0], own[0].operands[2:])

    def alone(self, name: str) -> bool:
        """Whether one store that no loop is around is all that touches an argument."""
        own = self.touching(name)
        return [o.name for o in own] == ["tt.store"] and not self.within(own[0])

    def whole(self, name: str) -> bool:
        """Whether the one store to an argument leaves no lane out."""
        (own,) = self.touching(name)
        return all(self.holds(mask) for mask in own.operands[2:])

    def stores(self, name: str) -> bool:
        """Whether elements of an argument are stored, and not only added to."""
        return any(o.name == "tt.store" for o in self.touching(name))

    def separate(self, name: str) -> bool:
        """Whether each element of an argument is stored by one program, at one step, by one lane.

        Several stores are those of parts that are evenly apart, or of the same elements each.
        """
        return self.once(name) or self.replaces(name)

    def touching(self, name: str) -> list[Operation]:
        """The operations that read or write an argument's elements."""
        walk = self.facts.function.block.walk()
        memory = (o for o in walk if o.name in _MEMORY)
        return [o for o in memory if self.facts.bases[o.operands[0]].name == name]

    def apart(self, o: Operation, mask: Sequence[Value]) -> bool:
        """Whether no element is loaded or stored twice by an operation, by all programs."""
        form = self.form(o.operands[0])
        extents = self.extents(o)
        if form is None or extents is None:
            return False
        wide = {atom for atom, extent in extents.items() if extent > 1}
        if not wide <= form.keys():
            return False
        return _apart(form, self.bounds(mask[0]) if mask else [], extents)

    def replaces(self, name: str) -> bool:
        """Whether each element of an argument is read and then written, by one program and step.

        Loads and stores have one form, but for numbers that are evenly apart: halves of a row.
        """
        own = self.touching(name)
        kinds = [o.name for o in own]
        if kinds != sorted(kinds) or not {*kinds} <= {"tt.load", "tt.store"}:
            return False  # a load behind a store
        forms = [self.form(o.operands[0]) for o in own]
        extents = self.extents(own[0])
        known = [form for form in forms if form is not None]
        if extents is None or len(known) < len(forms):
            return False
        if any(self.extents(o) != extents or self.within(o) != self.within(own[0]) for o in own):
            return False
        first = known[0]
        firsts = sorted({form.get("", 0) for form in known})
        rest = [{atom: by for atom, by in form.items() if atom} for form in known]
        loads = [form.get("", 0) for form, o in zip(known, own, strict=True) if o.name == "tt.load"]
        apart = {b - a for a, b in itertools.pairwise(firsts)}
        if any(r != rest[0] for r in rest) or len(apart) > 1 or len(set(loads)) < len(loads):
            return False
        wide = {atom for atom, extent in extents.items() if extent > 1}
        masks = [o.operands[1 + (o.name == "tt.store") :][:1] for o in own]
        bounds = [self.bounds(mask[0]) if mask else [] for mask in masks]
        shared = [b for b in bounds[0] if all(b in other for other in bounds)]
        steps = {"part": apart.pop()} if apart else {}
        return wide <= first.keys() and _apart(
            {**rest[0], **steps}, shared, {**extents, "part": len(firsts)}
        )

    def within(self, o: Operation) -> list[Operation]:
        """The loops that an operation is in."""
        return _around(self.facts.function.block, o)

    def extents(self, load: Operation) -> dict[str, int] | None:
        """How many values each part of an address has; nothing, where a loop is not counted."""
        made = {f"program{axis}": extent for axis, extent in enumerate(self.grid)}
        made |= {f"lane{axis}": n for axis, n in enumerate(load.operands[0].type.shape)}
        for loop in _around(self.facts.function.block, load):
            steps = self.steps(loop)
            if steps is None:
                return None
            made[loop.regions[0].arguments[0].name] = steps[1]
        return made

    def steps(self, loop: Operation) -> tuple[Form, int, int] | None:
        """Where a loop begins, how often it runs, and by how much it steps."""
        if loop.name != "scf.for":
            return None
        low, high, step = (self.form(v) for v in loop.operands[:3])
        if low is None or high is None or step is None or not step.keys() <= {""}:
            return None
        span, stride = _sum(high, low, -1), step.get("", 0)
        if not span.keys() <= {""} or stride < 1:
            return None
        return low, max(0, -(-span.get("", 0) // stride)), stride

    def form(self, value: Value) -> Form | None:
        """A value as a sum; nothing, where it is none that is known."""
        if self.facts.is_argument(value):
            if value.type.pointer:
                return {}
            number = self.numbers.get(value.name)
            return None if number is None else {"": number}
        holder = self.facts.makers.get(value)
        if holder is None:
            return self.step(value)
        match holder.name:
            case "arith.constant":
                text = holder.attribute("value")
                return {"": int(text)} if text.lstrip("-").isdigit() else None
            case "tt.get_program_id":
                return {f"program{'xyz'.index(holder.attribute('word'))}": 1}
            case "tt.get_num_programs":
                return {"": self.grid["xyz".index(holder.attribute("word"))]}
            case "tt.make_range":
                return {"lane0": 1, "": int(holder.attribute("start"))}
            case "tt.splat" | "tt.broadcast" | "arith.extsi":
                return self.form(holder.operands[0])
            case "tt.expand_dims" | "tt.trans":
                return _turned(self.form(holder.operands[0]), holder)
            case "arith.addi" | "tt.addptr" | "arith.muli" | "arith.subi":
                return self.joined(holder)
            case "arith.divsi":
                return _quotient(*map(self.form, holder.operands))
        return None

    def step(self, value: Value) -> Form | None:
        """The number of a loop's step."""
        loop = self.facts.around.get(value)
        if loop is None or loop.regions[0].arguments[0] is not value:
            return None
        steps = self.steps(loop)
        return None if steps is None else _sum(steps[0], {value.name: 1}, steps[2])

    def joined(self, o: Operation) -> Form | None:
        a, b = (self.form(v) for v in o.operands)
        if a is None or b is None:
            return None
        if o.name != "arith.muli":
            return _sum(a, b, -1 if o.name == "arith.subi" else 1)
        if not a.keys() <= {""}:
            a, b = b, a
        if not a.keys() <= {""}:
            return None
        return {atom: stride * a.get("", 0) for atom, stride in b.items()}

    def holds(self, mask: Value) -> bool:
        """Whether a mask holds for all lanes of all programs, at each step of loops around it."""
        holder = self.facts.makers.get(mask)
        if holder is None:
            return False
        if holder.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
            return self.holds(holder.operands[0])
        if holder.name == "arith.andi":
            return all(map(self.holds, holder.operands))
        if holder.name != "arith.cmpi" or holder.attribute("word") not in ("slt", "sgt"):
            return False
        bounds = self.bounds(mask)
        if not bounds:
            return False
        (bound,) = bounds
        extents = {f"program{axis}": extent for axis, extent in enumerate(self.grid)}
        extents |= {f"lane{axis}": extent for axis, extent in enumerate(mask.type.shape)}
        if not bound.keys() <= {"", *extents}:
            return False
        reach = (by * (extents[atom] - 1) for atom, by in bound.items() if atom and by > 0)
        return bound.get("", 0) + sum(reach) < 0

    def bounds(self, mask: Value) -> list[Form]:
        """What a mask says: sums that are less than 0."""
        holder = self.facts.makers.get(mask)
        if holder is None:
            return []
        if holder.name in ("tt.splat", "tt.broadcast"):
            return self.bounds(holder.operands[0])
        if holder.name == "tt.expand_dims":
            turned = [_turned(form, holder) for form in self.bounds(holder.operands[0])]
            return [form for form in turned if form is not None]
        if holder.name == "arith.andi":
            return [form for v in holder.operands for form in self.bounds(v)]
        if holder.name == "arith.cmpi" and holder.attribute("word") in ("slt", "sgt"):
            a, b = (self.form(v) for v in holder.operands)
            if a is not None and b is not None:
                less = holder.attribute("word") == "slt"
                return [_sum(a, b, -1) if less else _sum(b, a, -1)]
        return []


def _around(block: Block, wanted: Operation) -> list[Operation]:
    """The loops that an operation is in."""
    for operation in block.operations:
        for region in operation.regions:
            if any(o is wanted for o in region.walk()):
                own = [operation] if operation.name in ("scf.for", "scf.while") else []
                return own + _around(region, wanted)
    return []


def _sum(a: Form, b: Form, by: int) -> Form:
    total = dict(a)
    for atom, stride in b.items():
        total[atom] = total.get(atom, 0) + by * stride
    return {atom: stride for atom, stride in total.items() if stride}


def _quotient(a: Form | None, b: Form | None) -> Form | None:
    """Of numbers that are known and not negative: towards 0 is down then."""
    if a is None or b is None or not {*a, *b} <= {""}:
        return None
    above, below = a.get("", 0), b.get("", 0)
    return {"": above // below} if above >= 0 and below > 0 else None


def _turned(form: Form | None, o: Operation) -> Form | None:
    """The axes of a block under new numbers."""
    if form is None:
        return None
    rank = len(o.operands[0].type.shape)
    if o.name == "tt.trans":
        places = [order_of(o).index(k) for k in range(rank)]
    else:
        places = [k + (k >= int(o.attribute("axis"))) for k in range(rank)]
    names = {f"lane{k}": f"lane{place}" for k, place in enumerate(places)}
    return {names.get(atom, atom): stride for atom, stride in form.items()}


def _apart(form: Form, bounds: list[Form], extents: Mapping[str, int]) -> bool:
    """Whether a sum has no value twice."""
    extents = _within(bounds, extents)
    parts = [(stride, atom) for atom, stride in form.items() if atom and extents[atom] > 1]
    parts.sort(key=lambda part: abs(part[0]))
    reach, below = 0, dict[str, int]()
    for stride, atom in parts:
        if abs(stride) <= reach:
            return False
        reach += abs(stride) * (extents[atom] - 1)
        below[atom] = stride
        for bound in bounds:
            reach = min(reach, _bounded(below, bound, extents, reach))
    return True


def _within(bounds: list[Form], extents: Mapping[str, int]) -> dict[str, int]:
    """How many values are left of what a bound is of alone."""
    made = dict(extents)
    for bound in bounds:
        atom, *more = [atom for atom in bound if atom] or [""]
        if atom in made and not more and bound[atom] > 0:
            least = -(bound.get("", 0) // bound[atom])
            made[atom] = max(1, min(made[atom], least))
    return made


def _bounded(below: Form, bound: Form, extents: Mapping[str, int], reach: int) -> int:
    """What a partial sum reaches where a multiple of a bound's sum is the partial sum."""
    own = {a: s for a, s in bound.items() if a and extents.get(a, 2) > 1}
    if own.keys() != below.keys() or min(below.values()) < 1:
        return reach
    times = {below[atom] // stride for atom, stride in own.items() if stride > 0}
    if len(times) != 1 or (by := times.pop()) < 1:
        return reach
    if {atom: by * stride for atom, stride in own.items()} != below:
        return reach
    return by * (-bound.get("", 0) - 1)
