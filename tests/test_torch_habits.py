"""`torch.compile(backend="pullback")`: what users do around a compiled model, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def small() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def slopes(run: Any, x: Any, model: Any) -> Any:
    y = run(x)
    return y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])


# --- autocast -------------------------------------------------------------------------------------

X, W, C, K = torch.randn(4, 8), torch.randn(8, 8), torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
LABELS = torch.tensor([0, 1, 2, 3])
CAST: dict[str, Callable[[], Any]] = {
    "linear": lambda: F.linear(X, W),
    "addmm": lambda: torch.addmm(X, X, W),
    "bmm": lambda: torch.bmm(X[None], W[None]),
    "einsum": lambda: torch.einsum("ij,jk->ik", X, W),
    "convolution": lambda: F.conv2d(C, K),
    "attention": lambda: F.scaled_dot_product_attention(X[None], X[None], X[None]),
    "softmax": lambda: (X @ W).softmax(-1),
    "log_softmax": lambda: (X @ W).log_softmax(-1),
    "layer_norm": lambda: F.layer_norm(X @ W, (8,)),
    "group_norm": lambda: F.group_norm(F.conv2d(C, K), 2),
    "batch_norm": lambda: F.batch_norm(F.conv2d(C, K), None, None, training=True),
    "gelu": lambda: F.gelu(X @ W),
    "silu": lambda: F.silu(X @ W),
    "softplus": lambda: F.softplus(X @ W),
    "sum": lambda: (X @ W).sum(),
    "mean": lambda: (X @ W).mean(0),
    "norm": lambda: (X @ W).norm(),
    "var": lambda: (X @ W).var(0),
    "cumsum": lambda: (X @ W).cumsum(0),
    "prod": lambda: (X @ W).prod(1),
    "exp": lambda: (X @ W).exp(),
    "pow": lambda: (X @ W).abs().pow(2.5),
    "rsqrt": lambda: (X @ W).abs().rsqrt(),
    "add": lambda: (X @ W) + X,
    "scaled": lambda: (X @ W) * 2.5,
    "where": lambda: torch.where(X > 0, X @ W, X),
    "cat": lambda: torch.cat([X @ W, X]),
    "pool": lambda: F.avg_pool2d(F.conv2d(C, K), 2),
    "largest": lambda: F.max_pool2d(F.conv2d(C, K), 2),
    "topk": lambda: (X @ W).topk(2)[0],
    "cross_entropy": lambda: F.cross_entropy(X @ W, LABELS),
    "mse_loss": lambda: F.mse_loss(X @ W, W[:4]),
    "logits": lambda: F.binary_cross_entropy_with_logits(X @ W, X.sigmoid()),
    "glu": lambda: F.glu(X @ W),
    "wide": lambda: torch.softmax(X @ W, -1, dtype=torch.float32),
}


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_types_under_autocast(kind: str) -> None:
    """Each operator computes in the type that eager has, and gives it; one rounding apart."""
    dtype = getattr(torch, kind)

    def all_of_them() -> dict[str, Any]:
        with torch.autocast("cpu", dtype):
            return {name: function() for name, function in CAST.items()}

    own, eager = compiled(all_of_them)(), all_of_them()
    step = torch.finfo(dtype).eps
    for name, value in eager.items():
        assert own[name].dtype == value.dtype, name
        scale = value.double().abs().max().clamp_min(1.0)
        assert float((own[name].double() - value.double()).abs().max() / scale) < 2 * step, name


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_training_under_autocast(kind: str) -> None:
    """Gradients of float32 parameters, with a scaled loss."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))

    def run(f: Any) -> Any:
        with torch.autocast("cpu", getattr(torch, kind)):
            loss = F.cross_entropy(f(X), LABELS)
        return loss, *torch.autograd.grad(loss * 64.0, list(model.parameters()))

    for own, eager in zip(run(compiled(model)), run(model), strict=True):
        assert own.dtype == eager.dtype == torch.float32
        near(own / eager.abs().max(), eager / eager.abs().max(), 0.02)


# --- hooks, checkpoints, modes --------------------------------------------------------------------


def test_hooks_of_modules_and_tensors() -> None:
    """That change what they see, forward and backward."""
    model = small()
    model[0].register_forward_hook(lambda module, given, result: result * 2)
    model[1].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    model[2].register_full_backward_hook(lambda module, given, heads: (given[0] * 3,))
    model[0].weight.register_hook(lambda g: g * 5)
    x = torch.randn(5, 3, requires_grad=True)
    near(slopes(compiled(model, "allow"), x, model), slopes(model, x, model))


