"""Weights as safetensors files: written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save as serialize

from pullback.errors import StateError
from pullback.ir import dtype as D
from pullback.nn.module import Module
from pullback.nn.parameter import host_array
from pullback.tensor.tensor import Tensor
from pullback.tensor.trace import bind

Array = np.ndarray[Any, Any]
LENGTH = 8  # bytes of the header's length
CODES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I32": "int32", "U32": "uint32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def save(
    tensors: Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a module's state_dict, or named tensors, to a safetensors file, atomically.

    Whoever reads `path` sees the old file or the new one, never a part.
    """
    named = tensors.state_dict() if isinstance(tensors, Module) else tensors
    arrays = {name: np.asarray(host_array(value), order="C") for name, value in named.items()}
    text = {str(k): str(v) for k, v in (metadata or {}).items()}
    write_atomically(Path(path), serialize(arrays, text or None))


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises: StateError where it is none."""
    arrays = load_arrays(path)
    return {name: Tensor(bind(array, name)) for name, array in arrays.items()}


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a safetensors file by name. Raises: StateError where it is none."""
    read: Any = safetensors.deserialize
    try:
        found = read(Path(path).read_bytes())
    except safetensors.SafetensorError as error:
        raise StateError(f"{path} is no safetensors file: {error}", code="E330") from error
    return {name: _array(path, name, entry) for name, entry in found}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The facts written beside the tensors. Raises: StateError where it is no such file."""
    data = Path(path).read_bytes()
    try:
        size = int.from_bytes(data[:LENGTH], "little")
        header = json.loads(data[LENGTH : LENGTH + size])
        return dict(header.get("__metadata__", {}))
    except (ValueError, AttributeError) as error:
        raise StateError(f"{path} is no safetensors file: {error}", code="E330") from error


def _array(path: str | os.PathLike[str], name: str, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] not in CODES:
        raise StateError(f"{path}: `{name}` has element type {entry['dtype']}", code="E331")
    kind = D.dtype(CODES[entry["dtype"]]).numpy
    return np.frombuffer(entry["data"], kind).reshape(entry["shape"])


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a temporary file beside it, flushed to disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
