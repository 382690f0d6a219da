"""`pullback build`: a training loop as a library, from Python and from C, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
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
HOSTED = """
import numpy as np
import pullback as pb

@pb.jit
def f(x):
    return pb.sort(x, axis=1)[:, ::50] @ pb.linalg.inv(pb.eye(20) * 2 + x[:20, :20] / 100)

f(np.random.default_rng(0).normal(size=(40, 1000)).astype(np.float32))
"""
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static int broken(void *user, void *const *arrays) { return 7; }
int main(int count, char **args) {
ARRAYS
  int status = train_check(train_interface);
  if (!status) status = train_read(args[1], NAMES);
  if (!status && count > 2) status = train(NAMES, 0, loss, 0);
  if (!status && count > 3) status = train(NAMES, broken, loss, 0);
  if (status) return puts(train_message(status)), 9;
  status = train(NAMES, batch, loss, 0);
WRITES
  return status || seen != 10 || n != 1000 || train(NAMES, 0, loss, 0) != -3
      || train(NAMES, broken, loss, 0) != -4 || train_check(1) != -6;
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


def after(folder: Path, script: str = SCRIPT) -> list[np.ndarray]:
    """The states when the compiled program itself has run a second time."""
    names: dict[str, object] = {}
    exec(script, names)  # the text above
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


@pytest.mark.slow
def test_a_training_loop_from_python(folder: Path) -> None:
    names: dict[str, object] = {}
    exec(SCRIPT.removesuffix("train()\n"), names)  # its feeder
    program, seen = loader(folder).Program(), []
    program(batch=names["batch"], loss=lambda value: seen.append(float(value)))
    assert len(seen) == 10
    same([*program.state.values()], after(folder))


@pytest.fixture(scope="module")
def inside(folder: Path) -> Path:
    """The program of C beside the library."""
    rows = states(folder)
    arrays = [f"  static {kind} {n}[{size}];" for n, size, kind, _ in rows]
    text = PROGRAM.replace("ARRAYS", "\n".join(arrays))
    text = text.replace("NAMES", ", ".join(n for n, *_ in rows))
    writes = [f"  fwrite({n}, sizeof {n}, 1, stdout);" for n, *_ in rows]
    out = folder / "out"
    (out / "main.c").write_text(text.replace("WRITES", "\n".join(writes)))
    command = ["cc", "-ffp-contract=off", "main.c", "./train.so", "-o", "main"]
    subprocess.run(command, cwd=out, check=True)
    return out


def states(folder: Path) -> list[tuple[str, int, str, str]]:
    """The name, elements and types of each state."""
    facts = json.loads((folder / "out/manifest.json").read_text())
    kinds = {"F32": ("float", "f4"), "F64": ("double", "f8"), "I64": ("int64_t", "i8")}
    return [(r["name"], int(np.prod(r["shape"], dtype=int)), *kinds[r["kind"]])
            for r in facts["state"]]  # fmt: skip


@pytest.mark.slow
def test_a_training_loop_from_c(folder: Path, inside: Path) -> None:
    command = ["./main", "weights.safetensors"]
    done = subprocess.run(command, cwd=inside, capture_output=True, check=False)
    assert done.returncode == 0
    got, at = [], 0
    for _, size, _, kind in states(folder):
        got.append(np.frombuffer(done.stdout, kind, size, at))
        at += got[-1].nbytes
    same(got, after(folder))


def said(folder: Path, *arguments: str) -> str:
    """What the program of C says where it goes no further."""
    done = subprocess.run(["./main", *arguments], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 9, done
    return done.stdout.decode().strip()


def test_what_does_not_fit_is_refused_in_c(inside: Path, tmp_path: Path) -> None:
    good = inside / "weights.safetensors"
    assert said(inside, str(good), "-").endswith("[E545]")
    assert said(inside, str(tmp_path / "none")).endswith("[E540]")
    data = good.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    (tmp_path / "w").write_bytes(b"\xff" * 8 + data[8:])
    assert said(inside, str(tmp_path / "w")).endswith("[E540]")
    for end in (0, 7, 100, 8 + size, len(data) - 1):
        (tmp_path / "w").write_bytes(data[:end])
        assert said(inside, str(tmp_path / "w")).endswith("[E540]"), end
    name = next(n for n, row in head.items() if len(row["shape"]) == 2)
    shape = head[name]["shape"]
    wrong: list[tuple[str, object]] = [
        ("E543", {**head, name: {**head[name], "shape": shape[::-1]}}),
        ("E543", {**head, name: {**head[name], "dtype": "F16"}}),
        ("E543", {n: row for n, row in head.items() if n != name}),
        ("E543", {**head, "more": head[name]}),
        ("E540", {**head, name: {**head[name], "data_offsets": [0, 1 << 62]}}),
        ("E540", {**head, name: {**head[name], "data_offsets": [8, 4]}}),
        ("E540", {**head, name: {**head[name], "data_offsets": [0, 4]}}),
        ("E540", {**head, name: [1]}),
        ("E540", [head]),
    ]
    for code, made in wrong:
        (tmp_path / "w").write_bytes(packed(json.dumps(made), body))
        assert said(inside, str(tmp_path / "w")).endswith(f"[{code}]"), made
    twice = json.dumps(head)[:-1] + f', "{name}": {json.dumps(head[name])}}}'
    (tmp_path / "w").write_bytes(packed(twice, body))
    assert said(inside, str(tmp_path / "w")).endswith("[E540]")


def packed(text: str, body: bytes) -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode() + body


def test_other_writers_of_weights_are_read_in_c(folder: Path, inside: Path, tmp_path: Path) -> None:
    data = (inside / "weights.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = {"__metadata__": {'a } "b': "{"}, **json.loads(data[8 : 8 + size])}
    for indent, order in ((None, 1), (3, -1)):
        text = json.dumps(dict([*head.items()][::order]), indent=indent)
        (tmp_path / "w").write_bytes(packed(text, data[8 + size :]))
        command = ["./main", str(tmp_path / "w")]
        done = subprocess.run(command, cwd=inside, capture_output=True, check=False)
        assert done.returncode == 0, text


def test_bytes_of_weights_changed_at_random(inside: Path, tmp_path: Path) -> None:
    """From C, no file ends the process otherwise than it says; nor from Python."""
    data = (inside / "weights.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(0)
    program = loader(inside.parent)
    for _ in range(40):
        changed = bytearray(data)
        for at in rng.integers(0, size, rng.integers(1, 4)):
            changed[at] = rng.integers(0, 256)
        (tmp_path / "w").write_bytes(bytes(changed))
        command = ["./main", str(tmp_path / "w"), "-"]
        done = subprocess.run(command, cwd=inside, capture_output=True, check=False)
        assert done.returncode == 9, bytes(changed[:size])
        try:
            program.Program(weights=tmp_path / "w")
        except program.ProgramError as error:
            assert error.code in ("E540", "E543")


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


def test_files_of_the_command_that_do_not_fit(folder: Path) -> None:
    """Told before anything runs; nothing is left."""
    np.savez(folder / "one.npz", batch=np.float32(3))
    np.savez(folder / "none.npz", batch=np.zeros((0, 32, 8), np.float32))
    for words, code in (
        (["--feed", "one.npz"], "E544"),
        (["--save", "nowhere/after"], "E540"),
        (["--save", "out"], "E540"),
        (["--feed", "none.npz", "--save", "/proc/after"], "E540"),
    ):
        line = [sys.executable, "-I", "out/train_loader.py", "--run", *words]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.endswith(f"[{code}]\n"), done
        assert "Traceback" not in done.stderr
    assert not [*folder.glob("out.*")]


def refused(module: ModuleType, code: str, match: str = "") -> AbstractContextManager[object]:
    return pytest.raises(module.ProgramError, match=rf"(?s){match}.*\[{code}\]$")


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    module = loader(folder)
    program = module.Program()
    with refused(module, "E545", "this program calls batch, loss"):
        program(batch=lambda: None)
    with refused(module, "E545", "loss is a int"):
        program(batch=lambda: None, loss=3)
    with refused(module, "E544", "0 arrays|1 arrays"):
        program(np.zeros(1), batch=print, loss=print)
    with refused(module, "E544", r"batch0? is float32\[3\]"):
        program(batch=lambda: np.zeros(3, np.float32), loss=print)
    with refused(module, "E544", "batch gave 2 arrays"):
        program(batch=lambda: (1, 2), loss=print)
    first = next(iter(program.state))
    program.state[first] = np.zeros((7, 7))
    with refused(module, "E543", rf"state: {first} is float64\[7, 7\]"):
        program(batch=print, loss=print)
    program = module.Program()
    program.state = {n: a[None] for n, a in program.state.items()}
    program.facts["state"] = []
    module.write(tmp_path / "w.safetensors", program.state)
    with refused(module, "E543", r"w\.safetensors: lr is float64"):
        module.Program(weights=tmp_path / "w.safetensors")
    data = (folder / "out/weights.safetensors").read_bytes()
    for end in (0, 7, 100, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:end])
        with refused(module, "E540", "cut"):
            module.Program(weights=tmp_path / "cut")
    with refused(module, "E540", "cannot be read"):
        module.Program(weights=tmp_path / "nowhere")


def test_a_manifest_of_another_library_is_refused(folder: Path, tmp_path: Path) -> None:
    module = loader(folder)
    shutil.copytree(folder / "out", tmp_path / "other")
    path = tmp_path / "other/manifest.json"
    text = path.read_text()
    facts = json.loads(text)
    state = [{**facts["state"][0], "shape": [1 << 40]}, *facts["state"][1:]]
    for code, key, value in (
        ("E541", "interface", 1), ("E542", "machine", "pdp11"), ("E542", "features", ["avx9"]),
        ("E543", "state", state), ("E541", "results", [facts["state"][0]]), ("E540", "name", "a b"),
        ("E540", "calls", 3), ("E540", "inputs", [{"name": "x", "kind": "F31", "shape": []}]),
        ("E540", "name", "nothing"),
    ):  # fmt: skip
        path.write_text(json.dumps({**facts, key: value}))
        with refused(module, code):
            module.Program(tmp_path / "other")
    for end in range(0, len(text) - 2, 97):
        path.write_text(text[:end])
        with refused(module, "E540", "cut off or damaged"):
            module.Program(tmp_path / "other")
    path.write_text("[" * 100_000)
    with refused(module, "E540"):
        module.Program(tmp_path / "other")
    path.write_text(text)
    (tmp_path / "other/train.so").unlink()  # what is loaded keeps its file
    (tmp_path / "other/train.so").write_bytes((folder / "out/train.so").read_bytes()[:5000])
    with refused(module, "E540", "not the library"):
        module.Program(tmp_path / "other")
    path.unlink()
    with refused(module, "E540", "cannot be read"):
        module.Program(tmp_path / "other")


BITS = (b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"1e999", b"-1", b"9" * 20, b"true")


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_files_changed_at_random(folder: Path, tmp_path: Path, name: str, count: int) -> None:
    """Whatever stands in them, an error that has a code, or none."""
    module, home, rng = loader(folder), tmp_path / "out", random.Random(count)
    shutil.copytree(folder / "out", home)
    data = (home / name).read_bytes()
    codes = set()
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at, what = rng.randrange(len(changed)), rng.randrange(4)
            if what == 0:
                changed[at] = rng.randrange(256)
            elif what == 1:
                changed[at:at] = rng.choice(BITS)
            else:
                del changed[at : at + rng.choice((1, 20, 20, 10_000))]
            changed = changed or bytearray(b"{")
        (home / name).write_bytes(bytes(changed))
        try:
            module.Program(home)
        except module.ProgramError as error:
            codes.add(error.code)
    assert {"E540"} <= codes <= {"E540", "E541", "E542", "E543"}


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


@pytest.mark.parametrize("name", ["my-net.v2", pytest.param("main", marks=pytest.mark.slow)])
def test_a_script_of_any_name(name: str, tmp_path: Path) -> None:
    text = "import pullback as pb\nf = pb.jit(lambda x: x * 2.0)\nf(pb.ones(3))\n"
    (tmp_path / f"{name}.py").write_text(text)
    line = ["build", str(tmp_path / f"{name}.py"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(commands, line)
    assert done.exit_code == 0, done.output
    (path,) = (tmp_path / "out").glob("*_loader.py")
    code = "import sys, numpy, {0} as m; print(m.program(numpy.float32([1, 2, 3])))"
    more = [sys.executable, "-c", code.format(path.stem)]
    ran = subprocess.run(more, cwd=path.parent, capture_output=True, text=True, check=True)
    assert ran.stdout == "[2. 4. 6.]\n"


def test_what_the_host_computes_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long sort and an inverse, which programs ask NumPy and LAPACK for; not where it is said."""
    script = tmp_path / "hosted.py"
    script.write_text(HOSTED)
    made = CliRunner().invoke(commands, ["build", str(script), "-o", str(tmp_path / "out")])
    assert made.exit_code == 0, made.output
    assert "PULLBACK_HOST" not in os.environ
    monkeypatch.setenv("PULLBACK_HOST", "1")
    made = CliRunner().invoke(commands, ["build", str(script), "-o", str(tmp_path / "called")])
    assert made.exit_code == 2 and "[E395]" in made.output, made.output
    assert not (tmp_path / "called").exists()


