"""How a tensor prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.ir.dtype import DType, is_extended
from pullback.ir.expr import Extent
from pullback.ir.markup import panel

Array = np.ndarray[Any, Any]


def array(values: Array, kind: DType) -> str:
    """The elements, shortened where there are many, and the type."""
    shown = values.astype(np.float32) if is_extended(kind) else values
    body = np.array2string(shown, separator=", ", prefix="Tensor(")
    tail = f", shape={tuple(values.shape)}" if values.size == 0 else ""
    return f"Tensor({body}{tail}, dtype={kind})"


def html(shown: str, shape: Sequence[Extent], kind: DType) -> str:
    """A tensor in a notebook: type and shape, then what `repr` says."""
    inner = ", ".join(map(str, shape))
    return panel(f"{kind}[{inner}]", shown)


def symbolic(shape: Sequence[Extent], kind: DType) -> str:
    """A tensor that is being traced."""
    inner = ", ".join(map(str, shape))
    return f"Tensor(<traced>, shape=({inner}), dtype={kind})"
