"""Rules of a user's own: registered by a function, a file, an entry point; what breaks is named."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.definitions import evaluate_values
from pullback.errors import RuleError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.graph import Definition, Graph, Map, Value, Variable, define, read
from pullback.ir.program import Compute, HostCall, Program, items
from pullback.ir.text import show
from pullback.pipeline import compile_program
from pullback.rules.installed import named as by_name
from pullback.rules.kinds import RewriteRule, SimplifyRule
from pullback.simplify.graph import Sources, with_roots
from random_programs import Checked, check_program

EXAMPLES = Path(__file__).parent.parent / "examples" / "rules"
QUIET = pb.Options(cache=None)


def example(name: str) -> ModuleType:
    """A file of rules; one that wants what is not here skips the test."""
    spec = importlib.util.spec_from_file_location(f"rules_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blas() -> ModuleType:
    try:
        return example("blas")
    except StopIteration:
        pytest.skip("this NumPy brings no OpenBLAS")


def lines(function: Callable[..., Any]) -> int:
    code = function.__code__
    return max(n for _, _, n in code.co_lines() if n) - code.co_firstlineno + 1


# --- simplification ------------------------------------------------------------------------------


def test_a_simplification_of_five_lines_changes_the_code() -> None:
    rule = example("exact_log").log_of_exp
    assert lines(rule.function) <= 5
    f = lambda x: pb.log(pb.exp(x))
    x = pb.tensor([1.0, 100.0])
    made = pb.jit(f, options=QUIET, rules=[rule])
    assert made(x).numpy().tolist() == [1.0, 100.0]
    (kernel,) = made.program.kernels
    assert "exp" not in show(kernel).replace("exp[", "") and "log(" not in show(kernel)
    assert "log(" in show(made.program.program) or "= x[i]" in show(made.program.program)
    plain = pb.jit(f, options=QUIET)
    assert np.isinf(plain(x).numpy()[1]) and "log(" in show(plain.program.kernels[0])


@pytest.mark.parametrize("backend", ["llvm", "reference", "kernels"])
def test_derivatives_go_by_it_too(backend: str) -> None:
    rule = example("exact_log").log_of_exp
    options = pb.Options(backend=backend, cache=None)
    f = lambda x: pb.grad(pb.sum(pb.log(pb.exp(x)) * pb.log(pb.exp(x))), x)
    made = pb.jit(f, options=options, rules=[rule])(pb.tensor([1.0, 2.0]))
    np.testing.assert_allclose(made.numpy(), [2.0, 4.0], rtol=1e-6)


def test_within_a_definition_and_in_a_loop() -> None:
    rule = example("exact_log").log_of_exp

    def f(x: pb.Tensor) -> pb.Tensor:
        def step(_: Any, y: pb.Tensor) -> pb.Tensor:
            return pb.compute((2,), lambda i: pb.log(pb.exp(y[i]) * 1.0) + 1.0)

        return pb.loop(3, step, x)

    made = pb.jit(f, options=QUIET, rules=[rule])
    assert made(pb.tensor([1.0, 100.0])).numpy().tolist() == [4.0, 103.0]


# --- fusion --------------------------------------------------------------------------------------


def test_a_fusion_rule_under_thirty_lines_shows_its_reason() -> None:
    module = example("apart")
    assert len((EXAMPLES / "apart.py").read_text().splitlines()) < 32
    f = lambda x, w: pb.tanh(x @ w)
    x, w = pb.ones((8, 4)), pb.ones((4, 6))
    joined = pb.jit(f, options=QUIET)
    parted = pb.jit(f, options=QUIET, rules=[module.products_alone])
    assert np.array_equal(joined(x, w).numpy(), parted(x, w).numpy())
    assert len(joined.program.kernels) == 1 and len(parted.program.kernels) == 2
    for kernel in parted.program.kernels:
        assert any(module.REASON in reason for reason in kernel.reasons)


def test_what_would_be_written_into_its_reader_stays_apart() -> None:
    @pb.rules.fusion
    def exp_alone(a: tuple[Definition, ...], b: tuple[Definition, ...]) -> str | None:
        return "exp stands alone" if any(d.name == "exp" for d in a) else None

    f = pb.jit(lambda x: pb.exp(x) * 2.0 + 1.0, options=QUIET, rules=[exp_alone])
    f(pb.ones(9))
    assert [len(k.stages) for k in f.program.kernels] == [1, 1]
    assert f.program.kernels[0].name == "exp"


def test_updates_that_would_run_side_by_side_stay_apart() -> None:
    """Parts of one launch, which the ordinary joins never see."""
    states = [Variable(n, s, pb.float32) for n, s in (("p", (40,)), ("q", (8, 9)), ("c", (40000,)))]
    *updated, c = states

    def step(v: Variable) -> Definition:
        return define(f"new{v.name}", v.shape, lambda *i: E.Mul(read(v, *i), read(norm)))

    norm = define("norm", (), lambda k: E.Mul(read(c, k), read(c, k)), over=(40000,))
    graph = Graph(tuple((v, step(v)) for v in updated))

    @pb.rules.fusion
    def alone(a: tuple[Definition, ...], b: tuple[Definition, ...]) -> str:
        return "one by one"

    launches = []
    for rules in ([], [alone]):
        options = pb.Options(cache=None, rules=rules)
        made = compile_program(Program((Compute(graph),), tuple(states)), options)
        launches.append([len(k.pieces) for k in made.kernels])
    assert launches == [[1, 2], [1, 1, 1]]


def test_a_value_that_is_always_kept() -> None:
    @pb.rules.rewrite
    def kept(definition: Definition) -> Definition | None:
        return pb.rules.stored(definition) if definition.name == "exp" else None

    f = pb.jit(lambda x: pb.sum(pb.exp(x) * 2.0), options=QUIET, rules=[kept])
    f(pb.ones(9))
    assert any(v.name == "exp" for k in f.program.kernels for v in k.writes)


# --- rewrites ------------------------------------------------------------------------------------


def test_products_by_a_blas() -> None:
    module = blas()

    def f(x: pb.Tensor, w: pb.Tensor, u: pb.Tensor) -> Any:
        y = pb.maximum(x @ w, 0.0)
        z = pb.tanh(y @ u.T)
        return z, *pb.grad(pb.sum(z * z), [x, w, u])

    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((64, 48), (48, 40), (56, 40))]
    ours, theirs = pb.jit(f), pb.jit(f, rules=[module.products_by_blas])
    for a, b in zip(ours(*given), theirs(*given), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-4, atol=2e-4)
    assert len(theirs.program.host_calls) == 6 and not ours.program.host_calls
    assert "OpenBLAS" in show(theirs.program.program)


def test_products_in_a_loop_and_updates_of_states() -> None:
    """A state is overwritten after the last call that reads it."""
    module = blas()
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(40, 40)).astype(np.float32) / 7 for _ in range(2))

    def run(rules: list[Any]) -> list[Any]:
        def f(a: pb.Tensor, b: pb.Tensor) -> Any:
            return pb.loop(3, lambda _, s: (s[1] @ s[0], s[0] @ s[1] + s[0]), (a, b))

        return [t.numpy() for t in pb.jit(f, options=QUIET, rules=rules)(x, y)]

    for a, b in zip(run([]), run([module.products_by_blas]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def hosted(choose: Callable[[int], bool]) -> RewriteRule:
    """Some definitions of a program, by number, computed by the reference between its launches."""
    count = 0

    @pb.rules.rewrite
    def by_reference(definition: Definition) -> Any:
        nonlocal count
        count += 1
        if not choose(count) or any(take.is_data for take in definition.reads):
            return None
        given = [Variable(s.name, s.shape, s.dtype) for s in definition.sources]
        sources = Sources(dict(zip(definition.sources, given, strict=True)))
        own = with_roots(definition, [sources(r) for r in definition.roots])

        def function(*arrays: Any) -> Any:
            return evaluate_values([own], dict(zip(given, arrays, strict=True)))[0]

        return pb.rules.on_host(function, *definition.sources, library="reference")

    return by_reference


@pytest.mark.sampled(3)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_programs_cut_anywhere_give_the_same(every: int) -> None:
    for program in drawn():
        check_cut(program, hosted(lambda n: n % every == 0))


@functools.cache
def drawn() -> list[Checked]:
    return [check_program(seed) for seed in range(4)]


def check_cut(program: Checked, rule: RewriteRule) -> None:
    results = [Variable(f"r{n}", v.shape, v.dtype) for n, v in enumerate(program.wanted)]
    graph = Graph(tuple(zip(results, program.wanted, strict=True)))
    bindings = {v: np.array(program.arrays[v], order="C") for v in graph.inputs}
    bindings |= {v: np.zeros(v.shape) for v in results}
    body = Program((Compute(graph),), (*graph.inputs, *results))
    made = compile_program(body, pb.Options(cache=None, rules=[rule]))
    assert any(isinstance(i, HostCall) for i in items(made.program.body))
    made.run(bindings)
    for result, want in zip(results, program.expected, strict=True):
        scale = 1 + float(np.max(abs(want), initial=0))
        np.testing.assert_allclose(bindings[result], want, rtol=1e-9, atol=1e-9 * scale)


def test_states_that_change_places_through_calls() -> None:
    """``a, b = f(b), a``: simultaneous, although the call and the copy are two items."""
    a, b = (Variable(n, (3,), pb.float32) for n in "ab")
    twice = define("twice", (3,), lambda i: E.Mul(read(b, i), E.const(2.0, pb.float32)))
    plus = define("plus", (3,), lambda i: E.Add(read(twice, i), read(a, i)))
    graph = Graph(((a, plus), (b, a)))
    for choose in (lambda n: n == 1, lambda n: n == 2, lambda n: True):
        held = {a: np.float32([1, 2, 3]), b: np.float32([10, 20, 30])}
        options = pb.Options(cache=None, rules=[hosted(choose)])
        compile_program(Program((Compute(graph),), (a, b)), options).run(held)
        assert held[a].tolist() == [21, 42, 63] and held[b].tolist() == [1, 2, 3]


def test_calls_that_wait_for_each_other() -> None:
    """A launch between two calls: the second one is given what it has made."""
    a, out = Variable("a", (3,), pb.float32), Variable("out", (3,), pb.float32)
    value: Value = a
    for n in range(4):
        before = value
        scale = E.const(n + 2.0, pb.float32)
        value = define(f"d{n}", (3,), lambda i, b=before, s=scale: E.Add(E.Mul(read(b, i), s), s))
    held = {a: np.float32([1, 2, 3]), out: np.zeros(3, np.float32)}
    options = pb.Options(cache=None, rules=[hosted(lambda n: n % 2 == 1)])
    made = compile_program(Program((Compute(Graph(((out, value),))),), (a, out)), options)
    made.run(held)
    wanted = (((held[a] * 2 + 2) * 3 + 3) * 4 + 4) * 5 + 5
    assert held[out].tolist() == wanted.tolist() and len(made.host_calls) == 2


def test_a_call_where_there_is_no_host_is_refused() -> None:
    options = pb.Options(cache=None, host=False, rules=[hosted(lambda _: True)])
    with pytest.raises(UnsupportedError) as error:
        pb.jit(lambda x: pb.exp(x), options=options)(pb.ones(3))
    assert error.value.code == "E356"


# --- names and records ---------------------------------------------------------------------------


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of an installed package: its metadata beside its module, found by `importlib.metadata`."""
    (tmp_path / "my_rules.py").write_text((EXAMPLES / "exact_log.py").read_text())
    info = tmp_path / "my_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rules\nVersion: 1.0\n")
    points = "[pullback.rules]\nexact = my_rules\none = my_rules:log_of_exp\ngone = my_gone:rule\n"
    (info / "entry_points.txt").write_text(points + "none = os\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    assert {"exact", "one", "gone"} <= set(pb.rules.names())
    x = pb.tensor([1.0, 100.0])
    for name in ("exact", "one"):
        assert [rule.name for rule in pb.rules.named(name)] == ["log_of_exp"]
        f = pb.jit(lambda x: pb.log(pb.exp(x)), options=QUIET, rules=name)
        assert f(x).numpy().tolist() == [1.0, 100.0]
    for name, says in (("gone", "my_gone"), ("none", "hold no rule"), ("far", "no rules 'far'")):
        refused("E371", says, lambda name=name: pb.jit(pb.sin, rules=[name]))
    unused = pb.jit(lambda x: pb.log(pb.exp(x)), options=QUIET)  # installed is not applied
    assert np.isinf(unused(x).numpy()[1])
    by_name.cache_clear()
    assert importlib.metadata.version("my-rules") == "1.0"


SECTION = "### A rule of your own, outside of the package"


@pytest.mark.slow
def test_the_page_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/extending.md: its three rules in a package of their own, installed, found by name."""
    page = (EXAMPLES.parent.parent / "docs" / "extending.md").read_text()
    section = page.split(SECTION)[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    head = "import numpy as np\nimport pullback as pb\nfrom pullback.ir import expr as E\n"
    code = head + "\n\n".join(text for kind, text in blocks if kind == "python")
    (project,) = [text for kind, text in blocks if kind == "toml"]
    (tmp_path / "my_rules.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text(project)
    install = [
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        "site",
        ".",
    ]
    pytest.importorskip("hatchling", reason="nothing builds packages")
    subprocess.run([sys.executable, "-m", *install], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
    by_name.cache_clear()
    assert "my_rules" in pb.rules.names()
    wanted = ["log_of_exp", "tanh_alone", "by_numpy"]
    assert [rule.name for rule in pb.rules.named("my_rules")] == wanted
    f = pb.jit(lambda x, w: pb.log(pb.exp(pb.tanh(x @ w))), options=QUIET, rules=["my_rules"])
    x, w = pb.ones((8, 4)), pb.ones((4, 6))
    np.testing.assert_allclose(f(x, w).numpy(), np.tanh(4.0), rtol=1e-6)
    assert len(f.program.host_calls) == 1
    by_name.cache_clear()
    sys.modules.pop("my_rules", None)


def test_a_file() -> None:
    path = str(EXAMPLES / "apart.py")
    assert [rule.name for rule in pb.rules.named(path)] == ["products_alone"]


def constant(value: float) -> SimplifyRule:
    @pb.rules.simplify(E.Exp)
    def rule(e: E.Exp) -> E.Expr:
        return E.const(value, e.dtype)

    return rule


def test_records_of_programs_know_their_rules(tmp_path: Path) -> None:
    """The same program without a rule, with it, with one that differs by what it holds."""
    options = pb.Options(cache=tmp_path)
    f = lambda x: pb.exp(x) + 1.0
    x = pb.zeros(3)
    assert pb.jit(f, options=options)(x).numpy().tolist() == [2.0] * 3
    for value in (2.0, 3.0, 2.0):
        made = pb.jit(f, options=options, rules=[constant(value)])
        assert made(x).numpy().tolist() == [value + 1] * 3
    assert "record" in made.program.timings  # the last one was found
    assert constant(2.0).digest == constant(2.0).digest != constant(3.0).digest
    assert constant(np.float32(2.0)).digest == ""  # what has no text of its own: no record


# --- what is wrong -------------------------------------------------------------------------------


def refused(code: str, says: str, run: Callable[[], object]) -> None:
    with pytest.raises(RuleError) as error:
        run()
    assert error.value.code == code
    assert re.search(says, error.value.what), error.value.what  # not in the excerpt of this file


def used(rule: Any, f: Callable[..., Any] = lambda x: pb.exp(x) * x) -> Any:
    return pb.jit(f, options=QUIET, rules=[rule])(pb.ones(3))


@pytest.mark.parametrize("rules", [3, [3], [pb.exp], "nothing", ["gone.py"], [None]], ids="012345")
def test_what_is_no_rule(rules: Any) -> None:
    refused("E371", "rule", lambda: pb.jit(pb.sin, rules=rules))


def test_decorators_of_what_is_no_rule() -> None:
    refused("E371", "types of expressions", lambda: pb.rules.simplify())
    refused("E371", "types of expressions", lambda: pb.rules.simplify(int))  # type: ignore[arg-type]
    refused("E371", "is a function", lambda: pb.rules.fusion(3))  # type: ignore[arg-type]
    refused("E371", r"rules=\[", lambda: pb.Options(rules=["exact"]))  # type: ignore[list-item]
    refused("E372", "is wanted", lambda: pb.rules.on_host(3))  # type: ignore[arg-type]
    refused("E372", "no value", lambda: pb.rules.on_host(np.exp, 3))  # type: ignore[arg-type]


ANSWERS = {
    "a number": (1.0, "gave float"),
    "another type": (E.const(1, pb.int64), "made int64 of float32"),
    "an axis": (E.Cast(E.Axis(5, 3), pb.float32), r"uses axes \[5\]"),
    "a read": (
        read(Variable("other", (3,), pb.float32), E.Axis(0, 3)),
        "reads other",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_simplification_that_gives_something_else(name: str) -> None:
    answer, says = ANSWERS[name]
    rule = pb.rules.simplify(E.Exp)(lambda e: answer)
    refused("E372", says, lambda: used(rule))


def test_a_rewrite_that_gives_something_else() -> None:
    refused("E372", "gave int", lambda: used(pb.rules.rewrite(lambda d: 3)))
    wide = define("wide", (4,), lambda i: E.const(1.0, pb.float32))
    refused("E372", r"made float32\[4\] of", lambda: used(pb.rules.rewrite(lambda d: wide)))


def test_a_fusion_rule_that_gives_something_else() -> None:
    refused("E372", "gave bool", lambda: used(pb.rules.fusion(lambda a, b: True)))
    refused("E372", "gave ndarray", lambda: used(pb.rules.fusion(lambda a, b: np.zeros(3))))


def test_a_simplification_that_gives_very_much() -> None:
    asked: list[E.Expr] = []

    def longer(e: E.Expr) -> E.Expr | None:
        asked.append(e)
        for _ in range(1500 if len(asked) == 1 else 0):
            e = E.Add(e, E.const(1.0, e.dtype))
        return e

    refused("E372", "made 150[0-9] nodes more", lambda: used(pb.rules.simplify(E.Exp)(longer)))


@pytest.mark.parametrize("result", (None, "text", np.zeros(2), np.zeros(3), np.array([object()])))
def test_a_function_of_the_host_that_gives_something_else(result: object) -> None:
    rule = pb.rules.rewrite(lambda d: pb.rules.on_host(lambda *_: result))
    refused("E372", "the function gave", lambda: used(rule))


@pytest.mark.parametrize("make", [pb.rules.simplify(E.Exp), pb.rules.fusion, pb.rules.rewrite])
def test_a_rule_that_raises_is_named(make: Callable[..., Any]) -> None:
    def unready(*_: Any) -> None:
        raise KeyError("nobody")

    refused("E373", "unready raised KeyError: 'nobody'", lambda: used(make(unready)))


def turned(e: Any) -> E.Expr:
    return E.Mul(e.right, e.left)


def longer(e: Any) -> E.Expr:
    return E.Add(E.Mul(e.left, E.Exp(e.right)), E.Mul(e.right, e.left))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [turned, longer])
def test_a_rule_that_loops_for_ever_is_stopped(function: Callable[[Any], E.Expr]) -> None:
    rule = pb.rules.simplify(E.Mul)(function)
    refused("E374", f"rule {function.__name__} breaks .* not come to an end", lambda: used(rule))


def test_two_rules_that_undo_each_other_are_named() -> None:
    @pb.rules.simplify(E.Exp)
    def there(e: E.Exp) -> E.Expr:
        return E.Log(e.value)

    @pb.rules.simplify(E.Log)
    def back(e: E.Log) -> E.Expr:
        return E.Exp(e.value)

    f = pb.jit(lambda x: pb.exp(x), options=QUIET, rules=[there, back])
    refused("E374", "rule there, back breaks", lambda: f(pb.ones(3)))


def test_a_rule_that_breaks_an_invariant_is_named_by_the_verifier() -> None:
    """A read beyond its extent: the verifier behind the pass sees it, and names it alone."""

    @pb.rules.rewrite
    def beyond(definition: Definition) -> Definition | None:
        if not isinstance(definition.form, Map) or not definition.sources:
            return None
        source: Value = definition.sources[0]
        far = lambda i: read(source, E.Add(i, E.index(2)))
        return define(definition.name, definition.shape, far)

    innocent = example("exact_log").log_of_exp
    f = pb.jit(lambda x: pb.exp(x), options=QUIET, rules=[innocent, beyond])
    refused("E374", "rule beyond breaks the program: .*after trace", lambda: f(pb.ones(3)))


def test_what_is_a_plain_product() -> None:
    """Not one at shifted places, of a part of its operand, or of an axis with itself."""
    n, m = E.Axis(0, 3), E.Axis(1, 4)
    x, w = Variable("x", (3, 4), pb.float32), Variable("w", (4,), pb.float32)
    wide, square = (
        Variable("wide", (9,), pb.float32),
        Variable("square", (3, 3), pb.float32),
    )

    def spec(body: E.Expr, over: tuple[int, ...] = (4,)) -> str | None:
        found = pb.rules.product(define("y", (3,), lambda *_: body, over=over))
        return None if found is None else found.spec

    assert spec(E.Mul(read(x, n, m), read(w, m))) == "ab,b->a"
    assert spec(E.Mul(read(w, m), read(x, n, m))) == "b,ab->a"
    assert spec(E.Mul(read(x, n, m), read(wide, m))) is None
    assert spec(E.Mul(read(x, n, m), read(wide, E.Add(n, m)))) is None
    assert spec(E.Mul(read(square, n, n), read(w, m))) is None
    assert spec(E.Add(read(x, n, m), read(w, m))) is None
    assert spec(E.Mul(read(w, m), read(w, m))) is None  # no axis a
