"""Branches and loops of a graph, whose graphs are functions here.

``cond(p, true_graph, false_graph, (x,))  ->  pb.cond(p, true_graph, false_graph, x)``
``scan(graph, (c,), (x,), (w,))           ->  pb.scan(lambda c, x: graph(c, x, w), c, x)``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._higher_order_ops.scan
import torch._higher_order_ops.while_loop  # each registers its operator

import pullback as pb
from pullback.bridge.aten.table import rule

Function = Callable[..., Sequence[Any]]
COND = torch.ops.higher_order.cond
SCAN = torch.ops.higher_order.scan
WHILE = torch.ops.higher_order.while_loop
WITHIN = (COND, SCAN, WHILE)
"""Operators that have graphs among their arguments."""


@rule(COND)
def cond(condition: Any, yes: Function, no: Function, operands: Sequence[Any]) -> Any:
    if isinstance(condition, bool):
        return (yes if condition else no)(*operands)
    taken = pb.cond(pb.reshape(condition, ()), yes, no, *operands)
    return tuple(taken)


@rule(SCAN)
def scan(step: Function, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any]) -> Any:
    carries = len(init)

    def body(carry: Any, x: Any) -> Any:
        results = tuple(step(*carry, *x, *more))
        return results[:carries], results[carries:]

    last, rows = pb.scan(body, tuple(init), tuple(xs))
    return (*last, *rows)


@rule(WHILE)
def while_loop(goes_on: Function, body: Function, init: Sequence[Any], more: Sequence[Any]) -> Any:
    def test(carry: Any) -> Any:
        result = goes_on(*carry, *more)
        return pb.reshape(result[0] if isinstance(result, list | tuple) else result, ())

    return pb.while_loop(test, lambda carry: tuple(body(*carry, *more)), tuple(init))
