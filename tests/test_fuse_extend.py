"""Guarded and divided sums of products become plain ones, with the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.base import Compiler
from pullback.backends.reference.definitions import evaluate
from pullback.cost.facts import points
from pullback.fuse import fuse
from pullback.ir import expr as E
from pullback.ir.expr import upper
from pullback.ir.graph import Definition, Graph, Reduce, Variable, topological
from pullback.ir.kernel import Kernel
from pullback.ir.node import walk
from pullback.ir.program import Compute, Loop
from pullback.ir.target import Target
from pullback.machine.machine import chosen, parsed
from pullback.prepare.ahead import turned_ahead
from pullback.prepare.extend import extend, padded
from pullback.simplify.graph import simplify_graph
from pullback.simplify.rules import simplify

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
MACHINE = chosen("zen4")


def convolution(x: Any, w: Any, stride: int, pad: int, dilation: int) -> Any:
    images, channels, height, width = x.shape
    kernels, _, rows, columns = w.shape
    high, wide = (
        (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
        for n, k in ((height, rows), (width, columns))
    )
    if pad:
        x = pb.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    c, a, b = pb.axis(channels), pb.axis(rows), pb.axis(columns)

    def at(n: Any, f: Any, i: Any, j: Any) -> Any:
        patch = x[n, c, i * stride + a * dilation, j * stride + b * dilation]
        return pb.sum(patch * w[f, c, a, b], over=(c, a, b))

    return pb.compute((images, kernels, high, wide), at)


def gradients(stride: int, pad: int, dilation: int, taps: int) -> tuple[Graph, dict[Any, Array]]:
    """The gradients of a convolution by both operands, and the values of what they read."""
    data = RNG.standard_normal((12, 5, 19, 17)), RNG.standard_normal((7, 5, taps, taps))
    image, kernel = (pb.tensor(d) for d in data)
    y = convolution(image, kernel, stride, pad, dilation)
    head = pb.tensor(RNG.standard_normal(y.shape))
    found = pb.grad(y, [image, kernel], head=head)
    names = dict(zip([image.value, kernel.value, head.value], [*data, np.array(head)], strict=True))
    assigns = [(Variable(f"d{n}", g.shape, g.dtype), g.value) for n, g in enumerate(found)]
    return simplify_graph(Graph(tuple(assigns))), names


def sums(graph: Graph) -> list[Definition]:
    return [d for d in graph.definitions if isinstance(d.form, Reduce) and points(d) >= 1 << 15]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("pad", "dilation", "taps"), [(0, 1, 3), (1, 1, 4), (2, 2, 3), (0, 3, 2)])
def test_adjoints_of_convolutions(stride: int, pad: int, dilation: int, taps: int) -> None:
    graph, values = gradients(stride, pad, dilation, taps)
    plain = extend(graph, simplify, MACHINE)
    before, after = evaluate(graph, values), evaluate(plain, values)
    for variable, wanted in before.items():
        np.testing.assert_allclose(after[variable], wanted, rtol=1e-12, atol=1e-12)
    assert sums(plain), "the convolution is large enough to be rewritten"
    for d in sums(plain):
        nodes = list(walk(d.body))
        assert not any(isinstance(n, E.FloorDiv | E.Mod) for n in nodes)
        tests = [n.condition.axes for n in nodes if isinstance(n, E.If)]
        spread = {a for a, e in enumerate(d.shape) if upper(e) > stride}
        assert all(spread.isdisjoint(axes) for axes in tests), "only phases may ask"


@pytest.mark.parametrize(
    ("stride", "dilation", "pad"), [(2, 2, 2), (4, 2, 3), (2, 4, 0), (3, 3, 4)]
)
def test_what_lies_in_steps_between_zeros_is_only_that(
    stride: int, dilation: int, pad: int
) -> None:
    """A convolution whose stride and dilation share a factor reads a part of its picture."""
    data = RNG.standard_normal((3, 5, 41, 38)), RNG.standard_normal((9, 5, 3, 3))
    image, kernel = (pb.tensor(d) for d in data)
    y = pb.nn.functional.conv2d(image, kernel, stride=stride, padding=pad, dilation=dilation)
    graph = simplify_graph(Graph(((Variable("y", y.shape, y.dtype), y.value),)))
    plain = extend(graph, simplify, MACHINE)
    names = {image.value: data[0], kernel.value: data[1]}
    wanted, got = (next(iter(evaluate(g, names).values())) for g in (graph, plain))
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    for d in sums(plain):
        assert not any(isinstance(n, E.If) for n in walk(d.body)), "bounds are no guards"
        (picture,) = (
            t.source for t in E.takes(d.body) if len(t.source.shape) == 4 and t.source.shape[0] == 3
        )
        assert pad == 0 or upper(picture.shape[2]) <= (41 + 2 * pad) // 2 + 1, "a part of it"


def test_which_terms_there_are_is_asked_of_weights() -> None:
    """Of a 5x5 adjoint of stride 2 both operands change with the phase; pictures are copied."""
    graph, _ = gradients(2, 2, 1, 5)
    for d in sums(extend(graph, simplify, MACHINE)):
        for node in walk(d.body):
            if isinstance(node, E.If) and len(d.shape) == 6:
                (asked,) = E.takes(node.then)
                assert upper(asked.source.shape[-1]) <= 7, "the taps"


def test_what_is_no_product_stays() -> None:
    graph, _ = gradients(1, 1, 1, 3)
    once = extend(graph, simplify, MACHINE)
    again = extend(once, simplify, MACHINE)
    assert [d.body for d in sums(again)] == [d.body for d in sums(once)]


def test_a_triangle_is_no_extension() -> None:
    n = 40
    a, b = pb.tensor(RNG.standard_normal((n, n))), pb.tensor(RNG.standard_normal((n, n)))
    k = pb.axis(n)
    y = pb.compute((n, n), lambda i, j: pb.sum(pb.where(k <= i, a[i, k] * b[k, j], 0.0), over=k))
    target = Variable("y", (n, n), y.dtype)
    graph = simplify_graph(Graph(((target, y.value),)))
    (found,) = sums(extend(graph, simplify, MACHINE))
    assert any(isinstance(node, E.If) for node in walk(found.body))


@pytest.mark.parametrize("name", ["zen4", "zen5", "x86-64-v3"])
def test_a_large_weight_gradient_reads_stored_zeros(name: str) -> None:
    """In one kernel each tile writes its own zeros between elements: three times as long here."""
    x, w = pb.tensor(np.zeros((8, 64, 56, 56), "f4")), pb.tensor(np.zeros((64, 64, 3, 3), "f4"))
    y = convolution(x, w, 1, 1, 1)
    head = pb.tensor(np.zeros(y.shape, "f4"))
    dw = pb.grad(y, [w], head=head)[0]
    graph = simplify_graph(Graph(((Variable("dw", dw.shape, dw.dtype), dw.value),)))
    assert len(fuse(graph, Target(machine=chosen(name)))) == 2


def test_operands_are_prepared_for_machines_that_pack_them() -> None:
    graph, _ = gradients(2, 1, 1, 3)
    bare = parsed(MACHINE.text.replace("\npack = 0.4\n", "\npack = 0\n"), "bare")
    assert MACHINE.packs and not bare.packs
    assert extend(graph, simplify, bare) is graph is not extend(graph, simplify, MACHINE)
    loop = Loop((Compute(graph),), 9)
    assert turned_ahead((loop,), bare) == (loop,)


def test_padded_views_are_kept_for_machines_that_pack_them() -> None:
    x, w = pb.tensor(np.zeros((8, 64, 56, 56), "f4")), pb.tensor(np.zeros((64, 64, 3, 3), "f4"))
    y = convolution(x, w, 1, 1, 1)
    order = topological([y.value])
    bare = parsed(MACHINE.text.replace("\npack = 0.4\n", "\npack = 0\n"), "bare")
    assert [str(v) for v in padded(order, MACHINE)] == ["pad"]
    assert not padded(order, bare)
    graph = simplify_graph(Graph(((Variable("y", y.shape, y.dtype), y.value),)))
    assert len(fuse(graph, Target(machine=bare))) == 1


def test_what_lies_apart_is_stored_between_zeros() -> None:
    """Nine taps at every second place are not so many guards, but each reads alone under one."""
    x, w = pb.tensor(np.zeros((2, 16, 112, 112), "f4")), pb.tensor(np.zeros((16, 1, 3, 3), "f4"))
    y = pb.nn.functional.conv2d(x, w, stride=2, padding=1, groups=16)
    graph = simplify_graph(Graph(((Variable("y", y.shape, y.dtype), y.value),)))
    made = extend(graph, simplify, chosen("zen3"))
    assert [str(d) for d in made.definitions] == ["tensor_between_zeros", "conv"]
    views = padded(topological([v for _, v in made.assigns]), chosen("zen3"))
    assert [str(v) for v in views] == ["tensor_between_zeros"]


def _with_guards(kernel: Kernel, target: Target) -> float:
    """Nanoseconds by which sums with guards always take less."""
    sums = [s.body for s in kernel.every if isinstance(s.form, Reduce)]
    return 1.0 if any(isinstance(n, E.If) for body in sums for n in walk(body)) else 1e9


SHAPES = [(1, 2, 1, 1, 5, 6), (2, 1, 1, 3, 3, 5), (1, 2, 2, 1, 3, 5), (2, 3, 1, 2, 7, 6)]


@pytest.mark.parametrize(("stride", "pad", "dilation", "groups", "taps", "size"), SHAPES)
def test_sums_keep_their_guards_where_that_is_priced_below(
    monkeypatch: pytest.MonkeyPatch,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    taps: int,
    size: int,
) -> None:
    """Tiles leave out the zeros: the sums of PyTorch, with one thread and with two."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(Compiler, "ns", lambda self, kernel, target: _with_guards(kernel, target))
    shapes = (7, 18, size, size), (42, 18 // groups, taps, taps)
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in shapes)
    given = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
    tx, tw = (torch.from_numpy(a).double().requires_grad_() for a in (x, w))
    y = torch.nn.functional.conv2d(tx, tw, **given)
    g = RNG.standard_normal(tuple(y.shape)).astype(np.float32)
    wanted = [y, *torch.autograd.grad(y, (tx, tw), torch.from_numpy(g).double())]
    own = [pb.tensor(a) for a in (x, w, g)]

    def loss(x: Any, w: Any, g: Any) -> Any:
        return pb.sum(pb.nn.functional.conv2d(x, w, **given) * g)

    results = []
    for threads in (1, 2):
        options = pb.Options(threads=threads, cache=None)
        forward = pb.jit(lambda x, w: pb.nn.functional.conv2d(x, w, **given), options=options)
        back = pb.jit(pb.grad(loss, argnums=(0, 1)), options=options)
        results.append([np.array(r) for r in (forward(*own[:2]), *back(*own))])
        kept = [s for f in (forward, back) for k in f.program.kernels for s in k.every]
        assert any(_with_guards(Kernel("", (), (s,)), Target()) == 1.0 for s in kept)
    for one, two, exact in zip(*results, wanted, strict=True):
        np.testing.assert_array_equal(one, two)
        near = exact.detach().numpy()
        np.testing.assert_allclose(one, near, rtol=0, atol=4e-6 * np.abs(near).max())


def test_guards_are_kept_by_price() -> None:
    """Only where it is well below, where zeros are many, and where a tile may leave them out."""
    x, w = (pb.tensor(RNG.standard_normal(s)) for s in ((7, 18, 6, 6), (42, 18, 5, 5)))
    y = pb.nn.functional.conv2d(x, w, padding=2)
    graph = simplify_graph(Graph(((Variable("y", y.shape, y.dtype), y.value),)))

    def guarded(below: float) -> bool:
        def price(one: Graph) -> float:
            plain = all(not isinstance(n, E.If) for d in sums(one) for n in walk(d.body))
            return 1e9 if plain else below * 1e9

        made = extend(graph, simplify, MACHINE, price)
        return any(isinstance(n, E.If) for d in sums(made) for n in walk(d.body))

    limit = MACHINE.rate("product", "guarded")
    assert guarded(limit - 0.01)
    assert not guarded(limit + 0.01)
