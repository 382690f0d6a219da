"""One size off: functions of several tensors raise a coded error, or give what they declare."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError
from pullback.tensor.shaped.checks import Shaped
from pullback.tensor.shaped.matching import result_sizes
from wrong_sizes import ARRAYS, CALLS, Call, f, variants

F = pb.nn.functional


def tensors(call: Call) -> Call:
    return call.mapped(pb.tensor)


def own(name: str) -> Shaped:
    shaped: Shaped = getattr(F, name).__shapes__
    return shaped


def bound(name: str, call: Call) -> Any:
    """What the declaration makes of the arguments. Raises: PullbackError where they do not fit."""
    shaped = own(name)
    first = (int(name[-2]),) if "space" in shaped.signature.parameters else ()
    return shaped.check(shaped.bind((*first, *call.args), call.kwargs).arguments)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_sizes_one_off(name: str) -> None:
    """Never a fault of the compiler, a raw error of Python, or a result of another shape."""
    function = getattr(F, name)
    function(*tensors(CALLS[name]).args, **tensors(CALLS[name]).kwargs).numpy()
    refused = 0
    for what, plain in variants(CALLS[name]):
        call = tensors(plain)
        try:
            known = bound(name, call)
        except PullbackError:
            known = None
        try:
            result = function(*call.args, **call.kwargs).numpy()
        except PullbackError as problem:
            refused += 1
            assert problem.code in ("E101", "E106", "E111", "E126", "E145", "E175", "E176"), what
            assert "test_wrong_sizes.py" in str(problem), what
            continue
        assert known is not None, f"{what}: {result.shape}"
        wanted = [w for w in own(name).declared.results if len(w.ways) == 1]
        for way in wanted:
            sizes = result_sizes(way, known)
            fits = sizes is None or len(sizes) != result.ndim or all(
                s in (None, n) for s, n in zip(sizes, result.shape, strict=True)
            )  # fmt: skip
            assert fits, f"{what}: declared {sizes}, made {result.shape}"
    assert refused, "no wrong size was seen"


# Where NumPy's broadcasting is kept though PyTorch refuses it: missing axes in front are 1.
BROADCASTS = {
    "margin_ranking_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
    "scaled_dot_product_attention",
}  # fmt: skip


WEIGHED = {"mse_loss", "l1_loss", "huber_loss"}  # their weights stretch to the input here


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", CALLS)
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = getattr(torch.nn.functional, name), getattr(F, name)
    for what, plain in variants(CALLS[name]):
        call, other = tensors(plain), plain.mapped(torch.tensor)
        try:
            want = theirs(*other.args, **other.kwargs)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            if name in BROADCASTS and what.endswith(("axis more", "axis less")):
                continue
            if name in WEIGHED and what.startswith("weight"):
                continue
            with pytest.raises(PullbackError):
                print(name, what, ours(*call.args, **call.kwargs).numpy().shape)
            continue
        try:
            got = ours(*call.args, **call.kwargs).numpy()
        except PullbackError:
            continue  # stricter: what PyTorch broadcasts between samples is no loss of theirs
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-9, err_msg=what)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ARRAYS)
def test_what_numpy_refuses_is_refused(name: str) -> None:
    """And what it does not is the same, or refused too."""
    call, theirs = ARRAYS[name]
    ours = getattr(pb, name)
    for what, plain in [("as it is", call), *variants(call)]:
        given = tensors(plain)
        try:
            want = theirs(*plain.args, **plain.kwargs)
        except (ValueError, IndexError, TypeError):
            with pytest.raises(PullbackError) as caught:
                print(name, what, ours(*given.args, **given.kwargs).numpy().shape)
            assert "test_wrong_sizes.py" in str(caught.value), what
            continue
        try:
            got = ours(*given.args, **given.kwargs).numpy()
        except PullbackError:
            assert what != "as it is"
            continue
        assert got.shape == want.shape, what
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12, err_msg=what)


# Functions of one tensor, or of tensors in a list.
def several(name: str) -> bool:
    """Whether a function takes several tensors."""
    function = getattr(F, name)
    kinds = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    return sum(k in ("Tensor", "Tensor | None") for k in kinds) > 1


def test_every_function_of_several_tensors_is_here() -> None:
    hidden = {"functional_call", "fractional_max_pool2d", "fractional_max_pool3d"}  # a drawn sample
    alike = {"conv_transpose3d": "conv_transpose2d", "max_unpool3d": "max_unpool2d"}
    listed = {n for n in F.__all__ if several(n)} - hidden - set(alike)
    assert listed <= set(CALLS), listed - set(CALLS)


def test_every_function_declares_its_shapes() -> None:
    free = {"functional_call"}
    for name in F.__all__:
        assert name in free or hasattr(getattr(F, name), "__shapes__"), name


def raised(name: str, **changed: Any) -> str:
    call = tensors(CALLS[name])
    with pytest.raises(PullbackError) as caught:
        getattr(F, name)(*call.args, **{**call.kwargs, **changed}).numpy()
    return caught.value.code


BAD = [0, -1, 1.5, float("nan"), "x"]


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("setting", ["stride", "dilation", "groups"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose1d"])
def test_settings_out_of_their_limits(name: str, setting: str, value: Any) -> None:
    assert raised(name, **{setting: value}) == "E176"


@pytest.mark.parametrize("value", [-1, 1.5, float("nan")], ids=str)
def test_padding_out_of_its_limits(value: Any) -> None:
    assert raised("conv2d", padding=value) == "E176"


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "x"], ids=str)
def test_probabilities_out_of_their_limits(value: Any) -> None:
    for function in (F.dropout, F.dropout2d, F.alpha_dropout):
        with pytest.raises(PullbackError, match="E176"):
            function(pb.ones((2, 3, 4, 4)), p=value)
    assert raised("scaled_dot_product_attention", dropout_p=value) == "E176"


LAYERS: list[Any] = [
    lambda: pb.nn.Linear(-1, 3), lambda: pb.nn.Linear(2, 1.5), lambda: pb.nn.Conv2d(2, 3, 0),
    lambda: pb.nn.Conv2d(2, 3, 3, stride=0), lambda: pb.nn.Conv2d(3, 4, 3, groups=2),
    lambda: pb.nn.Dropout(float("nan")), lambda: pb.nn.LSTM(3, 0), lambda: pb.nn.MaxPool2d(0),
    lambda: pb.nn.GRU(3, 4, dropout=2), lambda: pb.nn.MultiheadAttention(8, 0),
    lambda: pb.nn.LayerNorm(-3), lambda: pb.nn.GroupNorm(3, 4), lambda: pb.nn.Embedding(-1, 3),
    lambda: pb.nn.AvgPool1d(2, -1), lambda: pb.nn.PReLU(0), lambda: pb.nn.Unfold(2, stride=0),
    lambda: pb.nn.BatchNorm1d(3, eps=float("nan")),
    lambda: pb.nn.CrossEntropyLoss(label_smoothing=2),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_layers_check_their_settings_when_they_are_made(number: int) -> None:
    with pytest.raises(PullbackError, match="E176"):
        LAYERS[number]()


def test_attention_broadcasts_its_batch() -> None:
    """q (4, 1, 3, 8) with keys (4, 6, 8) and a mask of other samples, against plain NumPy."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(4, 1, 3, 8)), rng.normal(size=(2, 6, 8)), rng.normal(size=(6, 5))
    mask = rng.normal(size=(4, 1, 1, 6))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(8) + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v
    got = F.scaled_dot_product_attention(*map(pb.tensor, (q, k, v, mask)))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_layers_of_states_and_masks() -> None:
    x = pb.ones((5, 2, 3))
    cell, heads = pb.nn.GRUCell(3, 4), pb.nn.MultiheadAttention(4, 2)
    for call in (
        lambda: cell(pb.ones((2, 3)), pb.ones((1, 4))),
        lambda: cell(pb.ones((2, 4))),
        lambda: pb.nn.LSTM(3, 4)(x, (pb.ones((1, 2, 4)), pb.ones((1, 2, 5)))),
        lambda: pb.nn.LSTM(3, 4)(x, (pb.ones((1, 2, 4)),)),
        lambda: heads(pb.ones((3, 2, 4)), pb.ones((5, 2, 4)), pb.ones((6, 2, 4))),
        lambda: heads(pb.ones((3, 2, 4)), pb.ones((5, 1, 4)), pb.ones((5, 1, 4))),
        lambda: heads(*[pb.ones((3, 2, 4))] * 3, key_padding_mask=pb.ones((2, 4)) > 0),
        lambda: heads(*[pb.ones((3, 2, 4))] * 3, attn_mask=pb.ones((3, 4))),
        lambda: heads(*[pb.ones((3, 2, 4))] * 3, attn_mask=pb.ones((3, 3, 3))),
    ):
        with pytest.raises(PullbackError, match="E175"):
            call()


