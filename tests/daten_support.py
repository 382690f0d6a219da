"""Texts of daten programs, and what becomes of them when characters are changed."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import pullback as pb
from pullback.daten import model as daten
from pullback.errors import PullbackError

ROOT = Path(__file__).parent.parent
SEED = """
modules:
  function L1: A{Dense}[M, N] B{Dense}[M, N] -> A{T}[M, k]
  function L2: A{Dense}[M, N] B{Dense}[M, N] -> A{T}[M, k]

parameters:
  A{Grad}
  B{Grad}

main:
  output = (L1 (L2 A B) C)
"""
BODIES = """
modules:
  function L1: A{Dense}[M, N] B{Dense}[M, N] -> A{T}[M, k]
    z1[m, n] = A[m, n] + B[m, n]
    return z1
  function L2: A{Dense}[M, N] B{Dense}[M, N] -> A{T}[M, k] where k = M
    z1[m, k] = sum[n](A[m, n] * B[k, n])
    return z1

parameters:
  A{Grad}[3, 4]
  B{Grad}

main:
  output = (L1 (L2 A B) C)
"""
SEVERAL = """
modules:
  function ends: x[N] -> a[] b[]   # the first and the last
    a[] = x[0]
    b[] = x[N - 1]
  function scaled: x{T}[~] s{T: float}[] -> y{T}[~]
    y[~] = x[~] * s
parameters:
  w{Grad}[7] = (uniform 0 2)
  f[7] = 3
inputs:
  t{int64}[4] = (below 7)
main:
  v = (scaled w 0.5)
  a, b = (ends v)
  g[i] = v[t[i]] * f[t[i]] + a
  loss[] = sum[i](g[i]) + b
train:
  steps = 3
"""
TEXTS = [BODIES, SEVERAL, (ROOT / "examples" / "net.daten").read_text()]
WORDS = ["A", "output", "(L1 A B)", "[M, N]", "{Grad}", "{T}", "{Sparse}", " = ", "->", "\n", "  ",
         ":", "(", ")", "[", "]", "main:", "where k = M", "return z1", "~", "0", "1e9", "9" * 12,
         "#", "\t", "loss", "sum[i]", "x", "//", "%", "é", "\x00", ","]  # fmt: skip
SMALL = 1 << 12  # elements


def mutated(seed: int) -> str:
    """One of the texts with a few places changed: characters, words, lines, the end cut off."""
    rng = random.Random(seed)
    text = rng.choice(TEXTS)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        way = rng.randrange(6)
        if way == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif way == 1:
            text = text[:at] + text[at + rng.choice((1, 1, 3, 9)) :]
        elif way == 2:
            text = text[:at] + rng.choice(WORDS) + text[at + 1 :]
        elif way == 3:
            lines = text.split("\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines)
        elif way == 4:
            other = rng.choice(TEXTS)
            start = rng.randrange(len(other))
            text = text[:at] + other[start : start + rng.choice((1, 4, 20))] + text[at:]
        elif rng.randrange(4) == 0:
            text = text[:at]
    return text


def tried(text: str) -> str:
    """What becomes of a text: the code of its error, or none. Raises: what nobody should."""
    most, daten.MOST_ELEMENTS = daten.MOST_ELEMENTS, SMALL
    try:
        own = daten.parse(text)
        own.sizes = {"B": 3} if "x[B" in text else {}
        own.options = pb.Options(backend="reference")
        names = tuple(dict.fromkeys((*own.outputs, *own.goal())))
        given = own.bound(names, {})
        made = own.evaluated({n: pb.asarray(a) for n, a in given.items()}, names)
        marked = [n for n, leaf in own.text.parameters.items() if leaf.grad]
        if marked and all(prod(made[n].shape) <= SMALL for n in names):
            own.gradients()
    except PullbackError as problem:
        assert problem.code not in ("E000", "") and str(problem)
        return problem.code
    finally:
        daten.MOST_ELEMENTS = most
    return "runs"
