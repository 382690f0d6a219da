"""Random programs of layers, each a function of its number alone, and their check.

One to three calls of `layer_calls` one after another, in a form of control, with derivatives, in a
type, of known or symbolic extents. What native code gives is compared with the interpreter; in
float64 with PyTorch, where it is installed; forward and reverse derivatives with one another. What
is refused has a coded error.
"""

from __future__ import annotations

import warnings
from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import layer_losses
import layer_networks
import pullback as pb
from layer_calls import COMPOSED, MAKERS, Array, Call, Chance, Slot, damaged
from pullback.config import Options
from pullback.errors import PullbackError

try:
    import torch
except ImportError:  # pragma: no cover
    torch = None

FORMS = ("plain",) * 8 + ("loop", "loop", "scan", "cond", "vmap", "checkpoint", "eager", "eager")
ORDERS = ("value", "value", "grad", "grad", "grad", "both")
TYPES = ("float64",) * 7 + ("float32", "float16", "bfloat16")
MOST = 2000  # elements of a result: larger ones are not gone on with
# How far from PyTorch (in float64), and from the interpreter, relative to the largest number.
BOUNDS = {
    "float64": (1e-7, 1e-9),
    "float32": (3e-3, 1e-4),
    "float16": (0.1, 0.02),
    "bfloat16": (0.5, 0.15),
}
THEIRS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError)
# What PyTorch takes and `pb` does not, and the other way round, with the reason.
STRICTER = {
    "pad": "a circle of fewer elements than are added: PyTorch reads what it never wrote",
}
WIDER = {
    "margin_ranking_loss": "broadcasts like NumPy",
    "triplet_margin_loss": "broadcasts like NumPy",
    "triplet_margin_with_distance_loss": "broadcasts like NumPy",
    "scaled_dot_product_attention": "the batch of the mask broadcasts",
    "lp_pool1d": "the size may be a list of one",
    "grid_sample": "an image of nothing is all padding",
    "instance_norm": "no axes of space are fine",
    "local_response_norm": "no axes of space are fine",
    "rotary_embedding": "PyTorch has none",
}  # and `ctc_loss` of lengths that are data: how many targets a row has is not known yet
MODULES = (layer_losses, layer_networks)  # which enter their calls into `MAKERS`
# Where PyTorch's own values lose what is no number, or make it of infinities, with the reason.
LOSES = {
    "scaled_dot_product_attention": "a query of NaN gives 0 (the fused kernel), a row of NaN else",
    "pooled_and_back": "of several NaN in a window the last one is named, not the first",
    "multi_margin_loss": "a margin of NaN is 0",
    "multilabel_margin_loss": "a margin of NaN is 0",
}
Tensors = Sequence[Any]
Labels = tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Calls in a form; `tensors`, slot by slot, then what the result is weighed with."""

    seed: int
    calls: tuple[Call, ...]
    tensors: tuple[Array, ...]
    batched: tuple[bool, ...]
    kind: str
    form: str
    order: str
    symbolic: bool
    along: int  # the axis that is symbolic: 0 of all that runs with the batch, or one of x alone
    refused: tuple[str, ...]
    alike: bool  # PyTorch takes all of it
    strange: bool  # some numbers are infinite, or none

    def __str__(self) -> str:
        sizes = ", ".join(f"{Slot(n)!r}{list(a.shape)}" for n, a in enumerate(self.tensors))
        flags = f", symbolic axis {self.along}" * self.symbolic + ", strange" * self.strange
        asked = f"{self.order} of {self.form}, {self.kind}{flags}"
        lines = [f"layers {self.seed}: {asked}; {sizes}", *(f"  {c}" for c in self.calls)]
        again = f"  again: python scripts/fuzz.py --layers 1 --start {self.seed}"
        return "\n".join([*lines, again])

    def floats(self) -> tuple[int, ...]:
        """The slots that have a derivative; what the result is weighed with is not asked for."""
        inner = range(len(self.tensors) - 1)
        return tuple(n for n in inner if self.tensors[n].dtype.kind == "f")

    def labels(self, *more: str) -> Labels:
        """What it has, each as "group: name", for counts of many."""
        calls = [f"function: {c.name}" for c in self.calls]
        flags = {"symbolic batch": self.symbolic and not self.along,
                 "symbolic axis": self.symbolic and self.along > 0, "NaN or inf": self.strange,
                 "PyTorch": self.alike and "refused" not in more,
                 "a wrong setting": bool(self.refused)}  # fmt: skip
        kept = [f"with: {name}" for name, has in flags.items() if has]
        groups = f"type: {self.kind}", f"form: {self.form}", f"order: {self.order}"
        codes = [f"refusal: {text.split()[-1]}" for text in self.refused]
        return (*more, *groups, *kept, f"calls: {len(calls)}", *calls, *codes)

    def loses(self) -> bool:
        """Whether what is no number may be lost beside a guard (`layer_calls.PRODUCTS`)."""
        return self.strange and any(call.products() for call in self.calls)

    def exact(self) -> bool:
        """Whether derivatives are the same whoever takes them: nothing stands at a kink."""
        return not any(call.sharp() for call in self.calls[1:])


# --- running one call ----------------------------------------------------------------------------


def filled(value: Any, x: Any, tensors: Tensors) -> Any:
    if isinstance(value, tuple) and any(isinstance(v, Slot) for v in value):
        return tuple(filled(v, x, tensors) for v in value)
    if not isinstance(value, Slot):
        return value
    return tensors[value.number] if value.number else x


def picked(result: Any, way: Sequence[int]) -> Any:
    """Of several results the one that goes on; the first, where nothing is said."""
    for number in way:
        result = result[number]
    return picked(result, (0,)) if isinstance(result, tuple | list) else result


@cache
def built(kind: Any, made: str) -> Any:
    """A module, made before it is traced; `made` is text of literals."""
    args, kwargs = literal_eval(made)
    return kind(*args, **kwargs)


def run(call: Call, x: Any, tensors: Tensors, nn: Any, applied: Callable[..., Any]) -> Any:
    """A call on either library: `nn` its layers, `applied` a module's call with other cells."""
    args = [filled(a, x, tensors) for a in call.args]
    kwargs = {k: filled(v, x, tensors) for k, v in call.kwargs.items()}
    if call.name in COMPOSED:
        return COMPOSED[call.name](nn.functional, *args, **kwargs)
    if call.made is None:
        return picked(getattr(nn.functional, call.name)(*args, **kwargs), call.pick)
    module = built(getattr(nn, call.name), repr(call.made))
    cells = {name: tensors[slot.number] for name, slot in call.cells.items()}
    return picked(applied(module, cells, tuple(args), kwargs), call.pick)


