"""`pullback eject`: files of C and Python that run where pullback is not.

Each file runs in a process that cannot import pullback; values beside NumPy, PyTorch and pullback.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import pullback as pb
from pullback.cli.main import commands

CC = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

USERS = """\
import pullback as pb

STATE = pb.State(pb.ones(3))
CAPTURED = pb.tensor([1.0, -2.0, 3.0])
LARGE = pb.ones(100_000)
FACTORS = pb.tensor([1.1, 0.7], dtype="float64")


def attention(q, k, v, scale: float = 0.25):
    return pb.softmax(q @ pb.matrix_transpose(k) * scale, axis=-1) @ v


def several(x, ids):
    return pb.sum(x), pb.take(x, ids, axis=0), pb.argmax(x)


def repeated(x, times: int = 3):
    return pb.loop(times, lambda i, x: pb.sin(x) * 1.5, x)


def scaled(input, error):
    return input * CAPTURED + error


def stepped(x):
    return pb.loop(range(3, 63, 2), lambda i, x: pb.sin(pb.flip(x, axis=0) * FACTORS) + i, x)


def chained(a, b):
    for _ in range(3):
        a = pb.softmax(a @ b, axis=-1) @ pb.matrix_transpose(b)
        a = a / (1 + pb.sum(pb.abs(a), axis=0, keepdims=True))
    return a


def rounded(x):
    return x * 3


def reads_state(x):
    return x * STATE


def large(x):
    return x * LARGE


def noisy(x):
    return x * pb.random.uniform((3,))


def doubled(x):
    return x.numpy() * 2
"""
BLOCKED = """\
import sys


class _Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pullback":
            raise ImportError("pullback is blocked")


sys.meta_path.insert(0, _Blocked())
import runpy

if len(sys.argv) > 1 and sys.argv[1] == "without torch":
    sys.modules["torch"] = None


def load(name):
    return runpy.run_path(name + ".py")


"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ejected")
    (made / "users.py").write_text(USERS)
    return made


def eject(folder: Path, *words: str) -> Result:
    words = tuple(w.replace("users.py", str(folder / "users.py")) for w in words)
    return CliRunner().invoke(commands, ["eject", *words])


def ejected(folder: Path, out: str, *words: str) -> str:
    done = eject(folder, *words, "-o", str(folder / out))
    assert done.exit_code == 0, done.output
    return (folder / out).read_text()


