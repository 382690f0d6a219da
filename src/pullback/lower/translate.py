"""Bodies over axes to expressions over loop variables: reads become loads."""

from __future__ import annotations

from dataclasses import dataclass, field

from pullback.algebra.affine import flat
from pullback.algebra.bounds import Prover
from pullback.algebra.linear import linear
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Size, Take, index, takes
from pullback.ir.graph import Value, Variable
from pullback.ir.nest import Check, Load, Peek, Register
from pullback.ir.node import Node, reach, walk
from pullback.lower.context import Context, Coordinates, Home
from pullback.lower.guards import FALSE, folded
from pullback.simplify.guards import both, conjuncts


@dataclass(slots=True)
class Translator:
    """Translates expressions of one stage (or of stages over one box) at one place of a nest.

    `axes`: the value of each axis. `registers`: values computed earlier in the same iteration.
    """

    context: Context
    axes: Coordinates
    registers: dict[Value, Register] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def __call__(self, root: Expr) -> Expr:
        """`root` over loop variables. Data indices are checked and clamped."""
        root = self.context.draft.native(root)
        checked = any(take.is_data for take in takes(root))
        reached = _reached(root) if checked else {}
        memo: dict[Node, Node] = {}
        for node in walk(root):
            new = node.with_children(tuple(memo[c] for c in node.children))
            if isinstance(node, Take) and isinstance(new, Take):
                memo[node] = self._read(node, new, reached)
            else:
                memo[node] = self._other(new)
        value = memo[root]
        assert isinstance(value, Expr)
        return value

    def _other(self, node: Node) -> Node:
        match node:
            case Axis(number, _):
                return self.axes[number]
            case Size(dim):
                return self.context.sizes[dim]
            case Expr():
                return folded(node)
        return node

    def _read(self, old: Take, new: Take, reached: dict[Node, Expr | None]) -> Expr:
        source = old.source
        if source in self.registers and all(at is self.axes[n] for n, at in enumerate(new.indices)):
            return Peek(self.registers[source], ())
        indices = list(new.indices)
        for place, at in enumerate(old.indices):
            if any(map(E.is_data, walk(at))):
                indices[place] = self._checked(old, place, indices[place], reached)
        if any(E.upper(e) == 0 for e in source.shape):  # its check fails
            return E.const(0, old.dtype)
        home = self._home(source)
        load = Load(home.array, home.offset(tuple(indices)).expr())
        # Partial sums are kept in a wider type than the tensor that they add up to.
        return load if load.dtype == old.dtype else E.Cast(load, old.dtype)

    def _home(self, source: Value) -> Home:
        if isinstance(source, Variable):
            return self.context.memory(source)
        home = self.context.homes.get(source)
        if home is None:
            raise InvalidIR(f"{source} is read before its stage has run")
        return home

    def _checked(
        self,
        take: Take,
        place: int,
        at: Expr,
        reached: dict[Node, Expr | None],
    ) -> Expr:
        """A data index, checked where its branch is taken, and clamped."""
        extent = take.source.shape[place]
        lo, hi = linear(at).range()
        if lo >= 0 and hi < E.lower(extent):
            return at
        limit = self.context.extent(extent)
        tested = at
        condition = reached.get(take)
        guards = () if condition is None else conjuncts(condition)
        if Prover(guards).inside(take.indices[place], extent):
            return clamped(at, limit) if guards else at
        if condition is not None:
            # Conditions hold no data index of their own branch, so they are translated by now
            # or can be translated without further checks.
            tested = E.If(self._condition(condition), at, index(0))
        self.checks.append(Check(tested, limit, self.context.site(take, place)))
        return clamped(at, limit)

    def _condition(self, condition: Expr) -> Expr:
        quiet = Translator(self.context, self.axes, self.registers)
        return quiet(condition)


def clamped(at: Expr, limit: Expr) -> Expr:
    """``min(max(at, 0), limit - 1)``"""
    low = E.maximum(at, index(0))
    return E.minimum(low, linear(E.Add(limit, index(-1))).expr())


def _reached(root: Expr) -> dict[Node, Expr | None]:
    """The condition under which each node of `root` is needed; None is always."""
    order = list(walk(root))
    reached: dict[Node, Expr | None] = {root: None}
    for node in reversed(order):
        here = reached[node]
        for child in node.children:
            need = here
            if isinstance(node, E.If) and child is not node.condition:
                taken = node.condition if child is node.then else E.logical_not(node.condition)
                if node.then is not node.otherwise:
                    need = taken if here is None else both(here, taken)
            if child not in reached:
                reached[child] = need
                continue
            known = reached[child]
            reached[child] = None if known is None or need is None else _either(known, need)
    return reached


def _either(first: Expr, second: Expr) -> Expr | None:
    """``a or a and b -> a, a or (b or a) -> b or a``, ``a or not a`` is always."""
    if first in reach([second], _parts):
        return first
    if second in reach([first], _parts):
        return second
    ways = [set(flat(e, E.Or)) for e in (first, second)]
    if ways[0] <= ways[1]:
        return second
    if ways[1] <= ways[0]:
        return first
    either = ways[0] | ways[1]
    always = any(E.logical_not(w) in either for w in either)
    return None if always else E.Or(first, second)


def _parts(condition: Expr) -> tuple[Expr, ...]:
    """Conditions that hold where `condition` does."""
    if isinstance(condition, E.And):
        return condition.left, condition.right
    if isinstance(condition, E.If) and condition.otherwise is FALSE:
        return condition.condition, condition.then
    return ()
