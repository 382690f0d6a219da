"""Composites of 16-bit floats beside PyTorch's and float64: large means, squares that overflow,
long axes. The error is at most PyTorch's, or what one rounding of the result allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.nn import functional as F
from test_halves import HALVES, array

torch = pytest.importorskip("torch")
G = torch.nn.functional
Array = np.ndarray[Any, Any]
DIGITS = {"bfloat16": 8, "float16": 11}
TINY = {"bfloat16": 2.0**-133, "float16": 2.0**-24}
EASE = 1.02  # of half a unit: what the steps in float32 leave beside the last rounding


def rough(shape: tuple[int, ...], mean: float, spread: float, seed: int = 0) -> Array:
    found: Array = np.random.default_rng(seed).standard_normal(shape) * spread + mean
    return found


WIDE = rough((3, 257), 0.0, 3000.0)
FAR = rough((3, 512), 20.0, 1.0)
LONG = rough((2, 4096), 100.0, 1.0)
PLAIN = rough((6, 40), 0.3, 1.0)
IMAGE = rough((2, 4, 9, 9), 300.0, 40.0)
LOUD = rough((2, 4, 9, 9), 1000.0, 12000.0)
CLASSES = rough((6, 300), 40.0, 30.0)
LOGITS = rough((6, 40), 0.0, 60.0, 1)
HEADS = tuple(rough((1, 2, 24, 64), 0.0, 30.0, n) for n in range(3))
TARGETS = np.array([0, 7, 39, 39, 2, 5])
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]


def both(name: str, *args: Any, **settings: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions of one name with the same settings."""

    def ours(*x: Any) -> Any:
        return getattr(F, name)(*x, *args, **settings)

    def theirs(*x: Any) -> Any:
        return getattr(G, name)(*x, *args, **settings)

    return ours, theirs


