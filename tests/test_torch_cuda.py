"""PyTorch's tensors of a device, on a device that is none: what lies there is memory of this
process that the fake adopts; graphs are traced on PyTorch's own stand-ins for CUDA tensors.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # they need PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402

import fake_triton  # noqa: E402
import pullback as pb  # noqa: E402
from pullback.backends.cuda.pool import VARIABLE  # noqa: E402
from pullback.backends.cuda.runner import ALIGNED, CudaRunner  # noqa: E402
from pullback.backends.triton import tune  # noqa: E402
from pullback.bridge import backend, counted, device, graphs, modules  # noqa: E402
from pullback.bridge.draws import seeded  # noqa: E402
from pullback.bridge.graphs import Native, lacking, place_of  # noqa: E402
from pullback.bridge.programs import Programs  # noqa: E402
from pullback.errors import UnsupportedError  # noqa: E402
from pullback.triton import contracted  # noqa: E402

pytestmark = pytest.mark.torch
DEVICE = torch.device("cuda:0")
dropped = torch.ops.aten.native_dropout.default


class There:
    """Which tensors lie on the device: all but those that are told to be the host's. What a program
    is given is kept until the stream is done, as PyTorch's allocator gives it to nobody before.
    """

    def __init__(self, fake: Any, stream: int) -> None:
        self.fake, self.stream = fake, stream
        self.host: list[Any] = []
        self.kept: list[Any] = []
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
    monkeypatch.setattr(device, "is_here", made.is_here)
    monkeypatch.setattr(device, "current_stream", made.current)
    monkeypatch.setattr(device, "made_on", lambda _, shape, kind: torch.empty(shape, dtype=kind))
    monkeypatch.setattr(device, "moved_to", lambda _, tensor: tensor)
    launch, plain = device.launch, CudaRunner.at

    def kept(entry: Any, tensors: Any, results: Any, sizes: Any) -> None:
        made.kept += [*tensors, *results]
        launch(entry, tensors, results, sizes)

    monkeypatch.setattr(device, "launch", kept)

    def at(self: CudaRunner, address: int, shape: Any, kind: Any, nbytes: int) -> Any:
        whole = int(np.prod(shape)) * kind.itemsize  # what begins inside of a vector is copied
        blocks.fake.adopt(address, nbytes if address % ALIGNED else whole)
        return plain(self, address, shape, kind, nbytes)

    monkeypatch.setattr(CudaRunner, "at", at)
    yield made


def ended(there: There) -> None:
    """What PyTorch's stream was given is done, as `torch.cuda.synchronize` waits for it."""
    there.fake._everything()
    there.kept.clear()


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
    text = "c[b, p, q] = sum[r](x[b, p, r] * y[b, q, r])"  # letters that no other product has
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
    assert device.placed_on(DEVICE, told.options).deterministic


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


# --- symbolic sizes


@pytest.fixture
def compiling(there: There, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Native]]:
    """`torch.compile` on tensors of the host that are told to be of the device; its graphs."""
    made: list[Native] = []
    plain = Native.__init__

    def init(self: Native, *given: Any) -> None:
        with monkeypatch.context() as own:
            own.setattr(graphs, "place_of", lambda graph: DEVICE)
            plain(self, *given)
        made.append(self)

    monkeypatch.setattr(Native, "__init__", init)
    monkeypatch.setattr(backend, "_kept", lambda *_: False)
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def compiled(function: Any, **how: Any) -> Any:
    return torch.compile(function, backend=pb.torch.backend, options={"fallback": "error"}, **how)


def traced_once(natives: list[Native]) -> bool:
    """Whether every graph is one program for all sizes, made once."""
    return all(n._sized is not None and n._sized.traces == 1 and not n._programs._known
               for n in natives)  # fmt: skip


SIZES = 9, 4, 14, 2, 15, 3, 9
COPIES = "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"


def bounded(*tensors: Any, axis: int = 0, most: int = 16) -> None:
    for tensor in tensors:
        torch._dynamo.mark_dynamic(tensor, axis, min=2, max=most)


