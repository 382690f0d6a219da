"""NumPy in, NumPy out: a derivative by arrays gives arrays, one by tensors tensors.

``pb.value_and_grad(f)(x)`` fits ``scipy.optimize.minimize(jac=True)``, compiled or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np

from pullback.tensor.face.tree import flatten
from pullback.tensor.record.trace import array_of, inline, realize


def given_arrays(trees: Any) -> bool:
    """Whether all that a derivative is taken by are arrays, and no trace or transformation is on.

    Inside of one results stay tensors: an array would hide what they depend on.
    """
    if inline():
        return False
    arrays: list[bool] = []

    def note(leaf: Any) -> Any:
        arrays.append(isinstance(leaf, np.ndarray | np.generic))
        return leaf

    return not flatten(trees, note).handles and bool(arrays) and all(arrays)


def as_arrays(tree: Any, *, copy: bool = True) -> Any:
    """A tree of tensors as one of arrays, numbers without axes as NumPy's scalars.

    `copy=False`: where nobody else holds the tensors, so that nobody minds who writes.
    """
    leaves = flatten(tree)
    realize(leaves.handles)
    arrays = [array_of(h) for h in leaves.handles]
    return leaves.rebuild([(np.array(a) if copy else a)[()] for a in arrays])


def as_given(results: Any, trees: Any) -> Any:
    """`results` as arrays where `trees`, by which they were derived, are of arrays."""
    return as_arrays(results) if given_arrays(trees) else results


class Derivative:
    """A function that derives `function` by the arguments at `places`; `pb.jit` keeps its ways."""

    def __init__(
        self, function: Callable[..., Any], derive: Callable[..., Any], places: Sequence[int]
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.derive = derive
        self.places = places

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return as_given(self.derive(*args, **kwargs), self.chosen(args))

    def chosen(self, args: Sequence[Any]) -> list[Any]:
        """The arguments to derive by."""
        return [args[n] for n in self.places]


def returned(function: Any, args: Sequence[Any], results: Any) -> Any:
    """What a compiled `function` returned, as it would uncompiled."""
    if not isinstance(function, Derivative) or not given_arrays(function.chosen(args)):
        return results
    return as_arrays(results, copy=False)
