"""Texts that nobody meant: whatever reads text answers with success or a typed error.

A text is a valid one of the tests, the pages or the compiler itself, changed in a few places:
tokens inserted, deleted, swapped or doubled, characters of any alphabet, brackets or signs a
thousand deep, numbers of thousands of digits. Of what is accepted a sample is compiled and compared
with the interpreter.
"""

from __future__ import annotations

import ast
import os
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import click
import numpy as np

import pullback as pb
from pullback.cli.graph_text import parse_graph, parse_kernel
from pullback.cli.main import commands
from pullback.cli.nest_text import parse_routine
from pullback.cli.resume import drawn
from pullback.config import Options, parse_bytes
from pullback.errors import InvalidIR, PullbackError
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Compute, Program, items
from pullback.ir.target import Target
from pullback.ir.text import graph_text, show
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.pipeline import compile_program, fuse_graph
from pullback.runtime.report import Reporter
from pullback.verify.graph import verify_graph
from pullback.verify.kernel import verify_kernel
from pullback.verify.nest import verify_routine
from robust_support import Found, Tell, TooLong, at_most, silent
from small_programs import PROGRAMS

ROOT = Path(__file__).parent.parent
SECONDS = 10.0  # of processor time that one text may take, compiling it included
LARGEST = 4096  # elements of what is compiled
COMPILED = 8  # of so many definitions that are accepted one is compiled
RNG = np.random.default_rng(11)
GIVEN: dict[str, Any] = {
    "a": RNG.normal(size=(4, 5)), "b": RNG.normal(size=(5, 3)), "x": RNG.normal(size=6),
    "w": RNG.normal(size=(3, 4, 2)), "s": np.float64(1.5), "ids": np.array([2, 0, 3]),
    "m": RNG.normal(size=6) > 0, "h": RNG.normal(size=(2, 3)).astype(np.float16),
    "u": np.arange(6, dtype=np.uint8), "f": RNG.normal(size=5).astype(np.float32),
    "e": np.zeros((0, 3)),
}  # fmt: skip
SIZES = {"n": 6, "p": 4, "z": 0}
TEXTS = (
    "c[i, j] = sum[k](a[i, k] * b[k, j])",
    "c[i, j] = sum[k] a[i, k] * b[k, j] + 1.5",
    "y[i] = where(0 < i < 6 - 1, x[i - 1] + x[i + 1], 0.0)",
    "y[i] = where(not i == 0 and x[i] > 0 or i == 2, 1.5, -x[i])",
    "q[i] = max[k](a[i, k]); t[i] = sum[k](exp(a[i, k] - q[i]))\nr[i, k] = q[i] / t[i]",
    "y[t, k] = a[ids[t], k] # a remark",
    "y[i] = argmax[k](a[i, k]) + int64(any[k](a[i, k] > 1.0))",
    "y[p] = float64(p) * pi + x[p // 2] * (p % 2) - 2 ** -1",
    "y[i] = clip(tanh(x[i]), -0.5, s) + maximum(erf(0.0), mean[l](a[l, 0]))",
    "y[i, j, k] = w[i, j, k] ** 2 & ~(w[i, j, k] < 0.1) | m[0]",
    "y[i] = prod[k](a[i, k] + sum[l](a[i, l])) ^ u[i]",
    "y[i] = u[i] + h[0, 1] - f[i] * int32(3)",
    "y[] = min[i, j](e[i, j] + sqrt(abs(s)))",
)  # fmt: skip
SUBSCRIPTS = ("ij,jk->ik", "ij,jk", "ij->ji", "ijk->", "ii->i", "bij,bjk->bik")
WORDS = """
    ** // <= >= == != -> .. and or not True sum max argmin mean where exp pow int8 bfloat16 bool
    float16 float32 inf nan pi i j k n p z a b x w s ids m h u e 0 1 -1 1e400 1e-400 0.1 255
    2147483648 9223372036854775808 é λ 变 \u0663 \u00b2 \U0001f600 def var dim assign stage kernel
    finish store scratch at of parts over seq vector unroll if check $0 $9 size scan accumulate
    graph keep stop never site
"""
STRANGE = ["\n", "\t", "\r", " ", "", "\x00", "\u2028", "\ud800"]
SYMBOLS = [*"+-*/%<>&|^~()[],=;:.#$@!?\\'\"`{}", *WORDS.split(), *STRANGE]
TOKEN = re.compile(r"\s+|\w+|[^\w\s]")


