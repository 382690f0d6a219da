"""What stands around a built function: its header, checks before it runs, a reader of weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pullback.ir.target import NATIVE, Target

INTERFACE = 2  # raised where the manifest, or what the function is passed, gets another meaning
SIGNED = ("interface", "name", "inputs", "state", "results", "calls")
MORE = ("adjoints",)  # of operations
CHECKS = Path(__file__).with_name("interface.txt")
WEIGHTS = Path(__file__).with_name("weights.txt")
MODULE = "wasm32"  # the machine whose libraries are modules
# The last arguments, where there are callbacks.
TALKING = r"(?<=\()pb_callback.*(?=\))|, pb_callback.*(?=\))"
CALLBACK = "typedef int pb_callback(void *user, void *const *arrays);"
# What of a processor's features decides which instructions a compiler may use.
DECIDES = ("avx", "fma", "f16c", "bmi", "sse", "gfni", "vaes", "vpcl", "amx", "abm", "sve", "asimd")
LEVEL = ("sse4_2", "ssse3")
LEVELS = {
    "x86-64": (),
    "x86-64-v3": (*LEVEL, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma"),
}
LEVELS["x86-64-v4"] = (
    *LEVELS["x86-64-v3"], "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl",
)  # fmt: skip
# What the C library, or a program of C, calls by this name; those of math.h end in f and l too.
WORDS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 "
    "fabs fdim floor fma fmax fmin fmod frexp gamma hypot j0 j1 jn ldexp lgamma log log10 log1p "
    "log2 logb lrint lround modf nan nearbyint nextafter pow remainder rint round scalbn sin "
    "sincos sinh sqrt tan tanh tgamma trunc y0 y1 yn "
    "abort abs accept access bind close connect div dup dup2 exit fork free fseek ftell fopen "
    "fclose fread fwrite getenv index ioctl kill labs link listen malloc calloc realloc memcmp "
    "memcpy memmove memset open pause pipe poll printf puts qsort raise rand read recv remove "
    "rename select send signal sleep socket srand stat strchr strlen strcmp strncmp strstr sync "
    "system time times unlink wait write aligned_alloc environ errno stdin stdout stderr"
)
LIBRARY = frozenset(WORDS.split())
SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "I8": 1, "U8": 1, "BOOL": 1}
HEADER = """\
/* {name}, written by `pullback build`. 0 is good; {name}_message says what else is given:
   -1 no memory, -2 a size out of its bounds, -3 a callback is missing, -4 a callback failed,
   -5 a processor that lacks what it was built for, n > 0 a checked index is out of range.
   {name}_check({name}_interface): -6 where this header is of another build than the library.
{said}
*/
#ifndef PULLBACK_{name}
#define PULLBACK_{name}
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif
#define {name}_interface UINT64_C({signature})
int {name}_check(uint64_t interface);
const char *{name}_message(int status);
{heads}
#ifdef __cplusplus
}}
#endif
#endif
"""
TALKS = """\
   A pb_callback of a feeder fills arrays[0], arrays[1], .. and gives 0, or 1 where there is no
   more, which ends its loop; that of a receiver reads them and gives 0. `user` is passed on.
"""
READS = """\
   {name}_read fills the weights from a file.safetensors, all or none: -7 where it has others than
   these, -8 where it is missing, cut off or damaged.
