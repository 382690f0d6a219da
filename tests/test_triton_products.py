"""Products in derivatives of Triton kernels that are tiled again: as programs of pullback's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
from torch.nn import functional as F  # noqa: E402

import triton_folds  # noqa: E402  # it needs Triton
import triton_products as corpus  # noqa: E402
from pullback.triton import contracted  # noqa: E402
from pullback.triton.operator import Operator  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
BLOCKS = {"BM": 16, "BN": 16, "BK": 16}


@pytest.fixture
def launched(monkeypatch: Any) -> Iterator[list[str]]:
    """What gradients launch: kernels of theirs by name, products by the letters of their axes."""
    made: list[str] = []
    launch, product = Operator.launch, contracted.product

    def noted(self: Any, kernel: Any, call: Any, arguments: Any) -> None:
        if kernel is not self.kernel and "watched" not in kernel.fn.__name__:
            made.append(kernel.fn.__name__)
        launch(self, kernel, call, arguments)

    def multiplied(one: Any, two: Any, letters: str, *rest: Any) -> Any:
        made.append(f"{one.named} {two.named} {letters}")
        return product(one, two, letters, *rest)

    monkeypatch.setattr(Operator, "launch", noted)
    monkeypatch.setattr(contracted, "product", multiplied)
    yield made


def beside(
    f: Any, of: Callable[..., Any], tensors: list[Any], *rest: Any, near: float = 2e-5, **named: Any
) -> str:
    """Values and gradients beside PyTorch's in float64; gradients have the same bits again."""
    own = [t.detach().requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    made, right = f(*own, *rest, **named), of(*exact)
    torch.testing.assert_close(made.double(), right, rtol=near, atol=near)
    behind = torch.randn(made.shape).to(made.dtype)
    grown = torch.autograd.grad(made, own, behind, retain_graph=True)
    known = torch.autograd.grad(right, exact, behind.double())
    for one, other, tensor in zip(grown, known, own, strict=True):
        assert one.dtype == tensor.dtype and one.stride() == tensor.stride()
        torch.testing.assert_close(one.double(), other, rtol=near, atol=4 * near)
    again = torch.autograd.grad(made, own, behind)
    assert all(torch.equal(one, other) for one, other in zip(grown, again, strict=True))
    return f.source(*own, *rest, **named)


def tutorial() -> Any:
    def grid(a: Any) -> tuple[int]:
        blocks = triton.cdiv(a["M"], a["BLOCK_SIZE_M"]), triton.cdiv(a["N"], a["BLOCK_SIZE_N"])
        return (blocks[0] * blocks[1],)

    def output(a: Any) -> Any:
        return torch.empty(a["M"], a["N"], dtype=a["a_ptr"].dtype)

    return pb.triton.op(corpus.tutorial_kernel, grid=grid, outputs={"c_ptr": output})


def multiplied(a: Any, b: Any, activation: str = "") -> tuple[list[Any], dict[str, Any]]:
    """What the kernel of the tutorial takes beside both matrices."""
    (m, k), n = a.shape, b.shape[1]
    sizes = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 2}
    return [m, n, k, *a.stride(), *b.stride(), n, 1], {**sizes, "ACTIVATION": activation}


# --- the tutorial ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(70, 50, 40), (16, 32, 16), (5, 67, 33), (1, 1, 1)])
@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_the_tutorial(activation: str, sizes: tuple[int, ...], launched: list[str]) -> None:
    m, n, k = sizes
    a, b = torch.randn(m, k), torch.randn(k, n)
    rest, named = multiplied(a, b, activation)

    def of(a: Any, b: Any) -> Any:
        return F.leaky_relu(a @ b) if activation else a @ b

    text = beside(tutorial(), of, [a, b], *rest, **named)
    assert "atomic" not in text and text.count("# tiled again: d_") == 2
    first = ["tutorial_kernel_backward"] if activation else []
    assert [one.rsplit(" ", 1)[0] for one in launched] == [*first, "mn kn", "mk mn"] * 2


