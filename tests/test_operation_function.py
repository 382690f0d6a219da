"""Functions of Python as files of operations: the same kernels, and what is refused where."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback import nn
from pullback.cli.main import commands
from pullback.errors import ArgumentError, UnsupportedError
from pullback.ir.dtype import float32, float64, int64
from pullback.ir.expr import Axis, Const, Div, Mul, Take
from pullback.ir.graph import Definition, Variable
from pullback.operations import from_function, parse, read, spelled, written
from pullback.operations.drawn import drawn
from pullback.operations.function import traced
from pullback.operations.spelled import TESTS, function_of, known

F = nn.functional
N, M = pb.dim("n", 1, 64), pb.dim("m", 1, 64)
S, W, B = (4, 5), (5, 3), (3,)
T = np.array([0, 3, 3, 1])
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "matmul": (lambda x, w: x @ w, S, W),
    "linear": (lambda x, w, b: pb.relu(x @ w + b), S, W, B),
    "softmax": (lambda x: F.softmax(x, -1), S),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), S),
    "gelu": (lambda x: pb.gelu(x) + pb.gelu_tanh(x) + pb.silu(x), S),
    "attention": (lambda q, k, v: F.softmax(q @ k.mT * 0.3, -1) @ v, S, S, S),
    "mean": (lambda x: (pb.mean(x, axis=0), pb.var(x, axis=1)), S),
    "cross_entropy": (F.cross_entropy, S, T),
    "gather": (lambda x, t: x[t], S, T),
    "concat": (lambda x, y: pb.concat([x, y], axis=0), S, S),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (1, 2, 6, 6), (3, 2, 3, 3)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), (1, 2, 6, 6)),
    "views": (lambda x: x.reshape(2, 10).T[1:, ::2] + 1, S),
    "broadcast": (lambda b: pb.broadcast_to(b, (4, 3)) * pb.arange(3), B),
    "tril": (lambda x: pb.tril(x) / 3, S),
    "argmax": (lambda x: pb.argmax(x, axis=1), S),
    "same": (lambda x: (x, x + 0, x), S),
    "float64": (lambda x: pb.exp(x) / 3 + pb.tanh(x), np.ones(S)),
    "float16": (lambda x: pb.exp(x) * x @ x.T, np.ones(S, np.float16)),
    "whole": (lambda x: (x // 3) % 2 + x * 7 - pb.abs(x) ** 3, np.arange(-4, 4, dtype=np.int32)),
    "tests": (lambda x: (x > 0) & ~(x < 1) | (x != 2) | pb.isnan(x), S),
    "power": (lambda x: x**3 + abs(x) ** 0.5 + pb.exp(x) ** x, S),
    "many": (lambda x: pb.cos(x) + pb.tan(x) + pb.atan2(x, x) + pb.log1p(abs(x)) + pb.erf(x), S),
    "more": (lambda x: pb.sign(x) + pb.round(x) + pb.floor(x) + pb.ceil(x) + pb.trunc(x), S),
    "compute": (
        lambda x: pb.compute((4, 5), lambda i, j: pb.where(i < j, x[i, j], i - 2.0 * j)), S
    ),
    "infinite": (lambda x: pb.where(x > 0, x, -np.inf), S),
    "stopped": (lambda x: x * x.detach(), S),
    "symbolic": (lambda x, w: pb.relu(x @ w), (N, 5), (5, M)),
    "symbolic_softmax": (lambda x: F.softmax(x, -1), (N, M)),
    "symbolic_mean": (lambda x: pb.mean(x, axis=0), (N, M)),
}  # fmt: skip


def kernels(function: Callable[..., Any], examples: tuple[Any, ...]) -> str:
    """The text of all kernels, compiled for what the examples say."""
    shapes = [e if isinstance(e, tuple) else e.shape for e in examples]
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=[7 if isinstance(n, pb.Dim) else n for n in shape]).astype(np.float32)
        if isinstance(e, tuple)
        else e
        for shape, e in zip(shapes, examples, strict=True)
    ]
    jitted = pb.jit(lambda *tensors: function(*tensors), shapes=shapes)
    jitted(*arrays)
    text = jitted.program.explain().partition("== kernel")[2]
    text = re.sub(r" \(\S+:\d+\)", "", text)  # where they come from
    return re.sub(r"\b_*([A-Za-z]\w*?)(_\d+)?\b", r"\1", text)  # names, but for their numbers


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_round_trip_gives_the_same_kernels(name: str, tmp_path: Path) -> None:
    function, *examples = FUNCTIONS[name]
    operation = from_function(function, *examples, name=name)
    path = tmp_path / f"{name}.toml"
    path.write_text(written(operation))
    again = read(path)
    assert written(again) == written(operation)
    own = kernels(function, tuple(examples))
    assert own and kernels(again, tuple(examples)) == own


@pytest.mark.parametrize("name", ["linear", "softmax", "attention", "cross_entropy", "stopped"])
def test_gradients_are_the_same(name: str) -> None:
    function, *examples = FUNCTIONS[name]
    operation = from_function(function, *examples)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=e).astype(np.float32) if isinstance(e, tuple) else e
              for e in examples]  # fmt: skip
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]

    def slopes(own: Callable[..., Any]) -> list[Any]:
        called = pb.grad(lambda *tensors: pb.sum(own(*tensors) ** 2), argnums=tuple(floats))
        return [np.asarray(g) for g in called(*arrays)]

    for one, other in zip(slopes(function), slopes(operation), strict=True):
        assert np.array_equal(one, other)


def test_what_is_written_is_plain() -> None:
    def layer(x: Any, w: Any, b: Any) -> Any:
        """A linear layer.

        The rest is not written.
        """
        return pb.relu(x @ w + b)

    text = written(from_function(layer, (N, 5), (5, M), (M,)))
    assert 'documentation = "A linear layer."\nname = "layer"\n' in text
    assert 'inputs = ["x{float32}[n, 5]", "w{float32}[5, m]", "b{float32}[m]"]' in text
    assert "matmul[i, j] = sum[k](x[i, k] * w[k, j])\n" in text
    operation = parse(text)
    arrays, given = drawn(operation, {}, np.random.default_rng(0))
    assert [a.shape for a in arrays] == [(5, 5), (5, 6), (6,)] and not given


def test_a_size_that_only_the_result_has_is_given_by_name() -> None:
    operation = from_function(lambda x: pb.broadcast_to(x, (N, M)), (M,))
    assert operation(np.ones(3, np.float32), n=4).shape == (4, 3)


STATE = nn.Parameter(pb.ones(3))
OUTSIDE = pb.ones(3)


def looped(x: Any) -> Any:
    return pb.scan(lambda c, y: (c + y, c * y), pb.zeros(3), x)[1]


def assigned(x: Any) -> Any:
    STATE.assign(x)
    return x


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "draws": (lambda x: x + pb.random.normal((3,)), (3,), "a state, `generator`"),
    "dropout": (lambda x: F.dropout(x, 0.5), (3,), "a state"),
    "loop": (looped, (4, 3), "a loop"),
    "branch": (lambda x: pb.cond(pb.sum(x) > 0, lambda: x, lambda: -x), (3,), "a branch"),
    "states": (assigned, (3,), "a state"),
    "captured": (lambda x: x + OUTSIDE, (3,), "no argument"),
    "weights": (lambda x: x * STATE, (3,), "no argument"),
    "running": (lambda x: pb.cumulative_sum(x), (3,), "a running sum"),
    "scatter": (lambda x: pb.zeros(3).at[pb.astype(x, "int64")].add(x), (3,), "places that are"),
    "by hand": (lambda x: BY_HAND(x), (3,), "by hand"),
    "nothing": (lambda x: None, (3,), "no tensor"),
}
BY_HAND = pb.custom_vjp(lambda x: x * 2)
BY_HAND.defvjp(lambda x: (x * 2, x), lambda x, g: (g,))


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_says_is_refused_at_the_users_line(name: str) -> None:
    function, shape, said = REFUSED[name]
    with pytest.raises(UnsupportedError, match=said) as caught:
        from_function(function, shape)
    assert caught.value.code == "E557"
    origin = caught.value.origin
    assert origin is not None and origin.code.co_filename == __file__, str(caught.value)


def test_long_and_deep_expressions_are_refused() -> None:
    def deep(x: Any) -> Any:
        return pb.compute((3,), lambda i: nested(x[i]))

    def nested(value: Any) -> Any:
        for _ in range(200):
            value = pb.exp(value + 1.0)
        return value

    with pytest.raises(UnsupportedError, match="nested too deeply"):
        from_function(deep, (3,))
    for example in ("x", 3, None):
        with pytest.raises(ArgumentError, match="no example"):
            from_function(deep, example)


def test_literals_among_literals_keep_their_type() -> None:
    def body(x: Any) -> Any:
        third = Div(Const(2.0, float32), Const(3.0, float32))
        value = x.value
        axes = tuple(Axis(n, e) for n, e in enumerate(value.shape))
        return pb.Tensor(Definition("y", value.shape, Mul(Take(value, axes), third)))

    assert "float32(2.0) / float32(3.0)" in from_function(body, (3,)).code


def test_a_text_that_reads_as_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelled.Speller, "infix", lambda self, node, depth: ("x[i] * 2", 60))
    with pytest.raises(UnsupportedError, match="another definition where it is read again"):
        from_function(lambda x: x + 1, (3,))


def test_named_functions_are_found_by_what_they_are() -> None:
    for kind, least in ((float32, 40), (float64, 40), (int64, 6)):
        x, y = (Take(Variable(n, (), kind), ()) for n in "ab")
        every = [entry for entries in known(kind).values() for entry in entries]
        assert len(every) >= least
        for name, function, places in every:
            made = function_of(function(*(x, y)[: len(places)]))
            assert name in TESTS or (made is not None and made[0] == name), (name, made)
    assert traced(lambda x: x + 1, [Variable("x", (3,), float32)])


def test_the_command_writes_a_function(tmp_path: Path) -> None:
    file, target = tmp_path / "mine.py", tmp_path / "op.toml"
    file.write_text("import pullback as pb\n\ndef f(x, t):\n    return pb.exp(x[t])\n\n"
                    "def g(x):\n    return x + pb.random.normal((3,))\n")  # fmt: skip
    run = ["compile", "--python", f"{file}:f", "--shape", "x[M, 4]", "--shape", "t{int64}[K]"]
    done = CliRunner().invoke(commands, [*run, "-o", str(target), "--test", "M=5, K=3"])
    assert done.exit_code == 0 and "largest error" in done.output, done.output
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(read(target)(x, np.array([1])).numpy(), np.exp(x[[1]]), rtol=1e-6)
    bad = CliRunner().invoke(commands, ["compile", "--python", f"{file}:g", "--shape", "x[3]"])
    assert bad.exit_code == 2 and "E557" in bad.output and "mine.py:7" in bad.output
    for words in (["--shape", "x[3]"], ["--python", f"{file}:h"], ["--python", f"{file}:f"],
                  ["--python", f"{file}:f", "--shape", "x[M + 1]"],
                  ["--python", f"{file}:g", "--shape", "x[~]"],
                  ["--python", f"{file}:f", "-e", "x"]):  # fmt: skip
        wrong = CliRunner().invoke(commands, ["compile", *words])
        assert wrong.exit_code == 2 and "Traceback" not in wrong.output, (words, wrong.output)
