"""Blocks by descriptors, as blocks by pointers: the same elements, 0 beyond the ends.

block[i, j] = base[(x + i) * stride_0 + (y + j) * stride_1]     where 0 <= x + i < extent_0, ..
"""

from __future__ import annotations

from pullback.triton.facts import refused
from pullback.triton.nodes import Block, Function, Operation, Place, Type, Value

DESCRIPTOR = "!tt.tensordesc<"
_LOADS = ("tt.descriptor_load", "tt.descriptor_gather")
_STORES = ("tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce")
_NAN = "2"  # what `padding` is of a descriptor beyond whose ends there is no number


def by_pointers(function: Function) -> Function:
    """The kernel without descriptors.

    Each that a kernel takes becomes a pointer of its name, `NAME_shape_0`, .., `NAME_stride_0`, ..
    """
    if any("tensordesc" in v.type.element for v in function.block.arguments) or any(
        o.name == "tt.make_tensor_descriptor" for o in function.block.walk()
    ):
        return _Pointers(function).function
    return function


def parameters(name: str, rank: int) -> list[str]:
    """What stands for a descriptor among the arguments of a kernel, beside the pointer."""
    return [f"{name}_{what}_{axis}" for what in ("shape", "stride") for axis in range(rank)]


class _Pointers:
    """`parts` are the pointer, the extents and the strides by descriptor."""

    def __init__(self, function: Function) -> None:
        block = function.block
        walk = list(block.walk())
        inner = [v for o in walk for r in o.regions for v in r.arguments]
        values = [*block.arguments, *inner, *(v for o in walk for v in o.results)]
        self.taken = {v.name for v in values}
        self.parts: dict[Value, tuple[Value, ...]] = {}
        self.padded: set[Value] = set()
        self.made: list[Operation] = []
        self.place = Place()
        arguments = tuple(a for v in block.arguments for a in self.argument(v))
        self.function = Function(function.name, self.block(Block(arguments, block.operations)))

    def argument(self, value: Value) -> tuple[Value, ...]:
        if "tensordesc" not in value.type.element:
            return (value,)
        *shape, element = value.type.element.removeprefix(DESCRIPTOR).rstrip(">").split("x")
        names = parameters(value.name, len(shape))
        kinds = ["i32"] * len(shape) + ["i64"] * len(shape)
        more = [Value(n, Type((), k)) for n, k in zip(names, kinds, strict=True)]
        self.parts[value] = (Value(value.name, Type((), element, True)), *more)
        return self.parts[value]

    def block(self, block: Block) -> Block:
        outer, self.made = self.made, []
        for o in block.operations:
            regions = tuple(map(self.block, o.regions))
            self.operation(Operation(o.name, o.operands, o.results, o.attributes, regions, o.place))
        made, self.made = self.made, outer
        return Block(block.arguments, tuple(made))

    def operation(self, o: Operation) -> None:
        self.place = o.place
        if o.name == "tt.make_tensor_descriptor":
            self.parts[o.results[0]] = o.operands
            if o.attribute("padding", "1") == _NAN:
                self.padded.add(o.results[0])
        elif o.name in _LOADS:
            self.load(o)
        elif o.name in _STORES:
            self.store(o)
        elif any(v in self.parts and not v.type.pointer for v in o.operands):
            raise refused(o, "a descriptor that is chosen or carried")
        else:
            self.made.append(o)

    def load(self, o: Operation) -> None:
        pointer, mask, type = self.elements(o, o.operands[0], o.operands[1:], o.results[0].type)
        beyond = "0x7FC00000" if type.element == "f32" else "0x7FF8000000000000"
        text = beyond if o.operands[0] in self.padded else "0.0" if type.is_float else "0"
        if o.operands[0] in self.padded and type.element not in ("f32", "f64"):
            raise refused(o, "no number beyond the ends of a descriptor of half floats")
        other = self.emit("arith.constant", (), type, (("value", text),))
        self.made.append(Operation("tt.load", (pointer, mask, other), o.results, (), (), o.place))

    def store(self, o: Operation) -> None:
        value, *places = o.operands[-1], *o.operands[1:-1]
        pointer, mask, _ = self.elements(o, o.operands[0], tuple(places), value.type)
        operands = (pointer, value, mask)
        if o.name != "tt.descriptor_reduce":
            self.made.append(Operation("tt.store", operands, (), (), (), o.place))
            return
        word = o.attribute("word")
        word = f"f{word}" if word == "add" and value.type.is_float else word
        name = self.fresh("reduced")
        self.made.append(
            Operation(
                "tt.atomic_rmw",
                operands,
                (Value(name, value.type),),
                (("word", word),),
                (),
                o.place,
            )
        )

    def elements(
        self, o: Operation, descriptor: Value, places: tuple[Value, ...], type: Type
    ) -> tuple[Value, Value, Type]:
        """The pointers to a block's elements, and which of them are inside."""
        if descriptor not in self.parts:
            raise refused(o, "a descriptor that is chosen or carried")
        base, *rest = self.parts[descriptor]
        rank = len(type.shape)
        if len(rest) != 2 * rank:
            raise refused(o, "a block of fewer axes than its descriptor")
        offset = mask = None
        for axis, (place, extent, stride) in enumerate(
            zip(places, rest[:rank], rest[rank:], strict=True)
        ):
            at = self.along(place, axis, type.shape)
            inside = self.inside(at, extent, type.shape)
            wide = self.emit("arith.extsi", (at,), Type(at.type.shape, "i64"))
            steps = self.repeated(stride, at.type.shape)
            part = self.emit("arith.muli", (wide, steps), wide.type)
            part = self.emit("tt.broadcast", (part,), Type(type.shape, "i64"))
            offset = part if offset is None else self.emit("arith.addi", (offset, part), part.type)
            mask = inside if mask is None else self.emit("arith.andi", (mask, inside), inside.type)
        assert offset is not None and mask is not None, "a descriptor has axes"
        pointers = self.repeated(base, type.shape)
        return self.emit("tt.addptr", (pointers, offset), pointers.type), mask, type

    def along(self, place: Value, axis: int, shape: tuple[int, ...]) -> Value:
        """The places of a block's elements along one axis; of the others it has one."""
        extent = shape[axis]
        if not place.type.shape:
            pairs = (("start", "0"), ("end", str(extent)))
            lanes = self.emit("tt.make_range", (), Type((extent,), "i32"), pairs)
            place = self.emit("arith.addi", (self.repeated(place, (extent,)), lanes), lanes.type)
        for k in range(len(shape)):
            if k != axis:
                own = place.type.shape
                type = Type((*own[:k], 1, *own[k:]), place.type.element)
                place = self.emit("tt.expand_dims", (place,), type, (("axis", str(k)),))
        return place

    def inside(self, at: Value, extent: Value, shape: tuple[int, ...]) -> Value:
        zero = self.emit("arith.constant", (), at.type, (("value", "0"),))
        kind = Type(at.type.shape, "i1")
        ends = self.repeated(extent, at.type.shape)
        low = self.emit("arith.cmpi", (at, zero), kind, (("word", "sge"),))
        high = self.emit("arith.cmpi", (at, ends), kind, (("word", "slt"),))
        both = self.emit("arith.andi", (high, low), kind)
        return self.emit("tt.broadcast", (both,), Type(shape, "i1"))

    def repeated(self, value: Value, shape: tuple[int, ...]) -> Value:
        type = Type(shape, value.type.element, value.type.pointer)
        return self.emit("tt.splat", (value,), type)

    def emit(
        self,
        name: str,
        operands: tuple[Value, ...],
        type: Type,
        attributes: tuple[tuple[str, str], ...] = (),
    ) -> Value:
        result = Value(self.fresh(operands[0].name if operands else "block"), type)
        self.made.append(Operation(name, operands, (result,), attributes, (), self.place))
        return result

    def fresh(self, stem: str) -> str:
        stem = stem.rstrip("_0123456789") or "v"
        unique, count = stem, 0
        while unique in self.taken:
            count += 1
            unique = f"{stem}_{count}"
        self.taken.add(unique)
        return unique
