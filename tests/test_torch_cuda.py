"""PyTorch's tensors of a device, on a device that is none: what lies there is memory of this
process that the fake adopts; graphs are traced on PyTorch's own stand-ins for CUDA tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # they need PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import fake_triton  # noqa: E402
import pullback as pb  # noqa: E402
from pullback.backends.cuda.runner import CudaRunner  # noqa: E402
from pullback.backends.triton import tune  # noqa: E402
from pullback.bridge import backend, graphs, modules, programs  # noqa: E402
from pullback.bridge.draws import seeded  # noqa: E402
from pullback.bridge.graphs import Native, lacking, place_of  # noqa: E402
from pullback.bridge.programs import Programs  # noqa: E402
from pullback.errors import UnsupportedError  # noqa: E402
from pullback.triton import contracted  # noqa: E402

pytestmark = pytest.mark.torch
DEVICE = torch.device("cuda:0")
dropped = torch.ops.aten.native_dropout.default


class There:
    """Which tensors lie on the device: all but those that are told to be the host's."""

    def __init__(self, fake: Any, stream: int) -> None:
        self.fake, self.stream = fake, stream
        self.host: list[Any] = []
        self.passed: list[int] = []

    def is_here(self, tensor: Any) -> bool:
        return any(tensor is one for one in self.host)

    def current(self, tensors: Any) -> int:
        self.passed.append(self.stream)
        return self.stream


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    on, blocks = fake_triton.device(monkeypatch)
    with on.here():
        made = There(blocks.fake, on.stream())
    monkeypatch.setattr(programs, "is_here", made.is_here)
    monkeypatch.setattr(programs, "current_stream", made.current)
    monkeypatch.setattr(programs, "made_on", lambda _, shape, kind: torch.empty(shape, dtype=kind))
    plain = CudaRunner.at

    def at(self: CudaRunner, address: int, shape: tuple[int, ...], kind: Any) -> Any:
        blocks.fake.adopt(address, int(np.prod(shape)) * kind.itemsize)
        return plain(self, address, shape, kind)

    monkeypatch.setattr(CudaRunner, "at", at)
    yield made


def ended(there: There) -> None:
    """What PyTorch's stream was given is done, as `torch.cuda.synchronize` waits for it."""
    there.fake._everything()


def native(there: There, function: Callable[..., Any], *given: Any, patch: Any) -> Native:
    """A graph as a program of the device; it is traced on tensors of the host."""
    gm = make_fx(function)(*given)
    patch.setattr(graphs, "place_of", lambda graph: DEVICE)
    return Native(gm, pb.Options(cache=None))


