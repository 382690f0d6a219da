"""Functions whose calls wait outside of programs, see `deferred`.

    @eagerly
    def sum(x, axis=None): ...         the first sum of float32[100] makes a definition,
                                       the second one is a number with an operand

What makes a definition of more than its operands (states, random numbers), or looks at values, is
called every time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import EllipsisType, NoneType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pullback.backends.host.system import address
from pullback.errors import InvalidIR, Origin
from pullback.ir.dtype import DType
from pullback.ir.graph import Definition, Value, Variable, topological
from pullback.tensor.record.deferred import Call, Deferred, Node, remember_call, tables
from pullback.tensor.record.held import Array, Held, copied, kind_of, looks
from pullback.tensor.record.trace import Handle, current, known, result_of
from pullback.tensor.values.indexing import element_rows, index

P = ParamSpec("P")
R = TypeVar("R")

_OPERAND = object()
STATIC = (int, str, bool, NoneType, EllipsisType, DType, type)


def scan(head: Any, given: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Node, ...]] | None:
    """The key of a call and its operands; None where it does not wait.

    That is inside of programs, with operands that are not known, and with arguments of other kinds.
    """
    if current() is not None:
        return None
    key = [head]
    nodes: list[Node] = []
    for one in given:
        if isinstance(one, Handle):
            node = one._node if one.waits else None
            if not isinstance(node, Deferred | Held):
                node = _known(one, node)
                if node is None:
                    return None
            key.append(node.kind)
            nodes.append(node)
            continue
        kind = type(one)
        if kind is float:
            key.append(one if one else str(one))  # 0.0 and -0.0 are equal, and are not the same
        elif kind is tuple:
            if not all(type(e) is int for e in one):
                return None
            key.append(one)
        elif kind in STATIC:
            key.append(kind)
            key.append(one)
        else:
            return None
    return (tuple(key), tuple(nodes)) if nodes else None


def _known(handle: Handle, node: Any) -> Deferred | None:
    """A definition with its result as an operand."""
    if not isinstance(node, Definition):
        return None
    result = result_of(node)
    if not isinstance(result, Held):
        return None
    call = Call(node.name, result.kind, _never, type(handle))
    operand = Deferred(call, (), node.origin or Origin.of_caller())
    operand.owner = weakref.ref(handle)
    operand.definition, operand.result = node, result
    return operand


def _never(values: Sequence[Value]) -> Value:
    raise InvalidIR("a definition is made twice")


def waiting(like: Any, call: Call, nodes: tuple[Node, ...]) -> Any:
    """A tensor of a call that waits; of a view in one piece it has the result already."""
    node = Deferred(call, nodes, Origin.of_caller())
    handle = like.holding(node)
    node.owner = weakref.ref(handle)
    if call.host is not None and (leaf := known(nodes[0])) is not None:
        view = call.host(leaf.laid)
        if view.flags.c_contiguous:
            node.result = Held(call.name, call.kind, view, address(view), False, node.origin)
    return handle


def eagerly(function: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors whose calls wait. It gives one tensor."""
    return _eagerly(function, None)


