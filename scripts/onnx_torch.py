"""Networks that PyTorch exports as ONNX, read by `pb.onnx`, beside PyTorch and onnxruntime.

`python scripts/onnx_torch.py [--times N] [NAME ..]`: the largest difference, by the largest one,
from PyTorch and, where it is installed, from onnxruntime; with `--times`, milliseconds of processor
time on one thread, the least of N calls of each in turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import pullback as pb

BOUND = 1e-4


class Block(nn.Module):
    """Two convolutions and what passes them by."""

    def __init__(self, c: int, d: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, d, 3, stride, 1, bias=False), nn.BatchNorm2d(d), nn.ReLU(),
            nn.Conv2d(d, d, 3, 1, 1, bias=False), nn.BatchNorm2d(d),
        )  # fmt: skip
        self.by: nn.Module = nn.Identity()
        if c != d or stride > 1:
            self.by = nn.Sequential(nn.Conv2d(c, d, 1, stride, bias=False), nn.BatchNorm2d(d))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.by(x))


class Inverted(nn.Module):
    """Wider, by channel, narrower."""

    def __init__(self, c: int, d: int, stride: int, times: int) -> None:
        super().__init__()
        h = c * times
        wide = [nn.Conv2d(c, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU6()] if times > 1 else []
        self.body = nn.Sequential(
            *wide, nn.Conv2d(h, h, 3, stride, 1, groups=h, bias=False), nn.BatchNorm2d(h),
            nn.ReLU6(), nn.Conv2d(h, d, 1, bias=False), nn.BatchNorm2d(d),
        )  # fmt: skip
        self.same = c == d and stride == 1

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.same else self.body(x)


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    c = 64
    for d in (64, 128, 256, 512):
        layers += [Block(c, d, 1 if d == 64 else 2), Block(d, d, 1)]
        c = d
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
    ]
    c = 32
    for t, d, n, s in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for k in range(n):
            layers.append(Inverted(c, d, s if k == 0 else 1, t))
            c = d
    layers += [nn.Conv2d(c, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Encoder(nn.Module):
    """Words, a layer of attention, words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
        self.out = nn.Linear(64, 100)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(self.words(x)))


class Recurrent(nn.Module):
    """Two layers of LSTM both ways, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
        self.second = nn.GRU(32, 8)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)[0])[0]


class UNet(nn.Module):
    """Smaller and larger again, by an interpolation and by a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.up, self.turned = (
            nn.Upsample(scale_factor=2.0, mode="bilinear"),
            nn.ConvTranspose2d(32, 16, 2, 2),
        )
        self.norm, self.out = nn.GroupNorm(4, 64), nn.Conv2d(64, 2, 1)

    def forward(self, x: Any) -> Any:
        a = nn.functional.silu(self.first(x))
        b = nn.functional.gelu(self.down(a))
        return torch.softmax(self.out(self.norm(torch.cat([a, self.up(b), self.turned(b)], 1))), 1)


IMAGE = (1, 3, 224, 224)
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "resnet18": (resnet18, lambda: torch.randn(IMAGE)),
    "mobilenet_v2": (mobilenet_v2, lambda: torch.randn(IMAGE)),
    "encoder": (Encoder, lambda: torch.randint(0, 100, (2, 16))),
    "recurrent": (Recurrent, lambda: torch.randn(2, 20, 8)),
    "unet": (UNet, lambda: torch.randn(1, 3, 32, 32)),
}


def lively(model: nn.Module, x: Any) -> nn.Module:
    """Norms with the statistics of this input, so that what comes out is not what biases say."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = None
        model.train()
        for _ in range(2):
            model(x + torch.randn(x.shape) * 0.1 if x.is_floating_point() else x)
    return model.eval()


def exported(model: nn.Module, x: Any) -> bytes:
    """A model as PyTorch writes it."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), file, dynamo=False)
    return file.getvalue()


def runtime(data: bytes) -> Callable[[Any], Any] | None:
    """A call of onnxruntime on one thread; None where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options)
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def calls(name: str) -> tuple[Any, dict[str, Callable[[Any], Any]]]:
    """An input, and each library's call."""
    torch.manual_seed(0)
    make, given = CASES[name]
    x = given()
    model = lively(make(), x)
    data = exported(model, x)
    own = pb.onnx.load(data)

    def eager(x: Any) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(x)).numpy()

    others = {"PyTorch": eager, "onnxruntime": runtime(data)}
    named = {n: f for n, f in others.items() if f is not None}
    return x.numpy(), {"pullback": lambda x: own(x).numpy(), **named}


def differences(name: str) -> dict[str, float]:
    """The largest difference from each other library, of the largest element."""
    x, both = calls(name)
    y = both.pop("pullback")(x).astype("d")
    return {n: float(np.abs(y - f(x)).max() / np.abs(y).max()) for n, f in both.items()}


def slopes(name: str) -> dict[str, float]:
    """The largest difference from PyTorch of the gradients of a mean of squares, by the largest
    element of each: by the input, and by parameters that kept their names.
    """
    torch.manual_seed(0)
    make, given = CASES[name]
    x = given()
    model = lively(make(), x)
    own = pb.onnx.load(exported(model, x))
    if x.is_floating_point():
        x.requires_grad_()
    (model(x) ** 2).mean().backward()
    theirs = {n: p.grad for n, p in model.named_parameters() if n in own._parameters}
    cells = {n: own._parameters[n] for n in theirs}
    place = nn_parameter(x)

    @pb.jit
    def gradients() -> Any:
        pb.mean(own(place) ** 2).backward()
        return [c.grad for c in cells.values()], place.grad if x.requires_grad else None

    by_cells, by_input = gradients()
    pairs = {n: (g, theirs[n]) for n, g in zip(theirs, by_cells, strict=True)}
    if x.requires_grad:
        pairs["the input"] = by_input, x.grad
    return {n: float(np.abs(a.numpy() - b.numpy()).max() / np.abs(b.numpy()).max())
            for n, (a, b) in pairs.items()}  # fmt: skip


def nn_parameter(x: Any) -> Any:
    """An input as what gradients are of."""
    array = pb.tensor(x.detach().numpy())
    return pb.nn.Parameter(array) if x.requires_grad else array


def times(name: str, count: int) -> dict[str, float]:
    """Milliseconds of processor time, the least of calls in turn."""
    x, all_of_them = calls(name)
    least = dict.fromkeys(all_of_them, float("inf"))
    for _ in range(count):
        for library, function in all_of_them.items():
            start = time.process_time()
            function(x)
            least[library] = min(least[library], time.process_time() - start)
    return {library: seconds * 1e3 for library, seconds in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("names", nargs="*", default=list(CASES))
    told = parser.parse_args()
    torch.set_num_threads(1)
    pb.set_num_threads(1)
    bad = 0
    for name in told.names:
        off = differences(name)
        bad += max(off.values()) > BOUND
        print(name, ", ".join(f"{n} {d:.0e}" for n, d in off.items()))
        if told.times:
            print("   ms:", ", ".join(f"{n} {t:.2f}" for n, t in times(name, told.times).items()))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
