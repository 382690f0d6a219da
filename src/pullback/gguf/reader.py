"""The format of GGUF files: facts by key, tensors by name, blocks of bytes behind them.

A file is mapped, not read. Everything that it says of sizes is held against the bytes that are
there before memory is taken; what does not fit is refused with its place in the file. Nothing of a
file is run.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pullback.errors import StateError, UnsupportedError
from pullback.gguf.kinds import KINDS, NAMES, Kind

Array = np.ndarray[Any, Any]
MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless the file says another
MOST_DIMS = 4
DEEPEST = 4  # arrays within arrays
STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
CODES = {np.dtype(text): code for code, text in SCALARS.items()}
SMALLEST_FACT = 8 + 4 + 1  # bytes: the length of a key, a type, a value
SMALLEST_TENSOR = 8 + 4 + 4 + 8  # the length of a name, dims, a type, an offset


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in the file: its kind of blocks, its shape, its bytes, not copied."""

    name: str
    kind: Kind
    shape: tuple[int, ...]  # as NumPy counts, the fastest axis last
    raw: Array

    @property
    def blocks(self) -> Array:
        """The blocks of each row, ``(rows, blocks a row)``, as a NumPy record each."""
        rows = math.prod(self.shape[:-1])
        return self.raw.view(self.kind.record).reshape(rows, -1)


