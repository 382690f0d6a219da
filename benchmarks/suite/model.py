"""Prices beside times, of kernels that a seed draws: `pullback bench --model --seed 7`.

Each kernel runs alone on one thread over arrays of its own, again and again: what fits a cache is
there already, as the price takes it. Processor time, the best of many short runs.
"""

from __future__ import annotations

import ctypes
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any

import numpy as np

import pullback as pb
from pullback.backends.host.processor import chosen_target
from pullback.backends.llvm.jit import compile_routines
from pullback.backends.nests.price import nest_price
from pullback.backends.registry import named
from pullback.config import Options
from pullback.errors import PullbackError
from pullback.ir.expr import Dim, index
from pullback.ir.kernel import Kernel
from pullback.ir.nest import For, Routine, Var
from pullback.ir.program import Compute, items
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.nn import functional as F
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.tensor.face.tree import flatten
from pullback.tensor.run.tune import inputs

COUNT = 200
RUN_NS = 1e6  # of one run
RUNS = 12
MOST = 1 << 16  # times that a kernel is repeated in one run
SLOWEST_NS = 3e8  # slower kernels are drawn again: they would take the time of all others
LINE = 64
QUIET = Options(backend="reference", threads=1, cache=None)
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)

Array = np.ndarray[Any, Any]
Drawn = tuple[Callable[..., Any], list[Array]]


# --- what is drawn -------------------------------------------------------------------------------


def floats(*shapes: tuple[int, ...]) -> list[Array]:
    return [np.zeros(shape, np.float32) for shape in shapes]


def size(rng: Random, low: int, high: int) -> int:
    """About as often one power of two as another; every second time a whole one."""
    found = round(2 ** rng.uniform(math.log2(low), math.log2(high)))
    return 1 << (found.bit_length() - 1) if rng.random() < 0.5 else found