def test_one_program_for_all_sizes(there: There, compiling: list[Native]) -> None:
    """Of graphs forward and backward; nothing is copied, results are as large as they are."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    own = compiled(lambda x: torch.softmax(model(x), 1))
    before = there.fake.calls.count("cuStreamSynchronize")
    for size in SIZES:
        x = torch.randn(size, 6)
        bounded(x)
        x.requires_grad_()
        head = torch.randn(size, 3)
        result = own(x)
        ended(there)
        want = torch.softmax(model(x), 1)
        torch.testing.assert_close(result, want, rtol=1e-4, atol=1e-5)
        inputs = [x, *model.parameters()]
        grown = torch.autograd.grad(result, inputs, head)
        ended(there)
        for got, other in zip(grown, torch.autograd.grad(want, inputs, head), strict=True):
            torch.testing.assert_close(got, other, rtol=1e-4, atol=1e-4)
    assert len(compiling) == 2 and traced_once(compiling)
    assert not any(name in there.fake.calls for name in COPIES)
    assert there.fake.calls.count("cuStreamSynchronize") == before


def test_bounds_that_nobody_told_grow(there: There, compiling: list[Native]) -> None:
    """Automatic sizes: the first size has a graph, the second one a program for what is near."""
    own = compiled(lambda x: torch.softmax(x.sin(), -1) @ x.T)
    for size in (5, 7, 3, 16, 17, 60, 2, 1, 0, 60):
        x = torch.randn(size, 4)
        result = own(x)
        ended(there)
        torch.testing.assert_close(result, torch.softmax(x.sin(), -1) @ x.T, rtol=1e-4, atol=1e-5)
    assert sum(n._sized is not None for n in compiling) == 1


def test_sizes_behind_others_are_copied_on_the_device(
    there: There, compiling: list[Native]
) -> None:
    own = compiled(lambda x, y: (torch.tanh(x) + y).transpose(1, 2) @ x)
    for size in SIZES:
        x, y = torch.randn(3, size, 5), torch.randn(3, size, 1)
        bounded(x, y, axis=1)
        result = own(x, y)
        ended(there)
        torch.testing.assert_close(result, (torch.tanh(x) + y).transpose(1, 2) @ x)
    assert traced_once(compiling)
    assert not any(name in there.fake.calls for name in COPIES)
    assert "cuMemcpy3DAsync_v2" in there.fake.calls or "cuMemcpyDtoDAsync_v2" in there.fake.calls


@pytest.mark.parametrize("lies", ["columns", "parts of rows", "reversed", "shared"])
def test_strided_sizes_are_read_where_they_lie(
    lies: str, there: There, compiling: list[Native]
) -> None:
    """Columns, and one for all: nothing is copied but results, whose sizes are behind others."""
    views: dict[str, Callable[[int], Any]] = {
        "columns": lambda n: torch.randn(n, 6).T,
        "parts of rows": lambda n: torch.randn(n, 12)[:, 4:10].T,
        "reversed": lambda n: torch.randn(n, 6)[:, ::2].T,
        "shared": lambda n: torch.randn(6, 1).expand(6, n),
    }
    own = compiled(lambda x: torch.tanh(x) * 2 + x.sum(0))
    for size in SIZES:
        x = views[lies](size)
        bounded(x, axis=1)
        result = own(x)
        ended(there)
        torch.testing.assert_close(result, torch.tanh(x) * 2 + x.sum(0))
    assert traced_once(compiling)
    assert not any(name in there.fake.calls for name in COPIES)
    assert "cuMemcpyDtoDAsync_v2" not in there.fake.calls
    read = lies in ("columns", "shared")  # of the others PyTorch takes the stride for a size
    assert there.fake.calls.count("cuMemcpy3DAsync_v2") == len(SIZES) * (2 - read)


def chain(x: Any) -> Any:
    """With temporaries as long as it is."""
    y = torch.tanh(x @ HALF)
    z = torch.tanh((y * y.sum(0)) @ HALF)
    return (z * y).sum(0)


HALF = torch.eye(4) * 0.5


def test_what_grew_gives_its_arena_to_nobody_before_it_is_idle(
    there: There, compiling: list[Native], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes it, on another stream: the fake would tell."""
    monkeypatch.setenv(VARIABLE, "")
    own, other = compiled(chain), compiled(lambda x: chain(x) * 2)
    given = [torch.randn(n, 4) for n in (20, 2000, 20)]
    bounded(*given, most=4096)
    results = [own(given[0]), own(given[1])]
    with (on := pool_driver(compiling)).here():
        there.stream = on.stream()
    results.append(other(given[2]))
    ended(there)
    for x, got, times in zip(given, results, (1, 1, 2), strict=True):
        torch.testing.assert_close(got, chain(x) * times, rtol=1e-3, atol=1e-3)
    assert traced_once(compiling)


