"""What a dialect of C writes in its own way; the renderer asks it for nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pullback.backends.nests import polynomials
from pullback.backends.nests.sizes import ALIGNMENT, array_bytes
from pullback.ir import nest as N
from pullback.ir.dtype import DType, is_short

C_TYPES = {
    "bool": "bool", "float8_e4m3fn": "float", "float8_e5m2": "float", "float16": "float",
    "bfloat16": "float", "float32": "float", "float64": "double",
}  # fmt: skip
HELPERS = Path(__file__).with_name("helpers.h")
TABLES = (
    "EXP32", "LOG32", "TANH32", "ERF32_LOG", "ERF32_SMALL", "NORMAL32_TOP", "NORMAL32_BELOW",
)  # fmt: skip
SINGLE = ("exp", "log", "tanh", "erf", "normal_cdf")  # of helpers.h, for float32
OWN = ("maximum", "minimum", "sigmoid", "softplus", "power")  # of helpers.h, for any type
FUSED = {16: ("_mm", "__m128"), 32: ("_mm256", "__m256"), 64: ("_mm512", "__m512")}
FLOATS = (("float32", "float", 4), ("float64", "double", 8))


class Passed(NamedTuple):
    """What a function is given in a word of its block: memory, an extent, or (None) the error."""

    place: int
    what: N.Array | N.Var | None


def computed(kind: DType) -> str:
    """The C type that values of `kind` are computed in."""
    return C_TYPES.get(kind.name, f"{kind.name}_t")


def stored(kind: DType) -> str:
    """The C type of an element in memory."""
    if kind.is_bool:
        return "uint8_t"
    return f"uint{kind.bits}_t" if is_short(kind) else computed(kind)


def suffix(kind: DType) -> str:
    """What the functions of helpers.h for `kind` end with."""
    return "float32" if is_short(kind) else kind.name


class C11:
    """C11 with the vector extensions of GCC and Clang. `vector`: bytes of one, 0: there are none.

    Integers wrap by the flag ``-fwrapv``.
    """

    space = ""  # before the type of what lies in memory

    def __init__(self, vector: int) -> None:
        self.vector = vector

    def prelude(self) -> str:
        """What stands before the functions."""
        own = Path(__file__).with_name("prelude.h").read_text()
        vectors = self.vectors() if self.vector else ""
        return "\n".join([own, self.tables(), HELPERS.read_text(), vectors])

    def tables(self) -> str:
        """The coefficients of what helpers.h computes."""
        lines = [f"#define PB_{n} {getattr(polynomials, n).hex()}f" for n in ("LOG2E", "ROUND32")]
        for name in TABLES:
            row = ", ".join(f"{float(c).hex()}f" for c in getattr(polynomials, name))
            lines.append(f"PB_TABLE float PB_{name}[] = {{{row}}};")
        return "\n".join(lines) + "\n"

    def vectors(self) -> str:
        """``v_float32`` is a vector, ``u_float32`` one that lies anywhere in memory."""
        lines = ["#if defined(__FMA__)", "#include <immintrin.h>", "#endif"]
        name, register = FUSED[self.vector]
        for kind, c_type, width in FLOATS:
            own, last = (register, "ps") if width == 4 else (register + "d", "pd")
            loose = f"vector_size({self.vector}), aligned({width}), may_alias"
            call = f"{name}_fmadd_{last}(({own})(a), ({own})(b), ({own})(c))"
            lines += [
                f"typedef {c_type} v_{kind} __attribute__((vector_size({self.vector})));",
                f"typedef {c_type} u_{kind} __attribute__(({loose}));",
                f"static inline v_{kind} madd_{kind}(v_{kind} a, v_{kind} b, v_{kind} c) {{",
                "#if defined(__FMA__)" + (" && defined(__AVX512F__)" if self.vector == 64 else ""),
                f"  return (v_{kind}){call};",
                "#else",
                "  return a * b + c;",
                "#endif",
                "}",
            ]
        return "\n".join(lines) + "\n"

    # -- functions

    def function(
        self, name: str, routine: N.Routine, passed: Sequence[Passed], names: Mapping[object, str]
    ) -> tuple[str, list[str], str]:
        """What stands before the statements, the first of them, and what stands at the end."""
        lines = ["(void)block, (void)task, (void)scratch;"]
        for place, what in passed:
            if isinstance(what, N.Array):
                lines.append(self.pointer(what, names[what], f"block[{place}]"))
            elif what is None:
                lines.append(f"int64_t *const error = block[{place}];")
            else:
                lines.append(f"const int64_t {names[what]} = (int64_t)block[{place}];")
        return f"void {name}(void **block, int64_t task, char *scratch) {{", lines, "}"

    def run(self, routine: N.Routine, end: str) -> str:
        """All tasks of a routine, by threads where the compiler has OpenMP; each with scratch."""
        size = sum(map(array_bytes, routine.scratch))
        own = f"char *const scratch = aligned_alloc({ALIGNMENT}, {_lines(size + 1)});"
        lines = [
            f"void run{end}(void **block) {{",
            "#pragma omp parallel",
            "  {",
            f"    {own}",
            "#pragma omp for schedule(dynamic)",
            f"    for (int64_t task = 0; task < {routine.tasks}; ++task)",
            f"      body{end}(block, task, scratch);",
            "    free(scratch);",
            "  }",
        ]
        if routine.finish:
            lines += [f"  {own}", f"  finish{end}(block, 0, scratch);", "  free(scratch);"]
        return "\n".join([*lines, "}", ""])

    def scratch(self, routine: N.Routine, names: Mapping[object, str]) -> list[str]:
        """Pointers to what is private to a task."""
        lines, offset = [], 0
        for array in routine.scratch:
            if array in names:
                lines.append(self.pointer(array, names[array], f"(scratch + {offset})"))
            offset += array_bytes(array)
        return lines

    def pointer(self, array: N.Array, name: str, place: str) -> str:
        kind = self.space + stored(array.dtype)
        return f"{kind} *const restrict {name} = ({kind} *){place};"

    # -- values

    def integer(self, sign: str, left: str, right: str, kind: DType, index: bool) -> str:
        """A sum or a product modulo ``2**bits``; an `index` does not go beyond."""
        return f"({computed(kind)})({left} {sign} {right})"

    def call(self, name: str, args: Sequence[str], kind: DType) -> str:
        """A function of helpers.h or of the library."""
        if kind.bits != 64 and name in SINGLE:
            return f"pb_{name}({args[0]})"
        return f"{self.library(name, kind)}({', '.join(args)})"

    def library(self, name: str, kind: DType) -> str:
        """The name of the library's function."""
        return name if kind.bits == 64 else name + "f"

    def native(self, name: str, args: Sequence[str], kind: DType) -> str:
        """A function that a backend provides."""
        if name in OWN or (name == "abs" and not kind.is_float):
            return f"pb_{name}_{suffix(kind)}({', '.join(args)})"
        return self.call("fabs" if name == "abs" else name, args, kind)

    # -- vectors

    def every_lane(self, value: str, kind: str) -> str:
        """A vector as it is, a number in all lanes."""
        return f"{value} - (v_{kind}){{0}}"

    def lane(self, vector: str, number: str, kind: str) -> str:
        """One element of a vector, to read or to write."""
        return f"{vector}[{number}]"

    def load(self, where: str, kind: str) -> str:
        """A whole vector that lies anywhere."""
        return f"*(u_{kind} *)({where})"

    def store(self, value: str, where: str, kind: str) -> str:
        return f"*(u_{kind} *)({where}) = {value};"

    def load_part(self, part: str, where: str, count: int, kind: str) -> list[str]:
        """The first `count` lanes from memory, the others zero."""
        size = count * (4 if kind == "float32" else 8)
        return [f"v_{kind} {part} = {{0}};", f"memcpy(&{part}, {where}, {size});"]

    def store_part(self, part: str, where: str, count: int, kind: str) -> str:
        size = count * (4 if kind == "float32" else 8)
        return f"memcpy({where}, &{part}, {size});"


def _lines(size: int) -> int:
    """Bytes in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT
