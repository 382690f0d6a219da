"""Turns of a loop that stand for all, where what is inside depends on which it is."""

from __future__ import annotations

# Of two loops in one another; of those inside of these FEWER. ROUGH: where nothing but the order
# of prices matters.
SAMPLES = 8
FEWER = 3
ROUGH = 2


def sampled(turns: int, before: int, samples: int = SAMPLES) -> list[tuple[float, float]]:
    """Some turns of a loop and how many each stands for: all of a few; else the last one, and
    the middles of equal parts of the others. `before`: those of the loops around.

    ``20  ->  (1, 2.7), (4, 2.7), .. (17, 2.7), (19, 1)``
    """
    most = samples if before <= samples else min(FEWER, samples - 1)
    if turns <= most:
        return [(float(n), 1.0) for n in range(turns)]
    if most == 1:
        return [(float(turns // 2), float(turns))]
    each = (turns - 1) / (most - 1)
    parts = [(float(int((n + 0.5) * each)), each) for n in range(most - 1)]
    return [*parts, (turns - 1.0, 1.0)]
