"""`pb.jax`: functions of pullback's tensors that JAX calls, differentiates and batches.

    f = pb.jax.call(function)
    y = jax.jit(f)(x, w)              jax.grad, jvp, vmap, checkpoint, scan: of any order

A call is one primitive. Its derivatives are calls of functions that are derived (`derived.py`):
forwards a pushforward, linear in its tangents, whose transpose is the pullback.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pullback.bridge.derived import SHARED, Derived
from pullback.bridge.flat import Lying, refusal, traced
from pullback.bridge.signature import signature_of
from pullback.bridge.xla import NAMED, TARGET, Programs, runs
from pullback.config import Options
from pullback.errors import LIBRARY, ArgumentError, DTypeError, Origin, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.ops import astype
from pullback.tensor.record.trace import Cell, Trace, tracing

__all__ = ["Call", "call"]

OLDEST = (0, 6)
KINDS: dict[str, DType] = {d.name: d for d in D.ALL}
NARROW = {D.float64: D.float32, D.int64: D.int32, D.uint64: D.uint32}
HERE = "cpu"
_JAX = str(Path(jax.__file__).parent)


def check_version(version: tuple[int, ...]) -> None:
    """Raises: UnsupportedError for a JAX that is too old."""
    if version < OLDEST:
        raise UnsupportedError(
            f"JAX {'.'.join(map(str, version))}, which pb.jax does not call through",
            help=f"pip install --upgrade 'jax>={OLDEST[0]}.{OLDEST[1]}'",
            code="E396",
        )


check_version(jax.__version_info__)


@dataclass(frozen=True, slots=True)
class Static:
    """A value that a program is compiled for; True, 1 and 1.0 are three, 0.0 and -0.0 two."""

    kind: type
    text: str
    value: Any = field(compare=False)

    @classmethod
    def of(cls, value: Any) -> Static:
        return cls(type(value), value.hex() if isinstance(value, float) else repr(value), value)


Statics = tuple[Static | None, ...]
"""By place: None where an operand stands."""


class Function:
    """A function in a row, with what is derived of it, each once. `base`: of which it is the
    pushforward.
    """

    def __init__(
        self, body: Derived, options: Options | None, wide: bool, base: Function | None = None
    ) -> None:
        self.body = body
        self.base = base
        self.options = options
        self.wide = wide
        self._derived: dict[str, Function] = {}
        self._lock = threading.RLock()
        self._outlines: dict[Any, list[Lying]] = {}
        self._names: dict[Any, str] = {}

    def __repr__(self) -> str:
        return self.body.name

    def pullback(self) -> Function:
        return self._made("vjp", self.body.pullback, None)

    def pushforward(self) -> Function:
        return self._made("jvp", self.body.pushforward, self)

    def batched(self) -> Function:
        return self._made("vmap", self.body.batched, None)

    def _made(self, name: str, make: Callable[[], Derived], base: Function | None) -> Function:
        with self._lock:
            if name not in self._derived:
                self._derived[name] = Function(make(), self.options, self.wide, base)
            return self._derived[name]

    def called(self) -> Derived:
        """Its body, with results of the widths that JAX has now."""
        body = self.body

        def narrowed(*args: Any) -> tuple[Tensor, ...]:
            return tuple([astype(r, NARROW.get(r.dtype, r.dtype)) for r in body.call(*args)])

        return body if self.wide else replace(body, call=narrowed)

    def outline(self, lying: Sequence[Lying], statics: Statics) -> list[Lying]:
        """What the results are like, from a trace that is thrown away.

        Of a pushforward they are told by its base: what has a pullback alone is not pushed.
        """
        if self.base is not None:
            moved = len(self.base.body.signature.tensors)
            rest = lying[statics[:moved].count(None) :]
            pushed = self.base.outline(rest, statics[moved:])
            return [r if r.dtype.is_float else Lying((0,), D.float32) for r in pushed]
        key = (*lying, statics)
        with self._lock:
            if key not in self._outlines:
                trace = Trace()
                with tracing(trace):
                    given = [Tensor(trace.fresh("argument", x.shape, x.dtype)) for x in lying]
                    results = self.called().call(*_whole(statics, given))
                    self._outlines[key] = [Lying(r.shape, r.dtype) for r in results]
            return self._outlines[key]

    def program(self, lying: Sequence[Lying], statics: Statics) -> str:
        """The name that XLA calls the compiled program by.

        Raises: UnsupportedError for what does more than give results.
        """
        key = (*lying, statics)
        with self._lock:
            if key not in self._names:
                options = self.options or Options.from_environment()
                entry = traced(self.called(), _whole(statics, lying), options)
                self._refuse(refusal(entry, host=True))
                states = [h._value.name for h in entry.read if isinstance(h, Cell)]
                self._refuse(f"reads the state `{states[0]}`" if states else None)
                self._names[key] = _programs.add(runs(entry, len(lying)))
            return self._names[key]

    def _refuse(self, more: str | None) -> None:
        if more is not None:
            raise UnsupportedError(
                f"`{self.body.name}` {more}: a function of JAX is pure",
                help="pass what it needs as an argument (random numbers: a key), return the rest",
                code="E398",
            )


def _whole(statics: Statics, operands: Sequence[Any]) -> list[Any]:
    """The arguments in a row."""
    rest = iter(operands)
    return [next(rest) if s is None else s.value for s in statics]


# --- the primitive --------------------------------------------------------------------------------

_programs = Programs()
_call = Primitive(TARGET)
_call.multiple_results = True


def _bind(function: Function, args: Sequence[Any], linear: Sequence[int] = ()) -> list[Any]:
    """Arrays and values in a row. `linear`: places of arrays in which it is linear."""
    places = [n for n, a in enumerate(args) if _is_array(a)]
    statics = tuple([None if n in places else Static.of(a) for n, a in enumerate(args)])
    order = tuple([places.index(n) for n in linear if n in places])
    arrays = [args[n] for n in places]
    made: list[Any] = _call.bind(*arrays, function=function, statics=statics, linear=order)
    return made


def _is_array(argument: Any) -> bool:
    return isinstance(argument, jax.Array | np.ndarray)


def _lying(avals: Sequence[Any]) -> list[Lying]:
    return [Lying(tuple(a.shape), KINDS[a.dtype.name]) for a in avals]


def _abstract(*avals: Any, function: Function, statics: Statics, linear: Any) -> list[Any]:
    results = function.outline(_lying(avals), statics)
    return [jax.core.ShapedArray(r.shape, jnp.dtype(r.dtype.numpy)) for r in results]


@functools.lru_cache(maxsize=4096)
def _alone(function: Function, statics: Statics, linear: Any) -> Callable[..., Any]:
    """A call outside of any program."""
    bound = functools.partial(_call.bind, function=function, statics=statics, linear=linear)
    compiled: Callable[..., Any] = jax.jit(bound)
    return compiled


def _implemented(*operands: Any, function: Function, statics: Statics, linear: Any) -> Any:
    return _alone(function, statics, linear)(*operands)


def _lowered(
    ctx: Any, *operands: Any, function: Function, statics: Statics, linear: Any
) -> Sequence[Any]:
    name = function.program(_lying(ctx.avals_in), statics)
    lowered: Sequence[Any] = jax.ffi.ffi_lowering(TARGET)(ctx, *operands, **{NAMED: name})
    return lowered


def _elsewhere(ctx: Any, *operands: Any, function: Function, **_: Any) -> Sequence[Any]:
    """Raises: UnsupportedError: this device is not the processor."""
    platforms = ", ".join(ctx.platforms or ctx.module_context.platforms)
    raise UnsupportedError(
        f"`{function.body.name}` on {platforms}: programs run on the CPU",
        origin=_caller(),
        help="jax.device_put(x, jax.devices('cpu')[0])",
        code="E397",
    )


def _caller() -> Origin:
    """The innermost frame that is neither JAX's nor of this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((LIBRARY, _JAX)):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)


