"""The command line: training, resuming bit for bit, cache, explain, clear errors."""

from __future__ import annotations

import _thread
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pullback import nn
from pullback.cli import main, text, train, train_command
from pullback.cli.settings import Settings, parse
from pullback.cli.text import IGNORED, TextError, batch, read_text, split, windows
from pullback.errors import StateError

TINY = ["--layers", "1", "--dim", "8", "--heads", "2", "--context", "8", "--batch", "2"]
STEPS = 6


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_command, "SAMPLE", 20)


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text("the cat sat on the mat. " * 20)
    return path


def call(*args: str) -> Result:
    return CliRunner().invoke(main.commands, list(args))


def run(story: Path, out: Path, *more: str) -> Result:
    return call("train", "--text", str(story), "--out", str(out), *TINY, *more)


def events(result: Result) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["event"]: line for line in lines}


# --- text


def test_batches_depend_on_seed_and_step_alone() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    a, b = batch(tokens, 5, 1, 4, 8), batch(tokens, 5, 1, 4, 8)
    np.testing.assert_array_equal(a, b)
    assert np.any(a[0] != batch(tokens, 6, 1, 4, 8)[0])
    assert np.any(a[0] != batch(tokens, 5, 2, 4, 8)[0])
    np.testing.assert_array_equal(a[0] + 1, a[1])


@pytest.mark.parametrize("count", [2, 3, 8, 9, 12, 13, 40, 41])
def test_every_validation_character_counts_once(count: int) -> None:
    tokens = np.arange(100, 100 + count, dtype=np.int32)
    seen: list[int] = []
    for inputs, targets in windows(tokens, 3, 8):
        assert inputs.shape == targets.shape == (3, 8)
        counted = targets != IGNORED
        np.testing.assert_array_equal(inputs[counted] + 1, targets[counted])
        seen += list(targets[counted])
    assert sorted(seen) == list(range(101, 100 + count))


def test_predictions_see_half_a_context() -> None:
    tokens = np.arange(100, 200, dtype=np.int32)
    rows = [t for _, targets in windows(tokens, 1, 8) for t in targets]
    assert all(np.flatnonzero(r != IGNORED)[0] >= 4 for r in rows[1:] if np.any(r != IGNORED))


def test_the_default_text_is_english() -> None:
    found = split(read_text(None), 64)
    assert len(found.train) > 300_000
    assert len(found.valid) == int((len(found.train) + len(found.valid)) * 0.1)


def test_texts_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="too short"):
        split("short", 64)
    with pytest.raises(TextError, match="has not seen"):
        split("abc" * 100, 8, characters="ab")
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TextError, match="UTF-8"):
        read_text(path)


def test_settings_survive_a_file() -> None:
    settings = Settings(steps=7, lr=0.5)
    assert parse(settings.dump()) == settings
    with pytest.raises(StateError, match="settings"):
        parse("{]")


# --- training


