"""Ranks that share memory: the bits of the ring, blocks that are used again, ranks that part."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from distributed_support import free_port, near, processes, threads
from pullback.distributed import DistributedError, Group, meet, shared
from pullback.distributed.transport import ALL_GATHER, ALL_REDUCE, KINDS, REDUCE_SCATTER, Array

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has files without a name")
LARGE = 300_001  # elements: an `all_reduce` of three ranks goes in slices
F32 = "float32"


def target(kind: str, ranks: int, source: Array) -> Array:
    count = source.size
    sizes = {ALL_REDUCE: count, ALL_GATHER: count * ranks, REDUCE_SCATTER: count // ranks}
    return np.empty(sizes[kind], source.dtype)


def summed(group: Group, kind: str, source: Array) -> Array:
    y = target(kind, group.size, source)
    group.run(kind, source, y)
    return y


# --- what they give ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 1000, LARGE])
def test_the_bits_of_the_ring(ranks: int, count: int) -> None:
    def work(group: Group) -> list[Array]:
        rng = np.random.default_rng(group.rank)
        drawn = [rng.normal(size=count * ranks).astype(t) for t in (F32, "float64")]
        whole = [rng.integers(-(2**30), 2**30, count * ranks).astype("int32")]
        return [summed(group, kind, x) for kind in KINDS for x in drawn + whole]

    by_memory, by_sockets = threads(ranks, work, near), threads(ranks, work)
    for own, other in zip(by_memory, by_sockets, strict=True):
        for a, b in zip(own, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_costs_less_is_chosen() -> None:
    """Two ranks have no slices; three have them where a word costs less than what it saves."""
    border = int(shared.LATENCY * shared.BANDWIDTH / (2 * (1 - 2 / 3)))
    two, three = shared.loopback(2)[0], shared.loopback(3)[0]
    assert [two._in_slices(1 << 40), three._in_slices(border - 8)] == [False, False]
    assert three._in_slices(border + 8)


@pytest.mark.parametrize("ranks", [2, 3])
def test_programs_and_other_orders_of_waits(ranks: int) -> None:
    def work(group: Group) -> float:
        def f(x: Any) -> Any:
            total = pb.distributed.all_reduce(x, group=group)
            every = pb.distributed.all_gather(2.0 * x, group=group)
            return (every.sum() + total.sum()) * pb.distributed.reduce_scatter(every, group=group)

        step = pb.jit(lambda x: f(x).sum())
        first = float(step(pb.full((LARGE,), group.rank + 1.0)))
        assert first == float(step(pb.full((LARGE,), group.rank + 1.0)))
        x = np.full(LARGE, group.rank + 1.0)
        ys = [np.empty_like(x) for _ in range(3)]
        tickets = [group.start(ALL_REDUCE, x * n, y) for n, y in enumerate(ys)]
        for ticket in reversed(tickets):
            group.wait(ticket)
        return float(ys[2][-1]) / float(ys[1][0])

    assert threads(ranks, work, near) == [2.0] * ranks


# --- blocks --------------------------------------------------------------------------------------


def test_a_block_is_written_to_again_when_all_have_read_it() -> None:
    """What another rank has begun and not ended is still there; blocks stay few."""
    reading = threading.Barrier(2)

    def work(group: Group) -> list[float]:
        seen = []
        for number in range(50):
            x, y = np.full(5000, number + 1.0), np.empty(5000)
            ticket = group.start(ALL_REDUCE, x, y)
            reading.wait(30.0)
            if group.rank == 0 and number < 49:  # two ahead of the other's reading
                group.wait(ticket)
                reading.wait(30.0)
            else:
                reading.wait(30.0)
                time.sleep(1e-4)
                group.wait(ticket)
            seen.append(y[-1])
        return seen

    wanted = [2.0 * (n + 1.0) for n in range(50)]
    groups = near(2, timeout=60.0)
    assert threads(2, work, lambda *_, **__: groups) == [wanted] * 2
    assert all(len(g.transport._blocks) <= 3 for g in groups)  # type: ignore[attr-defined]


def test_a_collective_that_was_given_up_keeps_its_own_block_alone() -> None:
    """As where a step's function raises on every rank, and training goes on."""

    def work(group: Group) -> list[float]:
        x, lost = np.ones(5000), np.empty(5000)
        group.start(ALL_REDUCE, x, lost)
        return [summed(group, ALL_REDUCE, x * n)[0] for n in range(40)]

    groups = near(2, timeout=60.0)
    assert threads(2, work, lambda *_, **__: groups)[1] == [2.0 * n for n in range(40)]
    assert all(len(g.transport._blocks) <= 4 for g in groups)  # type: ignore[attr-defined]


