"""`pb.jacobian`: every derivative of every element, as one tensor or as its static pattern."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.backends.registry import oracle
from pullback.errors import GradientError, UnsupportedError
from pullback.grad import fold
from pullback.grad.pins import Pins
from pullback.grad.points import Points, Scattered
from pullback.grad.reverse import Reverse
from pullback.grad.rules import active, ordered, own_rule
from pullback.grad.scalar import sweep
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, Take
from pullback.ir.graph import Accumulate, Definition, Rule, Scan, Value, Variable, variables
from pullback.ir.node import walk
from pullback.simplify import guards as G
from pullback.tensor.derive.autograd import Arguments, differentiable, grad, twins_of
from pullback.tensor.derive.differentiate import differentiate
from pullback.tensor.face.arrays import Derivative, as_given
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.recording import reread
from pullback.tensor.record.trace import (
    Array,
    Handle,
    array_of,
    bind,
    contents,
    current,
    realize,
    transformed,
)
from pullback.tensor.values import views as V

Pairs = tuple[Array, Array]


def jacobian(target: Any, inputs: Any = None, structure: str = "dense", argnums: int = 0) -> Any:
    """``J[o, x] = d target[o] / d input[x]``, of shape ``target.shape + input.shape``.

    `inputs` is a tensor or a sequence of them, and `target` a tensor or a function of them; of a
    function without inputs, the function that gives its Jacobian by argument `argnums`.
    structure="sparse" gives ``(rows, columns, values)`` instead, int64 places in the flattened
    output and input, sorted, and the entries there: the exact pattern of the index maps, with
    indices that are data as they are at the call.
    Raises: GradientError; UnsupportedError where the pattern depends on data inside a function that
    is compiled or mapped.

    Example:
        >>> pb.jacobian(lambda x: x * x, pb.tensor([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    if structure not in ("dense", "sparse"):
        raise GradientError(f"structure={structure!r}",
                            help='it is "dense" or "sparse"', code="E222")  # fmt: skip
    if inputs is None:
        return _function(target, structure, argnums)
    single = isinstance(inputs, Handle | np.ndarray)
    given = Arguments([inputs] if single else list(inputs), fresh=callable(target))
    out = transformed(target, *given.values) if callable(target) else target
    if not isinstance(out, Tensor):
        raise GradientError(f"the Jacobian of a {type(out).__name__}, not of a tensor", code="E213")
    if structure == "dense":
        jacobians: list[Any] = differentiate(out, given.values).result
    else:
        jacobians = [_sparse(out.value, v) for v in given.leaves]
    return as_given(jacobians[0] if single else jacobians, inputs)


def hessian(target: Any, inputs: Any = None, argnums: int = 0) -> Any:
    """``H[i, j] = d^2 target / d x[i] d x[j]`` of a scalar: the Jacobian of the gradient.

    Of a tensor by another, or of a function: then the function that gives it by argument `argnums`.
    Products with it alone are `pb.hvp`. Raises: GradientError.

    Example:
        >>> pb.hessian(lambda x: pb.sum(x**3))(pb.tensor([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """
    if callable(target) and not isinstance(target, Handle):
        slope = grad(target, argnums=argnums)
        return jacobian(slope, inputs, argnums=argnums)
    return jacobian(grad(target, inputs), inputs)


def _function(target: Any, structure: str, argnums: int) -> Callable[..., Any]:
    if not callable(target):
        raise GradientError("the Jacobian by what? pb.jacobian(y, x)", code="E212")

    def derivative(*args: Any) -> Any:
        def of_one(x: Any) -> Any:
            return target(*args[:argnums], x, *args[argnums + 1 :])

        return jacobian(of_one, args[argnums], structure)

    return Derivative(target, derivative, [argnums])


# --- sparse --------------------------------------------------------------------------------------


def _sparse(output: Value, wanted: Value) -> tuple[Tensor, Tensor, Tensor]:
    differentiable([output, wanted])
    wanted = twins_of([wanted]).get(wanted, wanted)
    shape, inner = (_literal(v) for v in (output, wanted))
    rows, columns = _pattern(output, wanted)
    count = len(rows)
    ends = [Tensor(bind(a, n, copy=False)) for a, n in ((rows, "rows"), (columns, "columns"))]
    places = [_split(rows, shape, "row"), _split(columns, inner, "column")]
    pins = Pins(output)
    adjoint = Reverse([pins.pick], [wanted], [None], pins=pins).gradient(wanted)
    points = Points(pins, places[0], math.prod(shape) * math.prod(inner))
    try:
        if not isinstance(adjoint, Definition) or not count:
            raise Scattered
        values = Tensor(points.values(adjoint, places[1], count))
    except Scattered:
        whole = differentiate(Tensor(output), [Tensor(wanted)])[0]
        flat = V.reshape(whole.value, (-1,))
        at = Tensor(bind(rows * math.prod(inner) + columns, "places", copy=False)).value
        axis = Axis(0, count)
        body = E.Take(flat, (E.Take(at, (axis,)),))
        values = Tensor(Definition("values", (count,), body, origin=output.origin))
    return ends[0], ends[1], values


def _literal(value: Value) -> tuple[int, ...]:
    """A shape without symbolic extents. Raises: UnsupportedError."""
    shape = tuple(e for e in value.shape if isinstance(e, int))
    if len(shape) != len(value.shape):
        raise UnsupportedError(
            f"the sparsity of {value!r}, whose extents are symbolic", code="E218"
        )
    return shape


def _split(flat: Array, shape: tuple[int, ...], name: str) -> list[Value]:
    """Flat places as one vector a coordinate."""
    coordinates = np.unravel_index(flat, shape) if shape else ()
    return [Tensor(bind(np.asarray(a, np.int64), name)).value for a in coordinates]


def _pattern(output: Value, wanted: Value) -> Pairs:
    """The (row, column) pairs that some path of index maps joins, sorted."""
    order = ordered([output], own_rule)
    moving = active(order, [wanted], own_rule)
    everything = np.arange(math.prod(_literal(output)))
    reached: dict[Value, list[Pairs]] = {output: [(everything, everything)]}
    for step in reversed(order):
        if step not in moving or step is wanted:
            continue
        if isinstance(step, Rule):
            raise UnsupportedError(
                f"the sparsity of a {step.kind}", origin=step.outputs[0].origin, code="E218"
            )
        above = _united(reached.pop(step, []))
        for source, local in _reads(step, moving):
            reached.setdefault(source, []).append(_joined(above, local))
    return _united(reached.get(wanted, []))


def _united(parts: Sequence[Pairs]) -> Pairs:
    """Each pair once, sorted."""
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    both = np.stack([np.concatenate([p[n] for p in parts]) for n in (0, 1)])
    rows, columns = np.unique(both, axis=1)
    return rows, columns


def _joined(above: Pairs, local: Pairs) -> Pairs:
    """``(a, b), (b, c) -> (a, c)``; `local` is sorted."""
    first = np.searchsorted(local[0], above[1], "left")
    counts = np.searchsorted(local[0], above[1], "right") - first
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return np.repeat(above[0], counts), local[1][starts + np.arange(counts.sum())]


def _reads(definition: Definition, moving: set[Any]) -> list[tuple[Value, Pairs]]:
    """For each read of a moving source the pairs (element of the result, element read).

    Raises: UnsupportedError where an index is data that is not known yet.
    """
    form = definition.form
    box: list[Extent] = list(definition.extents)
    rank = len(definition.shape)
    home: list[Expr] = list(definition.axes[:rank])
    always: list[Expr] = []
    if isinstance(form, Accumulate):
        home = list(form.at)
    if isinstance(form, Scan):
        box.append(definition.shape[form.axis])
        home[form.axis] = Axis(rank, box[-1])
        always.append(E.logical_not(E.Less(home[form.axis], definition.axes[form.axis])))
    pairs = []
    one = fold.one(definition.dtype)
    for take, term in sweep(definition.body, one, moving).items():
        guards = [g for g in (*always, *term.guards) if not G.reads_data(g)]
        _existing(definition, (*home, *take.indices))
        ends = [(home, definition.shape), (list(take.indices), take.source.shape)]
        pairs.append((take.source, _places(box, ends, guards)))
    return pairs


def _places(
    box: Sequence[Extent],
    ends: Sequence[tuple[Sequence[Expr], Sequence[Extent]]],
    guards: Sequence[Expr],
) -> Pairs:
    """Flat places of both ends over a box, where the guards hold and both are inside."""
    inside = np.ones([E.upper(e) for e in box], bool)
    for guard in guards:
        inside &= _evaluated(guard, box)
    flat = []
    for indices, shape in ends:
        place = np.zeros(inside.shape, np.int64)
        for index, extent in zip(indices, shape, strict=True):
            at = _evaluated(index, box, guards)
            inside &= (at >= 0) & (at < E.upper(extent))
            place = place * E.upper(extent) + at
        flat.append(place)
    return _united([(flat[0][inside], flat[1][inside])])


def _evaluated(e: Expr, box: Sequence[Extent], guards: Sequence[Expr] = ()) -> Array:
    """An index over a box; -1 where `guards` keep it from being read."""
    if G.reads_data(e):
        for guard in guards:
            e = E.If(guard, e, E.index(-1))
    wanted = Definition("places", tuple(box), e)
    handles = {s: Tensor(s) for s in wanted.sources}
    realize(handles.values())
    given = {s: Variable(s.name, s.shape, s.dtype) for s in handles}
    arrays = {given[s]: array_of(h) for s, h in handles.items()}
    return oracle([reread(wanted, {**given})], arrays)[0]


def _existing(definition: Definition, indices: Sequence[Expr]) -> None:
    """Raises: UnsupportedError for indices that are data which is not there yet."""
    data = [n.source for i in indices for n in walk(i) if isinstance(n, Take)]
    if data and (current() is not None or any(contents(v) is None for v in variables(data))):
        raise UnsupportedError(
            f"the sparsity of {definition!r}, which reads or writes at indices that are data,"
            " inside a function that is compiled or mapped",
            origin=definition.origin,
            help='how many entries there are is a shape: take it outside, or structure="dense"',
            code="E218",
        )
