"""The verifier of definitions lets good graphs pass and names each planted fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import graphs
from pullback.errors import InvalidIR, Origin
from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, float32, float64, int32, int64
from pullback.ir.expr import Axis, Expr, const, index
from pullback.ir.graph import (
    ANY,
    SUM,
    Accumulate,
    Definition,
    Form,
    Graph,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
    define,
    read,
)
from pullback.ir.nest import Var
from pullback.simplify.graph import simplify_graph
from pullback.verify.body import Proofs
from pullback.verify.graph import verify_graph

X = Variable("x", (4, 6), float32)
T = Variable("t", (4,), int64)
I, J = Axis(0, 4), Axis(1, 6)
BODY = read(X, I, J)


def one(value: Value) -> Graph:
    return Graph(((Variable("out", value.shape, value.dtype), value),))


def made(body: Expr, shape: tuple[int, ...] = (4, 6), form: Form | None = None) -> Graph:
    form = Map() if form is None else form
    return one(Definition("d", shape, body, form, origin=Origin.of_caller()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: graphs.net_step(2, 7),
        lambda: graphs.encoder_step(2, 8, 2, 12, 2),
        lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
    ],
)
def test_good_graphs_pass(make: Callable[[], Graph]) -> None:
    graph = make()
    verify_graph(graph, "trace")
    verify_graph(simplify_graph(graph), "simplify")


def padded(guard: Expr | None) -> Expr:
    inner = read(X, E.Add(I, index(-1)), J)
    return inner if guard is None else E.If(guard, inner, const(0, float32))


GOOD = {
    "guarded pad": made(padded(E.Less(index(0), I))),
    "data index": made(read(X, read(T, I), J)),
    "flip": made(read(X, E.Add(index(3), E.negate(I)), J)),
    "split": made(read(X, E.FloorDiv(Axis(0, 24), index(6)), E.Mod(Axis(0, 24), index(6))), (24,)),
    "proved point by point": made(read(X, I, E.Xor(J, index(1)))),
    "the other branch": made(E.If(E.Less(I, index(1)), const(0, float32), padded(None))),
    "both branches": made(E.If(E.Less(I, J), BODY, E.negate(BODY))),
    "scan": made(BODY, (4, 6), Scan(SUM, 1)),
    "write": made(BODY, (4,), Accumulate(SUM, (4, 6), (read(T, I),))),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_bodies_pass(name: str) -> None:
    verify_graph(GOOD[name], "trace")


def bad_operand() -> Graph:
    flag = E.Less(BODY, const(0, float32))
    return made(E.Add(flag, flag))


BAD = {
    "own_axes: free": made(read(X, I, Axis(1, 6)), (4,)),
    "own_axes: extent": made(read(X, I, Axis(1, 5))),
    "known_nodes": made(E.Cast(Var("v", 0, 3), float32), (4, 6)),
    "operand_types: bool": bad_operand(),
    "operand_types: integer": made(E.Exp(E.Cast(BODY, int32))),
    "operand_types: bits": made(E.And(BODY, BODY)),
    "form_fits: scan": made(BODY, (4, 6), Scan(SUM, 2)),
    "form_fits: rank": made(BODY, (4,), Accumulate(SUM, (4, 6), (I, J))),
    "form_fits: index": made(BODY, (4,), Accumulate(SUM, (4, 6), (E.Cast(I, int32),))),
    "form_fits: any": made(BODY, (4,), Reduce(ANY, (6,))),
    "form_fits: sum": made(E.Equal(BODY, BODY), (4,), Reduce(SUM, (6,))),
    "reads_inside: above": made(read(X, I, E.Add(J, index(1)))),
    "reads_inside: below": made(padded(None)),
    "reads_inside: wrong guard": made(padded(E.Less(index(0), J))),
    "reads_inside: weak guard": made(padded(E.Less(index(-1), I))),
    "reads_inside: wrong branch": made(E.If(E.Less(index(0), I), const(0, float32), padded(None))),
    "reads_inside: one of two": made(
        E.Add(padded(E.Less(index(0), I)), E.If(E.Less(I, index(2)), padded(None), BODY))
    ),
    "reads_inside: longer": made(read(X, Axis(0, 5), J), (5, 6)),
}


@pytest.mark.parametrize("name", BAD)
def test_faults_are_named(name: str) -> None:
    check = name.split(":")[0]
    with pytest.raises(InvalidIR, match=rf"after planting: d: .*\({check}\) at .*\.py:\d+"):
        verify_graph(BAD[name], "planting")


def test_what_is_proved_once_is_proved_for_equal_facts_only() -> None:
    proofs = Proofs()
    verify_graph(made(padded(E.Less(index(0), I))), "trace", proofs)
    verify_graph(made(padded(E.Less(index(0), I))), "simplify", proofs)
    for _ in range(2):
        with pytest.raises(InvalidIR, match="reads_inside"):
            verify_graph(made(padded(None)), "planting", proofs)


def test_a_cycle() -> None:
    first = define("first", (4,), lambda i: read(X, i, index(0)))
    second = define("second", (4,), lambda i: read(first, i))
    first.body = read(second, I)
    first._reads = None
    with pytest.raises(InvalidIR, match="acyclic"):
        verify_graph(one(second), "planting")


def test_two_writers() -> None:
    out = Variable("out", (4,), float32)
    d = define("d", (4,), lambda i: read(X, i, index(0)))
    with pytest.raises(InvalidIR, match="one_writer"):
        verify_graph(Graph(((out, d), (out, d))), "planting")


@pytest.mark.parametrize("out", [Variable("out", (5,), float32), Variable("out", (4,), float64)])
def test_assigned_shape_and_type(out: Variable) -> None:
    d = define("d", (4,), lambda i: read(X, i, index(0)))
    with pytest.raises(InvalidIR, match="assigned_alike"):
        verify_graph(Graph(((out, d),)), "planting")


def test_gradients_have_the_shape_of_their_primals() -> None:
    short, wide = Variable("short", (6,), float32), Variable("wide", (4, 6), float64)

    def body(i: Axis, j: Axis) -> Expr:
        return E.Mul(E.Mul(read(X, i, j), read(short, j)), E.Cast(read(wide, i, j), float32))

    inputs: list[Value] = [X, short, wide]
    adjoints = gradients(define("s", (), body, over=(4, 6)), inputs)
    alike = [(a.shape, a.dtype) for a in adjoints]
    assert alike == [(v.shape, v.dtype) for v in inputs]


def test_deep_chains() -> None:
    value: Value = X
    for _ in range(3000):
        value = define("s", (4, 6), lambda i, j, v=value: E.Exp(read(v, i, j)))
    verify_graph(one(value), "trace")
    assert value.dtype != bool_
