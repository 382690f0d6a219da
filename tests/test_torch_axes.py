"""Operators of PyTorch with symbolic axes: any axis, any strides, one program for all sizes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import pullback as pb
from llvm_support import Fenced
from pullback.errors import OptionError, PullbackError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from pullback.bridge import lying, programs  # noqa: E402
from pullback.bridge.lying import Lying  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

N, T, D = pb.dim("n", 0, 24), pb.dim("t", 1, 40), pb.dim("d", 1, 16)
REFERENCE = pb.Options(backend="reference")


def draws(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def scaled(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
    return pb.softmax(pb.tanh(x) * w, axis=1) - pb.sum(x, axis=2, keepdims=True)


def eager_scaled(x: Any, w: Any) -> Any:
    return torch.softmax(torch.tanh(x) * w, 1) - x.sum(2, keepdim=True)


def attention(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
    return pb.softmax(q @ pb.matrix_transpose(k), axis=-1) @ v


def eager_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT, -1) @ v


def compare(op: Any, eager: Any, given: list[Any], head: Any = None) -> None:
    """Values and gradients beside eager's."""
    mine, own = op(*given), eager(*given)
    torch.testing.assert_close(mine, own)
    assert mine.is_contiguous()
    head = torch.randn_like(own) if head is None else head
    slopes = [torch.autograd.grad(y, given, head) for y in (mine, own)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2), (-1, -2)])
def test_a_sweep_over_any_axes_compiles_once(axes: tuple[int, ...]) -> None:
    dims = {axis: (N, T, D)[axis] for axis in axes}
    name = "axes_" + "_".join(map(str, axes)).replace("-", "m")
    weight = {1: D} if {2, -1} & set(axes) else {}
    if {1, -2} & set(axes):
        weight = {0: T, **weight}
    op = pb.torch.op(scaled, name=name, dynamic={"x": dims, "w": weight})
    for n, t, d in [(3, 7, 5), (1, 40, 16), (24, 1, 1), (2, 9, 12)]:
        places = {a % 3 for a in axes}
        shape = [own if a in places else 4 for a, own in enumerate((n, t, d))]
        compare(op, eager_scaled, [draws(*shape), draws(*shape[1:], seed=1)])
    assert op.traces == 2


def test_sequences_of_all_lengths() -> None:
    rows, keys = {0: N, 1: T}, {0: N, 1: (other := pb.dim("s", 1, 33))}
    dynamic = {"q": rows, "k": keys, "v": {0: N, 1: other}}
    op = pb.torch.op(attention, name="axes_attention", dynamic=dynamic)
    for n, t, s in [(2, 7, 7), (1, 1, 33), (5, 40, 2), (3, 17, 19)]:
        given = [draws(n, t, 6), draws(n, s, 6, seed=1), draws(n, s, 4, seed=2)]
        compare(op, eager_attention, given)
    assert op.traces == 2
    given = [draws(1, 2, 3), draws(1, 2, 3, seed=1), draws(1, 2, 3, seed=2)]
    assert torch.autograd.gradcheck(op, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, given)
    assert set(torch.library.opcheck(op.overload, tuple(given)).values()) == {"SUCCESS"}
    many = [torch.stack([g, 2 * g]) for g in given]
    torch.testing.assert_close(torch.func.vmap(op)(*many), eager_attention(*many))


def views(n: int) -> dict[str, Any]:
    """Tensors of n rows of 6, with all kinds of strides."""
    return {
        "rows": draws(n, 6),
        "every other": draws(2 * n, 6)[::2],
        "a part": draws(n, 18)[:, 6:12],
        "the last part": draws(n, 18)[:, 12:],
        "sparse": draws(n, 18)[:, ::3],
        "turned": draws(6, n).T,
        "one for all": draws(1, 6).expand(n, 6),
        "a number": draws(1, 1).expand(n, 6),
        "a column": draws(n, 1).expand(n, 6),
        "windows": draws(n + 5).unfold(0, 6, 1),
        "windows of rows": draws(n, 11).as_strided((n, 6), (11, 1)),
    }


COPIED = {"turned", "windows"}  # rows that share their places with others


