"""Blocks that jump to one another, where a kernel returns early, as branches inside of branches.

    if c: return        ->      if c: ..
    rest                        else: rest

What several jumps lead to is written for each of them, under new names.
"""

from __future__ import annotations

from collections.abc import Mapping

from pullback.triton.nodes import Block, Operation, Value

JUMPS = ("cf.br", "cf.cond_br")


def structured(blocks: Mapping[str, Block]) -> Block:
    """The blocks of a function as one; the first is where it begins."""
    first = next(iter(blocks.values()))
    return Block(first.arguments, _Paths(blocks).after(first, {}))


class _Paths:
    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = blocks
        walk = [o for block in blocks.values() for o in block.walk()]
        inner = [v for o in walk for r in o.regions for v in r.arguments]
        values = [v for b in blocks.values() for v in b.arguments]
        self.taken = {v.name for v in (*values, *inner)} | {v.name for o in walk for v in o.results}
        self.visited: set[int] = set()

    def after(self, block: Block, known: Mapping[Value, Value]) -> tuple[Operation, ...]:
        """A block's operations and all that follow. `known` are values by what they stand for."""
        again = id(block) in self.visited
        self.visited.add(id(block))
        known = dict(known)
        made: list[Operation] = []
        for operation in block.operations:
            if operation.name in JUMPS:
                made.extend(self.jump(operation, known))
            else:
                made.append(self.copied(operation, known, again))
        return tuple(made)

    def jump(self, o: Operation, known: dict[Value, Value]) -> tuple[Operation, ...]:
        operands = [known.get(v, v) for v in o.operands]
        condition = operands[: o.name == "cf.cond_br"]
        given = operands[len(condition) :]
        ways = []
        for target in o.attribute("targets").split(","):
            block = self.blocks[target]
            count = len(block.arguments)
            passed = dict(zip(block.arguments, given[:count], strict=True))
            given = given[count:]
            ways.append(self.after(block, known | passed))
        if not condition:
            return ways[0]
        regions = tuple(Block((), operations) for operations in ways)
        return (Operation("scf.if", tuple(condition), (), (), regions, o.place),)

    def copied(self, o: Operation, known: dict[Value, Value], again: bool) -> Operation:
        operands = tuple(known.get(v, v) for v in o.operands)
        results = self.values(o.results, known, again)
        regions = tuple(
            Block(
                self.values(r.arguments, known, again),
                tuple(self.copied(q, known, again) for q in r.operations),
            )
            for r in o.regions
        )
        return Operation(o.name, operands, results, o.attributes, regions, o.place)

    def values(
        self, own: tuple[Value, ...], known: dict[Value, Value], again: bool
    ) -> tuple[Value, ...]:
        """The values that a copy defines: the same ones, where it is the first."""
        for value in own if again else ():
            known[value] = Value(self.name(value.name), value.type)
        return tuple(known.get(v, v) for v in own) if again else own

    def name(self, stem: str) -> str:
        unique, count = stem, 0
        while unique in self.taken:
            count += 1
            unique = f"{stem}_{count}"
        self.taken.add(unique)
        return unique
