"""`pullback build` of operations whose sizes are expressions: C computes, and checks, them."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.algebra.bounds import prove
from pullback.build.operation import Asked
from pullback.build.operation import built as compiled
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.nest import Var
from pullback.operations import parse, read
from pullback_cli import commands
from test_build_alone import alone, linux  # noqa: F401  (alone is a fixture)

Array = np.ndarray[Any, Any]
OUTSIDE = -2
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
# Each: the file, options, what sizes are given (in the order of the function), those that fail.
CASES: dict[str, tuple[str, str, list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "pairs": (
        """
inputs = ["x[M, K](where K = 2*M)", "w[K]"]
outputs = ["y[M]", "z[K, M]"]
code = '''
y[i] = sum[k](x[i, k] * w[k]) + w[2*i] * w[2*i + 1]
z[k, i] = x[i, k] * w[k]
'''
""",
        "M=1..40",
        [(1,), (7,), (40,)],
        [(0,), (41,), (-1,)],
    ),
    "flat": (
        """
inputs = ["x[M*N]", "w[M*N*P]"]
outputs = ["y[M, N]", "z[P, M]"]
code = '''
y[i, j] = x[i*N + j] * x[j + N*i]
z[k, i] = sum[j : N](w[i*N*P + j*P + k] * x[i*N + j])
'''
""",
        "M=1..9 N=1..9 P=1..9",
        [(3, 4, 2), (1, 1, 1), (9, 9, 9), (5, 1, 7)],
        [(0, 1, 1), (10, 1, 1)],
    ),
    "anyrank": (
        """
inputs = ["A[M, ~, N](where K = 2*M)", "B[K]"]
outputs = ["C[M, ~, N]"]
code = "C[i, ~, j] = A[i, ~, j] * B[2*i] + B[2*i + 1]"
""",
        "~=2 M=1..8 N=1..8 _0=1..8 _1=1..8",
        [(3, 4, 2, 5), (1, 1, 1, 1)],
        [(0, 1, 1, 1)],
    ),
    "turned": (
        """
inputs = ["A[M, K]<1, 0>", "b[K]"]
outputs = ["C[K, M]"]
where = ["K = 2*M + 1"]
code = "C[k, i] = A[i, k] + b[k]"
""",
        "M=0..9",
        [(0,), (1,), (9,)],
        [(10,)],
    ),
    "windows": (
        """
inputs = ["x[N]", "w[F]"]
outputs = ["y[(N - F)//2 + 1]"]
where = ["F <= N", "F >= 1"]
code = "y[i] = sum[k](x[2*i + k] * w[k])"
""",
        "F=1..6 N=1..50",
        [(6, 6), (50, 6), (7, 1), (20, 3)],
        [(5, 6), (50, 0), (0, 0), (51, 1)],
    ),
    "blocks": (
        """
inputs = ["x[N]"]
outputs = ["y[N//4, 4]"]
where = ["N % 4 = 0"]
code = "y[i, j] = x[4*i + j] - 1.0"
""",
        "N=0..64",
        [(0,), (4,), (64,)],
        [(2,), (63,), (68,)],
    ),
    "less": (
        """
inputs = ["x[N]"]
outputs = ["d[N - 1]"]
code = "d[i] = x[i + 1] - x[i]"
""",
        "N=0..30",
        [(1,), (2,), (30,)],
        [(0,), (31,)],
    ),
    "joined": (
        """
inputs = ["a[M]", "b[N]"]
outputs = ["c[K]"]
where = ["M + N = K"]
code = "c[i] = where(i < M, a[i], b[i - M])"
""",
        "",
        [(3, 4), (1, 1), (1024, 5)],
        [(0, 3), (1, 1025)],
    ),
    "square": (
        """
inputs = ["x[M*N]"]
outputs = ["y[M, N]", "s[]"]
code = '''
y[i, j] = where(i*N + j < M*N, x[i*N + j], 0.0)
s = sum[i, j](y[i, j] * (i + 1))
'''
""",
        "M=1..12 N=1..9",
        [(3, 4), (12, 9), (1, 1)],
        [(13, 1), (1, 0)],
    ),
    "mirrored": (
        """
