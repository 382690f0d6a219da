"""Grouping: rules first, then always the join that saves most predicted time.

Everything is a function of the definitions' order, shapes and the target: nothing is summed or
visited in set order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from pullback.config import Cap, Pair, UserRule, frozen
from pullback.cost.facts import is_identity
from pullback.fuse.cost import GroupCost, estimate, scratch_budget
from pullback.fuse.groups import Edge, Group, merge, odd, single, stored, target_place
from pullback.fuse.inline import sums_up
from pullback.fuse.problem import Problem
from pullback.ir.dtype import float32
from pullback.ir.expr import upper
from pullback.ir.graph import Accumulate, Definition
from pullback.ir.target import Target

# Stages of a kernel: schedules are searched over them.
MAX_STAGES: Cap = 32
# Of a value that this many kernels read, no two are tried for it: pairs grow by the square.
COMMON_READERS: Cap = 12


@frozen
class Verdict:
    """Whether two groups join: nanoseconds saved and the joint group, or why not."""

    reason: str
    saved: float = 0.0
    joint: Group | None = None


@dataclass(slots=True)
class Grouping:
    """Groups by their first node's number; `above` and `below` are bit sets of those numbers."""

    problem: Problem
    target: Target
    rules: Sequence[UserRule] = ()
    groups: dict[int, Group] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    above: dict[int, int] = field(default_factory=dict)
    below: dict[int, int] = field(default_factory=dict)
    prices: dict[tuple[object, ...], GroupCost] = field(default_factory=dict)
    priced: dict[Group, GroupCost] = field(default_factory=dict)
    shapes: dict[tuple[object, ...], int] = field(default_factory=dict)
    shape: list[int] = field(default_factory=list)
    refusals: dict[Pair, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.problem
        self.shape = [self._shape(s) for s in range(len(problem.reads))]
        for node in problem.nodes:
            self.groups[node] = single(problem, node)
            self.home[node] = node
            self.below[node] = 0
            mine = 0
            for b in problem.before[node]:
                mine |= self.above[b] | 1 << b
            self.above[node] = mine
        for node in reversed(problem.nodes):
            mine = self.below[node] | 1 << node
            for b in problem.before[node]:
                self.below[b] |= mine

    def _shape(self, stage: int) -> int:
        """A number that equal local structures share: all that a price depends on."""
        problem = self.problem
        definition = problem.definition(stage)
        reads = tuple((problem.sizes[s], bind) for s, bind in problem.reads[stage])
        key = (
            definition.shape,
            definition.extents,
            definition.dtype.itemsize,
            problem.flops[stage],
            problem.products[stage],
            problem.is_map(stage),
            reads,
        )
        return self.shapes.setdefault(key, len(self.shapes))

    def price(self, group: Group) -> GroupCost:
        """The predicted cost of a group, memoised by structure."""
        if group not in self.priced:
            key = self._key(group)
            if key not in self.prices:
                self.prices[key] = estimate(self.problem, group, self.target)
            self.priced[group] = self.prices[key]
        return self.priced[group]

    def _key(self, group: Group) -> tuple[object, ...]:
        number = {s: n for n, s in enumerate(group.stages)}
        outside = set(stored(self.problem, group))
        for source in group.external:
            number.setdefault(source, len(number))
        return tuple(
            (
                self.shape[s],
                s in outside,
                tuple(number[source] for source, _ in self.problem.reads[s]),
                tuple(c[s] for c in group.classes),
            )
            for s in group.stages
        )

    def cyclic(self, i: int, j: int) -> bool:
        """Whether a third group must run between two."""
        return bool(self.below[i] & self.above[j] or self.below[j] & self.above[i])

    def ordered(self, i: int, j: int) -> bool:
        """Whether one of two groups must run before the other."""
        return bool(self.above[i] >> j & 1 or self.above[j] >> i & 1)

    def neighbours(self, i: int) -> list[int]:
        """Groups that share a value with group `i`, in order."""
        problem = self.problem
        near: set[int] = set()
        group = self.groups[i]
        for value in (*group.nodes, *group.external):
            if value in self.home:
                near.add(self.home[value])
            readers = problem.readers.get(value, ())
            if len(readers) < COMMON_READERS:
                near.update(self.home[r] for r in readers)
        return sorted(near - {i})

    def judge(self, i: int, j: int) -> Verdict:
        """Would joining two groups save time?"""
        a = self.groups[i]
        b = self.groups[j]
        if self.cyclic(i, j):
            return Verdict("another kernel must run between them")
        joint, reason = self.join_legally(a, b)
        if joint is None:
            return Verdict(reason)
        if self.cuts(i, j, joint):
            return Verdict("a large product would lose an outer axis")
        pa = self.price(a)
        pb = self.price(b)
        both = self.price(joint)
        budget = scratch_budget(self.problem, joint, self.target)
        if both.scratch > max(budget, pa.scratch, pb.scratch):
            return Verdict(f"scratch of {both.scratch} bytes a tile")
        saved = pa.ns + pb.ns - both.ns
        if round(saved) <= 0:
            return Verdict(f"slower by {-saved / 1e3:.2f} us")
        return Verdict("", saved, joint)

    def able(self, i: int, j: int) -> Group | None:
        """The joint group of two that a rule joins."""
        if i == j or self.cyclic(i, j):
            return None
        joint, _ = self.join_legally(self.groups[i], self.groups[j])
        return None if joint is None or self.cuts(i, j, joint) else joint

    def cuts(self, i: int, j: int, joint: Group) -> bool:
        """Whether a join takes outer axes from a product that needs them."""
        a = self.groups[i]
        b = self.groups[j]
        ordered = self.ordered(i, j)
        return self._cuts(a, b, joint, ordered) or self._cuts(b, a, joint, ordered)

    def _cuts(self, large: Group, other: Group, joint: Group, ordered: bool) -> bool:
        """Whether a product loses outer axes: a huge one, or one that streams an operand, to
        anything; one that takes longer than they do to maps that only read what it reads too.
        """
        problem = self.problem
        if len(joint.classes) >= len(large.classes):
            return False
        products = [p for s in large.stages if (p := problem.products[s])]
        if any(p.whole for p in products):
            return True
        return (
            not ordered
            and bool(products)
            and all(problem.is_map(s) for s in other.stages)
            and self.price(large).ns > self.price(other).ns
        )

    def join_legally(self, a: Group, b: Group) -> tuple[Group | None, str]:
        """The joint group, or why there is none."""
        if a.parts or b.parts:
            return None, "it runs side by side with others"
        if len({*a.stages, *b.stages}) > MAX_STAGES:
            return None, f"more than {MAX_STAGES} stages"
        if refusal := self.held_apart(a, b):
            return None, refusal
        why: list[Edge] = []
        joint = merge(self.problem, a, b, why)
        return joint, "" if joint is not None else self._explain(why)

    def held_apart(self, a: Group, b: Group) -> str:
        """Why a rule of the user's does not let two groups join; empty where none objects."""
        one, other = ([self.problem.definition(s) for s in g.stages] for g in (a, b))
        return next((why for rule in self.rules if (why := rule.apart(one, other))), "")

    def _explain(self, why: list[Edge]) -> str:
        if not why:
            return "no outer axis in common"
        edge = why[-1]
        maker = self.problem.name(edge.maker)
        stage = self.problem.name(edge.stage)
        verb = "overwrites what" if edge.overwrites else "is read by"
        tail = f"{stage} reads" if edge.overwrites else stage
        return f"no outer axis in common: {maker} {verb} {tail} at other coordinates"

    def reasons(self, i: int) -> list[tuple[Group, str]]:
        """Neighbours that stayed apart, and why."""
        refused = []
        for j in self.neighbours(i):
            pair = min(i, j), max(i, j)
            reason = self.refusals.get(pair) or self.judge(*pair).reason
            refused.append((self.groups[j], reason))
        return refused

    def join(self, i: int, j: int, joint: Group) -> None:
        """Replace two groups by their union."""
        both = 1 << i | 1 << j
        self.groups[i] = joint
        del self.groups[j]
        self.home.update(dict.fromkeys(joint.nodes, i))
        self.above[i] = (self.above[i] | self.above.pop(j)) & ~both
        self.below[i] = (self.below[i] | self.below.pop(j)) & ~both
        for table in (self.above, self.below):
            mine = table[i] | 1 << i
            for k, bits in table.items():
                if bits & both:
                    table[k] = bits & ~both | mine


def best_first(grouping: Grouping) -> None:
    """Join the pair that saves most, until none does."""
    version = dict.fromkeys(grouping.groups, 0)
    heap: list[tuple[float, int, int, int, int]] = []
    joints: dict[Pair, Group] = {}

    def push(i: int, j: int) -> None:
        verdict = grouping.judge(i, j)
        grouping.refusals[i, j] = verdict.reason
        if verdict.joint is not None:
            joints[i, j] = verdict.joint
            saved = round(verdict.saved, 3)
            heapq.heappush(heap, (-saved, i, j, version[i], version[j]))

    for i in list(grouping.groups):
        for j in grouping.neighbours(i):
            if i < j:
                push(i, j)
    while heap:
        _, i, j, vi, vj = heapq.heappop(heap)
        if i not in grouping.groups or j not in grouping.groups:
            continue
        if (version[i], version[j]) != (vi, vj) or grouping.cyclic(i, j):
            continue
        grouping.join(i, j, joints[i, j])
        version[i] += 1
        for n in grouping.neighbours(i):
            push(min(i, n), max(i, n))


def too_large(grouping: Grouping) -> list[Definition]:
    """Recomputed values better stored: a tile of their reader alone would not fit with them, or
    only columns of both would do.
    """
    problem = grouping.problem
    target = grouping.target
    better: dict[Definition, None] = {}
    for node in problem.nodes:
        again = problem.closure[node][:-1]
        stages = [s for s in again if not problem.definition(s).unstored]
        if sum(problem.sizes[s] for s in stages) <= target.scratch // 4:
            continue
        group = grouping.groups[node]
        plain = problem.is_map(node) or isinstance(problem.form(node), Accumulate)
        maps = [s for s in stages if problem.is_map(s) and plain]
        large = [s for s in maps if problem.sizes[s] * float32.itemsize > target.scratch]
        narrow = [s for s in large if _by_columns(problem, group, node, s)]
        better.update((problem.definition(s), None) for s in narrow)
        price = grouping.price(group)
        if price.scratch <= scratch_budget(problem, group, target):
            continue
        classes = [group.classes[n] for n in price.outer]
        for stage in stages:
            if not classes or any(c[stage] is None for c in classes):
                better[problem.definition(stage)] = None
    return list(better)


def _by_columns(problem: Problem, group: Group, node: int, stage: int) -> bool:
    """Whether a node and a stage of it share no coordinate but the one that lies along memory."""
    last = len(problem.definition(node).shape) - 1
    shared = [target_place(problem, node, c[node]) for c in group.classes if c[stage] is not None]
    return last > 0 and all(a == last for a in shared)


def apply_rules(grouping: Grouping) -> None:
    """Joins that always pay: update with gradient, row statistic with its row, shared recompute."""
    for node in grouping.problem.nodes:
        for value in list(grouping.groups[grouping.home[node]].external):
            if value in grouping.home and _rule(grouping, node, value):
                _try(grouping, grouping.home[value], grouping.home[node], node, value)
    _join_recomputed(grouping)


def _rule(grouping: Grouping, node: int, value: int) -> bool:
    """Whether `node` belongs to `value` by rule: its update, its sum of squares, or its row."""
    problem = grouping.problem
    if node in problem.target:
        near = [bind for source, bind in problem.reads[node] if source == value]
        still = all(is_identity(bind, problem.values[value].shape) for bind in near)
        return still and problem.sizes[value] == problem.sizes[node]
    if sums_up(problem.scene, problem.definition(node)) is problem.values[value]:
        return True
    reads = [s for stage in problem.closure[node] for s, _ in problem.reads[stage]]
    box = max((problem.sizes[s] for s in reads), default=0)
    by_row = problem.points[node] <= box
    return by_row and problem.sizes[value] < box


def _try(grouping: Grouping, i: int, j: int, node: int, value: int) -> None:
    """Join if legal and the statistic keeps all of its axes."""
    i, j = min(i, j), max(i, j)
    joint = grouping.able(i, j)
    if joint is None or not joint.classes:
        return
    problem = grouping.problem
    by_parts = sums_up(problem.scene, problem.definition(node)) is not None
    if node in problem.target or _covers(problem, joint, value, by_parts):
        grouping.join(i, j, joint)


def _covers(problem: Problem, joint: Group, value: int, partial: bool) -> bool:
    """Whether classes bind every axis of `value`; those with partial sums count if `partial`."""
    able = [c for c in joint.classes if partial or not odd(problem, joint, c)]
    bound = {target_place(problem, value, c[value]) for c in able}
    shape = problem.definition(value).shape
    return bound >= {n for n, e in enumerate(shape) if upper(e) > 1}


def _join_recomputed(grouping: Grouping) -> None:
    """Nodes that recompute one reduction share it, where no outer axis is lost by that."""
    problem = grouping.problem
    users: dict[int, list[int]] = {}
    for node in problem.nodes:
        for stage in problem.closure[node][:-1]:
            if not problem.is_map(stage):
                users.setdefault(stage, []).append(node)
    for nodes in users.values():
        for n, node in enumerate(nodes):
            for other in nodes[:n]:
                _share(grouping, *sorted((grouping.home[node], grouping.home[other])))


def _share(grouping: Grouping, i: int, j: int) -> None:
    """Join two groups if that keeps as many whole outer axes as the poorer one has."""
    joint = grouping.able(i, j)
    if joint is None:
        return
    first, second, kept = (
        sum(not odd(grouping.problem, g, c) for c in g.classes)
        for g in (grouping.groups[i], grouping.groups[j], joint)
    )
    if kept >= min(first, second) and kept > 0:
        grouping.join(i, j, joint)
