"""Calls that wait outside of programs: the same values, laziness and derivatives as definitions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import IndexRangeError
from pullback.ir.graph import Definition
from pullback.tensor.face.eager import eagerly
from pullback.tensor.record.deferred import Deferred
from pullback.tensor.record.held import Held
from pullback.tensor.record.trace import compiled_programs

Array = np.ndarray[Any, Any]


def drawn(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape)


def twice(function: Callable[[], Any]) -> Any:
    """A call made when its function is known; it waits."""
    function()
    found = function()
    assert type(found._node) is Deferred, "a second call of the same kinds waits"
    return found


def entered(function: Callable[[], Any]) -> int:
    """How many Python functions a call enters."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "same": lambda x, y: x * x,
    "scalar": lambda x, y: x * 2.5 - 1,
    "exp": lambda x, y: pb.exp(x),
    "sum": lambda x, y: x.sum(axis=0, keepdims=True),
    "mean": lambda x, y: pb.mean(x, axis=-1),
    "matmul": lambda x, y: x @ y.mT,
    "softmax": lambda x, y: pb.nn.functional.softmax(x, dim=1),
    "layer_norm": lambda x, y: pb.nn.functional.layer_norm(x, (5,), y[0], y[1]),
    "reshape": lambda x, y: x.reshape(5, 4).T + x,
    "where": lambda x, y: pb.where(x > y, x, 0.0),
    "chosen": lambda x, y: x[1:, ::-1] + y[0],
    "less": lambda x, y: x < y,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_that_waits_gives_what_its_definition_gives(name: str) -> None:
    operation = OPERATIONS[name]
    x, y = pb.asarray(drawn(4, 5)), pb.asarray(drawn(4, 5) + 0.1)
    first = operation(x, y).numpy()
    again = twice(lambda: operation(x, y))
    count = compiled_programs()
    for _ in range(3):
        np.testing.assert_array_equal(again.numpy(), first)
        again = operation(x, y)
    assert compiled_programs() <= count + 1
    inside = pb.jit(lambda x, y: operation(x, y))(x, y)
    np.testing.assert_array_equal(inside.numpy(), first)
    assert again.shape == first.shape and again.dtype.numpy == first.dtype
    if again.dtype.is_float:
        wanted = pb.grad(lambda x: pb.sum(pb.sin(operation(x, y))))(x.numpy())
        np.testing.assert_allclose(pb.grad(pb.sum(pb.sin(again)), x).numpy(), wanted, rtol=1e-12)
        looked = operation(x, y)
        assert looked.numpy() is not None
        total = pb.sum(pb.sin(pb.concat([looked], axis=None)))
        np.testing.assert_allclose(pb.grad(total, x).numpy(), wanted, rtol=1e-12)


def test_keys_tell_numbers_and_operands_apart() -> None:
    x, y = pb.tensor([1.0, -2.0]), pb.tensor([3.0, 4.0])
    ints = pb.tensor([1, 2])
    assert [pb.atan2(x, x).tolist()[0] for _ in range(3)] == [pb.atan2(x, x).tolist()[0]] * 3
    np.testing.assert_allclose(pb.atan2(x, y).numpy(), np.arctan2(x.numpy(), y.numpy()), rtol=1e-6)
    for _ in range(3):
        assert (x + x).tolist() == [2.0, -4.0] and (x + y).tolist() == [4.0, 2.0]
        assert (ints * 2).dtype == pb.int64 and (ints * 2.0).dtype == pb.float32
        assert (ints + True).tolist() == [2, 3]
        assert [str(v) for v in (x * 0.0).tolist()] == ["0.0", "-0.0"]
        assert [str(v) for v in (x * -0.0).tolist()] == ["-0.0", "0.0"]
        assert np.isnan((x * float("nan")).numpy()).all()
        z = x - y
        assert ((z * z) - (x - y) * z).tolist() == [0.0, 0.0]
        assert (2.0 - x).tolist() == [1.0, 4.0] and (x - 2.0).tolist() == [-1.0, -4.0]


