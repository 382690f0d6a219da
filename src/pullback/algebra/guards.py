"""What a guard says about indices: the tests that it is made of, and forms that are 0 or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pullback.algebra.affine import LinearForm
from pullback.ir import expr as E
from pullback.ir.expr import Expr

F = TypeVar("F", bound=LinearForm[Any])


def test_of(guard: Expr) -> tuple[Expr, bool]:
    """What a guard tests, and whether it holds there. ``not x -> x, False``"""
    if isinstance(guard, E.Xor) and guard.dtype.is_bool and E.is_const(guard.right, True):
        return guard.left, False
    return guard, True


def parts(condition: Expr, holds: bool = True) -> Iterator[tuple[Expr, bool]]:
    """What must hold, or fail, where `condition` holds, or fails; itself first.

    ``a and not (b or c) -> a, not b, not c``
    """
    stack = [(condition, holds)]
    while stack:
        e, positive = stack.pop()
        yield e, positive
        inner, plain = test_of(e)
        if not plain:
            stack.append((inner, not positive))
        elif isinstance(e, E.And if positive else E.Or) and e.dtype.is_bool:
            stack += [(e.right, positive), (e.left, positive)]


def demands(test: E.Comparison, holds: bool, form: Callable[[Expr], F]) -> list[F]:
    """The forms that are 0 or more where a comparison holds, or fails.

    ``a < b -> b - a - 1``; ``not a < b -> a - b``; ``a == b -> b - a, a - b``
    """
    gap = form(test.right).minus(form(test.left))
    if isinstance(test, E.Less):
        return [gap.shifted(-1) if holds else gap.times(-1)]
    return [gap, gap.times(-1)] if holds else []
