"""Decoders as compiled programs: a cache of keys and values as states, one program for all lengths.

Two programs run a model: one takes `CHUNK` tokens of a prompt at once, one takes a single token.
Both read as much of the cache as there is, by an extent that is symbolic, so that neither is
compiled again for another length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import pullback as pb
from pullback.errors import ArgumentError, StateError, UnsupportedError
from pullback.gguf.blocks import dequantised, f32
from pullback.gguf.reader import File
from pullback.gguf.weights import Weight

Array = np.ndarray[Any, Any]
Program = Callable[..., pb.Tensor]
Mix = Callable[[pb.Tensor, pb.Tensor, pb.Tensor], pb.Tensor]
CHUNK = 16  # tokens of a prompt that one call takes
CONTEXT = 2048  # places of the cache, unless more are asked for or the model has fewer


@dataclass(frozen=True)
class Sizes:
    """What the facts of a file say of attention."""

    layers: int
    width: int
    heads: int
    groups: int  # heads of keys and values
    head: int  # numbers of a head
    context: int  # places that the model was made for
    eps: float


def sizes_of(file: File, family: str, eps: str) -> Sizes:
    """Raises: StateError where facts are missing, of another type, or do not go together."""

    def whole(key: str, default: int | None = None) -> int:
        value: int = file.fact(f"{family}.{key}", int, default)
        if value < 1:
            what = f"`{family}.{key}` of {file.path} is {value}"
            raise StateError(what, code="E587")
        return value

    width, heads = whole("embedding_length"), whole("attention.head_count")
    groups = whole("attention.head_count_kv", heads)
    head = whole("attention.key_length", max(1, width // heads))
    if heads % groups or head % 2 or whole("attention.value_length", head) != head:
        what = f"{heads} heads of {head} numbers in {groups} groups, in {file.path}"
        raise StateError(what, code="E587")
    small: float = file.fact(f"{family}.{eps}", float)
    context = whole("context_length")
    return Sizes(whole("block_count"), width, heads, groups, head, context, small)


class Parts:
    """The tensors of a file, each taken once: what is left over would not have been used."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.left = set(file.tensors)

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        """A matrix as it lies in the file. Raises: StateError for one of another shape."""
        return Weight(self._stored(name, (rows, columns)))

    def vector(self, name: str, size: int) -> pb.Tensor:
        """A vector as float32. Raises: StateError for one of another size."""
        return dequantised(self._stored(name, (size,)))

    def linear(self, name: str, rows: int, columns: int) -> Callable[[pb.Tensor], pb.Tensor]:
        """``y = w x + b``, where the file has a bias."""
        weight = self.matrix(f"{name}.weight", rows, columns)
        if f"{name}.bias" not in self.file.tensors:
            return weight
        bias = self.vector(f"{name}.bias", rows)
        return lambda x: weight(x) + bias

    def has(self, name: str) -> bool:
        """Whether the file has such a tensor."""
        return name in self.file.tensors

    def end(self) -> None:
        """Raises: UnsupportedError for tensors that nothing took: the model is another one."""
        if self.left:
            named = ", ".join(f"`{name}`" for name in sorted(self.left)[:4])
            what = f"{self.file.path} has tensors that its architecture does not use here: {named}"
            raise UnsupportedError(what, code="E583")

    def _stored(self, name: str, shape: tuple[int, ...]) -> Any:
        stored = self.file[name]
        if stored.shape != shape:
            what = (
                f"`{name}` of {self.file.path} has the shape {stored.shape}, its facts say {shape}"
            )
            raise StateError(what, code="E587")
        self.left.discard(name)
        return stored


class Cache:
    """Keys and values of all places of a layer, ``[group, place, head]`` each."""

    def __init__(self, sizes: Sizes, places: int) -> None:
        shape = sizes.groups, places, sizes.head
        self.keys, self.values = pb.State(pb.zeros(shape)), pb.State(pb.zeros(shape))

    def put(self, first: pb.Tensor, keys: pb.Tensor, values: pb.Tensor) -> None:
        """Write those of new tokens, ``[group, head]`` of one or ``[token, group, head]``, from
        place `first` on.
        """
        for state, new in ((self.keys, keys), (self.values, values)):
            state.assign(pb.compute(state.shape, _written(state, new, first)))


