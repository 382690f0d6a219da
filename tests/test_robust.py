"""What must not hurt, a few times each; `scripts/robust.py` runs these checks at length."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
import robust_damage
import robust_growth
import robust_kills
import robust_texts
import robust_threads
from pullback import nn
from pullback.cli.graph_text import parse_graph, parse_kernel
from pullback.cli.main import commands
from pullback.cli.nest_text import parse_routine
from pullback.errors import (
    DTypeError,
    PullbackError,
    ShapeError,
    StateError,
    SyntaxFormError,
)
from pullback.nn.base.weights import load_metadata
from pullback.runtime.cache import STALE, ObjectCache
from pullback.runtime.tuned import read
from robust_support import Found

SCRIPT = Path(__file__).parent.parent / "scripts" / "robust.py"
X = pb.tensor(np.arange(6.0))


def clean(found: Found) -> None:
    assert found.count and not found.wrong, found.wrong[:3]


# --- the checks of the script --------------------------------------------------------------------


@pytest.mark.slow
def test_texts() -> None:
    found = robust_texts.lines(600, 7_000_000)
    clean(found)
    assert min(found.seen[word] for word in ("accepted", "compiled", "refused", "verified")) > 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("check", "count"),
    [(robust_damage.entries, 25), (robust_damage.weights, 150), (robust_damage.programs, 200)],
)
def test_damaged_files(check: Callable[[int, int], Found], count: int) -> None:
    found = check(count, 7_000_000)
    clean(found)
    assert len(found.seen) >= 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "check", [robust_kills.trainings, robust_kills.compilations, robust_kills.writes]
)
def test_kills(check: Callable[[int, int], Found]) -> None:
    clean(check(2, 7))


@pytest.mark.slow
def test_threads() -> None:
    clean(robust_threads.compiles(3, 0))


@pytest.mark.slow
def test_forks() -> None:
    clean(robust_threads.forks(2, 0))


@pytest.mark.slow
def test_pools() -> None:
    clean(robust_threads.pools(2, 0))


@pytest.mark.slow
def test_growth() -> None:
    """Fewer steps than the script's, of which a leak of a hundred bytes a step stays unseen."""
    clean(robust_growth.steps(100, 0))


@pytest.mark.slow
def test_the_script_says_what_it_found() -> None:
    command = [sys.executable, str(SCRIPT), "weights", "texts", "--count", "20"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = found.stdout.splitlines()
    assert [line.split(" tried")[0] for line in lines] == ["weights: 20", "texts: 20"], found
    assert found.returncode == 0 and all(" 0 wrong" in line for line in lines)


# --- what they found -----------------------------------------------------------------------------


@pytest.mark.slow
def test_long_chains_are_no_recursion() -> None:
    terms = 3000
    long = " + ".join(["x[i]"] * terms)
    assert np.array_equal(pb.define(f"y[i] = {long}", x=X).numpy(), X.numpy() * terms)
    both = " and ".join(["x[i] > 1"] * terms)
    assert pb.define(f"y[i] = where({both}, 1, 0)", x=X).numpy().sum() == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("y[i] = x[i] + " + "9" * 5000, SyntaxFormError),
        ("y[i] = x[i] + 1" + "0" * 299 + " ** 2", DTypeError),
        ("y[i] = x[i] + 2 ** 99", DTypeError),
        ("y[i] = x[i] + 4294967296 * 4294967296", DTypeError),
        ("y[i] = x[i] - (9223372036854775807 + 2)", DTypeError),
        ("y[i] = where(x[i] > 1, ~2.5, 1)", DTypeError),
        ("y[i] = where(x[i] > 1, 1.5 & True, 1)", DTypeError),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str, kind: type[PullbackError]) -> None:
    with pytest.raises(kind):
        pb.define(text, x=X)


def test_an_integer_beyond_all_floats_does_not_fit_a_tensor() -> None:
    with pytest.raises(DTypeError, match="an integer of 1329 bits does not fit float64"):
        X + 10**400


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        ((129,), "int8"),
        ((-129, 128), "int8"),
        ((128, 0, -1), "int8"),
        ((127, -130, -1), "int8"),
        ((-1, 3), "uint8"),
        ((2**33,), "int32"),
        ((2**70,), None),
        ((10**400,), None),
    ],
)
def test_a_range_beyond_its_type_is_refused(ends: tuple[int, ...], kind: str | None) -> None:
    with pytest.raises(DTypeError, match="does not fit"):
        pb.arange(*ends, dtype=kind)


def test_a_range_to_the_ends_of_its_type() -> None:
    for ends in ((-128, 128), (127, -129, -1), (120, 127, 9), (0, 90, 200), (-100, 126, 50)):
        assert pb.arange(*ends, dtype="int8").tolist() == list(range(*ends))
    assert pb.arange(5, -1, -1, dtype="uint8").tolist() == [5, 4, 3, 2, 1, 0]


VAR = "var x: float32[3]\n"
KERNEL = "kernel y over [i < 3]\n  var x: float32[3]\n  var out: float32[3]\n"
STAGE = "  stage y: float32[3] at (i) -> store out\n    y[i] = "


