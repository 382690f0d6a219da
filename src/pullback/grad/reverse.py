"""Reverse mode over definitions: one sweep per body, one summand per read, one sum per tensor.

    s[i] = sum[k] x[i, k] * w[k]      ds -> dx[i, k] = ds[i] * w[k],  dw[k] = sum[i] ds[i] * x[i, k]

Adjoints are definitions like any other, so they can be differentiated, fused and printed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from pullback.errors import GradientError, UnsupportedError
from pullback.grad import fold
from pullback.grad.fold import Term
from pullback.grad.forms import At, body_adjoint, picked, sums_nothing
from pullback.grad.gather import Gatherer
from pullback.grad.masks import Masks, steep
from pullback.grad.pins import Pins
from pullback.grad.reuse import reused
from pullback.grad.rules import Rules, active, fitting, ordered, own_rule
from pullback.grad.scalar import sweep
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Definition, Keep, Label, Map, Rule, Value, identity, placed_at
from pullback.ir.node import walk
from pullback.simplify import guards as G
from pullback.simplify.triangle import running

_log = logging.getLogger("pullback.grad")


def gradients(output: Value, inputs: Sequence[Value], head: Value | None = None) -> list[Value]:
    """``d output / d input`` times `head`, for each input, with its shape and dtype.

    Without a head, `output` must be a scalar. An input without influence has a zero gradient.
    Raises: GradientError for an output or input without a gradient, or a head that does not fit.
    """
    state = Reverse([output], inputs, [head])
    return [state.gradient(value) for value in inputs]


def _check(
    outputs: Sequence[Value], inputs: Sequence[Value], heads: Sequence[Value | None]
) -> None:
    for output in outputs:
        if not output.dtype.is_float:
            raise GradientError(
                f"{output!r} is {output.dtype}: only a float has a gradient",
                origin=output.origin,
                code="E202",
            )
    for value in inputs:
        if not value.dtype.is_float:
            raise GradientError(
                f"no gradient with respect to {value!r}, which is {value.dtype}",
                origin=value.origin,
                code="E204",
            )
    for output, head in zip(outputs, heads, strict=True):
        _check_head(output, head)


def _check_head(output: Value, head: Value | None) -> None:
    if head is None and output.shape != ():
        raise GradientError(
            f"the gradient of {output!r} needs a scalar, and its shape is {output.shape}",
            origin=output.origin,
            help="sum it, or give the adjoint of the output as head",
            code="E203",
        )
    if head is not None and (head.shape, head.dtype) != (output.shape, output.dtype):
        raise GradientError(
            f"head is {head.dtype}{head.shape}, the output {output.dtype}{output.shape}",
            origin=head.origin or output.origin,
            code="E205",
        )


class Reverse:
    """One reverse pass: the adjoints of all values between `outputs` and `inputs`.

    `summands[value][consumer]` hold what the adjoint of a value adds up from; the consumer of a
    head is None. With `pins`, equations of an adjoint's coordinates enter what is pulled next.
    `stored`: what maps compute is at hand, as it is in the backward of a loop.
    """

    def __init__(
        self,
        outputs: Sequence[Value],
        inputs: Sequence[Value],
        heads: Sequence[Value | None],
        rules: Rules = own_rule,
        pins: Pins | None = None,
        stored: bool = False,
    ) -> None:
        _check(outputs, inputs, heads)
        self.stored = stored
        self.inputs = tuple(inputs)
        self.rules = rules
        self.pins = pins
        self.order = ordered(outputs, rules)
        self.active = active(self.order, inputs, rules)
        self.gatherer = Gatherer()
        self.summands: dict[Value, dict[Value | None, list[Expr]]] = {}
        self.adjoints: dict[Value, Value] = {}
        self.made: set[Value] = set()
        self.masks = Masks()
        for output, head in zip(outputs, heads, strict=True):
            seed = identity(head) if head is not None else fold.one(output.dtype)
            self._add(output, None, [seed])
        self._run()

    def _run(self) -> None:
        for step in reversed(self.order):
            if isinstance(step, Rule):
                if step in self.active:
                    self._apply(step)
                continue
            adjoint = self._adjoint(step) if step in self.active else None
            if adjoint is None or step.stop:
                continue
            if self.rules(step) is None:
                _log.debug("%r: derived", step)
                self._pull(step, adjoint)

    def gradient(self, value: Value) -> Value:
        """The finished adjoint, or zeros."""
        return self._adjoint(value) or zeros(value)

    def _add(self, value: Value, consumer: Value | None, terms: Sequence[Expr]) -> None:
        self.summands.setdefault(value, {}).setdefault(consumer, []).extend(terms)

    def _adjoint(self, value: Value) -> Value | None:
        """The sum of all summands as one definition; a lone one that is a tensor stays itself."""
        if value in self.adjoints or value not in self.summands:
            return self.adjoints.get(value)
        parts = [e for terms in self.summands[value].values() for e in terms]
        adjoint = self.summed(value, parts)
        if adjoint is not None:
            self.adjoints[value] = adjoint
        return adjoint

    def summed(self, value: Value, parts: Sequence[Expr]) -> Value | None:
        """The sum of expressions over the axes of `value`; None where it is 0."""
        body: Expr = fold.zero(value.dtype)
        for part in parts:
            body = fold.add(body, part)
        if fold.is_zero(body):
            return None
        label = _label(value, value)
        lone = body.source if isinstance(body, Take) else None
        if lone is not None and body is identity(lone) and _may_stand_for(lone, value, label):
            self.masks.learn(lone, parts)
            return lone
        whole = label.define(value.shape, body)
        self.made.add(whole)
        self.masks.learn(whole, parts)
        return whole

    def _apply(self, rule: Rule) -> None:
        """Let a given rule turn the adjoints of its outputs into those of its dependencies.

        Raises: UnsupportedError where it says nothing of reverse mode.
        """
        stopped = {o for o in rule.outputs if isinstance(o, Definition) and o.stop}
        heads = [None if o in stopped else self._adjoint(o) for o in rule.outputs]
        if all(h is None for h in heads):
            return
        _log.debug("%r: %s", rule.outputs[0], rule.kind)
        if rule.pull is None:
            raise UnsupportedError(
                f"reverse mode through the {rule.kind} of {rule.outputs[0]!r}",
                origin=rule.outputs[0].origin,
                code="E215",
            )
        whole = [h or zeros(o) for h, o in zip(heads, rule.outputs, strict=True)]
        adjoints = rule.pull(whole)
        fitting(adjoints, rule.deps, rule)
        for dep, part in zip(rule.deps, adjoints, strict=True):
            if part is not None:
                self._add(dep, rule.outputs[0], [identity(part)])

    def _pull(self, definition: Definition, adjoint: Value) -> None:
        """Add a summand for every read of an active source by `definition`."""
        if self.pins is None and self._pull_running(definition, adjoint):
            return
        whole = picked(definition) if self.pins is None else None
        for at in self._seeds(definition, adjoint):
            self._add_reads(definition, whole or definition, body_adjoint(whole or definition, at))

    def _pull_running(self, definition: Definition, adjoint: Value) -> bool:
        """The adjoint of a reduction over a triangle through the running one that it is.

        ``y[i] = max[k] (k <= i ? x[k] : least) -> y[i] = s[i], s[k] = max(s[k - 1], x[k])``
        """
        factored = running(definition) if sums_nothing(definition) else None
        if factored is None:
            return False
        whole, scan, turned = factored
        self.active.add(scan)
        (at,) = self._seeds(definition, adjoint)
        self._add_reads(definition, whole, body_adjoint(whole, at))
        inner = self._adjoint(scan)
        if inner is not None:
            at = partial(fold.read_of, inner, own=self.made)
            self._add_reads(definition, scan, body_adjoint(scan, at, first=not turned))
        return True

    def _add_reads(self, consumer: Definition, whole: Definition, seed: Expr | None) -> None:
        """A summand for every active read of `whole`, which stands for `consumer`."""
        for take, term in [] if seed is None else self._terms(whole, seed):
            label = _label(take.source, consumer)
            terms = self.gatherer.gather(whole.extents, take, term, label)
            self._add(take.source, consumer, terms)

    def _seeds(self, definition: Definition, adjoint: Value) -> list[At]:
        """The adjoint as it is read: whole or, where it is pinned, summand by summand."""
        if self.pins is not None:
            whole = [e for terms in self.summands[definition].values() for e in terms]
            parts = self.pins.parts(definition, whole)
            if parts is not None:
                return [partial(placed_at, part) for part in parts]
        plain = partial(fold.read_of, adjoint, own=self.made)
        if not steep(definition):
            return [plain]
        return [lambda indices: self.masks.masked(adjoint, indices, plain(indices))]

    def _terms(self, definition: Definition, seed: Expr) -> list[tuple[Take, Term]]:
        """The adjoint of every read, in the order of the reads.

        Partials are taken of the bare body and then multiplied: a product of reads stays one.
        What guards the seed guards the product, so that 0 meets no infinite partial.
        """
        body = definition.body
        outer = fold.opened(Term((), seed))
        casts = any(isinstance(n, E.Cast) and n.value.dtype.is_float for n in walk(body))
        start = outer.value if casts else fold.one(body.dtype)
        terms: list[tuple[Take, Term]] = []
        for take, term in sweep(body, start, self.active).items():
            value = reused(definition, term.value, term.guards, self.stored)
            if not casts:
                value = fold.chain(outer.value, value)
            whole = Term(term.guards, value)
            for guard in outer.guards:
                whole = whole.under(guard)
            terms.append((take, fold.opened(whole)))
        return self._shared(definition, terms)

    def _shared(
        self, definition: Definition, terms: list[tuple[Take, Term]]
    ) -> list[tuple[Take, Term]]:
        """Equal adjoints of several reads of a map become one definition, computed once."""
        if not isinstance(definition.form, Map):
            return terms
        uses: dict[Term, int] = {}
        for _, term in terms:
            uses[term] = uses.get(term, 0) + 1
        made: dict[Term, Take] = {}
        for term, count in uses.items():
            if count > 1 and not isinstance(term.value, Take | E.Const):
                label = _label(definition, definition)
                made[term] = identity(label.define(definition.shape, term.expression()))
        return [(take, _through(made.get(term), take, term)) for take, term in terms]


def _through(whole: Take | None, take: Take, term: Term) -> Term:
    """`term` read from the tensor `whole`, under those guards that keep `take` in bounds."""
    if whole is None:
        return term
    data = any(G.reads_data(i) for i in take.indices)
    return Term(tuple(g for g in term.guards if data or not G.reads_data(g)), whole)


def zeros(value: Value) -> Definition:
    """What has no influence: zeros of the shape and type of `value`."""
    return Definition(f"d{value!r}", value.shape, fold.zero(value.dtype), origin=value.origin)


def _label(value: Value, consumer: Value) -> Label:
    keep = value.keep if isinstance(value, Definition) else Keep.AUTO
    return Label(f"d{value!r}", keep, value.origin or consumer.origin)


def _may_stand_for(lone: Value, value: Value, label: Label) -> bool:
    keep = lone.keep if isinstance(lone, Definition) else Keep.AUTO
    return (lone.shape, lone.dtype, keep) == (value.shape, value.dtype, label.keep)
