"""Checked runs: the same bits, and an error at the line that makes NaN. Reports of faults."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import errors, nn, optim, pipeline
from pullback.backends.base import Call, Code, Part, Stored
from pullback.backends.host.checked import FENCE, ROUTINE, Checked
from pullback.backends.loops import backend as loops
from pullback.backends.registry import oracle
from pullback.ir.dtype import float32
from pullback.ir.graph import Graph, Variable
from pullback.ir.program import Compute
from pullback.tensor.face.tree import flatten
from small_programs import PROGRAMS

CHECKED = pb.Options(check=True, cache=None)
PLAIN = pb.Options(check=False, cache=None)


def results(name: str, options: pb.Options) -> list[np.ndarray[Any, Any]]:
    function, arguments = PROGRAMS[name]("float32")
    pb.random.manual_seed(0)
    found = pb.jit(function, options=options)(*arguments)
    return [h.numpy() for h in flatten(found).handles]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_checked_program_gives_the_same_bits(name: str) -> None:
    for own, plain in zip(results(name, CHECKED), results(name, PLAIN), strict=True):
        assert own.dtype == plain.dtype
        assert own.tobytes() == plain.tobytes()


def train(options: pb.Options) -> list[float]:
    """Five steps of everything at once: feeder, batch norm, dropout, clipping, receiver."""
    pb.random.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    opt = optim.AdamW(model.parameters(), lr=0.02)
    losses: list[float] = []

    def step() -> None:
        batch = pb.Feeder(lambda: x, shape=(16, 6))
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(batch), pb.sum(batch, axis=1)[:, None])
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        pb.Receiver(lambda value: losses.append(value.item()), [loss])

    pb.jit(lambda: pb.loop(5, step), options=options)()
    return losses


def test_training_is_the_same() -> None:
    assert train(CHECKED) == train(PLAIN)


def test_symbolic_extents_are_looked_at_as_far_as_they_go() -> None:
    n = pb.dim("n", 1, 16)
    f = pb.jit(lambda x: pb.sum(pb.log(x) * 2.0), shapes=[(n,)], options=CHECKED)
    assert f(pb.ones(5)).item() == 0.0
    assert f(pb.ones(16)).item() == 0.0
    with pytest.raises(errors.NaNError, match="at \\[3\\]"):
        f(pb.tensor([1.0, 1.0, 1.0, -1.0, 1.0]))


def logs(x: pb.Tensor) -> pb.Tensor:
    y = pb.log(x)  # here
    return pb.exp(y - pb.max(y))


def test_the_line_that_makes_nan_is_named() -> None:
    with pytest.raises(errors.NaNError) as caught:
        pb.jit(logs, options=CHECKED)(pb.tensor([1.0, 2.0, -3.0]))
    assert "is NaN at [2]" in str(caught.value)
    assert caught.value.origin is not None
    assert "y = pb.log(x)  # here" in caught.value.origin.excerpt()


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_every_float_is_looked_at(kind: str) -> None:
    x = pb.tensor([1.0, -2.0]).astype(kind)
    with pytest.raises(errors.NaNError):
        pb.jit(pb.sqrt, options=CHECKED)(x)


def test_nan_that_comes_in_is_the_callers() -> None:
    found = pb.jit(logs, options=CHECKED)(pb.tensor([1.0, np.nan, -3.0]))
    assert np.isnan(found.numpy()).any()


def test_a_side_that_is_not_taken_has_no_nan() -> None:
    guarded = pb.jit(pb.grad(lambda x: pb.sum(pb.where(x > 0.0, pb.log(x), 0.0))), options=CHECKED)
    assert guarded(pb.tensor([2.0, -1.0])).tolist() == [0.5, 0.0]


def test_states_are_as_before_the_call() -> None:
    state = pb.State(pb.ones(2))

    @pb.jit(options=CHECKED)
    def step(x: pb.Tensor) -> pb.Tensor:
        state.assign(state + 1.0)
        return pb.log(x)

    with pytest.raises(errors.NaNError):
        step(pb.tensor([-1.0]))
    assert state.tolist() == [1.0, 1.0]
    step(pb.tensor([1.0]))
    assert state.tolist() == [2.0, 2.0]


def test_an_index_out_of_range_is_found() -> None:
    f = pb.jit(lambda t, i: pb.take(t, i, axis=0), options=CHECKED)
    with pytest.raises(errors.IndexRangeError, match="index 9"):
        f(pb.ones(4), pb.tensor([0, 9]))


def test_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CHECK", "1")
    assert pb.Options.from_environment().check
    with pytest.raises(errors.NaNError):
        pb.jit(pb.log)(pb.tensor([-1.0]))
    monkeypatch.setenv("PULLBACK_CHECK", "0")
    assert not pb.Options.from_environment().check


# --- faults of the compiler's --------------------------------------------------------------------

Body = Callable[[Any, Any], None]


def launched(body: Body) -> np.ndarray[Any, Any]:
    """What a routine of one task makes of four numbers, ``y = f(x)``."""
    x, y = Variable("x", (4,), float32), Variable("y", (4,), float32)

    def called(block: int, task: int, scratch: int) -> None:
        slots = ctypes.cast(block, ctypes.POINTER(ctypes.c_void_p))
        floats = ctypes.POINTER(ctypes.c_float)
        body(ctypes.cast(slots[0], floats), ctypes.cast(slots[1], floats))

    routine = ROUTINE(called)
    at = ctypes.cast(routine, ctypes.c_void_p).value
    code = Code(Stored("planted", "", False, 0, (), (), 1, ()), at or 0, 0, routine)
    call = Call("planted", (Part(code, (x, y)),), (), (y,), 0)
    kernel: Any = "kernel"
    checked = Checked((Compute(Graph(((y, x),))),), [[kernel]], {kernel: call}, oracle)
    given = {x: np.ones(4, np.float32), y: np.zeros(4, np.float32)}
    checked.run(given, {})
    return given[y]


def copy(x: Any, y: Any) -> None:
    for n in range(4):
        y[n] = x[n]


def test_a_planted_launch_runs() -> None:
    assert launched(copy).tolist() == [1.0] * 4


@pytest.mark.parametrize("place", [-1, 4, FENCE // 4 + 3, -FENCE // 4])
def test_a_write_outside_is_found(place: int) -> None:
    def wild(x: Any, y: Any) -> None:
        copy(x, y)
        y[place] = 7.0

    with pytest.raises(errors.InvalidIR, match="planted writes outside of"):
        launched(wild)


def test_a_read_outside_is_found() -> None:
    def wild(x: Any, y: Any) -> None:
        copy(x, y)
        y[3] = x[4] * 2.0

    with pytest.raises(errors.InvalidIR, match="never written"):
        launched(wild)


def test_what_is_not_written_is_found() -> None:
    def lazy(x: Any, y: Any) -> None:
        y[0] = x[0]

    with pytest.raises(errors.InvalidIR, match="not written everywhere"):
        launched(lazy)


def broken(*given: Any, **named: Any) -> Any:
    raise errors.InvalidIR("planted")


def test_a_fault_says_how_to_report_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loops, "lowered", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(errors.InvalidIR) as caught:
        pb.jit(logs, options=PLAIN)(np.ones(3))
    (said,) = caught.value.__notes__
    (folder,) = tmp_path.iterdir()
    assert "fault of the compiler" in said and str(folder) in said
    assert f"`pullback resume {folder}/" in said and said.endswith("runs into it again.")
    (graph,) = folder.glob("*-traced-graph.txt")
    assert "log" in graph.read_text()
    facts = (folder / "fault.txt").read_text()
    assert "planted" in facts and "numpy " in facts and "Options(" in facts


def test_a_fault_uses_the_folder_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "fuse", broken)
    options = pb.Options(cache=None, dump=tmp_path / "dump")
    with pytest.raises(errors.InvalidIR) as caught:
        pb.jit(logs, options=options)(np.ones(3))
    assert str(tmp_path / "dump") in caught.value.__notes__[0]
    assert (tmp_path / "dump" / "fault.txt").exists()


def test_a_mistake_is_no_fault() -> None:
    with pytest.raises(errors.UnsupportedError) as caught:
        pb.jit(logs, options=pb.Options(backend="abacus"))(pb.ones(3))
    assert not hasattr(caught.value, "__notes__")


A, B, E = np.array([7, 8, -9]), np.array([2, 0, 3]), np.array([2, -1, 3])
k = pb.axis(3, "k")
DIVIDED: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "floor_divide": (lambda a, b: a // b, A, B),
    "remainder": (lambda a, b: (a % b) * 2, A, B),
    "fmod": (lambda a, b: pb.fmod(a, b), A, B),
    "pow": (lambda a, b: a**b + 1, A, E),
    "unsigned": (lambda a, b: a // b, A.astype("uint8"), B.astype("uint8")),
    "a number": (lambda a, b: a // 0, A, B),
    "in a sum": (
        lambda a, b: pb.compute((2,), lambda i: pb.sum(a[k] // (b[k] - i), over=k)), A, B,
    ),
    "summed later": (lambda a, b: pb.sum(a // b), A, B),
    "written at places": (lambda a, b: pb.zeros(4, dtype="int64").at[b].add(a // b), A, B),
    "in a loop": (lambda a, b: pb.loop(3, lambda n, x: a // (x - n), b), A, B + 7),
}  # fmt: skip
WHOLE: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "no zero": (lambda a, b: a // (b + 1) + a % (b + 1) + a**b, A, B),
    "floats": (lambda a, b: a // b, A.astype("float32"), B.astype("float32")),
    "dropped by a mask": (lambda a, b: pb.where(b == 0, 0, a // b), A, B),
    "dropped where it is written": (
        lambda a, b: pb.compute((3,), lambda i: pb.where(b[i] < 0, 0, a[i] ** b[i])), A, E,
    ),
    "not read": (lambda a, b: (a // b)[::2], A, B),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DIVIDED)
def test_integers_by_zero_and_negative_powers_are_told(name: str) -> None:
    function, x, y = DIVIDED[name]
    given = pb.tensor(x), pb.tensor(y)
    pb.jit(function, options=PLAIN)(*given)
    with pytest.raises(errors.DivisionError, match="an integer by 0, or to a negative") as caught:
        pb.jit(function, options=CHECKED)(*given)
    assert caught.value.code == "E702" and "test_checked.py" in str(caught.value)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WHOLE)
def test_what_divides_by_nothing_is_what_it_was(name: str) -> None:
    function, x, y = WHOLE[name]
    given = pb.tensor(x), pb.tensor(y)
    checked = pb.jit(function, options=CHECKED)(*given).numpy()
    np.testing.assert_array_equal(checked, pb.jit(function, options=PLAIN)(*given).numpy())
