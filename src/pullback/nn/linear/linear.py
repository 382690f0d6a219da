"""Linear maps and embeddings as functions, under torch's names."""

from __future__ import annotations

from typing import Any

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64, is_short
from pullback.ir.expr import Add, Equal, Expr, Extent, If, Mul, lowest
from pullback.nn.base.build import at, cast, common, make, written
from pullback.nn.base.space import literal, padded
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.creation import full, zeros
from pullback.tensor.library.ops import (
    astype,
    broadcast_to,
    expand_dims,
    stop_gradient,
    where,
)
from pullback.tensor.library.ops import max as max_of
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.library.scattering import scatter_add
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32


@shaped("input[*b, k], weight[n, k], bias[n] -> [*b, n]")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[.., n] = sum[k] x[.., k] * w[n, k] + b[n]``

    Example:
        >>> F.linear(pb.ones((5, 2)), pb.ones((3, 2)), pb.ones(3)).shape
        (5, 3)
    """
    return linear_rows(input, weight, bias, 0, weight.shape[0])


def linear_rows(
    input: Tensor, weight: Tensor, bias: Tensor | None, start: int, rows: Extent
) -> Tensor:
    """`linear` with rows ``start .. start + rows`` of a packed weight and bias."""
    x, w = input.value, weight.value
    result = common(input, weight, bias)
    kind = result if bias is None or not is_short(result) else float32
    rank = len(x.shape)
    shape = (*x.shape[:-1], rows)

    def product(*i: Expr) -> Expr:
        row = i[rank - 1] if start == 0 else Add(i[rank - 1], E.index(start))
        return Mul(at(x, *i[: rank - 1], i[rank], to=kind), at(w, row, i[rank], to=kind))

    y = make("linear", shape, product, over=(x.shape[-1],))
    if bias is None:
        return y
    b, products = bias.value, y.value

    def shifted(*i: Expr) -> Expr:
        row = i[-1] if start == 0 else Add(i[-1], E.index(start))
        return cast(Add(at(products, *i), at(b, row, to=kind)), result)

    return make("linear_bias", shape, shifted)


@shaped("input: int[*b], weight[rows, width] -> [*b, width]")
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """``y[.., e] = w[tokens[..], e]``; no gradient reaches row `padding_idx`.

    Raises: UnsupportedError for `max_norm` and `sparse`. A token out of range raises at run time.

    Example:
        >>> F.embedding(pb.tensor([0, 2]), pb.ones((5, 3))).shape
        (2, 3)
    """
    _refuse("embedding", max_norm=max_norm, sparse=sparse)
    if scale_grad_by_freq:
        weight = _shared_slopes(weight, input)
    tokens, table = input.value, weight.value
    shape = (*tokens.shape, table.shape[1])
    if padding_idx is None:
        return make("embedding", shape, lambda *i: at(table, at(tokens, *i[:-1]), i[-1]))
    row = _padding_row(padding_idx, table.shape[0])
    still = elementwise.copy(table, "padding", stop=True)

    def body(*i: Expr) -> Expr:
        token = cast(at(tokens, *i[:-1]), int64)
        padding = Equal(token, row)
        return If(padding, at(still, token, i[-1]), at(table, token, i[-1]))

    return make("embedding", shape, body)


def _padding_row(padding_idx: int, rows: Extent) -> Expr:
    """The row that `padding_idx` names, counted from the end where it is negative.

    Raises: ShapeError where there is none.
    """
    most = E.upper(rows)
    if not -most <= padding_idx < most:
        raise ShapeError(f"padding_idx {padding_idx} is no row of {rows}", code="E123")
    if padding_idx >= 0:
        return E.index(padding_idx)
    return Add(E.extent_expr(rows), E.index(padding_idx))


def _refuse(name: str, **given: Any) -> None:
    """Raises: UnsupportedError for an argument that is set."""
    wrong = [argument for argument, value in given.items() if value]
    if wrong:
        raise UnsupportedError(f"{name} with {wrong[0]}")


def _shared_slopes(weight: Tensor, tokens: Tensor) -> Tensor:
    """`weight`, whose rows get the mean of the gradients of the places that name them."""
    places = tokens.reshape(-1)
    none = zeros((weight.shape[0],), dtype=weight.dtype)
    ones = broadcast_to(full((), 1.0, dtype=weight.dtype), places.shape)
    counts = M.maximum(scatter_add(none, places, ones), 1.0)
    still = stop_gradient(weight)
    shared: Tensor = still + (weight - still) / expand_dims(counts, axis=1)
    return shared


def without_row(weight: Tensor, row: int) -> Tensor:
    """``y[r, e] = 0 if r == row else w[r, e]``"""
    value = weight.value
    zero = E.const(0, value.dtype)
    return make(
        "table",
        value.shape,
        lambda r, e: If(Equal(r, E.index(row)), zero, at(value, r, e)),
    )


@shaped("input: int[b...] -> [b..., num_classes]", where="int(num_classes) >= 0")
def one_hot(input: Tensor, num_classes: int) -> Tensor:
    """``y[.., c] = 1 if tokens[..] == c else 0``, int64.

    Example:
        >>> F.one_hot(pb.tensor([0, 2]), 3).tolist()
        [[1, 0, 0], [0, 0, 1]]
    """
    tokens = input.value
    return make(
        "one_hot",
        (*tokens.shape, num_classes),
        lambda *i: E.Cast(Equal(cast(at(tokens, *i[:-1]), int64), i[-1]), int64),
    )


@shaped("input1[b..., i], input2[b..., j], weight[o, i, j], bias[o] -> [b..., o]")
@in_float32
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[.., o] = sum[i, j] a[.., i] * w[o, i, j] * b[.., j] + bias[o]``

    Example:
        >>> F.bilinear(pb.ones((5, 2)), pb.ones((5, 3)), pb.ones((4, 2, 3))).shape
        (5, 4)
    """
    common(input1, input2, weight, bias)
    lead = input1.shape[:-1]
    i, j = axis(weight.shape[1]), axis(weight.shape[2])

    def first(*at: Any) -> Any:
        *n, o, q = at
        return sum_of(input1[(*n, i)] * weight[o, i, q], over=i)

    half = written((*lead, weight.shape[0], weight.shape[2]), first, name="bilinear")

    def second(*at: Any) -> Any:
        return sum_of(half[(*at, j)] * input2[(*at[:-1], j)], over=j)

    y = written((*lead, weight.shape[0]), second, name="bilinear")
    return y if bias is None else y + bias


