"""Random tensors: a counter-based generator, so that a value depends on its place alone.

``words = threefry(key = seed, counter = (index, draw))``. The draw number is state: values follow
in program order, inside a jitted loop too, and differ by sample in `pb.vmap`. With `key=` nothing
but the key decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, DTypeError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.dtype import DType, int64, uint32
from pullback.ir.expr import Add, Axis, Cast, Expr, Extent, FloorDiv, Mul, upper
from pullback.ir.graph import Definition, Keep, Value, read
from pullback.tensor.face.dialect import shown, spelled
from pullback.tensor.face.tensor import State, Tensor, check_device, operand, shape_of, value_of
from pullback.tensor.library import steady
from pullback.tensor.library.scalars import facts
from pullback.tensor.library.threefry import swap_or_not, threefry, word
from pullback.tensor.record.trace import Array, Handle, array_of, bind, current, realize
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import Shape, axes_of, make

__all__ = [
    "bernoulli", "fold_in", "get_state", "integers", "key", "manual_seed", "normal", "permutation",
    "set_state", "split", "uniform",
]  # fmt: skip
__dir__ = shown(__all__)

Words = tuple[Expr, Expr]
ROUNDS = 24  # of the shuffle; a place moves in every second one
WORD = 1 << 32


def _seeded(seed: int, *more: int) -> Any:
    return np.array([seed % WORD, seed // WORD % WORD, *more], np.uint32)


_samples: ContextVar[tuple[Handle, ...]] = ContextVar("pullback_samples", default=())
_generator = State(bind(_seeded(0, 1), "generator", copy=True))


def manual_seed(seed: int) -> None:
    """Start the sequence of draws anew from `seed`.

    Example:
        >>> pb.random.manual_seed(0)
    """
    _generator.assign(bind(_seeded(V.whole(seed, "seed"), 1), "generator", copy=True))


def key(seed: int) -> Tensor:
    """An explicit key: equal keys give equal values.

    Example:
        >>> key = pb.random.key(0)
        >>> bool(pb.random.normal((), key=key) == pb.random.normal((), key=key))
        True
    """
    return Tensor(bind(_seeded(V.whole(seed, "seed")), "key", copy=True))


@shaped("", where="int(num) >= 0")
def split(key: Tensor, num: int = 2) -> list[Tensor]:
    """Independent keys derived from one.

    Example:
        >>> [k.shape for k in pb.random.split(pb.random.key(0))]
        [(2,), (2,)]
    """
    return [fold_in(key, n) for n in range(V.whole(num, "num", 0))]


def fold_in(key: Tensor, number: int) -> Tensor:
    """A key derived from a key and a number.

    Example:
        >>> pb.random.fold_in(pb.random.key(0), 1).shape
        (2,)
    """
    number = V.whole(number, "number")
    return Tensor(_folded(_check_key(key), (word(number), word(number // WORD + 1))))


def _folded(key: Value, counter: Words) -> Definition:
    """The key that a key gives for `counter`; in memory, lest ciphers be written into ciphers."""
    a, b = threefry(_key_words(key), counter)
    body = E.If(E.Equal(Axis(0, 2), E.index(0)), a, b)
    return make("key", (2,), body, stop=True, keep=Keep.ALWAYS)


@contextmanager
def drawn_by(sample: Handle | None) -> Iterator[None]:
    """Draws without a key depend on the number of the sample, too (None: all have the same)."""
    token = _samples.set((*_samples.get(), *(() if sample is None else (sample,))))
    try:
        yield
    finally:
        _samples.reset(token)


def _check_key(given: Handle) -> Value:
    if not isinstance(given, Handle):
        raise DTypeError(f"a key is a tensor, not a {type(given).__name__}", code="E157")
    value = given.value
    if value.shape != (2,) or value.dtype != uint32:
        raise DTypeError(
            f"a key is uint32 of shape (2,), not {value.dtype}{value.shape}",
            help="make one with pb.random.key(seed)",
            code="E157",
        )
    return value


def _key_words(value: Value) -> Words:
    return read(value, 0), read(value, 1)


class Source:
    """Where one draw gets its words from: a key, and the number of the draw."""

    def __init__(self, given: Handle | None) -> None:
        if given is not None:
            self.key = _check_key(given)
            self.draw: Expr = word(0)
            return
        self.key = _next_draw()
        self.draw = read(self.key, 2)
        for sample in _samples.get():
            number = Cast(read(sample.value), uint32)
            self.key = _folded(self.key, (number, word(WORD - 1)))

    def words(self, shape: Shape) -> Words:
        """Two random words for each element of `shape`."""
        if math.prod(upper(e) for e in shape) >= WORD:
            raise ShapeError("a draw of 2^32 elements or more", code="E123")
        place = V.linear(list(zip(axes_of(shape), shape, strict=True)))
        return threefry(_key_words(self.key), (Cast(place, uint32), self.draw))


def _next_draw() -> Value:
    """The generator's state for this draw; the next one counts one more."""
    before = _generator.value
    if current() is None:
        realize([_generator])
        before = _generator.value
        after = np.array(array_of(_generator))
        after[2] += 1
        _generator.assign(bind(after, "generator", copy=True))
        return before
    n = Axis(0, 3)
    one = Cast(E.Equal(n, E.index(2)), uint32)
    counted = make("generator", (3,), Add(read(before, n), one), stop=True)
    _generator.assign(counted)
    return before


