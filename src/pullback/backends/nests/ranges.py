"""Loops between bounds that are data: of a loop under a guard runs what the guard leaves.

    for p in 0..n: y[i] sum= if(a <= p < b, f(p), 0)
    -> lo = max(0, a); hi = min(n, b); s = y[i]; for p in lo..hi: s sum= f(p); y[i] = s

Where nothing else happens in the loop: what is left out adds the identity, and checks a number that
is in bounds. The order of what is added stays. Bounds read memory that the routine does not write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pullback.algebra.bounds import Intervals
from pullback.algebra.linear import Linear, linear
from pullback.backends.nests.steady import steadied
from pullback.backends.nests.touched import arrays, loaded, scattered, written_by
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int32, int64, uint32
from pullback.ir.expr import Expr, evaluated, index
from pullback.ir.graph import ALL, MAX
from pullback.ir.kernel import Kernel
from pullback.ir.nest import (
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Mark,
    Peek,
    Prefetch,
    Register,
    Routine,
    Set,
    Stmt,
    Stmts,
    Store,
    StoreCombine,
    Var,
)
from pullback.ir.node import Node, reach, rebuild, walk
from pullback.ir.statements import roots, statements, with_roots
from pullback.lower.kernel import lower
from pullback.schedule.schedule import Schedule
from pullback.simplify.guards import conjuncts


def lowered(kernel: Kernel, schedule: Schedule, marks: bool = False) -> Routine:
    """The nest of a kernel, its loops between the bounds that guards over data leave."""
    return steadied(ranged(lower(kernel, schedule, marks=marks)))


def ranged(routine: Routine) -> Routine:
    """`routine` with its loops between the bounds that guards over data leave."""
    own = list(statements([*routine.body, *routine.finish]))
    if not any(isinstance(s, StoreCombine) for s in own):
        return routine
    ranges = _Ranges(own)
    if routine.tasks == 1:
        return replace(routine, body=tuple(j for i in routine.body for j in ranges.either(i)))
    return replace(routine, body=tuple(ranges.block(routine.body, {})))


# Measured beside SciPy on an EPYC with AVX-512, 1 to 400 values a row, 1 to 64 columns.
WAITING = 64  # sums of a row that wait in registers
# A row's terms at a time, those beyond its end left out by lanes: how often a loop turns is then
# guessed right for most rows of some ten values. On Zen 3, 2,000^2, us of the loops alone:
#   values a row          3    10    20   100
#   one by one           20    29    55   222
#   8                     9    29    40   112
#   16                   14    25    42   110
CHUNK = 8
BLOCK = 4096  # terms whose checks are made before: their indices lie in the nearest cache
Values = dict[Node, Node]  # what a register that is never set holds
Passed = dict[Check, tuple[For, Expr, Expr]]  # checks; of which loops, their first and last turn


@dataclass(frozen=True)
class _Bounds:
    """``lo <= var < hi`` is what a guard asks, beside the loop's own bounds."""

    guard: Expr
    lo: list[Expr]
    hi: list[Expr]


