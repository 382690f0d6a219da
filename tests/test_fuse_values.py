"""Kernels compute what the definitions say, with every candidate outer axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import graphs
from kernel_runner import random_values, run
from pullback.backends.reference.definitions import evaluate
from pullback.fuse.cost import outer_choices
from pullback.fuse.entry import emit, fuse, group
from pullback.fuse.groups import Group
from pullback.fuse.problem import Problem
from pullback.ir.graph import Graph
from pullback.ir.target import Target

TARGET = Target()
STEPS: dict[str, Callable[[], Graph]] = {
    "net": lambda: graphs.net_step(2, 9),
    "encoder": lambda: graphs.encoder_step(2, 8, 2, 12, 2),
    "encoder of 3x5": lambda: graphs.encoder_step(1, 12, 3, 10, 5, 3),
    "gpt": lambda: graphs.gpt_step(1, 8, 2, 5, 2, 11),
}


def compare(graph: Graph, kernels: object, tiles: int = 2) -> None:
    values = random_values(graph)
    want = evaluate(graph, values)
    got = run(kernels, values, tiles)
    for variable, array in want.items():
        scale = max(1e-3, float(np.abs(array).max(initial=0)))
        assert np.abs(got[variable] - array).max(initial=0) < 2e-4 * scale, variable.name


@pytest.mark.parametrize("name", STEPS)
def test_chosen_outer_axes(name: str) -> None:
    graph = STEPS[name]()
    compare(graph, fuse(graph, TARGET))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STEPS)
def test_every_candidate(name: str) -> None:
    graph = STEPS[name]()
    grouping = group(graph, TARGET)
    most = max(len(outer_choices(grouping.problem, g)) for g in grouping.groups.values())
    for turn in range(most):
        kernels = emit(grouping, partial(pick, grouping.problem, turn))
        compare(graph, kernels, 3)


def pick(problem: Problem, turn: int, group: Group) -> tuple[int, ...]:
    choices = outer_choices(problem, group)
    return choices[turn % len(choices)]
