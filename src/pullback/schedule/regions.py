"""Where a stage has work to do: affine bounds over its axes, taken from the guards in its body.

``sum[k](if(k < i + 1, x[k], 0))`` has terms only where ``i - k >= 0``. A map that is zero outside
such bounds shrinks the sums that read it, and a value read under bounds only is needed only there.
A zero factor makes a product zero, whatever the other factor, and so does a zero numerator
(PyTorch's fused attention does the same): terms outside the bounds are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pullback.algebra.guards import demands, parts
from pullback.algebra.linear import Linear, linear
from pullback.config import entity
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, Size, Take, takes
from pullback.ir.graph import Definition, Map, Reduce, Value
from pullback.ir.kernel import Stages
from pullback.simplify.guards import contexts


@entity
class Bound:
    """``form >= 0``. Where it fails each test has the value beside it; where every bound of a
    test holds, the test has the other value.
    """

    form: Linear
    tests: tuple[tuple[Expr, bool], ...] = ()

    def same(self, other: Bound) -> bool:
        """Whether both bound the same coordinates."""
        return self.form.minus(other.form) == Linear()


Region = tuple[Bound, ...]


def bounds_of(condition: Expr, holds: bool = True) -> list[Bound]:
    """Affine bounds that follow where `condition` holds (or does not); data give none.

    ``(k < i + 1) & (i < k + w) -> i - k >= 0, k - i + w - 1 >= 0``
    """
    bounds: list[Bound] = []
    for e, positive in parts(condition, holds):
        if isinstance(e, E.Comparison) and e.left.dtype == int64:
            forms = _comparison(e, positive)
            whole = all(_over_axes(f) and (f.terms or f.const >= 0) for f in forms)
            tests = ((e, not positive),) if whole else ()
            bounds += [Bound(f, tests) for f in forms if f.terms and _over_axes(f)]
    return bounds


def _comparison(e: E.Comparison, holds: bool) -> list[Linear]:
    if isinstance(e, E.Equal) or not holds:
        return demands(e, holds, linear)
    return [linear(e.right).minus(one).shifted(-1) for one in _parts(e.left)]


def _parts(value: Expr) -> list[Linear]:
    """The forms whose largest is `value`. ``if(x < 0, -x, x) -> -x, x``"""
    if not isinstance(value, E.If) or not isinstance(value.condition, E.Less):
        return [linear(value)]
    test = value.condition
    if test.left.dtype != int64:
        return [linear(value)]
    first, second = linear(value.then), linear(value.otherwise)
    gap, margin = first.minus(second), linear(test.right).minus(linear(test.left))
    factor = next((gap.of(a) // c for a, c in margin.terms), 0)
    rest = gap.plus(margin, -factor)
    if factor < 1 or not rest.is_constant or not -factor <= rest.const <= 0:
        return [linear(value)]
    return [first, second]


def _over_axes(form: Linear) -> bool:
    """Whether a form is over axes and extents alone."""
    return not any(takes(form.atoms))


def outside(body: Expr, nothing: Expr, zeros: dict[Value, Region]) -> Region:
    """Bounds outside which `body` is `nothing`, the identity of what it is combined with."""
    bounds: list[Bound] = []
    zero = nothing is E.const(0, nothing.dtype)
    stack = [(body, nothing)]
    while stack:
        e, nothing = stack.pop()
        if isinstance(e, E.If) and e.otherwise is nothing:
            bounds += bounds_of(e.condition)
            stack.append((e.then, nothing))
        elif isinstance(e, E.If) and e.then is nothing:
            bounds += bounds_of(e.condition, False)
            stack.append((e.otherwise, nothing))
        elif isinstance(e, E.Mul) and zero:
            stack += [(e.right, nothing), (e.left, nothing)]
        elif isinstance(e, E.Div) and zero:
            stack.append((e.left, nothing))
        elif isinstance(e, E.Cast) and zero and e.value.dtype.is_float:
            stack.append((e.value, E.const(0, e.value.dtype)))
        elif isinstance(e, Take) and zero and e.source in zeros:
            bounds += [_read(b, e) for b in zeros[e.source]]
    return _merged(b for b in bounds if b.form.terms and _over_axes(b.form))


def _read(bound: Bound, take: Take) -> Bound:
    """A bound over the axes of what is read, over the reader's."""

    def at(atom: Expr) -> Expr:
        return take.indices[atom.number] if isinstance(atom, Axis) else atom

    return Bound(with_atoms(bound.form, at))


