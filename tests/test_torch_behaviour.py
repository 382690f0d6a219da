"""`torch.compile(backend="pullback")`: behaviours that users of a backend rely on, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.errors import IndexRangeError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.profiler import profile  # noqa: E402

from pullback.bridge.backend import Settings  # noqa: E402
from pullback.bridge.backend import compiled as graph_compiled  # noqa: E402

COPY = torch.ops.aten.copy_.default

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def compiled(function: Any, fallback: str = "error", options: Any = None, **how: Any) -> Any:
    options = {"fallback": fallback, **(options or {})}
    return torch.compile(function, backend=pb.torch.backend, options=options, **how)


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def saved(run: Callable[[], Any]) -> int:
    """Bytes that autograd keeps of a forward, but for parameters and arguments."""
    kept: dict[int, int] = {}

    def pack(t: Any) -> Any:
        if not t.requires_grad and t.dtype != torch.int64:
            kept[t.data_ptr()] = t.numel() * t.itemsize
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(kept.values())


# --- writes into arguments ------------------------------------------------------------------------


def _read_after(x: Any, y: Any) -> Any:
    x.copy_(y)
    z = x + 1
    y.copy_(z * x)
    return z, x * y


def _exchanged(x: Any, y: Any) -> Any:
    t = x * 1.0
    x.copy_(y)
    y.copy_(t)
    return x - y, y


def _turned(x: Any, y: Any) -> Any:
    x.copy_(x.flip(0) + y.t())
    y.copy_(x @ y)
    return y.sum(0), x


def _summed(x: Any, y: Any) -> Any:
    x.copy_(torch.cat([x[:1], x[1:] + x[:-1]]))
    y.copy_(y.cumsum(1) + x.amax())
    return x.mean() + y, x


def _cast(x: Any, y: Any) -> Any:
    x.copy_(y.double() * 1.5)
    y.copy_(x[0])
    return x + y, x


def _twice(x: Any, y: Any) -> Any:
    x.add_(y)
    x.mul_(x)
    y.sub_(x)
    x.div_(y.abs() + 1)
    return x, y


WRITES = (_read_after, _exchanged, _turned, _summed, _cast, _twice)


def rows(t: Any) -> Any:
    return t.clone()


def columns(t: Any) -> Any:
    return t.t().contiguous().t()


def gaps(t: Any) -> Any:
    return torch.zeros(2 * len(t), t.shape[1])[::2].copy_(t)


LIES: tuple[Callable[[Any], Any], ...] = (rows, columns, gaps)


@pytest.mark.parametrize("function", WRITES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_order_of_writes(function: Any, threads: int) -> None:
    """A graph with writes between reads, as one program and in parts, in any memory."""
    a, b = torch.randn(5, 5), torch.randn(5, 5)
    for one in LIES:
        for other in LIES:
            x, y, u, v = one(a), other(b), one(a), other(b)
            gm = make_fx(function)(one(a), other(b))
            if one is other:  # reads name the argument, not the write
                for node in gm.graph.find_nodes(op="call_function", target=COPY):
                    node.replace_all_uses_with(node.args[0])
            settings = Settings(threads=threads)
            eager = function(u, v)
            own = graph_compiled(gm, settings, "inference")([x, y])
            near(own[0] if torch.is_tensor(eager) else tuple(own), eager)
            near(x, u)
            near(y, v)
            beyond = x._base is not None and x._base.shape[0] == 10
            assert not beyond or not x._base[1::2].any()


@pytest.mark.parametrize("function", WRITES)
def test_the_order_of_writes_of_models(function: Any) -> None:
    """Through all of PyTorch, once where a part is its own."""
    for one in LIES:
        a, b = torch.randn(5, 5), torch.randn(5, 5)
        for extra in (lambda t: t, lambda t: torch.logaddexp(t + 0j, t + 1j).abs()):

            def whole(x: Any, y: Any, extra: Any = extra) -> Any:
                z = extra(x)
                return function(x, y), z

            x, y, u, v = one(a), rows(b), one(a), rows(b)
            near(compiled(whole, "allow")(x, y), whole(u, v))
            near(x, u)
            near(y, v)


def copies(run: Callable[[], Any]) -> int:
    """How often PyTorch copied."""
    with profile() as seen:
        run()
    return sum(e.count for e in seen.key_averages() if e.key == "aten::copy_")


def test_programs_write_where_arguments_lie() -> None:
    """Running statistics, a cache, an optimiser's step: nothing is copied, versions count."""
    norm = nn.BatchNorm1d(4)
    run = compiled(norm)
    x = torch.randn(8, 4)
    run(x)
    assert not copies(lambda: run(x))
    other = nn.BatchNorm1d(4)
    other(x), other(x)
    near(norm.state_dict(), other.state_dict())

    def step(p: Any, m: Any, g: Any) -> None:
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)

    def cached(cache: Any, key: Any, at: Any) -> Any:
        cache[:, at] = key
        return (cache * key).sum(-1)

    def pair(function: Any, *args: Any) -> None:
        run = compiled(function)
        own, eager = ([t.clone() for t in args] for _ in range(2))
        run(*own), function(*eager)
        version, place = own[0]._version, own[0].data_ptr()
        assert not copies(lambda: run(*own))
        assert own[0]._version > version and own[0].data_ptr() == place
        function(*eager)
        near(own, eager)

    pair(step, *(torch.randn(6, 3) for _ in range(3)))
    pair(cached, torch.zeros(2, 7, 3), torch.randn(2, 1, 3), torch.tensor([4]))


