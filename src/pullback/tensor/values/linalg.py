"""Products of matrices and their kin: sums of products. Functions take and give values.

``c[.., i, j] = sum over k of a[.., i, k] * b[.., k, j]``
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Expr, Extent, Mul, index, upper
from pullback.ir.graph import Definition, Value, read
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import broadcast_shapes, cast, show
from pullback.tensor.values.orders import left, order


def matmul(a: Value, b: Value) -> Value:
    """The matrix product, batched and broadcast; one axis is a vector.

    Raises: ShapeError where the inner extents differ or an operand is a scalar.
    """
    kind = W.numeric("matmul", [a, b])
    if not a.shape or not b.shape:
        raise V.fail(
            f"matmul of {show(a.shape)} and {show(b.shape)}: a scalar is no matrix", code="E115"
        )
    inner = a.shape[-1]
    other = b.shape[-1] if len(b.shape) == 1 else b.shape[-2]
    if inner != other:
        raise V.fail(
            f"matmul of {show(a.shape)} and {show(b.shape)}: inner extents {inner} and {other}",
            "the last axis of the left and the last but one of the right must agree",
            code="E115",
        )
    lead = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    rows = a.shape[-2:-1]
    columns = () if len(b.shape) == 1 else b.shape[-1:]
    shape = (*lead, *rows, *columns)
    axes = W.axes_of(shape)
    k = Axis(len(shape), inner)
    batch = axes[: len(lead)]
    row = axes[len(lead) : len(lead) + len(rows)]
    column = axes[len(lead) + len(rows) :]
    left = W.broadcast_read(a, (*lead, *rows, inner), [*batch, *row, k])
    right = W.broadcast_read(b, (*lead, inner, *columns), [*batch, k, *column])
    body = Mul(cast(left, kind), cast(right, kind))
    return W.reduce("matmul", shape, [inner], body)


def _matched(axes: int | Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, each once, in the order given: it says which meets which."""
    V.normal_axes(axes, rank)
    given = [axes] if isinstance(axes, SupportsIndex) else axes
    return [V.normal_axis(n, rank) for n in given]


def tensordot(a: Value, b: Value, axes: int | tuple[Sequence[int], Sequence[int]]) -> Value:
    """The sum of products over matched axes; the rest of `a`, then the rest of `b`."""
    ranks = len(a.shape), len(b.shape)
    if isinstance(axes, SupportsIndex):
        count = V.whole(axes, "tensordot: a number of axes", 0)
        if count > min(ranks):
            raise V.fail(f"tensordot over {count} axes of {ranks[0]} and {ranks[1]}", code="E111")
        left, right = list(range(ranks[0] - count, ranks[0])), list(range(count))
    else:
        pair = [_matched(n, rank) for n, rank in zip(axes, ranks, strict=False)]
        if len(pair) != 2 or len(axes) != 2 or len(pair[0]) != len(pair[1]):
            raise V.fail(f"tensordot over {axes}: as many axes of both", code="E134")
        left, right = pair
    letters = [f"a{n}" for n in range(len(a.shape))]
    others = [f"b{n}" for n in range(len(b.shape))]
    for n, m in zip(left, right, strict=True):
        others[m] = letters[n]
    out = [s for n, s in enumerate(letters) if n not in left]
    out += [s for n, s in enumerate(others) if n not in right]
    return contract([a, b], [letters, others], out)


Name = str | int | tuple[str, int]
Term = Sequence[Name]


def einsum(operands: Sequence[Value], terms: Sequence[Term | str], out: Term | str | None) -> Value:
    """``einsum("bij,bjk->bik", a, b)``: a sum of products, axes named by letters or numbers.

    ``...`` is any number of axes, which broadcast from the right; an extent of 1 broadcasts too.
    Several operands are multiplied two at a time, in the order of fewest multiplications
    (`orders.order`). Without `out` the axes of ``...`` come first, then every name that stands
    once, in order; those that `out` leaves out are summed, as PyTorch does (NumPy refuses that).
    Raises: ShapeError for subscripts that do not fit.
    """
    if len(terms) != len(operands):
        raise V.fail(f"einsum of {len(terms)} terms with {len(operands)} operands", code="E116")
    names = [_named(t, len(o.shape)) for t, o in zip(terms, operands, strict=True)]
    many = max((sum(isinstance(n, tuple) for n in term) for term in names), default=0)
    dots: list[Name] = [("...", n) for n in range(many, 0, -1)]
    if out is None:
        flat = [n for term in names for n in term if not isinstance(n, tuple)]
        return ordered(operands, names, [*dots, *sorted(n for n in flat if flat.count(n) == 1)])
    if _dotted(out) and not any(map(_dotted, terms)):
        raise V.fail("einsum with an ellipsis in the result alone", code="E116")
    return ordered(operands, names, _named(out, many + len(_spelled(out)) - 1))


