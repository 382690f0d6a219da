"""A share of `scripts/fuzz.py --layers`: random layers; and what longer runs of it have shown."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from layer_calls import MAKERS
from pullback.errors import PullbackError
from random_layers import Growing, check_layers, program

F, nn = pb.nn.functional, pb.nn
PROGRAMS = 24


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
def test_random_layers(part: int) -> None:
    compared = ["compared" in check_layers(seed) for seed in range(part, PROGRAMS, 3)]
    assert sum(compared) > len(compared) // 2


@pytest.mark.slow
def test_the_generator_makes_all_there_is() -> None:
    """Most functions, every form, order and type, symbolic extents, settings that are wrong."""
    made = [program(seed) for seed in range(200)]
    assert {p.form for p in made} == {
        "plain", "loop", "scan", "cond", "vmap", "checkpoint", "eager",
    }  # fmt: skip
    assert len({p.kind for p in made}) == 4 and len({p.order for p in made}) == 3
    assert {p.symbolic for p in made} == {True, False}
    assert len({c.name for p in made for c in p.calls}) > 60
    assert any(p.refused for p in made) and any(c.damaged for p in made for c in p.calls)
    strange = [p for p in made if any(not np.isfinite(t).all() for t in p.tensors)]
    assert strange and all(p.strange for p in strange)


@pytest.mark.filterwarnings("ignore")
def test_every_maker_makes_calls_that_both_libraries_take() -> None:
    """None of them is a maker of refusals only."""
    torch = pytest.importorskip("torch")
    shapes = [(3,), (2, 3), (3, 4), (2, 3, 4), (3, 2, 6), (2, 2, 4, 5), (2, 1, 2, 3, 4)]
    for maker in dict.fromkeys(MAKERS):
        taken = 0
        for seed, shape in itertools.product(range(12), shapes):
            growing = Growing(seed)
            growing.chance.tensors[0] = growing.chance.rng.normal(size=shape)
            growing.own = pb.tensor(growing.chance.tensors[0])
            growing.other = torch.tensor(growing.chance.tensors[0])
            call = maker(growing.chance, shape)
            taken += call is not None and growing.taken(call) and growing.alike
            if taken == 2:
                break
        assert taken == 2 or maker.__name__ == "rotary", maker.__name__


def test_no_number_is_drawn_where_none_was_meant() -> None:
    """Of a program with numbers that are infinite or none the values are PyTorch's too."""
    pytest.importorskip("torch", reason="compares with PyTorch")
    strange = [p for seed in range(300) if (p := program(seed)).strange and p.alike and p.calls]
    assert len(strange) > 5
    assert all(check_layers(p.seed) for p in strange[:3])


def ones(*shape: int) -> Any:
    return pb.ones(shape, dtype="float64")


