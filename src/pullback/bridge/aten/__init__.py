"""Rules of ATen operators, a file each family: importing them fills the table."""

from pullback.bridge.aten import elementwise, layers, products, reductions, shapes
from pullback.bridge.aten.table import REFUSES, RULES

__all__ = ["REFUSES", "RULES", "elementwise", "layers", "products", "reductions", "shapes"]
