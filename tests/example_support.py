"""The programs in `examples/` as modules, and the same programs with PyTorch's layers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pullback as pb

FOLDER = Path(__file__).parent.parent / "examples"


def example(path: str, alias: str = "") -> ModuleType:
    """A file of `examples/`, run as a module. Skips the test where a package is missing."""
    file = FOLDER / path
    spec = importlib.util.spec_from_file_location(alias or f"example_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with _neighbours(file.parent):
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            del sys.modules[spec.name]
            pytest.skip(str(error))
    return module


def twin(path: str, torch: Any) -> ModuleType:
    """The same file, its layers and optimisers being PyTorch's of the same names."""
    own = pb.nn, pb.optim
    pb.nn, pb.optim = torch.nn, torch.optim
    try:
        found = example(path, f"twin_{Path(path).stem}")
    finally:
        pb.nn, pb.optim = own
    names: dict[str, Any] = vars(found)
    names["pb"] = SimpleNamespace(
        Tensor=torch.Tensor,
        astype=torch.Tensor.to,
        float32=torch.float32,
        permute_dims=torch.permute,
        sqrt=torch.sqrt,
    )
    return found


def same(path: str, name: str, own: Any, torch: Any) -> Any:
    """The model called `name` of an example with PyTorch's layers and the weights of `own`."""
    found = getattr(twin(path, torch), name)()
    hand_over(own, found, torch)
    return found.eval()


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Modules that lie beside an example can be imported, as from its own folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def one_thread(torch: Any) -> Iterator[None]:
    """PyTorch on one thread: on a busy machine several wait for each other, for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def hand_over(model: Any, other: Any, torch: Any) -> None:
    """Give PyTorch's `other` the weights of `model`, name by name."""
    state = {name: torch.tensor(t.numpy()) for name, t in model.state_dict().items()}
    other.load_state_dict(state)


def train_torch(
    torch: Any, opt: Any, loss_of: Callable[..., Any], batches: Iterator[Any], steps: int
) -> list[float]:
    """PyTorch's own loop over the same batches; the loss of each."""
    losses = []
    for _ in range(steps):
        given = [torch.from_numpy(np.ascontiguousarray(a)) for a in next(batches)]
        opt.zero_grad()
        loss = loss_of(*given)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    return losses
