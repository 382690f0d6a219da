"""Reverse mode over definitions: one sweep per body, one summand per read, one sum per tensor.

    s[i] = sum[k] x[i, k] * w[k]      ds -> dx[i, k] = ds[i] * w[k],  dw[k] = sum[i] ds[i] * x[i, k]

Adjoints are definitions like any other, so they can be differentiated, fused and printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import GradientError
from pullback.grad import fold
from pullback.grad.fold import Term
from pullback.grad.forms import body_adjoint
from pullback.grad.gather import Gatherer
from pullback.grad.scalar import sweep
from pullback.grad.total import Label, identity
from pullback.ir import expr as E
from pullback.ir.expr import Expr, If, Take
from pullback.ir.graph import Definition, Keep, Map, Value, topological
from pullback.ir.node import Node, rebuild, walk

EXPENSIVE = (E.Exp, E.Sqrt, E.Div)


def gradients(output: Value, inputs: Sequence[Value], head: Value | None = None) -> list[Value]:
    """``d output / d input`` times `head`, for each input, with its shape and dtype.

    Without a head, `output` must be a scalar. An input without influence has a zero gradient.
    Raises: GradientError for an output or input without a gradient, or a head that does not fit.
    """
    _check(output, inputs, head)
    state = _Reverse(output, inputs)
    if head is None:
        body = fold.one(output.dtype)
        head = Definition(f"d{output!r}", output.shape, body, origin=output.origin)
    state.run(head)
    return [state.gradient(value) for value in inputs]


def _check(output: Value, inputs: Sequence[Value], head: Value | None) -> None:
    if not output.dtype.is_float:
        raise GradientError(
            f"{output} is {output.dtype}: only a float has a gradient", origin=output.origin
        )
    for value in inputs:
        if not value.dtype.is_float:
            raise GradientError(
                f"no gradient with respect to {value}, which is {value.dtype}",
                origin=value.origin,
            )
    if head is None and output.shape != ():
        raise GradientError(
            f"the gradient of {output} needs a scalar, and its shape is {output.shape}",
            origin=output.origin,
            help="sum it, or give the adjoint of the output as head",
        )
    if head is not None and (head.shape, head.dtype) != (output.shape, output.dtype):
        raise GradientError(
            f"head is {head.dtype}{head.shape}, the output {output.dtype}{output.shape}",
            origin=head.origin or output.origin,
        )


class _Reverse:
    """One reverse pass. `summands` hold what the adjoint of each value adds up from."""

    def __init__(self, output: Value, inputs: Sequence[Value]) -> None:
        self.output = output
        self.order = topological([output])
        self.active = _active(self.order, inputs)
        self.gatherer = Gatherer()
        self.summands: dict[Value, list[Expr]] = {}
        self.adjoints: dict[Value, Value] = {}

    def run(self, head: Value) -> None:
        self.adjoints[self.output] = head
        for definition in reversed(self.order):
            adjoint = self._adjoint(definition) if definition in self.active else None
            if adjoint is not None and not definition.stop:
                self._pull(definition, adjoint)

    def gradient(self, value: Value) -> Value:
        """The finished adjoint, or zeros."""
        found = self._adjoint(value)
        if found is not None:
            return found
        return Definition(f"d{value!r}", value.shape, fold.zero(value.dtype), origin=value.origin)

    def _adjoint(self, value: Value) -> Value | None:
        """The sum of all summands as one definition; a lone one that is a tensor stays itself."""
        if value in self.adjoints or value not in self.summands:
            return self.adjoints.get(value)
        body: Expr = fold.zero(value.dtype)
        for summand in self.summands.pop(value):
            body = fold.add(body, summand)
        if fold.is_zero(body):
            return None
        label = self._label(value, value)
        lone = body.source if isinstance(body, Take) else None
        if lone is not None and body is identity(lone) and _may_stand_for(lone, value, label):
            self.adjoints[value] = lone
        else:
            self.adjoints[value] = Definition(
                label.name, value.shape, body, keep=label.keep, origin=label.origin
            )
        return self.adjoints[value]

    def _pull(self, definition: Definition, adjoint: Value) -> None:
        """Add a summand for every read of an active source by `definition`."""
        seed = body_adjoint(definition, adjoint)
        if seed is None:
            return
        for take, term in self._terms(definition, seed):
            label = self._label(take.source, definition)
            found = self.gatherer.gather(definition.extents, take, term, label)
            self.summands.setdefault(take.source, []).extend(found)

    def _terms(self, definition: Definition, seed: Expr) -> list[tuple[Take, Term]]:
        """The adjoint of every read, in the order of the reads.

        Partials are taken of the bare body and then multiplied: a product of reads stays one.
        """
        body = definition.body
        casts = any(isinstance(n, E.Cast) and n.value.dtype.is_float for n in walk(body))
        start = seed if casts else fold.one(body.dtype)
        terms: list[tuple[Take, Term]] = []
        for take, term in sweep(body, start, self.active).items():
            term = _reuse(definition, term)
            if not casts:
                term = Term(term.guards, fold.chain(seed, term.value))
            terms.append((take, _opened(term)))
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
        made: dict[Term, Term] = {}
        for term, count in uses.items():
            if count > 1 and not isinstance(term.value, Take | E.Const):
                label = self._label(definition, definition)
                body = term.expression()
                whole = Definition(
                    label.name, definition.shape, body, keep=label.keep, origin=label.origin
                )
                made[term] = Term((), identity(whole))
        return [(take, made.get(term, term)) for take, term in terms]

    def _label(self, value: Value, consumer: Value) -> Label:
        keep = value.keep if isinstance(value, Definition) else Keep.AUTO
        return Label(f"d{value!r}", keep, value.origin or consumer.origin)


def _active(order: Sequence[Definition], inputs: Sequence[Value]) -> set[Value]:
    """The inputs and every float definition that depends on one of them."""
    found: set[Value] = set(inputs)
    for definition in order:
        open_ = definition.dtype.is_float and not definition.stop
        if open_ and any(s in found for s in definition.sources):
            found.add(definition)
    return found


def _may_stand_for(lone: Value, value: Value, label: Label) -> bool:
    keep = lone.keep if isinstance(lone, Definition) else Keep.AUTO
    return (lone.shape, lone.dtype, keep) == (value.shape, value.dtype, label.keep)


def _opened(term: Term) -> Term:
    """``(c ? x : 0)`` as a guard: it may be affine, or leave a sum."""
    while isinstance(term.value, If):
        select = term.value
        if fold.is_zero(select.otherwise):
            term = Term(term.guards, select.then).under(select.condition)
        elif fold.is_zero(select.then):
            term = Term(term.guards, select.otherwise).under(fold.negated(select.condition))
        else:
            break
    return term


def _reuse(definition: Definition, term: Term) -> Term:
    """What a map computes is read, not computed again: ``dout[i] * exp(x[i]) -> dout[i] * out[i]``.

    Of ``c ? exp(x) : y`` only where the adjoint is guarded by c.
    """
    if not isinstance(definition.form, Map):
        return term
    out = identity(definition)
    body = definition.body
    if isinstance(body, If):
        branches = ((body.condition, body.then), (fold.negated(body.condition), body.otherwise))
        known = {b for c, b in branches if all(g in term.guards for g in fold.conjuncts(c))}
    else:
        known = {body}

    def change(node: Node) -> Node | None:
        return out if node in known and isinstance(node, EXPENSIVE) else None

    value = rebuild(term.value, change, {})
    return Term(term.guards, value) if isinstance(value, Expr) else term
