"""What the namespace says about itself."""

from __future__ import annotations

from typing import Any

from pullback.array_api.dtypes import STANDARD, AnyType, isdtype
from pullback.ir import dtype as D
from pullback.tensor.complex.pairs import complex64
from pullback.tensor.face.tensor import check_device


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

    def default_dtypes(self, *, device: Any = None) -> dict[str, AnyType]:
        """What Python numbers become that meet no tensor."""
        check_device(device)
        kinds: dict[str, AnyType] = {"real floating": D.float32, "complex floating": complex64}
        return {**kinds, "integral": D.int64, "indexing": D.int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, AnyType]:
        """The standard's types that are here, of one or several kinds."""
        check_device(device)
        return {t.name: t for t in STANDARD if kind is None or isdtype(t, kind)}


def array_namespace_info() -> Info:
    """What the namespace says about itself.

    Example:
        >>> xp.__array_namespace_info__().default_device()
        'cpu'
    """
    return Info()
