"""Programs: jit, loops, control forms, states."""

from __future__ import annotations

import gc
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from program_support import (
    add,
    apply,
    cell,
    floats,
    less,
    mul,
    product,
    tensor,
    total,
    value,
    variable,
)
from pullback.errors import (
    CapturedArrayError,
    DTypeError,
    PullbackError,
    ShapeError,
    UnsupportedError,
)
from pullback.ir import expr as E
from pullback.ir.expr import Dim
from pullback.ir.graph import define, read
from pullback.tensor.derive.autograd import grad
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.record import constants, trace
from pullback.tensor.run import program as pb


def test_a_loop_updates_a_state_and_is_traced_once():
    p, calls = cell([1.0, 2.0]), []

    @pb.jit
    def train():
        def step():
            calls.append(1)
            p.assign(mul(p, 2.0))

        pb.loop(range(5), step)

    train()
    train()
    assert value(p).tolist() == [1024.0, 2048.0]
    assert len(calls) == 1 and train.traces == 1
    assert len(train.program.kernels) == 1 and train.program.launches == 5


def test_a_read_before_the_call_keeps_the_old_value():
    p = cell([1.0, 2.0])
    before = add(p, p)
    alias = Tensor(p.value)

    @pb.jit
    def train():
        p.assign(add(p, 1.0))

    train()
    assert value(before).tolist() == [2.0, 4.0]
    assert value(alias).tolist() == [1.0, 2.0]
    assert value(p).tolist() == [2.0, 3.0]


def test_a_state_is_updated_in_place_when_nobody_reads_the_old_version():
    p = cell([1.0, 2.0])

    @pb.jit
    def train():
        p.assign(add(p, 1.0))

    train()
    array = trace.array_of(p)
    where = array.__array_interface__["data"][0]
    del array
    train()
    assert trace.array_of(p).__array_interface__["data"][0] == where
    held = trace.array_of(p)
    train()
    assert held.tolist() == [3.0, 4.0] and value(p).tolist() == [4.0, 5.0]


def test_a_shared_array_is_never_written():
    mine = np.ones(3, np.float32)
    p = trace.Cell(trace.bind(mine, "p", copy=False))

    @pb.jit
    def train():
        p.assign(add(p, 1.0))

    train()
    assert mine.tolist() == [1.0] * 3 and value(p).tolist() == [2.0] * 3


def test_values_cross_into_loops_and_old_versions_survive_them():
    p, x = cell([1.0]), tensor([3.0])

    @pb.jit
    def f():
        twice = mul(p, 2.0)
        alias = Tensor(p.value)

        def step():
            p.assign(add(p, mul(twice, x)))

        pb.loop(range(3), step)
        return twice, alias, add(p, 0.0)

    twice, alias, after = f()
    assert value(twice) == [2.0] and value(alias) == [1.0] and value(after) == [19.0]


def test_loop_index_and_carry():
    @pb.jit
    def f(x):
        def body(i, carry):
            a, parts = carry
            return add(a, floats(i)), {"n": add(parts["n"], 1.0)}

        return pb.loop(range(2, 10, 3), body, carry=(x, {"n": tensor_of(x)}))

    def tensor_of(x):
        return mul(x, 0.0)

    a, parts = f(tensor(10.0))
    assert value(a) == 10 + 2 + 5 + 8 and value(parts["n"]) == 3
    with pytest.raises(ShapeError, match="carry"):
        pb.jit(
            lambda x: pb.loop(range(2), lambda i, c: apply(lambda v: v, c, shape=(2,)), carry=x)
        )(tensor(1.0))


def test_nested_loops():
    p = cell(0.0)

    @pb.jit
    def f():
        def outer(i):
            pb.loop(range(3), lambda: p.assign(add(p, 1.0)))
            p.assign(add(p, mul(floats(i), 100.0)))

        pb.loop(range(4), outer)

    f()
    assert value(p) == 12 + 600 and f.program.launches == 4 * 3 + 4


