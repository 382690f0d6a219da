"""Machines: their files, how one is chosen, what is wrong with a file."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.backends.host import processor
from pullback.backends.host.processor import TARGETS, chosen_target, host_target, named_target
from pullback.cli import measure
from pullback.cli.graph_text import parse_kernel
from pullback.cli.main import commands
from pullback.cost.shares import of_columns, of_rows
from pullback.errors import OptionError, UnsupportedError
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import HERE, TABLES, chosen, like, names, parsed
from test_whole_schedules import SOFTMAX

PRODUCT = """kernel p over [i < 1024, j < 1024]
  var a: float32[1024, 1024]
  var b: float32[1024, 1024]
  var y: float32[1024, 1024]
  stage p: float32[1024, 1024] at (i, j) -> store y
    p[i, j] = sum[k < 1024](a[i, k] * b[k, j])
"""
TEXT = (HERE / "zen5.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_every_file_is_whole(name: str) -> None:
    machine = chosen(name)
    assert machine.name == name
    sizes = [m.bytes for m in machine.memories]
    assert sizes[:-1] == sorted(sizes[:-1]) and sizes[-1] == 0
    reads = [m.read for m in machine.memories]
    assert reads == sorted(reads, reverse=True), "nearer memories are faster"
    assert all(value > 0 for table in TABLES for value in machine.tables[table].values())
    own = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
    said = [part for part in own.values() if isinstance(part, dict)]
    said += [row for n in ("level", "memory", "tile") for row in own.get(n, ())]
    assert all(part["source"] for part in said)
    if "base" in own:
        common = chosen(own["base"])
        for table in TABLES.keys() & own.keys():
            numbers = own[table].keys() - {"source"}
            same = {n for n in numbers if own[table][n] == common.tables[table].get(n)}
            assert numbers and not same, "only what differs is said"


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_one(name: str) -> None:
    target = named_target(name)
    assert target.profile.target == name and not target.profile.cpus
    assert (target.vector, target.vectors) == (target.profile.vector, target.profile.registers)
    assert target.on(target.profile).l1 == target.l1
    assert target.on(target.profile).l2 == target.l2


def test_the_processor_says_which() -> None:
    assert like("znver5", "x86-64-v4").name == "zen5"
    assert like("znver4", "x86-64-v4").name == "zen4"
    assert like("znver4", "x86-64-v3").name == "x86-64-v3"  # compiled for less than it has
    assert like("unheard-of", "x86-64-v4").name == "x86-64-v4"
    assert host_target().machine is not None
    assert host_target().l2 == host_target().profile.memories[1].bytes
    assert host_target().l1 == host_target().profile.rate("whole", "first_level")
    with pytest.raises(UnsupportedError, match="z14") as error:
        like("z14", "s390x")
    assert error.value.code == "E377"


def test_a_processor_of_no_known_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(TEXT)
    unknown = Target("s390x", vector=16)
    monkeypatch.setattr(processor, "host_target", lambda: unknown)
    with pytest.raises(UnsupportedError, match="s390x"):
        chosen_target(None)
    assert chosen_target(None, str(own)).l1 == 32 * 1024


def test_one_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(TEXT.replace('name = "zen5"', 'name = "own"').replace("= 32768", "= 65536"))
    assert chosen_target(None, "zen4").l1 == 32 * 1024
    assert chosen_target(None, str(own)).l1 == 64 * 1024
    monkeypatch.setenv("PULLBACK_MACHINE", str(own))
    options = pb.Options.from_environment()
    program = pb.jit(pb.sin, options=options)
    assert program(pb.ones(3)).shape == (3,)
    assert program.program.target.machine is chosen(str(own))
    assert repr(chosen(str(own))) != repr(chosen("zen5")), "another key in the cache"


@pytest.mark.parametrize("name", names())
def test_shares_of_the_peak_grow(name: str) -> None:
    machine = chosen(name)
    rows = [of_rows(machine, n) for n in range(70)]
    columns = [of_columns(machine, n, 16) for n in range(1, 70)]
    for shares in (rows, columns):
        assert shares == sorted(shares) and 0 < shares[0] < shares[-1] == 1
    assert rows[1] == machine.tables["rows"]["1"]
    assert of_columns(machine, 4, 16) == of_columns(machine, 8, 16) / 2, "half of it stays empty"


def refused(text: str, code: str = "E376") -> str:
    with pytest.raises(OptionError) as error:
        parsed(text, "mine.toml")
    assert error.value.code == code
    return error.value.what


def test_a_machine_says_only_what_differs_from_its_base() -> None:
    head = 'name = "mine"\nabout = "mine"\nbase = "zen4"\ntarget = "x86-64-v4"\n'
    mine = parsed(head + '[unit]\nsource = "here"\nturn = 9\n', "mine.toml")
    base = chosen("zen4")
    assert mine.name == "mine" and not mine.cpus
    assert mine.tables["unit"] == {**base.tables["unit"], "turn": 9}
    assert (mine.memories, mine.levels, mine.tiles) == (base.memories, base.levels, base.tiles)
    assert repr(mine) != repr(parsed(head, "mine.toml")), "another key of what is compiled"
    assert "source of [unit]" in refused(head + "[unit]\nturn = 9\n")
    assert "[unit] is 3" in refused(head + "unit = 3\n")
    for other in ('"zen9"', "4"):
        assert "base" in refused(head.replace('"zen4"', other))


NUMBER = re.compile(r"^(\w+) = ([0-9.e+-]+)$", re.MULTILINE)
OUTSIDE = ("-1", "1e-300", "1e300", "1" + "0" * 400)  # of what times are made of


@pytest.mark.sampled(6)
@pytest.mark.parametrize("bad", ("0", "0.5", *OUTSIDE))
def test_no_number_makes_times_that_cannot_be_worked_out(bad: str) -> None:
    """Of each number of a file: it is refused, or products and sweeps are scheduled by it."""
    kernels = [parse_kernel(text) for text in (PRODUCT, SOFTMAX)]
    refusals = 0
    for number in NUMBER.finditer(TEXT):
        text = TEXT[: number.start(2)] + bad + TEXT[number.end(2) :]
        try:
            machine = parsed(text, "mine.toml")
        except OptionError as error:
            assert error.code == "E376"
            refusals += 1
            continue
        assert bad not in OUTSIDE or number[1] in ("count", "bytes", "registers", "way", "pack")
        for kernel in kernels:
            scheduled(kernel, named_target("x86-64-v4").on(machine))
    assert refusals > 20


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    assert "missing" in refused('name = "x"')
    assert "TOML" in refused("=") or "mine.toml" in refused("=")
    assert "source of [unit]" in refused(TEXT.replace("[unit]\nsource", "[unit]\nwhence"))
    assert "turn of [unit] is missing" in refused(TEXT.replace("\nturn = ", "\nturns = "))
    for bad in ('"fast"', "-1", "true", "nan", "inf"):
        assert "plain of [unit]" in refused(TEXT.replace("\nplain = ", f"\nplain = {bad} #", 1))
    assert "[[memory]]" in refused(TEXT.replace("shared = ", "shares = ", 1))
    assert "0 bytes" in refused(TEXT.replace("bytes = 49152", "bytes = 0"))
    alone = re.sub(r'(?ms)^\[\[memory\]\]\nname = "L\d".*?(?=^\[)', "", TEXT)
    assert alone.count("[[memory]]") == 1 and "0 bytes" in refused(alone)
    assert "RecursionError" not in refused(TEXT + "\nx = " + "[" * 5000)
    assert "lane" in refused(TEXT.replace('"lane"', '"lanes"'))
    assert "3 of [rows] is 0" in refused(TEXT.replace("\n3 = 0.7", "\n3 = 0", 1))
    for bad in ("3 = 1.2", "three = 0.7"):
        assert f"{bad} of [rows]" in refused(TEXT.replace("\n3 = 0.7", f"\n{bad}", 1))
    for name in ("zen9", str(tmp_path / "none.toml"), str(tmp_path)):
        with pytest.raises(OptionError) as error:
            chosen(name)
        assert error.value.code == "E375"


@pytest.mark.slow
def test_the_doctor_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "RUNS", 1)
    monkeypatch.setattr(measure, "RUN_NS", 1e4)
    own = tmp_path / "mine.toml"
    done = CliRunner().invoke(commands, ["doctor", "--machine", "--save", str(own), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["measured"]
    assert found["unit"]["multiply_add"] > 0 and found["memory.L1"]["read"] > 0
    machine = chosen(str(own))
    assert machine.name == "mine" and machine.tables["float32"]["exp"] > 0
    assert CliRunner().invoke(commands, ["doctor", "--save", str(own)]).exit_code == 2
