"""Tensors of PyTorch's that lie on a device, as programs take them: by address, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.backends.host.system import array_at
from pullback.backends.registry import GPU
from pullback.bridge.lying import actual, reach
from pullback.config import Options
from pullback.ir.graph import Variable
from pullback.tensor.record.trace import settled
from pullback.tensor.run.entry import Entry

_Given = torch.Tensor


def launch(
    entry: Entry, tensors: Sequence[Any], results: Sequence[Any], sizes: Mapping[str, int]
) -> None:
    """A program on tensors, in the order of PyTorch's current stream. Numbers of the host, such as
    a seed, are copied there.
    """
    own = entry.executable
    runner: Any = own.runner
    given = [*tensors, *settled(entry.read), *results]
    pairs = zip(own.program.state, given, strict=True)
    bound = {v: _bound(v, x, runner.own, sizes) for v, x in pairs}
    runner.own.run(bound, sizes, current_stream([*results, *tensors]))


def _bound(variable: Variable, given: Any, runner: Any, sizes: Mapping[str, int]) -> Any:
    """What a program is bound to: memory of the device by its address, an array of the host."""
    if not isinstance(given, _Given):
        return given.array
    shape, kind = tuple(actual(variable.shape, sizes)), variable.dtype.numpy
    if is_here(given):
        return array_at(given.data_ptr(), shape, kind)
    return runner.at(given.data_ptr(), shape, kind, reach(given) * kind.itemsize)


def made_on(device: torch.device, shape: Any, kind: Any) -> Any:
    """A tensor of PyTorch's allocator, not filled."""
    return torch.empty(shape, dtype=kind, device=device)


def moved_to(device: torch.device, tensor: Any) -> Any:
    """A copy of a tensor of the host, which the host does not wait for."""
    return tensor.to(device, non_blocking=True)


def is_here(tensor: Any) -> bool:
    """Whether it lies in memory of this processor."""
    return bool(tensor.is_cpu)


def current_stream(tensors: Sequence[Any]) -> int:
    """The stream that PyTorch gives work of these tensors' device to."""
    device = next(t.device for t in tensors if isinstance(t, _Given) and not is_here(t))
    return int(torch.cuda.current_stream(device).cuda_stream)


def placed_on(device: torch.device, options: Options | None) -> Options:
    """Options of programs of a device, deterministic where PyTorch's algorithms are."""
    own = Options.from_environment() if options is None else options
    same = own.deterministic or torch.are_deterministic_algorithms_enabled()
    return replace(own, backend=GPU, target=f"cuda:{device.index or 0}", deterministic=same)