def _draw(
    name: str, shape: Any, given: Handle | None, body: Callable[[Expr, Expr], Expr]
) -> Definition:
    extents = shape_of(shape)
    return make(name, extents, body(*Source(given).words(extents)), stop=True)


def _unit(a: Expr, b: Expr, kind: DType) -> Expr:
    """Words as a float in [0, 1), of as many random bits as its type has: so none rounds to 1."""
    if kind == D.float64:
        high = Mul(Cast(FloorDiv(a, word(1 << 5)), kind), E.const(2.0**26, kind))
        low = Cast(FloorDiv(b, word(1 << 6)), kind)
        return Mul(Add(high, low), E.const(2.0**-53, kind))
    digits = facts(kind)[0]
    whole = Cast(FloorDiv(a, word(1 << (32 - digits))), D.float32)
    return Mul(whole, E.const(2.0**-digits, D.float32))


def _number(name: str, value: Any) -> float:
    """Raises: ArgumentError for what is no finite number."""
    known = isinstance(value, Real) and not isinstance(value, bool)
    try:
        number = float(value) if known else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ArgumentError(f"{name}={value!r} is no finite number")
    return number


def _float(spec: Any) -> DType:
    kind = D.dtype(spec)
    if not kind.is_float:
        raise DTypeError(f"random floats of {kind}")
    return kind