@dataclass(frozen=True)
class File:
    """A GGUF file: `facts` by key (numbers, truths, texts, arrays), `tensors` by name."""

    path: Path
    version: int
    facts: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    def __getitem__(self, name: str) -> Stored:
        """The tensor of a name. Raises: StateError where the file has none."""
        if name not in self.tensors:
            raise StateError(
                f"{self.path} has no tensor `{name}`",
                help=f"it has {_some(self.tensors)}",
                code="E582",
            )
        return self.tensors[name]

    def fact(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of a key. Raises: StateError where it is missing or of another type."""
        value = self.facts.get(key, default)
        if value is None:
            raise StateError(
                f"{self.path} has no key `{key}`", help=f"it has {_some(self.facts)}", code="E582"
            )
        fits = isinstance(value, kind) or (kind is float and type(value) is int)
        if not fits or (isinstance(value, bool) and kind is not bool):
            what = f"`{key}` of {self.path} is {value!r:.60}, which is no {kind.__name__}"
            raise StateError(what, code="E587")
        return value


def read(path: str | os.PathLike[str]) -> File:
    """The facts and tensors of a GGUF file, which stays mapped as long as a tensor is in use.

    Raises: StateError for a file that is none, is cut or contradicts itself (E580);
    UnsupportedError for an element type that is not read (E581).

    Example:
        >>> pb.gguf.write("m.gguf", {"general.name": "m"}, {"w": np.ones((2, 32), np.float32)})
        >>> file = pb.gguf.read("m.gguf")
        >>> file.facts["general.name"], file["w"].shape
        ('m', (2, 32))
    """
    path = Path(path)
    with path.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size < len(MAGIC) or opened.read(len(MAGIC)) != MAGIC:
            raise StateError(f"{path} is no GGUF file", code="E580")
        mapped = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    return _Parser(path, mapped).file()


def _some(names: Mapping[str, Any]) -> str:
    """The first names, and how many there are."""
    first = ", ".join(f"`{name}`" for name in list(names)[:8])
    return f"{first or 'none'}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")


class _Parser:
    """A place in the mapped bytes, which only goes forward."""

    def __init__(self, path: Path, mapped: Array) -> None:
        self.path = path
        self.data = mapped
        self.place = len(MAGIC)

    def file(self) -> File:
        """Everything up to the bytes of tensors, and each tensor's part of those."""
        (version,) = self.numbers("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in VERSIONS
            order = "the other byte order" if swapped else f"version {version}"
            raise self.wrong(f"{order}; versions 2 and 3 with little-endian bytes are read")
        tensors, facts = self.numbers("<QQ")
        self.holds(facts, SMALLEST_FACT, "keys")
        known: dict[str, Any] = {}
        for _ in range(facts):
            key = self.text()
            if key in known:
                raise self.wrong(f"the key `{key:.60}` twice")
            (code,) = self.numbers("<I")
            known[key] = self.value(code)
        self.holds(tensors, SMALLEST_TENSOR, "tensors")
        described = [self.described() for _ in range(tensors)]
        return File(self.path, version, known, self.laid(described, self.alignment(known)))

    def alignment(self, facts: Mapping[str, Any]) -> int:
        given = facts.get("general.alignment", ALIGNMENT)
        if type(given) is not int or given < 1 or given & (given - 1):
            raise self.wrong(f"an alignment of {given!r:.60}, which is no power of two")
        return given

    # --- parts

    def wrong(self, what: str) -> StateError:
        return StateError(f"{self.path} is no GGUF file that can be read: {what}", code="E580")

    def take(self, count: int) -> Array:
        """The next bytes. Raises: StateError where the file ends before."""
        left = len(self.data) - self.place
        if count > left:
            raise self.wrong(f"{count} bytes wanted at {self.place}, {left} are left")
        taken = self.data[self.place : self.place + count]
        self.place += count
        return taken

    def holds(self, count: int, least: int, what: str) -> None:
        """Raises: StateError where the rest of the file is too short for so many."""
        left = len(self.data) - self.place
        if count * least > left:
            raise self.wrong(f"{count} {what} in the {left} bytes behind {self.place}")

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)).tobytes())

    def text(self) -> str:
        (length,) = self.numbers("<Q")
        start = self.place
        try:
            return self.take(length).tobytes().decode()
        except UnicodeDecodeError:
            raise self.wrong(f"a text at {start} that is not UTF-8") from None

    def value(self, code: int, depth: int = 0) -> Any:
        """A fact: a number, a truth, a text, an array of numbers, a list of texts or arrays."""
        if code in SCALARS:
            kind = np.dtype(SCALARS[code])
            data = self.take(kind.itemsize)
            return bool(data[0]) if kind == np.bool_ else data.view(kind)[0].item()
        if code == STRING:
            return self.text()
        if code != ARRAY or depth == DEEPEST:
            raise self.wrong(f"a value of type {code} at {self.place}, {depth} arrays deep")
        of, count = self.numbers("<IQ")
        if of in SCALARS:
            kind = np.dtype(SCALARS[of])
            self.holds(count, kind.itemsize, "elements")
            data = self.take(count * kind.itemsize)
            return data != 0 if kind == np.bool_ else data.view(kind)
        self.holds(count, 8, "elements")
        return [self.value(of, depth + 1) for _ in range(count)]

    def described(self) -> tuple[str, Kind, tuple[int, ...], int]:
        """Name, kind, shape and offset of a tensor."""
        name = self.text()
        (dims,) = self.numbers("<I")
        if not 1 <= dims <= MOST_DIMS:
            raise self.wrong(f"`{name:.60}` has {dims} axes")
        shape = tuple(reversed(self.numbers(f"<{dims}Q")))
        code, offset = self.numbers("<IQ")
        if code not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            what = f"`{name:.60}` of {self.path} is {NAMES.get(code, f'of type {code}')}"
            raise UnsupportedError(what, help=f"these are read: {known}", code="E581")
        kind = KINDS[code]
        if min(shape) < 1 or shape[-1] % kind.elements:
            raise self.wrong(f"`{name:.60}` is {shape} of {kind.name}: {kind.elements} a block")
        return name, kind, shape, offset

    def laid(
        self, described: list[tuple[str, Kind, tuple[int, ...], int]], alignment: int
    ) -> dict[str, Stored]:
        """Each tensor's bytes. Raises: StateError where some are not there, or are of two."""
        start = -(-self.place // alignment) * alignment
        tensors: dict[str, Stored] = {}
        for name, kind, shape, offset in described:
            size = math.prod(shape) // kind.elements * kind.size
            first = start + offset
            if offset % alignment:
                raise self.wrong(f"`{name:.60}` begins at {offset}, no multiple of {alignment}")
            if first + size > len(self.data):
                raise self.wrong(f"`{name:.60}` ends at {first + size}, it at {len(self.data)}")
            if name in tensors:
                raise self.wrong(f"the tensor `{name:.60}` twice")
            tensors[name] = Stored(name, kind, shape, self.data[first : first + size])
        for one, other in _neighbours(described):
            if one[3] + tensors[one[0]].raw.size > other[3]:
                raise self.wrong(f"`{one[0]:.60}` and `{other[0]:.60}` share bytes")
        return tensors


def _neighbours(described: list[tuple[str, Kind, tuple[int, ...], int]]) -> Iterator[Any]:
    ordered = sorted(described, key=lambda entry: entry[3])
    yield from pairwise(ordered)
