"""Loops between bounds that are data: of a loop under a guard runs what the guard leaves.

    for p in 0..n: y[i] sum= if(a <= p < b, f(p), 0)
    -> lo = max(0, a); hi = min(n, b); s = y[i]; for p in lo..hi: s sum= f(p); y[i] = s

Where nothing else happens in the loop: what is left out adds the identity, and checks a number that
is in bounds. The order of what is added stays. Bounds read memory that the routine does not write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from pullback.algebra.linear import Linear, linear
from pullback.backends.nests.checks import (
    Names,
    Values,
    as_passed,
    cheap,
    literal,
    look,
    pruned,
    renamed,
    shaped,
    spelled,
    without,
)
from pullback.backends.nests.touched import arrays, loaded, scattered, written_by
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int32, int64
from pullback.ir.expr import Expr, evaluated, index
from pullback.ir.graph import ALL
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


@functools.lru_cache(maxsize=16)
def lowered(kernel: Kernel, schedule: Schedule, marks: bool = False) -> Routine:
    """The nest of a kernel, its loops between the bounds that guards over data leave."""
    return ranged(lower(kernel, schedule, marks=marks))


def ranged(routine: Routine) -> Routine:
    """`routine` with its loops between the bounds that guards over data leave."""
    own = list(statements([*routine.body, *routine.finish]))
    if not any(isinstance(s, StoreCombine) for s in own):
        return routine
    ranges = _Ranges(own)
    return replace(routine, body=tuple(ranges.tiles(routine.body, frozenset())))


# Measured beside SciPy on an EPYC with AVX-512, 1 to 400 values a row, 1 to 64 columns.
WAITING = 64  # sums of a row that wait in registers
# A row's terms at a time, those beyond its end left out by lanes, and of short rows as many as a
# mean one has without a branch, which would be guessed wrong. Loops in C on Zen 4, 2,000^2 by a
# vector, us, of twenty matrices in turn; of one matrix, whose rows the processor learns by heart:
#   values a row             3            10            20           50
#   one by one          16.4   5.6   26.7  12.1   36.7  27.6         75
#   4                    8.6   4.5   15.9   9.0   23.0  14.8         37
#   4, of the mean       7.4   4.6   12.1  10.0   24.2  15.6         35
#   8                    7.3   6.2   14.6   9.9   18.8  15.1         32
#   8, of the mean       6.7   6.6   11.8  11.7   18.8  16.3         31
AT_ONCE = 8  # terms; of short rows half as many
SHORT = 12  # values of a mean row that is one
# Likewise of terms that go to places that are data, us of a loop in C, SciPy beside it, Zen 3:
#   values a row          3    10    20   100   20,000^2, 10
#   SciPy                11    25    43   263   273
#   one by one            7    21    38   276   261
#   4                     8    14    25   147   208
#   8                    14    22    36   179   258
SPREAD = 4
BLOCK = 4096  # terms whose checks are made before: their indices lie in the nearest cache
Passed = dict[Check, "_Loop"]  # checks, and of which loops they are


@dataclass(frozen=True)
class _Bounds:
    """``lo <= var < hi`` is what a guard asks, beside the loop's own bounds."""

    guard: Expr
    lo: list[Expr]
    hi: list[Expr]


@dataclass(frozen=True)
class _Loop:
    """A loop and its ends; `asked`: what they are where that lies within the loop's own bounds."""

    loop: For
    first: Expr
    last: Expr
    asked: tuple[Expr, Expr]


