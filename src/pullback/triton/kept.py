"""What a kernel stored is loaded again, where that is cheaper than to compute it again.

    y = exp(x)        d_x = d_y * y        by the y that is there, and not by x

An output is kept for its derivative anyway. Its elements are what was computed, where each place is
stored once and as what it was; a lane that a mask leaves out holds 1 in its place, and may do so
where the value leads to stores with this mask alone: then its derivative is 0 there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from pullback.triton.facts import STAY, Facts
from pullback.triton.nodes import Block, Function, Operation, Value
from pullback.triton.statements import Assign, Either, Repeat, Statement
from pullback.triton.words import DERIVATIVES, literal, named

# A byte of memory takes as long as so many operations: 67 Tflop/s of float32 beside 3.35 TB/s.
# Source: NVIDIA, H100 Tensor Core GPU data sheet (SXM).
OPERATIONS_PER_BYTE = 20
_WRITTEN_IN_PLACE = ("arith.constant", "tt.splat", "tt.broadcast", "tt.load")


def stores(facts: Facts, once: frozenset[str], whole: frozenset[str]) -> list[Operation]:
    """The stores whose values may be loaded again.

    Each place of the arrays `once` is stored once; of those of `whole` no lane is left out.
    """
    made = []
    for o in facts.function.block.walk():
        if o.name != "tt.store" or facts.bases[o.operands[0]].name not in once:
            continue
        pointer, value, *mask = o.operands
        holder = facts.makers.get(value)
        if holder is None or holder.name in _WRITTEN_IN_PLACE or not value.type.is_float:
            continue
        complete = not mask or facts.bases[pointer].name in whole
        complete = complete or (_of_lanes(facts, holder, value) and _alone(facts, o))
        complete = complete or beyond(facts, o) is not None
        if complete and pointer.type.element == value.type.element:
            made.append(o)
    return made


def _of_lanes(facts: Facts, holder: Operation, value: Value) -> bool:
    """Whether what a value gives to the derivatives of others is of no other lane of it."""
    if holder.name != "scf.for":
        return named(holder) in DERIVATIVES or holder.name == "tt.dot"
    body, place = holder.regions[0], holder.results.index(value)
    end, carried = body.yields[place], body.arguments[1 + place]
    adds = facts.makers.get(end)
    adds_up = adds is not None and adds.name in ("tt.dot", "arith.addf")
    uses = [o for o in body.walk() if end in o.operands or carried in o.operands]
    return adds_up and all(o is adds or o is body.operations[-1] for o in uses)


def _alone(facts: Facts, store: Operation) -> bool:
    """Whether a value leads to stores with its mask alone, lane by lane, and by what is finite.

    Where the mask leaves a lane out, 1 stands for it: what may be infinite there is computed.
    """
    lanes: dict[Value, float | None] = {store.operands[1]: 1.0}
    for o in facts.function.block.walk():
        own = [v for v in o.operands if v in lanes]
        if not own or (o.name == "tt.store" and o.operands[1:] == (*own, *store.operands[2:])):
            continue
        numbers = [lanes[v] if v in lanes else _number(facts, v) for v in o.operands]
        made = _made(o.name, numbers)
        if made is None and o.name not in _FINITE:
            return False
        lanes[o.results[0]] = made
    return True


def _number(facts: Facts, value: Value) -> float | None:
    """A value that is written as a number."""
    holder = facts.makers.get(facts.bare(value))
    if holder is None or holder.name != "arith.constant" or not value.type.is_float:
        return None
    text = literal(holder.attribute("value"), holder.results[0].type)
    return float(text.removeprefix('float("').removesuffix('")'))


def _made(name: str, numbers: Sequence[float | None]) -> float | None:
    """What an operation gives, where that is a number; at a pole it is none."""
    known = [number for number in numbers if number is not None]
    if name not in _VALUES or len(known) < len(numbers):
        return None
    try:
        made = _VALUES[name](*known)
    except (ArithmeticError, ValueError):
        return None
    return made if math.isfinite(made) else None


_VALUES: Mapping[str, Callable[..., float]] = {
    "arith.addf": operator.add,
    "arith.subf": operator.sub,
    "arith.mulf": operator.mul,
    "arith.divf": operator.truediv,
    "tt.precise_divf": operator.truediv,
    "arith.negf": operator.neg,
    "math.exp": math.exp,
    "math.exp2": lambda a: 2.0**a,
    "math.log": math.log,
    "math.log2": math.log2,
    "math.rsqrt": lambda a: 1.0 / math.sqrt(a),
}
# Finite at any number, and so are their derivatives.
_FINITE = ("arith.addf", "arith.subf", "arith.mulf", "arith.negf", "arith.cmpf", "arith.select",
           "arith.maxnumf", "arith.minnumf", "arith.extf", "arith.truncf", "math.erf", "math.absf",
           "math.fma", "math.sin", "math.cos", "math.floor", "math.ceil", "tt.clampf")  # fmt: skip


def beyond(facts: Facts, store: Operation) -> float | None:
    """What a stored value is in lanes that the mask leaves out, where a load says it for all."""
    _, value, *mask = store.operands
    made = _beyond(facts, value, mask[0]) if mask else None
    return None if made is None or made != made else made


def _beyond(facts: Facts, value: Value, mask: Value) -> float | None:
    holder = facts.makers.get(value)
    if holder is None or not value.type.is_float:
        return None
    if holder.name == "arith.constant":
        return _number(facts, value)
    if holder.name == "tt.load":
        own = len(holder.operands) > 2 and holder.operands[1] == mask
        return _beyond(facts, holder.operands[2], mask) if own else None
    if holder.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        return _number(facts, value)
    rule = _BEYOND.get(holder.name)
    return rule(*(_beyond(facts, v, mask) for v in holder.operands)) if rule else None


def _sum(a: float | None, b: float | None) -> float | None:
    """What is infinite stays so, whatever is added."""
    if a is not None and b is not None:
        return a + b
    return next((k for k in (a, b) if k is not None and math.isinf(k)), None)


def _negative(a: float | None) -> float | None:
    return None if a is None else -a


_BEYOND: Mapping[str, Callable[..., float | None]] = {
    "arith.extf": lambda a: a,
    "arith.negf": _negative,
    "arith.addf": _sum,
    "arith.subf": lambda a, b: _sum(a, _negative(b)),
    "arith.mulf": lambda a, b: 0.0 if 0.0 in (a, b) else None,
    "arith.divf": lambda a, b: 0.0 if a == 0 and b != 0 else None,
    "math.exp": lambda a: 0.0 if a == -math.inf else 1.0 if a == 0 else None,
    "math.exp2": lambda a: 0.0 if a == -math.inf else 1.0 if a == 0 else None,
}


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
        width = value.type.width
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
