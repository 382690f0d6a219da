"""The line of passes: backends agree, stages are written down, objects come from the cache."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from program_support import Batches, add, cell, mul, product, tensor, total, value
from pullback.cli.graph_text import parse_graph
from pullback.config import Options, default_threads
from pullback.errors import IndexRangeError, OptionError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.graph import Graph, Variable, define, read
from pullback.ir.program import Feed, Launch, Loop, Receive
from pullback.ir.text import show
from pullback.memory.lives import lives
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import wrap
from pullback.tensor.run import program as pb

OPTIONS = replace(Options.from_environment(), cache=None, backend="llvm")


READERS = {"THREADS": default_threads, "DEBUG": lambda: Options.from_environment().debug}


@pytest.mark.parametrize("name", READERS)
def test_the_environment_is_read_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"PULLBACK_{name}", "3")
    assert READERS[name]() == 3
    monkeypatch.setenv(f"PULLBACK_{name}", "many")
    with pytest.raises(OptionError, match=f"PULLBACK_{name}=many"):
        READERS[name]()
    with pytest.raises(OptionError, match="0 threads"):
        Options(threads=0)


@pytest.mark.parametrize("made", [Options, Options.from_environment])
def test_the_environment_turns_the_cache_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Callable[[], Options]
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    assert made().cache is None
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path))
    assert made().cache == tmp_path


def trained(options, steps=7):
    """A small program with every kind of item; what it leaves and hands out."""
    rng = np.random.default_rng(0)
    w = cell(rng.standard_normal((6, 6)))
    rate = cell(0.1)
    seen = []
    feed = Batches((6, 6))

    @pb.jit(options=options)
    def train():
        def step(i, carry):
            x = pb.Feeder(feed, shape=(6, 6))
            y = product(w, x)
            w.assign(add(w, mul(y, 0.01)))
            pb.cond(less_than(total(y)), lambda: rate.assign(mul(rate, 0.5)), lambda: None)
            pb.Receiver(seen.append, [total(y)], every=2)
            return add(carry, total(y))

        return pb.loop(range(steps), step, carry=tensor_like(rate))

    def less_than(handle):
        from program_support import less

        return less(handle, 0.0)

    def tensor_like(handle):
        return mul(handle, 0.0)

    last = train()
    return [value(w), value(rate), value(last), np.array(seen)], train.program


@pytest.mark.slow
def test_the_machine_agrees_with_the_interpreter():
    ours, program = trained(OPTIONS)
    theirs, _ = trained(replace(OPTIONS, backend="reference"))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert program.launches > 0 and program.memory.arena_bytes > 0


def test_an_unknown_backend_is_refused():
    with pytest.raises(UnsupportedError, match="abacus"):
        trained(replace(OPTIONS, backend="abacus"))


def test_python_searches_for_cycles_again_after_a_compilation():
    seen = []

    def doubled(x):
        seen.append(gc.isenabled())
        return add(x, x)

    try:
        for set_as, wanted in ((gc.disable, False), (gc.enable, True)):
            set_as()
            pb.jit(doubled, options=OPTIONS)(tensor(np.ones(3)))
            assert gc.isenabled() is wanted
    finally:
        gc.enable()
    assert seen == [False, False]


def test_results_do_not_depend_on_the_number_of_threads():
    results = []
    for threads in (1, 2, 3):
        w, x = cell(np.zeros((200, 200))), tensor(np.random.default_rng(1).random((200, 200)))

        @pb.jit(options=replace(OPTIONS, threads=threads))
        def train(w=w, x=x):
            pb.loop(range(5), lambda: w.assign(add(mul(product(w, x), 0.01), x)))
            return total(w)

        results.append((float(value(train())), value(w)))
        assert (train.program.barriers > 0) == (threads > 1)
    for other in results[1:]:
        assert other[0] == results[0][0]
        assert (other[1] == results[0][1]).all()


def test_stages_are_dumped_numbered_and_parse_back(tmp_path):
    trained(replace(OPTIONS, dump=tmp_path))
    files = sorted(tmp_path.iterdir())
    assert [int(f.name[:4]) for f in files] == list(range(len(files)))
    graphs = [f for f in files if f.name.endswith("graph.txt")]
    assert len(graphs) >= 4 and any("kernel" in f.name for f in files)
    for path in graphs:
        text = path.read_text()
        assert show(parse_graph(text)).strip() == text.strip()


def test_debug_prints_a_line_per_stage(capsys):
    trained(replace(OPTIONS, debug=1))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["fuse:", "lower:", "compile:", "plan:"]


def test_a_second_compilation_comes_from_the_cache(tmp_path):
    options = replace(OPTIONS, cache=tmp_path / "cache")
    _, first = trained(options)
    _, second = trained(options)
    assert first.stats.compiled > 0
    assert second.stats.compiled == 0 and second.stats.loaded > 0


def test_a_data_index_out_of_range_raises():
    table = tensor(np.arange(5.0))

    @pb.jit(options=OPTIONS)
    def look(at):
        t, i = table.value, at.value
        return Tensor(wrap(define("e", (3,), lambda n: read(t, read(i, n)))))

    assert value(look(tensor([0, 4, 2], "int64"))).tolist() == [0.0, 4.0, 2.0]
    with pytest.raises(IndexRangeError, match="7"):
        look(tensor([0, 7, 2], "int64"))
    assert value(look(tensor([1, 1, 1], "int64"))).tolist() == [1.0] * 3


def test_extents_of_zero():
    x = tensor(np.zeros((3, 0)))

    @pb.jit(options=OPTIONS)
    def f():
        v = x.value
        rows = define("rows", (3,), lambda i, k: read(v, i, k), over=(0,))
        return add(x, 1.0), Tensor(wrap(rows))

    empty, rows = f()
    assert value(empty).shape == (3, 0) and value(rows).tolist() == [0.0] * 3


def _launches(target, value_):
    kernels = fuse_graph(Graph(((target, value_),)), _target(), Reporter(OPTIONS))
    return tuple(Launch(k) for k in kernels)


def _target():
    from pullback.backends.host.processor import host_target

    return host_target()


def _plus(name, source):
    return define(name, source.shape, lambda i: E.Add(read(source, i), E.const(1, source.dtype)))


def test_lifetimes_across_loops():
    x, p = (Variable(n, (4,), tensor(0.0).dtype) for n in ("x", "p"))
    before, inside, carried, fed = (
        Variable(n, (4,), x.dtype) for n in ("before", "inside", "carried", "fed")
    )
    body = (
        Feed(lambda: None, (fed,), True),
        *_launches(inside, _plus("a", fed)),
        *_launches(p, _plus("b", inside)),
        *_launches(carried, _plus("c", carried)),
        *_launches(p, _plus("d", before)),
        Receive(lambda *a: None, (inside,)),
    )
    block = (
        *_launches(before, _plus("e", x)),
        *_launches(carried, _plus("f", x)),
        Loop(body, 3),
        *_launches(p, _plus("g", x)),
    )
    kernels, found = lives(block, {x, p})
    assert len(kernels) == 7
    assert found == {before: (0, 5), carried: (1, 5), fed: (2, 2), inside: (2, 5)}