def pool_driver(natives: list[Native]) -> Any:
    """The device of graphs that ran."""
    assert natives[0]._sized is not None
    (sizing,) = natives[0]._sized._programs.values()
    runner: Any = sizing.entry.executable.runner
    return runner.own.driver


def test_a_program_that_goes_is_over_first(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is the next one's, whose stream is another."""
    monkeypatch.setenv(VARIABLE, "")
    x = torch.randn(64, 64)
    for _ in range(2):
        own = native(there, lambda x: torch.softmax(x @ x, 1) @ x, x, patch=monkeypatch)
        result = own([x])
        assert own._programs is not None
        (ready,) = own._programs._known.values()
        driver = ready.entry.executable.runner.own.driver
        with driver.here():
            there.stream = driver.stream()
        del own, ready
        gc.collect()
    ended(there)
    torch.testing.assert_close(result, torch.softmax(x @ x, 1) @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lies", ["rows", "columns", "parts"])
def test_an_operator_of_symbolic_axes(lies: str, there: There) -> None:
    """Of no element, of one, in any order; its derivative too. Of parts of rows, which begin inside
    of a vector, no more is copied than there is: the last row is shorter.
    """
    views: dict[str, Callable[[int], Any]] = {
        "rows": lambda n: torch.randn(n, 4),
        "columns": lambda n: torch.randn(4, n).T,
        "parts": lambda n: torch.randn(n, 9)[:, 1:9:2],
    }
    how = {"dynamic": {"x": {0: pb.dim("n", 0, 24)}}, "options": pb.Options(cache=None)}
    own = pb.torch.op(grown_by, name=f"cuda::{lies}", **how)
    programs, derived = own.placed(DEVICE), own.pullback().placed(DEVICE)
    for size in (3, 24, 0, 1, 17, 3):
        x, w, head = views[lies](size), torch.randn(4, 3), torch.randn(size, 3)
        result, adjoints = programs(x, w), derived(head, x, w, 3)
        ended(there)
        x_, w_ = x.detach().clone().requires_grad_(), w.clone().requires_grad_()
        want = torch.tanh(x_ @ w_) * 2
        torch.testing.assert_close(result, want.detach(), rtol=1e-4, atol=1e-5)
        want.backward(head)
        for got, leaf in zip(adjoints, (x_, w_), strict=True):
            torch.testing.assert_close(got, leaf.grad, rtol=1e-4, atol=1e-4)
    assert programs.jit.traces == 1 and not any(name in there.fake.calls for name in COPIES)


def grown_by(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
    return pb.tanh(x @ w) * 2


# --- whole steps


def network() -> Any:
    parts = [torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)]
    return torch.nn.Sequential(*parts)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02, fused=True),
}


