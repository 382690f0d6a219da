"""What the acceptance tests share: a plain optimiser, kernels of a step, runs beside torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.config import Options
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Launch, Loop
from pullback.runtime.executable import Executable

Array = np.ndarray[Any, Any]
TWO_THREADS = Options(threads=2, cache=None)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """float32 numbers from N(0, scale)."""
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def torch() -> Any:
    """PyTorch, or the test is skipped."""
    found = pytest.importorskip("torch", reason="PyTorch is not installed")
    found.set_num_threads(1)
    return found


def step_kernels(program: Executable) -> list[Kernel]:
    """The kernels of the one loop of a program, inner loops included."""
    loops = [i for i in program.fused if isinstance(i, Loop)]
    assert len(loops) == 1
    return _launched(loops[0].body)


def _launched(block: Block) -> list[Kernel]:
    found: list[Kernel] = []
    for item in block:
        if isinstance(item, Launch):
            found.append(item.kernel)
        elif isinstance(item, Loop):
            found.extend(_launched(item.body))
    return found


def stored(program: Executable) -> list[Variable]:
    """Every variable that a kernel of the program writes to memory."""
    return list(dict.fromkeys(v for k in program.kernels for v in k.writes))


def run_once(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Executable]:
    """The result (NumPy) and the program of one jitted call."""
    jitted = pb.jit(function, **options)
    result = jitted(*args)
    return arrays(result), jitted.program


def arrays(result: Any) -> Any:
    """Tensors as NumPy arrays, in tuples and lists too."""
    if isinstance(result, tuple | list):
        return [arrays(r) for r in result]
    return None if result is None else np.array(result)


def from_torch(state: dict[str, Any]) -> dict[str, Array]:
    return {k: v.detach().numpy().copy() for k, v in state.items()}


def to_torch(module: Any) -> dict[str, Any]:
    """The weights of a module of ours, for ``load_state_dict`` of torch's."""
    make = torch().from_numpy
    return {k: make(np.array(v)) for k, v in module.state_dict().items()}


def close(found: Any, wanted: Any, terms: Any, dtype: str = "float32") -> None:
    """float64 to 1e-12, float32 to 1e-5 of `terms`, the sum of magnitudes of what is added."""
    limit = {"float64": 1e-12, "float32": 1e-5}[dtype]
    error = np.abs(np.asarray(found, np.float64) - np.asarray(wanted, np.float64))
    assert np.all(error <= limit * np.maximum(terms, 1.0)), error.max()


def total(tensors: Iterable[Any]) -> Any:
    """The sum of all elements of all tensors."""
    found = None
    for t in tensors:
        found = t.sum() if found is None else found + t.sum()
    return found
