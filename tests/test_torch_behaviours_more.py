"""`torch.compile(backend="pullback")`: what users of models do with them, beside eager."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import threading
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def small() -> Any:
    """Built anew for each test: a module-level one would carry its gradients on."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def gradients(model: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def trained(run: Any, model: Any, x: Any) -> list[Any]:
    """The result, and what a backward leaves in each parameter."""
    model.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), *gradients(model)]


def both(model: Any) -> tuple[Any, Any, Any]:
    """A compiled model, the model below it, and the same one in eager."""
    other = copy.deepcopy(model)
    return compiled(model), model, other


# --- weights --------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One table that reads words and writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.out = nn.Linear(6, 9, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.table(x)))


def test_a_tied_weight_has_one_gradient() -> None:
    run, own, eager = both(Tied())
    x = torch.tensor([[1, 2, 2], [8, 0, 1]])
    near(trained(run, own, x), trained(eager, eager, x))
    assert len(list(run.parameters())) == 1 and own.out.weight is own.table.weight
    assert list(own.state_dict()) == list(eager.state_dict())


def test_gradients_of_calls_add_up() -> None:
    run, own, eager = both(small())
    for _ in range(3):
        x = torch.randn(5, 4)
        for f in (run, eager):
            f(x).square().mean().backward()
    near(gradients(own), gradients(eager))


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_cleared(to_none: bool) -> None:
    """To None or to zeros in their memory; the next backward is the same."""
    run, own, eager = both(small())
    x = torch.randn(5, 4)
    first = trained(run, own, x)
    places = [p.grad.data_ptr() for p in own.parameters()]
    own.zero_grad(set_to_none=to_none)
    assert all((p.grad is None) == to_none for p in own.parameters())
    run(x).square().sum().backward()
    near(gradients(own), first[1:])
    if not to_none:
        assert places == [p.grad.data_ptr() for p in own.parameters()]
    near(trained(run, own, x)[1:], trained(eager, eager, x)[1:])


def test_parts_are_frozen_and_thawed() -> None:
    run, own, eager = both(small())
    x = torch.randn(5, 4)
    for frozen in (False, True, False):
        for model in (own, eager):
            model[0].requires_grad_(not frozen)
        near(trained(run, own, x), trained(eager, eager, x))
        assert (own[0].weight.grad is None) == frozen


def test_weights_that_change_under_a_program() -> None:
    """In place, by `.data`, by loading, and by another parameter."""
    run, own, eager = both(small().eval())
    x = torch.randn(5, 4)
    near(run(x), eager(x))

    def change(model: Any, how: int) -> None:
        torch.manual_seed(how)
        weight = torch.randn(8, 4)
        if how == 0:
            with torch.no_grad():
                model[0].weight.mul_(2).add_(weight)
        elif how == 1:
            model[0].weight.data = weight
        elif how == 2:
            model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
        else:
            model[0].weight = nn.Parameter(weight)

    for how in range(4):
        change(own, how)
        change(eager, how)
        near(run(x), eager(x))


def test_parametrized_weights() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        parametrizations.weight_norm(model[0])
        parametrize.register_parametrization(model[2], "weight", Symmetric())
        return model

    own, eager = make(), make()
    x = torch.randn(5, 4)
    near(trained(compiled(own), own, x), trained(eager, eager, x))


class Symmetric(nn.Module):
    def forward(self, w: Any) -> Any:
        return w * 0.5 + w.flip(0) * 0.5


# --- modes and buffers ----------------------------------------------------------------------------


def test_training_and_evaluation_in_turn() -> None:
    """Running statistics and their count go on as in eager; dropout rests in evaluation."""
    run, own, eager = both(nn.Sequential(small(), nn.Dropout(0.0)))
    for n in range(4):
        x = torch.randn(5, 4)
        for model in (run, eager):
            model.train(n % 2 == 0)
        near(run(x), eager(x))
    near(dict(own.named_buffers()), dict(eager.named_buffers()))
    assert int(own[0][1].num_batches_tracked) == 2