def lines(count: int, seed: int, tell: Tell = silent) -> Found:
    """`count` texts, from `seed` on."""
    found = Found()
    for number in range(seed, seed + count):
        kind, text = changed(number)
        found.count += 1
        try:
            with at_most(SECONDS):
                outcome = READERS[kind](text, number)
        except (PullbackError, click.ClickException) as error:
            outcome = "refused"
            if not str(error):
                found.wrong.append(f"{number}: {kind}: an error that says nothing: {text!r:.300}")
        except (Exception, TooLong) as problem:
            found.wrong.append(
                f"{number}: {kind}: {type(problem).__name__}: {problem}: {text!r:.300}"
            )
            continue
        found.note(outcome)
        tell(found.count)
    return found


# --- valid texts ---------------------------------------------------------------------------------


@cache
def corpus(kind: str) -> tuple[str, ...]:
    """Valid texts of a kind."""
    made: dict[str, Callable[[], Sequence[str]]] = {
        "definition": lambda: [*TEXTS, *_quoted()],
        "command": lambda: TEXTS,
        "subscripts": lambda: SUBSCRIPTS,
        "size": lambda: ("64MB", "12.5 GiB", "1", "300KB"),
        "graph": lambda: _stage("graph"),
        "kernel": lambda: _stage("kernel"),
        "nest": lambda: _stage("nest"),
    }
    return tuple(made[kind]())


