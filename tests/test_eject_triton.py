"""`pullback eject --language triton`: files that run where pullback is not, by the interpreter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from test_eject import USERS, alone, eject, ejected

pytest.importorskip("torch", reason="PyTorch is not installed")
ABSENT = importlib.util.find_spec("triton") is None  # not imported: others would compile by it
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(ABSENT, reason="Triton is not installed"),
]
MORE = """

def picked(x, at):
    return pb.compute((at.shape[0],), lambda i: x[at[i]] * 2)


def chosen(x, mask):
    return pb.where(mask, x, -x), mask & (x > 0)
"""
TRITON = ("--language", "triton")
BEGIN = """\
import os

os.environ["TRITON_INTERPRET"] = "1"
import torch
from torch.nn import functional as F

torch.manual_seed(0)
real = lambda *shape: torch.randn(shape, requires_grad=True)


def beside(f, reference, *given, near=1e-5):
    ours, theirs = f(*given), reference(*given)
    inputs = [g for g in given if g.requires_grad]
    assert (ours - theirs).abs().max() < near, (ours - theirs).abs().max()
    head = torch.randn_like(theirs)
    pairs = zip(*[torch.autograd.grad(y, inputs, head) for y in (ours, theirs)])
    gaps = [float((a - b).abs().max()) for a, b in pairs]
    assert max(gaps) < 10 * near, gaps
    print("good")


"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ejected_triton")
    (made / "users.py").write_text(USERS + MORE)
    return made


LAYERS = """\
norm = lambda x, w, b: F.layer_norm(x, (6,), w, b)
beside(load("norm")["layer_norm"], norm, real(9, 6), real(6), real(6))
linear = lambda x, w, b: F.gelu(F.linear(x, w, b))
beside(load("linear")["sequential"], linear, real(20, 17), real(33, 17), real(33))
conv = lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1)
beside(load("conv")["conv2d"], conv, real(2, 2, 5, 5), real(3, 2, 3, 3), real(3))
beside(load("loss")["cross_entropy"], F.cross_entropy, real(4, 5), torch.randint(0, 5, (4,)))
beside(load("soft")["softmax"], lambda x: F.softmax(x, -1), real(5, 7))
attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.25)
beside(load("attention")["attention"], attention, real(2, 6, 4), real(2, 6, 4), real(2, 6, 4))
"""


def test_layers_beside_pytorch(folder: Path) -> None:
    text = ejected(folder, "norm.py", "nn.LayerNorm(6)", "--shape", "input=9,6", *TRITON)
    assert "def layer_norm_forward_0(" in text and "def layer_norm_backward_1(" in text
    assert "import pullback" not in text and str(folder) not in text and "-packages" not in text
    linear = "nn.Sequential(nn.Linear(17, 33), nn.GELU())"
    assert "tl.dot(" in ejected(folder, "linear.py", linear, "--shape", "input=20,17", *TRITON)
    conv = "nn.Conv2d(2, 3, 3, padding=1, stride=2)"
    ejected(folder, "conv.py", conv, "--shape", "input=2,2,5,5", *TRITON)
    loss = ("--shape", "input=4,5", "--shape", "target=4", "--type", "target=int64")
    ejected(folder, "loss.py", "pullback.nn.functional:cross_entropy", *loss, *TRITON)
    ejected(folder, "soft.py", "nn.Softmax(-1)", "--shape", "input=5,7", *TRITON)
    heads = [w for n in "qkv" for w in ("--shape", f"{n}=2,6,4")]
    text = ejected(folder, "attention.py", "users.py:attention", *heads, *TRITON)
    assert "return pb.softmax(q @ pb.matrix_transpose(k) * scale, axis=-1) @ v  (users.py:" in text
    assert alone(folder, BEGIN + LAYERS) == "good\n" * 6


