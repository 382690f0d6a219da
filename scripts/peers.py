"""Random programs through PyTorch, its core decompositions, Inductor, JAX and tinygrad.

`python scripts/peers.py [--peer NAME].. [--count N] [--start SEED] [--together N]
[--calls] [--page]`

Each number is one program of `tests/random_programs.py`: gathers, guards, reductions, scans and
scatters. A peer runs it in float32, its gradient along one direction by its own derivative. Truth:
the interpreter of definitions in float64, and central differences of it at two steps; a program
whose two steps disagree (a kink near by) is compared by its value alone; one that some roundings of
its inputs move by a quarter of what would be reported is not compared.
Reported is what is off by a hundred times the tolerance of float32, with the program's number.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "peers.md"
sys.path.insert(0, str(ROOT / "tests"))

from grad_support import evaluate
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Accumulate, Definition, Reduce, Scan, Value, Variable, topological
from pullback.ir.meaning import apply
from pullback.ir.node import walk
from random_programs import Arrays, Maker, close, difference
from wrong_sizes import CALLS, Call

TOLERANCE = 1.3e-6  # of float32, as torch.testing.assert_close has it
FACTOR = 100.0  # off by less is rounding
STEPS = (1e-5, 3e-6)
NEAR = 1e-6  # of each input, some roundings of float32

Function = Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """What a program needs of a library of arrays."""

    package: str
    name: str
    array: Function  # of a NumPy array
    where: Function
    unary: dict[type, Function]
    reduce: dict[str, Function]  # value, axis
    scan: dict[str, Function]
    scatter: Function  # zeros of a shape with values added at indices


@dataclass(frozen=True)
class Case:
    """A program, where it is taken, and the truth."""

    seed: int
    output: Definition
    arrays: Arrays
    inputs: list[Variable]
    head: np.ndarray[Any, Any]
    along: list[np.ndarray[Any, Any]]
    value: np.ndarray[Any, Any]
    slope: float
    smooth: bool
    conditioned: bool  # inputs off by some roundings change it by less than what is reported


def case(seed: int) -> Case:
    """Program `seed` with its value and its slope along one direction, in float64."""
    output, arrays = Maker(seed).build()
    rng = np.random.default_rng(seed + 1)
    inputs = [v for v in arrays if v.dtype.is_float]
    arrays |= {v: arrays[v].astype(np.float32).astype(np.float64) for v in inputs}
    head = Variable("head", output.shape, output.dtype)
    along = [Variable(f"along{n}", v.shape, v.dtype) for n, v in enumerate(inputs)]
    arrays |= {v: rng.normal(size=v.shape).astype(np.float32) * 1.0 for v in (head, *along)}
    arrays |= {v: np.asarray(arrays[v], np.float64) for v in (head, *along)}
    one, two = (difference(output, head, inputs, along, arrays, s) for s in STEPS)
    (value,) = evaluate([output], arrays)
    heads, directions = arrays[head], [arrays[v] for v in along]
    near = arrays | {v: arrays[v] * (1 + NEAR * rng.uniform(-1, 1, v.shape)) for v in inputs}
    (beside,) = evaluate([output], near)
    slope = difference(output, head, inputs, along, near, STEPS[0])
    scale = 1 + float(np.max(abs(value), initial=0))
    room = FACTOR * TOLERANCE / 4
    moved = float(np.max(abs(beside - value), initial=0)) / scale
    calm = moved <= room and abs(slope - one) <= room * (1 + abs(one))
    smooth = close(one, two, 1e-5)
    return Case(seed, output, arrays, inputs, heads, directions, value, two, smooth, calm)


class Body:
    """One definition in a library's arrays; integers that hold no float are NumPy's."""

    def __init__(self, library: Library, values: dict[Value, Any], box: Sequence[int]) -> None:
        self.library, self.values, self.box = library, values, tuple(box)
        self.known: dict[Expr, Any] = {}

    def of(self, root: Expr) -> Any:
        for node in walk([root], skip=self.known):
            if isinstance(node, Expr):
                self.known[node] = self.one(node)
        return self.known[root]

    def floats(self, value: Any) -> Any:
        """As an array of the library."""
        return self.library.array(value) if isinstance(value, np.ndarray) else value

    def one(self, node: Expr) -> Any:
        if isinstance(node, E.Const):
            return np.full(self.box, node.value, "float32" if node.dtype.is_float else None)
        if isinstance(node, E.Axis):
            return np.indices(self.box)[node.number]
        kids = [self.known[c] for c in node.children if isinstance(c, Expr)]
        if isinstance(node, E.Take):
            return self.take(node, kids)
        if all(isinstance(k, np.ndarray) for k in kids) and not node.dtype.is_float:
            return np.asarray(apply(node, kids))
        return self.peer(node, [self.floats(k) for k in kids])

    def take(self, node: E.Take, indices: list[Any]) -> Any:
        source = self.values[node.source]
        sizes = [int(n) for n in node.source.shape]
        at = [np.clip(i, 0, n - 1) for i, n in zip(indices, sizes, strict=True)]
        if isinstance(source, np.ndarray):
            return np.asarray(source[tuple(at)])
        flat = np.ravel_multi_index(at, sizes) if sizes else np.zeros(self.box, np.int64)
        return source.reshape(-1)[self.library.array(flat)]

    def peer(self, node: Expr, kids: list[Any]) -> Any:
        if type(node) in self.library.unary:
            return self.library.unary[type(node)](kids[0])
        if isinstance(node, E.If):
            return self.library.where(*kids)
        binary: dict[type, Function] = {
            E.Add: lambda a, b: a + b,
            E.Mul: lambda a, b: a * b,
            E.Div: lambda a, b: a / b,
            E.Less: lambda a, b: a < b,
            E.Equal: lambda a, b: a == b,
            E.And: lambda a, b: a & b,
            E.Or: lambda a, b: a | b,
            E.Xor: lambda a, b: a ^ b,
        }
        return binary[type(node)](*kids)


def meaning(library: Library, at: Case, inputs: Sequence[Any]) -> Any:
    """The value of a program in a library's arrays."""
    values: dict[Value, Any] = {v: a for v, a in at.arrays.items() if not v.dtype.is_float}
    values |= dict(zip(at.inputs, inputs, strict=True))
    for d in topological([at.output]):
        if isinstance(d, Definition):
            values[d] = defined(library, values, d)
    return values[at.output]


