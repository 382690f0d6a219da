"""The public functions' edge: what Python says about an argument of a wrong kind gets a code.

    pb.diff(x, n={})          E361: n of diff is a dict, where int is wanted

A function checks what it is about; that a number is no dictionary is checked by nobody until some
line of the library stumbles. Such an error leaves by here: where an argument is plainly of another
kind than its annotation says, it is told about, at the user's line. An error that no argument
explains, or that a function of the user's raised, stays what it is.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, isfunction, signature
from os.path import isabs
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pullback.errors import DTypeError, InvalidIR, PullbackError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.record.trace import Handle
from pullback.tensor.values.answers import Answering

P = ParamSpec("P")
R = TypeVar("R")

RAW = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, InvalidIR,
)  # fmt: skip
LIBRARIES = tuple(
    str(p) for p in (
        Path(__file__).parents[2], Path(np.__file__).parent, sysconfig.get_path("stdlib"),
    )
)  # fmt: skip
ATTRIBUTES = ("dtype", "device")  # names of parameters that no number is for
LONGEST = 60  # letters of an argument that a message shows


def bounded(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Give the public functions of a module this edge."""
    for name in names:
        if isfunction(namespace.get(name)):
            namespace[name] = _edged(namespace[name])


def _edged(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RAW as problem:
            told = _explained(problem, function, args, kwargs)
            if told is None:
                raise
            raise DTypeError(told, help=_called(function), code="E361") from problem

    return call


def _explained(
    problem: BaseException, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> str | None:
    """What is wrong with an argument; None where none explains `problem`."""
    if isinstance(problem, PullbackError) or _users(problem.__traceback__):
        return None
    known = signature(function)
    try:
        given = known.bind(*args, **kwargs).arguments
    except TypeError as unbound:
        return f"{function.__name__}: {unbound}"
    for name, value in _listed(given, known):
        parameter = known.parameters[name]
        if strange(value, parameter) or _told(str(problem), value):
            wanted = "" if parameter.annotation is Parameter.empty else str(parameter.annotation)
            wanted = "a tensor or a number" if wanted in ("", "Any") else wanted
            return f"{name} of {function.__name__} is {_shown(value)}, where {wanted} is wanted"
    return None


def _called(function: Any) -> str:
    """How a function is called: ``it is diff(x, *, axis=-1, n=1, prepend=None, append=None)``."""
    known = signature(function)
    plain = [p.replace(annotation=Parameter.empty) for p in known.parameters.values()]
    short = known.replace(parameters=plain, return_annotation=Signature.empty)
    return f"it is {function.__name__}{short}"


def _listed(given: dict[str, Any], known: Signature) -> Iterable[tuple[str, Any]]:
    for name, value in given.items():
        kind = known.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            yield from ((name, one) for one in value)
        elif kind is not Parameter.VAR_KEYWORD:
            yield name, value


def _users(trace: TracebackType | None) -> bool:
    """Whether an error came out of a function of the user's: its frame is one."""
    frame = None if trace is None else trace.tb_next
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if isabs(name) and not name.startswith(LIBRARIES):
            return True
        frame = frame.tb_next
    return False


def _told(message: str, value: Any) -> bool:
    """Whether Python's words name the type of `value`: 'dict' object is not iterable."""
    kind = type(value)
    named = kind.__name__ if kind.__module__ != "numpy" else f"numpy.{kind.__name__}"
    if isinstance(value, Handle | ScalarHandle) and not message.endswith("is not callable"):
        return False  # of which there are many: it need not be this one
    ends = f" not {named}"  # must be real number, not list
    starts = f"'{named}' object"
    return message.startswith(starts) or message.endswith(ends) or f"type '{named}'" in message


def _shown(value: Any) -> str:
    kind = type(value).__name__
    text = repr(value) if isinstance(value, str | float | complex | list | tuple) else ""
    return f"{kind} {text}" if 0 < len(text) <= LONGEST else f"a value of type {kind}"


def strange(value: Any, parameter: Parameter) -> bool:
    """Whether a value is plainly not what a parameter is for."""
    wanted = parameter.annotation if isinstance(parameter.annotation, str) else "Any"
    if value is parameter.default or (value is None and "None" in wanted):
        return False
    if wanted.startswith(("Callable", "Combine")) or parameter.name == "callback":
        return not callable(value)
    if callable(value) and not isinstance(value, Handle | ScalarHandle | Answering | type):
        return "Callable" not in wanted and ("Any" not in wanted or parameter.name in ATTRIBUTES)
    if isinstance(value, str):
        return not ("str" in wanted or parameter.name in ATTRIBUTES)
    if isinstance(value, type | DType):
        return parameter.name != "dtype"
    if isinstance(value, list | tuple):
        plural = any(k in wanted for k in ("Sequence", "tuple", "list", "Iterable", "Axes", "Any"))
        return not (plural and not any(strange(v, parameter) for v in value))
    several = wanted.startswith(("Sequence", "Iterable", "tuple", "list"))
    return parameter.name in ATTRIBUTES or several or _no_number(value, wanted)


def _no_number(value: Any, wanted: str) -> bool:
    """The same of what is none of Python's containers."""
    if isinstance(value, bool | np.bool_):
        return "bool" not in wanted and "Any" not in wanted
    if isinstance(value, int | np.integer):
        return abs(int(value)) >= 2**63 or wanted in ("bool", "str", "Tensor")
    if isinstance(value, float | np.floating):
        floats = any(k in wanted for k in ("float", "Scalar", "Any"))
        return not (floats and math.isfinite(value))
    if isinstance(value, np.ndarray):
        return value.dtype not in {k.numpy for k in D.BY_NAME.values()} or wanted in PLAIN
    if isinstance(value, Dim):
        return not any(k in wanted for k in ("Extent", "Dim"))
    if isinstance(value, Handle | ScalarHandle | Answering):
        return wanted in PLAIN
    return not hasattr(value, "__array__")


PLAIN = ("int", "float", "bool", "str", "int | None", "float | None", "str | None")