def alone(folder: Path, script: str, *words: str) -> str:
    """What a script says that cannot import pullback."""
    path = folder / "script.py"
    path.write_text(BLOCKED + script)
    done = subprocess.run(
        [sys.executable, "-I", str(path), *words],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(folder / "kept"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def library(folder: Path, text: str, *flags: str) -> None:
    """A file of C, compiled, with no word of a warning."""
    (folder / "alone.c").write_text(text)
    line = [
        str(CC),
        *flags,
        "-O1",
        "-std=c11",
        "-Wall",
        "-shared",
        "-fPIC",
        "-o",
        "alone.so",
        "alone.c",
    ]
    done = subprocess.run([*line, "-lm"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr


FROM_C = """\
import ctypes, numpy as np, threading

c = ctypes.CDLL("./alone.so")
rng = np.random.default_rng(0)
x, w, dy = (rng.normal(size=s).astype("float32") for s in ((7, 5), (5, 9), (7, 9)))
at = lambda *arrays: [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def work():
    for _ in range(50):
        y, dx, dw = np.full((7, 9), np.nan, "f4"), np.empty((7, 5), "f4"), np.empty((5, 9), "f4")
        assert c.y_forward(*at(x, w, y)) == 0 and c.y_backward(*at(dy, x, w, dx, dw)) == 0
        t = np.tanh(x.astype("f8") @ w)
        head = dy * (1 - t * t)
        assert abs(y - t).max() < 1e-5
        assert abs(dx - head @ w.T).max() < 1e-4 and abs(dw - x.T @ head).max() < 1e-4
        good.append(1)


good = []
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(good))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "flags", [(), ("-march=native", "-fopenmp", "-fwrapv")], ids=["plain", "all"]
)
def test_a_file_of_c_stands_alone(folder: Path, flags: tuple[str, ...]) -> None:
    """By any flags, from many threads, with documented signatures."""
    definition = "y[i, j] = tanh(sum[k](x[i, k] * w[k, j]))"
    text = ejected(folder, "y.c", definition, "--shape", "x=7,5", "--shape", "w=5,9")
    assert "int y_forward(const float *x, const float *w, float *y)" in text
    backward = (
        "int y_backward(const float *dy, const float *x, const float *w, float *dx, float *dw)"
    )
    assert backward in text
    assert not re.search(r'#include [<"](?!immintrin|math|omp|std|string)', text)
    head = text[: text.index("*/")]
    assert "sum[k < 5](x[i, k] * w[k, j])" in head and "assign dw = " in head
    library(folder, text, *flags)
    assert alone(folder, FROM_C) == "200\n"


FROM_NUMPY = """\
import numpy as np

several = load("several")
f, back = several["several"], several["several_backward"]
x, ids = np.arange(12.0).reshape(4, 3), np.array([1, 3], "int32")
total, rows, best = f(x, ids)
assert total == 66 and (rows == x[ids]).all() and best == 11 and best.dtype == "int64"
head = np.ones((2, 3))
dx = back(np.array(2.0), head, x, ids)
assert (dx == 2 + np.isin(range(4), [1, 3])[:, None]).all()

scaled = load("scaled")["scaled"]
assert (scaled(np.ones(3, "f4"), np.ones(3, "f4")) == [2, -1, 4]).all()

repeated = load("repeated")["repeated"]
slope, y = 1.0, 0.3
x0 = np.array(y)
for _ in range(4):
    slope, y = slope * 1.5 * np.cos(y), np.sin(y) * 1.5
assert abs(load("repeated")["repeated_backward"](np.array(2.0), x0) - 2 * slope) < 1e-14
assert abs(repeated(x0) - y) < 1e-15 and repeated(x0).shape == ()

stepped, y = load("stepped"), np.array([0.3, 0.4])
factors, start, slope = np.array([1.1, 0.7]), y, np.eye(2)
for i in range(3, 63, 2):  # the order of these products matters
    inner = y[::-1] * factors
    slope = np.diag(np.cos(inner) * factors) @ slope[::-1]
    y = np.sin(inner) + i
assert abs(stepped["stepped"](start) - y).max() < 1e-12
heads = [stepped["stepped_backward"](head, start) for head in np.eye(2)]
assert abs(np.stack(heads) - slope).max() < 1e-8 * abs(slope).max()
whole = load("whole")["rounded"]
assert (whole(np.array([2**30, -5], "int32")) == [-(2**30), -15]).all()
nothing = load("nothing")["rounded"]
assert nothing(np.empty((0, 2), "f4")).shape == (0, 2)


def refused(kind, call):
    try:
        call()
    except kind as error:
        print(error)
    else:
        raise AssertionError


refused(IndexError, lambda: f(x, np.array([1, 4], "int32")))
refused(TypeError, lambda: f(x.astype("f4"), ids))
refused(ValueError, lambda: f(x[:2], ids))
refused(ValueError, lambda: f(np.asfortranarray(x), ids))
refused(TypeError, lambda: back(head, x, ids))
refused(TypeError, lambda: load("whole")["rounded_backward"](x))
"""
SAID = """\
several_forward: axis 0 of `x`, which has 4 elements
several: x is float64, not float32
several: x has shape (4, 3), not (2, 3)
several: x is not contiguous: numpy.ascontiguousarray(x)
several_backward takes 4 arrays (dy0, dy1, x, ids), not 3
rounded has no derivative
"""


@pytest.mark.slow
def test_functions_of_numpy_where_there_is_no_torch(folder: Path) -> None:
    wide = ("--dtype", "float64")
    several = ("--shape", "x=4,3", "--shape", "ids=2", "--type", "ids=int32")
    ejected(folder, "several.py", "users.py:several", *several, *wide)
    ejected(folder, "scaled.py", "users.py:scaled", "--shape", "input=3", "--shape", "error=3")
    ejected(folder, "repeated.py", "users.py:repeated", "--shape", "x=", "--set", "times=4", *wide)
    ejected(folder, "stepped.py", "users.py:stepped", "--shape", "x=2", *wide)
    ejected(folder, "whole.py", "users.py:rounded", "--shape", "x=2", "--dtype", "int32")
    ejected(folder, "nothing.py", "users.py:rounded", "--shape", "x=0,2")
    assert alone(folder, FROM_NUMPY, "without torch") == SAID
    assert alone(folder, FROM_NUMPY, "without torch") == SAID  # of the library that is kept


@pytest.mark.slow
def test_a_library_that_was_changed_is_compiled_again(folder: Path) -> None:
    ejected(folder, "one.py", "y[i] = 2 * x[i]", "--shape", "x=3")
    script = "import numpy\nprint(load('one')['y'](numpy.ones(3, 'f4')).tolist())\n"
    assert alone(folder, script, "without torch") == "[2.0, 2.0, 2.0]\n"
    (kept,) = (folder / "kept" / "pullback-ejected").glob("y-*.so")
    kept.write_bytes(kept.read_bytes()[:100])
    assert alone(folder, script, "without torch") == "[2.0, 2.0, 2.0]\n"


FROM_TORCH = """\
import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
real = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)


def beside(f, reference, *given):
    ours, theirs = f(*given), reference(*given)
    inputs = [g for g in given if g.requires_grad]
    assert (ours - theirs).abs().max() < 1e-12
    head = torch.randn_like(theirs)
    pairs = zip(*[torch.autograd.grad(y, inputs, head) for y in (ours, theirs)])
    assert all((a - b).abs().max() < 1e-11 for a, b in pairs)
    assert torch.autograd.gradcheck(f, given)
    print("good")


attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.25)
beside(load("attention")["attention"], attention, real(2, 6, 4), real(2, 6, 4), real(2, 6, 4))
norm = lambda x, w, b: F.layer_norm(x, (6,), w, b)
f = load("norm")["layer_norm"]
beside(f, norm, real(3, 6), real(6), real(6))
linear = lambda x, w, b: F.gelu(F.linear(x, w, b))
beside(load("linear")["sequential"], linear, real(3, 5), real(7, 5), real(7))
conv = lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1)
beside(load("conv")["conv2d"], conv, real(2, 2, 5, 5), real(3, 2, 3, 3), real(3))
loss = load("loss")["cross_entropy"]
beside(loss, F.cross_entropy, real(4, 5), torch.randint(0, 5, (4,)))

x, w, b = real(3, 6), real(6), real(6)
f(x, w, b).sum().backward()  # a head without memory of its own
again = norm(x, w, b)
assert (x.grad - torch.autograd.grad(again.sum(), x)[0]).abs().max() < 1e-12
assert (b.grad - 3).abs().max() < 1e-12
f(x.detach(), w, b).sum().backward()  # an input without a gradient
for wrong in (x.float(), x[:2], x.t().contiguous().t(), x.to("meta"), 1.0):
    try:
        f(wrong, w, b)
    except (TypeError, ValueError) as error:
        print(error)
dx = torch.autograd.grad(f(x, w, b).sum(), x, create_graph=True)[0]
try:
    dx.sum().backward()
except RuntimeError as error:
    print(error)
"""
REFUSED = """\
layer_norm: input is float64, not torch.float32
layer_norm: input has shape (3, 6), not (2, 6)
layer_norm: input is not contiguous: input.contiguous()
layer_norm: input is on meta (torch.strided), not dense on the cpu
layer_norm: input is a tensor beside others, not float
layer_norm is differentiable once
"""


SYMBOLIC = """\
import numpy as np

made = load("symbolic")
f, back, w = made["y"], made["y_backward"], np.linspace(-1, 1, 10).reshape(5, 2)
for n in (1, 2, 7, 33, 100):
    x, dy = np.sin(np.arange(5.0 * n)).reshape(n, 5), np.cos(np.arange(2.0 * n)).reshape(n, 2)
    y = np.tanh(x @ w)
    dx, dw = back(dy, x, w)
    assert abs(f(x, w) - y).max() < 1e-14 and f(x, w).shape == (n, 2)
    head = dy * (1 - y * y)
    assert abs(dx - head @ w.T).max() < 1e-13 and abs(dw - x.T @ head).max() < 1e-12
for wrong in (lambda: f(np.ones((101, 5)), w), lambda: back(dy[:3], x, w), lambda: f(x[:0], w)):
    try:
        wrong()
    except ValueError as error:
        print(error)
# past the checks of Python, those of C
print(made["_C"].y_forward(*[None] * 3, made["ctypes"].c_int64(101)))
"""
OUTSIDE = """\
y: x has shape (n, 5), not (101, 5), n = 101 in (1, 100)
y: x has shape (n, 5), not (100, 5), n = 3 in (1, 100)
y: x has shape (n, 5), not (0, 5), n = 0 in (1, 100)
-2
"""


@pytest.mark.slow
def test_a_symbolic_first_axis_is_an_argument(folder: Path) -> None:
    definition = "y[i, j] = tanh(sum[k](x[i, k] * w[k, j]))"
    shapes = ("--shape", "x=n,5", "--shape", "w=5,2", "--dim", "n=1,100", "--dtype", "float64")
    text = ejected(folder, "symbolic.py", definition, *shapes)
    assert "int y_forward(const double *x, const double *w, double *y, int64_t n)" in text
    assert alone(folder, SYMBOLIC, "without torch") == OUTSIDE
    words = ("nn.GELU()", "--shape", "input=5,n", "--dim", "n=1,9", "-o", str(folder / "x.c"))
    done = eject(folder, *words)
    assert "`n` along axis 1 of `input`" in done.output and "[E395]" in done.output


@pytest.mark.torch
def test_layers_beside_pytorch(folder: Path) -> None:
    """Values, derivatives, `gradcheck`; what does not fit is refused by name."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    wide = ("--dtype", "float64")
    heads = [w for n in "qkv" for w in ("--shape", f"{n}=2,6,4")]
    ejected(folder, "attention.py", "users.py:attention", *heads, *wide)
    ejected(folder, "norm.py", "nn.LayerNorm(6)", "--shape", "input=3,6", *wide)
    linear = "nn.Sequential(nn.Linear(5, 7), nn.GELU())"
    ejected(folder, "linear.py", linear, "--shape", "input=3,5", *wide)
    conv = "nn.Conv2d(2, 3, 3, padding=1, stride=2)"
    ejected(folder, "conv.py", conv, "--shape", "input=2,2,5,5", *wide)
    loss = ("--shape", "input=4,5", "--shape", "target=4", "--type", "target=int64")
    ejected(folder, "loss.py", "pullback.nn.functional:cross_entropy", *loss, *wide)
    assert alone(folder, FROM_TORCH) == "good\n" * 5 + REFUSED


BESIDE = """\
import numpy as np

f = load("beside")
given = np.load("given.npz")
y = f["y"](given["x"], given["w"])
dx, dw = f["y_backward"](given["dy"], given["x"], given["w"])
np.savez("made.npz", y=y, dx=dx, dw=dw)
"""


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_values_are_those_of_pullback(folder: Path, kind: str) -> None:
    """The same nests: to the last bits, or next to them where other instructions fuse."""
    rng = np.random.default_rng(1)
    x, w, dy = (rng.normal(size=s).astype(kind) for s in ((5, 33), (33, 6), (5, 6)))
    definition = "y[i, j] = sigmoid(sum[k](x[i, k] * exp(w[k, j])))"
    shapes = ("--shape", "x=5,33", "--shape", "w=33,6", "--dtype", kind)
    ejected(folder, "beside.py", definition, *shapes)
    np.savez(folder / "given.npz", x=x, w=w, dy=dy)
    alone(folder, BESIDE, "without torch")
    made = np.load(folder / "made.npz")

    def own(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        return pb.sigmoid(x @ pb.exp(w))

    y, back = pb.vjp(own, pb.tensor(x), pb.tensor(w))
    wanted = dict(zip(("y", "dx", "dw"), (y, *back(pb.tensor(dy))), strict=True))
    for name, value in wanted.items():
        unit = float(np.finfo(kind).eps) * 64
        np.testing.assert_allclose(made[name], value.numpy(), rtol=unit, atol=unit)


CHAINED = """\
import numpy as np

f = load("chained")
a, b = np.load("chain.npz").values()
for _ in range(3):
    y = f["chained"](a, b)
    da, db = f["chained_backward"](np.ones_like(y), a, b)
np.savez("chained.npz", y=y, da=da, db=db)
"""


@pytest.mark.slow
def test_several_launches_in_one_memory(folder: Path) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(65, 48)), rng.normal(size=(48, 80))
    shapes = ("--shape", "a=65,48", "--shape", "b=48,80", "--dtype", "float64")
    ejected(folder, "chained.py", "users.py:chained", *shapes)
    np.savez(folder / "chain.npz", a=a, b=b)
    alone(folder, CHAINED, "without torch")
    own = runpy.run_path(str(folder / "users.py"))["chained"]
    y, back = pb.vjp(own, pb.tensor(a), pb.tensor(b))
    made = np.load(folder / "chained.npz")
    for name, value in zip(("y", "da", "db"), (y, *back(pb.ones_like(y))), strict=True):
        np.testing.assert_allclose(made[name], value.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_threads_have_scratch_of_their_own(folder: Path) -> None:
    """Each offset into scratch is by thread, and there is room for all of them."""
    text = ejected(folder, "many.c", "y[i, j] = sum[k](exp(a[i, k]) * b[k, j])", *LARGE)
    room = re.findall(r"const size_t room = \d+ \+ (\d+) \* \(size_t\)threads;", text)
    strides = re.findall(r"pb_launch\(\w+, block, \d+, scratch, (\d+), threads\);", text)
    assert room and max(map(int, room)) == max(map(int, strides)) > 0
    assert "body(block, task, stride ? scratch + stride * PB_THREAD : 0);" in text
    library(folder, text, "-march=native", "-fopenmp", "-O2")
    assert alone(folder, MANY) == "good\n"


LARGE = ("--shape", "a=300,200", "--shape", "b=200,150")
MANY = """\
import ctypes, os
os.environ["OMP_NUM_THREADS"] = "4"
import numpy as np

c = ctypes.CDLL("./alone.so")
rng = np.random.default_rng(0)
a, b = rng.normal(size=(300, 200)).astype("f4"), rng.normal(size=(200, 150)).astype("f4")
right = np.exp(a.astype("f8")) @ b
for _ in range(20):
    y = np.empty((300, 150), "f4")
    assert c.y_forward(*[ctypes.c_void_p(x.ctypes.data) for x in (a, b, y)]) == 0
    assert abs(y - right).max() < 1e-3
print("good")
"""


def test_integers_wrap_by_any_flags(folder: Path) -> None:
    """Sums and products are written as unsigned: C leaves open what a signed overflow is."""
    shapes = ("--shape", "x=8", "--type", "x=int32")
    text = ejected(folder, "wrap.c", "y[i] = x[i] * x[i] + x[i]", *shapes)
    sums = [
        line
        for line in text[text.index("static void body_") :].splitlines()
        if " * " in line and "v_" in line and "restrict" not in line
    ]
    assert sums and all("(uint32_t)" in line for line in sums)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("users.py:reads_state", "--shape", "x=3"), "reads the state `full`"),
        (("users.py:noisy", "--shape", "x=3"), "assigns `generator`"),
        (("nn.Dropout(0.5)", "--shape", "input=3"), "assigns `generator`"),
        (("nn.BatchNorm1d(3)", "--shape", "input=4,3"), "assigns `num_batches_tracked`"),
        (("users.py:large", "--shape", "x=3"), "captures an array of 400,000 bytes"),
    ],
)
def test_what_cannot_stand_alone_is_refused(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    if words[0].endswith("large"):
        words = (words[0], "--shape", "x=100000")
    done = eject(folder, *words, "-o", str(folder / "refused.c"))
    assert done.exit_code == 2 and said in done.output and "[E395]" in done.output
    assert not (folder / "refused.c").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("users.py:rounded", "-o", "x.txt", "--shape", "x=3"), "a file that ends in .c or .py"),
        (("users.py:nobody", "-o", "x.c"), "has no function 'nobody'"),
        (("nowhere.py:f", "-o", "x.c"), "nowhere.py does not exist"),
        (("no_such_module:f", "-o", "x.c"), "No module named"),
        (("what?", "-o", "x.c"), "neither a definition nor"),
        (("users.py:rounded", "-o", "x.c"), "--shape x=.."),
        (("users.py:rounded", "-o", "x.c", "--shape", "z=3"), "no argument is called so"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=3", "--set", "k=3"), "is called so"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=3", "--type", "k=int8"), "there are x"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=3", "--dtype", "int"), "is no type"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=n"), "is not of the form a=2,3"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=n", "--dim", "n=0,2"), "of the form n=1"),
        (("nn.GELU()", "-o", "x.c", "--shape", "input=3", "--set", "k=3"), "--set is for a func"),
        (("users.py:rounded", "-o", "x.c", "--shape", "x=3", "--size", "k=3"), "--size is for a"),
        (("users.py:doubled", "-o", "x.c", "--shape", "x=3"), "[E310]"),
        (("nn.Linear(2, open)", "-o", "x.c"), "neither a literal nor a layer"),
        (("nn.Linear(2, 3)", "-o", "x.c"), "the shape of input?"),
        (("nn.Linear(2, 3)", "-o", "x.c", "--shape", "input=4,5"), "[E175]"),
        (("y[i] = x[i]", "-o", "nowhere/x.c"), "there is no folder"),
    ],
)
def test_wrong_use_is_one_message(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = eject(folder, *words)
    assert done.exit_code == 2 and said in done.output, done.output


def test_a_file_for_another_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the target's vectors, which need not be those of this one."""
    words = ("y[i] = sum[k](x[i, k])", "--shape", "x=40,40")
    monkeypatch.setenv("PULLBACK_TARGET", "aarch64")
    other = ejected(folder, "other.c", *words)
    assert "vectors of 16 bytes" in other and "__attribute__((vector_size(16)))" in other


def test_arguments_that_are_no_tensors_are_set(folder: Path) -> None:
    """Sequences and names among them; what is not set is as its default says."""
    shapes = ("--shape", "input=1,2,4,5", "--shape", "weight=3,2,3,3")
    words = ("pullback.nn.functional:conv2d", *shapes, "--set", "padding=(1, 0)")
    assert "y: float32[1, 3, 4, 3]" in ejected(folder, "set.c", *words)
    text = ejected(folder, "sum.c", "pullback:sum", "--shape", "x=3,4", "--set", "axis=1")
    assert "y: float32[3]" in text
    text = ejected(folder, "most.c", "pullback:argmax", "--shape", "x=3,4")
    assert "y: int64[]" in text and "_backward" not in text


def test_a_layer_in_evaluation_takes_its_buffers(folder: Path) -> None:
    text = ejected(folder, "bn.c", "nn.BatchNorm1d(3)", "--shape", "input=4,3", "--eval")
    assert re.search(r"int batch_norm1d_forward\(.*const float \*running_var", text)
