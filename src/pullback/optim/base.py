"""What every optimiser shares: groups of parameters, state as cells, learning rate as state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.errors import ShapeError, StateError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.graph import Value
from pullback.nn.base.parameter import Buffer, Parameter, check_whole, label, put
from pullback.optim.schedules import Schedule
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.record.trace import bind, current, realize
from pullback.tensor.shaped.checks import documented, refusals
from pullback.tensor.shaped.declaration import Declaration, limits
from pullback.tensor.shaped.limits import check_limits
from pullback.tensor.shaped.matching import Bound
from pullback.tensor.values import elementwise

RATE = limits("0 <= lr < inf")
Params = Iterable[Parameter] | Iterable[Mapping[str, Any]]


@dataclass(eq=False, slots=True)
class Group:
    """Parameters that share settings. `lr` is state: changing it needs no new trace.

    Example:
        >>> optimizer = pb.optim.SGD([nn.Parameter(pb.ones(2))], lr=0.1)
        >>> float(optimizer.param_groups[0].lr.item())
        0.1
    """

    params: list[Parameter]
    lr: Buffer
    settings: Mapping[str, Any]
    state: list[dict[str, Buffer]] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            return self.params
        return self.lr.item() if name == "lr" else self.settings[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "lr":
            raise StateError(
                f"`{name}` is fixed when an optimiser is made; only lr is state", code="E333"
            )
        check_limits("Group", RATE, Bound({"lr": value}))
        set_scalar(self.lr, value)


def scalar_cell(value: float, kind: DType, name: str) -> Buffer:
    """A cell with one number."""
    return Buffer(Tensor(bind(np.asarray(value, kind.numpy), name)))


def set_scalar(cell: State, value: Any) -> None:
    """``cell = value``, a Python number or a tensor without axes."""
    if isinstance(value, Tensor):
        cell.assign(value.astype(cell.dtype))
    else:
        cell.assign(bind(np.asarray(value, cell.dtype.numpy), cell.outside().name))


class Optimizer:
    """Groups of parameters and how one step changes them. Subclasses define `update`.

    `schedule` multiplies the learning rate by a factor of the step number. `steps` counts steps.
    `limits` are those of its settings, and of each group's own, as `shaped.declaration` has them.
    `elementwise`: an element's update reads nothing of other elements, so that parts of parameters
    may be updated; a subclass with an `update` or a `rule` of its own says so again.

    Example:
        >>> optimizer = pb.optim.SGD([nn.Parameter(pb.ones(2))], lr=0.1)
        >>> isinstance(optimizer, pb.optim.Optimizer)
        True
        >>> float(optimizer.lr)
        0.1
    """

    slots: tuple[str, ...] = ()
    counts = False
    elementwise = False
    limits = "weight_decay >= 0"

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        own = vars(cls)
        if "elementwise" not in own and ("update" in own or "rule" in own):
            cls.elementwise = False
        if cls.__doc__ is not None:
            said = Declaration((), (), (*RATE, *limits(cls.limits)))
            cls.__doc__ = documented(cls.__doc__, said, refusals(said))

    def __init__(
        self,
        params: Params,
        lr: float,
        settings: Mapping[str, Any],
        schedule: Schedule | None = None,
    ) -> None:
        self.schedule = schedule
        self.steps = scalar_cell(0, D.int64, "steps")
        listed = list(_as_groups(params))
        declared = (*RATE, *limits(self.limits))
        for given in ({"lr": lr}, *listed):
            bound = Bound({"lr": lr, **settings, **given})
            check_limits(type(self).__name__, declared, bound)
        self.param_groups = [_group(g, lr, settings) for g in listed]
        _check_unique(self.param_groups)
        for group in self.param_groups:
            group.state = [self._fresh(p, group) for p in group.params]

    @property
    def lr(self) -> float:
        """The learning rate of the first group, before the schedule's factor."""
        return float(self.param_groups[0].lr.item())

    @lr.setter
    def lr(self, value: Any) -> None:
        check_limits(type(self).__name__, RATE, Bound({"lr": value}))
        for group in self.param_groups:
            set_scalar(group.lr, value)

    def state_names(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Which tensors a group with these settings keeps of each parameter."""
        return self.slots

    def _fresh(self, parameter: Parameter, group: Group) -> dict[str, Buffer]:
        """State of one parameter."""
        return {
            name: _named(Buffer(Tensor(self.start(name, parameter, group))), name)
            for name in self.names_for(parameter, group.settings)
        }

    def names_for(self, parameter: Parameter, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Which tensors are kept of one parameter."""
        return self.state_names(settings)

    def start(self, name: str, parameter: Parameter, group: Group) -> Value:
        """What a state begins with: zeros of the parameter's shape."""
        return elementwise.full(parameter.shape, 0, parameter.dtype)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group.params:
                parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises: StateError for parameters that a `distributed.sharded` optimiser has.
        """
        check_whole(self._listed())
        for group in self.param_groups:
            rates = self.rates(group)
            for parameter, state in zip(group.params, group.state, strict=True):
                if parameter.grad is not None:
                    grad = parameter.grad
                    toward = -grad if group.settings.get("maximize") else grad
                    self.update(parameter, toward.value, state, group, rates)
        if self.counts or self.schedule is not None:
            self.steps.assign(self.steps + 1)
        if current() is None:
            realize(list(self._cells().values()))

    def rates(self, group: Group) -> Value:
        """The numbers that a step needs besides gradients and state, computed once."""
        raise NotImplementedError

    def update(
        self,
        parameter: Parameter,
        grad: Value,
        state: dict[str, Buffer],
        group: Group,
        rates: Value,
    ) -> None:
        """Assign the parameter and its state."""
        raise NotImplementedError

    def _cells(self) -> dict[str, State]:
        """Everything that a step changes, parameters included."""
        cells = self._state_cells()
        cells.update({f"param.{n}": p for n, p in enumerate(self._listed())})
        return cells

    def _listed(self) -> list[Parameter]:
        return [p for g in self.param_groups for p in g.params]

    def _state_cells(self) -> dict[str, State]:
        cells: dict[str, State] = {"step": self.steps}
        number = 0
        for place, group in enumerate(self.param_groups):
            cells[f"lr.{place}"] = group.lr
            for state in group.state:
                cells.update({f"state.{number}.{name}": c for name, c in state.items()})
                number += 1
        return cells

    def state_dict(self) -> dict[str, Tensor]:
        """The step count, learning rates and state of now, by name: ``state.<n>.exp_avg``."""
        check_whole(self._listed())
        return {name: Tensor(cell.value) for name, cell in self._state_cells().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy what `state_dict` gave, all or nothing.

        Raises: StateError where names differ; ShapeError; DTypeError.
        """
        check_whole(self._listed())
        cells = self._state_cells()
        check_names(cells, state_dict)
        put(cells, state_dict)

    def __repr__(self) -> str:
        settings = self.param_groups[0].settings
        shown = ", ".join(f"{k}={v}" for k, v in settings.items())
        return f"{type(self).__name__}(lr={self.lr:g}, {shown})"


def check_names(wanted: Collection[str], given: Mapping[str, Any]) -> None:
    """Raises: StateError where names of a state differ."""
    missing = [n for n in wanted if n not in given]
    unexpected = [n for n in given if n not in wanted]
    if missing or unexpected:
        raise StateError(
            f"the state does not fit this optimiser: missing {missing}, unexpected {unexpected}"
        )


def _named(buffer: Buffer, name: str) -> Buffer:
    label(buffer, name)
    return buffer


def _as_groups(params: Params) -> Iterator[Mapping[str, Any]]:
    listed = list(params)
    if not listed:
        raise ShapeError("an optimiser got no parameters", code="E118")
    if isinstance(listed[0], Mapping):
        yield from (g for g in listed if isinstance(g, Mapping))
        return
    yield {"params": listed}


def _group(given: Mapping[str, Any], lr: float, defaults: Mapping[str, Any]) -> Group:
    """A group with the defaults filled in. Raises: StateError for an unknown setting."""
    unknown = [n for n in given if n not in (*defaults, "params", "lr")]
    if unknown:
        raise StateError(f"unknown settings {unknown}", code="E333")
    settings = {name: given.get(name, value) for name, value in defaults.items()}
    owned = given["params"]
    listed = [owned] if isinstance(owned, Parameter) else list(owned)
    for parameter in listed:
        if not isinstance(parameter, State):
            raise StateError(
                f"an optimiser takes parameters, not {type(parameter).__name__}", code="E334"
            )
    return Group(listed, scalar_cell(given.get("lr", lr), D.float64, "lr"), settings)


def _check_unique(groups: list[Group]) -> None:
    identities = [id(p) for g in groups for p in g.params]
    if len(set(identities)) != len(identities):
        raise StateError("a parameter is in two groups, or twice in one", code="E334")
