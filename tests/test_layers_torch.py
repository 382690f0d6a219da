"""Every layer beside PyTorch: outputs, all gradients and the state, on odd sizes, in float64."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from layers_support import Array, check, drawn, fill, normal, own_results, torch_results
from pullback import nn
from pullback.nn import functional as F

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:reduction"),
]
TF = torch.nn.functional


def share(*shape: int, seed: int = 0) -> Array:
    """Numbers between 0.05 and 0.95."""
    return np.random.default_rng(seed).uniform(0.05, 0.95, shape)


def whole(high: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, high, shape)


Case = tuple[str, list[Array], dict[str, Any]]
IMAGE = normal(2, 4, 9, 11)
LINE, SPACE = normal(2, 4, 13), normal(2, 3, 5, 6, 7)
SIGNS = np.sign(normal(3, 4, seed=5))
EDGES = np.array([0, 1, -1, 0.5, -0.5, 3, -3, 6, 20.5, 100, -100, 1e4, -1e4, 0.3, -0.2, 2.7])
ROWS, OTHERS, THIRDS = normal(3, 4, seed=1), normal(3, 4, seed=2), normal(3, 4, seed=3)

PLAIN = (
    *("celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu"),
    *("logsigmoid", "mish", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softplus"),
    *("softshrink", "softsign", "tanh", "tanhshrink"),
)
ACTIVATIONS: list[Case] = [
    *((name, [EDGES], {}) for name in PLAIN),
    ("elu", [EDGES], {"alpha": 2.5}),
    ("celu", [EDGES], {"alpha": 0.5}),
    ("softplus", [EDGES], {"beta": 3.0, "threshold": 2.0}),
    ("gelu", [EDGES], {"approximate": "tanh"}),
    ("threshold", [EDGES], {"threshold": 0.5, "value": 7.0}),
    ("prelu", [normal(2, 3, 4), normal(3)], {}),
    ("prelu", [normal(5), normal(1)], {}),
    ("glu", [normal(3, 4, 5)], {"dim": 1}),
    ("softmin", [ROWS], {"dim": 0}),
]  # fmt: skip

LOSSES: list[Case] = [
    *((name, [3.0 * ROWS, OTHERS], {"reduction": how})
      for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss")
      for how in ("none", "mean", "sum")),
    ("smooth_l1_loss", [3.0 * ROWS, OTHERS], {"beta": 2.5}),
    ("huber_loss", [3.0 * ROWS, OTHERS], {"delta": 0.7}),
    ("binary_cross_entropy", [share(3, 4), share(3, 4, seed=1)], {}),
    ("kl_div", [ROWS, share(3, 4)], {}),
    ("kl_div", [ROWS, OTHERS], {"log_target": True, "reduction": "batchmean"}),
    ("poisson_nll_loss", [ROWS, 4.0 * share(3, 4)], {}),
    ("poisson_nll_loss", [share(3, 4), 4.0 * share(3, 4)], {"log_input": False, "full": True}),
    ("gaussian_nll_loss", [ROWS, OTHERS, share(3, 4)], {}),
    ("gaussian_nll_loss", [ROWS, OTHERS, share(3, 1)], {"full": True, "reduction": "sum"}),
    ("gaussian_nll_loss", [ROWS, OTHERS, 1e-7 * share(3)], {}),
    ("hinge_embedding_loss", [ROWS, SIGNS], {}),
    ("margin_ranking_loss", [ROWS[:, 0], OTHERS[:, 0], SIGNS[:, 0]], {"margin": 0.3}),
    ("cosine_embedding_loss", [ROWS, OTHERS, np.array([1.0, -1.0, 1.0])], {"margin": 0.1}),
    ("triplet_margin_loss", [ROWS, OTHERS, THIRDS], {}),
    ("triplet_margin_loss", [ROWS, OTHERS, THIRDS], {"swap": True, "p": 1.0}),
    ("triplet_margin_with_distance_loss", [ROWS, OTHERS, THIRDS], {"margin": 0.5}),
    ("multi_margin_loss", [ROWS, np.array([0, 3, 1])], {}),
    ("multi_margin_loss", [ROWS, np.array([0, 3, 1])], {"p": 2, "reduction": "none"}),
    ("multi_margin_loss", [ROWS[0], np.array(2)], {"margin": 0.5}),
    ("multilabel_margin_loss", [ROWS, np.array([[0, 3, -1, 1], [-1, 0, 0, 0], [2, 1, 0, 3]])], {}),
    ("multilabel_soft_margin_loss", [ROWS, 1.0 * (OTHERS > 0)], {}),
    ("cosine_similarity", [normal(3, 1, 4), normal(1, 2, 4, seed=1)], {"dim": -1}),
    ("pairwise_distance", [ROWS, OTHERS], {}),
    ("pairwise_distance", [ROWS, OTHERS], {"p": 3.0, "keepdim": True}),
    ("normalize", [ROWS], {"p": 1.0, "dim": 0}),
]  # fmt: skip

WINDOWS: list[dict[str, Any]] = [{}, {"stride": 2, "padding": 1, "ceil_mode": True}]
POOLS: list[Case] = [
    *((f"{kind}_pool{n}d", [x], {"kernel_size": 3, **more})
      for kind in ("max", "avg") for n, x in ((1, LINE), (2, IMAGE), (3, SPACE))
      for more in WINDOWS),
    ("max_pool2d", [IMAGE[0]], {"kernel_size": (3, 2), "stride": 1, "dilation": 2}),
    ("max_pool2d", [np.round(IMAGE)], {"kernel_size": 3, "stride": 1, "padding": 1}),
    ("avg_pool2d", [IMAGE], {"kernel_size": 3, "padding": 1, "count_include_pad": False}),
    ("avg_pool1d", [LINE[0]],
     {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True, "count_include_pad": False}),
    ("avg_pool2d", [IMAGE], {"kernel_size": (3, 2), "divisor_override": 5}),
    *((f"adaptive_{kind}_pool{n}d", [x], {"output_size": 4})
      for kind in ("max", "avg") for n, x in ((1, LINE), (2, IMAGE), (3, SPACE))),
    ("adaptive_avg_pool2d", [IMAGE], {"output_size": (None, 1)}),
    ("lp_pool2d", [np.abs(IMAGE)], {"norm_type": 3.0, "kernel_size": 3, "stride": 2}),
]  # fmt: skip

PLACES: list[Case] = [
    *(("pad", [IMAGE], {"pad": (2, 3, 1, 4), "mode": mode})
      for mode in ("constant", "reflect", "replicate", "circular")),
    ("pad", [SPACE], {"pad": (2, 3, 1, 4, 2, 1), "mode": "reflect"}),
    ("pad", [IMAGE], {"pad": (-1, 2, 1, -2), "value": 3.0}),
    ("unfold", [IMAGE], {"kernel_size": (3, 2), "dilation": 2, "padding": 1}),
    ("fold", [normal(2, 18, 9)],
     {"output_size": (5, 7), "kernel_size": (3, 2), "dilation": (1, 3), "padding": 1, "stride": 2}),
    ("pixel_shuffle", [normal(2, 18, 3, 4)], {"upscale_factor": 3}),
    ("pixel_unshuffle", [normal(2, 6, 9)], {"downscale_factor": 3}),
    ("channel_shuffle", [normal(2, 6, 3)], {"groups": 3}),
    ("local_response_norm", [IMAGE], {"size": 3, "alpha": 0.3, "k": 2.0}),
    ("instance_norm", [IMAGE], {}),
    ("group_norm", [IMAGE], {"num_groups": 2}),
]  # fmt: skip

SIZES: list[Case] = [
    *(("interpolate", [x], {"size": (8, 4, 9)[: x.ndim - 2], "mode": mode, **more})
      for mode, x, more in (
          ("nearest", IMAGE, {}), ("nearest-exact", LINE, {}), ("area", LINE, {}),
          ("linear", LINE, {"align_corners": True}), ("bilinear", IMAGE, {}),
          ("bicubic", IMAGE[:1, :1], {}), ("trilinear", SPACE[:1, :1], {}))),
    *(("interpolate", [LINE], {"scale_factor": factor, "mode": mode})
      for mode in ("nearest", "linear") for factor in (2.0, 1.7)),
    *(("grid_sample", [IMAGE[:, :2], 2.6 * share(2, 2, 3, 2) - 1.3],
       {"mode": mode, "padding_mode": around, "align_corners": corners})
      for mode, around, corners in (
          ("bilinear", "border", True),
          ("nearest", "reflection", True), ("bicubic", "zeros", False))),
    ("affine_grid", [normal(2, 2, 3)], {"size": (2, 3, 4, 5), "align_corners": False}),
    ("affine_grid", [normal(1, 3, 4)], {"size": (1, 3, 4, 5, 3), "align_corners": True}),
    ("bilinear", [normal(2, 5, 3), normal(2, 5, 4), normal(6, 3, 4), normal(6)], {}),
    *(("embedding_bag", [whole(9, 4, 5), normal(9, 3)], {"mode": mode, "padding_idx": 2})
      for mode in ("sum", "mean", "max")),
    *(("embedding_bag", [whole(9, 13), normal(9, 3), np.array([0, 3, 3, 9])], {"mode": mode})
      for mode in ("sum", "mean", "max")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arrays", "settings"), [*ACTIVATIONS, *LOSSES, *POOLS, *PLACES, *SIZES],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_functions(name: str, arrays: list[Array], settings: dict[str, Any]) -> None:
    own, theirs = getattr(F, name), getattr(TF, name)
    found = own_results(lambda *x: own(*x, **settings), arrays)
    check(found, torch_results(torch, lambda *x: theirs(*x, **settings), arrays))


CONVOLUTIONS: list[tuple[int, dict[str, Any]]] = [
    (1, {"stride": 2, "padding": 2, "dilation": 3}),
    (2, {}),
    (2, {"stride": 2, "padding": 1}),
    (2, {"dilation": 2, "padding": (1, 2)}),
    (2, {"stride": (3, 2), "dilation": (2, 3), "padding": 2}),
    (2, {"padding": "same", "dilation": 3}),
    (2, {"groups": 2, "padding": 1}),
    (2, {"groups": 4, "stride": 2, "padding": 1}),
    (3, {"stride": (2, 1, 2), "padding": 1, "dilation": (1, 2, 1)}),
]


@pytest.mark.parametrize(("space", "settings"), CONVOLUTIONS, ids=str)
def test_convolutions(space: int, settings: dict[str, Any]) -> None:
    groups = settings.get("groups", 1)
    room, kernel = (9, 7, 6)[:space], (3, 2, 3)[:space]
    arrays = [normal(2, 4, *room), normal(8, 4 // groups, *kernel), normal(8)]
    name = f"conv{space}d"
    found = own_results(lambda *x: getattr(F, name)(*x, **settings), arrays)
    check(found, torch_results(torch, lambda *x: getattr(TF, name)(*x, **settings), arrays))
    if settings.get("padding") == "same":
        return
    turned = [normal(2, 4, *(5, 4, 3)[:space]), normal(4, 6 // groups or 1, *kernel)]
    name = f"conv_transpose{space}d"
    found = own_results(lambda *x: getattr(F, name)(*x, **settings), turned)
    check(found, torch_results(torch, lambda *x: getattr(TF, name)(*x, **settings), turned))


def test_a_transpose_whose_stride_and_dilation_share_a_factor() -> None:
    arrays = [normal(2, 3, 7), normal(3, 4, 5), normal(4)]
    settings = {"stride": 4, "padding": 3, "output_padding": 2, "dilation": 6}
    found = own_results(lambda *x: F.conv_transpose1d(*x, **settings), arrays)
    check(found, torch_results(torch, lambda *x: TF.conv_transpose1d(*x, **settings), arrays))


Maker = Callable[[Any], Any]
MODULES: list[tuple[str, Maker, list[Array]]] = [
    ("Conv2d reflect",
     lambda m: m.Conv2d(4, 6, 3, padding="same", groups=2, padding_mode="reflect"), [IMAGE]),
    ("Conv1d circular", lambda m: m.Conv1d(4, 6, 3, 2, 1, padding_mode="circular"), [LINE]),
    ("Conv3d", lambda m: m.Conv3d(3, 4, (1, 2, 3), bias=False), [SPACE]),
    ("ConvTranspose2d", lambda m: m.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), [normal(2, 4, 3, 5)]),
    ("GroupNorm", lambda m: m.GroupNorm(2, 4), [IMAGE]),
    ("BatchNorm1d", lambda m: m.BatchNorm1d(4), [ROWS]),
    ("BatchNorm1d 3", lambda m: m.BatchNorm1d(4, momentum=None), [LINE]),
    ("BatchNorm2d", lambda m: m.BatchNorm2d(4, eps=1e-3, momentum=0.3), [IMAGE]),
    ("BatchNorm2d plain", lambda m: m.BatchNorm2d(4, affine=False), [IMAGE]),
    ("BatchNorm2d scale", lambda m: m.BatchNorm2d(4, bias=False), [IMAGE]),
    ("BatchNorm3d", lambda m: m.BatchNorm3d(3, track_running_stats=False), [SPACE]),
    ("InstanceNorm1d", lambda m: m.InstanceNorm1d(4), [LINE]),
    ("InstanceNorm2d",
     lambda m: m.InstanceNorm2d(4, affine=True, track_running_stats=True), [IMAGE]),
    ("InstanceNorm2d one", lambda m: m.InstanceNorm2d(4, affine=True), [IMAGE[0]]),
    ("PReLU", lambda m: m.PReLU(4), [LINE]),
    ("Bilinear", lambda m: m.Bilinear(3, 4, 5), [normal(2, 3), normal(2, 4)]),
    ("EmbeddingBag", lambda m: m.EmbeddingBag(9, 3, padding_idx=2), [whole(9, 4, 5)]),
    ("Flatten", lambda m: m.Flatten(), [IMAGE]),
    ("Unflatten", lambda m: m.Unflatten(1, (2, -1)), [IMAGE]),
    ("Softmax2d", lambda m: m.Softmax2d(), [IMAGE]),
    ("Upsample", lambda m: m.Upsample(scale_factor=2, mode="bilinear"), [IMAGE[:1, :1]]),
    ("UpsamplingBilinear2d", lambda m: m.UpsamplingBilinear2d(size=(6, 7)), [IMAGE[:1, :1]]),
    ("ReplicationPad2d", lambda m: m.ReplicationPad2d((1, 2, 0, 1)), [IMAGE]),
    ("ConstantPad1d", lambda m: m.ConstantPad1d(2, 3.5), [LINE]),
    ("MaxPool1d", lambda m: m.MaxPool1d(3, 2, 1), [LINE]),
    ("RNN relu", lambda m: m.RNN(3, 4, nonlinearity="relu", bias=False), [normal(4, 2, 3)]),
    ("RNN both ways", lambda m: m.RNN(3, 4, 2, bidirectional=True), [normal(3, 2, 3)]),
    ("LSTM", lambda m: m.LSTM(3, 4, batch_first=True), [normal(2, 4, 3)]),
    ("LSTM projected", lambda m: m.LSTM(3, 4, num_layers=2, proj_size=2), [normal(3, 2, 3)]),
    ("GRU", lambda m: m.GRU(3, 4), [normal(4, 2, 3), normal(1, 2, 4)]),
    ("GRU one", lambda m: m.GRU(3, 4, bidirectional=True), [normal(3, 3)]),
    ("RNNCell", lambda m: m.RNNCell(3, 4), [normal(3)]),
    ("LSTMCell", lambda m: m.LSTMCell(3, 4), [normal(2, 3)]),
    ("GRUCell", lambda m: m.GRUCell(3, 4), [normal(2, 3), normal(2, 4)]),
]  # fmt: skip
STATEFUL = ("BatchNorm", "InstanceNorm")


@pytest.mark.parametrize(("name", "make", "arrays"), MODULES, ids=[m[0] for m in MODULES])
def test_modules(name: str, make: Maker, arrays: list[Array]) -> None:
    own, theirs = make(nn), make(torch.nn).double()
    state = drawn(theirs.state_dict())
    assert list(own.state_dict()) == list(state)
    fill(own, state)
    theirs.load_state_dict({n: torch.tensor(a) for n, a in state.items()})
    for training in (True, False) if name.startswith(STATEFUL) else (True,):
        own.train(training)
        theirs.train(training)
        cells = [*own.parameters()]
        found = own_results(own, arrays, cells)
        check(found, torch_results(torch, theirs, arrays, [*theirs.parameters()]))
    for key, tensor in theirs.state_dict().items():
        np.testing.assert_allclose(own.state_dict()[key].numpy(), tensor.numpy(), rtol=1e-12)


def test_weighted_and_signed_losses() -> None:
    weight, heavy = pb.tensor(share(4)), torch.tensor(share(4))
    pairs: list[tuple[str, Array, dict[str, Any], dict[str, Any]]] = [
        ("BCELoss", share(3, 4), {"weight": weight}, {"weight": heavy}),
        ("BCEWithLogitsLoss", ROWS, {"weight": weight}, {"weight": heavy}),
        ("MultiLabelSoftMarginLoss", ROWS, {"weight": weight}, {"weight": heavy}),
        ("SoftMarginLoss", ROWS, {}, {}),
    ]
    for name, x, mine, other in pairs:
        target = SIGNS if name == "SoftMarginLoss" else 1.0 * (SIGNS > 0)
        own, theirs = getattr(nn, name)(**mine), getattr(torch.nn, name)(**other)
        assert list(own.state_dict()) == list(theirs.state_dict())
        found = own_results(lambda x, own=own, t=target: own(x, pb.tensor(t)), [x])
        check(found, torch_results(torch, lambda x, f=theirs, t=target: f(x, torch.tensor(t)), [x]))


def test_places_of_the_largest() -> None:
    settings = {"kernel_size": 3, "stride": 2, "padding": 1, "return_indices": True}
    own = F.max_pool2d(pb.tensor(IMAGE), **settings)[1].numpy()
    np.testing.assert_array_equal(own, TF.max_pool2d(torch.tensor(IMAGE), **settings)[1].numpy())


# Where constructors differ from torch's: old arguments, and `dim`, which must be named there.
OTHERWISE = {"Buffer", "Embedding", "EmbeddingBag", "GRU", "LSTM", "RNN", "ModuleList", "Parameter"}
OLD = {
    *("self", "args", "kwargs", "size_average", "reduce", "device", "dtype"),
    *("min_value", "max_value"),
}


def test_constructors_take_torchs_arguments_in_its_order() -> None:
    for name in sorted((set(nn.__all__) & set(dir(torch.nn))) - OTHERWISE):
        own, theirs = getattr(nn, name), getattr(torch.nn, name)
        if not isinstance(own, type):
            continue
        mine, other = (_arguments(c) for c in (own, theirs))
        assert list(mine)[: len(other)] == list(other), name
        for argument, default in other.items():
            if isinstance(default, int | float):
                assert mine[argument] == pytest.approx(default), f"{name}({argument})"


def _arguments(cls: type) -> dict[str, Any]:
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in OLD}
