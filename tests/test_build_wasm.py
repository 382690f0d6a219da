"""`pullback build train.py --target wasm32`: a training loop in JavaScript, and in a page."""

from __future__ import annotations

import base64
import importlib.util
import json
import runpy
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
F32X4_ADD, F32X4_MUL = b"\xfd\xe4\x01", b"\xfd\xe6\x01"
MAIN = """
import { readFileSync } from "node:fs";
import { load } from "./train.mjs";
const [what, path, module = "train.wasm"] = process.argv.slice(2);
const read = (name) => {
  if (what === "names") return name;
  return what === "buffers" ? readFileSync(name) : Uint8Array.from(readFileSync(name)).buffer;
};
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
  const program = await load(read(module), read(path), calls);
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


def ran(
    folder: Path,
    what: str = "",
    weights: str = "weights.safetensors",
    module: str = "train.wasm",
) -> dict[str, object]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    line = ["node", "main.mjs", what, weights, module]
    done = subprocess.run(line, cwd=folder / "out", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made: dict[str, object] = json.loads(done.stdout)
    return made


def near(want_all: list[np.ndarray], state: dict[str, list[float]]) -> None:
    """Beside this processor's, which multiplies and adds in one step."""
    for (name, got), want in zip(state.items(), want_all, strict=True):
        bad = np.flatnonzero(abs(np.array(got) - want.reshape(-1)) > 1e-4)
        if len(bad):
            at = bad[0]
            raise AssertionError(f"{name}[{at}]: got {got[at]}, want {want.reshape(-1)[at]}")


def test_a_training_loop_in_node(folder: Path) -> None:
    made = ran(folder)
    assert (made["n"], made["seen"]) == (1000, 10)
    state = made["state"]
    assert isinstance(state, dict)
    near(after(folder), state)
    assert ran(folder, "buffers")["state"] == state
    ended = ran(folder, "ends")
    assert (ended["n"], ended["seen"]) == (250, 2)


def test_what_does_not_fit_in_node(folder: Path) -> None:
    assert ran(folder, "lacks")["code"] == "E545"
    assert ran(folder, "input")["code"] == "E544"
    assert ran(folder, "throws") == {"said": "of my own"}
    assert ran(folder, "names")["code"] == "E540"
    code = (folder / "out/train.wasm").read_bytes()
    for end in (0, 3, 8, len(code) // 2, len(code) - 1):
        (folder / "out/cut.wasm").write_bytes(code[:end])
        assert ran(folder, module="cut.wasm")["code"] == "E540", end
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


# The batches of the script, by what the page draws: it fills arrays with 2 * random() - 1.
DRAWS = """
let place = 0;
Math.random = () => {
  const n = Math.floor(place / 256), i = place % 256;
  ++place;
  const x = Math.fround(Math.fround(((n * 7919 + i * 104729) % 1000) / 500) - 1);
  return (x + 1) / 2;
};
"""


def opened(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    end = time.monotonic() + 30
    while not browser.run("return document.body.dataset.ready"):
        assert time.monotonic() < end, browser.complaints()
        time.sleep(0.05)


STATE = "return Object.entries(program.state).map(([name, x]) => [name, [...x].map(Number)])"
# The weights that a script leaves are where a page begins: this one ends before it trains.
ENDS = "def batch():\n    if made[0] is None:\n        raise StopIteration"
FRESH = SCRIPT.replace("made, losses = [0]", "made, losses = [None]").replace("def batch():", ENDS)


@pytest.mark.browser
def test_a_page_trains(browser: Browser, tmp_path: Path) -> None:
    """Its loss falls, and its weights are those of the compiled program."""
    (tmp_path / "train.py").write_text(FRESH)
    line = ["build", str(tmp_path / "train.py"), "--target", "wasm32", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(commands, line)
    assert done.exit_code == 0, done.output
    opened(browser, tmp_path / "out/train.html")
    before = browser.run(STATE)
    browser.run(DRAWS)
    browser.click("#run")
    text = browser.run("return document.getElementById('said').textContent")
    losses = [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss")]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 2, losses
    made = browser.run(STATE)
    near(after(tmp_path, FRESH), dict(made))
    assert before != made
    assert float(browser.text("#time").split()[0]) > 0
    assert not browser.complaints()


MODEL = """
import numpy as np
import pullback as pb
from pullback import nn

pb.random.manual_seed(3)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 10), nn.Softmax(1)
).eval()

@pb.jit
def classify(image):
    return model(image)

made = classify(((np.arange(49) * 37) % 64 / 64).astype(np.float32).reshape(1, 1, 7, 7))
"""


@pytest.mark.browser
def test_a_page_runs_a_model(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "classify.py").write_text(MODEL)
    line = ["build", str(tmp_path / "classify.py"), "--target", "wasm32", "-o", str(tmp_path)]
    done = CliRunner().invoke(commands, line)
    assert done.exit_code == 0, done.output
    opened(browser, tmp_path / "classify.html")
    made = browser.run(
        "const x = Float32Array.from({ length: 49 }, (_, n) => ((n * 37) % 64) / 64);"
        "return [...program.run(x)[0]];"
    )
    want = runpy.run_path(str(tmp_path / "classify.py"))["made"].numpy().reshape(-1)
    assert len(made) == len(want)
    assert np.max(abs(np.array(made) - want)) < 1e-5
    browser.click("#run")
    assert browser.text("#said").count("\n") == 1
    assert not browser.complaints()


@pytest.mark.browser
def test_the_browser_has_the_vectors(folder: Path, browser: Browser) -> None:
    """What the page holds multiplies four numbers at once, and is refused by nobody."""
    data = (folder / "out/train.wasm").read_bytes()
    assert data.count(F32X4_MUL) > 4
    assert data.count(F32X4_ADD) > 4
    given = ",".join(map(str, data))
    assert browser.run(f"return WebAssembly.validate(new Uint8Array([{given}]))")
    text = (folder / "out/train.html").read_text()
    assert base64.b64encode(data).decode() in text


def test_the_page_has_all_of_it(folder: Path) -> None:
    text = (folder / "out/train.html").read_text()
    assert "src=" not in text
    assert "fetch(" not in text
    assert "@" not in text.split("<script")[0]
