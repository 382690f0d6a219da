"""Images: what a compiled program is as text, read back, and in another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.backends.base import Code, Image, Made, Stored
from pullback.cli.main import commands
from pullback.errors import (
    AbsentError,
    ArgumentError,
    InvalidIR,
    PullbackError,
    StateError,
    UnsupportedError,
)
from pullback.runtime.image import image_text, read_image
from pullback.tensor.run import images
from small_programs import PROGRAMS
from test_opencl import no_device

OPTIONS = pb.Options(threads=2, cache=None)
NAMES = ("layer norm", "while", "gather", "sort", "adamw", "scan", "encoder layer")


def unloaded(made: Made, kept: Sequence[Stored]) -> list[Code]:
    """Code that nobody calls."""
    return [Code(facts, 0, 0, None) for facts in kept]


def read(text: str) -> Image:
    image = read_image(text, unloaded)
    assert image is not None
    return image


@pytest.mark.parametrize("name", NAMES)
def test_an_image_reads_back(name: str) -> None:
    function, arguments = PROGRAMS[name]("float32")
    compiled = pb.jit(function, options=OPTIONS)
    compiled(*arguments)
    image = compiled.program.image
    assert image is not None
    text = image_text(image)
    again = read(text)
    assert image_text(again) == text
    assert [str(v) for v in again.state] == [str(v) for v in image.state]
    assert [len(group) for group in again.kernels] == [len(group) for group in image.kernels]
    assert again.plan.arena_bytes == image.plan.arena_bytes
    assert again.plan.picture() == image.plan.picture()
    assert image_text(again).count("place") == len(image.plan.placed)
    assert [c.stored for c in again.codes] == [c.stored for c in image.codes]


HEAD = 'image 1\nmade "llvm", "", null, null, 1\n'
PLACE = 'place "t", 16, 8, 0, 0, null, null, 0\n'
BROKEN = {
    "nothing": "",
    "another version": "image 2\n",
    "no maker": "image 1\nbegin 0\nend\n",
    "no end": HEAD + "plan [0, 0, 0], [], [], []\nbegin 0\n",
    "no instruction": HEAD + "plan [0, 0, 0], [], [], []\n",
    "a place outside": HEAD + "plan [8, 8, 8], [], [], []\n" + PLACE + "begin 0\nend\n",
    "an end too many": HEAD + "begin 0\nend\nend\n",
    "an unknown word": HEAD + "begin 0\n  dance 1\nend\n",
    "no such variable": HEAD + "begin 0\n  branch 3\nelse\nend\nend\n",
    "no number": 'image 1\nvalue "x", "float32", ["n"]\n',
    "no JSON": "image 1\nmade {\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_a_text_that_is_no_image(text: str) -> None:
    with pytest.raises(InvalidIR):
        read(text)


# --- files

SAVED = """
import sys
from pathlib import Path
import numpy as np
import pullback as pb

options = pb.Options(threads=2, cache=None, backend=sys.argv[2])
w = pb.State(pb.tensor(np.arange(6, dtype=np.float32).reshape(2, 3) / 10))
n = pb.dim("n", 1, 9)

def batch():
    return np.full((3, 2), 0.25, np.float32)

def seen(loss):
    print(float(loss))

@pb.jit(shapes=[(n, 2)], options=options)
def step(x):
    def body(i, total):
        y = w @ pb.Feeder(batch, shape=(3, 2))
        pb.cond(pb.sum(y) < 2.0, lambda: w.assign(w * 1.5), lambda: w.assign(w - 0.125))
        pb.Receiver(seen, [pb.sum(w)], every=2)
        return total + pb.sum(y)
    return pb.loop(range(4), body, carry=pb.sum(x)), pb.exp(x) / pb.sum(pb.exp(x))

def data(n):
    return np.linspace(-1, 1, 2 * n, dtype=np.float32).reshape(n, 2)
"""
WRITES = (
    SAVED
    + """
step(data(3))
step.save_image(sys.argv[1])
for k in (1, 7):
    for result in step(data(k)):
        print(result.numpy().tolist())
