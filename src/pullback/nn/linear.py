"""Linear maps, embeddings and norms as functions, under torch's names."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import int64
from pullback.ir.expr import Add, Div, Equal, Expr, Extent, If, Mul
from pullback.ir.graph import Value
from pullback.nn.build import at, cast, common, count, make
from pullback.tensor import elementwise
from pullback.tensor.elementwise import show
from pullback.tensor.tensor import Tensor


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``y[.., n] = sum[k] x[.., k] * w[n, k] + b[n]``

    Raises: ShapeError where x and w disagree on k.
    """
    return linear_rows(input, weight, bias, 0, weight.shape[0])


def linear_rows(
    input: Tensor, weight: Tensor, bias: Tensor | None, start: int, rows: Extent
) -> Tensor:
    """`linear` with rows ``start .. start + rows`` of a packed weight and bias."""
    x, w = input.value, weight.value
    if not x.shape or len(w.shape) != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"linear: input {show(x.shape)} does not fit weight {show(w.shape)}",
            origin=Origin.of_caller(),
            help=f"the last axis of the input must have {w.shape[-1]} elements",
        )
    kind = common(input, weight, bias)
    rank = len(x.shape)
    shape = (*x.shape[:-1], rows)

    def product(*i: Expr) -> Expr:
        row = i[rank - 1] if start == 0 else Add(i[rank - 1], E.index(start))
        return Mul(at(x, *i[: rank - 1], i[rank], to=kind), at(w, row, i[rank], to=kind))

    y = make("linear", shape, product, over=(x.shape[-1],))
    if bias is None:
        return y
    b, found = bias.value, y.value

    def shifted(*i: Expr) -> Expr:
        row = i[-1] if start == 0 else Add(i[-1], E.index(start))
        return Add(at(found, *i), at(b, row, to=kind))

    return make("linear_bias", shape, shifted)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """``y[.., e] = w[tokens[..], e]``; no gradient reaches row `padding_idx`.

    Raises: DTypeError for tokens that are no integers. A token out of range raises at run time.
    """
    tokens, table = input.value, weight.value
    if not tokens.dtype.is_integer:
        raise DTypeError(
            f"tokens are integers, not {tokens.dtype}",
            origin=Origin.of_caller(),
            help='cast them: tokens.astype("int32")',
        )
    shape = (*tokens.shape, table.shape[1])
    if padding_idx is None:
        return make("embedding", shape, lambda *i: at(table, at(tokens, *i[:-1]), i[-1]))
    row = padding_idx % E.upper(table.shape[0])
    still = elementwise.copy(table, "padding", stop=True)

    def body(*i: Expr) -> Expr:
        token = cast(at(tokens, *i[:-1]), int64)
        padding = Equal(token, E.index(row))
        return If(padding, at(still, row, i[-1]), at(table, token, i[-1]))

    return make("embedding", shape, body)


def without_row(weight: Tensor, row: int) -> Tensor:
    """``y[r, e] = 0 if r == row else w[r, e]``"""
    value = weight.value
    zero = E.const(0, value.dtype)
    return make(
        "table",
        value.shape,
        lambda r, e: If(Equal(r, E.index(row)), zero, at(value, r, e)),
    )


def one_hot(input: Tensor, num_classes: int) -> Tensor:
    """``y[.., c] = 1 if tokens[..] == c else 0``, int64."""
    tokens = input.value
    return make(
        "one_hot",
        (*tokens.shape, num_classes),
        lambda *i: E.Cast(Equal(cast(at(tokens, *i[:-1]), int64), i[-1]), int64),
    )


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * w + b`` over the last axes, variance in two passes."""
    kind = common(input, weight, bias)
    x = input.value
    lead, box = _last(x.shape, normalized_shape)
    rank = len(lead)
    number = count(box, kind)
    sums = make("row_sum", lead, lambda *i: at(x, *i, to=kind), over=box).value
    mean = make("mean", lead, lambda *i: Div(at(sums, *i), number)).value

    def centred(*i: Expr) -> Expr:
        return E.subtract(at(x, *i, to=kind), at(mean, *i[:rank]))

    away = make("centred", x.shape, centred).value
    squares = make("row_squares", lead, lambda *i: F.square(at(away, *i)), over=box).value
    return _scaled("layer_norm", away, squares, number, (weight, bias), eps)


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * w`` over the last axes."""
    kind = common(input, weight)
    x = input.value if input.dtype == kind else elementwise.astype(input.value, kind)
    lead, box = _last(x.shape, normalized_shape)
    squares = make("row_squares", lead, lambda *i: F.square(at(x, *i)), over=box).value
    small = 2.0**-52 if kind.bits == 64 else 2.0**-23
    number = count(box, kind)
    used = small if eps is None else eps
    return _scaled("rms_norm", x, squares, number, (weight, None), used)


def _scaled(
    name: str,
    x: Value,
    squares: Value,
    number: Expr,
    affine: tuple[Tensor | None, Tensor | None],
    eps: float,
) -> Tensor:
    """``x / sqrt(squares / n + eps) * w + b``"""
    rank = len(squares.shape)
    kind = x.dtype
    small = E.const(eps, kind)

    def inverse(*i: Expr) -> Expr:
        return F.rsqrt(Add(Div(at(squares, *i), number), small))

    scale = make("rstd", squares.shape, inverse).value
    weight, bias = (None if t is None else t.value for t in affine)

    def body(*i: Expr) -> Expr:
        found: Expr = Mul(at(x, *i), at(scale, *i[:rank]))
        if weight is not None:
            found = Mul(found, at(weight, *i[rank:], to=kind))
        return found if bias is None else Add(found, at(bias, *i[rank:], to=kind))

    return make(name, x.shape, body)


def _last(
    shape: tuple[Extent, ...], wanted: int | Sequence[int]
) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """Row axes and the axes normalised over. Raises: ShapeError where they differ from `wanted`."""
    box = (wanted,) if isinstance(wanted, int) else tuple(wanted)
    split = len(shape) - len(box)
    if split < 0 or shape[split:] != box:
        raise ShapeError(
            f"the last axes of {show(shape)} are not {show(box)}", origin=Origin.of_caller()
        )
    return shape[:split], shape[split:]
