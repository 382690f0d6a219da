"""`nn.functional`: functions under torch's names, `dim` and argument order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pullback.errors import StateError
from pullback.nn.activation.activation import (
    celu,
    elu,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    rrelu,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from pullback.nn.activation.dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from pullback.nn.base.module import Module
from pullback.nn.linear.linear import (
    bilinear,
    embedding,
    embedding_bag,
    linear,
    one_hot,
)
from pullback.nn.loss.cross_entropy import (
    cross_entropy,
    nll_loss,
)
from pullback.nn.loss.ctc import ctc_loss
from pullback.nn.loss.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    gaussian_nll_loss,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
)
from pullback.nn.loss.margins import (
    cosine_embedding_loss,
    cosine_similarity,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    normalize,
    pairwise_distance,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from pullback.nn.norm.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from pullback.nn.sequence.attention import (
    scaled_dot_product_attention,
)
from pullback.nn.sequence.rotary import rotary_embedding
from pullback.nn.spatial.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from pullback.nn.spatial.padding import (
    pad,
)
from pullback.nn.spatial.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from pullback.nn.spatial.sampling import (
    affine_grid,
    grid_sample,
    interpolate,
)
from pullback.nn.spatial.shuffle import (
    channel_shuffle,
    fold,
    pixel_shuffle,
    pixel_unshuffle,
    unfold,
)
from pullback.nn.spatial.unpooling import (
    fractional_max_pool2d,
    fractional_max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "alpha_dropout",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "functional_call",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "rotary_embedding",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unfold",
]


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """``module(*args)`` with other tensors in place of those named.

    Raises: StateError for a name that the module does not have.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> w = {"weight": pb.ones((1, 2)), "bias": pb.zeros(1)}
        >>> nn.functional_call(layer, w, pb.ones(2))
        Tensor([2.], dtype=float32)
    """
    given = args if isinstance(args, tuple) else (args,)
    with _replaced(module, parameters_and_buffers):
        return module(*given, **(kwargs or {}))


@contextmanager
def _replaced(module: Module, named: Mapping[str, Any]) -> Iterator[None]:
    """Other tensors under the names of a module's cells, for a while."""
    homes = dict(module.named_modules())
    undo: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, tensor in named.items():
            path, _, last = name.rpartition(".")
            home = _home(homes.get(path), last, name)
            undo.append((home, last, home[last]))
            home[last] = tensor
        yield
    finally:
        for home, last, before in reversed(undo):
            home[last] = before


def _home(module: Module | None, last: str, name: str) -> dict[str, Any]:
    if module is not None:
        homes: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for home in homes:
            if last in home:
                return home
    raise StateError(f"the module has no parameter `{name}`", code="E338")


__dir__ = _shown(__all__)
_bounded(globals(), __all__)


def __getattr__(name: str) -> Any:
    raise _unknown("pullback.nn.functional", name, __all__)
