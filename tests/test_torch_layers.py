"""attorch's library in `pullback.torch.nn`: each layer a kernel, nothing of PyTorch's beside it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attorch_layers import (
    ACTIVATIONS,
    BY_NUMBER,
    DROPPING,
    GROUP_NORM,
    LAYERS,
    composed,
    launches,
    programs,
    step,
    table,
)
from pullback.ir.program import HostCall, items
from pullback.nn.norm import normalization

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import attorch_grid  # noqa: E402
from pullback.bridge import mixed  # noqa: E402
from pullback.torch import nn  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parent.parent / "docs" / "layers.md"
EVERY = {**LAYERS, "GroupNorm": GROUP_NORM}


def test_there_are_41_layers_and_21_activations() -> None:
    assert len(LAYERS) == 41 and len(ACTIVATIONS) == 21 and len(DROPPING) == 20
    assert all(hasattr(nn, name) for name in LAYERS)
    for name in ACTIVATIONS:
        nn.Linear(2, 2, act_func=f"{name}_0.5" if name in BY_NUMBER else name)


def test_the_page_has_what_is_counted() -> None:
    assert table(torch, nn) in PAGE.read_text(encoding="utf-8"), "python scripts/layers.py --accept"


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_kernel(name: str) -> None:
    """Forward; backward no more than attorch has with what PyTorch does for it."""
    torch.manual_seed(0)
    layer = LAYERS[name]
    own = layer.made(nn)
    step(torch, own, layer.given(torch))
    forward, backward = launches(own)
    parts = {"Linear": 2, "Conv1d": 3, "Conv2d": 3, "LayerNorm": 2, "MultiheadAttention": 6}
    assert forward == 1 and backward <= parts.get(name, 1)


# A name for the same memory, and memory; a seed; the count of batches, the factor of statistics and
# their copy.
ALLOWED = {"aten::detach", "detach", "aten::empty", "aten::empty_like", "aten::empty_strided"}
DRAWN = {"aten::randint", "aten::random_"}
KEPT = {"aten::add_", "aten::lift_fresh", "aten::copy_", "aten::to", "aten::detach_", "detach_"}


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_called_that_is_not_generated(name: str) -> None:
    """What PyTorch's profiler sees of a call and its backward; and no function of the host."""
    layer = EVERY[name]
    own, inputs = layer.made(nn), layer.given(torch)
    head = torch.ones_like(step(torch, own, inputs)[0])
    own.zero_grad()
    given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        y = own(*given)
        (y[0] if isinstance(y, tuple) else y).backward(head)
    names = {e.name for e in seen.events()}
    assert any(f"layer_{name}" in n for n in names)
    allowed = ALLOWED | (DRAWN if "drop_p" in layer.how or name == "Dropout" else set())
    allowed |= KEPT if name.startswith("BatchNorm") else set()
    called = {n for n in names if "layer_" not in n and "torch::autograd::" not in n}
    assert not called - allowed
    for program in (*programs(own), *programs(own, True)):
        assert not [i for i in items(program.program.body) if isinstance(i, HostCall)]


