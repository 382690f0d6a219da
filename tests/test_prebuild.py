"""`pullback prebuild`: the first run of another process compiles nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from gguf_support import small

ROOT = Path(__file__).parent.parent
SCRIPT = """
import numpy as np
import pullback as pb

w = pb.tensor(np.ones((4, 3), np.float32))

@pb.jit
def step(x):
    return pb.sum(pb.tanh(x @ w), axis=1)

step(np.ones((5, 4), np.float32))
"""
# What stands before a program, so that calls of compilers are counted.
COUNTED = """
import runpy
import numpy as np
import pullback as pb
import pullback.backends.c.compiler as c
import pullback.backends.host.engine as engine
import pullback.backends.llvm.jit as jit

calls = []
for home, name in ((engine, "compile_object"), (jit, "compile_object"), (c.CC, "compile")):
    def counted(*given, own=getattr(home, name), **named):
        calls.append(1)
        return own(*given, **named)
    setattr(home, name, counted)
"""
GEMM = f"""
from pullback.operations import read
op = read({str(ROOT / "ops/gemm.toml")!r})
a, b = np.ones((5, 6), np.float32), np.ones((6, 7), np.float32)
assert (pb.jit(op)(a, b).numpy() == 6).all()
assert (op(a, b).numpy() == 6).all()
"""


def made(*words: object, code: int = 0) -> str:
    """What the command says; in a process of its own, which has compiled nothing yet."""
    line = [sys.executable, "-m", "pullback", "prebuild", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def compilations(text: str, folder: Path, **more: str) -> int:
    """Of a process that finds its code in a folder."""
    environment = {**os.environ, "PULLBACK_CACHE": str(folder), **more}
    line = [sys.executable, "-c", f"{COUNTED}{text}\nprint(len(calls))"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_an_operation_is_there(tmp_path: Path) -> None:
    said = made(ROOT / "ops/gemm.toml", ROOT / "ops/softmax.toml", "-o", tmp_path / "code")
    assert "gemm.toml: " in said
    entries = len([*(tmp_path / "code").glob("*.obj")])
    assert f"2 files, {entries} objects" in said
    assert compilations(GEMM, tmp_path / "empty") > 0
    files = sorted((tmp_path / "code").iterdir())
    assert compilations(GEMM, tmp_path / "code") == 0
    assert sorted((tmp_path / "code").iterdir()) == files
    again = made(ROOT / "ops/gemm.toml", "-o", tmp_path / "code")
    assert "gemm.toml: all there\n1 file, 0 objects" in again


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_on_another_backend(tmp_path: Path) -> None:
    made(ROOT / "ops/gemm.toml", "--backend", "c", "-o", tmp_path / "code")
    assert compilations(GEMM, tmp_path / "empty", PULLBACK_BACKEND="c") > 1
    assert compilations(GEMM, tmp_path / "code", PULLBACK_BACKEND="c") == 0


def test_a_script_is_there(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    made(tmp_path / "s.py", "-o", tmp_path / "code")
    text = f"runpy.run_path({str(tmp_path / 's.py')!r})"
    assert compilations(text, tmp_path / "empty") > 0
    assert compilations(text, tmp_path / "code") == 0


@pytest.mark.slow
def test_sizes_and_derivatives(tmp_path: Path) -> None:
    words = "--test", "M=2,N=3,K=4", "--test", "M=9,N=1,K=5", "--grad", "-o", tmp_path / "code"
    made(ROOT / "ops/gemm.toml", *words)
    text = GEMM.replace("(5, 6)", "(2, 4)").replace("(6, 7)", "(4, 3)").replace("== 6", "== 4")
    assert compilations(text, tmp_path / "code") == 0
    text = GEMM.replace("(5, 6)", "(9, 5)").replace("(6, 7)", "(5, 1)").replace("== 6", "== 5")
    assert compilations(text, tmp_path / "code") == 0
    text += """
def loss(a, b, h):
    return pb.sum(op(a, b) * h)
