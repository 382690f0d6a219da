"""What type checkers and editors know of the public names; `mypy --strict` reads it."""

from __future__ import annotations

from typing import assert_type

import pullback as pb
from pullback import nn, optim
from pullback.backends.c.backend import C
from pullback.bridge.eject import Alone, Writer
from pullback.tensor.face.handles import ScalarHandle

F = nn.functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: pb.Tensor, scale: float = 1.0) -> tuple[pb.Tensor, float]:
        return self.layer(x) * scale, scale


@pb.jit
def loss(x: pb.Tensor, scale: float = 1.0) -> pb.Tensor:
    return pb.sum(x * x) * scale


@pb.jit(memory="64MB")
def both(x: pb.Tensor) -> tuple[pb.Tensor, int]:
    return x, 1


def functions(x: pb.Tensor, k: ScalarHandle) -> None:
    assert_type(pb.exp(x), pb.Tensor)
    assert_type(pb.exp(k), ScalarHandle)
    assert_type(pb.maximum(x, 0.0), pb.Tensor)
    assert_type(pb.maximum(k, 0.0), ScalarHandle)
    assert_type(pb.where(x > 0, x, 0.0), pb.Tensor)
    assert_type(pb.sum(x, axis=0), pb.Tensor)
    assert_type(pb.matmul(x, x), pb.Tensor)
    assert_type(pb.split(x, 2), list[pb.Tensor])
    assert_type(pb.topk(x, 2), tuple[pb.Tensor, pb.Tensor])
    assert_type(pb.special.erfinv(x), pb.Tensor)
    assert_type(pb.linalg.svd(x).S, pb.Tensor)
    assert_type(pb.fft.irfft(pb.fft.rfft(x)), pb.Tensor)
    assert_type(pb.random.normal((2, 3)), pb.Tensor)
    assert_type(F.mse_loss(x, x), pb.Tensor)
    assert_type(F.conv2d(x, x, stride=2), pb.Tensor)


def methods(x: pb.Tensor) -> None:
    assert_type(x + 1, pb.Tensor)
    assert_type(x @ x, pb.Tensor)
    assert_type(x.sum(axis=0, keepdims=True), pb.Tensor)
    assert_type(x.reshape(2, 3).T, pb.Tensor)
    assert_type(x.astype("float64").dtype, pb.DType)


def layers(x: pb.Tensor) -> None:
    assert_type(nn.Linear(2, 3)(x), pb.Tensor)
    assert_type(nn.Conv2d(2, 3, 3)(x), pb.Tensor)
    assert_type(nn.ReLU(inplace=False)(x), pb.Tensor)
    assert_type(nn.MSELoss(reduction="sum")(x, x), pb.Tensor)
    assert_type(nn.BatchNorm2d(3)(x), pb.Tensor)
    assert_type(nn.Embedding(5, 3)(x), pb.Tensor)
    assert_type(Net()(x, scale=2.0), tuple[pb.Tensor, float])
    assert_type(Net().eval(), Net)
    optimizer = optim.AdamW(Net().parameters(), lr=1e-3)
    assert_type(optimizer.lr, float)


def programs(x: pb.Tensor) -> None:
    assert_type(loss(x, scale=2.0), pb.Tensor)
    assert_type(both(x), tuple[pb.Tensor, int])
    assert_type(loss.traces, int)
    assert_type(pb.grad(loss)(x), pb.Tensor)
    assert_type(pb.value_and_grad(loss)(x), tuple[pb.Tensor, pb.Tensor])
    assert_type(pb.grad(loss(x), x), pb.Tensor)
    assert_type(pb.jit(pb.grad(loss))(x), pb.Tensor)


def rooms() -> None:
    """What the bridge asks of the backend whose files stand alone, by its protocols."""
    alone: Alone = C()
    assert_type(alone.alone("f"), Writer)


def mistakes(x: pb.Tensor) -> None:
    """Each is one to a type checker too: `mypy --strict` refuses an ignore without need."""
    x.unsqueeze(0)  # type: ignore[attr-defined]
    pb.concatenate([x])  # type: ignore[attr-defined]
    nn.Linaer(2, 3)  # type: ignore[attr-defined]
    nn.Linear("2", 3)  # type: ignore[arg-type]
    nn.MSELoss(reduce="sum")  # type: ignore[call-arg]
    pb.sum(x, dim=0)  # type: ignore[call-overload]
    loss(x, scaled=2.0)  # type: ignore[call-arg]
