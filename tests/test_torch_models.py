"""Whole models through `torch.compile(backend="pullback")`, beside eager in float64.

All of them: `scripts/torch_models.py`, whose record is tests/torch_models.txt.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
torch = pytest.importorskip("torch")
torch_models = pytest.importorskip("torch_models")
SUBJECTS = torch_models.SUBJECTS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["gcn", "diffusion_step", "t5"])
def test_model_beside_eager_in_float64(name: str) -> None:
    package = SUBJECTS[name].package
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    row = torch_models.row(name)
    assert row.startswith("right:"), row


def test_no_model_of_the_record_is_wrong_or_falls_back() -> None:
    known = torch_models.recorded()
    assert known and set(known) <= set(SUBJECTS)
    assert {name for name, row in known.items() if not row.startswith("right:")} == set()


def test_a_wrong_gradient_is_seen() -> None:
    """The measure of errors sees one element of one weight."""
    true = {"w": torch.ones(8, dtype=torch.float64)}
    own = {"w": torch.ones(8)}
    own["w"][3] += 1e-3
    part = {"loss": torch.ones(())}
    assert torch_models._error((part, own, own), (part, true, true), 1) > 9e-4
    own["w"][3] = float("nan")
    assert torch_models._error((part, own, own), (part, true, true), 1) == float("inf")
