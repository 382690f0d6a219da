"""Records: an equal program in another process runs no pass, and nothing altered is believed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from program_support import Batches, add, cell, less, mul, product, total, value
from pullback import pipeline
from pullback.backends.base import CompileStats, Job
from pullback.backends.host.processor import host_target
from pullback.backends.llvm.backend import LLVM
from pullback.backends.loops import backend as loops
from pullback.config import Options
from pullback.errors import IndexRangeError, InvalidIR
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.graph import SUM, Accumulate, Definition, Graph, Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.program import Compute, Feed, Launch, Loop, Program, Receive
from pullback.ir.signature import kernel_digest, signature
from pullback.runtime.cache import ObjectCache
from pullback.runtime.executable import Executable
from pullback.runtime.record import Recorder
from pullback.runtime.report import Reporter

Passes = dict[str, int]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(threads=2, cache=tmp_path / "cache")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """How often each pass has been entered."""
    counts: Passes = {}
    passes = [(pipeline, n) for n in ("simplify_graph", "fuse", "plan")]
    for place, name in [*passes, (loops, "lowered"), (LLVM, "compile")]:
        counts[name] = 0
        monkeypatch.setattr(place, name, _counted(getattr(place, name), name, counts))
    return counts


def _counted(function: Callable[..., Any], name: str, counts: Passes) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return function(*args, **kwargs)

    return call


def trained(options: Options, steps: int = 6) -> tuple[list[Any], Executable]:
    """A program with every kind of item; what it leaves and hands out."""
    rng = np.random.default_rng(0)
    w, rate = cell(rng.standard_normal((6, 6))), cell(0.1)
    seen: list[Any] = []
    feed = Batches((6, 6))

    def step(i: Any, carry: Any) -> Any:
        x = pb.Feeder(feed, shape=(6, 6))
        y = product(w, x)
        w.assign(add(w, mul(y, 0.01)))
        pb.cond(less(total(y), 0.0), lambda: rate.assign(mul(rate, 0.5)), lambda: None)
        pb.Receiver(lambda a: seen.append(float(a)), [total(y)], every=2)
        return add(carry, total(y))

    @pb.jit(options=options)
    def train() -> Any:
        return pb.loop(range(steps), step, carry=mul(rate, 0.0))

    last = train()
    return [value(w), value(rate), value(last), np.array(seen)], train.program


def same(found: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_second_compilation_takes_no_pass(options: Options, passes: Passes) -> None:
    first, made = trained(options)
    assert all(passes.values()) and made.stats.compiled > 0
    before = dict(passes)
    second, recalled = trained(options)
    assert passes == before
    assert recalled.stats.compiled == 0 and recalled.stats.loaded > 0
    same(second, first)
    assert recalled.launches == made.launches
    assert recalled.bytes_moved == made.bytes_moved
    for fact in ("arena_bytes", "lower_bound_bytes", "total_bytes", "scratch", "stride", "shared"):
        assert getattr(recalled.memory, fact) == getattr(made.memory, fact)
    assert recalled.memory.picture() == made.memory.picture()


def test_what_people_look_at_is_made_on_demand(options: Options, passes: Passes) -> None:
    _, made = trained(options)
    _, recalled = trained(options)
    before = passes["fuse"]
    assert recalled.explain() == made.explain()
    assert passes["fuse"] > before
    assert recalled.source() == made.source()
    assert [k.name for k in recalled.kernels] == [k.name for k in made.kernels]
    assert len(recalled.definitions) == len(made.definitions)


def test_the_length_of_a_loop_is_the_new_one(options: Options, passes: Passes) -> None:
    trained(options, steps=6)
    before = dict(passes)
    found, _ = trained(options, steps=4)
    assert passes == before
    wanted, _ = trained(replace(options, cache=None), steps=4)
    same(found, wanted)


def test_other_threads_are_another_program(options: Options, passes: Passes) -> None:
    trained(options)
    before = passes["fuse"]
    trained(replace(options, threads=1))
    assert passes["fuse"] > before


def test_stages_that_are_to_be_seen_are_made(options: Options, tmp_path: Path) -> None:
    trained(options)
    trained(replace(options, dump=tmp_path / "stages"))
    assert any("kernel" in f.name for f in (tmp_path / "stages").iterdir())


def records(options: Options) -> list[Path]:
    """Entries that hold a program; an object file starts with other bytes."""
    assert options.cache is not None
    store = ObjectCache(options.cache)
    found = []
    for entry in store.entries():
        data = store.get(entry.key)
        if data is not None and data.startswith(b"image "):
            found.append(options.cache / f"{entry.key}.obj")
    return found


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _forget_an_object(path: Path) -> None:
    others = sorted(set(path.parent.glob("*.obj")) - {path}, key=lambda p: p.stat().st_size)
    for other in others:
        other.unlink()


def _authentic(*change: str) -> Callable[[Path], None]:
    """Replace the first place of a pattern in the text of the image."""

    def alter(path: Path) -> None:
        store = ObjectCache(path.parent)
        data = store.get(path.stem)
        assert data is not None
        text, count = re.subn(change[0], change[1], data.decode(), count=1, flags=re.MULTILINE)
        assert count == 1, text
        store.put(path.stem, text.encode())

    return alter


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        _cut,
        _forget_an_object,
        _authentic("^plan .*\n", ""),
        _authentic("^made .*\n", ""),
        _authentic("^image 1", "image 2"),
        _authentic(r"^begin \d+", "begin 1"),
        _authentic(r"^plan \[\d+, ", "plan ["),
        _authentic(r"^( *launch .*\[\[0, \[)\d+", r"\g<1>10000"),
        _authentic(r"^( *launch .*\[\[0, \[)\d+", r"\g<1>-1"),
        _authentic(r"^( *launch .*\]\]\], )\[\]", r"\1[0, 10000]"),
        _authentic('"key": "[0-9a-f]*"', '"key": "' + "0" * 64 + '"'),
        _authentic('"key":', '"colour": "red", "key":'),
        _authentic("^ *end\n", ""),
        _authentic("^ *else\n", "then\n"),
    ],
)
def test_a_damaged_record_is_built_again(
    options: Options, passes: Passes, damage: Callable[[Path], None]
) -> None:
    first, _ = trained(options)
    (path,) = records(options)
    damage(path)
    before = passes["fuse"]
    second, _ = trained(options)
    assert passes["fuse"] > before, "the damaged record was believed"
    same(second, first)
    before = passes["fuse"]
    third, _ = trained(options)
    assert passes["fuse"] == before, "the record was not made again"
    same(third, first)


def test_a_record_of_another_program_is_not_taken(options: Options, passes: Passes) -> None:
    def scaled(factor: float) -> Any:
        x = cell(np.arange(4.0))

        @pb.jit(options=options)
        def run() -> Any:
            return mul(x, factor)

        return value(run())

    scaled(2.0)
    (one,) = records(options)
    scaled(3.0)
    two = next(p for p in records(options) if p != one)
    two.write_bytes(one.read_bytes())
    assert scaled(3.0).tolist() == [0.0, 3.0, 6.0, 9.0]


def test_symbolic_extents(options: Options, passes: Passes) -> None:
    def softmax() -> Any:
        n = pb.dim("n", 1, 64)

        @pb.jit(shapes=[(n, 8)], options=options)
        def run(x: Any) -> Any:
            e = pb.exp(x - pb.max(x, axis=0, keepdims=True))
            return e / pb.sum(e, axis=0, keepdims=True)

        return run

    softmax()(np.zeros((3, 8), np.float32))
    before = dict(passes)
    again = softmax()
    for n in (1, 2, 17, 64):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        e = np.exp(x - x.max(0))
        np.testing.assert_allclose(np.array(again(x)), e / e.sum(0), rtol=1e-5)
    assert passes == before


def test_an_index_out_of_range_names_the_line_of_this_process(
    options: Options, passes: Passes
) -> None:
    def looker(name: str) -> Any:
        table = pb.tensor(np.arange(5.0, dtype=np.float32))

        @pb.jit(options=options)
        def run(at: Any) -> Any:
            return pb.take(table, at, axis=0)

        del name
        return run

    at = np.array([0, 9], np.int64)
    messages = []
    for look in (looker("a"), looker("b")):
        with pytest.raises(IndexRangeError, match="9") as caught:
            look(at)
        messages.append(str(caught.value))
        before = dict(passes)
    assert messages[0] == messages[1] and passes == before


SCRIPT = """
import sys
import numpy as np
import pullback as pb
from pullback import nn, optim
from pullback.config import Options
from pathlib import Path
options = Options(threads=2, cache=Path(sys.argv[1]))
model = nn.Sequential(nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 5))
model.load_state_dict({k: np.full(v.shape, 0.1, np.float32) for k, v in model.state_dict().items()})
opt = optim.SGD(model.parameters(), lr=0.01)
def step():
    x = pb.Feeder(lambda: np.full((2, 5), 0.2, np.float32), shape=(2, 5))
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
@pb.jit(options=options)
def train():
    pb.loop(range(5), step)
