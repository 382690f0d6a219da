"""Random operators of a graph, drawn by programs: from one seed a call, and a number each.

``native_dropout(x, .1)  ->  u = uniform(seed, 0, shape); x * (u >= .1) * (1 / .9)``

A seed is 8 bytes, so what is drawn forward is drawn again backward instead of kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

import pullback as pb
from pullback.bridge.aten.table import RULES, rule
from pullback.bridge.programs import PLACES, TYPES

aten = torch.ops.aten
_library = torch.library.Library("pullback_draws", "DEF")
_DRAWN = "(Tensor seed, int number, SymInt[] shape, ScalarType dtype) -> Tensor"
_library.define("seed() -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
_library.define(f"uniform{_DRAWN}")
_library.define(f"normal{_DRAWN}")
_library.define(_DRAWN.replace("(", "integers(SymInt low, SymInt high, ", 1))
SEED = torch.ops.pullback_draws.seed.default
UNIFORM = torch.ops.pullback_draws.uniform.default
NORMAL = torch.ops.pullback_draws.normal.default
INTEGERS = torch.ops.pullback_draws.integers.default


def seed() -> Any:
    """The seed of one call, from PyTorch's generator."""
    return torch.randint(1 << 31, (2,), dtype=torch.int32)


def _key(seed: Any, number: int) -> Any:
    return pb.random.fold_in(pb.astype(seed, "uint32"), number)


@rule(UNIFORM)
def uniform(seed: Any, number: int, shape: Sequence[int], dtype: Any) -> Any:
    return pb.random.uniform(tuple(shape), key=_key(seed, number), dtype=TYPES[dtype])


@rule(NORMAL)
def normal(seed: Any, number: int, shape: Sequence[int], dtype: Any) -> Any:
    return pb.random.normal(tuple(shape), key=_key(seed, number), dtype=TYPES[dtype])


@rule(INTEGERS)
def integers(low: int, high: int, seed: Any, number: int, shape: Sequence[int], dtype: Any) -> Any:
    kind = TYPES[dtype]
    whole = pb.random.integers(low, high, tuple(shape), key=_key(seed, number))
    return pb.astype(whole, kind)


def _eager(name: str, rule: Callable[..., Any], place: int) -> None:
    """An operator as PyTorch runs it, outside of programs."""

    def run(*args: Any) -> Any:
        own = [np.asarray(a) if isinstance(a, torch.Tensor) else a for a in args]
        own[place] = pb.tensor(own[place])
        return torch.from_numpy(np.array(rule(*own)))

    def shaped(*args: Any) -> Any:
        return args[place].new_empty(args[-2], dtype=args[-1])

    _library.impl(name, run, "CPU")
    _library.impl(name, shaped, "Meta")
    torch.library.register_fake(f"pullback_draws::{name}", shaped, lib=_library)


for _name, _rule, _place in (
    ("uniform", uniform, 0),
    ("normal", normal, 0),
    ("integers", integers, 2),
):
    _eager(_name, _rule, _place)
_library.impl("seed", seed, "CompositeExplicitAutograd")


