"""Layers and losses beside PyTorch: same weights, same inputs, outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from nn_support import draws
from pullback import nn
from pullback.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch
TF = torch.nn.functional


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


def share_weights(own: nn.Module, theirs: Any, scale: float = 0.2) -> None:
    """Fill both from N(0, scale): at default values a plain sum of a norm has no gradient."""
    state = {
        name: draws(*p.shape, seed=n, scale=scale).astype("float32")
        for n, (name, p) in enumerate(theirs.state_dict().items())
    }
    own.load_state_dict(state)
    theirs.load_state_dict({n: torch.tensor(a) for n, a in state.items()})


def compare(
    own: nn.Module,
    theirs: Any,
    arrays: list[np.ndarray],
    call: Callable[[Any, list[Any]], Any] = lambda m, x: m(*x),
) -> None:
    """Outputs and gradients of parameters and inputs, weighted by a random head."""
    share_weights(own, theirs)
    mine = [pb.tensor(a.astype("float32")) for a in arrays]
    for x in mine:
        x.requires_grad = True
    other = [torch.tensor(a.astype("float32"), requires_grad=True) for a in arrays]
    wanted = call(theirs, other)
    head = draws(*wanted.shape, seed=77).astype("float32")
    (wanted * torch.tensor(head)).sum().backward()
    found = call(own, mine)
    (found * pb.tensor(head)).sum().backward()
    np.testing.assert_allclose(
        call(own, mine).numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5
    )
    pairs = [(x.grad, y.grad) for x, y in zip(mine, other, strict=True)]
    named = dict(theirs.named_parameters())
    assert [n for n, _ in own.named_parameters()] == list(named)
    pairs += [(p.grad, named[n].grad) for n, p in own.named_parameters()]
    for ours, yours in pairs:
        np.testing.assert_allclose(ours.numpy(), yours.numpy(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder(norm_first: bool, batch_first: bool) -> None:
    settings = {"dropout": 0.0, "norm_first": norm_first, "batch_first": batch_first}
    own = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 12, **settings), 2, nn.LayerNorm(8)
    )
    layer = torch.nn.TransformerEncoderLayer(8, 2, 12, **settings)
    theirs = torch.nn.TransformerEncoder(
        layer, 2, torch.nn.LayerNorm(8), enable_nested_tensor=False
    )
    compare(own, theirs, [draws(3, 5, 8)])


def test_encoder_without_a_batch() -> None:
    settings = {"dropout": 0.0, "activation": "gelu"}
    own = nn.TransformerEncoderLayer(8, 4, 12, **settings)
    compare(own, torch.nn.TransformerEncoderLayer(8, 4, 12, **settings), [draws(2, 8)])


MASK = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
PADDING = np.array([[False, False, True], [False, True, False]])


@pytest.mark.parametrize("kind", ["plain", "bool", "float", "padding", "causal", "heads"])
def test_cross_attention_and_masks(kind: str) -> None:
    own = nn.MultiheadAttention(8, 2, batch_first=True)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    masks: dict[str, np.ndarray] = {}
    if kind == "bool":
        masks = {"attn_mask": MASK}
    if kind == "float":
        masks = {"attn_mask": draws(4, 3).astype("float32")}
    if kind == "padding":
        masks = {"key_padding_mask": PADDING}
    if kind == "heads":
        masks = {"attn_mask": draws(4, 4, 3, seed=5).astype("float32")}
    if kind == "causal":
        masks = {"attn_mask": np.triu(np.ones((4, 3), bool), 1)}

    def call(module: Any, given: list[Any]) -> Any:
        make = pb.tensor if isinstance(module, nn.Module) else torch.tensor
        named = {n: make(m) for n, m in masks.items()}
        return module(given[0], given[1], given[1], **named)[0]

    compare(own, theirs, [draws(2, 4, 8), draws(2, 3, 8, seed=1)], call)


def test_attention_of_other_widths_and_its_weights() -> None:
    own = nn.MultiheadAttention(8, 2, kdim=5, vdim=3)
    theirs = torch.nn.MultiheadAttention(8, 2, kdim=5, vdim=3)
    arrays = [draws(4, 2, 8), draws(3, 2, 5, seed=1), draws(3, 2, 3, seed=2)]
    compare(own, theirs, arrays, lambda m, x: m(*x)[0])
    mine = [pb.tensor(a.astype("float32")) for a in arrays]
    other = [torch.tensor(a.astype("float32")) for a in arrays]
    for average in (True, False):
        found = own(*mine, average_attn_weights=average)[1].numpy()
        wanted = theirs(*other, average_attn_weights=average)[1].detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


LAYERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("Linear", lambda m: m.Linear(6, 3)),
    ("LayerNorm", lambda m: m.LayerNorm(6)),
    ("LayerNorm 2", lambda m: m.LayerNorm((4, 6), bias=False)),
    ("RMSNorm", lambda m: m.RMSNorm(6)),
    ("ReLU", lambda m: m.ReLU()),
    ("GELU", lambda m: m.GELU()),
    ("GELU tanh", lambda m: m.GELU(approximate="tanh")),
    ("SiLU", lambda m: m.SiLU()),
    ("Sigmoid", lambda m: m.Sigmoid()),
    ("Tanh", lambda m: m.Tanh()),
    ("Softmax", lambda m: m.Softmax(dim=1)),
    ("LogSoftmax", lambda m: m.LogSoftmax(dim=-1)),
]


@pytest.mark.parametrize(("name", "make"), LAYERS, ids=[n for n, _ in LAYERS])
def test_layers(name: str, make: Callable[[Any], Any]) -> None:
    compare(make(nn), make(torch.nn), [draws(2, 4, 6, scale=2.0)])


WEIGHT = np.array([0.5, 1.0, 2.0, 0.1], "float32")
LABELS = np.array([1, 3, -100, 0, 3])
LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("CrossEntropyLoss", {}),
    ("CrossEntropyLoss", {"reduction": "sum", "label_smoothing": 0.2}),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.1}),
    ("CrossEntropyLoss", {"weight": WEIGHT, "reduction": "none"}),
    ("CrossEntropyLoss", {"ignore_index": 3}),
    ("NLLLoss", {"weight": WEIGHT}),
    ("NLLLoss", {"reduction": "sum"}),
]


def both(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {n for n, v in settings.items() if isinstance(v, np.ndarray)}
    mine = {n: pb.tensor(v) if n in arrays else v for n, v in settings.items()}
    return mine, {n: torch.tensor(v) if n in arrays else v for n, v in settings.items()}


def loss_pair(name: str, settings: dict[str, Any], x: np.ndarray, t: np.ndarray) -> None:
    mine, other = both(settings)
    a = pb.tensor(x.astype("float32"))
    b = torch.tensor(x.astype("float32"), requires_grad=True)
    target = t if t.dtype.kind == "i" else t.astype("float32")
    found = getattr(nn, name)(**mine)(a, pb.tensor(target))
    wanted = getattr(torch.nn, name)(**other)(b, torch.tensor(target))
    wanted.sum().backward()
    slope = pb.grad(found.sum(), a).numpy()
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, b.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "settings"), LOSSES, ids=str)
def test_losses_over_classes(name: str, settings: dict[str, Any]) -> None:
    labels = np.where(LABELS < 0, 0, LABELS) if "ignore_index" in settings else LABELS
    loss_pair(name, settings, draws(5, 4), labels)


def test_losses_over_more_axes_and_probabilities() -> None:
    x, t = draws(2, 4, 3), np.array([[0, 3, 1], [2, -100, 2]])
    loss_pair("CrossEntropyLoss", {}, x, t)
    loss_pair("NLLLoss", {"weight": WEIGHT}, x, t)
    p = np.exp(draws(2, 4, 3, seed=3))
    for settings in ({}, {"label_smoothing": 0.3}, {"weight": WEIGHT}):
        loss_pair("CrossEntropyLoss", settings, x, p / p.sum(1, keepdims=True))


@pytest.mark.filterwarnings("ignore:reduction")  # of PyTorch's, about KLDivLoss's mean
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_over_pairs(reduction: str) -> None:
    x, t = draws(3, 4, scale=5.0), draws(3, 4, seed=1)
    for name in ("MSELoss", "L1Loss"):
        loss_pair(name, {"reduction": reduction}, x, t)
    settings = {"reduction": reduction, "pos_weight": WEIGHT}
    loss_pair("BCEWithLogitsLoss", settings, x, 1.0 / (1.0 + np.exp(-t)))
    shares = np.exp(t) / np.exp(t).sum(1, keepdims=True)
    loss_pair("KLDivLoss", {"reduction": reduction}, x, shares)


def test_embedding_with_padding() -> None:
    own, theirs = nn.Embedding(5, 3, padding_idx=2), torch.nn.Embedding(5, 3, padding_idx=2)
    share_weights(own, theirs)
    tokens = np.array([[0, 2], [4, 4]])
    own(pb.tensor(tokens)).sum().backward()
    theirs(torch.tensor(tokens)).sum().backward()
    np.testing.assert_array_equal(own.weight.grad.numpy(), theirs.weight.grad.numpy())


def test_torch_reads_our_file_and_we_read_its(tmp_path: Path) -> None:
    from_torch = pytest.importorskip("safetensors.torch")
    own, theirs = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    nn.save(own, tmp_path / "own")
    theirs.load_state_dict(from_torch.load_file(tmp_path / "own"))
    np.testing.assert_array_equal(theirs.weight.detach().numpy(), own.weight.numpy())
    again = torch.nn.Linear(3, 2)
    from_torch.save_file(again.state_dict(), tmp_path / "theirs")
    own.load_state_dict(nn.load(tmp_path / "theirs"))
    np.testing.assert_array_equal(again.weight.detach().numpy(), own.weight.numpy())
    own.load_state_dict(theirs.state_dict())
    np.testing.assert_array_equal(theirs.bias.detach().numpy(), own.bias.numpy())


def test_attention_function() -> None:
    q, k, v = (draws(2, 3, 5, 4, seed=n).astype("float32") for n in range(3))
    mask = draws(2, 1, 5, 5, seed=9).astype("float32")
    found = F.scaled_dot_product_attention(
        *map(pb.tensor, (q, k, v)), attn_mask=pb.tensor(mask), scale=0.3
    ).numpy()
    wanted = TF.scaled_dot_product_attention(
        *map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(mask), scale=0.3
    )
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)
