"""OpenCL C where it differs from C: a work-item takes tasks, memory is global, vectors are its own.

Every other line is what the backend `c` writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pullback.backends.c.language import C11, FLOATS, HELPERS, Passed, computed, stored
from pullback.backends.nests.sizes import array_bytes
from pullback.ir import nest as N
from pullback.ir.dtype import DType


class OpenCLC(C11):
    """OpenCL C 1.2 with float64 where `wide`; signed integers do not wrap by themselves."""

    space = "__global "

    def __init__(self, vector: int, wide: bool = True) -> None:
        super().__init__(vector)
        self.wide = wide

    def prelude(self) -> str:
        own = Path(__file__).with_name("prelude.cl").read_text()
        kinds = f"#define PB_FLOAT64 {int(self.wide)}"
        vectors = self.vectors() if self.vector else ""
        return "\n".join([own, kinds, self.tables(), HELPERS.read_text(), vectors])

    def vectors(self) -> str:
        """``float16`` and ``double8``, by the names that C has for them."""
        lines = []
        for kind, c_type, width in FLOATS if self.wide else FLOATS[:1]:
            lines.append(f"typedef {c_type}{self.vector // width} v_{kind};")
            lines.append(f"#define madd_{kind} fma")
        return "\n".join([*lines, self.wide_functions()])

    def wide_functions(self) -> str:
        """Those of wide.cl for as many float32 as a vector has."""
        text = Path(__file__).with_name("wide.cl").read_text()
        for letter, kind in (("F", "float"), ("I", "int"), ("U", "uint")):
            text = re.sub(
                rf"\b((?:as_|convert_)?){letter}\b", rf"\g<1>{kind}{self.vector // 4}", text
            )
        return text

    # -- functions

    def function(
        self, name: str, routine: N.Routine, passed: Sequence[Passed], names: Mapping[object, str]
    ) -> tuple[str, list[str], str]:
        """A kernel of any number of work-items, each of which takes every so-many-th task."""
        wants = [self.argument(what, names) for _, what in passed]
        tasks = routine.tasks if name.startswith("body") else 1
        size = sum(map(array_bytes, routine.scratch))
        head = f"PB_KERNEL void {name}({', '.join([*wants, '__global char *scratch'])}) {{"
        each = "for (int64_t task = get_global_id(0); "
        each += f"task < {tasks}; task += get_global_size(0)) {{"
        lines = [f"scratch += get_global_id(0) * {size};"] if size else []
        return head, [*lines, each], "}}"

    def run(self, routine: N.Routine, end: str) -> str:
        """A host enqueues kernels: nothing of the text does."""
        return ""

    def argument(self, what: N.Array | N.Var | None, names: Mapping[object, str]) -> str:
        if what is None:
            return "__global int64_t *error"
        if isinstance(what, N.Array):
            return f"{self.space}{stored(what.dtype)} *restrict {names[what]}"
        return f"const int64_t {names[what]}"

    # -- values

    def integer(self, sign: str, left: str, right: str, kind: DType, index: bool) -> str:
        """As an unsigned number of at least 32 bits, where C leaves open what an overflow is."""
        if index:
            return super().integer(sign, left, right, kind, index)
        around = "uint64_t" if kind.bits == 64 else "uint32_t"
        return f"({computed(kind)})(({around}){left} {sign} ({around}){right})"

    def library(self, name: str, kind: DType) -> str:
        """One name for all types."""
        return name

    # -- vectors

    def every_lane(self, value: str, kind: str) -> str:
        return f"(v_{kind})({value})"

    def lane(self, vector: str, number: str, kind: str) -> str:
        return f"(({'float' if kind == 'float32' else 'double'} *)&{vector})[{number}]"

    def width(self, kind: str) -> int:
        return self.vector // (4 if kind == "float32" else 8)

    def load(self, where: str, kind: str) -> str:
        return f"vload{self.width(kind)}(0, {where})"

    def store(self, value: str, where: str, kind: str) -> str:
        return f"vstore{self.width(kind)}({value}, 0, {where});"

    def load_part(self, part: str, where: str, count: int, kind: str) -> list[str]:
        lanes = [f"({where})[{n}]" if n < count else "0" for n in range(self.width(kind))]
        return [f"const v_{kind} {part} = (v_{kind})({', '.join(lanes)});"]

    def store_part(self, part: str, where: str, count: int, kind: str) -> str:
        return " ".join(f"({where})[{n}] = {self.lane(part, str(n), kind)};" for n in range(count))
