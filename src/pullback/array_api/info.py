"""What the namespace says about itself."""

from __future__ import annotations

from typing import Any

from pullback.array_api.dtypes import STANDARD, isdtype
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.tensor.tensor import check_device


class Info:
    """Devices, types and capabilities, as `__array_namespace_info__` gives them."""

    def capabilities(self) -> dict[str, Any]:
        """A mask is no index; places of what is not 0 and distinct elements come from NumPy."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """Where tensors are made."""
        return "cpu"

    def devices(self) -> list[str]:
        """Where tensors may live."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """What Python numbers become that meet no tensor. There are no complex types."""
        check_device(device)
        return {"real floating": D.float32, "integral": D.int64, "indexing": D.int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The standard's types that are here, of one or several kinds."""
        check_device(device)
        return {t.name: t for t in STANDARD if kind is None or isdtype(t, kind)}


def array_namespace_info() -> Info:
    """What the namespace says about itself."""
    return Info()
