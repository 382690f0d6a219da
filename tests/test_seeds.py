"""The page of promises: each is there once, with what became of it and a test that exists."""

from __future__ import annotations

import ast
import functools
import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import gguf_support
import pullback as pb
from nn_support import strangers
from pullback.cli.main import commands
from pullback.nn import functional as F
from pullback.operations import read
from pullback.operations.drawn import drawn

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seeds.md"
FILES = sorted((ROOT / "ops").glob("*.toml"))
# How many promises each system has; P: the plans of the first.
PROMISES = {"A": 48, "P": 37, "B": 42, "S": 7, "I": 11, "C": 70, "K": 19, "D": 19}
STATUS = ("works", "differently", "no")


def rows() -> list[list[str]]:
    lines = re.findall(r"^\| ([A-Z]\d+ \|.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@functools.cache
def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_one_row() -> None:
    found = [row[0] for row in rows()]
    wanted = [f"{kind}{n}" for kind, last in PROMISES.items() for n in range(1, last + 1)]
    assert found == wanted


def test_every_row_says_what_became_of_it() -> None:
    for place, promise, status, why, shown in rows():
        assert promise and status in STATUS, place
        assert bool(why) == (status != "works"), f"{place}: {status}, {why!r}"
        assert bool(shown) == (status != "no"), f"{place}: {status}, {shown!r}"


def test_every_test_that_is_named_exists() -> None:
    for place, *_, shown in rows():
        for path, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", shown):
            assert name in names_in(ROOT / path), f"{place}: {path} has no {name}"
        one = r"`tests/test_\w+\.py::test_\w+`"
        assert not shown or re.fullmatch(f"{one}(, {one})*", shown), place


def test_the_page_counts_its_rows() -> None:
    kinds = [row[2] for row in rows()]
    works, differently, no = (kinds.count(s) for s in STATUS)
    told = f"{len(kinds)} rows: {works} work, {differently} differently, {no} not."
    assert told in PAGE.read_text(), told


def program_of(function: Any, *arguments: Any, **options: Any) -> Any:
    jitted = pb.jit(function, options=pb.Options(**options))
    jitted(*arguments)
    return jitted.program


def launches(function: Any, *arguments: Any) -> list[str]:
    return [str(kernel) for kernel in program_of(function, *arguments).kernels]


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_arithmetic_in_place_gives_the_name_another_value() -> None:
    """Row A5: all four, inside of a program and outside."""

    def four(x: Any) -> Any:
        before = x
        x += 1.0
        x -= 0.5
        x *= 3.0
        x /= 2.0
        return x, before

    given = np.float32([1.0, 2.0])
    for x, before in (four(pb.tensor(given)), pb.jit(four)(given)):
        assert x.tolist() == [2.25, 3.75] and before.tolist() == [1.0, 2.0]
    assert given.tolist() == [1.0, 2.0]


def test_what_nobody_reads_costs_no_kernel() -> None:
    """Row A16."""
    x = pb.tensor(np.float32([[1, 2], [3, 4]]))

    def plain(x: Any) -> Any:
        return pb.softmax(x @ x, axis=-1)

    def with_a_branch(x: Any) -> Any:
        pb.exp(x @ x.T).sum()
        return pb.softmax(x @ x, axis=-1)

    assert launches(plain, x) == launches(with_a_branch, x)


def test_twenty_maps_are_one_kernel() -> None:
    """Row A23."""

    def maps(x: Any) -> Any:
        first, second = x, x
        for n in range(10):
            first, second = pb.sin(first + n), first * second
        return first + second

    assert len(launches(maps, pb.tensor(np.float32([1, 2, 3])))) == 1


def test_gradients_are_sums_over_broadcast_axes() -> None:
    """Row A4: a column and a row."""
    x, y, head = normal(3, 1), normal(1, 4), normal(3, 4)
    both = pb.jit(lambda x, y: pb.grad((((x + y) * x * y) * head).sum(), [x, y]))
    dx, dy = both(x, y)
    wide = ((2 * x * y + y * y) * head).sum(1, keepdims=True)
    high = ((x * x + 2 * x * y) * head).sum(0, keepdims=True)
    np.testing.assert_allclose(dx.numpy(), wide, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dy.numpy(), high, rtol=1e-5, atol=1e-5)


def test_a_join_and_its_consumer_are_one_kernel() -> None:
    """Row A14: forward, and backward for both parts."""
    a, b, head = normal(3, 4), normal(3, 5), normal(3, 9)

    def joined(a: Any, b: Any) -> Any:
        return pb.tanh(pb.concat([a, b], axis=1))

    forward = program_of(joined, a, b)
    assert len(forward.kernels) == 1 and forward.bytes_moved == 2 * 4 * 3 * 9
    slopes = pb.jit(lambda a, b, head: pb.grad((joined(a, b) * head).sum(), [a, b]))
    da, db = slopes(a, b, head)
    assert len(slopes.program.kernels) == 1
    wanted = head * (1 - np.tanh(np.concatenate([a, b], axis=1)) ** 2)
    np.testing.assert_allclose(da.numpy(), wanted[:, :4], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(db.numpy(), wanted[:, 4:], rtol=1e-5, atol=1e-6)


def test_a_softmax_of_a_softmax_takes_no_memory_but_its_result() -> None:
    """Row C45; nor does it write into what it was given."""
    x = normal(8, 100)
    before = x.copy()
    program = program_of(lambda x: pb.softmax(pb.softmax(x, axis=1), axis=1), x)
    assert not program.memory.offsets and program.bytes_moved == 2 * x.nbytes
    assert np.array_equal(x, before)


def test_what_frees_memory_is_launched_first() -> None:
    """Row P19: the small product and its sum, then the large one, which stands before them."""
    n = 64

    def network(x: Any, w: Any, u: Any, v: Any) -> Any:
        large, small = x @ w, u @ v
        return (large.T * (small.T @ small).sum(0)) @ large

    given = [normal(*shape) for shape in ((n, n), (n, 4 * n), (n, n), (n, n))]
    program = program_of(network, *given, threads=1, cache=None)
    shapes = [v.shape for k in program.kernels for v in k.writes]
    assert shapes.index((n,)) < shapes.index((n, 4 * n))
    values = [b for b, _ in program.memory.placed if b.variable is not None]
    alive = [sum(b.size for b in values if b.first <= k <= b.last) for k in range(len(shapes))]
    assert max(alive) < 4 * n * n * (4 + 1 + 1), "of what stays from launch to launch"


def layer_norm(x: Any, gain: Any, shift: Any) -> Any:
    return (F.layer_norm(x, (10,), gain, shift) ** 2).sum()


STEPS = {
    "cross entropy": (F.cross_entropy, [normal(8, 10), np.arange(8)], 1),
    "layer norm": (layer_norm, [normal(8, 10), normal(10), normal(10)], 3),
    "layer": (lambda x, w, b: (pb.tanh(x @ w + b) ** 2).sum(),
              [normal(8, 10), normal(10, 6), normal(6)], 3),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_layer_its_loss_and_its_gradients_are_one_kernel(name: str) -> None:
    """Row P11."""
    loss, given, count = STEPS[name]

    def step(*given: Any) -> Any:
        value = loss(*given)
        return value, pb.grad(value, list(given[:count]))

    assert len(launches(step, *given)) == 1


def test_a_match_is_a_branch_in_a_branch() -> None:
    """Row P1."""

    def matched(k: Any, x: Any) -> Any:
        rest = lambda x: pb.cond(k == 1, lambda x: x * x, pb.exp, x)
        return pb.cond(k == 0, pb.sin, rest, x)

    both = pb.jit(lambda k, x: (matched(k, x), pb.grad(matched(k, x).sum(), x)))
    x = np.float32([0.5, 2.0])
    wanted = [(np.sin(x), np.cos(x)), (x * x, 2 * x), (np.exp(x), np.exp(x))]
    for k, pair in enumerate(wanted):
        for found, want in zip(both(np.int32(k), x), pair, strict=True):
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)
    assert both.traces == 1


def test_a_slice_begins_where_data_say() -> None:
    """Row P6: one program for every place; its gradient is zero elsewhere."""

    def part(x: Any, start: Any) -> Any:
        y = x[start + pb.arange(3)]
        return y, pb.grad((y * y).sum(), x)

    jitted, x = pb.jit(part), normal(10)
    for start in (0, 2, 7):
        y, dx = jitted(x, np.int32(start))
        wanted = np.zeros(10, np.float32)
        wanted[start : start + 3] = 2 * x[start : start + 3]
        assert np.array_equal(y.numpy(), x[start : start + 3])
        assert np.array_equal(dx.numpy(), wanted)
    assert jitted.traces == 1


@pytest.mark.parametrize("name", ["slice", "rows by number"])
def test_what_lies_in_one_piece_is_read_in_lanes(name: str) -> None:
    """Row C41."""
    parts = {
        "slice": lambda x: x[:, 3:67] * 2.0,
        "rows by number": lambda x: pb.take(x, pb.tensor([3, 1, 0] * 8), axis=0) * 2.0,
    }
    program = program_of(parts[name], normal(8, 128), target="x86-64-v3", threads=1, cache=None)
    text = program.source()
    assert "load <8 x float>" in text and "@llvm.masked.gather" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_are_made_of_the_27_primitives(path: Path) -> None:
    """Row C23: what they compute, and its gradients."""
    operation = read(path)
    arrays, sizes = drawn(operation, {}, np.random.default_rng(0))
    given = [pb.tensor(a) for a in arrays]
    made = operation.of_stored(*given, **sizes)
    outputs = made if isinstance(made, tuple) else (made,)
    floats = [x for x in given if x.dtype.is_float]
    losses = [y.sum() for y in outputs if y.dtype.is_float and operation.test.gradient != []]
    assert strangers(*outputs, *losses, wrt=floats) == set()


def test_places_and_samples_of_files() -> None:
    """Rows C8, C17: numbers of places alone; the sample that is a function of numbers."""
    files = {p.stem: read(p) for p in FILES}
    x = normal(5, 6)
    assert np.array_equal(files["tril"](x).numpy(), np.tril(x))
    places = np.array([2, 0, 3])
    assert np.array_equal(files["one_hot"](places, N=4).numpy(), np.eye(4)[places])
    base, (t, d) = np.float32(100.0), np.mgrid[:4, :6]
    angles = t / base ** ((d - d % 2) / 6)
    found = files["positions"](base, T=4, D=6).numpy()
    wanted = np.where(d % 2 == 0, np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(files["sin"](x).numpy(), np.sin(x), rtol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1, 3)], ids=str)
def test_batches_of_products_by_a_file(batch: tuple[int, ...]) -> None:
    """Row C15."""
    a, b = normal(*batch, 4, 5), normal(*batch, 5, 3)
    found = read(ROOT / "ops/bmm.toml")(a, b).numpy()
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


def test_random_words_and_normal_numbers_of_files() -> None:
    """Row C19: Threefry's published words by `ops/threefry.toml`, of which `ops/randn.toml` is."""
    words = read(ROOT / "ops/threefry.toml")
    published = [
        ([0, 0], [0, 0], [0x6B200159, 0x99BA4EFE]),
        ([2**32 - 1] * 2, [2**32 - 1] * 2, [0x1CB996FC, 0xBB002BE7]),
        ([0x13198A2E, 0x03707344], [0x243F6A88, 0x85A308D3], [0xC4923A9C, 0x483DF7A0]),
    ]
    for key, (c, d), wanted in published:
        made = words(np.uint32(key), np.uint32([c]), np.uint32([d]))
        assert [w.item() for w in made] == wanted
    drawn_twice = pb.jit(lambda key: read(ROOT / "ops/randn.toml")(key, N=4096))
    y, other = (drawn_twice(np.uint32(key)).numpy() for key in ([1, 2], [1, 3]))
    places = np.sort(y.astype(np.float64))
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in places])
    apart = np.abs(below - (np.arange(4096) + 0.5) / 4096).max()
    assert apart < 1.63 / 64, "Kolmogorov's distance, 1 in 100"
    assert (
        abs(np.corrcoef(y, other)[0, 1]) < 4 / 64 and abs(np.corrcoef(y[1:], y[:-1])[0, 1]) < 4 / 64
    )