def test_a_feeder_that_ends(folder: Path) -> None:
    program, given, seen = loader(folder).Program(), iter(range(250)), []

    def batch() -> np.ndarray:
        return np.full((32, 8), next(given) / 250, np.float32)

    program(batch=batch, loss=lambda value: seen.append(float(value)))
    assert len(seen) == 2


WIDE = """
import numpy as np
import pullback as pb

x = pb.tensor(np.sin(np.arange(256 * 300, dtype=np.float32)).reshape(256, 300))
w = pb.nn.Parameter(np.cos(np.arange(260 * 300, dtype=np.float32)).reshape(260, 300) / 16)

@pb.jit
def wide():
    for _ in range(2):
        (g,) = pb.grad(pb.sum(pb.tanh(x @ w.T) ** 2), [w])
        w.assign(w - 0.01 * g)
    return pb.sum(w)

wide()
"""
RUN = """
import importlib.util, os, signal, sys
import numpy as np
spec = importlib.util.spec_from_file_location("wide_loader", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
before = len(os.listdir("/proc/self/task"))
program = module.Program()
for _ in range(40):
    program()
if len(sys.argv) > 3 and os.fork() == 0:
    signal.alarm(20)
    program()
    os._exit(0)
if len(sys.argv) > 3:
    assert os.wait()[1] == 0
print(len(os.listdir("/proc/self/task")) - before)
program.save(sys.argv[2])
"""


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program for one thread and for three."""
    home = tmp_path_factory.mktemp("threads")
    (home / "wide.py").write_text(WIDE)
    for count in ("1", "3"):
        line = ["build", str(home / "wide.py"), "-o", str(home / count), "--threads", count]
        done = CliRunner().invoke(commands, line)
        assert done.exit_code == 0, done.output
    return home


def by_python(home: Path, count: str, *more: str, **environment: str) -> tuple[int, bytes]:
    """Threads that were started, and the state afterwards."""
    loader, save = home / count / "wide_loader.py", home / f"{count}.safetensors"
    line = [sys.executable, "-I", "-c", RUN, str(loader), str(save), *more]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout), save.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_threads_from_python(threaded: Path) -> None:
    """As many as asked for, the same bytes; a fork starts its own."""
    one, three = by_python(threaded, "1"), by_python(threaded, "3", "fork")
    assert (one[0], three[0]) == (0, 2)
    assert three[1] == one[1]
    assert by_python(threaded, "3", PULLBACK_THREADS="2")[1] == one[1]
    assert by_python(threaded, "3", PULLBACK_THREADS="nonsense")[1] == one[1]


DEEP = SCRIPT.replace("(32, 8)", "(512, 8)").replace("32 *", "512 *").replace("16", "300")


@pytest.mark.slow
def test_a_training_loop_on_threads(tmp_path: Path) -> None:
    """Feeders and receivers, 1,000 steps: the same bytes on one, two and three threads."""
    (tmp_path / "train.py").write_text(DEEP)
    want = after(tmp_path, DEEP)
    names: dict[str, object] = {}
    exec(DEEP.removesuffix("train()\n"), names)  # its feeder
    for count in ("1", "2", "3"):
        line = ["build", str(tmp_path / "train.py"), "-o", str(tmp_path / "out")]
        done = CliRunner().invoke(commands, [*line, "--threads", count])
        assert done.exit_code == 0, done.output
        names["made"][0] = 0  # type: ignore[index]
        program = loader(tmp_path).Program()
        program(batch=names["batch"], loss=lambda value: None)
        same([*program.state.values()], want)


INNER = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "wide.h"
#define MANY 4
STATES
static int failed;
static void *run(void *at) {
  const int n = (int)(long)at;
  float result;
  if (wide_read(WEIGHTS, READ)) return failed = 1, (void *)0;
  for (int turn = 0; turn < 40; ++turn) failed |= wide(READ, &result);
  return 0;
}
int main(void) {
  pthread_t made[MANY];
  for (long n = 0; n < MANY; ++n) pthread_create(made + n, 0, run, (void *)n);
  for (int n = 0; n < MANY; ++n) pthread_join(made[n], 0);
SAME
  return failed;
}
"""


