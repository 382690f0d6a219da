"""Random programs of nested control forms, each a function of its number alone, and their check.

A program is a tree of loops, scans, branches, checkpoints, functions with derivatives by hand,
gradients and maps over samples. It is written down twice from that tree: on pullback, as one jitted
program with a derivative, and on dual numbers (`dual_numbers`), where loops are Python's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dual_numbers as N
import pullback as pb
from pullback.config import Options
from pullback.errors import PullbackError

Array = np.ndarray[Any, Any]
Env = dict[str, Any]
Expr = tuple[Any, ...]

ROWS = 3  # of a scan over rows
SAMPLES = 3
MODES = ("tape", "recompute", "sqrt")
TYPES = ("float64",) * 14 + ("float32", "float32", "float16", "bfloat16")
ORDERS = ("value", "grad", "grad", "jvp", "second", "grad of jvp", "jvp of grad")
# Of a type: how far a result may be off, relative to the largest; how far from equal the sides of a
# comparison have to be for it to come out alike.
BOUNDS = {
    "float64": (1e-8, 1e-9),
    "float32": (3e-3, 1e-4),
    "float16": (0.15, 0.03),
    "bfloat16": (0.6, 0.2),
}


@dataclass(frozen=True)
class Form:
    """One control form: `names` of its results, which start as `inits`, and its blocks.

    `settings`: what the kind of form has besides.
    """

    kind: str
    names: tuple[str, ...]
    inits: tuple[Expr, ...]
    blocks: tuple[Block, ...]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Let:
    name: str
    value: Expr


@dataclass(frozen=True)
class Block:
    """Statements, then results. `params`: what they are given."""

    params: tuple[str, ...]
    lines: tuple[Let | Form, ...]
    results: tuple[Expr, ...]


def kinds_of(block: Block) -> list[str]:
    """Of every form, and of those in it."""
    forms = [line for line in block.lines if isinstance(line, Form)]
    return [k for f in forms for k in (f.kind, *(k for b in f.blocks for k in kinds_of(b)))]


def text(block: Block, depth: int = 0) -> str:
    """A block as lines."""
    pad = "  " * depth
    found = [f"{pad}({', '.join(block.params)}) ->"]
    for line in block.lines:
        if isinstance(line, Let):
            found.append(f"{pad}  {line.name} = {shown(line.value)}")
            continue
        inits = ", ".join(map(shown, line.inits))
        settings = {k: shown(v) if isinstance(v, tuple) else v for k, v in line.settings.items()}
        found.append(f"{pad}  {', '.join(line.names)} = {line.kind}({inits}) {settings}")
        found += [text(b, depth + 2) for b in line.blocks]
    found.append(f"{pad}  return {', '.join(map(shown, block.results))}")
    return "\n".join(found)


def shown(e: Any) -> str:
    if not isinstance(e, tuple):
        return str(e)
    return e[1] if e[0] == "var" else f"{e[0]}({', '.join(map(shown, e[1:]))})"


# --- making one ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """What forms have in common: results, what they start as, kinds, and the names in scope."""

    results: tuple[str, ...]
    inits: tuple[Expr, ...]
    carried: str
    names: list[str]
    depth: int


class Maker:
    """Names end with what they are: ``_v`` a vector, ``_s`` a scalar, ``_r`` rows of vectors."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"control {seed}")
        self.order = self.random.choice(ORDERS)
        # Loops without a bound that may stand in one another: the text of a backward is six times
        # the body for each, and for each order.
        self.open = 1 if self.order in ("second", "grad of jvp", "jvp of grad") else 2
        self.count = 0
        self.left = self.random.choice([2, 3, 3, 4, 5])  # control forms to be made

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{'abcdefgh'[self.count % 8]}{self.count}_{kind}"

    def pick(self, names: Sequence[str], kind: str) -> str | None:
        """One of these names, the latest ones more often."""
        fitting = [n for n in names if n.endswith(f"_{kind}")]
        return self.random.choice(fitting + fitting[-2:]) if fitting else None

    def vector(self, names: Sequence[str], depth: int = 2) -> Expr:
        turn = self.random.randrange(16)
        name = self.pick(names, "v")
        if name is not None and (not depth or turn < 3):
            return ("var", name)
        if turn < 7:
            kind = self.random.choice(["sin", "tanh", "sigmoid", "half", "hand_pull", "hand_push"])
            return (kind, self.vector(names, depth - 1))
        if turn < 9:
            return ("add", self.vector(names, depth - 1), self.vector(names, depth - 1))
        if turn < 11:
            return ("mul", self.vector(names, depth - 1), ("tanh", self.vector(names, depth - 1)))
        if turn == 11:
            return ("add", self.vector(names, depth - 1), self.scalar(names, depth - 1))
        if turn == 12:
            return ("mul", ("sin", self.vector(names, depth - 1)), self.scalar(names, depth - 1))
        if turn == 13:
            return ("take", self.vector(names, depth - 1))
        if turn == 14:
            rows = self.pick(names, "r")
            return ("total", ("var", rows)) if rows else ("running", self.vector(names, depth - 1))
        choice = self.random.choice(["where", "still", "times"])
        if choice == "where":
            a, b = self.vector(names, depth - 1), self.vector(names, depth - 1)
            return ("where", a, self.random.uniform(-0.5, 0.5), b)
        return (choice, self.vector(names, depth - 1))

    def scalar(self, names: Sequence[str], depth: int = 2) -> Expr:
        name = self.pick(names, "s")
        if name is not None and self.random.random() < 0.5:
            return ("sin", ("var", name))
        return ("tanh", (self.random.choice(["sum", "sum", "mean"]), self.vector(names, depth)))

    def value(self, kind: str, names: Sequence[str]) -> Expr:
        return self.vector(names) if kind == "v" else self.scalar(names)

    def block(self, params: Sequence[str], names: Sequence[str], kinds: str, depth: int) -> Block:
        """A block with results of these kinds."""
        known = [*names, *params]
        lines: list[Let | Form] = []
        for _ in range(self.random.choice([1, 1, 2]) if depth < 4 else 0):
            if self.left and self.random.random() < 0.85:
                self.left -= 1
                form = self.form(known, depth)
                lines.append(form)
                known += form.names
            else:
                name = self.fresh(self.random.choice("vvs"))
                lines.append(Let(name, self.value(name[-1], known)))
                known.append(name)
        return Block(tuple(params), tuple(lines), tuple(self.bounded(k, known) for k in kinds))

    def bounded(self, kind: str, names: Sequence[str]) -> Expr:
        """A value that stays small however often it is fed back."""
        inner = self.value(kind, names)
        if self.random.random() < 0.6:
            return (self.random.choice(["tanh", "sin"]), inner)
        return ("add", ("half", ("tanh", inner)), ("half", ("sin", self.value(kind, names))))

    def form(self, names: Sequence[str], depth: int) -> Form:
        kinds = ["loop", "scan", "cond", "until", "until", "checkpoint", "vmap", "grad", "sweep"]
        kind = self.random.choice(kinds)
        carried = self.random.choice(["v", "v", "vs", "vv"])
        if kind in ("vmap", "grad"):
            carried = "v"
        results = tuple(self.fresh(k) for k in carried)
        inits = tuple(self.value(k, names) for k in carried)
        parts = Parts(results, inits, carried, list(names), depth + 1)
        make: Callable[[Parts], Form] = getattr(self, f"_{kind}")
        return make(parts)

    def _inner(self, parts: Parts, more: str = "", *params: str) -> Block:
        """A block of the carries, with results like them and `more`; `params` come after them."""
        own = [self.fresh(k) for k in parts.carried]
        return self.block([*own, *params], parts.names, parts.carried + more, parts.depth)

    def _loop(self, parts: Parts) -> Form:
        settings = {"count": self.random.choice([0, 1, 2, 3, 3, 5]), **self.mode()}
        block = self._inner(parts, "", self.fresh("s"))
        return Form("loop", parts.results, parts.inits, (block,), settings)

    def _sweep(self, parts: Parts) -> Form:
        """A loop whose carry has an integer too."""
        settings = {"count": self.random.choice([1, 2, 4]), **self.mode()}
        return Form("sweep", parts.results, parts.inits, (self._inner(parts),), settings)

    def _scan(self, parts: Parts) -> Form:
        rows = self.pick(parts.names, "r")
        block = self._inner(parts, "v", *([self.fresh("v")] if rows else []))
        settings = {"rows": rows, **self.mode()}
        return Form("scan", (*parts.results, self.fresh("r")), parts.inits, (block,), settings)

    def _cond(self, parts: Parts) -> Form:
        limit = self.random.choice([-0.6, -0.2, 0.0, 0.2, 0.6])
        settings = {"test": self.scalar(parts.names), "limit": limit}
        sides = self._inner(parts), self._inner(parts)
        return Form("cond", parts.results, parts.inits, sides, settings)

    def _until(self, parts: Parts) -> Form:
        """``while fuel < limit``, where what is burnt depends on the carry."""
        most = self.random.choice([None, None, None, 2, 6, 20])
        most = 20 if most is None and not self.open else most
        settings = {
            "limit": self.random.choice([-1.0, 0.4, 0.9, 1.6, 2.4]),
            "most": most,
            "start": self.scalar(parts.names),
            **self.mode(),
        }
        self.open -= most is None
        block = self._inner(parts, "s")
        self.open += most is None
        return Form("until", parts.results, parts.inits, (block,), settings)

    def _checkpoint(self, parts: Parts) -> Form:
        return Form("checkpoint", parts.results, parts.inits, (self._inner(parts),))

    def _vmap(self, parts: Parts) -> Form:
        return Form("vmap", parts.results, parts.inits, (self._inner(parts),))

    def _grad(self, parts: Parts) -> Form:
        self.left = min(self.left, 1)
        self.open = min(self.open, 1)
        return Form("grad", parts.results, parts.inits, (self._inner(parts),))

    def mode(self) -> dict[str, str]:
        return {"checkpoint": self.random.choice(MODES)}


