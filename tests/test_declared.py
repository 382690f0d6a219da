"""Every public function of several tensors declares them, and is called with sizes that are wrong.

Functions are found by themselves (`public_functions`), arguments are made of what is declared: a
new function is here without a word, or red.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from inspect import Parameter
from typing import Any

import numpy as np
import pytest

import pullback as pb
from public_functions import functions, of_functions, tensors
from pullback.errors import PullbackError
from pullback.tensor.shaped.checks import Shaped
from pullback.tensor.shaped.declaration import Along, Extent, Free, Group, Shape
from pullback.tensor.shaped.matching import Bound, result_sizes
from wrong_sizes import ARRAYS, CALLS, Call, f, variants

# No tensors, whatever their annotation says: numbers, shapes, types.
NONE = {"pb.arange", "pb.broadcast_shapes", "pb.result_type"}
FUNCTIONS = dict(functions())
SEVERAL = sorted(n for n, f in FUNCTIONS.items() if len(tensors(f)) > 1 and not of_functions(f))
DECLARED = {n: f.__shapes__ for n, f in FUNCTIONS.items() if hasattr(f, "__shapes__")}
TOLD = {n.rpartition(".")[2] for n in (*CALLS, *ARRAYS)}  # called in test_wrong_sizes


# Parameters of some functions that are no tensors, or of which no size is wrong by itself.
BESIDE = {
    "linalg.cond": {"p"}, "pb.histogram": {"bins"}, "pb.einsum": {"subscripts"},
    "pb.index_put": {"indices"}, "nn.functional.rotary_embedding": {"offset"},
    "nn.functional.fractional_max_pool2d": {"_random_samples"},
    "nn.functional.fractional_max_pool3d": {"_random_samples"},
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_several_tensors_are_declared(name: str) -> None:
    if name in NONE:
        return
    assert name in DECLARED, f"{name} declares no shapes, see docs/shapes.md"
    given = {shape.name for shape in DECLARED[name].declared.arguments}
    assert set(tensors(FUNCTIONS[name])) <= given | BESIDE.get(name, set())


# --- calls that are right ------------------------------------------------------------------------

SIZES = {"k": 3, "m": 4, "n": 5, "b": 2, "v": 2, "c": 3}
# What has no default, or one with which nothing is checked.
SETTINGS: dict[str, Any] = {
    "axis": 0, "axis1": 0, "axis2": 1, "reduce": "sum", "num_samples": 2, "shape": None, "index": 0,
    "stop": 2, "norm": "backward", "correction": 0, "n_fft": 4, "d": 1, "upper": True,
}  # fmt: skip
RIGHT: dict[str, dict[str, Any]] = {
    "pb.einsum": {"subscripts": "ij,ij->i"},
    "pb.index_put": {"indices": [np.array([0, 1])], "values": np.ones(2)},
    "pb.put": {"indices": np.array([0, 1]), "values": np.ones(2)},
    "pb.searchsorted": {"values": np.ones(3), "sorter": None},
    "pb.slice_scatter": {"values": np.ones((2, 3)), "stop": 2},
    "pb.diagonal_scatter": {"values": np.ones((3, 4))},
    "pb.linear_recurrence": {"initial": np.ones(())},
    "linalg.solve_triangular": {"b": np.ones((3, 5, 2))},
    "sparse.csr_matmul": {"indices": np.array([0, 3, 1]), "pointers": np.array([0, 3])},
    "sparse.csr_transposed_matmul": {"pointers": np.array([0, 1, 2, 3, 3]), "columns": 2},
    "sparse.coo_matmul": {"count": 2},
    "quantised.linear8": {
        "x": np.ones((3, 3), np.int8),
        "w": pb.quantised.Weights(pb.ones((1, 3, 64), dtype="int8"), pb.ones((1, 1, 64)), 5, 3),
    },
    "fft.stft": {"x": np.ones(16), "window": np.ones(4)},
}


def extent(item: Extent | Free, bound: Bound) -> int:
    if isinstance(item, Free):
        return 2
    number = bound.number(item.tree)
    return SIZES.get(item.text.removesuffix("?"), 2) if number is None else int(number)


def sizes_of(shape: Shape, bound: Bound) -> list[int]:
    """A shape of the first way."""
    sizes: list[int] = []
    for item in shape.ways[0]:
        if isinstance(item, Group) or (isinstance(item, Free) and item.text == "..."):
            sizes += (3,)
        elif not isinstance(item, Along):
            sizes.append(extent(item, bound))
    for item in shape.ways[0]:
        if isinstance(item, Along):
            axis = bound.number(item.axis)
            sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, extent(item.extent, bound))
    return sizes


def array(shape: Shape, bound: Bound) -> Any:
    sizes = sizes_of(shape, bound)
    flat = np.arange(math.prod(sizes)).reshape(sizes)
    if shape.kind in ("int", "bool") or shape.name in ("indices", "sorter"):
        return flat % 2 == 0 if shape.kind == "bool" else flat % 2
    return f(*sizes)


def right(name: str, own: Shaped) -> Call:
    """A call that fits the declaration."""
    settings: dict[str, Any] = {}
    for n, p in own.signature.parameters.items():
        settings[n] = (
            SETTINGS.get(n, p.default) if p.default in (Parameter.empty, -1, -2) else p.default
        )
    bound = Bound(settings)
    for shape in own.declared.arguments:
        one = array(shape, bound)
        settings[shape.name] = (one, one.copy()) if shape.several else one
    settings |= RIGHT.get(name, {})
    given: list[Any] = []
    keywords: dict[str, Any] = {}
    for n, p in own.signature.parameters.items():
        if p.kind is Parameter.VAR_POSITIONAL:
            given += settings[n]
        elif p.kind is Parameter.KEYWORD_ONLY:
            keywords[n] = settings[n]
        else:
            given.append(settings[n])
    return Call(tuple(given), keywords)


def made(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return pb.tensor(value)
    return [made(v) for v in value] if isinstance(value, list | tuple) and _arrays(value) else value


def _arrays(value: Any) -> bool:
    return any(isinstance(v, np.ndarray) for v in value)


def wrong(call: Call) -> Iterator[tuple[str, Call]]:
    """Calls with one tensor of another size, of those in lists too."""
    yield from variants(call)
    for n, value in enumerate(call.args):
        if isinstance(value, list | tuple) and _arrays(value):
            for what, inner in variants(Call(tuple(value))):
                yield f"{n}: {what}", call.changed(n, list(inner.args))


def called(name: str, call: Call) -> Any:
    args, kwargs = [made(a) for a in call.args], {k: made(v) for k, v in call.kwargs.items()}
    result = FUNCTIONS[name](*args, **kwargs)
    parts = result if isinstance(result, tuple | list) else [result]
    listed = [p for p in parts if isinstance(p, pb.Tensor)]
    if not name.startswith(LONG):
        for part in listed:
            part.numpy()
    return listed


def known(own: Shaped, call: Call) -> Bound:
    args, kwargs = [made(a) for a in call.args], {k: made(v) for k, v in call.kwargs.items()}
    return own.check(own.bind(args, kwargs).arguments)


LONG = ("special.", "random.")  # kernels of a second: one call is computed, others only made
COMPLEX = {"fft.istft"}  # whose first argument is no array
MADE = [
    n
    for n in SEVERAL
    if n in DECLARED
    and n.rpartition(".")[2] not in TOLD
    and n not in COMPLEX
    and "functional" not in n
]


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", MADE)
def test_sizes_one_off(name: str) -> None:
    """A coded error at this line, or a result of the declared shape; never a fault of another."""
    own, call = DECLARED[name], right(name, DECLARED[name])
    for result in called(name, call):
        result.numpy()
    for what, other in wrong(call):
        try:
            bound = known(own, other)
        except PullbackError:
            bound = None
        try:
            results = called(name, other)
        except PullbackError as problem:
            assert problem.code[0] == "E" and "test_declared.py" in str(problem), what
            continue
        assert bound is not None, f"{what}: {[r.shape for r in results]}"
        for shape, result in zip(own.declared.results, results, strict=False):
            sizes = result_sizes(shape, bound)
            fits = sizes is None or len(sizes) != result.ndim or all(
                s in (None, n) for s, n in zip(sizes, result.shape, strict=True)
            )  # fmt: skip
            assert fits, f"{what}: declared {sizes}, made {result.shape}"


# --- numbers out of their limits -----------------------------------------------------------------


def limited() -> Iterator[tuple[str, str]]:
    """Functions and the names of numbers that have limits."""
    for name, own in DECLARED.items():
        names = {
            n.id
            for limit in own.declared.limits
            for n in ast.walk(limit.tree)
            if isinstance(n, ast.Name)
        }
        only = set() if name != "random.choice" else {"x"}  # a number or a tensor
        yield from ((name, n) for n in sorted(names & set(own.signature.parameters) - only))


@pytest.mark.parametrize(("name", "setting"), list(limited()))
def test_numbers_out_of_their_limits(name: str, setting: str) -> None:
    """NaN and text are in no limits; one of -1, 0, 1.5, and infinities is not either."""
    own = DECLARED[name]
    bad: list[Any] = [float("nan"), object(), *([] if setting in own.texts else ["x"])]
    defaults = {n: p.default for n, p in own.signature.parameters.items()}
    told = {n: None if d is Parameter.empty else d for n, d in defaults.items()}
    for value in bad:
        with pytest.raises(PullbackError, match="E176"):
            own.limited(name, {**told, setting: value})
    refused = 0
    for value in (-1, 0, 1.5, 101, -math.inf, math.inf):
        try:
            own.limited(name, {**told, setting: value})
        except PullbackError as problem:
            assert problem.code == "E176"
            refused += 1
    beside = {("nn.functional.normalize", "p")}  # every number is an order
    ends = ("low", "high", "min", "max", "mean")
    assert refused or setting in ends or (name, setting) in beside, "no number was seen to be out"
