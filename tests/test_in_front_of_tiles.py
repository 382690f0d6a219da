"""Operands that are computed in front of the tiles: only where any tile has work, without tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import named_target
from pullback.config import Options
from pullback.lower import lower
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen
from pullback.schedule.choose import evenly
from pullback.verify.nest import verify_routine

conv2d = pb.nn.functional.conv2d
scaled_dot_product_attention = pb.nn.functional.scaled_dot_product_attention


def slopes(stride: int, padding: int) -> Callable[..., Any]:
    def by_data(x: Any, w: Any, g: Any) -> Any:
        def loss(v: Any) -> Any:
            return pb.sum(conv2d(v, w, stride=stride, padding=padding) * g)

        return pb.grad(loss)(x)

    return by_data


def below(a: Any, b: Any) -> Any:
    """Half of the terms of each row, in a block of rows fewer than in all."""
    k = pb.axis(a.shape[1])
    shape = a.shape[0], b.shape[1]
    return pb.compute(
        shape, lambda i, j: pb.sum(pb.where(k <= i, pb.exp(a[i, k]), 0.0) * b[k, j], over=k)
    )


def beside(a: Any, b: Any) -> Any:
    """Terms from a third of the axis on, of both operands."""
    k = pb.axis(a.shape[1])
    shape = a.shape[0], b.shape[1]
    return pb.compute(
        shape,
        lambda i, j: pb.sum(
            pb.where(k >= 7, pb.exp(a[i, k]), 0.0) * pb.where(3 * k < 50, b[k, j], 0.0), over=k
        ),
    )


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "stride 2": (slopes(2, 1), [(2, 5, 9, 12), (7, 5, 3, 3), (2, 7, 5, 6)]),
    "stride 2, 5 x 5": (slopes(2, 2), [(2, 4, 11, 8), (9, 4, 5, 5), (2, 9, 6, 4)]),
    "stride 3": (slopes(3, 0), [(1, 20, 10, 10), (33, 20, 4, 4), (1, 33, 3, 3)]),
    "below a diagonal": (below, [(37, 23), (23, 40)]),
    "from a third on": (beside, [(19, 23), (23, 41)]),
}


def free(begun: Any) -> list[dict[str, int]]:
    """Both operands where they lie and computed in front, as far as each may be."""
    names = [line.split(":")[0].strip() for line in str(begun).split("free are")[1].splitlines()]
    ways: list[dict[str, int]] = [{}]
    ways += [{name: 1} for name in names if name.startswith("left.")]
    ways += [{name: 3} for name in names if name.startswith("right.")]
    ways += [{a: 1, b: 3} for a in names for b in names if (a[:5], b[:6]) == ("left.", "right.")]
    return ways


@pytest.mark.parametrize("name", CASES)
def test_as_the_definition_says(name: str) -> None:
    function, shapes = CASES[name]
    random = np.random.default_rng(5)
    given = [pb.tensor(random.standard_normal(s)) for s in shapes]
    wanted = pb.jit(function, options=Options(backend="reference"))(*given).numpy()
    tried = 0
    for kernel in range(4):
        try:
            begun = pb.schedule(function, *given, kernel=kernel)
        except pb.errors.OptionError:
            break
        for way in free(begun):
            chosen = begun
            for choice, value in way.items():
                chosen = chosen.choose(choice, value)
            got = pb.jit(function, schedules=chosen)(*given).numpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12, err_msg=f"{name} {way}")
            tried += 1
    assert tried > 1


def nest(tmp: Path, function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> str:
    """The loops of the largest kernel of a program for a Zen 3."""
    options = Options(machine="zen3", target="x86-64-v3", cache=None, dump=tmp)
    pb.jit(function, options=options)(*(pb.ones(s).astype("float32") for s in shapes))
    return max((p.read_text() for p in tmp.glob("*-nest-*")), key=len)


def test_tiles_ask_no_guard_that_holds(tmp_path: Path) -> None:
    """Which taps a phase has says the loop over them: weights, read in place, do not ask again."""
    text = nest(tmp_path, slopes(2, 3), [(4, 57, 44, 44), (19, 57, 7, 7), (4, 19, 22, 22)])
    reads = [line for line in text.splitlines() if " = w[" in line or "if(" in line]
    assert reads and not any("if(" in line for line in reads)


def test_sums_wait_in_order_and_come_nearer(tmp_path: Path) -> None:
    """60 channels by 3x3 of 512 x 13 x 13, whose channels lie apart: blocks of k."""
    text = nest(tmp_path, slopes(1, 1), [(2, 60, 13, 13), (512, 60, 3, 3), (2, 512, 13, 13)])
    assert "scratch sums" in text
    assert "prefetch sums" in text


def heads(*shape: int) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """Attention's derivatives by queries, keys and values."""

    def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
        return pb.sum(scaled_dot_product_attention(q, k, v) * g)

    return pb.grad(loss, argnums=(0, 1, 2)), [shape] * 4


def test_a_left_operand_that_tiles_share_is_computed_once(tmp_path: Path) -> None:
    """The head divided by the norms, of all rows, before the loop over tiles of queries."""
    nest(tmp_path, *heads(1, 2, 2048, 64))
    (text,) = (path.read_text() for path in tmp_path.glob("*-nest-dq..dv.txt"))
    first = next(n for n, line in enumerate(text.splitlines()) if "seq t2 in" in line)
    places = [n for n, line in enumerate(text.splitlines()) if " / norm[" in line]
    assert places and max(places) < first, text


def test_heads_are_not_cut_where_tasks_can_have_whole_ones() -> None:
    """Six heads by six tasks, not by eight: what a head's tiles share is packed once."""
    assert evenly((3, 2, 57), 8, 2) == 6
    assert evenly((3, 2, 57), 4, 2) == 2
    assert evenly((3, 2, 57), 8, 8) == evenly((1, 57), 8, 2) == 0


def test_phases_are_written_out_inside_of_panels(tmp_path: Path) -> None:
    """Four phases, of one to four taps each, by the same lines of the weights."""
    text = nest(tmp_path, slopes(2, 1), [(2, 128, 14, 14), (192, 128, 3, 3), (2, 192, 7, 7)])
    packed = [line for line in text.splitlines() if " = w[" in line]
    assert len(packed) == 8, "those of whole panels and of the last one, four phases each"
    assert "unroll r" in text, "one tap is no loop"


def test_turns_that_read_one_row_for_another_stay_a_loop(tmp_path: Path) -> None:
    """``a[i] = g[i + r]`` for 7 rows: side by side, turns would share 6 of them in registers."""
    text = nest(tmp_path, slopes(2, 1), [(2, 128, 14, 14), (192, 128, 3, 3), (2, 192, 7, 7)])
    assert " seq r" in text, "two taps along a row of the picture"


def test_phases_declare_registers_in_blocks_of_their_own() -> None:
    """Four rows of a padded picture in one panel: C refuses what is declared twice in a block."""
    given = pb.ones((2, 3, 7, 9)), pb.ones((5, 3, 3, 3))
    program = pb.jit(lambda x, w: conv2d(x, w, stride=2, padding=1), options=Options(cache=None))
    program(*given)
    target = named_target("x86-64-v3").on(chosen("zen3"))
    for kernel in program.program.kernels:
        routine = lower(kernel, scheduled(kernel, target, (("column.0", 3),)))
        assert str(routine).count("acc") > 4, "written out"
        verify_routine(routine, "lower")
