"""Calls of the host in programs: LAPACK between native launches, in loops, branches and samples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from linalg_support import definite, derivatives, drawn, well
from pullback import nn
from pullback.backends.host.exchange import call_host
from pullback.errors import (
    InvalidIR,
    MemoryBudgetError,
    PullbackError,
    SingularError,
    UnsupportedError,
)
from pullback.ir.dtype import float32
from pullback.ir.expr import Mul
from pullback.ir.graph import Definition, Graph, Variable, define, read
from pullback.ir.program import Compute, HostCall, Loop, Program, written
from pullback.machine.machine import chosen
from pullback.pipeline import compile_program
from pullback.prepare.ahead import turned_ahead
from robust_support import python

L = pb.linalg
LLVM, REFERENCE = pb.Options(cache=None), pb.Options(backend="reference")
CHECKED, GENERATED = pb.Options(cache=None, check=True), pb.Options(cache=None, host=False)
EVERY = {"llvm": LLVM, "reference": REFERENCE, "checked": CHECKED}


def values(found: Any) -> list[Any]:
    return [f.numpy() for f in (found if isinstance(found, tuple) else (found,))]


def names(program: Any) -> list[str]:
    """What the program of the last call asks of the host."""
    return [call.name for call in program.program.host_calls]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "cholesky": L.cholesky,
    "solve": lambda a, **how: L.solve(a, pb.ones((a.shape[-1], 2), dtype="float64"), **how),
    "inv": L.inv,
    "det": L.det,
    "slogdet": L.slogdet,
    "qr": L.qr,
    "qr with mode='complete'": lambda a, **how: L.qr(a[..., :3], mode="complete", **how),
    "eigh": L.eigh,
    "eigvalsh": L.eigvalsh,
    "svd": L.svd,
    "svd, full": lambda a, **how: L.svd(a[..., :3, :], **how),
    "svdvals": L.svdvals,
    "pinv": L.pinv,
    "lstsq": lambda a, **how: L.lstsq(a, pb.ones((a.shape[-1],), dtype="float64"), **how),
}


@pytest.mark.sampled(30)
@pytest.mark.parametrize("backend", EVERY)
@pytest.mark.parametrize("name", OPERATIONS)
def test_as_on_values(name: str, backend: str) -> None:
    function = OPERATIONS[name]
    for shape in ((2, 3, 5, 5),) if backend == "llvm" else ((5, 5),):
        a = pb.tensor(definite(*shape))
        program = pb.jit(lambda a: function(a * 1.5, method="host"), options=EVERY[backend])
        wanted = values(function(a * 1.5))
        for found, own in zip(values(program(a)), wanted, strict=True):
            assert found.dtype == own.dtype
            np.testing.assert_allclose(found, own, rtol=1e-11, atol=1e-12)
        assert names(program) and not names_of(function, a, GENERATED)


def names_of(function: Callable[..., Any], *given: Any) -> list[str]:
    *inputs, options = given
    program = pb.jit(function, options=options)
    program(*inputs)
    return names(program)


def test_by_price() -> None:
    def solved(a: Any) -> Any:
        return L.solve(a, a)

    for shape, wanted in (((4, 4), []), ((40, 40), ["solve"]), ((50, 10, 10), ["solve"])):
        assert names_of(solved, pb.tensor(well(*shape)), LLVM) == wanted
    a = pb.tensor(well(40, 40))
    assert names_of(lambda a: L.solve(a, a, method="generated"), a, LLVM) == []
    assert names_of(solved, a, GENERATED) == []


@pytest.mark.parametrize("backend", EVERY)
def test_halves_and_float32(backend: str) -> None:
    a = definite(6, 6)
    for kind in ("float16", "bfloat16", "float32"):
        program = pb.jit(lambda a: L.inv(a, method="host"), options=EVERY[backend])
        found = program(pb.tensor(a).astype(kind))
        assert found.dtype.name == kind and names(program) == ["inv"]
        own = pb.tensor(a).astype(kind).astype("float32").numpy()
        limit = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6}[kind]
        np.testing.assert_allclose(found.astype("float32").numpy(), np.linalg.inv(own), atol=limit)


def test_layouts_and_nothing() -> None:
    a = well(2, 5, 5)
    for given in (a.transpose(0, 2, 1), a[::-1], a[:0], a[:, :0, :0]):
        for method in ("host", "generated"):
            found = pb.jit(lambda x, m=method: L.inv(x, method=m), options=LLVM)(given)
            np.testing.assert_allclose(found, np.linalg.inv(given), atol=1e-12)


# --- derivatives, loops, branches, samples -------------------------------------------------------

SLOPES: dict[str, Callable[..., Any]] = {
    "solve": lambda a, b: pb.sum(pb.sin(L.solve(a, b, method="host"))),
    "cholesky": lambda a, b: pb.sum(pb.sin(L.cholesky(a, method="host") @ b)),
    "inv": lambda a, b: pb.sum(pb.sin(L.inv(a, method="host") @ b)),
    "det": lambda a, b: L.det(a * 0.3, method="host") * pb.sum(b * b),
    "slogdet": lambda a, b: L.slogdet(a, method="host")[1] * pb.sum(b * b),
    "qr": lambda a, b: pb.sum(pb.sin(L.qr(a, method="host").R @ b)),
    "eigh": lambda a, b: pb.sum(pb.sin(L.eigvalsh(a, method="host"))) * pb.sum(b),
    "svd": lambda a, b: pb.sum(pb.sin(L.svdvals(a, method="host"))) * pb.sum(b),
    "lstsq": lambda a, b: pb.sum(pb.sin(L.lstsq(a, b, method="host").solution)),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", SLOPES)
def test_derivatives(name: str) -> None:
    derivatives(SLOPES[name], [definite(4, 4), drawn(4, 2)], compiled=True, second=True)


def stepped(a: Any, x: Any, method: str) -> Any:
    """A loop that factors a matrix of its carry, and a product that reads what the host gave."""

    def step(i: Any, x: Any) -> Any:
        turned = L.inv(a + pb.sum(x * x) * 0.01 * pb.eye(24, dtype="float64"), method=method)
        return pb.tanh(x @ turned.mT) + x

    return pb.loop(5, step, x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", EVERY)
def test_in_loops(backend: str) -> None:
    a, x = pb.tensor(definite(24, 24)), pb.tensor(drawn(3, 24))
    wanted = stepped(a, x, "generated").numpy()
    program = pb.jit(lambda a, x: stepped(a, x, "host"), options=EVERY[backend])
    np.testing.assert_allclose(program(a, x).numpy(), wanted, rtol=1e-10)
    assert names(program) == ["inv"]
    slope = pb.jit(pb.grad(lambda a, x: pb.sum(stepped(a, x, "host"))), options=EVERY[backend])
    eager = pb.grad(lambda a, x: pb.sum(stepped(a, x, "auto")))(a, x).numpy()
    np.testing.assert_allclose(slope(a, x).numpy(), eager, rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["tape", "recompute", "sqrt"])
def test_what_a_loop_keeps(mode: str) -> None:
    """With a tape the backward reads the factors; else it has them computed again."""
    a = pb.tensor(definite(4, 4))

    def function(a: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return L.cholesky(x @ x.mT * 0.1 + a, method="host"), pb.sum(x)

        last, sums = pb.scan(step, a, pb.ones(5), checkpoint=mode)
        return pb.sum(last) + pb.sum(sums * sums)

    program = pb.jit(pb.grad(function), options=LLVM)
    np.testing.assert_allclose(program(a).numpy(), pb.grad(function_on_values)(a).numpy(), 1e-9)
    assert names(program) == ["cholesky"] * (1 if mode == "tape" else len(names(program)))
    assert len(names(program)) >= 1


def function_on_values(a: Any) -> Any:
    x, total = a, 0.0
    for _ in range(5):
        total = total + pb.sum(x) ** 2
        x = L.cholesky(x @ x.mT * 0.1 + a)
    return pb.sum(x) + total


@pytest.mark.slow
def test_in_branches_and_while_loops() -> None:
    a = pb.tensor(well(4, 4))

    def function(a: Any) -> Any:
        y = pb.cond(pb.sum(a) > 0, lambda a: L.inv(a, method="host"), lambda a: a * 2.0, a)

        def body(carry: Any) -> Any:
            return L.solve(a, carry, method="host") * 0.5

        return pb.while_loop(lambda c: pb.max(pb.abs(c)) > 1e-3, body, y, max_steps=20)

    for own in (a, -a):
        eager = pb.grad(lambda x: pb.sum(function_of_values(x)))(own).numpy()
        program = pb.jit(pb.grad(lambda x: pb.sum(function(x))), options=LLVM)
        np.testing.assert_allclose(program(own).numpy(), eager, rtol=1e-9, atol=1e-12)


def function_of_values(a: Any) -> Any:
    y = L.inv(a) if float(pb.sum(a).numpy()) > 0 else a * 2.0
    count = 0
    while float(pb.max(pb.abs(y)).numpy()) > 1e-3 and count < 20:
        y, count = L.solve(a, y) * 0.5, count + 1
    return y


def test_over_samples() -> None:
    samples = pb.tensor(well(5, 4, 4))

    def function(a: Any) -> Any:
        return pb.sum(pb.sin(L.inv(a, method="host"))) + L.slogdet(a, method="host")[1]

    program = pb.jit(pb.vmap(pb.grad(function)), options=LLVM)
    plain = pb.grad(lambda a: pb.sum(pb.sin(L.inv(a))) + L.slogdet(a)[1])
    wanted = np.stack([plain(s).numpy() for s in samples])
    np.testing.assert_allclose(program(samples).numpy(), wanted, rtol=1e-9)
    assert all(call.sources[0].shape == (5, 4, 4) for call in program.program.host_calls)
    jacobian = pb.jit(lambda a: pb.jacobian(lambda x: L.inv(x, method="host"))(a), options=LLVM)
    np.testing.assert_allclose(
        jacobian(samples[0]).numpy(), pb.jacobian(L.inv)(samples[0]).numpy(), rtol=1e-9
    )


def test_samples_that_do_not_count_raise_nothing() -> None:
    """Both sides run for every sample where the condition differs by sample."""
    samples = pb.tensor(np.stack([np.eye(3), np.zeros((3, 3)), 2 * np.eye(3)]))

    def function(a: Any) -> Any:
        return pb.cond(a[0, 0] > 0, lambda a: L.inv(a, method="host"), lambda a: a + 7.0, a)

    found = pb.jit(pb.vmap(function), options=LLVM)(samples).numpy()
    wanted = np.stack([np.eye(3), np.full((3, 3), 7.0), np.eye(3) / 2])
    np.testing.assert_allclose(found, wanted)


# --- what has no such factors --------------------------------------------------------------------


@pytest.mark.parametrize("backend", EVERY)
def test_singular_matrices(backend: str) -> None:
    """Asked for, LAPACK raises as on values; where it was taken by price, as generated: NaN."""
    good = well(40, 40)
    both = pb.tensor(np.stack([good, np.ones((40, 40))]))
    asked = pb.jit(lambda a: L.inv(a * 2.0, method="host"), options=EVERY[backend])
    with pytest.raises(SingularError, match="inv: Singular matrix") as caught:
        asked(both)
    assert caught.value.origin is not None
    assert caught.value.origin.excerpt().count("test_host_calls.py") == 1
    np.testing.assert_allclose(asked(both[:1]).numpy()[0], np.linalg.inv(good * 2), atol=1e-12)
    if backend == "checked":
        return
    priced = pb.jit(L.inv, options=EVERY[backend])
    found = priced(both).numpy()
    assert names(priced) == ["inv"]
    np.testing.assert_allclose(found[0], np.linalg.inv(good), atol=1e-12)
    assert np.isnan(found[1]).all()


def test_singular_beside_threads() -> None:
    """A program that feeds ends its threads and says what the host said."""
    seen: list[Any] = []
    rows = iter([np.eye(3), 2 * np.eye(3), np.zeros((3, 3)), np.eye(3)])

    def train() -> None:
        def step() -> None:
            batch = pb.Feeder(lambda: next(rows), shape=(3, 3), dtype="float64")
            pb.Receiver(seen.append, L.inv(batch, method="host"))

        pb.loop(4, step)

    program = pb.jit(train, options=LLVM)
    with pytest.raises(SingularError):
        program()
    assert [float(s[0, 0]) for s in seen] == [1.0, 0.5]


class Unready(Exception):
    """A user's own."""