def test_more_words_than_sockets_hold() -> None:
    """Every rank begins all collectives before it ends one: words are heard to make room."""
    many = 1500

    def work(group: Group) -> float:
        ys = [np.empty(2) for _ in range(many)]
        tickets = [group.start(ALL_REDUCE, np.full(2, n * 1.0), y) for n, y in enumerate(ys)]
        for ticket in tickets:
            group.wait(ticket)
        return float(sum(y[0] for y in ys))

    assert threads(3, work, near, timeout=20.0) == [3.0 * sum(range(many))] * 3


# --- ranks that differ, hang or end --------------------------------------------------------------


def code(group: Group, work: Callable[[Group], Any]) -> str:
    try:
        work(group)
    except DistributedError as error:
        return str(error.code)
    return ""


def test_ranks_that_part_hang_or_differ() -> None:
    def parts(group: Group) -> None:
        if group.rank == 1:
            group.close()
        else:
            summed(group, ALL_REDUCE, np.ones(LARGE))

    assert threads(3, lambda g: code(g, parts), near) == ["E611", "", "E611"]

    def hangs(group: Group) -> None:
        began = time.monotonic()
        try:
            summed(group, ALL_REDUCE, np.ones(3)) if group.rank == 0 else time.sleep(1.0)
        finally:
            assert group.rank or 0.3 < time.monotonic() - began < 10.0

    assert threads(2, lambda g: code(g, hangs), near, timeout=0.4) == ["E612", ""]

    def differs(group: Group) -> None:
        summed(group, KINDS[group.rank], np.ones(4))

    assert set(threads(2, lambda g: code(g, differs), near)) <= {"E613", "E611"}

    def again(group: Group) -> None:
        assert code(group, parts) == "E611"
        summed(group, ALL_REDUCE, np.ones(3))  # at once: the group is broken

    assert threads(2, lambda g: code(g, parts if g.rank else again), near) == ["E611", ""]


SCRIPT = """\
import os, sys
import pullback as pb

try:
    group = pb.distributed.init(sys.argv[1 + int(os.environ["RANK"])], timeout=20.0)
except pb.distributed.DistributedError as error:
    sys.exit(f"{error.code} {error}")
"""


@pytest.mark.parametrize("asked", [("shared", "ring"), ("ring", "shared")])
def test_ranks_that_ask_for_different_ways(tmp_path: Path, asked: tuple[str, str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = processes(2, [str(script), *asked], tmp_path)
    wanted = f"E610 ranks do not all go by init({asked[1]!r})"
    assert ended[1].returncode and wanted in ended[1].stderr


def joined(monkeypatch: pytest.MonkeyPatch, asked: str | None, hosts: list[bytes]) -> list[str]:
    """How ranks of these hosts go, or the code they raise."""
    own = threading.local()
    monkeypatch.setattr(meet, "_host", lambda: own.host)
    door = free_port()

    def work(group: Group) -> str:
        own.host = hosts[group.rank]
        try:
            transport = meet.join(group.rank, len(hosts), "127.0.0.1", door, asked, 20.0)
        except DistributedError as error:
            return str(error.code)
        y = np.empty(2)
        transport.run(ALL_REDUCE, np.ones(2), y)
        return f"{transport.library} {y[0]:g}"

    return threads(len(hosts), work)


def test_ranks_of_several_hosts_go_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = b"a" * 16, b"b" * 16
    assert joined(monkeypatch, None, [a, a, a]) == ["shared memory 3"] * 3
    assert joined(monkeypatch, None, [a, b, a]) == ["the ring 3"] * 3
    assert joined(monkeypatch, None, [meet.NOWHERE] * 2) == ["the ring 2"] * 2
    assert joined(monkeypatch, "ring", [a, a]) == ["the ring 2"] * 2
    assert joined(monkeypatch, "shared", [a, b]) == ["E610"] * 2


def test_nothing_is_open_when_all_have_parted() -> None:
    before = len(os.listdir("/proc/self/fd"))
    threads(3, lambda g: summed(g, ALL_REDUCE, np.ones(LARGE)), near)
    assert len(os.listdir("/proc/self/fd")) == before
