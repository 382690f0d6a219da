"""What becomes one kernel, what may not, and that the answer is always the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

import graphs
import pullback as pb
from graphs import map_, num, total, variable
from kernel_runner import random_values, run
from pullback.backends.reference.definitions import evaluate
from pullback.fuse import fuse
from pullback.fuse.cost import outer_choices
from pullback.fuse.entry import emit, group
from pullback.fuse.group import Grouping, Verdict
from pullback.fuse.groups import Group
from pullback.fuse.problem import Problem
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Dim, Expr
from pullback.ir.graph import Definition, Graph, Keep, Value, Variable, read
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target

TARGET = Target()


def kernels_of(graph: Graph) -> list[Kernel]:
    """Fused, run in tiles, compared with the definitions."""
    kernels = fuse(graph, TARGET)
    check_same(graph, kernels)
    return kernels


def check_same(graph: Graph, kernels: list[Kernel]) -> None:
    values = random_values(graph)
    want = evaluate(graph, values)
    got = run(kernels, values, 3)
    for v, array in want.items():
        np.testing.assert_allclose(got[v], array, rtol=1e-4, atol=1e-5, err_msg=v.name)


def one(value: Value) -> Kernel:
    kernels = kernels_of(graphs.graph(out=value))
    assert len(kernels) == 1, [k.name for k in kernels]
    return kernels[0]


@pytest.mark.parametrize("kind", graphs.ACTIVATIONS)
def test_linear_bias_activation(kind: str) -> None:
    x, w, b = variable("x", 6, 5), variable("w", 7, 5), variable("b", 7)
    one(graphs.activation(graphs.linear(x, w, b, "y"), kind, "a"))


@pytest.mark.parametrize("shape", [(6, 9), (2, 3, 5), (7,), (64, 1000)])
def test_softmax(shape: tuple[int, ...]) -> None:
    one(graphs.softmax(variable("x", *shape), "s"))


def test_layer_norm() -> None:
    x, gain, shift = variable("x", 4, 5, 8), variable("gain", 8), variable("shift", 8)
    kernel = one(graphs.layer_norm(x, gain, shift, "ln"))
    assert kernel.writes[0].name == "out"
    assert len(kernel.writes) == 1, "the statistics stay inside"


@pytest.mark.parametrize("rows", [3, 64, 4096])
def test_log_softmax_and_nll(rows: int) -> None:
    labels = variable("labels", rows, kind=graphs.int64)
    kernel = one(graphs.log_softmax_nll(variable("x", rows, 11), labels, "ce"))
    assert kernel.finish
    assert any(s.partial for s in kernel.stages)


def heads(t: int) -> tuple[Variable, Variable, Variable]:
    q, k, v = (variable(n, 2, 2, t, 4) for n in "qkv")
    return q, k, v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 17, 128, 1000, 4096])
def test_attention_is_one_kernel_by_rows(length: int, causal: bool) -> None:
    graph = graphs.graph(out=graphs.scaled_dot_product(*heads(length), causal, "att"))
    kernels = fuse(graph, TARGET)
    assert len(kernels) == 1
    assert length == 1 or length in kernels[0].outer
    if length <= 17:
        kernels_of(graph)


@pytest.mark.parametrize("length", [5, 64, 1000])
def test_no_square_array_reaches_memory(length: int) -> None:
    """Scores and their adjoints are stages, forward and backward."""
    q, k, v = heads(length)
    out = graphs.scaled_dot_product(q, k, v, True, "att")
    loss = graphs.sum_all(map_("y", out.shape, lambda *i: E.Exp(read(out, *i))))
    graph = Graph(tuple(graphs.sgd([q, k, v], graphs.gradients(loss, [q, k, v]))))
    kernels = fuse(graph, TARGET)
    written = [v for kernel in kernels for v in kernel.writes]
    assert all(v.shape.count(length) < 2 for v in written)
    if length == 5:
        kernels_of(graph)


def test_dropout_after_an_activation() -> None:
    """The random bits are integer maps: recomputed in the backward, never stored."""
    x, w = variable("x", 6, 8), variable("w", 8, 8)
    key = variable("key", kind=graphs.uint32)
    y = graphs.dropout(graphs.activation(graphs.linear(x, w, None, "y"), "gelu", "a"), key, "drop")
    one(y)
    loss = graphs.sum_all(map_("z", y.shape, lambda *i: E.Exp(read(y, *i))))
    graph = Graph(tuple(graphs.sgd([w], graphs.gradients(loss, [w]))))
    for kernel in kernels_of(graph):
        assert all(v.dtype.is_float for v in kernel.writes)


class Residual(pb.nn.Module):
    """``x + dropout(w2 gelu(w1 norm(x)))``"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = pb.nn.LayerNorm(64)
        self.up, self.down = pb.nn.Linear(64, 256), pb.nn.Linear(256, 64)
        self.drop = pb.nn.Dropout(0.1)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        return x + self.drop(self.down(pb.nn.functional.gelu(self.up(self.norm(x)))))


