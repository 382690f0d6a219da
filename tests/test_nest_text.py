"""Loop nests as text: what is printed reads back, and what nobody printed is a coded error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import robust_texts
from pullback.cli.graph_text import parse_kernel
from pullback.cli.nest_text import parse_routine
from pullback.errors import SyntaxFormError
from pullback.ir.text import show
from pullback.ir.tokens import Tokens

GOLDENS = Path(__file__).parent / "goldens"
HEAD = "routine r, task t < 2\n  argument x: float32[64]\n  argument y: float32[64]\n"
SHORT = 3000  # characters of a text that is changed


def nests() -> Iterator[str]:
    """Every loop nest of the goldens."""
    for path in sorted(GOLDENS.rglob("*.txt")):
        nest: list[str] = []
        for line in [*path.read_text().splitlines(), ""]:
            if nest and not (line.startswith("  ") or line == "finish"):
                yield "\n".join([*nest, ""])
                nest = []
            if nest or line.startswith("routine "):
                nest.append(line)


def test_every_golden_nest_reads_back() -> None:
    count = 0
    for text in nests():
        assert show(parse_routine(text)) == text
        count += 1
    assert count > 400


# Names that are words of the notation too, symbolic extents called as the rows of a copied block.
NAMED = """routine a..b, task task < 4
  argument vector: float32[64]
  argument float32: float32[64]
  argument é.1: float32[64] past the caches
  scratch check: float32[64]
  size c in 1..8
  size r in 1..8
  site 0: axis 0 of `x` (é.py:1), which has 3 elements: it's "so"
  site 1: a: b
  vector[0] = float32[task] + 1.0
  float32[c] = -vector[-(c // 3)]
  float32[4] u1 = 0.0
  float32 u2 = float32[0]
  u1[2] sum= u2
  seq x2 in -1..c + r by 4 within -1..14:
    vector x2 i3 in 0..4:
      check[i3] max= u1[i3]
  check 0 <= c < r, site 1
  prefetch float32[c + 3]
  vector[c + c * 8 + r - 3 + c*8 + r] = check[r + r*4 + c] for r < c, c < min(3, c) in words of 2
  if 0 < c:
    é.1[0] = 2.0
finish
  vector[1] = 2.0
"""


def test_names_that_are_words_of_the_notation() -> None:
    routine = parse_routine(NAMED)
    assert routine.name == "a..b" and show(routine) == NAMED


@pytest.mark.parametrize(
    ("text", "told", "place"),
    [
        ("", "unexpected end of a nest", ""),
        ("nest r, task t < 1\n", "expected 'routine'", "nest"),
        ("routine r, task t < 1 2\n", "unexpected text", "2"),
        (HEAD + "  size n in 1.5\n", "expected a whole number", "1.5"),
        (HEAD + "  x[0] = y[1] z\n", "line 4: unexpected text", "z"),
        (HEAD + "  x[0] sums= y[1]\n", "no reduction sums", "sums"),
        (HEAD + "  x[0] sum = y[1]]\n", "unexpected text", "]"),
        (HEAD + "  x = y[1]\n", "an array has one index", "="),
        (HEAD + "  z[0] = y[1]\n", "nothing is called z", "z"),
        (HEAD + "  seq i in 0..t:\n    x[i] = 1.0\n", "i needs its bounds", ":"),
        (HEAD + "  seq y2 i in 0..4:\n", "so many in flight", "in"),
        (HEAD + "  seq i in 0..4\n", "expected ':'", ""),
        (HEAD + "  seq i in 0..4:\n      x[i] = 1.0\n", "too far to the right", ""),
        (HEAD + "  x[0] = 1.0\nfinish now\n", "unexpected text", "now"),
        (HEAD + "  x[0] = 1.0\nfinish\n  y[0] = 1.0\nfinish\n", "not a statement", ""),
        (HEAD + "  x[0] = 1.0\nx[1] = 1.0\n", "expected 'finish'", "x[1]"),
        (HEAD + "  check 0 <= t, site 0\n", "expected '<'", ","),
        (HEAD + "  prefetch t[0]\n", "no array is called t", "t[0]"),
        (HEAD + "  x[0 + c*²+ r] = y[0 + r*8 + c] for r < 8, c < 8\n", "expected a whole", "²"),
        (HEAD + "  x[0 + r*8 + c] = y[0 + c*8 + r] for r < 8, c < 8\n", "unknown name r", "r*8"),
        (HEAD + "  x[0] = y[1] + t\n", "float32", ""),
    ],
)
def test_a_wrong_nest_is_told_where(text: str, told: str, place: str) -> None:
    with pytest.raises(SyntaxFormError, match=told) as error:
        parse_routine(text)
    assert error.value.code == "E172"
    if place:
        line, caret = (error.value.help or "").splitlines()[1:3]
        assert line[caret.index("^") :].startswith(place), error.value


@pytest.mark.parametrize("deep", [70, 3000])
def test_a_deep_nest_is_no_recursion(deep: int) -> None:
    loops = "".join(f"{'  ' * n}if 0 < 1:\n" for n in range(1, deep))
    with pytest.raises(SyntaxFormError, match="nested too deeply"):
        parse_routine(f"{HEAD}{loops}{'  ' * deep}x[0] = 1.0\n")


def test_changed_nests_are_read_or_refused() -> None:
    every = [text for text in nests() if len(text) < SHORT]
    refused = 0
    for number in range(400):
        source = random.Random(number)
        tokens = robust_texts.TOKEN.findall(source.choice(every))
        for _ in range(source.choice((1, 1, 2, 3, 5))):
            source.choice(robust_texts.CHANGES)(source, tokens, every)
        try:
            parse_routine("".join(tokens))
        except SyntaxFormError as error:
            assert error.code == "E172"
            refused += 1
    assert 200 < refused < 400


def test_a_range_is_no_number_and_no_name() -> None:
    words = [text for _, text, _ in Tokens("x.1..2.5 a..b 0..16 1. ..3 é.b.c", 1).items[:-1]]
    assert words == ["x.1", "..", "2.5", "a", "..", "b", "0", "..", "16", "1.", "..", "3", "é.b.c"]


def test_a_kernel_of_several_has_its_name() -> None:
    kernel = parse_kernel("kernel a.1..b over []\n  var x: float32[]\n  var y: float32[]\n"
                          "  stage b: float32[] at () -> store y\n    b[] = x[]\n")  # fmt: skip
    assert kernel.name == "a.1..b"
