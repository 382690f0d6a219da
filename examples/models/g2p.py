"""g2p-en: how an English word is spoken, letter by letter.

A GRU reads the letters, another writes the sounds (ARPAbet; 0, 1, 2 is the stress) until it writes
an end. Both loops are one program for words of any length. The weights ship in a package:
`pip install --no-deps g2p-en`. Then `python examples/models/g2p.py activationist`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from packages import folder

import pullback as pb
from pullback import nn

LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
SPOKEN = """
    AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1
    EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1
    OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH
"""
SOUNDS = ("<pad>", "<unk>", "<s>", "</s>", *SPOKEN.split())
BEGIN, END = SOUNDS.index("<s>"), SOUNDS.index("</s>")
WIDTH, LONGEST_WORD, LONGEST_SPEECH = 256, 40, 20

Tensors = tuple[Any, ...]

# Our names, and those of the package's arrays.
NAMES = {
    "letters.weight": "enc_emb",
    "encoder.weight_*": "enc_w_*",
    "encoder.bias_*": "enc_b_*",
    "sounds.weight": "dec_emb",
    "decoder.weight_*": "dec_w_*",
    "decoder.bias_*": "dec_b_*",
    "out.weight": "fc_w",
    "out.bias": "fc_b",
}


class G2P(nn.Module):
    """Two recurrent nets: ``h = read(letters); sound, h = speak(sound, h)`` until the end."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.encoder = nn.GRUCell(WIDTH, WIDTH)
        self.sounds = nn.Embedding(len(SOUNDS), WIDTH)
        self.decoder = nn.GRUCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, len(SOUNDS))

    def forward(self, word: pb.Tensor, count: pb.Tensor) -> pb.Tensor:
        """Of the first `count` letters of a word its sounds, filled up with ends."""
        return self.speak(self.read(word, count))

    def read(self, word: pb.Tensor, count: pb.Tensor) -> pb.Tensor:
        """``h[t] = gru(letter[t], h[t - 1])``, the last one."""

        def step(carry: Tensors) -> Tensors:
            t, h = carry
            return t + 1, self.encoder(self.letters(pb.take(word, t)), h)

        start = (pb.tensor(0), pb.zeros((WIDTH,)))
        last = pb.while_loop(lambda carry: carry[0] < count, step, start, max_steps=LONGEST_WORD)
        return last[1]

    def speak(self, h: pb.Tensor) -> pb.Tensor:
        """``h[t] = gru(sound[t - 1], h[t - 1]); sound[t] = argmax(w h[t] + b)``"""
        places = pb.arange(LONGEST_SPEECH)

        def step(carry: Tensors) -> Tensors:
            t, h, last, sounds = carry
            h = self.decoder(self.sounds(last), h)
            sound = pb.argmax(self.out(h))
            return t + 1, h, sound, pb.where(places == t, sound, sounds)

        sounds = pb.full((LONGEST_SPEECH,), END)
        start = (pb.tensor(0), h, pb.tensor(BEGIN), sounds)
        last = pb.while_loop(lambda carry: carry[2] != END, step, start, max_steps=LONGEST_SPEECH)
        return last[3]


def load() -> G2P:
    """The model with its published weights."""
    model = G2P()
    with np.load(folder("g2p_en") / "checkpoint20.npz") as weights:
        model.load_state_dict(nn.renamed(weights, NAMES))
    return model.eval()


class Speaker:
    """`speaker(word)` gives its sounds."""

    def __init__(self) -> None:
        self.run = pb.jit(load())
        self.numbers = {letter: number for number, letter in enumerate(LETTERS)}

    def __call__(self, word: str) -> list[str]:
        unknown = self.numbers["<unk>"]
        letters = [self.numbers.get(letter, unknown) for letter in word.lower()]
        letters = [*letters[: LONGEST_WORD - 1], self.numbers["</s>"]]
        padded = np.zeros(LONGEST_WORD, np.int64)
        padded[: len(letters)] = letters
        spoken = self.run(padded, np.array(len(letters))).tolist()
        return [SOUNDS[number] for number in spoken if number != END]


def main(words: list[str]) -> None:
    """Print each word and how it is spoken."""
    speaker = Speaker()
    for word in words:
        print(word, *speaker(word))


if __name__ == "__main__":
    main(sys.argv[1:] or ["activationist", "pullback", "tensor"])
