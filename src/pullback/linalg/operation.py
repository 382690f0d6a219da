"""Operations on matrices: on values LAPACK through NumPy, in programs loops of definitions.

    out = f(a)    host: values -> values    generated: tensors -> tensors, traced
                  pull, push: derivatives made of `a`, `out` and operations, so of every order

A derivative is a function of the operation's own inputs and outputs. So where a loop computes its
body again, the rule is told the copies (`Rule.again`), whatever the derivative is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import DTypeError, GradientError, Origin, SingularError, UnsupportedError
from pullback.grad.reverse import zeros
from pullback.ir.dtype import DType, float32
from pullback.ir.graph import Definition, Rule, Value, variables
from pullback.tensor import elementwise as W
from pullback.tensor.compute import compute
from pullback.tensor.held import Held
from pullback.tensor.program import jit
from pullback.tensor.replay import is_zero
from pullback.tensor.tensor import Tensor, value_of
from pullback.tensor.trace import array_of, bind, current, inline, realize

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
    host: Callable[..., Any]
    generated: Callable[..., tuple[Tensor, ...]]
    pull: Callable[[Tensors, Tensors, Tensors], Found] | None = None
    push: Callable[[Tensors, Tensors, Tensors], Tensors] | None = None

    def __call__(self, *inputs: Tensor, method: str = "auto") -> tuple[Tensor, ...]:
        """Raises: UnsupportedError for a method that is none, or that is not there."""
        how = self._method(inputs, method)
        if how == "host":
            found = self._hosted(inputs)
        elif current() is None and not inline():
            found = _as_tuple(jit(self.generated)(*inputs))
        else:
            found = self.generated(*inputs)
        results = [W.copy(t.value, self.name) for t in found]
        self._attach([t.value for t in inputs], results)
        return tuple(Tensor(r) for r in results)

    def _method(self, inputs: Tensors, method: str) -> str:
        if method not in METHODS:
            raise UnsupportedError(
                f"method={method!r}", help=f"one of {', '.join(METHODS)}", code="E312"
            )
        known = current() is None and all(map(has_value, inputs))
        if method == "host" and not known:
            raise UnsupportedError(
                f"{self.name} by LAPACK where there are no values",
                origin=Origin.of_caller(),
                help='inside pb.jit and pb.vmap it is method="generated"',
                code="E353",
            )
        large = max((int(x.shape[-1]) for x in inputs), default=0) > WRITTEN
        if method == "auto" and not known and current() is None and large:
            raise UnsupportedError(
                f"{self.name} of a matrix without a value, outside of a program",
                origin=Origin.of_caller(),
                help="pb.jit around pb.vmap, pb.jacobian, .. makes it a program",
                code="E354",
            )
        return ("host" if known else "generated") if method == "auto" else method

    def _hosted(self, inputs: Tensors) -> list[Tensor]:
        own = [Tensor(x.value) for x in inputs]
        realize(own)
        try:
            with np.errstate(all="ignore"):
                found = self.host(*(array_of(x) for x in own))
        except np.linalg.LinAlgError as error:
            raise SingularError(f"{self.name}: {error}", origin=Origin.of_caller()) from error
        arrays = found if isinstance(found, tuple) else (found,)
        return [Tensor(bind(np.asarray(a), self.name)) for a in arrays]

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


def _as_tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def has_value(x: Tensor) -> bool:
    """Whether `x` is a number that can be looked at, and stands for no argument to come."""
    return all(isinstance(v, Held) for v in variables([x.value]))


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