@pytest.mark.slow
def test_what_is_dropped_is_dropped_once() -> None:
    """The adjoint behind a mask is kept: no gradient of a weight draws the bits again."""
    model = pb.nn.Sequential(Residual(), Residual())
    opt = pb.optim.AdamW(model.parameters(), lr=0.1)
    x = pb.ones((512, 64))

    @pb.jit
    def step() -> None:
        opt.zero_grad()
        (model(x) ** 2).mean().backward()
        opt.step()

    step()
    stages = [s for kernel in step.program.kernels for p in kernel.pieces for s in p.every]
    assert sum(s.target.name.startswith("bernoulli") for s in stages) == 2


def test_weight_gradient_with_its_update() -> None:
    x, dy = variable("x", 9, 6), variable("dy", 9, 7)
    w, b = variable("w", 7, 6), variable("b", 7)
    dw = total("dw", (7, 6), (9,), lambda n, k, r: E.Mul(read(dy, r, n), read(x, r, k)))
    db = total("db", (7,), (9,), lambda n, r: read(dy, r, n))
    assert len(kernels_of(Graph(tuple(graphs.sgd([w], [dw]))))) == 1
    assert len(kernels_of(Graph(tuple(graphs.sgd([b], [db]))))) == 1
    (kernel,) = kernels_of(Graph(tuple(graphs.sgd([w, b], [dw, db]))))
    assert set(kernel.writes) == {w, b}
    kernels = kernels_of(Graph(tuple(graphs.adamw([w], [dw]))))
    assert sorted(len(k.writes) for k in kernels) in ([1, 3], [4])


def test_updates_are_in_place_only_at_the_writers_coordinates() -> None:
    """``dx = dy w`` sums over rows of a square w that is updated from the same step."""
    w, x, dy = variable("w", 8, 8), variable("x", 5, 8), variable("dy", 5, 8)
    dx = total("dx", (5, 8), (8,), lambda r, k, n: E.Mul(read(dy, r, n), read(w, n, k)))
    dw = total("dw", (8, 8), (5,), lambda n, k, r: E.Mul(read(dy, r, n), read(x, r, k)))
    kernels_of(Graph(((variable("dx", 5, 8), dx), *graphs.sgd([w], [dw]))))
    wt = map_("wt", (8, 8), lambda n, k: E.Add(read(w, k, n), num(1)))
    kernels = kernels_of(Graph(((w, wt),)))
    assert len(kernels) == 2, "a transpose in place needs a copy"
    mixed = map_("mixed", (8, 8), lambda n, k: E.Add(read(w, n, k), read(w, k, n)))
    graph = Graph(((variable("mixed", 8, 8), mixed), *graphs.sgd([w], [dw])))
    kernels_of(graph)


def test_simultaneous_assignment() -> None:
    x, y, z = (variable(n, 6) for n in "xyz")
    kernels_of(Graph(((x, y), (y, x))))
    kernels_of(Graph(((x, y), (y, z), (z, x))))
    plus = map_("plus", (6,), lambda i: E.Add(read(x, i), read(y, i)))
    kernels_of(Graph(((x, plus), (y, plus), (z, z))))
    later = map_("later", (6,), lambda i: E.Mul(read(plus, i), read(x, i)))
    kernels_of(Graph(((x, plus), (y, later))))


def test_reads_of_a_new_value_and_of_the_old_one() -> None:
    """`last` needs x after and before its update: the update goes by way of a temporary."""
    x = variable("x", 6)
    new = total("new", (6,), (6,), lambda i, k: E.Mul(read(x, k), E.Exp(read(x, i))))
    last = total("last", (6,), (6,), lambda i, k: E.Mul(read(new, k), read(x, i)))
    kernels_of(Graph(((x, new), (variable("last", 6), last))))


VIEWS = 40


def chain(rng: np.random.Generator, x: Value, steps: int) -> Value:
    for n in range(steps):
        x = _step(rng, x, f"v{n}")
    return x


