"""Rules tried on the shapes of a graph, before anything is compiled.

An operator whose rule raises, or gives another shape, runs as PyTorch has it. What calls the host
(a factorisation, a long sort) is seen here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from pullback.bridge.complexes import PAIRS, pair
from pullback.bridge.draws import SEED
from pullback.bridge.graphs import applied, function_of, graph_of, typed
from pullback.bridge.programs import TYPES
from pullback.bridge.writes import COPY
from pullback.errors import PullbackError
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import HostForm
from pullback.tensor.record.trace import Trace, tracing

ENDS = (COPY, SEED)


class Trial(NamedTuple):
    """Nodes whose rules do not give what the graph promises, and why; the library that a node's
    rule calls, of those that call one.
    """

    failed: dict[Node, str]
    hosts: dict[Node, str]


def tried(gm: Any, left: Mapping[Node, str]) -> Trial:
    """The nodes besides `left`, each by its rule."""
    failed: dict[Node, str] = {}
    hosts: dict[Node, str] = {}
    values: dict[Node, Any] = {}
    trace = Trace()
    with tracing(trace):
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target not in ENDS and node not in left:
                given, named = torch.fx.map_arg((node.args, node.kwargs), values.get)
                before = set(trace.calls)
                try:
                    values[node] = typed(applied(node, given, named), node.meta.get("val"))
                    fresh = [c for v, c in trace.calls.items() if v not in before]
                    if called := {_library(c) for c in fresh if isinstance(c, HostForm)}:
                        hosts[node] = ", ".join(sorted(called))
                    continue
                except Exception as error:  # what a rule does not expect is no error of the user's
                    failed[node] = _why(error, given, named)
            inner = graph_of(node)
            own = node.meta.get("val")
            values[node] = _fresh(trace, own) if inner is None else function_of(inner)
    return Trial(failed, hosts)


def _why(error: Exception, given: Any, named: Any) -> str:
    """What a rule says, or that it has none for complex numbers."""
    leaves = tree_leaves((given, named))
    if not isinstance(error, PullbackError) and any(isinstance(o, Complex) for o in leaves):
        return "no rule for complex numbers"
    return str(error).splitlines()[0]


def _library(call: HostForm) -> str:
    """Its name and version, without how it is called: ``NumPy 2.3.5, (-1, False)``"""
    return call.host.library.partition(",")[0]


def _fresh(trace: Trace, meta: Any) -> Any:
    """A tensor of a shape, or a size: what PyTorch says that a node gives."""
    if isinstance(meta, list | tuple):
        return type(meta)([_fresh(trace, m) for m in meta])
    if isinstance(meta, torch.Tensor):
        shape = tuple([_size(s) for s in meta.shape])
        if (kind := PAIRS.get(meta.dtype)) is not None:
            return pair(Tensor(trace.fresh("argument", (*shape, 2), kind.part)))
        own = TYPES.get(meta.dtype)
        return None if own is None else Tensor(trace.fresh("argument", shape, own))
    return _size(meta) if hasattr(meta, "node") else meta


def _size(size: Any) -> Any:
    """A size as it happens to be."""
    return size if isinstance(size, int) else size.node.hint
