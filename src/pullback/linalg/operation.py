"""Operations on matrices: on values LAPACK through NumPy, in programs loops of definitions.

    out = f(a)    host: values -> values    generated: tensors -> tensors, traced
                  pull, push: derivatives made of `a`, `out` and operations, so of every order

A derivative is a function of the operation's own inputs and outputs. So where a loop computes its
body again, the rule is told the copies (`Rule.again`), whatever the derivative is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pullback.errors import DTypeError, GradientError, Origin, SingularError, UnsupportedError
from pullback.grad.reverse import zeros
from pullback.ir.dtype import DType, float32
from pullback.ir.expr import Size
from pullback.ir.graph import Definition, Rule, Value, topological, variables
from pullback.ir.node import walk
from pullback.tensor import elementwise as W
from pullback.tensor.compute import compute
from pullback.tensor.held import Held
from pullback.tensor.program import jit
from pullback.tensor.replay import is_zero
from pullback.tensor.tensor import Tensor, value_of
from pullback.tensor.trace import array_of, bind, compiled, current, realize, written_out

METHODS = ("auto", "host", "generated")
WRITTEN = 8  # rows of a matrix whose loops are written out where there is no program

Tensors = Sequence[Tensor]
Found = Sequence[Tensor | None]


@dataclass(frozen=True, eq=False)
class Operation:
    """``outputs = f(inputs)``, inputs and outputs of any number.

    ``pull(inputs, outputs, heads)`` gives an adjoint for each input, None where there is none;
    ``push(inputs, outputs, tangents)`` a tangent for each output.
    """

    name: str
    host: Callable[..., Any] | None
    generated: Callable[..., tuple[Tensor, ...]]
    pull: Callable[[Tensors, Tensors, Tensors], Found] | None = None
    push: Callable[[Tensors, Tensors, Tensors], Tensors] | None = None

    def __call__(self, *inputs: Tensor, method: str = "auto") -> tuple[Tensor, ...]:
        """Raises: UnsupportedError for a method that is none, or that is not there."""
        known = current() is None and not written_out() and all(map(has_value, inputs))
        if self._by_host(inputs, method, known):
            found = self._hosted(inputs)
        elif known:
            found = compiled(self.program, *inputs)
        else:
            found = self.generated(*inputs)
        results = [W.copy(t.value, self.name) for t in found]
        self._attach([t.value for t in inputs], results)
        return tuple(Tensor(r) for r in results)

    @cached_property
    def program(self) -> Callable[..., tuple[Tensor, ...]]:
        """The generated form of values, compiled."""
        program: Callable[..., tuple[Tensor, ...]] = jit(self.generated)
        return program

    def _by_host(self, inputs: Tensors, method: str, known: bool) -> bool:
        """Whether LAPACK computes it. Raises: UnsupportedError, see `__call__`."""
        if method not in METHODS:
            raise UnsupportedError(
                f"method={method!r}", help=f"one of {', '.join(METHODS)}", code="E312"
            )
        if method == "host" and not known:
            raise UnsupportedError(
                f"{self.name} by LAPACK where there are no values",
                origin=Origin.of_caller(),
                help='inside pb.jit and pb.vmap it is method="generated"',
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
        return known and method != "generated" and self.host is not None

    def _hosted(self, inputs: Tensors) -> tuple[Tensor, ...]:
        assert self.host is not None
        own = [Tensor(x.value) for x in inputs]
        realize(own)
        try:
            with np.errstate(all="ignore"):
                found = self.host(*(array_of(x) for x in own))
        except np.linalg.LinAlgError as error:
            raise SingularError(f"{self.name}: {error}", origin=Origin.of_caller()) from error
        arrays = found if isinstance(found, tuple) else (found,)
        return tuple(Tensor(bind(np.asarray(a), self.name)) for a in arrays)

    def _attach(self, inputs: Sequence[Value], outputs: Sequence[Definition]) -> None:
        floats = tuple(v for v in inputs if v.dtype.is_float)
        wanted = [n for n, r in enumerate(outputs) if r.dtype.is_float]
        given, made = [Tensor(v) for v in inputs], [Tensor(v) for v in outputs]

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            if self.pull is None:
                raise _no_derivative(self.name, outputs[0].origin)
            by = dict(zip(wanted, heads, strict=True))
            whole = [Tensor(by.get(n) or zeros(r)) for n, r in enumerate(outputs)]
            found = self.pull(given, made, whole)
            pairs = zip(found, inputs, strict=True)
            return [None if t is None else t.value for t, v in pairs if v.dtype.is_float]

        def push(tangents: Sequence[Value]) -> Sequence[Value]:
            if self.push is None:
                raise _no_derivative(self.name, outputs[0].origin)
            along = iter(tangents)
            whole = [Tensor(next(along) if v.dtype.is_float else zeros(v)) for v in inputs]
            found = self.push(given, made, whole)
            return [found[n].value for n in wanted]

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


def _no_derivative(name: str, origin: Origin | None) -> GradientError:
    return GradientError(f"{name} has no derivative here", origin=origin, code="E355")


def has_value(x: Tensor) -> bool:
    """Whether `x` can be looked at: it stands on no argument, extent or place that is to come."""
    value = x.value
    if not all(isinstance(v, Held) for v in variables([value])):
        return False
    open_ended = (n for d in topological([value]) for n in walk(d.roots) if isinstance(n, Size))
    return next(open_ended, None) is None


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
    found = compute(tuple(shape), body, name=name)
    if not isinstance(found, Tensor):
        raise DTypeError("a definition of several tensors", code="E143")
    return found
