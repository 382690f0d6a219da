"""L-BFGS as a function: the minimum of a function of tensors, inside of programs too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from pullback.errors import DTypeError, OptionError
from pullback.nn.base.space import literal
from pullback.tensor.derive.autograd import value_and_grad
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.face.tree import Tree, flatten
from pullback.tensor.forms.control import while_loop
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.ops import where
from pullback.tensor.record.trace import current
from pullback.tensor.run.program import jit
from pullback.tensor.shaped import shaped

LIMITS = (
    "0 < lr < inf, int(max_iter) >= 1, int(max_eval) >= 1, tolerance_grad >= 0, "
    "tolerance_change >= 0, int(history_size) >= 1"
)
ARMIJO, CURVATURE = 1e-4, 0.9  # of the strong Wolfe conditions; PyTorch's
CURVED = 1e-10  # the least y.s of a pair that is kept; PyTorch's


class Minimum(NamedTuple):
    """Where the search ended, the value there, and how many steps and evaluations it took.

    Example:
        >>> result = pb.optim.lbfgs(lambda x: pb.sum((x - 1) ** 2), pb.zeros(2))
        >>> isinstance(result, pb.optim.Minimum)
        True
    """

    x: Any
    value: Tensor
    iterations: Tensor
    evaluations: Tensor


@shaped("", where=LIMITS)
def lbfgs(
    function: Callable[[Any], Any],
    x: Any,
    *,
    lr: float = 1.0,
    max_iter: int = 20,
    max_eval: int | None = None,
    tolerance_grad: float = 1e-7,
    tolerance_change: float = 1e-9,
    history_size: int = 100,
    line_search_fn: str | None = None,
) -> Minimum:
    """``x = x + t d`` with ``d = -H g``, H from the last `history_size` changes of x and g.

    `x` is a tensor or a tree of tensors, `function` gives one number. `t` is `lr`, of the first
    step ``lr min(1, 1 / sum |g|)``, or what `line_search_fn="strong_wolfe"` finds. It ends after
    `max_iter` steps, `max_eval` evaluations (5/4 of `max_iter` unless said), where the largest
    gradient is at most `tolerance_grad`, or a change at most `tolerance_change`. No derivative
    passes through it. Outside of `jit` the search is a program of its own, made for each call.

    Raises: OptionError for another line search.
    Source: Nocedal, Wright: Numerical Optimization, 2006, algorithms 7.4, 3.5 and 3.6.

    Example:
        >>> pb.optim.lbfgs(lambda x: pb.sum((x - 1) ** 2), pb.zeros(2)).x
        Tensor([1., 1.], dtype=float32)
    """
    most = max_iter * 5 // 4 if max_eval is None else max_eval
    if line_search_fn not in (None, "strong_wolfe"):
        raise OptionError('line_search_fn is None or "strong_wolfe"', code="E124")
    wolfe = line_search_fn is not None

    def minimum(x: Any) -> Minimum:
        flat = _Flat(flatten(x, from_array))
        evaluate = partial(_at, function, flat)
        search = _Search(evaluate, lr, most, tolerance_grad, tolerance_change, history_size, wolfe)
        start = search.begin(flat.vector)
        end = while_loop(lambda s: s.going, search.step, start, max_steps=max_iter)
        return Minimum(flat.tree(end.x), end.f, end.count, end.evaluations)

    result: Minimum = (minimum if current() is not None else jit(minimum))(x)
    return result


def _at(function: Callable[[Any], Any], flat: _Flat, vector: Tensor) -> Any:
    """The value and the gradient at a vector."""
    return value_and_grad(lambda v: function(flat.tree(v)))(vector)


class _Flat:
    """A tree of tensors as one vector. Raises: DTypeError for several types, or no floats."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._shapes = [literal("lbfgs", h.shape) for h in tree.handles]
        kinds = {h.dtype for h in tree.handles}
        if len(kinds) != 1 or not next(iter(kinds)).is_float:
            raise DTypeError("lbfgs takes floats of one type", code="E144")
        parts = [O.reshape(Tensor(h.value), (-1,)) for h in tree.handles]
        self.vector = O.stop_gradient(O.concat(parts))

    def tree(self, vector: Tensor) -> Any:
        """The tensors that a vector stands for."""
        leaves, at = [], 0
        for shape in self._shapes:
            size = 1
            for extent in shape:
                size *= extent
            leaves.append(O.reshape(vector[at : at + size], shape))
            at += size
        return self._tree.rebuild(leaves)


@dataclass(frozen=True)
class _Point:
    """Along a direction: how far, the value, the gradient, and its part along the direction."""

    t: Tensor
    f: Tensor
    g: Tensor
    slope: Tensor


