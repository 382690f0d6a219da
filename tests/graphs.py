"""Small networks written with `define` alone: what fusion and planning are tested on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, int64, uint32
from pullback.ir.expr import Axis, Const, Expr, Extent
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
    return define(name, shape, body, **marks)


def total(
    name: str,
    shape: Sequence[Extent],
    over: Sequence[Extent],
    body: Callable[..., Expr],
    combiner: Combiner = SUM,
    **marks: object,
) -> Definition:
    return define(name, shape, body, over=over, combiner=combiner, **marks)


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


def scaled_dot_product(q: Value, k: Value, v: Value, causal: bool, name: str) -> Definition:
    """``softmax(q k' / sqrt(e)) v`` of [b, h, t, e] arrays; scores are never stored."""
    batch, heads, t, e = q.shape
    scale = num(E.upper(e) ** -0.5)
    row, box = (batch, heads, t), (batch, heads, t, t)
    dot = total(
        f"{name}.dot",
        box,
        (e,),
        lambda n, h, i, j, c: E.Mul(read(q, n, h, i, c), read(k, n, h, j, c)),
        keep=Keep.NEVER,
    )

    def score(n: Axis, h: Axis, i: Axis, j: Axis) -> Expr:
        scaled = E.Mul(read(dot, n, h, i, j), scale)
        return E.If(E.Less(i, j), num(-1e30), scaled) if causal else scaled

    s = map_(f"{name}.s", box, score, keep=Keep.NEVER)
    top = total(f"{name}.max", row, (t,), lambda *i: read(s, *i), MAX, stop=True)

    def power(*i: Axis) -> Expr:
        return E.Exp(E.subtract(read(s, *i), read(top, *i[:-1])))

    norm = total(f"{name}.norm", row, (t,), power)
    p = map_(f"{name}.p", box, lambda *i: E.Div(power(*i), read(norm, *i[:-1])), keep=Keep.NEVER)
    return total(
        f"{name}.o",
        (batch, heads, t, e),
        (t,),
        lambda n, h, i, c, j: E.Mul(read(p, n, h, i, j), read(v, n, h, j, c)),
    )


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
    o = scaled_dot_product(q, k, v, causal, name)

    def merged(n: Axis, i: Axis, c: Axis) -> Expr:
        return read(o, n, E.FloorDiv(c, E.index(e)), i, E.Mod(c, E.index(e)))

    flat = map_(f"{name}.flat", (batch, t, d), merged)
    return linear(flat, w_out, b_out, f"{name}.out")


def graph(**assigned: Value) -> Graph:
    """Each value into a fresh variable."""
    return Graph(tuple((Variable(n, v.shape, v.dtype), v) for n, v in assigned.items()))


def dropout(x: Value, key: Value, name: str) -> Definition:
    """Keeps about half of the elements, by a hash of a key and the element's number."""
    strides = [1]
    for extent in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * E.upper(extent))

    def bits(*i: Axis) -> Expr:
        at: Expr = E.index(0)
        for axis, stride in zip(i, strides, strict=True):
            at = E.Add(at, E.Mul(axis, E.index(stride)))
        word: Expr = E.Xor(E.Cast(at, uint32), read(key))
        for factor in (0x7FEB352D, 0x846CA68B, 0x9E3779B1, 0x85EBCA6B):
            word = E.Mul(E.Xor(word, E.FloorDiv(word, num(1 << 15, uint32))), num(factor, uint32))
        return word

    mask = map_(f"{name}.bits", x.shape, bits)

    def body(*i: Axis) -> Expr:
        return E.If(E.Less(read(mask, *i), num(1 << 31, uint32)), read(x, *i), num(0))

    return map_(name, x.shape, body)


Parameters = list[Variable]
Assign = tuple[Variable, Value]


def encoder_layer(
    x: Value, d: int, heads: int, ff: int, causal: bool, name: str
) -> tuple[Definition, Parameters]:
    """Post-norm transformer encoder layer with ReLU."""
    shapes = {
        "w_qkv": (3 * d, d),
        "b_qkv": (3 * d,),
        "w_out": (d, d),
        "b_out": (d,),
        "gain1": (d,),
        "shift1": (d,),
        "w1": (ff, d),
        "b1": (ff,),
        "w2": (d, ff),
        "b2": (d,),
        "gain2": (d,),
        "shift2": (d,),
    }
    p = {n: variable(f"{name}.{n}", *s) for n, s in shapes.items()}
    y = attention(x, p["w_qkv"], p["b_qkv"], p["w_out"], p["b_out"], heads, causal, f"{name}.att")
    x = layer_norm(add(x, y, f"{name}.r1"), p["gain1"], p["shift1"], f"{name}.ln1")
    y = activation(linear(x, p["w1"], p["b1"], f"{name}.z"), "relu", f"{name}.a")
    y = linear(y, p["w2"], p["b2"], f"{name}.y")
    x = layer_norm(add(x, y, f"{name}.r2"), p["gain2"], p["shift2"], f"{name}.ln2")
    return x, list(p.values())


