"""Recurrent layers in a graph of Dynamo's, before PyTorch writes their steps out.

``torch.lstm(x, (h, c), weights, ..)  ->  a product of all inputs and one operator of all steps, for
each layer and direction; dropout, joins and turns between them as PyTorch's own operators``
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from pullback.bridge.aten.recurrent import STEPS
from pullback.bridge.programs import PLACES

CALLS = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
F = torch.nn.functional


def allow_recurrent() -> None:
    """Dynamo puts recurrent layers into graphs, which it breaks at them otherwise."""
    torch._dynamo.config.allow_rnn = True


def with_whole_recurrences(gm: GraphModule) -> None:
    """The graph with operators of all steps in the place of recurrent layers that allow it."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in CALLS]
    whole = [n for n in calls if _allows(n)]
    for node in whole:
        with gm.graph.inserting_before(node):
            results = _Layers(node).results()
        for taken in list(node.users):
            result = results[taken.args[1]]
            result.meta.update(taken.meta)
            taken.replace_all_uses_with(result)
            gm.graph.erase_node(taken)
        gm.graph.erase_node(node)
    if whole:
        gm.graph.lint()
        gm.recompile()


def _allows(node: Node) -> bool:
    """No packed sequence, no projection, no autocast, one type; a literal number of steps."""
    if len(node.args) != 9 or node.kwargs or not isinstance(node.args[2], list | tuple):
        return False
    x, hx, weights, biased, _, _, _, _, batch_first = node.args
    per = 4 if biased else 2
    states = hx if isinstance(hx, list | tuple) else [hx]
    kinds = {_value(n).dtype for n in (x, *states, *weights)}
    shape = _value(x).shape
    cells = node.args[4] * (1 + bool(node.args[7]))
    steps = shape[1 if batch_first else 0]
    return (
        len(shape) == 3
        and len(weights) == per * cells
        and len(kinds) == 1
        and kinds <= set(FLOATS)
        and isinstance(steps, int)
        and steps > 0
        and all(n.target is operator.getitem for n in node.users)
        and not _autocast(node)
    )


def _autocast(node: Node) -> bool:
    """Whether types of a region are not those of its tensors."""
    names = [getattr(n.target, "__name__", "") for n in node.graph.nodes]
    enabled = any(map(torch.is_autocast_enabled, PLACES))
    return enabled or "_enter_autocast" in names


def _value(node: Any) -> Any:
    return node.meta["example_value"]


def _number(value: Any) -> float:
    """A share that Dynamo traced as a symbol, as the number that it is guarded to be."""
    return float(_value(value)) if isinstance(value, Node) else float(value)


class _Layers:
    """The layers of a call, as nodes before it."""

    def __init__(self, node: Node) -> None:
        x, hx, weights, biased, layers, drop, training, both, batch_first = node.args
        self.graph = node.graph
        self.kind = CALLS[node.target]
        self.x, self.layers, self.batch_first = x, layers, batch_first
        self.drop = _number(drop) if training and layers > 1 else 0.0
        self.directions = 1 + bool(both)
        self.long = self.kind == "lstm"
        self.hx = list(hx) if self.long else [hx]
        per = 4 if biased else 2
        self.weights = [weights[n : n + per] for n in range(0, len(weights), per)]

    def results(self) -> list[Node]:
        """What the call gives: all states of the last layer, and the last ones of each."""
        x = self._turned(self.x)
        lasts: list[list[Node]] = []
        for layer in range(self.layers):
            if layer and self.drop:
                x = self._call(F.dropout, x, self.drop, True)
            ways = []
            for back in range(self.directions):
                y, last = self._cell(x, self.directions * layer + back, bool(back))
                ways.append(y)
                lasts.append(last)
            x = ways[0] if len(ways) == 1 else self._call(torch.cat, ways, -1)
        ends = [self._call(torch.stack, list(parts)) for parts in zip(*lasts, strict=True)]
        return [self._turned(x), *ends]

    def _cell(self, x: Node, cell: int, back: bool) -> tuple[Node, list[Node]]:
        """One direction of a layer. What a bias adds to both sides of a GRU's gates differs."""
        into, hidden, *biases = self.weights[cell]
        first, second = biases or (None, None)
        if biases and self.kind != "gru":
            first, second = self._call(torch.add, first, second), None
        start = [self._call(torch.select, h, 0, cell) for h in self.hx]
        memory = start[1] if self.long else self._call(torch.zeros_like, start[0])
        gx = self._call(F.linear, x, into, first)
        steps = self._call(STEPS, gx, hidden, second, start[0], memory, self.kind, back)
        states = self._call(operator.getitem, steps, 0)
        ends = [self._call(torch.select, states, 0, 0 if back else -1)]
        ends += [self._call(operator.getitem, steps, 2)] if self.long else []
        return states, ends

    def _turned(self, x: Node) -> Node:
        return self._call(torch.transpose, x, 0, 1) if self.batch_first else x

    def _call(self, target: Any, *args: Any) -> Node:
        return self.graph.call_function(target, args)
