"""What the processor does, measured by loop nests of one instruction each: `doctor --machine`.

``for r: vector v in 0..2048: y[v] = exp(x[v])``: nanoseconds of a vector. Processor time, the best
of several short runs: what else the machine does slows few of them.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pullback.backends.base import CompileStats, Job
from pullback.backends.registry import of_nests
from pullback.config import Options
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, float64, int64
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.nest import (
    ARITY,
    NATIVES,
    Array,
    Combine,
    Declare,
    For,
    Load,
    LoopKind,
    Native,
    Peek,
    Register,
    Routine,
    Set,
    Stmt,
    Store,
    Transpose,
    Var,
)
from pullback.ir.target import Target
from pullback.machine.machine import LINE, Machine
from pullback.runtime.report import Reporter

NEAR = 2048  # elements of an array that stays in every first-level cache
RUN_NS = 1e6  # of one run; the best of many short ones is taken
RUNS = 12
MOST = 1 << 22  # times that a nest is repeated in a run
TILES = {32: (8, 3), 16: (6, 2)}  # by registers: rows and vectors of the register tile
CHAIN = 16  # operations in a row, enough to hide a load and a store
FAR = 4  # times the last cache is far from it
UNARY: Mapping[str, type[Expr]] = {"exp": E.Exp, "log": E.Log, "sqrt": E.Sqrt, "sin": E.Sin}
PLAIN = {"maximum", "minimum", "abs", "floor", "rint", "fma"}  # one instruction each
KINDS = {"float32": float32, "float64": float64}
Tables = dict[str, dict[str, float]]

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def timed(
    arrays: Sequence[Array], body: Sequence[Stmt], target: Target, data: Sequence[Any] = ()
) -> float:
    """Nanoseconds of one turn of `body`."""
    repeat, again = Var("n", 0, MOST), Var("r", 0, MOST)
    body = (For(again, index(0), repeat, tuple(body)),)
    routine = Routine("probe", tuple(arrays), (repeat,), (), (), Var("task", 0, 0), 1, body)
    options = Options(cache=None)
    job = Job(options, target, None, CompileStats(), Reporter(options))
    (code,) = of_nests(options.backend).emit([routine], job)
    held = [*data, *(ones(a.size, a.dtype) for a in arrays[len(data) :])]
    call = _CALL(code.body)
    error = np.zeros(3, np.int64)

    def run(times: int) -> float:
        block = np.array([*(d.ctypes.data for d in held), times, error.ctypes.data], np.int64)
        start = time.thread_time_ns()
        call(block.ctypes.data, 0, 0)
        return float(time.thread_time_ns() - start)

    times = 1
    while run(times) < RUN_NS and times < MOST:
        times *= 2
    return min(run(times) for _ in range(RUNS)) / times


def ones(size: int, kind: DType) -> np.ndarray[Any, Any]:
    """An array that begins a cache line: a vector across two lines takes twice as long."""
    room = np.empty(size * kind.itemsize + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    line = room[start : start + size * kind.itemsize].view(kind.numpy)
    line.fill(1)
    return line


def lanes(var: Var, size: int, *body: Stmt, unroll: int = 1) -> For:
    """A loop in lanes."""
    return For(var, index(0), index(size), body, LoopKind.VECTOR, unroll=unroll)


def swept(
    target: Target,
    value: Callable[[Expr], Expr],
    kind: DType = float32,
    size: int = NEAR,
    at: Callable[[Expr], Expr] = lambda v: v,
    stretch: int = 1,
) -> float:
    """Nanoseconds of a vector of ``y[v] = value(x[at(v)])``."""
    x, y, v = Array("x", kind, stretch * size), Array("y", kind, size), Var("v", 0, size - 1)
    loop = lanes(v, size, Store(y, v, value(Load(x, at(v)))), unroll=4)
    return timed((x, y), (loop,), target) * target.lanes(kind.itemsize) / size


def filled(target: Target, size: int) -> float:
    """Nanoseconds of a vector that is written."""
    y, v = Array("y", float32, size), Var("v", 0, size - 1)
    loop = lanes(v, size, Store(y, v, E.Const(1.0, float32)), unroll=4)
    return timed((y,), (loop,), target) * target.lanes(4) / size


def summed(target: Target, size: int, unroll: int, square: bool = False) -> float:
    """Nanoseconds of a vector of ``s += x[v]``, or of squares, with so many sums in flight."""
    x, y, v = Array("x", float32, size), Array("y", float32, 1), Var("v", 0, size - 1)
    total = Register("s", float32)
    value: Expr = E.Mul(Load(x, v), Load(x, v)) if square else Load(x, v)
    loop = lanes(v, size, Combine(total, (), SUM, value), unroll=unroll)
    zero = Declare(total, E.Const(0.0, float32))
    body = (zero, loop, Store(y, index(0), Peek(total, ())))
    return timed((x, y), body, target) * target.lanes(4) / size


def indexed(target: Target, scatter: bool) -> float:
    """Nanoseconds of an element that is read, or written, at an index that is data."""
    x, y = Array("x", float32, NEAR), Array("y", float32, NEAR)
    at, v = Array("at", int64, NEAR), Var("v", 0, NEAR - 1)
    place = Load(at, v)
    store = Store(y, place, Load(x, v)) if scatter else Store(y, v, Load(x, place))
    order = np.random.default_rng(0).permutation(NEAR)
    return timed((at, x, y), (lanes(v, NEAR, store),), target, (order,)) / NEAR


def chased(target: Target, size: int) -> float:
    """Nanoseconds of a read that the next one waits for, at random in so many bytes."""
    count = size // 64
    ring = np.zeros(count * 8, np.int64)
    order = np.random.default_rng(0).permutation(count) * 8
    ring[order] = np.roll(order, 1)
    turns = 4096
    following, y, k = Array("x", int64, ring.size), Array("y", int64, 1), Var("k", 0, turns - 1)
    place = Register("p", int64)
    step = Set(place, (), Load(following, Peek(place, ())))
    body = (
        Declare(place, Load(y, index(0))),
        For(k, index(0), index(turns), (step,)),
        Store(y, index(0), Peek(place, ())),
    )
    return timed((following, y), body, target, (ring, np.zeros(1, np.int64))) / turns


def one_by_one(target: Target, chain: bool) -> float:
    """Nanoseconds of a turn of a loop without lanes; of one that waits for the turn before."""
    x, y, k = Array("x", float32, NEAR), Array("y", float32, NEAR), Var("k", 0, NEAR - 1)
    total, half = Register("s", float32), E.Const(0.5, float32)
    mixed = E.Add(E.Mul(Peek(total, ()) if chain else Load(x, k), half), Load(x, k))
    body: tuple[Stmt, ...] = (Set(total, (), mixed), Store(y, k, Peek(total, ())))
    return timed(
        (x, y),
        (Declare(total, half), For(k, index(0), index(NEAR), body)),
        target,
    ) / NEAR  # fmt: skip


def entered(target: Target) -> float:
    """Nanoseconds to enter and leave a loop: of short ones in a row, less their turns."""

    def copied(rows: int, turns: int) -> float:
        x, y = Array("x", float32, rows * turns), Array("y", float32, rows * turns)
        i, k = Var("i", 0, rows - 1), Var("k", 0, turns - 1)
        place = E.Add(E.Mul(i, index(turns)), k)
        inner = For(k, index(0), index(turns), (Store(y, place, Load(x, place)),))
        return timed((x, y), (For(i, index(0), index(rows), (inner,)),), target) / rows

    return max(0.1, copied(512, 3) - 3 * copied(1, 1536) / 1536)


def packed(target: Target, side: int = 64) -> float:
    """Nanoseconds of an element of a panel that is copied transposed."""
    x, y = Array("x", float32, side * side), Array("y", float32, side * side)
    zero, whole = index(0), index(side)
    return timed((x, y), (Transpose(y, zero, side, x, zero, side, whole, whole),), target) / side**2


def packed_at_edges(target: Target, side: int = 63) -> float:
    """The same of a square block that reaches over an edge, of as many elements as a whole one."""
    lanes = target.lanes(float32.itemsize)
    inside, blocks = (side // lanes) ** 2, (-(-side // lanes)) ** 2
    whole = inside * packed(target) * lanes**2
    return (packed(target, side) * side**2 - whole) / ((blocks - inside) * lanes**2)


def tile(target: Target, terms: int = 256) -> float:
    """Nanoseconds of a vector of multiply-adds in a register tile."""
    rows, vectors = TILES[32 if target.vectors >= 32 else 16]
    width = vectors * target.lanes(4)
    a, b = Array("a", float32, rows * terms), Array("b", float32, terms * width)
    y = Array("y", float32, rows * width)
    total, right = Register("t", float32, (rows, width)), Register("b", float32, (width,))
    left = Register("a", float32)
    k, i, j = Var("k", 0, terms - 1), Var("i", 0, rows - 1), Var("j", 0, width - 1)

    def each(*body: Stmt) -> For:
        return For(i, index(0), index(rows), body, LoopKind.UNROLL)

    zero = E.Const(0.0, float32)
    inner = (
        Declare(right, zero),
        lanes(j, width, Set(right, (j,), Load(b, E.Add(E.Mul(k, index(width)), j)))),
        each(
            Declare(left, Load(a, E.Add(E.Mul(i, index(terms)), k))),
            lanes(j, width, Combine(total, (i, j), SUM, E.Mul(Peek(left, ()), Peek(right, (j,))))),
        ),
    )
    out = Store(y, E.Add(E.Mul(i, index(width)), j), Peek(total, (i, j)))
    body = (
        Declare(total, zero),
        For(k, index(0), index(terms), inner),
        each(lanes(j, width, out)),
    )
    return timed((a, b, y), body, target) / (terms * rows * vectors)


def _alternating(x: Expr) -> Expr:
    """As many plain operations in a row, none of which can be left out."""
    for number in range(CHAIN // 2):
        x = Native("maximum", (E.Add(x, E.Const(1.0, x.dtype)), E.Const(number / 8, x.dtype)))
    return x


def units(target: Target) -> dict[str, float]:
    """The table [unit]."""
    plain = swept(target, _alternating) / CHAIN
    fourth = swept(target, lambda x: x, at=lambda v: E.Mul(v, index(4)), stretch=4)
    turn = one_by_one(target, False)
    return {
        "multiply_add": tile(target),
        "plain": plain,
        "load": summed(target, NEAR, 8),
        "store": filled(target, NEAR),
        "shuffle": fourth / 4,
        "chain": summed(target, NEAR, 1),
        "chain_multiply_add": summed(target, NEAR, 1, square=True),
        "gather": indexed(target, False),
        "scatter": indexed(target, True),
        "pack": packed(target),
        "pack_masked": packed_at_edges(target),
        "scalar": turn / 4,  # two loads, a multiply-add and a store
        "scalar_chain": one_by_one(target, True),
        "turn": turn,
        "enter": entered(target),
    }


def functions(target: Target, kind: DType) -> dict[str, float]:
    """The table of a type: every function that the backend has for it."""
    one = E.Const(1.0, kind)
    table = {"div": swept(target, lambda x: E.Div(one, E.Add(x, one)), kind)}
    for name, node in UNARY.items():
        table[name] = swept(target, node, kind)
    for name in (n for n in NATIVES if n not in PLAIN):
        try:
            table[name] = swept(target, functools.partial(_native, name), kind)
        except InvalidIR:  # no such function of this type
            continue
    return table


def _native(name: str, x: Expr) -> Expr:
    return Native(name, (x,) * ARITY.get(name, 1))


def memories(target: Target, known: Machine) -> list[dict[str, float]]:
    """Each memory: bytes a nanosecond read and written, and what a read waits for."""
    sizes = [memory.bytes for memory in known.memories]
    levels = []
    for number, size in enumerate(sizes):
        far = FAR * sizes[number - 1]
        room = size // 2 if number == 0 or (size and far > size) else far
        elements = room // 4
        bytes_ = 4 * target.lanes(4)
        levels.append(
            {
                "read": bytes_ / summed(target, elements, 8),
                "write": bytes_ / filled(target, elements),
                "latency": chased(target, room),
            }
        )
    return levels


def sized(known: Machine) -> Machine:
    """The machine with the caches that the system tells of."""
    own = cache_sizes()
    rows = tuple(replace(m, bytes=own.get(m.name, m.bytes)) for m in known.memories)
    return replace(known, memories=rows)


def cache_sizes() -> dict[str, int]:
    """The caches of the first processor, as the system tells them, bytes; by level."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = ((folder / n).read_text().strip() for n in ("level", "type"))
        if kind != "Instruction":
            size = (folder / "size").read_text().strip().removesuffix("K")
            sizes[f"L{level}"] = int(size) * 1024
    return sizes


