"""`pb.recurrence`: tensors defined by themselves, cell by cell.

    recurrence((n, m), lambda f, i, j: where((i == 0) | (j == 0), 0.0, f[i-1, j] + f[i, j-1]))

The reads of itself say in which order cells are computed (`wavefront`); how, stands in `diagonals`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pullback.algebra.bounds import bounds, in_bounds, prove
from pullback.errors import (
    DTypeError,
    IndexRangeError,
    Origin,
    RecurrenceError,
    UnsupportedError,
)
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.graph import Variable
from pullback.tensor.define.compute import check_free, check_reads, close, parameters_of
from pullback.tensor.define.diagonals import Recurrence, computed
from pullback.tensor.define.scope import Scope
from pullback.tensor.define.wavefront import Link, order
from pullback.tensor.face import handles
from pullback.tensor.face.handles import ScalarHandle, as_expr, new_axis, read_at
from pullback.tensor.face.tensor import Tensor, optional_dtype, shape_of
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.rules import Arithmetic

MODES = ("tape", "recompute", "sqrt")
ROUNDS = 4  # in which the type of what reads itself must settle: weak, float, wider, the same

Body = Callable[[Sequence["Itself"], Sequence[ScalarHandle]], Sequence[Any]]


class Itself(Arithmetic[Any]):
    """The tensor that is being defined: it can be read at places, and nothing else."""

    __slots__ = ("open", "variable")
    __array_ufunc__ = None

    def __init__(self, variable: Variable, *, open: bool) -> None:
        self.variable = variable
        self.open = open

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its extents."""
        return self.variable.shape

    @property
    def value(self) -> Variable:
        """What reads of it read."""
        return self.variable

    def __getitem__(self, key: Any) -> ScalarHandle:
        parts = key if isinstance(key, tuple) else (key,)
        element = read_at(self.variable, parts)
        return handles.settled(element.expr) if self.open else element

    def _apply(self, name: str, *operands: Any) -> Any:
        raise self._refused(name)

    def __bool__(self) -> bool:
        raise self._refused("truth")

    def _refused(self, name: str) -> RecurrenceError:
        return RecurrenceError(
            f"{name} of a whole tensor that is still being defined",
            help="read cells of it: f[i - 1]",
            code="E195",
        )


def recurrence(
    shape: Any,
    function: Callable[..., Any],
    *,
    dtype: Any = None,
    name: str = "recurrence",
    checkpoint: str = "tape",
) -> Any:
    """The tensor ``f[i, j] = function(f, i, j)``, whose cells are made of other cells of it.

    A read ``f[i - a, j + b]`` has a constant distance along each axis that orders the cells; along
    others it may be anything, such as ``f[t - 1, k]`` under a reduction over k. The order is found:
    one axis is a loop over it, two are wavefronts of cells with equal ``i + j``, all cells of which
    are computed together. A guard decides the border: ``pb.where(i < 1, x[i], f[i - 1] + x[i])``.

    Several tensors of one shape define each other: ``function(e, f, i, j)`` gives both. `dtype` is
    that of what the function gives, unless said. Inside `pb.jit` this is one loop in the program;
    outside it is a program of its own. `checkpoint` says what the backward keeps, as for `pb.loop`.

    Raises: RecurrenceError where cells need each other (E193), where no axis has constant distances
    (E194), where the function is not one of cells (E195); IndexRangeError (E152) for a read of
    itself that its guards do not keep inside.

    Source: Lamport, The parallel execution of DO loops, 1974.

    Example:
        >>> pb.recurrence((6,), lambda f, i: pb.where(i < 2, 1, f[i - 1] + f[i - 2])).tolist()
        [1, 1, 2, 3, 5, 8]
    """
    origin = Origin.of_caller()
    if checkpoint not in MODES:
        raise UnsupportedError(
            f"checkpoint={checkpoint!r}", help=f"one of {', '.join(MODES)}", code="E312"
        )
    extents = shape_of(shape)
    names, axis_names = _parameters(function, len(extents), origin)
    axes = [new_axis(e, n) for e, n in zip(extents, axis_names, strict=True)]
    results: list[bool] = []

    def body(itself: Sequence[Itself], own: Sequence[ScalarHandle]) -> Sequence[Any]:
        bodies = function(*itself, *own)
        single = not isinstance(bodies, tuple | list)
        results.append(single)
        return [bodies] if single else bodies

    named = [name] if len(names) == 1 else names
    made = recurrent(named, axes, body, origin, dtype=dtype, checkpoint=checkpoint, name=name)
    return made[0] if results[-1] else tuple(made)