@shaped(
    "input: int[n, k] or [k], weight[rows, width], offsets: int[m], per_sample_weights[n, k] "
    "or [k]",
)
@in_float32
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or max of the rows that each bag of tokens names.

    Bags are the rows of `input`, or start at `offsets`. Tokens `padding_idx` do not count.
    `scale_grad_by_freq` divides the gradient of a row by how often it is named. Raises:
    UnsupportedError for `max_norm`, `sparse` and another mode; ShapeError.

    Example:
        >>> F.embedding_bag(pb.tensor([[0, 2], [1, 1]]), pb.ones((5, 3))).shape
        (2, 3)
    """
    unknown = mode not in ("sum", "mean", "max") or (mode == "max" and scale_grad_by_freq)
    _refuse("embedding_bag", max_norm=max_norm, sparse=sparse, mode=unknown)
    if scale_grad_by_freq:
        weight = _shared_slopes(weight, input)
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ShapeError(
            f"per_sample_weights {show(per_sample_weights.value.shape)} for tokens "
            f"{show(input.value.shape)}",
            help="both must have one shape",
        )
    bags = _Bags(input, offsets, include_last_offset, padding_idx, weight.shape[0])
    k = axis(bags.longest)

    def row(b: Any, e: Any) -> Any:
        element = weight[bags.token(b, k), e]
        if per_sample_weights is not None:
            element = element * per_sample_weights[bags.place(b, k)]
        return element

    def added(b: Any, e: Any) -> Any:
        return sum_of(padded(bags.tests(b, k), row(b, e)), over=k)

    def largest(b: Any, e: Any) -> Any:
        element = row(b, e)
        return max_of(padded(bags.tests(b, k), element, lowest(element.dtype).value), over=k)

    shape = (bags.count, weight.shape[1])
    y = written(shape, largest if mode == "max" else added, name="embedding_bag")
    if mode == "sum":
        return y
    sizes = written(shape[:1], lambda b: sum_of(padded(bags.tests(b, k), 1, 0), over=k), "sizes")
    if mode == "max":
        return written(shape, lambda b, e: where(sizes[b] == 0, 0.0, y[b, e]), "bag")
    return written(shape, lambda b, e: y[b, e] / astype(M.maximum(sizes[b], 1), y.dtype), "bag")


class _Bags:
    """Which tokens stand in which bag."""

    def __init__(
        self,
        input: Tensor,
        offsets: Tensor | None,
        include_last: bool,
        padding: int | None,
        rows: Extent,
    ) -> None:
        if len(input.shape) != (2 if offsets is None else 1):
            raise ShapeError(
                f"embedding_bag of {show(input.value.shape)}",
                help="bags are the rows of two axes, or parts of one axis that start at offsets",
                code="E111",
            )
        self.input, self.offsets = input, offsets
        self.padding, self.rows = padding, rows
        if padding is not None:
            _padding_row(padding, rows)
        self.longest = input.shape[-1]
        self.ends = input.shape[0] if offsets is None else offsets.shape[0]
        self.count = self.ends
        if include_last and offsets is not None:
            self.count = literal("include_last_offset", offsets.shape)[0] - 1

    def place(self, b: Any, k: Any) -> Any:
        """The index of a token."""
        return (b, k) if self.offsets is None else k

    def token(self, b: Any, k: Any) -> Any:
        """The token at a place."""
        return self.input[self.place(b, k)]

    def tests(self, b: Any, k: Any) -> list[Any]:
        """When token `k` counts in bag `b`."""
        conditions: list[Any] = []
        if self.offsets is not None:
            conditions += [k >= self.offsets[b], k < self._end(b)]
        if self.padding is not None:
            token = self.token(b, k)
            back = self.padding < 0  # counted from the end
            conditions.append(token - self.padding != self.rows if back else token != self.padding)
        return conditions

    def _end(self, b: Any) -> Any:
        offsets = self.offsets
        assert offsets is not None
        more = b + 1 < self.ends
        return where(more, offsets[where(more, b + 1, b)], self.longest)