def test_a_file_within_a_model_is_derived_with_it() -> None:
    """Row D5."""
    linear = read(ROOT / "ops/linear.toml")

    def model(x: Any, w: Any, u: Any, b: Any) -> Any:
        return pb.softmax(linear(pb.tanh(x @ w), u, b), axis=1)

    shapes = ((4, 5), (5, 6), (6, 3), (3,))
    given = [normal(*shape).astype(np.float64) for shape in shapes]
    report = pb.check_grads(model, given, layouts=("contiguous",), second=False)
    assert report, str(report)


def test_an_error_above_the_tolerance_is_the_exit_code() -> None:
    """Row C1."""
    text = 'name = "p"\ninputs = ["x[M, N]"]\noutputs = ["y[M]"]\n'
    text += 'code = "y[i] = sum[j](exp(x[i, j]))"\n[test]\ntolerance = '
    for tolerance, code in (("1e-5", 0), ("0.0", 1)):
        words = ["compile", "-e", text + tolerance, "--test", "M=50, N=90"]
        done = CliRunner().invoke(commands, words)
        assert done.exit_code == code, done.output


def test_four_levels_of_debug() -> None:
    """Row C4: each level shows more than the one before."""
    words = ["compile", "-i", str(ROOT / "ops/double.toml"), "--test", "M=4", "--debug"]
    shown = [CliRunner().invoke(commands, [*words, str(n)]) for n in range(5)]
    assert [one.exit_code for one in shown] == [0] * 5, shown[-1].output
    lines = [len(one.output.splitlines()) for one in shown]
    assert lines == sorted(lines) and lines[0] < lines[2] < lines[4], lines


def stable(text: str) -> list[str]:
    """Lines without times, errors and sizes of files."""
    lines = re.sub(r"\d[\d.,]*(e-\d+)?(?= s| ms| bytes|, #|, \d)", "#", text).splitlines()
    return [line for line in lines if line]


def test_the_commands_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shows what stands there; `pullback demo` has a test of its own."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "ops", tmp_path / "ops")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "net.daten", tmp_path / "examples")
    gguf_support.small(tmp_path / "small.gguf")
    block = (ROOT / "README.md").read_text().split("```text\n$ pullback compile")[1].split("```")[0]
    for part in f"compile{block}".split("$ pullback "):
        line, _, shown = part.partition("\n")
        done = CliRunner().invoke(commands, shlex.split(line))
        assert stable(done.output) == stable(shown), line
