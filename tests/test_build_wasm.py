"""`pullback build train.py --target wasm32`: a training loop in JavaScript, and in a page."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from browser import Browser
from pullback_cli import commands
from test_build import SCRIPT, after

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
    ),
]
MAIN = """
import { readFileSync } from "node:fs";
import { load } from "./train.mjs";
const read = (name) => Uint8Array.from(readFileSync(name)).buffer;
const [what, path] = process.argv.slice(2);
let n = 0, seen = 0;
const calls = {
  batch: (x) => {
    if (what === "ends" && n === 250) return false;
    for (let i = 0; i < 256; ++i)
      x[i] = Math.fround(Math.fround(((n * 7919 + i * 104729) % 1000) / 500) - 1);
    ++n;
  },
  loss: () => { ++seen; },
};
if (what === "lacks") delete calls.loss;
if (what === "throws") calls.loss = () => { throw new Error("of my own"); };
try {
  const program = await load(read("train.wasm"), read(path), calls);
  if (what === "input") program.run(new Float32Array(3));
  program.run();
  const state = Object.entries(program.state).map(([k, x]) => [k, [...x].map(Number)]);
  console.log(JSON.stringify({ n, seen, state: Object.fromEntries(state) }));
} catch (error) {
  console.log(JSON.stringify({ code: error.code, said: error.message }));
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of test_build, as a module."""
    home = tmp_path_factory.mktemp("wasm")
    (home / "train.py").write_text(SCRIPT)
    line = ["build", str(home / "train.py"), "--target", "wasm32", "-o", str(home / "out")]
    done = CliRunner().invoke(commands, line)
    assert done.exit_code == 0, done.output
    (home / "out/main.mjs").write_text(MAIN)
    return home


def ran(folder: Path, what: str = "", weights: str = "weights.safetensors") -> dict[str, object]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    line = ["node", "main.mjs", what, weights]
    done = subprocess.run(line, cwd=folder / "out", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made: dict[str, object] = json.loads(done.stdout)
    return made


def near(folder: Path, state: dict[str, list[float]]) -> None:
    """Beside this processor's, which multiplies and adds in one step."""
    for (name, got), want in zip(state.items(), after(folder), strict=True):
        bad = np.flatnonzero(abs(np.array(got) - want.reshape(-1)) > 1e-4)
        if len(bad):
            at = bad[0]
            raise AssertionError(f"{name}[{at}]: got {got[at]}, want {want.reshape(-1)[at]}")


def test_a_training_loop_in_node(folder: Path) -> None:
    made = ran(folder)
    assert (made["n"], made["seen"]) == (1000, 10)
    state = made["state"]
    assert isinstance(state, dict)
    near(folder, state)
    ended = ran(folder, "ends")
    assert (ended["n"], ended["seen"]) == (250, 2)


def test_what_does_not_fit_in_node(folder: Path) -> None:
    assert ran(folder, "lacks")["code"] == "E545"
    assert ran(folder, "input")["code"] == "E544"
    assert ran(folder, "throws") == {"said": "of my own"}
    data = (folder / "out/weights.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    for end in (0, 7, 100, size, len(data) - 1):
        (folder / "out/cut").write_bytes(data[:end])
        assert ran(folder, "", "cut")["code"] == "E540", end
    head = json.loads(data[8:size])
    name = next(n for n, row in head.items() if len(row["shape"]) == 2)
    for code, made in (
        ("E543", {**head, name: {**head[name], "shape": head[name]["shape"][::-1]}}),
        ("E543", {**head, "more": head[name]}),
        ("E540", {**head, name: {**head[name], "data_offsets": [0, 4]}}),
        ("E543", None),
    ):
        text = json.dumps(made).encode()
        (folder / "out/cut").write_bytes(len(text).to_bytes(8, "little") + text + data[size:])
        assert ran(folder, "", "cut")["code"] == code, made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    missing = Browser.found()
    if missing:
        pytest.skip(missing)
    with Browser(str(tmp_path_factory.mktemp("browser"))) as found:
        yield found


@pytest.mark.browser
def test_a_page_trains(folder: Path, browser: Browser) -> None:
    browser.open((folder / "out/train.html").as_uri())
    end = time.monotonic() + 30
    while time.monotonic() < end and not browser.run("return document.body.dataset.ready"):
        time.sleep(0.05)
    browser.click("#run")
    text = browser.run("return document.getElementById('said').textContent")
    losses = [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss")]
    assert len(losses) == 10
    assert losses[-1] < losses[0]


def test_the_page_has_all_of_it(folder: Path) -> None:
    text = (folder / "out/train.html").read_text()
    assert "src=" not in text
    assert "fetch(" not in text
    assert "@" not in text.split("<script")[0]