print(w.numpy().tolist())
"""
)
LOADED = (
    """
import sys
import numpy as np
import pullback as pb
from pullback import pipeline
from pullback.backends import registry

def never(*given, **named):
    raise AssertionError("a pass runs, or a compiler")

for name in ("simplify_graph", "fuse", "plan", "verify_graph", "verify_kernel"):
    setattr(pipeline, name, never)
for backend in map(registry.named, registry.OWN):
    if hasattr(backend, "compile"):
        type(backend).compile = type(backend).emit = never
"""
    + SAVED[SAVED.index("def batch") : SAVED.index("@pb.jit")]
    + SAVED[SAVED.index("def data") :]
    + """
program = pb.load_image(sys.argv[1], {"batch": batch, "seen": seen})
for k in (1, 7):
    for result in program(data(k)):
        print(result.numpy().tolist())
print(*(a.tolist() for a in program.state.values()))
"""
)


def ran(script: str, *arguments: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["llvm", "c", "opencl"])
def test_a_saved_program_runs_in_another_process(backend: str, tmp_path: Path) -> None:
    """With symbolic sizes, a loop, a branch, a feeder, a receiver and a state that goes on."""
    if backend == "c" and shutil.which("cc") is None:
        pytest.skip("no compiler of C")
    if backend == "opencl" and no_device():
        pytest.skip(no_device())
    path = str(tmp_path / "step.image")
    wanted = ran(WRITES, path, backend)
    loaded = ran(LOADED, path, backend)
    assert loaded.splitlines() == wanted.splitlines()[2:], "the first call printed two losses"
    assert [p.name for p in tmp_path.iterdir()] == ["step.image"], "nothing is left beside it"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    held = pb.tensor([1.0, 2.0, 3.0])
    f = pb.jit(lambda x: pb.sum(x * held), options=OPTIONS)
    f(np.ones(3, np.float32))
    path = tmp_path / "dot.image"
    f.save_image(path)
    return path


def test_what_is_captured_is_saved(saved: Path) -> None:
    program = pb.load_image(saved)
    result = program(np.ones(3, np.float32))
    assert isinstance(result, pb.Tensor) and result.item() == 6.0
    (held,) = program.state.values()
    held[:] = 1.0
    assert float(np.asarray(program(pb.ones(3)))) == 3.0
    assert "launch" in str(program) and "float32[3]" in repr(program)


def damaged(data: bytes) -> dict[str, bytes]:
    """What may become of a file."""
    other = bytearray(data)
    other[-2] ^= 4
    return {
        "empty": b"",
        "cut": data[:-3],
        "its head alone": data[:30],
        "a bit": bytes(other),
        "longer": data + b"0",
        "another version": data.replace(b"pullback-image-1", b"pullback-image-2"),
        "another file": b"\x89PNG\r\n",
    }


@pytest.mark.parametrize("case", list(damaged(b"12345678")))
def test_a_damaged_file_is_refused(case: str, saved: Path) -> None:
    saved.write_bytes(damaged(saved.read_bytes())[case])
    with pytest.raises(StateError) as error:
        pb.load_image(saved)
    assert error.value.code == "E513" and error.value.help


KEY = bytes(range(32))


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    f = pb.jit(lambda x: pb.sum(x * x), options=OPTIONS)
    f(np.ones(3, np.float32))
    path = tmp_path / "signed.image"
    f.save_image(path, key=KEY)
    return path


def test_a_signed_program_loads_by_its_key(signed: Path) -> None:
    assert np.asarray(pb.load_image(signed, key=KEY)(pb.ones(3))) == 3.0
    shown = CliRunner().invoke(commands, ["explain", str(signed)])
    assert shown.exit_code == 0 and "launch" in shown.output, "its text is nobody's secret"


def test_a_file_and_a_key_that_do_not_belong_together(signed: Path, saved: Path) -> None:
    data = signed.read_bytes()
    head, hashes = len(images.SIGNED), images.HASH
    rest = data[head + 2 * hashes :]
    cases: list[tuple[Path, bytes, bytes | None, str]] = [
        (signed, data, KEY[::-1], "not signed by this key"),
        (signed, data, None, "no key is given"),
        (saved, saved.read_bytes(), KEY, "is not signed"),
        (signed, images.MAGIC + images._hash(rest) + rest, KEY, "is not signed"),
        (signed, data[: head + hashes] + bytes(hashes) + rest, KEY, "not signed by this key"),
        (signed, data[:-1] + bytes([data[-1] ^ 1]), KEY, "is damaged"),
    ]
    for path, content, key, told in cases:
        path.write_bytes(content)
        with pytest.raises(StateError, match=told) as error:
            pb.load_image(path, key=key)
        assert error.value.code == "E513" and error.value.help


def test_nothing_is_parsed_before_the_key_is_right(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_parts", lambda *given: pytest.fail("parsed"))
    with pytest.raises(StateError, match="not signed by this key"):
        pb.load_image(signed, key=KEY[::-1])


@pytest.mark.parametrize("key", [b"", b"short", bytes(65), "a" * 32, 5])
def test_what_is_no_key(key: Any, saved: Path) -> None:
    f = pb.jit(pb.sin, options=OPTIONS)
    f(pb.ones(3))
    for call in (lambda: pb.load_image(saved, key=key), lambda: f.save_image(saved, key=key)):
        with pytest.raises(ArgumentError, match="16 to 64 bytes") as error:
            call()
        assert error.value.code == "E515" and "aaa" not in str(error.value)


def rewritten(path: Path, old: str, new: str) -> None:
    """Change the text of a file, and its hash with it."""
    data = path.read_bytes()
    start = len(images.MAGIC) + images.HASH
    length = int.from_bytes(data[start : start + 8], "little")
    text = data[start + 8 : start + 8 + length].decode()
    assert old in text
    head = text.replace(old, new, 1).encode()
    rest = len(head).to_bytes(8, "little") + head + data[start + 8 + length :]
    path.write_bytes(images.MAGIC + images._hash(rest) + rest)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('made "llvm", "', 'made "llvm", "other ', "E514"),
        ('made "llvm", "', 'made "none", "', "E313"),
        ("image 1", "image 2", "E513"),
        ("launch 0", "launch 7", "E513"),
        ("launch 0", "jump 0", "E513"),
        ("interface 1", "interface 9", "E513"),
        ('object "', 'object "0', "E513"),
        ("contents [3]", "contents [4]", "E513"),
    ],
)
def test_what_a_text_says_is_looked_at(saved: Path, old: str, new: str, code: str) -> None:
    rewritten(saved, old, new)
    with pytest.raises(PullbackError) as error:
        pb.load_image(saved)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((), "E515"),
        ((np.ones(3),), "E515"),
        ((np.ones(4, np.float32),), "E122"),
        ((np.ones((3, 1), np.float32),), "E122"),
    ],
)
def test_other_arrays_than_it_takes(saved: Path, given: tuple[Any, ...], code: str) -> None:
    with pytest.raises(PullbackError) as error:
        pb.load_image(saved)(*given)
    assert error.value.code == code


def test_functions_that_it_does_not_call(saved: Path) -> None:
    with pytest.raises(ArgumentError, match="`batch`") as error:
        pb.load_image(saved, {"batch": lambda: None})
    assert error.value.code == "E515"


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    f = pb.jit(pb.sin, options=OPTIONS)
    with pytest.raises(AbsentError):
        f.save_image(tmp_path / "x.image")
    f(pb.ones(3))
    with pytest.raises(StateError, match="No such file") as error:
        f.save_image(tmp_path / "none" / "x.image")
    assert error.value.code == "E513"
    interpreted = pb.jit(pb.sin, options=pb.Options(backend="reference"))
    interpreted(pb.ones(3))
    with pytest.raises(UnsupportedError) as refused:
        interpreted.save_image(tmp_path / "x.image")
    assert refused.value.code == "E313"
    assert not list(tmp_path.iterdir())
