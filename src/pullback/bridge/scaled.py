"""Losses that are scaled for gradients of 16 bits: PyTorch's `GradScaler`, beside a program."""

from __future__ import annotations

import math
from typing import Any

import torch

from pullback.bridge.programs import caller
from pullback.errors import ArgumentError


def scaler_of(scaler: Any) -> Any:
    """The scaler; None for one that is disabled. Raises: ArgumentError for what is none."""
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        what = f"pb.torch.step has no scaler={scaler!r}"
        help = 'torch.amp.GradScaler("cpu")'
        raise ArgumentError(what, origin=caller(), help=help, code="E394")
    return scaler if scaler.is_enabled() else None


def follow(scaler: Any, sound: bool) -> None:
    """What `scaler.update` does after a step whose gradients were finite, or were not.

    ``scale *= backoff``, or after `interval` steps in a row ``scale *= growth``.
    """
    state = scaler.state_dict()
    if not sound:
        state["scale"] *= state["backoff_factor"]
        state["_growth_tracker"] = 0
    else:
        state["_growth_tracker"] += 1
        if state["_growth_tracker"] == state["growth_interval"]:
            grown = float(torch.tensor(state["scale"]) * state["growth_factor"])
            state["scale"] = grown if math.isfinite(grown) else state["scale"]
            state["_growth_tracker"] = 0
    scaler.load_state_dict(state)
