"""Graphs of ATen operators as programs: what `torch.compile` hands over, run by one call.

``mul = aten.mul(x, y); add = aten.add(mul, 1); return (add,)  ->  one program of x and y``
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.fx import Node

from pullback.bridge.aten import COMPLEX, REFUSES, RULES
from pullback.bridge.complexes import PAIRS, as_complex, beside, pair, parts, whole
from pullback.bridge.derived import Derived
from pullback.bridge.draws import SEED, draws, seed
from pullback.bridge.layout import row_major
from pullback.bridge.operator import OVERLOADS
from pullback.bridge.pieces import Write, put, writes_of
from pullback.bridge.private import empty_strided
from pullback.bridge.programs import CPU, KINDS, TYPES, Dims, Programs, Ready
from pullback.bridge.signature import Parameter, Signature
from pullback.bridge.sizes import Sized, symbolic
from pullback.bridge.writes import COPY, Apart, Indices, fills
from pullback.config import Options
from pullback.errors import PullbackError, UnsupportedError
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import permute_dims
from pullback.tensor.record.away import CUDA

FREE = {operator.getitem, operator.mul, operator.add, operator.sub, operator.floordiv}
FREE |= {torch.sym_sum}
SIZES = {torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default}
TAKEN = {operator.getitem, *SIZES}


def lacking(node: Node) -> str | None:
    """Why a node has no place in a program; None: it has one."""
    if node.op == "get_attr":
        return None
    if node.op != "call_function":
        return f"a {node.op}"
    if node.target in FREE or node.target in SIZES or _is_number(node):
        return None
    if node.target == SEED:
        return None
    if node.target == COPY:
        return None if _ends(node) else "a write into what is no argument"
    if draws(node):
        return "it draws from PyTorch's generator"
    if node.target not in RULES and node.target not in OVERLOADS:
        return f"no rule for {node.target}"
    if (unknown := _unknown(node)) is not None:
        return unknown
    if (within := _lacking_within(node)) is not None:
        return within
    asked = REFUSES.get(node.target)
    if asked is None:
        return None
    metas = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return asked(*metas[0], **metas[1])


def _lacking_within(node: Node) -> str | None:
    """Why a graph that a node has among its arguments has no place in a program."""
    inner = (graph_of(n) for n in node.all_input_nodes)
    steps = (n for gm in inner if gm is not None for n in gm.graph.nodes)
    reasons = (lacking(n) for n in steps if n.op not in ("placeholder", "output"))
    return next((f"{why}, in a branch or a loop" for why in reasons if why is not None), None)


def graph_of(node: Node) -> Any:
    """The graph that a node names; None: it is none."""
    if node.op != "get_attr":
        return None
    value = getattr(node.graph.owning_module, str(node.target), None)
    return value if isinstance(value, torch.fx.GraphModule) else None


def function_of(gm: Any) -> Callable[..., Any]:
    """A graph within a graph as a function of tensors of pullback's."""
    nodes = list(gm.graph.nodes)
    places = [n for n in nodes if n.op == "placeholder"]
    steps = [n for n in nodes if n.op == "call_function"]

    def held(node: Node) -> Any:
        if (inner := graph_of(node)) is not None:
            return function_of(inner)
        return Tensor(getattr(gm, str(node.target)).cpu().numpy())

    def run(*args: Any) -> Any:
        values: dict[Node, Any] = dict(zip(places, args, strict=True))
        values |= {n: held(n) for n in nodes if n.op == "get_attr"}
        _follow(steps, values)
        return torch.fx.map_arg(nodes[-1].args[0], values.__getitem__)

    return run


def _follow(steps: Sequence[Node], values: dict[Node, Any]) -> None:
    """Add what each step gives, of the type that the graph promised."""
    for node in steps:
        given, named = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = typed(applied(node, given, named), node.meta.get("val"))


def _is_number(node: Node) -> bool:
    """Whether it computes with sizes: ``s0 / 2``"""
    number = isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat)
    return number and not isinstance(node.target, torch._ops.OpOverload)


def _unknown(node: Node) -> str | None:
    """A type of elements, or a kind of memory, that programs do not have."""
    place = place_of(node.graph)
    for one in (node, *node.all_input_nodes):
        values = one.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if not isinstance(value, torch.Tensor):
                continue
            if value.dtype not in TYPES and value.dtype not in PAIRS:
                return f"elements of {value.dtype}"
            given = one.op in ("placeholder", "get_attr")
            number = given and value.device == CPU and not value.dim()
            if value.device != place and not number and one.target != SEED:
                return f"a tensor on {value.device}" + (f" beside {place}" if place != CPU else "")
            if value.layout != torch.strided:
                return f"a tensor of {value.layout}"
            if value.is_neg():
                return "a tensor whose sign is not in its memory"
    return None


