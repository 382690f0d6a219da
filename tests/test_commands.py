"""What all commands have alike: an example, --json, --quiet, exit codes, completion, progress."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gguf_support import small
from pullback.cli import command as shared
from pullback.cli import demo, train_command
from pullback.cli.command import Output
from pullback.cli.main import commands
from pullback_cli import Deferred

FORMULA = "c[i, j] = sum[k](a[i, k] * b[k, j])"
DOUBLE = 'name = "double"\ninputs = ["x[N]"]\noutputs = ["y[N]"]\ncode = "y[i] = 2 * x[i]"'
SCRIPT = """
import pullback as pb
double = pb.jit(lambda x: x * 2.0)
print(double(pb.ones(3)))
"""
GRAPH = (
    "graph\nvar x: int32[2]\nvar y: int32[2]\ndef d: int32[2]\n  d[i] = x[i] + 7i32\nassign y = d\n"
)
TINY = "--layers 1 --dim 8 --heads 2 --context 8 --batch 2 --steps 2 --text story.txt --out run"
# Each command as it is used well, and as it is not.
USES = {
    "bench": (["--list"], ["--only", "no such workload"]),
    "cache ls": ([], ["more"]),
    "cache clear": ([], ["more"]),
    "cache verify": ([], ["more"]),
    "build": (["script.py", "-o", "out"], ["none.py"]),
    "check": ([FORMULA], ["nowhere:function"]),
    "compile": (["-e", DOUBLE, "--test", "N=8"], ["-i", "none.toml"]),
    "prebuild": (["script.py", "-o", "ahead"], ["none.py"]),
    "run": (
        ["-e", "parameters:\n  w{Grad}[3]\nmain:\n  y[] = sum[i](w[i])", "--mode", "grad"],
        ["-e", "mian:\n  y = w"],
    ),
    "env": ([], ["more"]),
    "doctor": ([], ["more"]),
    "new": (["my_filter"], ["not a name"]),
    "demo": ([], ["more"]),
    "completion": (["bash"], ["csh"]),
    "eject": ([FORMULA, "-o", "f.c"], [FORMULA, "-o", "f.txt"]),
    "generate": (["model.gguf", "--ids", "1 2", "--tokens", "2"], ["none.gguf", "--prompt", "a"]),
    "explain": ([FORMULA, "--stage", "kernels"], ["none.py"]),
    "profile": (["script.py"], ["none.py"]),
    "resume": (["graph.txt"], ["story.txt"]),
    "tune": ([FORMULA, "--budget", "0.1"], ["none.py"]),
    "test-backend": (["reference", "--only", "Xor"], ["abacus"]),
    "test-runtime": (["reference", "--only", "Xor"], ["abacus"]),
    "train": (TINY.split(), ["--steps", "0"]),
    "view": ([FORMULA, "--wrt", "a"], ["none.py"]),
}


def leaves(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, found in group.commands.items():
        whole = found.whole if isinstance(found, Deferred) else found
        if isinstance(whole, click.Group):
            yield from leaves(whole, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def test_the_list_of_commands_says_what_they_say() -> None:
    for name, found in commands.commands.items():
        assert isinstance(found, Deferred)
        assert found.whole.name == name
        assert found.help == " ".join((found.whole.help or "").split("\n\n")[0].split())


LIGHT = """
import sys, time
from pullback_cli import commands
commands({arguments}, prog_name="pullback", standalone_mode=False)
assert not {{"pullback", "numpy"}} & set(sys.modules), "loaded"
print(time.process_time(), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_load_nothing(arguments: list[str]) -> None:
    command = [sys.executable, "-c", LIGHT.format(arguments=arguments)]
    seconds = []
    for _ in range(3):  # the first one may compile what it imports
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "pullback" in done.stdout
        seconds.append(float(done.stderr))
    assert min(seconds) < 0.25  # of processor time, Python's own start among them


def test_names_of_commands_are_completed_without_loading_them() -> None:
    asked = {"_PULLBACK_COMPLETE": "bash_complete", "COMP_WORDS": "pullback be", "COMP_CWORD": "1"}
    code = (
        "import sys\nfrom pullback_cli import main\ntry:\n    main()\nfinally:\n"
        "    assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("plain,bench\n", "")


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "pullback", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "_PULLBACK_COMPLETE" in done.stdout


NAMES = sorted(leaves(commands))


@pytest.fixture(autouse=True)
def workplace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path_factory.getbasetemp() / "commands-cache"))
    monkeypatch.setenv("PULLBACK_PROFILE", "0")  # set by `profile`, and put back
    monkeypatch.setattr(train_command, "SAMPLE", 4)
    monkeypatch.setattr(demo, "ROUNDS", 1)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    Path("benchmarks").symlink_to(Path(__file__).parent.parent / "benchmarks")
    Path("script.py").write_text(SCRIPT)
    Path("graph.txt").write_text(GRAPH)
    small(Path("model.gguf"))
    Path("story.txt").write_text("the cat sat on the mat. " * 20)


