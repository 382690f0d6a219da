"""What is promised to be one launch: kernels, launches, barriers, bytes moved, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import TWO_THREADS, Array, arrays, close, normal, rng, run_once, stored
from pullback import nn, optim
from pullback.memory.plan import check
from pullback.nn import functional as F
from pullback.runtime.executable import Executable

L2 = 1 << 20  # bytes
LENGTHS = [1, 17, 128, 1000, pytest.param(4096, marks=pytest.mark.slow)]


def one_kernel(function: Callable[..., Any], *args: Any) -> tuple[Any, Executable]:
    """Result and program of a function that must be one launch."""
    found, program = run_once(function, *args, options=TWO_THREADS)
    names = [k.name for k in program.kernels]
    assert len(names) == 1, names
    assert program.launches == 1
    assert program.barriers <= 1
    return found, program


def size(*shape: int) -> int:
    """Bytes of a float32 array."""
    return 4 * math.prod(shape)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "identity": (lambda y: y, lambda y: y),
    "relu": (F.relu, lambda y: np.maximum(y, 0)),
    "sigmoid": (F.sigmoid, sigmoid),
    "tanh": (F.tanh, np.tanh),
    "silu": (F.silu, lambda y: y * sigmoid(y)),
    "gelu": (F.gelu, lambda y: y * normal_cdf(y)),
    "gelu tanh": (
        lambda y: F.gelu(y, approximate="tanh"),
        lambda y: 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    ),
    "softplus": (F.softplus, lambda y: np.logaddexp(y, 0)),
    "logsigmoid": (F.logsigmoid, lambda y: -np.logaddexp(-y, 0)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_linear_bias_activation_is_one_launch(name: str) -> None:
    own, plain = ACTIVATIONS[name]
    x, w, b = normal(33, 40, seed=1), normal(70, 40, seed=2), normal(70, seed=3)
    found, program = one_kernel(lambda x, w, b: own(F.linear(x, w, b)), x, w, b)
    wide = [a.astype(np.float64) for a in (x, w, b)]
    wanted = plain(wide[0] @ wide[1].T + wide[2])
    close(found, wanted, np.abs(wide[0]) @ np.abs(wide[1]).T + np.abs(wide[2]))
    moved = size(33, 40) + size(70, 40) + size(70) + size(33, 70)
    assert program.bytes_moved == moved, "each array once, nothing in between"


def linear_update(x: Array, r: Array, bias: bool) -> tuple[nn.Module, Executable, dict[str, Array]]:
    """One SGD step on ``(linear(x) * r).sum()``; the weights before it."""
    model = nn.Linear(x.shape[1], r.shape[1], bias=bias)
    before = {k: np.array(v) for k, v in model.state_dict().items()}
    opt = optim.SGD(model.parameters(), lr=0.1)

    @pb.jit(options=TWO_THREADS)
    def train(x: Any, r: Any) -> None:
        opt.zero_grad()
        (model(x) * r).sum().backward()
        opt.step()

    train(x, r)
    return model, train.program, before


def test_weight_gradient_with_its_update_is_one_launch() -> None:
    x, r = normal(50, 40, seed=1), normal(50, 70, seed=2)
    model, program, before = linear_update(x, r, bias=False)
    assert len(program.kernels) == program.launches == 1
    least = size(50, 40) + size(50, 70) + size(70, 40) * 2
    assert least < program.bytes_moved <= least + 16, "only the learning rate besides"
    slope = r.T.astype(np.float64) @ x
    wanted = before["weight"] - 0.1 * slope
    close(np.array(model.weight), wanted, 1 + 0.1 * np.abs(r.T) @ np.abs(x))


def test_bias_gradient_with_its_update_is_one_launch() -> None:
    x, r = normal(50, 40, seed=1), normal(50, 70, seed=2)
    model, program, before = linear_update(x, r, bias=True)
    assert len(program.kernels) <= 2, "each with its update, together at best"
    assert {v.shape for v in stored(program)} == {(70, 40), (70,)}, "no gradient is stored"
    wanted = before["bias"] - 0.1 * r.sum(0, dtype=np.float64)
    close(np.array(model.bias), wanted, 1 + np.abs(r).sum(0))


def softmax(x: Array) -> Array:
    exps = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(3, 7), (64, 1000), (2, 3, 65)])
def test_softmax_is_one_launch(shape: tuple[int, ...]) -> None:
    x = normal(*shape, scale=20)
    found, program = one_kernel(lambda x: F.softmax(x, dim=-1), x)
    close(found, softmax(x), 1.0)
    assert program.bytes_moved == 2 * size(*shape)


@pytest.mark.parametrize("shape", [(3, 7), (64, 1000), (2, 3, 65)])
def test_layer_norm_is_one_launch(shape: tuple[int, ...]) -> None:
    x, gain, shift = normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    found, program = one_kernel(lambda x, g, b: F.layer_norm(x, (shape[-1],), g, b), x, gain, shift)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + shift
    close(found, wanted, 5.0)
    assert program.bytes_moved == 2 * size(*shape) + 2 * size(shape[-1])


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_log_softmax_and_nll_are_one_launch(rows: int) -> None:
    x = normal(rows, 65, scale=3)
    target = rng(1).integers(0, 65, rows)

    def loss(x: Any, t: Any) -> Any:
        return F.nll_loss(F.log_softmax(x, dim=-1), t)

    found, _ = one_kernel(loss, x, target)
    wanted = -np.log(softmax(x))[np.arange(rows), target].mean()
    close(found, wanted, 20.0)
    assert one_kernel(F.cross_entropy, x, target)[0] == pytest.approx(wanted, rel=1e-5)


def test_dropout_after_an_activation_is_one_launch() -> None:
    x, w, b = normal(64, 40, seed=1), normal(48, 40, seed=2), normal(48, seed=3)
    pb.random.manual_seed(5)

    def layer(x: Any, w: Any, b: Any) -> Any:
        return F.dropout(F.relu(F.linear(x, w, b)), 0.25)

    found, program = run_once(layer, x, w, b, options=TWO_THREADS)
    # The generator's own state, three numbers, may move on in a launch of its own.
    heavy = [k for k in program.kernels if any(math.prod(s.shape) > 16 for s in k.stages)]
    assert len(heavy) == 1, [k.name for k in program.kernels]
    assert {v.shape for v in stored(program)} <= {(64, 48), (3,)}, "no mask in memory"
    plain = np.maximum(x @ w.T + b, 0)
    kept = found != 0
    np.testing.assert_allclose(found[kept], plain[kept] / 0.75, rtol=1e-4, atol=1e-4)
    share = kept.sum() / (plain > 0).sum()
    assert 0.7 < share < 0.8


def test_the_dropout_mask_of_the_backward_is_that_of_the_forward() -> None:
    x = normal(40, 48, seed=1)
    pb.random.manual_seed(6)

    def both(x: Any) -> Any:
        y = F.dropout(F.tanh(x), 0.5)
        return y, pb.grad(y.sum(), x)

    (y, slope), program = run_once(both, x, options=TWO_THREADS)
    kinds = {(v.shape, str(v.dtype)) for v in stored(program)}
    assert all(shape != (40, 48) or kind == "float32" for shape, kind in kinds), "no mask"
    assert len([v for v in stored(program) if v.shape == (40, 48)]) == 2
    np.testing.assert_array_equal(y != 0, slope != 0)
    kept = y != 0
    wide = np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(slope[kept], (2 * (1 - wide**2))[kept], rtol=1e-3, atol=1e-5)
    assert 0.4 < kept.mean() < 0.6


# --- attention


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf)
    return softmax64(scores) @ v


def softmax64(x: Array) -> Array:
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def heads(length: int, peaked: bool) -> tuple[Array, Array, Array]:
    """Two heads of 16 features; peaked: some scores are hundreds above the others."""
    scale = 8.0 if peaked else 1.0
    q, k = (normal(1, 2, length, 16, seed=n, scale=scale) for n in (1, 2))
    return q, k, normal(1, 2, length, 16, seed=3)


def no_table(program: Executable, length: int, scratch: int) -> None:
    """No array with a place for every pair of positions; `scratch` bounds a thread's own, bytes."""
    check(program.memory.placed)
    assert max(program.memory.stride) <= scratch, "bounded, whatever the length"
    if length < 64:
        return
    for v in (*stored(program), *program.memory.offsets):
        assert list(v.shape).count(length) < 2, v.name
    if length >= 1000:
        assert program.memory.arena_bytes < 4 * length * length


