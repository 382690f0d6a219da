"""What emission asks of expressions and loops: dependencies, lanes, substitution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import cast

from pullback.algebra.affine import Affine, affine
from pullback.algebra.bounds import Intervals
from pullback.config import Cap
from pullback.ir.dtype import DType, is_short
from pullback.ir.expr import Cast, Const, Expr, If
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
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import Node, rebuild, walk
from pullback.ir.statements import roots, statements
from pullback.ir.target import Target

INT32 = (-(2**31), 2**31 - 1)
Cell = Array | Register
NOTHING: frozenset[Cell] = frozenset()
PACKED = 4  # bytes of the elements whose panels are copied in squares; smaller ones one by one
STRIP: Cap = 4  # squares of a panel that are written out for its size: each takes time to compile


def is_strip(rows: int, columns: int, side: int) -> bool:
    """Whether a panel has few squares of so many rows: none asks where the panel ends."""
    return ceil(rows / side) * ceil(columns / side) <= STRIP


class Facts:
    """Answers about expressions, kept for the whole routine."""

    def __init__(self) -> None:
        self._intervals = Intervals()
        self._forms: dict[Expr, Affine] = {}
        self._offsets: dict[Expr, Affine] = {}
        self._reads: dict[Node, frozenset[Cell]] = {}
        self._loads: dict[Expr, bool] = {}
        self._shared: dict[If, tuple[Expr, ...]] = {}

    def reads(self, e: Expr) -> frozenset[Cell]:
        """The arrays and registers that the value depends on."""
        known = self._reads.get(e)
        if known is not None:
            return known
        for node in walk(e, skip=self._reads):
            reads = NOTHING
            for child in node.children:
                reads = reads | self._reads[child] if reads else self._reads[child]
            if isinstance(node, Load):
                reads = reads | {node.array}
            elif isinstance(node, Peek):
                reads = reads | {node.register}
            self._reads[node] = reads
        return self._reads[e]

    def loads(self, e: Expr) -> bool:
        """Whether evaluating touches memory."""
        known = self._loads.get(e)
        if known is None:
            known = any(isinstance(c, Array) for c in self.reads(e))
            self._loads[e] = known
        return known

    def shared(self, e: If) -> tuple[Expr, ...]:
        """What touches memory and both sides compute in any case: the largest of it.

        It needs no guard. Computed on each side it would be computed twice, and in Ifs within Ifs
        as often as there are ways through them.
        """
        known = self._shared.get(e)
        if known is None:
            other = {*self._always(e.otherwise)}
            known = tuple(n for n in self._always(e.then, other) if n in other)
            self._shared[e] = known
        return known

    def _always(self, root: Expr, ends: Collection[Expr] = ()) -> Iterator[Expr]:
        """What touches memory and is computed wherever `root` is; nothing below `ends`."""
        stack, seen = [root], set()
        while stack:
            node = stack.pop()
            if node in seen or not self.loads(node):
                continue
            seen.add(node)
            yield node
            if node not in ends:
                below = (node.condition,) if isinstance(node, If) else node.children
                stack.extend(cast(Expr, c) for c in below)

    def form(self, e: Expr) -> Affine:
        """The integer-linear form of an offset."""
        form = self._offsets.get(e)
        if form is None:
            form = affine(e, self._forms)
            self._offsets[e] = form
        return form

    def narrow(self, e: Expr) -> bool:
        """Whether every value fits in 32 signed bits."""
        lo, hi = self._intervals.of(e)
        return lo >= INT32[0] and hi <= INT32[1]

    def interval(self, e: Expr) -> tuple[int, int]:
        """Smallest and largest value of an integer expression."""
        return self._intervals.of(e)


class Varying:
    """Which expressions differ between the lanes of one vector loop."""

    def __init__(self, var: Var, registers: frozenset[Register]) -> None:
        self.var = var
        self.registers = registers
        self._known: dict[Node, bool] = {}

    def of(self, e: Expr) -> bool:
        """Whether `e` differs."""
        known = self._known.get(e)
        if known is not None:
            return known
        for node in walk(e, skip=self._known):
            own = node is self.var
            if isinstance(node, Peek) and node.register in self.registers:
                own = True
            self._known[node] = own or any(self._known[c] for c in node.children)
        return self._known[e]


def map_expressions(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """The same statement over changed expressions, bodies included."""
    match stmt:
        case For():
            body = tuple(map_expressions(s, change) for s in stmt.body)
            return replace(stmt, lo=change(stmt.lo), hi=change(stmt.hi), body=body)
        case Guard():
            body = tuple(map_expressions(s, change) for s in stmt.body)
            return replace(stmt, condition=change(stmt.condition), body=body)
        case Declare():
            return replace(stmt, init=change(stmt.init))
        case Set():
            return Set(stmt.register, tuple(map(change, stmt.indices)), change(stmt.value))
        case Combine():
            at = tuple(map(change, stmt.indices))
            return Combine(stmt.register, at, stmt.combiner, change(stmt.value))
        case Store():
            return Store(stmt.array, change(stmt.offset), change(stmt.value))
        case StoreCombine():
            offset = change(stmt.offset)
            return StoreCombine(stmt.array, offset, stmt.combiner, change(stmt.value))
        case Check():
            return replace(stmt, index=change(stmt.index), extent=change(stmt.extent))
        case Transpose():
            return replace(
                stmt,
                target_offset=change(stmt.target_offset),
                source_offset=change(stmt.source_offset),
                rows=change(stmt.rows),
                columns=change(stmt.columns),
            )
        case Prefetch():
            return replace(stmt, offset=change(stmt.offset))
        case Mark():
            return stmt


def substitute(body: Sequence[Stmt], env: Mapping[Var, Expr]) -> tuple[Stmt, ...]:
    """The statements with variables replaced."""
    memo: dict[Node, Node] = {}

    def change(e: Expr) -> Expr:
        replaced = rebuild(e, lambda n: env.get(n) if isinstance(n, Var) else None, memo)
        assert isinstance(replaced, Expr)
        return replaced

    return tuple(map_expressions(s, change) for s in body)


WIDEST = 64  # lanes of a vector, those of bytes


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Lanes of every vector loop (by its variable) and of registers indexed by such a variable;
    `tails`: of the last vector, where fewer hold what is left.
    """

    loops: dict[Var, int]
    tiles: dict[Register, int]
    tails: dict[Var | Register, int] = field(default_factory=dict)


