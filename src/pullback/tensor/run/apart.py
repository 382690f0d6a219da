"""Functions of tensors that are a compiled program each, where no program is being traced.

    y = f(x)            run at once by a program of its own; y carries a rule
    dx = f'(x, dy)      the rule: another such function, whose result carries a rule too

So derivatives of every order, forward and reverse, are programs. Where a value is not known, as
that of one sample of many, the same function is written out as definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pullback.config import Options
from pullback.grad.forward import tangents
from pullback.ir.graph import Rule, Value, variables
from pullback.tensor.derive.autograd import derive
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import compiled, contents, current, written_out
from pullback.tensor.run.program import Jit
from pullback.tensor.values import elementwise as W

Function = Callable[[list[Value]], list[Value]]
KEPT = 256  # programs, of those used last


@dataclass(frozen=True, slots=True)
class Apart:
    """`function` of values, which it depends on alone. Equal keys are equal functions."""

    name: str
    key: Hashable
    function: Function = field(compare=False)

    def __call__(self, given: Sequence[Value]) -> list[Value]:
        """The results: of a program where all values are known, of definitions where not."""
        if current() is not None or written_out() or not all(map(_is_known, given)):
            return self.function(list(given))
        made = compiled(_program(self, Options.from_environment()), *map(Tensor, given))
        return self._with_rule([t.value for t in made], given)

    def _with_rule(self, made: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        moving = tuple(v for v in given if v.dtype.is_float)
        if not moving:
            return list(made)
        results = [W.copy(v, self.name) for v in made]
        outputs = tuple(r for r in results if r.dtype.is_float)

        def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
            return self._backward(len(given))([*given, *heads])

        def push(along: Sequence[Value]) -> Sequence[Value]:
            return self._forward(len(given))([*given, *along])

        rule = Rule(self.name, outputs, moving, pull, push)
        for result in results:
            result.rule = rule if result.dtype.is_float else None
        return [*results]

    def _backward(self, count: int) -> Apart:
        """The adjoints of floats, of the first `count` values and the adjoints of float results."""

        def adjoints(values: list[Value]) -> list[Value]:
            given = [W.copy(v, "argument") for v in values[:count]]
            outputs = [v for v in self.function([*given]) if v.dtype.is_float]
            return derive(outputs, [v for v in given if v.dtype.is_float], values[count:])

        return Apart(f"gradient of {self.name}", ("backward", self.key, count), adjoints)

    def _forward(self, count: int) -> Apart:
        """The tangents of float results, of the first `count` values and the tangents of floats."""

        def along(values: list[Value]) -> list[Value]:
            given = [W.copy(v, "argument") for v in values[:count]]
            outputs = [v for v in self.function([*given]) if v.dtype.is_float]
            return tangents(outputs, [v for v in given if v.dtype.is_float], values[count:])

        return Apart(f"tangent of {self.name}", ("forward", self.key, count), along)


@lru_cache(maxsize=KEPT)
def _program(apart: Apart, options: Options) -> Jit[..., Any]:
    """The program of a function; equal ones have one."""

    def traced(*given: Tensor) -> list[Tensor]:
        return [Tensor(v) for v in apart.function([t.value for t in given])]

    return Jit(traced, options=options)


def _is_known(value: Value) -> bool:
    """Whether everything that a value is made of has contents."""
    return all(contents(v) is not None for v in variables([value]))
