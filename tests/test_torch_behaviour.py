"""`torch.compile(backend="pullback")`: behaviours that users of a backend rely on, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.profiler import profile  # noqa: E402

from pullback.bridge.backend import Settings  # noqa: E402
from pullback.bridge.backend import compiled as graph_compiled  # noqa: E402

COPY = torch.ops.aten.copy_.default

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)


def compiled(function: Any, fallback: str = "error", options: Any = None, **how: Any) -> Any:
    options = {"fallback": fallback, **(options or {})}
    return torch.compile(function, backend=pb.torch.backend, options=options, **how)


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


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
        for extra in (lambda t: t, lambda t: torch.fft.fft(t).real):

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
