"""`torch.compile(backend="pullback")`: models and behaviours beside eager PyTorch."""

from __future__ import annotations

import copy
import importlib.metadata
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import OptionError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402

from pullback.bridge.backend import Settings  # noqa: E402
from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- models ---------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.grow = nn.Linear(size, 2 * size)
        self.shrink = nn.Linear(2 * size, size)

    def forward(self, x: Any) -> Any:
        return x + self.shrink(F.gelu(self.grow(self.norm(x))))


class Tagger(nn.Module):
    """Words, an embedding with padding, a recurrence written out, a tied projection."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: Any) -> Any:
        state = self.words.weight.new_zeros(tokens.shape[0], 8)
        states = []
        for word in self.words(tokens).unbind(1):
            state = self.cell(word, state)
            states.append(state)
        return self.out(torch.stack(states, 1))


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8),
        nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def encoder() -> Any:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "residual": (lambda: nn.Sequential(Residual(12), Residual(12)), lambda: torch.randn(5, 12)),
    "convolutional": (convolutional, lambda: torch.randn(3, 3, 17, 15)),
    "encoder": (encoder, lambda: torch.randn(2, 6, 16)),
    "tagger": (Tagger, lambda: torch.tensor([[1, 4, 0], [3, 3, 9]])),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_float64(name: str) -> None:
    """Loss, every gradient, and the buffers, over three steps of an optimiser."""
    make, draw = MODELS[name]
    model, x = make(), draw()
    exact = copy.deepcopy(model).double()
    wide = x.double() if x.is_floating_point() else x
    run = compiled(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, exact)]
    for _ in range(3):
        losses = []
        for forward, given, optimizer in zip((run, exact), (x, wide), optimizers, strict=True):
            optimizer.zero_grad()
            y = forward(given)
            loss = (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum()
            loss.backward()
            losses.append(loss)
        near(losses[0].double(), losses[1], 1e-4)
        for own, true in zip(model.parameters(), exact.parameters(), strict=True):
            scale = true.grad.abs().max().clamp_min(1e-3)
            near(own.grad.double() / scale, true.grad / scale, 1e-4)
        for optimizer in optimizers:
            optimizer.step()
    for own, true in zip(model.buffers(), exact.buffers(), strict=True):
        near(own.double(), true.double(), 1e-5)
    report = pb.torch.report()
    assert not report.fallbacks and {g.kind for g in report.graphs} == {"forward", "backward"}


def test_inference_of_a_model() -> None:
    model = convolutional().eval()
    x = torch.randn(2, 3, 9, 9)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            near(compiled(model)(x), model(x))
    assert pb.torch.report().graphs[0].kind == "inference"


# --- behaviours -----------------------------------------------------------------------------------


def test_an_argument_is_written() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[1:3] += x[0]
        return x + y[:3]

    a, b = torch.randn(3, 4), torch.randn(5, 4)
    c, d = a.clone(), b.clone()
    near(compiled(f)(a, b), f(c, d))
    near(a, c)
    near(b, d)


def test_arguments_are_exchanged() -> None:
    def f(x: Any, y: Any) -> None:
        t = x.clone()
        x.copy_(y)
        y.copy_(t)

    a, b = torch.randn(3), torch.randn(3)
    c, d = a.clone(), b.clone()
    compiled(f)(a, b)
    near(a, d)
    near(b, c)


def test_a_write_stays_behind_what_pytorch_reads() -> None:
    """A part that PyTorch runs reads an argument that a program then writes."""

    def f(x: Any) -> Any:
        y = torch.logaddexp(x + 0j, x + 1j).abs()
        x.add_(1)
        return y + x

    a = torch.randn(4)
    b = a.clone()
    near(compiled(f, "allow")(a), f(b))
    near(a, b)


def test_a_view_of_an_argument_is_one() -> None:
    def f(x: Any) -> Any:
        return x.t()[1:], x

    a = torch.randn(3, 4)
    view, same = compiled(f)(a)
    assert view._base is a or view.data_ptr() == a.t()[1:].data_ptr()
    assert same is a


def test_the_same_argument_twice() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * 3 + y.sin()

    a = torch.randn(4, requires_grad=True)
    y = compiled(f)(a, a)
    near(y, f(a, a))
    y.sum().backward()
    near(a.grad, 3 + a.detach().cos())


def test_views_of_one_memory() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    a, b = torch.arange(6.0), torch.arange(6.0)
    near(compiled(f)(a[:4], a[2:]), f(b[:4], b[2:]))
    near(a, b)


def test_what_needs_no_gradient_has_none() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    f = compiled(lambda x, y: (x * 2, y.detach() * x, y))
    f(a, b)[0].sum().backward()
    near(a.grad, torch.full((3,), 2.0))
    assert b.grad is None


def test_nothing_of_no_elements() -> None:
    x = torch.empty(0, 3, requires_grad=True)
    w = torch.randn(3, 2, requires_grad=True)
    y = compiled(lambda x, w: torch.tanh(x @ w))(x, w)
    assert y.shape == (0, 2)
    y.sum().backward()
    near(w.grad, torch.zeros(3, 2))


def test_results_lie_as_in_eager() -> None:
    def f(x: Any) -> Any:
        return x * 2, x.permute(2, 0, 1) + 1, x.t() if x.ndim == 2 else x.sum(1)

    for x in (torch.randn(2, 3, 4), torch.randn(2, 4, 3).transpose(1, 2)):
        for own, eager in zip(compiled(f)(x), f(x), strict=True):
            near(own, eager)
            assert own.stride() == eager.stride()
    image = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    layer = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    own, eager = compiled(layer)(image), layer(image)
    near(own, eager)
    assert own.stride() == eager.stride()
    own.square().sum().backward()


def test_hooks() -> None:
    model = nn.Linear(3, 3)
    seen = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    x = torch.randn(2, 3, requires_grad=True)
    y = compiled(model, "allow")(x)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    near(x.grad, 2 * model.weight.sum(0).expand(2, 3))
    assert seen == ["forward"]


def test_autocast() -> None:
    model, x = Residual(16), torch.randn(4, 16)

    def run(f: Any) -> Any:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = f(x)
        y.float().square().mean().backward()
        return [y.float(), *[p.grad.clone() for p in model.parameters()]]

    for own, eager in zip(run(compiled(model)), run(model), strict=True):
        near(own, eager, 3e-2)


def test_checkpointed() -> None:
    model, x = Residual(8), torch.randn(4, 8, requires_grad=True)
    run = compiled(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sin())
    (own,) = torch.autograd.grad(run(x).sum(), x)
    (eager,) = torch.autograd.grad(model(x).sin().sum(), x)
    near(own, eager)


def test_a_break_makes_two_graphs() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin()

    x = torch.randn(3)
    near(compiled(f)(x), f(x))
    assert len(pb.torch.report().graphs) == 2


def test_a_second_derivative_is_refused_by_pytorch() -> None:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda x: x.sin())(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


def test_sizes_that_change() -> None:
    def f(x: Any) -> Any:
        return (x - x.mean(0)).reshape(-1) * x.shape[0]

    run = compiled(f)
    for size in (3, 5, 8, 1):
        x = torch.randn(size, 2, requires_grad=True)
        near(run(x), f(x))
        own, eager = (torch.autograd.grad(g(x).square().sum(), x)[0] for g in (run, f))
        near(own, eager)
    x = torch.randn(6, 2)
    torch._dynamo.mark_dynamic(x, 0)
    near(compiled(f)(x), f(x))


def test_attention_in_training() -> None:
    """The pair that PyTorch has for processors, with a mask, causal, and with a scale."""
    q, k, v = (torch.randn(2, 2, 5, 4, requires_grad=True) for _ in range(3))
    mask = torch.randn(2, 2, 5, 5)
    for how in ({}, {"is_causal": True}, {"attn_mask": mask}, {"scale": 0.3}):

        def f(q: Any, k: Any, v: Any, how: Any = how) -> Any:
            return F.scaled_dot_product_attention(q, k, v, **how)

        heads = torch.randn(2, 2, 5, 4)
        own, eager = (torch.autograd.grad(g(q, k, v), (q, k, v), heads) for g in (compiled(f), f))
        for a, b in zip(own, eager, strict=True):
            near(a, b, 1e-4)


def test_dropout_draws_inside() -> None:
    """By a seed of PyTorch's generator; what was dropped is dropped backward."""
    run = compiled(lambda x: F.dropout(F.dropout(x, 0.25).sin() + 1, 0.5))
    x = torch.rand(200, 50, requires_grad=True)
    torch.manual_seed(3)
    y = run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), y)
    assert not torch.equal(run(x), y)
    assert abs(float((y != 0).float().mean()) - 0.5) < 0.02
    y.sum().backward()
    assert bool((x.grad[y == 0] == 0).all())
    kept = (x.grad != 0).float().mean()
    assert abs(float(kept) - 0.375) < 0.02
    inner = (x.detach() * 4 / 3).cos() * 2 * 4 / 3
    near(x.grad[x.grad != 0], inner[x.grad != 0], 1e-4)
    assert not pb.torch.report().fallbacks
    drawn = compiled(lambda x: torch.sin(x) + torch.randperm(50), "allow")(x)
    assert drawn.shape == x.shape and pb.torch.report().fallbacks


