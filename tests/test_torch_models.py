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
    assert list(known) == list(SUBJECTS)
    assert {name for name, row in known.items() if not row.startswith("right:")} == set()


def test_rows_are_ranked() -> None:
    rows = ["right: loss 1e-08", "fallback (mm): loss 1e-08", "crashed: no", "wrong: loss 1"]
    assert [torch_models.rank(row) for row in rows] == [0, 1, 2, 3]


def test_a_wrong_gradient_is_seen() -> None:
    """The measure of errors sees one element of one weight."""
    true = {"w": torch.ones(8, dtype=torch.float64)}
    own = {"w": torch.ones(8)}
    own["w"][3] += 1e-3
    part = {"loss": torch.ones(())}
    assert torch_models._error((part, own, own), (part, true, true), 1) > 9e-4
    own["w"][3] = float("nan")
    assert torch_models._error((part, own, own), (part, true, true), 1) == float("inf")


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_pool_gives_each_head_to_the_place_that_was_largest(rank: int, adaptive: bool) -> None:
    """Overlapping windows, ties, NaN and infinities as eager has them: the same place, the sum."""
    functional = torch.nn.functional
    torch.manual_seed(0)
    x = torch.randint(0, 4, (2, 3, *(7, 6, 5)[:rank])).float()
    x[0, 0, 1, 2], x[1, 2, 3, 3], x[1, 1] = torch.nan, torch.inf, -torch.inf

    def pooled(x: torch.Tensor) -> torch.Tensor:
        if adaptive:
            return getattr(functional, f"adaptive_max_pool{rank}d")(x, (3, 2, 4)[:rank])
        return getattr(functional, f"max_pool{rank}d")(x, 3, stride=2, padding=1)

    results = []
    for run in (pooled, torch.compile(pooled, backend=torch_models.pb.torch.backend)):
        own = x.clone().requires_grad_()
        y = run(own)
        y.backward(torch.arange(y.numel()).reshape(y.shape).float())
        results.append((y.detach(), own.grad))
    for eager, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)
    assert not torch_models.pb.torch.report().fallbacks