# --- both ways to run one ------------------------------------------------------------------------


class Run:
    """What both have in common: blocks and expressions over a namespace."""

    order: Array | Any

    def block(self, block: Block, given: Sequence[Any], env: Env) -> list[Any]:
        env = {**env, **dict(zip(block.params, given, strict=True))}
        for line in block.lines:
            if isinstance(line, Let):
                env[line.name] = self.value(line.value, env)
            else:
                inits = [self.value(e, env) for e in line.inits]
                found = getattr(self, f"{line.kind}_form")(line, inits, env)
                env.update(zip(line.names, found, strict=True))
        return [self.value(e, env) for e in block.results]

    def value(self, e: Expr, env: Env) -> Any:
        if e[0] == "var":
            return env[e[1]]
        args = [self.value(a, env) if isinstance(a, tuple) else a for a in e[1:]]
        return getattr(self, e[0])(*args)

    def burnt(self, fuel: Any, out: Any) -> Any:
        return self.add(fuel, self.add(self.scaled(self.sigmoid(out), 0.4), self.constant(0.3)))

    # --- forms whose parts are the namespace's

    def loop_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        def body(i: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step = self.scaled(self.number(i), 0.1)
            return tuple(self.block(form.blocks[0], [*carry, step], env))

        return list(self.loop(form.settings["count"], body, tuple(inits), form.settings))

    def sweep_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        def body(_: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            turn = self.scaled(self.number(carry[0]), 0.1)
            given = [self.add(carry[1], turn), *carry[2:]]
            return (self.next(carry[0]), *self.block(form.blocks[0], given, env))

        start = (self.whole(1), *inits)
        return list(self.loop(form.settings["count"], body, start, form.settings))[1:]

    def scan_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        rows = form.settings["rows"]

        def body(carry: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
            given = [*carry] if rows is None else [*carry, x]
            *ends, y = self.block(form.blocks[0], given, env)
            return tuple(ends), y

        whole = None if rows is None else env[rows]
        last, made = self.scan(body, tuple(inits), whole, form.settings)
        return [*last, made]

    def cond_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        test = self.less(self.value(form.settings["test"], env), form.settings["limit"])
        sides = [lambda *c, b=b: tuple(self.block(b, c, env)) for b in form.blocks]
        return list(self.cond(test, *sides, *inits))

    def until_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        def test(carry: tuple[Any, ...]) -> Any:
            return self.less(carry[0], form.settings["limit"])

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            *ends, out = self.block(form.blocks[0], carry[1:], env)
            return (self.burnt(carry[0], out), *ends)

        start = (self.scaled(self.value(form.settings["start"], env), 0.4), *inits)
        return list(self.until(test, body, start, form.settings))[1:]

    def checkpoint_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        return list(self.again(lambda *c: tuple(self.block(form.blocks[0], c, env)))(*inits))

    def vmap_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        def one(row: Any) -> Any:
            return self.block(form.blocks[0], [row], env)[0]

        return [self.total(self.many(one, self.spread(inits[0])))]

    def grad_form(self, form: Form, inits: list[Any], env: Env) -> list[Any]:
        def loss(c: Any) -> Any:
            return self.sum(self.sin(self.block(form.blocks[0], [c], env)[0]))

        return [self.gradient(loss, inits[0])]


class Steps(Run):
    """On dual numbers, step by step. `margin`: how near to equal a comparison came."""

    def __init__(self, order: Array) -> None:
        self.order = order
        self.margin = np.inf
        self.levels = 100  # those of gradients inside of a program come after those outside
        self.steps = 0

    add, mul, scaled = staticmethod(N.add), staticmethod(N.mul), staticmethod(N.mul)
    sin, tanh, sigmoid = staticmethod(N.sin), staticmethod(N.tanh), staticmethod(N.sigmoid)
    still = staticmethod(N.still)

    def half(self, x: Any) -> Any:
        return N.mul(0.5, x)

    def times(self, x: Any) -> Any:
        return N.mul(x, N.tanh(x))

    def hand_pull(self, x: Any) -> Any:
        """sin, whose derivative is said to be 0.9 cos."""
        return N.unary(np.sin, lambda a: N.mul(0.9, N.cos(a)), x)

    def hand_push(self, x: Any) -> Any:
        """tanh, whose derivative is said to be 0.8 cos."""
        return N.unary(np.tanh, lambda a: N.mul(0.8, N.cos(a)), x)

    def take(self, x: Any) -> Any:
        return N.linear(lambda a: a[self.order], x)

    def sum(self, x: Any) -> Any:
        return N.linear(np.sum, x)

    def mean(self, x: Any) -> Any:
        return N.linear(np.mean, x)

    def total(self, x: Any) -> Any:
        return N.linear(lambda a: a.sum(0), x)

    def running(self, x: Any) -> Any:
        return N.linear(lambda a: np.cumsum(a, 0), x)

    def where(self, a: Any, limit: float, b: Any) -> Any:
        return N.where(self.less(a, limit), a, b)

    def less(self, a: Any, limit: float) -> Array:
        value = N.plain(a)
        self.margin = min(self.margin, float(np.min(np.abs(value - limit), initial=np.inf)))
        return value < limit

    def constant(self, x: float) -> Array:
        return np.asarray(x)

    whole = number = staticmethod(np.asarray)

    def next(self, x: Any) -> Any:
        return x + 1

    def loop(self, count: int, body: Any, carry: Any, _: Any) -> Any:
        for i in range(count):
            self.steps += 1
            carry = body(np.asarray(float(i)), carry)
        return carry

    def scan(self, body: Any, carry: Any, rows: Any, _: Any) -> Any:
        made = []
        for n in range(ROWS):
            self.steps += 1
            row = None if rows is None else N.linear(lambda a, n=n: a[n], rows)
            carry, y = body(carry, row)
            made.append(y)
        return carry, N.stack(made)

    def cond(self, test: Array, then: Any, otherwise: Any, *given: Any) -> Any:
        return then(*given) if test else otherwise(*given)

    def until(self, test: Any, body: Any, carry: Any, settings: dict[str, Any]) -> Any:
        count = 0
        while (settings["most"] is None or count < settings["most"]) and test(carry):
            self.steps += 1
            carry = body(carry)
            count += 1
        return carry

    def again(self, f: Any) -> Any:
        return f

    def spread(self, x: Any) -> Any:
        return N.stack([N.mul(x, 0.5 * n - 0.7) for n in range(SAMPLES)])

    def many(self, f: Any, rows: Any) -> Any:
        return N.stack([f(N.linear(lambda a, n=n: a[n], rows)) for n in range(SAMPLES)])

    def gradient(self, f: Any, x: Any) -> Any:
        self.levels += 1
        return N.gradients(f, [x], self.levels)[0]


@pb.custom_vjp
def _hand_pull(x: Any) -> Any:
    return pb.sin(x)


@pb.custom_jvp
def _hand_push(x: Any) -> Any:
    return pb.tanh(x)


_hand_pull.defvjp(lambda x: (_hand_pull(x), x), lambda x, d: (d * pb.cos(x) * 0.9,))
_hand_push.defjvp(lambda x, t: (_hand_push(*x), t[0] * pb.cos(x[0]) * 0.8))


class Traced(Run):
    """On pullback. `order`: a permutation, which is data."""

    def __init__(self, order: Any, kind: str) -> None:
        self.order = order
        self.kind = kind

    sin, tanh, sigmoid = staticmethod(pb.sin), staticmethod(pb.tanh), staticmethod(pb.sigmoid)
    hand_pull, hand_push, sum = _hand_pull, _hand_push, staticmethod(pb.sum)
    mean, still = staticmethod(pb.mean), staticmethod(pb.stop_gradient)
    again = staticmethod(pb.checkpoint)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    scaled = mul

    def half(self, x: Any) -> Any:
        return x * 0.5

    def times(self, x: Any) -> Any:
        return x * pb.tanh(x)

    def take(self, x: Any) -> Any:
        return pb.take(x, self.order, axis=0)

    def total(self, x: Any) -> Any:
        return pb.sum(x, axis=0)

    def running(self, x: Any) -> Any:
        return pb.cumulative_sum(x, axis=0)

    def where(self, a: Any, limit: float, b: Any) -> Any:
        return pb.where(a < limit, a, b)

    def less(self, a: Any, limit: float) -> Any:
        return a < limit

    def constant(self, x: float) -> float:
        return x

    def number(self, x: Any) -> Any:
        return pb.astype(x, self.kind)

    def whole(self, x: int) -> Any:
        return pb.tensor(x, dtype="int64")

    def next(self, x: Any) -> Any:
        return x + 1

    def loop(self, count: int, body: Any, carry: Any, settings: dict[str, Any]) -> Any:
        return pb.loop(count, body, carry, checkpoint=settings["checkpoint"])

    def scan(self, body: Any, carry: Any, rows: Any, settings: dict[str, Any]) -> Any:
        return pb.scan(body, carry, rows, ROWS, checkpoint=settings["checkpoint"])

    cond = staticmethod(pb.cond)

    def until(self, test: Any, body: Any, carry: Any, settings: dict[str, Any]) -> Any:
        mode, most = settings["checkpoint"], settings["most"]
        return pb.while_loop(test, body, carry, max_steps=most, checkpoint=mode)

    def spread(self, x: Any) -> Any:
        return pb.stack([x * (0.5 * n - 0.7) for n in range(SAMPLES)])

    def many(self, f: Any, rows: Any) -> Any:
        return pb.vmap(f)(rows)

    def gradient(self, f: Any, x: Any) -> Any:
        return pb.grad(f)(x)


# --- the check -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A block of ``x_v, w_v, rows_r``, and what is asked of it."""

    seed: int
    block: Block
    kind: str
    order: str
    samples: bool
    symbolic: bool
    size: int

    def labels(self, *more: str) -> tuple[str, ...]:
        """What it has, each as "group: name", for counts of many."""
        kinds = sorted({f"form: {kind}" for kind in kinds_of(self.block)})
        flags = {"samples": self.samples, "symbolic extents": self.symbolic}
        kept = [f"with: {name}" for name, has in flags.items() if has]
        return (*more, f"type: {self.kind}", f"order: {self.order}", *kept, *kinds)

    def describe(self) -> str:
        asked = f"{self.order}{' of samples' if self.samples else ''} in {self.kind}"
        extents = f"{'symbolic ' if self.symbolic else ''}{self.size}"
        return f"control {self.seed}: {asked}, {extents}\n{text(self.block)}"


def program(seed: int) -> Program:
    """The program of this number."""
    maker = Maker(seed)
    source = maker.random
    block = maker.block(["x_v", "w_v", "rows_r"], [], "v", 0)
    size = source.choice([1, 2, 3])
    kind, samples, symbolic = source.choice(TYPES), source.random() < 0.4, source.random() < 0.3
    return Program(seed, block, kind, maker.order, samples, symbolic, size)


def asked(order: str, f: Any, given: Sequence[Any], along: Sequence[Any]) -> list[Any]:
    """What is asked of a scalar function of x, w, rows, on pullback."""
    three = (0, 1, 2)

    def moved(*xs: Any) -> Any:
        return pb.jvp(f, xs, tuple(along))[1]

    def slope(*xs: Any) -> Any:
        found = pb.grad(f, argnums=three)(*xs)
        parts = [pb.sum(g * v) for g, v in zip(found, along, strict=True)]
        return parts[0] + parts[1] + parts[2]

    if order == "value":
        return [f(*given)]
    if order == "grad":
        return list(pb.grad(f, argnums=three)(*given))
    if order == "jvp":
        return [moved(*given)]
    if order == "second":
        return list(pb.grad(slope, argnums=three)(*given))
    if order == "grad of jvp":
        return list(pb.grad(moved, argnums=three)(*given))
    return list(pb.jvp(pb.grad(f, argnums=three), tuple(given), tuple(along))[1])


def expected(order: str, f: Any, given: Sequence[Array], along: Sequence[Array]) -> list[Array]:
    """The same on dual numbers."""
    if order == "value":
        return [N.plain(f(*given))]
    if order == "grad":
        return [N.plain(g) for g in N.gradients(f, given, 1)]
    if order == "jvp":
        return [N.plain(N.directional(f, given, along, 1))]

    def inner(*xs: Any) -> Any:
        return N.directional(f, xs, along, 2)

    return [N.plain(g) for g in N.gradients(inner, given, 1)]


class Ambiguous(Exception):
    """A comparison whose sides are too near, or results too large, for a type."""


def reference(made: Program, given: Sequence[Array], along: Sequence[Array], order: Array) -> Any:
    """Results by unrolled steps, of each sample. Raises: Ambiguous."""
    margin = BOUNDS[made.kind][1]
    samples = [[a[n] for a in given] for n in range(SAMPLES)] if made.samples else [given]
    found = []
    for one in samples:
        steps = Steps(order)

        def f(x: Any, w: Any, rows: Any, steps: Steps = steps) -> Any:
            return steps.sum(steps.sin(steps.block(made.block, [x, w, rows], {})[0]))

        with np.errstate(all="ignore"):
            found.append(expected(made.order, f, one, along))
        large = max(float(np.max(np.abs(a), initial=0.0)) for a in found[-1])
        if steps.margin < margin or not large < 1e4:
            raise Ambiguous
    return [np.stack(parts) for parts in zip(*found, strict=True)] if made.samples else found[0]


def check_control(seed: int, backend: str = "llvm") -> tuple[str, ...]:
    """What the program had, and "compared" where it was: what it gives is what its steps give.

    Raises: AssertionError with the program.
    """
    made = program(seed)
    rng = np.random.default_rng(seed)
    shapes = [(made.size,), (made.size,), (ROWS, made.size)]
    front = (SAMPLES,) if made.samples else ()
    given = [rng.normal(size=front + s).round(3) for s in shapes]
    along = [rng.normal(size=s).round(3) for s in shapes]
    order = rng.permutation(made.size)
    try:
        wanted = reference(made, given, along, order)
    except Ambiguous:
        wanted = None

    def whole(x: Any, w: Any, rows: Any, x_: Any, w_: Any, rows_: Any, places: Any) -> Any:
        traced = Traced(places, made.kind)

        def f(x: Any, w: Any, rows: Any) -> Any:
            return pb.sum(pb.sin(traced.block(made.block, [x, w, rows], {})[0]))

        def one(x: Any, w: Any, rows: Any) -> Any:
            return tuple(asked(made.order, f, (x, w, rows), (x_, w_, rows_)))

        return (pb.vmap(one) if made.samples else one)(x, w, rows)

    n = pb.dim("n", 1, 4) if made.symbolic else made.size
    declared = [(*front, n), (*front, n), (*front, ROWS, n), (n,), (n,), (ROWS, n), (n,)]
    arrays = [pb.astype(pb.tensor(a), made.kind) for a in (*given, *along)]
    arrays.append(pb.tensor(order.astype(np.int64)))
    options = Options(backend=backend, cache=None)
    try:
        found = pb.jit(whole, shapes=declared, options=options)(*arrays)
    except PullbackError as refused:
        raise AssertionError(f"{made.describe()}\nrefused: {refused}") from refused
    except Exception as problem:
        raise AssertionError(f"{made.describe()}\n{type(problem).__name__}: {problem}") from problem
    if wanted is None:
        return made.labels()
    tolerance = BOUNDS[made.kind][0]
    scale = 1.0 + max(float(np.max(np.abs(a), initial=0.0)) for a in wanted)
    for got, want in zip(found, wanted, strict=True):
        off = np.abs(pb.astype(got, "float64").numpy() - want)
        worst = float(np.max(off, initial=0.0))
        assert worst <= tolerance * scale, f"{made.describe()}\n{got.numpy()}\nnot {want}"
    return made.labels("compared")