class _Ranges:
    """What a routine writes, and names for new registers."""

    def __init__(self, own: Sequence[Stmt]) -> None:
        self.written = written_by(own)
        self.changed: set[Register] = set()
        for s in own:
            if isinstance(s, Set | Combine):
                self.changed.add(s.register)
        self.names = Names()
        # Checks that were made before.
        self.passed: Passed | None = None
        self.most = Register("most", int64)  # up to where
        self.rows = 1  # of the loop in hand

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

    def tiles(self, body: Iterable[Stmt], around: frozenset[Node]) -> Stmts:
        """The loops of each tile of a task, either way."""
        made: Stmts = []
        for s in body:
            if isinstance(s, For) and s.kind is LoopKind.SEQ and not isinstance(s.lo, E.Const):
                made.append(replace(s, body=tuple(self.tiles(s.body, around | {s.var}))))
            else:
                made += self.either(s, around)
        return made

    def either(self, s: Stmt, around: frozenset[Node]) -> Stmts:
        """Where all checks of a loop are passed, which is looked at first, a loop without them;
        block by block, where it is one over rows, in the tiles `around`.
        """
        slow = self.block([s], {})
        self.passed, self.most = {}, self.names.register("most", index(0))
        self.rows = int(s.hi.value) if isinstance(s, For) and isinstance(s.hi, E.Const) else 1
        quick = self.block([s], {})
        passed, self.passed = self.passed, None
        if not passed:
            return slow
        rows = _rows(s, quick, slow, passed.values(), around)
        if rows is not None:
            return [self.blocks(*rows, passed)]
        ends = [own.loop.hi for own in passed.values()]
        most = Declare(self.most, functools.reduce(E.minimum, ends))
        looks, good = self.looks(passed, None)
        return [most, *looks, Guard(good, tuple(quick)), Guard(E.logical_not(good), tuple(slow))]

    def blocks(self, s: For, quick: For, slow: For, passed: Passed) -> For:
        """Rows in blocks whose terms a cache holds, as all rows of one lie between its ends."""
        own = next(iter(passed.values()))
        inner, first, last = own.loop, own.first, own.last
        size = max(1, BLOCK * literal(s.hi) // max(1, inner.var.hi))
        block = Var(f"{s.var.name}_block", 0, -(-literal(s.hi) // size) - 1)
        begin = E.Mul(block, index(size))
        end = E.minimum(s.hi, E.Add(begin, index(size)))
        low, high = self.names.register("low", index(0)), self.names.register("high", index(0))
        rising = self.names.register("rising", E.const(True, bool_))
        outside = E.Or(E.Less(own.asked[0], Peek(low, ())), E.Less(Peek(high, ()), own.asked[1]))
        look = Combine(rising, (), ALL, E.logical_not(outside))
        most = E.minimum(inner.hi, E.Add(Peek(high, ()), index(self.beyond(inner))))
        looks, good = self.looks(passed, (Peek(low, ()), Peek(self.most, ())))
        good = E.And(Peek(rising, ()), good)
        within: Values = dict(zip((first, last), own.asked, strict=True))
        quick = replace(quick, lo=begin, hi=end, body=renamed(quick.body, within))
        body = (
            Declare(low, spelled(first, {s.var: begin})),
            Declare(high, spelled(last, {s.var: E.subtract(end, index(1))})),
            Declare(self.most, most),
            Declare(rising, E.const(True, bool_)),
            For(s.var, begin, end, (look,), LoopKind.VECTOR, unroll=2),
            *looks,
            Guard(good, (quick,)),
            Guard(E.logical_not(good), (replace(slow, lo=begin, hi=end),)),
        )
        return For(block, index(0), index(block.hi + 1), body)

    def looks(self, passed: Passed, ends: tuple[Expr, Expr] | None) -> tuple[Stmts, Expr]:
        """A look at each index, of whole loops or between `ends`; whether all are passed."""
        made: Stmts = []
        good: Expr | None = None
        for check, own in passed.items():
            joined, inside = look(check, self.names)
            register, combiner = joined.register, joined.combiner
            made.append(Declare(register, combiner.identity(register.dtype)))
            lo, hi = ends or (own.loop.lo, own.loop.hi)
            made.append(For(own.loop.var, lo, hi, (joined,), LoopKind.VECTOR, unroll=4))
            good = inside if good is None else E.And(good, inside)
        assert good is not None
        return made, good

    def unchecked(
        self, s: For, own: _Loop, body: Stmts, known: Values
    ) -> tuple[Stmts, list[Check]]:
        """`body` without the checks that may be made before all loops, and these."""
        if self.passed is None:
            return body, []
        moved: list[Check] = []
        for c in statements(body):
            if isinstance(c, Check) and isinstance(c.extent, E.Const):
                told = replace(c, index=spelled(c.index, known))
                leaves = {n for n in walk(told.index) if isinstance(n, Var | Peek)}
                if leaves == {s.var} and not arrays(told.index) & self.written:
                    moved.append(told)
        self.passed.update(dict.fromkeys(moved, own))
        return without(body, moved, known), moved

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
        single = len(bounds.lo) == len(bounds.hi) == 1
        asked = (bounds.lo[0], bounds.hi[0]) if single else (first, last)
        free, checks = self.unchecked(s, _Loop(s, first, last, asked), body, inside)
        body = cheap(free)
        within = dict(known)
        for inner in statements(body):
            self.remember(inner, within, written)
        lo, hi = self.names.register("from", s.lo), self.names.register("to", s.hi)
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
        whole: Stmts = [replace(s, body=as_passed(s.body, checks))]
        if one is not None and not taken and row is None:
            whole = self.number(s, one, known, checks) or self.spread(s, one, checks) or whole
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
        total = self.names.register("kept", one.value)
        term = self.names.register("term", one.value)
        joined = Combine(total, (), one.combiner, Peek(term, ()))
        body: Stmts = []
        for i in s.body:
            body += [Declare(term, one.value), joined] if i is one else [i]
        scalar = replace(s, body=as_passed(body, checks))
        first = Declare(total, Load(one.array, offset))
        last = Store(one.array, offset, Peek(total, ()))
        if self.passed is None or s.body != (one,):
            return [first, scalar, last]
        chunks = tuple(self.chunks(s, one, total, checks))
        inside = self.looked(s)
        return [first, Guard(inside, chunks), Guard(E.logical_not(inside), (scalar,)), last]

    def chunks(self, s: For, one: StoreCombine, total: Register, checks: list[Check]) -> Stmts:
        """A sum, a few terms at a time."""
        size = AT_ONCE // 2 if self.mean(s) <= SHORT else AT_ONCE
        sums = shaped(self.names.register("sums", one.value), (size,))
        last = Var(f"{s.var.name}_last", 0, size - 1)
        joined = Combine(total, (), one.combiner, Peek(sums, (last,)))

        def add(lane: Var, term: Expr) -> Stmt:
            return Combine(sums, (lane,), one.combiner, term)

        return [
            Declare(sums, one.combiner.identity(one.value.dtype)),
            *self.side_by_side(s, one, size, checks, add, lambda _: []),
            For(last, index(0), index(size), (joined,), LoopKind.VECTOR),
        ]

    def mean(self, s: For) -> float:
        """How many turns of a loop belong to one row in the mean, where each belongs to one."""
        return s.var.hi / self.rows

    def lead(self, s: For, size: int) -> int:
        """How many times `size` terms of a row are taken without a branch: a short mean row's."""
        mean = self.mean(s)
        return ceil(mean / size) if mean <= SHORT else 0

    def looked(self, s: For) -> Expr:
        """Whether all that is taken at once with the last term of a row was looked at."""
        return E.Less(E.Add(s.hi, index(self.beyond(s) - 1)), Peek(self.most, ()))

    def beyond(self, s: For) -> int:
        """How many terms behind a row are taken at once with it, at most."""
        return AT_ONCE - 1 + self.lead(s, 1)

    def spread(self, s: For, one: StoreCombine, checks: list[Check]) -> Stmts:
        """Terms for places that are data, `SPREAD` at a time: nothing is added where the next ones
        lie, which were looked at.
        """
        if self.passed is None or s.body != (one,):
            return []
        terms = shaped(self.names.register("terms", one.value), (SPREAD,))
        way = Var(f"{s.var.name}_place", 0, SPREAD - 1)

        def put(lane: Var, term: Expr) -> Stmt:
            return Set(terms, (lane,), term)

        def added(begun: Var) -> Stmts:
            here = E.Add(begun, way)
            step = replace(one, value=Peek(terms, (way,)))
            each = For(s.var, here, E.Add(here, index(1)), as_passed([step], checks))
            return [For(way, index(0), index(SPREAD), (each,), LoopKind.UNROLL)]

        first = Declare(terms, one.combiner.identity(one.value.dtype))
        quick = self.side_by_side(s, one, SPREAD, checks, put, added)
        inside = self.looked(s)
        plain = replace(s, body=as_passed(s.body, checks))
        return [Guard(inside, (first, *quick)), Guard(E.logical_not(inside), (plain,))]

    def side_by_side(
        self,
        s: For,
        one: StoreCombine,
        size: int,
        checks: list[Check],
        put: Callable[[Var, Expr], Stmt],
        after: Callable[[Var], Stmts],
    ) -> Stmts:
        """Terms in lanes, `size` at a time: what they read at places that are data is put side by
        side; of the last ones those beyond the end are the identity.
        """
        begun, way = Var(f"{s.var.name}_begun", 0, s.var.hi), Var(f"{s.var.name}_way", 0, size - 1)
        lane = Var(f"{s.var.name}_lane", 0, size - 1)
        here = E.Add(begun, way)
        made: Stmts = []
        named: Values = {}
        for load in scattered(one.value):
            beside = shaped(self.names.register("beside", load), (size,))
            made.append(Declare(beside, E.const(0, load.dtype)))
            taken = as_passed([Set(beside, (way,), load)], checks)
            each = (For(s.var, here, E.Add(here, index(1)), taken),)
            made.append(For(way, index(0), index(size), each, LoopKind.UNROLL))
            named[load] = Peek(beside, (lane,))
        left, rest = self.names.register("left", E.const(0, int32)), E.subtract(s.hi, begun)
        if s.var.hi >= int32.range()[1]:
            rest = E.minimum(rest, index(size))
        term = self.names.register("term", one.value)
        value = spelled(spelled(one.value, named), {s.var: E.Add(begun, lane)})
        on = E.Less(E.Cast(lane, int32), Peek(left, ()))
        kept = E.If(on, Peek(term, ()), one.combiner.identity(one.value.dtype))
        lanes = (Declare(term, value), put(lane, kept))
        made += [
            Declare(left, E.Cast(rest, int32)),
            For(lane, index(0), index(size), lanes, LoopKind.VECTOR),
        ]
        body, lead = (*made, *after(begun)), self.lead(s, size)
        onward = For(begun, E.Add(s.lo, index(lead * size)), s.hi, body, step=size)
        if lead == 0:
            return [onward]
        turn = Var(f"{s.var.name}_lead", 0, lead - 1)
        here = E.Add(s.lo, E.Mul(turn, index(size)))
        ahead = For(begun, here, E.Add(here, index(1)), body)
        return [For(turn, index(0), index(lead), (ahead,), LoopKind.UNROLL), onward]

    def row(self, s: For, row: For, one: StoreCombine, known: Values, checks: list[Check]) -> Stmts:
        """Sums for a short row of places."""
        offset = spelled(one.offset, known)
        width = int(row.hi.value) if isinstance(row.hi, E.Const) else 0
        literal = E.is_const(row.lo, 0) and 0 < width <= WAITING and row.step == 1
        there = spelled(offset, {row.var: index(0)})
        if not literal or row.kind is not LoopKind.VECTOR or not self.steady(there, s):
            return []
        total = shaped(self.names.register("kept", one.value), (width,))
        place = Var(f"{row.var.name}_kept", row.var.lo, row.var.hi)
        joined = Combine(total, (row.var,), one.combiner, one.value)
        inner = replace(row, body=(*row.body[:-1], joined))
        body = tuple(inner if i is row else i for i in s.body)
        there = spelled(offset, {row.var: place})
        stored = StoreCombine(one.array, there, one.combiner, Peek(total, (place,)))
        first = Declare(total, one.combiner.identity(one.value.dtype))
        return [
            first,
            replace(s, body=as_passed(body, checks)),
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
            register = self.names.register("once", n)
            held.append(Declare(register, n))
            named[n] = Peek(register, ())
        if held:
            changed = (with_roots(i, lambda e: spelled(e, named)) for i in body)
            s = replace(s, body=tuple(changed))
        return held, s


def _rows(
    s: Stmt, quick: Stmts, slow: Stmts, passed: Iterable[_Loop], around: frozenset[Node]
) -> tuple[For, For, For] | None:
    """A loop over rows, with its quick and slow one, whose inner loops all begin and end at the
    same places, which its variable tells; None where it is another.
    """
    first, *others = passed
    fast, checked = quick[0], slow[0]
    if not (isinstance(s, For) and isinstance(fast, For) and isinstance(checked, For)):
        return None
    ends = (first.first, first.last)
    leaves = {n for e in ends for n in walk(e) if isinstance(n, Var | Peek)}
    alike = len(quick) == len(slow) == 1 and all(o == first for o in others)
    plain = E.is_const(s.lo, 0) and isinstance(s.hi, E.Const) and s.step == 1
    told = alike and plain and {s.var} <= leaves <= {s.var, first.loop.hi, *around}
    return (s, fast, checked) if told and fast.var is checked.var is s.var else None


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
