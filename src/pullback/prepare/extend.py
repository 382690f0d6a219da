"""Sums of products made free of guards and divisions, so that they run as plain contractions.

The adjoint of a padded, strided convolution gathers: its index has ``//`` and ``%``, its taps are
guarded. Four rewrites give back a product of plain reads:

``y[i] = s[i + 1]; s[i] = sum[k] f(i, k)  ->  y[i] = sum[k] f(i + 1, k)``
``sum[j < 4, k < 2] a[2 * j + k] * w[2 * j + k]  ->  sum[k < 8] a[k] * w[k]``
``s[x] = sum[k] a[x // 3 + k] * w[x % 3, k]  ->  s[x] = p[x % 3, x // 3]``
with ``p[r, t] = sum[k] a[t + k] * w[r, k]``
``sum[k] (0 <= x - k ? a[x - k] * w[k] : 0)  ->  sum[k] a0[x - k + 9] * w[k]; a0: a between zeros``

The zeros multiply, so a weight that is no finite number makes the border of an adjoint NaN; not
where guards are kept.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from math import gcd

from pullback.algebra.affine import Affine, affine, factors, to_expr
from pullback.algebra.bounds import DIVIDED, bounds
from pullback.config import frozen
from pullback.cost.facts import elements, is_view, points
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Axis, Expr, Extent, Take, index, takes, upper
from pullback.ir.graph import (
    SUM,
    Definition,
    Graph,
    Keep,
    Map,
    Moves,
    Reduce,
    Value,
    read,
    substitute,
)
from pullback.ir.node import Node, walk
from pullback.machine.machine import Machine
from pullback.simplify import guards as G
from pullback.simplify.graph import Sources, alone
from pullback.simplify.product import uncast
from pullback.simplify.triangle import gap

# Phases of two need no shift: what depends on one of two places is affine.
PAIR = range(2)

Simplify = Callable[[Expr], Expr]
# Nanoseconds of all launches of a graph.
Priced = Callable[[Graph], float]
# Operands between zeros by their bodies: a forward sum and an adjoint read the same one.
Padded = dict[Expr, Definition]


def extend(
    graph: Graph, simplify: Simplify, machine: Machine, price: Priced | None = None
) -> Graph:
    """`graph` with its large guarded sums of products as plain ones, for a machine that packs; but
    for those that `price` says take less with their guards.
    """
    if not machine.packs:
        return graph
    uses = _uses(graph)
    sources = Sources({})
    fresh: dict[Value, Definition] = {}
    known: Padded = {}
    for old in graph.definitions:
        new = fresh[old] = sources.of(old)
        summed = _cropped(new, old, uses, fresh, simplify)
        sources.mapping[old] = _plain(summed, simplify, known, machine, price) or new
    return graph.of(sources.mapping)


def padded(order: Iterable[Definition], machine: Machine) -> set[Definition]:
    """Guarded views that a large sum of products reads again and again: better stored than moved
    into it, where every product would ask the guard: on a machine that packs what it reads.
    """
    views: set[Definition] = set()
    for definition in order if machine.packs else ():
        if not isinstance(definition.form, Reduce):
            continue
        for factor in map(uncast, factors(definition.body)):
            if not isinstance(factor, Take) or not isinstance(source := factor.source, Definition):
                continue
            if source.keep is not Keep.AUTO:
                continue
            if not isinstance(source.body, E.If) or not is_view(source.body):
                continue
            if _masks_cost(definition, machine, factor):
                views.add(source)
    return views


def _masks_cost(definition: Definition, machine: Machine, stored: Take | None = None) -> bool:
    """Whether to ask a guard at every point, compared and selected, takes longer than a launch, and
    than to write what is read instead. What lies apart in memory is read one by one where a guard
    says which of it is there (depthwise 5 x 5, stride 2, 144 channels of 28 x 28 by a guard 5.1 ms,
    between zeros 2.5, one Zen 3 core).
    """
    rates, size, each = machine.tables["whole"], 0, 0.0
    if stored is not None:
        size, last = elements(stored.source.shape), definition.axes[len(definition.shape) - 1]
        apart = abs(affine(stored.indices[-1]).of(last)) > 1
        each = machine.rate("unit", "gather") * apart
    asked = points(definition) * (2 * rates["plain"] + each)
    copied = 2 * size * float32.itemsize / rates["memory"]
    return asked >= max(copied, machine.rate("launch", "fork"))


def _uses(graph: Graph) -> Counter[Value]:
    """How many definitions read each value; being assigned counts as one."""
    uses = Counter(value for _, value in graph.assigns)
    for definition in graph.definitions:
        uses.update(definition.sources)
    return uses


def _cropped(
    view: Definition,
    old: Definition,
    uses: dict[Value, int],
    fresh: dict[Value, Definition],
    simplify: Simplify,
) -> Definition:
    """The sum that `view` reads a part of, over that part alone; else `view` itself."""
    take = old.body
    if not isinstance(old.form, Map) or not isinstance(take, Take) or old.keep is Keep.ALWAYS:
        return view
    source = fresh.get(take.source)
    if source is None or not isinstance(source.form, Reduce) or uses[take.source] > 1:
        return view
    if source.stop or source.keep is not Keep.AUTO or not all(map(_shifted, take.indices)):
        return view
    if elements(view.shape) > elements(source.shape):
        return view
    moves: Moves = dict(enumerate(take.indices))
    summed = E.axes(source.form.over, len(view.shape))
    moves |= dict(enumerate(summed, len(source.shape)))
    body = simplify(substitute(source.body, moves))
    return replace(view, name=source.name, body=body, form=source.form, origin=source.origin)


def _shifted(at: Expr) -> bool:
    """Whether an index is an axis, moved or not, or a literal."""
    form = affine(at)
    if len(form.terms) > 1:
        return False
    return all(isinstance(a, Axis) and c == 1 for a, c in form.terms)


def _plain(
    definition: Definition,
    simplify: Simplify,
    known: Padded,
    machine: Machine,
    price: Priced | None,
) -> Definition | None:
    """A large sum of guarded or divided products as a plain one; None where it is no such sum."""
    form = definition.form
    if not isinstance(form, Reduce) or form.combiner is not SUM:
        return None
    if not all(isinstance(e, int) for e in definition.extents):
        return None
    if not definition.dtype.is_float or not _masks_cost(definition, machine):
        return None
    definition = _rejoined(definition, simplify)
    phases = _phases(definition)
    split = definition if not phases else _split(definition, phases, simplify)
    whole = _extended(split, len(phases), simplify, known, machine)
    if whole is not None and price is not None and not phases:
        return _cheaper(definition, whole, simplify, machine, price)
    return _joined(definition, whole, phases) if whole is not None and phases else whole


def _rejoined(definition: Definition, simplify: Simplify) -> Definition:
    """Pairs of summed axes that every index joins, as one: ``n * j + k, k < n``."""
    form = definition.form
    rank = len(definition.shape)
    if not isinstance(form, Reduce):
        return definition
    for n, m in permutations(range(len(form.over)), 2):
        extents = [upper(e) for e in form.over]
        high, low = (Axis(rank + a, form.over[a]) for a in (n, m))
        at = [affine(i) for t in definition.reads for i in t.indices]
        if not any(f.of(low) for f in at):
            continue
        if any(f.of(high) != f.of(low) * extents[m] for f in at):
            continue
        over = [*form.over]
        over[n] = extents[n] * extents[m]
        del over[m]
        joined = Axis(rank + n - (m < n), over[n - (m < n)])
        moves: Moves = {}
        for number, extent in enumerate(form.over):
            moves[rank + number] = Axis(rank + number - (number > m), extent)
        moves[high.number] = E.FloorDiv(joined, index(extents[m]))
        moves[low.number] = E.Mod(joined, index(extents[m]))
        body = simplify(substitute(definition.body, moves))
        if _divisions(body) <= _divisions(definition.body):
            whole = replace(form, over=tuple(over))
            return _rejoined(replace(definition, body=body, form=whole), simplify)
    return definition


def _divisions(body: Expr) -> int:
    return sum(isinstance(n, DIVIDED) for n in walk(body))


@frozen
class _Phase:
    """Output axis `axis` as ``step * (t + first) + r - shift`` with ``0 <= r < step``."""

    axis: int
    step: int
    shift: int
    first: int
    count: int


def _phases(definition: Definition) -> list[_Phase]:
    """The output axes that the body divides, each by one literal."""
    phases: dict[int, _Phase] = {}
    for node in walk(definition.body):
        step = E.divisor(node)
        if not step or not isinstance(node, DIVIDED):
            continue
        form = affine(node.left)
        axis = form.terms[0][0] if form.terms else None
        if len(form.terms) != 1 or not isinstance(axis, Axis) or form.terms[0][1] != 1:
            continue
        if axis.number >= len(definition.shape) or axis.number in phases:
            continue
        shift = 0 if step == len(PAIR) else form.const
        first = shift // step
        last = (upper(axis.extent) - 1 + shift) // step
        phases[axis.number] = _Phase(axis.number, step, shift, first, last - first + 1)
    return [phases[n] for n in sorted(phases)]


def _split(definition: Definition, phases: list[_Phase], simplify: Simplify) -> Definition:
    """The sum over phases and places: ``s[x] -> p[x % step, x // step]``, phases first."""
    extra = len(phases)
    moves: Moves = dict(enumerate(E.axes(definition.extents, extra)))
    shape: list[Extent] = list(definition.shape)
    for number, phase in enumerate(phases):
        place = Axis(phase.axis + extra, phase.count)
        rest = Axis(number, phase.step)
        shape[phase.axis] = phase.count
        whole = E.Mul(E.Add(place, index(phase.first)), index(phase.step))
        moves[phase.axis] = E.Add(E.Add(whole, rest), index(-phase.shift))
    body = simplify(substitute(definition.body, moves))
    body = simplify(E.rewritten(body, _of_pair))
    steps = [phase.step for phase in phases]
    return replace(definition, shape=(*steps, *shape), body=body, stop=False, keep=Keep.AUTO)


def _of_pair(node: Node) -> Node | None:
    """A quotient or remainder of an axis of two places, which is affine.

    ``(r + 1) // 2 -> r, (r + 1) % 2 -> 1 - r``
    """
    size = E.divisor(node)
    if not size or not isinstance(node, DIVIDED) or len(node.axes) != 1:
        return None
    form = affine(node.left)
    axis = form.terms[0][0]
    if not isinstance(axis, Axis) or len(form.terms) > 1 or axis.extent != len(PAIR):
        return None
    both = [divmod(form.const + form.terms[0][1] * r, size) for r in PAIR]
    first, second = (v[isinstance(node, E.Mod)] for v in both)
    return E.Add(E.Mul(axis, index(second - first)), index(first))


def _joined(definition: Definition, split: Definition, phases: list[_Phase]) -> Definition:
    """``s[x] = p[(x + shift) % step, (x + shift) // step - first]``"""
    axes: list[Expr] = [*E.axes(definition.shape)]
    rests: list[Expr] = []
    for phase in phases:
        moved = E.Add(axes[phase.axis], index(phase.shift))
        rests.append(E.Mod(moved, index(phase.step)))
        place = E.FloorDiv(moved, index(phase.step))
        axes[phase.axis] = E.Add(place, index(-phase.first))
    return replace(definition, body=read(split, *rests, *axes), form=Map())


@dataclass(slots=True)
class _Operand:
    """A factor that is one read, cast or not: the range of each index, the part that counts."""

    factor: Expr
    take: Take
    forms: list[Affine]
    reached: list[tuple[int, int]]
    valid: list[tuple[int, int]]

    @classmethod
    def of(cls, factor: Expr, take: Take) -> _Operand:
        forms = [affine(i) for i in take.indices]
        reached = [bounds(to_expr(f)) for f in forms]
        return cls(factor, take, forms, reached, [(0, upper(e) - 1) for e in take.source.shape])

    def limit(self, guard: Affine) -> bool:
        """Take up ``guard >= 0`` as a bound of one index. False where it is none."""
        for place, form in enumerate(self.forms):
            for factor in guard.multiples(form):
                lo, hi = bounds(to_expr(guard.plus(form, -factor)))
                a, b = self.valid[place]
                if factor > 0 and -(lo // factor) == -(hi // factor):
                    self.valid[place] = max(a, -(lo // factor)), b
                    return True
                if factor < 0 and lo // -factor == hi // -factor:
                    self.valid[place] = a, min(b, lo // -factor)
                    return True
            for factor in form.multiples(guard):
                lo, hi = bounds(to_expr(form.plus(guard, -factor)))
                if lo == hi:
                    a, b = self.valid[place]
                    self.valid[place] = (max(a, lo), b) if factor > 0 else (a, min(b, lo))
                    return True
        return False

    @property
    def plain(self) -> bool:
        """Whether every index that is reached counts."""
        pairs = zip(self.reached, self.valid, strict=True)
        return all(v[0] <= r[0] and r[1] <= v[1] for r, v in pairs)

    def extended(self, simplify: Simplify, known: Padded) -> Take:
        """A read of the source between zeros, of what lies in steps only that:
        ``p[u] = first <= s * u + lo <= last ? x[s * u + lo] : 0``
        """
        source = self.take.source
        indices: list[Expr] = []
        shape: list[int] = []
        inner: list[Expr] = []
        guards: list[Expr] = []
        for place, form in enumerate(self.forms):
            lo, hi = self.reached[place]
            a, b = self.valid[place]
            step = gcd(*(c for _, c in form.terms)) or 1
            if a <= lo and hi <= b:
                lo, hi, step = 0, upper(source.shape[place]) - 1, 1
            count = (hi - lo) // step + 1
            at = E.Add(E.Mul(Axis(place, count), index(step)), index(lo))
            guards += [E.Less(index(a - 1), at)] if lo < a else []
            guards += [E.Less(at, index(b + 1))] if b < hi else []
            shape.append(count)
            inner.append(at)
            coefficients = tuple((atom, c // step) for atom, c in form.terms)
            indices.append(to_expr(form.made(coefficients, (form.const - lo) // step)))
        body = simplify(G.guarded(guards, read(source, *inner)))
        made = Definition(f"{source}_between_zeros", tuple(shape), body, origin=source.origin)
        whole = known.get(body)
        if whole is None or whole.shape != made.shape:
            whole = known[body] = made
        return read(whole, *indices)


def _extended(
    definition: Definition, phases: int, simplify: Simplify, known: Padded, machine: Machine
) -> Definition | None:
    """The sum with its guards in the operands; None where it is no product of reads.

    Guards over the first `phases` axes and what is summed say which terms there are: they stay.
    """
    guards: list[Expr] = []
    terms = _bared(definition.body, guards)
    reads = [(f, uncast(f)) for f in terms]
    operands = [_Operand.of(f, take) for f, take in reads if isinstance(take, Take)]
    others = [f for f, take in reads if not isinstance(take, Take)]
    if len(operands) < 2 or any(G.reads_data(f) for f in others):
        return None
    if any(G.reads_data(i) for o in operands for i in o.take.indices):
        return None
    rank = len(definition.shape)
    settled = {*range(phases), *range(rank, len(definition.extents))}
    kept: list[Expr] = []
    for guard in guards:
        form = gap(guard)
        if phases and guard.axes <= settled and form is not None:
            kept.append(guard)
            continue
        if form is None or not any(o.limit(form) for o in operands):
            return None
    parts: list[Expr] = []
    for operand in operands:
        take = operand.take if operand.plain else operand.extended(simplify, known)
        if not operand.plain and not _pays(definition, operand.take, take, machine):
            return None
        parts.append(take if operand.factor is operand.take else E.Cast(take, definition.dtype))
    if kept:
        wanted, sizes = frozenset(range(phases)), [elements(o.take.source.shape) for o in operands]
        one = max(range(len(parts)), key=lambda n: (len(parts[n].axes & wanted), -sizes[n]))
        parts[one] = G.guarded(kept, parts[one])
    whole = _ascending(definition, functools.reduce(E.Mul, [*parts, *others]), simplify)
    return None if _divisions(whole) else replace(definition, body=whole)


def _cheaper(
    definition: Definition,
    whole: Definition,
    simplify: Simplify,
    machine: Machine,
    price: Priced,
) -> Definition:
    """`definition` with its guards where that is priced well below `whole`, which is without: tiles
    of few places leave out what lies in the zeros, and nothing is copied. Not asked where zeros are
    too few to save as much, or `whole` takes little more than its multiply-adds.
    """
    made = [v for v in whole.sources if v not in definition.sources]
    gain = machine.rate("product", "guarded")
    few = all(
        elements(inner.shape) >= gain * elements(one.shape)
        for one in made
        if isinstance(one, Definition)
        for inner in one.sources
    )
    guarded = None if few else _guarded(definition, simplify)
    if guarded is None:
        return whole
    lanes = machine.vector // definition.dtype.itemsize
    least = points(definition) / lanes * machine.rate("unit", "multiply_add")
    limit = gain * price(alone(whole, definition.sources))
    if least < limit and price(alone(guarded, definition.sources)) < limit:
        return guarded
    return whole


def _guarded(definition: Definition, simplify: Simplify) -> Definition | None:
    """The sum with each guard around the factor that it bounds; None where no tile can leave out
    what the guards do: rows and columns of one are along axes that no guard asks.

    ``sum[k] (0 <= x - k ? a[x - k] * w[k] : 0)  ->  sum[k] (0 <= x - k ? a[x - k] : 0) * w[k]``
    """
    guards: list[Expr] = []
    terms = _bared(definition.body, guards)
    asked = frozenset[int]().union(*(guard.axes for guard in guards))
    free = [n for n, e in enumerate(definition.shape) if n not in asked and upper(e) > 1]
    sides = [{n for n in free if n in term.axes} for term in terms]
    if not guards or len({frozenset(s) for s in sides if s}) < 2:
        return None
    one = max(range(len(terms)), key=lambda n: len(terms[n].axes & asked))
    terms[one] = G.guarded(guards, terms[one])
    body = _ascending(definition, functools.reduce(E.Mul, terms), simplify)
    return replace(definition, body=body)


def _ascending(definition: Definition, body: Expr, simplify: Simplify) -> Expr:
    """`body` with summed axes turned round that its largest operand is read backwards along.

    Memory is fetched ahead upwards: 3x3 of 14x14x256, 67 -> 19 ms.
    """
    rank = len(definition.shape)
    turned: Moves = {}
    for number, extent in enumerate(definition.extents[rank:], start=rank):
        axis = Axis(number, extent)
        steps = [
            (elements(take.source.shape), affine(i).of(axis))
            for take in takes(body)
            for i in take.indices
        ]
        _, step = max((s for s in steps if s[1]), default=(0, 0))
        if step < 0:
            last = index(upper(extent) - 1)
            turned[number] = E.Add(last, E.Mul(axis, index(-1)))
    return simplify(substitute(body, turned)) if turned else body


def _bared(body: Expr, guards: list[Expr]) -> list[Expr]:
    """The factors of a product, whose guards, around it or a factor, are added to `guards`."""
    bared: list[Expr] = []
    waiting = [body]
    while waiting:
        factor = waiting.pop()
        guarded = isinstance(factor, E.If) and E.is_const(factor.otherwise, 0)
        if isinstance(factor, E.If) and guarded and not G.reads_data(factor.condition):
            guards += G.conjuncts(factor.condition)
            waiting.append(factor.then)
        elif len(inner := factors(factor)) > 1:
            waiting += reversed(inner)
        else:
            bared.append(factor)
    return bared


def _pays(definition: Definition, old: Take, new: Take, machine: Machine) -> bool:
    """Whether the operand may be copied, and the copy is small beside the products."""
    source = old.source
    if isinstance(source, Definition) and source.unstored:
        return False
    return _masks_cost(definition, machine, new)
