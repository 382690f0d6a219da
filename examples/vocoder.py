"""A waveform from a few numbers a frame, trained on its spectra: `python examples/vocoder.py`.

A generator as HiFi-GAN's, made small: transposed convolutions take pitch and loudness of 32 frames
to 1024 samples. The loss is that of Parallel WaveGAN and its kin, over three lengths of windows:

    |Y - X|_F / |Y|_F + mean |log Y - log X|,  X and Y the magnitudes of both spectra

Source: Yamamoto, Song and Kim, Parallel WaveGAN, 2020; Kong, Kim and Bae, HiFi-GAN, 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim

STEPS = 150
FRAMES, HOP = 32, 32
WIDTH = 16
WINDOWS = (64, 128, 256)
FLOOR = 1e-5  # below this power a magnitude is not told apart from silence
Array = np.ndarray[Any, Any]


def recording() -> tuple[Array, Array]:
    """A voice that glides, four harmonics of it, and what is known of it in each frame."""
    t = np.arange(FRAMES * HOP) / (FRAMES * HOP)
    pitch = 0.05 + 0.02 * np.sin(2 * np.pi * t)  # cycles a sample
    loud = np.sin(np.pi * t) ** 2
    phase = 2 * np.pi * np.cumsum(pitch)
    wave = loud * sum(np.sin(n * phase) / n for n in range(1, 5)) / 2
    frames = slice(HOP // 2, None, HOP)
    known = [
        20 * (pitch[frames] - 0.05),
        loud[frames],
        np.sin(phase[frames]),
        np.cos(phase[frames]),
    ]
    return np.stack(known).astype(np.float32)[None], wave.astype(np.float32)[None]


class Generator(nn.Module):
    """Frames (b, 4, f) to samples (b, 32 f), by four times 4, 4 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(4, WIDTH, 7, padding=3),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(WIDTH, WIDTH, 8, stride=4, padding=2),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(WIDTH, WIDTH, 8, stride=4, padding=2),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv1d(WIDTH, 1, 7, padding=3),
            nn.Tanh(),
        )

    def forward(self, known: Any) -> Any:
        return self.layers(known)[:, 0]


def hann(width: int) -> Array:
    """``sin(pi n / width)^2``"""
    return (np.sin(np.pi * np.arange(width) / width) ** 2).astype(np.float32)


def magnitude(x: Any, width: int) -> Any:
    """``sqrt(re^2 + im^2)`` of the windows' spectra, `FLOOR` where that is less."""
    window = pb.tensor(hann(width).astype(x.dtype.name))
    spectrum = pb.fft.stft(x, width, width // 4, window=window)
    return pb.sqrt(pb.maximum(spectrum.real**2 + spectrum.imag**2, FLOOR))


def spectral_loss(x: Any, y: Any) -> Any:
    """How far the spectra of `x` are from those of `y`, mean of three lengths of windows."""
    total = 0.0
    for width in WINDOWS:
        own, wanted = magnitude(x, width), magnitude(y, width)
        converged = pb.sqrt(pb.sum((wanted - own) ** 2) / pb.sum(wanted**2))
        total = total + converged + pb.mean(pb.abs(pb.log(wanted) - pb.log(own)))
    return total / len(WINDOWS)


def loss_of(model: nn.Module, known: Any, wave: Any) -> Any:
    return spectral_loss(model(known), wave)


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=3e-3)


def train(model: nn.Module, opt: optim.Optimizer, steps: int) -> list[float]:
    """The loss of each step; all steps are one program."""
    known, wave = map(pb.tensor, recording())
    losses: list[float] = []

    def step() -> None:
        opt.zero_grad()
        loss = loss_of(model, known, wave)
        loss.backward()
        opt.step()
        pb.Receiver(lambda value: losses.append(float(value)), [loss])

    pb.jit(lambda: pb.loop(range(steps), step))()
    return losses


def main() -> float:
    """Train, and print what came of it. The last loss."""
    pb.random.manual_seed(0)
    model = Generator()
    losses = train(model, optimizer(model), STEPS)
    print(f"{STEPS} steps: spectral loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses[-1]


if __name__ == "__main__":
    main()
