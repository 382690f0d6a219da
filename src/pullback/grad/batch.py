"""Definitions computed for many values of what they read, at once: axes are put in front.

y[i] = sum[k] x[i, k] * w[k], x batched by b     ->     y[b, i] = sum[k] x[b, i, k] * w[k]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, Pin, Size, Take, rewritten
from pullback.ir.graph import (
    SUM,
    Accumulate,
    Definition,
    Form,
    Reduce,
    Rule,
    Scan,
    Value,
    Variable,
    read,
    topological,
)
from pullback.ir.node import Memo, Node, walk


class Batch:
    """Values with `prefix` in front. `known` maps those that are batched to what they become.

    A pin is the number of an axis of the prefix.
    """

    def __init__(
        self,
        prefix: Sequence[Extent],
        known: Mapping[Value, Value],
        pins: Mapping[Pin, int] | None = None,
    ) -> None:
        self.prefix = tuple(prefix)
        self.front = E.axes(self.prefix)
        self.pins = dict(pins or {})
        self.known = dict(known)
        self._done: set[Value] = set(known)
        self._rules: dict[Rule, list[tuple[Definition, Definition]]] = {}

    def __call__(self, values: Iterable[Value]) -> list[Value]:
        """`values` with the prefix; those that do not depend on it are repeated along it."""
        values = list(values)
        self.visit(values)
        return [self.known.get(v) or self.repeated(v) for v in values]

    def visit(self, values: Iterable[Value]) -> None:
        """Make what `values` become; the others are left out of `known`."""
        for definition in topological(values, self._done):
            self._enter(definition)
        self._carry_rules()

    def _enter(self, definition: Definition) -> None:
        self._done.add(definition)
        if self.depends(definition):
            lifted = self.known[definition] = self._lifted(definition)
            if definition.rule is not None:
                self._rules.setdefault(definition.rule, []).append((definition, lifted))

    def _carry_rules(self) -> None:
        rules = self._rules
        self._rules = {}
        for rule, made in rules.items():
            self._carry(rule, made)

    def depends(self, definition: Definition) -> bool:
        """Whether `definition` differs along the prefix; its sources have been visited."""
        if any(s in self.known for s in definition.sources):
            return True
        if not self.pins:
            return False
        return any(isinstance(n, Size) and n.dim in self.pins for n in walk(definition.roots))

    def like(self, value: Value) -> Variable:
        """What stands for `value` in a rule."""
        return Variable(value.name, value.shape, value.dtype, value.origin)

    def wider(self, known: Mapping[Value, Value]) -> Batch:
        """The same, with more that is known."""
        return Batch(self.prefix, self.known | dict(known), self.pins)

    def _lifted(self, definition: Definition) -> Definition:
        count = len(self.prefix)
        memo: Memo = {}

        def change(node: Node) -> Node | None:
            if isinstance(node, Axis):
                return Axis(node.number + count, node.extent)
            if isinstance(node, Take) and node.source in self.known:
                return read(self.known[node.source], *self.front, *node.indices)
            if isinstance(node, Size) and isinstance(node.dim, Pin) and node.dim in self.pins:
                return self.front[self.pins[node.dim]]
            return None

        def moved(root: Expr) -> Expr:
            return rewritten(root, change, memo)

        form: Form = definition.form
        if isinstance(form, Scan):
            form = replace(form, axis=form.axis + count)
        elif isinstance(form, Accumulate):
            at = (*self.front, *map(moved, form.at))
            form = replace(form, domain=self.prefix + form.domain, at=at)
        shape = self.prefix + definition.shape
        return replace(definition, shape=shape, body=moved(definition.body), form=form)

    def repeated(self, value: Value) -> Value:
        """``out[b, i] = value[i]``"""
        body = Take(value, E.axes(value.shape, len(self.prefix)))
        return Definition(value.name, self.prefix + value.shape, body, origin=value.origin)

    def _carry(self, rule: Rule, made: Sequence[tuple[Definition, Definition]]) -> None:
        """The rule of batched results: the rule itself, batched in turn."""
        lifted = dict(made)
        if rule.again is not None:
            wide = {o: self._output(o, lifted) for o in rule.outputs}
            rule.again(lambda v: wide[v] if v in wide else self([v])[0])
            return
        outputs = tuple(self._output(o, lifted) for o in rule.outputs)
        self.visit(rule.deps)
        deps = tuple(self.known.get(d, d) for d in rule.deps)

        def through(
            function: Callable[[Sequence[Value]], Sequence[Value | None]],
            like: Sequence[Value],
            given: Sequence[Value],
        ) -> list[Value | None]:
            inner = [self.like(v) for v in like]
            results = function(inner)
            batch = self.wider(dict(zip(inner, given, strict=True)))
            return [None if v is None else batch([v])[0] for v in results]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            assert rule.pull is not None
            adjoints = through(rule.pull, rule.outputs, heads)
            pairs = zip(adjoints, rule.deps, strict=True)
            return [v if v is None or d in self.known else self._total(v) for v, d in pairs]

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            assert rule.push is not None
            wide = [
                t if d in self.known else self.repeated(t)
                for t, d in zip(tangents, rule.deps, strict=True)
            ]
            return [v for v in through(rule.push, rule.deps, wide) if v is not None]

        whole = replace(
            rule,
            outputs=outputs,
            deps=deps,
            pull=None if rule.pull is None else pull,
            push=None if rule.push is None else push,
        )
        for output in outputs:
            output.rule = whole

    def _output(self, value: Value, lifted: Mapping[Definition, Definition]) -> Definition:
        """What an output of a rule becomes; all of them are batched together."""
        if not isinstance(value, Definition):
            raise InvalidIR(f"{value!r} has a rule and is no definition")
        if value in lifted:
            return lifted[value]
        self.visit([value])
        self.known.setdefault(value, self._lifted(value))
        output = self.known[value]
        assert isinstance(output, Definition)
        return output

    def _total(self, value: Value) -> Value:
        """The sum over the prefix: what is read by all gets the adjoints of all."""
        shape = value.shape[len(self.prefix) :]
        body = Take(value, E.axes(self.prefix, len(shape)) + E.axes(shape))
        return Definition(value.name, shape, body, Reduce(SUM, self.prefix), origin=value.origin)