class _Writer:
    """Writes what an operator is made of before it."""

    def __init__(self, gm: Any, seed: Node) -> None:
        self.graph = gm.graph
        self.seed = seed
        self.number = 0
        self.device: Any = "cpu"  # of what is drawn

    def __call__(self, target: Any, *args: Any, **named: Any) -> Node:
        """A node of an operator, with what it gives."""
        node = self.graph.call_function(target, args, named)
        values = torch.fx.map_arg((args, named), lambda n: n.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        return node

    def drawn(self, target: Any, like: Any, dtype: Any, *first: Any) -> Node:
        """Numbers of a shape: that of a node, or a list of sizes."""
        shape = like
        if isinstance(like, Node):
            sizes = like.meta["val"].shape
            shape = [
                e if isinstance(e, int) else self(aten.sym_size.int, like, n)
                for n, e in enumerate(sizes)
            ]
        self.number += 1
        args = (*first, self.seed, self.number - 1, list(shape), dtype)
        node = self.graph.call_function(target, args)
        extents = [s.meta["val"] if isinstance(s, Node) else s for s in shape]
        with self.seed.meta["val"].fake_mode:
            node.meta["val"] = torch.empty(extents, dtype=dtype, device=self.device)
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        return node


def _kind(node: Node) -> Any:
    return node.meta["val"].dtype


def _dropout(write: _Writer, node: Node) -> list[Node] | None:
    x, share, train = node.args[:3]
    if train is False or not share:
        return None
    mask = write(aten.ge.Scalar, write.drawn(UNIFORM, x, torch.float32), share)
    mask.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    if share == 1:
        return [write(aten.zeros_like.default, x), mask]
    return [write(aten.mul.Tensor, write(aten.mul.Tensor, x, mask), 1 / (1 - share)), mask]


def _bernoulli(write: _Writer, node: Node) -> Node:
    x = node.args[0]
    p = node.args[1] if node.target == aten.bernoulli.p else x
    u = write.drawn(UNIFORM, x, torch.float32)
    less = aten.lt.Tensor if isinstance(p, Node) else aten.lt.Scalar
    return write(aten._to_copy.default, write(less, u, p), dtype=_kind(node))


def _uniform(write: _Writer, node: Node) -> Node:
    """``rand(shape)``, ``rand_like(x)``."""
    return write.drawn(UNIFORM, node.args[0], _kind(node))


def _normal(write: _Writer, node: Node) -> Node:
    return write.drawn(NORMAL, node.args[0], _kind(node))


def _between(write: _Writer, node: Node) -> Node:
    """``uniform(x, low, high)``"""
    low, high = _two(node.args[1:])
    unit = write.drawn(UNIFORM, node.args[0], _kind(node))
    return write(aten.add.Scalar, write(aten.mul.Scalar, unit, high - low), low)


def _around(write: _Writer, node: Node) -> Node:
    """``normal(mean, deviation)``, of numbers or tensors, and ``normal_functional(x, ..)``."""
    args = list(node.args)
    like = args.pop(0) if node.target == aten.normal_functional.default else None
    mean, deviation = _two(args)
    unit = write.drawn(NORMAL, node if like is None else like, _kind(node))
    by = aten.mul.Tensor if isinstance(deviation, Node) else aten.mul.Scalar
    plus = aten.add.Tensor if isinstance(mean, Node) else aten.add.Scalar
    return write(plus, write(by, unit, deviation), mean)


def _two(args: Sequence[Any]) -> Sequence[Any]:
    """The first two, which are 0 and 1 where they are not given."""
    return [*args, *[0.0, 1.0][len(args) :]][:2]


def _exponential(write: _Writer, node: Node) -> Node:
    by = node.args[1] if len(node.args) > 1 else 1.0
    unit = write.drawn(UNIFORM, node.args[0], _kind(node))
    late = write(aten.log1p.default, write(aten.neg.default, unit))
    return write(aten.mul.Scalar, late, -1 / by)


def _given(node: Node, *usual: float) -> list[Any]:
    """The arguments behind the first; those that are not given are as usual."""
    given = list(node.args[1:])
    return [*given, *usual[len(given) :]]


def _log_normal(write: _Writer, node: Node) -> Node:
    """``exp(mean + deviation n)``"""
    mean, deviation = _given(node, 1.0, 2.0)
    unit = write.drawn(NORMAL, node.args[0], _kind(node))
    around = write(aten.add.Scalar, write(aten.mul.Scalar, unit, deviation), mean)
    return write(aten.exp.default, around)


def _cauchy(write: _Writer, node: Node) -> Node:
    """``median + sigma tan(pi (u - 1/2))``"""
    median, sigma = _given(node, 0.0, 1.0)
    unit = write.drawn(UNIFORM, node.args[0], _kind(node))
    turn = write(aten.mul.Scalar, write(aten.sub.Scalar, unit, 0.5), math.pi)
    wide = write(aten.mul.Scalar, write(aten.tan.default, turn), sigma)
    return write(aten.add.Scalar, wide, median)


def _geometric(write: _Writer, node: Node) -> Node:
    """``max(1, ceil(log(1 - u) / log(1 - p)))``: the trials until the first that succeeds."""
    x, p = node.args
    unit = write.drawn(UNIFORM, x, torch.float32)
    late = write(aten.log1p.default, write(aten.neg.default, unit))
    trials = write(aten.mul.Scalar, late, 1 / math.log1p(-p) if p < 1 else 0.0)
    first = write(aten.clamp.default, write(aten.ceil.default, trials), 1)
    return write(aten._to_copy.default, first, dtype=_kind(node))


def _of_numbers(write: _Writer, node: Node) -> Node:
    """``normal(mean, deviation, shape)``"""
    mean, deviation, shape = node.args
    unit = write.drawn(NORMAL, shape, _kind(node))
    return write(aten.add.Scalar, write(aten.mul.Scalar, unit, deviation), mean)


def _rectified(write: _Writer, node: Node) -> list[Node]:
    """``rrelu(x)``: the products, and by what each element is multiplied: 1 where positive."""
    x, by, low, high, train = (*node.args, *(1 / 8, 1 / 3, False)[len(node.args) - 2 :])[:5]
    if not train:
        return [write(aten.leaky_relu.default, x, (low + high) / 2), by]
    unit = write.drawn(UNIFORM, x, x.meta["val"].dtype)
    slope = write(aten.add.Scalar, write(aten.mul.Scalar, unit, high - low), low)
    by = write(aten.where.ScalarOther, write(aten.le.Scalar, x, 0), slope, 1)
    return [write(aten.mul.Tensor, x, by), by]


def _whole(write: _Writer, node: Node) -> Node | None:
    """``randint(low, high, shape)`` and of a shape like another's; none where a bound is known to
    nobody.
    """
    like = node.target in (aten.randint_like.default, aten.randint_like.low_dtype)
    bounds = node.args[1:] if like else node.args[:-1]
    low, high = (0, *bounds)[-2:]
    if not all(type(b) is int for b in bounds):
        return None
    shape = node.args[0] if like else node.args[-1]
    return write.drawn(INTEGERS, shape, _kind(node), low, high)


WAYS: dict[Any, Callable[[_Writer, Node], Any]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.uniform.default: _between,
    aten.normal_functional.default: _around,
    aten.normal.Tensor_float: _around,
    aten.normal.float_Tensor: _around,
    aten.normal.Tensor_Tensor: _around,
    aten.normal.float_float: _of_numbers,
    aten.exponential.default: _exponential,
    aten.log_normal.default: _log_normal,
    aten.cauchy.default: _cauchy,
    aten.geometric.default: _geometric,
    aten.rrelu_with_noise_functional.default: _rectified,
    aten.randint.default: _whole,
    aten.randint.low: _whole,
    aten.randint_like.default: _whole,
    aten.randint_like.low_dtype: _whole,
}


def draws(node: Node) -> bool:
    """Whether an operator draws from PyTorch's generator."""
    if node.target == aten.native_dropout.default:
        return node.args[2] is not False and bool(node.args[1])
    if node.target in WAYS:
        return True
    tags = getattr(node.target, "tags", ())
    own = node.target in RULES or node.target == SEED  # attention may draw, where none has a rule
    return torch.Tag.nondeterministic_seeded in tags and not own


def seeded(gm: Any) -> None:
    """The graph, with what it draws written by one seed; what has a generator of its own stays."""
    drawing = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in WAYS]
    drawing = [n for n in drawing if draws(n) and n.kwargs.get("generator") is None and _known(n)]
    if not drawing:
        return
    mode = _fakes(drawing[0])
    given = [n for n in gm.graph.nodes if n.op == "placeholder"]
    first = given[-1].next if given else next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(first):
        source = gm.graph.call_function(SEED)
    with mode:
        source.meta["val"] = torch.empty(2, dtype=torch.int32)
    write = _Writer(gm, source)
    for node in drawing:
        write.device = _first(node).device
        with gm.graph.inserting_before(node):
            made = WAYS[node.target](write, node)
        _replaced(gm, node, made)
    if not source.users:
        gm.graph.erase_node(source)
    gm.recompile()


def _first(node: Node) -> Any:
    """What it gives, or the first of several."""
    values = node.meta.get("val")
    return values[0] if isinstance(values, list | tuple) else values


def _known(node: Node) -> bool:
    """Whether programs have the type of its elements."""
    first = _first(node)
    return isinstance(first, torch.Tensor) and first.dtype in TYPES and first.device.type in PLACES


def _fakes(node: Node) -> Any:
    values = node.meta["val"]
    return (values[0] if isinstance(values, list | tuple) else values).fake_mode


def _replaced(gm: Any, node: Node, made: Any) -> None:
    """Uses of what was drawn become uses of what draws it now."""
    if made is None:
        return
    if isinstance(made, Node):
        made.meta.update({k: v for k, v in node.meta.items() if k not in ("val", "recompute")})
        node.replace_all_uses_with(made)
    else:
        for part in list(node.users):
            part.replace_all_uses_with(made[part.args[1]])
            gm.graph.erase_node(part)
    gm.graph.erase_node(node)
