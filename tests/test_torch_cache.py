"""What a second process takes from the first: graphs of `torch.compile`, and their programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import StateError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402

from pullback.bridge.backend import Compiled, Settings  # noqa: E402
from pullback.bridge.kept import constants, digest, read, text_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_torch: None) -> Iterator[None]:
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "programs"))
    counters.clear()
    with fresh_cache():
        yield


def again() -> None:
    """As a new process: nothing that Dynamo knows."""
    torch._dynamo.reset()
    counters.clear()


def hits() -> int:
    return int(counters["aot_autograd"]["autograd_cache_hit"])


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=pb.torch.backend, options=options)


def step(model: Any, x: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Loss and gradients of a compiled model."""
    for p in model.parameters():
        p.grad = None
    loss = compiled(model, **options)(x).square().mean()
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def near(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def model() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


def test_graphs_are_kept() -> None:
    net, x = model(), torch.randn(4, 6)
    first = step(net, x, fallback="error")
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1 and not hits()
    graphs = pb.torch.report().graphs
    again()
    second = step(net, x, fallback="error")
    assert hits() == 1 and counters["aot_autograd"]["autograd_cache_miss"] == 0
    assert pb.torch.report().graphs == graphs and len(graphs) == 2
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_what_pytorch_runs_is_kept_and_told_again() -> None:
    def f(x: Any) -> Any:
        return torch.fft.fft(torch.sin(x)).real * 2.0 + torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(3, 3)
    near(compiled(f)(x), f(x))
    told = str(pb.torch.report())
    again()
    near(compiled(f)(x), f(x))
    assert hits() == 1 and str(pb.torch.report()) == told and "fft" in told


def test_a_graph_of_another_process_tells_what_pytorch_runs(caplog: Any) -> None:
    x = torch.randn(8)
    for n in range(2):
        again()
        caplog.clear()
        with caplog.at_level("INFO", logger="pullback"):
            compiled(lambda x: torch.fft.rfft(x.sin()).abs())(x)
        assert hits() == n and "PyTorch runs aten._fft_r2c" in caplog.text


def test_written_arguments_and_buffers() -> None:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), torch.randn(4, 6)
    like = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    like.load_state_dict(net.state_dict())
    for _ in range(2):
        again()
        step(net, x)
        like(x)
        near(dict(net.named_buffers()), dict(like.named_buffers()))
    assert hits() == 1


@pytest.mark.parametrize(
    "other", [{"threads": 2}, {"memory": 1 << 24}, {"fallback": "error"}], ids=str
)
def test_other_settings_are_another_graph(other: dict[str, Any]) -> None:
    net, x = model(), torch.randn(4, 6)
    step(net, x)
    again()
    step(net, x, **other)
    assert hits() == 0


def test_no_cache_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    step(model(), torch.randn(4, 6))
    assert counters["aot_autograd"]["autograd_cache_saved"] == 0


def test_another_version_of_the_compiler_is_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = model(), torch.randn(4, 6)
    step(net, x)
    again()
    monkeypatch.setattr("pullback.bridge.backend.sources", lambda: "another")
    step(net, x)
    assert hits() == 0


def kept(folder: Path) -> list[Path]:
    """The files of PyTorch's cache of graphs."""
    return [p for p in folder.rglob("*") if p.is_file() and "aotautograd" in p.parts]


def test_a_changed_entry_is_made_again(tmp_path: Path) -> None:
    """Each byte in turn would take long: a text that says something else, and a file cut off."""
    net, x = model(), torch.randn(4, 6)
    with fresh_cache(dir=str(tmp_path)):
        first = step(net, x)
        for change in (
            lambda data: data.replace(b"aten.addmm", b"aten.bddmm"),
            lambda data: data.replace(b'"float32"', b'"float64"'),
            lambda data: data[: len(data) // 2],
            lambda data: b"",
        ):
            again()
            path, *others = sorted(kept(tmp_path), key=lambda p: p.stat().st_mtime_ns)
            for one in others:
                one.unlink()
            whole = path.read_bytes()
            changed = change(whole)
            assert changed != whole
            path.write_bytes(changed)
            os.utime(path, (0, 0))
            loss, grads = step(net, x)
            assert hits() == 0
            near((loss, grads), first)
            path.write_bytes(whole)
            os.utime(path, (0, 0))
        again()
        near(step(net, x), first)
        assert hits() == 1


def test_a_text_is_whole_or_refused() -> None:
    def graph(x: Any) -> Any:
        return torch.ops.aten.add.Tensor(x, 1.5), None

    gm = torch.fx.symbolic_trace(graph)
    for node in gm.graph.nodes:
        node.meta["val"] = torch.ones(2, 3)
    text = text_of(gm)
    back = read(text, constants(gm))
    assert text_of(back) == text
    near(back(torch.ones(2, 3))[0], torch.full((2, 3), 2.5))
    kept = Compiled(
        text.replace("1.5", "2.5"), {}, "forward", Settings(), (), (), {}, digest(text, {})
    )
    kept.text = kept.text.replace("add", "sub")
    with pytest.raises(StateError, match="E391"):
        kept.post_compile()


def test_names_of_a_text_are_operators() -> None:
    for target in ("os.system.x", "aten.add.__class__", "operator.attrgetter"):
        text = json.dumps([["a", "call_function", target, {"tuple": []}, [], None]])
        with pytest.raises((StateError, AttributeError, KeyError)):
            read(text, {})
    with pytest.raises(StateError, match="E391"):
        read(json.dumps([["a", "placeholder", "a", {"tuple": [{"word": "load"}]}, [], None]]), {})


def test_what_is_no_text_is_not_kept() -> None:
    gm = torch.fx.symbolic_trace(lambda x: abs(x))
    with pytest.raises(UnsupportedError, match="E390"):
        text_of(gm)
    with pytest.raises(UnsupportedError, match="E390"):
        Compiled("", {}, "forward", Settings(), (), (), {}, "").prepare_for_serialization()


PROCESS = """
import sys, torch, pullback as pb
from torch._dynamo.utils import counters
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
x = torch.randn(4, 6)
torch.compile(net, backend=pb.torch.backend)(x).sum().backward()
grads = [p.grad.flatten().tolist() for p in net.parameters()]
print(counters["aot_autograd"]["autograd_cache_hit"], grads)
"""


def test_a_second_process(tmp_path: Path) -> None:
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
        "PULLBACK_CACHE": str(tmp_path / "p"),
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split(" ", 1)
        for _ in range(2)
    ]
    assert [s[0] for s in said] == ["0", "1"] and said[0][1] == said[1][1]
