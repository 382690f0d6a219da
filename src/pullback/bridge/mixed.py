"""Autocast's types, inside of a layer's kernel.

    bfloat16:  Linear(x, w)  ->  bfloat16(x) @ bfloat16(w)      MSELoss(x, y)  ->  float32(x), ..

The lists are PyTorch's of the CPU. Norms give the type of their input whatever their weights are,
with and without autocast; all else computes in the types that it is given. float64 stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import pullback as pb
from pullback.bridge.programs import TYPES
from pullback.ir.dtype import DType

LOWER = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "PReLU", "MultiheadAttention",
)  # fmt: skip
"""Layers that compute in the type of autocast."""
WIDE = (
    "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MarginRankingLoss", "MSELoss",
    "MultiLabelMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss",
    "SoftMarginLoss", "TripletMarginLoss",
)  # fmt: skip
"""Layers that compute in float32 under autocast."""
KEPT = (
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LayerNorm", "RMSNorm",
)  # fmt: skip
"""Layers whose result is of the type of their input."""


@dataclass(frozen=True, slots=True)
class Types:
    """What the tensors of a layer are cast to, and whether its result is as its first input."""

    inside: str | None = None
    kept: bool = False

    def cast(self, tensor: Any) -> Any:
        """A tensor of pullback as the layer computes with it."""
        if self.inside is None or not _eligible(tensor.dtype):
            return tensor
        return pb.astype(tensor, self.inside)

    def given(
        self, inputs: Sequence[Any], held: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """What the layer's body is given."""
        return [self.cast(x) for x in inputs], {n: self.cast(x) for n, x in held.items()}

    def result(self, y: Any, inputs: Sequence[Any]) -> Any:
        """What the layer gives."""
        return pb.astype(y, inputs[0].dtype) if self.kept else y


def _eligible(kind: DType) -> bool:
    return kind.is_float and kind.name != "float64"


def types_of(layer: str) -> Types:
    """Of a layer by its class's name, as PyTorch's state is now."""
    if layer in KEPT:
        return Types(kept=True)
    if not torch.is_autocast_enabled("cpu"):
        return Types()
    if layer in LOWER:
        return Types(TYPES[torch.get_autocast_dtype("cpu")].name)
    return Types("float32") if layer in WIDE else Types()
