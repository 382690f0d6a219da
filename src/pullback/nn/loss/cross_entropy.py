"""Cross entropy and negative log likelihood: rows of classes, the target read as an index.

top[r] = max[c] x[r, c]         norm[r] = sum[c] exp(x[r, c] - top[r])
loss[r] = top[r] + log(norm[r]) - x[r, target[r]]
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.errors import DTypeError, ShapeError
from pullback.ir import expr as E
from pullback.ir.dtype import DType, int64
from pullback.ir.expr import Add, Div, Equal, Expr, Extent, If, Mul
from pullback.ir.graph import MAX, Value
from pullback.nn.base.build import at, cast, common, count, make, total
from pullback.nn.loss.losses import divided, known_reduction, reduced
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32

Index = tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Options:
    """What a loss over classes may be told. `ignore_index` None: every target counts."""

    weight: Tensor | None = None
    ignore_index: int | None = None
    reduction: str = "mean"
    label_smoothing: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """A tensor seen as rows of classes: `axis` holds the classes, the other axes number rows."""

    value: Value
    axis: int
    kind: DType

    @property
    def classes(self) -> Extent:
        return self.value.shape[self.axis]

    @property
    def box(self) -> tuple[Extent, ...]:
        """Extents of the row axes."""
        return self.value.shape[: self.axis] + self.value.shape[self.axis + 1 :]

    def read(self, row: Index, c: Expr) -> Expr:
        """``x[row, c]``, with the class in its place."""
        index = (*row[: self.axis], c, *row[self.axis :])
        return at(self.value, *index, to=self.kind)


@shaped(
    "input[n, c, s...] or [c], target[n, s...] or [] or [n, c, s...] or [c], weight[c] -> [n, "
    "s...] or []",
    where="0 <= label_smoothing <= 1, int(ignore_index) < 9223372036854775808",
)
@in_float32
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``log(sum[c] exp(x[n, c])) - x[n, t[n]]``; floating targets are probabilities.

    Classes are dim 1, or dim 0 of a vector. Raises: ShapeError, DTypeError.

    Example:
        >>> F.cross_entropy(pb.zeros((2, 4)), pb.tensor([1, 3]))
        Tensor(1.3862944, dtype=float32)
    """
    options = Options(weight, ignore_index, reduction, label_smoothing)
    return along(input, target, _class_axis(input), options)