def place_of(graph: Any) -> torch.device:
    """The device of a graph's programs: the first CUDA device among its values, or the host."""
    known = _PLACES.get(graph)
    if known is None:
        values = (n.meta.get("val") for n in graph.nodes)
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        known = next((v.device for v in tensors if v.device.type == CUDA), CPU)
        _PLACES[graph] = known
    return known


_PLACES: WeakKeyDictionary[Any, torch.device] = WeakKeyDictionary()


def _ends(node: Node) -> bool:
    """Whether a write is one into an argument, at the end."""
    target = node.args[0]
    return isinstance(target, Node) and target.op == "placeholder" and not node.users


class Places(NamedTuple):
    """Which arguments a program reads (None: all), what its results are like, and what comes out:
    for each output the number of a result, or of an argument, or neither.
    """

    used: tuple[int, ...] | None
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    outputs: tuple[tuple[int | None, int | None], ...]


class Native:
    """A graph as one program, called with one list of arguments, which it empties."""

    def __init__(self, gm: Any, options: Options | None, opened: bool = True) -> None:
        self._boxed_call = True  # PyTorch copies what stands in the object, not in its class
        self._gm = gm
        self._options = options
        self._place = place_of(gm.graph)
        nodes = list(gm.graph.nodes)
        self._given = [n for n in nodes if n.op == "placeholder"]
        self._seed = next((n for n in nodes if n.target == SEED), None)
        self._constants = [n for n in nodes if n.op == "get_attr" and graph_of(n) is None]
        inner = ((n, graph_of(n)) for n in nodes)
        self._functions = {n: function_of(gm) for n, gm in inner if gm is not None}
        self._held = [getattr(gm, str(n.target)) for n in self._constants]
        copies = [n for n in nodes if n.target == COPY]
        outputs = nodes[-1].args[0]
        self._outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        self._single = not isinstance(outputs, list | tuple)
        self._indices = Indices(nodes)
        late = self._indices.late
        every = [writes_of(n) for n in copies]
        direct = [w for w in every if w[0].into == COPY and not w[0].views and _direct(w[0], late)]
        self._writes = [(w.target, w.value) for w, *_ in direct]
        self._copies = [w for own in every if own not in direct for w in own]
        taken = {n.args[0] for n in copies}
        self._apart = Apart(self._given, list(taken)) if taken else None
        wanted = [*self._outputs, *(n for w in self._copies for n in w.nodes)]
        made = [n for n in wanted if isinstance(n, Node) and n.op == "call_function"]
        self._fixed = not any(symbolic(n) for n in self._given)
        views = () if self._fixed else _views(made)
        computed = [n for n in made if n.target != SEED and n not in views]
        early = [n for w in self._copies for n in w.nodes if n in taken]
        self._results = [n for n in dict.fromkeys([*computed, *early]) if _is_tensor(n)]
        self._orders = [_order(n.meta["val"]) for n in self._results]
        sources = [source for _, source in self._writes]
        self._indices.ask(sources)
        self._steps = _needed(nodes, [*self._results, *sources])
        read = {i for s in self._steps for i in s.all_input_nodes} | {*early, *sources}
        read |= {target for target, _ in self._writes}
        self._used = [n for n in (*self._given, self._seed) if n in read]
        self._pairs = any(_is_complex(n) for n in (*self._used, *self._constants))
        self._programs = self._made() if self._results or self._writes else None
        self._ready: Ready | None = None
        here = self._place == CPU
        plain = here and self._fixed and self._seed is None and not self._copies
        self._places = self._placed() if plain else None
        self.reason = ""
        apart = self._fixed or self._programs is None or not opened
        self._sized = None if apart else self._opened()

    def _placed(self) -> Places | None:
        """Where arguments, results and outputs stand; None where an output is neither."""
        given = {n: i for i, n in enumerate(self._given)}
        results = {n: i for i, n in enumerate(self._results)}
        if not all(o is None or o in given or o in results for o in self._outputs):
            return None
        metas = [n.meta["val"] for n in self._results]
        kinds = [(tuple(m.shape), strides(m), m.dtype) for m in metas]
        outputs = [(results.get(o), given.get(o)) for o in self._outputs]
        used = tuple([given[n] for n in self._used])
        every = used == tuple(range(len(given)))
        return Places(None if every else used, tuple(kinds), tuple(outputs))

    def _opened(self) -> Sized | None:
        """One program for all sizes, where that can be; else `reason` says why not."""
        places = [*self._used, *self._constants]
        if self._pairs or any(map(_is_complex, self._steps)):
            self.reason = "complex numbers, whose programs have fixed sizes"
            return None
        if self._functions:
            self.reason = "branches or loops, whose programs have fixed sizes"
            return None
        results = [*self._results, *(source for _, source in self._writes)]
        count = len(self._results)
        writes = {count + n: self._used.index(to) for n, (to, _) in enumerate(self._writes)}
        how = self._orders, writes, self._options, applied, self._place
        reason = ""
        for alike in (False, True):
            try:
                return Sized(places, self._steps, results, *how, alike)
            except Exception as error:  # a rule may want a number, and say so in any way
                reason = reason or _wanted(error)
        self.reason = reason
        return None

    def _made(self) -> Programs:
        places = [*self._used, *self._constants]
        kinds = ["Tensor" if _is_tensor(n) else "int" for n in self._used]
        kinds += ["Tensor"] * len(self._constants)
        parameters = [Parameter(f"{n.name}_", kind) for n, kind in zip(places, kinds, strict=True)]
        count = len(self._results)
        derived = Derived("graph", Signature(tuple(parameters), count), self._traced)
        writes = {count + n: self._used.index(to) for n, (to, _) in enumerate(self._writes)}
        every: Dims = ({},) * len(parameters)
        return Programs(derived, {}, self._options, lambda _: every, writes, self._place)

    def _traced(self, *args: Any) -> tuple[Tensor, ...]:
        """The graph on tensors of pullback's."""
        places = [*self._used, *self._constants]
        given = [pair(a) if _is_complex(n) else a for n, a in zip(places, args, strict=True)]
        values: dict[Node, Any] = dict(zip(places, given, strict=True)) | self._functions
        _follow(self._steps, values)
        results = [
            values[n] if order is None else permute_dims(values[n], order)
            for n, order in zip(self._results, self._orders, strict=True)
        ]
        return (*map(beside, results), *(values[source] for _, source in self._writes))

    def __call__(self, args: Any) -> Any:
        """Raises: UnsupportedError for arguments that share memory which the graph writes; what
        pullback raises for a graph that it cannot compile.
        """
        if self._apart is not None:
            self._apart.check(args)
        if self._places is not None and self._ready is not None and not self._ready.entry.flags:
            return self._placewise(self._places, self._ready, args)
        values = dict(zip(self._given, args, strict=True))
        args.clear()
        self._indices.check(values)
        if self._seed is not None:
            values[self._seed] = seed()
        fresh = self._run([values[n] for n in self._used]) if self._programs else ()
        results = dict(zip(self._results, fresh, strict=True))
        if self._copies:
            held = {w.target: values[w.target] for w in self._copies}
            own = {n: self._value(n, values, results) for w in self._copies for n in w.nodes}
            put(self._copies, held, own)
        made = [
            values[o] if o in values else self._value(o, values, results) for o in self._outputs
        ]
        return made[0] if self._single else made

    def _placewise(self, places: Places, ready: Ready, args: list[Any]) -> Any:
        """As a call, without a look at the graph."""
        used = args if places.used is None else [args[n] for n in places.used]
        if self._indices.asked:
            self._indices.check(dict(zip(self._used, used, strict=True)))
        results = [empty_strided(*kind) for kind in places.results]
        every = [*used, *self._held] if self._held else used
        ready.fill(parts(every) if self._pairs else every, results)
        made = [
            results[n] if n is not None else None if m is None else args[m]
            for n, m in places.outputs
        ]
        args.clear()
        return made[0] if self._single else made

    def _value(self, node: Any, values: dict[Node, Any], results: dict[Node, Any]) -> Any:
        if not isinstance(node, Node):
            return node
        if node in results:
            return results[node]
        if node in values:
            return values[node]
        if node.op == "get_attr":
            return self._held[self._constants.index(node)]
        given, named = torch.fx.map_arg(
            (node.args, node.kwargs), lambda n: self._value(n, values, results)
        )
        return node.target(*given, **named)  # a size, or a view

    def _run(self, given: Sequence[Any]) -> Sequence[Any]:
        """The results of the program, with the strides that the graph promised."""
        assert self._programs is not None
        every = [*given, *self._held]
        every = parts(every) if self._pairs else every
        ready = self._ready
        if self._sized is not None and (sized := self._sized.run(every)) is not None:
            fresh = sized
        elif ready is None or (ready.entry.flags and not ready.entry.fits()):
            fresh = self._programs(*every)
            if self._fixed and len(self._programs._known) == 1:
                self._ready = next(iter(self._programs._known.values()))
        else:
            fresh = ready.run(every)
        rows = [fresh] if isinstance(fresh, torch.Tensor) else fresh
        made = []
        for row, node, order in zip(rows, self._results, self._orders, strict=True):
            result = whole(row, node.meta["val"], order)
            made.append(result if order is None else result.permute(_inverse(order)))
        return made