def test_division_of_integers_is_exact() -> None:
    a = torch.tensor([2**40 + 1, -7, 7, -8, 0])
    b = torch.tensor([3, 2, -2, 4, 5])
    for mode in ("trunc", "floor"):
        f = lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode)
        assert torch.equal(compiled(f)(a, b), f(a, b))


# --- what is reported, what is refused ------------------------------------------------------------


def test_what_pytorch_runs_is_reported() -> None:
    def f(x: Any) -> Any:
        return torch.logaddexp(x.sin() + 0j, x + 1j).abs() + 1

    x = torch.randn(4, requires_grad=True)
    run = compiled(f, "allow")
    near(run(x), f(x))
    report = pb.torch.report()
    assert any("logaddexp" in f.operator for f in report.fallbacks)
    assert any("test_torch_compile.py" in f.line for f in report.fallbacks)
    assert "operators in programs" in str(report)
    own, eager = (torch.autograd.grad(g(x).sum(), x)[0] for g in (run, f))
    near(own, eager)
    torch._dynamo.reset()
    assert not pb.torch.report().graphs


def refused(function: Any, *args: Any, **how: Any) -> Any:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(function, backend=pb.torch.backend, **how)(*args)
    return caught.value.inner_exception


def test_what_is_refused_has_a_code() -> None:
    x = torch.ones(3)
    for options in ({"fallback": "never"}, {"speed": 3}, {"threads": 0}, {"memory": "much"}):
        assert isinstance(refused(torch.sin, x, options=options), OptionError)
    assert refused(torch.sin, x, mode="fastest").code == "E385"
    left = refused(torch.hash_tensor, x, options={"fallback": "error"})
    assert isinstance(left, UnsupportedError) and left.code == "E386"
    assert refused(torch.sin, x.to("meta")).code == "E387"


