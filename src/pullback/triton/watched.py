"""Whether a kernel reads what it wrote, or stores a place several times at once, found out by
running it: where `sharing` proves nothing.

Beside an array that is read and written lie three of whole numbers, by element:

    stored           the lane that stored it, and one; 0, where none did
    least, most      the first and the last program that loaded it, stored it or added to it

An element that is loaded finds `stored` at 0, and one that is stored has one program and one lane.
The kernel that is run stores nothing else, and loads what lay there before. Where it finds nothing,
neither does the user's: up to the first element that is read too late both compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pullback.triton.facts import Facts
from pullback.triton.forward import Forward
from pullback.triton.nodes import Operation, Type, Value
from pullback.triton.statements import Do

_TOUCHING = ("tt.load", "tt.store", "tt.atomic_rmw")
NEVER = 2**31 - 1  # of `least`, where no program was


class Watched(Forward):
    """Writes the addresses of a kernel, and what is found out at each of these arguments."""

    def __init__(self, facts: Facts, names: Sequence[str]) -> None:
        super().__init__(facts)
        self.names = {n: place for place, n in enumerate(names)}
        kinds = ("stored", "least", "most")
        self.marks = {n: {kind: self.name(f"{kind}_{n}") for kind in kinds} for n in names}
        self.late = self.name("late")
        self.own, self.wrong = self.name("own"), self.name("wrong")

    @property
    def takes(self) -> list[str]:
        """The names of the arrays beside what the kernel itself takes."""
        return [mark for marks in self.marks.values() for mark in marks.values()] + [self.late]

    def computed(self, o: Operation, tapes: bool) -> None:
        """An operation; of a load and a store what there is to find out."""
        super().computed(o, tapes)
        if o.name not in _TOUCHING:
            return
        name = self.facts.bases[o.operands[0]].name
        if name not in self.names:
            return
        mask = o.operands[1 + (o.name != "tt.load") :][:1]
        if o.name == "tt.load":
            self.seen(name, o.operands[0], mask, "0")
        elif o.name == "tt.store":
            self.written(name, o.operands[0], mask)
        kept = self.kept_lanes(mask)
        for kind, word in (("least", "min"), ("most", "max")):
            at = self.address(o.operands[0], self.marks[name][kind])
            self.lines.append(Do(f"tl.atomic_{word}({at}, program{kept})"))

    def written(self, name: str, pointer: Value, mask: Sequence[Value]) -> None:
        """Each lane says that it stores, and finds whether another one did so too."""
        at = self.address(pointer, self.marks[name]["stored"])
        self.assign(self.own, f"{_lanes(pointer.type)} + 1")
        self.lines.append(Do("tl.debug_barrier()"))
        self.lines.append(Do(f"tl.store({at}, {self.own}{self.kept_lanes(mask)})"))
        self.lines.append(Do("tl.debug_barrier()"))
        self.seen(name, pointer, mask, self.own)

    def seen(self, name: str, pointer: Value, mask: Sequence[Value], wanted: str) -> None:
        """Something is wrong where another lane stored than the one that is wanted."""
        at = self.address(pointer, self.marks[name]["stored"])
        kept = self.kept_lanes(mask)
        other = f", other={wanted}" if mask else ""
        wrong = f"tl.cast(tl.load({at}{kept}{other}) != {wanted}, tl.int32)"
        self.assign(self.wrong, f"tl.max({wrong})" if pointer.type.shape else wrong)
        at = f"{self.late} + {self.names[name]}"
        self.lines.append(Do(f"tl.atomic_max({at}, {self.wrong}, mask={self.wrong} != 0)"))

    def kept_lanes(self, mask: Sequence[Value]) -> str:
        return f", mask={self.mask(mask[0])}" if mask else ""


def _lanes(type: Type) -> str:
    """The number of each lane of a block."""
    if not type.shape:
        return "0"
    return f"tl.reshape(tl.arange(0, {prod(type.shape)}), {type.shape})"
