"""Operators: both modes, two orders, against differences; native code against the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grad_cases as C
import pullback as pb
from grad_support import draw, evaluate
from pullback.config import Options
from pullback.grad.forward import tangents
from pullback.grad.reverse import gradients
from pullback.ir.graph import Graph, Variable
from pullback.ir.program import Compute, Program
from pullback.nn import functional as NF
from pullback.pipeline import compile_program
from pullback.tensor.derive.check import Checker, Problem, Report

RNG = np.random.default_rng(11)
Operator = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
V, M, IMAGE = (5,), (5, 7), (2, 5, 7, 7)
SMALL = (2, 3, 7, 7)
TOKENS = pb.tensor(np.array([3, 0, 0, 4, 3, 1]))
PICKS = pb.tensor(RNG.integers(0, 5, (2, 7)))
INSIDE = (0.1, 2.0)  # drawn from here, so that logs and roots exist


def first(function: Callable[..., Any], axis: int = -1) -> Callable[..., Any]:
    return lambda x: function(x, axis=axis)


def image(function: Callable[..., Any], **given: Any) -> Callable[..., Any]:
    return lambda x: function(x, **given)


def conv(**given: Any) -> Operator:
    return (lambda x, w: NF.conv2d(x, w, **given)), (SMALL, (4, 3, 3, 3))


def transposed(**given: Any) -> Operator:
    return (lambda x, w: NF.conv_transpose2d(x, w, **given)), ((2, 3, 4, 4), (3, 2, 3, 3))


def recurrence(a: Any, b: Any) -> Any:
    """``h[t] = a[t] h[t - 1] + b[t]`` over six steps, written out."""
    h = b[0]
    for t in range(1, 6):
        h = a[t] * h + b[t]
    return h


def causal(q: Any, k: Any, v: Any) -> Any:
    return NF.scaled_dot_product_attention(q, k, v, is_causal=True)


def banded(x: Any, y: Any) -> Any:
    def body(i: Any, j: Any) -> Any:
        return pb.where((i - j <= 1) & (j - i <= 1), x[i] * y[j], 0.0)

    return pb.compute((6, 6), body)


OPERATORS: dict[str, Operator] = {
    "add": (lambda x, y: x + y, (V, V)),
    "mul": (lambda x, y: x * y + x + y, (V, V)),
    "div": (lambda x, y: x / y, (V, V)),
    "mod": (lambda x, y: (x * 7.3) % y, (V, V)),
    "pow": (lambda x, y: pb.pow(pb.abs(x), y), (V, V)),
    "maximum": (lambda x, y: pb.maximum(x, y) - pb.minimum(x, y) * 2, (V, V)),
    "expand_dims": (lambda x: pb.expand_dims(x, axis=1), (M,)),
    "softmax": (first(pb.softmax), (M,)),
    "log_softmax": (first(pb.log_softmax), (M,)),
    "bias_add": (lambda x, b: x + b[:, None], (M, V)),
    "conv2d": conv(),
    "conv2d strides": conv(stride=(2, 1)),
    "conv2d padding": conv(padding=(1, 0)),
    "conv2d dilation": conv(dilation=(1, 2)),
    "conv2d groups": (lambda x, w: NF.conv2d(x, w, groups=2), ((1, 4, 5, 5), (6, 2, 3, 3))),
    "conv2d_transpose": transposed(),
    "conv2d_transpose strides": transposed(stride=(2, 1)),
    "conv2d_transpose padding": transposed(padding=(1, 0)),
    "conv2d_transpose dilation": transposed(dilation=(2, 1), stride=2),
    "dense": (lambda x, w: x @ w, (M, (7, 10))),
    "max_pool2d": (image(NF.max_pool2d, kernel_size=2, stride=(2, 1)), (IMAGE,)),
    "max_pool2d pad": (
        image(NF.max_pool2d, kernel_size=3, stride=(3, 2), padding=1), (IMAGE,),
    ),
    "avg_pool2d": (image(NF.avg_pool2d, kernel_size=2, stride=(2, 1)), (IMAGE,)),
    "avg_pool2d pad": (
        image(NF.avg_pool2d, kernel_size=3, stride=(3, 2), padding=1), (IMAGE,),
    ),
    "global pools": (lambda x: pb.mean(x, axis=(2, 3)) + pb.max(x, axis=(2, 3)), (SMALL,)),
    "upsampling": (image(NF.interpolate, scale_factor=2, mode="nearest"), ((1, 2, 3, 4),)),
    "resize nearest": (image(NF.interpolate, size=(5, 7), mode="nearest"), ((1, 2, 3, 4),)),
    "resize bilinear": (image(NF.interpolate, size=(5, 7), mode="bilinear"), ((1, 2, 3, 4),)),
    "resize bilinear corners": (
        image(NF.interpolate, size=(5, 7), mode="bilinear", align_corners=True), ((1, 2, 3, 4),),
    ),
    "batch_flatten": (lambda x: pb.reshape(x, (2, -1)), (SMALL,)),
    "pad": (lambda x: pb.pad(x, ((0, 0), (0, 1), (1, 2), (2, 3))), (SMALL,)),
    "lrn": (image(NF.local_response_norm, size=3), (SMALL,)),
    "l2_normalize": (lambda x: NF.normalize(x, dim=1), (M,)),
    "leaky_relu": (image(NF.leaky_relu, negative_slope=0.1), (M,)),
    "prelu": (NF.prelu, ((2, 3, 4), (3,))),
    "reshape": (lambda x: pb.reshape(x, (2, 5, 5)), ((5, 10),)),
    "transpose": (lambda x: pb.permute_dims(x, (2, 0, 1)), ((2, 3, 4),)),
    "squeeze": (lambda x: pb.squeeze(x, axis=(0, 2)), ((1, 3, 1),)),
    "reductions": (lambda x: pb.sum(x, axis=0) * pb.max(x, axis=0) - pb.min(x, axis=0), (M,)),
    "mean and prod": (lambda x: pb.mean(x, axis=1) * pb.prod(x, axis=1), (M,)),
    "strided_slice": (lambda x: x[0:1, 4:0:-1, 2:5, 0:6:3], ((1, 5, 7, 7),)),
    "broadcast_to": (lambda x: pb.broadcast_to(x, (3, 5, 7)), (M,)),
    "collapse_sum": (lambda x: pb.sum(x, axis=0, keepdims=True), (M,)),
    "layout": (lambda x: pb.permute_dims(pb.reshape(x, (2, 2, 2, 3)), (0, 1, 3, 2)), ((2, 4, 3),)),
    "concatenate": (lambda x, y: pb.concat([x, y, x], axis=1), ((2, 3), (2, 5))),
    "stack": (lambda x, y: pb.stack([x, y], axis=1), (M, M)),
    "split": (lambda x: pb.split(x, 7, axis=1)[3] * pb.split(x, 7, axis=1)[0], (M,)),
    "batch_norm": (
        lambda x, g, b: NF.batch_norm(x, None, None, g, b, training=True), (SMALL, (3,), (3,)),
    ),
    "clip": (lambda x: pb.clip(x, 0.5, 1.4), (M,)),
    "take": (lambda x: pb.take(x, TOKENS, axis=0), (M,)),
    "take_along_axis": (lambda x: pb.take_along_axis(x, PICKS, axis=0), (M,)),
    "cast": (lambda x: pb.astype(x, pb.float64) * x, (M,)),
    "where": (lambda x, y: pb.where(x < y, x * x, y), (M, M)),
    "embedding": (lambda x: NF.embedding(TOKENS, x), (M,)),
    "grid_sample": (
        lambda x, g: NF.grid_sample(x, g - 1, align_corners=False),
        ((1, 2, 4, 4), (1, 3, 3, 2)),
    ),
    "fold": (image(NF.fold, output_size=(4, 4), kernel_size=2), ((1, 8, 9),)),
    "unfold": (image(NF.unfold, kernel_size=2), ((1, 2, 4, 4),)),
    "roll": (lambda x: pb.roll(x, 3, axis=1), (M,)),
    "tile": (lambda x: pb.tile(x, (2, 3)), ((2, 3),)),
    "repeat": (lambda x: pb.repeat(x, 3, axis=0), ((2, 3),)),
    "pixel shuffles": (
        lambda x: NF.pixel_unshuffle(NF.pixel_shuffle(x, 2), 2), ((1, 4, 3, 3),),
    ),
    "cumulative_sum": (first(pb.cumulative_sum), (M,)),
    "cumulative_prod": (first(pb.cumulative_prod), (M,)),
    "cumulative_max": (first(pb.cumulative_max), (M,)),
    "logsumexp": (first(pb.logsumexp), (M,)),
    "variance": (first(pb.var), (M,)),
    "top 2": (lambda x: pb.topk(x, 2)[0], (M,)),
    "sort": (first(pb.sort), (M,)),
    "linear recurrence": (recurrence, ((6, 3), (6, 3))),
    "triangular": (lambda x: pb.sum(pb.tril(x), axis=1), ((5, 5),)),
    "banded": (banded, ((6,), (6,))),
    "causal attention": (causal, ((2, 5, 3), (2, 5, 3), (2, 5, 3))),
    "three uses": (lambda x: x * x + pb.matrix_transpose(x) * 2, ((4, 4),)),
    "no axes": (lambda x, y: pb.exp(x) * y, ((), ())),
    "no elements": (lambda x: pb.sum(x * x, axis=0), ((0, 3),)),
}  # fmt: skip


def checker(name: str, second: bool = True) -> tuple[Checker, Report]:
    function, shapes = OPERATORS[name]
    rng = np.random.default_rng(3)
    report = Report(name)
    problem = Problem.of(function, [rng.uniform(*INSIDE, s) for s in shapes])
    made = Checker(problem, report, 1e-5, rng)
    made.modes("", second)
    return made, report


@functools.cache
def checked(name: str) -> tuple[Checker, Report]:
    return checker(name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_derivatives(name: str) -> None:
    _, report = checked(name)
    assert report, str(report)


@pytest.mark.slow
def test_native_code_equals_the_interpreter() -> None:
    """All first-order results of all operators, compiled as one program."""
    parts = [(name, checked(name)[0].exact[0], checked(name)[0].env) for name in OPERATORS]
    wanted = [(name, v, a) for name, e, _ in parts for v, a in zip(e.values, e.arrays, strict=True)]
    results = [Variable(f"r{n}", v.shape, v.dtype) for n, (_, v, _) in enumerate(wanted)]
    graph = Graph(tuple(zip(results, (v for _, v, _ in wanted), strict=True)))
    env = {k: a for _, _, own in parts for k, a in own.items()}
    bindings = {v: np.array(env[v], order="C") for v in graph.inputs}
    bindings |= {v: np.zeros(a.shape) for v, (_, _, a) in zip(results, wanted, strict=True)}
    state = (*graph.inputs, *results)
    compile_program(Program((Compute(graph),), state), Options(cache=None)).run(bindings)
    for v, (name, _, want) in zip(results, wanted, strict=True):
        assert np.allclose(bindings[v], want, rtol=1e-10, atol=1e-10), name


@pytest.mark.parametrize("name", ["2.2", "2.10", "2.13"])
def test_hessian_vector_products(name: str) -> None:
    """``<H v, w> = <v, H w>``, and the tangent of the gradient equals its differences."""
    case = next(c for c in C.operators() if c.name == name)
    head = Variable("head", case.output.shape, case.output.dtype)
    found = gradients(case.output, case.wrt, head)
    along = [Variable("along", v.shape, v.dtype) for v in case.wrt]
    pushed = tangents(found, case.wrt, along)
    values = draw([*case.wrt, head], -1, 1)
    rng = np.random.default_rng(1)
    v, w = ([rng.normal(size=values[x].shape) for x in case.wrt] for _ in range(2))
    hv = evaluate(pushed, {**values, **dict(zip(along, v, strict=True))})
    hw = evaluate(pushed, {**values, **dict(zip(along, w, strict=True))})
    left = sum(float(np.sum(a * b)) for a, b in zip(hv, w, strict=True))
    right = sum(float(np.sum(a * b)) for a, b in zip(hw, v, strict=True))
    assert abs(left - right) < 1e-9 * (1 + abs(left))
    ends = []
    for s in (1e-6, -1e-6):
        moved = {x: values[x] + s * d for x, d in zip(case.wrt, v, strict=True)}
        ends.append(evaluate(found, {**values, **moved}))
    for exact, a, b in zip(hv, *ends, strict=True):
        assert np.allclose(exact, (a - b) / 2e-6, atol=1e-4 * (1 + abs(exact).max()))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_gradients(kind: str) -> None:
    x = RNG.normal(size=(4, 6))
    half = pb.astype(pb.tensor(x), getattr(pb, kind))
    exact = pb.tensor(np.asarray(half.numpy(), np.float64))

    def loss(v: Any) -> Any:
        return pb.sum(pb.astype(pb.softmax(v, axis=-1), pb.float32) ** 2)

    found = pb.grad(loss(half), half)
    assert found.dtype == half.dtype
    wanted = pb.grad(loss(exact), exact).numpy()
    assert np.allclose(np.asarray(found.numpy(), np.float64), wanted, atol=2e-2)