def test_the_name_of_the_backend() -> None:
    """As an installed package says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.register_backend(pb.torch.backend, name="pullback_here")
    x = torch.randn(3)
    near(torch.compile(torch.sin, backend="pullback_here")(x), x.sin())


# --- rules, a few entries of each family ----------------------------------------------------------

ENTRIES = (
    "add", "div.trunc_rounding", "nn.functional.gelu", "special.i1", "var_mean", "cumsum", "sort",
    "roll", "as_strided", "cat", "index_put", "scatter_reduce.amax", "nn.functional.layer_norm",
    "nn.functional.conv2d", "nn.functional.max_pool3d", "nn.functional.nll_loss",
    "nn.functional.grid_sample", "addmm", "linalg.vector_norm", "cdist",
)  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> Any:
    pytest.importorskip("expecttest")
    script = Path(__file__).parent.parent / "scripts" / "opinfo_compile.py"
    return runpy.run_path(str(script))["judged"]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_opinfo(judged: Any, name: str) -> None:
    """Results and gradients, without fallback."""
    assert judged(name) == ("right", "")


def test_the_backend_is_found_by_its_name() -> None:
    """As users write it; the entry point is there where the package is installed."""
    points = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "pullback" not in points.names:
        pytest.skip("pullback is imported from its source, not installed")
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    torch.compile(lambda t: (t.sin() * 2).sum(), backend="pullback")(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    assert pb.torch.report().graphs


def test_an_operator_of_others_that_came_later_is_written_by_them(fresh_torch: None) -> None:
    """PyTorch's table of such is read once, before it."""
    x = torch.randn(5)
    torch.compile(lambda t: t * 2, backend="pullback")(x)
    library = torch.library.Library("late_test", "DEF")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda t: t * 3, "CompositeImplicitAutograd")
    function = torch.compile(
        torch.ops.late_test.thrice, backend="pullback", options={"fallback": "error"}
    )
    torch.testing.assert_close(function(x), x * 3)


def test_the_environment_says_how_programs_are_compiled(
    fresh_torch: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PULLBACK_DUMP", str(tmp_path / "stages"))
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PULLBACK_PROFILE", "1")
    x = torch.randn(5)
    torch.testing.assert_close(compiled(torch.exp)(x), torch.exp(x))
    assert list((tmp_path / "stages").glob("*-nest-*"))
    own = Settings.of(None, {"threads": 2, "memory": 4096}).program()
    assert (own.threads, own.memory, own.profile) == (2, 4096, True)
