"""How the time of a graph that runs in parts is shared among them: one run, node by node.

``{"pullback_0": 0.7, "_fft_r2c": 0.3}``
"""

from __future__ import annotations

import time
from typing import Any

from torch.fx import Interpreter, Node

WARM = 1  # runs before the one that is timed: the first compiles


class Timed(Interpreter):  # type: ignore[misc]  # PyTorch has no types here
    """A run that notes what each node took."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.seconds: dict[str, float] = {}

    def run_node(self, node: Node) -> Any:
        start = time.perf_counter()
        value = super().run_node(node)
        self.seconds[node.name] = time.perf_counter() - start
        return value

    def shares(self) -> dict[str, float]:
        """Of all, by node."""
        whole = sum(self.seconds.values())
        return {name: one / whole for name, one in self.seconds.items()} if whole else {}
