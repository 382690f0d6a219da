"""Handles outside of jit: laziness and what it means."""

from __future__ import annotations

import numpy as np
import pytest

from program_support import add, cell, mul, tensor, total, value
from pullback.errors import UnsupportedError
from pullback.ir.graph import Definition, Variable
from pullback.tensor.record import trace


def test_nothing_is_computed_before_someone_looks():
    a = add(tensor([1.0, 2.0]), 1.0)
    assert isinstance(a.value, Definition)
    assert value(a).tolist() == [2.0, 3.0] and isinstance(trace.result_of(a.value), Variable)


def test_a_shared_result_is_computed_once():
    a = mul(tensor([1.0, 2.0]), 3.0)
    b, c = add(a, 1.0), total(a)
    value(b)
    assert isinstance(trace.result_of(a.value), Variable), "what a handle still holds is kept"
    assert value(c) == 9.0


def test_a_read_binds_the_version():
    p = cell([1.0])
    before = mul(p, 2.0)
    p.assign(add(p, 10.0))
    after = mul(p, 2.0)
    assert value(before) == [2.0] and value(after) == [22.0] and value(p) == [11.0]


def test_an_unchanged_graph_is_not_compiled_again():
    def step(x):
        return total(mul(add(x, 1.0), x))

    value(step(tensor([1.0, 2.0])))
    count = trace.compiled_programs()
    for n in range(5):
        assert value(step(tensor([float(n), 1.0]))) == n * (n + 1) + 2
    assert trace.compiled_programs() == count
    value(step(tensor([1.0, 2.0, 3.0])))
    assert trace.compiled_programs() == count + 1


def test_a_training_loop_outside_of_jit_does_not_grow():
    p = cell([1.0])
    count = None
    for n in range(20):
        loss = total(mul(p, p))
        p.assign(mul(p, 0.5))
        value(loss)
        value(p)
        if n == 2:
            count = trace.compiled_programs()
    assert trace.compiled_programs() == count
    assert value(p) == [0.5**20]


def test_a_chain_of_ten_thousand_operations():
    x = tensor([0.0, 1.0])
    for _ in range(10_000):
        x = add(x, 1.0)
    assert value(x).tolist() == [10_000.0, 10_001.0]


def test_contents_are_copied_unless_shared():
    mine = np.ones(3, np.float32)
    copied = trace.Handle(trace.bind(mine, "a"))
    shared = trace.Handle(trace.bind(mine, "b", copy=False))
    mine[:] = 5
    assert value(copied).tolist() == [1.0] * 3 and value(shared).tolist() == [5.0] * 3


def test_tensors_without_elements():
    assert value(add(tensor(np.zeros((0, 3))), 1.0)).shape == (0, 3)


def test_tracing_is_local_to_its_context():
    outer = trace.Trace()
    with trace.tracing(outer):
        assert trace.current() is outer
        with pytest.raises(UnsupportedError):
            trace.realize([tensor([1.0])])
    assert trace.current() is None
