"""What an operator keeps for its backward, and that nothing else of it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def layers(x: pb.Tensor, a: pb.Tensor, b: pb.Tensor) -> pb.Tensor:
    return pb.tanh(pb.tanh(x @ a) @ b)


def attention(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
    return pb.softmax(q @ pb.matrix_transpose(k), axis=-1) @ v


def scaled(x: pb.Tensor) -> tuple[pb.Tensor, pb.Tensor, pb.Tensor]:
    """Two results that are floats, one between them that is none."""
    weights = pb.softmax(x, axis=1)
    return weights, pb.argmax(x, axis=1), pb.sum(weights * x, axis=1)


LAYERS = pb.torch.op(layers, name="kept_layers")
ATTENTION = pb.torch.op(attention, name="kept_attention")
SCALED = pb.torch.op(scaled, name="kept_scaled")
OPEN = pb.torch.op(layers, name="kept_open", dynamic={"x": pb.dim("n", 1, 64)})
SIN = pb.torch.op(lambda x: pb.sin(x) * 2.0, name="kept_sin")


def draws(*shape: int, seed: int = 0, kind: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=kind).requires_grad_()


def eager_layers(x: Any, a: Any, b: Any) -> Any:
    return torch.tanh(torch.tanh(x @ a) @ b)


def eager_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


CASES: dict[str, tuple[Any, Callable[..., Any], list[tuple[int, ...]]]] = {
    "layers": (LAYERS, eager_layers, [(33, 48), (48, 40), (40, 17)]),
    "attention": (ATTENTION, eager_attention, [(2, 30, 8), (2, 50, 8), (2, 50, 5)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("frozen", [None, 0, 2])
def test_gradients_from_what_is_kept(name: str, frozen: int | None) -> None:
    op, eager, shapes = CASES[name]
    given = [draws(*s, seed=n) for n, s in enumerate(shapes)]
    if frozen is not None:
        given[frozen].requires_grad_(False)
    wanted = [g for g in given if g.requires_grad]
    before = op.pullback().programs.jit.traces
    y, own = op(*given), eager(*given)
    assert len(y.grad_fn.saved_tensors) > len(given)  # more than arguments
    head = torch.randn(y.mT.shape, dtype=y.dtype).mT  # strided
    torch.testing.assert_close(y, own)
    for _ in range(2):  # it may be run again
        mine = torch.autograd.grad(y, wanted, head, retain_graph=True)
        torch.testing.assert_close(mine, torch.autograd.grad(own, wanted, head, retain_graph=True))
    assert op.pullback().programs.jit.traces == before  # nothing was computed again


def test_results_of_which_some_have_heads() -> None:
    x = draws(7, 9)
    weights, places, mean = SCALED(x)
    own = torch.softmax(x, 1)
    slope = torch.autograd.grad(own.square().sum() + (own * x).sum(), x, retain_graph=True)
    mine = torch.autograd.grad(weights.square().sum() + mean.sum(), x, retain_graph=True)
    torch.testing.assert_close(mine, slope)
    assert torch.equal(places, x.argmax(1)) and not places.requires_grad
    alone = torch.autograd.grad((own * x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), x), alone)


def test_all_sizes_of_a_batch_have_one_program_of_each() -> None:
    a, b = draws(48, 40, seed=1), draws(40, 17, seed=2)
    for n in (1, 5, 64, 30):
        x = draws(n, 48)
        mine = torch.autograd.grad(OPEN(x, a, b).square().sum(), (x, a, b))
        own = torch.autograd.grad(eager_layers(x, a, b).square().sum(), (x, a, b))
        torch.testing.assert_close(mine, own)
    assert OPEN.traces == 2 and OPEN.residuals.traces == 2
    assert len(OPEN.residuals._chosen) == 4 + 1  # sizes, and what is said of all


def test_what_costs_little_is_computed_again() -> None:
    x = draws(64, 64)
    y = SIN(x)
    assert len(y.grad_fn.saved_tensors) == 1
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x.cos())


def test_second_derivatives_and_transforms_keep_arguments() -> None:
    given = [draws(*s, seed=n) for n, s in enumerate(((3, 4), (4, 4), (4, 2)))]
    assert torch.autograd.gradcheck(LAYERS, given, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(LAYERS, given)
    first = torch.func.grad(lambda *g: LAYERS(*g).square().sum())(*given)
    own = torch.func.grad(lambda *g: eager_layers(*g).square().sum())(*given)
    torch.testing.assert_close(first, own)


def test_saved_tensors_are_seen_by_hooks_and_checkpoints() -> None:
    given = [draws(*s, seed=n) for n, s in enumerate(((9, 40), (40, 40), (40, 5)))]
    packed: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.clone(), lambda t: t
    )
    with hooks:
        y = LAYERS(*given)
    assert len(packed) > 3
    again = torch.utils.checkpoint.checkpoint(LAYERS, *given, use_reentrant=False)
    own = torch.autograd.grad(eager_layers(*given).sum(), given)
    for result in (y, again):
        torch.testing.assert_close(torch.autograd.grad(result.sum(), given), own)


def test_a_result_that_is_kept_and_overwritten_raises() -> None:
    x = draws(512, 512, kind=torch.float32)
    op = pb.torch.op(lambda x: pb.exp(x @ x), name="kept_exp")
    y = op(x)
    (places,) = set(op.residuals._chosen.values())
    assert "@0" in places
    with torch.no_grad():
        y.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pb.torch.op(name="kept_loop")
def looped(x: pb.Tensor) -> pb.Tensor:
    return pb.loop(4, lambda n, c: pb.tanh(c @ x), x)


def test_loops_keep_arguments() -> None:
    x = draws(5, 5)
    own = x
    for _ in range(4):
        own = torch.tanh(own @ x)
    y = looped(x)
    torch.testing.assert_close(y, own)
    assert len(y.grad_fn.saved_tensors) == 1
    mine, wanted = (torch.autograd.grad(r.sum(), x)[0] for r in (y, own))
    torch.testing.assert_close(mine, wanted)


def test_frozen_modules_and_states_are_as_before() -> None:
    with pytest.raises(pb.errors.UnsupportedError):
        state = pb.State(pb.zeros(3))

        def counted(x: pb.Tensor) -> pb.Tensor:
            state.assign(x + state)
            return x * 2.0

        pb.torch.op(counted, name="kept_counted")(draws(3, kind=torch.float32))


@pb.torch.op(name="kept_dropped")
def dropped(x: pb.Tensor, key: pb.Tensor, p: float = 0.5) -> pb.Tensor:
    drawn = pb.random.uniform(x.shape, key=pb.astype(key, "uint32"))
    return pb.where(drawn < p, 0.0, x / (1 - p))


def test_a_generator_is_the_key_that_it_draws() -> None:
    x = torch.ones(64, 32, requires_grad=True)

    def both(seed: int) -> tuple[Any, Any]:
        own = torch.Generator().manual_seed(seed)
        first = dropped(x, own)
        assert torch.equal(torch.autograd.grad(first.sum(), x)[0], first.detach())  # one mask
        return first, dropped(x, key=own)

    first, second = both(3)
    assert 0.4 < (first == 0).float().mean() < 0.6
    assert not torch.equal(first, second)  # it goes on
    for mine, again in zip((first, second), both(3), strict=True):
        assert torch.equal(mine, again)
    assert not torch.equal(first, both(4)[0])
    torch.manual_seed(5)
    drawn = dropped(x, torch.default_generator)
    torch.manual_seed(5)
    assert torch.equal(drawn, dropped(x, torch.default_generator))


def test_compiled_autograd_is_refused_by_name() -> None:
    x = draws(3, 3)
    y = SIN(x)
    tracing = torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager"))
    with tracing, pytest.raises(pb.errors.UnsupportedError, match="pullback::kept_sin"):
        y.sum().backward()