def with_atoms(form: Linear, change: Callable[[Expr], Expr]) -> Linear:
    """A form with other values for its atoms."""
    total = Linear(form.const)
    for atom, coefficient in form.terms:
        total = total.plus(linear(change(atom)), coefficient)
    return total


def _merged(bounds: Iterable[Bound]) -> Region:
    """Equal bounds once, with the tests of all."""
    distinct: list[Bound] = []
    for bound in bounds:
        at = next((n for n, b in enumerate(distinct) if b.same(bound)), None)
        if at is None:
            distinct.append(bound)
            continue
        tests = dict.fromkeys(distinct[at].tests + bound.tests)
        distinct[at] = Bound(bound.form, tuple(tests))
    return tuple(distinct)


def common(regions: Sequence[Region]) -> Region:
    """The bounds that every region has."""
    first, *rest = regions
    kept = [b for b in first if all(any(b.same(o) for o in other) for other in rest)]
    shared = [o for other in rest for o in other if any(o.same(b) for b in kept)]
    return _merged([*kept, *shared])


@entity
class Regions:
    """Of each stage: where it has work to do, and where its value is read at all."""

    work: dict[Value, Region]
    needed: dict[Value, Region]


@lru_cache(maxsize=64)
def regions(stages: Stages, finish: Stages = ()) -> Regions:
    """The regions of stages in order. Nothing is said of scans and accumulating writes.

    Once for stages: each schedule of a kernel, and each nest, asks for them.
    """
    zeros: dict[Value, Region] = {}
    work: dict[Value, Region] = {}
    for stage in (*stages, *finish):
        body = stage.body
        if isinstance(stage.form, Reduce):
            nothing = stage.form.combiner.identity(body.dtype)
            work[stage.target] = outside(body, nothing, zeros)
        elif isinstance(stage.form, Map):
            work[stage.target] = outside(body, E.const(0, body.dtype), zeros)
            plain = (b for b in work[stage.target] if all(_plain(a) for a in b.form.atoms))
            zeros[stage.target] = tuple(plain)
    return Regions(work, _needed(stages, finish))


def _plain(atom: Expr) -> bool:
    return isinstance(atom, Axis | Size)


def _needed(stages: Stages, finish: Stages) -> dict[Value, Region]:
    """Bounds under which every read of a stage that is not stored stands."""
    own = {s.target for s in stages if s.store is None and not s.partial}
    regions: dict[Value, list[Region]] = {}
    for stage in (*stages, *finish):
        if not any(take.source in own for take in takes(stage.body)):
            continue
        for node, paths in contexts((stage.body,)).items():
            if isinstance(node, Take) and isinstance(node.source, Definition):
                guards = [[b for g in path for b in bounds_of(g)] for path in paths]
                mapped = [_of_source(path, node) for path in guards]
                regions.setdefault(node.source, []).extend(mapped)
    return {v: common(r) for v, r in regions.items() if v in own}


def _of_source(bounds: Iterable[Bound], take: Take) -> Region:
    """Bounds over the reader's axes, over the axes of what is read; others are dropped."""
    places = {a: Axis(n, take.source.shape[n]) for n, a in enumerate(take.indices)}
    mapped = []
    for bound in bounds:
        if all(isinstance(a, Size) or (_plain(a) and a in places) for a in bound.form.atoms):
            terms = {places.get(a, a): c for a, c in bound.form.terms}
            mapped.append(Bound(Linear(bound.form.const, terms)))
    return _merged(mapped)
