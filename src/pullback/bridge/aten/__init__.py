"""Rules of ATen operators, a file each family: importing them fills the table."""

from pullback.bridge.aten import (
    algebra,
    attention,
    bags,
    elementwise,
    encoders,
    factors,
    images,
    layers,
    packing,
    places,
    products,
    recurrent,
    reductions,
    resizes,
    segments,
    shapes,
    special,
)
from pullback.bridge.aten.table import REFUSES, RULES

__all__ = [
    "REFUSES",
    "RULES",
    "algebra",
    "attention",
    "bags",
    "elementwise",
    "encoders",
    "factors",
    "images",
    "layers",
    "packing",
    "places",
    "products",
    "recurrent",
    "reductions",
    "resizes",
    "segments",
    "shapes",
    "special",
]