def _parameters(
    function: Callable[..., Any], rank: int, origin: Origin
) -> tuple[list[str], list[str]]:
    """The names of the tensors and of the axes. Raises: RecurrenceError where there are too few."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    empty = inspect.Parameter.empty
    given = parameters_of(function, origin)
    taken = [p.name for p in given if p.kind in kinds and p.default is empty]
    if len(taken) <= rank:
        raise RecurrenceError(
            f"a function of {len(taken)} parameters for a tensor with {rank} axes",
            origin=origin,
            help="first the tensor (or tensors) that it defines, then an index for each axis:"
            " lambda f, i, j: ..",
            code="E195",
        )
    return taken[: len(taken) - rank], taken[len(taken) - rank :]


def recurrent(
    names: Sequence[str],
    axes: Sequence[ScalarHandle],
    body: Body,
    origin: Origin,
    *,
    dtype: Any = None,
    checkpoint: str = "tape",
    name: str = "recurrence",
) -> list[Tensor]:
    """The tensors ``itself[m][axes] = body(itself, axes)[m]``."""
    own = tuple(h.expr for h in axes if isinstance(h.expr, Axis))
    variables, bodies = _settled(names, axes, own, body, optional_dtype(dtype), origin)
    if 0 in (a.extent for a in own):
        return [close(axes, ScalarHandle(E.const(0, b.dtype)), name, origin) for b in bodies]
    links: list[Link] = []
    for n, one in enumerate(bodies):
        check_free(one, own, origin)
        check_reads(one, origin)
        links += _links(n, one, own, variables)
    if not links:
        return [close(axes, ScalarHandle(b), n, origin) for b, n in zip(bodies, names, strict=True)]
    shape = tuple(a.extent for a in own)
    chosen = order(links, shape, len(bodies))
    if chosen is None:
        raise _no_order(links, origin)
    given = Recurrence(name, origin, own, tuple(variables), tuple(bodies), chosen)
    return computed(given, checkpoint)


def _settled(
    names: Sequence[str],
    axes: Sequence[ScalarHandle],
    own: Sequence[Axis],
    body: Body,
    dtype: DType | None,
    origin: Origin,
) -> tuple[list[Variable], list[Expr]]:
    """Variables that stand for the tensors, and the bodies that read them, of the same types.

    Raises: DTypeError where no type is that of what is made of it.
    """
    shape = tuple(a.extent for a in own)
    kinds: list[DType] = [dtype or D.int64] * len(names)
    for turn in range(ROUNDS):
        open = turn == 0 and dtype is None
        variables = [Variable(n, shape, k, origin) for n, k in zip(names, kinds, strict=True)]
        written = body([Itself(v, open=open) for v in variables], axes)
        if len(written) != len(names):
            raise RecurrenceError(
                f"{len(names)} tensors are defined by {len(written)} bodies",
                origin=origin,
                code="E195",
            )
        bodies = [as_expr(b) for b in written]
        if dtype is not None:
            return variables, [W.cast(b, dtype) for b in bodies]
        if not open and [b.dtype for b in bodies] == kinds:
            return variables, bodies
        kinds = [b.dtype for b in bodies]
    raise DTypeError(
        f"what reads itself as {', '.join(str(v.dtype) for v in variables)} is"
        f" {', '.join(map(str, kinds))}",
        origin=origin,
        help="say which type it has: dtype=",
        code="E142",
    )


def _links(
    number: int, body: Expr, axes: Sequence[Axis], variables: Sequence[Variable]
) -> list[Link]:
    """The reads of itself. Raises: IndexRangeError where one may leave its axis."""
    scope = Scope(body)
    links: list[Link] = []
    for node in scope.nodes:
        if isinstance(node, Take) and node.source in variables:
            link = Link.of(number, variables.index(node.source), node, axes)
            _check_inside(link, scope.guards(node), axes)
            links.append(link)
    return links


def _check_inside(link: Link, guards: Sequence[Expr], axes: Sequence[Axis]) -> None:
    """Raises: IndexRangeError unless guards keep every index of known distance inside."""
    if any(prove(g) is False for g in guards):
        return  # nobody looks at it
    inside = in_bounds(link.take, guards)
    for n, (distance, proved) in enumerate(zip(link.distances, inside, strict=True)):
        if distance is not None and not proved:
            lo, hi = bounds(link.take.indices[n], guards)
            source = link.take.source
            raise IndexRangeError(
                f"an index of {source} runs from {lo} to {hi} as far as its guards say, axis {n} of"
                f" {show(source.shape)} has {axes[n].extent} elements",
                origin=handles.origin_of(link.take),
                help="guard the read by its own axes: pb.where(i >= 1, f[i - 1], start)",
                code="E152",
            )


def _no_order(links: Sequence[Link], origin: Origin) -> RecurrenceError:
    """Why there is no order: a read that has no distance, or reads that want opposite ones."""
    for link in links:
        if all(d is None or d == (0, 0) for d in link.distances):
            where = handles.origin_of(link.take) or origin
            if any(d is None for d in link.distances):
                return RecurrenceError(
                    f"a read of {link.take.source} that is no constant distance before along any"
                    " axis",
                    origin=where,
                    help="data or other axes may choose the place along an axis that does not order"
                    " the cells; along one that does, the read is f[i - 1]",
                    code="E194",
                )
            if link.reader == link.source:
                return RecurrenceError(
                    f"a cell of {link.take.source} reads itself", origin=where, code="E193"
                )
    return RecurrenceError(
        "cells need each other: no order of the axes has every read before the cell that it is for",
        origin=handles.origin_of(links[-1].take) or origin,
        help="a recurrence reads f[i - 1] or f[i + 1], not both",
        code="E193",
    )
