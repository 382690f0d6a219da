"""`pb.onnx`: models of ONNX, read, run, trained; onnx's own tests run them by `Backend`."""

from pullback.onnx.backend import Backend
from pullback.onnx.model import Model, load
from pullback.onnx.rules import FORMS, RULES
from pullback.onnx.save import save
from pullback.tensor.face.dialect import shown as _shown

__all__ = ["Backend", "Model", "load", "operators", "save"]
__dir__ = _shown(__all__)


def operators() -> tuple[str, ...]:
    """Operators that have a rule: ``"Conv-11"``, name and version since which it is what it is.

    Example:
        >>> "Conv-22" in pb.onnx.operators()
        True
    """
    rules = [f"{d}.{name}-{v}" if d else f"{name}-{v}" for d, name, v in RULES]
    return tuple(sorted([*rules, *FORMS, "Constant", "Shape", "Size"]))
