"""Small networks written with `define` alone: what fusion, planning and the interpreters are tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_, float32
from pullback.ir.expr import Axis, Const, Expr, Extent, Take
from pullback.ir.graph import (
    MAX,
    SUM,
    Combiner,
    Definition,
    Graph,
    Keep,
    Value,
    Variable,
    define,
    read,
)


def variable(name: str, *shape: Extent, kind: DType = float32) -> Variable:
    return Variable(name, shape, kind)


def num(value: float, kind: DType = float32) -> Const:
    return E.const(value, kind)


def map_(
    name: str, shape: Sequence[Extent], body: Callable[..., Expr], **marks: object
) -> Definition:
    return define(name, shape, body, **marks)  # type: ignore[arg-type]


def total(
    name: str,
    shape: Sequence[Extent],
    over: Sequence[Extent],
    body: Callable[..., Expr],
    combiner: Combiner = SUM,
    **marks: object,
) -> Definition:
    return define(name, shape, body, over=over, combiner=combiner, **marks)  # type: ignore[arg-type]


def relu(x: Expr) -> Expr:
    return E.If(E.Less(num(0), x), x, num(0))


def sigmoid(x: Expr) -> Expr:
    return E.Div(num(1), E.Add(num(1), E.Exp(E.negate(x))))


def tanh(x: Expr) -> Expr:
    """``1 - 2 / (1 + e**2x)``"""
    twice = E.Exp(E.Mul(x, num(2)))
    return E.subtract(num(1), E.Div(num(2), E.Add(num(1), twice)))


def gelu(x: Expr) -> Expr:
    cube = E.Mul(E.Mul(x, x), E.Mul(x, num(0.044715)))
    inner = E.Mul(E.Add(x, cube), num(0.7978845608))
    return E.Mul(E.Mul(x, num(0.5)), E.Add(num(1), tanh(inner)))


ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "gelu": gelu,
}


def linear(x: Value, w: Value, b: Value | None, name: str) -> Definition:
    """``y[.., n] = sum[k] x[.., k] * w[n, k] + b[n]``"""
    *lead, k = x.shape
    n = w.shape[0]
    acc = total(
        f"{name}.acc",
        (*lead, n),
        (k,),
        lambda *i: E.Mul(read(x, *i[:-2], i[-1]), read(w, i[-2], i[-1])),
    )
    if b is None:
        return acc
    return map_(name, (*lead, n), lambda *i: E.Add(read(acc, *i), read(b, i[-1])))


def activation(x: Value, kind: str, name: str) -> Definition:
    return map_(name, x.shape, lambda *i: ACTIVATIONS[kind](read(x, *i)))


def add(x: Value, y: Value, name: str) -> Definition:
    return map_(name, x.shape, lambda *i: E.Add(read(x, *i), read(y, *i)))


def layer_norm(x: Value, gain: Value, shift: Value, name: str) -> Definition:
    *lead, d = x.shape
    scale = num(1 / E.upper(d))
    mean = total(f"{name}.mean", lead, (d,), lambda *i: E.Mul(read(x, *i), scale))

    def centred(*i: Axis) -> Expr:
        return E.subtract(read(x, *i), read(mean, *i[:-1]))

    var = total(f"{name}.var", lead, (d,), lambda *i: E.Mul(E.Mul(centred(*i), centred(*i)), scale))

    def body(*i: Axis) -> Expr:
        deviation = E.Sqrt(E.Add(read(var, *i[:-1]), num(1e-5)))
        unit = E.Div(centred(*i), deviation)
        return E.Add(E.Mul(unit, read(gain, i[-1])), read(shift, i[-1]))

    return map_(name, x.shape, body)


def softmax(x: Value, name: str) -> Definition:
    *lead, d = x.shape
    top = total(f"{name}.max", lead, (d,), lambda *i: read(x, *i), MAX, stop=True)

    def power(*i: Axis) -> Expr:
        return E.Exp(E.subtract(read(x, *i), read(top, *i[:-1])))

    norm = total(f"{name}.norm", lead, (d,), power)
    return map_(name, x.shape, lambda *i: E.Div(power(*i), read(norm, *i[:-1])))


def log_softmax_nll(x: Value, labels: Value, name: str) -> Definition:
    """``mean[b] log(sum[v] exp(x - max)) + max - x[b, label[b]]``"""
    *lead, v = x.shape
    top = total(f"{name}.max", lead, (v,), lambda *i: read(x, *i), MAX, stop=True)
    norm = total(
        f"{name}.norm", lead, (v,), lambda *i: E.Exp(E.subtract(read(x, *i), read(top, *i[:-1])))
    )
    nll = map_(
        f"{name}.nll",
        lead,
        lambda *i: E.subtract(
            E.Add(E.Log(read(norm, *i)), read(top, *i)), read(x, *i, read(labels, *i))
        ),
    )
    rows = 1
    for extent in lead:
        rows *= E.upper(extent)
    acc = total(f"{name}.sum", (), lead, lambda *i: read(nll, *i))
    return map_(name, (), lambda: E.Mul(read(acc), num(1 / rows)))


def attention(
    x: Value, w: Value, b: Value, w_out: Value, b_out: Value, heads: int, causal: bool, name: str
) -> Definition:
    """Self-attention of x[b, t, d]; packed weights w[3d, d]; scores are never stored."""
    batch, t, d = x.shape
    e = E.upper(d) // heads
    qkv = linear(x, w, b, f"{name}.qkv")

    def part(which: int, s: str) -> Definition:
        def body(n: Axis, h: Axis, i: Axis, c: Axis) -> Expr:
            column = E.Add(E.Mul(h, E.index(e)), c)
            return read(qkv, n, i, E.Add(column, E.index(which * E.upper(d))))

        return map_(f"{name}.{s}", (batch, heads, t, e), body)

    q, k, v = (part(n, s) for n, s in enumerate("qkv"))
    row, box = (batch, heads, t), (batch, heads, t, t)
    dot = total(
        f"{name}.dot",
        box,
        (e,),
        lambda n, h, i, j, c: E.Mul(read(q, n, h, i, c), read(k, n, h, j, c)),
        keep=Keep.NEVER,
    )

    def score(n: Axis, h: Axis, i: Axis, j: Axis) -> Expr:
        scaled = E.Mul(read(dot, n, h, i, j), num(e**-0.5))
        return E.If(E.Less(i, j), num(-1e30), scaled) if causal else scaled

    s = map_(f"{name}.s", box, score, keep=Keep.NEVER)
    top = total(f"{name}.max", row, (t,), lambda *i: read(s, *i), MAX, stop=True)

    def power(*i: Axis) -> Expr:
        return E.Exp(E.subtract(read(s, *i), read(top, *i[:-1])))

    norm = total(f"{name}.norm", row, (t,), power)
    p = map_(f"{name}.p", box, lambda *i: E.Div(power(*i), read(norm, *i[:-1])), keep=Keep.NEVER)
    o = total(
        f"{name}.o",
        (batch, heads, t, e),
        (t,),
        lambda n, h, i, c, j: E.Mul(read(p, n, h, i, j), read(v, n, h, j, c)),
    )

    def merged(n: Axis, i: Axis, c: Axis) -> Expr:
        return read(o, n, E.FloorDiv(c, E.index(e)), i, E.Mod(c, E.index(e)))

    flat = map_(f"{name}.flat", (batch, t, d), merged)
    return linear(flat, w_out, b_out, f"{name}.out")


def graph(**assigned: Value) -> Graph:
    """Each value into a fresh variable."""
    return Graph(tuple((Variable(n, v.shape, v.dtype), v) for n, v in assigned.items()))


TRUE = Const(True, bool_)
