"""The functions of Triton's device library for its interpreter, which has none: by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.interpreter import TensorHandle

F = torch.special


def _sinpi(x: Any) -> Any:
    return torch.sin(torch.pi * x)


def _cbrt(x: Any) -> Any:
    return torch.sign(x) * x.abs() ** (1 / 3)


def _fdim(x: Any, z: Any) -> Any:
    return torch.clamp(x - z, min=0)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "acos": torch.acos, "acosh": torch.acosh, "asin": torch.asin, "asinh": torch.asinh,
    "atan": torch.atan, "atan2": torch.atan2, "atanh": torch.atanh, "cbrt": _cbrt,
    "ceil": torch.ceil, "copysign": torch.copysign, "cos": torch.cos, "cosh": torch.cosh,
    "cospi": lambda x: torch.cos(torch.pi * x), "cyl_bessel_i0": F.i0, "cyl_bessel_i1": F.i1,
    "erf": torch.erf, "erfc": torch.erfc, "erfcx": F.erfcx, "erfinv": torch.erfinv,
    "erfcinv": lambda x: torch.erfinv(1 - x), "exp": torch.exp, "exp10": lambda x: 10**x,
    "exp2": torch.exp2, "expm1": torch.expm1, "abs": torch.abs, "fdim": _fdim,
    "floor": torch.floor, "fma": lambda x, z, w: x * z + w, "fmod": torch.fmod,
    "hypot": torch.hypot, "j0": F.bessel_j0, "j1": F.bessel_j1, "log": torch.log,
    "log10": torch.log10, "log1p": torch.log1p, "log2": torch.log2, "nearbyint": torch.round,
    "norm3d": lambda x, z, w: torch.sqrt(x * x + z * z + w * w), "normcdf": F.ndtr,
    "normcdfinv": F.ndtri, "pow": torch.pow, "rcbrt": lambda x: 1 / _cbrt(x),
    "remainder": lambda x, z: x - z * torch.round(x / z),
    "rhypot": lambda x, z: 1 / torch.hypot(x, z), "rint": torch.round, "round": torch.round,
    "rsqrt": torch.rsqrt, "saturatef": lambda x: x.clamp(0, 1), "sin": torch.sin,
    "sinh": torch.sinh, "sinpi": _sinpi, "sqrt": torch.sqrt, "tan": torch.tan,
    "tanh": torch.tanh, "trunc": torch.trunc, "y0": F.bessel_y0, "y1": F.bessel_y1,
    "fast_cosf": torch.cos, "fast_dividef": torch.divide, "fast_exp10f": lambda x: 10**x,
    "fast_expf": torch.exp, "fast_log10f": torch.log10, "fast_log2f": torch.log2,
    "fast_logf": torch.log, "fast_sinf": torch.sin, "fast_tanf": torch.tan,
}  # fmt: skip


def _interpreted(name: str) -> Callable[..., Any]:
    function = FUNCTIONS[name]

    def called(*values: Any, _semantic: Any = None) -> Any:
        blocks = [v for v in values if isinstance(v, tl.core.tensor)]
        numbers = [
            torch.from_numpy(np.asarray(v.handle.data if isinstance(v, tl.core.tensor) else v))
            for v in values
        ]
        kinds = [n.double() for n in numbers]
        made = function(*torch.broadcast_tensors(*kinds)).numpy()
        like = max(blocks, key=lambda v: v.handle.data.size)
        kind = like.dtype.scalar
        made = made.astype(like.handle.data.dtype)
        type = tl.block_type(kind, list(made.shape)) if made.ndim and like.shape else kind
        return tl.core.tensor(TensorHandle(made, kind), type)

    called.__module__, called.__name__ = libdevice.__name__, name
    return called


@contextmanager
def on_the_interpreter() -> Iterator[None]:
    """Kernels may call the library meanwhile."""
    before = {name: getattr(libdevice, name) for name in FUNCTIONS}
    for name in FUNCTIONS:
        setattr(libdevice, name, _interpreted(name))
    try:
        yield
    finally:
        for name, own in before.items():
            setattr(libdevice, name, own)
