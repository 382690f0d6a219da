"""The derivative of a kernel as Triton's source, whole: a text, what it takes, what it needs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.config import frozen, module_of
from pullback.errors import GradientError
from pullback.triton import kept, library
from pullback.triton.adjoint import Adjoint, Wanted
from pullback.triton.descriptors import by_pointers
from pullback.triton.facts import Facts, refused
from pullback.triton.forward import UNKNOWN, Forward
from pullback.triton.nodes import Function, Operation, Type, Value
from pullback.triton.statements import Assign, Do, Statement, needed, reads, written
from pullback.triton.watched import Watched

HEAD = "import triton\nimport triton.language as tl\n"
PROGRAM = (
    "tl.cast((tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0)"
    " + tl.program_id(0), tl.int64)"
)


@frozen
class Source:
    """A kernel in Triton's words, and the names of what it takes."""

    name: str
    text: str
    arguments: tuple[str, ...]


@frozen
class Derived:
    """The kernel of a derivative. `gradients` are its arguments that hold those, by what of.

    `factors` are those that hold what comes from behind a sum of products, by the name of the sum.
    `tapes` are arrays: how many elements a step keeps, and their type; `counter` is the kernel that
    finds out how many steps they need, the most of all programs.
    """

    kernel: Source
    gradients: Mapping[str, str]
    tapes: Mapping[str, tuple[int, str]]
    counter: Source | None
    factors: Mapping[str, str]


def derived(function: Function, wanted: Wanted) -> Derived:
    """The derivative of a kernel.

    Raises: UnsupportedError (E423) for an operation without one, GradientError (E424) where an
    array is read and written.
    """
    facts = Facts.of(by_pointers(function))
    _apart(facts, wanted)
    adjoint, lines, live = _cheapest(facts, wanted)
    facts, name = adjoint.facts, f"{function.name}_backward"
    tapes = {n: (t.size, _kept(adjoint, n, t)) for n, t in adjoint.tapes.items() if n in live}
    gradients = {of: name for of, name in adjoint.arguments.items() if name in live}
    own = [v.name for v in facts.function.block.arguments if v.name in live]
    factors = adjoint.behind_sums
    more = [*gradients.values(), *factors.values(), *tapes, *(["tape_length"] if tapes else [])]
    kernel = _source(name, adjoint, lines, own + more)
    counter = _counter(facts, frozenset(tapes)) if tapes else None
    return Derived(kernel, gradients, tapes, counter, factors)


Lines = tuple[Adjoint, tuple[Statement, ...], frozenset[str]]


def _cheapest(facts: Facts, wanted: Wanted) -> Lines:
    """The derivative, by those of its outputs that are cheaper than what they were made of.

    Tried from none of them on, and from all: two may be made by one loop, which both spare alone.
    """
    stores = kept.stores(facts, wanted.once, wanted.whole)
    starts: list[Sequence[Operation]] = [(), stores] if len(stores) > 1 else [()]
    tried = [_tried(facts, wanted, stores, start) for start in starts]
    return min((made for made in tried if made is not None), key=lambda made: made[0])[1]


def _tried(
    facts: Facts, wanted: Wanted, stores: Sequence[Operation], chosen: Sequence[Operation]
) -> tuple[int, Lines] | None:
    """One store after the other is taken, or left out, where that is cheaper."""
    best = _priced(facts, wanted, chosen)
    for store in stores:
        own = [s for s in stores if any(s is one for one in chosen) != (s is store)]
        other = _priced(facts, wanted, own)
        if other is not None and (best is None or other[0] < best[0]):
            best, chosen = other, own
    return best


def _priced(facts: Facts, wanted: Wanted, stores: Sequence[Operation]) -> tuple[int, Lines] | None:
    """The derivative that loads what these stored; nothing, where a place is not known before."""
    function = facts.function
    for store in stores:
        moved = kept.fronted(function, store)
        if moved is None:
            return None
        function = moved
    made = _written(Facts.of(function), wanted, {s.operands[1]: s for s in stores})
    return kept.price(made[1], made[0].facts), made


def _written(facts: Facts, wanted: Wanted, loads: Mapping[Value, Operation]) -> Lines:
    adjoint = Adjoint(facts, wanted)
    adjoint.kept = dict(loads)
    adjoint.assign("program", PROGRAM)
    adjoint.block(facts.function.block, True)
    adjoint.reverse(facts.function.block)
    return adjoint, *_checked(adjoint)


def _kept(adjoint: Forward, name: str, type: Type) -> str:
    return "i64" if type.pointer else type.element


