"""Collectives as values: what the ranks of a group make together, between a program's launches.

    y = f(x)      start x -> y   at once;   wait y   before what first reads it

Two calls of the host: what stands between them in the program runs beside the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.ir.dtype import int64
from pullback.ir.graph import Definition, Variable
from pullback.ir.program import HostCall
from pullback.tensor.forms.hosted import HostForm, HostFunction, Kind, Variables

Native = tuple[int, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True)
class Collective(HostFunction):
    """``start(x, y, ticket)`` begins to write `y`, ``wait(ticket, x, y, y)`` ends when it is there.

    `natives`: C functions that do the same, of x and y of these kinds; None where there are none.
    """

    wait: Callable[..., None]
    natives: Callable[[Kind, Kind], tuple[Native, Native] | None]


class CollectiveForm(HostForm):
    """A recorded collective of one value: all ranks reach it, in the same order."""

    __slots__ = ()
    host: Collective

    def calls(self, sources: Variables, targets: Variables) -> Sequence[HostCall]:
        """The start, and the wait behind it; `tensor.record.late` takes the two apart."""
        host = self.host
        (x,), (y,) = sources, targets
        ticket = self.trace.fresh("ticket", (), int64)
        natives = host.natives(_kind(x), _kind(y))
        first, second = (None, None) if natives is None else natives
        begins = host.function, (x,), (y, ticket), self.origin, True, first
        ends = host.wait, (ticket, x, y), (y,), self.origin, True, second
        names = host.name, f"{host.name}_wait"
        return [
            HostCall(name, host.library, *call)
            for name, call in zip(names, (begins, ends), strict=True)
        ]


def _kind(variable: Variable) -> Kind:
    return variable.shape, variable.dtype


def recorded(form: CollectiveForm) -> Definition:
    """What a collective gives."""
    return form.results[0]
