"""Gradients of index expressions: against differences, and native code against the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import grad_cases as C
from grad_support import check_gradient, draw, evaluate, new_definitions, work
from pullback.config import Options
from pullback.grad.reverse import gradients
from pullback.ir.expr import Dim
from pullback.ir.graph import Definition, Graph, Value, Variable, topological
from pullback.ir.program import Compute, Program
from pullback.pipeline import compile_program
from pullback.runtime.executable import Executable
from test_conformance import NEEDS

CASES = {c.name: c for c in C.all_cases()}
SYMBOLIC = {s.case.name: s for s in C.symbolic()}
Arrays = dict[Variable, np.ndarray[Any, Any]]


def values_of(case: C.Case, sizes: Mapping[Dim, int] | None = None) -> Arrays:
    """Random arrays for every variable that a case reads."""
    order = topological([case.output])
    found = dict.fromkeys(s for d in order for s in d.sources if isinstance(s, Variable))
    given = dict(case.data)
    free = [v for v in found if v not in given]
    arrays = {**draw(free, case.low, case.high), **given}
    sizes = sizes or {}
    return {
        v: a[tuple(slice(sizes.get(e) if isinstance(e, Dim) else e) for e in v.shape)]
        for v, a in arrays.items()
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_differences(name: str) -> None:
    case = CASES[name]
    found = check_gradient(case.output, case.wrt, values_of(case), 1e-5)
    boxes = [d.extents for d in topological([case.output])] + [v.shape for v in case.wrt]
    allowed = max(map(len, boxes))
    for d in new_definitions(found, case.output):
        assert len(d.shape) <= allowed, f"{d} has rank out + in"
    size = sum(int(np.prod(d.extents)) for d in topological([case.output]))
    assert work(found, case.output) <= 4 * size + 4 * sum(int(np.prod(v.shape)) for v in case.wrt)


def program(outputs: Sequence[Value], backend: str = "llvm") -> tuple[Executable, list[Variable]]:
    """One native program that computes all `outputs`."""
    results = [Variable(f"r{n}", o.shape, o.dtype) for n, o in enumerate(outputs)]
    graph = Graph(tuple(zip(results, outputs, strict=True)))
    state = (*graph.inputs, *results)
    options = Options(backend=backend, cache=None)
    return compile_program(Program((Compute(graph),), state), options), results


def run(made: Executable, results: Sequence[Variable], values: Arrays) -> list[Any]:
    sizes = {
        e: n for v, a in values.items() for e, n in zip(v.shape, a.shape, strict=True)
        if isinstance(e, Dim)
    }  # fmt: skip
    bindings = dict(values)
    for v in results:
        bindings[v] = np.zeros([sizes.get(e, e) for e in v.shape], v.dtype.numpy)
    made.run({v: bindings[v] for v in made.program.state})
    return [bindings[v] for v in results]


@functools.cache
def adjoints() -> tuple[list[str], list[Definition], Arrays]:
    """Every gradient of every case, with the heads and inputs it is computed from."""
    names: list[str] = []
    found: list[Any] = []
    values: Arrays = {}
    for case in CASES.values():
        head = Variable("head", case.output.shape, case.output.dtype)
        own = gradients(case.output, case.wrt, head)
        # The raw cases share A0 and A1: each keeps arrays of its own.
        fresh = {v: Variable(v.name, v.shape, v.dtype) for v in values_of(case)}
        found += C.moved(own, fresh)
        names += [case.name] * len(own)
        values |= {fresh[v]: a for v, a in values_of(case).items()}
        values[head] = draw([head])[head]
    return names, found, values


@pytest.mark.slow
def test_native_code_equals_the_interpreter() -> None:
    names, found, values = adjoints()
    expected = evaluate(found, values)
    for name, got, want in zip(names, run(*program(found), values), expected, strict=True):
        assert np.allclose(got, want, rtol=1e-11, atol=1e-11 * (1 + abs(want).max())), name


# The gradient checks of TVM's `test_te_autodiff.py`: 21 expressions, 21 operators, 36 strides. Of
# the cases here it has not the half of 1.18, the network, and fails 1.22.
TVM = [c for c in C.all_cases() if c.name not in ("1.18 1", "1.22", "network")]
STEP, PARTS = 1e-6, 3
SLOW = [pytest.param(n, marks=[m, pytest.mark.slow]) for n, m in NEEDS.items()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", ["llvm", *SLOW])
def test_the_checks_of_tvm(backend: str, part: int) -> None:
    """Each gradient of the sum of a result beside central differences, all by one backend."""
    assert len(TVM) == 78
    cases = TVM[part::PARTS]
    values: Arrays = {}
    outputs, adjoints, owners = [], [], []
    for case in cases:
        head = Variable("head", case.output.shape, case.output.dtype)
        own = values_of(case)
        fresh = {v: Variable(v.name, v.shape, v.dtype) for v in own}
        values |= {fresh[v]: a for v, a in own.items()}
        values[head] = np.ones(head.shape)
        outputs += C.moved([case.output], fresh)
        adjoints += C.moved(gradients(case.output, case.wrt, head), fresh)
        owners += [(case, fresh[x]) for x in case.wrt]
    slopes = run(*program(adjoints, backend), values)
    rng = np.random.default_rng(0)
    ways = {x: rng.normal(size=x.shape) for _, x in owners}
    made = program(outputs, backend)
    ends = []
    for step in (STEP, -STEP):
        moved = {v: a + step * ways[v] if v in ways else a for v, a in values.items()}
        ends.append([float(np.sum(y)) for y in run(*made, moved)])
    for case, above, below in zip(cases, *ends, strict=True):
        own = [(x, s) for (c, x), s in zip(owners, slopes, strict=True) if c is case]
        slope = sum(float(np.sum(s * ways[x])) for x, s in own)
        size = sum(float(np.sum(abs(s * ways[x]))) for x, s in own)
        assert abs((above - below) / (2 * STEP) - slope) <= 1e-6 * (1 + size), case.name


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_extents(name: str) -> None:
    """One compiled program serves every value in its range."""
    case = SYMBOLIC[name].case
    head = Variable("head", case.output.shape, case.output.dtype)
    found = gradients(case.output, case.wrt, head)
    made = program(found)
    dims = list(SYMBOLIC[name].sizes)
    for sizes in (dict.fromkeys(dims, n) for n in (1, 2, 5, 12)):
        values = values_of(case, sizes)
        values[head] = np.random.default_rng(5).normal(size=[sizes.get(e, e) for e in head.shape])
        expected = evaluate(found, values)
        for got, want in zip(run(*made, values), expected, strict=True):
            assert np.allclose(got, want, rtol=1e-12, atol=1e-12)
        _differences(case, head, found, values)


def _differences(case: C.Case, head: Variable, found: Sequence[Value], values: Arrays) -> None:
    rng = np.random.default_rng(0)
    for x, adjoint in zip(case.wrt, found, strict=True):
        (array,) = evaluate([adjoint], values)
        v = rng.normal(size=array.shape)
        ends = [evaluate([case.output], {**values, x: values[x] + s * v})[0] for s in (1e-5, -1e-5)]
        slope = float(np.sum((ends[0] - ends[1]) * values[head])) / 2e-5
        assert abs(slope - np.sum(array * v)) < 1e-5 * (1 + abs(slope))