"""


class Namer(Protocol):
    """What knows the words of a language."""

    def names(self, names: Sequence[str]) -> list[str]:
        """Each as an identifier that no other is."""


@dataclass(frozen=True, slots=True)
class Around:
    """Functions, each of which was written as `{name}_run`: their texts by name, and what a
    manifest says of them. The first one's name is that of all.
    """

    bodies: Mapping[str, str]
    sites: tuple[str, ...]
    facts: Mapping[str, Any]
    reads: bool = True  # weights, in C

    @property
    def name(self) -> str:
        return next(iter(self.bodies))

    @property
    def heads(self) -> list[str]:
        """Of all functions, as they are called."""
        pairs = [(f"{n}_run", head(text, f"{n}_run")) for n, text in self.bodies.items()]
        lines = [line.replace(f"{run}(", f"{run[:-4]}(", 1) for run, line in pairs]
        return [re.sub(TALKING, "", line) for line in lines] if self.is_module else lines

    @property
    def is_module(self) -> bool:
        """Of WebAssembly, which imports its feeders and receivers."""
        return bool(self.facts.get("machine") == MODULE)

    @property
    def common(self) -> list[str]:
        """Heads of what every artefact has."""
        check, message = f"int {self.name}_check", f"const char *{self.name}_message"
        return [f"{check}(uint64_t interface)", f"{message}(int status)"]

    def calls(self) -> str:
        """Functions that look, then run."""
        texts: list[str] = []
        for name, line in zip(self.bodies, self.heads, strict=True):
            given = [a for a in re.findall(r"(\w+)(?=[,)])", line) if a != "void"]
            if self.is_module and self.facts["calls"]:
                given += [*(f"pb_import_{c['name']}" for c in self.facts["calls"]), "0"]
            call = f"{name}_run({', '.join(given)})"
            texts.append(f"{line} {{\n  return pb_lacks() ? -5 : {call};\n}}\n")
        imports = map(_imported, self.facts["calls"] if self.is_module else ())
        return "\n".join([*imports, *texts])

    def read(self) -> str:
        """The head of the function that reads weights; "": there are none."""
        names = ", ".join(f"void *{r['name']}" for r in self.facts["state"])
        wanted = names and self.reads and not self.is_module
        return f"int {self.name}_read(const char *path, {names})" if wanted else ""

    def text(self) -> str:
        """The second file: nothing in it is for one processor."""
        rows = {
            "CALLBACK": CALLBACK,
            "RUNS": "\n".join(hidden(text, f"{n}_run") for n, text in self.bodies.items()),
            "CALLS": self.calls(),
            "EXPORTS": "\n".join(map(_exported, [*self.heads, *self.common])),
            "NAME": self.name,
            "FEATURES": "".join(f"{f} " for f in self.facts["features"]),
            "SIGNATURE": str(signature(self.facts)),
            "SITES": "".join(f"\n      {json.dumps(f'{s} [E548]')}, " for s in self.sites),
            "COUNT": str(len(self.sites)),
            "READ": self.read(),
            "ROWS": "".join(map(_row, self.facts["state"])),
        }
        text = CHECKS.read_text() + (WEIGHTS.read_text() if self.read() else "")
        for key, value in rows.items():
            text = text.replace(f"@{key}@", value)
        return text

    def header(self) -> str:
        """For people and compilers."""
        lines: list[str] = []
        for key, end in (("inputs", ""), ("state", ", updated"), ("results", ", a result")):
            lines += [f"   {r['name']}: {_shown(r)}{end}" for r in self.facts[key]]
        if "adjoints" in self.facts:
            lines.append(
                f"   {self.name}_backward: " + ", ".join(map(_named, self.facts["adjoints"]))
            )
        lines += [f"   {n} in {lo}..{hi}" for n, lo, hi in self.facts.get("sizes", ())]
        lines += [f"   where {check}" for check in self.facts.get("checks", ())]
        for call in self.facts["calls"]:
            arrays = ", ".join(map(_shown, call["arrays"]))
            lines.append(f"   {call['name']} {'fills' if call['feeds'] else 'reads'} {arrays}")
        said = "\n".join(lines)
        if self.read():
            said = f"{READS.format(name=self.name)}{said}"
        said = f"{TALKS}{said}" if self.facts["calls"] else said
        heads = [CALLBACK] if self.facts["calls"] else []
        heads += [f"{h};" for h in (*self.heads, self.read()) if h]
        return HEADER.format(
            name=self.name,
            said=said,
            signature=signature(self.facts),
            heads="\n".join(heads),
        )


def _imported(call: Mapping[str, Any]) -> str:
    """A declaration of a function that a module of WebAssembly imports."""
    name = call["name"]
    return f'PB_IMPORT("{name}") int pb_import_{name}(void *user, void *const *arrays);'


def _exported(line: str) -> str:
    """A declaration that a module of WebAssembly exports."""
    name = line.partition("(")[0].split()[-1].lstrip("*")
    return f'__attribute__((export_name("{name}"))) {line};'


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {_shown(row)}"


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}[{', '.join(map(str, row['shape']))}]"


def _row(row: Mapping[str, Any]) -> str:
    """One of what a file of weights must have."""
    size = SIZES.get(row["kind"], 2)
    for extent in row["shape"]:
        size *= extent
    shape = f"[{','.join(map(str, row['shape']))}]"
    kind = json.dumps(json.dumps(row["kind"]))
    name = row["name"]
    return f'\n      {{"{name}", {kind}, "{shape}", {size}, UINT64_MAX, {name}}}, '


def function_name(name: str, writer: Namer) -> str:
    """A name for a function that is no word of C, nor one of its library."""
    (own,) = writer.names([name])
    return f"{own}_" if own in LIBRARY or own[:-1] in LIBRARY else own


def head(text: str, name: str) -> str:
    """The line of a function's arguments."""
    return next(x for x in text.splitlines() if x.startswith(f"int {name}(")).removesuffix(" {")


def hidden(text: str, name: str) -> str:
    """A declaration that no library exports."""
    return f'__attribute__((visibility("hidden"))) {head(text, name)};'


def signature(facts: Mapping[str, Any]) -> int:
    """A number of what a function is passed: of 64 bits, by the manifest; the loader has it too."""
    text = json.dumps(
        {k: facts[k] for k in (*SIGNED, *MORE) if k in facts}, sort_keys=True, separators=(",", ":")
    )
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def features(target: Target) -> Sequence[str]:
    """What a processor must have: for its own kind, all that this one says of itself."""
    if target.cpu in LEVELS:
        return LEVELS[target.cpu]
    if target.cpu != NATIVE:
        return ()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    rows = [x.partition(":")[2] for x in lines if x.startswith(("flags", "Features"))]
    return sorted(f for f in set(rows[0].split()) if f.startswith(DECIDES)) if rows else []