class _Ranges:
    """What a routine writes, and names for new registers."""

    def __init__(self, own: Sequence[Stmt]) -> None:
        self.written = written_by(own)
        self.changed: set[Register] = set()
        for s in own:
            if isinstance(s, Set | Combine):
                self.changed.add(s.register)
        self.count = 0
        # Checks that were made before.
        self.passed: Passed | None = None
        self.most = Register("most", int64)  # up to where

    def register(self, name: str, like: Expr) -> Register:
        self.count += 1
        return Register(f"{name}_{self.count}", like.dtype)

    def block(self, body: Iterable[Stmt], known: Values) -> Stmts:
        """Statements in order, each told what the registers before it hold."""
        known, made = dict(known), list[Stmt]()
        for s in body:
            if isinstance(s, For):
                made += self.loop(s, known)
            elif isinstance(s, Guard):
                made.append(replace(s, body=tuple(self.block(s.body, known))))
            else:
                made.append(s)
                self.remember(s, known)
        return made

    def either(self, s: Stmt) -> Stmts:
        """Where all checks of a loop are passed, which is looked at first, a loop without them;
        block by block, where it is one over rows.
        """
        slow = self.block([s], {})
        self.passed, self.most = {}, self.register("most", index(0))
        quick = self.block([s], {})
        passed, self.passed = self.passed, None
        if not passed:
            return slow
        rows = _rows(s, quick, slow, passed.values())
        if rows is not None:
            return [self.blocks(*rows, passed)]
        ends = [loop.hi for loop, _, _ in passed.values()]
        most = Declare(self.most, functools.reduce(E.minimum, ends))
        looks, good = self.looks(passed, None)
        return [most, *looks, Guard(good, tuple(quick)), Guard(E.logical_not(good), tuple(slow))]

    def blocks(self, s: For, quick: For, slow: For, passed: Passed) -> For:
        """Rows in blocks whose terms a cache holds, as all rows of one lie between its ends."""
        inner, first, last = next(iter(passed.values()))
        size = max(1, BLOCK * _literal(s.hi) // max(1, inner.var.hi))
        block = Var(f"{s.var.name}_block", 0, -(-_literal(s.hi) // size) - 1)
        begin = E.Mul(block, index(size))
        end = E.minimum(s.hi, E.Add(begin, index(size)))
        low, high = self.register("low", index(0)), self.register("high", index(0))
        rising = self.register("rising", E.const(True, bool_))
        outside = E.Or(E.Less(first, Peek(low, ())), E.Less(Peek(high, ()), last))
        look = Combine(rising, (), ALL, E.logical_not(outside))
        most = E.minimum(inner.hi, E.Add(Peek(high, ()), index(CHUNK - 1)))
        looks, good = self.looks(passed, (Peek(low, ()), Peek(self.most, ())))
        good = E.And(Peek(rising, ()), good)
        body = (
            Declare(low, spelled(first, {s.var: begin})),
            Declare(high, spelled(last, {s.var: E.subtract(end, index(1))})),
            Declare(self.most, most),
            Declare(rising, E.const(True, bool_)),
            For(s.var, begin, end, (look,), LoopKind.VECTOR, unroll=2),
            *looks,
            Guard(good, (replace(quick, lo=begin, hi=end),)),
            Guard(E.logical_not(good), (replace(slow, lo=begin, hi=end),)),
        )
        return For(block, index(0), index(block.hi + 1), body)

    def looks(self, passed: Passed, ends: tuple[Expr, Expr] | None) -> tuple[Stmts, Expr]:
        """A look at each index, of whole loops or between `ends`; whether all are passed."""
        made: Stmts = []
        good: Expr | None = None
        for check, (loop, _, _) in passed.items():
            joined, inside = self.looked(check)
            register, combiner = joined.register, joined.combiner
            made.append(Declare(register, combiner.identity(register.dtype)))
            lo, hi = ends or (loop.lo, loop.hi)
            made.append(For(loop.var, lo, hi, (joined,), LoopKind.VECTOR, unroll=4))
            good = inside if good is None else E.And(good, inside)
        assert good is not None
        return made, good

    def looked(self, c: Check) -> tuple[Combine, Expr]:
        """What a look at an index adds to a register, and what that then says of all of them."""
        narrow = c.index.value if isinstance(c.index, E.Cast) else None
        if narrow is not None and narrow.dtype is int32 and _literal(c.extent) <= uint32.range()[1]:
            most = self.register("most", E.const(0, uint32))
            joined = Combine(most, (), MAX, E.Cast(narrow, uint32))
            return joined, E.Less(Peek(most, ()), E.const(_literal(c.extent), uint32))
        whole = self.register("passed", E.const(True, bool_))
        inside = E.And(E.logical_not(E.Less(c.index, index(0))), E.Less(c.index, c.extent))
        return Combine(whole, (), ALL, inside), Peek(whole, ())

    def unchecked(
        self, s: For, ends: tuple[Expr, Expr], body: Stmts, known: Values
    ) -> tuple[Stmts, list[Check]]:
        """`body` without the checks that may be made before all loops, and these."""
        if self.passed is None:
            return body, []
        moved: list[Check] = []
        for c in statements(body):
            if isinstance(c, Check) and isinstance(c.extent, E.Const):
                own = replace(c, index=spelled(c.index, known))
                leaves = {n for n in walk(own.index) if isinstance(n, Var | Peek)}
                if leaves == {s.var} and not arrays(own.index) & self.written:
                    moved.append(own)
        self.passed.update(dict.fromkeys(moved, (s, *ends)))
        return _without(body, moved, known), moved

    def remember(self, s: Stmt, known: Values, written: set[Array] | None = None) -> None:
        """What a register holds, as long as nothing is `written` that it was loaded from."""
        if isinstance(s, Declare) and not s.register.shape and s.register not in self.changed:
            value = spelled(s.init, known)
            if not arrays(value) & (self.written if written is None else written):
                known[Peek(s.register, ())] = value

    def loop(self, s: For, known: Values) -> Stmts:
        """A loop between bounds, or as it was; lanes have no loops of lengths of their own."""
        if s.kind is not LoopKind.SEQ:
            return self.branched(s, known)
        inside, written = dict(known), written_by(s.body)
        for inner in statements(s.body):
            self.remember(inner, inside, written)
        bounds = self.bounds(s, inside) if s.step == 1 else None
        if bounds is None:
            return [replace(s, body=tuple(self.block(s.body, known)))]
        body = pruned([_under(inner, bounds.guard, inside) for inner in s.body])
        first, last = s.lo, s.hi
        for e in bounds.lo:
            first = E.maximum(first, e)
        for e in bounds.hi:
            last = E.minimum(last, e)
        free, checks = self.unchecked(s, (first, last), body, inside)
        body = _cheap(free)
        within = dict(known)
        for inner in statements(body):
            self.remember(inner, within, written)
        lo, hi = self.register("from", s.lo), self.register("to", s.hi)
        ends = Peek(lo, ()), Peek(hi, ())
        loop = replace(s, lo=ends[0], hi=ends[1], body=tuple(body))
        return [Declare(lo, first), Declare(hi, last), *self.kept(loop, within, checks)]

    def branched(self, s: For, known: Values) -> Stmts:
        """Lanes that all add something, or all nothing, under a branch."""
        one = s.body[0] if len(s.body) == 1 else None
        if not isinstance(one, StoreCombine) or not isinstance(one.value, E.If):
            return [s]
        choice = one.value
        nothing = one.combiner.identity(choice.dtype)
        if choice.otherwise is not nothing or not self.steady(choice.condition, s):
            return [s]
        before, loop = self.hoisted(replace(s, body=(replace(one, value=choice.then),)), known)
        return [Guard(choice.condition, (*before, loop))]

    def bounds(self, s: For, known: Values) -> _Bounds | None:
        """The guard under which alone a loop does anything, as bounds of its variable."""
        guard = next(filter(None, (_guard(inner, known) for inner in statements(s.body))), None)
        entered = isinstance(s.lo, E.Const) and isinstance(s.hi, E.Const | Var)
        if guard is None or not entered or not all(_idle(i, guard, known) for i in s.body):
            return None
        limits = _Bounds(guard, [], [])
        for condition in conjuncts(guard):
            if not isinstance(condition, E.Less) or condition.left.dtype != int64:
                return None
            form = linear(condition.right).minus(linear(condition.left))  # > 0
            rest = form.without(s.var)
            if form.of(s.var) == 1:
                limits.lo.append(Linear(1).minus(rest).expr())
            elif form.of(s.var) == -1:
                limits.hi.append(rest.expr())
            else:
                return None
        steady = all(self.steady(e, s) for e in (*limits.lo, *limits.hi))
        return limits if steady else None

    def steady(self, e: Expr, s: For) -> bool:
        """Whether a value is one for a whole loop; registers of its own are spelled out in it."""
        inner = list(statements(s.body))
        changing = {s.var, *(i.var for i in inner if isinstance(i, For))}
        own = {i.register for i in inner if isinstance(i, Declare)}
        written = written_by(inner)
        return not any(
            (isinstance(n, Var) and n in changing)
            or (isinstance(n, Load) and n.array in written)
            or (isinstance(n, Peek) and (n.register in own or n.register in self.changed))
            for n in walk(e)
        )

    def kept(self, s: For, known: Values, checks: list[Check]) -> Stmts:
        """What is one value for the loop is read once, and a sum for one place, or for one row,
        waits in registers.
        """
        before, s = self.hoisted(s, known)
        sums = [i for i in statements(s.body) if isinstance(i, StoreCombine)]
        one = sums[0] if len(sums) == 1 else None
        row = next((i for i in s.body if isinstance(i, For)), None)
        taken = one is not None and any(one.array in loaded(i) for i in statements(s.body))
        whole: Stmts = [replace(s, body=_named(s.body, checks))]
        if one is not None and not taken and row is None:
            whole = self.number(s, one, known, checks) or whole
        elif one is not None and not taken and row is not None and row.body[-1] is one:
            whole = self.row(s, row, one, known, checks) or whole
        return [Guard(E.Less(s.lo, s.hi), (*before, *whole))]

    def number(self, s: For, one: StoreCombine, known: Values, checks: list[Check]) -> Stmts:
        """A sum for one place: products are rounded, then added up, one chain of additions; in
        chunks where the places of a whole chunk were looked at.
        """
        offset = spelled(one.offset, known)
        if not self.steady(offset, s):
            return []
        total = self.register("kept", one.value)
        term = self.register("term", one.value)
        joined = Combine(total, (), one.combiner, Peek(term, ()))
        body: Stmts = []
        for i in s.body:
            body += [Declare(term, one.value), joined] if i is one else [i]
        scalar = replace(s, body=_named(body, checks))
        first = Declare(total, Load(one.array, offset))
        last = Store(one.array, offset, Peek(total, ()))
        if self.passed is None or s.body != (one,):
            return [first, scalar, last]
        inside = E.Less(E.Add(s.hi, index(CHUNK - 2)), Peek(self.most, ()))
        chunks = tuple(self.chunks(s, one, total, checks))
        return [first, Guard(inside, chunks), Guard(E.logical_not(inside), (scalar,)), last]

    def chunks(self, s: For, one: StoreCombine, total: Register, checks: list[Check]) -> Stmts:
        """A sum, `CHUNK` terms at a time: what lies at places that are data is put side by side;
        of the last chunk the terms beyond the end are left out.
        """
        sums = replace_shape(self.register("sums", one.value), (CHUNK,))
        count = E.subtract(s.hi, s.lo)
        turns = E.FloorDiv(E.Add(count, index(CHUNK - 1)), index(CHUNK))
        turn, way = Var(f"{s.var.name}_turn", 0, s.var.hi), Var(f"{s.var.name}_way", 0, CHUNK - 1)
        own, last = (Var(f"{s.var.name}_{n}", 0, CHUNK - 1) for n in ("lane", "last"))
        begun = E.Mul(turn, index(CHUNK))
        here, there = (E.Add(E.Add(s.lo, begun), n) for n in (way, own))
        made: Stmts = []
        named: Values = {}
        for load in scattered(one.value):
            beside = replace_shape(self.register("beside", load), (CHUNK,))
            made.append(Declare(beside, E.const(0, load.dtype)))
            taken = _named([Set(beside, (way,), load)], checks)
            each = (For(s.var, here, E.Add(here, index(1)), taken),)
            made.append(For(way, index(0), index(CHUNK), each, LoopKind.UNROLL))
            named[load] = Peek(beside, (own,))
        left = self.register("left", E.const(0, int32))
        term = self.register("term", one.value)
        on = E.Less(E.Cast(own, int32), Peek(left, ()))
        nothing = one.combiner.identity(one.value.dtype)
        added = Combine(sums, (own,), one.combiner, E.If(on, Peek(term, ()), nothing))
        joined = Combine(total, (), one.combiner, Peek(sums, (last,)))
        value = spelled(spelled(one.value, named), {s.var: there})
        lanes = (Declare(term, value), added)
        body = (
            *made,
            Declare(left, E.Cast(E.minimum(E.subtract(count, begun), index(CHUNK)), int32)),
            For(own, index(0), index(CHUNK), lanes, LoopKind.VECTOR),
        )
        return [
            Declare(sums, nothing),
            For(turn, index(0), turns, body),
            For(last, index(0), index(CHUNK), (joined,), LoopKind.VECTOR),
        ]

    def row(self, s: For, row: For, one: StoreCombine, known: Values, checks: list[Check]) -> Stmts:
        """Sums for a short row of places."""
        offset = spelled(one.offset, known)
        width = int(row.hi.value) if isinstance(row.hi, E.Const) else 0
        literal = E.is_const(row.lo, 0) and 0 < width <= WAITING and row.step == 1
        there = spelled(offset, {row.var: index(0)})
        if not literal or row.kind is not LoopKind.VECTOR or not self.steady(there, s):
            return []
        total = replace_shape(self.register("kept", one.value), (width,))
        place = Var(f"{row.var.name}_kept", row.var.lo, row.var.hi)
        joined = Combine(total, (row.var,), one.combiner, one.value)
        inner = replace(row, body=(*row.body[:-1], joined))
        body = tuple(inner if i is row else i for i in s.body)
        there = spelled(offset, {row.var: place})
        stored = StoreCombine(one.array, there, one.combiner, Peek(total, (place,)))
        first = Declare(total, one.combiner.identity(one.value.dtype))
        return [
            first,
            replace(s, body=_named(body, checks)),
            replace(row, var=place, body=(stored,)),
        ]

    def hoisted(self, s: For, known: Values) -> tuple[Stmts, For]:
        """Loads with one place for the whole loop, before it; of inner loops likewise."""
        body: Stmts = []
        for i in s.body:
            if isinstance(i, For):
                before, i = self.hoisted(i, known)
                moved = [c for c in i.body if isinstance(c, Check) and self.steady(c.index, i)]
                i = replace(i, body=tuple(c for c in i.body if c not in moved))
                body += [*before, *moved]
            body.append(i)
        s = replace(s, body=tuple(body))

        def once(n: Node) -> bool:
            loads = isinstance(n, Expr) and any(isinstance(m, Load) for m in walk(n))
            return loads and isinstance(n, Expr) and self.steady(n, s)

        def below(n: Node) -> Sequence[Node]:
            return () if once(n) else evaluated(n)

        own = [e for i in body if not isinstance(i, For | Check) for e in roots(i)]
        held: Stmts = []
        named: Values = {}
        for n in filter(once, reach(own, below)):
            assert isinstance(n, Expr)
            register = self.register("once", n)
            held.append(Declare(register, n))
            named[n] = Peek(register, ())
        if held:
            changed = (with_roots(i, lambda e: spelled(e, named)) for i in body)
            s = replace(s, body=tuple(changed))
        return held, s


def _rows(
    s: Stmt, quick: Stmts, slow: Stmts, passed: Iterable[tuple[For, Expr, Expr]]
) -> tuple[For, For, For] | None:
    """A loop over rows, with its quick and slow one, whose inner loops all begin and end at the
    same places, which its variable tells; None where it is another.
    """
    first, *others = passed
    fast, checked = quick[0], slow[0]
    if not (isinstance(s, For) and isinstance(fast, For) and isinstance(checked, For)):
        return None
    leaves = {n for e in first[1:] for n in walk(e) if isinstance(n, Var | Peek)}
    alike = len(quick) == len(slow) == 1 and all(o == first for o in others)
    plain = E.is_const(s.lo, 0) and isinstance(s.hi, E.Const) and s.step == 1
    told = alike and plain and {s.var} <= leaves <= {s.var, first[0].hi}
    return (s, fast, checked) if told and fast.var is checked.var is s.var else None


def _literal(e: Expr) -> int:
    assert isinstance(e, E.Const)
    return int(e.value)


def replace_shape(register: Register, shape: tuple[int, ...]) -> Register:
    return Register(register.name, register.dtype, shape)


def spelled(e: Expr, known: Values) -> Expr:
    """`e` with registers replaced by what they hold."""
    whole = rebuild(e, lambda n: known.get(n), {})
    assert isinstance(whole, Expr)
    return whole


def _chosen(s: Stmt, known: Values) -> E.If | None:
    """The choice that a statement adds, or checks."""
    if isinstance(s, StoreCombine | Combine):
        value = spelled(s.value, known)
    elif isinstance(s, Check):
        value = spelled(s.index, known)
    else:
        return None
    return value if isinstance(value, E.If) else None


def _guard(s: Stmt, known: Values) -> Expr | None:
    """The condition under which a statement adds something."""
    chosen = _chosen(s, known) if isinstance(s, StoreCombine | Combine) else None
    data = chosen is not None and any(isinstance(n, Load) for n in walk(chosen.condition))
    return chosen.condition if chosen is not None and data else None


def _idle(s: Stmt, guard: Expr, known: Values) -> bool:
    """Whether a statement does nothing where `guard` does not hold."""
    if isinstance(s, For):
        return all(_idle(i, guard, known) for i in s.body)
    if isinstance(s, Declare | Mark | Prefetch):
        return True
    chosen = _chosen(s, known)
    if chosen is None or chosen.condition is not guard:
        return False
    if isinstance(s, Check):
        if not (isinstance(s.extent, E.Const) and isinstance(chosen.otherwise, E.Const)):
            return False
        return 0 <= int(chosen.otherwise.value) < int(s.extent.value)
    assert isinstance(s, StoreCombine | Combine)
    return chosen.otherwise is s.combiner.identity(chosen.dtype)


def _under(s: Stmt, guard: Expr, known: Values) -> Stmt:
    """A statement where `guard` is known to hold."""

    def held(node: Node) -> Node | None:
        holds = isinstance(node, E.If) and spelled(node.condition, known) is guard
        return node.then if holds and isinstance(node, E.If) else None

    def change(e: Expr) -> Expr:
        new = rebuild(e, held, {})
        assert isinstance(new, Expr)
        return new

    fresh = with_roots(s, change)
    if isinstance(fresh, For | Guard):
        return replace(fresh, body=tuple(_under(i, guard, known) for i in fresh.body))
    return fresh


def pruned(body: Iterable[Stmt]) -> Stmts:
    """Without checks that are passed for certain and registers that nothing looks at."""
    intervals = Intervals()

    def passed(s: Stmt) -> bool:
        if not isinstance(s, Check) or not isinstance(s.extent, E.Const):
            return False
        lo, hi = intervals.of(s.index)
        return lo >= 0 and hi < int(s.extent.value)

    kept = [s for s in body if not passed(s)]
    while True:
        read = {
            n.register
            for s in statements(kept)
            for e in roots(s)
            for n in walk(e)
            if isinstance(n, Peek)
        }
        fewer = [s for s in kept if not isinstance(s, Declare) or s.register in read]
        if len(fewer) == len(kept):
            return kept
        kept = fewer


def _places(c: Check) -> tuple[Expr, Expr | None, Expr]:
    """What stands for an index behind its check: clamped; of 32 bits shorter; itself."""
    assert isinstance(c.extent, E.Const)
    clamped = E.minimum(E.maximum(c.index, index(0)), index(_literal(c.extent) - 1))
    narrow = c.index.value if isinstance(c.index, E.Cast) else None
    if narrow is None or narrow.dtype is not int32:
        return clamped, None, c.index
    plain = E.Cast(E.Cast(narrow, uint32), int64)
    return clamped, E.If(E.Less(plain, c.extent), plain, index(0)), c.index


def _renamed(body: Iterable[Stmt], named: Values) -> tuple[Stmt, ...]:
    """Statements with expressions replaced, those of inner loops too."""
    made = []
    for s in body:
        fresh = with_roots(s, lambda e: spelled(e, named))
        if isinstance(fresh, For | Guard):
            fresh = replace(fresh, body=_renamed(fresh.body, named))
        made.append(fresh)
    return tuple(made)


def _cheap(body: Stmts) -> Stmts:
    """Behind a check of 32 bits, the index as it is or 0: one comparison, without a sign."""
    named: Values = {}
    for s in statements(body):
        if isinstance(s, Check) and isinstance(s.extent, E.Const):
            clamped, short, _ = _places(s)
            if short is not None:
                named[clamped] = short
    return list(_renamed(body, named))


def _without(body: Stmts, checks: list[Check], known: Values) -> Stmts:
    gone = {(c.index, c.site) for c in checks}
    made: Stmts = []
    for s in body:
        if isinstance(s, Check) and (spelled(s.index, known), s.site) in gone:
            continue
        if isinstance(s, For | Guard):
            s = replace(s, body=tuple(_without(list(s.body), checks, known)))
        made.append(s)
    return made


def _named(body: Iterable[Stmt], checks: list[Check]) -> tuple[Stmt, ...]:
    """`body` where indices that passed their checks are as they are: a variable with bounds."""
    made = tuple(body)
    for n, c in enumerate(checks):
        clamped, short, own = _places(c)
        place = Var(f"passed_{n}", 0, _literal(c.extent) - 1)
        named: Values = {clamped: place} if short is None else {clamped: place, short: place}
        made = (For(place, own, E.Add(own, index(1)), _renamed(made, named)),)
    return made