def test_a_value_of_a_loop_body_is_refused_outside_of_it():
    leaked = []

    @pb.jit
    def f(x):
        pb.loop(range(3), lambda: leaked.append(mul(x, 2.0)))
        return leaked[0]

    with pytest.raises(UnsupportedError, match="inside a loop"):
        f(tensor([1.0]))


@pytest.mark.parametrize("jitted", [True, False])
def test_cond_while_and_scan(jitted):
    def f(x):
        first = Tensor(trace.wrap(define("first", (), lambda: read(x.value, 0))))
        chosen = pb.cond(less(first, 5.0), lambda: add(x, 100.0), lambda: add(x, 1.0))
        grown = pb.while_loop(lambda v: less(v, 100.0), lambda v: add(v, v), first)
        last, rows = pb.scan(lambda c, r: (add(c, r), {"sum": add(c, r)}), mul(first, 0.0), x)
        return chosen, grown, last, rows["sum"]

    g = pb.jit(f) if jitted else f
    for data in ([1.0, 2.0, 3.0], [7.0, 1.0, 1.0]):
        chosen, grown, last, rows = g(tensor(data))
        start = data[0]
        while start < 100:
            start *= 2
        assert value(chosen).tolist() == [d + (100 if data[0] < 5 else 1) for d in data]
        assert value(grown) == start and value(last) == sum(data)
        assert value(rows).tolist() == np.cumsum(data).tolist()
    if jitted:
        assert g.traces == 1


def test_states_assigned_in_one_branch_only():
    p = cell(1.0)

    @pb.jit
    def f(x):
        pb.cond(less(x, 0.0), lambda: p.assign(mul(p, 10.0)), lambda: None)

    f(tensor(1.0))
    assert value(p) == 1.0
    f(tensor(-1.0))
    assert value(p) == 10.0


def test_states_that_change_in_a_loop_without_a_bound_leave_nothing_to_reverse():
    p = cell(1.0)

    @pb.jit
    def f(x):
        def body(v):
            new = mul(mul(v, v), p)
            p.assign(add(p, 1.0))
            return new

        return grad(pb.while_loop(lambda v: less(v, 9.0), body, x), x)

    with pytest.raises(
        UnsupportedError, match=r"such as a changed state, of pb\.while_loop without"
    ):
        f(tensor(1.0))


def test_the_condition_is_one_bool():
    with pytest.raises(DTypeError, match="one bool"):
        pb.cond(tensor(1.0), lambda: None, lambda: None)


def test_retraces_are_logged_with_what_changed(caplog):
    @pb.jit
    def f(x, scale=1):
        return mul(x, float(scale))

    with caplog.at_level(logging.INFO, "pullback"):
        f(tensor([1.0]))
        f(tensor([2.0]))
        assert not caplog.records and f.traces == 1
        f(tensor([1.0, 2.0]))
        assert "(1,)" in caplog.text and "(2,)" in caplog.text
        assert value(f(tensor([1.0]), scale=3)) == [3.0]
    assert f.traces == 3 and "static" in caplog.text
    f(tensor([5.0]), scale=3)
    assert f.traces == 3


def test_the_training_flag_is_part_of_the_key():
    module = SimpleNamespace(training=True)

    @pb.jit
    def f(x):
        trace.observe(module)
        return mul(x, 2.0 if module.training else 1.0)

    assert value(f(tensor(1.0))) == 2
    module.training = False
    assert value(f(tensor(1.0))) == 1
    module.training = True
    assert value(f(tensor(1.0))) == 2 and f.traces == 2


def test_captured_tensors_are_inputs():
    x = cell([1.0])

    @pb.jit
    def f():
        return mul(x, 2.0)

    assert value(f()) == [2.0]
    x.assign(variable(tensor([5.0])))
    assert value(f()) == [10.0] and f.traces == 1


