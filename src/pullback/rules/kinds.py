"""The three kinds of rules, and the decorators that make them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

from pullback.errors import RuleError
from pullback.ir.expr import Expr, Take, rewritten
from pullback.ir.graph import Definition, Graph, Keep, Map, Value, replace_reads, substitute
from pullback.ir.node import Node, walk
from pullback.ir.program import Compute, Item, Program, expand
from pullback.rules.asked import AskedRule
from pullback.rules.rewriting import OnHost, Rewriting, stored
from pullback.simplify.empty import without_empty
from pullback.simplify.graph import Sources, simplify_graph, with_roots

DEPTH = 3  # definitions that a rule looks through, one behind the other
MOST_NODES = 1000  # that an answer may have more: it is simplified, and the rule asked of it again


class SimplifyRule(AskedRule):
    """``node -> a better one, or None``, for the types of nodes that it looks at."""

    def __init__(self, function: Callable[[Any], Any], types: Sequence[type[Expr]]) -> None:
        super().__init__(function)

        def law(node: Expr, _: Any) -> Expr | None:
            return self._better(node)

        law.__name__ = self.name
        self.laws = tuple((cls, law) for cls in types)
        self.types = tuple(types)

    def program(self, program: Program) -> Program:
        """The rule across definitions: ``e[i] = exp(x[i]); y[i] = log(e[i])`` is ``log(exp(x))``.

        Within a definition it is one of the laws that simplify.
        """
        return replace(program, body=expand(program.body, self._across))

    def _across(self, item: Item) -> list[Item] | None:
        if not isinstance(item, Compute):
            return None
        graph = simplify_graph(without_empty(item.graph))
        sources = Sources({})
        for definition in graph.definitions:
            roots = [self._over(sources(r)) for r in definition.roots]
            sources.mapping[definition] = with_roots(definition, roots)
        return [Compute(Graph(tuple((v, sources.mapping.get(d, d)) for v, d in graph.assigns)))]

    def _over(self, root: Expr) -> Expr:
        return rewritten(root, self._opened)

    def _opened(self, node: Node) -> Node | None:
        """What the rule makes of a node over the bodies of the maps that it reads."""
        if not isinstance(node, self.types):
            return None
        whole: Expr = node
        for _ in range(DEPTH):
            deeper = replace_reads(whole, _body)
            if deeper is whole:
                return None
            whole = deeper
            if isinstance(whole, self.types) and (better := self._better(whole)) is not None:
                return better
        return None

    def _better(self, node: Expr) -> Expr | None:
        """The answer, checked: of the node's type, over its axes, reading nothing else."""
        better = self.answer(node)
        if better is None or better is node:
            return None
        if not isinstance(better, Expr):
            raise self.wrong(f"gave {type(better).__name__}, where an expression is wanted")
        if (grown := sum(1 for _ in walk(better, {node, *node.children}))) > MOST_NODES:
            raise self.wrong(f"made {grown} nodes more")
        if better.dtype != node.dtype:
            raise self.wrong(f"made {better.dtype} of {node.dtype}")
        if not better.axes <= node.axes:
            more = sorted(better.axes - node.axes)
            raise self.wrong(f"uses axes {more}, which the expression does not have")
        near = {node, *node.children, *(n for c in node.children for n in c.children)}
        fresh = _sources(better, near)
        if fresh and not fresh <= (own := _sources(node)):
            other = min(v.name for v in fresh - own)
            raise self.wrong(f"reads {other}, which the expression does not")
        return better


def _body(take: Take) -> Expr | None:
    """What a read of a map's element is, but for a checked one."""
    source = take.source
    if not isinstance(source, Definition) or not isinstance(source.form, Map) or take.is_data:
        return None
    if source.keep is Keep.ALWAYS:
        return None
    return substitute(source.body, dict(enumerate(take.indices)))


def _sources(root: Node, skip: Container[Node] = ()) -> set[Value]:
    return {n.source for n in walk(root, skip) if isinstance(n, Take)}


