"""GPUs by numbers: files of `machine/gpu`, one for each, whose every number names its source.

Rates are those of the whole GPU, a nanosecond. None is measured here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pullback.config import Options
from pullback.errors import DeviceError, OptionError
from pullback.machine import machine as processors

HERE = Path(processors.__file__).with_name("gpu")
SUFFIX = processors.SUFFIX
USUAL = "h100"
TABLES = {
    "grid": "processors warps programs registers thread_registers shared block_shared"
    " program_shared",
    "lanes": "float32 float64 integer function",
    "tensor": "float16 bfloat16 tf32 float64 int8",
    "instruction": "rows columns terms warps narrow",
    "descriptor": "bytes",
    "launch": "launch",
    "atomic": "place",
}
TF32 = "+tf32"  # after the name of a target: float32 is multiplied as tf32
MEMORIES = "shared", "L2", "memory"


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory of the GPU: bytes (0: as large as wanted), bytes a ns, ns until the first arrive."""

    name: str
    bytes: float
    rate: float
    latency: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. `capability`: 90 for compute capability 9.0; memories from the nearest."""

    name: str
    about: str
    capability: int
    memories: tuple[Memory, ...]
    tables: Mapping[str, Mapping[str, float]] = field(repr=False, hash=False)

    def rate(self, table: str, name: str) -> float:
        """A number of a table."""
        return self.tables[table][name]

    def count(self, name: str) -> int:
        """A whole number of its grid."""
        return int(self.tables["grid"][name])

    def memory(self, name: str) -> Memory:
        """The memory of a name."""
        return self.memories[MEMORIES.index(name)]

    @property
    def target(self) -> str:
        """What code for it is called: `sm_90`."""
        return f"sm_{self.capability}"


def names() -> list[str]:
    """The GPUs of this package."""
    return sorted(path.stem for path in HERE.glob(f"*{SUFFIX}"))


@cache
def named(given: str) -> Gpu:
    """A GPU by its name, or by the path of a file. Raises: OptionError."""
    path = Path(given) if given.endswith(SUFFIX) else HERE / f"{given}{SUFFIX}"
    if not given.endswith(SUFFIX) and given not in names():
        help = f"one of {', '.join(names())}, or the path of a file that ends with {SUFFIX}"
        raise OptionError(f"no GPU {given!r}", help=help, code="E375")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        help = f"a file as those of {', '.join(names())}"
        raise OptionError(f"GPU {given!r}: {error}", help=help, code="E375") from error
    except tomllib.TOMLDecodeError as error:
        raise _malformed(given, str(error)) from error
    return _read(given, data)


def chosen(options: Options) -> Gpu:
    """What kernels are scheduled for: the machine, else the first one that runs the target.

    Raises: OptionError.
    """
    known = [named(name) for name in names()]
    wanted = None if options.target is None else options.target.removesuffix(TF32).removesuffix("a")
    if options.machine is not None:
        gpu = named(options.machine)
        if wanted not in (None, gpu.target):
            what = f"target {wanted!r} for {gpu.name}, which runs {gpu.target}"
            raise OptionError(what, help=f"target={gpu.target!r}, or none", code="E375")
        return gpu
    if wanted is None:
        return named(USUAL)
    for gpu in known:
        if gpu.target == wanted:
            return gpu
    targets = ", ".join(dict.fromkeys(gpu.target for gpu in known))
    raise OptionError(f"no GPU of target {wanted!r}", help=f"one of {targets}", code="E375")


def of_device(capability: int, about: str, given: str | None = None) -> Gpu:
    """The numbers of a device: those that are asked for, else of the file that its name has, else
    of the first one of its capability.

    Raises: DeviceError where there are none, OptionError for those of another capability.
    """
    if given is not None:
        gpu = named(given)
        if gpu.capability != capability:
            what = f"numbers of {gpu.target}, for {about}, which is sm_{capability}"
            raise OptionError(what, help="a file of its own capability", code="E375")
        return gpu
    alike = [gpu for gpu in map(named, names()) if gpu.capability == capability]
    if not alike:
        what = f"no file of numbers is of {about}, sm_{capability}"
        help_ = f'machine="PATH{SUFFIX}", a file like those of {", ".join(names())}, or "nvptx"'
        raise DeviceError(what, help=help_, code="E443")
    words = about.lower().replace(" ", "").replace("-", "")
    return next((gpu for gpu in alike if gpu.name in words), alike[0])


def _read(where: str, data: dict[str, Any]) -> Gpu:
    """The GPU that a file describes. Raises: OptionError."""
    for name, kind in (("name", str), ("about", str), ("source", str), ("capability", int)):
        if not isinstance(data.get(name), kind):
            raise _malformed(where, f"{name} is {data.get(name)!r}")
    tables = {name: _table(where, name, data.get(name), keys) for name, keys in TABLES.items()}
    rows = data.get("memory")
    given = [row.get("name") for row in rows] if isinstance(rows, list) else []
    if given != list(MEMORIES):
        raise _malformed(where, f"[[memory]] of {', '.join(MEMORIES)}, in this order")
    keys = "bytes rate latency"
    memories = []
    for row in data["memory"]:
        rates = {k: v for k, v in row.items() if k != "name"}
        memories.append(Memory(row["name"], **_table(where, "memory", rates, keys)))
    head = data["name"], data["about"], data["capability"]
    return Gpu(*head, tuple(memories), MappingProxyType(tables))


def _table(where: str, name: str, given: Any, keys: str) -> Mapping[str, float]:
    """Numbers by name, all that are needed and no others, and their source."""
    numbers = dict(given) if isinstance(given, dict) else {}
    if not isinstance(numbers.pop("source", None), str):
        raise _malformed(where, f"[{name}] has no source")
    if set(numbers) != set(keys.split()):
        raise _malformed(where, f"[{name}] has {', '.join(numbers)}; wanted are {keys}")
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise _malformed(where, f"{key} of [{name}] is {value!r}")
    return MappingProxyType({key: float(value) for key, value in numbers.items()})


def _malformed(where: str, what: str) -> OptionError:
    return OptionError(
        f"GPU {where!r}: {what}", help="docs/gpu.md says what a file holds", code="E376"
    )
