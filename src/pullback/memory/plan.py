"""The memory plan: byte offsets of temporaries and scratch in one arena.

Lifetimes are whole launches: a temporary lives from the launch that first writes it to the last
that reads it; the scratch of every thread and the partials live during their own launch. Two
buffers alive in one launch never overlap. Several placement orders are tried, the best is taken.
Vector code wants whole cache lines: what is large begins one, what is small fills at most a quarter
of itself to be aligned.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pullback.config import Cap, Ints, Pair, entity, frozen
from pullback.cost.facts import size_bytes
from pullback.errors import InvalidIR
from pullback.ir import markup
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.machine.machine import LINE

NOBODY: Mapping[Variable, Variable] = MappingProxyType({})
NOTHING: Mapping[Kernel, Needs] = MappingProxyType({})
# Beyond this many buffers one placement order must do.
MANY_BUFFERS: Cap = 1500
FILLS = ("#91a7ff", "#748ffc", "#b197fc", "#74c0fc")


@frozen
class Needs:
    """Working memory of one launch, bytes: `scratch` on each of `threads`, and `shared`.

    `over`: arguments of the kernel, by place, of which the second may be written over the first.
    """

    scratch: int = 0
    shared: int = 0
    threads: int = 1
    over: tuple[Pair, ...] = ()


@entity
class Buffer:
    """A block of `size` bytes alive in launches `first`..`last`, both included.

    `variable` is the temporary it holds; None for working memory, which `name` tells apart.
    `over`: the variable whose memory it takes in its first launch, that one's last.
    """

    name: str
    size: int
    align: int
    first: int
    last: int
    variable: Variable | None = None
    over: Variable | None = None


@entity
class Plan:
    """Where everything is, bytes. `scratch` and `shared` are offsets by launch.

    `stride` by launch is the distance between the scratch blocks of two threads.
    """

    offsets: dict[Variable, int]
    scratch: Ints
    stride: Ints
    shared: Ints
    arena_bytes: int
    lower_bound_bytes: int
    total_bytes: int
    placed: tuple[tuple[Buffer, int], ...]

    def picture(self, width: int = 100, height: int = 24) -> str:
        """The arena as text: rows are address bands, columns launches, a letter each buffer."""
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        launches = len(self.scratch)
        columns = min(width, max(1, launches))
        rows = [["."] * columns for _ in range(height)]
        legend = []
        for n, (b, at) in enumerate(sorted(self.placed, key=lambda p: (p[0].first, p[1]))):
            mark = "#" if b.variable is None else letters[n % len(letters)]
            low = at * height // max(1, self.arena_bytes)
            high = max(low + 1, -(-(at + b.size) * height // max(1, self.arena_bytes)))
            left = b.first * columns // max(1, launches)
            right = max(left + 1, (b.last + 1) * columns // max(1, launches))
            for row in rows[low:high]:
                row[left:right] = [mark] * (right - left)
            legend.append(
                f"  {mark} {b.name}: {b.size} bytes at {at}, launches {b.first}..{b.last}"
            )
        head = (
            f"arena {self.arena_bytes} bytes, lower bound {self.lower_bound_bytes}, "
            f"{launches} launches, # is scratch"
        )
        step = self.arena_bytes / height
        body = [f"{round(n * step):>9} |{''.join(row)}|" for n, row in enumerate(rows)]
        return "\n".join([head, *body, *legend])

    def _repr_svg_(self) -> str:
        """For notebooks: the same, drawn; working memory in grey."""
        wide = markup.WIDTH / max(1, len(self.scratch))
        high = markup.HEIGHT / max(1, self.arena_bytes)
        shapes = [
            markup.block(
                b.first * wide,
                at * high,
                (b.last + 1 - b.first) * wide,
                b.size * high,
                FILLS[n % len(FILLS)] if b.variable is not None else "#ced4da",
                f"{b.name}: {b.size} bytes at {at}, launches {b.first}..{b.last}",
            )
            for n, (b, at) in enumerate(self.placed)
        ]
        return markup.picture(shapes)


def plan(
    kernels: Sequence[Kernel],
    lives: Mapping[Variable, Pair],
    needs: Mapping[Kernel, Needs] = NOTHING,
    over: Mapping[Variable, Variable] = NOBODY,
) -> Plan:
    """Place temporaries and the working memory of `kernels`, launched in order.

    `lives`: first and last launch of each temporary. `over`: results, each with the operand in
    whose memory it is written (`lives.taken_over`).
    """
    own = [(_buffer(v, *life), over.get(v)) for v, life in lives.items()]
    blocks = _joined([replace(b, over=x) for b, x in own])
    buffers = [*blocks, *_working(kernels, needs)]
    orders = ORDERS[:1] if len(buffers) > MANY_BUFFERS else ORDERS
    bound = lower_bound(buffers, len(kernels))
    best = place(sorted(buffers, key=orders[0]))
    for order in orders[1:]:
        if _top(best) == bound:
            break
        best = min(best, place(sorted(buffers, key=order)), key=_top)
    strides = tuple(_round(needs.get(k, Needs()).scratch, LINE) for k in kernels)
    return _planned(best, blocks, strides, bound)


def fitted(whole: Plan, size: Callable[[Buffer], int]) -> Plan:
    """A plan with buffers of `size` bytes, none larger than it was; none lies higher than before.

    ``a 0..800, b 800..1600  ->  a 0..100, b 128..228``
    """
    before = {replace(b, size=size(b)): at for b, at in whole.placed}
    blocks = _joined([b for b in before if b.variable is not None])
    lies = {block: before[chain[0]] for block, chain in blocks.items()}
    lies |= {b: at for b, at in before.items() if b.variable is None}
    best = place(sorted(lies, key=lambda b: lies[b]))
    bound = lower_bound(list(lies), len(whole.scratch))
    return _planned(best, blocks, whole.stride, bound)


def _planned(
    best: Sequence[tuple[Buffer, int]],
    blocks: Mapping[Buffer, Sequence[Buffer]],
    strides: Ints,
    bound: int,
) -> Plan:
    """The plan of what was placed; a stride for each launch."""
    placed = [(b, offset) for whole, offset in best for b in blocks.get(whole, (whole,))]
    check(placed)
    by_name = {b.name: offset for b, offset in best if b.variable is None}
    count = range(len(strides))
    return Plan(
        {b.variable: offset for b, offset in placed if b.variable is not None},
        tuple(by_name.get(f"scratch {n}", 0) for n in count),
        strides,
        tuple(by_name.get(f"shared {n}", 0) for n in count),
        _top(best),
        bound,
        sum(b.size for b, _ in placed),
        tuple(placed),
    )


def _joined(values: Sequence[Buffer]) -> dict[Buffer, list[Buffer]]:
    """One buffer for all values that are written over one another, in the order of their lives."""
    chains: dict[Variable | None, list[Buffer]] = {}
    for b in sorted(values, key=lambda b: b.first):
        chain = chains[b.variable] = chains.get(b.over, []) if b.over is not None else []
        chain.append(b)
    distinct = {id(chain): chain for chain in chains.values()}
    return {replace(chain[0], last=chain[-1].last): chain for chain in distinct.values()}


def lower_bound(buffers: Sequence[Buffer], launches: int) -> int:
    """The most bytes alive in one launch: no plan can need less."""
    change = [0] * (max(launches, 1) + 1)  # what is empty lives without a launch too
    for b in buffers:
        change[b.first] += b.size
        change[b.last + 1] -= b.size
    live = most = 0
    for delta in change:
        live += delta
        most = max(most, live)
    return most


def _buffer(variable: Variable, first: int, last: int) -> Buffer:
    size = size_bytes(variable)
    align = min(LINE, max(variable.dtype.itemsize, _power(size // 4)))
    return Buffer(variable.name, size, align, first, last, variable)


def _power(size: int) -> int:
    """The largest power of two that is no larger; 0 has none."""
    return 1 << (size.bit_length() - 1) if size else 0


def working_bytes(need: Needs) -> int:
    """What a launch takes in the arena beside its values."""
    one = need.threads == 1
    scratch = need.scratch if one else _round(need.scratch, LINE) * need.threads
    return scratch + need.shared


def _working(kernels: Sequence[Kernel], needs: Mapping[Kernel, Needs]) -> list[Buffer]:
    buffers = []
    for n, kernel in enumerate(kernels):
        need = needs.get(kernel, Needs())
        scratch = working_bytes(need) - need.shared
        if scratch:
            buffers.append(Buffer(f"scratch {n}", scratch, LINE, n, n))
        if need.shared:
            buffers.append(Buffer(f"shared {n}", need.shared, LINE, n, n))
    return buffers


def _round(size: int, align: int) -> int:
    return -(-size // align) * align


# Orders of placement: the largest first, the earliest, what takes most bytes for most launches, the
# latest, the longest.
ORDERS: tuple[Callable[[Buffer], Pair], ...] = (
    lambda b: (-b.size, b.first),
    lambda b: (b.first, -b.size),
    lambda b: (-b.size * (b.last - b.first + 1), b.first),
    lambda b: (-b.last, -b.size),
    lambda b: (b.first - b.last, -b.size),
)


def place(buffers: Sequence[Buffer]) -> list[tuple[Buffer, int]]:
    """Each buffer, in this order, at the lowest offset free for its whole life."""
    taken: list[tuple[int, int, int, int]] = []
    placed = []
    for b in buffers:
        at = 0
        for low, high, first, last in taken:
            if first > b.last or last < b.first:
                continue
            if at + b.size <= low:
                break
            at = max(at, _round(high, b.align))
        insort(taken, (at, at + b.size, b.first, b.last))
        placed.append((b, at))
    return placed


def _top(placed: Sequence[tuple[Buffer, int]]) -> int:
    return max((at + b.size for b, at in placed), default=0)


def check(placed: Sequence[tuple[Buffer, int]]) -> None:
    """Two buffers alive in one launch do not overlap, unless one is written over the other.

    Raises: InvalidIR naming both.
    """
    alive: list[tuple[Buffer, int]] = []
    for b, at in sorted(placed, key=lambda p: p[0].first):
        alive = [p for p in alive if p[0].last >= b.first]
        for other, offset in alive:
            taken = b.over is not None and b.over is other.variable and b.first == other.last
            if taken and (at, b.size) == (offset, other.size):
                continue
            if offset < at + b.size and at < offset + other.size:
                raise InvalidIR(f"plan: {b.name} overlaps {other.name} in launch {b.first}")
        if at % b.align:
            raise InvalidIR(f"plan: {b.name} at {at} is not aligned to {b.align} bytes")
        alive.append((b, at))