WRONG: list[Any] = [
    lambda: F.conv1d(ones(1, 4, 5), ones(4, 4, 2), groups=(1, 2)),
    lambda: F.conv2d(ones(1, 4, 5, 5), ones(4, 4, 2, 2), stride=None),
    lambda: F.conv2d(ones(1, 4, 5, 5), ones(4, 4, 2, 2), padding=None),
    lambda: F.unfold(ones(1, 4, 5, 5), (1, 1), stride=None),
    lambda: F.normalize(ones(2, 3), p=()),
    lambda: F.normalize(ones(2, 3), p="x"),
    lambda: F.normalize(ones(2, 3), p=float("nan")),
    lambda: F.local_response_norm(ones(2, 3, 4), 2, k=None),
    lambda: F.local_response_norm(ones(2, 3, 4), 2, alpha="x"),
    lambda: F.instance_norm(ones(2, 3, 4), eps=None),
    lambda: F.dropout(ones(2, 3), p=None, training=False),
    lambda: F.max_pool1d(ones(2, 3, 4), (2, None)),
    lambda: F.conv_transpose1d(ones(1, 5, 5), ones(5, 1, 2), output_padding=2),
    lambda: nn.LayerNorm(3, eps=None),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_settings_that_are_no_numbers(number: int) -> None:
    with pytest.raises(PullbackError, match="E176") as caught:
        WRONG[number]()
    assert "test_fuzz_layers.py" in str(caught.value)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_cells_whose_weights_disagree(kind: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    cell = getattr(nn, f"{kind}Cell")(2, 3, bias=False)
    for rows in (2 * gates, 3 * gates + 1):
        weights = {"weight_ih": ones(rows, 2), "weight_hh": ones(3 * gates, 3)}
        with pytest.raises(PullbackError, match="E175"):
            nn.functional_call(cell, weights, (ones(1, 2),))


def test_attention_to_nothing() -> None:
    """No keys: zeros, as where all are masked. No features: every key counts alike."""
    q = ones(2, 3, 4)
    got = F.scaled_dot_product_attention(q, ones(2, 0, 4), ones(2, 0, 5))
    np.testing.assert_array_equal(got.numpy(), np.zeros((2, 3, 5)))
    slopes = pb.grad(got.sum(), [q])[0]
    np.testing.assert_array_equal(slopes.numpy(), np.zeros((2, 3, 4)))
    v = np.arange(8.0).reshape(1, 4, 2)
    got = F.scaled_dot_product_attention(ones(1, 3, 0), ones(1, 4, 0), pb.tensor(v))
    np.testing.assert_allclose(got.numpy(), np.broadcast_to(v.mean(1), (1, 3, 2)), rtol=1e-12)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("extent", "size", "stride"), [(1, 2, 2), (1, 3, 3), (1, 2, 3), (2, 3, 2)])
def test_a_last_window_may_be_the_first(kind: str, extent: int, size: int, stride: int) -> None:
    """In `ceil_mode` a window that hangs over the end counts what is there, though it is alone."""
    x = np.arange(1.0, 1.0 + extent).reshape(1, 1, extent)
    pool = getattr(F, f"{kind}_pool1d")
    got = pool(pb.tensor(x), size, stride, ceil_mode=True).numpy()
    want = x.max() if kind == "max" else x.mean()
    np.testing.assert_array_equal(got, [[[want]]])
    with pytest.raises(PullbackError, match="E126"):
        pool(pb.tensor(x), size, stride)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
def test_nothing_is_not_stretched(mode: str) -> None:
    with pytest.raises(PullbackError, match="E126"):
        F.interpolate(ones(1, 2, 0), 3, mode=mode)
    with pytest.raises(PullbackError, match="E126"):
        F.conv_transpose1d(ones(1, 2, 4), ones(2, 1, 0), dilation=2)


def test_a_program_of_no_launches() -> None:
    """What is empty has a place in memory all the same."""

    def run(x: Any) -> Any:
        _, rows = pb.scan(lambda c, r: (c * 0.5, r + c), x[0], x)
        return pb.grad(lambda x: pb.scan(lambda c, r: (c + r, c * r), x[0], x)[0].sum())(x), rows

    slope, rows = pb.jit(run)(ones(2, 0, 3))
    assert slope.shape == rows.shape == (2, 0, 3)


NUMBERS = [
    "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss",
    "hinge_embedding_loss", "poisson_nll_loss", "margin_ranking_loss", "triplet_margin_loss",
    "cosine_embedding_loss", "pairwise_distance", "cosine_similarity", "multi_margin_loss",
    "multilabel_margin_loss",
]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_lost(name: str) -> None:
    """A loss or a distance of NaN is NaN."""
    x, one = pb.tensor(np.array([[np.nan, 2.0]])), ones(1, 2)
    args = {
        "margin_ranking_loss": (x, one, one), "triplet_margin_loss": (x, one, one),
        "cosine_embedding_loss": (x, one, ones(1)), "multi_margin_loss": (x, pb.tensor([1])),
        "multilabel_margin_loss": (x, pb.tensor([[1, -1]])),
    }.get(name, (x, one))  # fmt: skip
    assert np.isnan(getattr(F, name)(*args).numpy()).any()


ROWS: dict[str, Any] = {
    "argument": lambda x, at: pb.take(x, at, axis=1),
    "definition": lambda x, at: pb.take(x * 2.0, at, axis=1),
    "product": lambda x, at: pb.take(pb.matmul(x.T, ones(1, 3)), at, axis=0),
    "loop": lambda x, at: pb.loop(2, lambda _, c: c + pb.take(x, at, axis=1), ones(1, 1)),
    "loss": lambda x, at: F.cross_entropy(x, at),
    "embedding": lambda x, at: F.embedding(at, x.T),
}


@pytest.mark.parametrize("backend", ["llvm", "reference"])
@pytest.mark.parametrize("name", ROWS)
def test_no_element_of_nothing_is_read(name: str, backend: str) -> None:
    """An index, which is data, along an axis without elements is out of range, never a zero."""
    run = pb.jit(ROWS[name], options=pb.Options(backend=backend, cache=None))
    with pytest.raises(PullbackError, match="E106"):
        run(ones(1, 0), pb.tensor(np.array([0])))


def test_what_is_empty() -> None:
    """No parts, no channels, no samples, nothing left of a circle."""
    x = ones(2, 3, 4)
    assert F.adaptive_avg_pool1d(x, 0).numpy().shape == (2, 3, 0)
    assert F.interpolate(x, 0, mode="area").numpy().shape == (2, 3, 0)
    assert F.adaptive_max_pool1d(x, 0).numpy().shape == (2, 3, 0)
    assert pb.grad(F.adaptive_avg_pool1d(x, 0).sum(), [x])[0].numpy().sum() == 0.0
    assert F.local_response_norm(ones(2, 0, 4), 3).numpy().shape == (2, 0, 4)
    assert F.conv1d(ones(0, 2, 5), ones(4, 1, 2), ones(4), groups=2).numpy().shape == (0, 4, 4)
    assert F.conv_transpose1d(ones(0, 2, 5), ones(2, 2, 2), groups=2).numpy().shape == (0, 4, 6)
    assert F.pad(ones(1, 2, 1), (-1, 0), mode="circular").numpy().shape == (1, 2, 0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_lone_corner_of_an_antialiased_image(mode: str) -> None:
    """It stands on the first corner: the mean around it, which leaves what is constant alone."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(1, 2, 2, 5))
    settings: dict[str, Any] = {"mode": mode, "align_corners": True, "antialias": True}
    got = F.interpolate(pb.tensor(x), (1, 2), **settings).numpy()
    want = torch.nn.functional.interpolate(torch.tensor(x), (1, 2), **settings).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-6)


SYMBOLIC = pb.dim("n", 1, 8)
TABLE = np.arange(6.0).reshape(3, 2)
TOKENS = np.array([[0, 2, 1], [2, 2, 0]])
ROWS_OF = np.array([0, 1, 2, 2])


def slopes_of(w: Any, at: Any) -> Any:
    return pb.grad(lambda w: F.embedding(at, w, padding_idx=-1).sum())(w)


UNKNOWN: dict[str, Any] = {
    "embedding": ([(SYMBOLIC, 2), (2, 3)], slopes_of, TABLE, TOKENS),
    "bag": (
        [(SYMBOLIC, 2), (2, 3)], lambda w, at: F.embedding_bag(at, w, padding_idx=-1), TABLE, TOKENS
    ),
    "offsets": (
        [(3, 2), (4,), (SYMBOLIC,)], lambda w, at, o: F.embedding_bag(at, w, o),
        TABLE, ROWS_OF, np.array([0, 2, 3]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["llvm", "reference"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_counted_from_an_end_that_is_not_known(name: str, backend: str) -> None:
    """The last row of a table, the last bag: of the extent that there is, not the largest."""
    shapes, f, *arrays = UNKNOWN[name]
    given = [pb.tensor(a) for a in arrays]
    options = pb.Options(backend=backend, cache=None)
    got = pb.jit(f, shapes=shapes, options=options)(*given).numpy()
    np.testing.assert_array_equal(got, f(*given).numpy())


def test_features_of_attention_are_known() -> None:
    """Their number scales: the largest one that may come does not stand for it."""
    attend = pb.jit(lambda q: F.scaled_dot_product_attention(q, q, q), shapes=[(2, 3, SYMBOLIC)])
    with pytest.raises(PullbackError, match="E315"):
        attend(ones(2, 3, 4))


def test_rows_that_there_are_not_pad_nothing() -> None:
    for function in (F.embedding, F.embedding_bag):
        for row in (3, -4):
            with pytest.raises(PullbackError, match="E123"):
                function(pb.tensor(TOKENS), pb.tensor(TABLE), padding_idx=row)
        with pytest.raises(PullbackError, match="E123"):
            function(pb.tensor(TOKENS), ones(0, 2), padding_idx=0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("in_proj_weight", (12, 3)), ("in_proj_weight", (8, 4)), ("in_proj_bias", (11,))],
)
def test_attention_of_weights_that_do_not_fit(name: str, shape: tuple[int, ...]) -> None:
    layer = nn.MultiheadAttention(4, 2)
    with pytest.raises(PullbackError, match="E175"):
        nn.functional_call(layer, {name: ones(*shape)}, (ones(3, 1, 4),) * 3)


def test_rows_of_targets_are_as_long_as_is_said() -> None:
    logs = F.log_softmax(ones(4, 2, 3), -1)
    for count in (2, 4):
        with pytest.raises(PullbackError, match="E175"):
            F.ctc_loss(logs, pb.tensor([1] * count), (4, 4), (1, 2))
    for rows in (0, 2):
        with pytest.raises(PullbackError, match="E175"):
            F.ctc_loss(logs[:, 0], pb.zeros((rows, 1), dtype="int64"), (4,), (1,))
    assert F.ctc_loss(logs, pb.tensor([1, 2, 1]), (4, 4), (1, 2)).numpy() > 0


def test_positions_of_no_features_turn_nothing() -> None:
    assert F.rotary_embedding(ones(2, 3, 0)).numpy().shape == (2, 3, 0)


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3), (2, 1), (1, 3), (4, 2, 1), (1, 2, 3)])
def test_weights_of_labels_stretch(shape: tuple[int, ...]) -> None:
    """As they do in all losses that take weights."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    given = [rng.uniform(0.1, 0.9, s) for s in ((4, 2, 3), (4, 2, 3), shape)]
    x, t, w = (pb.tensor(a) for a in given)
    got = F.multilabel_soft_margin_loss(x, t, w, reduction="none").numpy()
    x, t, w = (torch.tensor(a) for a in given)
    want = torch.nn.functional.multilabel_soft_margin_loss(x, t, w, reduction="none").numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("fill", [np.nan, -np.inf])
def test_the_place_of_what_is_no_number(fill: float) -> None:
    """NaN wins, and has a place; so has the least number, beside padding."""
    x = np.full((1, 1, 6), 1.0)
    x[..., 0] = x[..., 1] = x[..., 3] = fill
    if fill == -np.inf:
        x[..., :] = fill
    places = F.max_pool1d(pb.tensor(x), 3, 2, 1, return_indices=True)[1].numpy().ravel()
    np.testing.assert_array_equal(places, [0, 1, 3])
    image = pb.tensor(x.reshape(1, 1, 2, 3))
    adaptive = F.adaptive_max_pool2d(image, (2, 1), return_indices=True)[1].numpy().ravel()
    np.testing.assert_array_equal(adaptive, [0, 3])
    drawn = pb.zeros((1, 1, 2), dtype="float64")
    settings: dict[str, Any] = {"return_indices": True, "_random_samples": drawn}
    fractional = F.fractional_max_pool2d(image, (1, 3), (2, 1), **settings)[1].numpy().ravel()
    np.testing.assert_array_equal(fractional, [0, 3])
    F.max_unpool1d(*F.max_pool1d(pb.tensor(x), 2, return_indices=True), 2).numpy()