def defined(library: Library, values: dict[Value, Any], d: Definition) -> Any:
    form, shape = d.form, tuple(int(n) for n in d.shape)
    over = tuple(int(n) for n in form.over) if isinstance(form, Reduce) else ()
    box = tuple(int(n) for n in form.domain) if isinstance(form, Accumulate) else (*shape, *over)
    body = Body(library, values, box)
    value = body.floats(body.of(d.body))
    if isinstance(form, Reduce):
        flat = value.reshape((*shape, -1))
        return library.reduce[form.combiner.name](flat, len(shape))
    if isinstance(form, Scan):
        return library.scan[form.combiner.name](value, form.axis)
    if isinstance(form, Accumulate):
        at = [np.clip(body.of(i), 0, n - 1) for i, n in zip(form.at, shape, strict=True)]
        flat = np.ravel_multi_index(at, shape) if shape else np.zeros(box, np.int64)
        return library.scatter(shape, flat.reshape(-1), value.reshape(-1))
    return value


# --- libraries -----------------------------------------------------------------------------------


def torch_library() -> Library:
    torch: Any = import_module("torch")

    def scatter(shape: tuple[int, ...], at: Any, value: Any) -> Any:
        zeros = torch.zeros(int(np.prod(shape)))
        return zeros.index_add(0, torch.as_tensor(at), value).reshape(shape)

    return Library(
        "torch",
        "torch",
        torch.as_tensor,
        torch.where,
        {E.Exp: torch.exp, E.Log: torch.log, E.Sqrt: torch.sqrt, E.Sin: torch.sin},
        {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin},
        {
            "sum": torch.cumsum,
            "prod": torch.cumprod,
            "max": lambda x, axis: torch.cummax(x, axis).values,
        },
        scatter,
    )


def jax_library() -> Library:
    jax: Any = import_module("jax")
    jnp = jax.numpy

    def scatter(shape: tuple[int, ...], at: Any, value: Any) -> Any:
        return jnp.zeros(int(np.prod(shape)), "float32").at[at].add(value).reshape(shape)

    return Library(
        "jax",
        "jax",
        jnp.asarray,
        jnp.where,
        {E.Exp: jnp.exp, E.Log: jnp.log, E.Sqrt: jnp.sqrt, E.Sin: jnp.sin},
        {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min},
        {"sum": jnp.cumsum, "prod": jnp.cumprod, "max": jax.lax.cummax},
        scatter,
    )


