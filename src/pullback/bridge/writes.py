"""What a graph writes into its arguments: in which order, and where a program may do it itself.

``copy_(x, y); z = add(x, 1); copy_(x, z)  ->  z = add(y, 1); x := z``, once all of it is computed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_tensors
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pullback.bridge.programs import caller
from pullback.errors import IndexRangeError, UnsupportedError

COPY = torch.ops.aten.copy_.default
PUT = torch.ops.aten.copy.default


def settled(gm: Any) -> None:
    """Each argument written once, at the end: what is read after a write is what was written.

    `now`: what an argument, or a write of one, stands for; an argument itself is what it was.
    """
    nodes = list(gm.graph.nodes)
    now: dict[Node, Node] = {}
    writes: dict[Node, Node] = {}
    for node in nodes[:-1]:
        if not _writes(node):
            _reads(node, now)
            continue
        target, source = node.args[0], now.get(node.args[1], node.args[1])
        if not _alike(target, source):
            with gm.graph.inserting_before(node):
                source = gm.graph.call_function(PUT, (now.get(target, target), source))
            source.meta.update(node.meta)
            source.meta["val"] = target.meta["val"]
        node.args = (target, source)
        now[target] = now[node] = source
        writes[target] = node
    own = {write: target for target, write in writes.items()}
    _reads(nodes[-1], {n: own.get(n, value) for n, value in now.items() if n.op != "placeholder"})
    for node in nodes[:-1]:
        if _writes(node):
            nodes[-1].prepend(node)
            if node not in own:
                gm.graph.erase_node(node)
    gm.recompile()


def _reads(node: Node, now: Mapping[Node, Node]) -> None:
    """The node, with what its arguments stand for."""
    node.args = torch.fx.map_arg(node.args, lambda n: now.get(n, n))
    node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: now.get(n, n))


def _writes(node: Node) -> bool:
    """Whether it writes into an argument."""
    target = node.args[0] if node.target == COPY else None
    return isinstance(target, Node) and target.op == "placeholder"


def _alike(target: Node, source: Node) -> bool:
    """Whether a write takes elements as they are."""
    to, of = target.meta.get("val"), source.meta.get("val")
    return to.dtype == of.dtype and _same(to.shape, of.shape)


def _same(own: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(own, others, strict=False)
    return len(own) == len(others) and all(statically_known_true(a == b) for a, b in pairs)


def fills(meta: Any) -> bool:
    """Whether a tensor fills the memory between its first and its last element, each place once."""
    if not all(isinstance(s, int) for s in (*meta.shape, *meta.stride())):
        rows = [1]
        for extent in reversed(meta.shape[1:]):
            rows.append(rows[-1] * extent)
        return _same(meta.stride(), rows[::-1][-meta.ndim :] if meta.ndim else [])
    rest = 1
    for extent, stride in sorted(zip(meta.shape, meta.stride(), strict=True), key=lambda p: p[1]):
        if extent != 1 and stride != rest:
            return False
        rest *= extent
    return True


def written(arguments: Sequence[Any], places: Sequence[int], sources: Sequence[Any]) -> None:
    """Each source into its argument; one that lies where another is written is read before."""
    targets = [arguments[n] for n in places]
    taken = {t.untyped_storage().data_ptr() for t in targets}
    own = [
        s.clone() if len(targets) > 1 and s.untyped_storage().data_ptr() in taken else s
        for s in sources
    ]
    for target, source in zip(targets, own, strict=True):
        target.copy_(source)


class Apart:
    """What a graph writes shares no memory with what else it is given.

    PyTorch finds that out while it traces, and does not look again: views that come to overlap in a
    later call have no guard.
    """

    def __init__(self, given: Sequence[Node], targets: Sequence[Node]) -> None:
        read = [n for n, one in enumerate(given) if one.users]  # others may be no tensors at a call
        tensors = [n for n in read if isinstance(given[n].meta["val"], torch.Tensor)]
        self._tensors = tensors if len(tensors) > 1 else []
        self._written = [k for k, n in enumerate(tensors) if given[n] in targets]
        self._names = [given[n].name for n in tensors]
        self._seen: list[int] = []

    def check(self, args: Sequence[Any]) -> None:
        """Raises: UnsupportedError for a place that one argument has and another is written to."""
        places = [args[n].data_ptr() for n in self._tensors]
        if places == self._seen:
            return
        before = self._seen or [-1] * len(places)
        ends = [at + _span(args[n]) for n, at in zip(self._tensors, places, strict=True)]
        moved = [n for n, at in enumerate(places) if at != before[n]]
        for n in self._written:
            for m in range(len(places)) if n in moved else moved:
                if m != n and places[n] < ends[m] and places[m] < ends[n]:
                    self._refuse(args[self._tensors[n]], args[self._tensors[m]], (n, m))
        self._seen = places

    def _refuse(self, one: Any, other: Any, pair: tuple[int, int]) -> None:
        """Raises: UnsupportedError where they have a place in common, not only a range."""
        if compute_overlapping_tensors([one, other], symbolic=False):
            names = " and ".join(f"`{self._names[n]}`" for n in pair)
            raise UnsupportedError(
                f"{names} share memory that the graph writes, and did not when it was traced",
                origin=caller(),
                help="pass x.clone() for one of them",
                code="E388",
            )


def sharing(inputs: Sequence[Any]) -> list[Any]:
    """Which of some tensors lie in one memory, and where in it."""
    memories: dict[int, list[Any]] = {}
    for n, one in enumerate(inputs):
        if isinstance(one, torch.Tensor) and one.layout == torch.strided:
            place = (n, one.storage_offset(), tuple(one.shape), one.stride())
            memories.setdefault(one.untyped_storage()._cdata, []).append(place)
    return [places for places in memories.values() if len(places) > 1]


def _span(tensor: Any) -> int:
    """Bytes from the first element to behind the last."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return int((1 + sum((e - 1) * s for e, s in pairs)) * tensor.itemsize)


