"""Folders of Hugging Face's layout: `config.json`, and safetensors in one file or in several.

What the configuration says is held against the tensors that are there before a model is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pullback.errors import MALFORMED, StateError, UnsupportedError
from pullback.nn.base.weights import load_arrays

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[int, ...]]
CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
LARGEST = 1 << 24  # bytes of a text in JSON: an index of 100,000 tensors has 10 MB
MOST = 1 << 31  # of what a configuration counts


class Folder:
    """A configuration by key, tensors by name. Raises: StateError where one cannot be read."""

    def __init__(self, path: str | os.PathLike[str], family: str) -> None:
        self.path = Path(path)
        self.config = self._json(CONFIG)
        if self.config.get("model_type") != family:
            what = f"{self.path} is of the model type {self.config.get('model_type')!r:.60}"
            raise UnsupportedError(what, help=f"`{family}` is wanted", code="E586")
        self.tensors: dict[str, Array] = {}
        for file in self._files():
            self.tensors |= load_arrays(file)

    def number(self, *keys: str, default: int | None = None) -> int:
        """A count, under the first of its names that is there."""
        value = next((v for k in keys if (v := self.config.get(k)) is not None), default)
        if type(value) is not int or not 1 <= value < MOST:
            raise self.wrong(f"`{keys[0]}` is {value!r:.60}, which counts nothing")
        return value

    def real(self, key: str, default: float) -> float:
        """A positive number."""
        value = self.config.get(key, default)
        if type(value) not in (int, float) or not 0.0 < value < np.inf:
            raise self.wrong(f"`{key}` is {value!r:.60}, which is no positive number")
        return float(value)

    def one_of(self, key: str, known: Mapping[str, Any], default: str) -> Any:
        """What a word stands for. Raises: UnsupportedError where nobody has built that."""
        word = self.config.get(key, default)
        if not isinstance(word, str) or word not in known:
            what = f"`{key}` of {self.path / CONFIG} is {word!r:.60}"
            raise UnsupportedError(what, help=f"known are {', '.join(known)}", code="E586")
        return known[word]

    def only(self, wanted: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises: UnsupportedError for a setting that is none of those that are built."""
        for key, values in wanted.items():
            if (value := self.config.get(key, values[0])) not in values:
                what = f"`{key}` of {self.path / CONFIG} is {value!r:.60}"
                shown = ", ".join(map(repr, values))
                raise UnsupportedError(what, help=f"built: {shown}", code="E586")

    def wrong(self, what: str) -> StateError:
        """A folder that contradicts itself."""
        return StateError(f"{self.path}: {what}", code="E586")

    def fitting(
        self, tensors: dict[str, Array], shapes: Shapes, layer: str, count: int, each: Shapes
    ) -> dict[str, Array]:
        """Float32 tensors of these shapes and, behind ``{layer}.0`` to ``count - 1``, of `each`.

        Raises: StateError for one that is missing, of another shape, or not asked for.
        """
        if count * len(each) > len(tensors):
            raise self.wrong(f"{count} layers of {len(each)} tensors, and {len(tensors)} in all")
        rows = {f"{layer}.{n}.{name}": shape for n in range(count) for name, shape in each.items()}
        wanted = {**shapes, **rows}
        for name, shape in wanted.items():
            if name not in tensors:
                raise self.wrong(f"no tensor is called `{name}`")
            if tensors[name].shape != shape:
                raise self.wrong(f"`{name}` is {tensors[name].shape}, {shape} is wanted")
        if unknown := [name for name in tensors if name not in wanted]:
            raise self.wrong(f"tensors that the model does not have: {_some(unknown)}")
        return {name: value.astype(np.float32) for name, value in tensors.items()}

    def _files(self) -> list[Path]:
        """The files of weights. Raises: StateError where an index names one of another folder."""
        if (self.path / WEIGHTS).exists():
            return [self.path / WEIGHTS]
        if not (self.path / INDEX).exists():
            raise self.wrong(f"neither {WEIGHTS} nor {INDEX}; pickled weights are not read")
        listed = self._json(INDEX).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
            raise self.wrong(f"{INDEX} has no `weight_map` of names")
        files = sorted(set(listed.values()))
        if away := [f for f in files if Path(f).name != f or not f.endswith(".safetensors")]:
            raise self.wrong(f"{INDEX} names {away[0]!r:.60}, no safetensors file of the folder")
        if lost := [f for f in files if not (self.path / f).exists()]:
            raise self.wrong(f"{INDEX} names {lost[0]!r:.60}, which is not there")
        return [self.path / file for file in files]

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            if path.stat().st_size > LARGEST:
                raise self.wrong(f"{name} is larger than {LARGEST} bytes")
            read = json.loads(path.read_bytes())
        except OSError as error:
            raise self.wrong(f"{name} cannot be read: {error.strerror}") from error
        except MALFORMED as error:
            if isinstance(error, StateError):
                raise
            raise self.wrong(f"{name} is no JSON: {error}") from error
        if not isinstance(read, dict):
            raise self.wrong(f"{name} holds no keys")
        return read


def _some(names: Iterable[str]) -> str:
    first = list(names)[:4]
    return ", ".join(f"`{name:.60}`" for name in first)
