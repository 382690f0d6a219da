"""Products of sparse and dense matrices, as sums under guards that bound their loops.

``y[i, j] = sum over p of if(start[i] <= p < stop[i], values[p] x[indices[p], j], 0)``; backends
that write loops run those p alone (`backends/nests/ranges.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Extent, If, Less, Mul
from pullback.ir.graph import ANY, SUM, Definition, Keep, Rule, Value, read
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.elementwise import axes_of, cast, full, literal, make
from pullback.tensor.values.updates import Places, accumulated


@shaped("values: float[k], indices: int[k], pointers: int[p], x: float[m, ...]")
def csr_matmul(values: Tensor, indices: Tensor, pointers: Tensor, x: Tensor) -> Tensor:
    """``y[i, j] = sum[p from pointers[i] to pointers[i + 1]] values[p] x[indices[p], j]``

    `x` is a vector or a matrix; its rows are the columns of the sparse matrix. Derivatives by
    `values` and `x`, of every order.
    Raises: ShapeError, E593, for other ranks and no pointers. Where the program runs: E106, for
    columns that `x` does not have, and at -1 of `pointers` that do not rise from 0 to k.

    Example:
        >>> pb.sparse.csr_matmul(pb.ones(2), pb.tensor([0, 2]), pb.tensor([0, 1, 2]), pb.ones(3))
        Tensor([1., 1.], dtype=float32)
    """
    own = _sparse(values, indices, pointers, value_of(x).shape)
    return Tensor(_product(own, _same(values, x), _same(x, values)))


@shaped("values: float[k], indices: int[k], pointers: int[p], x: float[m, ...]")
def csr_transposed_matmul(
    values: Tensor, indices: Tensor, pointers: Tensor, x: Tensor, columns: int
) -> Tensor:
    """``y[indices[p], j] += values[p] x[i, j]`` for the p of row i: the product with the transpose.

    `columns` is how many the sparse matrix has; `x` has as many rows as it.
    Raises: as `csr_matmul`; ShapeError, E593, where `x` has not the rows that the pointers have.

    Example:
        >>> values, indices, pointers = pb.ones(2), pb.tensor([0, 2]), pb.tensor([0, 1, 2])
        >>> pb.sparse.csr_transposed_matmul(values, indices, pointers, pb.ones(2), 3)
        Tensor([1., 0., 1.], dtype=float32)
    """
    own = _sparse(values, indices, pointers, (columns, *value_of(x).shape[1:]))
    if x.shape[0] != own.rows:
        raise ShapeError(f"{x.shape[0]} rows by the transpose of {own.rows}", code="E593")
    return Tensor(_turned(own, _same(values, x), _same(x, values)))


@shaped("values: float[k], rows: int[k], columns: int[k], x: float[m, ...]")
def coo_matmul(values: Tensor, rows: Tensor, columns: Tensor, x: Tensor, count: int) -> Tensor:
    """``y[rows[p], j] += values[p] x[columns[p], j]``, `count` rows.

    Derivatives by `values` and `x`. The transpose is that of rows and columns changed about.
    Raises: ShapeError, E593, for other ranks; IndexRangeError where the program runs for places
    that are none.

    Example:
        >>> place = pb.tensor([1, 1])
        >>> pb.sparse.coo_matmul(pb.ones(2), place, place, pb.ones(3), 2)
        Tensor([0., 2.], dtype=float32)
    """
    v, dense = _same(values, x), _same(x, values)
    wide = _wide(count, dense.shape, v.shape[0])
    domain = (v.shape[0], *wide)
    if 0 in domain or count == 0:
        return Tensor(full((count, *wide), 0.0, v.dtype))
    p, *j = axes_of(domain)
    term = Mul(read(v, p), read(dense, _place(value_of(columns), p), *j))
    places = Places((count, *wide), domain, (_place(value_of(rows), p), *j))
    return Tensor(accumulated(places, term, SUM, "coo_matmul"))


@shaped("pointers: int[p]")
def csr_rows(pointers: Tensor, count: int) -> Tensor:
    """The row of each of `count` values, int32: CSR's pointers as COO's rows.

    Raises: ShapeError, E593, for no pointers; IndexRangeError as `csr_matmul`.

    Example:
        >>> pb.sparse.csr_rows(pb.tensor([0, 1, 1, 3]), 3).numpy()
        array([0, 2, 2], dtype=int32)
    """
    empty = full((count,), 0, D.int32)
    own = _sparse(Tensor(empty), Tensor(empty), pointers, (0,) if count == 0 else (1,))
    return Tensor(_rows_of(own))


# --- what stands where ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _CSR:
    """Where the values of a sparse matrix stand: `rows` by `columns`, `wide`: other axes of the
    dense operand. Row i has the values from ``pointers[i]`` to ``pointers[i + 1]``; `first` is 0,
    known once all of them were looked at.
    """

    indices: Value
    pointers: Value
    first: Value
    count: Extent
    rows: int
    columns: Extent
    wide: tuple[Extent, ...]

    def inside(self, i: Expr, p: Expr) -> Expr:
        """Whether value p is in row i."""
        start, stop = (cast(read(self.pointers, at), D.int64) for at in (i, E.Add(i, E.index(1))))
        begun = E.logical_not(Less(p, E.Add(start, read(self.first))))
        return E.And(begun, Less(p, stop))

    @property
    def empty(self) -> bool:
        return 0 in (self.count, self.rows, *self.wide)


def _sparse(values: Tensor, indices: Tensor, pointers: Tensor, shape: Sequence[Extent]) -> _CSR:
    (count,) = value_of(values).shape
    (ends,) = value_of(pointers).shape
    if not isinstance(ends, int) or ends < 1:
        raise ShapeError(
            f"{ends} pointers", help="one more than there are rows, the first is 0", code="E593"
        )
    wide = _wide(shape[0], shape, count)
    own = value_of(pointers)
    first = _first(own, count, ends - 1)
    return _CSR(value_of(indices), own, first, count, ends - 1, shape[0], wide)


def _wide(rows: Extent, shape: Sequence[Extent], count: Extent) -> tuple[Extent, ...]:
    """The axes of a dense operand behind its rows. Raises: ShapeError, E593, for several."""
    if len(shape) not in (1, 2):
        raise ShapeError(
            f"a sparse matrix by a tensor of {len(shape)} axes",
            help="a vector or a matrix",
            code="E593",
        )
    if type(rows) is int and (rows < 0 or (rows == 0 and count != 0)):
        raise ShapeError(f"{count} values in {rows} rows or columns", code="E593")
    if shape[0] == 0 and count != 0:
        raise ShapeError(f"{count} values by a tensor without rows", code="E593")
    return tuple(shape[1:])


def _first(pointers: Value, count: Extent, rows: int) -> Value:
    """0. Pointers that do not rise from 0 to `count` are read at -1, so that the program raises;
    others at 0, where a 0 stands.
    """
    if rows == 0:
        return full((), 0, D.int64)
    (i,) = axes_of((rows,))
    falls = Less(read(pointers, E.Add(i, E.index(1))), read(pointers, i))
    some = W.reduce("falls", (), [rows], falls, ANY)
    ends = [cast(read(pointers, E.index(n)), D.int64) for n in (0, rows)]
    whole = E.And(E.Equal(ends[0], E.index(0)), E.Equal(ends[1], E.extent_expr(count)))
    at = If(E.Or(read(some), E.logical_not(whole)), E.index(-1), E.index(0))
    return make("first", (), cast(read(pointers, at), D.int64), stop=True, keep=Keep.ALWAYS)


def _place(indices: Value, p: Expr) -> Expr:
    return cast(read(indices, p), D.int64)


def _same(value: Tensor, other: Tensor) -> Value:
    """`value` in the type of both."""
    own, kind = value_of(value), W.numeric("sparse", [value_of(value), value_of(other)])
    if own.dtype is kind:
        return own
    return make("values", own.shape, cast(read(own, *axes_of(own.shape)), kind))


# --- products, each the derivative of the other --------------------------------------------------


def _product(own: _CSR, v: Value, x: Value) -> Value:
    """The matrix times `x`."""
    shape = (own.rows, *own.wide)
    if own.empty:
        return full(shape, 0.0, v.dtype)
    i, p, *j = axes_of((own.rows, own.count, *own.wide))
    inside = own.inside(i, p)
    term = If(inside, Mul(read(v, p), read(x, _place(own.indices, p), *j)), literal(0.0, v.dtype))
    row = i if j else If(inside, i, E.index(0))  # data: loops stay as they are, a row at a time
    y = accumulated(Places(shape, (own.rows, own.count, *own.wide), (row, *j)), term, SUM, "csr")

    def pull(adjoints: Sequence[Value]) -> Sequence[Value | None]:
        return _sampled(own, adjoints[0], x), _turned(own, v, adjoints[0])

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        dv, dx = tangents
        return (_sum(_product(own, dv, x), _product(own, v, dx)),)

    y.rule = Rule("csr_matmul", (y,), (v, x), pull, push)
    return y


def _turned(own: _CSR, v: Value, x: Value) -> Value:
    """The transpose times `x`."""
    shape = (own.columns, *own.wide)
    if own.empty:
        return full(shape, 0.0, v.dtype)
    i, p, *j = axes_of((own.rows, own.count, *own.wide))
    inside = own.inside(i, p)
    term = If(inside, Mul(read(v, p), read(x, i, *j)), literal(0.0, v.dtype))
    column = If(inside, _place(own.indices, p), E.index(0))
    domain = (own.rows, own.count, *own.wide)
    y = accumulated(Places(shape, domain, (column, *j)), term, SUM, "csr_transposed")

    def pull(adjoints: Sequence[Value]) -> Sequence[Value | None]:
        return _sampled(own, x, adjoints[0]), _product(own, v, adjoints[0])

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        dv, dx = tangents
        return (_sum(_turned(own, dv, x), _turned(own, v, dx)),)

    y.rule = Rule("csr_transposed_matmul", (y,), (v, x), pull, push)
    return y


def _sampled(own: _CSR, left: Value, right: Value) -> Value:
    """``d[p] = sum[j] left[row of p, j] right[indices[p], j]``"""
    rows = _rows_of(own)
    p, *j = axes_of((own.count, *own.wide))
    row = cast(read(rows, p), D.int64)
    body = Mul(read(left, row, *j), read(right, _place(own.indices, p), *j))
    if own.wide:
        return W.reduce("sampled", (own.count,), list(own.wide), body)
    return make("sampled", (own.count,), body)


def _rows_of(own: _CSR) -> Value:
    """The row of each value."""
    if own.empty:
        return full((own.count,), 0, D.int32)
    i, p = axes_of((own.rows, own.count))
    inside = own.inside(i, p)
    body = If(inside, cast(i, D.int32), literal(0, D.int32))
    place = If(inside, p, E.index(0))
    return accumulated(Places((own.count,), (own.rows, own.count), (place,)), body, SUM, "rows")


def _sum(left: Value, right: Value) -> Definition:
    at: Any = axes_of(left.shape)
    return make("sum", left.shape, E.Add(read(left, *at), read(right, *at)))
