"""What of a joint graph runs forward, what backward, and what is kept between them.

What the forward overwrites is kept as it was before: PyTorch keeps the argument itself, whose new
contents the backward would read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition

from pullback.bridge.saved import sparing
from pullback.bridge.writes import COPY

NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
CLONE = torch.ops.aten.clone.default


def partitioned(joint: Any, inputs: Sequence[Any], **how: Any) -> tuple[Any, Any]:
    """The forward and the backward of a joint graph."""
    _without_statistics(joint)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **how)
    sparing(forward, backward, how["num_fwd_outputs"])
    _kept_before_writes(forward, how["num_fwd_outputs"])
    return forward, backward


def _without_statistics(joint: Any) -> None:
    """In training the adjoint of a batch norm reads no running statistics: none are kept for it."""
    for node in joint.graph.find_nodes(op="call_function", target=NORM_BACKWARD):
        if node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _kept_before_writes(forward: Any, results: int) -> None:
    """Arguments that are kept and overwritten are kept as copies, made before."""
    nodes = list(forward.graph.nodes)
    taken = {n.args[0] for n in nodes if n.target == COPY}
    kept = nodes[-1].args[0]
    fresh = {}
    with forward.graph.inserting_after([n for n in nodes if n.op == "placeholder"][-1]):
        for target in [n for n in kept[results:] if n in taken]:
            fresh[target] = forward.graph.call_function(CLONE, (target,))
            fresh[target].meta.update(target.meta)
    if fresh:
        whole = (*kept[:results], *(fresh.get(n, n) for n in kept[results:]))
        nodes[-1].args = (whole,)
        forward.recompile()