CASES: dict[str, Case] = {
    "mean": (lambda x: pb.mean(x, axis=1), lambda x: x.mean(1), (LONG,)),
    "mean of equal": (lambda x: pb.mean(x), lambda x: x.mean(), (np.full((4096,), 100.0),)),
    "sum": (lambda x: pb.sum(x, axis=1), lambda x: x.sum(1), (PLAIN,)),
    "sum of columns": (lambda x: pb.sum(x, axis=0), lambda x: x.sum(0), (LONG.T,)),
    "var": (lambda x: pb.var(x, axis=1), lambda x: x.var(1, correction=0), (LONG,)),
    "std": (lambda x: x.std(axis=1), lambda x: x.std(1, correction=0), (WIDE,)),
    "logsumexp": (lambda x: pb.logsumexp(x, axis=1), lambda x: x.logsumexp(1), (CLASSES,)),
    "softmax": (*both("softmax", -1), (CLASSES,)),
    "log_softmax": (*both("log_softmax", -1), (CLASSES,)),
    "cumulative_sum": (lambda x: pb.cumulative_sum(x, axis=1), lambda x: x.cumsum(1), (FAR,)),
    "cumulative_prod": (
        lambda x: pb.cumulative_prod(x, axis=1), lambda x: x.cumprod(1), (PLAIN,)
    ),
    "cumulative_logsumexp": (
        lambda x: pb.cumulative_logsumexp(x, axis=1), lambda x: x.logcumsumexp(1), (CLASSES,)
    ),
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b, (PLAIN, PLAIN.T)),
    "einsum": (
        lambda a, b: pb.einsum("ik,jk->ij", a, b),
        lambda a, b: torch.einsum("ik,jk->ij", a, b),
        (FAR, FAR),
    ),
    "vecdot": (lambda a, b: pb.vecdot(a, b), lambda a, b: torch.linalg.vecdot(a, b), (FAR, FAR)),
    "norm": (
        lambda x: pb.array_api.linalg.vector_norm(x, axis=1),
        lambda x: torch.linalg.vector_norm(x, dim=1),
        (WIDE / 100,),
    ),
    "linear": (*both("linear"), (PLAIN, PLAIN[:3], rough((3,), 5.0, 3.0))),
    "conv2d": (*both("conv2d", padding=1), (IMAGE / 300, rough((3, 4, 3, 3), 0, 1), PLAIN[0, :3])),
    "conv_transpose2d": (
        *both("conv_transpose2d", stride=2),
        (IMAGE / 300, rough((4, 3, 3, 3), 0, 1), PLAIN[0, :3]),
    ),
    "layer_norm": (*both("layer_norm", (512,)), (FAR,)),
    "layer_norm of large": (*both("layer_norm", (257,)), (WIDE,)),
    "rms_norm": (*both("rms_norm", (257,)), (WIDE,)),
    "group_norm": (*both("group_norm", 2), (LOUD,)),
    "batch_norm": (*both("batch_norm", None, None, training=True), (LOUD,)),
    "instance_norm": (*both("instance_norm"), (IMAGE,)),
    "local_response_norm": (*both("local_response_norm", 3), (IMAGE,)),
    "avg_pool2d": (*both("avg_pool2d", 3, padding=1), (LOUD,)),
    "adaptive_avg_pool2d": (*both("adaptive_avg_pool2d", 2), (LOUD,)),
    "lp_pool2d": (*both("lp_pool2d", 2.0, 3), (IMAGE,)),
    "mse_loss": (*both("mse_loss"), (IMAGE, IMAGE[::-1] + 30)),
    "l1_loss": (*both("l1_loss"), (LOUD, LOUD[::-1])),
    "smooth_l1_loss": (*both("smooth_l1_loss"), (LOUD, LOUD[::-1])),
    "huber_loss": (*both("huber_loss", delta=30.0), (IMAGE, IMAGE[::-1])),
    "soft_margin_loss": (*both("soft_margin_loss"), (LOGITS, np.sign(PLAIN))),
    "binary_cross_entropy": (*both("binary_cross_entropy"), (PLAIN % 1, (PLAIN * 3) % 1)),
    "binary_cross_entropy_with_logits": (
        *both("binary_cross_entropy_with_logits"), (LOGITS, PLAIN % 1)
    ),
    "kl_div": (*both("kl_div", reduction="sum"), (LOGITS, PLAIN % 1)),
    "poisson_nll_loss": (*both("poisson_nll_loss"), (PLAIN * 3, abs(LOGITS))),
    "gaussian_nll_loss": (*both("gaussian_nll_loss"), (LOGITS, PLAIN, abs(PLAIN) + 0.1)),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, pb.tensor(TARGETS)),
        lambda x: G.cross_entropy(x, torch.tensor(TARGETS)),
        (LOGITS,),
    ),
    "nll_loss": (
        lambda x: F.nll_loss(x, pb.tensor(TARGETS)),
        lambda x: G.nll_loss(x, torch.tensor(TARGETS)),
        (-abs(LOGITS),),
    ),
    "multi_margin_loss": (
        lambda x: F.multi_margin_loss(x, pb.tensor(TARGETS)),
        lambda x: G.multi_margin_loss(x, torch.tensor(TARGETS)),
        (LOGITS,),
    ),
    "cosine_similarity": (*both("cosine_similarity"), (WIDE, WIDE[::-1] + 1000)),
    "cosine_embedding_loss": (
        *both("cosine_embedding_loss"), (WIDE, WIDE[::-1] + 1000, np.array([1.0, -1.0, 1.0]))
    ),
    "normalize": (*both("normalize"), (WIDE,)),
    "pairwise_distance": (*both("pairwise_distance"), (FAR, FAR[::-1] * 2)),
    "triplet_margin_loss": (*both("triplet_margin_loss"), (FAR, FAR[::-1], FAR * 0.9)),
    "attention": (*both("scaled_dot_product_attention"), HEADS),
    "attention, causal": (*both("scaled_dot_product_attention", is_causal=True), HEADS),
    "interpolate": (*both("interpolate", size=(13, 700), mode="bilinear"), (IMAGE,)),
    "glu": (*both("glu"), (PLAIN,)),
    "cov": (lambda x: pb.cov(x), lambda x: torch.cov(x), (WIDE / 30,)),
    "addmm": (
        lambda x, a, b: pb.addmm(x, a, b, beta=0.5),
        lambda x, a, b: torch.addmm(x, a, b, beta=0.5),
        (FAR[:, :3], FAR, FAR.T),
    ),
    "multi_dot": (
        lambda a, b: pb.linalg.multi_dot([a, b, a]),
        lambda a, b: torch.linalg.multi_dot([a, b, a]),
        (PLAIN, PLAIN.T),
    ),
    "trapezoid": (lambda x: pb.trapezoid(x), lambda x: torch.trapezoid(x), (LONG / 10,)),
    "cross": (
        lambda a, b: pb.cross(a, b, axis=0), lambda a, b: torch.cross(a, b, dim=0), (FAR, FAR + 0.3)
    ),
    "scatter_reduce": (
        lambda x, v: pb.scatter_reduce(
            x, pb.tensor(np.zeros(FAR.shape, np.int64)), v, axis=1, reduce="mean"
        ),
        lambda x, v: x.scatter_reduce(1, torch.zeros(FAR.shape, dtype=torch.int64), v, "mean"),
        (FAR, FAR + 3),
    ),
}  # fmt: skip