@pytest.mark.slow
def test_training_learns_validates_saves_and_writes(story: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(story, out, "--steps", "40", "--lr", "0.02", "--json")
    assert result.exit_code == 0, result.output
    found = events(result)
    assert found["validation"]["loss"] < 2.4
    assert found["step"]["step"] == 40
    assert len(found["sample"]["text"]) == train_command.SAMPLE
    weights = nn.load(out / "model.safetensors")
    assert weights["blocks.0.attention.qkv.weight"].shape == (24, 8)


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("--steps", str(STEPS), "--json")
    assert run(story, tmp_path / "whole", *steps).exit_code == 0

    def interrupting(*args: object) -> object:
        if args[1] == 3:
            _thread.interrupt_main()
        return batch(*args)

    monkeypatch.setattr(train, "batch", interrupting)
    stopped = run(story, tmp_path / "parts", *steps)
    assert stopped.exit_code == 130, stopped.output
    assert 0 < events(stopped)["interrupted"]["step"] < STEPS
    monkeypatch.setattr(train, "batch", text.batch)
    again = call("train", "--text", str(story), "--out", str(tmp_path / "parts"), "--resume")
    assert again.exit_code == 0, again.output
    whole, parts = (
        nn.load(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts")
    )
    assert sorted(whole) == sorted(parts)
    for name in whole:
        np.testing.assert_array_equal(whole[name].numpy(), parts[name].numpy(), err_msg=name)


def test_a_contradicting_resume_is_refused(story: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(story, out, "--steps", "1").exit_code == 0
    result = run(story, out, "--resume", "--steps", "9")
    assert result.exit_code == 2
    assert "--steps 9 contradicts the checkpoint, which has 1" in result.stderr
    result = run(story, tmp_path / "nowhere", "--resume")
    assert "nothing to resume" in result.stderr


def test_wrong_options_are_named(story: Path, tmp_path: Path) -> None:
    result = run(story, tmp_path / "run", "--heads", "3")
    assert result.exit_code == 2
    assert "--dim 8 is not a multiple of --heads" in result.output
    assert call("train", "--text", "/does/not/exist").exit_code == 2
    assert call("train", "--steps", "0").exit_code == 2


def test_a_users_mistake_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["pullback", "train", "--resume", "--out", str(tmp_path / "nowhere")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 2
    assert "Error: nothing to resume" in capsys.readouterr().err


@pytest.mark.torch
def test_losses_agree_with_torch(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(torch, "compile", lambda function: function)  # a minute otherwise
    monkeypatch.setattr("pullback.cli.compare.STEPS", 12)
    result = run(story, tmp_path / "run", "--compare", "torch", "--json")
    assert result.exit_code == 0, result.output
    assert events(result)["compared"]["largest_difference"] < 1e-3


# --- the rest


def test_version() -> None:
    assert call("--version").output.startswith("pullback 0.")


def test_cache_commands(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert "0 entries" in call("cache", "ls").output
    (folder / ("ab" * 20 + ".obj")).write_bytes(b"altered")
    result = call("cache", "verify")
    assert result.exit_code == 1 and "altered or truncated: abab" in result.output
    assert "1 entries removed" in call("cache", "clear").output
    assert call("cache", "verify").exit_code == 0


def test_cache_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    result = call("cache", "ls")
    assert result.exit_code == 2 and "off" in result.output


@pytest.mark.parametrize("command", ["explain", "check"])
def test_a_wrong_definition_is_shown_where_it_was_typed(command: str) -> None:
    result = call(command, "c[i] = sum[k](a[i, k] * exq(b[k]))")
    assert result.exit_code == 2
    text = result.stderr
    assert "column 25 of the definition at the command line" in text
    assert "click" not in text and "did you mean 'exp'" in text


def test_explain_a_definition() -> None:
    formula = "c[i, j] = sum[k](a[i, k] * b[k, j])"
    result = call("explain", formula, "--shape", "a=2,3", "--shape", "b=3,4")
    assert result.exit_code == 0, result.output
    assert "sum[k < 3]" in result.output
    assert call("explain", formula, "--shape", "a=x").exit_code == 2


def test_explain_with_the_time_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "llvm")
    formula = "c[i, j] = sum[k](a[i, k] * b[k, j])"
    result = call("explain", formula, "--shape", "a=2,3", "--shape", "b=3,4", "--timings")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.split("== compiler, ms\n")[1].splitlines()]
    spent = {row[0]: float(row[1]) for row in rows}
    assert {"trace", "simplify", "fuse", "schedule", "lower", "verify", "compile"} < spent.keys()
    assert abs(sum(v for k, v in spent.items() if k != "total") - spent["total"]) < 0.1


def test_explain_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pullback as pb\ndouble = pb.jit(lambda x: x * 2.0)\ndouble(pb.ones(3))\n"
    )
    result = call("explain", str(script))
    assert result.exit_code == 0, result.output
    assert "# double" in result.output
    assert call("explain", str(tmp_path / "none.py")).exit_code == 2


@pytest.mark.parametrize(
    ("stage", "names", "told"),
    [
        ("definitions", ["definitions"], "dw[i] = sum[j < 3](head[j] * x[2 * j + i])"),
        ("kernels", ["y", "dw"], "apart from dw: no outer axis in common"),
        ("schedule", ["y", "dw"], "tasks over tiles of"),
        ("loops", ["y", "dw"], "routine y, task task < 1"),
        ("llvm", ["y", "dw"], "define void @body("),
        ("asm", ["y", "dw"], "body:"),
    ],
)
def test_explain_every_stage_of_a_definition_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, stage: str, names: list[str], told: str
) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "llvm")
    formula = "y[i] = sum[k](x[2 * i + k] * w[k])"
    sizes = ["--shape", "x=8", "--shape", "w=3", "--size", "i=3"]
    done = call("explain", formula, *sizes, "--wrt", "w", "--stage", stage, "--json")
    facts = json.loads(done.stdout)
    assert [part["name"] for part in facts["parts"]] == names
    assert told in facts["parts"][0]["text"]


def test_explain_by_one_input_alone(tmp_path: Path) -> None:
    formula = "y[i] = x[i] * w[i]"
    shown = call("explain", formula, "--stage", "adjoint", "--wrt", "w").output
    assert "the gradient by w is" in shown and "the gradient by x is" not in shown
    for stage in ("adjoint", "kernels"):
        wrong = call("explain", formula, "--stage", stage, "--wrt", "z")
        assert wrong.exit_code == 2
        assert "no floating input 'z': there are x, w" in wrong.stderr
    assert call("explain", "y[i] = head[i]", "--wrt", "head").exit_code == 2


def test_explain_the_adjoint_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import pullback as pb\n"
        "f = pb.jit(lambda x, n: x * x)\n"
        "f(pb.ones(3), pb.asarray([1]))\n"
        "g = pb.jit(lambda x: pb.loop(2, lambda i, c: c * 2.0, x))\n"
    )
    done = call("explain", str(script), "--stage", "adjoint")
    assert done.exit_code == 0, done.output
    assert "# f" in done.output and "the gradient by x is" in done.output
    assert call("explain", str(script), "--stage", "kernels").exit_code == 2  # of the interpreter
    script.write_text(script.read_text() + "g(pb.ones(3))\n")
    refused = call("explain", str(script), "--stage", "adjoint")
    assert refused.exit_code == 2 and "loops" in refused.stderr


