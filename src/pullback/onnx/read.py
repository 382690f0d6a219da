"""Files of ONNX as models: bytes that are hostile until shown otherwise.

Sizes are checked before memory is taken: a tensor's bytes are those its shape and type say, and
external data lie inside the folder of the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Error
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from pullback.errors import MALFORMED
from pullback.ir.dtype import DType, dtype, is_extended
from pullback.onnx.faults import crooked, foreign, misfit, unreadable

Array = np.ndarray[Any, Any]

MOST_BYTES = 2**31  # of one message: protobuf's own limit
_TYPES = {
    TensorProto.BOOL: "bool", TensorProto.INT8: "int8", TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16", TensorProto.UINT16: "uint16", TensorProto.INT32: "int32",
    TensorProto.UINT32: "uint32", TensorProto.INT64: "int64", TensorProto.UINT64: "uint64",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn", TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64",
}  # fmt: skip
KINDS: dict[int, DType] = {int(number): dtype(name) for number, name in _TYPES.items()}
NUMBERS: dict[DType, int] = {kind: number for number, kind in KINDS.items()}
# Where a type's elements stand that are not raw bytes, and those of them that take several numbers.
_FIELDS = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data", TensorProto.UINT64: "uint64_data",
    TensorProto.UINT32: "uint64_data",
}  # fmt: skip


def name_of(number: int) -> str:
    """The name ONNX gives a type of elements."""
    try:
        return str(TensorProto.DataType.Name(number))
    except ValueError:
        return f"number {number}"


def kind_of(number: int, what: str) -> DType:
    """The type of elements with this number. Raises: UnsupportedError for one not computed with."""
    if number not in KINDS:
        raise foreign(f"{what} is of type {name_of(number)}: no tensor has it")
    return KINDS[number]


def model_of(source: Any) -> tuple[ModelProto, Path | None]:
    """A model, and the folder its external data may lie in.

    Raises: StateError for what is no model.
    """
    if isinstance(source, ModelProto):
        spelled(source, "the model")
        return source, None
    if isinstance(source, bytes | bytearray | memoryview):
        return parsed(bytes(source), "the bytes"), None
    if not isinstance(source, str | os.PathLike):
        what = f"pb.onnx.load of a {type(source).__name__}"
        raise unreadable(f"{what}: a path, bytes or a ModelProto is wanted")
    path = Path(source)
    try:
        size = path.stat().st_size
        if size >= MOST_BYTES:
            raise unreadable(f"{path}: {size} bytes, where a message has fewer than {MOST_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(f"{path}: {error.strerror or error}") from error
    return parsed(data, str(path)), path.resolve().parent


def parsed(data: bytes, what: str) -> ModelProto:
    """The model that bytes spell. Raises: StateError."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, Error, *MALFORMED) as error:
        raise unreadable(f"{what}: no model of ONNX: {error}") from error
    if not model.HasField("graph") or not model.opset_import:
        raise unreadable(f"{what}: no model of ONNX: it has no graph, or names no operator set")
    spelled(model, what)
    return model


def spelled(model: ModelProto, what: str) -> None:
    """Raises: StateError for a name that is no text; protobuf gives it as bytes."""
    stack: list[Any] = [model]
    while stack:
        for field, value in stack.pop().ListFields():
            alone = isinstance(value, str | bytes | int | float) or not hasattr(value, "__len__")
            if field.type == field.TYPE_MESSAGE:
                stack.extend([value] if alone else value)
            texts = field.type == field.TYPE_STRING
            if texts and any(isinstance(t, bytes) for t in ([value] if alone else value)):
                raise unreadable(f"{what}: a {field.name} that is no text")