def exact(values: Array, dtype: str) -> Array:
    """Numbers that `dtype` holds, as float64."""
    return np.asarray(array(values, dtype), np.float64)


def units(found: Array, truth: Array, dtype: str) -> float:
    """The largest error in units of the last place of the truth."""
    if not np.isfinite(found).all():
        return np.inf
    ulp = np.exp2(np.floor(np.log2(np.maximum(abs(truth), TINY[dtype]))) - DIGITS[dtype] + 1)
    return float((abs(found - truth) / np.maximum(ulp, TINY[dtype])).max())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_composites_are_rounded_once(name: str, dtype: str) -> None:
    ours, theirs, given = CASES[name]
    held = [exact(a, dtype) for a in given]
    truth = theirs(*map(torch.tensor, held)).numpy()
    found = ours(*(pb.tensor(array(a, dtype)) for a in held))
    assert found.dtype == getattr(pb, dtype)
    own = units(np.asarray(found.numpy(), np.float64), truth, dtype)
    peer = np.inf
    if own > 0.5 * EASE:
        cast = [torch.tensor(a).to(getattr(torch, dtype)) for a in held]
        peer = units(theirs(*cast).double().numpy(), truth, dtype)
        assert own <= peer, f"{own} units, PyTorch {peer}"


STILL = {"cosine_embedding_loss": 2, "soft_margin_loss": 1, "kl_div": 1, "lp_pool2d": 0}
"""How many arguments have a slope, where it is not all of them; the root of a sum of squares that
PyTorch's own derivative divides by itself is left out."""


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", [n for n in CASES if STILL.get(n) != 0])
def test_gradients_of_composites_are_as_good(name: str, dtype: str) -> None:
    """Against float64, in units of the largest element of each gradient."""
    ours, theirs, given = CASES[name]
    held = [exact(a, dtype) for a in given]
    count = STILL.get(name, len(held))
    shape = theirs(*map(torch.tensor, held)).shape
    head = exact(np.random.default_rng(5).uniform(0.5, 2.0, shape), dtype)

    def slopes(kind: Any) -> list[Array]:
        leaves = [torch.tensor(a).to(kind).requires_grad_(n < count) for n, a in enumerate(held)]
        theirs(*leaves).backward(torch.tensor(head).to(kind))
        return [x.grad.double().numpy() for x in leaves[:count]]

    def loss(*x: Any) -> Any:
        return pb.sum(pb.astype(ours(*x), "float32") * pb.tensor(head.astype(np.float32)))

    tensors = [pb.tensor(array(a, dtype)) for a in held]
    found = pb.grad(loss, argnums=tuple(range(count)))(*tensors)
    truths = slopes(torch.float64)
    try:
        peers = slopes(getattr(torch, dtype))
    except NotImplementedError:
        peers = truths
    for own, peer, truth in zip(found, peers, truths, strict=True):
        largest = np.full_like(truth, abs(truth).max())
        error = units(largest + np.asarray(own.numpy(), np.float64) - truth, largest, dtype)
        if not error <= 0.5 * EASE:
            assert error <= units(largest + peer - truth, largest, dtype)