@pytest.mark.parametrize(
    "make", ["BatchNorm1d", "BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm"]
)
def test_norms_are_one_composite(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of it reaches each of them."""
    layer = EVERY[make]
    torch.manual_seed(0)
    own, inputs = layer.made(nn), layer.given(torch)
    own.eps = 1.25e-5  # an operator that nobody else has
    asked: list[str] = []
    scaled = normalization.scaled

    def counted(name: str, *args: Any) -> Any:
        asked.append(name)
        return scaled(name, *args)

    monkeypatch.setattr(normalization, "scaled", counted)
    own(*inputs)
    assert asked


@pytest.mark.parametrize(
    "name", [n for n in EVERY if "drop_p" not in EVERY[n].how and n != "Dropout"]
)
def test_values_and_gradients(name: str) -> None:
    layer = EVERY[name]
    torch.manual_seed(0)
    own, inputs = layer.made(nn), layer.given(torch)
    other = composed(torch, layer)
    other.load_state_dict(own.state_dict())
    for a, b in zip(step(torch, own, inputs), step(torch, other, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# --- autocast


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("given", ["float32", "half"])
def test_types_under_autocast_are_those_of_pytorch(kind: str, given: str) -> None:
    half = getattr(torch, kind)
    for name, layer in EVERY.items():
        if "drop_p" in layer.how or name == "Dropout":
            continue
        if name.startswith("BatchNorm"):  # relu's step may be taken on either side of a rounding
            layer = replace(layer, how={"act_func": "silu"})
        torch.manual_seed(0)
        own, other = layer.made(nn).eval(), composed(torch, layer).eval()
        other.load_state_dict(own.state_dict())
        inputs = layer.given(torch)
        if given == "half":
            inputs = [x.to(half) if x.is_floating_point() else x for x in inputs]
        with torch.autocast("cpu", dtype=half):
            a, b = (step(torch, f, inputs) for f in (own, other))
        assert [t.dtype for t in a] == [t.dtype for t in b], name
        for x, y in zip(a, b, strict=True):
            near = {"rtol": 5e-2, "atol": 5e-2}  # 8 bits, rounded after each step there
            torch.testing.assert_close(x.float(), y.float(), **near, msg=lambda m, n=name: n + m)


def test_a_half_input_of_a_norm_with_wide_weights() -> None:
    x = torch.randn(6, 4, dtype=torch.bfloat16)
    for layer in (nn.LayerNorm(4), nn.RMSNorm(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)):
        assert layer(x).dtype is torch.bfloat16


def test_the_lists_of_autocast_are_of_layers() -> None:
    lists = (mixed.LOWER, mixed.WIDE, mixed.KEPT)
    assert sum(map(len, lists)) == len({n for names in lists for n in names})
    assert all(issubclass(getattr(nn, n), torch.nn.Module) for names in lists for n in names)


# --- attorch's own grid


def sampled() -> list[Any]:
    """Three cases of each layer of attorch's grid, with smaller shapes."""
    by_layer: dict[str, list[Any]] = {}
    for case in attorch_grid.cases(cut=17):
        by_layer.setdefault(case.layer, []).append(case)
    return [c for own in by_layer.values() for c in random.Random(4).sample(own, 3)]


@pytest.mark.parametrize("case", sampled(), ids=str)
def test_the_grid_of_attorch(case: Any) -> None:
    """All of it by `scripts/attorch_grid.py`."""
    attorch_grid.check(case)


def test_the_grid_is_attorchs() -> None:
    """As counted from its decorators, halves without autocast left out there too."""
    counted = Counter(c.layer for c in attorch_grid.cases())
    assert sum(counted[n] for n in DROPPING) == 29 * 20 * 2 * 3
    assert counted["Linear"] == 14 * 8 * 2 * 22 * 3 and counted["Dropout"] == 29 * 7
    assert counted["BatchNorm1d"] + counted["BatchNorm2d"] == 16 * 2 * 2 * 2 * 2 * 2 * 22 * 3
    assert set(counted) == set(LAYERS)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_grid_of_attorch_by_triton() -> None:
    """On Triton's interpreter, in a process that nothing else has imported it in."""
    script = Path(__file__).parent.parent / "scripts" / "attorch_grid.py"
    words = [sys.executable, str(script), "--backend", "triton", "--cut", "5", "--every", "997"]
    done = subprocess.run([*words, "--most", "24"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "24 of 24" in done.stdout, done.stdout + done.stderr


# --- what attorch has wrong


@pytest.mark.parametrize("name", ["SmoothL1Loss", "HuberLoss"])
def test_a_large_negative_difference_is_beyond_the_bend(name: str) -> None:
    """``|d| < beta``, where `attorch.math.calc_p_loss` has ``d < beta``."""
    d = torch.tensor([-3.0, -0.5, 0.5, 3.0], requires_grad=True)
    y = getattr(nn, name)(reduction="none")(d, torch.zeros(4))
    torch.testing.assert_close(y, torch.tensor([2.5, 0.125, 0.125, 2.5]))
    y.sum().backward()
    torch.testing.assert_close(d.grad, torch.tensor([-1.0, -0.5, 0.5, 1.0]))


def test_a_mean_is_kept_when_blocks_of_another_are_added() -> None:
    """Batches far from zero in several blocks: where `update_welford` drops the mean so far."""
    x = torch.randn(700, 3, 33) * 2 + 1000
    norm = nn.BatchNorm1d(3, momentum=1.0)
    y = norm(x)
    wide = x.double().numpy()
    np.testing.assert_allclose(norm.running_mean, wide.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(norm.running_var, wide.var((0, 2), ddof=1), rtol=1e-4)
    assert abs(float(y.detach().mean())) < 1e-3 and abs(float(y.detach().std()) - 1) < 1e-3


def test_attention_by_a_hint_does_not_look_ahead() -> None:
    """`is_causal` beside a mask that stands for it, peaked scores, no factor 0.5."""
    torch.manual_seed(0)
    own = nn.MultiheadAttention(12, 3, batch_first=True)
    other = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    for p in other.parameters():
        p.data.normal_()
    own.load_state_dict(other.state_dict())
    x = torch.randn(2, 17, 12)
    how = {"attn_mask": torch.full((17, 17), 7.0), "is_causal": True, "need_weights": False}
    torch.testing.assert_close(
        own(x, x, x, **how)[0], other(x, x, x, **how)[0], rtol=1e-4, atol=1e-4
    )
    square = torch.nn.Transformer.generate_square_subsequent_mask(17)
    plain = {"attn_mask": square, "need_weights": False}
    torch.testing.assert_close(own(x, x, x, **how)[0], own(x, x, x, **plain)[0])