@pytest.mark.parametrize("lies", list(views(1)))
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_rows_are_read_where_they_lie(lies: str, backend: str) -> None:
    name = f"axes_{lies.replace(' ', '_')}_{backend}"
    options = REFERENCE if backend == "reference" else None
    op = pb.torch.op(lambda x: pb.sin(x) * x, name=name, dynamic={"x": N}, options=options)
    sizes = (2, 3, 24) if backend == "cpu" else (2, 3)
    for n in sizes:
        x = views(n)[lies].detach()
        torch.testing.assert_close(op(x), x.sin() * x)
        assert Lying.of(x, {0: N}).copied == (lies in COPIED)
    assert op.traces == 1


def test_heads_of_any_strides() -> None:
    op = pb.torch.op(lambda x: pb.sin(x) * 2.0, name="axes_heads", dynamic={"x": {0: N, 1: T}})
    for n, t in [(3, 6), (5, 8)]:
        x = draws(n, t)
        whole = torch.zeros(n, 40, dtype=torch.float64)
        for head in (torch.ones(()).expand(n, t).double(), draws(t, n).T, whole[:, :t]):
            compare(op, lambda x: x.sin() * 2.0, [x], head.detach())
        torch.testing.assert_close(torch.autograd.grad(op(x).sum(), x)[0], 2 * x.cos())
    assert not Lying.of(whole[:, :t], {0: N, 1: T}).copied  # it lies as a room does


