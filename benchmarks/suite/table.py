"""From runs to ratios, and from ratios to a Markdown table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sides import close

from suite.measure import PEERS, Run

Figure = Callable[[Run], float]


@dataclass(frozen=True)
class Ratio:
    """A peer beside us: its figure over ours, of its best variant. `trouble`: why there is none.

    `most`: its figure over the physical limit of as many threads as ours had.
    """

    value: float = math.nan
    threads: int = 0
    mode: str = ""
    differs: bool = False
    trouble: str = ""
    most: float = math.nan


@dataclass(frozen=True)
class Row:
    """One workload: our figure, on how many threads, the physical limit, ratios by peer."""

    name: str
    own: float
    threads: int
    limit: float
    ratios: dict[str, Ratio]


def median(run: Run) -> float:
    """Seconds of a call."""
    return statistics.median(run.times)


def best(runs: Iterable[Run], figure: Figure) -> Run | None:
    """The variant with the least figure, of those that gave one."""
    usable = [r for r in runs if not r.trouble and r.times]
    return min(usable, key=figure, default=None)


def row(
    name: str,
    runs: Sequence[Run],
    peers: Sequence[str],
    tolerance: float,
    limit: Callable[[int, int], float] = lambda threads, moved: 0.0,
    figure: Figure = median,
) -> Row:
    """Each peer at its best beside us on no more threads than that has."""
    ours = [r for r in runs if r.system == "pullback"]
    own = best(ours, figure)
    if own is None:
        trouble = next((r.trouble for r in ours if r.trouble), "no time")
        failed = Ratio(trouble=f"pullback {trouble}")
        return Row(name, math.nan, 0, 0.0, dict.fromkeys(peers, failed))
    ratios = {}
    for peer in peers:
        system, modes = PEERS.get(peer, (peer, ("",)))
        theirs = [r for r in runs if r.system == system and r.mode in modes]
        ratios[peer] = ratio(ours, theirs, tolerance, figure, limit)
    moved = own.moved
    return Row(name, figure(own), own.threads, limit(own.threads, moved), ratios)


def ratio(
    ours: Sequence[Run],
    theirs: Sequence[Run],
    tolerance: float,
    figure: Figure,
    limit: Callable[[int, int], float],
) -> Ratio:
    """The best of theirs over the best of ours, and over the limit."""
    peer = best(theirs, figure)
    if peer is None:
        return Ratio(trouble=next((r.trouble for r in theirs if r.trouble), "-"))
    own = best([r for r in ours if r.threads <= peer.threads], figure)
    if own is None:
        return Ratio(trouble="pullback failed")
    same = len(own.sums) == len(peer.sums) and close(own.sums, peer.sums, tolerance)
    least = limit(own.threads, own.moved)
    most = figure(peer) / least if least else math.nan
    value = figure(peer) / figure(own)
    return Ratio(value, peer.threads, peer.mode, not same, most=most)


def mean(values: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    known = [v for v in values if not math.isnan(v)]
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def cell(found: Ratio) -> str:
    """``2.31``; losses in bold, with what is remarkable."""
    if found.trouble:
        return found.trouble.replace("|", "/")[:60]
    text = shown(found.value)
    marks = [f"{found.threads} thread" if found.threads == 1 else ""]
    marks += [found.mode.removeprefix("compile").strip() if " " in found.mode else ""]
    notes = ", ".join(m for m in marks if m)
    return text + (f" ({notes})" if notes else "") + (" RESULT DIFFERS" if found.differs else "")


def shown(value: float) -> str:
    """Two digits after the point; bold below 1."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value >= 1.0 else f"**{value:.2f}**"


def time_of(seconds: float) -> str:
    """``12.3 us``, ``4.56 ms``, ``1.23 s``"""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def heading(peers: Sequence[str], what: str = "pullback") -> str:
    names = " | ".join(f"{p} / pullback" for p in peers)
    return f"| workload | {what} | limit | of it | {names} |\n" + "|---" * (4 + len(peers)) + "|"


def line(found: Row, peers: Sequence[str], unit: Callable[[float], str] = time_of) -> str:
    """One row of a class's table."""
    threads = f", {found.threads} thread{'s' if found.threads > 1 else ''}"
    own = "failed" if math.isnan(found.own) else unit(found.own) + threads
    limit = unit(found.limit) if found.limit else "-"
    part = f"{found.limit / found.own:.0%}" if found.limit and found.own else "-"
    cells = " | ".join(cell(found.ratios[p]) for p in peers)
    return f"| {found.name} | {own} | {limit} | {part} | {cells} |"


def summary_line(
    name: str, fixed: Sequence[Row], drawn: Sequence[Row], peer: str, wanted: float, worst: float
) -> str:
    """What became of a class beside one peer."""
    values = {r.name: r.ratios[peer].value for r in fixed}
    known = {k: v for k, v in values.items() if not math.isnan(v)}
    others = shown(mean(r.ratios[peer].value for r in drawn))
    if not known:
        return f"| {name} | {peer} | - | {others} | - | {wanted} | - | - |"
    least = min(known, key=known.__getitem__)
    found = mean(known.values())
    reached = found >= wanted and known[least] >= worst
    most = shown(mean(r.ratios[peer].most for r in fixed))
    verdict = "yes" if reached else "**no**"
    lowest = f"{shown(known[least])} {least}"
    means = f"{shown(found)} | {others} | {most}"
    return f"| {name} | {peer} | {means} | {wanted} | {lowest} | {verdict} |"


SUMMARY = (
    "| class | peer | geometric mean | of drawn sizes | at the limit | wanted | worst | reached |\n"
    "|---|---|---|---|---|---|---|---|"
)


def held(run: Run) -> float:
    """Bytes; endless where the system does not tell."""
    return math.inf if run.memory is None else float(run.memory)


def bytes_of(count: float) -> str:
    """``12.3 MB``"""
    return f"{count / 2**20:.3g} MB" if count >= 2**20 else f"{count / 2**10:.3g} KB"
