"""A loss of spectra that trains: values and derivatives beside PyTorch's, complex ones too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from example_support import example
from pullback.tensor.complex.pairs import Complex

RNG = np.random.default_rng(2)
own = example("vocoder.py")


def theirs(torch: Any, x: Any, y: Any) -> Any:
    """The loss of the example, in PyTorch."""

    def magnitude(x: Any, width: int) -> Any:
        window = torch.from_numpy(own.hann(width)).to(x.dtype)
        z = torch.stft(x, width, width // 4, window=window, return_complex=True)
        return torch.sqrt(torch.clamp(z.real**2 + z.imag**2, min=own.FLOOR))

    total = 0.0
    for width in own.WINDOWS:
        a, b = magnitude(x, width), magnitude(y, width)
        total = total + torch.sqrt(((b - a) ** 2).sum() / (b**2).sum())
        total = total + (b.log() - a.log()).abs().mean()
    return total / len(own.WINDOWS)


@pytest.mark.parametrize(
    ("batch", "samples"), [(1, 80), pytest.param(2, 131, marks=pytest.mark.slow)]
)
def test_the_loss_and_its_derivative_as_pytorch(
    batch: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(own, "WINDOWS", (16, 30))
    x, y = RNG.normal(size=(2, batch, samples))
    leaf = torch.from_numpy(x).requires_grad_()
    wanted = theirs(torch, leaf, torch.from_numpy(y))
    wanted.backward()
    both = pb.jit(pb.value_and_grad(own.spectral_loss))
    value, slope = both(pb.tensor(x), pb.tensor(y))
    assert abs(float(value.numpy()) - wanted.item()) < 1e-12
    away = np.abs(slope.numpy() - leaf.grad.numpy())
    at = np.unravel_index(away.argmax(), away.shape)
    assert away[at] < 1e-12, f"{at}: got {slope.numpy()[at]}, want {leaf.grad.numpy()[at]}"


def test_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside differences in float64, where no magnitude is at the floor."""
    monkeypatch.setattr(own, "WINDOWS", (16, 32))
    x, y = RNG.normal(size=(2, 1, 80))
    target = pb.tensor(y)

    def loss(x: Any) -> Any:
        return own.spectral_loss(x, target)

    both = pb.jit(pb.value_and_grad(loss))
    slope = both(pb.tensor(x))[1].numpy()
    for _ in range(3):
        v, h = RNG.normal(size=x.shape), 1e-6
        ahead, behind = (float(both(pb.tensor(x + s * h * v))[0].numpy()) for s in (1, -1))
        assert abs((slope * v).sum() - (ahead - behind) / (2 * h)) < 1e-6


def test_derivatives_by_complex_signals_as_pytorch() -> None:
    """``dL/dRe + i dL/dIm``, through a spectrum of all frequencies of a complex signal."""
    torch = pytest.importorskip("torch")
    z = RNG.normal(size=200) + 1j * RNG.normal(size=200)
    weight = RNG.normal(size=64) + 1j * RNG.normal(size=64)
    leaf = torch.from_numpy(z).requires_grad_()
    kept = torch.from_numpy(weight).requires_grad_()
    window = torch.from_numpy(own.hann(64)).double()
    turned = torch.stft(leaf, 64, 16, window=window, onesided=False, return_complex=True)
    mixed = (turned * kept[:, None]).abs()
    (mixed.sum() + (turned.exp().real * 1e-3).mean()).backward()

    def loss(z: Complex, w: Complex) -> Any:
        taper = pb.tensor(own.hann(64).astype(np.float64))
        spectrum = pb.fft.stft(z, 64, 16, window=taper, onesided=False)
        moved = Complex(pb.expand_dims(w.real, -1), pb.expand_dims(w.imag, -1))
        return pb.sum(pb.abs(spectrum * moved)) + pb.mean(pb.exp(spectrum).real * 1e-3)

    given = Complex.of(z), Complex.of(weight)
    for got, want in zip(
        pb.grad(loss, argnums=(0, 1))(*given), (leaf.grad, kept.grad), strict=True
    ):
        found = got.real.numpy() + 1j * got.imag.numpy()
        away = np.abs(found - want.numpy()) / (1 + np.abs(want.numpy()))
        at = int(away.argmax())
        assert away[at] < 1e-10, f"{at}: got {found[at]}, want {want.numpy()[at]}"


@pytest.mark.slow
def test_it_trains() -> None:
    pb.random.manual_seed(0)
    model = own.Generator()
    losses = own.train(model, own.optimizer(model), 60)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.6 * losses[0], losses[::10]