def test_composites_of_broadcast_inputs() -> None:
    """Normalised after they are broadcast: the cosine of equal directions is 1."""
    for a, b in ((1, 2, 1), (1, 1, 1)), ((3, 1), (3, 4)), ((2, 1, 4), (1, 3, 4)):
        x, y = np.ones(a), 2.0 * np.ones(b)
        for dim in range(max(len(a), len(b))):
            got = F.cosine_similarity(pb.tensor(x), pb.tensor(y), dim=dim).numpy()
            np.testing.assert_allclose(got, np.ones(got.shape), rtol=1e-12)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, np.inf, -np.inf])
def test_normalize_by_every_norm(p: float) -> None:
    x = np.array([[3.0, -4.0, 0.5], [1.0, 2.0, 2.0]])
    want = x / np.linalg.norm(x, p, axis=1, keepdims=True)
    got = F.normalize(pb.tensor(x), p=p, dim=1).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_divergence_of_a_negative_target_is_no_number() -> None:
    got = F.kl_div(pb.tensor([0.1, 0.1, 0.1]), pb.tensor([-1.0, 0.0, 1.0]), reduction="none")
    assert np.isnan(got.numpy()[0])
    np.testing.assert_allclose(got.numpy()[1:], [0.0, -0.1], rtol=1e-6)


