"""A share of `scripts/fuzz.py`: random index maps by brute force, random programs in every mode."""

from __future__ import annotations

import pytest

from random_programs import check_map, check_native, check_program

MAPS = 400
PROGRAMS = 20


@pytest.mark.parametrize("part", range(4))
def test_random_maps(part: int) -> None:
    for seed in range(part, MAPS, 4):
        check_map(seed)


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    assert check_native([check_program(seed) for seed in range(part, PROGRAMS, 4)]) == []


@pytest.mark.parametrize("seed", [1017, 1035])
def test_indices_that_data_picks_stay_under_their_guards(seed: int) -> None:
    """Second-order adjoints that once wrote, and read, outside of their tensors."""
    check_program(seed)


def test_reads_before_a_loop_that_may_be_empty_stay_inside() -> None:
    assert check_native([check_program(1213)]) == []