class Stepping(nn.Module):
    """A product that the host computes on both sides of what it assigns; the `at`-th one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(np.zeros(()))
        self.turned = nn.Buffer(np.eye(3))
        self.at = -1

    def product(self, a: Any, b: Any) -> Any:
        self.at -= 1
        if self.at == -1:
            raise Unready("not now")
        return np.matmul(a, b)

    def rule(self) -> Any:
        @pb.rules.rewrite
        def by_host(definition: Definition) -> Any:
            product = pb.rules.product(definition)
            return product and pb.rules.on_host(self.product, product.left, product.right)

        return by_host

    def step(self, x: Any) -> Any:
        self.count.assign(self.count + 1.0)
        self.turned.assign(self.turned @ self.turned + 0.5)
        return pb.sum(x @ self.turned)

    def state(self) -> tuple[float, Any]:
        return float(self.count.numpy()), self.turned.numpy().copy()


@pytest.mark.parametrize("backend", EVERY)
def test_what_a_users_function_raises(backend: str) -> None:
    """It is the user's own error, with the line; the state is that of the last whole step."""
    whole = Stepping()
    states = [whole.state()]
    for _ in range(2):
        whole.step(pb.ones((2, 3), dtype="float64"))
        states.append(whole.state())
    zero, one = pb.zeros((), dtype="float64"), pb.eye(3, dtype="float64")
    model = Stepping()

    def train(x: Any) -> Any:
        return pb.loop(2, lambda i, total: total + model.step(x), pb.zeros((), dtype="float64"))

    program = pb.jit(train, options=replace(EVERY[backend], rules=[model.rule()]))
    for at in range(4):
        model.at = at
        model.count.assign(zero)
        model.turned.assign(one)
        with pytest.raises(Unready, match=r"^not now") as caught:
            program(pb.ones((2, 3), dtype="float64"))
        (note,) = caught.value.__notes__
        assert note.startswith("raised by the function of the host for ")
        assert ("x @ self.turned" if at % 2 else "self.turned @ self.turned") in note
        count, turned = states[0 if backend == "checked" else at // 2]  # checked works on copies
        assert model.state()[0] == count, at
        np.testing.assert_allclose(model.state()[1], turned)
    model.at = -1
    model.count.assign(zero)
    model.turned.assign(one)
    program(pb.ones((2, 3), dtype="float64"))
    np.testing.assert_allclose(model.state()[1], states[2][1])


def test_a_function_that_ends_the_process_ends_the_threads() -> None:
    """Whatever it raises: who feeds is not left waiting."""

    def train(a: Any) -> None:
        def step() -> None:
            batch = pb.Feeder(lambda: np.eye(3), shape=(3, 3), dtype="float64")
            pb.Receiver(lambda _: None, batch @ a)

        pb.loop(1000, step)

    def ends(*_: Any) -> Any:
        raise SystemExit(3)

    rule = pb.rules.rewrite(
        lambda d: (p := pb.rules.product(d)) and pb.rules.on_host(ends, p.left, p.right)
    )
    program = pb.jit(train, options=replace(LLVM, rules=[rule]))
    before = set(threading.enumerate())
    with pytest.raises(SystemExit) as caught:
        program(pb.eye(3, dtype="float64"))
    assert "batch @ a" in caught.value.__notes__[0]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


# --- programs as such ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", EVERY)
def test_symbolic_batches(backend: str) -> None:
    program = pb.jit(
        lambda a, b: L.solve(a, b * 2.0, method="host"),
        shapes=[(pb.dim("n", 1, 9), 4, 4), (pb.dim("n", 1, 9), 4, 2)],
        options=EVERY[backend],
    )
    for n in (1, 9, 3):
        a, b = well(n, 4, 4), drawn(n, 4, 2)
        np.testing.assert_allclose(program(a, b), np.linalg.solve(a, b * 2), atol=1e-11)
    assert program.traces == 1


def test_memory_is_not_shared_too_early() -> None:
    """What one call of the host reads lies under no result of another, in loops neither."""
    draws = np.random.default_rng(5)  # of its own: how far rounding grows depends on the matrices
    a, b = (pb.tensor(draws.normal(size=(6, 6)) + 3 * np.eye(6)) for _ in range(2))

    def function(a: Any, b: Any) -> Any:
        def step(i: Any, carry: Any) -> Any:
            x, y = carry
            one, two = pb.sin(x) + 3 * pb.eye(6, dtype="float64"), pb.cos(y) + 4.0
            first = L.inv(one, method="host")
            _, sizes, right = L.svd(one, method="host")
            last = L.solve(one, two, method="host")
            return first @ two + sizes, pb.tanh(last @ right)

        return pb.loop(4, step, (a, b))

    program = pb.jit(function, options=LLVM)
    alone = pb.jit(function, options=REFERENCE)
    for found, wanted in zip(values(program(a, b)), values(alone(a, b)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_what_the_host_assigns_in_a_loop_changes_in_it() -> None:
    """No copy of it is taken before the loop, as of what stays (`prepare/ahead.py`)."""
    w, h, z = (
        Variable(n, s, float32) for n, s in (("w", (32, 24)), ("h", (4, 24)), ("z", (4, 32)))
    )
    product = define("z", (4, 32), lambda i, j, k: Mul(read(h, i, k), read(w, j, k)), over=[24])
    compute = Compute(Graph(((z, product),)))
    call = HostCall("drawn", "", lambda z: (np.ones((32, 24), np.float32),), (z,), (w,))
    assert written((call, compute)) == [w, z]
    assert len(turned_ahead((Loop((compute,), 8),), chosen("zen4"))) == 2  # the copy, then the loop
    assert len(turned_ahead((Loop((call, compute), 8),), chosen("zen4"))) == 1


def test_what_nobody_reads_is_not_asked() -> None:
    def function(a: Any) -> Any:
        L.svd(a, method="host")
        return a * 2.0

    assert names_of(function, pb.tensor(well(4, 4)), LLVM) == []


@pytest.mark.slow
def test_a_memory_budget() -> None:
    a = pb.tensor(well(32, 32))

    def function(a: Any) -> Any:
        parts = [pb.sin(a * n) for n in range(1, 5)]
        middle = L.inv(a, method="host")
        return sum(p @ middle + p for p in parts)

    wanted = pb.jit(function, options=LLVM)(a).numpy()
    with pytest.raises(MemoryBudgetError) as caught:
        pb.jit(function, options=replace(LLVM, memory=1))(a)
    tight = pb.jit(function, options=replace(LLVM, memory=caught.value.smallest))
    np.testing.assert_allclose(tight(a).numpy(), wanted, rtol=1e-12)


@pytest.mark.slow
def test_programs_are_recalled(tmp_path: Path) -> None:
    text = (
        "import numpy as np, pullback as pb\n"
        "f = pb.jit(lambda a: pb.linalg.inv(a * 2.0, method='host') + 1.0)\n"
        "y = f(pb.tensor(np.diag([1.0, 2.0, 4.0]))).numpy()\n"
        "print(f.program.stats.compiled, [c.name for c in f.program.host_calls], y[2, 2])\n"
    )
    lines = []
    for _ in range(2):
        out, errors = python(text, cache=tmp_path).communicate(timeout=120)
        assert not errors, errors
        lines.append(out.split(" ", 1))
    assert int(lines[0][0]) > 0 and int(lines[1][0]) == 0
    assert lines[0][1] == lines[1][1] == "['inv'] 1.125\n"


def test_they_are_shown_and_timed() -> None:
    program = pb.jit(lambda a: L.inv(a * 2.0, method="host"), options=replace(LLVM, profile=True))
    program(pb.tensor(well(4, 4)))
    text = program.program.explain()
    assert text.count(") by NumPy") == 2  # as traced, and as run
    assert [s.name for s in program.program.profile.spans].count("host") == 1
    (call,) = program.program.host_calls
    assert "NumPy" in call.library and call.origin is not None


def test_where_there_is_no_host() -> None:
    a = pb.tensor(well(4, 4))
    program = pb.jit(lambda a: L.inv(a, method="host"), options=LLVM)
    program(a)
    traced = program.program.program
    with pytest.raises(UnsupportedError, match="E356"):
        compile_program(Program(traced.body, traced.state), GENERATED)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("E356", lambda: pb.jit(lambda a: L.inv(a, method="host"), options=GENERATED)(a)),
        ("E353", lambda: pb.vmap(lambda a: L.inv(a, method="host"))(pb.ones((2, 4, 4)))),
        ("E353", lambda: L.solve_triangular(a, a, upper=True, method="host")),
        ("E353", lambda: pb.jit(lambda a: L.solve_triangular(a, a, upper=True, method="host"))(a)),
    ]
    for code, call in refused:
        with pytest.raises(PullbackError, match=code) as caught:
            call()
        assert caught.value.origin is not None


def test_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_HOST", "0")
    assert not pb.Options.from_environment().host
    monkeypatch.delenv("PULLBACK_HOST")
    assert pb.Options.from_environment().host


def test_what_a_function_gives_is_looked_at() -> None:
    program = pb.jit(lambda a: L.inv(a, method="host"), options=LLVM)
    program(pb.tensor(well(4, 4)))
    (call,) = program.program.host_calls
    given = [np.ones((4, 4))]
    for wrong in (np.ones(4), np.ones((4, 4), np.float32)):
        bad = HostCall("bad", "", lambda a, w=wrong: (w,), call.sources, call.targets)
        with pytest.raises(InvalidIR, match="bad gave"):
            call_host(bad, given, {})

    def writes(a: Any) -> Any:
        a[0] = 0.0

    with pytest.raises(ValueError, match="read-only"):
        call_host(replace(call, function=writes), given, {})


def test_in_an_operator_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    @pb.torch.op
    def solved_by_the_host(a: Any, b: Any) -> Any:
        return L.solve(a, b, method="host")

    a = torch.tensor(well(5, 5), requires_grad=True)
    b = torch.tensor(drawn(5, 2))
    found = solved_by_the_host(a, b)
    torch.testing.assert_close(found, torch.linalg.solve(a, b))
    (slope,) = torch.autograd.grad(found.sin().sum(), a)
    (wanted,) = torch.autograd.grad(torch.linalg.solve(a, b).sin().sum(), a)
    torch.testing.assert_close(slope, wanted)