def _counter(facts: Facts, tapes: frozenset[str]) -> Source:
    """The kernel that counts steps."""
    forward = Forward(facts, tapes)
    forward.block(facts.function.block, False)
    lines, live = _checked(forward)
    own = [v.name for v in facts.function.block.arguments if v.name in live]
    return _source(f"{facts.function.name}_steps", forward, lines, [*own, "trips"])


def watching(function: Function, names: Sequence[str]) -> tuple[Source, tuple[str, ...]]:
    """The kernel that finds out whether what is loaded was stored, and the arrays it does so in."""
    facts = Facts.of(function)
    watched = Watched(facts, names)
    watched.assign("program", f"tl.cast({PROGRAM}, tl.int32)")
    watched.block(facts.function.block, False)
    lines, live = _checked(watched)
    own = [v.name for v in facts.function.block.arguments if v.name in live]
    takes = tuple(watched.takes)
    return _source(f"{function.name}_watched", watched, lines, [*own, *takes]), takes


def _checked(forward: Forward) -> tuple[tuple[Statement, ...], frozenset[str]]:
    """What is needed of what was written.

    Raises: UnsupportedError (E423) where that is the result of an operation without words.
    """
    lines, live = needed(forward.lines, frozenset())
    marks = sorted(name for name in _names(lines) if name.startswith(UNKNOWN))
    if marks:
        raise refused(forward.unknown[int(marks[0].removeprefix(UNKNOWN))])
    return lines, live


def _names(lines: Iterable[Statement]) -> frozenset[str]:
    return reads("\n".join(written(lines)))


def _source(name: str, forward: Forward, lines: tuple[Statement, ...], own: list[str]) -> Source:
    body = "\n".join(written(lines)) or "    pass"
    helpers = [text for helper, text in forward.helpers.items() if helper in reads(body)]
    kernel = f"@triton.jit\ndef {name}({', '.join(own)}):\n{body}\n"
    whole = "\n\n".join([*helpers, kernel])
    head = HEAD + (library.IMPORT if "libdevice" in reads(whole) else "")
    return Source(name, f"{head}\n\n{whole}", tuple(own))


def _apart(facts: Facts, wanted: Wanted) -> None:
    """An array is read or written, not both: what was read may be gone.

    Raises: GradientError (E424).
    """
    loads: set[str] = set()
    stores: set[str] = set()
    for o in facts.function.block.walk():
        if o.name == "tt.load":
            loads.add(facts.bases[o.operands[0]].name)
        elif o.name in ("tt.store", "tt.atomic_rmw"):
            stores.add(facts.bases[o.operands[0]].name)
    if both := sorted(loads & stores - wanted.replaced):
        what = f"{facts.function.name} reads and writes {both[0]}: what it read may be gone"
        raise GradientError(what, code="E424")


def loaded(source: Source, folder: Path | None) -> Any:
    """The kernel of a source, out of a file in `folder`: Triton reads its lines."""
    return getattr(module(source.text, source.name, folder), source.name)


def module(text: str, name: str, folder: Path | None) -> ModuleType:
    """A module of this text, which is written to a file once."""
    home = Path(tempfile.gettempdir()) if folder is None else folder / "triton"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return module_of(path)


def function_derived(
    function: Function,
    arguments: Mapping[str, str],
    wrt: tuple[str, ...],
    results: list[str],
    name: str,
) -> Source:
    """The derivative of a function whose arguments and results a kernel loads and stores.

    `arguments` are the pointers of the kernel and what the function calls them.
    """
    facts = Facts.of(function)
    bases = {v.name: v for v in function.block.arguments}
    inputs = frozenset(p for p, own in arguments.items() if own in wrt)
    adjoint = Adjoint(facts, Wanted(inputs, frozenset(results)))
    adjoint.taken |= {*arguments.values()}
    upstream = {bases[r]: adjoint.name(f"d_{r.removesuffix('_')}") for r in results}
    adjoint.given = {bases[p]: own for p, own in arguments.items()}
    adjoint.upstream = upstream
    adjoint.block(function.block, True)
    adjoint.reverse(function.block)
    by_name = {arguments[base.name]: text for base, text in adjoint.results.items()}
    gives = [by_name.get(own, f"tl.zeros_like({own})") for own in wrt]
    adjoint.lines.append(Do(f"return {', '.join(gives)}"))
    lines, _ = _checked(adjoint)
    return _source(name, adjoint, _tidied(lines), [*arguments.values(), *upstream.values()])


def _tidied(lines: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(s for s in lines if not (isinstance(s, Assign) and s.name == s.text))
