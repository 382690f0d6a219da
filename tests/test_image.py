"""Images: what a compiled program is as text, read back, and in another process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import pullback as pb
from pullback.backends.base import Code, Image, Made, Stored
from pullback.errors import InvalidIR
from pullback.runtime.image import image_text, read_image
from small_programs import PROGRAMS

OPTIONS = pb.Options(threads=2, cache=None)
NAMES = ("layer norm", "while", "gather", "sort", "adamw", "scan", "encoder layer")


def unloaded(made: Made, kept: Sequence[Stored]) -> list[Code]:
    """Code that nobody calls."""
    return [Code(facts, 0, 0, None) for facts in kept]


def read(text: str) -> Image:
    image = read_image(text, unloaded)
    assert image is not None
    return image


@pytest.mark.parametrize("name", NAMES)
def test_an_image_reads_back(name: str) -> None:
    function, arguments = PROGRAMS[name]("float32")
    compiled = pb.jit(function, options=OPTIONS)
    compiled(*arguments)
    image = compiled.program.image
    assert image is not None
    text = image_text(image)
    again = read(text)
    assert image_text(again) == text
    assert [str(v) for v in again.state] == [str(v) for v in image.state]
    assert [len(group) for group in again.kernels] == [len(group) for group in image.kernels]
    assert again.plan.arena_bytes == image.plan.arena_bytes
    assert again.plan.picture() == image.plan.picture()
    assert image_text(again).count("place") == len(image.plan.placed)
    assert [c.stored for c in again.codes] == [c.stored for c in image.codes]


HEAD = 'image 1\nmade "llvm", "", null, null, 1\n'
BROKEN = {
    "nothing": "",
    "another version": "image 2\n",
    "no maker": "image 1\nbegin 0\nend\n",
    "no end": HEAD + "plan [0, 0, 0], [], [], []\nbegin 0\n",
    "no instruction": HEAD + "plan [0, 0, 0], [], [], []\n",
    "an end too many": HEAD + "begin 0\nend\nend\n",
    "an unknown word": HEAD + "begin 0\n  dance 1\nend\n",
    "no such variable": HEAD + "begin 0\n  branch 3\nelse\nend\nend\n",
    "no number": 'image 1\nvalue "x", "float32", ["n"]\n',
    "no JSON": "image 1\nmade {\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_a_text_that_is_no_image(text: str) -> None:
    with pytest.raises(InvalidIR):
        read(text)
