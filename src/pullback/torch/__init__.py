"""`pb.torch`: what PyTorch's users need; `from pullback.torch import nn`, its layers fused."""

from __future__ import annotations

import importlib
from typing import Any

from pullback.bridge import torch as _bridge
from pullback.tensor.face.dialect import shown as _shown

__all__ = [*_bridge.__all__, "nn"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """What `bridge.torch` has, and `nn`, loaded when it is asked for."""
    if name == "nn":
        return importlib.import_module("pullback.torch.nn")
    return getattr(_bridge, name)


__dir__ = _shown(__all__)
