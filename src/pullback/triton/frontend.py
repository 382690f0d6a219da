"""A `@triton.jit` function as TTIR, by Triton's own frontend: no device is needed.

In a process of `TRITON_INTERPRET=1` Triton's functions are made for its interpreter, those of its
own library too; for the frontend each is made again as what it compiles.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.code_generator import CodeGenerator
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from pullback.backends.host.attributes import put_back, snapshot
from pullback.errors import ArgumentError, UnsupportedError
from pullback.triton import replaced
from pullback.triton.nodes import Function
from pullback.triton.parse import parse

# Whose lines are not the user's.
LIBRARY = (str(Path(triton.__file__).parent), str(replaced.__file__))
# What is asked for a text: any device that Triton knows gives the same TTIR.
TARGET = ("cuda", 90, 32)

interpreted = triton.knobs.runtime.interpret

_CLEAN = "member" not in (getattr(tl.core.load, "__kwdefaults__", None) or {})
# The interpreter changes the language while a kernel runs, and a function that a kernel calls
# leaves it changed: what the frontend needs is put back.
_LANGUAGE = snapshot((tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype, tl.core.condition,
                      tl.core.tensor_descriptor_base))  # fmt: skip


def _put_back() -> None:
    """Raises: UnsupportedError (E427) where kernels ran before this module was there."""
    if not _CLEAN:
        raise UnsupportedError("kernels ran on the interpreter before pb.triton", code="E427")
    put_back(_LANGUAGE)


class _Offline(JITFunction):  # type: ignore[misc]
    """A function of the interpreter's, for the frontend."""

    def get_capture_scope(self) -> dict[str, Any]:
        return {name: _offline(value) for name, value in super().get_capture_scope().items()}

    @property
    def cache_key(self) -> str:
        return hashlib.sha256(f"{self.__module__}.{self.src}".encode()).hexdigest()


@functools.cache
def _made(function: Callable[..., Any]) -> _Offline:
    return _Offline(function)


def _offline(value: Any) -> Any:
    if not isinstance(value, InterpretedFunction | JITFunction):
        return value
    value = replaced.FUNCTIONS.get(value.fn, value)
    return _made(value.fn) if isinstance(value, InterpretedFunction) else value


@contextmanager
def _frontend() -> Iterator[None]:
    """The frontend meets the interpreter's functions as what it compiles."""
    _put_back()
    named, called = CodeGenerator.call_Function, CodeGenerator.call_JitFunction

    def call_function(self: Any, node: Any, fn: Any, *rest: Any) -> Any:
        return named(self, node, _offline(fn), *rest)

    def call_jit(self: Any, fn: Any, *rest: Any, **named_rest: Any) -> Any:
        return called(self, _offline(fn), *rest, **named_rest)

    CodeGenerator.call_Function, CodeGenerator.call_JitFunction = call_function, call_jit
    try:
        yield
    finally:
        CodeGenerator.call_Function, CodeGenerator.call_JitFunction = named, called


def jitted(kernel: Any, who: str) -> Any:
    """The kernel as the frontend takes it.

    Raises: ArgumentError (E421) for what `@triton.jit` did not make.
    """
    kernel = _offline(kernel)
    if isinstance(kernel, JITFunction):
        return kernel
    name = getattr(kernel, "__name__", type(kernel).__name__)
    raise ArgumentError(f"{who}: {name} is no function of @triton.jit", code="E421")


def ttir(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any]) -> str:
    """The module of a kernel, as text with the user's names and lines.

    Raises: UnsupportedError (E422) with what Triton says, where it does not compile.
    """
    kernel = jitted(kernel, "pb.triton")
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    backend = make_backend(GPUTarget(*TARGET))
    options = backend.parse_options({"enable_fp_fusion": True} | source.parse_options())
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    made, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    try:
        with _frontend():
            module = source.make_ir(GPUTarget(*TARGET), options, made, modules, context)
    except triton.CompilationError as error:
        inner: BaseException = error
        while isinstance(inner.__cause__, triton.CompilationError):
            inner = inner.__cause__
        what = f"Triton does not compile {kernel.__name__}: {inner}"
        raise UnsupportedError(what, code="E422") from error
    return str(stages["ttir"](module, {}).str())


def function_of(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any]) -> Function:
    """A kernel as nodes."""
    return parse(ttir(kernel, types, constants), LIBRARY)