def test_what_a_tensor_holds_is_computed_with_what_follows() -> None:
    x = pb.tensor([1.0, 2.0])
    for _ in range(8):
        held = x * 3.0
        last = pb.exp(held) + held
        assert type(last._node) is Deferred or last.shape == (2,)
        count = compiled_programs()
        last.numpy()
    assert held._node.result is not None and compiled_programs() == count
    np.testing.assert_array_equal(held.numpy(), [3.0, 6.0])
    wide = [x * 2.0 for _ in range(3)]
    np.testing.assert_array_equal(pb.stack([*wide, x]).numpy()[:, 0], [2.0, 2.0, 2.0, 1.0])


def test_leaves_states_and_assignment() -> None:
    x, w = pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0], requires_grad=True)
    state = pb.State(pb.tensor([1.0, 1.0]))
    for _ in range(3):
        w.grad = None
        loss = pb.sum((x * 2.0) * w + pb.square(w))
        loss.backward()
        assert w.grad is not None and w.grad.tolist() == [8.0, 12.0]
        before = (x + state) * 1.0
        state.assign(state + 1.0)
        y = x * 1.0
        later = y + 0.0
        y[0] = 9.0
        assert later.tolist() == [1.0, 2.0] and y.tolist() == [9.0, 2.0]
    assert before.tolist() == [4.0, 5.0]


def test_a_static_index_costs_no_program() -> None:
    x = pb.asarray(drawn(60, 3))
    _ = (x[0].numpy(), (x[1] * 2.0).numpy(), (x[1] * 2.0).numpy())
    count = compiled_programs()
    rows = [row.numpy() for row in x]
    twos = [(x[n] * 2.0).numpy() for n in range(60)]
    parts = [x[n : n + 2].numpy() for n in range(30)] + [x[n, 1:].numpy() for n in range(9)]
    assert compiled_programs() == count
    np.testing.assert_array_equal(np.stack(rows), x.numpy())
    np.testing.assert_array_equal(np.stack(twos), 2 * x.numpy())
    np.testing.assert_array_equal(parts[7], x.numpy()[7:9])
    np.testing.assert_array_equal(parts[-1], x.numpy()[8, 1:])
    np.testing.assert_array_equal(x[::-1, ::2].numpy(), x.numpy()[::-1, ::2])
    count = compiled_programs()
    list(map(np.asarray, x + 1.0))
    assert compiled_programs() <= count + 1
    slope = pb.grad(pb.sum(x[2] * x[4, 1]), x).numpy()
    assert slope[4, 1] == x.numpy()[2].sum() and (slope[2] == x.numpy()[4, 1]).all()


def test_views_are_there_at_once_and_read_by_one_copy() -> None:
    a = drawn(2, 3, 4)
    x = pb.tensor(a)
    views: list[tuple[Callable[[Any], Any], Array]] = [
        (lambda t: t.reshape(4, 6), a.reshape(4, 6)),
        (lambda t: pb.permute_dims(t, (1, 0, 2)), a.transpose(1, 0, 2)),
        (lambda t: pb.flip(t, axis=1), a[:, ::-1]),
        (lambda t: t[:, ::-1, 1:], a[:, ::-1, 1:]),
        (lambda t: t.mT, a.swapaxes(1, 2)),
        (lambda t: pb.moveaxis(t, 0, -1), np.moveaxis(a, 0, -1)),
        (lambda t: pb.squeeze(t[None]), a),
        (lambda t: pb.broadcast_to(t, (2, 2, 3, 4)), np.broadcast_to(a, (2, 2, 3, 4))),
        (lambda t: t.flatten(), a.ravel()),
    ]
    for view, wanted in views:
        for _ in range(2):
            np.testing.assert_array_equal((view(x) * 2.0).numpy(), wanted * 2.0)
        count = compiled_programs()
        found = view(x)
        read = found.numpy()
        np.testing.assert_array_equal(read, wanted)
        assert read.flags.c_contiguous and compiled_programs() == count
        if not wanted.flags.c_contiguous:
            assert found._node.result is None, "reading makes the one copy that is asked for"
        read[...] = 0.0
        np.testing.assert_array_equal(view(x).numpy(), wanted)
        slope = pb.grad(pb.sum(view(x)), x).numpy()
        assert slope.sum() == wanted.size
    np.testing.assert_array_equal(x.numpy(), a)