def test_numpy_arrays_are_arguments_but_not_captured():
    array = np.ones(2, np.float32)

    @pb.jit
    def f(x):
        return mul(x, 2.0)

    @pb.jit
    def g():
        constants.refuse_array()

    assert value(f(array)).tolist() == [2.0, 2.0]
    with pytest.raises(CapturedArrayError, match=r"pb\.tensor"):
        g()


def test_a_value_cannot_be_looked_at_while_tracing():
    with pytest.raises(UnsupportedError, match="traced"):
        pb.jit(lambda x: trace.realize([mul(x, 2.0)]))(tensor(1.0))


def test_a_traced_value_cannot_be_looked_at_afterwards():
    leaked = []
    pb.jit(lambda x: leaked.append(mul(x, 2.0)))(tensor(1.0))
    with pytest.raises(UnsupportedError, match="no value outside of it"):
        value(leaked[0])


def test_a_state_may_be_made_while_tracing():
    made = []

    @pb.jit
    def f():
        if not made:
            zeros = trace.wrap(define("zeros", (2,), lambda i: E.const(0.0, tensor(0.0).dtype)))
            made.append(trace.Cell(zeros))
        made[0].assign(add(made[0], 1.0))

    for _ in range(3):
        f()
    assert value(made[0]).tolist() == [3.0, 3.0]


def test_assignment_checks_shape_and_type():
    p = cell([1.0, 2.0])
    with pytest.raises(ShapeError):
        p.assign(tensor([1.0]))
    with pytest.raises(DTypeError, match="cast"):
        p.assign(tensor([1, 2], "int32"))


def test_two_states_may_be_swapped():
    a, b = cell([1.0]), cell([2.0])

    @pb.jit
    def swap():
        old = Tensor(a.value)
        a.assign(b)
        b.assign(old)

    swap()
    assert value(a) == [2.0] and value(b) == [1.0]


def test_a_symbolic_extent_compiles_once():
    n = Dim("n", 1, 64)
    rows = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    w = tensor(np.eye(8))

    @pb.jit(shapes=[(n, 8)])
    def f(x):
        y = product(x, w)
        return y, total(y)

    for size in (1, 2, 7, 33, 64):
        y, s = f(rows[:size])
        assert value(y).shape == (size, 8)
        np.testing.assert_allclose(value(y), rows[:size], rtol=1e-6)
        np.testing.assert_allclose(value(s), rows[:size].sum(), rtol=1e-4, atol=1e-4)
    assert f.traces == 1
    with pytest.raises(ShapeError, match="declared"):
        f(np.ones((65, 8), np.float32))


def test_programs_are_freed():
    p = cell([1.0])

    def once():
        @pb.jit
        def f():
            pb.loop(range(2), lambda: p.assign(add(p, 1.0)))

        f()
        return weakref.ref(f.program)

    gone = once()
    gc.collect()
    assert gone() is None


def test_a_program_can_be_looked_at():
    p = cell([1.0] * 4)

    @pb.jit
    def f():
        pb.loop(range(2), lambda: p.assign(add(mul(p, 2.0), 1.0)))

    f()
    program = f.program
    assert program.definitions and program.memory.arena_bytes >= program.memory.lower_bound_bytes
    assert program.bytes_moved == 2 * (16 + 16)
    assert "map" in program.explain() and program.source()


def test_a_state_takes_arrays_and_what_fits_no_state_is_told() -> None:
    state = State(tensor(np.zeros(2, np.float32)))
    state.assign(np.float32([1, 2]))
    assert state.tolist() == [1, 2]
    wrong = {"E133": (0.0, np.zeros(3, "f")), "E143": (None, "x", 1j), "E142": (np.zeros(2),)}
    for code, several in wrong.items():
        for given in several:
            with pytest.raises(PullbackError) as caught:
                state.assign(given)
            assert caught.value.code == code, given
    assert state.tolist() == [1, 2]
    number = State(tensor(np.float32(1)))
    number.assign(0.5)
    assert number.item() == 0.5
