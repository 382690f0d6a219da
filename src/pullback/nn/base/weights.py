"""Weights as safetensors files: written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save as serialize

from pullback.errors import MALFORMED, StateError
from pullback.ir import dtype as D
from pullback.nn.base.module import Module
from pullback.nn.base.parameter import host_array
from pullback.runtime.cache import write_whole
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import bind

Array = np.ndarray[Any, Any]
READABLE = 0o666  # the mode of files for all who may read there: less the umask
LENGTH = 8  # bytes of the header's length
CODES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def save(
    tensors: Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a module's state_dict, or named tensors, to a safetensors file, atomically.

    Whoever reads `path` sees the old file or the new one, never a part.

    Example:
        >>> nn.save(nn.Linear(2, 3), "weights.safetensors")
        >>> sorted(nn.load("weights.safetensors"))
        ['bias', 'weight']
    """
    named = tensors.state_dict() if isinstance(tensors, Module) else tensors
    arrays = {name: np.asarray(host_array(value), order="C") for name, value in named.items()}
    text = {str(k): str(v) for k, v in (metadata or {}).items()}
    write_atomically(Path(path), serialize(arrays, text or None))


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises: StateError where it is none.

    Example:
        >>> nn.save({"a": pb.ones(2)}, "weights.safetensors")
        >>> nn.load("weights.safetensors")["a"]
        Tensor([1., 1.], dtype=float32)
    """
    arrays = load_arrays(path)
    return {name: Tensor(bind(array, name)) for name, array in arrays.items()}


def renamed(
    tensors: Mapping[str, Any],
    names: Mapping[str, str | Sequence[str]],
    unused: Iterable[str] = (),
) -> dict[str, Any]:
    """`tensors` under other names: `names` maps a new name to the old one.

    ``{"layers.*.norm.*": "encoder.layer.*.LayerNorm.*"}``; a star stands for one part of a name,
    the same on both sides. A list of old names is joined along the first axis. Tensors that no
    name takes keep theirs; `unused` ones are left out.

    Raises: StateError for a name that finds no tensor, or not all that it joins.

    Example:
        >>> list(nn.renamed({"w": pb.ones(2)}, {"weight": "w"}))
        ['weight']
    """
    left = {n: t for n, t in tensors.items() if not any(_stars(u, n) is not None for u in unused)}
    taken: set[str] = set()
    fresh: dict[str, Any] = {}
    for new, old in names.items():
        parts = [old] if isinstance(old, str) else list(old)
        places = [stars for n in left if (stars := _stars(parts[0], n)) is not None]
        if not places:
            raise StateError(f"no tensor is called `{parts[0]}`", code="E345")
        for stars in places:
            sources = [_filled(part, stars) for part in parts]
            fresh[_filled(new, stars)] = _joined(left, sources)
            taken.update(sources)
    return fresh | {n: t for n, t in left.items() if n not in taken}


def _stars(pattern: str, name: str) -> tuple[str, ...] | None:
    """What the stars of a pattern stand for in `name`; None where it does not fit."""
    parts = (re.escape(part) for part in pattern.split("*"))
    match = re.fullmatch("([^.]+)".join(parts), name)
    return None if match is None else match.groups()


def _filled(pattern: str, stars: Sequence[str]) -> str:
    """The pattern with its stars replaced, in order."""
    first, *rest = pattern.split("*")
    return first + "".join(star + part for star, part in zip(stars, rest, strict=True))


def _joined(tensors: Mapping[str, Any], names: Sequence[str]) -> Any:
    """One tensor, or several one after the other."""
    missing = [name for name in names if name not in tensors]
    if missing:
        raise StateError(f"no tensor is called `{missing[0]}`", code="E345")
    parts = [tensors[name] for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate([host_array(t) for t in parts])


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a safetensors file by name. Raises: StateError where it is none."""
    read: Any = safetensors.deserialize
    try:
        entries = read(Path(path).read_bytes())
    except safetensors.SafetensorError as error:
        raise StateError(f"{path} is no safetensors file: {error}", code="E330") from error
    return {name: _array(path, name, entry) for name, entry in entries}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The facts written beside the tensors. Raises: StateError where it is no such file."""
    data = Path(path).read_bytes()
    try:
        size = int.from_bytes(data[:LENGTH], "little")
        metadata = json.loads(data[LENGTH : LENGTH + size]).get("__metadata__", {})
        return {str(name): str(value) for name, value in metadata.items()}
    except MALFORMED as error:
        raise StateError(f"{path} is no safetensors file: {error}", code="E330") from error


def _array(path: str | os.PathLike[str], name: str, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] not in CODES:
        raise StateError(f"{path}: `{name}` has element type {entry['dtype']}", code="E331")
    kind = D.dtype(CODES[entry["dtype"]]).numpy
    return np.frombuffer(entry["data"], kind).reshape(entry["shape"])


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, flushed to disk before it has the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, flush=True, mode=READABLE)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
