"""What is kept for the backward, with nothing kept twice, or wider than it has to be.

``q, k, v = split(x); keep q.T, k.T, v.T  ->  keep x``; ``keep indices: int64  ->  int16``

PyTorch's least cut takes a view for free to keep: here a result is memory of its own, so a kept
view is a copy. The backward makes views again, which cost nothing in a program. Positions in a
window of a picture are narrowed to the integers that hold them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from pullback.bridge.writes import COPY

aten = torch.ops.aten
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int,
    aten.permute.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.detach.default,
    aten.alias.default, aten._conj.default, aten.view_as_real.default, aten.view_as_complex.default,
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
}  # fmt: skip
PLACED = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
"""Operators whose second result is a position among the last so many axes of the argument."""
UNCHECKED = "saved_tensor_with_no_vc_check"
NARROW = (torch.uint8, torch.int16, torch.int32)


def sparing(forward: Any, backward: Any, results: int) -> None:
    """The same two graphs, with less between them; `results`: of the forward, before what is
    kept.
    """
    last = list(forward.graph.nodes)[-1]
    kept = list(last.args[0][results:])
    if any(n.meta.get(UNCHECKED) for n in kept if isinstance(n, Node)):
        return  # PyTorch wants them in an order of its own
    taken = {n.args[0] for n in forward.graph.nodes if n.target == COPY}
    places = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    roots = {n: root for n in kept if (root := _root(n)) is not None and root not in taken}
    for root in dict.fromkeys(roots.values()):
        views = [n for n in kept if roots.get(n) is root and n.name in places]
        free = root.op == "placeholder" or root in kept
        if views and (free or _bytes(root) <= sum(map(_bytes, views))):
            _viewed(root, views, kept, places, backward)
    for node in [n for n in kept if isinstance(n, Node)]:
        kind = _narrow(node)
        if kind is not None and node.name in places:
            kept[kept.index(node)] = _narrowed(node, kind, places, forward, backward)
    last.args = ((*last.args[0][:results], *kept),)
    forward.recompile()
    backward.recompile()


def _root(node: Any) -> Node | None:
    """What a node is a view of, by numbers alone; None: it is no such view."""
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    root = node
    while _is_view(root):
        root = root.args[0]
    own = root.meta.get("val")
    return root if root is not node and _is_plain(own) and _is_plain(node.meta["val"]) else None


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    return node.target in VIEWS and len(node.all_input_nodes) == 1


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor, all of whose sizes are numbers."""
    return isinstance(value, torch.Tensor) and all(type(s) is int for s in value.shape)


def _bytes(node: Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.itemsize)


def _viewed(
    root: Node, views: Sequence[Node], kept: list[Any], places: dict[str, Node], backward: Any
) -> None:
    """The views are made in the backward, of what is kept in their place."""
    if root not in kept:
        kept[kept.index(views[0])] = root
        with backward.graph.inserting_before(places[views[0].name]):
            places[root.name] = backward.graph.placeholder(root.name)
        places[root.name].meta.update(root.meta)
    body = next(n for n in backward.graph.nodes if n.op != "placeholder")
    made = {root: places[root.name]}
    with backward.graph.inserting_before(body):
        for view in views:
            place = places.pop(view.name)
            place.replace_all_uses_with(_again(view, made, backward))
            backward.graph.erase_node(place)
    kept[:] = [n for n in kept if n not in views]


def _again(view: Node, made: dict[Node, Node], backward: Any) -> Node:
    """A view, and those that it is a view of, in the backward."""
    if view not in made:
        _again(view.args[0], made, backward)
        made[view] = backward.graph.node_copy(view, made.__getitem__)
    return made[view]


def _narrow(node: Node) -> torch.dtype | None:
    """The narrowest integers that hold all positions; None: they are no positions."""
    if node.target is not operator.getitem or node.args[1] != 1:
        return None
    source = node.args[0]
    axes = PLACED.get(source.target)
    if axes is None:
        return None
    given = source.args[0].meta["val"]
    if not _is_plain(given) or not _is_plain(node.meta["val"]):
        return None
    most = given.shape[-axes:].numel() - 1
    return next((kind for kind in NARROW if most <= torch.iinfo(kind).max), None)


def _narrowed(
    node: Node, kind: torch.dtype, places: dict[str, Node], forward: Any, backward: Any
) -> Node:
    """Positions as they are kept, widened again in the backward."""
    cast = aten._to_copy.default
    with forward.graph.inserting_after(node):
        small: Node = forward.graph.call_function(cast, (node,), {"dtype": kind})
    small.meta.update(node.meta, val=node.meta["val"].to(kind))
    place = places.pop(node.name)
    body = next(n for n in backward.graph.nodes if n.op != "placeholder")
    with backward.graph.inserting_before(place):
        own = backward.graph.placeholder(small.name)
    own.meta.update(small.meta)
    with backward.graph.inserting_before(body):
        wide = backward.graph.call_function(cast, (own,), {"dtype": torch.int64})
    wide.meta.update(node.meta)
    place.replace_all_uses_with(wide)
    backward.graph.erase_node(place)
    return small
