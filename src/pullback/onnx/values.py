"""Values of a model while it is traced: tensors, and what is known of them ahead.

What follows from shapes and from whole numbers of the model is computed while tracing, by onnx's
own reference: extents, axes, places of slices. What a rule needs as numbers beyond that is computed
so too, backwards to constants and to inputs, which then are inputs whose value makes the program.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

import pullback as pb
from pullback.errors import PullbackError
from pullback.onnx.faults import Refused, Wanted, broken, undecided
from pullback.onnx.graph import Node
from pullback.onnx.read import Array
from pullback.tensor.record.trace import suspended

MOST_KNOWN = 1 << 16  # elements of what is computed while tracing
MOST_PLAIN = 1 << 12  # the same where nothing asks for them
FOLDED = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape",
        "CumSum", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min",
        "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax",
        "ReduceMin", "ReduceProd", "ReduceSum", "ReduceMean", "Relu", "Reshape", "Round",
        "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
        "Tile", "Transpose", "Unsqueeze", "Where", "Xor",
    }
)  # fmt: skip


class Value:
    """A tensor, numbers known while tracing, or both; `made` says by which output of which node.

    `plain`: it follows from shapes and whole numbers of the model. `given`: the name of the input,
    or of the parameter, whose numbers can be had if they are asked for.
    """

    __slots__ = ("_tensor", "array", "given", "made", "plain")

    def __init__(
        self,
        tensor: Any = None,
        array: Array | None = None,
        *,
        plain: bool = False,
        given: str = "",
        made: tuple[Node, Sequence[Value | None], int] | None = None,
    ) -> None:
        self._tensor = tensor
        self.array = array
        self.plain = plain
        self.given = given
        self.made = made

    @property
    def tensor(self) -> Any:
        """The tensor; of numbers that are known a constant."""
        if self._tensor is None:
            self._tensor = constant(self.array)
        return self._tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents."""
        own = self.array if self._tensor is None else self._tensor
        assert own is not None
        return tuple(own.shape)


class Row(Value):
    """A sequence: values, as many as are known while tracing."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[Value]) -> None:
        super().__init__()
        self.items = tuple(items)

    @property
    def tensor(self) -> Any:
        """Raises: Refused."""
        raise Refused("a sequence stands where a tensor is wanted")

    @property
    def shape(self) -> tuple[Any, ...]:
        """Raises: Refused."""
        raise Refused("a sequence stands where a tensor is wanted")


class _Nothing(Value):
    """An optional value that is not there."""

    __slots__ = ()

    @property
    def tensor(self) -> Any:
        """Raises: Refused."""
        raise Refused("an optional value that is not there")


NOTHING = _Nothing()


def constant(array: Any) -> Any:
    """Numbers as a tensor; a single one is part of the code."""
    if array.size == 1:
        return pb.full(array.shape, array.reshape(-1)[0].item(), dtype=pb.dtype(array.dtype))
    with suspended():
        return pb.tensor(array)


def known(value: Value, why: str) -> Array:
    """The numbers of a value. Raises: Wanted for inputs that decide them; UnsupportedError."""
    if value.array is None:
        _computed(value, why)
    assert value.array is not None, "it was computed"
    return value.array


def at_once(value: Value) -> Array | None:
    """The numbers of a value where no input has to be asked for them; else None."""
    try:
        return known(value, "")
    except (Wanted, PullbackError):
        return None


def _computed(value: Value, why: str) -> None:
    wanted: set[str] = set()
    stack, met = [value], set[int]()
    while stack:
        last = stack[-1]
        if last.array is not None or last.given:
            if last.array is None:
                wanted.add(last.given)
            stack.pop()
            continue
        if last.made is None:
            raise undecided(f"{why}: it depends on a value that exists in a loop or branch only")
        node, operands, number = last.made
        rest = [v for v in operands if v is not None and v.array is None]
        if id(last) not in met:
            met.add(id(last))
            stack.extend(rest)
            continue
        stack.pop()
        if node.operator in ("Shape", "Size") or node.operator not in FOLDED or node.domain:
            raise undecided(f"{why}: it comes from {node}")
        if not any(v.array is None for v in rest):
            last.array = folded(node, operands)[number]
    if wanted:
        raise Wanted(frozenset(wanted))


def foldable(node: Node, values: Sequence[Value | None]) -> bool:
    """Whether a node is computed while tracing: of plain values, to few numbers."""
    if node.domain or node.operator not in FOLDED or not node.version:
        return False
    arrays = [v.array for v in values if v is not None and v.plain]
    known = [a for a in arrays if a is not None]
    whole = len(known) == sum(v is not None for v in values)
    return bool(values) and whole and _count(node, known) <= MOST_PLAIN


def folded(node: Node, values: Sequence[Value | None]) -> list[Array]:
    """What a node gives of known numbers, by onnx's own reference. Raises: coded errors."""
    arrays = {n: v.array for n, v in zip(node.inputs, values, strict=True) if v is not None}
    if _count(node, list(arrays.values())) > MOST_KNOWN:
        raise undecided(f"{node}: more than {MOST_KNOWN} numbers to be known while tracing")
    try:
        if node.operator == "Unsqueeze" and "axes" in node.attributes:  # the reference cannot
            return [
                np.expand_dims(a, tuple(node.attributes["axes"]))
                for a in arrays.values()
                if a is not None
            ]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            run = ReferenceEvaluator(node.proto, opsets=dict(node.opsets))
            results = run.run(None, arrays)
    except Exception as error:  # another library's, of a node that is not its operator's
        raise broken(node, f"{type(error).__name__}: {error}") from error
    return [np.asarray(r) for r in results]


def _count(node: Node, arrays: Sequence[Any]) -> int:
    """How many numbers it takes at most, so that none is computed before that is known."""
    most: int = max([a.size for a in arrays], default=1)
    if node.operator in ("Expand", "ConstantOfShape") and arrays[-1].dtype.kind in "iu":
        return max(most, math.prod(abs(int(e)) for e in arrays[-1].reshape(-1)) * most)
    if node.operator == "Tile" and arrays[-1].dtype.kind in "iu":
        return most * math.prod(max(1, abs(int(e))) for e in arrays[-1].reshape(-1))
    if node.operator == "Range":
        start, limit, step = (float(a.reshape(-1)[0]) if a.size else math.nan for a in arrays[:3])
        steps: float = abs(limit - start) / abs(step) if step else math.inf
        return int(steps) + 1 if math.isfinite(steps) else MOST_KNOWN + 1
    return most * (len(arrays) + 1) if node.operator == "Concat" else _broadcast(arrays, most)


def _broadcast(arrays: Sequence[Any], most: int) -> int:
    rank = max((a.ndim for a in arrays), default=0)
    shapes = [(1,) * (rank - a.ndim) + a.shape for a in arrays]
    whole: int = math.prod(max(es) for es in zip(*shapes, strict=True))
    return max(most, whole)
