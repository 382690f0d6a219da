"""Scaled dot-product attention on packed projections: heads by index arithmetic, no transposes.

    s[b, h, i, j] = sum[e] q[b, i, h E + e] * k[b, j, h E + e]
    p = exp(s / sqrt(E) - max[j] s),  y[b, i, h E + e] = sum[j] p * v[b, j, h E + e] / sum[j] p

Scores and probabilities are marked to be computed again where they are read, not stored, but where
that takes less and a cache holds them. A row with every column masked is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pullback.errors import DTypeError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Add, Div, Equal, Expr, Extent, If, Less, Mul, Take
from pullback.ir.graph import MAX, Keep, Value
from pullback.nn.activation.dropout import kept_mask
from pullback.nn.base.build import at, cast, common, make
from pullback.nn.base.space import literal
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise

Index = Sequence[Expr]


@dataclass(frozen=True, eq=False, slots=True)
class Packed:
    """Heads in one axis of a tensor: head `h`, feature `e` at column ``start + h * size + e``."""

    value: Value
    start: int
    heads: int
    size: int
    kind: DType

    @property
    def lead(self) -> tuple[Extent, ...]:
        """Batch extents."""
        return self.value.shape[:-2]

    @property
    def length(self) -> Extent:
        """How many positions."""
        return self.value.shape[-2]

    def read(self, batch: Index, head: Expr, place: Expr, feature: Expr) -> Expr:
        """One feature of one head at one position."""
        column = Add(Mul(head, E.index(self.size)), feature)
        if self.start:
            column = Add(column, E.index(self.start))
        return at(self.value, *batch, place, column, to=self.kind)


@dataclass(frozen=True, eq=False, slots=True)
class Heads:
    """Heads on an axis of their own: ``value[b, h, t, e]``."""

    value: Value

    @property
    def lead(self) -> tuple[Extent, ...]:
        """Batch extents."""
        return self.value.shape[:-3]

    @property
    def heads(self) -> Extent:
        return self.value.shape[-3]

    @property
    def length(self) -> Extent:
        """How many positions."""
        return self.value.shape[-2]

    @property
    def size(self) -> int:
        """Features of a head."""
        return E.upper(self.value.shape[-1])

    @property
    def kind(self) -> DType:
        """The type of scores and sums."""
        own = self.value.dtype
        return D.float32 if D.is_short(own) else own

    def read(self, batch: Index, head: Expr, place: Expr, feature: Expr) -> Expr:
        """One feature of one head at one position, as it is computed with."""
        return at(self.value, *batch, head, place, feature, to=self.kind)


def _apart(packed: Packed, name: str) -> Heads:
    """``q[b, h, t, e] = x[b, t, start + h E + e]``, a view.

    A definition of its own, so that its adjoint is a contraction per head before it is packed.
    """
    shape = (*packed.lead, packed.heads, packed.length, packed.size)

    def body(*i: Expr) -> Expr:
        *batch, head, place, feature = i
        return packed.read(batch, head, place, feature)

    return Heads(make(name, shape, body).value)


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """What a query may look at. `allowed` is bool, `added` is float; both broadcast to
    (batch.., heads, queries, keys). `padding` is bool over (batch.., keys), true where ignored.
    """

    causal: bool = False
    allowed: Value | None = None
    added: Value | None = None
    padding: Value | None = None
    keyless: bool = False  # there may be no keys at all

    @property
    def may_empty(self) -> bool:
        """Whether a row may have no column left."""
        return self.keyless or any(v is not None for v in (self.allowed, self.added, self.padding))

    def condition(self, index: Index) -> Expr | None:
        """Whether column j counts for row i; None: always."""
        counts: Expr | None = None
        *batch, _, i, j = index
        if self.causal:
            counts = E.logical_not(Less(i, j))
        if self.padding is not None:
            counts = _both(counts, E.logical_not(at(self.padding, *batch, j)))
        if self.allowed is not None:
            counts = _both(counts, _stretched(self.allowed, index))
        return counts


def _both(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else E.And(a, b)


def _stretched(value: Value, index: Index) -> Take:
    """`value` broadcast, aligned at the end, read at `index`."""
    tail = list(index)[len(index) - len(value.shape) :]
    places = [E.index(0) if e == 1 else i for e, i in zip(value.shape, tail, strict=True)]
    return Take(value, tuple(places))


@dataclass(frozen=True, eq=False, slots=True)
class Attended:
    """What attention computes: heads side by side, the weights and, of each row, the logarithm of
    its sum of exponentials. Both are lazy.
    """

    output: Tensor
    weights: Tensor
    logs: Tensor


def attend(
    query: Packed, key: Packed, value: Packed, mask: Mask, scale: float, dropout: float = 0.0
) -> Attended:
    """Attention of every head over packed projections. Output (batch.., queries, heads * size)."""
    least = key.length if isinstance(key.length, int) else key.length.lo
    mask = replace(mask, keyless=least == 0)
    v = _apart(value, "v")
    table = _Table(_apart(query, "q"), _apart(key, "k"), mask, scale)
    scores = table.scores()
    top = table.top(scores)
    exps = table.exps(scores, top)
    norm = make("norm", table.rows, lambda *i: at(exps, *i), over=(key.length,)).value
    kept = _dropped(exps, dropout)
    mixed = _mixed(table, kept, v, norm)
    output = _side_by_side(table, mixed, v)
    weights = make(
        "attention_weights",
        table.shape,
        lambda *i: cast(_safe_ratio(mask, at(kept, *i), at(norm, *i[:-1])), query.kind),
    )
    logs = make("logs", table.rows, lambda *i: Add(at(top, *i), E.Log(at(norm, *i))))
    return Attended(output, weights, logs)


@dataclass(frozen=True, eq=False, slots=True)
class _Table:
    """The table of queries by keys, for every batch and head."""

    query: Heads
    key: Heads
    mask: Mask
    scale: float

    @property
    def rows(self) -> tuple[Extent, ...]:
        return (*self.query.lead, self.query.heads, self.query.length)

    @property
    def shape(self) -> tuple[Extent, ...]:
        return (*self.rows, self.key.length)

    def scores(self) -> Value:
        """``s[b, h, i, j] = sum[e] q[b, i, h, e] k[b, j, h, e]``, scaled, with the mask added."""
        kind = self.query.kind

        def product(*i: Expr) -> Expr:
            *batch, h, row, column, e = i
            return Mul(self.query.read(batch, h, row, e), self.key.read(batch, h, column, e))

        dots = make("dots", self.shape, product, over=(self.query.size,), keep=Keep.NEVER).value
        factor = E.const(self.scale, kind)
        added = self.mask.added

        def scaled(*i: Expr) -> Expr:
            score: Expr = Mul(at(dots, *i), factor)
            if added is not None:
                score = Add(score, cast(_stretched(added, i), kind))
            condition = self.mask.condition(i)
            return score if condition is None else If(condition, score, E.lowest(kind))

        return make("scores", self.shape, scaled, keep=Keep.NEVER).value

    def top(self, scores: Value) -> Value:
        """The largest score of a row; 0 where there is none."""
        top = make(
            "top",
            self.rows,
            lambda *i: at(scores, *i),
            over=(self.key.length,),
            combiner=MAX,
            stop=True,
        ).value
        if not self.mask.may_empty:
            return top
        lowest = E.lowest(self.query.kind)
        zero = E.const(0, self.query.kind)

        def finite(*i: Expr) -> Expr:
            return If(Equal(at(top, *i), lowest), zero, at(top, *i))

        return make("top", self.rows, finite, stop=True).value

    def exps(self, scores: Value, top: Value) -> Value:
        """``exp(s - top)``, 0 where masked."""
        zero = E.const(0, self.query.kind)

        def body(*i: Expr) -> Expr:
            power = E.Exp(E.subtract(at(scores, *i), at(top, *i[:-1])))
            condition = self.mask.condition(i)
            return power if condition is None else If(condition, power, zero)

        return make("exps", self.shape, body, keep=Keep.NEVER).value

    def weights(self, logs: Value) -> Value:
        """``exp(s - logs)``, 0 where masked and in rows without a column: log of 0."""
        scores, kind = self.scores(), self.query.kind

        def body(*i: Expr) -> Expr:
            log = at(logs, *i[:-1], to=kind)
            power = E.Exp(E.subtract(at(scores, *i), log))
            condition = self.mask.condition(i)
            if self.mask.added is not None:
                condition = _both(condition, Less(E.lowest(kind), log))
            return power if condition is None else If(condition, power, E.const(0, kind))

        return make("weights", self.shape, body, keep=Keep.NEVER).value


def _safe_ratio(mask: Mask, value: Expr, norm: Expr) -> Expr:
    """``value / norm``, 0 where the whole row is masked."""
    if not mask.may_empty:
        return Div(value, norm)
    zero = E.const(0, norm.dtype)
    return If(Equal(norm, zero), zero, Div(value, norm))


def _dropped(exps: Value, p: float) -> Value:
    """Probabilities with some of them dropped; the mask is drawn again wherever it is needed."""
    if p == 0.0:
        return exps
    mask = kept_mask(exps.shape, p).value
    factor = E.const(1.0 / (1.0 - p) if p < 1.0 else 0.0, exps.dtype)
    zero = E.const(0, exps.dtype)

    def body(*i: Expr) -> Expr:
        return If(at(mask, *i), Mul(at(exps, *i), factor), zero)

    return make("dropped", exps.shape, body, keep=Keep.NEVER).value


def _mixed(table: _Table, exps: Value, value: Heads, norm: Value) -> Value:
    """``y[b, h, i, e] = sum[j] p[b, h, i, j] v[b, j, h, e] / norm[b, h, i]``"""
    shape, kind = (*table.rows, value.size), value.value.dtype

    def product(*i: Expr) -> Expr:
        *batch, h, row, e, column = i
        return Mul(at(exps, *batch, h, row, column), value.read(batch, h, column, e))

    sums = make("mixed", shape, product, over=(table.key.length,)).value
    return make(
        "attended",
        shape,
        lambda *i: cast(_safe_ratio(table.mask, at(sums, *i), at(norm, *i[:-1])), kind),
    ).value


def _side_by_side(table: _Table, mixed: Value, value: Heads) -> Tensor:
    """``out[b, i, h E + e] = y[b, h, i, e]``, a view."""
    lead = table.query.lead
    shape = (*lead, table.query.length, E.upper(value.heads) * value.size)
    size = E.index(value.size)

    def body(*i: Expr) -> Expr:
        *batch, row, column = i
        return at(mixed, *batch, E.FloorDiv(column, size), row, E.Mod(column, size))

    return make("heads", shape, body)


@shaped(
    "query: float[*b, t, e], key: float[*b, s, e], value: float[*b, s, f], attn_mask[*b, t?, "
    "s?] -> [*b, t, f]",
    where="0 <= dropout_p <= 1",
)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """``softmax(q k^T / sqrt(E) + mask) v`` over (.., positions, E); what is before is batch.

    Raises: DTypeError for a mask that is neither bool nor float.

    Example:
        >>> q = pb.ones((1, 2, 5, 4))
        >>> F.scaled_dot_product_attention(q, q, q, is_causal=True).shape
        (1, 2, 5, 4)
    """
    return attended(query, key, value, attn_mask, dropout_p, is_causal, scale).output


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Attended:
    """The same with what else it computes, over an axis of one head before the positions.

    Raises: ShapeError for keys and values that are not known to be as many.
    """
    _as_many(key, value)
    kind = common(query, key, value)
    q, k, v = _one_batch(query, key, value, attn_mask)
    size, width = (literal("the features of attention", p.shape[-1:])[0] for p in (q, v))
    used = 1.0 / math.sqrt(max(size, 1)) if scale is None else scale
    mask = with_mask(Mask(causal=is_causal), attn_mask)
    parts = (Packed(q, 0, 1, size, kind), Packed(k, 0, 1, size, kind))
    return attend(*parts, Packed(v, 0, 1, width, kind), _headless(mask), used, dropout_p)


def adjoints(
    head: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logs: Tensor,
    mask: Mask, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The adjoints of queries, keys and values by what attention computed, which is not again.

        p = exp(s - logs),  c[i] = sum[e] g[i, e] y[i, e],  r = p * (sum[e] g[i, e] v[j, e] - c[i])
        dq[i, e] = sum[j] r k[j, e] / sqrt(E),  dk[j, e] = sum[i] r q[i, e] / sqrt(E)
        dv[j, e] = sum[i] p g[i, e]

    Shapes: query [b, h, t, e]; key [b, h, s, e]; value [b, h, s, f]; head, output [b, h, t, f];
        logs [b, h, t].
    Raises: ShapeError for keys and values that are not known to be as many.
    """
    _as_many(key, value)
    q, k, v, g, y = (Heads(t.value) for t in (query, key, value, head, output))
    kind, used = q.kind, 1.0 / math.sqrt(max(q.size, 1)) if scale is None else scale
    table = _Table(q, k, mask, used)
    weights, factor = table.weights(logs.value), E.const(used, kind)

    def product(a: Heads, b: Heads) -> Callable[..., Expr]:
        def body(n: Expr, h: Expr, i: Expr, j: Expr, e: Expr) -> Expr:
            return Mul(a.read((n,), h, i, e), b.read((n,), h, j, e))

        return body

    def level(n: Expr, h: Expr, i: Expr, e: Expr) -> Expr:
        return Mul(g.read((n,), h, i, e), y.read((n,), h, i, e))

    pulled = make("pulled", table.shape, product(g, v), over=(v.size,), keep=Keep.NEVER).value
    levels = make("levels", table.rows, level, over=(v.size,)).value

    def slope(*i: Expr) -> Expr:
        own = E.subtract(at(pulled, *i), at(levels, *i[:-1]))
        return Mul(Mul(at(weights, *i), own), factor)

    slopes = make("slopes", table.shape, slope, keep=Keep.NEVER).value

    def by_rows(n: Expr, h: Expr, i: Expr, e: Expr, j: Expr) -> Expr:
        return Mul(at(slopes, n, h, i, j), k.read((n,), h, j, e))

    def by_columns(of: Value, by: Heads) -> Callable[..., Expr]:
        def body(n: Expr, h: Expr, j: Expr, e: Expr, i: Expr) -> Expr:
            return Mul(at(of, n, h, i, j), by.read((n,), h, i, e))

        return body

    dq = make("dq", q.value.shape, by_rows, over=(k.length,))
    dk = make("dk", k.value.shape, by_columns(slopes, q), over=(q.length,))
    dv = make("dv", v.value.shape, by_columns(weights, g), over=(q.length,))
    return dq.astype(query.dtype), dk.astype(key.dtype), dv.astype(value.dtype)


