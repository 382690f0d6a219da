"""A machine: frozen numbers under a name, each with the measurement that it comes from.

Times are nanoseconds, sizes bytes, rates bytes per nanosecond. Nothing is probed where a program
is compiled: two processes on equal processors make equal code.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pullback.config import entity, frozen
from pullback.errors import OptionError, UnsupportedError

HERE = Path(__file__).parent
SUFFIX = ".toml"
LINE = 64  # bytes: the smallest cache line of these processors; scratch begins one

# Fields of rows by their annotations.
KINDS: Mapping[str, Any] = {"float": (int, float), "int": int, "str": str}

# What a file says of itself.
NAMED = ("name", "about", "target")

# What numbers of a file may be, that times can be worked out: none is 0, but what there may be none
# of, and what counts is no part of one.
LEAST, MOST = 1e-6, 1e12
NONE = ("count", "bytes", "registers", "way", "page", "pages", "translate", "pack")
COUNTS = (
    "memory.cores tile.vectors tile.rows launch.tasks launch.partial_tasks launch.processors"
    " launch.threads whole.first_level product.sums product.fewest block.rows block.columns"
    " block.terms block.run block.ahead block.own block.dot_columns held.strip"
)

# Tables of shares, whose names are counts.
COUNTED = ("rows", "halves", "joined")

# What each table of a file must say, names in a row; `source`, text, is wanted of every one.
TABLES: Mapping[str, str] = MappingProxyType(
    {
        # A full vector of float32: in flow, or (`chain`) waited for by the next one.
        "unit": "multiply_add plain load store shuffle chain chain_multiply_add gather scatter pack"
        " pack_masked scalar scalar_chain turn enter",
        # A full vector of each type.
        "float32": "div sqrt exp log sin",
        "float64": "div sqrt exp log sin",
        "launch": "launch fork task tasks partial_tasks gain processors threads",
        # Rates of whole kernels that have no loops yet: what fusion and tiles are chosen by.
        "whole": "product_flops work near cache memory parallel exp log sin root divide plain"
        " scalar multiply_add cache_sweep memory_sweep parallel_sweep task step pack first_level"
        " run",
        # Of contractions: so many `sums` in flight hide the latency of a multiply-add and of the
        # loads of a step; `fewest`, where rows are cut into equal blocks; a `second` tile for what
        # columns are left takes so many times as long. `swept`: a product of a plain sum; `enter`:
        # and leave a register tile; `words`: an element packed in words; `guarded`: what a sum with
        # its guards may be priced at of one between zeros, at most.
        "product": "sums fewest second swept enter words guarded",
        # Shares of the peak of multiply-adds by counts: each of so many, and of more.
        "rows": "1",
        "halves": "1",
        "joined": "1",
        # Sizes of large products, as libraries of linear algebra have them of each processor, and
        # rates of what else runs in tiles.
        "block": "rows columns terms run ahead own dots dot_columns gathered",
        # Places that are data: an element read or written `alone` at its place, with arithmetic
        # of it; one of `neighbour`s in lanes; one of a copy that is `turned`, of what is `kept`
        # and read again; an `operation` on places; a `kernel` more.
        "places": "alone neighbour turned kept operation kernel",
        # What tiles keep in caches: shares of them, and what more of it costs.
        "held": "close near far most beyond strip",
    }
)


@frozen
class Level:
    """Who runs beside whom: `count` of a kind (0: as many as there are), each of `bytes`."""

    name: str
    count: int = 0
    bytes: int = 0
    registers: int = 0


@frozen
class Memory:
    """A memory, as one thread sees it. `bytes` 0: as large as wanted. `shared` by whom, `cores` in
    number. `way`: bytes apart, addresses share their places in it. It keeps the addresses of so
    many `pages` of `page` bytes; to `translate` one that it does not takes so long (0: not known).
    """

    name: str
    bytes: int
    read: float
    write: float
    latency: float
    shared: str
    cores: int = 1
    way: int = 0
    page: int = 0
    pages: int = 0
    translate: float = 0.0


@frozen
class RegisterTile:
    """Sums in registers, `vectors` in a row: at most so many `rows`, `share` of the peak rate."""

    vectors: int
    rows: int
    share: float


@entity
class Machine:
    """A processor by numbers. `memories` from the nearest; `target` names the code it runs.

    `cpus`: LLVM's names of such processors; none: any that runs `target`. `priced`: ns of a
    kernel, by a machine that knows them before it is scheduled; None: fusion goes by the tables.
    """

    name: str
    about: str
    target: str
    cpus: tuple[str, ...]
    levels: tuple[Level, ...]
    memories: tuple[Memory, ...]
    tiles: tuple[RegisterTile, ...]
    tables: Mapping[str, Mapping[str, float]] = field(repr=False)
    text: str = field(repr=False)
    priced: Callable[[Any], float] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Equal for equal numbers: it is part of the keys of what is compiled."""
        return f"Machine({self.name!r}, {hash_of(self.text)})"

    def rate(self, table: str, name: str) -> float:
        """A number of a table."""
        return self.tables[table][name]

    @property
    def vector(self) -> int:
        """Bytes of a vector register."""
        return next(level.bytes for level in self.levels if level.name == "lane")

    @property
    def packs(self) -> bool:
        """Whether products read copies of their operands, so that these are prepared for that: at 0
        ns an element of [whole] there are none.
        """
        return self.rate("whole", "pack") > 0

    @property
    def share(self) -> int:
        """Bytes of the last cache for each of the cores that share it."""
        last = [memory for memory in self.memories if memory.bytes][-1]
        return last.bytes // max(1, last.cores)

    @property
    def registers(self) -> int:
        """How many vector registers there are."""
        return next(level.registers for level in self.levels if level.name == "lane")


