"""Graphs: equal definitions are merged, copies forwarded, values kept, keys canonical."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphs
from expressions import ARRAYS, expressions
from kernel_runner import random_values
from pullback.backends.reference.definitions import evaluate
from pullback.ir import expr as E
from pullback.ir.dtype import float32, float64
from pullback.ir.expr import Dim, const, index
from pullback.ir.graph import (
    MAX,
    SUM,
    Accumulate,
    Definition,
    Graph,
    Keep,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
    define,
    read,
)
from pullback.ir.signature import graph_signature
from pullback.simplify.graph import rewire, simplify_graph

X = Variable("x", (4, 3), float32)
OUT = Variable("out", (4, 3), float32)


def plus(value: Value, amount: float, **marks: object) -> Definition:
    return define(
        "p",
        value.shape,
        lambda *i: E.Add(read(value, *i), const(amount, float32)),
        **marks,
    )


def add(a: Value, b: Value) -> Definition:
    return define("s", a.shape, lambda *i: E.Add(read(a, *i), read(b, *i)))


def copy(value: Value, **marks: object) -> Definition:
    return define("c", value.shape, lambda *i: read(value, *i), **marks)


def one(value: Value) -> Graph:
    return Graph(((Variable("out", value.shape, value.dtype), value),))


def test_equal_definitions_are_merged() -> None:
    found = simplify_graph(one(add(plus(plus(X, 1), 2), plus(plus(X, 1), 2))))
    assert len(found.definitions) == 3


@pytest.mark.parametrize(
    "other",
    [
        plus(X, 2),
        plus(X, 1, stop=True),
        plus(X, 1, keep=Keep.NEVER),
        plus(Variable("x", (4, 3), float32), 1),
        Definition("p", (4, 3), plus(X, 1).body, Scan(SUM, 0)),
        Definition("p", (4, 3), plus(X, 1).body, Scan(SUM, 1)),
        Definition("p", (4, 3), plus(X, 1).body, Scan(MAX, 0)),
    ],
)
def test_different_definitions_stay_apart(other: Definition) -> None:
    graph = one(add(plus(X, 1), other))
    assert len(simplify_graph(graph).definitions) == 3
    assert graph_signature(graph) != graph_signature(one(add(plus(X, 1), plus(X, 1))))


def test_write_indices_tell_definitions_apart() -> None:
    i = E.Axis(0, 4)
    here, flipped = i, E.Add(index(3), E.negate(i))
    body = read(X, i, index(0))
    a, b = (Definition("a", (4,), body, Accumulate(SUM, (4,), (at,))) for at in (here, flipped))
    assert len(simplify_graph(one(add(a, b))).definitions) == 3
    assert graph_signature(one(a)) != graph_signature(one(b))


def test_copies_are_forwarded() -> None:
    found = simplify_graph(one(plus(copy(copy(X)), 1)))
    assert [d.sources for d in found.definitions] == [(X,)]
    ((_, value),) = simplify_graph(one(copy(X))).assigns
    assert value is X


@pytest.mark.parametrize("marks", [{"stop": True}, {"keep": Keep.ALWAYS}])
def test_marked_copies_stay(marks: dict[str, object]) -> None:
    assert len(simplify_graph(one(plus(copy(X, **marks), 1))).definitions) == 2


def test_what_only_looks_like_a_copy_stays() -> None:
    shorter = define("c", (3, 3), lambda i, j: read(X, i, j))
    square = Variable("q", (3, 3), float32)
    turned = define("t", (3, 3), lambda i, j: read(square, j, i))
    for value in (shorter, turned, define("d", (3, 3), lambda i, j: read(square, i, i))):
        assert len(simplify_graph(one(value)).definitions) == 1


@pytest.mark.parametrize("terms", [3, Dim("n", 0, 9)])
def test_what_all_terms_share_is_no_part_of_a_narrower_sum(terms: E.Extent) -> None:
    """``sum[k](x[j, k] / norm[i])`` is one sum for all i; of no terms 0, whatever the norm."""
    x, norm = Variable("x", (5, terms), float64), Variable("norm", (4,), float64)
    i, j, k = E.Axis(0, 4), E.Axis(1, 5), E.Axis(2, terms)
    body = E.Mul(read(x, j, k), E.Div(const(2, float64), read(norm, i)))
    graph = one(Definition("y", (4, 5), body, Reduce(SUM, (terms,))))
    simple = simplify_graph(graph)
    apart = [d.shape for d in simple.definitions]
    assert apart == ([(5,), (4, 5)] if terms == 3 else [(4, 5)])
    assert simplify_graph(simple) is simple
    if terms == 3:
        arrays = random_values(graph)
        (want,), (got,) = (evaluate(g, arrays).values() for g in (graph, simple))
        assert np.allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("by", ["row", "column", "both", "literal", "term"])
def test_a_sum_of_products_is_divided_once(by: str) -> None:
    """Registers hold sums of products of factors; a divisor that differs by terms divides one."""
    a, b = Variable("a", (4, 6), float64), Variable("b", (6, 5), float64)
    s, t, u = (Variable(name, (n,), float64) for name, n in zip("stu", (4, 5, 6), strict=True))
    i, j, k = E.Axis(0, 4), E.Axis(1, 5), E.Axis(2, 6)
    divisor = {
        "row": read(s, i),
        "column": read(t, j),
        "both": E.Mul(read(s, i), read(t, j)),
        "literal": const(7, float64),
        "term": read(u, k),
    }[by]
    body = E.Div(E.Mul(read(a, i, k), read(b, k, j)), divisor)
    graph = one(Definition("y", (4, 5), body, Reduce(SUM, (6,))))
    simple = simplify_graph(graph)
    (sums,) = (d for d in simple.definitions if isinstance(d.form, Reduce))
    assert isinstance(sums.body, E.Mul) and len(simple.definitions) == 1 + (by != "term")
    assert simplify_graph(simple) is simple
    arrays = random_values(graph)
    (want,), (got,) = (evaluate(g, arrays).values() for g in (graph, simple))
    assert np.allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("name", ["net", "encoder", "gpt"])
def test_values_are_kept_and_twice_is_once(name: str) -> None:
    make = {
        "net": lambda: graphs.net_step(2, 7),
        "encoder": lambda: graphs.encoder_step(2, 8, 2, 12, 2),
        "gpt": lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
    }
    graph = make[name]()
    arrays = random_values(graph)
    found = simplify_graph(graph)
    want, got = evaluate(graph, arrays), evaluate(found, arrays)
    for variable, array in want.items():
        assert np.allclose(got[variable], array, rtol=1e-5, atol=1e-6)
    assert simplify_graph(found) is found
    assert graph_signature(make[name]()) == graph_signature(graph)


@settings(max_examples=60, deadline=None)
@given(expressions(float64, 3), expressions(float64, 3), st.booleans())
def test_random_graphs(a: E.Expr, b: E.Expr, again: bool) -> None:
    box = (3, 4, 2)
    first = Definition("first", box, a)
    second = Definition("second", box, a if again else b)
    total = Definition(
        "total",
        (3,),
        E.Add(*(read(d, *d.axes) for d in (first, second))),
        Reduce(MAX, (4, 2)),
    )
    graph = one(total)
    found = simplify_graph(graph)
    from_data = {v: ARRAYS[v] for v in graph.inputs}
    ((_, want),) = evaluate(graph, from_data).items()
    ((_, got),) = evaluate(found, from_data).items()
    assert np.array_equal(want, got, equal_nan=True)
    assert not again or len({(d.shape, d.form, d.body) for d in found.definitions}) == len(
        found.definitions
    )


def test_rewire_clones_only_what_depends() -> None:
    a, b = plus(X, 1), plus(X, 2)
    y = Variable("y", (4, 3), float32)
    top, kept = rewire([add(a, b), b], {a: y})
    assert isinstance(top, Definition) and top.sources == (y, b)
    assert kept is b


def test_key_ignores_names_and_sees_shapes_types_and_sharing() -> None:
    key = graph_signature(one(plus(X, 1)))
    other = Variable("other", (4, 3), float32)
    assert graph_signature(one(plus(other, 1))) == key
    assert graph_signature(one(plus(Variable("x", (3, 4), float32), 1))) != key
    assert graph_signature(one(plus(Variable("x", (Dim("n", 1, 4), 3), float32), 1))) != key
    twice = graph_signature(one(add(X, X)))
    assert graph_signature(one(add(X, other))) != twice
    place = Graph(((X, plus(X, 1)),))
    assert graph_signature(place) != key


def test_a_chain_of_ten_thousand() -> None:
    value: Value = X
    for _ in range(10_000):
        value = plus(value, 1)
    found = simplify_graph(one(value))
    assert len(found.definitions) == 10_000
    assert len(graph_signature(found)) == 64


def test_forms_survive() -> None:
    forms = [Map(), Reduce(SUM, (3,)), Scan(SUM, 0)]
    for form in forms:
        shape = (4,) if isinstance(form, Reduce) else (4, 3)
        body = E.Add(read(X, E.Axis(0, 4), E.Axis(1, 3)), const(-0.0, float32))
        d = Definition("d", shape, body, form)
        ((_, found),) = simplify_graph(one(d)).assigns
        assert found is X if isinstance(form, Map) else found.form == form