inputs = ["x[M*N]"]
outputs = ["y[M, N]"]
code = "y[i, j] = x[(M - 1 - i)*N + j] * (i + 1)"
""",
        "M=1..12 N=1..9",
        [(3, 4), (12, 9), (1, 1)],
        [(13, 1), (1, 0)],
    ),
    "number": (
        """
inputs = ["x[N]"]
outputs = ["y[N]"]
where = ["K = 3*N - 1"]
code = "y[i] = x[i] * K + N"
""",
        "N=1..20 K=5..40",
        [(2,), (5,), (13,)],
        [(1,), (14,), (20,)],
    ),
    "doubled": (
        """
inputs = ["x[M]", "y[N]"]
outputs = ["z[]"]
where = ["2*M = 3*N"]
code = "z = sum[i](x[i]) + sum[i](y[i])"
""",
        "",
        [(3, 2), (6, 4), (999, 666)],
        [(2, 3), (3, 3)],
    ),
}


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{text}')
    return path


def built(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(commands, ["build", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def arguments(header: str, function: str) -> tuple[list[str], list[str]]:
    """Names of arrays and of sizes, by the header."""
    line = next(x for x in header.splitlines() if x.startswith(f"int {function}("))
    return re.findall(r"\*(\w+)", line), re.findall(r"int64_t (\w+)", line)


def called(
    library: ctypes.CDLL, header: str, name: str, given: dict[str, Array], sizes: list[int]
) -> int:
    arrays, _ = arguments(header, name)
    run = getattr(library, name)
    places = [given[n].ctypes.data_as(ctypes.c_void_p) for n in arrays]
    return int(run(*places, *map(ctypes.c_int64, sizes)))


def tried(folder: Path, name: str) -> None:
    """Forward and adjoints as Python's for numbers; sizes that do not fit give -2, with nothing
    written.
    """
    text, options, good, bad = CASES[name]
    path = file(folder, name, text)
    words = [w for o in options.split() for w in ("--size", o)]
    built(path, "--grad", *words, "-o", folder / f"{name}.so")
    library = ctypes.CDLL(str(folder / f"{name}.so"))
    header = (folder / f"{name}.h").read_text()
    operation = read(path)
    ranks = {"~": 2} if "~=2" in options else {}
    rng = np.random.default_rng(3)
    names = arguments(header, name)[1]
    for sizes in good:
        known = dict(zip(names, sizes, strict=True))
        told = {n: v for n, v in known.items() if n in operation.symbols}
        for condition in operation.conditions:
            if condition.right is not None and condition.text.startswith("K ="):
                told["K"] = eval_size(condition.text.partition("=")[2], told)
        inputs = []
        for one in operation.inputs:
            shape = [eval_size(s.text, {**told, **known}) for s in one.expanded(ranks)]
            laid = [shape[n] for n in one.order or range(len(shape))]
            inputs.append(rng.uniform(-1, 1, laid).astype(np.float32))
        tensors = [pb.tensor(x, requires_grad=True) for x in inputs]
        made = operation.of_stored(*tensors, **told)
        made = made if isinstance(made, tuple) else (made,)
        heads = [rng.uniform(-1, 1, y.shape).astype(np.float32) for y in made]
        total = sum(pb.sum(y * h) for y, h in zip(made, heads, strict=True))
        gradients = pb.grad(total, tensors)
        given = {s.name: x for s, x in zip(operation.inputs, inputs, strict=True)}
        for one, y, h in zip(operation.outputs, made, heads, strict=True):
            given[one.name] = np.full(y.shape, np.nan, np.float32)
            given[f"d{one.name}"] = h
        for one, x in zip(operation.inputs, inputs, strict=True):
            given[f"d{one.name}"] = np.full(x.shape, np.nan, np.float32)
        assert called(library, header, name, given, list(sizes)) == 0, sizes
        assert called(library, header, f"{name}_backward", given, list(sizes)) == 0, sizes
        for one, y in zip(operation.outputs, made, strict=True):
            np.testing.assert_allclose(given[one.name], y.numpy(), 1e-5, 1e-4, err_msg=str(sizes))
        for one, dx in zip(operation.inputs, gradients, strict=True):
            got = given[f"d{one.name}"]
            np.testing.assert_allclose(got, dx.numpy(), 1e-5, 1e-4, err_msg=str(sizes))
    room = {n: np.full(1, 7, np.float32) for n in arguments(header, f"{name}_backward")[0]}
    room |= {n: np.full(1, 7, np.float32) for n in arguments(header, name)[0]}
    for sizes in bad:
        for function in (name, f"{name}_backward"):
            assert called(library, header, function, room, list(sizes)) == OUTSIDE, sizes
    assert all(x[0] == 7 for x in room.values())


def eval_size(text: str, known: dict[str, int]) -> int:
    """A size by the operation of one axis that has it."""
    made = parse(f'name = "one"\ninputs = []\noutputs = ["y[{text}]"]\ncode = "y[i] = 0.0"')
    wanted = {n: v for n, v in known.items() if n in made.symbols}
    return int(made(**wanted).shape[0])


@pytest.mark.sampled(14)
@needs_cc
@pytest.mark.parametrize("name", CASES)
def test_sizes_in_expressions(name: str, tmp_path: Path) -> None:
    tried(tmp_path, name)


@pytest.mark.sampled(5)
@linux
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", CASES)
def test_the_same_without_a_compiler(name: str, tmp_path: Path) -> None:
    tried(tmp_path, name)


@needs_cc
@pytest.mark.parametrize(
    ("text", "options", "code", "what"),
    [
        ('inputs = ["x[N]"]\noutputs = ["y[N]"]\nwhere = ["N >= 9"]\ncode = "y[i] = x[i]"',
         "N=1..8", "E552", "N >= 9 does not hold"),
        ('inputs = ["x[N]"]\noutputs = ["y[3 - N]"]\ncode = "y[i] = x[0]"',
         "N=4..8", "E552", "3 - N is -5 to -1"),
        ('inputs = ["x[K]"]\noutputs = ["y[M]"]\nwhere = ["K = 2*M"]\ncode = "y[i] = x[2*i + 2]"',
         "", "E152", "axis 0 of (M * 2,)"),
        ('inputs = ["x[M*N]"]\noutputs = ["y[M, N]"]\ncode = "y[i, j] = x[i*N + j + 1]"',
         "", "E152", "axis 0 of (M * N,)"),
        ('inputs = ["x[M*N]"]\noutputs = ["y[M, N]"]\ncode = "y[i, j] = x[i*M + j]"',
         "", "E152", "axis 0 of (M * N,)"),
        ('inputs = ["x[K]"]\noutputs = ["y[M]"]\nwhere = ["K = 2*M"]\ncode = "y[i] = x[i]"',
         "K=7", "E552", "M would be -7/-2"),
        ('inputs = ["x[K]"]\noutputs = ["y[M]"]\nwhere = ["K = 2*M"]\ncode = "y[i] = x[i]"',
         "K=1..8 M=9..12", "E552", "K = 2*M is 18 to 24"),
        ('inputs = ["x[K]"]\noutputs = ["y[M + 1]"]\nwhere = ["K = 2*M"]\ncode = "y = half(x)"',
         "", "E552", "the code makes"),
        ('inputs = ["x[N]"]\noutputs = ["y[N//2]"]\ncode = "y = half(x)"',
         "", "E553", "nothing shows that"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, options: str, code: str, what: str, tmp_path: Path) -> None:
    half = 'inputs = ["x[P]"]\noutputs = ["y[P//2]"]\nwhere = ["P % 2 = 0"]\n'
    file(tmp_path, "half", half + 'code = "y[i] = x[2*i]"')
    path = file(tmp_path, "own", text)
    words = [w for o in options.split() for w in ("--size", o)]
    said = built(path, *words, "-o", tmp_path / "own.so", code=2)
    assert f"[{code}]" in said, said
    assert what in said
    assert not (tmp_path / "own.so").exists()


@needs_cc
def test_files_that_call_files(tmp_path: Path) -> None:
    """What the caller says of sizes is known in what it calls."""
    half = 'inputs = ["x[P]"]\noutputs = ["y[P//2]"]\nwhere = ["P % 2 = 0"]\n'
    file(tmp_path, "half", half + 'code = "y[i] = x[2*i] + x[2*i + 1]"')
    text = 'inputs = ["x[N]"]\noutputs = ["y[N//2]"]\nwhere = ["N % 2 = 0"]\ncode = "y = half(x)"'
    path = file(tmp_path, "own", text)
    built(path, "-o", tmp_path / "own.so")
    library = ctypes.CDLL(str(tmp_path / "own.so"))
    header = (tmp_path / "own.h").read_text()
    x, y = np.arange(10, dtype=np.float32), np.zeros(5, np.float32)
    assert called(library, header, "own", {"x": x, "y": y}, [10]) == 0
    assert np.array_equal(y, x[::2] + x[1::2])
    assert called(library, header, "own", {"x": x, "y": y}, [9]) == OUTSIDE


def divided(code: str, shapes: str = "x[M]", result: str = "y[M * N]") -> None:
    """An operation with symbolic sizes, traced with all of them open."""
    text = f'name = "one"\ninputs = ["{shapes}"]\noutputs = ["{result}"]\ncode = "{code}"'
    compiled(parse(text), Asked({"M": (1, 9), "N": (1, 7)}, float32))


def test_quotients_and_remainders_by_sizes_stay_in_bounds() -> None:
    """``r // N < M`` and ``r % N < N`` for r below M*N; ``r // N % M`` anywhere."""
    divided("y[r] = x[r // N]")
    divided("y[r] = x[r % M]")
    divided("y[r] = x[r // N] * w[r % N]", 'x[M]", "w[N]')
    divided("y[r, s] = x[r // N, (r + s) % N]", "x[M, N]", "y[M * N, M]")
    for code in (
        "y[r] = x[r // N + 1]",
        "y[r] = x[r // M]",
        "y[r] = x[r % N]",
        "y[r] = x[(r + 1) // N]",
    ):
        with pytest.raises(pb.errors.IndexRangeError) as told:
            divided(code)
        assert told.value.code == "E152", code