train()
print(train.program.stats.compiled, float(np.array(model.state_dict()["0.weight"]).sum()))
"""


@pytest.mark.slow
def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    lines = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        lines.append(done.stdout.split())
    assert int(lines[0][0]) > 0 and int(lines[1][0]) == 0
    assert lines[0][1] == lines[1][1]


# --- signatures


def variable(name: str, *shape: int, kind: D.DType = D.float32) -> Variable:
    return Variable(name, shape, kind)


def mapped(change: Callable[..., E.Expr], *sources: Variable) -> Definition:
    return define("m", sources[0].shape, lambda i: change(*(read(s, i) for s in sources)))


def one(target: Variable, source: Any, *state: Variable) -> Program:
    return Program((Compute(Graph(((target, source),))),), state)


def difference(factor: float = 1.0, swap: bool = False, kind: D.DType = D.float32) -> str:
    a, b, c = (variable(n, 4, kind=kind) for n in "abc")
    left, right = (b, a) if swap else (a, b)
    body = mapped(lambda x, y: E.Add(x, E.Mul(y, E.const(factor, kind))), left, right)
    return signature(one(c, body, a, b, c)).digest


def test_signatures_tell_structures_apart() -> None:
    assert difference() == difference()
    others = [
        difference(2.0),
        difference(-0.0),
        difference(0.0),
        difference(float("nan")),
        difference(swap=True),
        difference(kind=D.float64),
    ]
    assert len({difference(), *others}) == len(others) + 1


def test_names_count_only_where_an_index_is_checked() -> None:
    def gather(name: str, checked: bool) -> str:
        t, i, o = variable(name, 4), variable("i", 3, kind=D.int64), variable("o", 3)
        at = (lambda n: read(i, n)) if checked else (lambda n: n)
        body = define("g", (3,), lambda n: read(t, at(n)))
        return signature(one(o, body, t, i, o)).digest

    assert gather("t", False) == gather("u", False)
    assert gather("t", True) != gather("u", True)

    def scatter(name: str) -> str:
        x, i, o = variable(name, 3), variable("i", 3, kind=D.int64), variable("o", 4)
        axis = E.Axis(0, 3)
        form = Accumulate(SUM, (3,), (read(i, axis),))
        return signature(one(o, Definition("s", (4,), read(x, axis), form), x, i, o)).digest

    assert scatter("x") != scatter("y")


def test_callbacks_and_counts_do_not_count_but_loops_do() -> None:
    x, y = variable("x", 4), variable("y", 4)
    own = Compute(Graph(((y, mapped(lambda a: E.Add(a, a), x)),)))

    def looped(count: int, fed: bool = True, state: tuple[Variable, ...] = (y,)) -> str:
        feeds = (Feed(lambda: count, (x,), True),) if fed else ()
        body = (*feeds, own, Receive(lambda a: count, (y,)))
        return signature(Program((Loop(body, count),), state)).digest

    assert looped(3) == looped(4)
    assert looped(3) != looped(3, fed=False)
    assert looped(3) != looped(3, state=(y, x))
    assert looped(3) != signature(Program((own,), (y,))).digest


def test_marks_count() -> None:
    x, y = variable("x", 4), variable("y", 4)
    plain = mapped(lambda a: E.Add(a, a), x)
    marked = Definition(plain.name, plain.shape, plain.body, plain.form, stop=True)
    assert signature(one(y, plain)).digest != signature(one(y, marked)).digest


def test_a_fused_program_has_no_signature() -> None:
    with pytest.raises(InvalidIR, match="Launch"):
        signature(Program((Launch(Kernel("k", (), ())),)))


def test_kernels_are_alike_whatever_they_name() -> None:
    def made(
        name: str, factor: float = 1.0, target: int = 0, last: bool = False, rows: int = 4
    ) -> str:
        x, *outs = (variable(f"{name}{n}", rows) for n in range(3))
        value = mapped(lambda a: E.Mul(a, E.const(factor, D.float32)), x)
        again = mapped(lambda a: E.Add(a, a), x)
        first = Stage(value, value.form, value.body, (0,), outs[target])
        second = Stage(again, again.form, again.body, (0,), outs[1 - target])
        if last:
            return kernel_digest(Kernel(name, (rows,), (first,), (second,)))
        return kernel_digest(Kernel(name, (rows,), (first, second)))

    assert made("a") == made("b")
    others = [made("a", 2.0), made("a", last=True), made("a", rows=5)]
    assert len({made("a"), *others}) == len(others) + 1

    x, y, z = (variable(n, 4) for n in "xyz")
    value, other = mapped(lambda a: E.Add(a, a), x), mapped(lambda a: E.Exp(a), x)
    orders = [(y, z, y), (y, z, z), (y, z, None)]
    keys = {
        kernel_digest(
            Kernel("k", (4,), (
                Stage(value, value.form, value.body, (0,), first),
                Stage(other, other.form, other.body, (0,), second),
                Stage(value, value.form, value.body, (0,), third),
            ))
        )
        for first, second, third in orders
    }  # fmt: skip
    assert len(keys) == len(orders)


def test_a_chain_of_ten_thousand_definitions() -> None:
    x, y = variable("x", 4), variable("y", 4)
    value: Any = x
    for _ in range(10_000):
        value = mapped(lambda a: E.Add(a, a), value)
    assert signature(one(y, value, x, y)).variables == (x, y)


def test_an_empty_store_has_no_record(tmp_path: Path) -> None:
    x, y = variable("x", 4), variable("y", 4)
    program = one(y, mapped(lambda a: E.Add(a, a), x), x, y)
    job = Job(Options(), host_target(), ObjectCache(tmp_path), CompileStats(), Reporter(Options()))
    assert Recorder(program, LLVM(), job, 2).find() is None


# --- imports

HEAVY = ("torch", "jax", "rich", "click", "llvmlite", "safetensors", "triton", "hypothesis")


def test_importing_the_library_loads_no_heavy_module() -> None:
    script = "import sys, pullback; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(HEAVY)
