"""What tests of `torch.compile(backend="pullback")` share, where PyTorch is."""

from __future__ import annotations

from typing import Any

import torch

import pullback as pb


def compiled(function: Any, fallback: str = "error", **how: Any) -> Any:
    """The function as programs; what has no rule is an error unless `fallback` says "allow"."""
    return torch.compile(function, backend=pb.torch.backend, options={"fallback": fallback}, **how)