def test_products_with_an_axis_stay_below_those_with_its_extent() -> None:
    """``i n < m n`` for i below m: where n is positive, in whatever order they are multiplied."""
    i, m = E.Axis(0, E.Dim("m", 1, 9)), E.Size(E.Dim("m", 1, 9))
    for low, known in ((1, True), (0, None), (-1, None)):
        n = Var("n", low, 5)
        for product in (E.Mul(i, n), E.Mul(n, i)):
            assert prove(E.Less(product, E.Mul(m, n))) is known
            assert prove(E.Less(product, E.Mul(n, m))) is known
        last = E.Add(E.Mul(m, n), E.Mul(n, E.index(-1)))  # i n at its largest
        assert prove(E.Less(E.Mul(i, n), E.Add(last, E.index(1)))) is (True if low >= 0 else None)
        assert prove(E.Less(E.Mul(i, n), last)) is None
    n = E.Size(E.Dim("n", 1, 7))
    back = E.Add(E.Add(m, E.index(-1)), E.Mul(i, E.index(-1)))  # m - 1 - i
    there = E.Add(E.Mul(back, n), E.Axis(1, n.dim))
    both = E.Mul(E.Add(i, E.index(1)), E.Add(n, E.index(2)))  # of 1 and 2, too
    assert prove(E.Less(E.index(1), both)) is True
    assert prove(E.Less(there, E.Mul(m, n))) is True
    assert prove(E.Less(there, E.index(0))) is False
    assert prove(E.Less(E.Add(there, E.index(1)), E.Mul(m, n))) is None
    three = E.Axis(0, 3)
    assert prove(E.Less(E.Mul(three, n), E.Mul(E.index(3), n))) is True
    assert prove(E.Less(E.Mul(three, n), E.Mul(E.index(2), n))) is None


def test_a_size_that_may_be_negative_bounds_no_quotient() -> None:
    """``c // V < U`` for c below U*V: not where both are -1."""
    text = """
name = "one"
inputs = ["x[M]", "w[N]"]
outputs = ["y[U * V]"]
where = ["U = M - 2", "V = N - 2"]
code = "y[c] = where(c // V < 0, 0.0, x[c // V + 2] + w[0])"
"""
    compiled(parse(text), Asked({"M": (1, 9), "N": (2, 7)}, float32))
    with pytest.raises(pb.errors.IndexRangeError):
        compiled(parse(text), Asked({"M": (1, 9), "N": (1, 7)}, float32))