def test_a_write_of_what_the_backward_reads() -> None:
    """The value before it is what the backward has."""

    def f(w: Any, x: Any) -> Any:
        y = (w * x.cos()).sin()
        x.add_(1)
        return y * (x * 2)

    w = torch.randn(4, requires_grad=True)
    a = torch.randn(4)
    b = a.clone()
    own, eager = (torch.autograd.grad(g(w, x).sum(), w)[0] for g, x in ((compiled(f), a), (f, b)))
    near(own, eager)
    near(a, b)


def test_views_that_begin_to_overlap() -> None:
    """Of one memory apart, then of shared places, then of two memories."""

    def f(x: Any, y: Any) -> Any:
        x.add_(y + 1)
        y.mul_(2)
        return x + y

    def check(run: Any, second: slice) -> None:
        a = torch.arange(8.0)
        b = a.clone()
        near(run(a[:4], a[second]), f(b[:4], b[second]))
        near(a, b)

    run = compiled(f)
    check(run, slice(4, 8))
    check(run, slice(4, 8))
    for second in (slice(2, 6), slice(0, 4)):
        a = torch.arange(8.0)
        with pytest.raises(UnsupportedError, match="share memory") as caught:
            run(a[:4], a[second])
        assert caught.value.code == "E388" and torch.equal(a, torch.arange(8.0))
        check(run, slice(4, 8))
        check(compiled(f), slice(4, 8))
    torch._dynamo.reset()
    check(compiled(f), slice(2, 6))
    pair = torch.zeros(4, 2)
    torch._dynamo.reset()
    near(compiled(f)(pair[:, 0], pair[:, 1]), f(*torch.zeros(4, 2).unbind(1)))