def call(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(commands, [*name.split(), *arguments])


def test_every_command_has_its_uses() -> None:
    assert sorted(USES) == NAMES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example_and_the_common_options(name: str) -> None:
    shown = call(name, "--help")
    assert shown.exit_code == 0
    example = shown.output.split(shared.EXAMPLE)[1].splitlines()[1]
    assert example.startswith(f"    pullback {name}") or f"(pullback {name}" in example
    assert "--json" in shown.output and "--quiet" in shown.output


@pytest.mark.sampled(28)
@pytest.mark.parametrize("name", NAMES)
def test_json_is_one_object_a_line(name: str) -> None:
    done = call(name, *USES[name][0], "--json")
    assert done.exit_code == 0, done.output
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(isinstance(f, dict) for f in facts)
    assert facts or name == "cache ls"


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", NAMES)
def test_quiet_says_nothing(name: str) -> None:
    done = call(name, *USES[name][0], "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_wrong_use_has_exit_code_2(name: str) -> None:
    assert call(name, *USES[name][1]).exit_code == 2
    if name != "bench":  # whose options are the suite's
        wrong = call(name, *USES[name][0], "--no-such-option")
        assert wrong.exit_code == 2
        assert "Error: No such option" in wrong.stderr


def test_a_command_that_there_is_not() -> None:
    assert CliRunner().invoke(commands, ["trian"]).exit_code == 2


def test_a_fault_that_was_looked_for_has_exit_code_1() -> None:
    call("check", FORMULA)
    jump = "y[i] = where(x[i] < 0.3, x[i], x[i] + 1)"
    assert call("check", jump, "--low", "0.3", "--high", "0.3").exit_code == 1


def test_a_mistake_shows_no_frame_of_the_machinery() -> None:
    done = call("check", "y[i] = 2 * i", "--size", "i=3")
    assert done.exit_code == 2
    assert "click" not in done.stderr


# --- progress


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("out", [Output(), Output(as_json=True), Output(quiet=True)])
def test_progress_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    out: Output,
) -> None:
    def console(stderr: bool = False) -> Console:
        return Console(stderr=stderr, force_terminal=terminal)

    monkeypatch.setattr(shared, "Console", console)
    with out.working("thinking"):
        pass
    with out.running("script.py"):
        print("what a script prints")
    found = capsys.readouterr()
    shown = terminal and out == Output()
    assert ("thinking" in found.err) == ("running script.py" in found.err) == shown
    assert found.out == ("what a script prints\n" if out == Output() else "")


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_pullback(shell: str) -> None:
    text = call("completion", shell).output
    assert f"_PULLBACK_COMPLETE={shell}_complete" in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("pullback exp", {"explain"}),
        ("pullback cache ", {"ls", "clear", "verify"}),
        ("pullback explain --st", {"--stage"}),
        ("pullback explain --stage k", {"kernels"}),
        ("pullback completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_words_are_completed(words: str, wanted: set[str]) -> None:
    parts = words.split(" ")
    given = {"_PULLBACK_COMPLETE": "bash_complete", "COMP_WORDS": words}
    given["COMP_CWORD"] = str(len(parts) - 1)
    done = CliRunner(env=given).invoke(commands, prog_name="pullback")
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == wanted


# Each sources the script, then asks for what completes `pullback be`: fish by its own command, bash
# and zsh through the function that the script registered, with what a shell sets for it.
SHELLS = {
    "bash": """
source ./script
COMP_WORDS=(pullback be) COMP_CWORD=1
$(complete -p pullback | sed 's/.*-F \\([^ ]*\\).*/\\1/') pullback be pullback
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D
source ./script
_describe() { print -rl -- ${(P)3%%:*} }
compadd() { print -rl -- ${(P)@[-1]} }
words=(pullback be) CURRENT=2
$_comps[pullback]
""",
    "fish": """
source ./script
complete -C "pullback be" | string split -f1 \\t
""",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "bin" / "pullback"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pullback_cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(call("completion", shell).output)
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    quiet = {"zsh": ["-f"], "fish": ["--no-config"], "bash": ["--norc"]}[shell]
    done = subprocess.run(
        [shell, *quiet, "-c", SHELLS[shell]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["bench"], "")


def test_the_program_is_a_process_with_its_exit_code() -> None:
    run = "from pullback.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", run, "explain"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: pullback explain")


def test_generated_code_names_the_users_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pullback as pb\n\n\n@pb.jit\ndef f(x):\n    y = pb.exp(x)\n"
        "    z = pb.sum(y, axis=1)\n    return y * 2.0, z\n\n\nf(pb.ones((40, 50)))\n"
    )
    for stage, sign in (("loops", "#"), ("llvm", ";")):
        shown = CliRunner().invoke(commands, ["explain", str(script), "--stage", stage]).output
        for line, text in ((7, "z = pb.sum(y, axis=1)"), (8, "return y * 2.0, z")):
            assert f"{sign} {script}:{line}  {text}\n" in shown