def _pushed(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    function: Function,
    statics: Statics,
    linear: Any,
) -> tuple[list[Any], list[Any]]:
    """Forwards: a call that is linear in the tangents."""
    results = _call.bind(*primals, function=function, statics=statics, linear=linear)
    args = _whole(statics, primals)
    whole = _whole(statics, [None if type(t) is ad.Zero else t for t in tangents])
    moved = [whole[n] if _is_array(whole[n]) else None for n in function.body.signature.tensors]
    out = [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    if all(m is None for m in moved):
        return results, out
    places = [n for n, m in enumerate(moved) if m is not None]
    pushed = _bind(function.pushforward(), [*moved, *args], places)
    floats = [jnp.issubdtype(r.dtype, jnp.floating) for r in results]
    return results, [p if f else o for p, f, o in zip(pushed, floats, out, strict=True)]


def _transposed(
    heads: Sequence[Any], *operands: Any, function: Function, statics: Statics, linear: Any
) -> list[Any]:
    """Backwards through a linear call: the pullback of that of which it is the pushforward."""
    unknown = [n for n, o in enumerate(operands) if ad.is_undefined_primal(o)]
    given = [None if type(h) is ad.Zero else h for h in heads]
    if all(g is None for g in given):
        return [ad.Zero(o.aval) if n in unknown else None for n, o in enumerate(operands)]
    places = [n for n, s in enumerate(statics) if s is None]
    base, first = function.base, len(function.base.body.signature.tensors) if function.base else 0
    if base is not None and all(places[n] < first for n in unknown):
        args, own = _whole(statics, operands)[first:], base.body.signature.tensors
        wanted = {own[places[n]]: n for n in unknown}
        pulled = base
    else:
        zeros = [
            jnp.zeros(o.aval.shape, o.aval.dtype) if n in unknown else o
            for n, o in enumerate(operands)
        ]
        args, wanted, pulled = _whole(statics, zeros), {places[n]: n for n in unknown}, function
    mask = sum(1 << place for place in wanted)
    adjoints = _bind(pulled.pullback(), [*given, *args, mask])
    by_place = dict(zip(pulled.body.signature.tensors, adjoints, strict=True))
    out: list[Any] = [None] * len(operands)
    for place, n in wanted.items():
        out[n] = by_place[place]
    return out


def _batched(
    operands: Sequence[Any],
    axes: Sequence[Any],
    *,
    function: Function,
    statics: Statics,
    linear: Any,
) -> tuple[list[Any], list[int]]:
    """Many samples: first in each result."""
    args = _whole(statics, operands)
    whole = _whole(tuple([s and Static.of(None) for s in statics]), axes)
    told = [SHARED if whole[n] is None else str(whole[n]) for n in function.body.signature.tensors]
    places = [n for n, s in enumerate(statics) if s is None]
    made = _bind(function.batched(), [*args, " ".join(told)], [places[n] for n in linear])
    return made, [0] * len(made)


_call.def_impl(_implemented)
_call.def_abstract_eval(_abstract)
ad.primitive_jvps[_call] = _pushed
ad.primitive_transposes[_call] = _transposed
batching.primitive_batchers[_call] = _batched
mlir.register_lowering(_call, _elsewhere)
mlir.register_lowering(_call, _lowered, platform=HERE)
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_programs.handler), platform=HERE)