def _quoted() -> list[str]:
    """Strings of the tests and pages that look like definitions."""
    found: dict[str, None] = {}
    for path in [ROOT / "tests" / "test_define.py", ROOT / "tests" / "test_cli.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found[node.value] = None
    for path in sorted((ROOT / "docs").glob("*.md")):
        found.update(dict.fromkeys(re.findall(r'"([^"\n]+)"', path.read_text())))
    return [text for text in found if re.search(r"\w\[?.*\]? = .*\[", text) and _taken(text)]


def _taken(text: str) -> bool:
    try:
        return bool(_definition(text, 1))
    except PullbackError:
        return False


@cache
def _stages() -> dict[str, list[str]]:
    options = Options(backend="reference", cache=None)
    texts: dict[str, list[str]] = {"graph": [], "kernel": [], "nest": []}
    for name in list(PROGRAMS)[::4]:
        function, arguments = PROGRAMS[name]("float32")
        jitted = pb.jit(function, options=options)
        jitted(*arguments)
        for item in items(jitted.program.program.body):
            if not isinstance(item, Compute):
                continue
            texts["graph"].append(graph_text(item.graph))
            kernels = fuse_graph(item.graph, Target(), Reporter(options))
            texts["kernel"] += map(show, kernels)
            texts["nest"] += [_nest(k) for k in kernels if not k.parts]
    return texts


def _nest(kernel: Kernel) -> str:
    return show(lower(kernel, scheduled(kernel, Target())))


def _stage(name: str) -> list[str]:
    return [text for text in _stages()[name] if len(text) < 5000]


# --- changes -------------------------------------------------------------------------------------


def changed(number: int) -> tuple[str, str]:
    """Text `number`: its kind, and it."""
    source = random.Random(number)
    kinds, weights = zip(*SHARES.items(), strict=True)
    kind = source.choices(kinds, weights)[0]
    texts = corpus(kind)
    tokens = TOKEN.findall(source.choice(texts))
    for _ in range(source.choice((0, 1, 1, 1, 2, 2, 3, 5, 20))):
        change = source.choice(CHANGES)
        change(source, tokens, texts)
    return kind, "".join(tokens)


def _insert(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    tokens.insert(source.randint(0, len(tokens)), source.choice(SYMBOLS))


def _delete(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    if tokens:
        del tokens[source.randrange(len(tokens))]


def _replace(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    if tokens:
        tokens[source.randrange(len(tokens))] = source.choice(SYMBOLS)


def _swap(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    if tokens:
        one, other = source.randrange(len(tokens)), source.randrange(len(tokens))
        tokens[one], tokens[other] = tokens[other], tokens[one]


def _own(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    """One of the text's tokens for another."""
    if tokens:
        tokens[source.randrange(len(tokens))] = source.choice(tokens)


def _alike(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    """A number for a number, a name for a name, an operator for an operator."""
    places = [n for n, t in enumerate(tokens) if not t.isspace()]
    if places:
        place = source.choice(places)
        own = next(c for c in CLASSES if c.fullmatch(tokens[place]))
        every = [t for t in (*SYMBOLS, *tokens) if own.fullmatch(t)]
        tokens[place] = source.choice(every)


def _double(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    start = source.randint(0, len(tokens))
    end = min(len(tokens), start + source.choice((1, 1, 2, 5, 20)))
    tokens[start:start] = tokens[start:end] * source.choice((1, 1, 2, 10))


def _cut(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    del tokens[source.randint(0, len(tokens)) :]


def _splice(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    """The rest of another text."""
    other = TOKEN.findall(source.choice(texts))
    tokens[source.randint(0, len(tokens)) :] = other[source.randint(0, len(other)) :]


def _character(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    code = source.choice((source.randrange(128), source.randrange(0x110000)))
    tokens.insert(source.randint(0, len(tokens)), chr(code))


def _number(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    """A huge number, where one stands if one does."""
    digits = source.choice((3, 18, 19, 20, 40, 310, 5000))
    huge = source.choice("123456789") + "".join(source.choices("0123456789", k=digits))
    form = source.choice(
        ("{}", "{}", "-{}", "{}.0", "1e{}", "2 ** {}", "{}f64", "{}i32", "0.{}", "~{}")
    )
    places = [n for n, t in enumerate(tokens) if t.isdigit()] or [len(tokens)]
    place = source.choice(places)
    tokens[place : place + 1] = [form.format(huge)]


def _deep(source: random.Random, tokens: list[str], texts: Sequence[str]) -> None:
    """Something around, before or after a token, many times."""
    before, after = source.choice(NESTS)
    times = source.choice((3, 30, 99, 120, 1000, 5000))
    place = source.randint(0, len(tokens))
    inner = tokens[place : place + 1]
    tokens[place : place + 1] = [before * times, *inner, after * times]


NESTS = (
    ("(", ")"), ("-", ""), ("~", ""), ("not ", ""), ("exp(", ")"), ("x[", "]"), ("[", "]"),
    ("", " + 1"), ("", " * x[0]"), ("", " ** 2"), ("", " < 1"), ("", " and True"), ("a[i, ", "]"),
    ("sum[q](", ")"), ("sum[k] ", ""), ("where(m[0], ", ", 1)"), ("", "; y = 1.0"), ("", "\n"),
    ("", " - 1"), ("1 if ", ""), ("if(true, ", ", 1)"), ("", " // 2"), ("", ", 1"), ("", ", i"),
    ("2 ** ", ""), ("", " % 3"),
)  # fmt: skip
CLASSES = tuple(map(re.compile, (r"\d+", r"\w+", r"[-+*/%<>=!&|^~]+", r"[\s\S]*")))
CHANGES = (
    *[_alike] * 8, *[_own] * 2, _insert, _delete, _replace, _swap, _double, _splice, _cut,
    _character, _number, _deep,
)  # fmt: skip


# --- whatever reads text -------------------------------------------------------------------------


def _definition(text: str, number: int) -> str:
    given = {name: pb.tensor(array) for name, array in GIVEN.items()}
    made = pb.define(text, sizes=SIZES, **given)
    last = made[-1] if isinstance(made, tuple) else made
    small = prod(last.shape) <= LARGEST and len(text) < 500
    if not small or number % COMPILED:
        return "accepted"
    names = list(given)
    results = []
    for backend in ("reference", "llvm"):
        run = pb.jit(
            lambda *arrays: pb.define(text, sizes=SIZES, **dict(zip(names, arrays, strict=True))),
            options=Options(backend=backend, cache=None),
        )
        results.append(_result(run, given.values()))
    _same(*results)
    return "compiled"


def _same(wanted: Any, got: Any) -> None:
    """The same error, or the same numbers but for rounding."""
    assert type(wanted) is type(got), f"{wanted} interpreted, {got} compiled"
    if not isinstance(wanted, list):
        return
    for a, b in zip(wanted, got, strict=True):
        scale = float(np.max(np.abs(np.where(np.isfinite(a), a, 0)), initial=1.0))
        bits = {2: 2.0**-7, 4: 1e-4}.get(a.dtype.itemsize, 1e-6) if a.dtype.kind not in "iub" else 0
        x, y = (array.astype(np.float64) for array in (a, b))
        np.testing.assert_allclose(y, x, rtol=bits, atol=bits * scale)


def _result(run: Any, given: Any) -> Any:
    """What a program gives, or the class of the error that says why not."""
    try:
        found = run(*given)
    except PullbackError as error:
        return type(error).__name__
    return [t.numpy() for t in (found if isinstance(found, tuple) else (found,))]


def _size(text: str, number: int) -> str:
    parse_bytes(text)
    return "accepted"


def _dumped(text: str, number: int) -> str:
    """As `pullback resume` does: what is read is verified, and a sample compiled and run."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if first in ("routine", "kernel"):
        made = parse_routine(text) if first == "routine" else parse_kernel(text)
    else:
        made = parse_graph(text)
    try:
        return _run(made, number)
    except InvalidIR:
        return "does not hold"


def _run(made: Any, number: int) -> str:
    if isinstance(made, Routine):
        verify_routine(made, "reading it")
        return "verified"
    if isinstance(made, Kernel):
        for piece in made.pieces:
            verify_kernel(piece, "reading it")
        return "verified"
    verify_graph(made, "reading it")
    state = tuple(dict.fromkeys([*made.inputs, *(target for target, _ in made.assigns)]))
    if number % COMPILED or any(prod(map(upper, v.shape)) > LARGEST for v in state):
        return "verified"
    values = {v: drawn(v.name, v.dtype, tuple(map(upper, v.shape))) for v in state}
    results = []
    for backend in ("reference", "llvm"):
        own = {v: array.copy() for v, array in values.items()}
        program = Program((Compute(made),), state)
        try:
            compile_program(program, Options(backend=backend, cache=None)).run(own)
        except PullbackError as error:
            results.append(type(error).__name__)
            continue
        results.append([own[v] for v in state])
    _same(*results)
    return "compiled"


def _subscripts(text: str, number: int) -> str:
    given = [pb.tensor(GIVEN[name]) for name in ("a", "b")[: 1 + text.count(",")]]
    pb.einsum(text, *given)
    return "accepted"


def _command(text: str, number: int) -> str:
    """By the command line, as a shell gives it: bytes but zero, whatever they stand for."""
    text = os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))
    name = ("explain", "check")[number % 2]
    stage = ["--stage", "definitions"] if name == "explain" else []
    words = [name, "--quiet", *stage, "--size", "p=4", "--", text]
    try:
        commands.main(words, prog_name="pullback", standalone_mode=False)
    except SystemExit as end:
        assert end.code in (0, 1, 2), f"exit {end.code}"
    return "accepted"


READERS: dict[str, Callable[[str, int], str]] = {
    "definition": _definition,
    "graph": _dumped,
    "kernel": _dumped,
    "nest": _dumped,
    "subscripts": _subscripts,
    "size": _size,
    "command": _command,
}
SHARES = {
    "definition": 60, "graph": 10, "kernel": 10, "nest": 10, "subscripts": 4, "size": 2,
    "command": 4,
}  # fmt: skip