class Store:
    """Tensors of a model: decoded, with the folder of their external data."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def array(self, tensor: TensorProto, what: str) -> Array:
        """The elements. Raises: StateError, UnsupportedError."""
        kind = kind_of(tensor.data_type, what)
        shape = tuple(tensor.dims)
        if any(e < 0 for e in shape):
            raise misfit(f"{what}: shape {shape}")
        count = math.prod(shape)
        if tensor.HasField("segment"):
            raise misfit(f"{what}: a tensor in segments, which no version reads")
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._outside(tensor, kind, shape, what)
        if tensor.HasField("raw_data"):
            return _raw(tensor.raw_data, kind, shape, what)
        own = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
        if len(own) != count:
            raise misfit(f"{what}: {len(own)} elements for shape {shape}")
        try:
            return np.asarray(numpy_helper.to_array(tensor)).astype(kind.numpy).reshape(shape)
        except MALFORMED as error:
            raise misfit(f"{what}: {error}") from error

    def _outside(
        self, tensor: TensorProto, kind: DType, shape: tuple[int, ...], what: str
    ) -> Array:
        told = {entry.key: entry.value for entry in tensor.external_data}
        if self.folder is None:
            raise misfit(f"{what}: its data lie in another file; load the model by its path")
        name = told.get("location", "")
        if not name or "\0" in name:
            raise misfit(f"{what}: external data at {name!r}")
        path = (self.folder / name).resolve()
        if os.path.isabs(name) or not path.is_relative_to(self.folder):
            raise misfit(f"{what}: external data at {name!r}, outside of the model's folder")
        start, size = (_number(told.get(k, ""), what) for k in ("offset", "length"))
        wanted = math.prod(shape) * kind.itemsize
        if size is not None and size != wanted:
            raise misfit(f"{what}: {size} bytes of external data for {wanted}")
        try:
            if not path.is_file() or path.stat().st_size < (start or 0) + wanted:
                raise misfit(f"{what}: {name!r} has no {wanted} bytes from {start or 0} on")
            with path.open("rb") as file:
                file.seek(start or 0)
                data = file.read(wanted)
        except OSError as error:
            raise misfit(f"{what}: {name!r}: {error.strerror or error}") from error
        return _raw(data, kind, shape, what)


def _number(text: str, what: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise misfit(f"{what}: {text!r} is no place in a file")
    return int(text)


def _raw(data: bytes, kind: DType, shape: tuple[int, ...], what: str) -> Array:
    wanted = math.prod(shape) * kind.itemsize
    if len(data) != wanted:
        raise misfit(f"{what}: {len(data)} bytes for shape {shape} of {kind}, which takes {wanted}")
    little = kind.numpy if is_extended(kind) else kind.numpy.newbyteorder("<")
    whole = np.frombuffer(data, np.uint8) if kind.is_bool else np.frombuffer(data, little)
    return (whole != 0 if kind.is_bool else whole.astype(kind.numpy)).reshape(shape)


def attribute(proto: AttributeProto, store: Store, what: str) -> Any:
    """An attribute's value: numbers, texts, arrays, graphs as they are. Raises: coded errors."""
    kind, label = proto.type, f"attribute {proto.name!r} of {what}"
    if kind == AttributeProto.TENSOR:
        return store.array(proto.t, label)
    if kind == AttributeProto.TENSORS:
        return [store.array(t, label) for t in proto.tensors]
    if kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return proto.g if kind == AttributeProto.GRAPH else list(proto.graphs)
    if kind == AttributeProto.TYPE_PROTO:
        return proto.tp
    if kind in (AttributeProto.STRING, AttributeProto.STRINGS):
        texts = [proto.s] if kind == AttributeProto.STRING else proto.strings
        plain = [t.decode("utf-8", "replace") for t in texts]
        return plain[0] if kind == AttributeProto.STRING else plain
    fields = {
        AttributeProto.INT: "i", AttributeProto.FLOAT: "f",
        AttributeProto.INTS: "ints", AttributeProto.FLOATS: "floats",
    }  # fmt: skip
    if kind not in fields:
        raise foreign(f"{label}: {_attribute_kind(kind)}")
    value = getattr(proto, fields[kind])
    return value if kind in (AttributeProto.INT, AttributeProto.FLOAT) else list(value)


def _attribute_kind(kind: int) -> str:
    try:
        return str(AttributeProto.AttributeType.Name(kind))
    except ValueError:
        return f"a value of kind {kind}"


def opsets(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Versions by domain; "ai.onnx" has no name. Raises: StateError for two of one domain."""
    versions: dict[str, int] = {}
    for entry in entries:
        domain = plain(entry.domain)
        if versions.setdefault(domain, entry.version) != entry.version:
            raise crooked(
                f"operator set {domain!r} of version {versions[domain]} and {entry.version}"
            )
    return versions


def plain(domain: str) -> str:
    """A domain by one name."""
    return "" if domain == "ai.onnx" else domain


def label(node: NodeProto) -> str:
    """How a node of a file is called."""
    domain = plain(node.domain)
    operator = f"{domain}.{node.op_type}" if domain else node.op_type
    return f"{operator} {node.name or '-> ' + ', '.join(node.output)!r}"
