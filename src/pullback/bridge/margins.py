"""A loss that PyTorch traces otherwise than it runs it, in a graph of Dynamo's.

``multilabel_margin_loss(x, target)  ->  max(0, 1 - x[target] + x[others])`` summed over the targets
before the first -1: what PyTorch 2.13 writes it out as counts the places behind it as well.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.fx import GraphModule, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.nn import _reduction as reductions

LOSS = torch.nn.functional.multilabel_margin_loss
TOLD = inspect.signature(LOSS)


def with_margins(gm: GraphModule) -> None:
    """The graph with the formula in the place of each call."""
    calls = gm.graph.find_nodes(op="call_function", target=LOSS)
    tracer = GraphAppendingTracer(gm.graph)
    for node in calls:
        told = TOLD.bind(*node.args, **node.kwargs)
        told.apply_defaults()
        x, target, averaged, reduced, how = told.arguments.values()
        if averaged is not None or reduced is not None:
            how = reductions.legacy_get_string(averaged, reduced, emit_warning=False)
        rank = x.meta["example_value"].ndim
        with gm.graph.inserting_before(node):
            rows = Proxy(x, tracer).to(node.meta["example_value"].dtype)  # another under autocast
            y = _loss(rows, Proxy(target, tracer), rank, how).node
        y.meta.update(node.meta)
        node.replace_all_uses_with(y)
        gm.graph.erase_node(node)
    if calls:
        gm.graph.lint()
        gm.recompile()


def _loss(x: Any, target: Any, rank: int, how: str) -> Any:
    """The loss of samples of `rank` axes; `how` is 'none', 'mean' or 'sum'."""
    if rank < 2:
        x, target = x.reshape(1, -1), target.reshape(1, -1)
    told = (target == -1).cumsum(1) == 0
    places = torch.where(told, target, 0)
    margins = (1 - x.gather(1, places).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    own = torch.ones_like(target).cumsum(1).unsqueeze(1) - 1
    hit = torch.where(told, target, -1).unsqueeze(2) == own
    counts = told.unsqueeze(2) & ~hit.any(1, keepdim=True)
    y = torch.where(counts, margins, 0).sum((1, 2)) / x.size(1)
    if how == "none":
        return y if rank > 1 else y.reshape(())
    return y.mean() if how == "mean" else y.sum()
