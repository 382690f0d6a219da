"""A run on disk: `model.safetensors` for others, `checkpoint.safetensors` to go on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pullback import nn
from pullback.cli.settings import RunError, Settings, parse
from pullback.nn.base.weights import load_arrays, load_metadata
from pullback.optim import Optimizer
from pullback.tensor.library import random

WEIGHTS = "model.safetensors"
STATE = "checkpoint.safetensors"
MODEL, OPTIMIZER = "model.", "optimizer."


def save(folder: Path, model: nn.Module, opt: Optimizer, settings: Settings, text: str) -> None:
    """Write weights, optimiser state, random state and settings, each file whole or not at all.

    `text` are the characters of the vocabulary, in order.
    """
    write(folder, contents(model, opt), settings, text)


def contents(model: nn.Module, opt: Optimizer) -> dict[str, Any]:
    """What is saved of now, by name; in a program that is being traced, of that place in it."""
    state: dict[str, Any] = {f"{MODEL}{n}": t for n, t in model.state_dict().items()}
    return state | {f"{OPTIMIZER}{n}": t for n, t in opt.state_dict().items()}


def write(folder: Path, state: Mapping[str, Any], settings: Settings, text: str) -> None:
    """Write `contents` and the random state, which training does not change."""
    facts = {"settings": settings.dump(), "characters": json.dumps(text)}
    weights = {n.removeprefix(MODEL): t for n, t in state.items() if n.startswith(MODEL)}
    nn.save({**state, "random": random.get_state()}, folder / STATE, facts)
    nn.save(weights, folder / WEIGHTS, facts)


def facts(folder: Path) -> tuple[Settings, str]:
    """Settings and characters of a checkpoint. Raises: RunError where there is none."""
    path = folder / STATE
    if not path.is_file():
        raise RunError(f"nothing to resume: {path} does not exist", code="E335")
    metadata = load_metadata(path)
    if "settings" not in metadata or "characters" not in metadata:
        raise RunError(f"{path} was not written by pullback train", code="E336")
    try:
        return parse(metadata["settings"]), str(json.loads(metadata["characters"]))
    except ValueError as error:
        raise RunError(f"the characters in {path} cannot be read: {error}", code="E336") from error


def restore(folder: Path, model: nn.Module, opt: Optimizer) -> None:
    """Put back what `save` wrote."""
    arrays = load_arrays(folder / STATE)
    model.load_state_dict(_under(MODEL, arrays))
    opt.load_state_dict(_under(OPTIMIZER, arrays))
    if "random" not in arrays:
        raise RunError(f"{folder / STATE} was not written by pullback train", code="E336")
    random.set_state(arrays["random"])


def _under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
