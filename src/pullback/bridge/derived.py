"""Functions of tensors derived from others: pullbacks, pushforwards, many samples at once.

Each takes positional arguments only, in the order of its signature, and gives a tuple of tensors;
so it can be derived from again, in any order.

    y = f(x, k)      ->      dx, = f_vjp(dy, x, k, wanted)      dy, = f_jvp(dx, x, k)
                             ys = f_vmap(xs, k, axes)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback.bridge.signature import MAYBE, Parameter, Signature
from pullback.errors import UnsupportedError
from pullback.tensor.derive.modes import jvp, vjp
from pullback.tensor.derive.vmap import vmap
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import zeros

Tensors = tuple[Tensor, ...]

SHARED = "-"  # how the axes of `f_vmap` say that a tensor is the same for all samples


@dataclass(frozen=True, slots=True)
class Derived:
    """A function with its name and signature."""

    name: str
    signature: Signature
    call: Callable[..., Tensors]

    def pullback(self) -> Derived:
        """The adjoints of the tensors in the bit mask `wanted`, of the heads that are given."""
        own = self.signature
        heads = [Parameter(f"d{n}", MAYBE) for n in range(own.outputs)]
        end = _apart([Parameter("wanted", "int")], own)
        parameters = (*_apart(heads, own), *own.plain, *end)

        def call(*args: Any) -> Tensors:
            given, primals, wanted = args[: own.outputs], args[own.outputs : -1], args[-1]
            moving = [n for n in own.tensors if wanted >> n & 1]
            kept = [n for n, head in enumerate(given) if head is not None]
            _, back = vjp(_picked(self, primals, moving, kept), *[primals[n] for n in moving])
            adjoints = dict(zip(moving, back(tuple([given[n] for n in kept])), strict=True))
            return tuple([adjoints.get(n, _nothing()) for n in own.tensors])

        return Derived(f"{self.name}_vjp", Signature(parameters, len(own.tensors)), call)

    def pushforward(self) -> Derived:
        """The tangents of the outputs; of those that are no floats, nothing."""
        own = self.signature
        places = own.tensors
        moved = [Parameter(f"d{n}", MAYBE) for n in places]
        parameters = (*_apart(moved, own), *own.plain)

        def call(*args: Any) -> Tensors:
            primals = args[len(places) :]
            known = {n: t for n, t in zip(places, args, strict=False) if t is not None}
            moving = list(known)
            outs, tangents = jvp(
                _picked(self, primals, moving, ()), [primals[n] for n in moving], [*known.values()]
            )
            floats = [o.dtype.is_float for o in outs]
            return tuple([t if f else _nothing() for t, f in zip(tangents, floats, strict=True)])

        return Derived(f"{self.name}_jvp", Signature(parameters, own.outputs), call)

    def batched(self) -> Derived:
        """Many samples: `axes` has the axis of them for each tensor, first in each result."""
        own = self.signature
        parameters = (*own.plain, *_apart([Parameter("axes", "str")], own))

        def call(*args: Any) -> Tensors:
            known = dict(zip(own.tensors, args[-1].split(), strict=True))
            places = {n: int(a) for n, a in known.items() if a != SHARED and args[n] is not None}
            one = _picked(self, args[:-1], list(places), ())
            return tuple(vmap(one, in_axes=list(places.values()))(*[args[n] for n in places]))

        return Derived(f"{self.name}_vmap", replace(own, parameters=parameters), call)


def _apart(fresh: Sequence[Parameter], own: Signature) -> list[Parameter]:
    """Parameters under names that the function does not have."""
    taken = {p.name for p in own.parameters}
    renamed = []
    for parameter in fresh:
        name = parameter.name
        while name in taken:
            name = f"d{name}"
        renamed.append(replace(parameter, name=name))
        taken.add(name)
    return renamed


def _picked(
    function: Derived, args: Sequence[Any], moving: Sequence[int], kept: Sequence[int]
) -> Callable[..., Tensors]:
    """The function of the arguments at `moving`; only outputs `kept`, () being all."""

    def call(*given: Any) -> Tensors:
        whole = list(args)
        for n, argument in zip(moving, given, strict=True):
            whole[n] = argument
        results = function.call(*whole)
        return tuple([results[n] for n in kept]) if kept else results

    return call


def checked(
    function: Callable[..., Any], name: str, signature: Signature, keyed: Sequence[str]
) -> Derived:
    """A user's function, given everything in order. `keyed`: the last names, which want keywords.

    Raises: UnsupportedError, at the call, for a result that is not as many tensors as declared.
    """
    count = len(signature.parameters) - len(keyed)

    def call(*args: Any) -> Tensors:
        returned = function(*args[:count], **dict(zip(keyed, args[count:], strict=True)))
        single = isinstance(returned, Tensor)
        results = (
            (returned,) if single else tuple(returned) if isinstance(returned, list | tuple) else ()
        )
        if not results or not all(isinstance(r, Tensor) for r in results):
            what = f"`{name}` returns a {type(returned).__name__}: an operator gives tensors"
            raise UnsupportedError(what)
        if len(results) != signature.outputs or single == (signature.outputs != 1):
            raise UnsupportedError(
                f"`{name}` returns {len(results)} tensors, its signature says {signature.outputs}",
                help=f"pb.torch.op({name}, outputs={len(results)}), or annotate the result",
            )
        return results

    return Derived(name, signature, call)


def _nothing() -> Tensor:
    """In place of a derivative that there is not, or that nobody wants."""
    return zeros(0)