@pytest.mark.sampled(8)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward_is_one_launch(length: int, causal: bool) -> None:
    for peaked in (False, True):
        q, k, v = heads(length, peaked)
        found, program = one_kernel(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v
        )
        np.testing.assert_allclose(found, attention(q, k, v, causal), rtol=2e-3, atol=2e-4)
        no_table(program, length, L2 // 2 + 4096)  # and some numbers a row
        assert program.bytes_moved == 4 * size(1, 2, length, 16)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward_keeps_no_table(length: int, causal: bool) -> None:
    q, k, v = heads(length, False)
    r = normal(1, 2, length, 16, seed=4)

    def slopes(q: Any, k: Any, v: Any, r: Any) -> Any:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return pb.grad((y * r).sum(), [q, k, v])

    found, program = run_once(slopes, q, k, v, r, options=TWO_THREADS)
    # Rows of 64 KiB (four arrays of 4096) may take three second-level caches, and panels.
    no_table(program, length, L2 if length < 4096 or not causal else 7 * L2 // 2)
    wanted = attention_slopes(q, k, v, r, causal)
    for own, plain in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, plain, rtol=2e-3, atol=2e-4 * np.abs(plain).max())


def attention_slopes(q: Array, k: Array, v: Array, r: Array, causal: bool) -> list[Array]:
    q, k, v, r = (a.astype(np.float64) for a in (q, k, v, r))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if causal:
        scores = np.where(np.tri(q.shape[-2], k.shape[-2], dtype=bool), scores, -np.inf)
    p = softmax64(scores)
    dp = r @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    return [ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ r]


def test_a_row_that_is_masked_entirely_is_zero_forward_and_backward() -> None:
    q, k, v = heads(9, False)
    mask = rng(1).random((9, 9)) < 0.5
    mask[4] = False

    def both(q: Any, k: Any, v: Any, m: Any) -> Any:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return [y, *pb.grad(y.sum(), [q, k, v])]

    y, dq, dk, dv = arrays(pb.jit(both, options=TWO_THREADS)(q, k, v, mask))
    assert np.all(y[..., 4, :] == 0)
    assert np.all(dq[..., 4, :] == 0)
    assert np.isfinite(dk).all() and np.isfinite(dv).all() and np.isfinite(dq).all()
    assert np.abs(y[..., 3, :]).max() > 0


# --- views


def chain(draw: np.random.Generator, x: Any, y: Any, words: list[Any]) -> Any:
    """One to six views of `x` (and `y`), the same calls for NumPy and for tensors."""
    ops, own = words
    for _ in range(draw.integers(1, 7)):
        kind = draw.integers(0, 8)
        rank = len(x.shape)
        axis = int(draw.integers(0, rank))
        n = x.shape[axis]
        if kind == 0 and n > 1:
            a, b = sorted(int(v) for v in draw.choice(n + 1, 2, replace=False))
            index: list[Any] = [slice(None)] * rank
            index[axis] = slice(a, b, int(draw.integers(1, 3)))
            x = x[tuple(index)]
        elif kind == 1:
            order = [int(v) for v in draw.permutation(rank)]
            x = ops.permute_dims(x, order)
        elif kind == 2:
            x = own["pad"](x, axis, int(draw.integers(0, 3)), int(draw.integers(0, 3)))
        elif kind == 3:
            x = ops.concat([x, x], axis=axis)
        elif kind == 4:
            x = ops.reshape(x, split(draw, x.shape, axis))
        elif kind == 5:
            x = ops.flip(x, axis=axis)
        elif kind == 6:
            x = ops.roll(x, int(draw.integers(-3, 4)), axis=axis)
        elif kind == 7 and rank > 1:
            x = ops.concat([x, own["like"](y, x.shape)], axis=axis)
        if math.prod(x.shape) > 400:
            x = x[(slice(0, 2),) * len(x.shape)]
    return x


def split(draw: np.random.Generator, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Another shape of as many elements: axes merged, or one cut in two."""
    if len(shape) > 3 or draw.random() < 0.5:
        return (math.prod(shape),)
    n = shape[axis]
    cuts = [d for d in range(1, n + 1) if n % d == 0]
    first = int(draw.choice(cuts))
    return (*shape[:axis], first, n // first, *shape[axis + 1 :])


def numpy_pad(x: Array, axis: int, before: int, after: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return np.pad(x, widths)


def own_pad(x: Any, axis: int, before: int, after: int) -> Any:
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return pb.pad(x, widths)


def numpy_like(y: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(y.reshape(-1)[:1].reshape((1,) * len(shape)), shape)


def own_like(y: Any, shape: tuple[int, ...]) -> Any:
    return pb.broadcast_to(pb.reshape(y[0:1, 0:1], (1,) * len(shape)), shape)


CHAINS = 1000
BATCH = 50


@pytest.mark.sampled(20)
@pytest.mark.parametrize("batch", range(CHAINS // BATCH))
def test_chains_of_views_add_no_kernel(batch: int) -> None:
    x, y = normal(4, 6, seed=1), normal(3, 5, seed=2)
    seeds = range(batch * BATCH, (batch + 1) * BATCH)

    def views(x: Any, y: Any) -> Any:
        words = [pb, {"pad": own_pad, "like": own_like}]
        return [chain(rng(s), x, y, words) * 2.0 for s in seeds]

    found, program = run_once(views, x, y, options=TWO_THREADS)
    words = [np, {"pad": numpy_pad, "like": numpy_like}]
    for seed, own in zip(seeds, found, strict=True):
        np.testing.assert_array_equal(own, chain(rng(seed), x, y, words) * 2.0, str(seed))
    assert program.launches == len(program.kernels) <= BATCH
    stages = [s for k in program.kernels for s in k.stages]
    assert len(stages) == BATCH, "a stage for each result, none for a view"
    assert not program.memory.offsets, "no temporary"


# --- in place


def cell(array: Array) -> pb.State:
    return nn.Parameter(array)


def run_updates(state: pb.State, update: Callable[[Any], Any], steps: int) -> Executable:
    @pb.jit(options=TWO_THREADS)
    def train() -> None:
        pb.loop(range(steps), lambda: state.assign(update(state)))

    train()
    return train.program


def test_an_elementwise_update_is_in_place() -> None:
    w = normal(48, 48, seed=1)
    state = cell(w)
    program = run_updates(state, lambda s: s * 0.5 + 1.0, 3)
    assert len(program.kernels) == 1
    assert not program.memory.offsets, "no copy of the weight"
    np.testing.assert_allclose(np.array(state), ((w * 0.5 + 1) * 0.5 + 1) * 0.5 + 1, rtol=1e-6)


SQUARE: dict[str, Callable[[Any, Any], Any]] = {
    "transposed": lambda ops, w: ops.matrix_transpose(w) * 0.5,
    "with its transpose": lambda ops, w: w - 0.25 * ops.matrix_transpose(w),
    "flipped rows": lambda ops, w: ops.flip(w, axis=0) + w,
    "rolled": lambda ops, w: w * 0.5 + ops.roll(w, 1, axis=1),
    "product with itself": lambda ops, w: ops.matmul(w, w) * 0.02,
    "its row sums": lambda ops, w: w - 0.01 * ops.sum(w, axis=1, keepdims=True),
    "its column sums": lambda ops, w: w - 0.01 * ops.sum(w, axis=0, keepdims=True),
}


@pytest.mark.parametrize("name", SQUARE)
def test_a_square_weight_is_overwritten_only_after_it_was_read(name: str) -> None:
    w = normal(48, 48, seed=1)
    state = cell(w)
    update = SQUARE[name]
    program = run_updates(state, lambda s: update(pb, s), 3)
    wanted = w.astype(np.float64)
    for _ in range(3):
        wanted = update(np, wanted)
    np.testing.assert_allclose(np.array(state), wanted, rtol=1e-4, atol=1e-4)
    check(program.memory.placed)


def test_the_backward_reads_the_weight_from_before_the_update() -> None:
    x, r, w = normal(8, 48, seed=1), normal(8, 48, seed=2), normal(48, 48, seed=3, scale=0.2)
    first, second = nn.Parameter(w), nn.Parameter(w.T.copy())

    x_given, r_given = pb.tensor(x), pb.tensor(r)

    @pb.jit(options=TWO_THREADS)
    def train() -> None:
        def body() -> None:
            y = pb.tanh(x_given @ first.mT) @ second.mT
            ga, gb = pb.grad((y * r_given).sum(), [first, second])
            first.assign(first - 0.02 * ga)
            second.assign(second - 0.02 * gb)

        pb.loop(range(5), body)

    train()
    a, b = w.astype(np.float64), w.T.astype(np.float64)
    for _ in range(5):
        hidden = np.tanh(x @ a.T)
        down = (r @ b) * (1 - hidden**2)
        a, b = a - 0.02 * down.T @ x, b - 0.02 * r.T @ hidden
    np.testing.assert_allclose(np.array(first), a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(second), b, rtol=1e-4, atol=1e-5)


def test_updates_under_a_clipped_norm_are_one_launch() -> None:
    x, r = normal(2, 255, seed=1), normal(2, 255, seed=2)
    model = nn.Sequential(nn.Linear(255, 255), nn.Sigmoid(), nn.Linear(255, 255))
    opt = optim.SGD(model.parameters(), lr=0.01)

    @pb.jit(options=TWO_THREADS)
    def train(x: Any, r: Any) -> None:
        opt.zero_grad()
        (model(x) * r).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    train(x, r)
    program = train.program
    state = set(program.program.state)
    updates = [k for k in program.kernels if state.intersection(k.writes)]
    assert len(updates) == 1, [k.name for k in program.kernels]
    assert len(state.intersection(updates[0].writes)) == 4
    assert program.launches <= 5
