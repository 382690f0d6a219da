"""PyTorch's own checks of operators: strided heads, keys of random numbers, exported models."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def attention(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
    scores = q @ pb.matrix_transpose(k) / q.shape[-1] ** 0.5
    return pb.softmax(scores, axis=-1) @ v


def dropped(x: pb.Tensor, key: pb.Tensor, p: float = 0.5) -> pb.Tensor:
    """Dropout by a key of two words: its mask is drawn again in the backward."""
    drawn = pb.random.uniform(x.shape, key=pb.astype(key, "uint32"), dtype=x.dtype)
    return pb.where(drawn < p, 0.0, x / (1 - p))


HEADS = pb.torch.op(attention, name="checked_attention")
DROPPED = pb.torch.op(dropped, name="checked_dropout")


def heads() -> list[Any]:
    """Two samples, three heads, of one projection: strided, one head beside the other."""
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(2, 5, 3, 3, 4, generator=generator, dtype=torch.float64)
    return [t.transpose(1, 2).requires_grad_() for t in joint.unbind(2)]


def key(generator: Any = None) -> Any:
    return torch.randint(1 << 31, (2,), dtype=torch.int32, generator=generator)


def test_heads_that_are_strided_are_read_where_they_are() -> None:
    q, k, v = heads()
    assert not any(t.is_contiguous() for t in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(HEADS(q, k, v), wanted)
    assert torch.autograd.gradcheck(HEADS, (q, k, v), check_forward_ad=True)
    small = [t[:1, :1, :3] for t in (q, k, v)]
    assert torch.autograd.gradgradcheck(HEADS, small)
    assert set(torch.library.opcheck(HEADS.overload, (q, k, v)).values()) == {"SUCCESS"}


def test_adjoints_that_are_strided() -> None:
    q, k, v = heads()
    head = torch.randn(2, 5, 3, 4, dtype=torch.float64).transpose(1, 2)
    attend = torch.nn.functional.scaled_dot_product_attention
    mine = torch.autograd.grad(HEADS(q, k, v), (q, k, v), head)
    for a, b in zip(mine, torch.autograd.grad(attend(q, k, v), (q, k, v), head), strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_a_compiled_model_of_strided_heads() -> None:
    torch._dynamo.reset()
    fast = torch.compile(
        lambda q, k, v: torch.softmax(q @ k.mT / 2, -1) @ v, backend=pb.torch.backend
    )
    q, k, v = heads()
    assert torch.autograd.gradcheck(fast, (q, k, v), fast_mode=True)


def test_dropout_by_a_key_of_a_generator() -> None:
    x = torch.ones(64, 32, dtype=torch.float64, requires_grad=True)
    own = torch.Generator().manual_seed(3)
    one = DROPPED(x, key(own))
    two = DROPPED(x, key(own))
    again = DROPPED(x, key(torch.Generator().manual_seed(3)))
    assert torch.equal(one, again) and not torch.equal(one, two)
    (slope,) = torch.autograd.grad(one.sum(), x)
    assert torch.equal(slope, one.detach())  # the same mask: x is one
    kept = float((one != 0).double().mean())
    assert abs(kept - 0.5) < 6 * (0.25 / x.numel()) ** 0.5
    torch.manual_seed(5)
    first = DROPPED(x, key())
    torch.manual_seed(5)
    assert torch.equal(DROPPED(x, key()), first)
    assert set(torch.library.opcheck(DROPPED.overload, (x, key(own))).values()) == {"SUCCESS"}


def test_a_compiled_model_is_exported() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()).double()
    fast = torch.compile(model, backend=pb.torch.backend)
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(fast(x), model(x))
    saved = torch.export.export(fast, (x,)).module()
    torch.testing.assert_close(saved(x), model(x))