def ordered(operands: Sequence[Value], names: Sequence[Term], out: Term) -> Definition:
    """`contract`, two operands at a time; names that one operand alone has are summed first.

    Extents of 1 give way in the step in which they meet others.
    """
    extents = _extents(operands, names)
    if len(operands) < 2 or any(n not in extents for n in out) or len(set(out)) != len(out):
        return contract(operands, names, out)
    kind = W.numeric("einsum", operands)
    values: list[Value] = list(operands)
    terms: list[list[Name]] = [list(t) for t in names]
    for n, term in enumerate(terms):
        others = {*out, *(name for m, t in enumerate(terms) if m != n for name in t)}
        shared = [name for name in dict.fromkeys(term) if name in others]
        if set(term) != set(shared) and kind is values[n].dtype:
            values[n], terms[n] = contract([values[n]], [term], shared), shared
    sizes: dict[object, int] = {n: upper(e) for n, e in extents.items()}
    for a, b in order([frozenset(t) for t in terms], frozenset(out), sizes)[:-1]:
        pair, own = [values[a], values[b]], [terms[a], terms[b]]
        values = [v for n, v in enumerate(values) if n not in (a, b)]
        terms = [t for n, t in enumerate(terms) if n not in (a, b)]
        inside = [*own[0], *own[1]]
        asked = left([frozenset(t) for t in terms], frozenset(inside), frozenset(out))
        shared = [n for n in dict.fromkeys(inside) if n in asked]
        values.append(contract(pair, own, shared))
        terms.append(shared)
    return contract(values, terms, out)


def parsed(subscripts: str) -> tuple[list[str], str | None]:
    """``"ij, jk -> ik" -> ["ij", "jk"], "ik"``. Raises: ShapeError for what is no subscript."""
    bare = re.sub(r"\s", "", subscripts)
    inputs, arrow, output = bare.partition("->")
    terms = inputs.split(",")
    for term in (*terms, output):
        if not re.fullmatch(r"[^\W\d_]*(\.\.\.)?[^\W\d_]*", term):
            raise V.fail(
                f"einsum subscripts {subscripts!r}: {term!r} is no term",
                "letters, with at most one ellipsis: einsum('...ij,...jk->...ik', a, b)",
                code="E116",
            )
    return terms, output if arrow else None


def _spelled(term: Term | str) -> list[Any]:
    """The names of a term, an ellipsis being one: ``"...ij" -> ["...", "i", "j"]``"""
    return re.findall(r"\.\.\.|.", term) if isinstance(term, str) else list(term)


def _dotted(term: Term | str) -> bool:
    return any(n is ... or n == "..." for n in _spelled(term))


def _named(term: Term | str, rank: int) -> list[Name]:
    """The name of each axis; those of an ellipsis are counted from the right."""
    spelled = _spelled(term)
    places = [n for n, name in enumerate(spelled) if name is ... or name == "..."]
    if not places:
        return spelled
    wide = rank - len(spelled) + 1
    if wide < 0 or len(places) > 1:
        raise V.fail(
            f"{len(spelled) - 1} subscripts and an ellipsis for a tensor of {rank} axes",
            code="E116",
        )
    dots: list[Name] = [("...", n) for n in range(wide, 0, -1)]
    return [*spelled[: places[0]], *dots, *spelled[places[0] + 1 :]]


def _extents(operands: Sequence[Value], names: Sequence[Term]) -> dict[Name, Extent]:
    """The extent of each name; 1 gives way to others. Raises: ShapeError for two."""
    extents: dict[Name, Extent] = {}
    for value, term in zip(operands, names, strict=True):
        if len(term) != len(value.shape):
            raise V.fail(
                f"{len(term)} subscripts for a tensor of shape {show(value.shape)}", code="E116"
            )
        for name, extent in zip(term, value.shape, strict=True):
            known = extents.get(name, 1)
            if extent not in (1, known) and known != 1:
                shown = "of an ellipsis" if isinstance(name, tuple) else name
                raise V.fail(f"subscript {shown} is {known} and {extent}", code="E116")
            extents[name] = extent if known == 1 else known
    return extents


def contract(operands: Sequence[Value], names: Sequence[Term], out: Term) -> Definition:
    """The sum of products over every name that `out` does not have."""
    extents = _extents(operands, names)
    missing = [n for n in out if n not in extents]
    if missing or len(set(out)) != len(out):
        raise V.fail(
            f"output subscripts {''.join(map(str, out))} do not fit the inputs", code="E116"
        )
    over = [n for n in extents if n not in out]
    axes = {n: Axis(place, extents[n]) for place, n in enumerate([*out, *over])}
    kind = W.numeric("einsum", operands)
    factors = [
        _factor(value, term, axes, kind) for value, term in zip(operands, names, strict=True)
    ]
    body = factors[0]
    for factor in factors[1:]:
        body = Mul(body, factor)
    shape = [extents[n] for n in out]
    if not over:
        return W.make("einsum", shape, body)
    return W.reduce("einsum", shape, [extents[n] for n in over], body)


def _factor(value: Value, term: Term, axes: Mapping[Name, Axis], kind: DType) -> Expr:
    """``value[axes of term]``; of an extent of 1 the only element."""
    own = zip(term, value.shape, strict=True)
    places = [index(0) if e == 1 and axes[n].extent != 1 else axes[n] for n, e in own]
    return cast(read(value, *places), kind)