PADS = [
    ("circular", (1, -2), [4, 1, 2, 3, 4]), ("circular", (-1, 2), [2, 3, 4, 5, 6, 2, 3]),
    ("circular", (2, 1), [5, 6, 1, 2, 3, 4, 5, 6, 1]), ("replicate", (1, -1), [1, 1, 2, 3, 4, 5]),
    ("replicate", (-2, 1), [3, 4, 5, 6, 6]), ("reflect", (2, -1), [3, 2, 1, 2, 3, 4, 5]),
    ("constant", (-1, 1), [2, 3, 4, 5, 6, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "widths", "want"), PADS)
def test_pads_that_cut_and_extend(mode: str, widths: Any, want: Any) -> None:
    x = pb.tensor(np.arange(1.0, 7.0).reshape(1, 1, 6))
    np.testing.assert_array_equal(F.pad(x, widths, mode=mode).numpy()[0, 0], want)


@pytest.mark.parametrize("padding", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("size", "stride", "dilation"), [(1, 1, 1), (2, 1, 1), (3, 2, 2), (1, 3, 1)]
)
def test_padding_beyond_the_reach(size: int, stride: int, dilation: int, padding: int) -> None:
    """Against a convolution of what NumPy padded; and columns of `unfold`."""
    x, w = f(2, 3, 9), f(4, 3, size)
    around = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    settings = {"stride": stride, "dilation": dilation}
    want = F.conv1d(pb.tensor(around), pb.tensor(w), **settings).numpy()
    got = F.conv1d(pb.tensor(x), pb.tensor(w), padding=padding, **settings).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12)
    image = x[:, :, None, :].repeat(6, 2)
    wide = np.pad(image, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    want = F.unfold(pb.tensor(wide), size, **settings).numpy()
    got = F.unfold(pb.tensor(image), size, padding=padding, **settings).numpy()
    np.testing.assert_array_equal(got, want)