def _step(rng: np.random.Generator, x: Value, name: str) -> Definition:
    rows, columns = x.shape
    assert isinstance(rows, int) and isinstance(columns, int)
    kind = rng.integers(0, 6)
    if kind == 0:
        return map_(name, (columns, rows), lambda i, j: read(x, j, i))
    if kind == 1:
        start = int(rng.integers(0, rows))
        return map_(
            name, (rows - start, columns), lambda i, j: read(x, E.Add(i, E.index(start)), j)
        )
    if kind == 2:
        return map_(name, (rows + 2, columns), lambda i, j: _padded(x, rows, i, j))
    if kind == 3:
        return map_(name, (2 * rows, columns), lambda i, j: _twice(x, rows, i, j))
    if kind == 4:
        return map_(name, (rows, columns), lambda i, j: read(x, _flip(i, rows), j))

    def reshaped(i: Axis, j: Axis) -> Expr:
        flat = E.Add(E.Mul(i, E.index(rows)), j)
        return read(x, E.FloorDiv(flat, E.index(columns)), E.Mod(flat, E.index(columns)))

    return map_(name, (columns, rows), reshaped)


def _flip(i: Expr, size: int) -> Expr:
    return E.Add(E.Mul(i, E.index(-1)), E.index(size - 1))


def _padded(x: Value, rows: int, i: Axis, j: Axis) -> Expr:
    at = E.Add(i, E.index(-1))
    inside = E.And(E.Less(E.index(-1), at), E.Less(at, E.index(rows)))
    return E.If(inside, read(x, at, j), num(0))


def _twice(x: Value, rows: int, i: Axis, j: Axis) -> Expr:
    return E.If(E.Less(i, E.index(rows)), read(x, i, j), read(x, E.Add(i, E.index(-rows)), j))


@pytest.mark.parametrize("seed", range(VIEWS))
def test_chains_of_views_add_no_kernel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    view = chain(rng, variable("x", 3, 4), int(rng.integers(1, 7)))
    y = map_("y", view.shape, lambda *i: E.Mul(read(view, *i), num(2)))
    kernel = one(y)
    assert len(kernel.stages) == 1


@pytest.mark.slow
def test_a_long_chain_is_near_linear() -> None:
    value: Value = variable("x", 100)
    for n in range(10_000):
        old = value
        value = map_(
            f"v{n}", (100,), lambda i, old=old: E.Add(E.Mul(read(old, i), num(0.5)), num(1))
        )
    start = time.thread_time()
    kernels = fuse(graphs.graph(out=value), TARGET)
    assert time.thread_time() - start < 10
    assert all(len(k.stages) <= 32 for k in kernels)
    assert len(kernels) < 20


def test_doubling_does_not_explode() -> None:
    value: Value = variable("x", 64)
    for n in range(40):
        old = value
        value = map_(
            f"v{n}",
            (64,),
            lambda i, old=old: E.Add(read(old, i), read(old, _flip(i, 64))),
        )
    start = time.thread_time()
    fuse(graphs.graph(out=value), TARGET)
    assert time.thread_time() - start < 5


def structure(kernels: Sequence[Kernel]) -> list[tuple[object, ...]]:
    """Kernels up to the identity of what they touch."""
    found = []
    for k in kernels:
        number = {v: n for n, v in enumerate(k.arguments)}
        stages = tuple(
            (s.shape, s.outer, str(s.form), number.get(s.store)) if s.store else (s.shape, s.outer)
            for s in k.stages + k.finish
        )
        found.append((k.outer, len(k.finish), stages))
    return found


def test_the_grouping_is_a_function_of_the_graph() -> None:
    first = fuse(graphs.encoder_step(2), TARGET)
    second = fuse(graphs.encoder_step(2), TARGET)
    assert structure(first) == structure(second)
    assert [k.name for k in first] == [k.name for k in second]


def test_equal_layers_give_equal_kernels() -> None:
    three = {str(s) for s in structure(fuse(graphs.encoder_step(3), TARGET))}
    five = {str(s) for s in structure(fuse(graphs.encoder_step(5), TARGET))}
    assert three == five


@pytest.mark.slow
def test_kernel_counts() -> None:
    assert len(fuse(graphs.net_step(), TARGET)) <= 5
    for layers in (1, 3, 6):
        assert len(fuse(graphs.encoder_step(layers), TARGET)) <= 14 * layers
    assert len(fuse(graphs.gpt_step(4), TARGET)) <= 14 * 4 + 6