# --- check and explain


def test_check_of_a_definition() -> None:
    result = call("check", "c[i, j] = sum[k](a[i, k] * exp(b[k, j]))")
    assert result.exit_code == 0, result.output
    assert "all passed" in result.output
    assert "b, step 2" in result.output


def test_check_reports_json() -> None:
    result = call("check", "y[i] = x[2*i] * x[0]", "--shape", "x=7", "--size", "i=4", "--json")
    found = json.loads(result.output)
    assert result.exit_code == 0
    assert found["passed"] is True
    assert set(found["skipped"]) == {"size 0", "size 1"}


def test_an_index_is_drawn_from_what_it_indexes() -> None:
    result = call("check", "y[i] = x[rows[i]] * w[i]", "--shape", "x=3", "--shape", "rows=40")
    assert result.exit_code == 0, result.output
    assert " w," in result.output and " rows" not in result.output
    result = call("explain", "y[i] = x[rows[i]]", "--shape", "x=3", "--shape", "rows=4")
    assert "rows: int64[4]" in result.output


def test_check_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_here.py").write_text(
        "import pullback as pb\n"
        "def right(x, w):\n    return pb.tanh(x) * w\n"
        "def wrong(x):\n    return pb.where(x < 0.3, x, x + 0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    right = call("check", "checked_here:right", "--shape", "x=2,3", "--shape", "w=3")
    assert right.exit_code == 0, right.output
    # At 0.3 exactly the function jumps, and no derivative equals the difference.
    place = ["--low", "0.3", "--high", "0.3"]
    wrong = call("check", "checked_here:wrong", "--shape", "x=2", *place)
    assert wrong.exit_code == 1
    assert "FAIL differences" in wrong.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere:f"], "No module named"),
        (["json:nothing"], "no function 'nothing'"),
        (["json:dumps"], "--shape obj"),
        (["y[i] = x[i + 1]"], "--shape x"),
        (["y[i] = x[i]", "--size", "i=a"], "not of the form"),
    ],
)
def test_check_says_what_is_missing(arguments: list[str], told: str) -> None:
    result = call("check", *arguments)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize(
    ("text", "options", "lines"),
    [
        (
            "y[i] = sum[k](x[i + k] * w[k])",
            ["--shape", "x=9", "--shape", "w=3", "--size", "i=7"],
            ["gathers over j < 3", "where j < i + 1 and i < j + 7", "gathers over j < 7"],
        ),
        ("y[i, j] = x[j, i]", ["--shape", "x=3,4"], ["dx[i, j] = dy[j, i]", "no loop"]),
        (
            "y[n] = x[argmax[k](t[n, k]) * 2]",
            ["--shape", "x=9", "--shape", "t=5,4"],
            ["accumulates over i < 5: index 0 is data"],
        ),
        (
            "y[i] = x[rows[i] + 1]",
            ["--shape", "x=9", "--shape", "rows=5"],
            ["accumulates over i < 5: index 0 is data", "the gradient by x is"],
        ),
        (
            "y[i, j, k, l] = x[i * 7 + j * 11 + k * 13 + l * 17]",
            ["--shape", "x=145", *(o for a in "ijkl" for o in ("--size", f"{a}=4"))],
            ["gathering would visit more than"],
        ),
    ],
)
def test_explain_adjoints(text: str, options: list[str], lines: list[str]) -> None:
    result = call("explain", text, "--stage", "adjoint", *options)
    assert result.exit_code == 0, result.output
    for line in lines:
        assert line in result.output, result.output