def _as_many(key: Tensor, value: Tensor) -> None:
    if key.shape[-2] != value.shape[-2]:
        what = f"attention of keys of {key.shape} and values of {value.shape}"
        raise ShapeError(what, help="as many positions", code="E175")


def _one_batch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> list[Value]:
    """The three with the batch axes that theirs and the mask's broadcast to."""
    parts = [t.value for t in (query, key, value)]
    masks = () if mask is None else (mask.value.shape[:-2],)
    batch = elementwise.broadcast_shapes([*(p.shape[:-2] for p in parts), *masks])
    if all(p.shape[:-2] == batch for p in parts):
        return parts
    return [elementwise.broadcast_to(p, (*batch, *p.shape[-2:])) for p in parts]


def _headless(mask: Mask) -> Mask:
    """A mask over (.., queries, keys) for a table with one head: its batch axes move up one."""
    return Mask(mask.causal, _with_head(mask.allowed), _with_head(mask.added), mask.padding)


def _with_head(value: Value | None) -> Value | None:
    """``m[b, 0, i, j] = m[b, i, j]``"""
    if value is None or len(value.shape) <= 2:
        return value
    source = value
    shape = (*value.shape[:-2], 1, *value.shape[-2:])
    return make("mask", shape, lambda *i: at(source, *i[:-3], *i[-2:])).value


def with_mask(mask: Mask, given: Tensor | None) -> Mask:
    """`mask` and torch's ``attn_mask`` for `scaled_dot_product_attention`: true may be looked at.

    Raises: DTypeError where it is neither bool nor float.
    """
    if given is None:
        return mask
    if given.dtype == D.bool_:
        return Mask(mask.causal, given.value, mask.added, mask.padding)
    if not given.dtype.is_float:
        raise DTypeError(f"an attention mask is bool or float, not {given.dtype}", code="E147")
    return Mask(mask.causal, mask.allowed, given.value, mask.padding)
