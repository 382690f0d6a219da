"""The interface by which onnx's own tests run a library: `onnx.backend.base`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.backend import base

from pullback.errors import UnsupportedError
from pullback.onnx.faults import uncalled
from pullback.onnx.model import Model, load


class Prepared(base.BackendRep):  # type: ignore[misc]
    """A model that was loaded."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Outputs as NumPy's arrays, of inputs in order or by name."""
        del kwargs
        if not isinstance(inputs, dict):
            names = [p.name for p in self.model.inputs]
            listed = inputs if isinstance(inputs, Sequence) else [inputs]
            if len(listed) > len(names):
                raise uncalled(f"{len(listed)} inputs, where the model has {len(names)}")
            inputs = dict(zip(names, listed, strict=False))
        return tuple(map(_array, self.model.run(inputs).values()))


def _array(y: Any) -> Any:
    """A result, and each of a sequence."""
    if isinstance(y, list | tuple):
        return [_array(one) for one in y]
    return None if y is None else np.asarray(y)


class Backend(base.Backend):  # type: ignore[misc]
    """``BackendTest(pb.onnx.Backend, __name__)`` runs onnx's tests.

    Example:
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 21]> f (float[n] x) => (float[n] y)'
        >>> model = parser.parse_model(text + " { y = Neg(x) }")
        >>> pb.onnx.Backend.run_model(model, [np.ones(2, np.float32)])
        (array([-1., -1.], dtype=float32),)
    """

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """A model, loaded. Raises: as `load`; UnsupportedError for another device."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"device={device!r}", help="CPU", code="E314")
        return Prepared(load(model, options=kwargs.get("options")))

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """The outputs of one call."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> Any:
        """One node is no model: it has no operator set. Raises: UnsupportedError."""
        raise UnsupportedError("a node without a model", help="run_model", code="E570")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The processor alone."""
        return device == "CPU"