def _wanted(error: Exception) -> str:
    """Why a graph has no one program; what Python says of an extent as a number has a code."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    own = isinstance(error, PullbackError)
    return said if own else f"a rule wants a size as a number ({said}) [E120]"


def _views(made: Sequence[Node]) -> set[Node]:
    """The results that are views of arguments or of other results: PyTorch takes from them where
    they lie, which it knows by itself only where no number is symbolic.
    """
    roots = {n: _root(n) for n in made}
    whole = {n for n, root in roots.items() if root is n}
    return {n for n, r in roots.items() if r is not n and (r.op == "placeholder" or r in whole)}


def _root(node: Node) -> Node:
    """What a node is a view of; itself where it is none."""
    above = node.args[0] if node.args else None
    part = node.target is operator.getitem and isinstance(above, Node) and _is_view(above)
    return _root(above) if isinstance(above, Node) and (part or _is_view(node)) else node


def _is_view(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _direct(write: Write, late: Container[Node]) -> bool:
    """Whether a program may write an argument itself."""
    return (
        not _is_complex(write.target)
        and fills(write.target.meta["val"])
        and write.value not in late
    )


def applied(node: Node, given: Any, named: Any) -> Any:
    """What the rule of a node gives."""
    if node.target in SIZES:
        x = given[0]
        return x.shape[given[1]] if len(given) > 1 else x.size
    own = OVERLOADS.get(node.target)
    rule: Any = RULES.get(node.target, node.target) if own is None else own.inlined
    if node.target in COMPLEX and any(map(_is_complex, node.all_input_nodes)):
        rule = COMPLEX[node.target]
    return rule(*given, **named)


def typed(value: Any, meta: Any) -> Any:
    """A result of the type, and the shape, that the graph promised."""
    if isinstance(value, list | tuple) and meta is not None:
        return type(value)(typed(v, m) for v, m in zip(value, meta, strict=True))
    if not isinstance(meta, torch.Tensor) or value is None:
        return value
    made: Tensor | Complex
    if meta.dtype in PAIRS:
        made = as_complex(value, meta)
    else:
        made = value if isinstance(value, Tensor) else Tensor(value)
    if _differs(made.shape, meta.shape):
        what = f"its rule gives the shape {tuple(made.shape)}, not {tuple(meta.shape)}"
        raise UnsupportedError(what, code="E386")
    if isinstance(made, Complex) or KINDS[made.dtype] == meta.dtype:
        return made
    return made.astype(TYPES[meta.dtype])


def _differs(own: Sequence[Any], promised: Sequence[Any]) -> bool:
    """Whether shapes differ where both are numbers."""
    pairs = zip(own, promised, strict=False)
    return len(own) != len(promised) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs
    )


def _needed(nodes: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """The steps that results need, in order."""
    needed = set(results)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [n for n in nodes if n in needed and n.op == "call_function" and n.target != SEED]


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_complex(node: Node) -> bool:
    return _is_tensor(node) and node.meta["val"].dtype in PAIRS


def _order(meta: Any) -> tuple[int, ...] | None:
    """The axes as they lie in memory, far apart first; None: in row-major order already."""
    if not all(isinstance(s, int) for s in (*meta.shape, *meta.stride())) or not meta.numel():
        return None
    order = sorted(range(meta.ndim), key=lambda n: (-meta.stride(n), n))
    rest = 1
    for n in reversed(order):
        if meta.shape[n] != 1 and meta.stride(n) != rest:
            return None  # gaps, or one element for many: rows are as good
        rest *= meta.shape[n]
    return None if meta.is_contiguous() else tuple(order)


def strides(meta: Any) -> tuple[int, ...]:
    """Of a new tensor: those promised, where they leave no gap, else rows."""
    dense = meta.is_contiguous() or _order(meta) is not None
    return tuple(meta.stride()) if dense else row_major(meta.shape)


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(n) for n in range(len(order))]
