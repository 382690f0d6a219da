"""What is kept is chosen for the call at hand, whatever was called before."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
COUNT = itertools.count()
SIZES = (1, 48, 40, 17), (33, 48, 40, 17), (33, 1, 1, 2)
KINDS = torch.float32, torch.float64
MODES = "tanh", "plain"


def layers(x: pb.Tensor, a: pb.Tensor, b: pb.Tensor, mode: str) -> pb.Tensor:
    if mode == "plain":
        return x @ a @ b
    return pb.tanh(pb.tanh(x @ a) @ b)


def made() -> Any:
    return pb.torch.op(layers, name=f"kept_of_calls{next(COUNT)}").residuals


def test_a_choice_is_that_of_its_call() -> None:
    """Of sizes, types, static arguments and wanted gradients: as an operator that saw no other."""
    used, choices = made(), set[str]()
    for sizes, kind, mode, wanted in itertools.product(SIZES, KINDS, MODES, (1, 2, 7)):
        n, k, m, p = sizes
        args = [torch.zeros(s, dtype=kind) for s in ((n, k), (k, m), (m, p))]
        own = used.chosen((*args, mode), wanted)
        assert own == made().chosen((*args, mode), wanted), (sizes, kind, mode, wanted)
        choices.add(own)
    assert len(choices) > 2  # they differ at all
    assert len(used._chosen) == len(SIZES) * len(KINDS) * len(MODES) * 3
