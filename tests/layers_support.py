"""What the tests of layers beside PyTorch share: one call, all gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import realize

Array = np.ndarray[Any, Any]
CLOSE = {"rtol": 1e-7, "atol": 1e-7}  # torch keeps some constants of float64 functions in float32


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal numbers, float64."""
    return np.random.default_rng(seed).normal(size=shape)


def flat(found: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(found, tuple | list):
        return [t for part in found for t in flat(part)]
    return [found]


def floating(array: Array) -> bool:
    return array.dtype.kind == "f"


def own_results(
    call: Callable[..., Any], arrays: Sequence[Array], cells: Sequence[Tensor] = ()
) -> tuple[list[Array], list[Array]]:
    """Outputs, and the gradients of inputs and `cells` for random heads; computed at once."""
    given = [pb.tensor(a) for a in arrays]
    outputs = [y for y in flat(call(*given)) if y.dtype.is_float]
    loss = pb.tensor(np.zeros(()))
    for n, y in enumerate(outputs):
        loss = loss + (y * pb.tensor(normal(*y.shape, seed=90 + n))).sum()
    wanted = [g for g, a in zip(given, arrays, strict=True) if floating(a)]
    slopes = pb.grad(loss, [*wanted, *cells])
    realize([*outputs, *slopes])
    return [y.numpy() for y in outputs], [g.numpy() for g in slopes]


def torch_results(
    torch: Any, call: Callable[..., Any], arrays: Sequence[Array], cells: Sequence[Any] = ()
) -> tuple[list[Array], list[Array]]:
    """The same by PyTorch."""
    given = [torch.tensor(a, requires_grad=floating(a)) for a in arrays]
    outputs = [y for y in flat(call(*given)) if y.is_floating_point()]
    loss = 0.0
    for n, y in enumerate(outputs):
        loss = loss + (y * torch.tensor(normal(*y.shape, seed=90 + n))).sum()
    wanted = [*(g for g in given if g.requires_grad), *cells]
    slopes = torch.autograd.grad(loss, wanted, allow_unused=True)
    zeros = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, slopes, strict=True)]
    return [y.detach().numpy() for y in outputs], [g.numpy() for g in zeros]


def check(found: tuple[list[Array], list[Array]], wanted: tuple[list[Array], list[Array]]) -> None:
    """Outputs and gradients agree, shapes included."""
    for own, theirs in zip(found, wanted, strict=True):
        for a, b in zip(own, theirs, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, **CLOSE)


def fill(module: nn.Module, state: Mapping[str, Array]) -> None:
    """Give the cells of a module other contents, of another type too."""
    for path, owner in module.named_modules():
        for home in (owner._parameters, owner._buffers):
            cells: dict[str, Any] = home
            for name, cell in cells.items():
                if cell is not None:
                    full = f"{path}.{name}" if path else name
                    cells[name] = type(cell)(pb.tensor(np.asarray(state[full])))


def drawn(state: Mapping[str, Any]) -> dict[str, Array]:
    """Contents for every cell of torch's `state`; variances are positive, counts stay."""
    found: dict[str, Array] = {}
    for n, (name, tensor) in enumerate(state.items()):
        array = tensor.numpy()
        fresh = normal(*array.shape, seed=40 + n)
        fresh = np.abs(fresh) + 0.5 if "var" in name else 0.5 * fresh
        found[name] = fresh if floating(array) else array
    return found
