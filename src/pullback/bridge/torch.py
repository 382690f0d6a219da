"""`pb.torch`: operators of PyTorch made of functions of pullback's tensors.

@pb.torch.op
def banded(q, k, v, width: int = 16): ...

y = banded(q, k, v)      # tensors of PyTorch; autograd, torch.func, torch.compile, torch.export
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.bridge.breaks import GraphBreak
from pullback.bridge.derived import Derived, checked
from pullback.bridge.modules import Report, module, report_of
from pullback.bridge.operator import Operator, made
from pullback.bridge.private import TESTED
from pullback.bridge.record import RECORD, Compiled, Fallback, Graph, HostCall
from pullback.bridge.signature import Signature, signature_of
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError
from pullback.ir.expr import Dim
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.tensor import Tensor

__all__ = [
    "Compiled",
    "Fallback",
    "Graph",
    "GraphBreak",
    "HostCall",
    "Operator",
    "Report",
    "Step",  # noqa: F822  # of `__getattr__`
    "backend",  # noqa: F822  # of `__getattr__`
    "module",
    "op",
    "report",
    "rules",  # noqa: F822  # of `__getattr__`
    "step",  # noqa: F822  # of `__getattr__`
]

SPACE = "pullback"
DISPATCHED = hasattr(torch.library, "register_vmap")  # from PyTorch 2.5 on
_NAME = re.compile(r"(?:([A-Za-z_]\w*)::)?([A-Za-z_]\w*)")


def op(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    outputs: int | None = None,
    types: Mapping[str, type] | None = None,
    dynamic: Mapping[str, Dim | Mapping[int, Dim]] | None = None,
    options: Options | None = None,
) -> Any:
    """An operator of PyTorch, `name` or ``pullback::<the function's name>``, or a decorator.

    `function` takes and gives tensors as what `pb.jit` takes does. Parameters that are annotated
    as int, float, bool or str, have such a default, or stand in `types`, are static: a program is
    compiled for each value. ``Tensor | None`` may be left out. `outputs`: how many tensors it
    gives; None: as annotated (``-> tuple[pb.Tensor, pb.Tensor]``), else one. `dynamic`: tensors
    whose first axis is symbolic, ``{"x": pb.dim("n", 1, 512)}``, or any others,
    ``{"x": {0: n, -1: t}}``: one program serves all these sizes; for others, one is compiled for
    each. What lies by a symbolic axis that is not the outermost in memory is copied.

    Its derivatives are derived, of any order, both modes; arguments and adjoints are read with
    the strides that they have; results are new, in row-major order.

    Raises: OptionError for a name that is taken, or is none, and for symbolic axes that there are
        not; UnsupportedError for parameters that an operator cannot have, and, at the call, for
        tensors of another device and for functions that assign states.

    Example:
        >>> import torch
        >>> double = pb.torch.op(lambda x: 2 * x, name="examples::double")
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """
    if function is None:
        return functools.partial(
            op, name=name, outputs=outputs, types=types, dynamic=dynamic, options=options
        )
    space, own = _split(name or str(getattr(function, "__name__", "")))
    signature = signature_of(function, types or {}, outputs)
    axes = _axes(signature, dynamic or {})
    given = inspect.signature(function).parameters.values()
    keyed = [p.name for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY]
    empty = inspect.Parameter.empty
    ordered = {p.name: p.default for p in given if p.default is not empty}
    defaults = {n: ordered[p.name] for n, p in enumerate(signature.parameters) if p.name in ordered}

    def make() -> Operator:
        body = _ranked(checked(function, own, signature, keyed), axes)
        fresh = Operator(body, space, defaults, options, DISPATCHED, lambda _: axes)
        fresh.pullback()  # known before a cached graph names it
        return fresh

    return made(f"{space}::{own}", function, make)


def report(model: Any = None) -> Report | Compiled:
    """What `pb.torch.module` made of the layers of a module, in the mode that each is in; without
    one, the graphs that ``torch.compile(.., backend="pullback")`` compiled, and what PyTorch ran.

    Example:
        >>> import torch
        >>> model = pb.torch.module(torch.nn.LayerNorm(4))
        >>> len(pb.torch.report(model).replaced)
        1
    """
    return RECORD.so_far() if model is None else report_of(model)


def __getattr__(name: str) -> Any:
    """`backend`, `rules` and `step`, with PyTorch's compiler, loaded when asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"pb.torch has no {name!r}")
    try:
        module = importlib.import_module(home)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} does not compile by pullback: {error}",
            help=f"pip install 'torch=={TESTED}.*', the version that it is tested with",
            code="E344",
        ) from error
    return getattr(module, name)


_HOMES = {
    "backend": "pullback.bridge.backend",
    "rules": "pullback.bridge.aten.table",
    "Step": "pullback.bridge.step",
    "step": "pullback.bridge.step",
}


def _axes(
    signature: Signature, dynamic: Mapping[str, Dim | Mapping[int, Dim]]
) -> list[Mapping[int, Dim]]:
    """The symbolic axes, by place. Raises: OptionError for what is no tensor of the function, no
    axis or no extent, and for two extents of one name.
    """
    tensors = [signature.parameters[n].name for n in signature.tensors]
    names: dict[str, Dim] = {}
    made: dict[str, Mapping[int, Dim]] = {}
    for name, told in dynamic.items():
        if name not in tensors:
            raise OptionError(f"`{name}` is no tensor of the function", code="E529")
        axes = {0: told} if isinstance(told, Dim) else told
        if not isinstance(axes, Mapping) or not all(map(_is_open, axes.items())):
            what = f"dynamic={{{name!r}: {told!r}}}: neither an extent nor extents by axes"
            raise OptionError(what, help=_DYNAMIC, code="E529")
        made[name] = dict(axes)
        for dim in axes.values():
            if names.setdefault(dim.name, dim) is not dim:
                what = f"dynamic=: two extents are called `{dim.name}`"
                raise OptionError(what, help="one pb.dim for what is of one size", code="E529")
    return [made.get(p.name, {}) for p in signature.parameters]


def _ranked(body: Derived, axes: Sequence[Mapping[int, Dim]]) -> Derived:
    """The function; told axes are of its tensors, each once. Raises, at the call: OptionError."""

    def call(*args: Any) -> tuple[Tensor, ...]:
        for parameter, tensor, own in zip(body.signature.parameters, args, axes, strict=True):
            if not isinstance(tensor, Tensor) or not own:
                continue
            places = {axis % tensor.ndim for axis in own if -tensor.ndim <= axis < tensor.ndim}
            if len(places) != len(own):
                what = (
                    f"dynamic= has axes {sorted(own)} of `{parameter.name}`: it has {tensor.ndim}"
                )
                raise OptionError(what, code="E529")
        return body.call(*args)

    return replace(body, call=call)


_DYNAMIC = 'dynamic={"x": pb.dim("n", 1, 512)}, or {"x": {0: n, 2: t}}'


def _is_open(pair: tuple[Any, Any]) -> bool:
    axis, dim = pair
    return isinstance(axis, int) and not isinstance(axis, bool) and isinstance(dim, Dim)


def _split(name: str) -> tuple[str, str]:
    """Raises: OptionError for what is no name."""
    spelled = _NAME.fullmatch(name)
    if spelled is None:
        raise OptionError(
            f"{name!r} is no name for an operator",
            help='pb.torch.op(f, name="smooth")',
            code="E525",
        )
    return spelled[1] or SPACE, spelled[2]


__dir__ = _shown(__all__)
