"""How many kernels the programs of Caten's tests of its scheduler are, beside what those expect.

The table is in docs/kernel_counts.md (`scripts/kernel_counts.py` writes it). Counts of Caten
(hikettei/Caten) are those of its own tests, forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ir.expr import Const
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Combine, For, LoopKind, Native, Routine, Stmt
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements
from pullback.lower.kernel import lower
from pullback.nn import functional as F
from pullback.runtime.executable import Executable

PAGE = Path(__file__).parent.parent / "docs" / "kernel_counts.md"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A program, the shapes of its floats and of its indices, and Caten's count of kernels."""

    theirs: int
    function: Callable[..., Any]
    floats: tuple[Shape, ...]
    places: tuple[Shape, ...] = ()
    declared: Callable[[], Any] | None = None

    def inputs(self) -> list[np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        made = [rng.standard_normal(s).astype(np.float32) for s in self.floats]
        return [*made, *(rng.integers(0, 10, s) for s in self.places)]

    def program(self) -> Executable:
        options = pb.Options(cache=None, threads=1, machine="zen5")  # the page's
        shapes = None if self.declared is None else self.declared()
        made = pb.jit(self.function, options=options, shapes=shapes)
        made(*map(pb.tensor, self.inputs()))
        return made.program


def batch(*rest: Shape) -> Callable[[], Any]:
    """The first input with a batch of any size."""
    return lambda: [(pb.dim("batch", 1, 10), *rest[0][1:]), *rest[1:]]


def norm(x: pb.Tensor) -> pb.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def conv(x: pb.Tensor, w: pb.Tensor, b: pb.Tensor) -> pb.Tensor:
    return F.conv2d(x, w, b)


def cached(k: pb.Tensor, fresh: pb.Tensor) -> pb.Tensor:
    """Keys of a cache with new ones at the end, which attention goes on to read."""
    return pb.concat([k[:, :100], fresh], axis=1)


SQUARE = ((64, 64),) * 3
SMALL = ((10, 10),) * 3
IMAGES = ((10, 3, 25, 25), (6, 3, 5, 5), (6,))
softmax: Callable[[Any], Any] = lambda x: pb.softmax(x, axis=-1)
twice: Callable[..., Any] = lambda a, b, i, j: F.embedding(i, a) + F.embedding(j, b)

CASES = {
    "matmul": Case(1, lambda a, b: a @ b, ((10, 20), (20, 30))),
    "matmul(a, matmul(b, c))": Case(2, lambda a, b, c: a @ (b @ c), ((10, 20), (20, 30), (30, 40))),
    "matmul(matmul(a, b), c)": Case(2, lambda a, b, c: a @ b @ c, SMALL),
    "gelu(matmul)": Case(1, lambda a, b: pb.gelu(a @ b), SMALL[:2]),
    "gelu(matmul(a, b^T)), a batch of 1": Case(
        1, lambda a, b: pb.gelu(a @ b.mT), ((1, 64, 64),) * 2
    ),
    "matmul(a, gelu(matmul))": Case(2, lambda a, b, c: a @ pb.gelu(b @ c), SMALL),
    "matmul(gelu(matmul), c)": Case(2, lambda a, b, c: pb.gelu(a @ b) @ c, SMALL),
    "matmul(a, sin(matmul))": Case(2, lambda a, b, c: a @ pb.sin(b @ c), SMALL),
    "matmul(sin(matmul), c)": Case(2, lambda a, b, c: pb.sin(a @ b) @ c, SMALL),
    "matmul(a, gelu(matmul)), 64": Case(2, lambda a, b, c: a @ pb.gelu(b @ c), SQUARE),
    "matmul(a, layernorm(matmul)), 64": Case(3, lambda a, b, c: a @ norm(b @ c), SQUARE),
    "matmul + matmul": Case(1, lambda a, b, c, d: a @ b + c @ d, (*SQUARE, (64, 64))),
    "matmul of two chunks": Case(1, lambda x: pb.matmul(*pb.chunk(x, 2)), ((2, 64, 64),)),
    "sum(matmul(a, matmul(b, c)))": Case(3, lambda a, b, c: pb.sum(a @ (b @ c)), SMALL),
    "argmax(matmul)": Case(2, lambda a, b: pb.argmax(a @ b, axis=-1), SMALL[:2]),
    "matmul(tril(a), triu(b))": Case(
        4, lambda a, b: pb.tril(a) @ pb.triu(b), ((10, 1, 1, 10), (10, 1))
    ),
    "matmul, a batch of any size": Case(
        1, lambda a, b: a @ b, ((4, 12, 16), (16, 8)), declared=batch((4, 12, 16), (16, 8))
    ),
    "sum(sum(x, 0), 1)": Case(
        2, lambda x: pb.sum(pb.sum(x, axis=0, keepdims=True), axis=1, keepdims=True), ((10, 10),)
    ),
    "softmax, one axis": Case(1, softmax, ((10,),)),
    "softmax(softmax(softmax))": Case(1, lambda x: softmax(softmax(softmax(x))), ((3, 3),)),
    "softmax + softmax": Case(1, lambda a, b: softmax(a) + softmax(b), ((3, 3),) * 2),
    "softmax, a batch of any size": Case(1, softmax, ((4, 3, 5),), declared=batch((4, 3, 5))),
    "layernorm": Case(1, norm, ((3, 3),)),
    "rmsnorm": Case(1, lambda x: F.rms_norm(x, (3,)), ((3, 3),)),
    "batchnorm": Case(1, lambda x: F.batch_norm(x, None, None, training=True), ((3, 3),)),
    "attention": Case(3, F.scaled_dot_product_attention, ((4, 8, 8),) * 3),
    "embedding": Case(1, lambda w, i: F.embedding(i, w), ((10, 10),), ((10, 10),)),
    "embedding + embedding": Case(1, twice, ((10, 10),) * 2, ((10, 10),) * 2),
    "gelu(embedding)": Case(1, lambda w, i: pb.gelu(F.embedding(i, w)), ((10, 10),), ((10, 10),)),
    "conv": Case(1, conv, IMAGES),
    "relu(conv)": Case(1, lambda *a: pb.relu(conv(*a)), IMAGES),
    "gelu(conv)": Case(1, lambda *a: pb.gelu(conv(*a)), IMAGES),
    "gelu(conv), a batch of 1": Case(
        1, lambda *a: pb.gelu(conv(*a)), ((1, 3, 25, 25), *IMAGES[1:])
    ),
    "gelu(conv), a batch of any size": Case(
        1, lambda x, w, b: pb.gelu(conv(x, w, b)), IMAGES, declared=batch(*IMAGES)
    ),
    "gelu(conv), padded": Case(
        2, lambda x, w, b: pb.gelu(F.conv2d(x, w, b, padding=2)), IMAGES
    ),
    "cos(sin(pad))": Case(2, lambda x: pb.cos(pb.sin(pb.pad(x, ((2, 2), (2, 2))))), ((10, 10),)),
    "a uniform random tensor": Case(1, lambda: pb.random.uniform((3, 3), key=pb.random.key(0)), ()),
    "a cache of keys that grows": Case(2, cached, ((1, 128, 4, 4), (1, 28, 4, 4))),
    "relu of four axes": Case(1, pb.relu, ((2, 3, 4, 5),)),
}  # fmt: skip


def table() -> str:
    """The rows of the page."""
    lines = ["| program | Caten's tests | here |", "|---|---|---|"]
    for name, case in CASES.items():
        lines.append(f"| {name} | {case.theirs} | {len(case.program().kernels)} |")
    return "\n".join(lines)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_no_more_kernels_than_theirs(name: str) -> None:
    case = CASES[name]
    count = len(case.program().kernels)
    assert 1 <= count <= case.theirs, f"{name}: got {count} kernels, at most {case.theirs}"
    cells = re.search(
        rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert cells is not None, "scripts/kernel_counts.py writes the page"
    assert int(cells[1]) == case.theirs and count <= int(cells[2]), "the page says otherwise"


# --- loops ---------------------------------------------------------------------------------------


def nest(kernel: Kernel, program: Executable) -> Routine:
    assert program.target is not None
    return lower(kernel, program.chosen(kernel, program.target))


def loops(program: Executable) -> list[tuple[int, ...]]:
    """The turns of the loops around each innermost one of the one kernel, and its own."""
    (kernel,) = program.kernels
    return [found for found in nested(nest(kernel, program).body, ()) if found]


def nested(body: Sequence[Stmt], outside: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for loop in (s for s in body if isinstance(s, For)):
        assert isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
        turns = int(loop.hi.value) - int(loop.lo.value)
        own = (*outside, turns) if turns > 1 else outside
        inner = any(isinstance(s, For) for s in loop.body)
        yield from nested(loop.body, own) if inner else [own]


# Caten's loops and ours, where one of three turns is written out: the sum of its three terms.
COLLAPSED = {
    None: ((27,), (27,)),
    0: ((9, 3), (9,)),
    1: ((3, 3, 3), (3, 3)),
    2: ((9, 3), (9,)),
}


@pytest.mark.parametrize("axis", COLLAPSED)
def test_axes_are_one_loop_where_memory_is_one(axis: int | None) -> None:
    theirs, ours = COLLAPSED[axis]
    made = Case(1, lambda x: pb.sum(x, axis=axis), ((3, 3, 3),)).program()
    assert loops(made) == [ours] and len(ours) <= len(theirs)


@pytest.mark.parametrize(
    ("axis", "turns"), [(None, (729,)), (0, (169, 13)), (1, (13, 13, 13)), (2, (169, 13))]
)
def test_longer_axes_are_the_loops_of_theirs(axis: int | None, turns: tuple[int, ...]) -> None:
    """Those that stay and those that are summed; a sum of 13 terms is not written out."""
    extent = 9 if axis is None else 13  # of 13^3 terms processors of short vectors add blocks
    made = Case(1, lambda x: pb.sum(x, axis=axis), ((extent,) * 3,)).program()
    assert loops(made) == [turns]


def test_a_map_of_four_axes_is_one_loop() -> None:
    assert loops(CASES["relu of four axes"].program()) == [(120,)]


def test_a_map_of_four_axes_of_any_extent_is_one_loop_of_lanes() -> None:
    shapes = lambda: [(pb.dim("b", 1, 8), 3, 4, 5)]
    made = Case(1, pb.relu, ((2, 3, 4, 5),), declared=shapes).program()
    (kernel,) = made.kernels
    every = [s for s in statements(nest(kernel, made).body) if isinstance(s, For)]
    assert [loop.kind for loop in every if loop.kind is not LoopKind.SEQ] == [LoopKind.VECTOR]


@pytest.mark.parametrize("name", [n for n in CASES if "gelu" in n and "matmul" in n])
def test_an_activation_is_in_no_loop_of_a_product(name: str) -> None:
    program = CASES[name].program()
    products = natives = 0
    for kernel in program.kernels:
        every = list(statements(nest(kernel, program).body))
        natives += sum(calls(s) for s in every)
        for loop in every:
            inside = list(statements(loop.body)) if isinstance(loop, For) else []
            if any(isinstance(s, Combine) for s in inside) and not any(map(sequence, inside)):
                products += 1
                assert not any(map(calls, inside)), "the activation is in the loop of the sums"
    assert products and natives, "both are there"


def sequence(statement: Stmt) -> bool:
    return isinstance(statement, For) and statement.kind is LoopKind.SEQ


def calls(statement: Stmt) -> int:
    """How many functions a statement has."""
    return sum(isinstance(n, Native) for root in roots(statement) for n in walk([root]))
