"""Derivatives of Triton kernels without what by hand is not there: minuses, zeros, ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
from torch.nn import functional as F  # noqa: E402

import triton_lean as corpus  # noqa: E402  # it needs Triton
from pullback.triton.frontend import function_of  # noqa: E402
from test_triton_grad import same  # noqa: E402
from triton_corpus import layer_norm_kernel  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


def operations(f: Any, types: dict[str, str], *given: Any, **named: Any) -> int:
    """How many operations of floats a derivative has, as Triton compiles it."""
    call = f.call(given, named)
    made = f.backward(call, f.floats(call))
    takes = made.derived.kernel.arguments
    walk = function_of(made.kernel, {n: types[n] for n in takes}, {}).block.walk()
    kinds = [o.name for o in walk if any(v.type.is_float for v in o.results)]
    return sum(k.startswith(("arith.", "math.")) and k != "arith.constant" for k in kinds)


def falling(x: Any) -> Any:
    y = (2 - x).clamp(min=0.5) + (-4 * x).clamp(max=1) + (x / 3 - 0.1).clamp(min=0.7)
    y = y + (x * len(x) * -0.02).clamp(min=0)
    return y + (F.softplus(x) - 1).clamp(max=0) * x


# By name: PyTorch's, and the operations that it takes by hand.
ELEMENTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "sigmoid": (torch.sigmoid, 7),
    "relu": (F.relu, 1),
    "relu6": (F.relu6, 2),
    "leaky_relu": (F.leaky_relu, 2),
    "elu": (F.elu, 3),
    "safe_sqrt": (lambda x: torch.where(x > 0, x.clamp(min=1e-30).sqrt(), 0.0) - x, 6),
    "stairs": (lambda x: F.relu(x) + F.relu(x - 1), 4),
    "larger": (lambda x: torch.maximum(-x, x.sin()) - torch.where(x > 0, -x, 3 * x), 15),
    "log_sigmoid": (F.logsigmoid, 5),
    "hard_sigmoid": (F.hardsigmoid, 2),
    "hard_swish": (F.hardswish, 7),
    "selu": (F.selu, 5),
    "celu": (lambda x: F.celu(x, 2.5), 6),
    "soft_sign": (F.softsign, 6),
    "smooth": (lambda x: F.smooth_l1_loss(x, x * 0, reduction="none", beta=2.0), 9),
    "falling": (falling, 26),
    "powers_of_one": (lambda x: 0.75 * x - x, 20),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_derivative_is_as_short_as_by_hand(name: str) -> None:
    of, count = ELEMENTS[name]
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    x = torch.randn(50) * 4
    same(f, of, [x], 50, BLOCK=64)
    types = {"X": "*fp32", "n": "i32", "d_OUT": "*fp32", "d_X": "*fp32"}
    assert operations(f, types, x, 50, BLOCK=64) <= count


@pytest.mark.parametrize("number", [-1e-9, 0.0, 1e-9])
@pytest.mark.parametrize("name", ["selu", "celu"])
def test_beside_a_kink(name: str, number: float) -> None:
    """Where an exponential is rounded to 1 one of both sides counts, and not both."""
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    x = torch.full((50,), number, requires_grad=True)
    f(x, 50, BLOCK=64).sum().backward()
    y = torch.full((50,), number, dtype=torch.float64, requires_grad=True)
    ELEMENTS[name][0](y).sum().backward()
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("log", [False, True])
def test_a_softmax_is_differentiated_by_its_output(log: bool) -> None:
    """What it was made of is not loaded; lanes that the mask leaves out are known."""
    f = pb.triton.op(corpus.soft_kernel, grid=lambda a: (a["X"].shape[0],), outputs="OUT")
    of = torch.log_softmax if log else torch.softmax
    x = torch.randn(5, 27)
    text = same(f, lambda x: of(x, 1), [x], 27, 27, LOG=log, BLOCK=32)
    assert "tl.load(OUT +" in text and "tl.load(X +" not in text
    assert text.count("tl.exp(") == log and "tl.max(" not in text
    assert ('other=float("-inf")' in text) == log
    types = {n: "i32" if n in ("stride", "columns") else "*fp32" for n in f.jit.arg_names}
    types |= {"d_OUT": "*fp32", "d_X": "*fp32"}
    assert operations(f, types, x, 27, 27, LOG=log, BLOCK=32) <= 4
    assert pb.triton.check(f, x, 27, 27, LOG=log, BLOCK=32).linear < 1e-5


def test_lanes_that_are_not_stored_count() -> None:
    f = pb.triton.op(corpus.soft_beyond_kernel, grid=(1,), outputs="OUT")

    def of(x: Any, w: Any) -> Any:
        x = torch.cat([x, x.new_zeros(3)])
        return (x + torch.arange(16) * w * 0.1).softmax(0)[:13]

    same(f, of, [torch.randn(13), torch.randn(1)], 13, BLOCK=16)
    fewer = {"OUT": lambda a: torch.empty(a["n"] - 3)}
    f = pb.triton.op(corpus.soft_fewer_kernel, grid=(1,), outputs=fewer)
    same(f, lambda x: x.softmax(0)[:10], [torch.randn(13)], 13, BLOCK=16)


@pytest.mark.parametrize("few", [5, 50])
def test_a_quotient_of_a_branch_is_not_there_outside_of_it(few: int) -> None:
    f = pb.triton.op(corpus.branch_ratio_kernel, grid=(1,), outputs={"OUT": "X", "Z": "X"})
    x = torch.randn(13, requires_grad=True)
    f(x, 13, few, BLOCK=16)[0].sum().backward()
    torch.testing.assert_close(x.grad, (torch.arange(13) * 0.5 + 1) / 3.25)


@pytest.mark.parametrize("steps", [0, 1, 4, 5])
def test_what_a_loop_carries_crosswise(steps: int) -> None:
    f = pb.triton.op(corpus.running_kernel, grid=(1,), outputs="OUT")

    def running(x: Any) -> Any:
        a, b = x, 0.5 * x
        for i in range(steps):
            a, b = b + torch.sin(a * x), torch.exp(-0.3 * a * b) / (i + 1)
            b = torch.exp(-b)
        return a * b

    text = same(f, running, [torch.randn(13) * 0.5], 13, STEPS=steps, BLOCK=16)
    assert text.count("_after = ") == 2 * (steps > 1)  # it is computed once, and kept

    def crossed(x: Any) -> Any:
        a, b, c = x, 2 * x, 3 * x
        for _ in range(steps):
            a, b, c = b, c, a
        return a * b + c.sin()

    f = pb.triton.op(corpus.crossed_kernel, grid=(1,), outputs="OUT")
    same(f, crossed, [torch.randn(13)], 13, STEPS=steps, BLOCK=16)


@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu", "elu", "safe_sqrt"])
def test_at_a_kink(name: str) -> None:
    """One that is as large as what does not vary; a number, where what is not one is left out."""
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    x = torch.tensor([-1.0, 0.0, 6.0, 7.0, float("nan")]).requires_grad_()
    f(x, 5, BLOCK=8).sum().backward()
    wanted = {
        "relu": [0.0, 0.0, 1.0, 1.0],
        "relu6": [0.0, 0.0, 1.0, 0.0],
        "leaky_relu": [0.01, 0.01, 1.0, 1.0],
        "elu": [0.36787945, 1.0, 1.0, 1.0],
        "safe_sqrt": [-1.0, -1.0, 0.5 / 6**0.5 - 1, 0.5 / 7**0.5 - 1],
    }
    assert x.grad[:4].tolist() == pytest.approx(wanted[name])


def test_nothing_is_done_for_an_output_from_which_nothing_comes() -> None:
    f = pb.triton.op(
        layer_norm_kernel,
        grid=(3,),
        outputs={"OUT": "X", "MEAN": lambda a: torch.empty(a["X"].shape[0])},
    )
    x, w, b = torch.randn(3, 50).requires_grad_(), torch.randn(50), torch.randn(50)
    out, mean = f(x, w, b, 50, 1e-5, BLOCK=16)
    both = torch.autograd.grad(out.sum() + mean.sum(), x, retain_graph=True)[0]
    parts = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (out, mean)]
    torch.testing.assert_close(sum(parts), both)
    torch.testing.assert_close(parts[1], torch.full((3, 50), 0.02))
    texts = [made.derived.kernel.text for made in f.made.values()]
    assert sorted(["d_OUT" in t, "d_MEAN" in t] for t in texts) == [
        [False, True], [True, False], [True, True]
    ]  # fmt: skip


def turned(x: Any) -> Any:
    m = x.amax(1)
    return (x - m[:, None]).exp() / (x - m[None, :]).exp().sum(0)[None, :]


def columns(x: Any) -> Any:
    powers = (x - x.amax(1)[:, None]).exp()
    return powers / powers.sum(0)[:, None]


def shifted(x: Any) -> Any:
    return (x - x.max()).exp()


CANCEL: dict[str, Callable[[Any], Any]] = {
    "log_softmax": lambda x: x.log_softmax(0),
    "exp2": lambda x: x.softmax(0),
    "log_sum": lambda x: x * x.logsumexp(0),
    "rows": lambda x: x.reshape(4, 4).softmax(1).reshape(-1),
}
STAY: dict[str, Callable[[Any], Any]] = {
    "powers": shifted,
    "squares": lambda x: shifted(x) / (2 * (x - x.max())).exp().sum(),
    "one_more": lambda x: shifted(x) / (1 + shifted(x).sum()),
    "turned": lambda x: turned(x.reshape(4, 4)).reshape(-1),
    "columns": lambda x: columns(x.reshape(4, 4)).reshape(-1),
    "threshold": lambda x: torch.where(x - x.max() > -1, shifted(x), 0.5) / shifted(x).sum(),
}


@pytest.mark.parametrize("name", [*CANCEL, *STAY])
def test_a_maximum_that_cancels_has_no_derivative(name: str) -> None:
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    text = same(f, (CANCEL | STAY)[name], [torch.randn(16)], 16, BLOCK=16)
    assert ("ties" in text) == (name in STAY)


def norm_op() -> Any:
    rows = {n: lambda a: torch.empty(a["X"].shape[0]) for n in ("MEAN", "SCALE")}
    return pb.triton.op(corpus.norm_kernel, grid=(3,), outputs={"OUT": "X", **rows})


def test_a_mean_that_was_stored_is_loaded() -> None:
    f, x = norm_op(), torch.randn(3, 200) * 2 + 1
    first = lambda *a, **n: f(*a, **n)[0]
    first.source = lambda *a, **n: f.source(*a, **n)
    text = same(first, lambda x: F.layer_norm(x, (200,)), [x], 200, BLOCK=256)
    assert "tl.load(MEAN + " in text and "tl.load(SCALE + " in text
    assert "tl.rsqrt" not in text and text.count("tl.load(") == 6  # each output's, too
    report = pb.triton.check(f, x, 200, BLOCK=256)
    assert report.differences["X"] < 5e-3


def test_an_exponential_that_was_stored_is_loaded() -> None:
    f = pb.triton.op(corpus.growth_kernel, grid=(4,), outputs="OUT")
    x = torch.randn(250)
    text = same(f, lambda x: (x.sin() * x).exp(), [x], 250, BLOCK=64)
    assert "tl.exp(" in text  # of x alone, which is loaded anyway: another load is dearer
    root = pb.triton.op(corpus.root_kernel, grid=(1,), outputs={"OUT": lambda a: torch.empty(13)})
    same(root, lambda x: (x[:-1] * x[-1]).sqrt(), [torch.rand(14) + 0.1], 13, BLOCK=16)


def test_what_was_stored_over_is_not_loaded() -> None:
    def of(x: Any) -> Any:
        return torch.cat([x[:8].exp(), (2 * x[8:]).exp()])

    f = pb.triton.op(corpus.overlap_kernel, grid=(1,), outputs="OUT")
    text = same(f, of, [torch.randn(20)], 20, BLOCK=16)
    assert "tl.load(OUT" not in text

    def masked(x: Any, w: Any) -> Any:
        return (torch.cat([x, torch.full((3,), 0.3, dtype=x.dtype)]).exp() ** 2).sum()[None] * w

    outputs = {"OUT": "X", "SUM": lambda _: torch.empty(1)}
    f = pb.triton.op(corpus.masked_sum_kernel, grid=(1,), outputs=outputs)
    second = lambda *a, **n: f(*a, **n)[1]
    second.source = lambda *a, **n: f.source(*a, **n)
    text = same(second, masked, [torch.randn(13), torch.randn(1)], 13, BLOCK=16)
    assert "tl.load(OUT" not in text


def test_an_output_that_was_written_over_is_refused() -> None:
    f, x = norm_op(), torch.randn(3, 200).requires_grad_()
    out, mean, _ = f(x, 200, BLOCK=256)
    mean.data.zero_()  # nobody sees it
    with torch.no_grad():
        mean.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("name", ["former", "ordered", "published"])
def test_an_element_that_no_load_reads_is_refused(name: str) -> None:
    outputs = {"X": "X", "OUT": "X"} if name == "former" else {"OUT": "X"}
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs=outputs)
    with pytest.raises(UnsupportedError, match=r"no derivative of tt.atomic_\w+ at .*: what "):
        f.source(torch.rand(16), 16, BLOCK=16)