@shaped("input[b..., c], target[b...] or [b..., c] -> [b...] or []")
@in_float32
def token_cross_entropy(
    input: Tensor, target: Tensor, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy where classes are the last dim, as in a language model."""
    options = Options(ignore_index=ignore_index, reduction=reduction)
    return along(input, target, len(input.shape) - 1, options)


def along(input: Tensor, target: Tensor, axis: int, options: Options) -> Tensor:
    """Cross entropy with classes along `axis`."""
    known_reduction(options.reduction)
    rows = Rows(input.value, axis, common(input))
    log = log_norm(rows)
    if target.dtype.is_float:
        return _soft(rows, log, target, options)
    return _hard(rows, log, target, options)


def log_norm(rows: Rows) -> Value:
    """``log(sum[c] exp(x[r, c]))``, through the row's largest element."""
    box, over = rows.box, (rows.classes,)
    top = make(
        "row_max",
        box,
        lambda *i: rows.read(i[:-1], i[-1]),
        over=over,
        combiner=MAX,
        stop=True,
    ).value

    def term(*i: Expr) -> Expr:
        return E.Exp(E.subtract(rows.read(i[:-1], i[-1]), at(top, *i[:-1])))

    norm = make("row_norm", box, term, over=over).value
    return make("log_norm", box, lambda *i: Add(at(top, *i), E.Log(at(norm, *i)))).value


@shaped("input[n, c, s...] or [c], target: int[n, s...] or [], weight[c] -> [n, s...] or []")
@in_float32
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """``-x[n, t[n]]`` of log-probabilities x. Raises: ShapeError, DTypeError.

    Example:
        >>> F.nll_loss(pb.full((2, 4), -1.5), pb.tensor([1, 3]))
        Tensor(1.5, dtype=float32)
    """
    known_reduction(reduction)
    rows = Rows(input.value, _class_axis(input), common(input))
    picks = _Picks(rows, target, Options(weight, ignore_index, reduction))

    def body(*r: Expr) -> Expr:
        token = picks.token(r)
        loss = E.negate(rows.read(r, token))
        return picks.counted(token, picks.weighted(token, loss))

    return picks.reduce(make("nll", rows.box, body))


class _Picks:
    """Integer targets: which class each row picks, what it weighs, whether it counts."""

    def __init__(self, rows: Rows, target: Tensor, options: Options) -> None:
        if not target.dtype.is_integer:
            raise DTypeError(f"targets are class numbers, not {target.dtype}", code="E145")
        if target.value.shape != rows.box:
            raise _misfit(rows, target)
        self.target = target.value
        self.kind = rows.kind
        self.box = rows.box
        self.options = options
        self.weight = None if options.weight is None else options.weight.value

    def token(self, row: Index) -> Expr:
        """The class of a row."""
        return cast(at(self.target, *row), int64)

    def weighted(self, token: Expr, loss: Expr) -> Expr:
        """``weight[token] * loss``"""
        if self.weight is None:
            return loss
        return Mul(at(self.weight, token, to=self.kind), loss)

    def counted(self, token: Expr, loss: Expr) -> Expr:
        """`loss`, or 0 where the target is to be ignored (its row is not read)."""
        if self.options.ignore_index is None:
            return loss
        ignored = Equal(token, E.index(self.options.ignore_index))
        return If(ignored, E.const(0, self.kind), loss)

    def reduce(self, losses: Tensor) -> Tensor:
        """ "mean" divides by the weights of the rows that count."""
        if self.options.reduction != "mean":
            return reduced(losses, self.options.reduction)
        if self.weight is None and self.options.ignore_index is None:
            return divided(total(losses), count(self.box, self.kind))
        one = E.const(1, self.kind)

        def share(*r: Expr) -> Expr:
            token = self.token(r)
            return self.counted(token, self.weighted(token, one))

        by = total(make("counted", self.box, share)).value
        return divided(total(losses), at(by))


def _hard(rows: Rows, log: Value, target: Tensor, options: Options) -> Tensor:
    """``loss[r] = log_norm[r] - x[r, t[r]]``, and its smoothed form."""
    picks = _Picks(rows, target, options)
    share = options.label_smoothing
    even = _even(rows, log, options) if share else None

    def body(*r: Expr) -> Expr:
        token = picks.token(r)
        loss = picks.weighted(token, E.subtract(at(log, *r), rows.read(r, token)))
        if even is not None:
            kept = E.const(1.0 - share, rows.kind)
            loss = Add(Mul(kept, loss), Mul(E.const(share, rows.kind), at(even, *r)))
        return picks.counted(token, loss)

    return picks.reduce(make("cross_entropy", rows.box, body))


def _even(rows: Rows, log: Value, options: Options) -> Value:
    """The loss of a uniform target. ``sum[c] w[c] (log_norm[r] - x[r, c]) / C``"""
    weight = None if options.weight is None else options.weight.value

    def term(*i: Expr) -> Expr:
        loss = E.subtract(at(log, *i[:-1]), rows.read(i[:-1], i[-1]))
        return loss if weight is None else Mul(at(weight, i[-1], to=rows.kind), loss)

    sums = make("even_sum", rows.box, term, over=(rows.classes,)).value
    number = count((rows.classes,), rows.kind)
    return make("even", rows.box, lambda *r: Div(at(sums, *r), number)).value


def _soft(rows: Rows, log: Value, target: Tensor, options: Options) -> Tensor:
    """``loss[r] = sum[c] p[r, c] (log_norm[r] - x[r, c])``, p smoothed first."""
    if target.value.shape != rows.value.shape:
        raise _misfit(rows, target)
    wanted = Rows(target.value, rows.axis, rows.kind)
    weight = None if options.weight is None else options.weight.value
    share = options.label_smoothing
    kept = E.const(1.0 - share, rows.kind)
    spread = Div(E.const(share, rows.kind), count((rows.classes,), rows.kind))

    def term(*i: Expr) -> Expr:
        row, c = i[:-1], i[-1]
        p = wanted.read(row, c)
        if share:
            p = Add(Mul(kept, p), spread)
        if weight is not None:
            p = Mul(at(weight, c, to=rows.kind), p)
        return Mul(p, E.subtract(at(log, *row), rows.read(row, c)))

    losses = make("cross_entropy", rows.box, term, over=(rows.classes,))
    if options.reduction != "mean":
        return reduced(losses, options.reduction)
    return divided(total(losses), count(rows.box, rows.kind))


def _class_axis(input: Tensor) -> int:
    if not input.shape:
        raise ShapeError("a loss over classes needs a class axis", code="E111")
    return 0 if len(input.shape) == 1 else 1


def _misfit(rows: Rows, target: Tensor) -> ShapeError:
    return ShapeError(
        f"target {show(target.value.shape)} does not fit input {show(rows.value.shape)}",
        help=f"class numbers of shape {show(rows.box)}, or probabilities of the input's shape",
    )