@dataclass(frozen=True)
class _State:
    """Between two steps; `pairs` of the last changes of x and g lie in rings, `stored` in all."""

    x: Tensor
    f: Tensor
    g: Tensor
    moved: Tensor
    before: Tensor
    steps: Tensor
    changes: Tensor
    rho: Tensor
    scale: Tensor
    stored: Tensor
    count: Tensor
    evaluations: Tensor
    going: Tensor


def _dot(a: Tensor, b: Tensor) -> Any:
    return O.sum(a * b)


def _largest(x: Tensor) -> Any:
    return O.max(M.abs(x))


def _chosen(first: Any, a: _Point, b: _Point) -> _Point:
    """`a` where `first`, else `b`."""
    pairs = ((a.t, b.t), (a.f, b.f), (a.g, b.g), (a.slope, b.slope))
    return _Point(*(where(first, p, q) for p, q in pairs))


@dataclass(frozen=True)
class _Search:
    """The steps of one search."""

    evaluate: Callable[[Tensor], tuple[Any, Any]]
    lr: float
    most: int
    tolerance_grad: float
    tolerance_change: float
    kept: int
    wolfe: bool

    def begin(self, x: Tensor) -> _State:
        """Before the first step."""
        f, g = self.evaluate(x)
        zero, none = C.zeros_like(g), C.zeros((), dtype="int64")
        ring = C.zeros((self.kept, *g.shape), dtype=g.dtype)
        rho, one = C.zeros(self.kept, dtype=g.dtype), C.ones((), dtype=g.dtype)
        going = _largest(g) > self.tolerance_grad
        return _State(x, f, g, zero, zero, ring, ring, rho, one, none, none, none + 1, going)

    def step(self, s: _State) -> _State:
        """One step, its direction from what is remembered."""
        s = self.remembered(s)
        d = self.direction(s)
        start = M.minimum(1.0, 1.0 / O.sum(M.abs(s.g))) * self.lr
        t = where(s.count == 0, start, self.lr)
        slope = _dot(s.g, d)
        moves = M.logical_not(slope > -self.tolerance_change)
        point, count = self.along(s, d, t, slope)
        moved = point.t * d
        evaluations = s.evaluations + count
        flat = (_largest(moved) <= self.tolerance_change) | (
            M.abs(point.f - s.f) < self.tolerance_change
        )
        ends = flat | (_largest(point.g) <= self.tolerance_grad) | (evaluations >= self.most)
        return replace(
            s,
            x=where(moves, s.x + moved, s.x),
            f=where(moves, point.f, s.f),
            g=where(moves, point.g, s.g),
            moved=moved,
            before=s.g,
            count=s.count + 1,
            evaluations=where(moves, evaluations, s.evaluations),
            going=moves & M.logical_not(ends),
        )

    def remembered(self, s: _State) -> _State:
        """The state with the last pair in its ring, if it curves upwards."""
        y = s.g - s.before
        curve = _dot(y, s.moved)
        keeps = (s.count > 0) & (curve > CURVED)
        here = (C.arange(self.kept) == s.stored % self.kept) & keeps
        row = O.expand_dims(here, 1)
        safe = where(keeps, curve, 1.0)
        return replace(
            s,
            steps=where(row, O.expand_dims(s.moved, 0), s.steps),
            changes=where(row, O.expand_dims(y, 0), s.changes),
            rho=where(here, 1.0 / safe, s.rho),
            scale=where(keeps, curve / where(keeps, _dot(y, y), 1.0), s.scale),
            stored=s.stored + keeps.astype("int64"),
        )

    def direction(self, s: _State) -> Tensor:
        """``-H g`` by two loops over the pairs: back from the last, and forth again."""
        number = M.minimum(s.stored, self.kept)
        places = C.arange(self.kept)

        def back(carry: Any) -> Any:
            k, q, shares = carry
            place = (s.stored - 1 - k) % self.kept
            share = _dot(O.take(s.steps, place, axis=0), q) * O.take(s.rho, place, axis=0)
            q = q - share * O.take(s.changes, place, axis=0)
            return k + 1, q, where(places == place, share, shares)

        def forth(carry: Any) -> Any:
            k, r = carry
            place = (s.stored - 1 - k) % self.kept
            other = _dot(O.take(s.changes, place, axis=0), r) * O.take(s.rho, place, axis=0)
            share = O.take(shares, place, axis=0)
            return k - 1, r + (share - other) * O.take(s.steps, place, axis=0)

        start = (C.zeros((), dtype="int64"), -s.g, C.zeros_like(s.rho))
        _, q, shares = while_loop(lambda c: c[0] < number, back, start, max_steps=self.kept)
        r = q * s.scale
        end = while_loop(lambda c: c[0] >= 0, forth, (number - 1, r), max_steps=self.kept)
        step: Tensor = end[1]
        return step

    def along(self, s: _State, d: Tensor, t: Tensor, slope: Tensor) -> tuple[_Point, Any]:
        """Where the step ends, and how many evaluations that took."""

        def at(t: Tensor) -> _Point:
            f, g = self.evaluate(s.x + t * d)
            return _Point(t, f, g, _dot(g, d))

        first = at(t)
        if not self.wolfe:
            return first, 1
        start = _Point(C.zeros_like(t), s.f, s.g, slope)
        most = self.most - s.evaluations
        change = self.tolerance_change / _largest(d)
        return _Wolfe(at, start, most, self.most, change).found(first)