def tinygrad_library() -> Library:
    tensor: Any = import_module("tinygrad").Tensor

    def array(value: Any) -> Any:
        value = np.ascontiguousarray(value)
        return tensor(value.astype(np.int32) if value.dtype == np.int64 else value)

    def scatter(shape: tuple[int, ...], at: Any, value: Any) -> Any:
        zeros = tensor.zeros(int(np.prod(shape))).contiguous()
        return zeros.scatter_reduce(0, array(at), value, "sum").reshape(shape)

    return Library(
        "tinygrad",
        "tinygrad",
        array,
        lambda c, a, b: c.where(a, b),
        {E.Exp: tensor.exp, E.Log: tensor.log, E.Sqrt: tensor.sqrt, E.Sin: tensor.sin},
        {"sum": tensor.sum, "prod": tensor.prod, "max": tensor.max, "min": tensor.min},
        {
            "sum": tensor.cumsum,
            "prod": tensor.cumprod,
            "max": lambda x, axis: x.cummax(axis)[0],
        },
        scatter,
    )


# --- peers: values and gradients of some cases ---------------------------------------------------

Results = list[tuple[Any, list[Any]]]  # of each case its value and the gradients of its inputs


def singles(at: Case) -> list[np.ndarray[Any, Any]]:
    return [at.arrays[v].astype(np.float32) for v in at.inputs]


def torch_results(cases: Sequence[Case], compiled: Function | None) -> Results:
    torch: Any = import_module("torch")
    library = torch_library()
    inputs = [[torch.tensor(a, requires_grad=True) for a in singles(c)] for c in cases]

    def whole(*inputs: Any) -> Any:
        return [meaning(library, c, i) for c, i in zip(cases, inputs, strict=True)]

    values = (compiled(whole) if compiled else whole)(*inputs)
    heads = [torch.tensor(c.head, dtype=torch.float32) for c in cases]
    live = [(v, h) for v, h in zip(values, heads, strict=True) if v.requires_grad]
    total = sum((v * h).sum() for v, h in live)
    flat = [x for i in inputs for x in i]
    found = iter(
        torch.autograd.grad(total, flat, allow_unused=True) if live else [None] * len(flat)
    )
    return [
        (v.detach().numpy(), [next(found) for _ in i]) for v, i in zip(values, inputs, strict=True)
    ]


def inductor(function: Function) -> Function:
    torch: Any = import_module("torch")
    torch._dynamo.reset()
    return by_graph(function, None)


def decomposed(function: Function) -> Function:
    """With every operator of the core table taken apart, each part run eagerly."""
    torch: Any = import_module("torch")
    torch._dynamo.reset()
    return by_graph(function, import_module("torch._decomp").core_aten_decompositions())


def by_graph(function: Function, table: Any) -> Function:
    """Traced once (the index arithmetic is NumPy's and constant), then compiled."""
    torch: Any = import_module("torch")
    common: Any = import_module("torch._dynamo.backends.common")
    compile_fx: Any = import_module("torch._inductor.compile_fx").compile_fx
    functorch: Any = import_module("functorch.compile")

    def eager(module: Any, _: Any) -> Any:
        return functorch.make_boxed_func(module.forward)

    def backend(module: Any, examples: Any) -> Any:
        if table is None:
            return compile_fx(module, examples)
        return common.aot_autograd(fw_compiler=eager, decompositions=table)(module, examples)

    def run(*inputs: Any) -> Any:
        flat = [x for i in inputs for x in i]
        sizes = [len(i) for i in inputs]

        def unflat(*xs: Any) -> Any:
            rest = iter(xs)
            return function(*([next(rest) for _ in range(n)] for n in sizes))

        proxy = import_module("torch.fx.experimental.proxy_tensor").make_fx
        plain = [x.detach() for x in flat]
        return torch.compile(proxy(unflat)(*plain), backend=backend)(*flat)

    return run


def jax_results(cases: Sequence[Case]) -> Results:
    jax: Any = import_module("jax")
    library = jax_library()

    def one(c: Case) -> tuple[Any, list[Any]]:
        def both(*inputs: Any) -> Any:
            value, back = jax.vjp(lambda *i: meaning(library, c, i), *inputs)
            return value, back(jax.numpy.asarray(c.head, "float32"))

        value, found = jax.jit(both)(*singles(c))
        return np.asarray(value), list(found)

    return [one(c) for c in cases]


def tinygrad_results(cases: Sequence[Case]) -> Results:
    tensor: Any = import_module("tinygrad").Tensor
    library = tinygrad_library()

    def one(c: Case) -> tuple[Any, list[Any]]:
        inputs = [tensor(a) for a in singles(c)]
        value = meaning(library, c, inputs)
        total = (value * tensor(c.head.astype(np.float32))).sum()
        reached = [x for x in inputs if x.uop in total.uop.toposort()]
        slopes = total.gradient(*reached) if reached else []
        tensor.realize(value, *slopes)
        found = dict(zip(map(id, reached), slopes, strict=True))
        return value.numpy(), [found[id(x)].numpy() if id(x) in found else None for x in inputs]

    return [one(c) for c in cases]


