"""Sums over rows that are never stored: which stages are one loop over blocks of their terms.

``s = q k^T; m = max s; p = exp(s - m); z = sum p; y = sum p v``: while the maximum so far is m,
sums hold what they would with that one; where it rises to m', they are multiplied by
``exp(m - m')``.

Source: Milakov and Gimelshein, Online normalizer calculation for softmax (arXiv:1805.02867); Dao et
al., FlashAttention (arXiv:2205.14135).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pullback.backends.triton.blocks import Group, Way, power, size
from pullback.backends.triton.product import Product, product_of
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.graph import Map, Reduce, Value
from pullback.ir.kernel import Kernel, Stage, stage_reads

LONGEST = 256  # terms of a score, and columns of a result, that a program has whole


@dataclass(slots=True)
class Stream:
    """The `stages` of a loop, in order: `inner` over rows and keys, `sums` over keys, `last` after
    the loop. `scaled`: what of `inner` is multiplied where the maximum `top` rises.
    """

    scores: Stage
    product: Product
    stages: list[Stage]
    inner: list[Stage] = field(default_factory=list)
    scaled: set[Value] = field(default_factory=set)
    sums: list[Stage] = field(default_factory=list)
    last: list[Stage] = field(default_factory=list)
    top: Stage | None = None

    @property
    def keys(self) -> int:
        """The axis of the scores that the loop runs along: their last."""
        return len(self.scores.shape) - 1

    @property
    def rowwise(self) -> list[Value]:
        """What is known of a row after the loop."""
        top = [] if self.top is None else [self.top.target]
        return [*top, *(s.target for s in (*self.sums, *self.last))]

    def takes(self, stage: Stage) -> bool:
        """Whether a stage is one of the loop, which it joins."""
        within: list[Value] = [self.scores.target, *(s.target for s in self.inner)]
        reads = [t for t in stage_reads(stage) if t.source in {*within, *self.rowwise}]
        if not reads or any(s.target is stage.target for s in self.stages):
            return False
        inner = [t for t in reads if t.source in within]
        fits = False
        match stage.form:
            case Map() if not inner:
                fits = self._last(stage, reads)
            case Map():
                fits = self._map(stage, reads)
            case Reduce() if len(inner) == len(reads):
                fits = self._sum(stage, inner)
        if fits:
            self.stages.append(stage)
        return fits

    def _map(self, stage: Stage, reads: Sequence[Take]) -> bool:
        """A map of scores, without their maximum or scaled by it."""
        if stage.shape != self.scores.shape or stage.store is not None:
            return False
        axes, top = stage.target.axes, None if self.top is None else self.top.target
        if any(t.indices != axes[: len(t.indices)] for t in reads):
            return False
        sources = {t.source for t in reads}
        if top not in sources:
            if sources & self.scaled:
                return False
        elif top is None or not falls(stage.body, top, self.scaled):
            return False
        else:
            self.scaled.add(stage.target)
        if sources - {top} - {self.scores.target, *(s.target for s in self.inner)}:
            return False
        self.inner.append(stage)
        return True

    def _sum(self, stage: Stage, inner: Sequence[Take]) -> bool:
        """The maximum of the scores, or a sum of what is scaled by it."""
        form, kept = stage.form, self.scores.shape[:-1]
        assert isinstance(form, Reduce), "who asks knows"
        own = stage.target.axes
        rows = own[: len(kept)]
        if form.over != self.scores.shape[-1:] or stage.shape[: len(kept)] != kept:
            return False
        term = Axis(len(stage.shape), form.over[0])
        if any(t.indices != (*rows, term) for t in inner):
            return False
        scaled = [t for t in inner if t.source in self.scaled]
        if form.combiner.name == "max":
            if self.top is not None or scaled or stage.shape != kept:
                return False
            self.top = stage
            return True
        alone = form.combiner.name == "sum" and len(inner) == len(scaled) == 1
        if not alone or not (self._plain(stage) or self._mixed(stage)):
            return False
        self.sums.append(stage)
        return True

    def _plain(self, stage: Stage) -> bool:
        return stage.shape == self.scores.shape[:-1] and isinstance(stage.body, Take)

    def _mixed(self, stage: Stage) -> bool:
        """A product of what is scaled by columns of another factor."""
        product = turned(product_of(stage), len(stage.shape) - 1)
        if product is None or len(stage.shape) != len(self.scores.shape) or product.scale:
            return False
        return isinstance(product.left, Take) and power(size(stage, product.columns)) <= LONGEST

    def _last(self, stage: Stage, reads: Sequence[Take]) -> bool:
        """A map of what is known of each row after the loop."""
        if not self.sums or positions(stage, reads, len(self.scores.shape)) is None:
            return False
        self.last.append(stage)
        return True


def falls(e: Expr, top: Value, scaled: set[Value]) -> bool:
    """Whether a value is ``c exp(x - top)``, where c and x are known without the maximum, or 0."""

    def free(part: Expr) -> bool:
        return all(t.source is not top and t.source not in scaled for t in E.takes([part]))

    match e:
        case E.If(condition=condition, then=then, otherwise=E.Const() as c) if c.value == 0:
            return free(condition) and falls(then, top, scaled)
        case E.Exp(value=E.Add(left=x, right=E.Mul(left=most, right=E.Const() as sign))):
            return free(x) and _level(most, top) and sign.value == -1
    return False


def _level(e: Expr, top: Value) -> bool:
    """The maximum, or 0 where that is -inf."""
    match e:
        case E.If(condition=E.Equal(left=most, right=E.Const() as c), then=E.Const() as z):
            infinite = c.value == -float("inf") and z.value == 0
            return infinite and _level(most, top) and e.otherwise is most
        case Take():
            return e.source is top
    return False


def positions(stage: Stage, reads: Sequence[Take], rank: int) -> dict[int, int] | None:
    """The axes of a map by the axes of the scores that they run along (the last: columns of a
    result); None: it reads elsewhere than where it lies.
    """
    axes: dict[int, int] = {}
    for take in reads:
        for n, (index, extent) in enumerate(zip(take.indices, take.source.shape, strict=True)):
            if extent == 1:
                continue
            if not isinstance(index, Axis) or axes.setdefault(n, index.number) != index.number:
                return None
    owned = set(axes.values())
    others = [n for n, e in enumerate(stage.shape) if e != 1 and n not in owned]
    same = all(stage.shape[a] != 1 for a in axes.values())
    whole = same and not others and len(owned) == len(axes)
    return axes if whole and max(axes, default=0) < rank else None


def turned(product: Product | None, column: int) -> Product | None:
    """A product whose columns are an axis; None where they are more or others."""
    if product is None or (column,) not in (product.columns, product.rows):
        return None
    if product.columns == (column,):
        return product
    p = product
    return Product(p.right, p.left, p.scale, p.batch, p.columns, p.rows, p.terms)


def stream_of(kernel: Kernel, number: int) -> Stream | None:
    """The loop that begins with a stage of a kernel; None: there is none."""
    made = _begun(kernel, number)
    if made is None:
        return None
    within = {made.scores.target, *(s.target for s in made.inner)}
    later = (*kernel.stages, *kernel.finish)[number + len(made.stages) :]
    return None if any(t.source in within for s in later for t in stage_reads(s)) else made


def begun_sums(kernel: Kernel, number: int) -> list[Stage]:
    """The sums of the loop that begins with a stage, whoever else takes its matrices."""
    made = _begun(kernel, number)
    return [] if made is None else made.sums


def _begun(kernel: Kernel, number: int) -> Stream | None:
    """The stages from one on that are such a loop."""
    stages = (*kernel.stages, *kernel.finish)
    scores = stages[number]
    product = turned(product_of(scores), len(scores.shape) - 1)
    if product is None or scores.store is not None or power(size(scores, product.terms)) > LONGEST:
        return None
    made = Stream(scores, product, [scores])
    end = number + 1
    while end < len(stages) and made.takes(stages[end]):
        end += 1
    kinds = {s.body.dtype.name for s in made.stages}
    return made if made.top is not None and made.sums and "float64" not in kinds else None


def loop(kernel: Kernel, number: int) -> Group | None:
    """Such a loop as one launch; its rows are what the scores have beside keys."""
    made = stream_of(kernel, number)
    if made is None:
        return None
    extents = made.scores.shape[:-1]
    rows = {s: tuple(range(len(extents))) for s in made.stages}
    return Group(Way.STREAM, extents, made.stages, rows)


def again(group: Group) -> Stream:
    """What the stages of such a launch are."""
    made = stream_of(Kernel("again", (), tuple(group.stages)), 0)
    assert made is not None, "groups are made so"
    return made