def test_layouts_drawn_at_random() -> None:
    op = pb.torch.op(
        lambda x: pb.exp(-x) + pb.sum(x, axis=-1, keepdims=True),
        name="axes_random",
        dynamic={"x": {0: N, 2: D}},
    )
    rng = random.Random(0)
    for _ in range(60):
        sizes = [rng.choice((1, 2, 3, 5, 8)) for _ in range(3)]
        order = rng.sample(range(3), 3)
        extra = [rng.choice((0, 0, 1, 4)) for _ in range(3)]
        base = draws(*[sizes[a] + e for a, e in zip(order, extra, strict=True)]).detach()
        cut = base[
            tuple([slice(e // 2, e // 2 + sizes[a]) for a, e in zip(order, extra, strict=True)])
        ]
        x = cut.permute([order.index(a) for a in range(3)])
        if rng.random() < 0.3:
            x = x[:, :1].expand(x.shape)
        torch.testing.assert_close(
            op(x), torch.exp(-x) + x.sum(-1, keepdim=True), msg=str(x.stride())
        )


def test_nothing_beyond_the_last_row_is_read() -> None:
    """Of rows that lie apart the last ends with its elements, not where the next would begin."""
    op = pb.torch.op(
        lambda x: pb.repeat(pb.pad(x, ((0, 0), (0, 5))), 2, axis=1),
        name="axes_fenced",
        dynamic={"x": N},
    )
    for width in range(1, 19):
        data = Fenced(np.arange(3 * 24 - (24 - width), dtype=np.float32))
        x = torch.from_numpy(data.array).as_strided((3, width), (24, 1))
        padded = torch.nn.functional.pad(x, (0, 5))
        torch.testing.assert_close(op(x), padded.repeat_interleave(2, 1))


def test_sizes_of_nothing_and_out_of_bounds() -> None:
    op = pb.torch.op(lambda x: pb.sin(x), name="axes_none", dynamic={"x": {0: N, 1: T}})
    for shape in [(0, 5), (3, 5), (1, 1)]:
        torch.testing.assert_close(op(draws(*shape)), draws(*shape).sin())
    assert op.traces == 1
    for shape in [(25, 5), (3, 41), (3, 0)]:  # programs of their own, for one size or for both
        torch.testing.assert_close(op(draws(*shape)), draws(*shape).sin())
    assert op.traces == 4


def test_one_extent_on_several_axes() -> None:
    square = {0: T, 1: T}
    op = pb.torch.op(lambda x: pb.sum(x + x.T), name="axes_square", dynamic={"x": square})
    for t in (2, 5, 40):
        torch.testing.assert_close(op(draws(t, t)), 2 * draws(t, t).sum())
    assert op.traces == 1
    with pytest.raises(PullbackError):  # as without it: no square
        op(draws(2, 3))


N2 = pb.dim("n", 1, 9)
REFUSED: dict[str, tuple[Any, str]] = {
    "a tuple": ((None, N), "neither an extent"),
    "a number": ({0: 7}, "neither an extent"),
    "a name for an axis": ({"0": N}, "neither an extent"),
    "a truth for an axis": ({True: N}, "neither an extent"),
    "two of one name": ({0: N, 1: N2}, "two extents are called `n`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_are_no_axes(name: str) -> None:
    told, message = REFUSED[name]
    with pytest.raises(OptionError, match=message) as raised:
        pb.torch.op(lambda x: pb.sin(x), name="axes_refused", dynamic={"x": told})
    assert raised.value.code == "E529"


@pytest.mark.parametrize("axes", [{2: N}, {-3: N}, {1: N, -1: T}])
def test_axes_that_a_tensor_does_not_have(axes: Any) -> None:
    name = "axes_lacking_" + "_".join(map(str, axes)).replace("-", "m")
    op = pb.torch.op(lambda x: pb.sin(x), name=name, dynamic={"x": axes})
    with pytest.raises(OptionError, match="of `x`: it has 2") as raised:
        op(draws(3, 4))
    assert raised.value.code == "E529"


MARK = 7.0


def test_nothing_beyond_a_result_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of parts are added up in as many rows as a call has, not in all that there could be."""
    whole: list[Any] = []

    def room(*shape: Any) -> Any:
        own = lying.room(*shape)
        whole.append(torch.full((own.numel() + 4096,), MARK, dtype=own.dtype))
        return whole[-1][: own.numel()].view(own.shape)

    monkeypatch.setattr(programs, "room", room)
    op = pb.torch.op(scaled, name="axes_sums", dynamic={"x": {1: T}, "w": {0: T}})
    for t in (1, 9, 39):
        compare(op, eager_scaled, [draws(4, t, 4), draws(t, 4, seed=1)])
    (backward,) = op.residuals._backwards.values()
    assert "partial" in backward.jit.program.explain()
    assert whole and all(bool((memory[-4096:] == MARK).all()) for memory in whole)


def dense(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
    return pb.softmax(pb.tanh(x @ w), axis=1)


def eager_dense(x: Any, w: Any) -> Any:
    return torch.softmax(torch.tanh(x @ w), -1)


@pytest.mark.parametrize(("axes", "shapes"), [((0, 0), "sn"), ((1, None), "ns"), ((None, 0), "n")])
def test_samples_of_symbolic_axes_have_one_program(axes: Any, shapes: str) -> None:
    """`torch.vmap` along any axis, of all arguments or of some, and what is derived of it."""
    name = "axes_samples_" + shapes
    op = pb.torch.op(dense, name=name, dynamic={"x": {-2: pb.dim("n", 1, 24)}})
    many = [torch.vmap(f, axes) for f in (op, eager_dense)]
    slopes = [
        torch.vmap(torch.func.grad(lambda x, w, f=f: f(x, w).square().sum()), axes)
        for f in (op, eager_dense)
    ]
    traces = set()
    for n in (5, 9, 2):
        x = draws(*[{"n": n, "s": 3}[c] for c in shapes], 6)
        w = draws(*([3] if axes[1] == 0 else []), 6, 4, seed=1)
        compare(many[0], many[1], [x, w])
        torch.testing.assert_close(*[f(x.detach(), w.detach()) for f in slopes])
        traces.add(op.traces)
    assert len(traces) == 1 and op.traces <= 4  # forward and backward, and those of `grad`


def test_second_derivatives_of_symbolic_axes() -> None:
    """Heads have the axes of results, also where nothing ran but what keeps for a backward."""
    op = pb.torch.op(dense, name="axes_second", dynamic={"x": pb.dim("n", 1, 24)})
    for n in (1, 4, 7):
        assert torch.autograd.gradgradcheck(op, (draws(n, 6), draws(6, 4, seed=1)))
    assert op.traces <= 9
