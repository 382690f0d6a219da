"""Effects of a graph: checks of factorizations, in order by tokens that PyTorch hands on.

``with_effects(token, check, info, ..) -> token_1``: the first token is made inside, and read there
"""

from __future__ import annotations

from typing import Any

import torch

EFFECTS = torch.ops.higher_order.with_effects
NOTHING = torch.ops.aten.zeros.default


def with_own_tokens(gm: Any) -> None:
    """The graph with first tokens of its own: what it is given at a call has no memory."""
    for node in gm.graph.find_nodes(op="placeholder"):
        readers = [n for n in node.users if n.target == EFFECTS and n.args[0] is node]
        if not readers:
            continue
        with gm.graph.inserting_before(readers[0]):
            own = gm.graph.call_function(NOTHING, ([0],))
        own.meta["val"] = node.meta["val"]
        for reader in readers:
            reader.replace_input_with(node, own)
    gm.recompile()
