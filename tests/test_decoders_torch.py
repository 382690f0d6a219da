"""Decoders, unpooling, alignments, antialiased sizes beside PyTorch: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from layers_support import Array, check, drawn, fill, normal, own_results, torch_results
from pullback import nn
from pullback.nn import functional as F

torch = pytest.importorskip("torch")
TF = torch.nn.functional
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
]
Maker = Callable[[Any], Any]

# --- transformers --------------------------------------------------------------------------------

LATER = np.triu(np.ones((5, 5), bool), 1)
AWAY = np.arange(12).reshape(3, 4) % 5 == 3
TARGET, MEMORY = normal(5, 3, 6), normal(4, 3, 6, seed=1)
ADDED = normal(5, 4, seed=2)
TRANSFORMERS: dict[str, tuple[Maker, list[Array], dict[str, Array]]] = {
    "layer": (
        lambda m: m.TransformerDecoderLayer(6, 2, 9, dropout=0.0, activation="gelu"),
        [TARGET, MEMORY], {"tgt_mask": LATER},
    ),
    "norm first": (
        lambda m: m.TransformerDecoderLayer(6, 3, 9, dropout=0.0, norm_first=True, bias=False),
        [TARGET, MEMORY], {"memory_mask": ADDED},
    ),
    "encoder norm first": (
        lambda m: m.TransformerEncoderLayer(6, 2, 9, dropout=0.0, norm_first=True), [TARGET], {},
    ),
    "decoder": (
        lambda m: m.TransformerDecoder(
            m.TransformerDecoderLayer(6, 3, 7, dropout=0.0, batch_first=True), 2, m.LayerNorm(6)
        ),
        [normal(3, 5, 6), normal(3, 4, 6, seed=1)], {"memory_key_padding_mask": AWAY},
    ),
    "transformer": (
        lambda m: m.Transformer(6, 2, 1, 2, 7, dropout=0.0), [MEMORY, TARGET],
        {"tgt_mask": LATER},
    ),
    "transformer batch first": (
        lambda m: m.Transformer(6, 2, 1, 1, 7, dropout=0.0, batch_first=True, norm_first=True),
        [normal(3, 4, 6), normal(3, 5, 6, seed=1)], {"src_key_padding_mask": AWAY},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    make, arrays, masks = TRANSFORMERS[name]
    own, theirs = make(nn), make(torch.nn).double()
    state = drawn(theirs.state_dict())
    assert list(own.state_dict()) == list(state)
    fill(own, state)
    theirs.load_state_dict({n: torch.tensor(a) for n, a in state.items()})
    mine = {n: pb.tensor(a) for n, a in masks.items()}
    other = {n: torch.tensor(a) for n, a in masks.items()}
    found = own_results(lambda *x: own(*x, **mine), arrays, [*own.parameters()])
    check(
        found, torch_results(torch, lambda *x: theirs(*x, **other), arrays, [*theirs.parameters()])
    )


# --- unpooling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("space", "size", "stride", "padding"), [
    (1, 2, None, 0), (1, 3, 2, 1), (2, 2, None, 0), (2, (3, 2), (2, 1), (1, 0)), (3, 2, None, 0),
])  # fmt: skip
def test_unpooling(space: int, size: Any, stride: Any, padding: Any) -> None:
    room = (9, 7, 6) if stride else (8, 6, 4)
    x = torch.tensor(normal(2, 3, *room[:space]))
    pool, unpool = (getattr(TF, f"max_{n}{space}d") for n in ("pool", "unpool"))
    values, places = pool(x, size, stride, padding, return_indices=True)
    own, mine = getattr(F, f"max_unpool{space}d"), pb.tensor(places.numpy())
    for output in (None, tuple(x.shape)):
        settings = (size, stride, padding, output)
        found = own_results(lambda v, s=settings: own(v, mine, *s), [values.numpy()])
        wanted = torch_results(torch, lambda v, s=settings: unpool(v, places, *s), [values.numpy()])
        check(found, wanted)
    layer = getattr(nn, f"MaxUnpool{space}d")(size, stride, padding)
    same = getattr(torch.nn, f"MaxUnpool{space}d")(size, stride, padding)
    wanted = same(values[0], places[0]).numpy()
    alone = layer(pb.tensor(values.numpy()[0]), pb.tensor(places.numpy()[0]))
    np.testing.assert_allclose(alone.numpy(), wanted, rtol=1e-14)


@pytest.mark.parametrize("space", [2, 3])
@pytest.mark.parametrize("settings", [
    {"kernel_size": 2, "output_size": 3}, {"kernel_size": (2, 3, 2), "output_ratio": (0.5,) * 3},
    {"kernel_size": 2, "output_size": (1, 2, 3)},
])  # fmt: skip
def test_windows_that_are_drawn(space: int, settings: dict[str, Any]) -> None:
    x = normal(2, 3, *(6, 7, 5)[:space])
    draws = np.random.default_rng(0).uniform(size=(2, 3, space))
    settings = {n: v[:space] if isinstance(v, tuple) else v for n, v in settings.items()}
    name = f"fractional_max_pool{space}d"
    own, theirs = getattr(F, name), getattr(TF, name)
    mine = {**settings, "return_indices": True, "_random_samples": pb.tensor(draws)}
    other = {**mine, "_random_samples": torch.tensor(draws)}
    found = own_results(lambda x: own(x, **mine), [x])
    check(found, torch_results(torch, lambda x: theirs(x, **other), [x]))
    places = own(pb.tensor(x), **mine)[1].numpy()
    np.testing.assert_array_equal(places, theirs(torch.tensor(x), **other)[1].numpy())


# --- alignments ----------------------------------------------------------------------------------

LOGITS = normal(9, 4, 5)
LABELS = np.array([[1, 2, 2], [3, 3, 1], [4, 0, 0], [1, 0, 0]])
LONG, SHORT = (9, 7, 5, 4), (3, 3, 1, 0)
JOINED = np.concatenate([row[:n] for row, n in zip(LABELS, SHORT, strict=True)])
ALIGNED: dict[str, tuple[Array, Array, Any, Any, dict[str, Any]]] = {
    "mean": (LOGITS, LABELS, LONG, SHORT, {}),
    "sum": (LOGITS, LABELS, LONG, SHORT, {"reduction": "sum"}),
    "none": (LOGITS, LABELS, LONG, SHORT, {"reduction": "none"}),
    "joined": (LOGITS, JOINED, LONG, SHORT, {}),
    "another blank": (LOGITS, LABELS % 4, LONG, SHORT, {"blank": 4}),
    "none fits": (LOGITS, LABELS, (2, 7, 5, 4), SHORT, {"zero_infinity": True}),
    "one": (LOGITS[:, 0], LABELS[0], (9,), (3,), {"reduction": "none"}),
}


@pytest.mark.parametrize("name", ALIGNED)
def test_alignments(name: str) -> None:
    logits, labels, long, short, settings = ALIGNED[name]
    own, theirs = nn.CTCLoss(**settings), torch.nn.CTCLoss(**settings)
    mine, other = pb.tensor(labels), torch.tensor(labels)
    lengths = (long, short) if logits.ndim == 3 else (torch.tensor(9), torch.tensor(3))

    def wanted(x: Any) -> Any:
        return theirs(TF.log_softmax(x, -1), other, *lengths)

    found = own_results(lambda x: own(F.log_softmax(x, -1), mine, long, short), [logits])
    check(found, torch_results(torch, wanted, [logits]))


def test_a_place_outside_is_refused() -> None:
    values, places = pb.tensor(normal(1, 1, 3)), pb.tensor(np.array([[[0, 9, 4]]]))
    with pytest.raises(IndexError, match="index 9 is out of range"):
        F.max_unpool1d(values, places, 2).numpy()


def test_no_alignment_is_infinite() -> None:
    logs = normal(1, 1, 4)
    own = F.ctc_loss(pb.tensor(logs), pb.tensor(np.array([[1, 2]])), (1,), (2,))
    theirs = TF.ctc_loss(torch.tensor(logs), torch.tensor([[1, 2]]), (1,), (2,))
    assert own.item() == theirs.item() == np.inf


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("settings", [
    {"size": (4, 3)}, {"size": (5, 11)}, {"scale_factor": 0.4}, {"size": (1, 1)},
    {"size": (13, 2), "align_corners": True},
], ids=str)  # fmt: skip
def test_antialiased_sizes(mode: str, settings: dict[str, Any]) -> None:
    settings = {**settings, "mode": mode, "antialias": True}
    x = normal(2, 3, 9, 7)
    found = own_results(lambda x: F.interpolate(x, **settings), [x])
    check(found, torch_results(torch, lambda x: TF.interpolate(x, **settings), [x]))


def test_places_of_adaptive_pools() -> None:
    x = normal(2, 3, 7, 5)
    own = F.adaptive_max_pool2d(pb.tensor(x), (3, 2), return_indices=True)
    theirs = TF.adaptive_max_pool2d(torch.tensor(x), (3, 2), return_indices=True)
    for a, b in zip(own, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_slopes_by_how_often_a_row_is_named() -> None:
    """Of bags as of rows; PyTorch's own for bags on the CPU takes the counts of other rows."""
    tokens, heavy = np.array([[3, 1, 3], [3, 2, 1]]), {"scale_grad_by_freq": True}
    arrays = [normal(5, 3)]
    found = own_results(lambda w: F.embedding(pb.tensor(tokens), w, 2, **heavy), arrays)
    wanted = torch_results(
        torch, lambda w: TF.embedding(torch.tensor(tokens), w, 2, **heavy), arrays
    )
    check(found, wanted)
    for mode, other in (("sum", torch.sum), ("mean", torch.mean)):
        bags = own_results(
            lambda w, m=mode: F.embedding_bag(pb.tensor(tokens), w, mode=m, **heavy), arrays
        )
        rows = torch_results(
            torch,
            lambda w, f=other: f(TF.embedding(torch.tensor(tokens), w, **heavy), dim=1),
            arrays,
        )
        check(bags, rows)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_bags(mode: str, last: bool) -> None:
    """Weights of samples, a last offset, a row that does not count."""
    tokens, offsets = np.array([3, 1, 4, 1, 5, 2, 0]), np.array([0, 2, 2, 7])
    offsets = offsets if last else offsets[:3]
    weights = normal(7, seed=3)
    options = {"mode": mode, "include_last_offset": last, "padding_idx": 1}
    heavy = mode == "sum"

    def call(space: Any, tensor: Any) -> Any:
        def function(table: Any, *given: Any) -> Any:
            extra = {"per_sample_weights": given[0]} if heavy else {}
            return space.embedding_bag(tensor(tokens), table, tensor(offsets), **options, **extra)

        return function

    arrays = [normal(6, 3), *([weights] if heavy else [])]
    found = own_results(call(F, pb.tensor), arrays)
    check(found, torch_results(torch, call(TF, torch.tensor), arrays))