VIEWS = ("view", "unsqueeze", "squeeze", "expand", "permute", "clone", "alias", "_to_copy", "t")


class Indices:
    """Indices that an argument brings, looked at before a graph writes what depends on them.

    A program finds an index that is out of range while it runs: what it had read by then must not
    be in an argument. Values by indices that are computed are written once the program has run.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.late: set[Node] = set()
        self._after: dict[Node, set[tuple[Node, int, int]]] = {}
        self._checks: list[tuple[Node, int, int]] = []
        for node in nodes:
            below = node.all_input_nodes
            own = set().union(*(self._after.get(n, set()) for n in below))
            late = any(n in self.late for n in below)
            for index, low, high in _looked_up(node):
                given = _given(index) if isinstance(high, int) else None
                late = late or given is None
                own |= set() if given is None else {(given, low, high)}
            self._after[node] = own
            if late:
                self.late.add(node)

    def ask(self, sources: Sequence[Node]) -> None:
        """From now on, look at what these values depend on."""
        checks = set().union(*(self._after.get(n, set()) for n in sources))
        self._checks = sorted(checks, key=lambda c: (c[0].name, *c[1:]))

    @property
    def asked(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._checks)

    def check(self, values: Mapping[Node, Any]) -> None:
        """Raises: IndexRangeError."""
        for given, low, high in self._checks:
            indices = values[given]
            if indices.numel():
                for worst in map(int, indices.aminmax()):
                    if not low <= worst < high:
                        what = (
                            f"index {worst} is out of range: `{given.name}` counts {high} elements"
                        )
                        raise IndexRangeError(what, origin=caller())


def _given(index: Node) -> Node | None:
    """The argument that an index is a view of."""
    while index.op == "call_function":
        name = getattr(index.target, "_opname", "")
        if name not in VIEWS or index.meta["val"].is_floating_point():
            return None
        index = index.args[0]
    whole = index.op == "placeholder" and index.meta["val"].dtype != torch.bool
    return index if whole and not index.meta["val"].is_floating_point() else None


def _looked_up(node: Node) -> list[tuple[Node, int, int]]:
    """The indices that an operator reads by, with what they must be."""
    aten = torch.ops.aten
    if node.target not in LOOK_UPS:
        return []
    x = node.args[0].meta["val"]
    if node.target == aten.embedding.default:
        return [(node.args[1], 0, x.shape[0])]
    if node.target in (aten.gather.default, aten.index_select.default):
        return [(node.args[2], 0, x.shape[node.args[1]])] if x.ndim else []
    if node.target == aten.take.default:
        return [(node.args[1], -x.numel(), x.numel())]
    pairs = zip(node.args[1], x.shape, strict=False)
    return [(i, -e, e) for i, e in pairs if i is not None]


LOOK_UPS = (
    torch.ops.aten.embedding.default,
    torch.ops.aten.gather.default,
    torch.ops.aten.index_select.default,
    torch.ops.aten.take.default,
    torch.ops.aten.index.Tensor,
)