def test_a_checkpoint_that_enters_again() -> None:
    model, x = small(), torch.randn(5, 3, requires_grad=True)

    def run(function: Any) -> Any:
        model.zero_grad()
        x.grad = None
        function(x).sum().backward()
        return x.grad.clone(), [p.grad.clone() for p in model.parameters()]

    def f(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sin()

    near(run(compiled(f, "allow")), run(f))


def test_no_grad_inside_of_a_model() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = self.a(x)
            return self.b(y) * y + x.detach()

    model, x = Frozen(), torch.randn(2, 3)
    grads = []
    for run in (compiled(model), model):
        model.zero_grad()
        run(x).sum().backward()
        assert model.a.weight.grad is None
        grads.append(model.b.weight.grad.clone())
    near(*grads)


def test_tensors_of_inference_mode() -> None:
    model, run = small(), None
    with torch.inference_mode():
        x = torch.randn(2, 3)
        run = compiled(model)
        y = run(x)
        near(y, model(x))
        assert y.is_inference()
    y = run(torch.randn(2, 3))
    assert y.requires_grad and not y.is_inference()


# --- what goes in and out -------------------------------------------------------------------------


def test_nests_and_what_is_no_tensor() -> None:
    def f(given: Any, by: float, doubled: bool, *, name: str = "a") -> Any:
        first = given["y"][0] * 2 if doubled else given["y"][1].exp()
        return {"u": (given["x"] + by, [first]), "length": len(name), "none": None}

    given = {"x": torch.randn(2), "y": (torch.randn(2), torch.randn(3))}
    for doubled in (True, False):
        for by in (1, 2.5):
            own = compiled(f, "allow")(given, by, doubled, name="bc")
            eager = f(given, by, doubled, name="bc")
            near(own["u"], eager["u"])
            assert own["length"] == 2 and own["none"] is None


def test_numbers_in_tensors_of_no_axes() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y, x.sum(), y.reshape(1), torch.stack([x, x]), x.expand(3)

    a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, dtype=torch.float64)
    own, eager = compiled(f)(a, b), f(a, b)
    near(own, eager)
    near(*(torch.autograd.grad(r[0] + r[4].sum(), a) for r in (own, eager)))


def test_expanded_arguments_and_strided_heads() -> None:
    def f(x: Any, w: Any) -> Any:
        return (x * w).cumsum(0) + x.sum()

    kind = torch.float64
    run = compiled(f)
    x, w = torch.randn(3, 1, dtype=kind), torch.randn(1, 4, dtype=kind)
    near(run(x.expand(3, 4), w.expand(3, 4)), f(x.expand(3, 4), w.expand(3, 4)))
    x, w = torch.randn(3, 4, dtype=kind).requires_grad_(), w.requires_grad_()
    assert torch.autograd.gradcheck(run, (x, w), fast_mode=True)
    heads = torch.randn(4, 3, dtype=kind).t(), torch.randn(1, dtype=kind).expand(3, 4)
    for head in (*heads, torch.randn(3, 8, dtype=kind)[:, ::2]):
        near(*(torch.autograd.grad(g(x, w), (x, w), head) for g in (run, f)))


def test_nan_and_infinities_pass() -> None:
    def f(x: Any) -> Any:
        return (
            x.relu(), x.clamp(-1, 1), x.max(0), x.softmax(0), x.sigmoid(), torch.nan_to_num(x),
            x.amin(), x.sort(), torch.maximum(x, x.flip(0)), x * 0, x / 0, x.tanh(), x.exp(),
            x.log(), x.sqrt(), x.var(), F.leaky_relu(x), x.logsumexp(0), x.argmax(), x.cumsum(0),
            F.silu(x), F.softplus(x), x.floor(), x.to(torch.bool), torch.fmax(x, x.flip(0)),
            x.abs(), F.elu(x), x.round(), x > 0, x == x, torch.isnan(x), x.prod(), x.cummax(0),
        )  # fmt: skip

    x = torch.tensor([1.0, float("nan"), -float("inf"), float("inf"), -0.0, 0.0, -2.5])
    for own, eager in zip(compiled(f)(x), f(x), strict=True):
        near(own, eager)