class Cache(nn.Module):
    """A buffer that is no part of a state, and one that is assigned anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.seen += x.sum(0)
        self.last = x[-1] * 2
        return x + self.seen


def test_buffers_that_are_written_and_assigned() -> None:
    run, own, eager = both(Cache())
    for _ in range(3):
        x = torch.randn(4, 3)
        near(run(x), eager(x))
    near(own.seen, eager.seen)
    near(own.last, eager.last)
    assert list(own.state_dict()) == ["last"]


def test_dropout_under_a_seed_and_in_a_checkpoint() -> None:
    """The masks of a checkpoint are drawn again as they were: the gradient is of one function."""
    layer = nn.Linear(32, 32)

    def f(x: Any) -> Any:
        body = lambda t: F.dropout(layer(t), 0.5)
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    x = torch.randn(16, 32, requires_grad=True)
    y = compiled(f)(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    kept = (y != 0).float() * 2
    near(dx, kept @ layer.weight, 1e-4)


def test_a_default_type_of_64_bits() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        near(compiled(lambda x: x + torch.ones(3) / 3)(torch.ones(3)), torch.ones(3) * 4 / 3, 1e-12)
    finally:
        torch.set_default_dtype(before)


# --- what goes in and comes out -------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


def test_results_of_every_form() -> None:
    def f(x: Any, scale: float = 2.0, *, flag: bool = True) -> Any:
        y = x * scale
        return {"none": None, "number": 3, "text": "a", "pair": Pair(y, x), "same": (y, y), "in": x}

    x = torch.randn(3)
    own, eager = compiled(f)(x, scale=3.0, flag=False), f(x, scale=3.0, flag=False)
    near(own["pair"].first, eager["pair"].first)
    assert own["none"] is None and own["number"] == 3 and own["text"] == "a"
    assert own["in"] is x and own["pair"].second is x and own["same"][0] is own["same"][1]


def test_numbers_that_change_become_symbols() -> None:
    """A float, an int and a string are guarded: never an old value."""
    run = compiled(lambda x, a, n, s: (x * a + n) if s == "up" else (x / a - n), "allow")
    x = torch.randn(3)
    for a, n, s in ((2.0, 1, "up"), (3.5, 1, "up"), (3.5, 7, "up"), (-1.0, 7, "down")):
        near(run(x, a, n, s), (x * a + n) if s == "up" else (x / a - n))


def test_a_view_of_an_argument_is_written_by_the_caller() -> None:
    """What comes back as a view shares memory, so a write shows in both; its gradient flows."""
    run = compiled(lambda x: (x.t(), x[1:], x + 1))
    x = torch.randn(3, 4)
    turned, rest, other = run(x)
    turned[0, 0] = 5.0
    rest[0, 1] = 7.0
    assert float(x[0, 0]) == 5.0 and float(x[1, 1]) == 7.0 and float(other[0, 0]) != 6.0
    leaf = torch.randn(3, 4, requires_grad=True)
    run(leaf)[0].square().sum().backward()
    near(leaf.grad, 2 * leaf.detach())


def test_a_slice_of_a_result_of_a_larger_memory() -> None:
    """Arguments that are parts: offsets, steps, broadcasts, one inside of another."""
    base = torch.randn(6, 8)
    run = compiled(lambda a, b, c: (a @ b).sum(0) + c)
    a, b, c = base[1:4, ::2], base[2:6, 1:4], base[5, 2:5]
    near(run(a, b, c), (a @ b).sum(0) + c)
    near(run(a, b, c[:1].expand(3)), (a @ b).sum(0) + c[:1])


def test_a_write_into_a_leaf_is_refused_as_in_eager() -> None:
    x = torch.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        x.mul_(2)
        return x.sum()

    for run in (f, compiled(f)):
        with pytest.raises(RuntimeError, match="leaf"):
            run(x)
    assert x.tolist() == [1.0, 1.0, 1.0]
    with torch.no_grad():
        compiled(f)(x)
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_a_detached_part_has_no_gradient() -> None:
    def f(x: Any) -> Any:
        return (x * x.detach()).sum() + x.detach().exp().sum()

    x = torch.randn(4, requires_grad=True)
    near(*(torch.autograd.grad(g(x), x)[0] for g in (compiled(f), f)))


def test_a_gradient_inside_of_a_function() -> None:
    """By `torch.func`, within what is compiled."""

    def f(w: Any, x: Any) -> Any:
        g = torch.func.grad(lambda w: (torch.tanh(x @ w)).square().sum())(w)
        return w - 0.1 * g, torch.func.vmap(lambda r: r.square().sum())(x)

    w, x = torch.randn(4, 3), torch.randn(5, 4)
    near(compiled(f)(w, x), f(w, x))


def test_channels_that_come_last_stay_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    model = model.to(memory_format=torch.channels_last)
    run, own, eager = both(model)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert run(x).stride() == eager(x).stride()
    for mine, its in zip(trained(run, own, x), trained(eager, eager, x), strict=True):
        near(mine, its, 1e-4)
        assert mine.stride() == its.stride()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_training_on_nothing(shape: tuple[int, int]) -> None:
    """A batch of no samples, rows of no elements: gradients are zeros, not nothing."""
    own = nn.Linear(shape[1], 2)
    eager = copy.deepcopy(own)
    x = torch.randn(shape)
    near(trained(compiled(own), own, x), trained(eager, eager, x))


# --- compiling ------------------------------------------------------------------------------------


def test_a_model_compiles_itself() -> None:
    """`model.compile()` changes no keys; what is left out stays in eager."""
    model = Tied().eval()
    x = torch.tensor([1, 5])
    expected, keys = model(x), list(model.state_dict())
    model.compile(backend=pb.torch.backend)
    near(model(x), expected)
    assert list(model.state_dict()) == keys and pb.torch.report().graphs


def test_a_part_that_is_not_compiled() -> None:
    calls: list[bool] = []

    @torch.compiler.disable
    def apart(x: Any) -> Any:
        calls.append(torch.compiler.is_compiling())
        return x * 3

    def f(x: Any) -> Any:
        return apart(x.sin()).cos()

    x = torch.randn(4, requires_grad=True)
    near(*(torch.autograd.grad(g(x).sum(), x)[0] for g in (compiled(f), f)))
    assert calls == [False, False] and len(pb.torch.report().graphs) >= 2
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(lambda x: apart(x) + 1, fullgraph=True)(x)


class Doubled(torch.autograd.Function):
    """With a derivative of its own: three times what it should be."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 6 * g * ctx.saved_tensors[0]


