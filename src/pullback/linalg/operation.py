"""Operations on matrices: LAPACK through NumPy, or loops of definitions.

    out = f(a)    host: values -> values    generated: tensors -> tensors, traced
                  pull, push: derivatives made of `a`, `out` and operations, so of every order

A derivative is a function of the operation's own inputs and outputs. So where a loop computes its
body again, the rule is told the copies (`Rule.again`), whatever the derivative is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pullback.errors import DTypeError, GradientError, Origin, SingularError, UnsupportedError
from pullback.grad.reverse import zeros
from pullback.ir.dtype import DType, dtype, float32
from pullback.ir.expr import Extent, upper
from pullback.ir.graph import Definition, Rule, Value
from pullback.tensor.define.compute import compute
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.forms.hosted import HostForm, HostFunction, Kind
from pullback.tensor.record.held import computable
from pullback.tensor.record.replay import is_zero
from pullback.tensor.record.trace import array_of, bind, compiled, current, realize, written_out
from pullback.tensor.run.program import jit
from pullback.tensor.values import elementwise as W

METHODS = ("auto", "host", "generated")
WRITTEN = 8  # rows of a matrix whose loops are written out where there is no program

Tensors = Sequence[Tensor]
Found = Sequence[Tensor | None]
Array = np.ndarray[Any, Any]


class Price(NamedTuple):
    """From how many rows on a program calls the host: of `many` matrices, and of `one`.

    A call costs 10 to 15 us beside LAPACK, whatever it is given; what it saves grows as the cube
    of the rows. Measured (docs/linalg.md, "What it costs").
    """

    many: int
    one: int


def _faster(price: Price | None, shape: Sequence[Extent]) -> bool:
    """Whether LAPACK is faster than the generated form, the call included."""
    rows = min(map(size, shape[-2:]))
    if price is None or rows < price.many:
        return False
    return prod(map(upper, shape[:-2])) * rows**3 >= price.one**3


@dataclass(frozen=True, eq=False)
class Operation:
    """``outputs = f(inputs)``, inputs and outputs of any number.

    ``pull(inputs, outputs, heads)`` gives an adjoint for each input, None where there is none;
    ``push(inputs, outputs, tangents)`` a tangent for each output. A program may call `host`, which
    gives `results`, and does so unasked where that is faster by `price`.
    """

    name: str
    host: Callable[..., Any] | None
    generated: Callable[..., tuple[Tensor, ...]]
    pull: Callable[[Tensors, Tensors, Tensors], Found] | None = None
    push: Callable[[Tensors, Tensors, Tensors], Tensors] | None = None
    results: Callable[[Sequence[Kind]], Sequence[Kind]] | None = None
    price: Price | None = None

    def __call__(self, *inputs: Tensor, method: str = "auto") -> tuple[Tensor, ...]:
        """Raises: UnsupportedError for a method that is none, or that is not there."""
        known = current() is None and not written_out() and all(map(has_value, inputs))
        self._refuse(inputs, method, known)
        if known and method != "generated" and self.host is not None:
            factors = self._hosted(inputs)
        elif known:
            factors = compiled(self.program, *inputs)
        elif self.called(inputs, method):
            factors = self._called(inputs, strict=method == "host")
        else:
            factors = self.generated(*inputs)
        results = [W.copy(t.value, self.name) for t in factors]
        self._attach([t.value for t in inputs], results)
        return tuple(Tensor(r) for r in results)

    @cached_property
    def program(self) -> Callable[..., tuple[Tensor, ...]]:
        """The generated form of values, compiled."""
        program: Callable[..., tuple[Tensor, ...]] = jit(self.generated)
        return program

    def called(self, inputs: Tensors, method: str) -> bool:
        """Whether the program that is being traced calls the host."""
        trace = current()
        if trace is None or written_out() or self.results is None or method == "generated":
            return False
        return method == "host" or (trace.host and _faster(self.price, inputs[0].shape))

    def _refuse(self, inputs: Tensors, method: str, known: bool) -> None:
        """Raises: UnsupportedError, see `__call__`."""
        if method not in METHODS:
            raise UnsupportedError(
                f"method={method!r}", help=f"one of {', '.join(METHODS)}", code="E312"
            )
        trace = current()
        if method == "host" and not known and trace is not None and not trace.host:
            raise UnsupportedError(
                f"{self.name} by LAPACK, in a program that calls no host",
                origin=Origin.of_caller(),
                help='method="generated", or "auto"',
                code="E356",
            )
        nobody = self.host is None or (not known and (trace is None or written_out()))
        if method == "host" and nobody:
            what = "which has no such function" if self.host is None else "where there is no value"
            raise UnsupportedError(
                f"{self.name} by LAPACK, {what}",
                origin=Origin.of_caller(),
                help='method="generated", or "auto"',
                code="E353",
            )
        large = max((size(x.shape[-1]) for x in inputs if x.shape), default=0) > WRITTEN
        if not known and current() is None and large and not written_out():
            raise UnsupportedError(
                f"{self.name} of a matrix without a value, outside of a program",
                origin=Origin.of_caller(),
                help="pb.jit around pb.vmap, pb.jacobian, .. makes it a program",
                code="E354",
            )

    def _called(self, inputs: Tensors, *, strict: bool) -> tuple[Tensor, ...]:
        """By a call of the host between two launches."""
        trace, origin = current(), Origin.of_caller()
        assert trace is not None and self.results is not None
        strictly = partial(self._raising, origin)
        host = HostFunction(self.name, library(), strictly, self.results, self._lenient)
        form = HostForm(trace, host, [x.value for x in inputs], strict=strict, origin=origin)
        return tuple(map(Tensor, form.results))

    def _raising(self, origin: Origin | None, *arrays: Array) -> tuple[Array, ...]:
        """By LAPACK. Raises: SingularError."""
        assert self.host is not None
        try:
            factors = self.host(*arrays)
        except np.linalg.LinAlgError as error:
            raise SingularError(f"{self.name}: {error}", origin=origin) from error
        return tuple(map(np.asarray, factors if isinstance(factors, tuple) else (factors,)))

    def _lenient(self, *arrays: Array) -> tuple[Array, ...]:
        """By LAPACK; NaN for each matrix that has no such factors."""
        try:
            return self._raising(None, *arrays)
        except SingularError:
            assert self.results is not None
        kinds = self.results([(a.shape, dtype(a.dtype)) for a in arrays])
        whole = tuple(np.full(list(map(size, shape)), np.nan, kind.numpy) for shape, kind in kinds)
        lead = arrays[0].shape[:-2]
        for place in np.ndindex(*lead) if lead else ():
            for result, part in zip(whole, self._lenient(*(a[place] for a in arrays)), strict=True):
                result[place] = part
        return whole

    def _hosted(self, inputs: Tensors) -> tuple[Tensor, ...]:
        own = [Tensor(x.value) for x in inputs]
        realize(own)
        with np.errstate(all="ignore"):
            arrays = self._raising(Origin.of_caller(), *(array_of(x) for x in own))
        return tuple(Tensor(bind(a, self.name)) for a in arrays)

    def _attach(self, inputs: Sequence[Value], outputs: Sequence[Definition]) -> None:
        floats = tuple(v for v in inputs if v.dtype.is_float)
        wanted = [n for n, r in enumerate(outputs) if r.dtype.is_float]
        given, made = [Tensor(v) for v in inputs], [Tensor(v) for v in outputs]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            if self.pull is None:
                raise _no_derivative(self.name, outputs[0].origin)
            by = dict(zip(wanted, heads, strict=True))
            whole = [Tensor(by.get(n) or zeros(r)) for n, r in enumerate(outputs)]
            adjoints = self.pull(given, made, whole)
            pairs = zip(adjoints, inputs, strict=True)
            return [None if t is None else t.value for t, v in pairs if v.dtype.is_float]

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            if self.push is None:
                raise _no_derivative(self.name, outputs[0].origin)
            along = iter(tangents)
            whole = [Tensor(next(along) if v.dtype.is_float else zeros(v)) for v in inputs]
            moved = self.push(given, made, whole)
            return [moved[n].value for n in wanted]

        def again(here: Callable[[Value], Value]) -> Rule | None:
            copies = [here(o) for o in outputs]
            whole = [c for c in copies if isinstance(c, Definition)]
            if len(whole) == len(copies):
                self._attach([here(v) for v in inputs], whole)
            return whole[0].rule if whole else None

        results = tuple(outputs[n] for n in wanted)
        rule = Rule(self.name, results, floats, pull, push, again)
        for output in results:
            output.rule = rule


@cache
def library() -> str:
    """NumPy, and the LAPACK that it was built with."""
    built: Any = np.show_config(mode="dicts")
    lapack = built.get("Build Dependencies", {}).get("lapack", {})
    return f"NumPy {np.__version__} ({lapack.get('name', 'LAPACK')} {lapack.get('version', '')})"


# --- what functions of the host give -------------------------------------------------------------


def _like(place: int) -> Callable[[Sequence[Kind]], Sequence[Kind]]:
    """One result, of the shape and type of an input."""
    return lambda kinds: [kinds[place]]


FIRST, SECOND = _like(0), _like(1)


def numbers(kinds: Sequence[Kind], count: int = 1) -> Sequence[Kind]:
    """A number for each matrix, or several."""
    shape, kind = kinds[0]
    return [(shape[:-2], kind)] * count


def _no_derivative(name: str, origin: Origin | None) -> GradientError:
    return GradientError(f"{name} has no derivative here", origin=origin, code="E355")


def has_value(x: Tensor) -> bool:
    """Whether `x` can be looked at: it stands on no argument, extent or place that is to come."""
    return computable(x.value)


def nothing(x: Tensor) -> bool:
    """Whether nothing but zeros is known to be in `x`."""
    return is_zero(x.value)


# --- operands ------------------------------------------------------------------------------------


def matrix(x: Any) -> Tensor:
    """`x` as a tensor of floats of 32 or 64 bits; integers and halves become float32."""
    own = x if isinstance(x, Tensor) else Tensor(value_of(x))
    if own.dtype.is_float and own.dtype.bits >= 32:
        return own
    return own.astype(float32)


def back(x: Tensor, kind: DType) -> Tensor:
    """A result in the type of the operand, where that is a half."""
    return x.astype(kind) if kind.is_float and kind != x.dtype else x


def size(extent: Any) -> int:
    """An extent that is a number. Raises: UnsupportedError for a symbolic one."""
    if not isinstance(extent, int):
        raise UnsupportedError(f"linear algebra along the symbolic axis {extent}", code="E315")
    return extent


def written(name: str, shape: Sequence[Any], body: Callable[..., Any]) -> Tensor:
    """The tensor ``out[i..] = body(i..)``."""
    tensor = compute(tuple(shape), body, name=name)
    if not isinstance(tensor, Tensor):
        raise DTypeError("a definition of several tensors", code="E143")
    return tensor
