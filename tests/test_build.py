"""`pullback build`: a training loop as a library, from Python and from C, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

from pullback_cli import commands

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SCRIPT = """
import numpy as np
import pullback as pb
from pullback import nn, optim

pb.random.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
made, losses = [0], []

def batch():
    n, made[0] = made[0], made[0] + 1
    i = np.arange(32 * 8, dtype=np.int64)
    x = ((n * 7919 + i * 104729) % 1000).astype(np.float32) / np.float32(500) - np.float32(1)
    return x.reshape(32, 8)

def loss(value):
    losses.append(float(value))

def step():
    x = pb.Feeder(batch, shape=(32, 8))
    opt.zero_grad()
    error = pb.mean((model(x) - x[:, :1] * x[:, 1:2]) ** 2)
    error.backward()
    opt.step()
    pb.Receiver(loss, [error], every=100)

@pb.jit
def train():
    pb.loop(range(1000), step)

train()
"""
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "train.h"
static int64_t n, seen;
static int batch(void *user, void *const *arrays) {
  float *x = arrays[0];
  for (int64_t i = 0; i < 256; ++i)
    x[i] = (float)((n * 7919 + i * 104729) % 1000) / 500.0f - 1.0f;
  ++n;
  return 0;
}
static int loss(void *user, void *const *arrays) { ++seen; return 0; }
int main(int count, char **args) {
ARRAYS
  uint64_t head;
  FILE *file = fopen(args[1], "rb");
  if (fread(&head, 8, 1, file) != 1 || fseek(file, 8 + (long)head, SEEK_SET)) return 1;
READS
  int status = train(NAMES, batch, loss, 0);
WRITES
  return status || seen != 10 || n != 1000 || train(NAMES, 0, loss, 0) != -3;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script beside what was built of it."""
    home = tmp_path_factory.mktemp("build")
    (home / "train.py").write_text(SCRIPT)
    done = CliRunner().invoke(commands, ["build", str(home / "train.py"), "-o", str(home / "out")])
    assert done.exit_code == 0, done.output
    return home


def loader(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_loader", folder / "out/train_loader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def after(folder: Path) -> list[np.ndarray]:
    """The states when the compiled program itself has run a second time."""
    names: dict[str, object] = {}
    exec(SCRIPT, names)  # the text above
    names["made"][0] = 0  # type: ignore[index]
    names["train"]()  # type: ignore[operator]
    from pullback.tensor.record.trace import held

    entry = names["train"].last  # type: ignore[attr-defined]
    return [v.array for v in held((*entry.read, *entry.written))]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert len(got) == len(want)
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        wrong = np.flatnonzero(a.reshape(-1).view(np.uint8) != b.reshape(-1).view(np.uint8))
        assert a.nbytes == b.nbytes
        assert not len(wrong), f"state {number}, byte {wrong[0]}: got {a}, want {b}"


def test_a_training_loop_from_python(folder: Path) -> None:
    names: dict[str, object] = {}
    exec(SCRIPT.removesuffix("train()\n"), names)  # its feeder
    program, seen = loader(folder).Program(), []
    program(batch=names["batch"], loss=lambda value: seen.append(float(value)))
    assert len(seen) == 10
    same([*program.state.values()], after(folder))


def test_a_training_loop_from_c(folder: Path) -> None:
    facts = json.loads((folder / "out/manifest.json").read_text())
    kinds = {"F32": ("float", "f4"), "F64": ("double", "f8"), "I64": ("int64_t", "i8")}
    rows = [(r["name"], int(np.prod(r["shape"], dtype=int)), *kinds[r["kind"]])
            for r in facts["state"]]  # fmt: skip
    arrays = [f"  static {kind} {n}[{size}];" for n, size, kind, _ in rows]
    text = PROGRAM.replace("ARRAYS", "\n".join(arrays))
    text = text.replace("NAMES", ", ".join(n for n, *_ in rows))
    reads = [f"  if (fread({n}, sizeof {n}, 1, file) != 1) return 1;" for n, *_ in rows]
    writes = [f"  fwrite({n}, sizeof {n}, 1, stdout);" for n, *_ in rows]
    text = text.replace("READS", "\n".join(reads)).replace("WRITES", "\n".join(writes))
    out = folder / "out"
    (out / "main.c").write_text(text)
    command = ["cc", "-ffp-contract=off", "main.c", "./train.so", "-o", "main"]
    subprocess.run(command, cwd=out, check=True)
    done = subprocess.run(
        ["./main", "weights.safetensors"], cwd=out, capture_output=True, check=False
    )
    assert done.returncode == 0
    got, at = [], 0
    for _, size, _, kind in rows:
        got.append(np.frombuffer(done.stdout, kind, size, at))
        at += got[-1].nbytes
    same(got, after(folder))


def test_a_process_without_pullback(folder: Path) -> None:
    x = np.zeros((1000, 32, 8), np.float32)
    np.savez(folder / "data.npz", batch=x)
    line = [sys.executable, "-I", str(folder / "out/train_loader.py"), "--run"]
    more = ["--feed", str(folder / "data.npz"), "--save", str(folder / "after.safetensors")]
    done = subprocess.run([*line, *more], capture_output=True, text=True, check=True)
    assert done.stdout.count("loss") == 10
    module = loader(folder)
    program = module.Program()
    feed = iter(x)
    program(batch=lambda: next(feed), loss=lambda _: None)
    read = module.read(folder / "after.safetensors")
    same([*program.state.values()], [*read.values()])


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    module = loader(folder)
    program = module.Program()
    with pytest.raises(module.ProgramError, match="this program calls batch, loss"):
        program(batch=lambda: None)
    with pytest.raises(module.ProgramError, match=r"batch0? is float32\[3\]"):
        program(batch=lambda: np.zeros(3, np.float32), loss=print)
    program.state = {n: a[None] for n, a in program.state.items()}
    program.facts["state"] = []
    module.write(tmp_path / "w.safetensors", program.state)
    with pytest.raises(module.ProgramError, match=r"w\.safetensors: lr is float64"):
        module.Program(weights=tmp_path / "w.safetensors")
    data = (folder / "out/weights.safetensors").read_bytes()
    for end in (0, 7, 100, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:end])
        with pytest.raises(module.ProgramError, match="cut"):
            module.Program(weights=tmp_path / "cut")
    shutil.copytree(folder / "out", tmp_path / "other")
    path = tmp_path / "other/manifest.json"
    for key, value in (("interface", 2), ("machine", "pdp11"), ("features", ["avx9"])):
        path.write_text(json.dumps({**program.facts, key: value}))
        with pytest.raises(module.ProgramError, match=r"interface 2|pdp11|avx9"):
            module.Program(tmp_path / "other")


def test_a_script_without_a_program(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    two = "import pullback as pb\nf = pb.jit(lambda x: x)\ng = pb.jit(lambda x: x)\nf(1.0), g(1.0)"
    (tmp_path / "b.py").write_text(two)
    for file, said in (("a.py", "no jitted function"), ("b.py", "f, g")):
        line = ["build", str(tmp_path / file), "-o", str(tmp_path / "out")]
        done = CliRunner().invoke(commands, line)
        assert done.exit_code == 2
        assert said in done.output
    assert not (tmp_path / "out").exists()


def test_a_feeder_that_ends(folder: Path) -> None:
    program, given, seen = loader(folder).Program(), iter(range(250)), []

    def batch() -> np.ndarray:
        return np.full((32, 8), next(given) / 250, np.float32)

    program(batch=batch, loss=lambda value: seen.append(float(value)))
    assert len(seen) == 2
