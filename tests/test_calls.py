"""The short way of a warm call: what it checks, whose memory it takes, what it leaves out."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.system import LINE, Spare, address, block
from pullback.errors import IndexRangeError
from pullback.tensor.record import held, trace
from pullback.tensor.record.held import LARGE


def steps(call: Callable[[], Any]) -> int:
    """How many Python functions `call` enters, those of collected garbage left out."""
    count = 0
    gc.collect()

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_warm_call_enters_few_functions() -> None:
    both = pb.jit(lambda a, b, c, d: (a + b, c * d))
    given = [pb.tensor(numbers(8)) for _ in range(4)]
    both(*given)
    assert steps(lambda: both(*given)) <= 24
    assert both.traces == 1


def test_a_warm_step_enters_few_functions() -> None:
    layer = pb.nn.Linear(4, 4)
    rule = pb.optim.SGD(layer.parameters(), lr=0.01)
    x = pb.tensor(numbers(2, 4))

    @pb.jit
    def step() -> Any:
        rule.zero_grad()
        loss = pb.sum(layer(x) ** 2)
        loss.backward()
        rule.step()
        return loss

    step()
    step()
    assert steps(step) <= 23


def test_results_keep_their_structure() -> None:
    x = pb.tensor(numbers(3))
    assert isinstance(pb.jit(lambda a: a + 1.0)(x), pb.Tensor)
    for wanted in ((0, 1), [0, 1], {"a": 0, "b": (1, 2)}, (0, (1, 2)), (0, 7.5)):
        made = pb.jit(lambda a, wanted=wanted: fill(wanted, a))
        for _ in range(2):
            assert show(made(x)) == show(fill(wanted, x)), wanted


def fill(form: Any, x: Any) -> Any:
    if isinstance(form, dict):
        return {k: fill(v, x) for k, v in form.items()}
    if isinstance(form, tuple | list):
        return type(form)(fill(v, x) for v in form)
    return x + float(form) if isinstance(form, int) else form


def show(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: show(v) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(show(v) for v in tree)
    return tree.tolist() if isinstance(tree, pb.Tensor) else tree


def test_another_shape_type_or_static_value_is_another_program() -> None:
    double = pb.jit(lambda a, by=2.0: a * by)
    for array in (numbers(3), numbers(4), numbers(2, 3), numbers(3).astype(np.float64)):
        for _ in range(2):
            assert double(array).tolist() == (array * 2).tolist()
            assert double(pb.tensor(array)).dtype.numpy == array.dtype
    assert double.traces == 4
    assert double(numbers(3), 3.0).tolist() == double(numbers(3), by=3.0).tolist() == [0, 3, 6]
    assert double(numbers(3), -0.0).tolist() == [0, 0, 0]
    assert np.signbit(double(numbers(3), -0.0).numpy()).all(), "0.0 and -0.0 are two values"


def arrays() -> dict[str, np.ndarray]:
    closed = numbers(2, 3)
    closed.flags.writeable = False
    odd = np.frombuffer(b"x" + numbers(2, 3).tobytes(), np.float32, offset=1).reshape(2, 3)
    return {
        "plain": numbers(2, 3),
        "transposed": numbers(3, 2).T,
        "steps": numbers(4, 6)[::2, ::2],
        "read-only": closed,
        "off its alignment": odd,
        "stride 0": np.broadcast_to(numbers(3), (2, 3)),
        "bfloat16": numbers(2, 3).astype(ml_dtypes.bfloat16),
        "nothing": numbers(0, 3),
        "one": np.float32(3.0).reshape(()),
    }


@pytest.mark.parametrize("name", arrays())
def test_numpy_arguments_of_any_layout(name: str) -> None:
    double = pb.jit(lambda a: a + a)
    array = arrays()[name]
    for _ in range(2):
        got = double(array).numpy()
        assert got.dtype == array.dtype and (got == array + array).all()


def test_a_contiguous_array_is_not_copied() -> None:
    array = numbers(5)
    assert held.shared(array, "a").at == address(array)
    assert held.shared(array[::2], "a").at != address(array)


def test_an_array_is_read_at_each_call() -> None:
    double = pb.jit(lambda a: a + a)
    array = numbers(3)
    first = double(array)
    array += 1
    assert double(array).tolist() == [2, 4, 6] and first.tolist() == [0, 2, 4]


def counted() -> tuple[Any, Any]:
    cell = trace.Cell(trace.bind(numbers(3), "c"))

    @pb.jit
    def step(*others: Any) -> Any:
        now = pb.Tensor(cell.value) + 1.0
        cell.assign(now)
        return [o + 0.0 for o in others]

    return cell, step


def content(cell: Any) -> list[float]:
    return trace.array_of(cell).tolist()


def test_a_state_that_nobody_else_reads_stays_where_it_is() -> None:
    cell, step = counted()
    step()
    where = cell.value.at
    for _ in range(3):
        step()
    assert cell.value.at == where and content(cell) == [4, 5, 6]


def test_a_state_given_as_an_argument_too_is_read_as_it_was() -> None:
    cell, step = counted()
    for n in range(3):
        (before,) = step(cell)
        assert before.tolist() == (numbers(3) + n).tolist()
    assert content(cell) == [3, 4, 5]


def test_an_array_over_a_state_never_changes() -> None:
    cell, step = counted()
    step()
    seen = pb.Tensor(cell.value).__array__(copy=False)
    step()
    assert seen.tolist() == [1, 2, 3] and content(cell) == [2, 3, 4]


def test_a_captured_state_is_read_where_it_lies_now() -> None:
    cell = trace.Cell(trace.bind(numbers(3), "c"))
    read = pb.jit(lambda: pb.Tensor(cell.value) * 2.0)
    assert read().tolist() == [0, 2, 4]
    for n in range(3):
        cell.assign(trace.bind(numbers(3) + n, "c"))
        assert read().tolist() == (2 * (numbers(3) + n)).tolist()
    cell.assign(pb.tensor(numbers(3)) + 5.0)
    assert read().tolist() == [10, 12, 14]


def test_a_bad_index_of_a_warm_call_is_told() -> None:
    @pb.jit
    def pick(table: Any, place: Any) -> Any:
        return pb.compute((2,), lambda i: table[place[i]])

    table, good = pb.tensor(numbers(5)), pb.tensor(np.array([1, 4]))
    assert pick(table, good).tolist() == [1, 4]
    for _ in range(2):
        with pytest.raises(IndexRangeError, match="index 5 is out of range: axis 0"):
            pick(table, pb.tensor(np.array([1, 5])))
        assert pick(table, good).tolist() == [1, 4], "a failure is not remembered"


def test_counters_are_those_of_the_last_call() -> None:
    double = pb.jit(lambda a: a + a)
    for _ in range(3):
        double(numbers(8))
    assert double.program.launches == 1 and double.program.bytes_moved == 64


def test_the_memory_of_a_large_result_serves_again_once_it_is_free() -> None:
    double = pb.jit(lambda a: a + a)
    x = pb.tensor(numbers(LARGE // 4 + 3))
    first = double(x)
    where, second = first.value.at, double(x)
    assert second.value.at != where, "somebody holds the first"
    view = first.__array__(copy=False)
    del first
    third = double(x)
    assert third.value.at != where, "an array over the first is left"
    assert view[3] == 6.0
    del view, second, third
    assert {double(x).value.at for _ in range(3)} != set()
    kept = [double(x) for _ in range(6)]
    assert len({t.value.at for t in kept}) == 6
    for t in kept:
        assert (t.numpy() == 2 * numbers(LARGE // 4 + 3)).all()


def test_spare_memory_is_bounded_and_of_one_size() -> None:
    spare = Spare()
    blocks = [block(100 + n) for n in range(6)]
    for found in blocks:
        spare.give(found)
    assert spare.take(100)[1] != blocks[0][1], "the oldest went"
    assert spare.take(105)[1] == blocks[5][1]
    again = spare.take(105)
    assert again[1] != blocks[5][1], "it is taken once"
    behind = address(again[0]) + len(again[0]) - again[1] - 105
    assert again[1] % LINE == 0 and behind >= LINE, "a vector at the end reaches into our memory"


@pytest.mark.parametrize("count", [0, 1, 15, 4096, 4097, 300_000])
def test_results_start_a_cache_line(count: int) -> None:
    made = held.fresh("x", held.kind_of((count,), pb.float32))
    assert made.at % LINE == 0
    made.array[...] = 3.0
    assert made.array.shape == (count,) and (made.array == 3.0).all()
    assert count == 0 or address(made.array) == made.at


def test_arguments_of_a_new_size_are_gone_with_their_call() -> None:
    """Nothing that took them apart holds them until Python looks for garbage."""
    total = pb.jit(lambda x: pb.sum(x * 2.0), shapes=[(pb.dim("n", 1, 100),)])
    total(numbers(3))
    gc.collect()
    gc.disable()
    try:
        for size in (5, 6):
            given = pb.tensor(numbers(size))
            seen = weakref.ref(given)
            total(given)
            del given
            assert seen() is None
    finally:
        gc.enable()
