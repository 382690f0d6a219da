"""What part of the peak rate of multiply-adds a tile reaches, by its rows and by its columns.

A register tile of few rows waits for loads of its right operand, one of few columns for those of
its left. Fusion, which knows no loops yet, and the choice of tiles ask here.
"""

from __future__ import annotations

from functools import cache

from pullback.machine.machine import Machine


def of_rows(machine: Machine, rows: int) -> float:
    """The share that a tile of so many rows reaches, its columns whole vectors."""
    return _share(machine, "rows", rows)


def of_joined(machine: Machine, rows: int) -> float:
    """The share that a product of a kernel reaches whose tiles have so many rows of it."""
    return _share(machine, "joined", rows)


def of_columns(machine: Machine, columns: int, lanes: int) -> float:
    """The share that a row of so many columns reaches in vectors of `lanes`.

    Less than half a vector leaves as much of it empty.
    """
    halves = -(-2 * columns // lanes)
    return _share(machine, "halves", halves) * min(1.0, 2 * columns / lanes)


@cache
def most_rows(machine: Machine) -> int:
    """The fewest rows that reach the peak."""
    return max(int(name) for name in machine.tables["rows"])


@cache
def _share(machine: Machine, table: str, count: int) -> float:
    """The share of the largest count that the machine's table names up to this one."""
    shares = machine.tables[table]
    named = max(int(name) for name in shares if int(name) <= max(1, count))
    return shares[str(named)]
