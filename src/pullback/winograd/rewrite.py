"""A convolution as definitions of minimal filtering.

    v[p, q, c.., t] = sum[i, j] b[p, i] b[q, j] x[c.., i, j of tile t]
    u[p, q, o..] = sum[k, l] g[p, k] g[q, l] w[o.., k, l]
    m[p, q, o.., t] = sum[c..] u[p, q, o..] v[p, q, c.., t]
    y[o.., i, j of tile t] = sum[p, q] a[i, p] a[j, q] m[p, q, o.., t]

By the weight: ``dw[k, l] = sum[p, q] g[p, k] g[q, l] sum[t] z[p, q, t] v[p, q, t]``, where z is
``sum[i, j] a[i, p] a[j, q] dy[i, j of tile t]``. Every sum is a product with a small matrix, one
axis after the other, or the large one, batched over p and q.

Places are stored by what they are within a tile, ``phase[i, j, t] = x[m row(t) + i, m col(t) + j]``
and a row of tiles has one more than there are, so that the tile below is a fixed distance on: all
tiles are one axis, along which every read is contiguous. What the additional tile holds is not read
(by the weight it is times zero).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from pullback.config import Pair
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Extent, If, Less, Mul, index
from pullback.ir.graph import Definition, Keep, Value, define, read, substitute
from pullback.winograd.algorithms import TAPS, Algorithm, Matrix
from pullback.winograd.recognise import Convolution, Role, Slide

T = TypeVar("T")


Made = dict[tuple[object, ...], Definition]
"""Transforms by algorithm, source and places: the adjoint by the weight reads that of forward."""


def rewritten(conv: Convolution, algorithm: Algorithm, made: Made) -> Definition:
    """The same sums by an algorithm, of the same shape and type; `made` gets what others share."""
    own = _Rewriting(conv, algorithm, made)
    return own.output() if conv.role is Role.OUTPUT else own.weight()


@dataclass(frozen=True, slots=True)
class _Rewriting:
    conv: Convolution
    algorithm: Algorithm
    made: Made

    @property
    def along(self) -> int:
        """Tiles of a row, the additional one with them."""
        return -(-self.conv.slides[1].extent // self.algorithm.tile) + 1

    @property
    def tiles(self) -> int:
        """All tiles of a plane."""
        return -(-self.conv.slides[0].extent // self.algorithm.tile) * self.along

    @property
    def space(self) -> set[int]:
        """The axes of space and the taps, by number."""
        return {a.number for s in self.conv.slides for a in (s.long, s.tap)}

    def output(self) -> Definition:
        """``y[.., u, v]``, from the tile that u and v are in."""
        m, a = self.algorithm.tile, self._matrix("a", self.algorithm.outputs)
        product = self._product(self._inputs(), self._weights(), tiled=True)
        *outer, tiles = product.shape[2:]
        points = self.algorithm.points
        half = self._sum(
            "rows",
            (*outer, m, points, tiles),
            lambda *i: Mul(read(a, i[-4], i[-1]), read(product, i[-1], i[-3], *i[:-4], i[-2])),
            points,
        )
        whole = self._sum(
            "outputs",
            (*outer, m, m, tiles),
            lambda *i: Mul(read(a, i[-3], i[-1]), read(half, *i[:-3], i[-1], i[-2])),
            points,
        )
        numbers = [s.long.number for s in self.conv.slides]

        def body(*i: Expr) -> Expr:
            u, v = (i[n] for n in numbers)
            tile = _linear(E.FloorDiv(u, index(m)), self.along, E.FloorDiv(v, index(m)))
            rest = [e for n, e in enumerate(i) if n not in numbers]
            return read(whole, *rest, E.Mod(u, index(m)), E.Mod(v, index(m)), tile)

        return self._result(body)

    def weight(self) -> Definition:
        """``dw[.., k, l]``: the transpose of how weights are transformed."""
        g, points = self._matrix("g", self.algorithm.weights), self.algorithm.points
        product = self._product(self._inputs(), self._places(), tiled=False)
        half = self._sum(
            "rows",
            (*product.shape[2:], TAPS, points),
            lambda *i: Mul(read(g, i[-1], i[-3]), read(product, i[-1], i[-2], *i[:-3])),
            points,
        )
        first, second = self.conv.slides

        def body(*i: Expr) -> Expr:
            k, other = (_turned(s, i[s.tap.number]) for s in (first, second))
            rest = [e for n, e in enumerate(i[:-1]) if n not in self.space]
            return Mul(read(g, i[-1], other), read(half, *rest, k, i[-1]))

        return self._result(body, points)

    def _inputs(self) -> Definition:
        """``v[p, q, .., t]``, once of each source."""
        places = [(s.place, s.first, s.inside, s.extent) for s in self.conv.slides]
        key = (self.algorithm.name, self.conv.x.source, *places)
        if key not in self.made:
            self.made[key] = self._transformed()
        return self.made[key]

    def _transformed(self) -> Definition:
        b, points = self._matrix("b", self.algorithm.inputs), self.algorithm.points
        m, along, tiles = self.algorithm.tile, self.along, self.tiles
        outside = [(s.place, s.first, s.inside) for s in self.conv.slides]
        phases = self._phases(self.conv.x.source, outside, tiles + along + 1)
        outer = phases.shape[:-3]
        half = self._sum(
            "columns",
            (*outer, points, m, tiles + 1),
            lambda *i: Mul(
                read(b, i[-4], i[-1]),
                read(phases, *i[:-4], *_moved(m, i[-1], i[-3], i[-2], along)),
            ),
            points,
        )
        return self._sum(
            "inputs",
            (points, points, *outer, tiles),
            lambda p, q, *i: Mul(
                read(b, q, i[-1]),
                read(half, *i[:-2], p, *_moved(m, i[-1], None, i[-2], 1)),
            ),
            points,
        )

    def _weights(self) -> Definition:
        """``u[p, q, ..]``"""
        g, points = self._matrix("g", self.algorithm.weights), self.algorithm.points
        source, slides = self.conv.other.source, self.conv.slides
        places = [s.other for s in slides]
        outer = _rest(source.shape, places)

        def taps(p: Expr, other: Expr, *i: Expr) -> Expr:
            *rest, k = i
            at = dict(zip(places, (_turned(slides[0], k), _turned(slides[1], other)), strict=True))
            return Mul(read(g, p, k), read(source, *_with(rest, at)))

        half = self._sum("taps", (points, TAPS, *outer), taps, TAPS)
        return self._sum(
            "weights",
            (points, points, *outer),
            lambda p, q, *i: Mul(read(g, q, i[-1]), read(half, p, i[-1], *i[:-1])),
            TAPS,
        )

    def _places(self) -> Definition:
        """``z[p, q, .., t]`` of the adjoint of the result."""
        a, points = self._matrix("a", self.algorithm.outputs), self.algorithm.points
        m, tiles = self.algorithm.tile, self.tiles
        inside = [(s.other, 0, (0, s.extent)) for s in self.conv.slides]
        phases = self._phases(self.conv.other.source, inside, tiles)
        outer = phases.shape[:-3]
        half = self._sum(
            "columns",
            (*outer, points, m, tiles),
            lambda *i: Mul(read(a, i[-1], i[-4]), read(phases, *i[:-4], i[-1], i[-3], i[-2])),
            m,
        )
        return self._sum(
            "places",
            (points, points, *outer, tiles),
            lambda p, q, *i: Mul(read(a, i[-1], q), read(half, *i[:-2], p, i[-1], i[-2])),
            m,
        )

    def _phases(
        self, source: Value, space: Sequence[tuple[int, int, Pair]], count: int
    ) -> Definition:
        """``phase[.., i, j, t]``: what stands at i, j of tile t, zero outside of what is inside."""
        m, along = self.algorithm.tile, self.along
        places = [place for place, _, _ in space]

        def body(*i: Expr) -> Expr:
            *rest, row, column, t = i
            tile = (E.FloorDiv(t, index(along)), E.Mod(t, index(along)))
            at: dict[int, Expr] = {}
            tests: list[Expr] = []
            for (place, first, (low, high)), n, phase in zip(
                space, tile, (row, column), strict=True
            ):
                u = at[place] = E.Add(_linear(n, m, phase), index(first))
                tests += [Less(index(low - 1), u), Less(u, index(high))]
            element = read(source, *_with(rest, at))
            return If(reduce(E.And, tests), element, E.const(0, element.dtype))

        shape = (*_rest(source.shape, places), m, m, count)
        return self._define("phases", shape, body, keep=Keep.ALWAYS)

    def _product(self, tiles: Definition, other: Definition, *, tiled: bool) -> Definition:
        """``m[p, q, .., t]``, or the sum of it over t."""
        d = self.conv.definition
        rank, points = len(d.shape), self.algorithm.points
        every = [n for n in range(len(d.extents)) if n not in self.space]
        outer, summed = [n for n in every if n < rank], [n for n in every if n >= rank]
        shape = [d.extents[n] for n in outer] + [self.tiles] * tiled
        over = [d.extents[n] for n in summed] + [self.tiles] * (not tiled)

        def body(p: Expr, q: Expr, *i: Expr) -> Expr:
            own = list(i)
            t = own.pop(len(outer) if tiled else -1)
            moves = dict(zip(every, own, strict=True))
            sides = []
            for take, value, where in (
                (self.conv.other, other, [s.other for s in self.conv.slides]),
                (self.conv.x, tiles, [s.place for s in self.conv.slides]),
            ):
                at = [substitute(e, moves) for e in _rest(take.indices, where)]
                lies = len(value.shape) == len(at) + 3
                sides.append(read(value, p, q, *at, *([t] if lies else [])))
            return Mul(*sides)

        return self._define("product", (points, points, *shape), body, over)

    def _matrix(self, name: str, matrix: Matrix) -> Definition:
        """A matrix of the algorithm, stored: written into its readers it would be asked for."""
        kind = self.conv.definition.dtype

        def body(i: Expr, j: Expr) -> Expr:
            value: Expr = E.const(0, kind)
            for r, row in enumerate(matrix):
                for c, number in enumerate(row):
                    here = E.And(E.Equal(i, index(r)), E.Equal(j, index(c)))
                    if number:
                        value = If(here, E.const(float(number), kind), value)
            return value

        return self._define(name, (len(matrix), len(matrix[0])), body, keep=Keep.ALWAYS)

    def _sum(
        self, name: str, shape: Iterable[Extent], body: Callable[..., Expr], over: int
    ) -> Definition:
        """A sum over points, taps or places of a tile: the last axis."""
        return self._define(name, shape, body, (over,))

    def _result(self, body: Callable[..., Expr], *over: int) -> Definition:
        d = self.conv.definition
        name = f"{d.name}_{self.algorithm.name}"
        return define(name, d.shape, body, over=over, stop=d.stop, keep=d.keep, origin=d.origin)

    def _define(
        self,
        name: str,
        shape: Iterable[Extent],
        body: Callable[..., Expr],
        over: Iterable[Extent] = (),
        keep: Keep = Keep.AUTO,
    ) -> Definition:
        full = f"{self.algorithm.name}_{name}"
        return define(full, shape, body, over=over, keep=keep, origin=self.conv.definition.origin)


def _linear(high: Expr, by: int, low: Expr) -> Expr:
    return E.Add(Mul(high, index(by)), low)


def _moved(m: int, i: Expr, other: Expr | None, t: Expr, by: int) -> list[Expr]:
    """The phase of place i, and where its tile stands: the tile after next begins at i = m."""
    phases = [E.Mod(i, index(m))] if other is None else [E.Mod(i, index(m)), other]
    return [*phases, _linear(E.FloorDiv(i, index(m)), by, t)]


def _turned(slide: Slide, tap: Expr) -> Expr:
    """A tap counted in rising order of the elements that it meets."""
    return tap if slide.step == 1 else E.subtract(index(TAPS - 1), tap)


def _rest(items: Sequence[T], places: Sequence[int]) -> list[T]:
    return [e for n, e in enumerate(items) if n not in places]


def _with(rest: Sequence[Expr], at: dict[int, Expr]) -> list[Expr]:
    """Indices in order: those of `at` in their places, the others between them."""
    left = iter(rest)
    return [at[n] if n in at else next(left) for n in range(len(rest) + len(at))]
