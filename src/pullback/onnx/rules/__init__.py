"""Rules of ONNX's operators, a file each family: importing them fills the table."""

from pullback.onnx.rules import (
    early,
    elementwise,
    norms,
    places,
    products,
    quantised,
    recurrent,
    reductions,
    regions,
    resizes,
    samples,
    sequences,
    shapes,
    spectra,
    training,
    windows,
)
from pullback.onnx.rules.control import FORMS
from pullback.onnx.rules.table import RULES

__all__ = [
    "FORMS",
    "RULES",
    "early",
    "elementwise",
    "norms",
    "places",
    "products",
    "quantised",
    "recurrent",
    "reductions",
    "regions",
    "resizes",
    "samples",
    "sequences",
    "shapes",
    "spectra",
    "training",
    "windows",
]