WIDE = """\
wide = lambda *shape: torch.randn(shape, dtype=torch.float64, requires_grad=True)
f = load("wide")["layer_norm"]
assert torch.autograd.gradcheck(f, (wide(3, 4), wide(4), wide(4)))
x, w, b = wide(3, 4), wide(4), wide(4)
f(x.detach(), w, b).sum().backward()
assert (b.grad - 3).abs().max() < 1e-12 and x.grad is None
for wrong in (x.float(), x[:2], x.t().contiguous().t(), x.to("meta"), 1.0):
    try:
        f(wrong, w, b)
    except (TypeError, ValueError) as error:
        print(error)
try:
    torch.autograd.grad(f(x, w, b).sum(), x, create_graph=True)[0].sum().backward()
except RuntimeError as error:
    print(error)
dx, dw, db = load("wide")["layer_norm_backward"](torch.ones(3, 4, dtype=torch.float64), x, w, b)
assert (db - 3).abs().max() < 1e-12
y = load("scaled")["scaled"](torch.ones(3), torch.zeros(3))
print(y.tolist())
first, second = load("chosen")["chosen"](torch.tensor([1.0, -2]), torch.tensor([True, False]))
print(first.tolist(), second.tolist())
picked = load("picked")["picked"]
print(picked(torch.tensor([1.0, 2, 3]), torch.tensor([2, 0])).tolist())
try:
    picked(torch.tensor([1.0, 2, 3]), torch.tensor([2, 3]))
except IndexError as error:
    print(error)
late = load("late")["late"]
for n in (1, 3, 70):
    x, w = real(n, 5), real(5, 2)
    beside(late, lambda x, w: torch.tanh(x @ w), x, w)
try:
    late(real(101, 5), w)
except ValueError as error:
    print(error)
"""
SAID = """\
layer_norm: input is float64, not torch.float32
layer_norm: input has shape (3, 4), not (2, 4); {}
layer_norm: input is not contiguous: input.contiguous()
layer_norm: weight is on cpu, others on meta
layer_norm: input is a tensor, not float
layer_norm is differentiable once
[1.0, -2.0, 3.0]
[1.0, 2.0] [True, False]
[6.0, 2.0]
picked: index 3 is out of range: axis 0 of `x`, which has 3 elements
good
good
good
late: x has shape ('n', 5), not (101, 5); {'n': (1, 100)}
"""


def test_types_sizes_and_what_is_refused_at_a_call(folder: Path) -> None:
    wide = ("--shape", "input=3,4", "--dtype", "float64", *TRITON)
    ejected(folder, "wide.py", "nn.LayerNorm(4)", *wide)
    ejected(
        folder, "scaled.py", "users.py:scaled", "--shape", "input=3", "--shape", "error=3", *TRITON
    )
    both = ("--shape", "x=2", "--shape", "mask=2", "--type", "mask=bool")
    ejected(folder, "chosen.py", "users.py:chosen", *both, *TRITON)
    ids = ("--shape", "x=3", "--shape", "at=2", "--type", "at=int64")
    ejected(folder, "picked.py", "users.py:picked", *ids, *TRITON)
    late = ("--shape", "x=n,5", "--shape", "w=5,2", "--dim", "n=1,100", "--name", "late")
    ejected(folder, "late.py", "y[i, j] = tanh(sum[k](x[i, k] * w[k, j]))", *late, *TRITON)
    assert alone(folder, BEGIN + WIDE) == SAID


def test_what_a_file_of_triton_cannot_do(folder: Path) -> None:
    for words, said in (
        (("users.py:repeated", "--shape", "x=3", "-o", "x.py"), "has a loop or a branch"),
        (("users.py:noisy", "--shape", "x=3", "-o", "x.py"), "assigns `generator`"),
        (("nn.GELU()", "--shape", "input=3", "-o", "x.c"), "--language triton is written as .py"),
    ):
        done = eject(folder, *words, *TRITON)
        assert done.exit_code == 2 and said in done.output, done.output


def test_the_cpu_without_the_interpreter_is_refused(folder: Path) -> None:
    ejected(folder, "plain.py", "nn.GELU()", "--shape", "input=3", *TRITON)
    script = "import torch\ntry:\n    load('plain')['gelu'](torch.ones(3))\n"
    said = alone(folder, script + "except ValueError as error:\n    print(error)\n")
    assert said == "gelu: tensors of the CPU need TRITON_INTERPRET=1, set before the import\n"
