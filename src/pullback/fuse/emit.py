"""Groups become kernels: outer axes bound, cross-kernel values given buffers, reads redirected."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from pullback.fuse.groups import FINISH, Class, Group, class_extent, stored
from pullback.fuse.problem import Problem, in_turn
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Definition, Form, Value, Variable, replace_reads, with_places
from pullback.ir.kernel import Kernel, Stage


@dataclass(slots=True)
class Emitter:
    """Builds kernels from groups; `buffers` are the variables that carry values between them."""

    problem: Problem
    buffers: dict[int, Variable] = field(default_factory=dict)
    number: dict[Value, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = {v: n for n, v in enumerate(self.problem.values)}

    def buffer(self, node: int) -> Variable:
        """The assigned variable of a node, or its temporary."""
        if node not in self.buffers:
            made = self.problem.definition(node)
            buffer: Value = Variable(made.name, made.shape, made.dtype, made.origin)
            if node in self.problem.target:
                buffer = self.problem.values[self.problem.target[node]]
            assert isinstance(buffer, Variable)
            self.buffers[node] = buffer
        return self.buffers[node]

    def name(self, group: Group) -> str:
        """The first and last value of a group, for people."""
        first = self.problem.name(group.nodes[0])
        last = self.problem.name(group.nodes[-1])
        return first if len(group.nodes) == 1 else f"{first}..{last}"

    def kernel(self, group: Group, outer: tuple[Class, ...], reasons: tuple[str, ...]) -> Kernel:
        """One launch over the chosen classes."""
        outside = set(stored(self.problem, group))
        local = set(map(self.problem.definition, group.stages))
        stages: list[Stage] = []
        finish: list[Stage] = []
        for s in group.stages:
            last = any(c[s] == FINISH for c in outer)
            axes = tuple(None if last else c[s] for c in outer)
            store = self.buffer(s) if s in outside else None
            stage = Stage(*self.redirected(s, local), axes, store)
            (finish if last else stages).append(stage)
        extents = tuple(class_extent(self.problem, c) for c in outer)
        return Kernel(self.name(group), extents, tuple(stages), tuple(finish), reasons)

    def redirected(self, stage: int, local: Container[Value]) -> tuple[Definition, Form, Expr]:
        """What a stage computes; values made by other kernels are read from their buffers."""
        definition = self.problem.definition(stage)
        form = self.problem.form(stage)
        body = self.problem.scene.bodies[definition]

        def change(take: Take) -> Expr | None:
            stays = isinstance(take.source, Variable) or take.source in local
            return None if stays else take.of(self.buffer(self.number[take.source]))

        return definition, with_places(form, change), replace_reads(body, change)


def launch_order(problem: Problem, groups: list[Group]) -> list[Group]:
    """Every group after those it needs; of those ready, one that frees memory and makes least of
    it meanwhile, else the one that adds least. Ties go to the group made first.
    """
    home = {n: g for g, group in enumerate(groups) for n in group.nodes}
    needs = [
        {home[b] for n in group.nodes for b in problem.before[n]} - {g}
        for g, group in enumerate(groups)
    ]
    memory = _Memory(problem, groups, home)

    def next_of(ready: Sequence[int]) -> int:
        best = min(ready, key=lambda g: (*memory.worth(g), groups[g].nodes[0]))
        memory.launch(best)
        return best

    return [groups[g] for g in in_turn(needs, next_of)]


class _Memory:
    """Temporaries alive while an order is being made, bytes."""

    def __init__(self, problem: Problem, groups: list[Group], home: dict[int, int]) -> None:
        self.size: dict[int, int] = {}
        self.made: list[list[int]] = []
        self.used: list[list[int]] = [[] for _ in groups]
        self.pending: dict[int, int] = {}
        for group in groups:
            mine = [n for n in stored(problem, group) if n not in problem.target]
            self.made.append(mine)
            for n in mine:
                self.size[n] = problem.sizes[n] * problem.definition(n).dtype.itemsize
        for value in self.size:
            every = {home[r] for r in problem.readers.get(value, ())}
            readers = sorted(every - {home[value]})
            self.pending[value] = len(readers)
            for g in readers:
                self.used[g].append(value)

    def worth(self, g: int) -> tuple[bool, int]:
        """Whether launching a group now adds bytes; then how many, else how many it makes."""
        made = sum(self.size[v] for v in self.made[g])
        freed = sum(self.size[v] for v in self.used[g] if self.pending[v] == 1)
        growth = made - freed
        return growth > 0, growth if growth > 0 else made

    def launch(self, g: int) -> None:
        for value in self.used[g]:
            self.pending[value] -= 1