def measured(target: Target, known: Machine) -> tuple[Tables, list[dict[str, float]]]:
    """The tables that a processor can be asked for, and a row for each memory of `known`."""
    tables = {"unit": units(target)}
    tables |= {name: functions(target, kind) for name, kind in KINDS.items()}
    return tables, memories(target, known)


def written(
    name: str,
    cpu: str,
    known: Machine,
    tables: Tables,
    rows: Sequence[Mapping[str, float]],
    source: str,
) -> str:
    """The file of a machine: what was measured, and of `known` what was not."""
    kept = f"as of {known.name}: not measured"
    lines = [
        f'name = "{name}"',
        f'about = "{cpu}, one thread"',
        f'target = "{known.target}"',
        f'cpus = ["{cpu}"]',
    ]
    for level in known.levels:
        lines += ["", "[[level]]", f'name = "{level.name}"', f"count = {level.count}"]
        lines += [f"bytes = {level.bytes}", f"registers = {level.registers}", f'source = "{kept}"']
    for memory, row in zip(known.memories, rows, strict=True):
        lines += ["", "[[memory]]", f'name = "{memory.name}"', f"bytes = {memory.bytes}"]
        lines += [f"{key} = {value:.4g}" for key, value in row.items()]
        lines += [f'shared = "{memory.shared}"', f"cores = {memory.cores}", f"way = {memory.way}"]
        if memory.pages:
            lines += [f"page = {memory.page}", f"pages = {memory.pages}"]
            lines.append(f"translate = {memory.translate}")
        lines += [f'source = "{source}"']
    for tile in known.tiles:
        lines += ["", "[[tile]]", f"vectors = {tile.vectors}", f"rows = {tile.rows}"]
        lines += [f"share = {tile.share}", f'source = "{kept}"']
    for table, values in known.tables.items():
        own = tables.get(table)
        lines += ["", f"[{table}]", f'source = "{kept if own is None else source}"']
        lines += [f"{key} = {value:.4g}" for key, value in {**values, **(own or {})}.items()]
    return "\n".join([*lines, ""])