def test_only_what_is_asked_for_is_run(launched: list[str]) -> None:
    a, b = torch.randn(20, 30), torch.randn(30, 40)
    rest, named = multiplied(a, b)
    f = tutorial()
    f(a.clone().requires_grad_(), b, *rest, **named).sum().backward()
    assert launched == ["mn kn mk"]
    f(a, b.clone().requires_grad_(), *rest, **named).sum().backward()
    assert launched == ["mn kn mk", "mk mn kn"]
    assert "d_b_ptr" not in f.source(a, b, *rest, wrt=["a_ptr"], **named)


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
def test_turned_matrices(turned: tuple[bool, bool], launched: list[str]) -> None:
    a, b = torch.randn(20, 33), torch.randn(33, 40)
    a, b = (t.T.contiguous().T if turn else t for t, turn in zip((a, b), turned, strict=True))
    rest, named = multiplied(a, b)
    beside(tutorial(), torch.matmul, [a, b], *rest, **named)
    assert launched[:2] == [
        f"mn kn {'km' if turned[0] else 'mk'}",  # as the gradient lies
        f"mk mn {'nk' if turned[1] else 'kn'}",
    ]


def test_rows_that_lie_apart() -> None:
    a, b = torch.randn(20, 40)[:, 3:36], torch.randn(33, 90)[:, ::2][:, :40]
    rest, named = multiplied(a, b)
    f = tutorial()
    text = beside(f, torch.matmul, [a, b], *rest, **named)
    assert text.count("# tiled again") == 2


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_halves(activation: str, launched: list[str]) -> None:
    a, b = (torch.randn(37, 50) / 7).half(), torch.randn(50, 40).half()
    rest, named = multiplied(a, b, activation)

    def of(a: Any, b: Any) -> Any:
        return F.leaky_relu(a @ b) if activation else a @ b

    beside(tutorial(), of, [a, b], *rest, near=4e-3, **named)
    assert "mn kn mk" in launched


def test_a_second_derivative() -> None:
    a, b = torch.randn(20, 33).requires_grad_(), (torch.randn(33, 24) / 5).requires_grad_()
    rest, named = multiplied(a, b)
    f = tutorial()
    behind = torch.randn(20, 24).requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (a, b, behind)]

    def second(f: Any, a: Any, b: Any, behind: Any) -> Any:
        first = torch.autograd.grad(f(a, b), (a, b), behind, create_graph=True)
        total = sum((t * t).sum() for t in first)
        return torch.autograd.grad(total, (a, b, behind))

    made = second(lambda a, b: f(a, b, *rest, **named), a, b, behind)
    known = second(torch.matmul, *exact)
    for one, other in zip(made, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)


def test_it_is_certified() -> None:
    a, b = torch.randn(20, 33), torch.randn(33, 24)
    rest, named = multiplied(a, b)
    strides = {"stride_am": "a_ptr", "stride_bk": "b_ptr"}
    report = pb.triton.check(tutorial(), a, b, *rest, sizes=["M", "K"], strides=strides, **named)
    assert max(report.differences.values()) < 5e-3 and report.linear < 1e-5


# --- other forms ----------------------------------------------------------------------------------


def batched(a: Any, b: Any, bias: Any, how: bool) -> tuple[Any, list[Any], dict[str, Any]]:
    def grid(given: Any) -> tuple[int, ...]:
        return triton.cdiv(given["M"], 16), triton.cdiv(given["N"], 16), batches

    batches = max(a.shape[0], b.shape[0])
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    strides = [*(0 if t.shape[0] == 1 else t.stride(0) for t in (a, b))]
    f = pb.triton.op(
        corpus.batched_kernel, grid=grid, outputs={"C": lambda _: torch.empty(batches, m, n)}
    )
    rest = [m, n, k, strides[0], *a.stride()[1:], strides[1], *b.stride()[1:]]
    return f, rest, {**BLOCKS, "GELU": how}


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("shared", ["", "A", "B"])
def test_a_batch(shared: str, gelu: bool, launched: list[str]) -> None:
    a = torch.randn(1 if shared == "A" else 3, 20, 18) / 3
    b, bias = torch.randn(1 if shared == "B" else 3, 18, 35), torch.randn(35)
    f, rest, named = batched(a, b, bias, gelu)

    def of(a: Any, b: Any, bias: Any) -> Any:
        made = torch.matmul(a, b) + bias
        return F.gelu(made) if gelu else made

    text = beside(f, of, [a, b, bias], *rest, near=4e-5, **named)
    assert text.count("# tiled again") == 2 and text.count("atomic") == 1  # of the bias alone
    assert launched[0] == "batched_kernel_backward" and len(launched) == 6


