"""Layers, losses and modules against NumPy, finite differences and their own promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from nn_support import check_gradients, draws, strangers
from pullback import nn
from pullback.config import Options
from pullback.errors import ArgumentError, DTypeError, ShapeError, StateError, UnsupportedError
from pullback.ir.graph import Keep, topological
from pullback.nn import functional as F
from pullback.nn.base.weights import load_metadata
from pullback.nn.loss.cross_entropy import token_cross_entropy
from pullback.tensor.face.tensor import Tensor


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    pb.random.manual_seed(0)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# --- functions against NumPy


def test_linear_over_any_leading_axes() -> None:
    w, b = draws(4, 5, seed=1), draws(4, seed=2)
    for lead in ((), (3,), (2, 3), (2, 1, 3)):
        x = draws(*lead, 5)
        found = F.linear(pb.tensor(x), pb.tensor(w), pb.tensor(b)).numpy()
        np.testing.assert_allclose(found, x @ w.T + b, rtol=1e-12)


def test_linear_is_one_contraction_without_reshape() -> None:
    y = F.linear(pb.tensor(draws(2, 3, 5)), pb.tensor(draws(4, 5)))
    assert [d.name for d in topological([y.value])] == ["linear"]
    assert y.value.shape == (2, 3, 4)


def test_linear_refuses_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="axis 1 of `weight` has 6 elements, k is 5"):
        F.linear(pb.tensor(draws(3, 5)), pb.tensor(draws(4, 6)))


def test_layer_norm_and_rms_norm() -> None:
    x, w, b = 5.0 + draws(3, 7), draws(7, seed=1), draws(7, seed=2)
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b
    found = F.layer_norm(pb.tensor(x), 7, pb.tensor(w), pb.tensor(b)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    root = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    found = F.rms_norm(pb.tensor(x), (7,), pb.tensor(w), 1e-6).numpy()
    np.testing.assert_allclose(found, x / root * w, rtol=1e-12)


def test_layer_norm_of_a_large_offset_keeps_its_digits() -> None:
    x = (1e4 + draws(2, 64)).astype("float32")
    wide = x.astype("float64")
    wanted = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(F.layer_norm(pb.tensor(x), 64).numpy(), wanted, atol=2e-3)


def test_embedding_and_its_padding_row() -> None:
    table, tokens = draws(6, 3), np.array([[0, 5], [2, 2]], np.int32)
    found = F.embedding(pb.tensor(tokens), pb.tensor(table)).numpy()
    np.testing.assert_array_equal(found, table[tokens])
    weight = pb.tensor(table)
    loss = F.embedding(pb.tensor(tokens), weight, padding_idx=2).sum()
    counts = np.array([1.0, 0, 0, 0, 0, 1.0])
    np.testing.assert_array_equal(pb.grad(loss, weight).numpy(), counts[:, None] * np.ones(3))
    with pytest.raises(DTypeError, match="`input` is float"):
        F.embedding(pb.tensor(draws(2)), weight)


def test_cross_entropy_of_numbers_probabilities_and_smoothing() -> None:
    x = draws(5, 4, scale=3.0)
    t = np.array([0, 3, -100, 1, 1])
    logp = np.log(softmax(x))
    kept = t >= 0
    picked = -logp[np.arange(5), np.where(kept, t, 0)] * kept
    found = F.cross_entropy(pb.tensor(x), pb.tensor(t)).item()
    assert found == pytest.approx(picked.sum() / 4, rel=1e-12)
    p = softmax(draws(5, 4, seed=7))
    found = F.cross_entropy(pb.tensor(x), pb.tensor(p), reduction="sum").item()
    assert found == pytest.approx(-(p * logp).sum(), rel=1e-12)
    smooth = 0.8 * picked - 0.2 * logp.mean(1) * kept
    found = F.cross_entropy(
        pb.tensor(x), pb.tensor(t), reduction="none", label_smoothing=0.2
    ).numpy()
    np.testing.assert_allclose(found, smooth, rtol=1e-12)


def test_cross_entropy_of_large_logits_is_finite() -> None:
    x = np.array([[1e4, 0.0, -1e4]])
    found = F.cross_entropy(pb.tensor(x), pb.tensor(np.array([1]))).item()
    assert found == pytest.approx(1e4)


def test_cross_entropy_has_no_one_hot() -> None:
    x, t = pb.tensor(draws(3, 50)), pb.tensor(np.array([1, 2, 3]))
    loss = token_cross_entropy(x, t)
    shapes = [d.shape for d in topological([loss.value])]
    assert (3, 50) not in shapes


def test_targets_that_do_not_fit_are_refused() -> None:
    x = pb.tensor(draws(3, 4))
    with pytest.raises(ShapeError, match="axis 0 of `target` has 2"):
        F.cross_entropy(x, pb.tensor(np.array([1, 2])))
    with pytest.raises(UnsupportedError, match="reduction"):
        F.mse_loss(x, x, reduction="average")


# --- gradients against central differences

SMALL: list[tuple[str, Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = [
    ("linear", F.linear, ((2, 3), (4, 3), (4,))),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, 4, w, b), ((2, 4), (4,), (4,))),
    ("layer_norm 2 axes", lambda x: F.layer_norm(x, (3, 2)), ((2, 3, 2),)),
    ("rms_norm", lambda x, w: F.rms_norm(x, 4, w, 1e-5), ((2, 4), (4,))),
    ("gelu", F.gelu, ((5,),)),
    ("gelu tanh", lambda x: F.gelu(x, "tanh"), ((5,),)),
    ("silu", F.silu, ((5,),)),
    ("sigmoid", F.sigmoid, ((5,),)),
    ("tanh", F.tanh, ((5,),)),
    ("softplus", F.softplus, ((5,),)),
    ("softmax", lambda x: F.softmax(x, dim=0), ((3, 2),)),
    ("log_softmax", lambda x: F.log_softmax(x, dim=-1), ((2, 3),)),
    ("mse", F.mse_loss, ((2, 3), (2, 3))),
    ("l1", F.l1_loss, ((2, 3), (2, 3))),
    (
        "soft cross entropy",
        lambda x: F.cross_entropy(x, F.softmax(pb.tensor(draws(2, 3, seed=5)), 1)),
        ((2, 3),),
    ),
    (
        "cross entropy",
        lambda x: F.cross_entropy(x, pb.tensor(np.array([2, 0])), label_smoothing=0.1),
        ((2, 3),),
    ),
    ("nll", lambda x: F.nll_loss(x, pb.tensor(np.array([2, 0]))), ((2, 3),)),
    (
        "attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((3, 2), (3, 2), (3, 2)),
    ),
]


@pytest.mark.parametrize(("name", "function", "shapes"), SMALL, ids=[s[0] for s in SMALL])
def test_gradients_equal_finite_differences(
    name: str, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    check_gradients(function, *(draws(*s, seed=n) for n, s in enumerate(shapes)))


# --- attention


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    s = np.where(mask, q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return softmax(s) @ v


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_peaked_scores(causal: bool) -> None:
    q, k, v = (draws(2, 3, 5, 4, seed=n, scale=20.0) for n in range(3))
    mask = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    given = [pb.tensor(a) for a in (q, k, v)]
    found = F.scaled_dot_product_attention(*given, is_causal=causal).numpy()
    np.testing.assert_allclose(found, attention(q, k, v, mask), rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(65, 8), (1, 100, 24), (2, 97, 8)])
def test_long_causal_attention_of_few_heads(shape: tuple[int, ...]) -> None:
    """Sums of more than 64 terms are in blocks, also where rows end at a guard."""
    q, k, v = (draws(*shape, seed=n) for n in range(3))

    def gradients(options: Options) -> list[np.ndarray]:
        @pb.jit(options=options)
        def run(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return pb.grad((y * y).sum(), [q, k, v])

        return [g.numpy() for g in run(q, k, v)]

    sides = zip(gradients(Options()), gradients(Options(backend="reference")), strict=True)
    for got, want in sides:
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_fully_masked_row_is_zero_forward_and_backward() -> None:
    q, k, v = (pb.tensor(draws(3, 4, seed=n)) for n in range(3))
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    added = np.where(mask, 0.0, -np.inf)
    for given in (mask, added):
        y = F.scaled_dot_product_attention(q, k, v, pb.tensor(given))
        grads = [g.numpy() for g in pb.grad((y * y).sum() + y.sum(), [q, k, v])]
        assert np.all(y.numpy()[1] == 0.0)
        assert all(np.all(np.isfinite(g)) for g in grads)
        assert np.all(grads[0][1] == 0.0)
        assert np.any(grads[0][0] != 0.0)


def test_scores_are_computed_again() -> None:
    x = pb.tensor(draws(2, 6, 8))
    layer = nn.MultiheadAttention(8, 2, batch_first=True, dtype="float64")
    y, weights = layer(x, x, x)
    square = [d for d in topological([y.value]) if d.shape[-2:] == (6, 6)]
    assert square
    assert all(d.keep is Keep.NEVER for d in square)
    assert weights.shape == (2, 6, 6)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1.0, rtol=1e-12)


def test_packed_projection_is_read_in_place() -> None:
    x = pb.tensor(draws(2, 6, 8))
    layer = nn.MultiheadAttention(8, 2, batch_first=True, dtype="float64")
    names = [d.name for d in topological([layer(x, x, x)[0].value])]
    assert names.count("linear") == 2  # one for queries, keys and values; one for the output


# --- dropout


def test_dropout_uses_one_mask_forward_and_backward() -> None:
    x = pb.tensor(np.ones(2000))
    y = F.dropout(x, 0.25)
    loss = y.sum()
    slope = pb.grad(loss, x)
    mask = [d for d in topological([loss.value]) if d.name == "bernoulli"]
    assert [d.keep for d in mask] == [Keep.NEVER]
    values = y.numpy()
    np.testing.assert_array_equal(values, slope.numpy())
    np.testing.assert_allclose(np.unique(values), [0.0, 1.0 / 0.75])
    assert abs((values == 0).mean() - 0.25) < 0.04


def test_dropout_in_evaluation_and_at_the_ends() -> None:
    x = pb.tensor(draws(5))
    layer = nn.Dropout(0.5)
    assert layer.eval()(x) is x
    assert F.dropout(x, 0.0) is x
    assert np.all(F.dropout(x, 1.0).numpy() == 0.0)
    with pytest.raises(ArgumentError, match="p=1"):
        nn.Dropout(1.5)


# --- modules


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.act = nn.ReLU()
        self.last = nn.Linear(4, 2, bias=False)
        self.register_buffer("scale", np.ones(2, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x))) * self.scale


def test_names_follow_torch() -> None:
    net = Net()
    assert [n for n, _ in net.named_parameters()] == ["first.weight", "first.bias", "last.weight"]
    assert list(net.state_dict()) == ["scale", "first.weight", "first.bias", "last.weight"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "act", "last"]
    assert repr(net.first) == "Linear(in_features=3, out_features=4, bias=True)"
    pair = nn.ModuleList([nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU(inplace=True)])
    assert repr(pair) == "ModuleList(\n  (0): ReLU()\n  (1-2): 2 x ReLU(inplace=True)\n)"


def test_state_dict_round_trip_and_strictness() -> None:
    a, b = Net(), Net()
    state = a.state_dict()
    assert b.load_state_dict(state) == ([], [])
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    del state["first.bias"]
    state["other"] = pb.zeros(1)
    with pytest.raises(StateError, match=r"missing \['first.bias'\], unexpected \['other'\]"):
        b.load_state_dict(state)
    assert b.load_state_dict(state, strict=False) == (["first.bias"], ["other"])
    with pytest.raises(ShapeError, match=r"last\.weight"):
        b.load_state_dict({**a.state_dict(), "last.weight": np.zeros((2, 3))})


def test_a_state_dict_is_of_its_moment() -> None:
    net = Net()
    before = net.state_dict()["scale"]
    net.scale.assign(pb.zeros(2))
    np.testing.assert_array_equal(before.numpy(), 1.0)


def test_train_eval_apply_and_zero_grad() -> None:
    net = Net()
    assert all(not m.training for m in net.eval().modules())
    seen: list[str] = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen[-1] == "Net" and len(seen) == 4
    net(pb.tensor(np.ones((1, 3), np.float32))).sum().backward()
    assert net.first.weight.grad is not None
    net.zero_grad()
    assert net.first.weight.grad is None


def test_gradients_accumulate_until_zeroed() -> None:
    net = Net()
    x = pb.tensor(draws(2, 3).astype("float32"))
    net(x).sum().backward()
    once = net.last.weight.grad.numpy()
    net(x).sum().backward()
    np.testing.assert_allclose(net.last.weight.grad.numpy(), 2 * once, rtol=1e-6)


def test_containers() -> None:
    inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    net = nn.Sequential(inner[0], nn.Tanh())
    net.append(inner[1])
    named = nn.ModuleDict({"a": net})
    assert len(inner) == 2 and len(net) == 3 and list(named) == ["a"]
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert isinstance(net[1:], nn.Sequential)
    with pytest.raises(AttributeError, match="super"):
        type("Bad", (nn.Module,), {"__init__": lambda s: setattr(s, "a", inner[0])})()


def test_a_copy_has_cells_of_its_own() -> None:
    layer = nn.Linear(2, 2)
    other = layer.copy()
    layer.weight.assign(pb.zeros(2, 2))
    assert np.any(other.weight.numpy() != 0.0)
    shared = nn.Sequential(layer, layer).copy()
    assert shared[0] is shared[1]


def test_functional_call_replaces_and_puts_back() -> None:
    net = nn.Linear(2, 1, bias=False)
    x = pb.tensor(np.ones((1, 2), np.float32))
    before = net.weight
    found = nn.functional_call(net, {"weight": pb.tensor(np.full((1, 2), 3.0, np.float32))}, (x,))
    assert found.item() == 6.0
    assert net.weight is before
    with pytest.raises(StateError, match="no parameter `nope`"):
        nn.functional_call(net, {"nope": x}, (x,))


def test_tied_head_shares_one_parameter() -> None:
    config = nn.GPTConfig(vocabulary=7, context=4, layers=1, dim=8, heads=2, tied=True)
    model = nn.GPT(config)
    assert model.head.weight is model.tokens.weight
    names = [n for n, _ in model.named_parameters()]
    assert "head.weight" not in names
    assert "head.weight" in model.state_dict()


def test_gpt_is_causal() -> None:
    model = nn.GPT(nn.GPTConfig(vocabulary=7, context=6, layers=2, dim=8, heads=2))
    for p in model.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    tokens = np.array([[1, 2, 3, 4, 5, 6]], np.int32)
    changed = tokens.copy()
    changed[0, 4] = 0
    a, b = (model(pb.tensor(t)).numpy() for t in (tokens, changed))
    np.testing.assert_array_equal(a[0, :4], b[0, :4])
    assert np.all(np.abs(a[0, 4:] - b[0, 4:]).max(-1) > 1e-4)
    with pytest.raises(ShapeError, match="context of 6"):
        model(pb.tensor(np.zeros((1, 7), np.int32)))


def test_initial_values_have_torchs_ranges() -> None:
    layer = nn.Linear(100, 50)
    w = layer.weight.numpy()
    assert abs(w).max() <= 0.1 and w.std() == pytest.approx(0.1 / np.sqrt(3.0), rel=0.05)
    w = nn.Embedding(100, 50, padding_idx=3).weight.numpy()
    assert np.all(w[3] == 0.0) and w.std() == pytest.approx(1.0, rel=0.05)
    w = nn.init.xavier_uniform_(nn.Linear(100, 50).weight).numpy()
    assert abs(w).max() == pytest.approx(np.sqrt(6.0 / 150), rel=0.01)


# --- files


def test_weights_file_round_trip(tmp_path: Path) -> None:
    net = Net()
    path = tmp_path / "net.safetensors"
    nn.save(net, path, {"made": "here"})
    found = nn.load(path)
    assert sorted(found) == sorted(net.state_dict())
    other = Net()
    other.load_state_dict(found)
    np.testing.assert_array_equal(other.first.weight.numpy(), net.first.weight.numpy())
    assert load_metadata(path) == {"made": "here"}


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16", "int64", "uint8", "bool"])
def test_element_types_survive_a_file(tmp_path: Path, kind: str) -> None:
    array = pb.tensor([[0, 1], [1, 0]]).astype(kind)
    nn.save({"x": array}, tmp_path / "x")
    found = nn.load(tmp_path / "x")["x"]
    assert str(found.dtype) == kind
    np.testing.assert_array_equal(found.numpy(), array.numpy())


def test_a_number_stays_a_number(tmp_path: Path) -> None:
    nn.save({"x": pb.tensor(3)}, tmp_path / "x")
    assert nn.load(tmp_path / "x")["x"].shape == ()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    nn.save({"x": np.zeros(3)}, path)
    before = path.read_bytes()

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pullback.nn.base.weights.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        nn.save({"x": np.ones(3)}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(StateError, match="no safetensors file"):
        nn.load(path)


# --- the primitives


def library() -> dict[str, Callable[[Tensor], Tensor]]:
    tokens = pb.tensor(np.array([[1, 0, 2], [2, 2, 1]], np.int32))
    padding = pb.tensor(np.array([[False, True, False]] * 2))
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, dtype="float64", batch_first=True)
    cross = nn.MultiheadAttention(4, 2, kdim=4, vdim=4, dtype="float64", batch_first=True)
    labels = pb.tensor(np.array([1, 3]))
    return {
        "linear": lambda x: F.linear(x, x[0], x[0, :, 0]),
        "layer_norm": lambda x: F.layer_norm(x, 4),
        "rms_norm": lambda x: F.rms_norm(x, 4),
        "embedding": lambda x: F.embedding(tokens, x[0], padding_idx=1),
        "dropout": lambda x: F.dropout(x, 0.3),
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, "tanh"),
        "silu": F.silu,
        "sigmoid": F.sigmoid,
        "tanh": F.tanh,
        "softmax": lambda x: F.softmax(x, -1),
        "log_softmax": lambda x: F.log_softmax(x, -1),
        "softplus": F.softplus,
        "logsigmoid": F.logsigmoid,
        "mse": lambda x: F.mse_loss(x, x * 2.0),
        "l1": lambda x: F.l1_loss(x, x * 2.0),
        "cross_entropy": lambda x: F.cross_entropy(x[:, 0], labels, label_smoothing=0.1),
        "soft": lambda x: F.cross_entropy(x[:, 0], F.softmax(x[:, 1], 1)),
        "nll": lambda x: F.nll_loss(x[:, 0], labels),
        "bce": lambda x: F.binary_cross_entropy_with_logits(x, x * 0.5),
        "encoder": lambda x: encoder(x, src_key_padding_mask=padding),
        "cross attention": lambda x: cross(x, x * 2.0, x * 3.0, attn_mask=None)[0],
    }


@pytest.mark.parametrize("name", list(library()))
def test_only_the_27_primitives_occur(name: str) -> None:
    x = pb.tensor(draws(2, 3, 4))
    loss = library()[name](x).sum()
    assert strangers(loss, wrt=[x]) == set()


@pytest.mark.slow
def test_llvm_agrees_with_the_oracle() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = draws(2, 5, 8).astype("float32")

    def gradients(x: Tensor) -> list[Tensor]:
        return pb.grad((layer(x) * x).sum(), list(layer.parameters()))

    wanted, found = (
        pb.jit(gradients, options=Options(backend=name, cache=None))(x)
        for name in ("reference", "llvm")
    )
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-3, atol=1e-4)