def test_equal_layers_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of kernels are looked at in proportion to the layers, kernels alike have one price."""
    judged: list[tuple[int, int]] = []
    judge = Grouping.judge

    def counted(self: Grouping, i: int, j: int) -> Verdict:
        judged.append((i, j))
        return judge(self, i, j)

    monkeypatch.setattr(Grouping, "judge", counted)
    prices, pairs = [], []
    for layers in (3, 6):
        judged.clear()
        prices.append(len(group(graphs.encoder_step(layers), TARGET).prices))
        pairs.append(len(judged))
    assert prices[0] == prices[1], f"{prices} prices of 3 and 6 layers"
    assert pairs[1] < 2.5 * pairs[0], f"{pairs} pairs of 3 and 6 layers"


def test_reasons_are_recorded() -> None:
    kernels = fuse(graphs.encoder_step(1), TARGET)
    assert any(k.reasons for k in kernels)
    assert all(r.startswith("apart from ") for k in kernels for r in k.reasons)


def test_keep_marks() -> None:
    x = variable("x", 6, 8)
    kept = map_("kept", (6, 8), lambda *i: E.Add(read(x, *i), num(1)), keep=Keep.ALWAYS)
    y = total("y", (6,), (8,), lambda i, k: read(kept, i, k))
    kernels = kernels_of(graphs.graph(y=y))
    assert "kept" in [v.name for k in kernels for v in k.writes]


def test_symbolic_extents() -> None:
    n = Dim("n", 1, 64)
    kernels = fuse(graphs.graph(out=graphs.softmax(variable("x", n, 9), "s")), TARGET)
    assert len(kernels) == 1
    assert kernels[0].outer == (n,)


@pytest.mark.parametrize("rows", [5, 300])
def test_clipping_by_the_global_norm(rows: int) -> None:
    """Gradient kernels also emit their square sums; the updates come after, in one launch."""
    x, dy = variable("x", 4, 6), variable("dy", 4, rows)
    w, b = variable("w", rows, 6), variable("b", rows)
    dw = total("dw", (rows, 6), (4,), lambda n, k, r: E.Mul(read(dy, r, n), read(x, r, k)))
    db = total("db", (rows,), (4,), lambda n, r: read(dy, r, n))
    squares = [
        total(f"{g.name}2", (), g.shape, lambda *i, g=g: E.Mul(read(g, *i), read(g, *i)))
        for g in (dw, db)
    ]
    norm = map_("norm", (), lambda: E.Sqrt(E.Add(read(squares[0]), read(squares[1]))))
    clipped = [
        map_(f"{g.name}c", g.shape, lambda *i, g=g: E.Div(read(g, *i), read(norm)))
        for g in (dw, db)
    ]
    kernels = kernels_of(Graph(tuple(graphs.sgd([w, b], clipped))))
    assert len(kernels) <= 3
    assert any(set(k.writes) >= {w, b} for k in kernels)


def clipped(updates: int) -> tuple[Graph, list[Variable]]:
    """``p[n] -= 0.01 * dp[n] / c`` of as many extents; `c` needs every `dp`."""
    x = variable("x", 3)
    owners = [variable(f"p{n}", n + 2) for n in range(updates)]
    grads = [
        total(f"d{p.name}", p.shape, (3,), lambda i, k: E.Mul(read(x, k), E.Cast(i, x.dtype)))
        for p in owners
    ]
    sums = [
        total(f"s{g.name}", (), g.shape, lambda i, g=g: E.Mul(read(g, i), read(g, i)))
        for g in grads
    ]
    whole = read(sums[0])
    for s in sums[1:]:
        whole = E.Add(whole, read(s))
    norm = map_("norm", (), lambda: E.Sqrt(whole))
    parts = [
        map_(f"{g.name}c", g.shape, lambda i, g=g: E.Div(read(g, i), read(norm))) for g in grads
    ]
    return Graph(tuple(graphs.sgd(owners, parts))), owners


@pytest.mark.sampled(3)
@pytest.mark.parametrize("updates", [2, 5, 100])
def test_updates_of_any_extents_are_parts_of_one_launch(updates: int) -> None:
    graph, owners = clipped(updates)
    last = kernels_of(graph)[-1]
    assert len(last.parts) == updates
    assert set(last.writes) == set(owners)


def test_an_update_that_reads_another_comes_after_it() -> None:
    x, p, q, r = variable("x", 9000), variable("p", 5), variable("q", 7), variable("r", 4)
    c = total("c", (), (9000,), lambda i: E.Exp(read(x, i)))
    first = map_("first", (5,), lambda i: E.Div(read(p, i), read(c)))
    moved = map_(
        "moved",
        (7,),
        lambda i: E.Div(E.Add(read(q, i), read(first, E.Mod(i, E.index(5)))), read(c)),
    )
    third = map_("third", (4,), lambda i: E.Div(read(r, i), read(c)))
    kernels = kernels_of(Graph(((p, first), (q, moved), (r, third))))
    assert not any({p, q} <= set(k.writes) for k in kernels)
    assert any({p, r} <= set(k.writes) for k in kernels)


def test_what_checks_indices_runs_alone() -> None:
    """Two updates wait for a number; one reads at an index that is data."""
    x, p, q = variable("x", 9000), variable("p", 5), variable("q", 7)
    places = variable("places", 7, kind=graphs.int64)
    c = total("c", (), (9000,), lambda i: E.Exp(read(x, i)))
    plain = map_("plain", (5,), lambda i: E.Mul(read(p, i), read(c)))
    taken = map_("taken", (7,), lambda i: E.Mul(read(x, read(places, i)), read(c)))
    other = map_("other", (9,), lambda i: E.Div(read(x, i), read(c)))
    graph = Graph(((p, plain), (q, taken), (variable("r", 9), other)))
    kernels = kernels_of(graph)
    alone = [k for k in kernels if q in k.writes]
    assert len(alone) == 1
    assert not alone[0].parts
    assert any(p in k.writes and len(k.parts) == 2 for k in kernels)


def test_sums_over_different_extents_do_not_share_an_axis() -> None:
    x, y = variable("x", 6), variable("y", 5)
    s = total("s", (), (6,), lambda i: read(x, i))
    t = total("t", (), (5,), lambda j: E.Exp(read(y, j)))
    out = map_("out", (), lambda: E.Add(read(s), read(t)))
    graph = graphs.graph(s=s, t=t, out=out)
    kernels_of(graph)
    grouping = group(graph, TARGET)
    for turn in range(4):
        check_same(graph, emit(grouping, partial(nth_choice, grouping.problem, turn)))


def nth_choice(problem: Problem, turn: int, one: Group) -> tuple[int, ...]:
    choices = outer_choices(problem, one)
    return choices[turn % len(choices)]


@pytest.mark.parametrize("length", [17, 1000, 4096])
def test_tiles_fit_scratch(length: int) -> None:
    """What does not fit a tile of its reader is stored instead, however long the rows."""
    q, k, v = heads(length)
    out = graphs.scaled_dot_product(q, k, v, True, "att")
    loss = graphs.sum_all(map_("y", out.shape, lambda *i: E.Exp(read(out, *i))))
    graph = Graph(tuple(graphs.sgd([q, k, v], graphs.gradients(loss, [q, k, v]))))
    grouping = group(graph, TARGET)
    for one in grouping.groups.values():
        assert grouping.price(one).scratch <= TARGET.l2 // 4


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_sums_of_few_terms_written_into_one_another(rows: int, terms: int) -> None:
    """A map that two sums read, one of which the other reads: both are written out."""
    x = variable("x", rows, terms, 5)
    r = total("r", (rows, terms), (5,), lambda i, j, k: read(x, i, j, k))
    y = map_("y", (rows, terms), lambda i, j: E.Add(E.Mul(read(r, i, j), num(2)), num(1)))
    s = total("s", (terms,), (rows,), lambda j, i: read(y, i, j))
    t = total("t", (rows,), (terms,), lambda i, j: E.Mul(read(y, i, j), read(s, j)))
    u = map_("u", (rows,), lambda i: E.Mul(read(t, i), num(3)))
    kernels_of(graphs.graph(u=u))


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((2, 64), False),  # rather computed twice than written
        ((32, 64), True),  # 32 times over each element
        ((64, 32), False),  # in the loop around: once
    ],
)
def test_what_loops_around_would_compute_again_is_stored(
    shape: tuple[int, int], stored: bool
) -> None:
    """``y[c, i] = sum[k](p[k, i] / z[i] * x[c, i + k])``: the quotient for each c, or once."""
    many, n = shape
    p, z, x = variable("p", 3, n), variable("z", n), variable("x", many, n + 2)
    quotient = map_("q", (3, n), lambda k, i: E.Div(read(p, k, i), read(z, i)))

    def body(c: Expr, i: Expr, k: Expr) -> Expr:
        return E.Mul(read(quotient, k, i), E.Exp(read(x, c, E.Add(i, k))))

    def turned(i: Expr, k: Expr, c: Expr) -> Expr:
        return E.Mul(read(quotient, k, i), E.Exp(read(x, c, E.Add(i, k))))

    around = shape != (64, 32)
    y = total("y", (many, n), (3,), body) if around else total("y", (n,), (3, many), turned)
    names = {s.target.name for k in kernels_of(graphs.graph(out=y)) for s in k.stages}
    assert ("q" in names) is stored, names
