"""What one process leaves to the next: a program's launches and memory plan, without its passes.

``program -> signature; launches over numbered variables -> JSON, under the signature's key``

A record says which objects of the cache hold the code, which variables each launch is passed (the
program's own by their number in the signature, then the temporaries that fusion made) and where
everything lies in the arena. Loops, feeds, receives and callbacks come from the fresh trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pullback.backends.base import Code, Compiler, Job, Stored
from pullback.errors import MALFORMED, InvalidIR
from pullback.ir.dtype import BY_NAME
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Compute, Item, Launch, Program, expand
from pullback.ir.signature import Signature, digest, signature
from pullback.memory.budget import Repetition
from pullback.memory.plan import Buffer, Plan
from pullback.runtime.assemble import Call, Part

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A program ready to be wired: its items, what each launch calls, where everything lies.

    `kernels` holds those of each computation. Out of a record they are mere names.
    `steps` computed some of them again, for a memory budget, after some were `split`.
    """

    block: Block
    kernels: Sequence[Sequence[Kernel]]
    calls: Mapping[Kernel, Call]
    plan: Plan
    steps: tuple[Repetition, ...] = ()
    split: bool = False


class Recorder:
    """The record of one program. `identity`: what of the backend decides its code, `facts`: what
    else does.
    """

    def __init__(
        self,
        program: Program,
        backend: Compiler,
        job: Job,
        threads: int,
        facts: tuple[str, ...] = (),
    ) -> None:
        self._program = program
        self._backend = backend
        self._job = job
        self._signature = signature(program)
        own = self._signature.digest
        machine = backend.name, backend.identity(job.target), repr(job.target), str(threads)
        self._key = digest("program", own, *machine, *facts, compiler())

    @classmethod
    def of(
        cls, program: Program, backend: Compiler, job: Job, threads: int, facts: tuple[str, ...]
    ) -> Recorder | None:
        """None where nothing is kept: without a store, or by a backend whose class does not say
        what its code depends on. That of another class is not its own.
        """
        says = "identity" in vars(type(backend)) and backend.identity(job.target)
        kept = job.store is not None and says
        return cls(program, backend, job, threads, facts) if kept else None

    def find(self) -> Prepared | None:
        """What an equal program left; None where that or its code is not whole."""
        data = None if self._job.store is None else self._job.store.get(self._key)
        if data is None:
            return None
        try:
            record = json.loads(data)
            stored = [_stored(row) for row in record["codes"]]
            codes = self._backend.load(stored, self._job)
            if codes is None:
                return None
            return _decoded(record, codes, self._program, self._signature)
        except (InvalidIR, StopIteration, *MALFORMED):
            return None

    def keep(self, made: Prepared) -> None:
        """Leave it for the next process."""
        if self._job.store is not None:
            self._job.store.put(self._key, encode(made, self._signature))


@cache
def compiler() -> str:
    """Which compiler this is: path, size and time of change of each of its files."""
    facts = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.stat()
        facts.append(f"{path} {own.st_size} {own.st_mtime_ns}")
    return digest(*facts)


def each(block: Block, change: Callable[[Graph], Sequence[Kernel]]) -> Block:
    """`block` with every `Compute` replaced by the launches of its kernels."""

    def launched(item: Item) -> list[Item] | None:
        return [Launch(k) for k in change(item.graph)] if isinstance(item, Compute) else None

    return expand(block, launched)


def encode(made: Prepared, found: Signature) -> bytes:
    """A program's launches and plan over the variables as its signature numbers them."""
    writer = _Writer({v: n for n, v in enumerate(found.variables)})
    record = {
        "groups": [[writer.call(made.calls[k]) for k in group] for group in made.kernels],
        "plan": writer.plan(made.plan),
        "codes": [asdict(code.stored) for code in writer.codes],
        "temporaries": [_variable_row(v) for v in writer.temporaries],
        "steps": [astuple(step) for step in made.steps],
        "split": made.split,
    }
    return json.dumps(record, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Writer:
    """Numbers variables and codes in order of appearance, after the program's own variables."""

    variables: dict[Variable, int]
    codes: dict[Code, int] = field(default_factory=dict)
    temporaries: list[Variable] = field(default_factory=list)

    def variable(self, variable: Variable) -> int:
        number = self.variables.get(variable)
        if number is None:
            number = self.variables[variable] = len(self.variables)
            self.temporaries.append(variable)
        return number

    def call(self, call: Call) -> list[Any]:
        parts = [self.part(part) for part in call.parts]
        writes = [self.variable(v) for v in call.writes]
        return [call.name, parts, call.shares, writes, call.moved]

    def part(self, part: Part) -> list[Any]:
        code = self.codes.setdefault(part.code, len(self.codes))
        return [code, [self.variable(v) for v in part.arguments]]

    def plan(self, plan: Plan) -> dict[str, Any]:
        totals = [plan.arena_bytes, plan.lower_bound_bytes, plan.total_bytes]
        offsets = [plan.scratch, plan.stride, plan.shared]
        placed = [self.buffer(b, at) for b, at in plan.placed]
        return {"totals": totals, "offsets": offsets, "placed": placed}

    def buffer(self, b: Buffer, at: int) -> list[Any]:
        number = -1 if b.variable is None else self.variable(b.variable)
        over = -1 if b.over is None else self.variable(b.over)
        return [b.name, b.size, b.align, b.first, b.last, number, over, at]


def _variable_row(variable: Variable) -> list[Any]:
    shape = [[e.name, e.lo, e.hi] if isinstance(e, Dim) else e for e in variable.shape]
    return [variable.name, shape, variable.dtype.name]


def _decoded(
    record: dict[str, Any], codes: Sequence[Code], program: Program, found: Signature
) -> Prepared:
    variables = (*found.variables, *map(_variable, record["temporaries"]))
    calls: dict[Kernel, Call] = {}
    groups = []
    for rows in record["groups"]:
        own = {Kernel(row[0], (), ()): _call(row, codes, variables) for row in rows}
        calls.update(own)
        groups.append(list(own))
    rest = iter(groups)
    block = each(program.body, lambda _: next(rest))
    steps = tuple(Repetition(*row) for row in record["steps"])
    plan = _plan(record["plan"], variables)
    return Prepared(block, groups, calls, plan, steps, bool(record["split"]))


def _stored(row: dict[str, Any]) -> Stored:
    return Stored(**{**row, **{name: tuple(row[name]) for name in ("shared", "sites", "sizes")}})


def _variable(row: list[Any]) -> Variable:
    name, shape, kind = row
    extents: list[Extent] = [Dim(*e) if isinstance(e, list) else int(e) for e in shape]
    return Variable(name, tuple(extents), BY_NAME[kind])


def _call(row: list[Any], codes: Sequence[Code], variables: Sequence[Variable]) -> Call:
    name, rows, shares, writes, moved = row
    parts = [Part(codes[code], tuple(variables[n] for n in given)) for code, given in rows]
    return Call(name, tuple(parts), tuple(shares), tuple(variables[n] for n in writes), moved)


def _plan(row: dict[str, Any], variables: Sequence[Variable]) -> Plan:
    placed = []
    for name, size, align, first, last, *held, at in row["placed"]:
        pair = (None if number < 0 else variables[number] for number in held)
        placed.append((Buffer(name, size, align, first, last, *pair), at))
    scratch, stride, shared = map(tuple, row["offsets"])
    offsets = {b.variable: at for b, at in placed if b.variable is not None}
    arena, bound, total = row["totals"]
    return Plan(offsets, scratch, stride, shared, arena, bound, total, tuple(placed))
