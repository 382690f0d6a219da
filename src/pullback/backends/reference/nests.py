"""Loop nests executed one scalar at a time: slow, and every access checked.

Tasks and VECTOR loops, whose order must not matter, run backwards. Scratch starts as NaN (or the
largest integer), so that reading what was never written shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from pullback.errors import IndexRangeError, InvalidIR
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import DType, int64
from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner
from pullback.ir.meaning import apply, constant

Data = np.ndarray[Any, Any]
Scalar = Any  # an int of int64, else a NumPy scalar of the node's type

_WORD, _HALF = 1 << 64, 1 << 63
_INTEGER: dict[type[Expr], Callable[[int, int], int]] = {
    E.Add: lambda a, b: (a + b + _HALF) % _WORD - _HALF,
    E.Mul: lambda a, b: (a * b + _HALF) % _WORD - _HALF,
    E.FloorDiv: lambda a, b: (a // b + _HALF) % _WORD - _HALF if b else 0,
    E.Mod: lambda a, b: a % b if b else 0,
}


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


_NUMPY = ("tanh", "cos", "tan", "sinh", "cosh", "log1p", "expm1", "log2", "log10")
_NATIVE: dict[str, Callable[..., Any]] = {
    "erf": math.erf,
    "normal_cdf": lambda x: math.erfc(-x * math.sqrt(0.5)) / 2,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "power": lambda x, y: np.power(x, y) if 0 < x < np.inf else np.exp(y * np.log(x)),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    **{name: getattr(np, name) for name in _NUMPY},
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs": np.abs,
    "floor": np.floor,
    "rint": np.rint,
    "fma": lambda a, b, c: a * b + c,
}


def run_routine(
    routine: N.Routine,
    arrays: Sequence[Data],
    sizes: Sequence[int] = (),
) -> None:
    """Run `routine` on `arrays` (in the order of its arguments, updated in place).

    Raises: InvalidIR for an access outside an array, a loop variable outside its bounds or a
    register that is not declared; IndexRangeError for a failed check.
    """
    machine = Machine(routine)
    for array, data in zip(routine.arguments, arrays, strict=True):
        if data.dtype != array.dtype.numpy or data.size < array.size:
            raise InvalidIR(f"{array} wants {array.size} of {array.dtype}, got {data.dtype}")
        machine.memory[array] = data.reshape(-1)
    for var, size in zip(routine.sizes, sizes, strict=True):
        machine.bind(var, size)
    for array in routine.shared:
        machine.memory[array] = poisoned(array)
    for task in reversed(range(routine.tasks)):
        for array in routine.scratch:
            machine.memory[array] = poisoned(array)
        machine.bind(routine.task, task)
        machine.block(routine.body)
    machine.bind(routine.task, 0)
    machine.block(routine.finish)
    machine.report()


def poisoned(array: N.Array) -> Data:
    """Memory that nobody has written."""
    kind = array.dtype
    return np.full(array.size, math.nan if kind.is_float else kind.range()[1], kind.numpy)


class Machine:
    """The state of a run: memory, loop variables, registers."""

    def __init__(self, routine: N.Routine) -> None:
        self.routine = routine
        self.memory: dict[N.Array, Data] = {}
        self.variables: dict[N.Var, int] = {}
        self.registers: dict[N.Register, Data] = {}
        self.joins: dict[tuple[Combiner, DType], tuple[Expr, Expr, Expr]] = {}
        self.failed: tuple[int, int] | None = None

    def fail(self, what: str) -> InvalidIR:
        return InvalidIR(f"{self.routine.name}: {what}")

    def bind(self, var: N.Var, value: int) -> None:
        if not var.lo <= value <= var.hi:
            raise self.fail(f"{var.name} = {value} is outside {var.lo}..{var.hi}")
        self.variables[var] = value

    def report(self) -> None:
        """Raise the first failed check."""
        if self.failed is not None:
            site, value = self.failed
            raise IndexRangeError.checked(value, self.routine.sites[site])

    def block(self, body: Iterable[N.Stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, s: N.Stmt) -> None:
        match s:
            case N.For():
                self.loop(s)
            case N.Guard():
                if self.value(s.condition):
                    self.block(s.body)
            case N.Declare():
                shape = s.register.shape
                kind = s.register.dtype.numpy
                self.registers[s.register] = np.full(shape, self.value(s.init), kind)
            case N.Set():
                self.register(s.register)[self.indices(s.indices)] = self.value(s.value)
            case N.Combine():
                self.combine(s)
            case N.Store():
                self.store(s.array, self.integer(s.offset), self.value(s.value))
            case N.StoreCombine():
                offset = self.integer(s.offset)
                old = self.load(s.array, offset)
                new = self.join(s.combiner, old, self.value(s.value), s.array.dtype)
                self.store(s.array, offset, new)
            case N.Check():
                value = self.integer(s.index)
                if self.failed is None and not 0 <= value < self.integer(s.extent):
                    self.failed = s.site, value
            case N.Transpose():
                self.transpose(s)

    def loop(self, s: N.For) -> None:
        numbers = range(self.integer(s.lo), self.integer(s.hi), s.step)
        for number in reversed(numbers) if s.kind is N.LoopKind.VECTOR else numbers:
            self.bind(s.var, number)
            self.block(s.body)

    def combine(self, s: N.Combine) -> None:
        register, place = self.register(s.register), self.indices(s.indices)
        old = _plain(register[place], s.register.dtype)
        register[place] = self.join(s.combiner, old, self.value(s.value), s.register.dtype)

    def transpose(self, s: N.Transpose) -> None:
        target, source = self.integer(s.target_offset), self.integer(s.source_offset)
        rows, columns = range(self.integer(s.rows)), range(self.integer(s.columns))
        for r, c, u in product(rows, columns, range(s.word)):
            value = self.load(s.source, source + r * s.source_row + c * s.word + u)
            self.store(s.target, target + c * s.target_row + r * s.word + u, value)

    def join(self, combiner: Combiner, old: Scalar, new: Scalar, kind: DType) -> Scalar:
        if (combiner, kind) not in self.joins:
            left, right = (N.Peek(N.Register(name, kind), ()) for name in "ab")
            self.joins[combiner, kind] = left, right, combiner.join(left, right)
        a, b, root = self.joins[combiner, kind]
        return self.value(root, {a: old, b: new})

    def register(self, register: N.Register) -> Data:
        if register not in self.registers:
            raise self.fail(f"register {register} is not declared")
        return self.registers[register]

    def indices(self, indices: Iterable[Expr]) -> tuple[int, ...]:
        return tuple(self.integer(i) for i in indices)

    def integer(self, e: Expr) -> int:
        return int(self.value(e))

    def load(self, array: N.Array, offset: int) -> Scalar:
        place = self.inside(array, offset)
        return _plain(self.memory[array][place], array.dtype)

    def store(self, array: N.Array, offset: int, value: Scalar) -> None:
        place = self.inside(array, offset)
        self.memory[array][place] = value

    def inside(self, array: N.Array, offset: int) -> int:
        if array not in self.memory:
            raise self.fail(f"{array} is not an array of the routine")
        if not 0 <= offset < array.size:
            raise self.fail(f"{array}[{offset}] is outside its {array.size} elements")
        return offset

    def value(self, root: Expr, known: dict[Expr, Scalar] | None = None) -> Scalar:
        """The value of an expression; of an `If` only the branch that is taken is computed."""
        known = {} if known is None else known
        stack = [root]
        while stack:
            e = stack[-1]
            if e in known:
                stack.pop()
                continue
            needed = _needed(e, known)
            if needed:
                stack.extend(reversed(needed))
                continue
            known[e] = self.scalar(e, known)
            stack.pop()
        return known[root]

    def scalar(self, e: Expr, known: dict[Expr, Scalar]) -> Scalar:
        """The value of a node whose needed children are known."""
        match e:
            case E.Const():
                return _plain(constant(e)[()], e.dtype)
            case N.Var():
                if e not in self.variables:
                    raise self.fail(f"{e.name} is not bound")
                return self.variables[e]
            case N.Load():
                return self.load(e.array, known[e.offset])
            case N.Peek():
                place = tuple(int(known[i]) for i in e.indices)
                return _plain(self.register(e.register)[place], e.dtype)
            case E.If():
                return known[e.then if known[e.condition] else e.otherwise]
            case N.Native():
                return self.native(e, [known[a] for a in e.args])
        if not isinstance(e, E.Cast | E.Unary | E.Binary):
            raise self.fail(f"{type(e).__name__} in a loop nest")
        kids = [c for c in e.children if isinstance(c, Expr)]
        if type(e) in _INTEGER and e.dtype == int64:
            return _INTEGER[type(e)](*(known[k] for k in kids))
        args = [np.asarray(known[k], k.dtype.numpy) for k in kids]
        return _plain(apply(e, args)[()], e.dtype)

    def native(self, e: N.Native, args: Sequence[Scalar]) -> Scalar:
        # Integers stay exact; float64 would round the large ones.
        wide = [np.float64(a) for a in args] if e.dtype.is_float else list(args)
        with np.errstate(all="ignore"):
            return _plain(e.dtype.numpy.type(_NATIVE[e.name](*wide)), e.dtype)


def _plain(value: Any, kind: DType) -> Scalar:
    return int(value) if kind == int64 else value


def _needed(e: Expr, known: dict[Expr, Scalar]) -> list[Expr]:
    """Children that must be computed before `e`."""
    kids: list[Expr]
    if isinstance(e, E.If):
        if e.condition not in known:
            return [e.condition]
        kids = [e.then if known[e.condition] else e.otherwise]
    else:
        kids = [c for c in e.children if isinstance(c, Expr)]
    return [k for k in kids if k not in known]
