"""Machines of many cores: more tasks where their price says so, the same bits on any number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import host_target, named_target
from pullback.backends.nests.cores import for_cores
from pullback.config import Options
from pullback.ir.graph import Accumulate
from pullback.machine.machine import chosen, with_numbers
from pullback.schedule.choose import choose
from pullback.schedule.cost import longest

F = pb.nn.functional
CORES = 64


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This processor, sixty-four times."""
    profile = host_target().profile
    path = Path(tmp_path_factory.mktemp("machine")) / "many.toml"
    path.write_text(
        f'name = "many"\nabout = "many cores"\nbase = "{profile.name}"\n'
        f'target = "{profile.target}"\ncpus = []\n'
        f'[launch]\nsource = "a count"\nprocessors = {CORES}\n'
    )
    return str(path)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def chain(x: Any) -> Any:
    return pb.tanh(x) * 2 + pb.exp(-x * x)


def loss(x: Any, w: Any) -> Any:
    return pb.sum(pb.softmax(x @ w, axis=-1) ** 2)


def arrays(results: Any) -> list[np.ndarray[Any, Any]]:
    every = results if isinstance(results, tuple | list) else (results,)
    return [np.asarray(pb.asarray(t)) for t in every]


WORK: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "map": (chain, (normal(700, 1000),), True),
    "softmax": (lambda x: pb.softmax(x, axis=-1), (normal(611, 513),), True),
    "columns": (lambda x: pb.sum(pb.tanh(x), axis=0), (normal(4096, 130),), True),
    "sum": (lambda x: pb.sum(pb.sin(x)), (normal(4096, 130),), True),
    "product": (lambda a, b: a @ b, (normal(300, 257), normal(257, 310)), False),
    "gradient": (pb.grad(loss, argnums=(0, 1)), (normal(250, 130), normal(130, 190)), False),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (normal(3, 17, 30, 31), normal(19, 17, 3, 3)),
        False,
    ),
    "few": (chain, (normal(5, 7),), False),
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WORK)
def test_the_same_bits_on_any_number_of_threads(name: str, machine: str) -> None:
    function, args, _ = WORK[name]
    results = []
    for threads in (1, 2, 5, CORES):
        options = pb.Options(machine=machine, threads=threads, backend="llvm")
        results.append(arrays(pb.jit(function, options=options)(*args)))
    wanted = arrays(pb.jit(function, options=pb.Options(backend="llvm", threads=1))(*args))
    for one, want in zip(results[0], wanted, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4)
    for other in results[1:]:
        assert [o.tobytes() for o in other] == [o.tobytes() for o in results[0]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WORK)
def test_more_tasks_where_they_are_worth_it(name: str, machine: str) -> None:
    function, args, more = WORK[name]
    counts = {}
    for label, options in (("few", pb.Options()), ("many", pb.Options(machine=machine))):
        compiled = pb.jit(function, options=options)
        compiled(*args)
        kernels = compiled.program.distinct()
        made = [pb.schedule(compiled, kernel=n).schedule for n in range(len(kernels))]
        counts[label] = [s.tasks for s in made]
    assert all(many >= few for few, many in zip(counts["few"], counts["many"], strict=True))
    assert max(counts["many"]) < 2 * CORES
    if more:
        assert max(counts["many"]) > 8, counts
    if name == "few":
        assert counts["few"] == counts["many"]


def test_machines_of_few_cores_keep_their_schedules() -> None:
    """Nothing is asked of a price where the machine deals work to no more than eight."""
    compiled = pb.jit(chain, options=pb.Options(backend="llvm"))
    compiled(normal(700, 1000))
    (kernel,) = compiled.program.distinct()
    target = named_target("x86-64-v3")
    assert for_cores(kernel, target, ()) == ()
    chosen = dict(
        for_cores(kernel, target.on(with_numbers(target.profile, "launch", processors=16)), ())
    )
    assert 8 < chosen["tasks"] < 32, chosen


def test_a_machine_of_other_counts_is_another_key() -> None:
    profile = host_target().profile
    assert repr(with_numbers(profile, "launch", processors=CORES)) != repr(profile)
    assert with_numbers(profile, "launch", processors=CORES).rate(
        "launch", "tasks"
    ) == profile.rate("launch", "tasks")


def test_scatters_stay_as_they_are(machine: str) -> None:
    """Each task would go through all places."""
    places = np.random.default_rng(1).integers(0, 500, 4000)
    rows = normal(4000, 64)

    def add(p: Any, r: Any) -> Any:
        return pb.zeros((500, 64)).at[p].add(r)

    few, many = (
        pb.jit(add, options=o) for o in (pb.Options(backend="llvm"), pb.Options(machine=machine))
    )
    assert few(places, rows).numpy().tobytes() == many(places, rows).numpy().tobytes()


@pytest.mark.parametrize(
    ("rows", "count", "columns", "tasks"), [(20_000, 200_000, 64, 1), (2_000, 20_000, 256, 2)]
)
def test_fewer_tasks_where_each_goes_through_all_places(
    rows: int, count: int, columns: int, tasks: int
) -> None:
    """Rows that are read and added at places that are data, of `columns` each."""

    def messages(at: Any, frm: Any, x: Any) -> Any:
        return pb.zeros((rows, columns)).at[at].add(x[frm])

    rng = np.random.default_rng(0)
    at, frm = rng.integers(0, rows, (2, count)).astype(np.int32)
    compiled = pb.jit(messages, options=pb.Options(backend="llvm"))
    compiled(at, frm, normal(rows, columns))
    kernels = compiled.program.distinct()
    (kernel,) = (k for k in kernels if any(isinstance(s.form, Accumulate) for s in k.stages))
    target = named_target("x86-64-v3")
    given = dict(for_cores(kernel, target, ()))
    assert given == {"tasks": tasks, "tile.0": columns // tasks}


def test_each_visit_of_a_part_of_a_row_waits() -> None:
    """Rows of 4 KiB in order, added to 100 others: two tasks would each read half of every row."""
    at = np.random.default_rng(0).integers(0, 100, 4096).astype(np.int32)
    compiled = pb.jit(lambda at, x: pb.zeros((100, 1024)).at[at].add(x))
    compiled(at, normal(4096, 1024))
    kernels = compiled.program.distinct()
    (kernel,) = (k for k in kernels if any(isinstance(s.form, Accumulate) for s in k.stages))
    target = named_target("x86-64-v3").on(chosen("zen3"))
    assert dict(for_cores(kernel, target, ()))["tasks"] == 1


def test_few_pictures_of_few_channels_are_few_tasks() -> None:
    """Eight tasks would have two channels each, an eighth of their lanes; two have all fourteen."""

    def by_data(w: Any, h: Any, x: Any) -> Any:
        return pb.vjp(lambda v: F.conv2d(v, w, stride=2, padding=1), x)[1](h)

    program = pb.jit(by_data, options=Options(cache=None))
    program(normal(405, 14, 3, 3), normal(2, 405, 17, 17), normal(2, 14, 33, 33))
    target = named_target("x86-64-v4").on(with_numbers(chosen("zen4"), "launch", processors=2))
    schedule = choose(program.program.kernels[-1], target)
    assert schedule.tasks == 2 and 14 in schedule.tile, schedule.tile


def test_the_thread_with_the_most_tiles() -> None:
    assert longest(7, 4, 2) == 4 / 7  # tasks of 1, 2, 2, 2 tiles by turns
    assert longest(14, 14, 8) == 2 / 14
    assert longest(3, 8, 1) == 1
