"""OpenCL: what the other backends compute, by any number of work-items, compiled once."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.backends.opencl import backend
from pullback.backends.opencl import device as cl
from pullback.cli.main import commands
from pullback.cli.stages import parts
from pullback.config import Options
from pullback.errors import DeviceError, IndexRangeError
from small_programs import PROGRAMS
from test_backends import agree, worst_errors

Array = np.ndarray[Any, Any]
SLOW = pytest.mark.slow
SIZES = [*range(1, 71), 255, 1000, 5000]
SOME = ["matmul", "layer norm", "causal attention", "integers", "sort", "scan", "while"]
SOME += ["normal", "adamw", "embedding"]


def no_device() -> str:
    """Why nothing here can run, or nothing."""
    try:
        cl.device()
    except DeviceError as error:
        return error.what
    return ""


needs_device = pytest.mark.skipif(bool(no_device()), reason=no_device())


def made(function: Any, *arguments: Any, **options: Any) -> list[Array]:
    """The arrays of a program by OpenCL."""
    chosen = Options(**{"backend": "opencl", "cache": None, **options})
    found = pb.jit(function, options=chosen)(*arguments)
    every = found if isinstance(found, list | tuple) else [found]
    return [value.numpy() for value in every]


def backend_source(function: Any, *arguments: Any, backend: str = "opencl") -> str:
    """The text of a program's kernels."""
    program = pb.jit(function, options=Options(backend=backend, cache=None))
    program(*arguments)
    return "".join(text for _, text in parts(program.program, "opencl"))


def exact(n: int, kind: str) -> Array:
    """Whole numbers whose sums are exact in any order, each once."""
    return np.random.default_rng(n).permutation(n).astype(kind) - n // 3


def reduced(x: Any, signs: Any) -> list[Any]:
    return [
        pb.sum(x, axis=1), pb.max(x, axis=1), pb.argmax(x, axis=1), pb.prod(signs, axis=1),
        pb.sum(x.T, axis=0), pb.min(x.T, axis=0), pb.sum(x), pb.max(x),
    ]  # fmt: skip


def rows_to_reduce(size: int, kind: str) -> tuple[Array, Array, list[Any]]:
    """The arguments of `reduced` of this length, and what it gives."""
    x = np.stack([exact(size, kind), exact(size, kind)[::-1]])
    signs = np.where(x % 3 == 0, -1, 1).astype(kind)
    wanted = [
        x.sum(1), x.max(1), x.argmax(1), signs.prod(1), x.sum(1), x.min(1), x.sum(), x.max()
    ]  # fmt: skip
    return x, signs, wanted


@needs_device
@pytest.mark.parametrize("kind", ["float32", "int32", "float64"])
def test_reductions_of_every_length(kind: str) -> None:
    """Sums, products, largest values and their places, by rows and by columns, of 1 to 5000."""
    n = pb.dim("n", 1, 5000)
    options = Options(backend="opencl", cache=None)
    program = pb.jit(reduced, shapes=[(2, n), (2, n)], options=options)
    for size in SIZES:
        x, signs, wanted = rows_to_reduce(size, kind)
        for got, want in zip(program(x, signs), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want, err_msg=str(size))


@needs_device
@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ((1, 7, 16, 33, 255, 5000), "float32"),
        *(pytest.param(SIZES, kind, marks=SLOW) for kind in ("float32", "int32", "float64")),
    ],
)
def test_reductions_of_literal_lengths(sizes: Sequence[int], kind: str) -> None:
    """As above, each length known when its kernel is made; all lengths in one program."""
    cases = [rows_to_reduce(size, kind) for size in sizes]
    given = [array for case in cases for array in case[:2]]
    found = made(
        lambda *a: [y for p in range(0, len(a), 2) for y in reduced(a[p], a[p + 1])], *given
    )
    wanted = [want for case in cases for want in case[2]]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@needs_device
def test_reductions_by_many_tasks() -> None:
    """Partial results are combined by a second kernel."""
    x = np.arange(2_000_003, dtype="int64") % 1000
    found = made(lambda x: [pb.sum(x), pb.max(x + 1), pb.argmax(x), pb.sum(x * x)], x)
    for got, want in zip(found, [x.sum(), x.max() + 1, x.argmax(), (x * x).sum()], strict=True):
        assert got == want
    assert "void finish(" in backend_source(lambda x: pb.sum(x), x)


@needs_device
@pytest.mark.parametrize("name", SOME)
def test_opencl_agrees(name: str) -> None:
    agree(name, "opencl")


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_in_opencl(name: str, kind: str) -> None:
    agree(name, "opencl", kind)


@needs_device
def test_the_same_bits_for_any_number_of_work_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are independent, and partial sums are added in order."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 400)).astype("float32")

    def step(x: Any) -> list[Any]:
        loss = pb.logsumexp(x @ x.T / 9, axis=1).sum()
        return [loss, pb.grad(loss, x), pb.sum(pb.exp(x))]

    wanted = made(step, x)
    for items in (1, 2, 1001):
        monkeypatch.setattr(backend, "_items", lambda routine, on, n=items: n)
        for got, want in zip(made(step, x, threads=1 + items % 2), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


@needs_device
def test_sums_of_products_have_the_bits_of_llvm() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=shape).astype("float32") for shape in ((40, 50), (50, 60)))
    (got,) = made(lambda x, y: pb.maximum(x @ y, 0.0), a, b)
    (want,) = made(lambda x, y: pb.maximum(x @ y, 0.0), a, b, backend="llvm")
    np.testing.assert_array_equal(got, want)


