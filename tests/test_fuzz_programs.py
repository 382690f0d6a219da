"""A share of `scripts/fuzz.py`: random index maps by brute force, random programs in every mode."""

from __future__ import annotations

import pytest

from random_programs import check_map, check_native, check_program

MAPS = 400
PROGRAMS = 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(4))
def test_random_maps(part: int) -> None:
    for seed in range(part, MAPS, 4):
        check_map(seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    assert check_native([check_program(seed) for seed in range(part, PROGRAMS, 4)]) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1017, 1035])
def test_indices_that_data_picks_stay_under_their_guards(seed: int) -> None:
    """Second-order adjoints that once wrote, and read, outside of their tensors."""
    check_program(seed)


def test_a_winner_has_the_bits_of_one_of_the_terms() -> None:
    """A term that is a sum of two products is rounded alike wherever it is computed."""
    assert check_native([check_program(406313)]) == []


def test_reads_before_a_loop_that_may_be_empty_stay_inside() -> None:
    assert check_native([check_program(1213)]) == []


@pytest.mark.sampled(22)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(301430, id="a condition on data left a sum without the guard of its read"),
        pytest.param(301135, id="a sum lost a guard that kept its reads inside"),
        pytest.param(203385, id="a read under a condition limited what the condition does not"),
        pytest.param(201090, id="tiles of an accumulating write cleared a part of the target"),
        pytest.param(204036, id="a place that data picks was read without its guard"),
        pytest.param(200650, id="a gather at one address"),
        pytest.param(502021, id="a gather at an index that came out as zero"),
        pytest.param(518848, id="a mask asked before the guard of its read"),
        pytest.param(300849, id="a loop that starts late"),
        pytest.param(301065, id="a branch that excludes the last value"),
        pytest.param(400701, id="a value without the axes of the index that was read for it"),
        pytest.param(412474, id="a condition with a name of its own"),
        pytest.param(200515, id="a clamped data index beside a clamped axis"),
    ],
)
def test_programs_that_were_once_wrong(seed: int) -> None:
    assert check_native([check_program(seed)]) == []