pb.jit(pb.grad(loss, argnums=(0, 1)))(a, b, np.ones((9, 1), np.float32))
"""
    assert compilations(text, tmp_path / "code") == 0
    assert compilations(GEMM, tmp_path / "code") > 0


def test_models_are_there(tmp_path: Path) -> None:
    """A folder of two models: ONNX, and Hugging Face's layout."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import parser

    home = tmp_path / "models"
    home.mkdir()
    (home / "notes.txt").write_text("no model")
    text = '<ir_version: 10, opset_import: ["" : 21]> f (float[n, 3] x) => (float[n, 3] y)'
    onnx.save(parser.parse_model(text + " { y = Softmax(x) }"), home / "m.onnx")
    gpt2(home / "gpt2")
    tests = "--test", "n=4,batch=1,tokens=5"
    assert "m.onnx: " in made(home, *tests, "-o", tmp_path / "code")
    text = f"pb.onnx.load({str(home / 'm.onnx')!r})(np.ones((4, 3), np.float32)).numpy()\n"
    text += f"model = pb.models.load_gpt2({str(home / 'gpt2')!r})\n"
    text += "pb.jit(model)(np.zeros((1, 5), np.int64)).numpy()"
    assert compilations(text, tmp_path / "empty") > 0
    assert compilations(text, tmp_path / "code") == 0
    said = made(home / "gpt2", "-o", tmp_path / "more", code=2)
    assert '--test "batch=1,tokens=16"' in said
    assert not (tmp_path / "more").exists()


def gpt2(path: Path) -> None:
    """A folder with a model of one layer."""
    w, words = 8, 11
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (words, w), "wpe.weight": (16, w)}
    layer = {
        "ln_1": (w,), "ln_2": (w,), "attn.c_attn": (w, 3 * w), "attn.c_proj": (w, w),
        "mlp.c_fc": (w, 4 * w), "mlp.c_proj": (4 * w, w),
    }  # fmt: skip
    for name, shape in {**{f"h.0.{n}": s for n, s in layer.items()}, "ln_f": (w,)}.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
    rng = np.random.default_rng(0)
    path.mkdir()
    state = {n: pb.tensor(rng.normal(size=s).astype(np.float32)) for n, s in shapes.items()}
    pb.nn.save(state, path / "model.safetensors")
    facts = {"model_type": "gpt2", "vocab_size": words, "n_positions": 16, "n_embd": w}
    (path / "config.json").write_text(json.dumps({**facts, "n_layer": 1, "n_head": 2}))


@pytest.mark.slow
def test_a_language_model_is_there(tmp_path: Path) -> None:
    small(tmp_path / "m.gguf")
    made(tmp_path / "m.gguf", "-o", tmp_path / "code")
    text = f"list(pb.gguf.generate(pb.gguf.model({str(tmp_path / 'm.gguf')!r}), [1, 2, 3], 4))"
    assert compilations(text, tmp_path / "empty") > 0
    assert compilations(text, tmp_path / "code") == 0


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm, out = ROOT / "ops/gemm.toml", tmp_path / "code"
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.toml").write_text("name = 3")
    (tmp_path / "x.bin").write_bytes(b"\0")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    assert "[E530]" in made(gemm, tmp_path / "none.toml", "-o", out, code=2)
    assert "[E530]" in made(gemm, tmp_path / "empty", "-o", out, code=2)
    assert "[E530]" in made(gemm, tmp_path / "x.bin", "-o", out, code=2)
    assert "[E550]" in made(gemm, tmp_path / "bad.toml", "-o", out, code=2)
    assert "[E58" in made(gemm, tmp_path / "cut.gguf", "-o", out, code=2)
    (tmp_path / "broken").mkdir()
    for text in ("[" * 9999, "[]", '{"model_type": "none"}', "{"):
        (tmp_path / "broken/config.json").write_text(text)
        assert "[E586]" in made(tmp_path / "broken", "-o", out, code=2)
    assert "[E531]" in made(gemm, "--backend", "reference", "-o", out, code=2)
    assert "none of these files has a size Q" in made(gemm, "--test", "Q=3", "-o", out, code=2)
    assert "write it like M=100" in made(gemm, "--test", "M=x", "-o", out, code=2)
    assert "[E553]" in made(parsed(tmp_path), "-o", out, code=2)
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    assert "-o gives a folder" in made(gemm, code=2)
    assert not out.exists()
    assert os.environ["PULLBACK_CACHE"] == "off"
    made(gemm, "-o", out)
    before = sorted(out.iterdir())
    assert "[E58" in made(ROOT / "ops/sin.toml", tmp_path / "cut.gguf", "-o", out, code=2)
    assert set(before) < set(out.iterdir()), "what is whole stays in a folder that was there"
    assert "[E501]" in made(gemm, "-o", tmp_path / "x.bin", code=2)


def parsed(folder: Path) -> Path:
    """An operation whose test does not say its size."""
    path = folder / "open.toml"
    path.write_text('name = "d"\ninputs = ["x[M]"]\noutputs = ["y[M]"]\ncode = "y[i] = x[i]"')
    return path
