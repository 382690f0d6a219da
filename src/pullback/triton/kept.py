"""What a kernel stored is loaded again, where that is cheaper than to compute it again.

    y = exp(x)        d_x = d_y * y        by the y that is there, and not by x

An output is kept for its derivative anyway. Its elements are what was computed, where each place is
stored once and as what it was; a lane that a mask leaves out holds 1 in its place, and may do so
where the value is stored and no more: then its derivative is 0 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pullback.triton.facts import STAY, Facts
from pullback.triton.nodes import Block, Function, Operation, Value
from pullback.triton.statements import Assign, Either, Repeat, Statement
from pullback.triton.words import DERIVATIVES, named

# A byte of memory takes as long as so many operations: 67 Tflop/s of float32 beside 3.35 TB/s.
# Source: NVIDIA, H100 Tensor Core GPU data sheet (SXM).
OPERATIONS_PER_BYTE = 20
_WRITTEN_IN_PLACE = ("arith.constant", "tt.splat", "tt.broadcast", "tt.load")


def stores(facts: Facts, once: frozenset[str], whole: frozenset[str]) -> list[Operation]:
    """The stores whose values may be loaded again.

    Each place of the arrays `once` is stored once; of those of `whole` no lane is left out.
    """
    uses: dict[Value, int] = {}
    walk = list(facts.function.block.walk())
    for o in walk:
        for value in o.operands:
            uses[value] = uses.get(value, 0) + 1
    made = []
    for o in walk:
        if o.name != "tt.store" or facts.bases[o.operands[0]].name not in once:
            continue
        pointer, value, *mask = o.operands
        holder = facts.makers.get(value)
        if holder is None or holder.name in _WRITTEN_IN_PLACE or not value.type.is_float:
            continue
        alone = uses[value] == 1 and named(holder) in DERIVATIVES
        complete = not mask or alone or facts.bases[pointer].name in whole
        if complete and pointer.type.element == value.type.element:
            made.append(o)
    return made


def fronted(function: Function, store: Operation) -> Function | None:
    """The kernel, where the address of a store stands before the value; nothing, if it cannot."""
    block = _fronted(function.block, store)
    return None if block is None else Function(function.name, block)


def _fronted(block: Block, store: Operation) -> Block | None:
    if store in block.operations:
        return _first(block, store)
    for place, o in enumerate(block.operations):
        for k, region in enumerate(o.regions):
            inner = _fronted(region, store)
            if inner is not None:
                regions = (*o.regions[:k], inner, *o.regions[k + 1 :])
                made = Operation(o.name, o.operands, o.results, o.attributes, regions, o.place)
                own = block.operations
                return Block(block.arguments, (*own[:place], made, *own[place + 1 :]))
    return None


def _first(block: Block, store: Operation) -> Block | None:
    makers = {v: o for o in block.operations for v in o.results}
    pointer, value, *mask = store.operands
    if value not in makers:
        return None
    before: set[int] = set()
    todo = [pointer, *mask]
    while todo:
        holder = makers.get(todo.pop())
        if holder is None or id(holder) in before:
            continue
        if value in holder.results or holder.regions or holder.name in STAY:
            return None
        before.add(id(holder))
        todo.extend(holder.operands)
    first = [o for o in block.operations if id(o) in before]
    rest = [o for o in block.operations if id(o) not in before]
    return Block(block.arguments, (*first, *rest))


def price(statements: tuple[Statement, ...], facts: Facts) -> int:
    """What it costs to compute a kernel's values again, in operations of a program."""
    makers = {v.name: (o, v) for v, o in facts.makers.items()}
    return sum(_price(makers[s.name], s.text) for s in _assigned(statements) if s.name in makers)


def _price(made: tuple[Operation, Value], text: str) -> int:
    holder, value = made
    if text.startswith("tl.load("):
        width = int(value.type.element.removeprefix("bf").lstrip("if") or 64)
        return value.type.size * -(-width // 8) * OPERATIONS_PER_BYTE
    if not value.type.is_float:
        return 0
    return max(v.type.size for v in (value, *holder.operands))


def _assigned(statements: tuple[Statement, ...]) -> Iterator[Assign]:
    for statement in statements:
        match statement:
            case Assign():
                yield statement
            case Repeat(_, body):
                yield from _assigned(body)
            case Either(_, first, other):
                yield from _assigned(first)
                yield from _assigned(other)


Kept = Mapping[Value, Operation]
