"""What a backend is: a name, a processor, what it can run, and how routines become callable code.

A backend outside this repository registers a `Backend` under the entry point `pullback.backends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pullback.config import Options
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.target import Target

Array = np.ndarray[Any, Any]


class Launchable(Protocol):
    """One compiled kernel."""

    def __call__(self, arguments: Sequence[Array], sizes: Sequence[int] = ()) -> None:
        """Run it on `arguments`, in the order of `Routine.arguments`, updated in place.

        Raises: IndexRangeError when a data index lies outside its axis.
        """


class Backend(Protocol):
    """The protocol; kernels and schedules carry nothing of a backend."""

    name: str

    def target(self, options: Options) -> Target:
        """The processor that kernels are fused and scheduled for."""

    def can(self, kernel: Kernel) -> str | None:
        """None, or the reason why a kernel cannot be one launch here."""

    def compile(self, routines: Sequence[Routine], options: Options) -> list[Launchable]:
        """Code for each routine, equal ones compiled once.

        Raises: UnsupportedError for what the backend refuses by name.
        """
