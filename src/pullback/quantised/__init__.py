"""Products with weights of 8 or 4 bits, packed for reading once and in order.

``y[.., n] = sum[k] x[.., k] w[n, k]`` where ``w[n, k] ~ scale[n, k // group] q[n, k]``, q integers.
"""

from __future__ import annotations

from pullback.quantised.packed import Weights, weights
from pullback.quantised.products import activations, integer_product, linear, linear8
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown

__all__ = ["Weights", "activations", "integer_product", "linear", "linear8", "weights"]

__dir__ = _shown(__all__)
_bounded(globals(), __all__)
