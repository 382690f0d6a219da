"""Triton's interpreter on the memory of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from pullback.backends.host.attributes import put_back, snapshot
from pullback.backends.triton.language import SIGNATURES
from pullback.errors import DeviceError
from pullback.ir.dtype import DType, bfloat16

INTERPRET = "TRITON_INTERPRET"


@contextmanager
def interpreting() -> Iterator[None]:
    """Functions that are made here are interpreted."""
    before = os.environ.get(INTERPRET)
    os.environ[INTERPRET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[INTERPRET]
        else:
            os.environ[INTERPRET] = before


def wanted(name: str = "triton", environment: Mapping[str, str] = os.environ) -> None:
    """Raises: DeviceError where the package is absent, or was imported before, to compile."""
    if name in sys.modules and environment.get(INTERPRET) != "1":
        what = f"{name} was imported before, to compile: its own functions are not interpreted"
        raise DeviceError(what, help=f"set {INTERPRET}=1 before the program starts", code="E414")
    if find_spec(name) is None:
        what = f"the package {name} is not installed"
        raise DeviceError(what, help="pip install 'pullback[gpu]'", code="E410")


@cache
def triton() -> Any:
    """The package, for its interpreter; imported lazily. Raises: DeviceError."""
    wanted()
    with interpreting():
        import triton
        from triton.runtime import interpreter
    _exact(interpreter)
    return triton


def _exact(interpreter: Any) -> None:
    """Conversions to and from bfloat16, which the interpreter cuts off, rounded to nearest even."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain = builder.cast_impl

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        kind, wanted = str(source.dtype.scalar), str(to.scalar)
        if wanted == "bf16" and kind != "bf16":
            data = source.data.astype(np.float32).astype(BFLOAT16).view(np.uint16)
            return handle(data, to.scalar)
        if kind == "bf16" and wanted != "bf16":
            wide = handle(source.data.view(BFLOAT16).astype(np.float32), interpreter.tl.float32)
            return wide if wanted == "fp32" else plain(self, wide, to)
        return plain(self, source, to)

    builder.cast_impl = cast_impl
    product = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, c: Any, *rest: Any) -> Any:
        """16-bit floats multiplied in float32, as tensor cores do."""
        double = str(a.dtype.scalar) == "fp64"
        wide = [a, b] if double else [cast_impl(self, s, interpreter.tl.float32) for s in (a, b)]
        return product(self, *wide, c, *rest)

    builder.create_dot = create_dot


BFLOAT16 = bfloat16.numpy


class _Name(str):
    """The name of an element type, as Triton asks for it."""

    __slots__ = ()


class Memory:
    """An array as Triton's interpreter takes tensors."""

    def __init__(self, array: np.ndarray[Any, Any], kind: DType) -> None:
        self.array = array
        self.dtype = _Name(SIGNATURES[kind.name])
        self.shape = array.shape

    def data_ptr(self) -> int:
        """Its address."""
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> Memory:
        """Itself: it is where the interpreter wants it."""
        return self

    def cpu(self) -> Memory:
        """Itself."""
        return self

    def copy_(self, other: Memory) -> None:
        """Nothing: results are in place."""

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def new_empty(self, *shape: Any, device: Any = None) -> Memory:
        """Itself: nothing is copied."""
        return self

    def set_(self, *parts: Any) -> Memory:
        """Itself."""
        return self

    def element_size(self) -> int:
        return self.array.itemsize


def call(function: Any, programs: int, arguments: Sequence[Memory | int]) -> None:
    """One launch, program by program."""
    before = snapshot(language(triton().language))
    with interpreting(), np.errstate(all="ignore"):
        function[(programs,)](*arguments)
    put_back(before)


def language(tl: Any) -> tuple[Any, ...]:
    """Modules and classes of Triton's that the interpreter changes while a kernel runs, and a
    function that a kernel calls leaves changed: Triton's own frontend fails then.
    """
    core = tl.core
    classes = (core.tensor, core.dtype, core.condition, core.tensor_descriptor_base)
    return (tl, core, tl.math, *classes)