def _written(state: pb.Tensor, new: pb.Tensor, first: pb.Tensor) -> Callable[..., Any]:
    if new.ndim == 2:
        return lambda g, t, d: pb.where(t == first[()], new[g, d], state[g, t, d])
    count = new.shape[0]

    def several(g: Any, t: Any, d: Any) -> Any:
        place = t - first[()]
        return pb.where((place >= 0) & (place < count), new[place, g, d], state[g, t, d])

    return several


def attend(sizes: Sizes, cache: Cache, q: pb.Tensor, first: pb.Tensor, seen: pb.Tensor) -> Any:
    """``y[h] = sum[t <= p] softmax[t](q[h] k[t] / sqrt(head)) v[t]`` for tokens at p = first, ..

    `seen` has an element for each place that is looked at; only its extent counts.
    """
    lead, share = q.shape[:-2], sizes.heads // sizes.groups
    places, scale = seen.shape[0], float(np.float32(sizes.head) ** np.float32(-0.5))
    t, d = pb.axis(places), pb.axis(sizes.head)
    keys, values = cache.keys, cache.values

    def score(*i: Any) -> Any:
        *m, h, place = i
        one = pb.sum(q[*m, h, d] * keys[h // share, place, d], over=d) * scale
        return pb.where(place <= first[()] + m[0], one, -np.inf) if m else one

    weights = pb.softmax(pb.compute((*lead, sizes.heads, places), score), axis=-1)

    def mixed(*i: Any) -> Any:
        *m, h, own = i
        return pb.sum(weights[*m, h, t] * values[h // share, t, own], over=t)

    made = pb.compute((*lead, sizes.heads, sizes.head), mixed)
    return pb.reshape(made, (*lead, sizes.heads * sizes.head))


class Decoder:
    """A language model: what follows some tokens. `next(tokens)` goes on where it stands.

    Subclasses give what a model is, of one token, or of several with an axis before the others.
    """

    sizes: Sizes
    words: int

    def __init__(self, file: File, context: int | None = None) -> None:
        self.file = file
        most = self.sizes.context
        self.places = min(most, CONTEXT) if context is None else context
        if not 1 <= self.places <= most:
            what = f"a context of {self.places}; {file.path} was made for {most} places"
            raise ArgumentError(what, help="give fewer", code="E585")
        held = self.places + CHUNK - 1  # a chunk is filled up beyond the last place
        self.caches = [Cache(self.sizes, held) for _ in range(self.sizes.layers)]
        self.done = 0
        seen = pb.dim("seen", 1, held)
        self._one: Program = pb.jit(self._step, shapes=[(1,), (), (seen,)])
        self._several: Program = pb.jit(self._chunk, shapes=[(CHUNK,), (), (), (seen,)])

    # --- what a model is

    def embedded(self, tokens: pb.Tensor, first: pb.Tensor) -> pb.Tensor:
        """The tokens, of which the first has place `first`, as vectors ``[token, width]``."""
        raise NotImplementedError

    def block(self, number: int, x: pb.Tensor, first: pb.Tensor, mix: Mix) -> pb.Tensor:
        """A layer; ``mix(q, k, v)`` is its attention, which keeps k and v."""
        raise NotImplementedError

    def scores(self, x: pb.Tensor) -> pb.Tensor:
        """The logarithm of how likely each word is, up to a constant, behind the vector x."""
        raise NotImplementedError

    # --- how it runs

    def reset(self) -> None:
        """Forget all tokens."""
        self.done = 0

    def next(self, tokens: Any) -> Array:
        """Take tokens, and give the scores of what follows the last one, ``[words]``.

        Raises: ArgumentError for none, for more than there is place for, for one that is no word.
        """
        given = np.asarray(tokens, np.int64).reshape(-1)
        if not len(given):
            what = "no tokens: nothing says what comes first"
            raise ArgumentError(what, help="give a token, or a text of one", code="E585")
        if self.done + len(given) > self.places:
            what = f"{len(given)} tokens behind {self.done}, in {self.places} places"
            raise ArgumentError(what, code="E585")
        if given.min() < 0 or given.max() >= self.words:
            wrong = given[(given < 0) | (given >= self.words)][0]
            what = f"token {wrong} of {self.words} words"
            raise ArgumentError(what, help="numbers of the file's own tokens", code="E585")
        scores = pb.zeros(1)
        for part in _parts(given):
            scores = self._taken(part)
            self.done += len(part)
        return np.asarray(scores.numpy())

    def _taken(self, part: Array) -> pb.Tensor:
        first = np.array(self.done, np.int64)
        if len(part) == 1:
            return self._one(part, first, np.zeros(self.done + 1, np.bool_))
        padded = np.zeros(CHUNK, np.int64)
        padded[: len(part)] = part
        last, seen = np.array(len(part) - 1, np.int64), np.zeros(self.done + CHUNK, np.bool_)
        return self._several(padded, first, last, seen)

    def _step(self, tokens: pb.Tensor, first: pb.Tensor, seen: pb.Tensor) -> pb.Tensor:
        x = pb.reshape(self.embedded(tokens, first), (self.sizes.width,))
        return self.scores(self._layers(x, first, seen))

    def _chunk(
        self, tokens: pb.Tensor, first: pb.Tensor, last: pb.Tensor, seen: pb.Tensor
    ) -> pb.Tensor:
        """What is behind `last` fills up the chunk: its keys are written over before they count."""
        x = self._layers(self.embedded(tokens, first), first, seen)
        return self.scores(pb.compute((self.sizes.width,), lambda k: x[last[()], k]))

    def _layers(self, x: pb.Tensor, first: pb.Tensor, seen: pb.Tensor) -> pb.Tensor:
        for number, cache in enumerate(self.caches):

            def mix(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor, cache: Cache = cache) -> pb.Tensor:
                cache.put(first, k, v)
                mixed: pb.Tensor = attend(self.sizes, cache, q, first, seen)
                return mixed

            x = self.block(number, x, first, mix)
        return x


def _parts(tokens: Array) -> Iterator[Array]:
    """Chunks, and what is left over as one more, filled up; a single token alone."""
    for start in range(0, len(tokens), CHUNK):
        yield tokens[start : start + CHUNK]


def normed(x: pb.Tensor, weight: pb.Tensor, eps: float) -> pb.Tensor:
    """``x / sqrt(mean(x^2) + eps) weight`` along the last axis"""
    square = pb.mean(x * x, axis=-1, keepdims=True)
    return weight * (x * pb.rsqrt(square + eps))


def turned(x: pb.Tensor, first: pb.Tensor, rates: Array, pairs: bool) -> pb.Tensor:
    """Rotary places: of each two numbers of a head, the angle ``rates[j] (first + m)``.

    The two are neighbours where `pairs`, else half of the turned part apart; what is behind
    ``2 len(rates)`` stays.
    """
    count, held = len(rates), pb.tensor(rates)
    lead = x.ndim - 2

    def body(*i: Any) -> Any:
        *m, h, d = i
        j = d // 2 % count if pairs else d % count
        other = d + 1 - d % 2 * 2 if pairs else pb.where(d < count, d + count, d - count)
        early = (d % 2 < 1) if pairs else (d < count)
        angle = f32(first[()] + m[0] if lead else first[()]) * held[j]
        inside = d < 2 * count
        beside = pb.where(inside, x[*m, h, pb.where(inside, other, d)], 0.0)
        signed = pb.where(early, -beside, beside) * pb.sin(angle)
        return pb.where(inside, x[*m, h, d] * pb.cos(angle) + signed, x[*m, h, d])

    made: pb.Tensor = pb.compute(x.shape, body)
    return made
