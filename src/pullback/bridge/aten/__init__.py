"""Rules of ATen operators, a file each family: importing them fills the table."""

from pullback.bridge.aten import (
    algebra,
    elementwise,
    factors,
    images,
    layers,
    places,
    products,
    reductions,
    shapes,
    special,
)
from pullback.bridge.aten.table import HOSTS, REFUSES, RULES

__all__ = [
    "HOSTS",
    "REFUSES",
    "RULES",
    "algebra",
    "elementwise",
    "factors",
    "images",
    "layers",
    "places",
    "products",
    "reductions",
    "shapes",
    "special",
]
