"""Rules of ATen operators, a file each family: importing them fills the table."""

from pullback.bridge.aten import (
    algebra,
    elementwise,
    images,
    layers,
    places,
    products,
    reductions,
    shapes,
    special,
)
from pullback.bridge.aten.table import REFUSES, RULES

__all__ = [
    "REFUSES",
    "RULES",
    "algebra",
    "elementwise",
    "images",
    "layers",
    "places",
    "products",
    "reductions",
    "shapes",
    "special",
]