def ours(call: Call, x: Any, tensors: Tensors) -> Any:
    return run(call, x, tensors, pb.nn, pb.nn.functional_call)


def theirs(call: Call, x: Any, tensors: Tensors) -> Any:
    def applied(module: Any, cells: dict[str, Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        return torch.func.functional_call(module.double(), cells, args, kwargs, strict=True)

    return run(call, x, tensors, torch.nn, applied)


# --- making one ----------------------------------------------------------------------------------


class Wrong(AssertionError):
    """What must not be."""


class Growing:
    """A program call by call: each is tried on both libraries, and taken where both take it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Chance(seed)
        self.symbolic = self.chance.maybe(0.25)
        rank = self.chance.one(2, 2, 3, 3, 3, 4, 4, 4, 5)
        shape = [self.chance.size(3), self.chance.size(6), *self.spaces(rank - 2)]
        if self.symbolic:
            shape[0] = max(shape[0], 1)
        self.chance.floats(*shape, batched=True)
        self.x = self.chance.tensors[0]
        self.calls: list[Call] = []
        self.refused: list[str] = []
        self.alike = torch is not None
        self.own = pb.tensor(self.x)
        self.other = torch.tensor(self.x) if torch is not None else None

    def spaces(self, count: int) -> list[int]:
        return [self.chance.size(7 if count < 3 else 4) for _ in range(count)]

    def grow(self) -> None:
        """Try one call; what is refused leaves nothing behind."""
        mark, shape = len(self.chance.tensors), tuple(self.own.shape)
        call = self.chance.one(*MAKERS)(self.chance, shape)
        if call is not None and self.chance.maybe(0.15):
            call = damaged(self.chance, call)
        if call is None or not self.taken(call):
            del self.chance.tensors[mark:], self.chance.batched[mark:]

    def taken(self, call: Call) -> bool:
        tensors = [pb.tensor(a) for a in self.chance.tensors]
        refusal = None
        try:
            own = ours(call, self.own, tensors)
            shape = tuple(own.shape)
            if call.damaged:
                own.numpy()  # data out of range is known then
        except PullbackError as problem:
            refusal = problem
        except Exception as problem:
            raise Wrong(f"{self.text(call)}\n{type(problem).__name__}: {problem}") from problem
        other, what = self.tried(call) if self.alike else (None, None)
        if refusal is not None:
            if not refusal.code:
                raise Wrong(f"{self.text(call)}\nno code: {refusal}")
            proper = not call.damaged and self.own.size  # PyTorch checks nothing where none is
            if other is not None and proper and call.name not in STRICTER:
                raise Wrong(f"{self.text(call)}\nrefused here only: {refusal}")
            self.refused.append(f"{call.name} {refusal.code}")
            return False
        sizes = [
            int(np.prod(shape)),
            self.own.size,
            *(self.chance.tensors[n].size for n in call.slots()),
        ]
        proper = all(sizes) and call.made is None
        wider = call.name in WIDER or (call.name == "ctc_loss" and isinstance(call.args[3], Slot))
        if self.alike and other is None and call.damaged and proper and not wider:
            raise Wrong(f"{self.text(call)}\ntaken here only, as {shape}: {what}")
        empty = not int(np.prod(shape)) or not self.own.size
        if other is not None and empty and tuple(other.shape) != shape:
            other = None  # PyTorch hands back what is empty as it was
        if other is not None and tuple(other.shape) != shape:
            raise Wrong(f"{self.text(call)}\n{shape}, PyTorch {tuple(other.shape)}")
        if int(np.prod(shape)) > MOST or not own.dtype.is_float:
            return False
        strange = self.chance.strange
        column = call.kwargs.get("antialias") and shape[-1] == 1  # docs/peers.md
        if column or (strange and call.name in LOSES):
            other = None
        if other is not None and not strange and not torch.isfinite(other).all():
            other = None  # its derivatives of windows in the padding write where they may not
        self.alike = self.alike and other is not None
        self.own, self.other = own, other
        self.calls.append(call)
        return True

    def tried(self, call: Call) -> tuple[Any, Any]:
        if call.damaged and call.made is not None:
            return None, None  # PyTorch reads past weights that do not fit
        try:
            given = [torch.tensor(a) for a in self.chance.tensors]
            return theirs(call, self.other, given), None
        except THEIRS as problem:
            return None, problem

    def text(self, call: Call) -> str:
        return str(self.made((*self.calls, call)))

    def made(self, calls: tuple[Call, ...]) -> Program:
        random = self.chance
        tensors, flags = list(self.chance.tensors), list(self.chance.batched)
        weighs = random.rng.normal(size=tuple(self.own.shape)).round(3)
        kind, form, order = random.one(*TYPES), random.one(*FORMS), random.one(*ORDERS)
        symbolic = self.symbolic and form != "eager"
        axis = random.one(0, 0, 0, 0, 0, *range(tensors[0].ndim))
        symbolic = symbolic and tensors[0].shape[axis] > 0
        return Program(
            self.seed, calls, (*tensors, weighs), (*flags, weighs.ndim > 0), kind, form, order,
            symbolic, axis, tuple(self.refused), self.alike, random.strange,
        )  # fmt: skip


def program(seed: int) -> Program:
    """The program of this number. Raises: Wrong where a call of it went wrong already."""
    growing = Growing(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        most = growing.chance.one(1, 1, 1, 2, 2, 3)
        for _ in range(12):
            if len(growing.calls) < most and growing.own.ndim:
                growing.grow()
    return growing.made(tuple(growing.calls))


# --- forms ---------------------------------------------------------------------------------------


class Ours:
    """The forms of control on pullback."""

    call = staticmethod(ours)
    sum, stack = staticmethod(pb.sum), staticmethod(pb.stack)
    loop, cond = staticmethod(pb.loop), staticmethod(pb.cond)
    checkpoint = staticmethod(pb.checkpoint)

    def zero(self, like: Any) -> Any:
        return pb.astype(pb.tensor(0.0), like.dtype)

    def scan(self, body: Any, carry: Any, rows: Any) -> Any:
        return pb.scan(body, carry, rows, 2)

    def vmap(self, f: Any, rows: Any) -> Any:
        return pb.vmap(f)(rows)


class Theirs:
    """The same in Python, on PyTorch."""

    call = staticmethod(theirs)

    def sum(self, x: Any) -> Any:
        return x.sum()

    def stack(self, parts: Any) -> Any:
        return torch.stack(list(parts))

    def loop(self, count: int, body: Any, carry: Any) -> Any:
        for number in range(count):
            carry = body(number, carry)
        return carry

    def cond(self, test: Any, then: Any, otherwise: Any, *given: Any) -> Any:
        return (then if test else otherwise)(*given)

    def checkpoint(self, f: Any) -> Any:
        return f

    def zero(self, like: Any) -> Any:
        return torch.zeros((), dtype=like.dtype)

    def scan(self, body: Any, carry: Any, rows: Any) -> Any:
        results = []
        for row in rows:
            carry, result = body(carry, row)
            results.append(result)
        return carry, torch.stack(results)

    def vmap(self, f: Any, rows: Any) -> Any:
        return torch.stack([f(row) for row in rows])


def formed(made: Program, on: Any, tensors: Tensors) -> tuple[Any, Any]:
    """What the form gives, and a scalar of it."""
    x, weights = tensors[0], tensors[-1]

    def chain(x: Any) -> Any:
        for call in made.calls:
            x = on.call(call, x, tensors)
        return x

    def weighed(y: Any) -> Any:
        return on.sum(y * weights)

    def step(_: Any, carry: Any) -> Any:
        return carry * 0.5 + weighed(chain(x + carry * 0.125))

    def row(carry: Any, x: Any) -> tuple[Any, Any]:
        y = chain(x + carry * 0.125)
        return carry * 0.5 + weighed(y), y

    match made.form:
        case "loop":
            total = on.loop(2, step, on.zero(x))
            return total, total
        case "scan":
            total, y = on.scan(row, on.zero(x), on.stack([x, x * 0.5]))
            return y, total
        case "cond":
            y = on.cond(on.sum(x) > 0.0, chain, lambda x: chain(x * 0.5), x)
        case "vmap":
            y = on.vmap(chain, on.stack([x, x * 0.5]))
        case "checkpoint":
            y = on.checkpoint(chain)(x)
        case _:
            y = chain(x)
    return y, weighed(y)


# --- the check -----------------------------------------------------------------------------------


def along(made: Program) -> list[Array]:
    """A direction for each slot with a derivative."""
    rng = np.random.default_rng(made.seed + 1)
    return [rng.normal(size=made.tensors[n].shape).round(3) for n in made.floats()]


def asked(made: Program, *given: Any) -> tuple[Any, ...]:
    """Value, gradients and the derivative along a direction, on pullback."""
    count = len(made.tensors)
    tensors, moves = given[:count], given[count:]
    value = formed(made, Ours(), tensors)[0]
    if made.order == "value":
        return (value,)

    def scalar(*tensors: Any) -> Any:
        return formed(made, Ours(), tensors)[1]

    slopes = pb.grad(scalar, argnums=made.floats())(*tensors)
    if made.order == "grad":
        return (value, *slopes)

    def moving(*floats: Any) -> Any:
        changed = dict(zip(made.floats(), floats, strict=True))
        return scalar(*(changed.get(n, t) for n, t in enumerate(tensors)))

    push = pb.jvp(moving, tuple(tensors[n] for n in made.floats()), tuple(moves))[1]
    return (value, *slopes, push)


def given(made: Program) -> list[Any]:
    """Tensors of the program's type, then the directions."""
    moves = along(made) if made.order == "both" else []
    arrays = [pb.tensor(a) for a in (*made.tensors, *moves)]
    return [pb.astype(a, made.kind) if a.dtype.is_float else a for a in arrays]


def computed(made: Program, backend: str) -> list[Array]:
    """On a backend; in one program, but for the form "eager"."""
    tensors = given(made)
    if made.form == "eager" and backend == "llvm":
        return [plain(t) for t in asked(made, *tensors)]
    shapes = declared(made, tensors) if made.symbolic else None
    options = Options(backend=backend, cache=None)
    results = pb.jit(lambda *t: asked(made, *t), shapes=shapes, options=options)(*tensors)
    return [plain(t) for t in results]


def declared(made: Program, tensors: Tensors) -> list[Any]:
    """Shapes with a symbolic extent, of the program's tensors and of directions."""
    shapes = [tuple(t.shape) for t in tensors]
    own, axis = shapes[0], made.along
    n = pb.dim("n", 1, own[axis] + 1)
    flags = [*made.batched, *(made.batched[m] for m in made.floats())]
    slots = [*range(len(made.tensors)), *made.floats()]
    for number, (flag, slot) in enumerate(zip(flags[: len(shapes)], slots, strict=False)):
        runs = flag and shapes[number][:1] == own[:1] if axis == 0 else slot == 0
        if runs:
            shapes[number] = (*shapes[number][:axis], n, *shapes[number][axis + 1 :])
    return shapes


def plain(tensor: Any) -> Array:
    array: Array = pb.astype(tensor, "float64").numpy()
    return array


def wanted(made: Program) -> list[Array | None]:
    """Value and gradients by PyTorch; None for what it has no derivative of."""
    rounded = [t.numpy() for t in [pb.astype(t, "float64") if t.dtype.is_float else t
                                   for t in given(made)[: len(made.tensors)]]]  # fmt: skip
    tensors = [torch.tensor(a) for a in rounded]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = formed(made, Theirs(), tensors)[0]
        if made.order == "value":
            return [value.numpy()]
        try:
            return [value.numpy(), *slopes(made, tensors, made.floats())]
        except THEIRS:
            pass
        try:
            return [value.numpy(), slopes(made, tensors, (0,))[0], *[None] * len(made.floats())]
        except THEIRS:
            return [value.numpy(), *[None] * len(made.floats())]


def slopes(made: Program, tensors: Tensors, slots: Sequence[int]) -> list[Array]:
    own = [t.clone().requires_grad_(n in slots) for n, t in enumerate(tensors)]
    total = formed(made, Theirs(), own)[1]
    leaves = [own[n] for n in slots]
    if not total.requires_grad:
        return [torch.zeros_like(t).numpy() for t in leaves]
    parts = torch.autograd.grad(total, leaves, allow_unused=True)
    return [(torch.zeros_like(t) if g is None else g).detach().numpy()
            for t, g in zip(leaves, parts, strict=True)]  # fmt: skip


def apart(got: Array, want: Array) -> float:
    """How far, relative to the largest number; infinite where one alone is no number."""
    if got.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(np.where(finite, 0, got), np.where(finite, 0, want), equal_nan=True):
        return float("inf")
    scale = 1.0 + float(np.max(np.abs(want[finite]), initial=0.0))
    with np.errstate(invalid="ignore"):
        off = np.abs(got[finite] - want[finite])
    return float(np.max(np.where(np.isfinite(off), off, np.inf), initial=0.0)) / scale


def agree(made: Program, results: Sequence[Array], others: Sequence[Any], limit: float,
          who: str) -> None:  # fmt: skip
    for number, (got, other) in enumerate(zip(results, others, strict=False)):
        want = other
        if made.loses() and want is not None and want.shape == got.shape:
            want = np.where(np.isnan(want) & np.isfinite(got), got, want)
        if want is not None and not apart(got, want) <= limit:
            what = f"gradient {number - 1}" if number else "the value"
            raise Wrong(f"{made}\n{what}, {apart(got, want):.3g} off {who}\n{got}\nnot {want}")


def refusing(made: Program, backend: str) -> list[Array] | None:
    """Results; None where the form, or symbolic extents, are refused with a code."""
    try:
        with np.errstate(all="ignore"):
            return computed(made, backend)
    except PullbackError as problem:
        plainly = made.form in ("plain", "eager") and not made.symbolic
        harmless = any(c.damaged for c in made.calls) or not plainly
        if not (problem.code and harmless):
            raise Wrong(f"{made}\nrefused: {problem}") from problem
        return None
    except Exception as problem:
        raise Wrong(f"{made}\n{type(problem).__name__}: {problem}") from problem


def check_layers(seed: int, backend: str = "llvm") -> Labels:
    """What the program had, and "compared" where there was something to compare.

    Raises: Wrong, with the program.
    """
    made = program(seed)
    if not made.calls:
        return ("compared",) * bool(made.refused)
    results = refusing(made, backend)
    if results is None:
        return made.labels("refused")
    loose, tight = BOUNDS[made.kind]
    low = made.kind != "float64"
    first = made.loses() or (low and any(c.sharp() for c in made.calls))
    count = 1 if first else len(results)
    early = made.loses() and any(c.products() for c in made.calls[:-1])
    if early or (low and any(c.jumps() for c in made.calls)):
        return made.labels("jumps")
    if backend != "reference":
        expected = refusing(made, "reference")
        if expected is None:
            raise Wrong(f"{made}\nrefused by the interpreter alone")
        agree(made, results[:count], expected, tight, "the interpreter")
    if made.alike:
        near = wanted(replace(made, order="value") if made.strange else made)
        if not made.tensors[-1].size:  # where PyTorch hands back slopes that were never written
            near[1:] = [None if g is None else np.zeros_like(g) for g in near[1:]]
        smooth = made.exact() and np.isfinite(results[0]).all()
        agree(made, results[: count if smooth else 1], near, loose, "PyTorch")
    if made.order == "both" and not low and not made.strange and np.isfinite(results[0]).all():
        pairs = zip(results[1:-1], along(made), strict=True)
        pulled = np.asarray(sum(float(np.sum(g * u)) for g, u in pairs))
        if not apart(results[-1], pulled) <= 1e-8:
            raise Wrong(f"{made}\nalong a direction {results[-1]}, by the gradients {pulled}")
    return made.labels("compared")
