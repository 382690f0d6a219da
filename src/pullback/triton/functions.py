"""`pb.triton.grad`: the derivative of a pure `@triton.jit` function, for kernels to call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pullback.config import Options
from pullback.errors import ArgumentError, UnsupportedError
from pullback.triton.derive import HEAD, function_derived, loaded, module
from pullback.triton.frontend import function_of, jitted
from pullback.triton.nodes import Function
from pullback.triton.words import shape_of

TYPE = re.compile(r"(\w+)(?:\[([\d, ]*)\])?")
MOST = 8  # results of a function
FLOATS = ("fp16", "bf16", "fp32", "fp64")


def grad(
    fn: Any,
    wrt: Sequence[int] = (0,),
    *,
    types: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """The derivative of a pure `@triton.jit` function: a `@triton.jit` function with `.source`.

    d_x = d_result * (derivative of fn(x, ..) by x)        of several in `wrt` a tuple

    It takes what `fn` takes and then `d_result`, what comes from behind; of a tuple of results
    `d_result_0`, .. of each. The derivative of a derivative is one more of these. `types` are
    those of the arguments: ``"fp32[16, 16]"`` a block, ``"i32"`` a number; left out, all are
    elements of float32, and the derivative is one of elements too, for blocks of any one shape.

    Raises: UnsupportedError (E422) for what Triton does not compile, (E423) for an operation
    without a derivative, ArgumentError (E421) for what is no such function, (E425) for `wrt` or
    types that do not fit.

    Example:
        g = pb.triton.grad(gelu)
        print(g.source)
    """
    jit = jitted(fn, "pb.triton.grad")
    constants = dict(constants or {})
    names = [n for n in jit.arg_names if n not in constants and not _fixed(jit, n)]
    types = tuple(types) if types is not None else ("fp32",) * len(names)
    if len(types) != len(names) or not wrt or not all(-len(names) <= k < len(names) for k in wrt):
        what = f"pb.triton.grad: {len(types)} types and wrt={tuple(wrt)} for {', '.join(names)}"
        raise ArgumentError(what, code="E425")
    chosen = tuple(names[k] for k in wrt)
    floats = [n for n, t in zip(names, types, strict=True) if t.split("[")[0] in FLOATS]
    if whole := [n for n in chosen if n not in floats]:
        raise ArgumentError(f"pb.triton.grad: {whole[0]} is no float", code="E425")
    given = dict(zip(names, types, strict=True))
    function, results = _function(fn, jit.__name__, given, floats, constants)
    arguments = {f"{n}_": n for n in floats} | {n: n for n in names if n not in floats}
    ordered = {key: own for own in names for key, value in arguments.items() if value == own}
    source = function_derived(function, ordered, chosen, results, f"{jit.__name__}_grad")
    made = loaded(source, Options().cache)
    made.source = source.text
    return made


def _function(
    fn: Any, name: str, types: Mapping[str, str], floats: Sequence[str], constants: Any
) -> tuple[Function, list[str]]:
    """A function as a kernel that calls it once, and the pointers to its results.

    How many it has, what Triton compiles says: the kernel asserts it.
    """

    def compiled(count: int) -> tuple[Function, list[str]]:
        text, signature, results = _sample(name, types, floats, constants, count)
        sample = module(text, f"{name}_sample", Options().cache)
        sample.function_ = fn  # type: ignore[attr-defined]
        return function_of(sample.sample_, signature, {}), results

    for count in range(1, MOST + 1):
        with suppress(UnsupportedError):
            return compiled(count)
    return compiled(1)  # which says why


def _fixed(jit: Any, name: str) -> bool:
    """Whether an argument is a constexpr that has a default."""
    parameter = inspect.signature(jit.fn).parameters[name]
    return "constexpr" in str(parameter.annotation)


def _sample(
    name: str,
    types: Mapping[str, str],
    floats: Sequence[str],
    constants: Mapping[str, Any],
    count: int,
) -> tuple[str, dict[str, str], list[str]]:
    """A kernel that calls the function once, the types of what it takes, where results go."""
    signature: dict[str, str] = {}
    values = []
    for own, text in types.items():
        match = TYPE.fullmatch(text.strip())
        if match is None:
            raise ArgumentError(f"pb.triton.grad: {own}: {text!r} is no type", code="E425")
        if own not in floats:
            signature[own] = match[1]
            values.append(f"{own}={own}")
            continue
        shape = tuple(int(extent) for extent in (match[2] or "").split(",") if extent.strip())
        signature[f"{own}_"] = f"*{match[1]}"
        values.append(f"{own}=tl.load({_address(f'{own}_', shape)})")
    values += [f"{own}={value!r}" for own, value in constants.items()]
    results = ["result_"] if count == 1 else [f"result_{k}_" for k in range(count)]
    parts = ["value_"] if count == 1 else [f"value_[{k}]" for k in range(count)]
    signature |= dict.fromkeys(results, "*fp32")
    takes = ", ".join(signature)
    body = [f"    value_ = function_({', '.join(values)})"]
    if count > 1:
        body.append(f"    tl.static_assert(len(value_) == {count})")
    for place, part in zip(results, parts, strict=True):
        body.append(f"    tl.store({place} + tl.zeros_like({part}).to(tl.int32), {part})")
    head = f"# {name}\n{HEAD}\nfunction_ = None\n\n\n@triton.jit\n"
    return "\n".join([f"{head}def sample_({takes}):", *body, ""]), signature, results


def _address(name: str, shape: tuple[int, ...]) -> str:
    """Pointers to the elements of a block."""
    if not shape:
        return name
    count = 1
    for extent in shape:
        count *= extent
    return f"{name} + tl.reshape(tl.arange(0, {count}), {shape_of(shape)})"