def compute_bytes(dtype: DType) -> int:
    """Size of an element while it is computed with; short floats become float32."""
    return 4 if is_short(dtype) else dtype.itemsize


def plan_lanes(routine: Routine, target: Target, facts: Facts) -> LanePlan:
    """Lanes by the widest data type in each loop, no more than it has; loops that share a register
    tile agree.
    """
    loops: dict[Var, int] = {}
    tiles: dict[Register, int] = {}
    users: dict[Var, dict[Register, None]] = {}
    for stmt in statements(routine.body + routine.finish):
        if not isinstance(stmt, For) or stmt.kind is not LoopKind.VECTOR:
            continue
        width, registers = _survey(stmt)
        lanes = min(target.lanes(width), _least(stmt, facts))
        loops[stmt.var] = min(loops.get(stmt.var, lanes), lanes)
        users.setdefault(stmt.var, {}).update(registers)
    changed = True
    while changed:
        changed = False
        for var, registers in users.items():
            lanes = min([loops[var], *(tiles.get(r, loops[var]) for r in registers)])
            wanted = [r for r in registers if tiles.get(r) != lanes]
            changed = changed or lanes != loops[var] or bool(wanted)
            loops[var] = lanes
            tiles.update(dict.fromkeys(registers, lanes))
    return LanePlan(loops, tiles, _tails(routine, LanePlan(loops, tiles), users, facts))


def _tails(
    routine: Routine, plan: LanePlan, users: dict[Var, dict[Register, None]], facts: Facts
) -> dict[Var | Register, int]:
    """The smallest powers of two of lanes that hold what whole vectors leave of a loop, where all
    loops over a register's vectors leave the same: no mask, or a shorter one.

    ``j in 0..18, 16 lanes  ->  16, 2``
    """
    tails: dict[Var | Register, int] = {}
    for stmt in statements(routine.body + routine.finish):
        if isinstance(stmt, For) and stmt.var in plan.loops:
            own = _tail(stmt, plan, users[stmt.var], facts)
            tails[stmt.var] = max(own, tails.get(stmt.var, 0))
    changed = True
    while changed:
        changed = False
        for var, registers in users.items():
            keys: list[Var | Register] = [var, *registers]
            most = max(tails.get(key, 0) for key in keys)
            changed = changed or any(tails.get(key) != most for key in keys)
            tails.update(dict.fromkeys(keys, most))
    return tails


def _tail(loop: For, plan: LanePlan, registers: Iterable[Register], facts: Facts) -> int:
    """Lanes of the last vector of one loop: all, where what is left may not be told apart."""
    lanes, trip = plan.loops[loop.var], facts.form(loop.hi).minus(facts.form(loop.lo))
    first = isinstance(loop.lo, Const) and loop.lo.value == 0
    if trip.terms or trip.const <= lanes or not trip.const % lanes or not first:
        return lanes
    if any(r.shape[-1] != trip.const for r in registers) or not _lane_by_lane(loop, plan):
        return lanes
    return 1 << (trip.const % lanes - 1).bit_length()