def test_a_derivative_of_the_users() -> None:
    x = torch.randn(4, requires_grad=True)
    near(
        torch.autograd.grad(compiled(lambda x: Doubled.apply(x.sin()).sum())(x), x)[0],
        (6 * x.sin() * x.cos()).detach(),
    )


def test_more_programs_than_pytorch_allows() -> None:
    """Beyond the limit of recompilations it runs in eager, with its results."""
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        run = compiled(lambda x: x.sin().sum(0))
        for n in range(2, 8):
            x = torch.randn(n, 3)
            near(run(x), x.sin().sum(0))
        assert len(pb.torch.report().graphs) == 2


def test_copies_pickles_and_files() -> None:
    """Of a model that has been compiled, and of the state that a compiled one has."""
    model = small().eval()
    run = compiled(model)
    x = torch.randn(3, 4)
    expected = run(x)
    near(pickle.loads(pickle.dumps(model))(x), expected)
    near(copy.deepcopy(run)(x), expected)
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert [k.removeprefix("_orig_mod.") for k in state] == list(model.state_dict())
    other = compiled(small().eval())
    other.load_state_dict(state)
    near(other(x), expected)


def test_an_exported_model_compiles() -> None:
    model = small().eval()
    x = torch.randn(3, 4)
    saved = torch.export.export(model, (x,)).module()
    near(compiled(saved)(x), model(x))
    inlined = torch.export.export(model, (x,)).run_decompositions().module()
    near(compiled(inlined)(x), model(x))