@pytest.mark.parametrize("kind", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_and_bools(kind: str) -> None:
    def f(a: Any, b: Any, m: Any) -> Any:
        return (
            a << 1, a >> 2, a + b, a // b, a % b, a & b, a ^ b,
            a.sum(), m.sum(), m | ~m, a.to(torch.int8), a * m,
            m.any(), a.prod(), a / b, a.float().mean(), -a, torch.bitwise_not(a), a**2,
            torch.where(m, a, b), a.max(), m.to(torch.float16), a.cumsum(0), a.to(torch.uint8),
        )  # fmt: skip

    signed = kind != "uint8"
    a = torch.tensor([5, -7, 100, 0] if signed else [5, 7, 200, 0], dtype=getattr(torch, kind))
    b = torch.tensor([3, 2, -3, -1] if signed else [3, 2, 3, 1], dtype=getattr(torch, kind))
    m = torch.tensor([True, False, True, False])
    for own, eager in zip(compiled(f)(a, b, m), f(a, b, m), strict=True):
        near(own, eager, 1e-6)
        assert own.dtype == eager.dtype


# --- what is done with a compiled model -----------------------------------------------------------


def test_traces_are_counted() -> None:
    """One for the first size, one for all others; none for what was seen."""
    run = compiled(lambda x: x.sin() + 1)
    for size in (3, 3, 4, 5, 6, 3):
        run(torch.randn(size))
    assert len(pb.torch.report().graphs) == 2


def test_a_part_of_an_eager_model() -> None:
    model = small()
    plain = copy.deepcopy(model)
    model[2] = compiled(model[2])
    x = torch.randn(5, 3, requires_grad=True)
    near(slopes(model, x, model), slopes(plain, x, plain))


def test_functions_of_parameters() -> None:
    """`torch.func` inside of a graph, and `grad` around it."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    weights = {k: torch.randn_like(v).requires_grad_() for k, v in model.named_parameters()}

    def loss(weights: Any, x: Any) -> Any:
        return torch.func.functional_call(model, weights, (x,)).sin().sum()

    both = [torch.autograd.grad(f(weights, x), weights.values()) for f in (compiled(loss), loss)]
    near(*both)
    near(compiled(torch.func.grad(loss))(weights, x), torch.func.grad(loss)(weights, x))
    near(compiled(torch.func.vmap(lambda a: (a * a).sum()))(x), (x * x).sum(1))
    near(compiled(torch.func.jacrev(lambda a: a.sin()), "allow")(x[0]), torch.diag(x[0].cos()))
    near(torch.func.grad(compiled(lambda a: a.sin().sum(), "allow"))(x), x.cos())


def test_an_update_written_out_is_one_program() -> None:
    """Adam's, in place: PyTorch writes it by its own primitives."""

    def step(p: Any, m: Any, v: Any, g: Any) -> None:
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)

    own = [torch.rand(5, 7) for _ in range(4)]
    eager = [t.clone() for t in own]
    run = compiled(step)
    for _ in range(3):
        run(*own)
        step(*eager)
    near(own, eager)
    assert len(pb.torch.report().graphs) == 1


def test_copies_and_saved_states() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    run, x = compiled(model), torch.randn(4, 3)
    run(x)
    other = copy.deepcopy(run)
    near(other(x), copy.deepcopy(model)(x))
    with torch.no_grad():
        other._orig_mod[0].weight.zero_()
    assert model[0].weight.any()
    fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fresh.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in run.state_dict().items()})
    near(fresh.eval()(x), run.eval()(x))


def test_exported_models() -> None:
    """Compiled after the export, with any size; a compiled one is exported as what it wraps."""
    model, x = small(), torch.randn(5, 3)
    saved = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    run = compiled(saved.module(), "allow")
    for rows in (5, 2):
        near(run(x[:rows]), model(x[:rows]))
    near(torch.export.export(compiled(model), (x,)).module()(x), model(x))


def test_operators_of_draws_are_whole() -> None:
    """What PyTorch asks of an operator: schema, shapes without numbers, traces."""
    compiled(torch.rand_like)(torch.ones(2))  # they are made with the backend
    seed = torch.tensor([3, 4], dtype=torch.int32)
    own = torch.ops.pullback_draws
    for operator in (own.uniform.default, own.normal.default):
        torch.library.opcheck(operator, (seed, 1, [2, 3], torch.float32))
    torch.library.opcheck(own.integers.default, (2, 5, seed, 0, [4], torch.int64))


def test_results_have_memory_of_their_own() -> None:
    """A second call leaves what the first gave as it was."""
    run, x = compiled(lambda x: (x + 1, x.sum())), torch.randn(3)
    first = run(x)
    kept = [r.clone() for r in first]
    run(x * 2)
    near(list(first), kept, 0.0)


def test_a_backward_is_run_twice(monkeypatch: Any, tmp_path: Any) -> None:
    """Where the graph is retained, and kept on disk; a second derivative says what it is."""
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "theirs"))
    model, x = small(), torch.randn(5, 3, requires_grad=True)
    y = compiled(model)(x).square().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    near(torch.autograd.grad(y, x), first, 0.0)
    (grad,) = torch.autograd.grad(compiled(model)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch\.compile with aot_autograd does not.*double"):
        torch.autograd.grad(grad.sum(), x)


# --- what is reported -----------------------------------------------------------------------------


def test_shares_of_the_time_of_what_pytorch_runs(caplog: Any) -> None:
    """Known from the second run on, in the report and in the log."""

    def f(x: Any) -> Any:
        y = torch.logaddexp(x.sin() + 0j, x + 1j).abs()
        x.mul_(0.5)
        return torch.logcumsumexp(x @ x.mT + 0j, 0).abs() + y.sum()

    run = compiled(f, "allow")
    a, b = torch.randn(64, 64), torch.randn(3)
    with caplog.at_level("INFO", logger="pullback"):
        for calls in range(3):
            b = a.clone()
            near(run(a), f(b), 1e-3)
            near(a, b)
            shares = [one.share for one in pb.torch.report().fallbacks]
            assert len(shares) > 1 and (None in shares) == (calls == 0)
    assert 0.1 < sum(shares) <= 1 and "% of the time of its graph" in str(pb.torch.report())
    told = caplog.text
    assert "PyTorch runs aten.logaddexp" in told and "% of its graph" in told