def _lane_by_lane(loop: For, plan: LanePlan) -> bool:
    """Whether a loop of floats of one size keeps its lanes apart: none is combined with another."""
    own = frozenset(s.register for s in statements(loop.body) if isinstance(s, Declare))
    varying = Varying(loop.var, own)
    kinds: set[DType] = set()
    for stmt in statements(loop.body):
        if isinstance(stmt, Transpose | For | Guard | StoreCombine):
            return False
        if isinstance(stmt, Combine) and stmt.register not in own:
            tile = stmt.register in plan.tiles and varying.of(stmt.indices[-1])
            if not tile:
                return False
        if isinstance(stmt, Store):
            kinds.add(stmt.array.dtype)
        for node in walk(roots(stmt)):
            kinds |= {node.array.dtype} if isinstance(node, Load) else set()
            kinds |= {node.register.dtype} if isinstance(node, Peek) else set()
    return len(kinds) == 1 and all(k.is_float and k.itemsize >= 4 for k in kinds)


def _least(loop: For, facts: Facts) -> int:
    """The smallest power of two of lanes that holds a whole loop: of 16 lanes with 8 masked, memory
    that was just stored under the mask is not there for the next load of it.
    """
    trip = facts.form(loop.hi).minus(facts.form(loop.lo))
    return WIDEST if trip.terms else 1 << max(0, trip.const - 1).bit_length()


def tiled(loop: For, plan: LanePlan, varying: Varying) -> bool:
    """Whether a register is indexed by the variable of a vector loop."""
    for inner in statements(loop.body):
        nodes = [n for n in walk(roots(inner)) if isinstance(n, Peek)]
        used = [(n.register, n.indices) for n in nodes]
        if isinstance(inner, Set | Combine):
            used.append((inner.register, inner.indices))
        if any(r in plan.tiles and at and varying.of(at[-1]) for r, at in used):
            return True
    return False


def in_pieces(loop: For, plan: LanePlan, varying: Varying) -> bool:
    """Whether the last lanes of a loop are powers of two of them, not those under a mask: it adds
    to memory in place, and does nothing that goes across lanes.
    """
    every = list(statements(loop.body))
    if not any(isinstance(s, StoreCombine) for s in every):
        return False
    return not any(isinstance(s, Combine) for s in every) and not tiled(loop, plan, varying)


def _survey(loop: For) -> tuple[int, dict[Register, None]]:
    """The widest data type, bytes, and the registers indexed by the loop's variable."""
    width = 1
    registers: dict[Register, None] = {}
    inner = list(statements(loop.body))
    own = frozenset(s.register for s in inner if isinstance(s, Declare))
    varying = Varying(loop.var, own)
    for stmt in inner:
        if is_copy(stmt):
            width = max(width, 2)
            continue
        width = max(width, _stmt_bytes(stmt, varying))
        if isinstance(stmt, Set | Combine) and _indexed(stmt.indices, varying):
            registers[stmt.register] = None
        for node in walk(roots(stmt)):
            if isinstance(node, Peek) and _indexed(node.indices, varying):
                registers[node.register] = None
            if isinstance(node, Expr) and varying.of(node):
                width = max(width, _expr_bytes(node))
    return width, registers


def _indexed(indices: tuple[Expr, ...], varying: Varying) -> bool:
    return bool(indices) and varying.of(indices[-1])


def is_copy(stmt: Stmt) -> bool:
    """Whether a statement stores a short float as it lies somewhere else."""
    if not isinstance(stmt, Store) or not isinstance(stmt.value, Load):
        return False
    kind = stmt.value.array.dtype
    return kind == stmt.array.dtype and is_short(kind)


def _stmt_bytes(stmt: Stmt, varying: Varying) -> int:
    match stmt:
        case Store() | StoreCombine():
            return compute_bytes(stmt.array.dtype)
        case Declare() | Set():
            return compute_bytes(stmt.register.dtype)
        case Combine() if varying.of(stmt.value):
            return compute_bytes(stmt.register.dtype)
    return 1


def _expr_bytes(e: Expr) -> int:
    if isinstance(e, Load):
        return compute_bytes(e.array.dtype)
    if isinstance(e, Cast) and e.to.is_integer and e.to.bits == 64:
        return 8 if e.value.dtype.is_float else 1
    if isinstance(e, Const | Var) or not (e.dtype.is_float or e.dtype.bits < 64):
        return 1
    return compute_bytes(e.dtype)
