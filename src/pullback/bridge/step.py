"""`pb.torch.step`: forward, loss, backward and update as one program.

step = pb.torch.step(model, F.cross_entropy, optimizer)
loss = step(x, y)      # for  loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step()

Parameters and states are the optimizer's own tensors, written in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch.utils._pytree import tree_leaves

from pullback.bridge import device
from pullback.bridge.backend import Settings, backend
from pullback.bridge.counted import Counted
from pullback.bridge.programs import CPU, caller
from pullback.bridge.scaled import follow, scaler_of
from pullback.bridge.updates import Counts, Rule, rule_of
from pullback.errors import ArgumentError, PullbackError, UnsupportedError

_NO_SCALAR, _CONSTANT = "no scalar", "constant"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Clip:
    """How gradients are kept small: `norm` over all of them, `value` of each element."""

    norm: float | None = None
    value: float | None = None
    norm_type: float = 2.0

    @classmethod
    def of(cls, clip: Any) -> Clip:
        """A number is a norm. Raises: ArgumentError for what says nothing."""
        if clip is None:
            return cls()
        told = {"norm": clip} if isinstance(clip, int | float) else clip
        bounds = {"norm", "value"}
        if (
            not isinstance(told, Mapping)
            or not bounds & set(told)
            or not set(told) <= {*bounds, "norm_type"}
            or not all(isinstance(v, int | float) and v > 0 for v in told.values())
        ):
            what = f"pb.torch.step has no clip={clip!r}"
            help = 'clip=1.0, a norm, or clip={"norm": 1.0, "norm_type": 2.0}, {"value": 0.5}'
            raise ArgumentError(what, origin=caller(), help=help, code="E394")
        return cls(**{name: float(value) for name, value in told.items()})

    def applied(self, gradients: Sequence[Any]) -> list[Any]:
        """As `clip_grad_value_` and `clip_grad_norm_` leave them; None stays None."""
        kept = list(gradients)
        if self.value is not None:
            kept = [None if g is None else g.clamp(-self.value, self.value) for g in kept]
        if self.norm is None or all(g is None for g in kept):
            return kept
        norms = [
            torch.linalg.vector_norm(g, self.norm_type).to(torch.float64)
            if g.dtype == torch.float64
            else torch.linalg.vector_norm(g, self.norm_type)
            for g in kept
            if g is not None
        ]
        total = torch.linalg.vector_norm(torch.stack(norms), self.norm_type)
        scale = torch.clamp(self.norm / (total + 1e-6), max=1.0)
        return [None if g is None else g * scale.to(g.dtype) for g in kept]


def step(
    model: Any,
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    targets: int | None = 1,
    clip: float | Mapping[str, float] | None = None,
    scaler: Any = None,
    accumulate: int = 1,
    outputs: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Step:
    """A function that takes one step of training: forward, loss, backward and update in one call.

    ``step(*inputs, target)`` is ``l = loss(model(*inputs), target)``, its gradients by the
    parameters of `optimizer`, and their update; it gives `l`. Keyword arguments are the model's.
    `targets`: how many of the last arguments are the loss's (0: ``loss(result)``); None: all is
    the loss's, ``loss(model, *args, **kwargs)``. `clip`: a bound of the norm of all gradients, as
    `clip_grad_norm_`, or ``{"norm": 1.0, "norm_type": 2.0}``, or ``{"value": 0.5}``. `scaler`: a
    `torch.amp.GradScaler`: losses are scaled by it, a step whose gradients are not finite changes
    nothing, and the scale follows. `accumulate`: so many calls make one step, by the mean of their
    gradients; parameters, states and counts change with the last of them. `outputs`: gives
    ``(l, result)``. `dynamic`, `options`: as of ``torch.compile(backend="pullback")``, but that
    what has no rule raises unless ``options={"fallback": "allow"}``.

    Parameters, their states and buffers are written in place: `state_dict` of model and optimizer
    are what they would be, schedulers change rates without another compilation. ``.grad`` is
    neither read nor written.

    Raises: UnsupportedError for an optimizer that has no rule, for sparse gradients,
        and, at the call, for a model that is not one graph, for hooks of gradients; ArgumentError
        for a `clip` that there is not, and, at the call, for a loss that is no scalar; OptionError
        for an option that there is not.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = pb.torch.step(model, torch.nn.functional.mse_loss, optimizer)
        >>> float(step(torch.ones(2, 4), torch.ones(2, 1))) >= 0
        True
    """
    rule = rule_of(optimizer)
    whole = {"fallback": "error", **(options or {})}
    Settings.of(None, whole)
    own = getattr(model, "_orig_mod", model)
    modules = own.modules() if isinstance(own, torch.nn.Module) else ()
    if any(getattr(m, "sparse", False) is True for m in modules):
        raise _sparse()
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        what, help = (
            f"pb.torch.step has no accumulate={accumulate!r}",
            "a number of calls, 1 or more",
        )
        raise ArgumentError(what, origin=caller(), help=help, code="E394")
    traced = Traced(own, loss, targets, Clip.of(clip), outputs)
    over = Over(scaler_of(scaler), accumulate)
    return Step(traced, optimizer, rule, over, dynamic, whole)


@dataclass(frozen=True, slots=True)
class Over:
    """What a step is of more than one loss: its scale, and how many calls it takes."""

    scaler: Any
    calls: int


class Traced:
    """What `torch.compile` traces: a step as a function of a batch, parameters, states, numbers."""

    def __init__(
        self, model: Any, loss: Callable[..., Any], targets: int | None, clip: Clip, outputs: bool
    ) -> None:
        self.model = model
        self.loss = loss
        self.targets = targets
        self.clip = clip
        self.outputs = outputs

    def computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The loss, and the result of the model."""
        if self.targets is None:
            return self.loss(self.model, *args, **kwargs), None
        end = len(args) - self.targets
        result = self.model(*args[:end], **kwargs)
        return self.loss(result, *args[end:]), result

    def function(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """The loss, the result, and which parameters had a gradient; or why there is no step.

        Code of its own, since PyTorch counts compilations, and remembers sizes, by code.
        """
        computed, clip, outputs = self.computed, self.clip, self.outputs

        def whole(
            args: Any, kwargs: Any, params: Any, held: Any, plan: Any, rows: Any, over: Any
        ) -> Any:
            sums, owed, adding, part, scale = over
            with torch.enable_grad():
                value, result = computed(args, kwargs)
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                return _NO_SCALAR
            if not value.requires_grad:
                return _CONSTANT
            with torch.autocast(params[0].device.type, enabled=False):
                head = value.sum() if scale is None else value.sum() * scale
                gradients = torch.autograd.grad(head, params, allow_unused=True)
                with torch.no_grad():
                    if part != 1.0:
                        gradients = [None if g is None else g * part for g in gradients]
                    gradients = [_added(*pair) for pair in zip(gradients, sums, owed, strict=True)]
                    sound = None
                    if scale is not None and not adding:
                        gradients = [_unscaled(g, scale) for g in gradients]
                        finite = [g.isfinite().all() for g in gradients if g is not None]
                        sound = torch.stack(finite).all()
                    forms, places = plan
                    for n, g in enumerate(gradients if adding else clip.applied(gradients)):
                        if g is None:
                            continue
                        if adding:
                            sums[n].copy_(g.view(sums[n].shape))
                            continue
                        group, place = places[n]
                        row, form = rows[int(place)], forms[int(group)]
                        _write(update, params[n], g, held[n], row, form, sound)
            used = tuple([g is not None for g in gradients])
            given = torch.utils._pytree.tree_map(_detached, result) if outputs else None
            return value.detach(), given, used, sound

        name = f"pullback_step_{next(_numbers)}"
        code = whole.__code__.replace(co_name=name, co_qualname=name)
        made = FunctionType(code, whole.__globals__, name, None, whole.__closure__)
        made.__kwdefaults__ = whole.__kwdefaults__
        return made


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _wide_enough(tensor: Any) -> Any:
    """With an axis: what is written into a float64 of none PyTorch's tracer forgets."""
    return tensor if tensor.dim() else tensor.view(1)


def _wide(kind: Any) -> Any:
    return torch.float32 if kind in (torch.float16, torch.bfloat16) else kind


def _added(g: Any, before: Any, owed: bool) -> Any:
    """A gradient with what calls before left of it."""
    if not owed:
        return g
    return before if g is None else before.view(g.shape) + g


def _unscaled(g: Any, scale: Any) -> Any:
    return None if g is None else g.to(_wide(g.dtype)) * (1.0 / scale).to(_wide(g.dtype))


def _write(update: Any, p: Any, g: Any, held: Any, row: Any, form: Any, sound: Any) -> None:
    """A parameter and its states, updated in place where all is `sound`; of 16 bits, computed in
    32, of complex numbers each part by itself.
    """
    held = held if p.dim() else [h.view(p.shape) for h in held]
    if p.is_complex():
        p, g, *held = map(torch.view_as_real, (p, g, *held))
    kind = _wide(p.dtype)
    numbers = [n.to(kind) for n in row.unbind()]
    new, kept = update(p.to(kind), g.to(kind), [h.to(kind) for h in held], numbers, form)
    for before, after in zip((*held, p), (*kept, new), strict=True):
        before.copy_(after if sound is None else torch.where(sound, after, before.to(kind)))


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter, its states in the optimizer (if any), their names and tensors, its counts: how
    many steps it took, and what else is counted; and its group.
    """

    parameter: Any
    state: Any
    names: tuple[str, ...]
    held: list[Any]
    taken: Counts
    group: Any


@dataclass(frozen=True, slots=True)
class Given:
    """Slots; forms of the groups with group and row of each slot; rows of numbers."""

    slots: list[Slot]
    plan: Any
    rows: list[Any]


class Step:
    """One step of training as one program; made by `pb.torch.step`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = pb.torch.step(model, torch.nn.functional.mse_loss, optimizer)
        >>> isinstance(step, pb.torch.Step)
        True
    """

    def __init__(
        self,
        traced: Traced,
        optimizer: Any,
        rule: Rule,
        over: Over,
        dynamic: bool | None,
        options: Mapping[str, Any],
    ) -> None:
        self.optimizer = optimizer
        self._over = over
        self._calls = 0
        self._counted = Counted()
        self._sums: dict[Any, Any] = {}
        self._owed: set[Any] = set()
        self._traced = traced
        self._rule = rule
        self._blank: dict[tuple[Any, str], Any] = {}
        self._compiled = torch.compile(
            traced.function(rule.update),
            backend=backend,
            fullgraph=True,
            dynamic=dynamic,
            options=dict(options),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch before the step; with `outputs`, and what the model gave."""
        place = _place_of(self.optimizer, args, kwargs)
        given = self._given(place)
        params = [s.parameter for s in given.slots]
        held = [[_wide_enough(h) for h in s.held] for s in given.slots]
        _refuse_hooks(self.optimizer, params)
        adding = (self._calls + 1) % self._over.calls != 0
        with torch._dynamo.config.patch(trace_autograd_ops=True, allow_rnn=True):
            try:
                over = self._beside(params, adding, place)
                answer = self._compiled(args, kwargs, params, held, given.plan, given.rows, over)
            except BackendCompilerFailed as error:
                raise _inner(error) from None
            except TorchDynamoException as error:
                raise _not_whole(error) from error
        if isinstance(answer, str):
            raise _no_loss(answer)
        value, result, used, sound = answer
        self._calls += 1
        if adding:
            self._owed = {p for p, moved in zip(params, used, strict=True) if moved}
        else:
            self._owed = set()
            self._stepped(given.slots, used, sound is None or bool(sound))
        return (value, result) if self._traced.outputs else value

    def _beside(self, params: Sequence[Any], adding: bool, place: Any) -> tuple[Any, ...]:
        """Sums of gradients and whether they are of anything, whether this call only adds, the
        part of a loss that counts, its scale.
        """
        several = self._over.calls > 1
        if several:
            for p in params:
                if p not in self._sums:
                    self._sums[p] = torch.zeros_like(p)
        sums = [_wide_enough(self._sums[p]) if several else None for p in params]
        owed = tuple([p in self._owed for p in params])
        scaler = self._over.scaler
        scale = None
        if scaler is not None:
            scale = _there(torch.tensor(scaler.get_scale(), dtype=torch.float32), place)
        return sums, owed, adding, 1.0 / self._over.calls, scale

    def _stepped(self, slots: Sequence[Slot], used: Sequence[bool], sound: bool) -> None:
        """What the optimizer and the scaler note of a step."""
        if sound:
            self._count(slots, used)
        if self._over.scaler is not None:
            follow(self._over.scaler, sound)

    def __repr__(self) -> str:
        own = type(self._traced.model).__name__
        return f"<pullback step of {own} by {type(self.optimizer).__name__}>"

    def _given(self, place: Any) -> Given:
        """What the next step is given, as the optimizer has it now."""
        slots: list[Slot] = []
        rows: list[tuple[float, ...]] = []
        forms, places = [], []
        for n, group in enumerate(self.optimizer.param_groups):
            begin = self._rule.first(group)
            own = [
                self._slot(p, self._rule.names(group, p), group)
                for p in group["params"]
                if p.requires_grad
            ]
            known = sorted({s.taken for s in own if s.taken != begin})
            # the last row is of those that take their first step; at first all share one
            first = {s: str(len(rows) + k) for k, s in enumerate(known)}
            first.setdefault(begin, str(len(rows) + len(known)))
            places += [(str(n), first[s.taken]) for s in own]
            rows += [self._rule.numbers(group, s) for s in (*(known or [begin]), begin)]
            forms.append(self._rule.form(group))
            slots += own
        table = [_there(torch.tensor(row, dtype=torch.float64), place) for row in rows]
        return Given(slots, (tuple(forms), tuple(places)), table)

    def _slot(self, p: Any, names: tuple[str, ...], group: Any) -> Slot:
        """A parameter, its states, and its counts (0 or 1 step where none are counted)."""
        state = self.optimizer.state.get(p) or {}
        held = []
        for name in names:
            tensor = state.get(name)
            if tensor is None:
                tensor = self._blank.get((p, name))
            if tensor is None:
                number = self._rule.begins(group, name)
                begin = complex(number, number) if p.is_complex() else number
                shape = self._rule.shaped(p, name)
                tensor = torch.full_like(p, begin, requires_grad=False)
                if shape is not None and tuple(shape) != tuple(p.shape):
                    tensor = p.new_full(tuple(shape), begin)
                self._blank[p, name] = tensor
            held.append(tensor)
        if not self._rule.counted:
            before = float(all(state.get(n) is not None for n in names))
            return Slot(p, state, names, held, (before,), group)
        pairs = zip(self._rule.counted, self._rule.first(group), strict=True)
        taken = tuple([self._counted.number(state.get(name, begin)) for name, begin in pairs])
        return Slot(p, state, names, held, taken, group)

    def _count(self, slots: Sequence[Slot], used: Sequence[bool]) -> None:
        """What the optimizer notes of a step, for parameters that had a gradient."""
        steps: list[Any] = []
        counted = self._rule.counted
        for slot, moved in zip(slots, used, strict=True):
            if not moved or not (slot.names or counted):
                continue
            state = slot.state or self.optimizer.state[slot.parameter]
            group = slot.group
            for name, begin in zip(counted, self._rule.first(group), strict=bool(counted)):
                if name not in state:
                    state[name] = self._counted.begun(begin, group, slot.parameter)
            for name, count in zip(counted[1:], self._rule.after(group, slot.taken), strict=True):
                self._counted.put(state[name], count)
            steps += [state[name] for name in counted[:1]]
            for name, tensor in zip(slot.names, slot.held, strict=True):
                if state.get(name) is None:
                    state[name] = self._blank.pop((slot.parameter, name), tensor)
        if steps:
            self._counted.step(steps)
        self.optimizer._opt_called = True  # what schedulers ask before they step
        for hook in self.optimizer._optimizer_step_post_hooks.values():
            hook(self.optimizer, (), {})


def _place_of(optimizer: Any, args: Any, kwargs: Any) -> torch.device:
    """Where parameters lie, and all that a step is given but numbers.

    Raises: UnsupportedError for tensors of several devices.
    """
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()]
    places = list(dict.fromkeys(t.device for t in (*params, *given)))
    if len(places) > 1:
        what = f"pb.torch.step on tensors of {' and '.join(map(str, places))}"
        help = f'.to("{places[0]}"): parameters and what a step is given lie on one device'
        raise UnsupportedError(what, origin=caller(), help=help, code="E387")
    return places[0] if places else CPU


