"""Counts of an optimizer's steps, which are tensors, as numbers.

On a device (`fused`, `capturable`) one is read once; from then on its number is known for as long
as nobody else writes it, so that the host waits for no step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pullback.bridge import device
from pullback.bridge.updates import counts_type


class Counted:
    """What counts are, with the version of each that was seen last."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def begun(self, number: float, group: Mapping[str, Any], parameter: Any) -> Any:
        """A new one, where PyTorch's optimizer has it: with its parameter, if kernels read it."""
        there = group.get("capturable") or group.get("fused")
        place = parameter.device if there else torch.device("cpu")
        made = torch.full((), number, dtype=counts_type(), device=place)
        self._noted(made, number)
        return made

    def number(self, count: Any) -> float:
        """Of a tensor, or of a number."""
        if not isinstance(count, torch.Tensor) or device.is_here(count):
            return float(count)
        number, version = self._known.get(count, (0.0, None))
        return number if version == count._version else self._noted(count, read(count))

    def put(self, count: Any, number: float) -> None:
        """It is a number from now on."""
        count.fill_(number)
        self._noted(count, number)

    def step(self, counts: Sequence[Any]) -> None:
        """One more of each."""
        before = [0.0 if device.is_here(c) else self.number(c) for c in counts]
        if all(map(device.is_here, counts)):
            torch._foreach_add_(counts, torch.ones(()), alpha=1.0)  # a number is made one each time
        else:
            torch._foreach_add_(counts, 1.0)
        for count, number in zip(counts, before, strict=True):
            self._noted(count, number + 1)

    def _noted(self, count: Any, number: float) -> float:
        if not device.is_here(count):
            self._known[count] = number, count._version
        return number


def read(count: Any) -> float:
    """The number in a tensor: the host waits."""
    return float(count)