def test_two_products_of_one_matrix(launched: list[str]) -> None:
    m, n, k = 37, 20, 50
    x, w, v = torch.randn(m, k) / 3, torch.randn(n, k), torch.randn(n, k)
    f = pb.triton.op(
        corpus.gated_kernel,
        grid=lambda a: (triton.cdiv(a["M"], 16), triton.cdiv(a["N"], 16)),
        outputs={"OUT": lambda a: torch.empty(a["M"], a["N"], dtype=a["X"].dtype)},
    )

    def of(x: Any, w: Any, v: Any) -> Any:
        return F.silu(x @ w.T) * (x @ v.T)

    text = beside(f, of, [x, w, v], m, n, k, near=1e-4, **BLOCKS)
    assert "atomic" not in text and text.count("# tiled again") == 4
    assert launched[:5] == [
        "gated_kernel_backward", "mk mn nk", "mk mn nk", "mn kn mk", "mn kn mk"
    ]  # fmt: skip
    halves = [(t / 3).half() for t in (x, w, v)]
    beside(f, of, halves, m, n, k, near=1e-2, **BLOCKS)


def test_halves_are_added_up_before_they_are_rounded() -> None:
    """(1 + 2^-6) (1 - 2^-6), which as a half is 1, and -1."""
    x, behind = (torch.zeros(16, 16, dtype=torch.float16) for _ in range(2))
    x[0, 0], x[2, 0] = 1 + 2**-6, 1
    behind[1, 0], behind[2, 1] = 1 - 2**-6, -1
    f = pb.triton.op(
        corpus.square_kernel, grid=(1, 1), outputs={"OUT": lambda _: torch.empty(16, 16).half()}
    )
    x.requires_grad_()
    (grown,) = torch.autograd.grad(f(x, 16, 16, BM=16, BK=16), x, behind)
    assert grown[1, 0] == -(2**-12)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_matrix_by_itself(kind: Any) -> None:
    x = torch.randn(37, 13, dtype=kind)
    f = pb.triton.op(
        corpus.square_kernel,
        grid=(3, 3),
        outputs={"OUT": lambda a: torch.empty(a["M"], a["M"], dtype=kind)},
    )
    near = 2e-5 if kind == torch.float32 else 1e-13
    text = beside(f, lambda x: x @ x.T, [x], 37, 13, near=near, BM=16, BK=16)
    assert "atomic" not in text and text.count("# tiled again: d_X[") == 2


@pytest.mark.parametrize("square", [False, True])
def test_a_sum_that_begins_with_something(square: bool, launched: list[str]) -> None:
    m, n, k = 37, 20, 50
    a, b, r = torch.randn(m, k) / 3, torch.randn(k, n), torch.randn(m, n)
    f = pb.triton.op(
        corpus.begun_kernel,
        grid=lambda a: (triton.cdiv(a["M"], 16), triton.cdiv(a["N"], 16)),
        outputs={"C": "R"},
    )

    def of(a: Any, b: Any, r: Any) -> Any:
        return (a @ b + r) ** 2 if square else a @ b + r

    text = beside(f, of, [a, b, r], m, n, k, square, near=1e-4, **BLOCKS)
    assert "atomic" not in text and len(launched) == 6


def test_a_persistent_product_by_descriptors(launched: list[str]) -> None:
    outputs = {"C": lambda a: torch.empty(a["M"], a["N"])}
    f = pb.triton.op(triton_folds.persistent_kernel, grid=(2,), outputs=outputs)
    a, b = torch.randn(37, 40) / 3, torch.randn(40, 24)
    text = beside(f, lambda a, b: F.silu(a @ b), [a, b], 37, 24, 40, **BLOCKS)
    assert "tl.atomic" not in text and len(launched) == 6


# --- what is not tiled again ----------------------------------------------------------------------


def summed(how: str) -> Any:
    return pb.triton.op(
        corpus.summed_kernel,
        grid=lambda a: (triton.cdiv(a["M"], 16), triton.cdiv(a["N"], 16)),
        outputs={
            "C": lambda a: torch.empty(a["M"], a["N"]),
            "D": lambda a: torch.zeros(a["M"], 16 * triton.cdiv(a["N"], 16)),
        },
    )