def test_a_view_is_never_written_to() -> None:
    state = pb.State(pb.zeros((4, 3)))
    rows = [state[1], pb.asarray(state)[2]]
    pb.jit(lambda: state.assign(state + 1.0))()
    assert [r.tolist() for r in rows] == [[0.0] * 3] * 2 or rows[1].tolist() == [0.0] * 3
    x = pb.zeros((4, 3)) + 1.0
    row = (x.numpy(), x[1])[1]
    x[1] = 5.0
    assert row.tolist() == [1.0] * 3 and x[1].tolist() == [5.0] * 3


def test_what_looks_or_draws_is_called_every_time() -> None:
    @eagerly
    def as_many(x: Any) -> Any:
        return x * float(len(np.unique(x.numpy())))

    assert as_many(pb.tensor([1.0, 1.0])).tolist() == [1.0, 1.0]
    assert as_many(pb.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert as_many(pb.tensor([3.0, 3.0])).tolist() == [3.0, 3.0]
    x = pb.tensor(np.ones(64))
    drawings = {tuple(pb.nn.functional.dropout(x, 0.5).tolist()) for _ in range(4)}
    assert len(drawings) == 4
    state = pb.State(pb.tensor([1.0]))
    beside = eagerly(lambda x: x + state)
    sums = []
    for _ in range(3):
        sums.append(beside(pb.tensor([1.0])))
        state.assign(state + 1.0)
    assert [s.tolist() for s in sums[::-1]] == [[4.0], [3.0], [2.0]]


def test_an_error_names_the_line_of_the_call() -> None:
    x, y = pb.tensor([1.0] * 3), pb.tensor([1.0] * 4)
    twice(lambda: x + x)
    for _ in range(2):
        with pytest.raises(pb.errors.ShapeError, match="x \\+ y"):
            x + y
    with pytest.raises(pb.errors.IndexRangeError, match="x\\[3\\]"):
        x[3]
    known = twice(lambda: x * 2.0)
    value = known.value
    assert isinstance(value, Definition) and value.origin is not None
    assert "x * 2.0" in value.origin.source


@pytest.mark.slow
def test_a_warm_operation_enters_few_functions() -> None:
    x, y = pb.tensor(np.ones(100)), pb.tensor(np.ones(100))
    for function, most in [
        (lambda: (x + y).numpy(), 49),
        (lambda: x[3].numpy(), 33),
        (lambda: pb.nn.functional.softmax(x, dim=0).numpy(), 49),
    ]:
        for _ in range(3):
            function()
        assert entered(function) <= most  # 10 of them ask the environment

    def chain() -> None:
        z = x
        for _ in range(250):
            z = (z + y) * 0.5
        z.numpy()

    chain()
    chain()
    assert entered(chain) <= 500 * 25


def test_what_one_call_asks_for_is_one_program() -> None:
    values = [pb.tensor(drawn(3, n)) for n in (2, 3, 4)]

    def loss(*given: Any) -> Any:
        return pb.sum(pb.tanh(given[0] @ given[0].T @ given[1]) @ given[2])

    count = compiled_programs()
    slopes = pb.grad(loss, argnums=(0, 1, 2))(*values)
    wanted = [s.numpy() for s in slopes]
    assert compiled_programs() == count + 1
    value, again = pb.value_and_grad(loss, argnums=(0, 1, 2))(*values)
    assert np.isfinite(float(value))
    count = compiled_programs()
    for one, other in zip(again, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    assert compiled_programs() == count
    leaves = [pb.tensor(v.numpy(), requires_grad=True) for v in values]
    loss(*leaves).backward()
    count = compiled_programs()
    for leaf, other in zip(leaves, wanted, strict=True):
        assert leaf.grad is not None
        np.testing.assert_array_equal(leaf.grad.numpy(), other)
    assert compiled_programs() <= count + 1
    half = pb.grad(loss, argnums=(0, 1))(*values)
    moved = values[0] - half[0]
    count = compiled_programs()
    del half
    assert moved.shape == (3, 2) and np.isfinite(moved.numpy()).all()
    assert compiled_programs() == count + 1


def test_a_static_index_into_what_waits_is_data() -> None:
    a = drawn(60, 3)
    x = pb.asarray(a)
    for n in (3, 4):  # the first call of a function makes its definition
        np.testing.assert_array_equal((x * 2.0)[n].numpy(), 2 * a[n])
        assert (x * 3.0)[n, 1].item() == 3 * a[n, 1]
    count = compiled_programs()
    rows = [(x * 2.0)[n].numpy() for n in range(60)]
    cells = [(x * 3.0)[n, -1 - n % 3].numpy() for n in range(-60, 0)]
    assert compiled_programs() == count
    np.testing.assert_array_equal(np.stack(rows), 2 * a)
    np.testing.assert_array_equal(cells, [3 * a[n, -1 - n % 3] for n in range(-60, 0)])
    keys: list[Any] = [
        (3, slice(1, None)), (slice(None, None, -2), 1), (..., 2), (None, 5, None), (5, ..., 1),
        (slice(2, 2), 1), (-1, None, slice(None, None, -1)), (59,),
    ]  # fmt: skip
    for key in keys:
        found = (x * 2.0)[key]
        assert found.shape == (2 * a)[key].shape
        np.testing.assert_array_equal(found.numpy(), (2 * a)[key])
    for key in [60, -61, (0, 3), (0, 0, 0)]:
        with pytest.raises(IndexRangeError):
            (x * 2.0)[key]
    y = x * 2.0
    slope = pb.grad(pb.sum(y[3] * y[4, 1]), x).numpy()
    np.testing.assert_allclose(slope[3], np.full(3, 4 * a[4, 1]))
    np.testing.assert_allclose(slope[4], [0.0, 4 * a[3].sum(), 0.0])


@pytest.mark.parametrize("jitted", [False, True])
def test_an_index_that_is_a_formula_is_checked_as_data_are(jitted: bool) -> None:
    def run(f: Any) -> Any:
        return (pb.jit(f) if jitted else f)(pb.tensor([1.0, 2.0])).numpy()

    assert run(lambda x: x[pb.arange(2) - 1]).tolist() == [2.0, 1.0]
    assert run(lambda x: x[pb.arange(4) % 2]).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert run(lambda x: x[pb.square(pb.arange(2)) - 1]).tolist() == [2.0, 1.0]
    assert run(lambda x: x.at[pb.arange(2)].add(1.0)).tolist() == [2.0, 3.0]
    outside: list[Any] = [
        lambda x: x[pb.full((), 7)],
        lambda x: x[pb.arange(7, 9)],
        lambda x: x[pb.arange(4) - 3],
        lambda x: x[pb.sum(pb.arange(3))],
        lambda x: pb.take(x, 7),
        lambda x: pb.take(x, pb.arange(3)),
        lambda x: pb.take_along_axis(x, pb.arange(3), axis=0),
        lambda x: pb.scatter_add(x, pb.arange(3), pb.ones(3)),
        lambda x: x.at[pb.arange(3)].add(1.0),
        lambda x: x.at[pb.arange(2) + 2 * pb.arange(2)].set(0.0),
    ]
    for f in outside:
        with pytest.raises(IndexRangeError) as caught:
            run(f)
        assert caught.value.code == "E106"


def test_what_nobody_refers_to_is_freed() -> None:
    """What a compiler keeps of expressions keeps no data alive."""
    sizes = [((1 << 17) + n,) for n in range(3)]
    for (size,) in sizes:
        t = pb.tensor(np.ones(size, "f4"))
        assert float((t * 2 + 1).sum()) == 3 * size
        assert pb.grad(lambda t: (t * t).sum())(t).numpy()[0] == 2
        assert pb.compute((7,), lambda i, t=t: t[i] * 3).numpy()[0] == 3
        del t
    gc.collect()
    held = [h for h in gc.get_objects() if isinstance(h, Held) and h.kind.shape[:1] in sizes]
    assert not held
