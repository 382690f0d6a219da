"""Rules of ONNX's operators, a file each family: importing them fills the table."""

from pullback.onnx.rules import (
    elementwise,
    places,
    products,
    reductions,
    shapes,
)
from pullback.onnx.rules.table import RULES

FORMS = {}
__all__ = ["FORMS", "RULES", "elementwise", "places", "products", "reductions", "shapes"]
