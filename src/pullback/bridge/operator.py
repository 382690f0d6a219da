"""Operators of PyTorch made of definition-valued functions.

    f(x, w)     ->      pullback::f(Tensor x, Tensor w) -> Tensor,      pullback::f_vjp, ...

Its derivatives are operators of the same kind, made when they are asked for: so each can be
differentiated, batched and compiled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd import forward_ad

from pullback.bridge.derived import SHARED, Derived
from pullback.bridge.lying import Axes
from pullback.bridge.private import (
    BelowAutograd,
    SingleLevelFunction,
    any_requires_grad,
    dispatch_modes,
    forward_mode,
    has_memory,
    single_level,
    transformed,
)
from pullback.bridge.programs import Dims, DimsOf, Programs, caller
from pullback.bridge.residuals import NOTHING, Residuals
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError
from pullback.runtime.executable import Executable

OVERLOADS: dict[Any, Operator] = {}
"""Operators by what a graph calls, derived ones too: their functions are parts of its program."""


class Operator:
    """A function on PyTorch's tensors; `overload` is what `torch.ops` has.

    `dispatched`: whether PyTorch knows it by name; else it is an `autograd.Function`, as on
    versions before 2.5, which `torch.compile` and `torch.func` do not see into.

    Example:
        >>> import torch
        >>> half = pb.torch.op(lambda x: x / 2, name="examples::half")
        >>> isinstance(half, pb.torch.Operator)
        True
    """

    def __init__(
        self,
        function: Derived,
        namespace: str,
        defaults: Mapping[int, Any],
        options: Options | None = None,
        dispatched: bool = True,
        dims: DimsOf | None = None,
        keeps: bool = True,
    ) -> None:
        self.function = function
        self.namespace = namespace
        self.dispatched = dispatched
        self.options = options
        every: Dims = ({},) * len(function.signature.parameters)
        self.programs = Programs(function, defaults, options, dims or (lambda _: every))
        self.residuals = Residuals(self.programs, options) if keeps else None
        self.derived: dict[str, Operator] = {}
        self._placed: dict[Any, Programs] = {}
        self._tensors = function.signature.tensors
        self._function = self._autograd_function()
        self.overload: Any = self._fallback
        self.library: Any = None
        if dispatched:
            self._register()

    @property
    def name(self) -> str:
        """``namespace::name``"""
        return f"{self.namespace}::{self.function.name}"

    @property
    def program(self) -> Executable:
        """The program that was compiled last. Raises: AbsentError before the first call."""
        own = self.programs.jit
        if own.last is None and self.residuals is not None:
            own = self.residuals.forward.jit
        return own.program

    @property
    def traces(self) -> int:
        """How many programs were made: of the operator, and of its derivatives."""
        kept = 0 if self.residuals is None else self.residuals.traces
        return self.programs.jit.traces + kept + sum(d.traces for d in self.derived.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A `torch.Generator` in place of a tensor is the key that it draws."""
        if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            args = tuple(map(_drawn, args))
            kwargs = {name: _drawn(a) for name, a in kwargs.items()}
        return self.overload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<pullback operator {self.name}{self.function.signature.schema}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Operator:
        return self

    def __reduce__(self) -> Any:
        return find, (self.name,)

    # --- derivatives ------------------------------------------------------------------------------

    def pullback(self) -> Operator:
        """``dx, .. = f_vjp(dy, .., x, .., wanted)``"""
        own, first = self.programs, self.function.signature.outputs

        def dims(args: Sequence[Any]) -> Dims:
            primals = args[first:-1]
            return (*own.leads(primals), *own.dims(primals), {})

        return self._derive(self.function.pullback(), dims)

    def pushforward(self) -> Operator:
        """``dy, .. = f_jvp(dx, .., x, ..)``"""
        own, places = self.programs, self._tensors

        def dims(args: Sequence[Any]) -> Dims:
            known = own.dims(args[len(places) :])
            return (*[known[n] for n in places], *known)

        return self._derive(self.function.pushforward(), dims)

    def batched(self) -> Operator:
        """``ys = f_vmap(xs, .., axes)``, the samples first in each tensor that has them"""
        own = self.programs

        def dims(args: Sequence[Any]) -> Dims:
            told = dict(zip(self._tensors, args[-1].split(), strict=True))
            places = {n: int(a) for n, a in told.items() if a != SHARED and args[n] is not None}
            ones = [_sample(a, places[n]) if n in places else a for n, a in enumerate(args[:-1])]
            known = list(own.dims(ones))
            for n, place in places.items():
                known[n] = _beside(known[n], ones[n], place)
            return (*known, {})

        return self._derive(self.function.batched(), dims)

    def _derive(self, function: Derived, dims: DimsOf) -> Operator:
        derived = self.derived.get(function.name)
        if derived is None:
            made = Operator(
                function, self.namespace, {}, self.options, self.dispatched, dims, keeps=False
            )
            derived = self.derived.setdefault(function.name, made)
        return derived

    # --- what PyTorch is told ---------------------------------------------------------------------

    def _register(self) -> None:
        name, schema = self.function.name, self.function.signature.schema
        library = torch.library.Library(self.namespace, "FRAGMENT")
        library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        self.library = library
        self.overload = getattr(getattr(torch.ops, self.namespace), name).default
        OVERLOADS[self.overload] = self
        library.impl(name, torch.compiler.disable(self.programs), "CPU")
        library.impl(name, torch.compiler.disable(self._on_device), "CUDA")
        library.impl(name, self._elsewhere, "CompositeExplicitAutograd")
        library.impl(name, self._autograd, "Autograd")
        torch.library.register_fake(self.name, self._fake, lib=library)
        torch.library.register_vmap(self.name, self._vmap, lib=library)

    def forget(self) -> None:
        """Take it, and what is derived from it, from PyTorch."""
        for operator in self.derived.values():
            operator.forget()
        self.derived.clear()
        OVERLOADS.pop(self.overload, None)
        if self.library is not None:
            self.library._destroy()
            self.library = None

    def inlined(self, *args: Any, **kwargs: Any) -> Any:
        """On pullback's tensors, as a part of a graph that calls it."""
        given = list(self.programs.filled(args))
        for n, parameter in enumerate(self.function.signature.parameters):
            given[n] = kwargs.get(parameter.name, given[n])
        results = self.function.call(*given)
        return results[0] if len(results) == 1 else results

    def _on_device(self, *args: Any) -> Any:
        """By programs of the device that all of its tensors lie on."""
        devices = {a.device for a in args if isinstance(a, torch.Tensor)}
        if len(devices) > 1:
            return self._elsewhere(*args)
        return self.placed(devices.pop())(*args)

    def placed(self, device: Any) -> Programs:
        """The programs of a device, made once, and once more where algorithms are deterministic."""
        key = device, torch.are_deterministic_algorithms_enabled()
        programs = self._placed.get(key)
        if programs is None:
            own = self.programs
            made = Programs(self.function, own.defaults, self.options, own.dims, place=device)
            programs = self._placed.setdefault(key, made)
        return programs

    def _elsewhere(self, *args: Any) -> Any:
        places = sorted({_where(a) for a in args if isinstance(a, torch.Tensor)})
        raise UnsupportedError(
            f"`{self.name}` on tensors of {' and '.join(places)}",
            origin=caller(),
            help='dense tensors of "cpu" or of one "cuda" device: x.cpu(), or x.to_dense()',
        )

    def _fake(self, *args: Any) -> Any:
        like = next(a for a in args if isinstance(a, torch.Tensor))
        outline = self.programs.outline(args)
        results = [like.new_empty(shape, dtype=kind) for shape, kind in outline]
        return results[0] if len(results) == 1 else tuple(results)

    def _vmap(self, info: Any, axes: Sequence[Any], *args: Any) -> Any:
        args = self.programs.filled(args)
        known = [axes[n] if n < len(axes) else None for n in self._tensors]
        told = " ".join(SHARED if a is None else str(a) for a in known)
        batched = self.batched().overload(*args, told)
        if isinstance(batched, torch.Tensor):
            return batched, 0
        return batched, (0,) * len(batched)

    # --- derivatives, as PyTorch asks for them ----------------------------------------------------

    def _autograd(self, *args: Any) -> Any:
        """With a derivative where one is asked for."""
        if transformed():
            with single_level():
                return self._differentiable(*args)
        asked = torch.is_grad_enabled() and any_requires_grad(*args)
        if asked or forward_ad._current_level >= 0:
            return self._differentiable(*args)
        with BelowAutograd():
            return self.overload(*args)

    def _differentiable(self, *args: Any) -> Any:
        return self._function.apply(*args)

    def _fallback(self, *args: Any, **kwargs: Any) -> Any:
        """A call where PyTorch has no operator of this name."""
        given = list(self.programs.filled(args))
        for n, parameter in enumerate(self.function.signature.parameters):
            given[n] = kwargs.get(parameter.name, given[n])
        return self._differentiable(*given)

    def _below(self, *args: Any) -> Any:
        """The results without their derivatives at this level; lower ones are not our concern."""
        if not self.dispatched:
            return self.programs(*args)
        with ExitStack() as stack:
            if transformed():
                stack.enter_context(torch.enable_grad())
                stack.enter_context(forward_mode(True))
            stack.enter_context(BelowAutograd())
            return self.overload(*args)

    def _wanted(self, ctx: Any) -> int:
        """The set of arguments whose adjoints are asked for, as bits."""
        asked = enumerate(ctx.needs_input_grad)
        return sum(1 << n for n, needed in asked if needed)

    def _chosen(self, ctx: Any, args: tuple[Any, ...]) -> str:
        """What a call keeps besides its arguments. Traces and transforms see none of it."""
        if self.residuals is None or not any(ctx.needs_input_grad) or not _is_plain(args):
            return NOTHING
        return self.residuals.chosen(self.programs.filled(args), self._wanted(ctx))

    def _from_kept(
        self, ctx: Any, heads: Sequence[Any], args: Any, kept: Sequence[Any]
    ) -> Sequence[Any] | None:
        """The adjoints, of what the forward kept; None where they are to be differentiated, or are
        of other heads than it was chosen for.
        """
        given = {n: h for n, h in enumerate(heads) if h is not None}
        whole = list(given) == [n for n, is_float in enumerate(ctx.floats) if is_float]
        if not ctx.chosen or not whole or torch.is_grad_enabled() or not _is_plain(heads):
            return None
        assert self.residuals is not None, "as it chose"
        return self.residuals.backward(given, args, kept, self._wanted(ctx), ctx.chosen)

    def _backward_key(self, ctx: Any) -> tuple[int]:
        """What compiled autograd asks first. Raises: UnsupportedError."""
        del ctx
        raise UnsupportedError(
            f"`{self.name}` in a backward that compiled autograd traces",
            origin=caller(),
            help="torch._dynamo.config.compiled_autograd = False, or the call inside torch.compile",
        )

    def _autograd_function(self) -> Any:
        """The `autograd.Function` of one level. It keeps its arguments, and residuals."""

        def forward(ctx: Any, *args: Any) -> Any:
            ctx.chosen = self._chosen(ctx, args)
            kept: tuple[Any, ...] = ()
            if ctx.chosen and self.residuals is not None:
                given = self.programs.filled(args)
                outcome, kept = self.residuals.run(given, self._wanted(ctx), ctx.chosen)
            else:
                outcome = self._below(*args)
            results = (outcome,) if isinstance(outcome, torch.Tensor) else tuple(outcome)
            own = [a for a in args if isinstance(a, torch.Tensor)]
            ctx.save_for_backward(*own, *kept)
            ctx.save_for_forward(*own)
            ctx.static = [None if isinstance(a, torch.Tensor) else a for a in args]
            ctx.places = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
            ctx.floats = [r.is_floating_point() for r in results]
            ctx.set_materialize_grads(False)
            return outcome if isinstance(outcome, torch.Tensor) else results

        def backward(ctx: Any, *heads: Any) -> Any:
            gradients: list[Any] = [None] * len(ctx.static)
            wanted = [n for n in ctx.places if ctx.needs_input_grad[n]]
            if not wanted or all(h is None for h in heads):
                return tuple(gradients)
            saved = ctx.saved_tensors  # once: a checkpoint gives them away
            given = self.programs.filled(_given(ctx, saved))
            adjoints = self._from_kept(ctx, heads, given, saved[len(ctx.places) :])
            if adjoints is None:
                whole = self.pullback().overload(*heads, *given, self._wanted(ctx))
                whole = (whole,) if isinstance(whole, torch.Tensor) else whole
                pairs = zip(self._tensors, whole, strict=True)
                adjoints = [adjoint for n, adjoint in pairs if n in wanted]
            for n, adjoint in zip(wanted, adjoints, strict=True):
                gradients[n] = adjoint
            return tuple(gradients)

        def jvp(ctx: Any, *moved: Any) -> Any:
            given = self.programs.filled(_given(ctx, ctx.saved_tensors))
            along = [moved[n] if n < len(moved) else None for n in self._tensors]
            tangents = self.pushforward().overload(*along, *given)
            if isinstance(tangents, torch.Tensor):
                return tangents
            return tuple([t if f else None for t, f in zip(tangents, ctx.floats, strict=True)])

        base = SingleLevelFunction if self.dispatched else torch.autograd.Function
        rules: dict[str, Callable[..., Any]] = {
            "forward": forward,
            "backward": backward,
            "jvp": jvp,
            "_compiled_autograd_key": self._backward_key,
        }
        return type(self.function.name, (base,), {n: staticmethod(f) for n, f in rules.items()})


