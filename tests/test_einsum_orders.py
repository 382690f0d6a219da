"""Formulas of `pb.einsum` beside NumPy and PyTorch, with derivatives; the order of products."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.tensor.values.orders import order
from test_opencl import needs_device
from test_triton import needs_triton

RNG = np.random.default_rng(5)
SIZES = dict(zip("abcdefghijklmn", (2, 3, 4, 2, 3, 5, 2, 3, 4, 3, 2, 5, 2, 3), strict=True))
# What `...` is: two axes, of which operands have the last ones.
DOTS = (2, 3)
FORMULAS = [
    "i->i", "i->", "ij->ji", "ii->i", "ii->", "iij->j", "iijj->ij", "ijk->ki", "i,i->", "i,j->ij",
    "ij,j->i", "ij,jk->ik", "ij,kj->ik", "ij,ij->ij", "bij,bjk->bik", "bij,bkj->bik",
    "ij,jk,kl->il", "ij,jk,kl,lm->im", "ij,i,j->", "i,i,i->i", "ij,jk,ki->", "abc,cd,de->abe",
    "bhid,bhjd->bhij", "bi,nij,bj->bn", "ij,kl,mn->", "iij,jk,k->i", "ab,bc,cd,de,ef,fa->",
    "a,b,c,d,e,f,g->adg", "...i,...i->...", "...ij,...jk,...k->...i", "i...,ij,j->...",
    "...ii->...i", "ij,jk,...k->...i", "a...b,b...c,c->a...c",
]  # fmt: skip


def drawn(formula: str, dtype: Any = np.float64) -> list[Any]:
    """Operands; every second one has one axis of ``...`` alone."""
    made = []
    for n, term in enumerate(formula.partition("->")[0].split(",")):
        shape: list[int] = []
        for letter in term.replace("...", "."):
            shape += DOTS[n % 2 :] if letter == "." else [SIZES[letter]]
        made.append(RNG.normal(size=shape).astype(dtype))
    return made


def close(got: Any, want: Any, most: float) -> None:
    assert got.shape == want.shape, (got.shape, want.shape)
    bad = np.argwhere(~(np.abs(got - want) <= most * (1 + np.abs(want))))
    assert not len(bad), f"{tuple(bad[0])}: got {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"


def slopes(formula: str, given: list[Any], head: Any) -> list[Any]:
    """``d sum(head * einsum) / d operand`` by differences, exact: it is linear in each operand."""

    def value(*x: Any) -> float:
        return float((np.einsum(formula, *x) * head).sum())

    found = []
    for n, own in enumerate(given):
        slope = np.zeros_like(own)
        for at in np.ndindex(*own.shape):
            unit = np.zeros_like(own)
            unit[at] = 1.0
            slope[at] = value(*given[:n], unit, *given[n + 1 :])
        found.append(slope)
    return found


BACKENDS: list[Any] = [(f, b) for f in FORMULAS for b in ("llvm", "kernels", "reference")]
# What takes a while is a slow test for all formulas but some.
COMPILED: dict[str, list[Any]] = {
    "c": [],
    "opencl": [needs_device],
    "triton": [needs_triton, pytest.mark.torch],
}
BACKENDS += [
    pytest.param(f, backend, marks=[*marks, *[pytest.mark.slow] * (n % 6 > 0)])
    for backend, marks in COMPILED.items()
    for n, f in enumerate(FORMULAS)
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("formula", "backend"), BACKENDS)
def test_formulas(formula: str, backend: str) -> None:
    given = drawn(formula)
    want = np.einsum(formula, *given, optimize=True)
    head = RNG.normal(size=want.shape)
    weight = pb.tensor(head)

    def both(*x: Any) -> Any:
        y = pb.einsum(formula, *x)
        return pb.sum(y * weight), y

    grads = pb.grad(lambda *x: both(*x)[0], argnums=tuple(range(len(given))))
    options = pb.Options(backend=backend)
    program = pb.jit(lambda *x: (both(*x)[1], grads(*x)), options=options)
    y, found = program(*map(pb.tensor, given))
    close(y.numpy(), np.asarray(want), 1e-12)
    for own, slope in zip(found, slopes(formula, given, head), strict=True):
        close(own.numpy(), slope, 1e-12)


@pytest.mark.parametrize("formula", FORMULAS)
def test_as_pytorch(formula: str) -> None:
    torch = pytest.importorskip("torch")
    given = drawn(formula)
    want = torch.einsum(formula, *map(torch.from_numpy, given)).numpy()
    close(pb.einsum(formula, *map(pb.tensor, given)).numpy(), want, 1e-12)


def test_extents_of_one_give_way_in_any_order() -> None:
    shapes = [(1, 4), (3, 1), (3, 4), (1, 1)]
    given = [RNG.normal(size=s) for s in shapes]
    want = np.einsum("ij,ij,ij,ij->j", *(np.broadcast_to(x, (3, 4)) for x in given))
    for turn in itertools.permutations(given):
        close(pb.einsum("ij,ij,ij,ij->j", *map(pb.tensor, turn)).numpy(), want, 1e-12)


def test_zero_sizes() -> None:
    found = pb.einsum("ij,jk,kl->il", pb.ones((2, 0)), pb.ones((0, 3)), pb.ones((3, 0)))
    assert found.shape == (2, 0)
    assert pb.einsum("ij,jk,kl->il", *map(pb.ones, [(2, 0), (0, 3), (3, 2)])).numpy().sum() == 0.0


# --- the order -----------------------------------------------------------------------------------


def work(terms: list[str], out: str, sizes: dict[str, int], steps: Any) -> int:
    """Multiplications of an order; names of one operand alone are summed before."""
    others = [
        set(out).union(*(u for m, u in enumerate(terms) if m != n)) for n in range(len(terms))
    ]
    listed, total = [set(t) & asked for t, asked in zip(terms, others, strict=True)], 0
    for a, b in steps:
        inside = listed[a] | listed[b]
        rest = [t for n, t in enumerate(listed) if n not in (a, b)]
        total += int(np.prod([sizes[n] for n in inside]))
        listed = [*rest, inside & set(out).union(*rest)]
    assert len(listed) == 1
    return total


def every(count: int) -> Any:
    """All orders of so many operands."""
    if count == 1:
        yield []
        return
    for pair in itertools.combinations(range(count), 2):
        yield from ([pair, *rest] for rest in every(count - 1))


@pytest.mark.parametrize("case", range(30))
def test_the_order_is_the_cheapest_of_all(case: int) -> None:
    rng = np.random.default_rng(case)
    letters = "abcdef"
    sizes = {n: int(rng.integers(1, 9)) for n in letters}
    terms = ["".join(rng.permutation(list(letters))[: rng.integers(1, 4)]) for _ in range(5)]
    named = sorted(set("".join(terms)))
    out = "".join(rng.permutation(named)[: rng.integers(0, 3)])
    steps = order([frozenset(t) for t in terms], frozenset(out), sizes)
    best = min(work(terms, out, sizes, s) for s in every(5))
    assert work(terms, out, sizes, steps) == best, (terms, out, sizes, steps)


def test_many_operands_are_taken_greedily() -> None:
    """A chain whose ends are small: NumPy's greedy order takes no less."""
    terms = ["ab", "bc", "cd", "de", "ef", "fg", "gh", "h"]
    sizes = dict.fromkeys("abcdefgh", 20) | {"a": 2}
    steps = order([frozenset(t) for t in terms], frozenset("a"), sizes)
    assert work(terms, "a", sizes, steps) == 6 * 20 * 20 + 2 * 20
    given = [RNG.normal(size=[sizes[n] for n in t]) for t in terms]
    formula = ",".join(terms) + "->a"
    close(pb.einsum(formula, *map(pb.tensor, given)).numpy(), np.linalg.multi_dot(given), 1e-10)


def test_programs_have_the_steps() -> None:
    """A row times a chain of matrices makes no product of matrices."""
    program = pb.jit(lambda a, b, x: pb.einsum("ij,jk,k->i", a, b, x))
    program(pb.ones((64, 64)), pb.ones((64, 64)), pb.ones(64))
    sums = [n for n in program.program.explain().splitlines() if "= sum[" in n]
    assert sums and not any("i, j]" in n.split("=")[0] or "64, " in n for n in sums)