def _there(tensor: Any, place: torch.device) -> Any:
    """Numbers of the host where the parameters lie."""
    return tensor if place == CPU else device.moved_to(place, tensor)


def _inner(error: Any) -> PullbackError:
    """What the compiler raised, without PyTorch's words around it."""
    inner = error.inner_exception
    return inner if isinstance(inner, PullbackError) else _not_whole(error)


def _not_whole(error: Any) -> PullbackError:
    """With PyTorch's reason, and the line of the model that it stopped at."""
    frames = [f for f in getattr(error, "real_stack", None) or () if f.filename != __file__]
    line = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    what = f"pb.torch.step: the model and its loss are not one graph{line}: {reason}"
    help = "torch.compile(model, backend='pullback') takes models in parts"
    return UnsupportedError(what, origin=caller(), help=help, code="E393")


def _refuse_hooks(optimizer: Any, params: Sequence[Any]) -> None:
    """Raises: UnsupportedError where somebody wants to see gradients: a program keeps none."""
    hooked = [p for p in params if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked or optimizer._optimizer_step_pre_hooks:
        of = f"a parameter of shape {tuple(hooked[0].shape)}" if hooked else "the optimizer"
        what = f"pb.torch.step with a hook of {of}: gradients stay inside of the program"
        help = "remove the hook; clip= keeps gradients small"
        raise UnsupportedError(what, origin=caller(), help=help, code="E392")


def _no_loss(why: str) -> PullbackError:
    what, help = _WHY[why]
    return ArgumentError(f"pb.torch.step: the loss {what}", origin=caller(), help=help, code="E394")


def _sparse() -> PullbackError:
    what = "pb.torch.step with sparse gradients: programs have dense tensors"
    return UnsupportedError(what, origin=caller(), help="sparse=False", code="E392")


_WHY = {
    _NO_SCALAR: ("is no scalar", "loss.mean(), or loss.sum()"),
    _CONSTANT: (
        "does not depend on a parameter that requires a gradient",
        "loss: a function of what the model gives, without .detach()",
    ),
}
