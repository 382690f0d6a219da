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
from pullback.bridge.symbols import FUNCTIONS, Symbols, tree_of  # noqa: E402

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
        return torch.logaddexp(x.sin() + 0j, x + 1j).abs() * 2.0 + torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(3, 3)
    near(compiled(f)(x), f(x))
    told = str(pb.torch.report())
    again()
    near(compiled(f)(x), f(x))
    assert hits() == 1 and str(pb.torch.report()) == told and "logaddexp" in told


def test_a_graph_of_another_process_tells_what_pytorch_runs(caplog: Any) -> None:
    x = torch.randn(8)
    for n in range(2):
        again()
        caplog.clear()
        with caplog.at_level("INFO", logger="pullback"):
            compiled(lambda x: torch.logaddexp(x.sin() + 0j, x + 1j).abs())(x)
        assert hits() == n and "PyTorch runs aten.logaddexp" in caplog.text


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


def sized(count: int) -> Any:
    return torch.arange(6.0 * count).reshape(count, 6).sin()


def marked(count: int, most: int = 40) -> Any:
    x = sized(count)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=most)
    return x


def test_graphs_of_symbolic_sizes_are_kept() -> None:
    """The second time with other sizes: what was a symbol is one, sums of symbols included."""
    net = model()

    def joined(x: Any) -> Any:
        return net(torch.cat([x, 2 * x[:3]])).softmax(0)

    for n, counts in enumerate([(5, 9), (31, 4, 12)]):
        again()
        for count in counts:
            run = compiled(joined, fallback="error")
            x = marked(count)
            near(run(x), joined(x))
            near(
                *(torch.autograd.grad(f(x).sin().sum(), [*net.parameters()]) for f in (run, joined))
            )
        assert hits() == n and counters["aot_autograd"]["autograd_cache_miss"] == 1 - n
        assert [g.sizes for g in pb.torch.report().graphs] == ["", ""]


def test_bounds_that_were_told_are_those_of_a_kept_graph() -> None:
    for most, found in ((20, 0), (40, 0), (20, 1)):
        again()
        run = compiled(lambda x: x.cumsum(0) * x.shape[0])
        x = marked(7, most)
        near(run(x), x.cumsum(0) * 7)
        assert hits() == found
    with pytest.raises(Exception, match="E122"):
        run(sized(21))


def test_other_sizes_than_those_that_a_kept_graph_is_for() -> None:
    """A choice by a size is a guard of the kept graph, too."""

    def chosen(x: Any) -> Any:
        return x.sin() if x.shape[0] > 8 else x.cos()

    for count, found in ((5, 0), (30, 0), (7, 1), (12, 1)):
        again()
        x = sized(count)
        near(torch.compile(chosen, backend=pb.torch.backend, dynamic=True)(x), chosen(x))
        assert hits() == found, count


def test_a_kept_graph_says_why_it_has_a_program_for_each_size() -> None:
    for n in range(2):
        again()
        x = marked(7)
        assert torch.equal(compiled(lambda x: x.mode(0).values)(x), x.mode(0).values)
        (graph,) = pb.torch.report().graphs
        assert hits() == n and "symbolic" in graph.sizes


def test_sizes_are_trees_of_named_functions() -> None:
    symbols = Symbols([["s0", 6, 2, None, True], ["s1", 4, 2, 9, True]])
    s0, s1 = symbols.size("s0"), symbols.size("s1")
    for size, number in ((s0, 6), (3 * s0 + s1 - 2, 20), ((s0 + 1) // 2, 3), (s0 * s1 % 5, 4)):
        back = symbols.size(json.loads(json.dumps(tree_of(size))))
        assert back.node.expr == size.node.expr and back.node.hint == number, str(size)
    assert int(symbols.env.var_to_range[s1.node.expr].upper) == 9
    for tree in ("s2", ["eval", "s0"], ["__class__"], [], None, {"a": 1}):
        assert tree not in FUNCTIONS if isinstance(tree, str) else True
        with pytest.raises(StateError, match="E391"):
            symbols.size(tree)
    with pytest.raises(UnsupportedError, match="E390"):
        tree_of(s0.node.expr**-1)


SIZES = """
import sys, torch, pullback as pb
from torch._dynamo.utils import counters
from pullback.bridge.record import RECORD
torch.manual_seed(0)
mark, counts = sys.argv[1] == "mark", map(int, sys.argv[2:])
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
run = torch.compile(net, backend=pb.torch.backend, options={"fallback": "error"})
for count in counts:
    x = torch.randn(count, 6)
    if mark:
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    got = torch.autograd.grad(run(x).square().sum(), [*net.parameters()])
    want = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
said = counters["aot_autograd"]
stats = [one.stats for one in RECORD.programs.values()]
counts = said["autograd_cache_miss"], said["autograd_cache_hit"], sum(s.compiled for s in stats)
print(*counts, len(stats))
"""


@pytest.mark.slow  # processes
@pytest.mark.parametrize("kind", ["mark", "second size"])
def test_a_second_process_takes_symbolic_graphs(kind: str, tmp_path: Path) -> None:
    """Neither AOT traces, nor is a program compiled; where PyTorch makes two graphs, both."""
    graphs = 1 if kind == "mark" else 2
    said = []
    for counts in (["5", "9", "16"], ["5", "12", "7", "3"]):
        ran = subprocess.run(
            [sys.executable, "-c", SIZES, kind, *counts],
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
                "PULLBACK_CACHE": str(tmp_path / "p"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        said.append([int(n) for n in ran.stdout.split()])
    first, second = said
    assert first[:2] == [graphs, 0] and first[2] > 0
    assert second[:3] == [0, graphs, 0] and second[3] == 2 * graphs