def hash_of(text: str) -> str:
    """A short hash of a file's text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def names() -> list[str]:
    """The machines of this package."""
    return sorted(path.stem for path in HERE.glob(f"*{SUFFIX}"))


def chosen(given: str) -> Machine:
    """A machine by its name, or by the path of a file.

    Raises: OptionError where there is none, or the file is malformed.
    """
    path = Path(given)
    if not given.endswith(SUFFIX):
        path = HERE / f"{given}{SUFFIX}"
        if given not in names():
            what = f"no machine {given!r}"
            help_ = f"one of {', '.join(names())}, or the path of a file that ends with {SUFFIX}"
            raise OptionError(what, help=help_, code="E375")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"machine {given!r}: {error}"
        raise OptionError(what, help="a file of `doctor --machine --save`", code="E375") from error
    return parsed(text, given)


@cache
def like(cpu: str, target: str) -> Machine:
    """The machine of a processor by LLVM's name of it; else the one of all that run `target`.

    Raises: UnsupportedError for a target that no machine is of.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(HERE.glob(f"*{SUFFIX}"))}
    fitting = [path for path, text in texts.items() if f'target = "{target}"' in text]
    named = [path for path in fitting if f'"{cpu}"' in texts[path]]
    for path in [*named, *(p for p in fitting if "cpus = []" in texts[p])]:
        return parsed(texts[path], path.stem)
    raise UnsupportedError(
        f"no machine is known for processors like {cpu} ({target})",
        help="measure it: `pullback doctor --machine --save FILE`, then PULLBACK_MACHINE=FILE",
        code="E377",
    )


def with_numbers(machine: Machine, table: str, **numbers: float) -> Machine:
    """The machine with other numbers in a table."""
    tables = {**machine.tables, table: MappingProxyType({**machine.tables[table], **numbers})}
    text = f"{machine.text}\n# {table} {numbers}"
    return replace(machine, tables=MappingProxyType(tables), text=text)


