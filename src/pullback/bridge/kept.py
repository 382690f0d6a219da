"""Graphs of ATen operators as text: what one process leaves to the next.

``x: float32 (2, 3); y = aten.add.Tensor(x, 1); return (y,)  ->  a JSON list, a node an entry``

An entry is a node's name, kind, target, arguments and what it gives. Text is data: reading it runs
nothing, and names operators that PyTorch has, or it is refused.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from pullback.bridge.symbols import Symbols, symbols_of, tree_of
from pullback.errors import StateError, UnsupportedError

PLAIN = (bool, int, str, type(None))
FREE = {"getitem": operator.getitem, "mul": operator.mul, "add": operator.add}
FREE |= {"sub": operator.sub, "floordiv": operator.floordiv, "sym_sum": torch.sym_sum}
WORDS = torch.dtype, torch.layout, torch.memory_format
HEX, NODE, LIST, TUPLE, WORD, DEVICE, TENSOR = "float", "node", "list", "tuple", "word", "on", "of"
SIZE, SYMBOLS, PAIR = "size", "symbols", "complex"
DIGEST = 32  # bytes

Constants = Mapping[str, tuple[list[int], str, bytes]]
"""Tensors that a graph holds, by name: shape, type, contents in row-major order."""


def digest(text: str, constants: Constants) -> str:
    """What tells whether a text is whole."""
    state = hashlib.blake2b(text.encode(), digest_size=DIGEST)
    for name, (shape, kind, data) in sorted(constants.items()):
        state.update(f"{name} {shape} {kind} {len(data)}".encode())
        state.update(data)
    return state.hexdigest()


def text_of(gm: Any) -> str:
    """A graph as text. Raises: UnsupportedError E390 for what text does not hold."""
    entries = [
        [
            n.name,
            n.op,
            _target(n),
            _plain(n.args),
            _plain(dict(n.kwargs)),
            _given(n.meta.get("val")),
        ]
        for n in gm.graph.nodes
    ]
    told = symbols_of([n.meta.get("val") for n in gm.graph.nodes])
    return json.dumps([[SYMBOLS, told], *entries] if told else entries)


def constants(gm: Any) -> Constants:
    """The tensors that a graph holds. Raises: UnsupportedError E390 for what is no plain tensor."""
    kept = {}
    for node in gm.graph.nodes:
        if node.op != "get_attr":
            continue
        value = getattr(gm, str(node.target))
        if type(value) is not torch.Tensor or value.device.type != "cpu":
            raise _unkept(f"a constant that is a {type(value).__name__}")
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
        kept[str(node.target)] = (list(value.shape), _word(value.dtype), bytes(flat.numpy()))
    return kept


def read(text: str, held: Constants) -> Any:
    """The graph of a text. Raises: StateError E391 for a text that is none."""
    home = torch.nn.Module()
    for name, (shape, kind, data) in held.items():
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
        value = flat.view(_named(kind)) if data else flat.to(_named(kind))
        home.register_buffer(name, value.reshape(shape), persistent=False)
    graph, made, entries = Graph(), dict[str, Node](), json.loads(text)
    told = entries.pop(0)[1] if entries and entries[0][0] == SYMBOLS else []
    symbols = Symbols(told)
    with FakeTensorMode(shape_env=symbols.env):
        for name, op, target, args, kwargs, meta in entries:
            called = _operator(target) if op == "call_function" else target
            given, named = _back(args, made, symbols), _back(kwargs, made, symbols)
            node = made[name] = graph.create_node(op, called, given, named, name)
            node.meta["val"] = _back(meta, made, symbols)
    return GraphModule(home, graph)


def _target(node: Node) -> str:
    """The name of what a node calls."""
    if node.op != "call_function":
        return str(node.target)
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    name = getattr(node.target, "__name__", "")
    if FREE.get(name) is not node.target:
        raise _unkept(f"a call of {node.target}")
    return f"operator.{name}"


def _operator(name: str) -> Any:
    """What a name calls."""
    home, _, rest = name.partition(".")
    if home == "operator":
        return FREE[rest]
    packet, _, overload = rest.partition(".")
    called = getattr(getattr(getattr(torch.ops, home), packet), overload)
    if not isinstance(called, torch._ops.OpOverload):
        raise StateError(f"a kept graph calls {name}", code="E391")
    return called


def _plain(value: Any) -> Any:
    """Arguments of a node as JSON has them."""
    if isinstance(value, torch.SymInt):
        return {SIZE: tree_of(value)}
    if isinstance(value, torch.SymFloat | torch.SymBool):
        raise _unkept("a symbolic number that is no size")
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, float):
        return {HEX: value.hex()}
    if isinstance(value, complex):
        return {PAIR: [value.real.hex(), value.imag.hex()]}
    if isinstance(value, Node):
        return {NODE: value.name}
    if isinstance(value, WORDS):
        return {WORD: _word(value)}
    if isinstance(value, torch.device):
        return {DEVICE: str(value)}
    if isinstance(value, dict):
        return [[_plain(k), _plain(v)] for k, v in value.items()]
    if isinstance(value, list | tuple):
        return {TUPLE if isinstance(value, tuple) else LIST: [_plain(v) for v in value]}
    raise _unkept(f"an argument that is a {type(value).__name__}")


def _given(meta: Any) -> Any:
    """What a node gives: types, sizes and strides of tensors, but nothing else of them."""
    if isinstance(meta, torch.Tensor):
        if meta.device.type != "cpu" or meta.layout != torch.strided:
            raise _unkept(f"a tensor of {meta.layout} on {meta.device}")
        shape, strides = map(tree_of, meta.shape), map(tree_of, meta.stride())
        return {TENSOR: [_word(meta.dtype), list(shape), list(strides)]}
    if isinstance(meta, list | tuple):
        return {TUPLE if isinstance(meta, tuple) else LIST: [_given(m) for m in meta]}
    return _plain(meta)


def _back(value: Any, made: Mapping[str, Node], symbols: Symbols) -> Any:
    """Arguments of a node, or what it gives, of their JSON."""
    if isinstance(value, list):
        return {k: _back(v, made, symbols) for k, v in value}
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == NODE:
        return made[content]
    if kind in (LIST, TUPLE):
        parts = [_back(v, made, symbols) for v in content]
        return parts if kind == LIST else tuple(parts)
    return _BACK[kind](content, symbols)


def _tensor(content: Sequence[Any], symbols: Symbols) -> Any:
    kind, shape, strides = content
    own, steps = ([symbols.size(s) for s in sizes] for sizes in (shape, strides))
    return torch.empty_strided(own, steps, dtype=_named(kind))


_BACK: dict[str, Callable[[Any, Symbols], Any]] = {
    HEX: lambda content, _: float.fromhex(content),
    PAIR: lambda content, _: complex(*map(float.fromhex, content)),
    WORD: lambda content, _: _named(content),
    DEVICE: lambda content, _: torch.device(content),
    SIZE: lambda content, symbols: symbols.size(content),
    TENSOR: _tensor,
}


def _word(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _named(word: str) -> Any:
    value = getattr(torch, word, None)
    if not isinstance(value, WORDS):
        raise StateError(f"a kept graph has {word}", code="E391")
    return value


def _unkept(what: str) -> UnsupportedError:
    return UnsupportedError(f"{what}, in a graph that is kept", code="E390")