def _is_plain(args: Sequence[Any]) -> bool:
    """Whether programs run at once: on tensors that are nothing more, seen by nobody."""
    if transformed() or forward_ad._current_level >= 0 or dispatch_modes():
        return False
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return all(
        type(t) in _PLAIN and t.is_cpu and t.layout == torch.strided and has_memory(t)
        for t in tensors
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _sample(many: Any, axis: int) -> Any:
    """A tensor like one of many, of one element."""
    shape = [size for n, size in enumerate(many.shape) if n != axis]
    return many.new_empty(()).expand(shape)


def _beside(axes: Axes, one: Any, axis: int) -> Axes:
    """The axes of a sample, where samples lie along `axis`."""
    known = {n % one.ndim: dim for n, dim in axes.items() if -one.ndim <= n < one.ndim}
    return {n + (n >= axis): dim for n, dim in known.items()}


def _drawn(given: Any) -> Any:
    """Of a generator two words, as `pb.random` takes them for a key."""
    if not isinstance(given, torch.Generator):
        return given
    return torch.randint(1 << 31, (2,), dtype=torch.int32, generator=given)


def _where(tensor: Any) -> str:
    """The device, and how elements are kept if not one beside the other."""
    dense = tensor.layout == torch.strided
    return str(tensor.device) if dense else f"{tensor.device} ({tensor.layout})"


def _given(ctx: Any, saved: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments that a function was called with."""
    arguments = list(ctx.static)
    for n, tensor in zip(ctx.places, saved, strict=False):
        arguments[n] = tensor
    return tuple(arguments)


class _Known:
    """Every operator by its name, with the function it is made of."""

    def __init__(self) -> None:
        self.operators: dict[str, tuple[Operator, Callable[..., Any]]] = {}
        self.lock = threading.RLock()


_known = _Known()


def find(name: str) -> Operator:
    """The operator of this name. Raises: OptionError where there is none (yet)."""
    operator = known(name)
    if operator is None:
        raise OptionError(
            f"no operator `{name}`",
            help="what uses an operator by name needs it made first: pb.torch.op(function)",
            code="E526",
        )
    return operator


def known(name: str) -> Operator | None:
    """The operator of this name, if there is one."""
    entry = _known.operators.get(name)
    return None if entry is None else entry[0]


def made(name: str, function: Callable[..., Any], make: Callable[[], Operator]) -> Operator:
    """The operator of this name, made now; a function that is defined again takes its place.

    Raises: OptionError where another function, or another library, has the name.
    """
    with _known.lock:
        before = _known.operators.get(name)
        if before is None and _taken(name):
            what = f"another library has an operator `{name}`"
            raise OptionError(what, help=_RENAME, code="E525")
        if before is not None:
            if not _again(before[1], function):
                what = f"`{name}` is already an operator, made of `{_place(before[1])}`"
                raise OptionError(what, help=_RENAME, code="E525")
            before[0].forget()
        fresh = make()
        if before is not None:
            before[0].overload = fresh.overload
        _known.operators[name] = (fresh, function)
        return fresh


_RENAME = 'give this one another name: pb.torch.op(f, name="other")'


def _taken(name: str) -> bool:
    space, _, own = name.partition("::")
    return own in dir(getattr(torch.ops, space)) or hasattr(getattr(torch.ops, space), own)


def _again(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether `new` is `old`, or what the same ``def`` of a module gave when it ran again."""
    return old is new or (_place(old) == _place(new) and "<" not in _place(new))


def _place(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '')}.{name}"
