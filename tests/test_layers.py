"""Layers on the derivative engine, without PyTorch: derivatives checked on the interpreter and in
native code, laws that hold between layers, what a layer keeps, and what is refused by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from layers_support import Array, normal
from pullback import nn
from pullback.errors import ArgumentError, ShapeError, StateError, UnsupportedError
from pullback.nn import functional as F
from pullback.nn.base.space import Taps, Window
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import realize

BATCH = nn.BatchNorm1d(2, track_running_stats=False, dtype="float64")
LONG = nn.LSTM(2, 2, dtype="float64")
GATED = nn.GRUCell(2, 2, dtype="float64")
BAGS = (np.array([0, 2, 2, 1, 3]), np.array([0, 2, 2]))

PLACES = np.array([[1, 2, 4], [0, 3, 5]])
DRAWN = np.random.default_rng(0).uniform(size=(1, 2, 2))

DERIVED: list[tuple[str, Callable[..., Any], list[Array]]] = [
    ("conv1d", lambda x, w: F.conv1d(x, w, None, 2, 1, 2, 2), [normal(1, 4, 7), normal(2, 2, 2)]),
    ("conv2d", lambda x, w, b: F.conv2d(x, w, b, (2, 1), 1),
     [normal(1, 2, 4, 3), normal(2, 2, 3, 2), normal(2)]),
    ("conv_transpose1d", lambda x, w: F.conv_transpose1d(x, w, None, 3, 1, 1, 1, 2),
     [normal(1, 2, 4), normal(2, 2, 3)]),
    ("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1, 1, True), [normal(2, 8)]),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), [normal(1, 4, 5)]),
    ("adaptive", lambda x: F.adaptive_avg_pool1d(x, 3), [normal(1, 7)]),
    ("batch norm", BATCH, [normal(3, 2)]),
    ("group norm", lambda x: F.group_norm(x, 2), [normal(2, 4, 3)]),
    ("lstm", lambda x: LONG(x)[0], [normal(2, 2)]),
    ("gru", lambda x, h: GATED(x, h), [normal(2), normal(2, seed=1)]),
    ("bilinear", F.bilinear, [normal(2, 3), normal(2, 2), normal(2, 3, 2)]),
    ("linear resize", lambda x: F.interpolate(x, size=5, mode="linear"), [normal(1, 1, 3)]),
    ("cubic resize", lambda x: F.interpolate(x, size=(3, 2), mode="bicubic"), [normal(1, 1, 2, 3)]),
    ("grid", lambda x, g: F.grid_sample(x, 0.4 * g, align_corners=False),
     [normal(1, 1, 3, 4), normal(1, 2, 1, 2, seed=3)]),
    ("reflect", lambda x: F.pad(x, (2, 1), "reflect"), [normal(2, 4)]),
    ("circular", lambda x: F.pad(x, (2, 1), "circular"), [normal(2, 4)]),
    ("bags", lambda w: F.embedding_bag(pb.tensor(BAGS[0]), w, pb.tensor(BAGS[1])), [normal(4, 2)]),
    ("huber", lambda x, t: F.huber_loss(x, t, "none", 0.7), [normal(5), normal(5, seed=1)]),
    ("cosine", F.cosine_similarity, [normal(2, 3), normal(2, 3, seed=1)]),
    ("response", lambda x: F.local_response_norm(x, 2, 0.5), [normal(1, 3, 2)]),
    ("fold", lambda x: F.fold(x, (4, 3), 2, stride=(2, 1)), [normal(4, 4)]),
    ("shuffle", lambda x: F.pixel_shuffle(x, 2), [normal(4, 2, 3)]),
    ("unpool", lambda x: F.max_unpool1d(x, pb.tensor(PLACES), 2), [normal(2, 3)]),
    ("alignments", lambda x: F.ctc_loss(x, pb.tensor(np.array([[1, 1]])), (4,), (2,)),
     [normal(4, 1, 3)]),
    ("antialias", lambda x: F.interpolate(x, size=(2, 3), mode="bicubic", antialias=True),
     [normal(1, 1, 7, 5)]),
    ("drawn windows", lambda x: F.fractional_max_pool2d(x, 2, 2, _random_samples=pb.tensor(DRAWN)),
     [normal(1, 2, 5, 4)]),
    ("mish", F.mish, [normal(4)]),
    ("glu", F.glu, [normal(2, 4)]),
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "function", "arrays"), DERIVED, ids=[d[0] for d in DERIVED])
def test_derivatives(name: str, function: Callable[..., Any], arrays: list[Array]) -> None:
    report = pb.check_grads(function, arrays, layouts=("contiguous",))
    assert report, report


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3, 6])
def test_taps_are_windows_turned_round(stride: int, dilation: int) -> None:
    """Every place is met by just the pairs (window, tap) that meet it."""
    extent, size, padding = 11, 5 if dilation < 3 else 3, 1
    window = Window(extent, size, stride, padding, padding, dilation)
    count = window.count()
    taps = Taps(count, size, stride, padding, 0, dilation)
    straight = {
        (window.place(y, k), y, k)
        for y in range(count)
        for k in range(size)
        if all(window.inside(y, k))
    }
    met = [(t, taps.meet(t, j)) for t in range(extent) for j in range(taps.steps)]
    turned = [(t, m.place, m.tap) for t, m in met if all(m.tests)]
    assert len(turned) == len(set(turned))
    assert set(turned) == straight


def test_a_transpose_is_the_adjoint() -> None:
    """``<conv(x, w), y> = <x, conv_transpose(y, w)>``"""
    x, w = normal(2, 4, 9, 7), normal(6, 2, 3, 2)
    settings: dict[str, Any] = {"stride": (2, 3), "padding": 1, "dilation": (1, 2), "groups": 2}
    straight = F.conv2d(pb.tensor(x), pb.tensor(w), **settings).numpy()
    y = normal(*straight.shape, seed=5)
    back = F.conv_transpose2d(pb.tensor(y), pb.tensor(w), **settings).numpy()
    low, wide = back.shape[2:]
    assert (straight * y).sum() == pytest.approx((x[:, :, :low, :wide] * back).sum(), rel=1e-12)


def test_fold_undoes_unfold_up_to_how_often_a_place_is_met() -> None:
    x = pb.tensor(normal(1, 2, 6, 5))

    def there_and_back(t: Tensor) -> Array:
        return F.fold(F.unfold(t, 3, padding=1, stride=2), (6, 5), 3, padding=1, stride=2).numpy()

    ones = pb.tensor(np.ones((1, 2, 6, 5)))
    np.testing.assert_allclose(there_and_back(x), x.numpy() * there_and_back(ones), rtol=1e-12)


def test_shuffles_and_sizes_undo_each_other() -> None:
    x = pb.tensor(normal(2, 12, 3, 4))
    same = F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)
    np.testing.assert_array_equal(same.numpy(), x.numpy())
    doubled = F.interpolate(x, scale_factor=2)
    np.testing.assert_array_equal(F.avg_pool2d(doubled, 2).numpy(), x.numpy())
    np.testing.assert_array_equal(F.interpolate(x, size=(3, 4), mode="bilinear").numpy(), x.numpy())


def test_one_group_of_channels_is_a_layer_norm_and_one_each_an_instance_norm() -> None:
    x = pb.tensor(normal(3, 4, 5))
    one, each = F.group_norm(x, 1).numpy(), F.group_norm(x, 4).numpy()
    np.testing.assert_allclose(one, F.layer_norm(x, (4, 5)).numpy(), rtol=1e-10)
    np.testing.assert_allclose(each, F.instance_norm(x).numpy(), rtol=1e-10)


def test_unpooling_puts_back_what_pooling_found() -> None:
    x = pb.tensor(normal(2, 3, 6, 4))
    y, places = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(y, places, 2).numpy()
    np.testing.assert_array_equal(F.max_pool2d(pb.tensor(np.abs(back)), 2).numpy(), abs(y).numpy())
    np.testing.assert_array_equal(back[back != 0], x.numpy()[back != 0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("labels", [[], [2], [1, 1], [1, 2], [2, 1, 2]])
def test_alignments_are_all_counted(labels: list[int]) -> None:
    """Beside every path of four steps over three classes that gives the labels."""
    logs = np.log(np.random.default_rng(2).dirichlet(np.ones(3), 4))
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        runs = [c for c, _ in itertools.groupby(path)]
        if [c for c in runs if c != 0] == labels:
            total += math.exp(sum(logs[t, c] for t, c in enumerate(path)))
    target = pb.tensor(np.array(labels, np.int64))
    found = F.ctc_loss(pb.tensor(logs), target, 4, len(labels), reduction="sum")
    assert found.item() == pytest.approx(-math.log(total), rel=1e-12)


def test_sixteen_bit_floats_are_computed_in_float32() -> None:
    x = np.linspace(-5, 5, 11).astype(np.float16)
    found = F.mish(pb.tensor(x))
    assert str(found.dtype) == "float16"
    wide = F.mish(pb.tensor(x.astype(np.float32))).numpy()
    np.testing.assert_array_equal(found.numpy(), wide.astype(np.float16))


# --- what layers keep ----------------------------------------------------------------------------


def test_settings_become_attributes_and_tensors_buffers() -> None:
    layer = nn.LeakyReLU(0.2)
    assert layer.negative_slope == 0.2 and repr(layer) == "LeakyReLU(negative_slope=0.2)"
    assert "alpha (exp(x) - 1)" in (nn.ELU.__doc__ or "")
    loss = nn.CrossEntropyLoss(pb.tensor(np.ones(3)), reduction="sum")
    assert list(loss.state_dict()) == ["weight"] and loss.reduction == "sum"
    with pytest.raises(TypeError, match="slope"):
        nn.ReLU(slope=1.0)
    layer.negative_slope = 0.5
    assert layer(pb.tensor(np.array([-2.0]))).item() == -1.0


def test_running_statistics_step_in_training_alone_inside_jit_too() -> None:
    layer = nn.BatchNorm1d(2, momentum=0.25, dtype="float64")
    x = pb.tensor(normal(5, 2))

    @pb.jit
    def step(x: Tensor) -> Tensor:
        return layer(x)

    step(x).numpy()
    wide = x.numpy()
    mean = 0.25 * wide.mean(0)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.75 + 0.25 * wide.var(0, ddof=1))
    assert layer.num_batches_tracked.item() == 1
    layer.eval()
    y = step(x).numpy()
    spread = np.sqrt(layer.running_var.numpy() + 1e-5)
    np.testing.assert_allclose(y, (wide - mean) / spread, rtol=1e-12)
    assert layer.num_batches_tracked.item() == 1


def test_channels_are_dropped_whole() -> None:
    pb.random.manual_seed(3)
    y = F.dropout2d(pb.tensor(np.ones((8, 32, 3, 5))), 0.25).numpy()
    first = y[:, :, :1, :1]
    np.testing.assert_array_equal(y, np.broadcast_to(first, y.shape))
    assert 0.1 < (first == 0).mean() < 0.4
    assert set(np.unique(y)) == {0.0, 1.0 / 0.75}


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    pb.random.manual_seed(4)
    x = pb.random.normal((200, 200), dtype="float64")
    y = nn.AlphaDropout(0.3)(x).numpy()
    assert abs(y.mean()) < 0.02 and y.var() == pytest.approx(1.0, abs=0.03)
    assert nn.AlphaDropout(0.3).eval()(x) is x


def test_slopes_drawn_for_each_element() -> None:
    pb.random.manual_seed(5)
    y = F.rrelu(pb.tensor(-np.ones(4000)), 0.1, 0.5, training=True).numpy()
    assert -0.5 <= y.min() < -0.48 and -0.12 < y.max() <= -0.1


def test_gumbel_softmax_draws_in_proportion_and_passes_the_soft_gradient() -> None:
    pb.random.manual_seed(3)
    logits = pb.tensor(np.log(np.array([0.1, 0.2, 0.7], np.float32)))
    rows = pb.broadcast_to(logits, (20_000, 3))
    hard = F.gumbel_softmax(rows, tau=0.5, hard=True).numpy()
    assert set(np.unique(hard)) == {0.0, 1.0}
    np.testing.assert_allclose(hard.mean(0), [0.1, 0.2, 0.7], atol=0.015)
    soft = F.gumbel_softmax(rows, tau=0.5, dim=0).numpy()
    np.testing.assert_allclose(soft.sum(0), 1.0, rtol=1e-4)
    weights = pb.tensor(normal(4, 3).astype(np.float32))

    def loss(x: Any, hard: bool) -> Any:
        pb.random.manual_seed(5)
        return pb.sum(F.gumbel_softmax(x, hard=hard) * weights)

    x = pb.tensor(normal(4, 3).astype(np.float32))
    slopes = [pb.grad(lambda t, h=h: loss(t, h))(x).numpy() for h in (True, False)]
    assert np.abs(slopes[1]).min() > 0
    np.testing.assert_array_equal(*slopes)


def test_dropout_between_layers_of_a_recurrent_net() -> None:
    layer = nn.RNN(2, 3, num_layers=2, dropout=1.0, dtype="float64")
    x = pb.tensor(normal(2, 1, 2))
    cut = layer(x)[0].numpy()
    np.testing.assert_allclose(cut, layer(0.0 * x)[0].numpy(), rtol=1e-12)
    layer.eval()
    assert np.abs(layer(x)[0].numpy() - cut).max() > 1e-3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_recurrent_net_in_a_program_is_a_scan(kind: type[nn.Module]) -> None:
    layer = kind(2, 2, bidirectional=True, bias=False, dtype="float64")

    def slopes(x: Tensor) -> list[Tensor]:
        y = layer(x)[0]
        return [y, *pb.grad((y * y).sum(), [x, *layer.parameters()])]

    program = pb.jit(slopes)
    found = program(pb.tensor(normal(2, 1, 2)))
    wanted = slopes(pb.tensor(normal(2, 1, 2)))
    realize(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
    short = len(program.program.kernels)
    program(pb.tensor(normal(9, 1, 2)))
    assert len(program.program.kernels) == short, "code does not grow with the length"


# --- what is refused -----------------------------------------------------------------------------

IMAGE = pb.tensor(np.zeros((1, 4, 5, 5), np.float32))
NOWHERE = pb.zeros(IMAGE.shape, dtype="int64")
KERNEL = pb.tensor(np.zeros((2, 4, 3, 3), np.float32))
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: F.conv2d(IMAGE, KERNEL, groups=2), ShapeError, "does not fit weight"),
    (lambda: F.conv2d(IMAGE, KERNEL, dilation=4), ShapeError, "a window of 9 over 5"),
    (lambda: F.conv2d(IMAGE, KERNEL, stride=2, padding="same"), ShapeError, "with a stride"),
    (lambda: F.conv1d(IMAGE, KERNEL), ShapeError, "conv of"),
    (lambda: F.max_pool2d(IMAGE, 2, padding=2), ShapeError, "more than half"),
    (lambda: F.pad(IMAGE, (5, 0), "reflect"), ShapeError, "reflect pad"),
    (lambda: F.pad(IMAGE, (1, 0), "wrap"), UnsupportedError, "mode='wrap'"),
    (lambda: F.pixel_shuffle(IMAGE, 3), ArgumentError, "c=4"),
    (lambda: F.interpolate(IMAGE, size=3, mode="linear"), ShapeError, "4 axes"),
    (lambda: F.interpolate(IMAGE, size=3, antialias=True), UnsupportedError, "antialias"),
    (lambda: F.max_unpool2d(IMAGE, NOWHERE[:, :2], 2), ShapeError, "`indices` has"),
    (lambda: F.max_unpool2d(IMAGE, NOWHERE, 2, output_size=(20, 10)), ShapeError, "output_size"),
    (lambda: F.fractional_max_pool2d(IMAGE, 2), ShapeError, "either output_size or"),
    (lambda: F.fractional_max_pool2d(IMAGE, 2, 5), ShapeError, "windows of"),
    (lambda: F.ctc_loss(IMAGE, IMAGE, 1, 1), ShapeError, "ctc_loss of"),
    (lambda: F.grid_sample(IMAGE, IMAGE), ShapeError, "grid"),
    (lambda: F.group_norm(IMAGE, 3), ArgumentError, "num_groups=3"),
    (lambda: F.batch_norm(IMAGE, None, None), StateError, "without running statistics"),
    (lambda: nn.BatchNorm2d(3)(IMAGE), ShapeError, r"BatchNorm2d\(3\) of \(1, 4, 5, 5\)"),
    (lambda: nn.LSTM(3, 4)(IMAGE), ShapeError, "LSTM of"),
    (lambda: nn.GRU(3, 4, proj_size=2), UnsupportedError, "proj_size"),
    (lambda: nn.RNN(3, 4, nonlinearity="sin"), UnsupportedError, "sin"),
    (lambda: nn.EmbeddingBag(3, 4, max_norm=1.0)(NOWHERE[0, 0]), UnsupportedError, "max_norm"),
    (lambda: F.glu(pb.tensor(np.zeros(3))), ShapeError, "3 elements"),
    (lambda: nn.SyncBatchNorm(), UnsupportedError, "nn.SyncBatchNorm"),
]


@pytest.mark.parametrize(("call", "error", "match"), REFUSED, ids=[r[2] for r in REFUSED])
def test_refused_by_name(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_an_unknown_layer_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="did you mean 'Conv2d'"):
        nn.Conv2D  # noqa: B018  # looking it up is the test
    assert not hasattr(nn, "Nonsense")
    with pytest.raises(AttributeError, match="did you mean 'conv2d'"):
        F.conv2D  # noqa: B018  # looking it up is the test
    for name, meant in (
        ("svd", "linalg.svd"), ("dropout", "nn.functional.dropout"), ("AdamW", "optim.AdamW"),
        ("rfft", "fft.rfft"), ("LSTM", "nn.LSTM"), ("lgamma", "special.lgamma"),
        ("randint", "random.integers"), ("nonzero", "array_api.nonzero"), ("jacrev", "jacobian"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"did you mean '{meant}'"):
            getattr(pb, name)
    for room, name, meant in (("random", "randint", "random.integers"), ("fft", "ffft", "fft"),
                              ("linalg", "inverse", "linalg.inv")):  # fmt: skip
        with pytest.raises(AttributeError, match=f"did you mean '{meant}'"):
            getattr(getattr(pb, room), name)
    with pytest.raises(AttributeError, match="no attribute 'zzz'"):
        pb.zzz  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'Adam'"):
        pb.optim.ADam  # noqa: B018  # looking it up is the test


def test_a_module_takes_arrays() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(model(x).numpy(), model(pb.tensor(x)).numpy())


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda x: F.softmax(x, axis=0), "softmax has no 'axis': did you mean 'dim'"),
        (lambda x: F.normalize(x, axis=0), "normalize has no 'axis': did you mean 'dim'"),
        (lambda x: F.pairwise_distance(x, x, keepdims=True), "did you mean 'keepdim'"),
        (lambda x: nn.Softmax(axis=1), "Softmax has no 'axis': did you mean 'dim'"),
    ],
)
def test_the_array_apis_keywords_get_a_suggestion(call: Callable[[Any], Any], meant: str) -> None:
    with pytest.raises(TypeError, match=meant):
        call(pb.tensor(normal(2, 3)))
