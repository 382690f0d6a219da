"""Writes by masks in a graph of Dynamo's, whose gradients PyTorch takes at places that depend on
data, so that it makes no graph of them.

``x[mask] = v  ->  x.copy_(where(mask, v, x))``, for a `v` that is the same for all that is picked
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

PUTS = {"index_put", "index_put_", torch.index_put, torch.index_put_}


class Put(NamedTuple):
    """A write: of what, by which key, what, whether it adds, whether the tensor is a new one."""

    x: Node
    key: Sequence[Any]
    v: Any
    adds: bool = False
    fresh: bool = False


class Masked(NamedTuple):
    """A key with a mask: the mask, what else the key picks, and how many axes stand behind it."""

    mask: Node
    view: tuple[Any, ...]
    after: int


def with_masks(gm: GraphModule) -> None:
    """The graph, and those in it, with choices of elements in the place of writes by masks."""
    for part in [m for m in gm.modules() if isinstance(m, GraphModule)]:
        puts = [(n, put) for n in part.graph.nodes if (put := _put(n)) is not None]
        known = [(n, put, own) for n, put in puts if (own := _masked(put)) is not None]
        for node, put, own in known:
            _choose(node, put, own)
        if known:
            part.graph.lint()
            part.recompile()


def _put(node: Node) -> Put | None:
    """What a node writes by indices; None for another one."""
    if node.target is operator.setitem and isinstance(node.args[0], Node):
        x, key, v = node.args
        return Put(x, list(key) if isinstance(key, tuple | list) else [key], v)
    if node.op not in ("call_method", "call_function") or node.target not in PUTS:
        return None
    named = dict(zip(("x", "key", "v", "adds"), node.args, strict=False))
    named |= {{"indices": "key", "values": "v", "accumulate": "adds"}.get(n, "") or n: v
              for n, v in node.kwargs.items()}  # fmt: skip
    if not {"x", "key", "v"} <= named.keys() <= {"x", "key", "v", "adds"}:
        return None
    key = [slice(None) if k is None else k for k in named.pop("key")]
    return Put(**named, key=key, fresh=not str(node.target).rpartition(".")[2].endswith("_"))


def _masked(put: Put) -> Masked | None:
    """The mask of a write whose value does not tell apart what is picked; else None."""
    tensors = [n for n, k in enumerate(put.key) if isinstance(k, Node)]
    others = [k for k in put.key if not isinstance(k, Node)]
    plain = all(type(k) is int or isinstance(k, slice) or k is Ellipsis for k in others)
    if len(tensors) != 1 or not plain or _tensor(put.x) is None:
        return None
    x, (place,) = _tensor(put.x), tensors
    before, mask, behind = put.key[:place], put.key[place], put.key[place + 1 :]
    picks = _tensor(mask)
    if picks is None or picks.dtype != torch.bool or not picks.ndim:
        return None
    first = len(before) if Ellipsis not in before else x.ndim - len(behind) - picks.ndim
    if [str(s) for s in x.shape[first : first + picks.ndim]] != [str(s) for s in picks.shape]:
        return None
    after = sum(isinstance(k, slice) for k in behind)
    if Ellipsis not in before:
        kept = x.ndim - sum(type(k) is int for k in others)
        after = kept - sum(isinstance(k, slice) for k in before) - picks.ndim
    own = Masked(mask, (*before, *[slice(None)] * picks.ndim, *behind), after)
    return own if _alike(put.v, own, x.ndim - picks.ndim + 1) else None


def _alike(v: Any, own: Masked, rank: int) -> bool:
    """Whether a value has no axis, or one of size 1, along what is picked."""
    if not isinstance(v, Node):
        return isinstance(v, bool | int | float)
    value = _tensor(v)
    if value is None or value.ndim > rank:
        return False
    return bool(value.ndim <= own.after or str(value.shape[-own.after - 1]) == "1")


def _choose(node: Node, put: Put, own: Masked) -> None:
    """A choice of elements in the place of a write."""
    tracer = GraphAppendingTracer(node.graph)
    value, last = _tensor(put.x), node.prev
    with node.graph.inserting_before(node):
        whole = Proxy(put.x, tracer)
        whole = whole.clone() if put.fresh else whole
        view = whole[own.view]
        mask = Proxy(own.mask, tracer)[(..., *[None] * own.after)]
        if isinstance(put.v, Node):
            new = _spread(Proxy(put.v, tracer).to(value.dtype), _tensor(put.v).ndim, own)
        else:
            number = node.graph.call_function(torch.full, ((), put.v), {"dtype": value.dtype})
            new = Proxy(number, tracer)
        chosen = torch.where(mask, view + new if put.adds else new, view)
        view.copy_(chosen)
    while last.next is not node:
        last = last.next
        last.meta.update({k: v for k, v in node.meta.items() if k != "example_value"})
    whole.node.meta.setdefault("example_value", value)
    node.replace_all_uses_with(whole.node)
    node.graph.erase_node(node)


def _spread(new: Any, rank: int, own: Masked) -> Any:
    """A value with the axes of the mask in the place of the one along what is picked."""
    if rank <= own.after:
        return new
    blank = [None] * _tensor(own.mask).ndim
    return new.select(rank - own.after - 1, 0)[(..., *blank, *[slice(None)] * own.after)]


def _tensor(node: Any) -> Any:
    """What PyTorch traced a node as; None where that is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None