LOOK_UPS: dict[str, tuple[Callable[..., Any], bool]] = {
    "embedding": (lambda w, i: nn.functional.embedding(i, w), True),
    "gather": (lambda w, i: w.gather(0, i[:, None].expand(2, 3)), True),
    "index_select": (lambda w, i: w.index_select(0, i), True),
    "index": (lambda w, i: w[i], False),
    "cross_entropy": (lambda w, i: nn.functional.cross_entropy(w[:2], i), True),
    "scatter_add": (lambda w, i: w[:, 0].clone().scatter_add(0, i, w[:2, 0]), True),
    "index_put": (lambda w, i: torch.index_put(w, (i,), w[:2] * 2), False),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_an_index_out_of_range(name: str) -> None:
    """Raises, as in eager, also a negative one where eager counts from the start."""
    function, negative = LOOK_UPS[name]
    run = compiled(function)
    w = torch.randn(4, 3)
    near(run(w, torch.tensor([0, 2])), function(w, torch.tensor([0, 2])))
    for bad in (4, -5, -1) if negative else (4, -5):
        for one, error in ((run, IndexRangeError), (function, (IndexError, RuntimeError))):
            with pytest.raises(error):
                one(w, torch.tensor([0, bad]))


def test_nothing_is_half_written() -> None:
    """What depends on an index that is out of range is not in an argument afterwards."""

    def given(x: Any, i: Any, w: Any) -> Any:
        x.add_(nn.functional.embedding(i.unsqueeze(0), w)[0])
        return x * 2

    def computed(x: Any, i: Any, w: Any) -> Any:
        x.add_(w[(i * 2).remainder(19)])
        return x * 2

    for function in (given, computed):
        run = compiled(function)
        w = torch.randn(4, 3)
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        near(run(x, torch.tensor([0, 1]), w), function(y, torch.tensor([0, 1]), w))
        near(x, y)
        with pytest.raises(IndexRangeError) as caught:
            run(x, torch.tensor([0, 9]), w)
        assert torch.equal(x, y) and caught.value.code == "E106"
        assert (copies(lambda r=run, x=x, w=w: r(x, torch.tensor([0, 1]), w)) == 0) == (
            function is given
        )


def test_a_budget_of_what_is_kept() -> None:
    """PyTorch's own, from which gradients do not change."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh())
    x = torch.randn(64, 8)
    bytes_kept, grads = [], []
    for budget in (1.0, 0.5):
        torch._dynamo.reset()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            run = compiled(model)
            bytes_kept.append(saved(lambda run=run: run(x)))
            grads.append(torch.autograd.grad(run(x).square().sum(), list(model.parameters())))
    assert bytes_kept[1] <= 0.8 * bytes_kept[0]
    near(*grads)


# --- random numbers -------------------------------------------------------------------------------

DRAWS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "dropout": (lambda x: torch.dropout(x, 0.25, True), 1.0, 1 / 3),
    "alpha_dropout": (lambda x: nn.functional.alpha_dropout(x, 0.5, True), 0.443, 1.494),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.25), 0.25, 0.1875),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.75), 0.75, 0.1875),
    "rand": (lambda x: torch.rand(300, 100), 0.5, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x, dtype=torch.float64), 0.5, 1 / 12),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 16 / 12),
    "randn": (lambda x: torch.randn(300, 100), 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "normal": (lambda x: torch.normal(x * 2, 3.0), 2.0, 9.0),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1.0, 4.0),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.25),
    "normal of numbers": (lambda x: torch.normal(1.0, 2.0, (300, 100)), 1.0, 4.0),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(0, 0.25), 1.0317, 0.0687),
    "cauchy_": (lambda x: ((torch.empty_like(x).cauchy_(1, 2) - 1) / 2).atan(), 0.0, 0.8225),
    "log_normal_ as usual": (lambda x: torch.empty_like(x).log_normal_().log(), 1.0, 4.0),
    "cauchy_ as usual": (lambda x: torch.empty_like(x).cauchy_().atan(), 0.0, 0.8225),
    "geometric_": (lambda x: torch.empty_like(x).geometric_(0.5), 2.0, 2.0),
    "randint": (lambda x: torch.randint(2, 6, (300, 100)), 3.5, 1.25),
    "randint_like": (lambda x: torch.randint_like(x, 4), 1.5, 1.25),
}


@pytest.mark.parametrize("name", DRAWS)
def test_programs_draw(name: str) -> None:
    """By PyTorch's seed, of the type, mean and variance of eager, anew each call and place."""
    function, mean, variance = DRAWS[name]
    x = torch.ones(300, 100)

    def twice(x: Any) -> Any:
        return function(x), function(x)

    run = compiled(twice)
    torch.manual_seed(5)
    first, other = run(x)
    again = run(x)[0]
    torch.manual_seed(5)
    near(run(x)[0], first, 0.0)
    assert not torch.equal(first, again) and not torch.equal(first, other)
    eager = function(x)
    assert first.dtype == eager.dtype and first.shape == eager.shape
    for own in (first, other):
        assert abs(float(own.double().mean()) - mean) < 0.05
        assert abs(float(own.double().var()) - variance) < 0.1 * max(variance, 1)
    assert not pb.torch.report().fallbacks


def test_trials_are_one_at_the_least() -> None:
    """Whole numbers, of the type; what always succeeds does so at once."""
    trials = compiled(lambda x: (x.clone().geometric_(0.9), x.clone().geometric_(1 - 1e-9)))
    drawn, sure = trials(torch.zeros(200, 50, dtype=torch.int64))
    assert drawn.dtype == torch.int64 and int(drawn.min()) == 1 and int(drawn.max()) > 2
    assert torch.equal(sure, torch.ones_like(sure)) and not pb.torch.report().fallbacks


def checkpointed(x: Any) -> Any:
    def block(x: Any) -> Any:
        return torch.dropout(x.sin(), 0.5, True).cos()

    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


@pytest.mark.parametrize("options", [{}, {"fallback_random": True}])
def test_what_is_dropped_is_dropped_backward(options: Any) -> None:
    """Of two dropouts, also where a checkpoint computes them again."""
    for function in (lambda x: torch.dropout(torch.dropout(x, 0.5, True).sin(), 0.5, True),
                     checkpointed):  # fmt: skip
        x = torch.rand(40, 50).add(0.5).requires_grad_()
        y = compiled(function, "allow", options)(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        dropped = y == (1 if function is checkpointed else 0)
        assert torch.equal(grad == 0, dropped) and 0.2 < float(dropped.float().mean()) < 0.8
        near(pb.torch.report().fallbacks != (), bool(options))


def test_a_seed_is_kept_in_place_of_masks() -> None:
    x = torch.rand(300, 100, requires_grad=True)
    run = compiled(lambda x: torch.dropout(torch.dropout(x, 0.5, True), 0.5, True))
    assert saved(lambda: run(x)) == 8
    sizes = compiled(lambda x: torch.dropout(x, 0.5, True), dynamic=True)
    for n in (3, 40):
        x = torch.rand(n, 100, requires_grad=True)
        y = sizes(x)
        y.sum().backward()
        assert torch.equal(x.grad == 0, y == 0)


def test_the_bits_of_eager() -> None:
    """Where they are asked for; the report says what PyTorch drew."""

    def f(x: Any) -> Any:
        y = torch.dropout(x, 0.25, True).sin()
        return torch.bernoulli(torch.full_like(x, 0.5)) + y + torch.randn_like(x) + torch.rand(40)

    x = torch.rand(30, 40, requires_grad=True)
    run = compiled(f, "allow", {"fallback_random": True})
    grads = []
    for g in (run, f):
        torch.manual_seed(9)
        y = g(x)
        grads.append((y, *torch.autograd.grad(y.sum(), x)))
    near(*grads)
    assert len(pb.torch.report().fallbacks) == 4
    reasons = {f.reason for f in pb.torch.report().fallbacks}
    assert reasons == {"it draws from PyTorch's generator"}