class FusionRule(AskedRule):
    """``(definitions, definitions) -> why they may not share a kernel, or None``."""

    def apart(self, a: Sequence[Definition], b: Sequence[Definition]) -> str:
        """Asked both ways round."""
        for one, other in ((a, b), (b, a)):
            why = self.answer(tuple(one), tuple(other))
            if not (why is None or why is False or isinstance(why, str)):
                raise self.wrong(f"gave {type(why).__name__}, where a reason as text is wanted")
            if why:
                return why
        return ""

    def program(self, program: Program) -> Program:
        """What may not share a kernel with its reader is stored: it is written into no reader."""
        return replace(program, body=expand(program.body, self._parted))

    def _parted(self, item: Item) -> list[Item] | None:
        if not isinstance(item, Compute):
            return None
        graph = simplify_graph(without_empty(item.graph))
        refused = {
            source
            for reader in graph.definitions
            for source in reader.sources
            if isinstance(source, Definition) and self.apart([source], [reader])
        }
        sources = Sources({})
        for definition in graph.definitions:
            fresh = sources.of(definition)
            sources.mapping[definition] = stored(fresh) if definition in refused else fresh
        assigns = tuple((v, sources.mapping.get(d, d)) for v, d in graph.assigns)
        return [Compute(Graph(assigns))]


class RewriteRule(AskedRule):
    """``definition -> another one of its shape and type, a call of the host, or None``."""

    def program(self, program: Program) -> Program:
        """Every definition, sources first, as the rule makes it."""
        return replace(program, body=expand(program.body, self._rewritten))

    def _rewritten(self, item: Item) -> Sequence[Item] | None:
        if not isinstance(item, Compute):
            return None
        graph = simplify_graph(without_empty(item.graph))
        rewriting = Rewriting(graph)
        for definition in graph.definitions:
            other = self.answer(definition)
            if other is not None:
                self._check(definition, other)
            rewriting.put(definition, other)
        return rewriting.items()

    def _check(self, definition: Definition, other: Any) -> None:
        """Raises: RuleError for what cannot stand in a definition's place."""
        if isinstance(other, OnHost):
            return
        if not isinstance(other, Definition):
            kind = type(other).__name__
            raise self.wrong(f"gave {kind}, where a definition or `on_host(..)` is wanted")
        if (other.shape, other.dtype) != (definition.shape, definition.dtype):
            made = f"{other.dtype}{list(other.shape)}"
            wanted = f"{definition.dtype}{list(definition.shape)}"
            raise self.wrong(f"made {made} of {definition.name}: {wanted}")


def simplify(*types: type[Expr]) -> Callable[[Callable[[Any], Any]], SimplifyRule]:
    """A rule that simplifies expressions of these types, as `pullback.ir.expr` names them.

    The function is given a node whose parts are in normal form, and returns a better one of the
    same type, or None.

    Raises: RuleError for what is no type of expression.

    Example:
        >>> from pullback.ir import expr as E
        >>> @pb.rules.simplify(E.Log)
        ... def log_of_exp(e):
        ...     return e.value if isinstance(e.value, E.Exp) else None
        >>> log_of_exp
        SimplifyRule(log_of_exp)
    """
    if not types or not all(isinstance(t, type) and issubclass(t, Expr) for t in types):
        what = f"simplify{types}: types of expressions are wanted, such as E.Mul"
        raise RuleError(what, code="E371")
    return lambda function: SimplifyRule(function, types)


def fusion(function: Callable[..., Any]) -> FusionRule:
    """A rule that keeps definitions apart: ``(a, b) -> why, or None``.

    `a` and `b` are tuples of definitions: two kernels that would join, or one definition and a
    reader that it would be written into. The reason is shown in the kernels.

    Example:
        >>> @pb.rules.fusion
        ... def short(a, b):
        ...     return "more than 4 stages" if len(a) + len(b) > 4 else None
        >>> short
        FusionRule(short)
    """
    return FusionRule(function)


def rewrite(function: Callable[..., Any]) -> RewriteRule:
    """A rule that replaces whole definitions: ``definition -> another, on_host(..), or None``.

    It is asked once of every definition of a program, derivatives included, simplified.

    Example:
        >>> @pb.rules.rewrite
        ... def all_stored(definition):
        ...     return pb.rules.stored(definition)
        >>> all_stored
        RewriteRule(all_stored)
    """
    return RewriteRule(function)
