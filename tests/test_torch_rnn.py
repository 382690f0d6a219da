"""Recurrent layers through `torch.compile(backend="pullback")`: whole, beside eager in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch

from pullback.bridge.aten import RULES  # noqa: E402
from pullback.bridge.aten.recurrent import ADJOINT, COUNTS, STEPS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
Make = Any


def compiled(model: Any, **how: Any) -> Any:
    options = {"fallback": "error"}
    return torch.compile(model, backend=pb.torch.backend, options=options, fullgraph=True, **how)


def results(outcome: Any) -> list[Any]:
    y, last = outcome
    return [y, *(last if isinstance(last, tuple) else (last,))]


def doubled(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple([doubled(v) for v in value])
    return value.detach().double().requires_grad_()


def leaves(given: Sequence[Any]) -> list[Any]:
    return [leaf for v in given for leaf in (leaves(v) if isinstance(v, tuple) else (v,))]


def beside(model: Any, *given: Any, fast: Any = None, by: float = 1e-5) -> None:
    """Every result, and every gradient of a sum of all of them, weighted, as in float64."""
    wide, far = copy.deepcopy(model).double(), doubled(given)
    for leaf in leaves(given):
        leaf.requires_grad_().grad = None
    model.zero_grad()
    run = compiled(model) if fast is None else fast
    ours, theirs = results(run(*given)), results(wide(*far))
    heads = [torch.randn_like(y) for y in ours]
    sum((y * h).sum() for y, h in zip(ours, heads, strict=True)).backward()
    sum((y * h.double()).sum() for y, h in zip(theirs, heads, strict=True)).backward()
    pairs = list(zip(ours, theirs, strict=True))
    pairs += [(a.grad, b.grad) for a, b in zip(leaves(given), leaves(far), strict=True)]
    pairs += [(a.grad, b.grad) for a, b in zip(model.parameters(), wide.parameters(), strict=True)]
    for own, other in pairs:
        torch.testing.assert_close(own.double(), other, rtol=by, atol=by)


def operators() -> int:
    return sum(graph.operators for graph in pb.torch.report().graphs)


RELU = {"nonlinearity": "relu"}
SORTS = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, RELU)]


@pytest.mark.parametrize("kind,more", SORTS)
@pytest.mark.parametrize(
    "told",
    [
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False},
    ],
)
def test_layers_are_whole(kind: Make, more: Any, told: Any) -> None:
    torch._dynamo.reset()
    beside(kind(3, 5, **told, **more), torch.randn(9, 4, 3))


def test_no_step_is_written_out() -> None:
    counts = []
    for steps in (4, 40):
        torch._dynamo.reset()
        beside(nn.LSTM(3, 5), torch.randn(steps, 2, 3))
        counts.append(operators())
    assert counts[0] == counts[1]


def test_states_that_are_given() -> None:
    beside(nn.GRU(3, 5, 2), torch.randn(6, 2, 3), torch.randn(2, 2, 5))


def test_states_of_two_directions() -> None:
    states = torch.randn(2, 4, 5), torch.randn(2, 4, 5)
    beside(nn.LSTM(3, 5, bidirectional=True, batch_first=True), torch.randn(4, 6, 3), states)


def test_one_sequence_without_a_batch_and_one_step() -> None:
    beside(nn.LSTM(3, 5, 2), torch.randn(6, 3))
    beside(nn.GRU(3, 5, bidirectional=True), torch.randn(1, 1, 3))


def test_strided_inputs() -> None:
    x = torch.randn(3, 12, 8)[:, ::2].permute(1, 2, 0).contiguous().permute(0, 1, 2)
    beside(nn.LSTM(3, 5), x.detach())
    model = nn.GRU(3, 4)
    fast = compiled(lambda x: model(x.permute(2, 0, 1)))
    x = torch.randn(2, 3, 7)
    torch.testing.assert_close(fast(x)[0], model(x.permute(2, 0, 1))[0])


def test_a_batch_of_any_size_is_one_program() -> None:
    model = nn.LSTM(3, 5, bidirectional=True)
    fast = compiled(model)
    for rows in (3, 2, 7):
        x = torch.randn(4, rows, 3)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=8)
        beside(model, x, fast=fast)
    assert len([g for g in pb.torch.report().graphs if g.kind == "forward"]) == 1


def test_projections_are_as_pytorch_has_them() -> None:
    beside(nn.LSTM(3, 5, proj_size=2, bidirectional=True), torch.randn(4, 2, 3))


def test_sequences_of_several_lengths_run_in_eager() -> None:
    model = nn.LSTM(3, 5)
    x, lengths = torch.randn(4, 2, 3), torch.tensor([4, 2])

    def run(x: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0]

    fast = torch.compile(run, backend=pb.torch.backend)
    torch.testing.assert_close(fast(x), run(x))


def test_dropout_lies_between_layers() -> None:
    """Of a share of all nothing is left of the first layer; evaluated, nothing is dropped."""
    torch.manual_seed(0)
    model = nn.GRU(3, 64, 2, dropout=1.0)
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(compiled(model)(x)[0], model(x)[0])
    model = nn.GRU(3, 64, 2, dropout=0.5)
    fast = compiled(model)
    assert not torch.equal(fast(x)[0], fast(x)[0])
    y, last = fast(x)
    torch.testing.assert_close(last[0], model(x)[1][0])  # the first layer drops nothing
    torch.testing.assert_close(y[-1], last[1])
    model.eval()
    torch.testing.assert_close(fast(x)[0], model(x)[0])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(kind: Any) -> None:
    model = nn.LSTM(3, 5).to(kind)
    x = torch.randn(4, 2, 3, dtype=kind)
    beside(model, x, by=1e-12 if kind == torch.float64 else 3e-2)


def test_autocast_is_as_pytorch_has_it() -> None:
    model = nn.GRU(3, 5)

    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)[0]

    x = torch.randn(4, 2, 3)
    y = torch.compile(run, backend=pb.torch.backend)(x)
    assert y.dtype == run(x).dtype
    torch.testing.assert_close(y, run(x), rtol=3e-2, atol=3e-2)


def test_frozen_weights_have_no_gradient() -> None:
    model = nn.LSTM(3, 5)
    model.weight_hh_l0.requires_grad_(False)
    compiled(model)(torch.randn(4, 2, 3))[0].sum().backward()
    assert model.weight_hh_l0.grad is None
    assert model.weight_ih_l0.grad is not None


def test_in_a_whole_step_of_training() -> None:
    model = nn.GRU(3, 5, batch_first=True)
    other = copy.deepcopy(model)
    x = torch.randn(2, 6, 3)

    def loss(net: Any, x: Any) -> Any:
        return net(x)[0].square().mean()

    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    step = pb.torch.step(model, loss, ours, targets=None)
    for _ in range(3):
        step(x)
        theirs.zero_grad()
        loss(other, x).backward()
        theirs.step()
    for own, beside in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, beside)


@pytest.mark.parametrize("kind", list(COUNTS))
@pytest.mark.parametrize("back", [False, True])
def test_the_operator_as_pytorch_has_it(kind: str, back: bool) -> None:
    """What runs where a graph is left in parts: the numbers of the rule, and the derivative."""
    size, shape = COUNTS[kind] * 2, (4, 3, COUNTS[kind] * 2)
    made = [
        torch.randn(s, dtype=torch.float64) for s in (shape, (size, 2), (size,), (3, 2), (3, 2))
    ]
    given = (*made, kind, back)
    for own, other in zip(STEPS(*given), ruled(STEPS, given), strict=True):
        torch.testing.assert_close(other, own)
    rows = [torch.randn(s, dtype=torch.float64) for s in ((4, 3, 2), (3, 2), shape, shape)]
    kept = [torch.randn(4, 3, 2, dtype=torch.float64) for _ in range(2)]
    given = (*rows, made[1], *kept, kind, back)
    for own, other in zip(ADJOINT(*given), ruled(ADJOINT, given), strict=True):
        torch.testing.assert_close(other, own)
    for t in made:
        t.requires_grad_()
    heads = [0, 2] if kind == "lstm" else [0]
    assert torch.autograd.gradcheck(
        lambda *t: [STEPS(*t, kind, back)[n] for n in heads], made, atol=1e-6
    )


def ruled(overload: Any, given: Sequence[Any]) -> list[Any]:
    """What a rule gives, as tensors of PyTorch."""
    own = [pb.tensor(t.numpy()) if isinstance(t, torch.Tensor) else t for t in given]
    return [torch.from_numpy(t.numpy().copy()) for t in RULES[overload](*own)]