@dataclass(frozen=True)
class _Bracket:
    """Two points; `low`: whether the first is the better one."""

    a: _Point
    b: _Point
    low: Tensor
    stuck: Tensor
    done: Tensor
    count: Tensor


def _least(a: _Point, b: _Point, low: Tensor, high: Tensor) -> Any:
    """Where the cubic through two points with their slopes is least, within bounds."""
    same = a.t == b.t
    gap = where(same, 1.0, a.t - b.t)
    first = a.slope + b.slope - 3.0 * (a.f - b.f) / gap
    square = first * first - a.slope * b.slope
    root = M.sqrt(where(square >= 0.0, square, 0.0))
    p, q = _chosen(a.t <= b.t, a, b), _chosen(a.t <= b.t, b, a)
    place = q.t - (q.t - p.t) * ((q.slope + root - first) / (q.slope - p.slope + 2.0 * root))
    inside = M.minimum(M.maximum(place, low), high)
    return where(square >= 0.0, inside, (low + high) / 2.0)


@dataclass(frozen=True)
class _Wolfe:
    """A step that lowers the value and flattens the slope enough. Source: lswolfe, minFunc."""

    at: Callable[[Tensor], _Point]
    start: _Point
    most: Tensor
    bound: int
    change: Tensor

    def high(self, p: _Point) -> Any:
        return p.f > self.start.f + ARMIJO * p.t * self.start.slope

    def level(self, p: _Point) -> Any:
        return M.abs(p.slope) <= -CURVATURE * self.start.slope

    def found(self, first: _Point) -> tuple[_Point, Any]:
        """The point, and the number of evaluations."""
        none = C.zeros((), dtype="int64")
        carry = while_loop(
            self.rises, self.farther, (self.start, first, none), max_steps=self.bound
        )
        before, last, count = carry
        late = count >= self.most
        good = M.logical_not(late) & M.logical_not(self.bracketed(before, last, count))
        a = _chosen(late, self.start, _chosen(good, last, before))
        begin = _Bracket(a, last, a.f <= last.f, none > 0, good, count)
        end = while_loop(self.wide, self.narrower, begin, max_steps=self.bound)
        return _chosen(end.low, end.a, end.b), end.count + 1

    def bracketed(self, before: _Point, last: _Point, count: Tensor) -> Any:
        """Whether a minimum lies between the last two points, other than by a level slope."""
        above = self.high(last) | ((count > 1) & (last.f >= before.f))
        return above | (M.logical_not(self.level(last)) & (last.slope >= 0.0))

    def rises(self, carry: Any) -> Any:
        before, last, count = carry
        ends = self.bracketed(before, last, count) | self.level(last)
        return (count < self.most) & M.logical_not(ends)

    def farther(self, carry: Any) -> Any:
        before, last, count = carry
        low, high = last.t + 0.01 * (last.t - before.t), last.t * 10.0
        return last, self.at(_least(before, last, low, high)), count + 1

    def wide(self, s: _Bracket) -> Any:
        gap = M.abs(s.b.t - s.a.t) >= self.change
        return M.logical_not(s.done) & (s.count < self.most) & gap

    def narrower(self, s: _Bracket) -> _Bracket:
        least, most = M.minimum(s.a.t, s.b.t), M.maximum(s.a.t, s.b.t)
        t = _least(s.a, s.b, least, most)
        edge = 0.1 * (most - least)
        near = M.minimum(most - t, t - least) < edge
        jumps = near & (s.stuck | (t >= most) | (t <= least))
        inner = where(M.abs(t - most) < M.abs(t - least), most - edge, least + edge)
        new = self.at(where(jumps, inner, t))
        low, high = _chosen(s.low, s.a, s.b), _chosen(s.low, s.b, s.a)
        worse = self.high(new) | (new.f >= low.f)
        turns = M.logical_not(self.level(new)) & (new.slope * (high.t - low.t) >= 0.0)
        other = _chosen(worse, new, _chosen(turns, low, high))
        best = _chosen(worse, low, new)
        a, b = _chosen(s.low, best, other), _chosen(s.low, other, best)
        return _Bracket(
            a,
            b,
            where(worse, a.f <= b.f, s.low),
            near & M.logical_not(jumps),
            M.logical_not(worse) & self.level(new),
            s.count + 1,
        )
