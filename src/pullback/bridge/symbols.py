"""Sizes that are symbols, as JSON: what a graph that is kept says of them.

``s77 + 1  ->  ["Add", "s77", 1]``, beside ``["s77", 6, 2, 30, true]``: its number in the graph that
was traced, its bounds (null: none), and whether it is known to be positive

Reading builds expressions from the functions named here, and evaluates no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import CeilDiv, CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from pullback.errors import StateError, UnsupportedError

_FUNCTIONS = sympy.Add, sympy.Mul, CeilDiv, CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
FUNCTIONS: Mapping[str, Any] = {f.__name__: f for f in _FUNCTIONS}


def tree_of(size: Any) -> Any:
    """A size: a number, the name of a symbol, or a function with its arguments.

    Raises: UnsupportedError E390 for a function that is not named here.
    """
    own = size.node.expr if isinstance(size, torch.SymInt) else size
    if isinstance(own, int) or own.is_Integer:
        return int(own)
    if own.is_Symbol:
        return str(own)
    name = type(own).__name__
    if FUNCTIONS.get(name) is not type(own):
        raise UnsupportedError(f"the size {own}, in a graph that is kept", code="E390")
    return [name, *map(tree_of, own.args)]


def symbols_of(metas: Sequence[Any]) -> list[Any]:
    """What is known of each symbol of the sizes that nodes give.

    Raises: UnsupportedError E390 for a size that is data.
    """
    known: dict[str, Any] = {}
    for size in _sizes(metas):
        env = size.node.shape_env
        for symbol in sorted(size.node.expr.free_symbols, key=str):
            if symbol not in env.backed_var_to_val:
                raise UnsupportedError(f"the size {symbol} that is data", code="E390")
            bounds = env.var_to_range[symbol]
            limits = [
                None if b in (int_oo, -int_oo) else int(b) for b in (bounds.lower, bounds.upper)
            ]
            number = int(env.backed_var_to_val[symbol])
            known[str(symbol)] = [str(symbol), number, *limits, bool(symbol.is_positive)]
    return list(known.values())


def _sizes(value: Any) -> list[Any]:
    """The symbolic sizes among what nodes give."""
    if isinstance(value, list | tuple):
        return [size for v in value for size in _sizes(v)]
    if isinstance(value, torch.Tensor):
        return _sizes([*value.shape, *value.stride()])
    return [value] if isinstance(value, torch.SymInt) else []


class Symbols:
    """The symbols of a text that is read, in an environment of their own."""

    def __init__(self, told: Sequence[Any]) -> None:
        self.env = ShapeEnv()
        self._symbols = {name: self._made(name, *rest) for name, *rest in told}

    def _made(self, name: str, number: int, least: Any, most: Any, positive: bool) -> Any:
        symbol = sympy.Symbol(name, integer=True, **({"positive": True} if positive else {}))
        lower = -int_oo if least is None else sympy.Integer(least)
        upper = int_oo if most is None else sympy.Integer(most)
        self.env.backed_var_to_val[symbol] = sympy.Integer(number)
        self.env.var_to_range[symbol] = ValueRanges(lower, upper)
        self.env.var_to_sources[symbol] = []
        return symbol

    def size(self, tree: Any) -> Any:
        """A size of PyTorch's. Raises: StateError E391 for what is no tree."""
        own = self._expression(tree)
        if own.is_Integer:
            return int(own)
        number = int(own.xreplace(self.env.backed_var_to_val))
        return self.env.create_symintnode(own, hint=number)

    def _expression(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return sympy.Integer(tree)
        if isinstance(tree, str) and tree in self._symbols:
            return self._symbols[tree]
        if isinstance(tree, list) and tree and tree[0] in FUNCTIONS:
            return FUNCTIONS[tree[0]](*map(self._expression, tree[1:]))
        raise StateError(f"a kept graph has the size {tree}", code="E391")