def test_threads_from_threads_of_c(threaded: Path) -> None:
    """Four threads call at once what has three of its own, each with weights of its own."""
    out = threaded / "3"
    rows = json.loads((out / "manifest.json").read_text())["state"]
    sizes = [(r["name"], int(np.prod(r["shape"], dtype=int))) for r in rows]
    assert {r["kind"] for r in rows} == {"F32"}
    text = INNER.replace("STATES", "\n".join(f"static float {n}[MANY][{s}];" for n, s in sizes))
    text = text.replace("READ", ", ".join(f"{n}[n]" for n, _ in sizes))
    same = [f"  for (int n = 1; n < MANY; ++n) failed |= memcmp({n}[0], {n}[n], sizeof {n}[0]);\n"
            f"  fwrite({n}[0], sizeof {n}[0], 1, stdout);" for n, _ in sizes]  # fmt: skip
    text = text.replace("SAME", "\n".join(same)).replace("WEIGHTS", '"weights.safetensors"')
    (out / "main.c").write_text(text)
    subprocess.run(["cc", "main.c", "./wide.so", "-pthread", "-o", "main"], cwd=out, check=True)
    done = subprocess.run(["./main"], cwd=out, capture_output=True, check=False, timeout=20)
    assert done.returncode == 0
    data = by_python(threaded, "1")[1]
    assert done.stdout == data[8 + int.from_bytes(data[:8], "little") :]