def test_tensors_are_read_where_they_lie(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strided ones too; results are PyTorch's; the host waits for nothing."""
    x, w = torch.randn(33, 20), torch.randn(40, 20).T[:, ::2]
    own = native(there, lambda x, w: torch.relu(x @ w) + 1, x, w, patch=monkeypatch)
    before = there.fake.calls.count("cuStreamSynchronize")
    results = [own([x, w]) for _ in range(3)]
    waited = there.fake.calls.count("cuStreamSynchronize") - before
    assert waited == 0, "all stands in PyTorch's order"
    ended(there)
    for result in results:
        torch.testing.assert_close(result, torch.relu(x @ w) + 1)
    assert set(there.passed) == {there.stream}
    assert "cuMemcpyHtoDAsync_v2" not in there.fake.calls
    assert "cuMemcpyDtoDAsync_v2" not in there.fake.calls


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_a_product_of_the_derivative_of_a_triton_kernel(
    there: There, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By columns of a batch, added up in float32."""
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    behind, b = torch.randn(2, 33, 20).to(kind), torch.randn(2, 20, 40).to(kind).mT
    text = "c[b, m, k] = sum[n](x[b, m, n] * y[b, k, n])"
    name = str(kind).removeprefix("torch.")
    product = contracted.operator.__wrapped__(text, name, "float32")  # a new one, of no cache
    made = product.placed(DEVICE)(behind, b)
    ended(there)
    right = behind.double() @ b.double().mT
    torch.testing.assert_close(made.double(), right, rtol=1e-5, atol=1e-5)


def test_a_write_into_an_argument(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(p: Any, g: Any) -> Any:
        new = p - 0.1 * g
        p.copy_(new)
        return new.sum()

    p, g = torch.randn(5, 7), torch.randn(5, 7)
    own = native(there, step, p.clone(), g, patch=monkeypatch)
    want = p - 0.1 * g
    total = own([p, g])
    ended(there)
    torch.testing.assert_close(p, want)
    torch.testing.assert_close(total, want.sum())


def test_numbers_of_the_host_are_copied(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    x, rate = torch.randn(9, 5), torch.tensor(0.25)
    there.host.append(rate)
    own = native(there, lambda x, rate: x * rate, x, rate, patch=monkeypatch)
    result = own([x, rate])
    ended(there)
    torch.testing.assert_close(result, x * rate)
    assert there.fake.calls.count("cuMemcpyHtoDAsync_v2") == 1


def test_runs_of_two_streams_share_no_memory_at_once(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes after the first: temporaries are the program's."""
    x = torch.randn(64, 64)
    own = native(there, lambda x: torch.softmax(x @ x, 1) @ x, x, patch=monkeypatch)
    first = own([x])
    runner = own._programs._known and next(iter(own._programs._known.values()))
    driver = runner.entry.executable.runner.own.driver
    with driver.here():
        there.stream = driver.stream()
    second = own([x])
    ended(there)
    for result in (first, second):
        torch.testing.assert_close(result, torch.softmax(x @ x, 1) @ x, rtol=1e-4, atol=1e-4)


def test_an_index_that_is_wrong_is_told(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    x, i = torch.randn(9, 5), torch.tensor([0, 2, 8])
    own = native(there, lambda x, i: x[i] * 2, x, i, patch=monkeypatch)
    result = own([x, i])
    torch.testing.assert_close(result, x[i] * 2)
    with pytest.raises(pb.errors.IndexRangeError):
        own([x, torch.tensor([0, 2, 9])])


def test_an_operator_and_its_derivative(there: There) -> None:
    """By programs of the device, which are apart from those of the processor."""

    def scaled(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        return pb.tanh(x @ w) * 2

    own = pb.torch.op(scaled, options=pb.Options(cache=None))
    x, w = torch.randn(6, 4), torch.randn(4, 3)
    placed = own.placed(DEVICE)
    assert isinstance(placed, Programs) and own.placed(DEVICE) is placed
    result = placed(x, w)
    head = torch.randn(6, 3)
    adjoints = own.pullback().placed(DEVICE)(head, x, w, 3)
    ended(there)
    x_, w_ = x.clone().requires_grad_(), w.clone().requires_grad_()
    want = torch.tanh(x_ @ w_) * 2
    torch.testing.assert_close(result, want.detach())
    want.backward(head)
    for got, leaf in zip(adjoints, (x_, w_), strict=True):
        torch.testing.assert_close(got, leaf.grad, rtol=1e-4, atol=1e-5)
    assert own.programs.jit.traces == 0, "nothing was made for the processor"


def test_deterministic_algorithms_are_those_of_programs(there: There) -> None:
    """As PyTorch has it when an operator is called; each has programs of its own."""

    def added(x: pb.Tensor, i: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
        return pb.index_add(x, i, v)

    own = pb.torch.op(added, options=pb.Options(cache=None))
    given = torch.zeros(5), torch.arange(40) % 5, torch.arange(40.0)
    made = {}
    for same in (False, True):
        torch.use_deterministic_algorithms(same)
        try:
            made[same] = own.placed(DEVICE)
            result = made[same](*given)
        finally:
            torch.use_deterministic_algorithms(False)
        ended(there)
        torch.testing.assert_close(result, torch.zeros(5).index_add(0, *given[1:]))
        assert made[same].jit.program.options.deterministic == same
    assert own.placed(DEVICE) is made[False] is not made[True]
    told = pb.torch.op(added, options=pb.Options(cache=None, deterministic=True))
    assert programs.placed_on(DEVICE, told.options).deterministic


def fakes(*shapes: tuple[int, ...], device: str = "cuda") -> list[Any]:
    with FakeTensorMode():
        return [torch.empty(shape, device=device) for shape in shapes]


def test_a_graph_of_a_device_has_a_place_for_its_own_alone() -> None:
    """What goes to the host, and what is computed there, PyTorch runs."""

    def function(a: Any, b: Any, rate: Any) -> Any:
        return torch.relu(a @ b * rate).cpu() + 1

    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [*fakes((3, 4), (4, 5)), torch.empty(())]
        a, b = torch.empty(3, 4, device="cuda"), torch.empty(4, 5, device="cuda")
        gm = make_fx(function, tracing_mode="fake")(a, b, given[2])
    assert place_of(gm.graph) == DEVICE
    steps = [n for n in gm.graph.nodes if n.op == "call_function"]
    why = {str(n.target): lacking(n) for n in steps}
    assert why["aten.mm.default"] is why["aten.mul.Tensor"] is why["aten.relu.default"] is None
    assert why["aten._to_copy.default"] == "a tensor on cpu beside cuda:0"
    assert why["aten.add.Tensor"] == "a tensor on cpu beside cuda:0"


def test_what_has_no_programs_is_refused() -> None:
    backend._placed([*fakes((2, 3)), torch.ones(())])
    two = [*fakes((2,), device="cuda:0"), *fakes((2,), device="cuda:1")]
    for given in (two, fakes((2,), device="xpu")):
        with pytest.raises(UnsupportedError, match="one CUDA device") as error:
            backend._placed(given)
        assert error.value.code == "E387"


def test_max_autotune_measures_launches(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a program runs, on memory of its own; the fastest is what runs."""
    backend._placed(fakes((2,)))
    monkeypatch.setattr(tune, "MEASURED", 2)
    monkeypatch.setattr(tune.Bench, "near", lambda self, times: [])
    there.fake.lasts = lambda name, count, threads: 90.0 / int(name.rpartition("_")[2]) ** 2
    settings = backend.Settings.of("max-autotune", None)
    assert settings.program().tune == backend.TUNE

    def step(p: Any, x: Any) -> Any:
        new = p * x + 1
        p.copy_(new)
        return new.sum()

    gm = make_fx(step)(torch.ones(600), torch.ones(600))
    monkeypatch.setattr(graphs, "place_of", lambda graph: DEVICE)
    own = Native(gm, replace(settings.program(), cache=None))
    p, x = torch.full((600,), 2.0), torch.rand(600)
    want = p * x + 1
    total = own([p, x])  # whose memory is there until its stream has come so far
    ended(there)
    torch.testing.assert_close(p, want)
    torch.testing.assert_close(total, want.sum())
    ready = next(iter(own._programs._known.values()))
    assert "measured: " in ready.entry.executable.explain()


def test_an_operator_of_two_devices_is_refused() -> None:
    own = pb.torch.op(lambda_of_two)
    with pytest.raises(UnsupportedError, match="cuda:0 and cuda:1"):
        own._on_device(*fakes((2,), device="cuda:0"), *fakes((2,), device="cuda:1"))


def lambda_of_two(x: pb.Tensor, y: pb.Tensor) -> pb.Tensor:
    return x + y


def test_layers_of_a_device_are_taken_as_those_of_the_processor() -> None:
    layer, other = torch.nn.ReLU(), torch.nn.ReLU()
    with FakeTensorMode():
        layer.scale = torch.nn.Parameter(torch.empty(3, device="cuda"))
        other.scale = torch.nn.Parameter(torch.empty(3, device="xpu"))
    assert modules._refusal(layer) is None
    assert modules._refusal(other) == "it holds tensors of xpu:0, torch.float32"


def test_draws_of_a_device_are_those_of_programs() -> None:
    """The seed is the host's, from PyTorch's generator; what it makes lies on the device."""
    with FakeTensorMode():
        x = torch.empty(8, 4, device="cuda")
        gm = make_fx(lambda x: torch.nn.functional.dropout(x, 0.5), tracing_mode="fake")(x)
        seeded(gm)
    why = [lacking(n) for n in gm.graph.nodes if n.op == "call_function"]
    assert not any(why), why


def test_a_dropout_draws_on_the_device(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many zeros as asked for, other ones at each call."""
    x = torch.ones(64, 64)
    with FakeTensorMode() as mode:
        gm = make_fx(lambda x: dropped(x, 0.5, True)[0], tracing_mode="fake")(mode.from_tensor(x))
        seeded(gm)
    monkeypatch.setattr(graphs, "place_of", lambda graph: DEVICE)
    monkeypatch.setattr(graphs, "seed", lambda: there.host.append(draw()) or there.host[-1])
    own = Native(gm, pb.Options(cache=None))
    first, second = own([x]), own([x])
    ended(there)
    assert first.unique().tolist() == [0.0, 2.0] and 0.4 < (first == 0).float().mean() < 0.6
    assert not torch.equal(first, second)


def draw() -> Any:
    return torch.randint(1 << 31, (2,), dtype=torch.int32)