@pytest.mark.parametrize(
    ("read_text", "text"),
    [
        (parse_graph, VAR + "def y: float32[3]\n  y[i] = " + "(" * 2000 + "x[i]" + ")" * 2000),
        (parse_graph, VAR + "def y: float32[3]\n  y[i] = " + "-" * 2000 + "x[i]"),
        (parse_graph, VAR + "def y: int64[3]\n  y[i] = " + "7" * 5000),
        (parse_graph, VAR + "def y: uint8[3]\n  y[i] = 256u8"),
        (parse_graph, f"var x: float32[{'7' * 5000}]"),
        (parse_graph, "dim n: one, 3"),
        (parse_graph, "def y: float32[3] keep=sometimes"),
        (parse_kernel, KERNEL + STAGE + "scan sum[](x[i])"),
        (parse_kernel, KERNEL + STAGE + "exp(" * 900 + "x[i]" + ")" * 900),
        (parse_routine, "routine r, task t < 1\n  argument x: float31[4]"),
        (parse_routine, f"routine r, task t < {'7' * 5000}"),
        (parse_routine, "routine r, task t < 1\n  seq i in 0..1e999:\n    seq j in 0..2:"),
        (parse_routine, "routine r, task t < 1\n  argument x: int64[4]\n  x[1, 2] = 3"),
        (parse_routine, "routine r, task t < 1\n  argument x: int64[4]\n  x[] = 3"),
        (parse_routine, "routine r, task t < 1\n  argument x: float32[4]\n  x[0] = maximum(1.0)"),
    ],
)  # fmt: skip
def test_dumps_that_nobody_wrote_are_refused(read_text: Callable[[str], Any], text: str) -> None:
    with pytest.raises(SyntaxFormError):
        read_text(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "y[i] = x[i, 2147483648]"], "--shape x="),
        (["check", "y[i] = x[i, 1e999]"], "--shape x="),
        (["check", "y[i] = x[i, 4000, 4000]"], "--shape x="),
        (["check", "y[i] = x[i]", "--shape", "x=99999999999999"], "[E620]"),
        (["check", ""], "neither a definition nor module:function"),
        (["check", "..x:f"], "neither a definition nor module:function"),
    ],
)
def test_commands_refuse_what_no_memory_holds(words: list[str], said: str) -> None:
    found = CliRunner().invoke(commands, words)
    assert found.exit_code == 2 and said in found.output, found


def test_a_load_that_fails_changes_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {n: t.numpy() for n, t in model.state_dict().items()}
    rule = pb.optim.Adam(model.parameters(), lr=0.5)
    for wrong, kind in ((np.zeros((2, 5)), ShapeError), (np.zeros((2, 4), complex), DTypeError)):
        with pytest.raises(kind):
            model.load_state_dict(
                {n: np.ones_like(a) for n, a in before.items()} | {"1.weight": wrong}
            )
        assert all(np.array_equal(t.numpy(), before[n]) for n, t in model.state_dict().items())
    state = {n: np.ones(t.shape, t.numpy().dtype) for n, t in rule.state_dict().items()}
    with pytest.raises(DTypeError, match="`step` is float64, int64 is wanted"):
        rule.load_state_dict(state | {"step": np.array(2.5)})
    assert rule.lr == 0.5


@pytest.mark.parametrize(
    "header", ["[" * 100_000, '{"__metadata__": null}', '{"__metadata__": [1]}']
)
def test_facts_of_a_damaged_file_are_refused_by_its_name(tmp_path: Path, header: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(StateError, match=r"model\.safetensors"):
        load_metadata(path)


@pytest.mark.parametrize("value", [0, -4, "1e999", "[]"])
def test_settings_of_a_damaged_checkpoint_are_refused(tmp_path: Path, value: Any) -> None:
    text = json.dumps({"heads": 7}).replace("7", str(value))
    facts = {"settings": text, "characters": '"ab"'}
    nn.save({"x": X}, tmp_path / "checkpoint.safetensors", facts)
    found = CliRunner().invoke(commands, ["train", "--resume", "--out", str(tmp_path)])
    assert found.exit_code == 2 and "settings cannot be read" in found.output, found


@pytest.mark.parametrize(
    "text", ['{"records": ' + "[" * 100_000, '{"records": [{"us": 1e999}]}', "\0"]
)
def test_damaged_records_of_schedules_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(PullbackError, match=r"tuned\.json"):
        read(path)


def test_an_empty_secret_is_no_secret(tmp_path: Path) -> None:
    """A loss of power may leave a file without its content."""
    tmp_path.joinpath("secret").write_bytes(b"")
    cache = ObjectCache(tmp_path)
    assert len(tmp_path.joinpath("secret").read_bytes()) == 32
    cache.put("ab" * 32, b"data")
    assert ObjectCache(tmp_path).get("ab" * 32) == b"data"


def test_old_temporary_files_go_new_ones_stay(tmp_path: Path) -> None:
    new, old = tmp_path / ".m.safetensors.0.tmp", tmp_path / ".m.safetensors.1.tmp"
    other = tmp_path / ".other.safetensors.0.tmp"
    cached = tmp_path / ".left.tmp"
    for path in (old, new, other, cached):
        path.write_bytes(b"half")
    for path in (old, other, cached):
        os.utime(path, (0, path.stat().st_mtime - STALE - 1))
    nn.save({"x": X}, tmp_path / "m.safetensors")
    assert not old.exists() and new.exists() and other.exists()
    assert nn.load(tmp_path / "m.safetensors")["x"].shape == X.shape
    ObjectCache(tmp_path)
    assert not cached.exists() and new.exists()


FORK = """
import os, signal, sys, threading, types

entered, go = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "llvmlite":
            entered.set()
            go.wait(1.0)

sys.meta_path.insert(0, Slow())
from pullback.backends.host.processor import library
threading.Thread(target=library).start()
entered.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    library()
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_waits_for_an_import_of_llvm() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=90
    )
    assert (found.returncode, found.stderr) == (0, "")