PEERS: dict[str, tuple[str, Callable[[Sequence[Case]], Results]]] = {
    "eager": ("torch", lambda cases: torch_results(cases, None)),
    "core": ("torch", lambda cases: torch_results(cases, decomposed)),
    "inductor": ("torch", lambda cases: torch_results(cases, inductor)),
    "jax": ("jax", jax_results),
    "tinygrad": ("tinygrad", tinygrad_results),
}


def wrong(at: Case, value: Any, found: list[Any]) -> list[str]:
    """What a peer gives otherwise than the truth."""
    room = FACTOR * TOLERANCE
    texts = []
    scale = 1 + float(np.max(abs(at.value), initial=0))
    error = float(np.max(abs(np.asarray(value, np.float64) - at.value), initial=0))
    if not error <= room * scale:
        texts.append(f"value off by {error:.3g} of {scale:.3g}")
    terms = [
        np.asarray(g, np.float64) * a for g, a in zip(found, at.along, strict=True) if g is not None
    ]
    slope = sum(float(t.sum()) for t in terms)
    size = 1 + sum(float(abs(t).sum()) for t in terms)
    if at.smooth and not abs(slope - at.slope) <= room * size:
        texts.append(f"slope {slope:.7g}, not {at.slope:.7g}")
    return texts


@dataclass
class Count:
    """Of programs: run by the peer, compared, with slopes compared; refused, with reasons."""

    ran: int = 0
    compared: int = 0
    slopes: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return (
            f"{self.ran} programs, {self.compared} compared, {self.slopes} with slopes; "
            f"{self.refused} could not be run"
        )


def check(peer: str, cases: Sequence[Case], count: Count) -> None:
    """Runs some programs as one, each alone where that fails; prints what is wrong."""
    try:
        results = PEERS[peer][1](cases)
    except Exception as error:  # a peer's own refusal is counted, not a wrong result
        if len(cases) > 1:
            for at in cases:
                check(peer, [at], count)
            return
        text = f"{type(error).__name__}: {str(error)[:200]!r}"
        print(f"{peer}: program {cases[0].seed} not run: {text}", flush=True)
        count.refused += 1
        return
    for at, (value, found) in zip(cases, results, strict=True):
        count.ran += 1
        count.compared += at.conditioned
        count.slopes += at.smooth and at.conditioned
        for text in wrong(at, value, found) if at.conditioned else ():
            print(f"{peer}: program {at.seed}: {text}", flush=True)


# --- calls: PyTorch's own functions, by each of its ways ----------------------------------------


DOCUMENTED = {
    "ctc_loss": "its gradient is that of log_softmax and loss together: log_probs are normalised",
    "max_unpool2d": "indices that are repeated: which of them is kept is open",
}
# Derived by their first argument alone: the others are labels, targets, or statistics.
OF_DATA = (
    *("batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"),
    *("hinge_embedding_loss", "multi_margin_loss", "nll_loss", "soft_margin_loss"),
)


class Called:
    """One call of `torch.nn.functional`, as a function of its floating arguments alone."""

    def __init__(self, name: str, call: Call) -> None:
        torch: Any = import_module("torch")
        self.function = getattr(import_module("torch.nn.functional"), name)
        self.call = call.mapped(torch.as_tensor)
        at: list[Any] = [*range(len(call.args)), *call.kwargs]
        self.at = [w for w in at if torch.is_tensor(self.call.of(w))]
        self.at = [w for w in self.at if self.call.of(w).is_floating_point()]
        rng = np.random.default_rng(0)
        self.fixed = self.at
        self.at = self.at[:1] if name in OF_DATA else self.at
        given = [np.asarray(call.of(w)) for w in self.at]
        apart = [g + rng.uniform(0.0, 0.05, g.shape) for g in given]  # no two are equal
        self.inputs = [torch.as_tensor(g).float().double() for g in apart]
        self.along = [torch.as_tensor(rng.normal(size=tuple(x.shape))) for x in self.inputs]

    def value(self, *inputs: Any) -> Any:
        """The sum over what is returned, each element with another factor."""
        torch: Any = import_module("torch")
        kind = inputs[0].dtype
        given = self.call
        for where in self.fixed:
            given = given.changed(where, given.of(where).to(kind))
        for where, value in zip(self.at, inputs, strict=True):
            given = given.changed(where, value)
        found = self.function(*given.args, **given.kwargs)
        found = found[0] if isinstance(found, tuple) else found
        factors = torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype)
        return (found.reshape(-1) * factors).sum()

    def slopes(self) -> tuple[float, float]:
        moved = [
            [self.value(*(x + s * e * v for x, v in zip(self.inputs, self.along, strict=True)))
             for e in (1, -1)]
            for s in STEPS
        ]  # fmt: skip
        one, two = ((float(a - b)) / (2 * s) for (a, b), s in zip(moved, STEPS, strict=True))
        return one, two

    def result(self, way: Function | None) -> tuple[float, list[Any]]:
        torch: Any = import_module("torch")
        inputs = [x.float().requires_grad_() for x in self.inputs]
        value = (way(self.value) if way else self.value)(*inputs)
        return float(value.detach()), list(torch.autograd.grad(value, inputs, allow_unused=True))


