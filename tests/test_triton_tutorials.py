"""Kernels as those of Triton's tutorials 07 and 08; `docs/triton.md` names the tests of all."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_tutorials as corpus  # noqa: E402  # it needs Triton
from test_triton_grad import same  # noqa: E402
from triton_library import on_the_interpreter  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
SIZES = [(5, 7, 3), (20, 9, 17), (1, 1, 1), (16, 33, 8)]  # rows, columns, terms
BLOCKS: dict[str, Any] = {"PROGRAMS": 3, "BM": 16, "BN": 16, "BK": 16}


def test_a_function_of_the_library() -> None:
    """Tutorial 07."""
    f = pb.triton.op(corpus.library_kernel, grid=lambda a: (triton.cdiv(a["n"], 32),), outputs="Y")
    with on_the_interpreter():
        same(f, torch.asin, [torch.rand(70) * 1.8 - 0.9], 70, BLOCK=32)


def lengths(*axes: int) -> list[int]:
    return [s[axes[0]] * s[axes[1]] for s in SIZES]


def places() -> Any:
    """Where each product begins, in each of the three arrays."""
    each = (lengths(0, 2), lengths(2, 1), lengths(0, 1))
    return torch.tensor([[0, *itertools.accumulate(own)][:-1] for own in each]).T.contiguous()


def test_products_of_a_group() -> None:
    """Tutorial 08, of places in one array."""

    def of(a: Any, b: Any) -> Any:
        left, right = a.split(lengths(0, 2)), b.split(lengths(2, 1))
        pairs = zip(SIZES, left, right, strict=True)
        return torch.cat([(x.view(m, k) @ y.view(k, n)).view(-1) for (m, n, k), x, y in pairs])

    outputs = {"C": lambda _: torch.zeros(sum(lengths(0, 1)))}
    f = pb.triton.op(corpus.group_kernel, grid=(3,), outputs=outputs)
    a, b = torch.randn(sum(lengths(0, 2))), torch.randn(sum(lengths(2, 1)))
    rest = (torch.tensor(SIZES, dtype=torch.int32), places(), len(SIZES))
    text = same(f, of, [a, b], *rest, **BLOCKS, ADDRESSES=False)
    assert text.count("tl.dot(") == 2  # the product itself is needed by nothing


def test_addresses_out_of_a_table_are_refused() -> None:
    """Tutorial 08, as it is: at the line where the address is made."""
    group = [torch.randn(m, k) for m, _, k in SIZES]
    table = torch.tensor([t.data_ptr() for t in group])
    f = pb.triton.op(corpus.group_kernel, grid=(3,), outputs={"C": "C"})
    rest = (table, table, table, torch.tensor(SIZES, dtype=torch.int32), places(), len(SIZES))
    with pytest.raises(UnsupportedError, match="E423") as error:
        f.source(*rest, **BLOCKS, ADDRESSES=True)
    line = int(re.search(r"triton_tutorials\.py:(\d+)", str(error.value))[1])
    assert "pointer_type" in Path(corpus.__file__).read_text().splitlines()[line - 1]
    assert "an address out of a number: no argument owns it" in str(error.value)
