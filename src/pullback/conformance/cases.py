"""Every case, in sections, primitives first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.conformance.case import KINDS, Array, Case, Make, Sample, Section, drawn, special
from pullback.conformance.primitives import COUNT, FLOATS, NUMERIC, PRIMITIVES, made
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_, float16, float32, float64, int32, int64, uint32
from pullback.ir.expr import Axis
from pullback.ir.graph import read
from pullback.nn import functional as F
from pullback.tensor.library.threefry import threefry

WIDE = (float32, float64)
MANY = (int32, int64, *FLOATS)
Function = Callable[..., Any]
TAIL = 70  # extents up to here have every remainder of any number of lanes


def of(function: Function, *shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Make:
    """Numbers of these shapes."""

    def make(kind: DType) -> Sample:
        arrays = (drawn(kind, *s, seed=n, low=low, high=high) for n, s in enumerate(shapes))
        return Sample(function, (tuple(arrays),))

    return make


def with_places(function: Function, shape: tuple[int, ...], extent: int, *places: int) -> Make:
    """Numbers, and places below `extent`."""
    given = np.random.default_rng(3).integers(0, extent, places)
    return lambda kind: Sample(function, ((drawn(kind, *shape), given),))


def with_nan(function: Function, *shape: int) -> Make:
    """Numbers with NaN and infinities in between, rows of them."""

    def make(kind: DType) -> Sample:
        return Sample(function, ((special(kind, shape[0] * shape[1]).reshape(shape),),))

    return make


def slopes(function: Function) -> Function:
    """The value, and the gradients of an uneven sum of it by every float."""

    def both(*given: Any) -> list[Any]:
        y = function(*given)
        weights = pb.cos(pb.astype(pb.arange(y.size), y.dtype))
        total = pb.sum(y * pb.reshape(weights, y.shape))
        return [y, *pb.grad(total, [a for a in given if a.dtype.is_float])]

    return both


# --- forms ---------------------------------------------------------------------------------------


def along(name: str, **options: Any) -> Function:
    """A function of arrays over the rows, over the columns, and over all."""
    own = getattr(pb, name)
    return lambda x: [own(x, axis=a, **options) for a in (0, 1, None)]


def each(name: str) -> Function:
    own = getattr(pb, name)
    return lambda x: [own(x, axis=a) for a in (0, 1)]


def recurrence(x: Any, w: Any) -> list[Any]:
    """``h = tanh(x[t] + w h)``"""

    def body(h: Any, row: Any) -> Any:
        h = pb.tanh(row + w @ h)
        return h, h

    return list(pb.scan(body, x[0], x))


def stencil(x: Any) -> Any:
    n = x.shape[0]

    def body(i: Any) -> Any:
        return pb.where((i > 0) & (i < n - 1), x[i - 1] + x[i + 1] - 2 * x[i], 0.0)

    return pb.compute((n,), body)


FORMS = (
    Case("map of two arrays", of(lambda a, b: a * 2 + b, (5, COUNT), (COUNT,)), MANY, 1.0),
    Case("sum", of(along("sum"), (9, 70)), MANY, 8.0, True),
    Case("prod", of(along("prod"), (3, 7), low=0.5, high=1.5), FLOATS, 16.0, True),
    Case("max", with_nan(along("max"), 9, 31), NUMERIC),
    Case("min", with_nan(along("min"), 9, 31), NUMERIC),
    Case("all and any", of(lambda x: [pb.all(x, axis=0), pb.any(x, axis=1)], (3, 40)), KINDS),
    Case("argmax", of(each("argmax"), (9, 31)), NUMERIC),
    Case("argmin", of(each("argmin"), (9, 31)), NUMERIC),
    Case("cumulative sum", of(each("cumulative_sum"), (9, 70)), MANY, 8.0, True),
    Case("cumulative max", of(each("cumulative_max"), (9, 31)), MANY),
    Case("sort", of(each("sort"), (9, 31)), NUMERIC),
    Case("argsort", of(each("argsort"), (9, 31)), MANY),
    Case("gather", with_places(lambda x, i: pb.take(x, i, axis=0), (11, 6), 11, 40), MANY),
    Case(
        "scatter, added", with_places(
            lambda x, i: pb.scatter_add(x, i, pb.flip(x, axis=0)[:4], axis=0), (11, 6), 3, 4
        ), MANY, 8.0, True,
    ),
    Case(
        "scatter, largest", with_places(
            lambda x, i: x.at[i].max(pb.flip(x, axis=0)[:4]), (11, 6), 3, 4
        ), MANY,
    ),
    Case("product", of(lambda a, b: a @ b, (19, 34), (34, 35)), MANY, 8.0, True),
    Case("product of a vector", of(lambda a, b: b @ (a @ b), (37, 37), (37,)), MANY, 16.0, True),
    Case("batched product", of(lambda a, b: a @ b, (2, 3, 9), (2, 9, 17)), MANY, 8.0, True),
    Case("transposed product", of(lambda a, b: a.T @ b.T, (33, 18), (40, 33)), FLOATS, 8.0, True),
    Case("stencil", of(slopes(stencil), (70,)), FLOATS, 8.0, True),
    Case("recurrence", of(recurrence, (7, 5), (5, 5)), FLOATS, 16.0, True),
)  # fmt: skip


# --- functions -----------------------------------------------------------------------------------

INSIDE = {"log": (0.01, 9.0), "sqrt": (0.0, 9.0), "rsqrt": (0.01, 9.0), "log2": (0.01, 9.0),
          "log10": (0.01, 9.0), "log1p": (-0.9, 9.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0),
          "atanh": (-0.9, 0.9), "acosh": (1.0, 9.0), "reciprocal": (0.1, 9.0)}  # fmt: skip
ONES = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "sigmoid", "softplus", "log_sigmoid", "silu", "gelu", "abs", "floor", "ceil", "round", "sign",
)  # fmt: skip
TWOS = (
    "pow", "atan2", "logaddexp", "remainder", "fmod", "floor_divide", "maximum", "minimum",
    "copysign",
)  # fmt: skip
CANCEL = ("cos", "gelu", "silu")  # near their zeros exact to a unit of 1, or of their argument


def functions() -> tuple[Case, ...]:
    """Named functions; those of two take positive numbers."""
    cases = []
    for name in ONES:
        low, high = INSIDE.get(name, (-9.0, 9.0))
        make = of(getattr(pb, name), (COUNT,), low=low, high=high)
        cases.append(Case(name, make, FLOATS, 6.0, name in CANCEL))
    for name in TWOS:
        cases.append(Case(name, of(getattr(pb, name), (COUNT,), (COUNT,), low=0.1), FLOATS, 6.0))
    return tuple(cases)


# --- composites, with their gradients ------------------------------------------------------------


def norm(x: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), g, b)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def composite(name: str, function: Function, *shapes: tuple[int, ...]) -> Case:
    return Case(name, of(slopes(function), *shapes), FLOATS, 16.0, True)


def looked_up(w: Any, i: Any) -> Any:
    return F.embedding(i, w)


def joined(a: Any, b: Any) -> Any:
    return pb.pad(pb.concat([a, b], axis=1), ((1, 0), (0, 2)))


def classes(x: Any, wanted: Any) -> list[Any]:
    loss = F.cross_entropy(x, wanted)
    return [loss, pb.grad(loss, x)]


COMPOSITES = (
    composite("softmax", lambda x: F.softmax(x, dim=-1), (6, 33)),
    composite("log softmax", lambda x: F.log_softmax(x, dim=-1), (6, 33)),
    composite("logsumexp", lambda x: pb.logsumexp(x, axis=1), (4, 33)),
    composite("layer norm", norm, (6, 32), (32,), (32,)),
    composite("variance", lambda x: pb.var(x, axis=0), (9, 8)),
    composite(
        "linear and GELU", lambda x, w, b: F.gelu(F.linear(x, w, b)), (18, 20), (33, 20), (33,)
    ),
    composite("product", lambda a, b: a @ b, (19, 34), (34, 35)),
    composite(
        "convolution", lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        (2, 3, 9, 11), (4, 3, 3, 3),
    ),
    composite("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 9, 9)),
    composite("attention", attention, *[(2, 9, 8)] * 3),
    composite("causal attention", causal, *[(2, 33, 8)] * 3),
    Case("cross entropy", with_places(classes, (12, 10), 10, 12), FLOATS, 16.0, True),
    Case("embedding", with_places(slopes(looked_up), (7, 5), 7, 30), FLOATS, 16.0, True),
    composite("cumulative sum", lambda x: pb.cumulative_sum(x, axis=1), (4, 50)),
    composite("concat and pad", joined, (3, 4), (3, 5)),
)  # fmt: skip


# --- layouts -------------------------------------------------------------------------------------


def held(change: Callable[[Array], Array], *shape: int) -> Make:
    """An array that NumPy holds in another order."""
    return lambda kind: Sample(lambda x: x * x, ((change(drawn(kind, *shape)),),))


def viewed(x: Any) -> Any:
    return pb.flip(pb.permute_dims(x, (2, 0, 1))[1:, ::2], axis=2)


LAYOUTS = (
    Case("transposed memory", held(lambda a: a.T, 5, 9), MANY, 1.0),
    Case("every second element", held(lambda a: a[:, ::2], 5, 18), MANY, 1.0),
    Case("backwards", held(lambda a: a[::-1], 7, 3), MANY, 1.0),
    Case("one element repeated", held(lambda a: np.broadcast_to(a, (4, 5)), 5), MANY, 1.0),
    Case("views", of(viewed, (4, 5, 6)), KINDS),
    Case("roll and tile", of(lambda a: pb.tile(pb.roll(a, 2, axis=0), (2, 1)), (5, 3)), MANY),
    Case("no axes", of(lambda a, b: a * b, (), ()), MANY, 1.0),
    Case("one element", of(lambda a: [pb.sum(a), a * a], (1, 1)), MANY, 1.0),
    Case("nothing", of(lambda a: [a * a, pb.sum(a, axis=0), pb.sum(a)], (0, 3)), MANY),
    Case("a product over nothing", of(lambda a, b: a @ b, (3, 0), (0, 4)), MANY),
    Case("two results, one value", of(lambda a: [a, a * 1], (9,)), MANY),
)  # fmt: skip


# --- extents -------------------------------------------------------------------------------------


def sized(
    function: Function, *shapes: tuple[int | None, ...], counts: range | tuple[int, ...]
) -> Make:
    """One program for an extent `n` (None in a shape), called at every count."""

    def make(kind: DType) -> Sample:
        n = pb.dim("n", 1, max(counts))
        declared = [tuple(n if e is None else e for e in s) for s in shapes]
        calls = [
            tuple(
                drawn(kind, *(c if e is None else e for e in s), seed=k)
                for k, s in enumerate(shapes)
            )
            for c in counts
        ]
        return Sample(function, tuple(calls), declared)

    return make


def extent(
    name: str, function: Function, *shapes: tuple[int | None, ...], few: bool = False
) -> Case:
    counts = (1, 2, 5, 12) if few else range(1, TAIL + 1)
    return Case(name, sized(function, *shapes, counts=counts), WIDE, 16.0, True, alone=True)


def tails(kind: DType) -> Sample:
    """Maps of 1 to 70 elements, each extent known when it is compiled."""
    x = drawn(kind, TAIL)
    return Sample(lambda x: [x[:n] * x[:n] + 1 for n in range(1, TAIL + 1)], ((x,),))


def tail_sums(kind: DType) -> Sample:
    """Sums of 1 to 70 elements."""
    return Sample(
        lambda x: [pb.sum(x[:n] * x[:n]) for n in range(1, TAIL + 1)], ((drawn(kind, TAIL),),)
    )


EXTENTS = (
    Case("maps of 1 to 70", tails, (int32, float16, *WIDE), 1.0, alone=True),
    Case("sums of 1 to 70", tail_sums, (int32, float16, *WIDE), 8.0, True, alone=True),
    extent("map", lambda x: pb.exp(x) * x, (None,)),
    extent("sum", lambda x: pb.sum(x * x), (None,)),
    extent("softmax of rows", lambda x: F.softmax(x, dim=-1), (3, None)),
    extent("columns", lambda x: pb.sum(x * x, axis=0), (None, 5)),
    extent("product, terms", lambda a, b: a @ b, (3, None), (None, 4)),
    extent("product, rows", lambda a, b: a @ b, (None, 5), (5, 17)),
    extent("attention", causal, *[(2, None, 4)] * 3, few=True),
    extent("gradient", lambda x: pb.grad(pb.sum(pb.tanh(x) ** 2), x), (None, 3), few=True),
)  # fmt: skip


# --- control flow --------------------------------------------------------------------------------


def halving(x: Any) -> Any:
    return pb.while_loop(lambda v: pb.sum(pb.abs(v)) > 1.0, lambda v: v * 0.5, x)


def nested(x: Any) -> Any:
    def inner(i: Any, h: Any) -> Any:
        return pb.loop(3, lambda j, g: g * 0.5 + x, h)

    return pb.loop(2, inner, x)


def either(x: Any) -> list[Any]:
    """A branch with its gradient, taken by what is computed."""

    def loss(x: Any) -> Any:
        chosen = pb.cond(pb.sum(x) > 0, lambda x: x * x, lambda x: pb.sin(x), x)
        return pb.sum(pb.cond(pb.sum(x) < 0, lambda x: x * 3, lambda x: pb.exp(x), chosen))

    return [loss(x), pb.grad(loss)(x)]


def through_time(x: Any, w: Any) -> list[Any]:
    def loss(x: Any, w: Any) -> Any:
        return pb.sum(recurrence(x, w)[1] ** 2)

    return list(pb.grad(loss, argnums=(0, 1))(x, w))


def ended(kind: DType) -> Sample:
    """A loop that ends with its batches."""
    batches = iter([drawn(kind, 7, seed=n) for n in range(3)])

    def function(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return h + pb.Feeder(lambda: next(batches), shape=(7,), dtype=kind)

        return pb.loop(100, body, x)

    return Sample(function, ((drawn(kind, 7),),))


CONTROL = (
    Case("while", of(halving, (9,)), FLOATS, 16.0, True),
    Case("loop in a loop", of(nested, (9,)), FLOATS, 16.0, True),
    Case("branches and their gradient", of(either, (9,)), FLOATS, 16.0, True),
    Case("gradient through time", of(through_time, (7, 5), (5, 5)), FLOATS, 16.0, True),
    Case("batches that end", ended, MANY, 8.0, True),
)


# --- random numbers ------------------------------------------------------------------------------

VECTORS = (  # of Random123: key, counter, words
    ((0, 0), (0, 0)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)),
)


def words(kind: DType) -> Sample:
    """Threefry of what Random123 publishes."""
    given = np.array(VECTORS, np.uint32).reshape(3, 4)

    def function(x: Any) -> list[Any]:
        k0, k1, c0, c1 = (read(x.value, Axis(0, 3), E.index(n)) for n in range(4))
        return [made(word, 3) for word in threefry((k0, k1), (c0, c1))]

    return Sample(function, ((given,),))


def draws(draw: Callable[[Any, str], Any]) -> Make:
    """Numbers of one key."""
    return lambda kind: Sample(lambda key: draw(key, kind.name), ((np.array([1, 2], np.uint32),),))


def samples(name: str, *given: float) -> Make:
    own = getattr(pb.random, name)
    return draws(lambda key, kind: own(*given, (6, 11), key=key, dtype=kind))


RANDOM = (
    Case("threefry", words, (uint32,)),
    Case(
        "uniform", draws(lambda key, kind: pb.random.uniform((6, 11), key=key, dtype=kind)), FLOATS
    ),
    Case(
        "normal",
        draws(lambda key, kind: pb.random.normal((6, 11), key=key, dtype=kind)),
        FLOATS,
    ),
    Case("gamma", samples("gamma", 2.5, 2.0), WIDE),
    Case("gamma below 1", samples("gamma", 0.3, 1.0), WIDE),
    Case("beta", samples("beta", 0.5, 2.0), WIDE),
    Case("bernoulli", draws(lambda key, _: pb.random.bernoulli(0.3, (6, 11), key=key)), (bool_,)),
)


# --- the seeds' examples -------------------------------------------------------------------------


def trained(
    build: Callable[[], nn.Module], *shape: int, steps: int = 5
) -> Callable[[DType], Sample]:
    """A few steps of SGD on the sum of the outputs: losses as the host is told them, weights."""

    def make(kind: DType) -> Sample:
        sample = Sample(lambda: None, ((),))
        model = build()
        names = dict(model.named_parameters())
        state = {
            n: nn.Parameter(drawn(kind, *p.shape, low=-0.1, high=0.1)) for n, p in names.items()
        }
        opt = optim.SGD(list(state.values()), lr=0.01)
        batches = iter([drawn(kind, *shape, seed=n) for n in range(steps)])

        def step() -> None:
            opt.zero_grad()
            x = pb.Feeder(lambda: next(batches), shape=shape, dtype=kind)
            loss = nn.functional_call(model, state, (x,)).sum()
            loss.backward()
            opt.step()
            pb.Receiver(lambda a: sample.received.append(np.array(a)), [loss])

        def function() -> list[Any]:
            pb.loop(range(steps), step)
            return [p * 1.0 for p in state.values()]

        return Sample(function, ((),), None, sample.received)

    return make


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(255, 255), nn.Sigmoid(), nn.Linear(255, 255))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0)


SEEDS = (
    Case("two linear layers", trained(net, 2, 255), WIDE, 64.0, True, alone=True),
    Case("encoder layer", trained(encoder, 2, 64), WIDE, 64.0, True, alone=True),
)
SECTIONS = (
    Section("primitives", PRIMITIVES),
    Section("forms", FORMS),
    Section("functions", functions()),
    Section("composites", COMPOSITES),
    Section("layouts", LAYOUTS),
    Section("extents", EXTENTS),
    Section("control", CONTROL),
    Section("random", RANDOM),
    Section("seeds", SEEDS),
)