def both(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Drawn:
    """The value, and the gradients under a head."""

    def made(*args: Any) -> Any:
        y = function(*args[:-1])
        return [y, *pb.grad(y, [a for a in args[:-1] if a.dtype.is_float], head=args[-1])]

    given = floats(*shapes)
    y = function(*map(pb.tensor, given))
    return made, [*given, *floats(y.shape)]


UNARY = (pb.exp, pb.log, pb.sin, pb.sqrt, pb.tanh, pb.abs, F.sigmoid, F.relu, F.gelu, F.softplus)


def elementwise(rng: Random) -> Drawn:
    """A chain of operations on one to three arrays."""
    shape = (size(rng, 16, 4096), size(rng, 16, 1024))
    steps = [rng.choice((*UNARY, None, None, None)) for _ in range(rng.randint(1, 6))]
    count = rng.randint(1, 3)

    def chain(*args: Any) -> Any:
        y = args[0]
        for number, step in enumerate(steps):
            y = y * args[number % count] + 0.5 if step is None else step(y)
        return y

    return chain, floats(*[shape] * count)


def rows(rng: Random) -> Drawn:
    """Softmax, norms and sums along an axis, with gradients."""
    shape = (size(rng, 8, 4096), size(rng, 16, 2048))
    while math.prod(shape) > 1 << 22:
        shape = (max(8, shape[0] // 2), shape[1])
    kind = rng.choice(("softmax", "log_softmax", "layer_norm", "sum", "max", "logsumexp", "var"))
    axis = rng.choice((0, 1))
    functions: dict[str, Callable[[Any], Any]] = {
        "softmax": lambda x: F.softmax(x, dim=axis),
        "log_softmax": lambda x: F.log_softmax(x, dim=axis),
        "layer_norm": lambda x: F.layer_norm(x, (shape[1],)),
        "sum": lambda x: pb.sum(x, axis=axis),
        "max": lambda x: pb.max(x, axis=axis),
        "logsumexp": lambda x: pb.logsumexp(x, axis=axis),
        "var": lambda x: pb.var(x, axis=axis),
    }
    if rng.random() < 0.5:
        return functions[kind], floats(shape)
    return both(functions[kind], [shape])


def moves(rng: Random) -> Drawn:
    """Transposes, flips, slices, concatenations."""
    a, b, c = (size(rng, 4, 256) for _ in range(3))
    kind = rng.choice(("permute", "flip", "roll", "concat", "slice", "pad"))
    order = rng.sample(range(3), 3)
    functions: dict[str, Callable[..., Any]] = {
        "permute": lambda x: pb.permute_dims(x, tuple(order)) * 1.5,
        "flip": lambda x: pb.flip(x, axis=2) + 1.0,
        "roll": lambda x: pb.roll(x, 3, axis=1) + 1.0,
        "concat": lambda x: pb.concat([x, x * 2.0], axis=1),
        "slice": lambda x: x[:, ::2, 1:] * 2.0,
        "pad": lambda x: F.pad(x, (1, 2, 3, 1)) + 1.0,
    }
    return functions[kind], floats((a, b, c))


def product(rng: Random) -> Drawn:
    """Products of all shapes, alone or with what follows, with gradients."""
    m, k, n = (size(rng, 2, 1024) for _ in range(3))
    while m * k * n > 1 << 28:
        m, k, n = max(2, m // 2), max(2, k // 2), n
    kind = rng.choice(("plain", "linear gelu", "linear relu", "batched"))
    if kind == "batched":
        batch = size(rng, 2, 16)
        m, k, n = max(2, m // 4), max(2, k // 4), max(2, n // 4)
        return both(lambda a, b: a @ b, [(batch, m, k), (batch, k, n)])
    after = {"plain": lambda x: x, "linear gelu": F.gelu, "linear relu": F.relu}[kind]
    if kind == "plain":
        return both(lambda a, b: a @ b, [(m, k), (k, n)])
    return both(lambda x, w, b: after(F.linear(x, w, b)), [(m, k), (n, k), (n,)])


def convolution(rng: Random) -> Drawn:
    """Convolutions and pooling, with gradients."""
    batch, side = size(rng, 1, 8), size(rng, 7, 40)
    inner, outer = size(rng, 3, 64), size(rng, 4, 64)
    window, stride = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 2))
    kind = rng.choice(("plain", "plain", "depthwise", "pool", "one dimension"))
    pad = window // 2
    if kind == "pool":
        return both(lambda x: F.max_pool2d(x, 2), [(batch, inner, 2 * side, 2 * side)])
    if kind == "one dimension":
        shapes = [(batch, inner, side * 8), (outer, inner, window)]
        return both(lambda x, w: F.conv1d(x, w, padding=pad), shapes)
    groups = inner if kind == "depthwise" else 1
    outer = inner if kind == "depthwise" else outer
    shapes = [(batch, inner, side, side), (outer, inner // groups, window, window)]

    def convolved(x: Any, w: Any) -> Any:
        return F.conv2d(x, w, stride=stride, padding=pad, groups=groups)

    return both(convolved, shapes)


def attention(rng: Random) -> Drawn:
    """Attention, causal or not, with gradients."""
    heads, length, width = size(rng, 1, 8), size(rng, 16, 512), rng.choice((16, 32, 64))
    causal = rng.random() < 0.5
    shape = (1, heads, length, width)

    def attended(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return both(attended, [shape] * 3)


def paper(rng: Random) -> Drawn:
    """Distances, kernels of radial functions, bilinear forms, stencils, discounted sums."""
    n, m, d = size(rng, 8, 512), size(rng, 8, 256), size(rng, 2, 128)
    kind = rng.choice(("l1", "l2", "rbf", "bilinear", "stencil", "gram", "trilinear", "outer"))
    if kind in ("l1", "l2", "rbf"):
        functions = {
            "l1": lambda a, b: pb.sum(pb.abs(a[:, None] - b[None]), axis=2),
            "l2": lambda a, b: pb.sum((a[:, None] - b[None]) ** 2, axis=2),
            "rbf": lambda a, b: pb.exp(-pb.sum((a[:, None] - b[None]) ** 2, axis=2)),
        }
        return both(functions[kind], [(n, d), (m, d)])
    if kind == "bilinear":
        return both(lambda x, w, y: pb.sum((x @ w) * y, axis=1), [(n, d), (d, m), (n, m)])
    if kind == "stencil":
        return (
            lambda u: (
                u[1:-1, 1:-1] * 0.5
                + 0.125 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
            ),
            floats((4 * n + 2, 4 * m + 2)),
        )
    if kind == "gram":
        return both(lambda f: f @ pb.permute_dims(f, (1, 0)), [(m, n)])
    if kind == "trilinear":
        r = size(rng, 2, 16)

        def form(a: Any, b: Any, c: Any) -> Any:
            k = pb.axis(r)
            return pb.compute(
                (n // 4 + 1, m // 4 + 1, d),
                lambda i, j, x: pb.sum(a[i, k] * b[j, k] * c[x, k], over=k),
            )

        return form, floats((n // 4 + 1, r), (m // 4 + 1, r), (d, r))
    return both(lambda a, b: a[:, None] * b[None], [(n,), (m,)])


def indexed(rng: Random) -> Drawn:
    """Gathers, scatters and running sums."""
    table, count, width = size(rng, 64, 8192), size(rng, 16, 4096), size(rng, 1, 256)
    while max(table, count) * width > 1 << 21:
        width = max(1, width // 2)
    if rng.random() < 0.3:
        return both(lambda a: pb.cumulative_sum(a, axis=1), [(size(rng, 4, 256), count)])
    places = np.zeros(count, np.int64)

    def made(w: Any, head: Any, i: Any) -> Any:
        y = w[i]
        return [y, *pb.grad(y, [w], head=head)]

    return made, [*floats((table, width), (count, width)), places]


CLASSES: dict[str, Callable[[Random], Drawn]] = {
    "elementwise": elementwise,
    "rows": rows,
    "moves": moves,
    "product": product,
    "convolution": convolution,
    "attention": attention,
    "paper": paper,
    "indexed": indexed,
}


def kernels(rng: Random, draw: Callable[[Random], Drawn], target: Target) -> Iterator[Kernel]:
    """The kernels of a drawn program."""
    function, arguments = draw(rng)
    jitted = pb.jit(function, options=QUIET)
    given = flatten((tuple(map(pb.tensor, arguments)), {}))
    traced = jitted.trace(given, jitted.declared(given)).executable.program
    report = Reporter(QUIET)
    for item in items(traced.body):
        if isinstance(item, Compute):
            for kernel in fuse_graph(item.graph, target, report):
                yield from kernel.pieces


# --- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A kernel: its price and its time, microseconds."""

    kind: str
    name: str
    shape: str
    priced: float
    measured: float
    parts: str

    @property
    def factor(self) -> float:
        """How far apart, whichever is larger."""
        return max(self.priced / self.measured, self.measured / self.priced)


def aligned(data: Array) -> Array:
    """The same numbers from the start of a cache line on, as arenas have them."""
    room = np.empty(data.nbytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    found = room[start : start + data.nbytes].view(data.dtype).reshape(data.shape)
    found[...] = data
    return found


def repeated(routine: Routine) -> Routine:
    """All tasks of a launch one after the other, as often as an argument says."""
    repeat, again = Var("repeats", 0, MOST), Var("again", 0, MOST)
    tasks = For(routine.task, index(0), index(routine.tasks), routine.body)
    body = For(again, index(0), repeat, (tasks, *routine.finish))
    other = Var("one", 0, 0)
    sizes = (*routine.sizes, repeat)
    head = routine.name, routine.arguments, sizes, routine.scratch, routine.shared, other, 1
    return Routine(*head, (body,), (), routine.sites)


def timed(kernel: Kernel, routine: Routine, target: Target) -> float:
    """Nanoseconds of a launch's work on one thread."""
    (code,) = compile_routines([repeated(routine)], Options(cache=None), target)
    arrays = [aligned(a) for a in inputs(kernel, most=1 << 31).values()]
    shared = [aligned(np.zeros(s, np.uint8)) for s in code.stored.shared]
    scratch = aligned(np.zeros(code.stored.scratch + LINE, np.uint8))
    dims = {e.name: e.hi for v in kernel.arguments for e in v.shape if isinstance(e, Dim)}
    sizes = [dims.get(v.name, v.hi) for v in routine.sizes]
    error = np.zeros(3, np.int64)
    slots = [a.ctypes.data for a in (*arrays, *shared)]
    call = CALL(code.body)

    def run(times: int) -> float:
        block = np.array([*slots, *sizes, times, error.ctypes.data], np.int64)
        start = time.thread_time_ns()
        call(block.ctypes.data, 0, scratch.ctypes.data)
        return float(time.thread_time_ns() - start)

    times, spent = 1, run(1)
    spent = run(1)
    while spent < RUN_NS and times < MOST:
        times *= 2
        spent = run(times)
    runs = RUNS if spent < 10 * RUN_NS else 4
    return min(run(times) for _ in range(runs)) / times


def drawn(seed: int, count: int, target: Target, only: str = "") -> Iterator[Row]:
    """So many kernels, as many of each class."""
    rng = Random(seed)
    known: set[Any] = set()
    left = Counter({name: 0 for name in CLASSES if only in name})
    while sum(left.values()) < count:
        kind = min(left, key=lambda n: (left[n], n))
        every = list(kernels(rng, CLASSES[kind], target))
        for kernel in rng.sample(every, min(2, len(every))):
            key = kernel_digest(kernel)
            if key in known:
                continue
            known.add(key)
            row = measured(kind, kernel, target)
            if row is not None and sum(left.values()) < count:
                left[kind] += 1
                yield row


def measured(kind: str, kernel: Kernel, target: Target) -> Row | None:
    """A kernel's price and time; None where it is too slow, or does not run on such data."""
    routine = lower(kernel, named("llvm").start(kernel, target))
    price = nest_price(routine, target)
    work = price.ns - price.launch - price.tasks
    if work > SLOWEST_NS:
        return None
    try:
        ns = timed(kernel, routine, target)
    except PullbackError:
        return None
    shape = " ".join(str(s.extents).replace(" ", "") for s in kernel.stages)
    return Row(kind, kernel.name, shape, work / 1e3, ns / 1e3, str(price))


def summary(rows: Sequence[Row]) -> str:
    """Markdown: by class, all, the worst ten."""
    lines = ["| class | kernels | median factor | within 2 |", "|---|---|---|---|"]
    kinds = dict.fromkeys(r.kind for r in rows)
    for name, own in [*((k, [r for r in rows if r.kind == k]) for k in kinds), ("all", rows)]:
        near = sum(r.factor <= 2 for r in own) / len(own)
        middle = median(r.factor for r in own)
        lines.append(f"| {name} | {len(own)} | {middle:.2f} | {near:.0%} |")
    lines += ["", "| worst | class | priced us | measured us | |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda r: -r.factor)[:10]:
        name = f"{row.name} {row.shape}"[:70]
        facts = f"{row.priced:.2f} | {row.measured:.2f}"
        lines.append(f"| {name} | {row.kind} | {facts} | {row.priced / row.measured:.2f} |")
    return "\n".join(lines)


def report(seed: int, count: int, only: str, out: str | None) -> None:
    """Draw, measure and print; with `out` as JSON too."""
    target = chosen_target(None, Options.from_environment().machine)
    rows = list(drawn(seed, count, target, only))
    print(f"{len(rows)} kernels of seed {seed}, machine {target.profile.name}\n\n{summary(rows)}")
    if out is not None:
        every = [{**asdict(r), "factor": r.factor} for r in rows]
        with open(out, "w", encoding="utf-8") as file:
            json.dump({"seed": seed, "machine": target.profile.name, "kernels": every}, file)