def native(function: Function, table: Any) -> Function:
    """Traced by Dynamo; run by a table of decompositions, or by Inductor where there is none."""
    torch: Any = import_module("torch")
    torch._dynamo.reset()
    if table is None:
        return torch.compile(function)  # type: ignore[no-any-return]
    common: Any = import_module("torch._dynamo.backends.common")
    functorch: Any = import_module("functorch.compile")
    parts = {
        "fw_compiler": lambda module, _: functorch.make_boxed_func(module.forward),
        "partition_fn": functorch.min_cut_rematerialization_partition,
        "decompositions": table,
    }
    return torch.compile(function, backend=common.aot_autograd(**parts))  # type: ignore[no-any-return]


def check_call(peer: str, name: str, way: Function | None) -> bool:
    """Whether the call ran; prints what is wrong. A call that differs by itself is left out."""
    try:
        called = Called(name, CALLS[name])
        truth = float(called.value(*called.inputs))
        one, two = called.slopes()
        value, found = called.result(way)
    except Exception as error:  # other argument names, no such function, nothing to derive
        print(f"{peer}: {name} not run: {type(error).__name__}: {str(error)[:80]!r}", flush=True)
        return False
    room = FACTOR * TOLERANCE
    terms = [g.double() * a for g, a in zip(found, called.along, strict=True) if g is not None]
    slope, size = sum(float(t.sum()) for t in terms), 1 + sum(float(abs(t).sum()) for t in terms)
    if not abs(value - truth) <= room * (1 + abs(truth)):
        print(f"{peer}: {name}: value {value:.7g}, not {truth:.7g}", flush=True)
    if close(one, two, 1e-5) and not abs(slope - two) <= room * (1 + abs(two)):
        print(f"{peer}: {name}: slope {slope:.7g}, not {two:.7g} (terms {size:.3g})", flush=True)
    return True


def check_calls(peer: str) -> None:
    """All of `tests/wrong_sizes.py` by one of PyTorch's ways."""
    tables: dict[str, Any] = {"inductor": None}
    if peer == "core":
        tables["core"] = import_module("torch._decomp").core_aten_decompositions()
    ran = 0
    for name in sorted(CALLS.keys() - DOCUMENTED.keys()):
        way = None if peer == "eager" else lambda f: native(f, tables[peer])
        ran += check_call(peer, name, way)
    print(f"{peer} (torch {version('torch')}): {ran} calls of {len(CALLS) - len(DOCUMENTED)}")


def check_page() -> None:
    """Runs the scripts of docs/peers.md, each in its own names; prints those that fail."""
    environment = {"DEV": "PYTHON", **os.environ}  # tinygrad's device that needs no compiler
    for number, block in enumerate(
        re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ):
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, env=environment
        )
        state = "as the page says" if not done.returncode else done.stderr.splitlines()[-1]
        line = re.search(r"line \d+, in <module>\n.*", done.stderr)
        print(f"script {number}:", state, line.group(0) if line else "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", choices=sorted(PEERS))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--together", type=int, default=10)
    parser.add_argument("--calls", action="store_true", help="functions of torch.nn.functional")
    parser.add_argument("--page", action="store_true", help="the scripts of docs/peers.md")
    given = parser.parse_args()
    if given.page:
        check_page()
        return
    if given.calls:
        for peer in given.peer or ("eager", "core", "inductor"):
            check_calls(peer)
        return
    for peer in given.peer or PEERS:
        package = PEERS[peer][0]
        count = Count()
        for start in range(given.start, given.start + given.count, given.together):
            seeds = range(start, min(start + given.together, given.start + given.count))
            check(peer, [case(s) for s in seeds], count)
            if (start - given.start) // 100 != (seeds.stop - given.start) // 100:
                print(f"{peer}: {count}", flush=True)
        print(f"{peer} ({package} {version(package)}): {count}", flush=True)


if __name__ == "__main__":
    main()
