"""Modules of PyTorch as users call them: encoders without gradients, embeddings, packed rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402  # it needs PyTorch
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
F64 = torch.float64


def close(own: Any, eager: Any) -> None:
    torch.testing.assert_close(own, eager, rtol=1e-9, atol=1e-10, equal_nan=True)


def trained(model: Any, *args: Any) -> None:
    """Values, gradients of all parameters, and buffers after two calls beside eager float64."""
    torch.manual_seed(0)
    model = model.to(F64)
    other = copy.deepcopy(model)
    fast = torch.compile(other, backend=pb.torch.backend)
    for _ in range(2):
        own, eager = fast(*args), model(*args)
        close(own, eager)
        for y in (own, eager):
            y.sin().sum().backward()
        for (name, p), q in zip(other.named_parameters(), model.parameters(), strict=True):
            assert p.grad is not None, name
            close(p.grad, q.grad)
            close(p, q)
    assert not pb.torch.report().fallbacks


PADDED = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 0, 0]], dtype=torch.bool)
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "keys": {"src_key_padding_mask": PADDED},
    "keys as numbers": {
        "src_key_padding_mask": torch.zeros(2, 5, dtype=F64).masked_fill(PADDED, -torch.inf)
    },
    "places": {"src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
    "both": {
        "src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "src_key_padding_mask": PADDED,
    },
}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_an_encoder_without_gradients_is_whole(name: str, norm_first: bool) -> None:
    torch.manual_seed(0)
    act = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=norm_first, activation=act, layer_norm_eps=1e-3
    )
    layer = layer.to(F64).eval()
    for p in layer.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 5, 8, dtype=F64)
    with torch.no_grad():
        close(
            torch.compile(layer, backend=pb.torch.backend)(x, **MASKS[name]),
            layer(x, **MASKS[name]),
        )
    assert not pb.torch.report().fallbacks


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_attention_without_gradients_is_whole(wanted: bool, averaged: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2).to(F64)
    nn.init.normal_(layer.in_proj_bias)
    x = torch.randn(2, 5, 8, dtype=F64)

    own = layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias

    def f(x: Any, mask: Any) -> Any:
        kind = None if mask is None else 1
        y = torch._native_multi_head_attention(x, x, x, 8, 2, *own, mask, wanted, averaged, kind)
        return y if wanted else y[0]

    with torch.no_grad():
        for mask in (None, PADDED):
            close(torch.compile(f, backend=pb.torch.backend)(x, mask), f(x, mask))
    assert not pb.torch.report().fallbacks


@pytest.mark.parametrize("padding", [None, 1])
def test_gradients_of_embeddings_by_frequency(padding: int | None) -> None:
    model = nn.Embedding(6, 3, padding_idx=padding, scale_grad_by_freq=True)
    trained(model, torch.tensor([[1, 4, 4], [5, 4, 1]]))


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_embeddings_of_a_largest_norm(kind: float) -> None:
    """Named rows alone are made shorter, once each; the table itself is written."""
    model = nn.Embedding(6, 3, max_norm=0.5, norm_type=kind)
    trained(model, torch.tensor([[1, 4, 4], [5, 4, 1]]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_sums_of_bags_by_type(kind: str, weighted: bool) -> None:
    """PyTorch tells the bag of each index for some types of elements alone."""
    table = torch.randn(6, 4).to(getattr(torch, kind)).requires_grad_()
    weights = torch.rand(5).to(table.dtype) if weighted else None
    indices, offsets = torch.tensor([1, 4, 3, 2, 2]), torch.tensor([0, 2, 2])

    def f(table: Any) -> Any:
        return F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights)

    run = torch.compile(f, backend=pb.torch.backend)
    torch.testing.assert_close(run(table), f(table))
    own, eager = (torch.autograd.grad(g(table).sin().sum(), table)[0] for g in (run, f))
    torch.testing.assert_close(own, eager)
    assert not pb.torch.report().fallbacks


class Packed(nn.Module):
    """Sequences of several lengths, in any order."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        y, state = self.layer(pack_padded_sequence(x, lengths, True, enforce_sorted=False))
        state = state[0] if isinstance(state, tuple) else state
        return pad_packed_sequence(y, batch_first=True)[0].sum() + state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences(kind: Any) -> None:
    trained(Packed(kind), torch.randn(3, 6, 3, dtype=F64), torch.tensor([2, 6, 5]))


LABELS = [0, 2, -1, 1], [-1, 0, 0, 0], [3, -1, 1, -1], [0, 1, 2, 3], [1, 1, -1, 0]


@pytest.mark.parametrize(
    "how", [{"reduction": "none"}, {"reduction": "sum"}, {}, {"reduce": False}]
)
def test_margins_of_labels_end_at_the_first_that_is_none(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    target = torch.tensor(LABELS)

    def f(x: Any) -> Any:
        return F.multilabel_margin_loss(x, target, **how)

    def g(x: Any) -> Any:
        return F.multilabel_margin_loss(x, target[0], **how)

    for fn, x in ((f, torch.randn(5, 4, dtype=F64)), (g, torch.randn(4, dtype=F64))):
        run, x = torch.compile(fn, backend=pb.torch.backend), x.requires_grad_()
        close(run(x), fn(x))
        own, eager = (torch.autograd.grad(h(x).sin().sum(), x)[0] for h in (run, fn))
        close(own, eager)
    assert not pb.torch.report().fallbacks