def trained(
    there: There, ours: Any, make: Callable[[Any], Any], loss: Any, batches: Any, **how: Any
) -> Any:
    """Steps of a model beside those of eager; the step."""
    theirs = copy.deepcopy(ours)
    own, other = make(ours), make(theirs)
    step = pb.torch.step(ours, loss, own, **how)
    places = [p.data_ptr() for p in ours.parameters()]
    for x, y in batches:
        got = step(x, y)
        ended(there)
        other.zero_grad()
        want = loss(theirs(x), y)
        want.backward()
        other.step()
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-5)
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)
    assert [p.data_ptr() for p in ours.parameters()] == places
    for a, b in zip(own.state.values(), other.state.values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.allclose(a[n], b[n], rtol=1e-3, atol=1e-5) for n in a)
    return step


def batches(*sizes: int) -> list[Any]:
    return [(torch.randn(n, 5), torch.randn(n, 3)) for n in sizes]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_training_are_those_of_eager(
    name: str, there: There, compiling: list[Native], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and states where they are; nothing is copied to the host, which waits for none."""
    reads: list[Any] = []
    plain = counted.read
    monkeypatch.setattr(counted, "read", lambda count: reads.append(count) or plain(count))
    waits = there.fake.calls.count("cuStreamSynchronize")
    trained(there, network(), OPTIMIZERS[name], functional.mse_loss, batches(6, 6, 6, 6))
    assert len(compiling) == 1 and not reads, "counts that are known are not read"
    assert "cuMemcpyDtoHAsync_v2" not in there.fake.calls
    assert set(there.passed) == {there.stream}
    assert there.fake.calls.count("cuStreamSynchronize") == waits


def test_a_count_that_another_wrote_is_read(there: There, compiling: list[Native]) -> None:
    own = counted.Counted()
    count = own.begun(3.0, {"fused": True}, torch.ones(2))
    assert own.number(count) == 3
    own.step([count])
    count += 4
    assert own.number(count) == 8 == own.number(count)


def test_steps_of_batches_of_any_size(there: There, compiling: list[Native]) -> None:
    """One program, that writes parameters where they are."""
    sizes = batches(*SIZES)
    for pair in sizes:
        bounded(*pair)
    trained(there, network(), OPTIMIZERS["adamw"], lambda y, t: ((y - t) ** 2).sum(), sizes)
    assert len(compiling) == 1 and traced_once(compiling), [n.reason for n in compiling]
    assert "cuMemcpyDtoHAsync_v2" not in there.fake.calls


def test_steps_with_indices_copy_what_checks_told_alone(
    there: There, compiling: list[Native]
) -> None:
    given = [(torch.randn(6, 5), torch.randint(3, (6,))) for _ in range(3)]
    trained(there, network(), OPTIMIZERS["momentum"], functional.cross_entropy, given)
    assert there.fake.calls.count("cuMemcpyDtoHAsync_v2") == len(given)


def test_a_step_of_two_devices_is_refused() -> None:
    model = network()
    step = pb.torch.step(model, functional.mse_loss, OPTIMIZERS["momentum"](model))
    with pytest.raises(UnsupportedError, match="tensors of cpu and meta") as error:
        step(torch.randn(6, 5, device="meta"), torch.randn(6, 3))
    assert error.value.code == "E387"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_on_a_device_has_a_place_in_its_program(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rates that lie there, on PyTorch's own stand-ins for CUDA tensors."""
    monkeypatch.setattr(device, "moved_to", lambda place, t: torch.empty_like(t, device=place))
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(5, 7, device="cuda"))])
        step = pb.torch.step(layer, functional.mse_loss, OPTIMIZERS[name](layer))
        own = step._given(DEVICE)
        form = own.plan[0][0]

        def run(p: Any, g: Any, held: Any, row: Any) -> Any:
            return step._rule.update(p, g, held, row.float().unbind(), form)

        given = layer[0].detach(), torch.empty(5, 7, device="cuda"), own.slots[0].held, own.rows[0]
        gm = make_fx(run, tracing_mode="fake")(*given)
    why = [lacking(n) for n in gm.graph.nodes if n.op == "call_function"]
    apart = [one for one in why if one and " on cpu" in one]
    assert own.rows[0].device == DEVICE and len(why) > 3 and not apart
