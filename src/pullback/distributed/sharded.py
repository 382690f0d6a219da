"""An optimiser whose states lie in parts on the ranks, each of which updates its own.

    g_own = reduce_scatter(g);  p_own, s_own = update(p_own, g_own, s_own);  p = all_gather(p_own)

in place of ``g = all_reduce(g)`` and the whole update on every rank: the states' memory and the
update's work are divided by the number of ranks.

Source: Rajbhandari et al.: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
2020, stage 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pullback.distributed.collectives import all_gather
from pullback.distributed.parallel import DataParallel, buckets
from pullback.distributed.parts import Part
from pullback.distributed.transport import Array
from pullback.errors import Origin, StateError
from pullback.nn.base.parameter import Buffer, check_whole, fitted, host_array, label
from pullback.nn.utils import clip, clip_grad_value_, norm_of
from pullback.optim.base import Optimizer, check_names
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.library import ops
from pullback.tensor.record.trace import array_of, bind, current, realize
from pullback.tensor.shaped import shaped


def sharded(optimizer: Optimizer, parallel: DataParallel) -> Sharded:
    """The optimiser that takes the place of `optimizer`: each rank has the states of its part of
    the parameters, about one of n, updates that and is sent what others have updated.

    Settings by group, learning rates and schedules stay. Gradients of the loss that `parallel`
    shares lie in parts as well: `grad` of a parameter stays None, and `clip_grad_norm_` and
    `clip_grad_value_` are methods of what is given. All ranks call it.

    Raises: StateError for an optimiser that is not element by element, for parameters that are
        not the module's or have a sharded optimiser; DistributedError where ranks differ.

    Example:
        >>> parallel = pb.distributed.DataParallel(nn.Linear(2, 1))
        >>> opt = pb.optim.AdamW(parallel.module.parameters(), lr=0.01)
        >>> opt = pb.distributed.sharded(opt, parallel)
        >>> parallel(pb.ones((3, 2))).sum().backward()
        >>> opt.step()
        >>> opt.state_bytes
        24
    """
    if not isinstance(parallel, DataParallel):
        raise _refused(f"a {type(parallel).__name__} that shares gradients", "a DataParallel")
    if not isinstance(optimizer, Optimizer) or not optimizer.elementwise:
        raise _refused(
            f"states of a {type(optimizer).__name__} in parts",
            "an optimiser of pb.optim whose update is element by element: not Adafactor or Muon",
        )
    check_whole(optimizer._listed())
    own = {id(p) for p in parallel.module.parameters()}
    if any(id(p) not in own for p in optimizer._listed()):
        raise _refused("parameters that DataParallel does not have", "all are the module's")
    return Sharded(optimizer, parallel)


def _refused(what: str, help_text: str) -> StateError:
    return StateError(what, origin=Origin.of_caller(), help=help_text, code="E622")


class Sharded(Optimizer):
    """What `sharded` gives: `optimizer` on this rank's parts of the parameters.

    Example:
        >>> parallel = pb.distributed.DataParallel(nn.Linear(2, 1))
        >>> opt = pb.optim.SGD(parallel.module.parameters(), lr=0.1)
        >>> isinstance(pb.distributed.sharded(opt, parallel), pb.distributed.Sharded)
        True
    """

    def __init__(self, optimizer: Optimizer, parallel: DataParallel) -> None:
        self.optimizer = optimizer
        self.group = parallel.group
        self.schedule, self.steps = optimizer.schedule, optimizer.steps
        self.counts = optimizer.counts
        self.param_groups = optimizer.param_groups
        self._trained = [p.requires_grad for p in self._listed()]
        self.group.agree("the optimiser", self._said())
        self.parts = [
            [Part(bucket, self.group) for bucket in buckets(g.params, parallel.bucket)]
            for g in self.param_groups
        ]
        self._take()
        parallel.parts += self._all()

    def _said(self) -> str:
        """What all ranks have alike."""
        groups = [
            f"{g.settings} of {[f'{p.dtype}{list(p.shape)}' for p in g.params]}"
            for g in self.param_groups
        ]
        return f"{type(self.optimizer).__name__}: {'; '.join(groups)}; {self._trained}"

    def _take(self) -> None:
        """This rank's parts of the states of now, which are given up part by part.

        Raises: StateError, before any is.
        """
        listed = [state for group in self.param_groups for state in group.state]
        numbers = self._names()
        held = [[listed[numbers[id(p)]] for p in part.owned] for part in self._all()]
        for part, states in zip(self._all(), held, strict=True):
            for name in states[0]:
                if any(s[name].shape != p.shape for s, p in zip(states, part.owned, strict=True)):
                    _share(part, name, [_array(s[name]) for s in states])
        for part, states in zip(self._all(), held, strict=True):
            for name in states[0]:
                own = _share(part, name, [_array(s[name]) for s in states])
                part.state[name] = Buffer(Tensor(bind(own, name)))
                label(part.state[name], name)
            for state in states:
                state.clear()

    def _all(self) -> list[Part]:
        return [part for parts in self.parts for part in parts]

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that this rank has of parameters, those of frozen ones whole."""
        cells = [cell for part in self._all() for cell in part.state.values()]
        cells += self._frozen().values()
        return sum(c.size * c.dtype.itemsize for c in cells)

    def __repr__(self) -> str:
        return f"Sharded({self.optimizer!r}, rank {self.group.rank} of {self.group.size})"

    # --- a step -----------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none)
        for part in self._all():
            part.grad = None

    def step(self) -> None:
        """Update this rank's parts, and gather the parameters. All ranks call it.

        Raises: StateError for gradients that were not shared, and for parameters that were frozen,
            or no longer are, since the parts were made.
        """
        self._check()
        for group, parts in zip(self.param_groups, self.parts, strict=True):
            rates = self.optimizer.rates(group)
            for part in parts:
                if (grad := part.grad) is not None:
                    toward = -grad if group.settings.get("maximize") else grad
                    self.optimizer.update(part, toward.value, part.state, group, rates)
        if self.counts or self.schedule is not None:
            self.steps.assign(self.steps + 1)
        if current() is None:
            realize(list(self._cells().values()))

    def _check(self) -> None:
        if [p.requires_grad for p in self._listed()] != self._trained:
            what = "parameters were frozen, or no longer are, since their optimiser was sharded"
            raise _wrong(what, "requires_grad_ before DataParallel and sharded")
        if any(p.grad is not None for p in self._listed()):
            what = "gradients that are not means over all ranks"
            raise _wrong(
                what, "the loss is of what `parallel(..)` or `parallel.sharing()` computes"
            )

    def _given(self) -> tuple[list[Part], list[Tensor]]:
        """Parts with a gradient, and these."""
        pairs = [(part, part.grad) for part in self._all()]
        return [p for p, g in pairs if g is not None], [g for _, g in pairs if g is not None]

    @shaped("", where="max_norm >= 0, norm_type > 0")
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``g = g * min(1, max_norm / (norm + 1e-6))``, norm over the gradients of all ranks'
        parts; returns the norm. All ranks call it.
        """
        parts, grads = self._given()
        own = ops.reshape(norm_of(grads, norm_type), (1,))
        norm = norm_of([all_gather(own, group=self.group)], norm_type)
        return clip(parts, grads, norm, max_norm)

    def clip_grad_value_(self, clip_value: float) -> None:
        """``g = min(max(g, -clip), clip)``"""
        clip_grad_value_(self._all(), clip_value)

    # --- states, whole ----------------------------------------------------------------------------

    def _state_cells(self) -> dict[str, State]:
        cells = self._single()
        for number, part in enumerate(self._all()):
            cells.update({f"part.{number}.{name}": c for name, c in part.state.items()})
        return cells

    def _names(self) -> dict[int, int]:
        """The number of each parameter, by identity."""
        return {id(p): n for n, p in enumerate(self._listed())}

    def _frozen(self) -> dict[str, Buffer]:
        """States of parameters that are in no part."""
        states = [state for group in self.param_groups for state in group.state]
        return {f"state.{n}.{name}": c for n, s in enumerate(states) for name, c in s.items()}

    def _single(self) -> dict[str, State]:
        """What every rank has whole."""
        lrs = {f"lr.{place}": group.lr for place, group in enumerate(self.param_groups)}
        return {"step": self.steps, **lrs, **self._frozen()}

    def state_dict(self) -> dict[str, Tensor]:
        """Whole states under the names of the optimiser that was sharded, which loads them, as
        another number of ranks does. All ranks call it.
        """
        whole = {name: Tensor(cell.value) for name, cell in self._single().items()}
        numbers = self._names()
        for part in self._all():
            for name, cell in part.state.items():
                own = Tensor(cell.value)
                cut = cell.shape == part.shape
                pieces = part.pieces(own) if cut else [own] * len(part.owned)
                for parameter, piece in zip(part.owned, pieces, strict=True):
                    whole[f"state.{numbers[id(parameter)]}.{name}"] = piece
        return whole

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's parts of what `state_dict` gave, here or by an optimiser that is not
        sharded, all or nothing.

        Raises: StateError where names differ; ShapeError; DTypeError.
        """
        single, numbers = self._single(), self._names()
        likes: dict[str, State] = dict(single)
        for part in self._all():
            for name, cell in part.state.items():
                for p in part.owned:
                    like = p if cell.shape == part.shape else cell
                    likes[f"state.{numbers[id(p)]}.{name}"] = like
        check_names(likes, state_dict)
        arrays = {n: fitted(like, state_dict[n], n) for n, like in likes.items()}
        fresh: list[tuple[State, Array]] = [(cell, arrays[n]) for n, cell in single.items()]
        for part in self._all():
            for name, cell in part.state.items():
                theirs = [arrays[f"state.{numbers[id(p)]}.{name}"] for p in part.owned]
                fresh.append((cell, _share(part, name, theirs)))
        for target, array in fresh:
            target.assign(bind(np.array(array), target.outside().name))


def _share(part: Part, name: str, arrays: Sequence[Array]) -> Array:
    """This rank's part of states, or the number that all parameters have.

    Raises: StateError where they have different numbers.
    """
    if all(a.shape == p.shape for a, p in zip(arrays, part.owned, strict=True)):
        return part.cut(arrays)
    if any(not np.array_equal(a, arrays[0], equal_nan=True) for a in arrays):
        what = f"`{name}` differs between parameters that are updated together"
        help_text = "parameters that had as many steps; or leave this optimiser whole"
        raise StateError(what, origin=Origin.of_caller(), help=help_text, code="E624")
    return arrays[0]


def _wrong(what: str, help_text: str) -> StateError:
    return StateError(what, origin=Origin.of_caller(), help=help_text, code="E623")


def _array(cell: State) -> Array:
    own = Tensor(cell.value)
    realize([own])
    return host_array(array_of(own))