@needs_device
def test_random_numbers_have_the_bits_of_llvm() -> None:
    def draw(key: Any) -> list[Any]:
        places = pb.random.integers(0, 1 << 20, (1000,), key=key)
        return [pb.random.uniform((1000,), key=key), places]

    for got, want in zip(
        made(lambda: draw(pb.random.key(7))),
        made(lambda: draw(pb.random.key(7)), backend="llvm"),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


@needs_device
@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integers_wrap(kind: str) -> None:
    """Sums and products modulo the size of the type, where OpenCL C leaves them open."""
    info = np.iinfo(kind)
    x = np.array([info.max, info.min, info.max // 2 + 1, 7], kind)
    with np.errstate(over="ignore"):
        wanted = [x + x, x * x, x * x.dtype.type(3) + x.dtype.type(100), x.prod(dtype=kind)]
    found = made(lambda x: [x + x, x * x, x * 3 + 100, pb.prod(x, dtype=x.dtype)], x)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@needs_device
def test_division_and_roots_are_rounded_correctly() -> None:
    x = np.random.default_rng(1).uniform(1e-3, 1e3, 4096).astype("float32")
    for got, want in zip(made(lambda x: [1 / x, pb.sqrt(x)], x), [1 / x, np.sqrt(x)], strict=True):
        np.testing.assert_array_equal(got, want)
    tiny = np.float32(1e-40) * np.arange(1, 50, dtype="float32")
    np.testing.assert_array_equal(made(lambda x: x * 0.5 + x, tiny)[0], tiny * np.float32(1.5))


@needs_device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_are_close() -> None:
    assert worst_errors("opencl") == {}


@needs_device
def test_an_index_outside_is_told() -> None:
    x = np.arange(10, dtype="float32")
    with pytest.raises(IndexRangeError, match="index 12"):
        made(lambda x, i: pb.take(x, i), x, np.array([3, 12]))
    np.testing.assert_array_equal(made(lambda x, i: pb.take(x, i), x, np.array([3, 9]))[0], [3, 9])


@needs_device
def test_a_program_is_built_once(tmp_path: Path) -> None:
    """The next process loads what this one built, and takes no pass."""
    text = """
import numpy as np, pullback as pb
f = pb.jit(lambda x: pb.exp(x).sum(), options=pb.Options(backend="opencl"))
g = pb.jit(lambda x, i: pb.cumulative_sum(x)[i], options=pb.Options(backend="opencl"))
for n in (50, 5000):
    assert abs(f(np.ones(n, "float32")).item() / n - np.e) < 1e-3
    assert g(np.ones(n, "float32"), n - 1).item() == n
compiled = f.program.stats.compiled + g.program.stats.compiled
print(compiled, len({"fuse", "lower", "simplify"} & f.program.timings.keys()))
"""
    env = {**os.environ, "PULLBACK_CACHE": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0][0] >= "1" and int(said[0][1]) >= 1 and said[1] == ["0", "0"]


@needs_device
def test_a_refused_launch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number comes back; the process goes on."""
    monkeypatch.setattr(backend, "passed", lambda routine, body: [])
    with pytest.raises(DeviceError, match="fails: error -5") as error:
        made(lambda x: x * 3, np.ones(4, "float32"))
    assert error.value.code == "E365"
    monkeypatch.undo()
    assert made(lambda x: x * 3, np.ones(4, "float32"))[0].sum() == 12


@needs_device
def test_a_forked_process_is_told() -> None:
    text = """
import os, numpy as np, pullback as pb
f = pb.jit(lambda x: x * 3, options=pb.Options(backend="opencl", cache=None))
x = np.ones(5, "float32")
f(x)
child = os.fork()
if child == 0:
    code = 1
    try:
        f(x)
    except pb.errors.DeviceError as error:
        code = 0 if error.code == "E365" else 2
    try:
        pb.jit(lambda x: x * 5, options=pb.Options(backend="opencl", cache=None))(x)
        code = 3
    except pb.errors.DeviceError as error:
        code = code if error.code == "E362" else 4
    os._exit(code)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cl, "_packaged", lambda: "")
    monkeypatch.setattr(cl, "find_library", lambda name: None)
    with pytest.raises(DeviceError, match="no OpenCL runtime") as error:
        cl._opened.__wrapped__("", None)
    assert error.value.code == "E362" and "pullback[opencl]" in str(error.value)


def test_a_device_without_the_memory_of_the_process() -> None:
    assert cl.sharing([("card", 1), ("processor", 15)]) == 1
    with pytest.raises(DeviceError, match="card does not share") as error:
        cl.sharing([("card", 3)])
    assert error.value.code == "E363"


@needs_device
def test_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 runs as before; what computes in float64 is refused by name."""
    on = cl.device()
    monkeypatch.setattr(backend, "device", lambda n=None: dataclasses.replace(on, doubles=False))
    x = np.arange(6, dtype="float32")
    np.testing.assert_allclose(made(lambda x: pb.exp(x) @ x, x)[0], np.exp(x) @ x, rtol=1e-6)
    for function in (lambda x: x.astype("float64") * 2, lambda x: x.astype("int32")):
        with pytest.raises(DeviceError, match="has no float64") as error:
            made(function, x)
        assert error.value.code == "E363"


def test_its_text(tmp_path: Path) -> None:
    """No device is asked for."""
    script = tmp_path / "double.py"
    script.write_text("import pullback as pb\nf = pb.jit(lambda x: x * 2)\nf(pb.ones(5))\n")
    done = CliRunner().invoke(commands, ["explain", str(script), "--stage", "opencl"])
    assert done.exit_code == 0, done.output
    assert "PB_KERNEL void" in done.output and "__global float *restrict" in done.output


NEEDS_MEMORY_OF_A_GROUP = re.compile(r"__local|\blocal\b|barrier|get_local")


@needs_device
@pytest.mark.parametrize("name", ["layer norm", "matmul", "scan", "sort", "embedding", "adamw"])
def test_no_kernel_wants_memory_of_a_group(name: str) -> None:
    """Sums are a work-item's own, parts of them are joined by a kernel after it: what shares no
    memory between its work-items, and has no barriers, runs all of it.
    """
    function, arguments = PROGRAMS[name]("float32")
    text = backend_source(function, *arguments)
    assert "PB_KERNEL void" in text and not NEEDS_MEMORY_OF_A_GROUP.search(text)


# Loops in lanes are vectors; what is left of them, and what has no vectors, is done lane by lane.
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LANES = {
    "contiguous": lambda x, i: pb.tanh(x) * 2 + pb.exp(-x),
    "truth": lambda x, i: pb.where((x > 0) & ~(x < 0.5) | (x == 0.25), x, -x),
    "truth as numbers": lambda x, i: (x > 0.1).astype("int64") + (x < 0),
    "to integers": lambda x, i: [(x * 9).astype(k) for k in INTEGERS],
    "to truth": lambda x, i: [x.astype("bool"), i.astype("bool"), (x > 0) != (i > 3)],
    "every second": lambda x, i: x[::2] * 2,
    "turned": lambda x, i: pb.flip(x) + 1,
    "at data": lambda x, i: pb.take(x, i) * 3,
    "beyond the ends": lambda x, i: pb.pad(x, ((3, 5),)) * 2,
    "places": lambda x, i: pb.arange(x.shape[0]) % 7 // 3 + i,
    "integers": lambda x, i: [i * i - 3, -i // 5, i % 5, pb.maximum(i, 4), i ^ 3],
    "small integers": lambda x, i: [k * k * k for k in (i.astype("int8"), i.astype("uint16"))],
    "largest with NaN": lambda x, i: pb.maximum(x, pb.log(x)),
    "float64": lambda x, i: pb.sin(x.astype("float64")) + i,
    "columns": lambda x, i: pb.cumulative_sum(x[:, None] * pb.arange(40) / 9, axis=0),
    "column sums": lambda x, i: [pb.sum(x[:, None] * x, axis=0), pb.max(x[:, None] - x, axis=0)],
    "sigmoid": lambda x, i: pb.sigmoid(x * 30) + pb.nn.functional.softplus(x * 20),
    "halves": lambda x, i: (x.astype("bfloat16") * 2).astype("float32"),
}


@needs_device
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LANES)
def test_lanes(name: str) -> None:
    """Whole vectors and what is left, beside the interpreter."""
    for size in (5, 16, 67):
        x = np.random.default_rng(size).uniform(-2, 2, size).astype("float32")
        x[[0, 2]] = np.nan if "NaN" in name or name == "to integers" else 0.0, 0.25
        i = np.random.default_rng(size).integers(0, size, size)
        found, wanted = (made(LANES[name], x, i, backend=b) for b in ("opencl", "reference"))
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_lanes_are_vectors() -> None:
    """No loop over single numbers is left but for the last ones."""
    x = np.zeros(4096, "float32")
    text = backend_source(lambda x: pb.sigmoid(x) * 2, x, backend="llvm")
    body = text[text.index("PB_KERNEL void body") :]
    assert "vload" in body and "vstore" in body and "pb_exp_wide" in body


def test_lanes_read_only_what_they_take() -> None:
    """A side of a branch that a lane does not take may have no memory."""

    def shifted(x: pb.Tensor, i: pb.Tensor) -> pb.Tensor:
        inside = lambda j: (i[j] > 2) & (j > 2)
        return pb.compute((4096,), lambda j: pb.where(inside(j), x[j - 3], 0.0))

    x, i = np.zeros(4096, "float32"), np.zeros(4096, "int32")
    text = backend_source(shifted, x, i, backend="llvm")
    assert "all(m_" in text and ".s0 ? " in text
