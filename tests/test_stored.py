"""What several kernels would compute again is stored, where that takes less and there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import named_target
from pullback.backends.nests.stored import with_stored
from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Take
from pullback.ir.graph import Definition, Graph, Keep, Variable, define
from pullback.machine.machine import chosen
from pullback.nn.sequence.attention import Mask, adjoints, attended, with_mask

ZEN3 = named_target("x86-64-v3").on(chosen("zen3"))  # whose last level is 16 MiB


def read(value: Any, *at: E.Expr) -> Take:
    return Take(value, at)


def table(batch: int, rows: int, terms: int, *, turned: bool, keep: Keep = Keep.AGAIN) -> Graph:
    """Exponentials of products, and their sums by rows; `turned`: by columns too."""
    q, k = (Variable(n, (batch, rows, terms), float32) for n in "qk")

    def product(b: E.Expr, i: E.Expr, j: E.Expr, e: E.Expr) -> E.Expr:
        return E.Mul(read(q, b, i, e), read(k, b, j, e))

    shape = (batch, rows, rows)
    s = define("s", shape, product, over=(terms,), keep=keep)
    p = define("p", shape, lambda *i: E.Exp(read(s, *i)), keep=keep)
    y = define("y", shape[:2], lambda b, i, j: read(p, b, i, j), over=(rows,))
    z = define("z", shape[:2], lambda b, j, i: read(p, b, i, j), over=(rows,))
    own = (y, z) if turned else (y,)
    return Graph(tuple((Variable(d.name.upper(), d.shape, float32), d) for d in own))


def kept(graph: Graph) -> dict[str, Keep]:
    return {d.name: d.keep for d in with_stored(graph, ZEN3).definitions}


def test_what_two_kernels_read_is_stored() -> None:
    """The last that both read: of a product and its exponential the second."""
    own = kept(table(2, 197, 64, turned=True))
    assert (own["s"], own["p"]) == (Keep.AGAIN, Keep.LATE)


def test_what_one_kernel_reads_is_not() -> None:
    graph = table(2, 197, 64, turned=False)
    assert with_stored(graph, ZEN3) is graph


@pytest.mark.parametrize(("rows", "stored"), [(197, [Keep.AGAIN, Keep.LATE]), (64, [Keep.LATE])])
def test_a_backward_reads_a_copy(rows: int, stored: list[Keep]) -> None:
    """Who reads one after another reader of it reads a copy; but one as small as what it is made of
    waits: 64 x 64 of 2 x 64.
    """
    graph = table(2, rows, 64, turned=True)
    y, z = (d for _, d in graph.assigns)
    assert isinstance(y, Definition) and isinstance(z, Definition)
    late = replace(z, body=E.Mul(z.body, read(y, z.axes[0], z.axes[1])))
    outputs = tuple((Variable(n, y.shape, float32), d) for n, d in (("Y", y), ("Z", late)))
    made = with_stored(Graph(outputs), ZEN3)
    tables = {s for d in made.definitions for s in d.sources if s.name == "p"}
    assert sorted(t.keep.value for t in tables) == sorted(k.value for k in stored)
    (last,) = (d for d in made.definitions if d.name == "z")
    assert {s.keep for s in last.sources if s.name == "p"} == {Keep.LATE}


def test_never_is_never() -> None:
    """What a user marks so stays out of memory, whatever it takes."""
    own = table(2, 197, 64, turned=True, keep=Keep.NEVER)
    assert with_stored(own, ZEN3) is own


def test_what_is_cheap_is_computed_again() -> None:
    """The exponential of one product takes as long as to move it."""
    graph = table(2, 197, 1, turned=True)
    assert with_stored(graph, ZEN3) is graph


@pytest.mark.parametrize(
    ("batch", "rows", "terms", "stored"),
    [(1, 2048, 64, True), (1, 2049, 64, False), (1, 8192, 64, False), (500, 128, 64, True)],
)
def test_there_is_room(batch: int, rows: int, terms: int, stored: bool) -> None:
    """16 MiB that the last level holds, or no more than what it is made of: 128 x 128 of 2 x 64."""
    own = kept(table(batch, rows, terms, turned=True))
    assert (own["p"] is Keep.LATE) == stored


def launched(function: Any, *given: Any) -> list[str]:
    """What every launch stores."""
    run = pb.jit(function, options=pb.Options(machine="zen3", target="x86-64-v3"))
    run(*given)
    return [s.store.name for k in run.program.distinct() for s in k.every if s.store is not None]


def attention(a: tuple[Any, Any, Any], g: Any) -> Any:
    return (pb.nn.functional.scaled_dot_product_attention(*a) * g).sum()


def test_gradients_of_attention_share_exponentials() -> None:
    """What is stored beside results: a table of exponentials and one of adjoints."""
    given = [pb.ones((2, 3, 197, 64)) for _ in range(4)]
    stored = launched(lambda q, k, v, g: pb.grad(attention)((q, k, v), g), *given)
    assert {"exps", "ddots"} <= set(stored), stored


def arena(layers: int, table: int) -> int:
    """Bytes of the arena of a chain of attention of `table` positions, with gradients."""

    def loss(x: Any) -> Any:
        for _ in range(layers):
            x = pb.nn.functional.scaled_dot_product_attention(x, x, x)
        return (x * x).sum()

    run = pb.jit(pb.grad(loss), options=pb.Options(machine="zen3", target="x86-64-v3"))
    run(pb.ones((1, 2, table, 32)))
    assert "exps" in {s.store.name for k in run.program.distinct() for s in k.every if s.store}
    return run.program.memory.arena_bytes


def test_tables_of_a_backward_do_not_wait() -> None:
    """Two layers more are no table more: each is computed after the backward of the layer above."""
    table = 2 * 197 * 197 * float32.itemsize
    more = arena(4, 197) - arena(2, 197)
    assert more < table, f"{more} bytes of two layers, a table has {table}"


SHAPES = ((1, 1, 1, 1, 4, 4), (2, 3, 17, 17, 8, 8), (1, 2, 5, 33, 8, 12), (2, 1, 31, 3, 16, 5))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", ("no", "causal", "allowed", "added"))
def test_adjoints_by_what_was_computed(shape: tuple[int, ...], masked: str) -> None:
    """Beside the gradients of attention itself, also of a row without a column left."""
    b, h, t, s, e, f = shape
    rng = np.random.default_rng(t)
    q, k, v, g = (
        pb.tensor(rng.standard_normal(n).astype("float32"))
        for n in ((b, h, t, e), (b, h, s, e), (b, h, s, f), (b, h, t, f))
    )
    left = np.arange(t)[:, None] % 3 + np.zeros(s, int) > 0
    masks = {"allowed": left, "added": np.where(left, 0.5, -np.inf).astype("float32")}
    causal, mask = masked == "causal", pb.tensor(masks[masked]) if masked in masks else None

    def forward(q: Any, k: Any, v: Any) -> Any:
        return attended(q, k, v, mask, 0.0, causal)

    def own(q: Any, k: Any, v: Any, g: Any) -> Any:
        made = forward(q, k, v)
        logs = pb.reshape(made.logs, (b, h, t))
        seen = with_mask(Mask(causal=causal), mask)
        return adjoints(g, q, k, v, made.output, logs, seen)

    wanted = pb.grad(lambda a: (forward(*a).output * g).sum())((q, k, v))
    for name, one, other in zip("qkv", pb.jit(own)(q, k, v, g), wanted, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=2e-5, atol=2e-5, err_msg=f"d{name} of {shape}"
        )


def test_who_reads_by_other_places() -> None:
    """A map that reads a table at quotients tells of no axis that is summed over."""
    graph = table(2, 197, 64, turned=True)
    y, _ = (d for _, d in graph.assigns)
    assert isinstance(y, Definition)
    p = y.sources[0]

    def halved(b: E.Expr, i: E.Expr, j: E.Expr) -> E.Expr:
        half = [E.FloorDiv(n, E.index(2)) for n in (i, j)]
        return read(p, b, *half)

    m = define("m", (2, 197, 197), halved, keep=Keep.AGAIN)
    u = define("u", (2, 197), lambda b, i, j: read(m, b, i, j), over=(197,))
    v = define("v", (2, 197), lambda b, j, i: read(m, b, i, j), over=(197,))
    outputs = tuple((Variable(d.name.upper(), d.shape, float32), d) for d in (y, u, v))
    own = kept(Graph(outputs))
    assert (own["p"], own["m"]) == (Keep.AGAIN, Keep.LATE), "only `m` is summed over two axes"


def test_keys_and_values_are_as_many() -> None:
    q, k, v = (pb.ones((1, 2, n, 4)) for n in (3, 5, 6))
    with pytest.raises(ShapeError, match="E175"):
        attended(q, k, v)
    with pytest.raises(ShapeError, match="E175"):
        adjoints(q, q, k, v, q, pb.ones((1, 2, 3)), Mask())


def test_nothing_is_stored_without_a_reader() -> None:
    x = Variable("x", (3, 4), float32)
    lone: Definition = define("y", x.shape, lambda *i: E.Exp(read(x, *i)), keep=Keep.AGAIN)
    graph = Graph(((Variable("Y", x.shape, float32), lone),))
    assert with_stored(graph, ZEN3) is graph
