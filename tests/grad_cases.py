"""Index expressions with what the work of their gradients may be: raw ones, operators, networks.

A bar is (iterations, multiplications, elements) of the whole gradient graph, the forward stages
that it computes again and a head of ones included; conditions are not discounted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grad_support import S, T, call, clamp, exp, fn, log, sqrt, var, where
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import int32, int64
from pullback.ir.expr import Dim
from pullback.ir.graph import MAX, PROD, Definition, Value, Variable
from pullback.simplify.graph import rewire

Bar = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """One output, what it is differentiated by, and the bar."""

    name: str
    output: Value
    wrt: tuple[Variable, ...]
    bar: Bar | None = None
    low: float = -10
    high: float = 10
    data: tuple[tuple[Variable, Any], ...] = ()


def relu(s: S) -> S:
    return call("relu", s)


# --- operators -----------------------------------------------------------------------------------


def conv(x: Value, w: Value, s: int = 1, p: int = 0, d: int = 1, name: str = "conv") -> Definition:
    """``out[n, f, y, x] = sum[c, a, b] xp[n, c, y s + a d, x s + b d] w[f, c, a, b]``"""
    n, c, *size = x.shape
    f, _, *kernel = w.shape
    out = [(h + 2 * p - d * (k - 1) - 1) // s + 1 for h, k in zip(size, kernel, strict=True)]

    def body(b: S, o: S, i: S, j: S, q: S, u: S, v: S) -> S:
        rows, columns = i * s + u * d - p, j * s + v * d - p
        here = T(w)[o, q, u, v]
        if not p:
            return T(x)[b, q, rows, columns] * here
        inside = (rows >= 0) & (rows < size[0]) & (columns >= 0) & (columns < size[1])
        return where(inside, T(x)[b, q, rows, columns] * here, 0.0)

    return fn(name, (n, f, *out), body, (c, *kernel))


def pool(x: Value, k: int, s: int, kind: str) -> Definition:
    n, c, *size = x.shape
    out = [(h - k) // s + 1 for h in size]

    def body(b: S, q: S, i: S, j: S, u: S, v: S) -> S:
        here = T(x)[b, q, i * s + u, j * s + v]
        return here if kind == "max" else here * (1 / (k * k))

    combiner = {"combiner": MAX} if kind == "max" else {}
    return fn("pool", (n, c, *out), body, (k, k), **combiner)


def flatten(x: Value, length: int) -> Definition:
    """``(1, length)``, the first elements in row-major order."""
    h, w = x.shape[2:]
    assert isinstance(h, int)
    assert isinstance(w, int)

    def body(_: S, j: S) -> S:
        return T(x)[0, j // (h * w), j // w % h, j % w]

    return fn("flat", (1, length), body)


def pointwise(name: str, x: Value) -> Definition:
    return fn(name, x.shape, lambda *i: call(name, T(x)[i]))


def softmax(x: Value) -> Definition:
    rows, n = x.shape
    m = fn("m", (rows,), lambda i, k: T(x)[i, k], (n,), combiner=MAX)
    e = fn("e", x.shape, lambda i, j: exp(T(x)[i, j] - T(m)[i]))
    z = fn("z", (rows,), lambda i, k: T(e)[i, k], (n,))
    return fn("softmax", x.shape, lambda i, j: T(e)[i, j] / T(z)[i])


def log_softmax(x: Value) -> Definition:
    rows, n = x.shape
    m = fn("m", (rows,), lambda i, k: T(x)[i, k], (n,), combiner=MAX)
    z = fn("z", (rows,), lambda i, k: exp(T(x)[i, k] - T(m)[i]), (n,))
    return fn("log_softmax", x.shape, lambda i, j: T(x)[i, j] - T(m)[i] - log(T(z)[i]))


# --- section 1: raw expressions ------------------------------------------------------------------

A, B = var("A0", 10, 10), var("A1", 10, 10)
a, b = T(A), T(B)
SQUARE = (10, 10)


def flipped(function: Callable[[S, S], S]) -> Definition:
    """``f(A0[i, j], A0[j, i])``"""
    return fn("out", SQUARE, lambda i, j: function(a[i, j], a[j, i]))


def scalar_product() -> Case:
    x = var("X", 10)
    first = fn("A", (10,), lambda i: T(x)[i] + T(x)[9 - i])
    second = fn("B", (10,), lambda i: T(x)[i] * T(x)[9 - i])
    y = fn("Y", (), lambda i: T(first)[i] * T(second)[i], (10,))
    return Case("1.21", y, (x,), (251, 230, 71))


def raw() -> list[Case]:
    f, wide = flipped, (10001, 10000, 101)
    found = [
        Case("1.1", fn("out", SQUARE, lambda i, j: a[i, j]), (A,)),
        Case("1.2", fn("out", SQUARE, lambda i, j: a[i, j] + b[i, j]), (A, B)),
        Case("1.3", f(lambda x, y: x + y), (A,), wide),
        *(
            Case(f"1.{n} {name}", f(lambda x, _, name=name: call(name, x)), (A,), (100, 0, 100))
            for n, name in zip(range(4, 8), ("floor", "ceil", "trunc", "round"), strict=True)
        ),
        Case("1.8", f(lambda x, y: x + exp(y)), (A,), (10001, 20000, 101)),
        Case(
            "1.9", f(lambda x, y: log(0.1 + call("abs", x + exp(y)))), (A,), (10001, 70000, 101)
        ),
        Case("1.10", f(lambda x, y: call("sigmoid", x * x * y)), (A,), (10001, 110000, 101), -2, 2),
        Case("1.11", f(lambda x, y: call("tanh", x * x * y)), (A,), (10001, 110000, 101), -2, 2),
        Case("1.12", f(lambda x, y: sqrt(x * x * y)), (A,), (10001, 80000, 101), 0.1),
        Case(
            "1.13", f(lambda x, y: call("pow", call("abs", x), y)), (A,),
            (10001, 90000, 101), -4, 4,
        ),
        Case("1.14", f(lambda x, y: x * y), (A,), wide),
        Case(
            "1.15", fn("out", (10,), lambda i, k: a[i, k] * a[k, i], (10,)), (A,),
            (11001, 1000, 1101),
        ),
        Case(
            "1.16", fn("out", SQUARE, lambda i, j, k: a[i, k] * a[k, i] + 5.0, (10,)), (A,),
            (20001, 10000, 1101),
        ),
        Case(
            "1.17",
            fn("out", SQUARE, lambda i, j, k: a[i, k] * a[k, j] + 5.0, (10,), combiner=MAX),
            (A,), (110001, 310000, 20101),
        ),
        *(
            Case(
                f"1.18 {len(wrt)}", fn("out", SQUARE, lambda i, j: a[i, j] * (b[j, i] + a[j, i])),
                wrt, (10001, 10000, 101) if len(wrt) == 1 else None,
            )
            for wrt in ((A,), (A, B))
        ),
        Case(
            "1.19",
            fn(
                "out", SQUARE,
                lambda i, j, k: a[k, k] - a[clamp(j + k, 0, 9), j] * a[i, k], (10,),
            ),
            (A,), (110001, 10000, 10101),
        ),
        Case(
            "1.20", fn("out", SQUARE, lambda i, j, k: a[i, k] + a[k, i], (10,), combiner=PROD),
            (A,), (20001, 40000, 2101), 0.5, 1.5,
        ),
        scalar_product(),
    ]  # fmt: skip
    # 1.22 starts its reduction at 0.0, which is what a sum starts at.
    last = fn("out", (10,), lambda i, k: a[i, k] * a[k, i], (10,))
    return [*found, Case("1.22", last, (A,))]


# --- section 2: operators ------------------------------------------------------------------------


def residual() -> Case:
    x, w = var("X", 1, 2, 5, 5), var("W", 2, 2, 3, 3)

    def step(inner: Value, name: str) -> Definition:
        c = conv(inner, w, p=1, name=name)
        return fn(name + "_sum", x.shape, lambda *i: T(x)[i] + T(c)[i])

    r = step(step(x, "first"), "second")
    return Case("2.9", r, (x, w), (5334, 4950, 638), -1, 1)


def after_residual(name: str, number: str, bar: Bar, wrt: str = "XW") -> Case:
    inner = residual()
    flat = flatten(inner.output, 50)
    made = {"softmax": softmax, "log_softmax": log_softmax}
    y = made[name](flat) if name in made else pointwise(name, flat)
    chosen = tuple(v for v in inner.wrt if v.name in wrt)
    return Case(number, y, chosen, bar, -0.5, 0.5)


def parts() -> list[Case]:
    x, y = var("X", 1, 2, 3, 5), var("Y", 1, 2, 7, 5)

    def joined(p: Value, q: Value, rows: int, total: int) -> Definition:
        return fn(
            "concat", (1, 2, total, 5),
            lambda n, c, i, j: where(i < rows, T(p)[n, c, i, j], T(q)[n, c, i - rows, j]),
        )  # fmt: skip

    z = var("X", 1, 2, 6, 5)
    first = fn("S", (1, 2, 3, 5), lambda n, c, i, j: T(z)[n, c, i, j])
    second = fn("R", (1, 2, 3, 5), lambda n, c, i, j: T(z)[n, c, i + 3, j])
    return [
        Case("2.15", joined(x, y, 3, 10), (x, y), (100, 0, 100)),
        Case("2.16", first, (z,), (61, 0, 61)),
        Case("2.17", second, (z,), (61, 0, 61)),
        Case("2.18", joined(first, second, 3, 6), (z,), (74, 0, 74)),
        Case("2.19", joined(second, first, 3, 6), (z,), (74, 0, 74)),
    ]


def take() -> Case:
    x, n = var("X", 4, 5), Variable("I", (100,), int32)

    def body(i: S) -> S:
        place = S(E.Cast(F.absolute(T(n)[i].e), int64))
        return T(x)[place // 5, place % 5]

    where_from = np.random.default_rng(2).integers(-10, 10, 100).astype(np.int32)
    return Case(
        "2.20 take", fn("R", (100,), body), (x,), (2101, 2000, 121), data=((n, where_from),)
    )


def attention() -> Case:
    x, w = var("X", 4, 5), var("W", 5, 5)
    s = fn("s", (4, 5), lambda i, j, k: T(x)[i, k] * T(w)[j, k], (5,))
    e = fn("e", (4, 5), lambda i, j: exp(T(s)[i, j]))
    z = fn("z", (4,), lambda i, j: T(e)[i, j], (5,))
    y = fn("y", (4, 5), lambda i, j: T(e)[i, j] / T(z)[i])
    return Case("2.21", y, (x, w), (433, 432, 166), -1, 1)


def operators() -> list[Case]:
    x, w, w1, w2 = var("X", 1, 2, 4, 4), var("W", 5, 2, 3, 3), var("W1", 2, 5, 3, 3), var("W2", 1)
    r = conv(x, w, p=1)
    wide = fn("wide", (5, 2, 3, 3), lambda *_: T(w2)[0])
    large = var("X", 1, 2, 5, 5)
    return [
        Case("2.1", r, (x, w), (2953, 2880, 195)),
        Case("2.2", conv(pointwise("relu", r), w1), (x, w, w1), (5633, 5320, 685), -1, 1),
        Case("2.3", wide, (w2,), (91, 0, 2)),
        Case("2.4", conv(x, wide, p=1), (x, w2), (1892, 1728, 125)),
        Case("2.5", pool(x, 2, 2, "avg"), (x,), (33, 32, 33)),
        Case("2.6", pool(x, 2, 2, "max"), (x,), (161, 1056, 97)),
        Case("2.7", flatten(large, 32), (large,), (51, 200, 51)),
        Case("2.8", flatten(large, 50), (large,), (50, 0, 50)),
        residual(),
        after_residual("softmax", "2.10", (9785, 12653, 1211)),
        after_residual("sigmoid", "2.11", (6933, 7200, 955)),
        after_residual("tanh", "2.12", (6933, 7200, 955)),
        after_residual("log_softmax", "2.13", (9786, 12601, 1163)),
        after_residual("log_softmax", "2.14", (7836, 10601, 913), "W"),
        *parts(),
        take(),
        attention(),
    ]


# --- section 3: strides and dilations, max pooling -----------------------------------------------

# (kernel, stride, dilation): (iterations, multiplications, the forward's executed iterations)
CONVOLUTIONS: dict[tuple[int, int, int], tuple[int, int, int]] = {
    (1, 1, 1): (1001, 800, 400), (1, 2, 1): (505, 704, 100), (1, 3, 1): (469, 596, 64),
    (1, 1, 2): (1001, 800, 400), (1, 2, 2): (505, 704, 100), (1, 3, 2): (469, 596, 64),
    (1, 1, 3): (1001, 800, 400), (1, 2, 3): (505, 704, 100), (1, 3, 3): (469, 596, 64),
    (2, 1, 1): (3097, 2896, 1296), (2, 2, 1): (1001, 2400, 400), (2, 3, 1): (561, 1248, 144),
    (2, 1, 2): (2825, 11072, 1024), (2, 2, 2): (1057, 1968, 256), (2, 3, 2): (561, 6064, 144),
    (2, 1, 3): (2585, 10352, 784), (2, 2, 3): (673, 4160, 256), (2, 3, 3): (801, 1488, 144),
    (3, 1, 1): (6105, 5904, 2304), (3, 2, 1): (2273, 28944, 576), (3, 3, 1): (1049, 1944, 324),
    (3, 1, 2): (5097, 21888, 1296), (3, 2, 2): (1625, 2672, 324), (3, 3, 2): (689, 8416, 144),
    (3, 1, 3): (2377, 38528, 576), (3, 2, 3): (689, 8416, 144), (3, 3, 3): (801, 1488, 144),
}  # fmt: skip
POOLS: dict[tuple[int, int], Bar] = {
    (1, 1): (200, 0, 200), (1, 2): (201, 400, 201), (1, 3): (201, 400, 201),
    (2, 1): (4001, 7200, 1801), (2, 2): (1001, 6600, 601), (2, 3): (785, 5512, 529),
    (3, 1): (18001, 34200, 3801), (3, 2): (6681, 69336, 1659), (3, 3): (1821, 11826, 687),
}  # fmt: skip


def convolutions() -> list[Case]:
    found = []
    for (k, s, d), (iterations, products, _) in CONVOLUTIONS.items():
        x, w = var("X", 1, 2, 10, 10), var("W", 2, 2, k, k)
        bar = (iterations, products, 599)
        found.append(Case(f"conv k{k} s{s} d{d}", conv(x, w, s, d=d), (x, w), bar))
    return found


def pools() -> list[Case]:
    found = []
    for (k, s), bar in POOLS.items():
        x = var("X", 1, 2, 10, 10)
        found.append(Case(f"pool k{k} s{s}", pool(x, k, s, "max"), (x,), bar))
    return found


# --- section 4: a network ------------------------------------------------------------------------


def network() -> Case:
    x, y = var("x", 1, 28, 14, 1), var("y", 1, 10)
    w1, b1, w2, b2 = var("w1", 4, 1, 3, 5), var("b1", 4), var("w2", 4, 4, 3, 5), var("b2", 4)
    w3, b3, w4, b4 = var("w3", 16, 144), var("b3", 16), var("w4", 10, 16), var("b4", 10)

    def block(t: Value, w: Value, c: Value, name: str) -> Definition:
        inner = conv(t, w, name=name)
        return fn(
            name + "_relu", inner.shape, lambda n, f, i, j: relu(T(inner)[n, f, i, j] + T(c)[f])
        )

    def dense(t: Value, w: Value, c: Value, name: str) -> Definition:
        (rows, k), n = t.shape, w.shape[0]
        inner = fn(name, (rows, n), lambda i, j, q: T(t)[i, q] * T(w)[j, q], (k,))
        return fn(name + "_bias", (rows, n), lambda i, j: T(inner)[i, j] + T(c)[j])

    t: Value = fn("transposed", (1, 1, 28, 14), lambda n, c, i, j: T(x)[n, i, j, c])
    t = pool(block(block(t, w1, b1, "c1"), w2, b2, "c2"), 2, 2, "avg")
    flat = fn("flat", (1, 144), lambda n, j: T(t)[n, j % 4, j // 12, j // 4 % 3])
    hidden = pointwise("relu", dense(flat, w3, b3, "d3"))
    out = log_softmax(dense(hidden, w4, b4, "d4"))
    loss = fn("loss", (), lambda i, j: -(T(y)[i, j] * T(out)[i, j]), (1, 10))
    return Case("network", loss, (w1, b1, w2, b2, w3, b3, w4, b4), (181906, 178936, 15235), -1, 1)


# --- section 5: symbolic shapes ------------------------------------------------------------------


@dataclass(frozen=True)
class Symbolic:
    """A case over symbolic extents; the bar holds at `sizes`."""

    case: Case
    sizes: dict[Dim, int]


def symbolic() -> list[Symbolic]:
    m, n = Dim("m", 1, 12), Dim("n", 1, 12)
    s, r = var("A", m, n), var("B", n)
    q = var("A0", m, m)
    x = var("X", m, n, 4, 4)
    add = fn("out", (m, n), lambda i, j: T(s)[i, j] + T(r)[j])
    both = fn("out", (m, m), lambda i, j: T(q)[i, j] + T(q)[j, i])
    diagonal = fn("out", (m,), lambda i, k: T(q)[i, k] * T(q)[k, i], (m,))
    small = {m: 1, n: 2}
    return [
        Symbolic(Case("5.1", add, (s, r), (66, 0, 62)), {m: 5, n: 10}),
        Symbolic(Case("5.2", both, (q,), (10101, 10000, 201)), {m: 10}),
        Symbolic(Case("5.3", diagonal, (q,), (11101, 1000, 1201)), {m: 10}),
        Symbolic(Case("5.4", pool(x, 2, 2, "avg"), (x,), (35, 2, 35)), small),
        Symbolic(Case("5.5", pool(x, 2, 2, "max"), (x,), (161, 1056, 97)), small),
    ]


def all_cases() -> Sequence[Case]:
    """Sections 1 to 4."""
    return [*raw(), *operators(), *convolutions(), *pools(), network()]


def moved(values: Sequence[Value], onto: dict[Variable, Variable]) -> list[Value]:
    """`values` reading other variables."""
    return rewire(values, dict(onto))
