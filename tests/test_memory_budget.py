"""A byte budget: launches run again so that the arena fits; parameters are the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from acceptance_support import Array, normal, rng, step_kernels
from pullback import nn, optim
from pullback.backends.registry import named
from pullback.config import Options, parse_bytes
from pullback.errors import MemoryBudgetError, OptionError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.graph import Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.program import Feed, Item, Launch, Loop
from pullback.ir.signature import kernel_digest
from pullback.memory.plan import check
from pullback.memory.timeline import Timeline
from pullback.nn.sequence.gpt import Block
from pullback.runtime.executable import Executable
from pullback.schedule.choose import choose
from pullback.schedule.split import split
from pullback.verify.kernel import verify_kernel
from test_acceptance_seed import HEADS, INNER, WIDTH

SHARE = 0.6  # of the arena without a budget
MORE_WORK = 1.4

STEPS = 5

Make = Callable[[], nn.Module]
Trained = tuple[dict[str, Array], Executable]


def seed_transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, activation="relu")
    return nn.TransformerEncoder(layer, 6)


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for n in range(6):
        layers += [nn.Linear(128, 128), nn.ReLU() if n % 2 else nn.Tanh()]
    return nn.Sequential(*layers)


def wide_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 256, dropout=0.1, activation="gelu")
    return nn.TransformerEncoder(layer, 2)


def gpt_blocks() -> nn.Module:
    return nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(2)))


INPUTS = {
    seed_transformer: normal(2, WIDTH, seed=5),
    mlp: normal(256, 128, seed=5),
    wide_encoder: normal(96, WIDTH, seed=5),
    gpt_blocks: normal(2, 96, WIDTH, seed=5),
}


def trained(
    make: Make, options: Options, memory: int | str | None = None
) -> tuple[dict[str, Array], Executable]:
    """Parameters after training on the mean square of the output, and the program."""
    pb.random.manual_seed(0)
    x = INPUTS[make]
    model, draw = make(), rng(3)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict(
        {n: (draw.standard_normal(s) * 0.1).astype(np.float32) for n, s in shapes.items()}
    )
    opt = optim.SGD(model.parameters(), lr=0.1)
    given = pb.tensor(x)

    def step() -> None:
        opt.zero_grad()
        y = model(given)
        (y * y).mean().backward()
        opt.step()

    @pb.jit(options=options, memory=memory)
    def train() -> None:
        pb.loop(range(STEPS), step)

    train()
    return {name: np.array(v) for name, v in model.state_dict().items()}, train.program


def same_bits(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, array in wanted.items():
        assert np.isfinite(array).all(), name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """A cache of our own: equal kernels are compiled once."""
    return Options(threads=2, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def plain(options: Options) -> Trained:
    """The seed transformer without a budget."""
    return trained(seed_transformer, options)


@pytest.fixture(scope="module")
def fitted(options: Options, plain: Trained) -> Trained:
    """The seed transformer in 60 % of its arena."""
    return trained(seed_transformer, options, int(SHARE * plain[1].memory.arena_bytes))


@pytest.mark.slow
def test_seed_transformer_trains_in_60_percent(plain: Trained, fitted: Trained) -> None:
    wanted, before = plain
    found, program = fitted
    same_bits(found, wanted)
    check(program.memory.placed)
    assert program.memory.arena_bytes <= SHARE * before.memory.arena_bytes
    assert before.cost.flops < program.cost.flops <= MORE_WORK * before.cost.flops
    assert program.cost.executed <= MORE_WORK * before.cost.executed
    extra = len(step_kernels(program)) - len(step_kernels(before))
    assert extra == len(program.steps) > 0
    assert program.launches == STEPS * len(step_kernels(program))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "share"), [(mlp, 0.85), (wide_encoder, 0.75), (gpt_blocks, 0.85), (gpt_blocks, 0.6)]
)
def test_networks_train_to_the_same_bits(options: Options, make: Make, share: float) -> None:
    wanted, before = trained(make, options)
    budget = int(share * before.memory.arena_bytes)
    found, program = trained(make, options, budget)
    same_bits(found, wanted)
    assert program.steps
    assert program.memory.arena_bytes <= budget
    assert program.cost.flops <= MORE_WORK * before.cost.flops


@pytest.mark.slow
def test_a_larger_budget_changes_nothing(options: Options, plain: Trained) -> None:
    before = plain[1]
    _, program = trained(seed_transformer, options, before.memory.arena_bytes)
    assert not program.steps
    assert program.memory.arena_bytes == before.memory.arena_bytes
    assert program.cost == before.cost
    assert len(program.kernels) == len(before.kernels)


@pytest.mark.slow
def test_explain_says_what_runs_again_and_why(plain: Trained, fitted: Trained) -> None:
    assert "== computed again" not in plain[1].explain()
    program = fitted[1]
    text = program.explain().split("== computed again\n")[1].split("\n\n")[0]
    assert len(text.splitlines()) == len(program.steps)
    for kernel, step in program.recomputed:
        assert step.freed > 0 and step.flops > 0
        assert f"{kernel.name}, launch {step.source}, again before {step.before}" in text
        assert f"frees {step.freed} bytes" in text
        assert f"for {step.flops} operations" in text


@pytest.mark.slow
def test_no_step_is_needless(options: Options, plain: Trained) -> None:
    _, program = trained(seed_transformer, options, int(0.9 * plain[1].memory.arena_bytes))
    assert len(program.steps) == 1


@pytest.mark.slow
def test_too_small_a_budget_says_how_small_it_can_get_at_the_users_line(options: Options) -> None:
    with pytest.raises(MemoryBudgetError, match=r"budget of 1,024 bytes is too small") as info:
        trained(mlp, options, "1KB")
    error = info.value
    assert isinstance(error, MemoryError)
    assert error.origin is not None
    assert Path(error.origin.code.co_filename) == Path(__file__)
    assert "model(given)" in error.origin.excerpt()
    assert "float32[256, 128] 131,072" in error.what
    assert "working memory" in error.what
    assert Path(__file__).name in error.what
    smallest = int(error.help.split("memory=")[1].split()[0])
    assert smallest == error.smallest
    _, program = trained(mlp, options, smallest)
    assert program.memory.arena_bytes <= smallest


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64 << 20), ("512KB", 512 << 10), ("1.5 kb", 1536), ("2GiB", 2 << 30), (7, 7)],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("bad", ["64", "MB", "-1KB", "1PB", "", 0, -5, 1.5, True])
def test_what_is_no_size_is_refused(bad: Any) -> None:
    with pytest.raises(
        OptionError, match="a number of bytes or text like '64MB' is needed"
    ) as info:
        pb.jit(memory=bad)
    assert info.value.origin is not None
    assert Path(info.value.origin.code.co_filename) == Path(__file__)


@pytest.mark.slow
def test_a_budget_is_part_of_the_record(options: Options, plain: Trained, fitted: Trained) -> None:
    wanted, before = plain
    first = fitted[1]
    found, second = trained(seed_transformer, options, first.options.memory)
    same_bits(found, wanted)
    assert before.memory.arena_bytes > first.memory.arena_bytes == second.memory.arena_bytes
    assert second.stats.compiled == 0
    assert second.steps == first.steps
    assert second.cost == first.cost
    assert second.explain().count("again before") == len(first.steps)
    again, without = trained(seed_transformer, options)
    same_bits(again, wanted)
    assert without.memory.arena_bytes == before.memory.arena_bytes


def launch(target: Variable, source: Variable) -> Launch:
    """``target[i] = source[i] * source[i]``"""
    body = define(target.name, target.shape, lambda i: E.Mul(read(source, i), read(source, i)))
    stage = Stage(body, body.form, body.body, (0,), target)
    return Launch(Kernel(target.name, target.shape, (stage,)))


def test_a_launch_runs_again_only_on_what_it_has_read() -> None:
    a, b, y, z, s = (Variable(name, (8,), D.float32) for name in "abyzs")
    make, use, other = launch(y, a), launch(s, y), launch(b, z)
    between: dict[str, tuple[Item, ...]] = {
        "nothing": (),
        "another": (launch(b, a),),
        "overwritten": (launch(a, b),),
        "fed": (Feed(lambda: None, (a,), True),),
        "in a loop": (Loop((launch(a, b),), 3),),
    }
    allowed = {}
    for name, items in between.items():
        line = Timeline.of((make, *items, use), (a, b, s), {})
        allowed[name] = line.repeats(0, len(line.rows) - 1)
    assert allowed == {**dict.fromkeys(between, False), "nothing": True, "another": True}
    line = Timeline.of((make, Loop((use, other), 3)), (a, b, s, z), {})
    assert not line.repeats(0, 1), "it would run in another loop"
    assert not Timeline.of((make, use), (a, y, s), {}).repeats(0, 1), "y is state"


def test_a_repetition_ends_the_first_life() -> None:
    a, b, c, y, s = (Variable(name, (8,), D.float32) for name in "abcys")
    block = (launch(y, a), launch(b, y), launch(c, a), launch(s, y))
    line = Timeline.of(block, (a, b, c, s), {})
    assert list(line.live()) == [32, 32, 32, 32]
    line.repeat(0, 3, 4)
    assert list(line.live()) == [32, 32, 0, 32, 32]
    made = [new for pairs in line.launches() for new, _ in pairs]
    first, again, last = made[0], made[3], made[4]
    assert first.writes == (y,)
    assert made[1].reads == (y,)
    assert again.reads == (a,)
    assert last.reads == again.writes != (y,)
    assert kernel_digest(again) == kernel_digest(first)
    assert kernel_digest(last) == kernel_digest(block[3].kernel)


def test_a_launch_is_cut_where_all_that_is_still_read_is_stored(options: Options) -> None:
    _, program = trained(mlp, options)
    target = program.target
    assert target is not None
    kernel = next(k for k in program.kernels if len(k.stages) > 12)
    pieces = split(kernel, target, named("llvm").start)
    assert len(pieces) == 5, "a piece a layer, the last one with the backward"
    assert [s.target for p in pieces for s in p.every] == [s.target for s in kernel.every]
    assert {v for p in pieces for v in p.writes} == set(kernel.writes)
    for before, piece in pairwise(pieces):
        verify_kernel(piece, "split")
        assert set(piece.reads) & set(before.writes)
        assert (choose(piece, target).tile, choose(piece, target).tasks) == (
            choose(kernel, target).tile,
            choose(kernel, target).tasks,
        )


@pytest.mark.slow
def test_a_record_tells_of_launches_that_were_cut(options: Options) -> None:
    _, before = trained(mlp, options)
    budget = int(0.85 * before.memory.arena_bytes)
    wanted, first = trained(mlp, options, budget)
    found, second = trained(mlp, options, budget)
    same_bits(found, wanted)
    assert second.stats.compiled == 0
    assert second.steps == first.steps
    assert len(first.kernels) - len(first.steps) > len(before.kernels)
    assert [kernel_digest(k) for k in second.kernels] == [kernel_digest(k) for k in first.kernels]