@spelled
@shaped("-> [*shape]", where="low <= high")
def uniform(
    shape: Any = (),
    low: float = 0.0,
    high: float = 1.0,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Evenly spread over ``low <= x < high``.

    Example:
        >>> pb.random.uniform((2, 3)).shape
        (2, 3)
    """
    check_device(device)
    low, high = _number("low", low), _number("high", high)
    kind = _float(dtype)

    def body(a: Expr, b: Expr) -> Expr:
        unit = _unit(a, b, kind)
        scaled = Mul(unit, E.const(high - low, unit.dtype))
        return W.cast(Add(scaled, E.const(low, unit.dtype)) if low else scaled, kind)

    return Tensor(_draw("uniform", shape, key, body))


@spelled
@shaped("-> [*shape]", where="std >= 0")
def normal(
    shape: Any = (),
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Normally distributed: ``sqrt(-2 log u) sin(2 pi v)`` (Box and Muller).

    Sums, products and roots alone make it (`steady`): every backend draws the same bits.

    Example:
        >>> pb.random.normal((2, 3)).shape
        (2, 3)
    """
    check_device(device)
    mean, std = _number("mean", mean), _number("std", std)
    kind = _float(dtype)
    work = D.float64 if kind == D.float64 else D.float32

    def body(a: Expr, b: Expr) -> Expr:
        digits = 32 if work == D.float64 else 24
        top = Add(Cast(FloorDiv(a, word(1 << (32 - digits))), work), E.const(1.0, work))
        u = Mul(top, E.const(2.0**-digits, work))
        turn = Mul(Cast(FloorDiv(b, word(1 << 8)), work), E.const(2.0**-24, work))
        radius = E.Sqrt(Mul(steady.log(u, -digits, 0), E.const(-2.0, work)))
        unit = Mul(radius, steady.sine(turn))
        scaled = Mul(unit, E.const(std, work))
        return W.cast(Add(scaled, E.const(mean, work)) if mean else scaled, kind)

    return Tensor(_draw("normal", shape, key, body))


@spelled
@shaped("p[*shape?] -> [*shape]")
def bernoulli(
    p: Any = 0.5,
    shape: Any = None,
    *,
    dtype: Any = "bool",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """True with probability `p` (a number, or a tensor that broadcasts to `shape`).

    Example:
        >>> pb.random.bernoulli(0.5, (3,)).shape
        (3,)
    """
    check_device(device)
    if isinstance(p, tuple | list):
        p, shape = (0.5 if shape is None else shape), p
    if not isinstance(p, Handle | np.ndarray):
        p = _number("p", p)
        if not 0 <= p <= 1:  # a list in its place is a shape: no limit is declared
            raise ArgumentError(f"bernoulli: p={p!r}", help="it must hold: 0 <= p <= 1")
    chance = operand(p)
    extents = shape_of(W.operand_shape(chance) if shape is None else shape)
    axes = axes_of(extents)

    def body(a: Expr, b: Expr) -> Expr:
        limit = W.lifted(chance, D.float32, extents, axes)
        return W.cast(E.Less(_unit(a, b, D.float32), limit), D.dtype(dtype))

    return Tensor(_draw("bernoulli", extents, key, body))


@spelled
@shaped("-> [*shape]")
def integers(
    low: int,
    high: int | None = None,
    shape: Any = (),
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Whole numbers, ``low <= x < high``; one bound is the upper one.

    Example:
        >>> pb.random.integers(0, 10, (3,)).dtype
        int64
    """
    check_device(device)
    low, high = (0, low) if high is None else (low, high)
    low, high = V.whole(low, "low"), V.whole(high, "high")
    kind = D.dtype(dtype)
    if not kind.is_integer or high <= low:
        raise DTypeError(f"integers from {low} to {high} of {kind}", code="E141")
    if low < kind.range()[0] or high - 1 > kind.range()[1]:
        raise DTypeError(f"{low}..{high - 1} does not fit {kind}", code="E141")

    def body(a: Expr, b: Expr) -> Expr:
        wide = Mul(Cast(a, int64), E.index(1 << 31))
        bits = Add(wide, Cast(FloorDiv(b, word(2)), int64))
        return W.cast(Add(E.Mod(bits, E.index(high - low)), E.index(low)), kind)

    return Tensor(_draw("integers", shape, key, body))


@shaped("x[...]")
def permutation(x: Any, *, axis: int = 0, key: Tensor | None = None, device: Any = None) -> Tensor:
    """The numbers below `x` in random order, or a tensor `x` in random order along an axis.

    Linear in memory. Element n is computed on its own: each round swaps it with a partner, or
    does not.

    Example:
        >>> pb.sort(pb.random.permutation(4))
        Tensor([0, 1, 2, 3], dtype=int64)
    """
    check_device(device)
    if isinstance(x, Handle):
        source = value_of(x)
        if not source.shape:
            raise ShapeError("permutation of a tensor without axes", code="E111")
        along = V.normal_axis(axis, len(source.shape))
        return Tensor(X.take(source, _order(source.shape[along], key), along))
    return Tensor(_order(V.whole(x, "a permutation of"), key))


def _order(size: Extent, given: Handle | None) -> Definition:
    if not isinstance(size, int) or not 0 <= size < WORD // 2:
        raise ShapeError(f"a permutation of {size} elements", code="E123")
    source = Source(given)
    turns, salts = _rounds(source, max(1, size))
    place: Expr = Cast(Axis(0, size), uint32)
    for n in range(ROUNDS):
        place = swap_or_not(place, size, read(turns, n), read(salts, n))
    return make("permutation", (size,), Cast(place, int64), stop=True)


def _rounds(source: Source, size: int) -> tuple[Definition, Definition]:
    """For each round of the shuffle the sum of partners, and the salt of its coins."""
    a, b = source.words((ROUNDS,))
    turns = make("turns", (ROUNDS,), E.Mod(a, word(size)), stop=True)
    return turns, make("salts", (ROUNDS,), b, stop=True)


def get_state() -> Array:
    """The generator's seed and number of draws, to be saved.

    Example:
        >>> state = pb.random.get_state()
        >>> pb.random.set_state(state)
    """
    realize([_generator])
    return np.array(array_of(_generator))


def set_state(state: Any) -> None:
    """Go on where `get_state` was called. Raises: DTypeError, ShapeError for no such state.

    Example:
        >>> pb.random.set_state(pb.random.get_state())
    """
    words = np.asarray(state)
    if words.dtype.kind not in "iu":
        raise DTypeError(f"a state of random numbers of {words.dtype}", code="E142")
    _generator.assign(bind(words.astype(np.uint32), "generator", copy=True))
