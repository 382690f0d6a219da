"""Where a value is known: memos that follow blocks, lanes and branches.

A *uniform* scope holds scalars. In a vector loop each vector in flight (a *group*) has a scope of
its own for values that differ between lanes, whose `uniform` is shared. A *branch* scope is one
side of an `If`: there memory is touched only under its mask.
"""

from __future__ import annotations

from collections.abc import Iterable

from pullback.backends.llvm.text import Builder, Counter, Val
from pullback.backends.nests.analysis import NOTHING, Cell, Facts, Varying
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.nest import Var

Key = Expr | tuple[object, ...]


class Lanes:
    """One vector loop in flight: its variable, its lanes, what varies.

    `aligned`: every group begins at a multiple of `count`.
    """

    __slots__ = ("aligned", "count", "var", "varying")

    def __init__(self, var: Var, count: int, varying: Varying, aligned: bool) -> None:
        self.var = var
        self.count = count
        self.varying = varying
        self.aligned = aligned

    def phase(self, e: Expr, facts: Facts) -> int | None:
        """`c` where `e` is ``x // c`` or ``x % c`` and `x` counts up from a multiple of `c`."""
        if not self.aligned or not isinstance(e, E.FloorDiv | E.Mod) or not e.dtype.is_integer:
            return None
        if not isinstance(e.right, E.Const):
            return None
        divisor = int(e.right.value)
        if divisor < 2 or self.count % divisor:
            return None
        form = facts.form(e.left)
        rest = form.without(self.var)
        whole = rest.const % divisor == 0 and all(c % divisor == 0 for _, c in rest.terms)
        same = form.of(self.var) == 1 and not any(map(self.varying.of, rest.atoms))
        return divisor if whole and same else None


class Scope:
    """A memo of expression values; `readers`: those that depend on memory or a register."""

    __slots__ = (
        "branches", "counters", "first", "guarded", "lanes", "mask",
        "memo", "number", "parent", "plain", "readers", "uniform",
    )  # fmt: skip

    def __init__(self, parent: Scope | None = None, uniform: Scope | None = None) -> None:
        self.parent = parent
        self.uniform: Scope = uniform or self
        self.plain: Scope = self
        self.memo: dict[Key, Val] = {}
        self.readers: dict[Cell, list[Key]] = {}
        self.counters: dict[Var, Counter] = {}
        self.branches: dict[tuple[Expr, bool], Scope] = {}
        self.lanes: Lanes | None = parent.lanes if parent else None
        self.number: int = parent.number if parent else 0
        self.first: int = parent.first if parent else 0  # lanes of the groups in front
        self.mask: Val | None = parent.mask if parent else None
        self.guarded: bool = parent.guarded if parent else False

    def find(self, key: Key) -> Val | None:
        """The value, if it is known here."""
        scope: Scope | None = self
        while scope is not None:
            known = scope.memo.get(key)
            if known is not None:
                return known
            scope = scope.parent
        return None

    def counter(self, var: Expr) -> Counter | None:
        """The loop that counts `var`, if one around this scope does."""
        scope: Scope | None = self
        while scope is not None:
            if isinstance(var, Var) and var in scope.counters:
                return scope.counters[var]
            scope = scope.parent
        return None

    def entered(self, number: int) -> Counter | None:
        """The outermost loop around this scope that is entered after so many names were made."""
        first: Counter | None = None
        scope: Scope | None = self.uniform
        while scope is not None:
            for counter in scope.counters.values():
                first = counter if counter.number > number else first
            scope = scope.parent
        return first

    def count(self, var: Var, counter: Counter) -> None:
        """`var` is the loop's counter."""
        self.keep(var, counter.value)
        self.counters[var] = counter

    def keep(self, key: Key, value: Val, reads: frozenset[Cell] = NOTHING) -> Val:
        """Remember `value` until one of `reads` changes."""
        self.memo[key] = value
        for cell in reads:
            self.readers.setdefault(cell, []).append(key)
        return value

    def forget(self, cells: Iterable[Cell]) -> None:
        """Drop what depends on `cells`, here and in the scopes around."""
        changed = list(cells)
        scope: Scope | None = self
        while scope is not None:
            for cell in changed:
                for key in scope.readers.pop(cell, ()):
                    scope.memo.pop(key, None)
            scope.branches.clear()
            scope = scope.parent

    def branch(self, b: Builder, condition: Expr, value: Val, positive: bool) -> Scope:
        """The scope of one side of an `If`."""
        inner = self.branches.get((condition, positive))
        if inner is not None:
            return inner
        own = value if positive else b.negate(value)
        inner = Scope(self, None if self.uniform is self else self.uniform)
        inner.plain = self.plain
        inner.guarded = True
        inner.mask = own if self.mask is None else b.binary("and", self.mask, own)
        self.branches[condition, positive] = inner
        return inner


class Frame:
    """The scopes of a block: the uniform one, and one a group inside a vector loop."""

    __slots__ = ("groups", "tiles", "uniform")

    def __init__(self, uniform: Scope, groups: list[Scope] | None = None) -> None:
        self.uniform = uniform
        self.groups = groups or []
        self.tiles: dict[tuple[object, ...], Frame] = {}

    @property
    def effects(self) -> list[Scope]:
        """The scopes that each run a statement: every group, else the uniform one."""
        return self.groups or [self.uniform]

    def inner(self) -> Frame:
        """The frame of a nested block."""
        uniform = Scope(self.uniform)
        return Frame(uniform, [Scope(g, uniform) for g in self.groups])

    def forget(self, cells: Iterable[Cell]) -> None:
        """Values that depend on `cells` are no longer known."""
        changed = list(cells)
        self.uniform.forget(changed)
        for scope in self.groups:
            scope.forget(changed)
        for tile in self.tiles.values():
            tile.forget(changed)
