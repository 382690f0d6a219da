"""Gloo, by torch.distributed: what `torchrun` starts."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import numpy as np

from pullback.distributed.transport import (
    ALL_GATHER,
    ALL_REDUCE,
    Array,
    gone,
    late,
)
from pullback.errors import ExtraError
from pullback.tensor.forms.hosted import Kind


class Gloo:
    """The default group of torch.distributed, made if there is none."""

    library = "Gloo"

    def __init__(self, timeout: float) -> None:
        self._torch, self._dist = _engine()
        self._timeout = timeout
        span = timedelta(seconds=timeout)
        first = not self._dist.is_initialized()
        if first:
            self._dist.init_process_group("gloo", timeout=span)
        self._group = self._dist.new_group(backend="gloo", timeout=span)
        # PyTorch's threads that still run at the end of a process abort it.
        atexit.register(self._destroy, None if first else self._group)
        self.rank, self.size = self._dist.get_rank(), self._dist.get_world_size()

    def begin(self, kind: str, source: Array, target: Array) -> None:
        """None: it has threads of its own, and we wait on one."""

    def natives(self, kind: str, x: Kind, y: Kind) -> None:
        """None: it has no C functions."""

    def run(self, kind: str, source: Array, target: Array) -> None:
        """See `Transport.run`; a `reduce_scatter` is a part of an `all_reduce`."""
        try:
            if kind == ALL_GATHER:
                parts = self._tensor(target).chunk(self.size)
                self._dist.all_gather(list(parts), self._tensor(source), group=self._group)
                return
            whole = target if kind == ALL_REDUCE else np.empty_like(source)
            whole[...] = source
            self._dist.all_reduce(self._tensor(whole), group=self._group)
        except RuntimeError as error:
            self._failed(error)
        if whole is not target:
            count = len(target)
            target[...] = whole[self.rank * count : (self.rank + 1) * count]

    def _tensor(self, array: Array) -> Any:
        """A tensor over the array's memory; nothing writes to one that is read only."""
        own = array if array.flags.writeable else array.copy()
        return self._torch.from_numpy(own)

    def _failed(self, error: RuntimeError) -> None:
        """Raises: DistributedError."""
        text = str(error).strip().splitlines()[0]
        if "imed out" in text or "imeout" in text:
            late(f"rank {self.rank} heard nothing of another rank ({text})", self._timeout)
        gone(f"rank {self.rank} lost another rank: {text}")

    def close(self) -> None:
        """Nothing is sent any more; connections end with the process."""
        abort = getattr(self._group, "abort", None)
        if callable(abort):
            abort()

    def _destroy(self, group: Any) -> None:
        """The threads of the group end; with None those of all groups of PyTorch."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group(group)


def _engine() -> tuple[Any, Any]:
    """PyTorch, imported lazily. Raises: ExtraError."""
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        raise ExtraError(
            "the transport `gloo` needs PyTorch", help="pip install 'pullback[torch]'"
        ) from error
    return torch, torch.distributed
