"""Adjoints that a loop would add up at every step are one sum after it.

    loop t: dw[i, j] += sum[k] g[k, i] * x[t, k, j]
        ->  loop t: rows[t] = g;  dw[i, j] = sum[t, k] rows[t, k, i] * x[t, k, j]

An accumulator is read and written at every step. Where a step has few samples, the rows that its
summand is made of are less, and one product over all steps is a contraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pullback.cost.facts import elements
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.graph import (
    SUM,
    Definition,
    Map,
    Reduce,
    Value,
    Variable,
    beside,
    identity,
    read,
    replace_reads,
    substitute,
)
from pullback.tensor.record.recording import Recording

# Elements of an accumulator for each element of a row: it is read and written, a row written once
# and read once. 64 steps of a GRU, 2 x 64: 60 us of accumulating, 29 of one product after them.
FEWEST = 2
MOST_BYTES = 1 << 26  # of the rows of one value, in all steps


class Late:
    """The summands of one loop of `count` steps that wait.

    `rows`: definitions in its body that read the row of this step, with what they read. `sums`:
    what is summed later, by number; `kept`: of which rows.
    """

    def __init__(
        self, recording: Recording, count: int, rows: Sequence[tuple[Value, Definition]]
    ) -> None:
        self.recording = recording
        self.frame = recording.frame
        self.count = count
        self.rows: dict[Value, Value] = {row: whole for whole, row in rows}
        self.sums: dict[int, Definition] = {}
        self.kept: dict[Value, None] = {}

    def choose(self, summands: Sequence[Value]) -> None:
        """Find those whose rows are less than they are; what is kept for one serves others."""
        for _ in range(2 if self.count else 0):
            for number, one in enumerate(summands):
                if isinstance(one, Definition) and number not in self.sums:
                    self._consider(number, one)

    def _consider(self, number: int, one: Definition) -> None:
        needs = self._needs(one)
        if needs is None:
            return
        fresh = [v for v in needs if v not in self.kept]
        sizes = [self.count * elements(v.shape) * v.dtype.itemsize for v in fresh]
        small = all(size <= MOST_BYTES for size in sizes)
        if small and FEWEST * sum(elements(v.shape) for v in fresh) <= elements(one.shape):
            self.sums[number] = one
            self.kept.update(dict.fromkeys(fresh))

    def _needs(self, one: Definition) -> list[Value] | None:
        """The values of a step that a summand reads; None where it cannot wait."""
        form = one.form
        plain = isinstance(form, Map) or (isinstance(form, Reduce) and form.combiner is SUM)
        if not plain or not self._inside(one) or one in self.rows:
            return None
        own = [s for s in one.sources if s not in self.rows]
        if any(isinstance(s, Variable) for s in own) or any(not s.shape for s in own):
            return None
        return [s for s in own if self._inside(s)]

    def _inside(self, value: Value) -> bool:
        return self.recording.contains(self.frame, value)

    def ends(self, begins: Sequence[Definition], summands: Sequence[Value]) -> list[Value]:
        """The accumulators after a step; of what waits they stay, and nobody reads them."""
        ends: list[Value] = []
        for number, (begin, summand) in enumerate(zip(begins, summands, strict=True)):
            body = E.Add(identity(begin), identity(summand))
            late = number in self.sums
            ends.append(begin if late else Definition("sum", begin.shape, body))
        return ends

    def found(self, results: Sequence[Definition], first: int) -> list[Value]:
        """The results of the loop, the last of them the kept rows; accumulators from `first` on."""
        values: list[Value] = [*results]
        kept = dict(zip(self.kept, values[len(values) - len(self.kept) :], strict=True))
        for number, summand in self.sums.items():
            one = self._after(summand, kept)
            self.recording.stamp(one)
            values[first + number] = one
        return values

    def _after(self, one: Definition, kept: Mapping[Value, Value]) -> Definition:
        """The sum of a summand over all steps, of the rows that were kept."""
        rows = {**self.rows, **kept}
        over = one.form.over if isinstance(one.form, Reduce) else ()
        rank = len(one.shape)
        step = Axis(rank, self.count)

        def change(take: Take) -> Expr | None:
            whole = rows.get(take.source)
            return None if whole is None else read(whole, step, *take.indices)

        moved = {n: Axis(n + 1, e) for n, e in enumerate(over, rank)}
        body = replace_reads(substitute(one.body, moved), change)
        return beside(one, one.name, body, Reduce(SUM, (self.count, *over)))
