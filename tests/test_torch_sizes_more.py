"""Options of `torch.compile(backend="pullback")` about memory, modes and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import OptionError, UnsupportedError
from pullback.runtime import tuned

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402
from torch._functorch import config  # noqa: E402

import pullback.bridge.backend as compiler  # noqa: E402
from pullback.bridge.graphs import Native  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.fixture
def natives(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that become programs, as they come."""
    made: list[Any] = []
    own = Native.__init__

    def note(self: Any, *args: Any) -> None:
        own(self, *args)
        made.append(self)

    monkeypatch.setattr(Native, "__init__", note)
    return made


def compiled(function: Any, options: Any, **how: Any) -> Any:
    return torch.compile(function, backend=pb.torch.backend, options=options, **how)


def test_the_mode_of_one_call_is_the_default() -> None:
    run = torch.compile(torch.sin, backend=pb.torch.backend, mode="reduce-overhead")
    x = torch.randn(4)
    torch.testing.assert_close(run(x), x.sin())


def test_schedules_are_measured_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward; what was found, better or not, stands in the cache."""
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path))
    layer, x = torch.nn.Linear(40, 30), torch.randn(20, 40, requires_grad=True)
    run = compiled(layer, {"tune": 0.5, "fallback": "error"})
    for _ in range(2):
        run(x).sum().backward()
    torch.testing.assert_close(run(x), layer(x))
    torch.testing.assert_close(x.grad, 2 * layer.weight.sum(0).expand(20, 40))
    kernels = [r.kernel for r in tuned.read(tmp_path / tuned.FILE).values()]
    assert len(kernels) >= 2, "of the forward and the backward"


def test_a_minute_where_nobody_says_how_long() -> None:
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        assert compiler.Settings.of(mode, None).program().tune == 60.0
    assert compiler.Settings.of("default", None).program().tune == 0.0
    assert compiler.Settings.of("max-autotune", {"tune": 3}).program().tune == 3


@pytest.mark.parametrize("memory", [1.5, 0.0, -0.5, float("nan")])
def test_what_is_no_part_of_memory(memory: float) -> None:
    with pytest.raises(OptionError, match="E522"):
        compiler.Settings.of(None, {"memory": memory})


@pytest.mark.parametrize("dynamic", [1, "yes"])
def test_what_is_no_truth_about_sizes(dynamic: Any) -> None:
    with pytest.raises(OptionError, match="E385"):
        compiler.Settings.of(None, {"dynamic": dynamic})


def test_a_part_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it: less between forward and backward, the same gradients."""
    noted: list[int] = []
    own = compiler.partitioned

    def part(joint: Any, inputs: Any, **how: Any) -> Any:
        forward, backward = own(joint, inputs, **how)
        outputs = list(forward.graph.nodes)[-1].args[0][how["num_fwd_outputs"] :]
        made = [o.meta["val"] for o in outputs if o.op != "placeholder"]
        noted.append(sum(m.numel() * m.itemsize for m in made))
        return forward, backward

    monkeypatch.setattr(compiler, "partitioned", part)
    layers = [m for _ in range(3) for m in (nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))]
    net, x = nn.Sequential(*layers), torch.randn(8, 16)
    want = torch.autograd.grad(net(x).cos().sum(), list(net.parameters()))
    with config.patch(enable_autograd_cache=False):
        for options in ({}, {"memory": 0.5}):
            torch._dynamo.reset()
            loss = compiled(net, options)(x).cos().sum()
            given = torch.autograd.grad(loss, list(net.parameters()))
            torch.testing.assert_close(given, want, rtol=1e-4, atol=1e-5)
    whole, half = noted
    assert 0 < half <= 0.6 * whole


def test_sizes_that_must_be_one_program(natives: list[Any]) -> None:
    run = compiled(lambda x: x.sin() * 2, {"dynamic": True}, dynamic=True)
    for size in (3, 5, 9):
        x = torch.randn(size, 2)
        torch.testing.assert_close(run(x), x.sin() * 2)
    assert len(natives) == 1 and natives[0]._sized.traces == 1
    mode = compiled(lambda x: torch.mode(x, dim=0).values, {"dynamic": True}, dynamic=True)
    with pytest.raises(BackendCompilerFailed) as raised:
        mode(torch.randn(3, 2))
    error = raised.value.inner_exception
    assert isinstance(error, UnsupportedError) and error.code == "E402"


def test_sizes_that_have_a_program_each(natives: list[Any]) -> None:
    run = compiled(lambda x: x.sin() * 2, {"dynamic": False}, dynamic=True)
    for size in (3, 5, 9, 5):
        x = torch.randn(size, 2)
        torch.testing.assert_close(run(x), x.sin() * 2)
    assert len(natives) == 1 and natives[0]._programs.jit.traces == 3


def test_no_size_within_bounds_compiles_again(natives: list[Any]) -> None:
    """Dynamo's guards and the program's bound: two graphs, two programs, for 30 sizes."""
    frames = torch._dynamo.utils.counters["frames"]
    run = compiled(lambda x: x.sin().sum(1), {})
    before = frames["ok"]
    for size in range(2, 32):
        x = torch.randn(size, 3)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(run(x), x.sin().sum(1))
    assert frames["ok"] == before + 1 and len(natives) == 1
    assert natives[0]._sized.traces == 1 and natives[0]._programs.jit.traces == 0