# --- functions of the user's ----------------------------------------------------------------------


class Call:
    """A function on JAX's arrays.

    Example:
        >>> import jax
        >>> f = pb.jax.call(lambda x: pb.sin(x) * 2)
        >>> jax.grad(f)(0.0).item()
        2.0
    """

    def __init__(
        self, function: Callable[..., Any], types: Mapping[str, type], options: Options | None
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._signature = signature_of(function, types, 1)
        self._bound = inspect.signature(function)
        self._function = function
        self._options = options
        self._known: dict[tuple[int, bool], Function] = {}
        self._trees: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<pullback call {self.name}{self._signature.schema.partition(' ->')[0]}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound.bind(*args, **kwargs)
        bound.apply_defaults()
        row = [self._argument(p, bound.arguments[p.name]) for p in self._signature.parameters]
        outputs, tree = self._outputs(row)
        made = _bind(self._whole(outputs), row)
        return jax.tree.unflatten(tree, made)

    def _argument(self, parameter: Any, given: Any) -> Any:
        """An array, or a value that is static.

        Raises: ArgumentError for an array in the place of a static value; DTypeError.
        """
        if not parameter.is_tensor:
            if isinstance(given, jax.Array):
                what = f"`{parameter.name}` of `{self.name}` is static ({parameter.kind})"
                help = "a Python value is wanted; jax.jit(f, static_argnames=..) passes it on"
                raise ArgumentError(f"{what}, and is given an array", help=help, code="E398")
            return given
        if given is None:
            return None
        array = given if isinstance(given, jax.Array) else jnp.asarray(given)
        if array.dtype.name not in KINDS:
            what = f"`{parameter.name}` of `{self.name}` is {array.dtype}"
            known = f"one of {', '.join(KINDS)}"
            raise DTypeError(what, origin=Origin.of_caller(), help=known, code="E140")
        return array

    def _outputs(self, row: Sequence[Any]) -> tuple[int, Any]:
        """How many arrays come out, and the tree that they are."""
        places = [n for n, a in enumerate(row) if _is_array(a)]
        lying = _lying([row[n] for n in places])
        statics = tuple([None if n in places else Static.of(a) for n, a in enumerate(row)])
        key = (*lying, statics)
        if key not in self._trees:
            trace = Trace()
            with tracing(trace):
                given = [Tensor(trace.fresh("argument", x.shape, x.dtype)) for x in lying]
                leaves, tree = _flat(self._returned(_whole(statics, given)))
            self._trees[key] = len(leaves), tree
        known: tuple[int, Any] = self._trees[key]
        return known

    def _returned(self, row: Sequence[Any]) -> Any:
        keyed = inspect.Parameter.KEYWORD_ONLY
        pairs = list(zip(self._signature.parameters, row, strict=True))
        named = {n for n, p in self._bound.parameters.items() if p.kind is keyed}
        args = [a for p, a in pairs if p.name not in named]
        return self._function(*args, **{p.name: a for p, a in pairs if p.name in named})

    def _whole(self, outputs: int) -> Function:
        """The function with so many results, in the widths that JAX has now."""
        wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        key = outputs, wide
        if key not in self._known:
            signature = replace(self._signature, outputs=outputs)
            body = Derived(self.name, signature, lambda *row: tuple(_flat(self._returned(row))[0]))
            self._known[key] = Function(body, self._options, wide)
        return self._known[key]


def _flat(returned: Any) -> tuple[list[Any], Any]:
    """The tensors of a result, and the tree around them.

    Raises: UnsupportedError for anything else in it.
    """
    leaves, tree = jax.tree.flatten(returned)
    other = [x for x in leaves if not isinstance(x, Tensor)]
    if other or not leaves:
        kind = type(other[0]).__name__ if other else "nothing"
        raise UnsupportedError(f"a function that JAX calls gives {kind}: it gives tensors")
    return leaves, tree


def call(
    function: Callable[..., Any] | None = None,
    *,
    types: Mapping[str, type] | None = None,
    options: Options | None = None,
) -> Any:
    """A function of JAX's arrays made of a function of tensors, or a decorator.

    `function` takes and gives tensors as what `pb.jit` takes does: one, or a tree of them.
    Parameters that are annotated as int, float, bool or str, have such a default, or stand in
    `types`, are static: a program is compiled for each value. ``Tensor | None`` may be left out.

    It works under `jax.jit`, `grad`, `jvp`, `vmap`, `checkpoint`, `scan`, of any order, on the CPU.
    XLA's buffers are read and written where they are. Without x64, results have 32 bits.

    Raises: OptionError for a name in `types` that is no parameter; UnsupportedError for parameters
        that it cannot have, and, when it is compiled, for states, feeds and other devices;
        DTypeError, at the call, for complex numbers.

    Example:
        >>> import jax
        >>> f = pb.jax.call(lambda x: pb.softmax(x, axis=-1))
        >>> jax.jit(f)(jax.numpy.zeros(2)).tolist()
        [0.5, 0.5]
    """
    if function is None:
        return functools.partial(call, types=types, options=options)
    return Call(function, types or {}, options)


__dir__ = _shown(__all__)
