"""Algebra on whole graphs: simpler bodies, equal definitions merged, copies forwarded.

``a = f(x); b = f(x); c[i] = b[i]; d = a + c  ->  a = f(x); d = a + a``

Dead definitions need no pass: a graph is what its assignments reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.graph import (
    SUM,
    Accumulate,
    Definition,
    Graph,
    Keep,
    Map,
    Moves,
    Reduce,
    Scan,
    Value,
    Variable,
    read,
    substitute,
    topological,
)
from pullback.ir.node import Memo, Node
from pullback.simplify.guards import reads_data
from pullback.simplify.product import Quotient
from pullback.simplify.rounding import parts
from pullback.simplify.rules import RULES, Rules, Simplifier
from pullback.simplify.triangle import running


class Sources:
    """Replaces the sources of reads; one memo for a whole graph, visited sources first.

    `through`: a broadcast and a literal are read through, ``y[i, j] = x[j]; z[i] = y[i, 2] ->
    z[i] = x[2]``. Not at data indices: they are still to be checked.
    """

    def __init__(self, mapping: Mapping[Value, Value], through: bool = False) -> None:
        self.mapping: dict[Value, Value] = dict(mapping)
        self.through = through
        self.memo: Memo = {}

    def __call__(self, root: Expr) -> Expr:
        return E.rewritten(root, self._change, self.memo)

    def of(self, definition: Definition) -> Definition:
        """A definition that reads them; itself where nothing changed."""
        return with_roots(definition, [self(root) for root in definition.roots])

    def _change(self, node: Node) -> Node | None:
        if not isinstance(node, Take):
            return None
        source = self.mapping.get(node.source, node.source)
        plain = self.through and not any(map(reads_data, node.indices))
        wide = _repeated(source) if plain else None
        if isinstance(wide, Take):
            return wide.with_children(tuple(_through(i, node.indices) for i in wide.indices))
        if wide is not None:
            return wide
        return None if source is node.source else node.of(source)


def _repeated(value: Value) -> Take | E.Const | None:
    """What a definition merely repeats: a literal, or ``y[i, j] = x[j]`` larger than `x`."""
    if not isinstance(value, Definition) or not isinstance(value.form, Map):
        return None
    body = value.body
    if isinstance(body, E.Const) and value.keep is not Keep.ALWAYS:
        return body
    if not isinstance(body, Take) or value.keep is Keep.ALWAYS:
        return None
    plain = all(isinstance(i, E.Axis | E.Const) for i in body.indices)
    used = {i.number for i in body.indices if isinstance(i, E.Axis)}
    wider = any(e != 1 for n, e in enumerate(value.shape) if n not in used)
    return body if plain and wider else None


def _through(index: Expr, indices: Sequence[Expr]) -> Expr:
    return indices[index.number] if isinstance(index, E.Axis) else index


def alone(definition: Definition, sources: Iterable[Value]) -> Graph:
    """A graph of one definition and what it takes to compute it from `sources`, in memory."""
    over = Sources({v: Variable(v.name, v.shape, v.dtype) for v in sources})
    for one in topological([definition], skip=dict(over.mapping)):
        over.mapping[one] = over.of(one)
    result = Variable("result", definition.shape, definition.dtype)
    return Graph(((result, over.mapping[definition]),))


def with_roots(definition: Definition, roots: Sequence[Expr]) -> Definition:
    """`definition` with another body (and write indices); itself where nothing changed."""
    if all(a is b for a, b in zip(roots, definition.roots, strict=True)):
        return definition
    form = definition.form
    if isinstance(form, Accumulate):
        form = replace(form, at=tuple(roots[1:]))
    return replace(definition, body=roots[0], form=form)


def rewire(values: Iterable[Value], mapping: Mapping[Value, Value]) -> list[Value]:
    """`values` with every read of a key of `mapping` going to its value instead.

    Definitions that do not depend on a key are kept as they are; the others are cloned.
    """
    values = list(values)
    sources = Sources(mapping)
    for definition in topological(values):
        if definition not in mapping:
            sources.mapping[definition] = sources.of(definition)
    return [sources.mapping.get(v, v) for v in values]


def simplify_graph(graph: Graph, rules: Rules = RULES) -> Graph:
    """Bodies in normal form, without arithmetic in 16 bits, equal definitions merged, plain
    copies forwarded; idempotent.

    Merging ends the identity of definitions, so differentiation must be done.
    """
    sources = Sources({}, through=True)
    simplifier = Simplifier(rules)
    merged: dict[Any, Definition] = {}
    for definition in graph.definitions:
        for part in parts(definition):
            roots = [simplifier(sources(r)) for r in part.roots]
            fresh = with_roots(part, roots)
            copied = forwarded(fresh)
            if copied is None:
                fresh = _run(_without_units(fresh), simplifier, merged)
                fresh = _divided(_parted(fresh, simplifier, merged), simplifier, merged)
                fresh = _narrowed(fresh, merged)
                copied = merged.setdefault(_identity(fresh), fresh)
            sources.mapping[definition] = sources.mapping[part] = copied
    return graph.of(sources.mapping)


def _run(d: Definition, simplifier: Simplifier, merged: dict[Any, Definition]) -> Definition:
    """A reduction over a triangle that factors as a running one, in normal form."""

    def share(whole: Definition) -> Definition:
        fresh = _narrowed(with_roots(whole, [simplifier(whole.body)]), merged)
        return merged.setdefault(_identity(fresh), fresh)

    factored = running(d, share)
    return d if factored is None else with_roots(factored[0], [simplifier(factored[0].body)])


def _without_units(d: Definition) -> Definition:
    """A reduction without the axes of one term, unless it has no others.

    ``sum[k < 64, p < 1] x[k] * w[k, p]  ->  sum[k < 64] x[k] * w[k, 0]``
    """
    if not isinstance(d.form, Reduce):
        return d
    rank = len(d.shape)
    inner = d.axes[rank:]
    kept = [a for a in inner if a.extent != 1]
    if len(kept) == len(inner) or not kept:
        return d
    axes: Moves = {a.number: E.index(0) for a in inner}
    axes |= {a.number: Axis(rank + n, a.extent) for n, a in enumerate(kept)}
    form = Reduce(d.form.combiner, tuple(a.extent for a in kept))
    return replace(d, body=substitute(d.body, axes), form=form)


def _parted(d: Definition, simplifier: Simplifier, merged: dict[Any, Definition]) -> Definition:
    """A sum over fewer axes, times what its terms share.

    ``y[i, j] = sum[k](f[i] * x[j, k])  ->  y[i, j] = f[i] * z[j], z[j] = sum[k] x[j, k]``

    Not of an extent that may be 0: of no terms an infinite factor is none.
    """
    if not _sums(d):
        return d
    shared, inner = Quotient.of(d.body).split(frozenset(range(len(d.shape), len(d.extents))))
    if shared.literal()[1].trivial or inner.trivial:
        return d
    terms = replace(d, body=simplifier(inner.expression()))
    narrow = _narrowed(terms, merged)
    if narrow is terms:
        return d
    return replace(narrow, body=simplifier(E.Mul(shared.expression(), narrow.body)))


def _sums(d: Definition) -> bool:
    """Whether it is a sum of floats, of at least one."""
    form = d.form
    if not isinstance(form, Reduce) or form.combiner is not SUM or not d.dtype.is_float:
        return False
    return d.keep is not Keep.ALWAYS and all(isinstance(e, int) for e in form.over)


def _divided(d: Definition, simplifier: Simplifier, merged: dict[Any, Definition]) -> Definition:
    """A sum of products, divided once by what all terms are divided by.

    ``y[i, j] = sum[k](a[i, k] * b[k, j] / s[i])  ->  y[i, j] = z[i, j] / s[i]``
    """
    if not _sums(d):
        return d
    divisors: list[Expr] = []
    body = simplifier(_undivided(d.body, frozenset(range(len(d.shape), len(d.extents))), divisors))
    if not isinstance(body, E.Mul):
        return d
    terms = with_roots(d, [body])
    if not divisors:
        return terms
    value: Expr = read(merged.setdefault(_identity(terms), terms), *d.axes[: len(d.shape)])
    for divisor in divisors:
        value = E.Div(value, divisor)
    return replace(d, body=simplifier(value), form=Map())


def _undivided(e: Expr, loops: frozenset[int], divisors: list[Expr]) -> Expr:
    """A product without the divisors that are free of the axes `loops`, which are added to
    `divisors`; others divide one factor.

    ``a[i, k] * b[k, j] / s[k] / t[j]  ->  a[i, k] / s[k] * b[k, j]``
    """
    if isinstance(e, E.Mul):
        parts = [_undivided(part, loops, divisors) for part in (e.left, e.right)]
        return e.with_children(tuple(parts))
    if not isinstance(e, E.Div):
        return e
    left = _undivided(e.left, loops, divisors)
    if e.right.axes.isdisjoint(loops):
        divisors.append(e.right)
        return left
    if not isinstance(left, E.Mul):
        return e.with_children((left, e.right))
    if e.right.axes <= left.left.axes:
        return E.Mul(E.Div(left.left, e.right), left.right)
    return E.Mul(left.left, E.Div(left.right, e.right))


def _narrowed(d: Definition, merged: dict[Any, Definition]) -> Definition:
    """``y[i, j] = sum[k] x[i, k]`` as a copy of ``z[i] = sum[k] x[i, k]``, computed once for all j.

    So is a map ``y[i, j] = f(x[i])``: a sum that reads it may then be narrower, too. One that
    reads nothing costs less than the copy. `merged` holds, and is given, what copies read.
    """
    form = d.form
    if not isinstance(form, Map | Reduce | Scan) or d.keep is Keep.ALWAYS:
        return d
    if isinstance(form, Map) and (isinstance(d.body, Take) or not d.reads):
        return d
    scanned = {form.axis} if isinstance(form, Scan) else set()
    used = d.body.axes | scanned
    kept = [a for a in d.axes[: len(d.shape)] if a.number in used or a.extent == 1]
    if len(kept) == len(d.shape):
        return d
    inner = d.axes[len(d.shape) :]
    axes = {a.number: Axis(n, a.extent) for n, a in enumerate((*kept, *inner))}
    if isinstance(form, Scan):
        form = Scan(form.combiner, axes[form.axis].number)
    shape = tuple(a.extent for a in kept)
    body = substitute(d.body, dict(axes))
    narrow = replace(d, shape=shape, body=body, form=form)
    narrow = merged.setdefault(_identity(narrow), narrow)
    return replace(d, body=read(narrow, *kept), form=Map())


def _identity(d: Definition) -> tuple[Any, ...]:
    """What makes two definitions the same, names and places aside."""
    return d.shape, d.form, d.body, d.stop, d.keep


def forwarded(definition: Definition) -> Value | None:
    """The value that a definition merely copies: ``y[i, j] = x[i, j]`` over the same box."""
    body = definition.body
    if not isinstance(definition.form, Map) or not isinstance(body, Take):
        return None
    if definition.stop or definition.keep is Keep.ALWAYS:
        return None
    if body.source.shape != definition.shape:
        return None
    for axis, index in zip(definition.axes, body.indices, strict=True):
        unit = axis.extent == 1 and isinstance(index, E.Axis | E.Const)
        if index is not axis and not unit:
            return None
    return body.source
