"""Silero VAD: how likely each 32 ms of sound are speech.

A Fourier transform written as a convolution, four convolutions, an LSTM that goes on from frame to
frame. The weights ship in a package: `pip install --no-deps silero-vad`. Then
`python examples/models/silero.py SOUND.wav` (16 kHz, 16 bits; without one, sounds of its own).
"""

from __future__ import annotations

import sys
import wave
from typing import Any

import numpy as np
from packages import folder

import pullback as pb
from pullback import nn

RATE = 16_000  # samples a second
FRAME, CONTEXT, AFTER = 512, 64, 64  # samples: new ones, known ones before, mirrored ones after
WINDOW, STRIDE, WIDTH = 256, 128, 128
BINS = WINDOW // 2 + 1

F = nn.functional
Array = np.ndarray[Any, Any]
Tensors = tuple[pb.Tensor, pb.Tensor]


class SileroVAD(nn.Module):
    """``p[t] = sigmoid(w relu(h[t]))``, h the LSTM over what the convolutions make of each frame"""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * BINS, WINDOW, stride=STRIDE, bias=False)
        self.conv1 = nn.Conv1d(BINS, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, WIDTH, 3, padding=1)
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.final_conv = nn.Conv1d(WIDTH, 1, 1)

    def forward(self, frames: pb.Tensor, state: Tensors) -> tuple[pb.Tensor, Tensors]:
        """Of frames (t, 576) and the state before them: p (t), and the state after."""
        x = self.stft_conv(F.pad(frames[:, None], (0, AFTER), mode="reflect"))
        x = pb.sqrt(x[:, :BINS] ** 2 + x[:, BINS:] ** 2)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(conv(x))
        h, state = self.lstm(x[:, :, 0], state)
        return F.sigmoid(self.final_conv(F.relu(h)[:, :, None]))[:, 0, 0], state


def load() -> SileroVAD:
    """The model with its published weights."""
    weights = nn.load(folder("silero_vad") / "data" / "silero_vad_16k.safetensors")
    model = SileroVAD()
    model.load_state_dict(nn.renamed(weights, {"lstm.*_l0": "lstm_cell.*"}))
    return model.eval()


def still() -> Tensors:
    """The state before any sound."""
    return pb.zeros((1, WIDTH)), pb.zeros((1, WIDTH))


def frames_of(sound: Array) -> Array:
    """``f[t, s] = sound[512 t + s - 64]``, silence where there is none."""
    count = -(-len(sound) // FRAME)
    padded = np.zeros(CONTEXT + count * FRAME, np.float32)
    padded[CONTEXT : CONTEXT + len(sound)] = sound
    windows = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)
    return np.ascontiguousarray(windows[::FRAME])


class Stream:
    """Sound as it comes: `stream(samples)` tells of the next 512 samples."""

    def __init__(self, model: SileroVAD) -> None:
        self.run = pb.jit(model)
        self.state = still()
        self.frame = np.zeros((1, CONTEXT + FRAME), np.float32)

    def __call__(self, samples: Array) -> float:
        self.frame[0, :CONTEXT] = self.frame[0, FRAME:]
        self.frame[0, CONTEXT:] = samples
        found, self.state = self.run(self.frame, self.state)
        return float(found)


def speech(model: SileroVAD, sound: Array) -> Array:
    """The probability of each frame of a whole recording, as one program."""
    found, _ = pb.jit(model)(frames_of(sound), still())
    return found.numpy()


def vowel(seconds: float, pitch: float = 120.0) -> Array:
    """Pulses of a glottis, `pitch` a second, through the resonances of an open vowel."""
    count = int(seconds * RATE)
    sound = np.zeros(count, np.float32)
    sound[:: int(RATE / pitch)] = 1.0
    time = np.arange(RATE // 20) / RATE
    for hertz, width in ((730.0, 90.0), (1090.0, 110.0), (2440.0, 170.0)):
        ringing = np.exp(-np.pi * width * time) * np.sin(2 * np.pi * hertz * time)
        sound = np.convolve(sound, ringing)[:count].astype(np.float32)
    return 0.3 * sound / np.abs(sound).max()


def sample() -> Array:
    """A second of silence, one of three syllables, one of noise."""
    quiet = np.zeros(RATE, np.float32)
    swell = np.sin(3 * np.pi * np.arange(RATE) / RATE).astype(np.float32) ** 2
    noise = 0.02 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    return np.concatenate([quiet, swell * vowel(1.0), noise])


def read(path: str) -> Array:
    """The first channel of a file, between -1 and 1."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getsampwidth()) != (RATE, 2):
            sys.exit(f"{path}: 16,000 samples a second of 16 bits are wanted")
        data = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return data[:: file.getnchannels()].astype(np.float32) / 32768.0


def main(sound: Array) -> None:
    """Draw the probabilities, a line for a fifth of a second."""
    found = speech(load(), sound)
    for first in range(0, len(found), 6):
        value = float(found[first : first + 6].mean())
        print(f"{first * FRAME / RATE:6.2f} s {value:5.3f} {'#' * round(40 * value)}")


if __name__ == "__main__":
    main(read(sys.argv[1]) if sys.argv[1:] else sample())
