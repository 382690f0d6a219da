"""Updates that wait for one number run in one launch, side by side, whatever their extents.

``c[] = ..; p[i, j] -= c * dp[i, j]; q[k] -= c * dq[k]  ->  one launch of two parts``
"""

from __future__ import annotations

from pullback.fuse.group import Grouping
from pullback.fuse.groups import Group, stored
from pullback.fuse.problem import Problem
from pullback.ir.expr import takes
from pullback.ir.graph import roots


def set_beside(grouping: Grouping) -> None:
    """Gather what reads a number that another kernel computes, where none needs another."""
    problem = grouping.problem
    for value in problem.nodes:
        if problem.sizes[value] > 1:
            continue
        homes = sorted({grouping.home[r] for r in problem.readers.get(value, ())})
        able = [h for h in homes if value in grouping.groups[h].external and _able(grouping, h)]
        for number in able[1:]:
            first = able[0]
            if not grouping.ordered(first, number):
                a = grouping.groups[first]
                b = grouping.groups[number]
                if not grouping.held_apart(a, b):
                    grouping.join(first, number, _together(a, b))


def _able(grouping: Grouping, number: int) -> bool:
    """Whether a group only overwrites variables element by element: it frees memory, holds none."""
    problem = grouping.problem
    group = grouping.groups[number]
    if any(n not in problem.target for n in stored(problem, group)):
        return False
    return all(problem.is_map(s) and not _checks(problem, s) for s in group.stages)


def _checks(problem: Problem, stage: int) -> bool:
    """Whether a stage checks indices that are data: a launch of several has one place for that."""
    definition = problem.definition(stage)
    scene = problem.scene
    reads = takes(roots(scene.bodies[definition], scene.forms[definition]))
    return any(take.is_data for take in reads)


def _together(a: Group, b: Group) -> Group:
    external = {s: a.external.get(s, ()) + b.external.get(s, ()) for s in a.external | b.external}
    return Group(
        tuple(sorted(a.nodes + b.nodes)),
        tuple(sorted({*a.stages, *b.stages})),
        (),
        external,
        a.pieces + b.pieces,
    )