def block(x: Value, d: int, heads: int, ff: int, name: str) -> tuple[Definition, Parameters]:
    """Pre-norm causal block with GELU."""
    shapes = {
        "gain1": (d,),
        "shift1": (d,),
        "w_qkv": (3 * d, d),
        "b_qkv": (3 * d,),
        "w_out": (d, d),
        "b_out": (d,),
        "gain2": (d,),
        "shift2": (d,),
        "w1": (ff, d),
        "b1": (ff,),
        "w2": (d, ff),
        "b2": (d,),
    }
    p = {n: variable(f"{name}.{n}", *s) for n, s in shapes.items()}
    y = layer_norm(x, p["gain1"], p["shift1"], f"{name}.ln1")
    y = attention(y, p["w_qkv"], p["b_qkv"], p["w_out"], p["b_out"], heads, True, f"{name}.att")
    x = add(x, y, f"{name}.r1")
    y = layer_norm(x, p["gain2"], p["shift2"], f"{name}.ln2")
    y = activation(linear(y, p["w1"], p["b1"], f"{name}.z"), "gelu", f"{name}.a")
    return add(x, linear(y, p["w2"], p["b2"], f"{name}.y"), f"{name}.r2"), list(p.values())


def sum_all(x: Value, name: str = "loss") -> Definition:
    return total(name, (), x.shape, lambda *i: read(x, *i))


def sgd(parameters: Parameters, grads: Sequence[Value], lr: float = 0.01) -> list[Assign]:
    """``p' = p - lr * dp``"""

    def update(p: Variable, g: Value) -> Definition:
        return map_(
            f"{p.name}'", p.shape, lambda *i: E.subtract(read(p, *i), E.Mul(read(g, *i), num(lr)))
        )

    return [(p, update(p, g)) for p, g in zip(parameters, grads, strict=True)]


def adamw(parameters: Parameters, grads: Sequence[Value], lr: float = 1e-3) -> list[Assign]:
    """AdamW with a step counter in a variable."""
    step = variable("step")
    after = map_("step'", (), lambda: E.Add(read(step), num(1)))
    found: list[Assign] = [(step, after)]

    def correction(name: str, beta: float) -> Definition:
        power = E.Exp(E.Mul(read(after), num(math.log(beta))))
        return map_(name, (), lambda: E.subtract(num(1), power))

    c1, c2 = correction("bias1", 0.9), correction("bias2", 0.999)
    for p, g in zip(parameters, grads, strict=True):
        found += _adamw_of(p, g, c1, c2, lr)
    return found


def _adamw_of(p: Variable, g: Value, c1: Value, c2: Value, lr: float) -> list[Assign]:
    m, v = variable(f"{p.name}.m", *p.shape), variable(f"{p.name}.v", *p.shape)

    def mix(old: Value, new: Expr, beta: float, *i: Axis) -> Expr:
        return E.Add(E.Mul(read(old, *i), num(beta)), E.Mul(new, num(1 - beta)))

    m2 = map_(f"{m.name}'", p.shape, lambda *i: mix(m, read(g, *i), 0.9, *i))
    v2 = map_(f"{v.name}'", p.shape, lambda *i: mix(v, E.Mul(read(g, *i), read(g, *i)), 0.999, *i))

    def body(*i: Axis) -> Expr:
        top = E.Div(read(m2, *i), read(c1))
        root = E.Add(E.Sqrt(E.Div(read(v2, *i), read(c2))), num(1e-8))
        kept = E.Mul(read(p, *i), num(1 - lr * 0.01))
        return E.subtract(kept, E.Mul(E.Div(top, root), num(lr)))

    return [(m, m2), (v, v2), (p, map_(f"{p.name}'", p.shape, body))]


def net_step(batch: int = 2, width: int = 255, received: bool = True) -> Graph:
    """Linear, sigmoid, linear; sum loss; SGD."""
    x = variable("x", batch, width)
    w1, b1 = variable("w1", width, width), variable("b1", width)
    w2, b2 = variable("w2", width, width), variable("b2", width)
    y = linear(activation(linear(x, w1, b1, "z"), "sigmoid", "a"), w2, b2, "y")
    loss = sum_all(y)
    parameters = [w1, b1, w2, b2]
    assigns = sgd(parameters, gradients(loss, parameters))
    return Graph(((variable("loss"), loss), *assigns) if received else tuple(assigns))


def encoder_step(
    layers: int = 1, d: int = 64, heads: int = 4, ff: int = 128, tokens: int = 2, batch: int = 1
) -> Graph:
    """Post-norm transformer encoder, ReLU; sum loss; SGD."""
    x: Value = variable("x", batch, tokens, d)
    parameters: Parameters = []
    for n in range(layers):
        x, more = encoder_layer(x, d, heads, ff, False, str(n))
        parameters += more
    loss = sum_all(x)
    assigns = sgd(parameters, gradients(loss, parameters))
    return Graph(((variable("loss"), loss), *assigns))


def gpt_step(
    layers: int = 4,
    d: int = 128,
    heads: int = 4,
    context: int = 64,
    batch: int = 16,
    vocab: int = 96,
) -> Graph:
    """Decoder-only pre-norm GPT, causal, GELU; cross entropy; AdamW."""
    tokens = variable("tokens", batch, context, kind=int64)
    labels = variable("labels", batch, context, kind=int64)
    table, place = variable("emb", vocab, d), variable("pos", context, d)
    x: Value = map_(
        "x0",
        (batch, context, d),
        lambda b, t, c: E.Add(read(table, read(tokens, b, t), c), read(place, t, c)),
    )
    parameters: Parameters = [table, place]
    for n in range(layers):
        x, more = block(x, d, heads, 4 * d, str(n))
        parameters += more
    gain, shift, head = variable("gain", d), variable("shift", d), variable("head", vocab, d)
    z = linear(layer_norm(x, gain, shift, "ln"), head, None, "logits")
    loss = log_softmax_nll(z, labels, "ce")
    parameters += [gain, shift, head]
    assigns = adamw(parameters, gradients(loss, parameters))
    return Graph(((variable("loss"), loss), *assigns))