def test_calls_of_many_threads() -> None:
    run, model, eager = both(small().eval())
    rows = [torch.randn(16, 4) for _ in range(8)]
    run(rows[0])
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        for _ in range(20):
            results[n] = run(rows[n])

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(rows))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for n, x in enumerate(rows):
        near(results[n], eager(x))
    del model


# --- autograd around it ---------------------------------------------------------------------------


def test_gradients_that_nobody_asks_for() -> None:
    """Heads that are None, results that no loss reads, parameters that no result reads."""

    def f(x: Any, y: Any, z: Any) -> Any:
        return x * y, y.exp(), z

    args = [torch.randn(3, requires_grad=True) for _ in range(3)]

    def run(g: Any) -> Any:
        first = g(*args)[0]
        return torch.autograd.grad(first.sum(), args, allow_unused=True)

    own, eager = run(compiled(f)), run(f)
    near(own[:2], eager[:2])
    assert own[2] is None and eager[2] is None


def test_a_graph_is_kept_or_gone() -> None:
    x = torch.randn(3, requires_grad=True)
    y = compiled(lambda x: (x.sin() * x).sum())(x)
    first = torch.autograd.grad(y, x, retain_graph=True)
    near(first, torch.autograd.grad(y, x))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_a_write_between_forward_and_backward_changes_no_gradient() -> None:
    """What the backward reads is kept, or the write raises, as in eager: never another gradient."""

    def f(x: Any, w: Any) -> Any:
        return (x @ w).tanh()

    def given() -> tuple[Any, Any]:
        torch.manual_seed(1)
        return torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)

    x, w = given()
    (expected,) = torch.autograd.grad(f(x, w).sum(), w)
    for write in (0, 1):
        x, w = given()
        y = compiled(f)(x, w)
        with torch.no_grad():
            (x, w)[write].add_(1)
        try:
            (own,) = torch.autograd.grad(y.sum(), w)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            continue
        near(own, expected)


def _grown(p: Any) -> None:
    p.grad.mul_(10)


def test_hooks_of_a_result_and_of_a_backward() -> None:
    run, own, eager = both(small().eval())
    x = torch.randn(3, 4, requires_grad=True)
    seen: list[Any] = []
    for f, model in ((run, own), (eager, eager)):
        model[3].weight.register_post_accumulate_grad_hook(_grown)
        y = f(x)
        y.register_hook(lambda g: g * 2)
        y.retain_grad()
        y.sum().backward()
        seen.append([y.grad, *gradients(model)])
    near(*seen)


def test_anomalies_are_told() -> None:
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        y = compiled(lambda x: (x.sqrt() * 0).sum())(x)
        with pytest.raises(RuntimeError, match="nan"):
            y.backward()


def test_a_scaler_and_clipping_around_a_compiled_model() -> None:
    def train(run: Any, model: Any) -> Any:
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(run(torch.randn(5, 4)).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        return model.state_dict()

    run, own, eager = both(small())
    near(train(run, own), train(eager, eager))


def test_an_average_of_a_compiled_model() -> None:
    """`swa_utils` reads and writes the same parameters."""
    run, own, eager = both(small())
    averages = [torch.optim.swa_utils.AveragedModel(m) for m in (own, eager)]
    for f, model, average in ((run, own, averages[0]), (eager, eager, averages[1])):
        torch.manual_seed(5)
        for _ in range(2):
            trained(f, model, torch.randn(5, 4))
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.1 * p.grad)
            average.update_parameters(model)
    near(dict(averages[0].named_parameters()), dict(averages[1].named_parameters()))


def test_what_is_asked_of_the_data_breaks_the_graph() -> None:
    """`.item()`, a branch on a value, a shape that depends on data: eager in between."""

    def f(x: Any) -> Any:
        y = x * 2
        if y.sum() > 0:
            y = y - y.max().item()
        return y[y < 0].sum() + y.nonzero().shape[0]

    run = compiled(f, "allow")
    for sign in (1, -1):
        x = sign * torch.rand(5)
        near(run(x), f(x))