@cache
def parsed(text: str, where: str) -> Machine:
    """The machine that a file describes. Raises: OptionError."""
    data, text = _read(text, where)
    for name in NAMED:
        _wanted(where, name, data.get(name), str)
    tables = {name: _table(where, name, data.get(name)) for name in TABLES}
    levels = tuple(_row(where, "level", Level, row) for row in _rows(where, data, "level"))
    memories = tuple(_row(where, "memory", Memory, row) for row in _rows(where, data, "memory"))
    tiles = tuple(_row(where, "tile", RegisterTile, row) for row in _rows(where, data, "tile"))
    if not any(level.name == "lane" and level.bytes and level.registers for level in levels):
        raise _malformed(where, "no level `lane` with its bytes and registers")
    *caches, last = memories
    if not caches or last.bytes or not all(cache.bytes for cache in caches):
        raise _malformed(where, "the last memory, and none of the caches, has 0 bytes")
    cpus = data.get("cpus", [])
    _wanted(where, "cpus", cpus, list)
    head = data["name"], data["about"], data["target"], tuple(map(str, cpus))
    return Machine(*head, levels, memories, tiles, MappingProxyType(tables), text)


def _read(text: str, where: str) -> tuple[dict[str, Any], str]:
    """What a file says, beside what it leaves as the machine of its `base` has it; all text read.

    Tables are joined number by number; of rows (``[[memory]]``) it says all or none.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _malformed(where, str(error)) from error
    base = data.pop("base", None)
    if base is None:
        return data, text
    if base not in names():
        raise _malformed(where, f"base = {base!r}: not one of {', '.join(names())}")
    common, below = _read((HERE / f"{base}{SUFFIX}").read_text(encoding="utf-8"), base)
    for name in (*NAMED, "cpus"):
        common.pop(name, None)
    for name in TABLES.keys() & data.keys():
        own = data[name]
        _wanted(where, f"[{name}]", own, dict)
        _wanted(where, f"source of [{name}]", own.get("source"), str)
        data[name] = common[name] | own
    return common | data, below + text


def _rows(where: str, data: dict[str, Any], name: str) -> list[Any]:
    rows = data.get(name)
    if not isinstance(rows, list) or not rows:
        raise _malformed(where, f"no [[{name}]]")
    return rows


def _row(where: str, name: str, kind: type[Any], row: Any) -> Any:
    """A level or a memory; each names where its numbers are from."""
    given = dict(row) if isinstance(row, dict) else {}
    _wanted(where, f"source of [[{name}]]", given.pop("source", None), str)
    for key, value in given.items():
        wanted = KINDS.get(kind.__annotations__.get(key, ""))
        if wanted is None:
            raise _malformed(where, f"[[{name}]] has {key!r}")
        _wanted(where, f"{key} of [[{name}]]", value, wanted, _least(name, key))
    try:
        return kind(**given)
    except TypeError as error:
        raise _malformed(where, f"[[{name}]]: {error}") from error


def _table(where: str, name: str, given: Any) -> Mapping[str, float]:
    """Numbers by name, all that are needed, and their source."""
    _wanted(where, f"[{name}]", given, dict)
    rates = dict(given)
    _wanted(where, f"source of [{name}]", rates.pop("source", None), str)
    for key in (*TABLES[name].split(), *rates):
        _wanted(where, f"{key} of [{name}]", rates.get(key), (int, float), _least(name, key))
        if name in COUNTED and not (key.isdecimal() and 0 < rates[key] <= 1):
            raise _malformed(where, f"{key} = {rates[key]} of [{name}]: a count and its share")
    return MappingProxyType({key: float(value) for key, value in rates.items()})


def _least(table: str, key: str) -> float:
    """The least that a number may be."""
    return 0 if key in NONE else 1 if f"{table}.{key}" in COUNTS.split() else LEAST


def _wanted(where: str, what: str, value: Any, kind: Any, least: float = LEAST) -> None:
    """Raises: OptionError for a value of another kind, or a number that is out of bounds."""
    if value is None:
        raise _malformed(where, f"{what} is missing")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _malformed(where, f"{what} is {value!r}")
    if isinstance(value, int | float) and not least <= value <= MOST:
        raise _malformed(where, f"{what} is {value!r:.30}")


def _malformed(where: str, what: str) -> OptionError:
    return OptionError(
        f"machine {where!r}: {what}", help="docs/machine.md says what a file holds", code="E376"
    )
