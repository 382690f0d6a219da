"""`pb.check_grads`: whether derivatives are right, by every means there is, as a report.

differences    J v against (f(x + s v) - f(x - s v)) / 2 s
dot product    <J v, h> = <v, J' h>: forward mode against reverse mode
second order   the tangent of x -> J'(x) h along v, against differences of J'(x) h
layouts        the same gradients where inputs and heads are views of other memory
native         compiled code against the interpreter, forward and backward

All is done in float64, whatever the types of the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pullback.backends.host.exchange import box
from pullback.backends.registry import oracle
from pullback.config import Options
from pullback.errors import GradientError, PullbackError
from pullback.grad.forward import tangents
from pullback.grad.reverse import Reverse
from pullback.ir import expr as E
from pullback.ir.dtype import float64
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Graph, Value, Variable, topological, variables
from pullback.ir.node import Node, rebuild
from pullback.ir.program import Compute, Program
from pullback.pipeline import compile_program
from pullback.simplify.graph import rewire, with_roots
from pullback.tensor.derive.layouts import SIZES, VIEWS, Layout, resized
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.face.tree import flatten, parameter_names
from pullback.tensor.record.trace import (
    Handle,
    array_of,
    bind,
    contents,
    realize,
    suspended,
    twin,
    writing,
)
from pullback.tensor.values import views as V

STEP = 1e-5  # of central differences, whose error is then near 1e-10 of values near 1
EXACT = 1e-9  # of comparisons between exact derivatives
DIRECTIONS = 3  # random ones
LAYOUTS = ("contiguous", *VIEWS, *SIZES)

Array = np.ndarray[Any, Any]
Arrays = dict[Variable, Array]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: its largest difference, relative to what was compared, and the limit."""

    name: str
    subject: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit

    def __str__(self) -> str:
        verdict = "ok  " if self.passed else "FAIL"
        return f"  {verdict} {self.name:14} {self.subject:28} {self.error:.1e} of {self.limit:.0e}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what could not be. True where every check passed."""

    title: str
    checks: list[Check] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(c.passed for c in self.checks)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        failed = sum(not c.passed for c in self.checks)
        verdict = f"{failed} failed" if failed else "all passed"
        lines = [f"{self.title}: {len(self.checks)} checks, {verdict}", *map(str, self.checks)]
        lines += [f"  not checked: {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)

    def json(self) -> str:
        """The report as one JSON object."""
        checks = [{**asdict(c), "passed": c.passed} for c in self.checks]
        whole = {"title": self.title, "passed": self.passed, "checks": checks}
        return json.dumps({**whole, "skipped": self.skipped})


def check_grads(
    target: Any,
    inputs: Any,
    *,
    tolerance: float = 1e-6,
    layouts: Sequence[str] = LAYOUTS,
    native: bool = True,
    second: bool = True,
    seed: int = 0,
) -> Report:
    """Check the derivatives of a function, or of a tensor by tensors that it is made of.

    ``check_grads(f, [x, w])``, ``check_grads(y, [x, w])``; integer inputs stay as they are.
    `tolerance` is for differences; comparisons of exact derivatives are held to 1e-9.

    Raises: GradientError where there is nothing to differentiate.

    Example:
        >>> pb.check_grads(lambda x: pb.sum(x * x), [pb.tensor([1.0, 2.0], dtype="float64")],
        ... layouts=("contiguous",))
        Report(title='<lambda>', checks=[Check(name='differences', subject='x',
        error=8.858835499028394e-12, limit=1e-06), Check(name='dot product', subject='x',
        error=6.35598745326438e-17, limit=1e-09), Check(name='second order', subject='x',
        error=1.676033377504599e-12, limit=9.999999999999999e-06), Check(name='native',
        subject='first order', error=0.0, limit=1e-09), Check(name='native', subject='second order',
        error=0.0, limit=1e-09)], skipped={})
    """
    listed = [inputs] if isinstance(inputs, Handle | np.ndarray) else list(inputs)
    title = getattr(target, "__name__", "function") if callable(target) else repr(target.value)
    report = Report(title)
    rng = np.random.default_rng(V.whole(seed, "seed", 0))
    checker = Checker(Problem.of(target, listed), report, tolerance, rng)
    if "contiguous" in layouts:
        checker.modes("", second)
    for name in layouts:
        if name in VIEWS:
            checker.view(name)
    for name in layouts:
        if name in SIZES:
            _at_size(name, target, listed, checker)
    if native:
        checker.compare_native()
    return report


def _at_size(name: str, target: Any, inputs: Sequence[Any], checker: Checker) -> None:
    """The same where the first extent of the first input is 0 or 1, wherever it occurs."""
    if not callable(target):
        checker.report.skipped[name] = "the shape of a tensor is fixed"
        return
    done = len(checker.report.checks)
    try:
        checker.start(Problem.of(target, resized([_array(x) for x in inputs], SIZES[name])))
        checker.modes(f" at {name}", False)
    except (PullbackError, ValueError, ZeroDivisionError, IndexError) as problem:
        del checker.report.checks[done:]
        checker.report.skipped[name] = str(problem).splitlines()[0]


@dataclass(frozen=True, slots=True)
class Problem:
    """Float outputs over float64 variables, with the contents of all variables."""

    outputs: list[Value]
    inputs: list[Variable]
    values: Arrays

    @classmethod
    def of(cls, target: Any, inputs: Sequence[Any]) -> Problem:
        """Raises: GradientError without a float input or output."""
        with suspended(), writing():
            if callable(target):
                names = parameter_names(target, len(inputs))
                pairs = zip(inputs, names, strict=True)
                inputs = [Tensor(bind(_array(x), name)) for x, name in pairs]
                target = target(*inputs)
            realize(inputs)
        results = [h.value for h in flatten(target).handles if h.dtype.is_float]
        own = {h.value: array_of(h) for h in inputs if h.dtype.is_float}
        if not own or not results:
            raise GradientError("nothing to differentiate", code="E220")
        names = _distinct([v.name for v in own])
        fresh = {v: Variable(n, v.shape, v.dtype) for v, n in zip(own, names, strict=True)}
        mapping: dict[Value, Value] = {**fresh}
        mapping |= {t: fresh[v] for v in own if isinstance(v, Variable) and (t := twin(v))}
        return cls.widened(rewire(results, mapping), {fresh[v]: a for v, a in own.items()})

    @classmethod
    def widened(cls, results: Sequence[Value], given: Arrays) -> Problem:
        """The same computation in float64, with the contents of all other variables too."""
        arrays = dict(given)
        for variable in variables(results):
            array = arrays.get(variable, contents(variable))
            if array is None:
                raise GradientError(
                    f"`{variable.name}` has no value", origin=variable.origin, code="E220"
                )
            arrays[variable] = array
        wide = {v: _wide(v) for v in arrays}
        values = {wide[v]: a.astype(wide[v].dtype.numpy) for v, a in arrays.items()}
        return cls(_widened(results, wide), [wide[v] for v in given], values)


def _distinct(names: Sequence[str]) -> list[str]:
    """``x, x, y -> x0, x1, y``: a name that stands twice is counted."""
    return [f"{n}{names[:at].count(n)}" if names.count(n) > 1 else n for at, n in enumerate(names)]


def _array(x: Any) -> Array:
    if not isinstance(x, Handle):
        return np.asarray(x)
    realize([x])
    return array_of(x)


def _wide(v: Variable) -> Variable:
    return Variable(v.name, v.shape, float64 if v.dtype.is_float else v.dtype, v.origin)


def _widened(results: Sequence[Value], wide: Mapping[Variable, Variable]) -> list[Value]:
    """`results` over other variables, every float a float64."""
    wider: dict[Value, Value] = dict(wide.items())
    memo: dict[Node, Node] = {}

    def change(node: Node) -> Node | None:
        if isinstance(node, Take):
            return Take(wider.get(node.source, node.source), node.indices)
        if isinstance(node, E.Const) and node.dtype.is_float:
            return E.const(node.value, float64)
        if isinstance(node, E.Cast) and node.to.is_float:
            return node.value if node.value.dtype == float64 else E.Cast(node.value, float64)
        return None

    def changed(root: Expr) -> Expr:
        new = rebuild(root, change, memo)
        assert isinstance(new, Expr)
        return new

    for definition in topological(results):
        wider[definition] = with_roots(definition, [changed(r) for r in definition.roots])
    return [wider.get(r, r) for r in results]


@dataclass(frozen=True, slots=True)
class Exact:
    """Values that compiled code must compute too."""

    subject: str
    values: Sequence[Value]
    arrays: Sequence[Array]


class Checker:
    """The checks of one problem; `exact` collects what native code is compared with."""

    def __init__(
        self, problem: Problem, report: Report, tolerance: float, rng: np.random.Generator
    ) -> None:
        self.problem = problem
        self.report = report
        self.tolerance = tolerance
        self.rng = rng
        self.exact: list[Exact] = []
        self.env: Arrays = {}
        self.start(problem)

    def start(self, problem: Problem) -> None:
        """Draw heads and derive the gradients of another problem."""
        self.problem = problem
        self.heads = [Variable(f"head{n}", o.shape, float64) for n, o in enumerate(problem.outputs)]
        self.along = [Variable(f"along {v}", v.shape, float64) for v in problem.inputs]
        self.derived = _gradients(problem.outputs, problem.inputs, self.heads)
        drawn = {v: self.draw(v) for v in (*self.heads, *self.along)}
        self.values = {**problem.values, **drawn}
        self.env |= self.values

    def draw(self, variable: Variable) -> Array:
        return np.asarray(self.rng.normal(size=box(variable)))

    def note(self, name: str, subject: str, error: float, limit: float = EXACT) -> None:
        self.report.checks.append(Check(name, subject, error, limit))

    def modes(self, where: str, second: bool) -> None:
        """Differences, the dot product, and the second order."""
        p = self.problem
        pushed = tangents(p.outputs, p.inputs, self.along)
        for x, dx in zip(p.inputs, self.derived, strict=True):
            self._first(x, dx, pushed, where)
        whole = [*p.outputs, *self.derived, *pushed]
        self.exact.append(Exact(f"first order{where}", whole, _evaluate(whole, self.values)))
        if second:
            self._second()

    def _first(self, x: Variable, dx: Value, pushed: Sequence[Value], where: str) -> None:
        (gradient,) = _evaluate([dx], self.values)
        still = {t: np.zeros(box(t)) for t in self.along}
        own = self.along[self.problem.inputs.index(x)]
        slopes, products = [0.0], [0.0]
        for _ in range(DIRECTIONS):
            v = self.draw(x)
            moved = _evaluate(pushed, {**self.values, **still, own: v})
            differences = self._differences(self.problem.outputs, {x: v})
            terms = [t * self.values[h] for t, h in zip(moved, self.heads, strict=True)]
            guess = [d * self.values[h] for d, h in zip(differences, self.heads, strict=True)]
            scale = 1 + sum(float(np.sum(abs(t))) for t in terms)
            whole = _total(terms)
            slopes.append(abs(whole - _total(guess)) / scale)
            products.append(abs(whole - float(np.sum(gradient * v))) / scale)
        self.note("differences", f"{x}{where}", _worst(slopes), self.tolerance)
        self.note("dot product", f"{x}{where}", _worst(products))

    def _differences(self, wanted: Sequence[Value], along: Arrays) -> list[Array]:
        ends = []
        for step in (STEP, -STEP):
            moved = {x: self.values[x] + step * v for x, v in along.items()}
            ends.append(_evaluate(wanted, {**self.values, **moved}))
        with np.errstate(invalid="ignore"):  # inf - inf: no number, and so infinitely wrong
            return [(a - b) / (2 * STEP) for a, b in zip(*ends, strict=True)]

    def _second(self) -> None:
        pushed = tangents(self.derived, self.problem.inputs, self.along)
        exact = _evaluate(pushed, self.values)
        along = {x: self.values[t] for x, t in zip(self.problem.inputs, self.along, strict=True)}
        guess = self._differences(self.derived, along)
        for x, a, b in zip(self.problem.inputs, exact, guess, strict=True):
            self.note("second order", f"{x}", _apart(a, b), 10 * self.tolerance)
        self.exact.append(Exact("second order", pushed, exact))

    def view(self, name: str) -> None:
        """Inputs and heads as views of bases; what no view shows is NaN."""
        p = self.problem
        every = [*p.inputs, *self.heads]
        layouts = {v: Layout(name, self.values[v].shape, f"{v} base") for v in every}
        bases = {lay.base: lay.filled(self.values[v]) for v, lay in layouts.items()}
        shown = {v: bases[lay.base][lay.spots] for v, lay in layouts.items()}
        wanted = _evaluate(self.derived, {**self.values, **shown})
        outputs = rewire(p.outputs, {x: layouts[x].view for x in p.inputs})
        heads = [layouts[h].view for h in self.heads]
        by_bases = _gradients(outputs, [layouts[x].base for x in p.inputs], heads)
        self.env |= bases
        arrays = _evaluate(by_bases, {**self.values, **bases})
        for x, array, gradient in zip(p.inputs, arrays, wanted, strict=True):
            self.note("layout", f"{x}, {name}", _apart(array, layouts[x].gathered(gradient)))
        self.exact.append(Exact(name, by_bases, arrays))

    def compare_native(self) -> None:
        """All that was computed exactly, by one compiled program."""
        wanted = [v for e in self.exact for v in e.values]
        results = [Variable(f"result{n}", v.shape, v.dtype) for n, v in enumerate(wanted)]
        graph = Graph(tuple(zip(results, wanted, strict=True)))
        state = (*graph.inputs, *results)
        made = compile_program(Program((Compute(graph),), state), Options.from_environment())
        bindings = {v: np.asarray(self.env[v], order="C") for v in graph.inputs}
        bindings |= {v: np.zeros(box(v)) for v in results}
        made.run(bindings)
        arrays = iter([bindings[v] for v in results])
        for exact in self.exact:
            errors = [_apart(next(arrays), a) for a in exact.arrays]
            self.note("native", exact.subject, _worst(errors))


def _gradients(
    outputs: Sequence[Value], inputs: Sequence[Value], heads: Sequence[Value]
) -> list[Value]:
    state = Reverse(outputs, inputs, heads)
    return [state.gradient(x) for x in inputs]


def _evaluate(wanted: Sequence[Value], values: Arrays) -> list[Array]:
    with np.errstate(all="ignore"):
        return oracle(wanted, values)


def _total(parts: Sequence[Array]) -> float:
    return sum(float(np.sum(p)) for p in parts)


def _apart(a: Array, b: Array) -> float:
    """The largest difference, relative to the largest number where that is above 1."""
    if not b.size:
        return 0.0 if a.shape == b.shape else np.inf
    with np.errstate(invalid="ignore"):
        return _worst([float(np.max(abs(a - b))) / (1 + float(np.max(abs(b))))])


def _worst(errors: Sequence[float]) -> float:
    """The largest; what is no number is infinite."""
    return max((np.inf if np.isnan(e) else e for e in errors), default=0.0)
