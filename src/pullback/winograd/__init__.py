"""Convolutions of 3 x 3 taps and stride 1 by minimal filtering: a rule, and bounds of its error.

`pb.jit(f, rules=[pb.winograd.rule()])` computes each such sum, forward and both adjoints, in
the way of the lowest price. Without the rule nothing changes.
"""

from __future__ import annotations

from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.winograd.bounds import bound, weight_bound
from pullback.winograd.choose import Choice, Winograd, rule

__all__ = ["Choice", "Winograd", "bound", "rule", "weight_bound"]

__dir__ = _shown(__all__)
_bounded(globals(), __all__)