def viewing(host: Callable[..., Array]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same, where NumPy's `host` gives a view of the one operand: what lies in one piece is
    there at once, and another view is only copied.
    """
    return lambda function: _eagerly(function, host)


def _eagerly(function: Callable[P, R], host: Callable[..., Array] | None) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        head = (function, *kwargs) if kwargs else function
        try:
            scanned = scan(head, (*args, *kwargs.values()) if kwargs else args)
            known_call = None if scanned is None else tables.calls.get(scanned[0])
        except TypeError:  # a tuple of what has no hash
            return function(*args, **kwargs)
        if scanned is None:
            return function(*args, **kwargs)
        if known_call is not None:
            handle: R = waiting(known_call.like, known_call, scanned[1])
            return handle
        before = looks.last
        result = function(*args, **kwargs)
        if looks.last is before:
            own = None if host is None else partial(_hosted, host, args[1:], kwargs)
            _learn(scanned, function, args, kwargs, result, own)
        return result

    return call


def _hosted(
    host: Callable[..., Array], args: Sequence[Any], kwargs: dict[str, Any], array: Array
) -> Array:
    return host(array, *args, **kwargs)


def indexed(x: Handle, key: Any) -> Any:
    """``x[key]`` by integers, slices, None and Ellipsis that waits; None where it does not.

    A part of what is known that lies in one piece is there at once: no program, no copy.
    """
    if current() is not None or not x.waits:
        return None
    held_node = x._node
    node = held_node if isinstance(held_node, Deferred | Held) else _known(x, held_node)
    if node is None:
        return None
    parts = key if type(key) is tuple else (key,)
    head = _static(parts)
    if head is None:
        return None
    leaf = known(node)
    if leaf is None:
        return _indexed_later(x, node, parts, head)
    whole = parts if Ellipsis in parts else (*parts, ...)
    try:
        shape = leaf.laid[whole].shape
    except IndexError:
        return None  # which is refused in other words
    call = Call("index", kind_of(shape, leaf.dtype), _index(parts), type(x), _host(whole))
    return waiting(type(x), call, (node,))


def _indexed_later(x: Handle, node: Node, parts: tuple[Any, ...], head: tuple[Any, ...]) -> Any:
    """An index into what is not computed yet; its integers are data, one program serves them all.

    None where one is outside, which is refused in other words.
    """
    rows = _rows(parts, node.kind.shape)
    if rows is None:
        return None
    pattern = tuple(_ROW if type(part) is int else part for part in head)
    key = ("index", node.kind, pattern)
    call = tables.calls.get(key)
    if call is None:
        try:
            shape = np.broadcast_to(np.int8(0), node.kind.shape)[parts].shape
        except IndexError:
            return None
        call = Call("index", kind_of(shape, node.dtype), _index(parts), type(x))
        if rows:
            call.build = lambda values: element_rows(values[0], values[1], parts)
        remember_call(key, call)
    places = (copied(np.array(rows, np.int64), "rows"),) if rows else ()
    return waiting(type(x), call, (node, *places))


_ROW = "row"  # in the key of an index: some integer


def _rows(parts: tuple[Any, ...], shape: tuple[int, ...]) -> list[int] | None:
    """The integers of an index, counted from the front; None where one is outside of its axis."""
    rows: list[int] = []
    rest = len(shape) - sum(p is not None and p is not Ellipsis for p in parts)
    axis = 0
    for part in parts:
        if type(part) is int:
            if axis >= len(shape) or not -shape[axis] <= part < shape[axis]:
                return None
            rows.append(part % shape[axis])
        axis += rest if part is Ellipsis else part is not None
    return rows


def _static(parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The parts of an index as a key; None where one is data, or a mistake."""
    key: list[Any] = []
    for part in parts:
        if type(part) is slice:
            ends = part.start, part.stop, part.step
            if not all(e is None or type(e) is int for e in ends) or part.step == 0:
                return None
            key.append(ends)
        elif type(part) is int or part is None or part is Ellipsis:
            key.append(part)
        else:
            return None
    return tuple(key)


def _index(parts: tuple[Any, ...]) -> Callable[[Sequence[Value]], Value]:
    return lambda values: index(values[0], parts)


def _host(parts: tuple[Any, ...]) -> Callable[[Array], Array]:
    return lambda array: array[parts]


def _learn(
    scanned: tuple[tuple[Any, ...], tuple[Node, ...]],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any,
    host: Callable[[Array], Array] | None,
) -> None:
    """Remember a call that made a definition of its operands, and of nothing else."""
    if not isinstance(result, Handle) or not result.waits:
        return
    made = result._node
    if not isinstance(made, Definition) or not all(isinstance(e, int) for e in made.shape):
        return
    given = [*args, *kwargs.values()]
    own = {a._value for a in given if isinstance(a, Handle)}
    sources = {s for d in topological([made], own) for s in d.sources}
    if made in own or any(isinstance(s, Variable) and s not in own for s in sources):
        return
    names, count = tuple(kwargs), len(args)
    like: Any = type(result)

    def build(values: Sequence[Value]) -> Value:
        rest = iter(values)
        filled = [like.holding(next(rest)) if a is _OPERAND else a for a in shown]
        again = function(*filled[:count], **dict(zip(names, filled[count:], strict=True)))
        value: Value = again._value
        return value

    shown = [_OPERAND if isinstance(a, Handle) else a for a in given]
    shape = tuple(e for e in made.shape if isinstance(e, int))
    call = Call(made.name, kind_of(shape, made.dtype), build, like, host)
    remember_call(scanned[0], call)