REFUSED = {
    "square": "A is not tiled again: it, or what it is multiplied by, is loaded for more",
    "operand": "A is not tiled again: it is no product of blocks that are loaded",
    "halved": "A is not tiled again: its loop does more with the sum than to add products",
    "row": "A is not tiled again: of its sum tt.reduce makes something",
    "two": "A is not tiled again: it is stored under several masks",
    "fewer": "A is not tiled again: rows or columns are stored that are not loaded",
    "branch": "A is not tiled again: it is stored in a branch or a loop of its own",
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_not_tiled_again_says_why(how: str, launched: list[str]) -> None:
    m, n, k = 20, 32, 24
    a, b = torch.randn(m, k), torch.randn(k, n)
    own = [t.clone().requires_grad_() for t in (a, b)]
    exact = [t.double().requires_grad_() for t in (a, b)]
    f = summed(how)
    made, more = f(*own, m, n, k, how, **BLOCKS)

    def of(a: Any, b: Any) -> Any:
        if how == "halved":
            return (a[:, :16] @ b[:16]) * 0.5 + a[:, 16:] @ b[16:]
        whole = (a * a if how == "operand" else a) @ b
        if how == "square":
            return whole + (a * a).sum(1, keepdim=True)
        if how == "row":
            blocks = whole.reshape(m, -1, 16)
            return (blocks - blocks.amax(2, keepdim=True)).reshape(m, n)
        if how == "fewer":
            return torch.cat([whole[:-4], 0 * whole[-4:]])
        if how == "branch":
            return torch.cat([whole[:16], 0 * whole[16:]])
        return whole * 2 if how == "two" else whole

    behind = torch.randn(m, n)
    grown = torch.autograd.grad(more if how in ("two", "branch") else made, own, behind)
    known = torch.autograd.grad(of(*exact), exact, behind.double())
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert REFUSED[how] in f.source(a, b, m, n, k, how, **BLOCKS)


def test_tiles_of_which_some_are_missing() -> None:
    """Nothing comes from behind elements that no program stores."""
    a, b = torch.randn(40, 20), torch.randn(20, 60)
    rest, named = multiplied(a, b)
    f = pb.triton.op(
        corpus.tutorial_kernel, grid=(5,), outputs={"c_ptr": lambda _: torch.zeros(40, 60)}
    )
    own = [t.clone().requires_grad_() for t in (a, b)]
    exact = [t.double().requires_grad_() for t in (a, b)]
    made, right = f(*own, *rest, **named), exact[0] @ exact[1]
    stored = made.detach() != 0
    assert stored.sum() == 40 * 60 - 8 * 28  # the last of six tiles
    behind = torch.randn(40, 60)
    grown = torch.autograd.grad(made, own, behind)
    known = torch.autograd.grad(right, exact, (behind * stored).double())
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert "no tiles of matrices, each of one program" in f.source(a, b, *rest, **named)


def test_a_matrix_whose_rows_overlap() -> None:
    """Its gradient is added up; as what another one is multiplied by it is read as it lies."""
    x, b = torch.randn(20 + 33 - 1), torch.randn(33, 40)
    _, named = multiplied(torch.empty(20, 33), b)
    rest = [20, 40, 33, 1, 1, 40, 1, 40, 1]
    f = tutorial()
    own = [t.clone().requires_grad_() for t in (x, b)]
    exact = [t.double().requires_grad_() for t in (x, b)]
    behind = torch.randn(20, 40)
    grown = torch.autograd.grad(f(*own, *rest, **named), own, behind)
    right = exact[0].unfold(0, 33, 1) @ exact[1]
    known = torch.autograd.grad(right, exact, behind.double())
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert "elements of its matrices share their places" in f.source(*own, *rest, **named)
    assert "tiled again: d_b_ptr" in f.source(*own, *rest, wrt=["b_ptr"], **named)


def test_an_empty_matrix() -> None:
    a, b = torch.randn(20, 0), torch.randn(0, 40)
    rest, named = multiplied(a, b)
    f = tutorial()
    own = [t.requires_grad_() for t in (a, b)]
    made = f(*own, *rest, **named)
    assert made.count_nonzero() == 0
    assert [t.shape for t in torch.autograd.grad(made.sum(), own)] == [(20, 0), (0, 40)]


def test_a_split_sum_keeps_its_atomic_additions() -> None:
    m, n, k = 20, 32, 40
    f = pb.triton.op(
        corpus.split_kernel,
        grid=(2, 2, 3),
        outputs={"C": lambda a: torch.zeros(a["M"], a["N"])},
    )
    a, b = torch.randn(m, k), torch.randn(k, n)
    own = [t.clone().requires_grad_() for t in (a, b)]
    made = f(*own, m, n, k, **BLOCKS)
    grown = torch.autograd.grad(made, own, torch.ones(m, n))
    torch.testing.assert_close(grown[0], b.sum(1).expand(m, k), rtol=1e-4, atol=1e-4)
    assert "is not tiled again: of its sum tt.atomic_rmw" in f.source(a, b, m, n, k, **BLOCKS)
