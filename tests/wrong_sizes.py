"""Calls that are right, one for each function of several tensors, and what is wrong one size off.

`CALLS` holds, for each function of `nn.functional`, arguments that fit; `variants` changes one
tensor of them: an axis one longer, one shorter, a leading axis more, the first axis less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Call:
    """Positional arguments and keywords; arrays among them are the tensors."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> Iterator[int | str]:
        """Where tensors stand."""
        yield from (n for n, a in enumerate(self.args) if isinstance(a, np.ndarray))
        yield from (k for k, a in self.kwargs.items() if isinstance(a, np.ndarray))

    def of(self, where: int | str) -> Any:
        return self.args[where] if isinstance(where, int) else self.kwargs[where]

    def changed(self, where: int | str, value: Any) -> Call:
        if isinstance(where, str):
            return Call(self.args, {**self.kwargs, where: value})
        return Call((*self.args[:where], value, *self.args[where + 1 :]), self.kwargs)

    def mapped(self, function: Callable[[Array], Any]) -> Call:
        """With `function` of each tensor in its place."""

        def one(value: Any) -> Any:
            return function(value) if isinstance(value, np.ndarray) else value

        return Call(tuple(map(one, self.args)), {k: one(v) for k, v in self.kwargs.items()})


def f(*shape: int) -> Array:
    """Floats between 0 and 1, none of them at an end."""
    return np.random.default_rng(sum(shape)).uniform(0.1, 0.9, shape)


def ints(*shape: int) -> Array:
    """Class numbers 0 and 1."""
    return np.arange(int(np.prod(shape))).reshape(shape) % 2


def signs(*shape: int) -> Array:
    return 1.0 - 2.0 * ints(*shape)


CALLS: dict[str, Call] = {
    "linear": Call((f(2, 3), f(4, 3), f(4))),
    "bilinear": Call((f(2, 3), f(2, 4), f(5, 3, 4), f(5))),
    "embedding": Call((ints(2, 3), f(4, 5))),
    "embedding_bag": Call((ints(2, 3), f(4, 5)), {"mode": "sum", "per_sample_weights": f(2, 3)}),
    "conv1d": Call((f(2, 4, 7), f(6, 2, 3), f(6)), {"groups": 2}),
    "conv2d": Call((f(2, 3, 5, 6), f(4, 3, 2, 3), f(4))),
    "conv3d": Call((f(2, 3, 4, 5, 3), f(4, 3, 2, 3, 1), f(4))),
    "conv_transpose1d": Call((f(2, 4, 5), f(4, 3, 2), f(6)), {"groups": 2}),
    "conv_transpose2d": Call((f(2, 3, 4, 3), f(3, 2, 2, 3), f(2))),
    "scaled_dot_product_attention": Call(
        (f(2, 3, 4), f(2, 5, 4), f(2, 5, 6), f(2, 3, 5)),
    ),
    "layer_norm": Call((f(2, 3, 4), (3, 4), f(3, 4), f(3, 4))),
    "rms_norm": Call((f(2, 3), (3,), f(3))),
    "group_norm": Call((f(2, 4, 3), 2, f(4), f(4))),
    "batch_norm": Call((f(2, 3, 4), f(3), f(3), f(3), f(3))),
    "instance_norm": Call((f(2, 3, 4),), {"weight": f(3), "bias": f(3)}),
    "prelu": Call((f(2, 3, 4), f(3))),
    "mse_loss": Call((f(2, 3), f(2, 3)), {"weight": f(2, 3)}),
    "l1_loss": Call((f(2, 3), f(2, 3)), {"weight": f(2, 3)}),
    "smooth_l1_loss": Call((f(2, 3), f(2, 3))),
    "huber_loss": Call((f(2, 3), f(2, 3)), {"weight": f(2, 3)}),
    "binary_cross_entropy": Call((f(2, 3), f(2, 3)), {"weight": f(2, 3)}),
    "binary_cross_entropy_with_logits": Call(
        (f(2, 3), f(2, 3)), {"weight": f(2, 3), "pos_weight": f(3)}
    ),
    "soft_margin_loss": Call((f(2, 3), signs(2, 3))),
    "kl_div": Call((f(2, 3), f(2, 3)), {"reduction": "sum"}),
    "poisson_nll_loss": Call((f(2, 3), f(2, 3))),
    "gaussian_nll_loss": Call((f(2, 3), f(2, 3), f(2, 1))),
    "cross_entropy": Call((f(3, 4, 2), ints(3, 2)), {"weight": f(4)}),
    "nll_loss": Call((f(3, 4), ints(3)), {"weight": f(4)}),
    "cosine_similarity": Call((f(2, 3), f(2, 3))),
    "pairwise_distance": Call((f(2, 3), f(2, 3))),
    "hinge_embedding_loss": Call((f(2, 3), signs(2, 3))),
    "margin_ranking_loss": Call((f(3), f(3), signs(3))),
    "cosine_embedding_loss": Call((f(2, 3), f(2, 3), signs(2))),
    "triplet_margin_loss": Call((f(2, 3), f(2, 3), f(2, 3))),
    "triplet_margin_with_distance_loss": Call((f(2, 3), f(2, 3), f(2, 3))),
    "multi_margin_loss": Call((f(3, 4), ints(3)), {"weight": f(4)}),
    "multilabel_margin_loss": Call((f(3, 4), ints(3, 4))),
    "multilabel_soft_margin_loss": Call((f(3, 4), ints(3, 4) * 1.0), {"weight": f(4)}),
    "ctc_loss": Call((f(6, 2, 3), ints(2, 2) * 0 + 1, np.array([6, 5]), np.array([2, 1]))),
    "grid_sample": Call((f(2, 3, 4, 5), f(2, 3, 2, 2)), {"align_corners": False}),
    "affine_grid": Call((f(2, 2, 3), (2, 1, 3, 4)), {"align_corners": False}),
    "max_unpool1d": Call((f(2, 3, 2), ints(2, 3, 2), 2)),
    "max_unpool2d": Call((f(2, 2, 2, 2), ints(2, 2, 2, 2), 2)),
}


def variants(call: Call) -> Iterator[tuple[str, Call]]:
    """One tensor of another size or rank, and what was done to it."""
    for where in call.tensors():
        array = call.of(where)
        for axis in range(array.ndim):
            longer = np.concatenate([array, array.take([0], axis)], axis)
            yield f"{where} axis {axis} longer", call.changed(where, longer)
            shorter = array.take(range(array.shape[axis] - 1), axis)
            yield f"{where} axis {axis} shorter", call.changed(where, shorter)
        two = np.stack([array, array])
        yield f"{where} with an axis more", call.changed(where, two)
        if array.ndim:
            yield f"{where} with an axis less", call.changed(where, np.asarray(array[0]))


# Functions of `pb`, each with NumPy's own, or the same in NumPy.
def _same(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(np, name)
    return function


def _scatter_add(x: Array, at: Array, values: Array) -> Array:
    """Rows at places of one axis, or element by element where both have the rank of `x`."""
    out = x.copy()
    if at.ndim == x.ndim == values.ndim and np.all(np.array(at.shape) <= values.shape):
        parts = np.indices(at.shape)
        np.add.at(out, (at, *parts[1:]), values[tuple(slice(n) for n in at.shape)])
        return out
    np.add.at(out, at, np.broadcast_to(values, (*at.shape, *x.shape[1:])))
    return out


def _cdist(a: Array, b: Array) -> Array:
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError("two axes")
    d = a[..., :, None, :] - b[..., None, :, :]
    return np.sqrt((d * d).sum(-1))


def _outer(a: Array, b: Array) -> Array:
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError("vectors")
    return np.outer(a, b)


TWO = (f(2, 3), f(2, 3))
WHOLE = (1 + ints(2, 3), ints(2, 3))
ARRAYS: dict[str, tuple[Call, Callable[..., Any]]] = {
    **{
        name: (Call(TWO), _same(name))
        for name in (
            "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "pow",
            "maximum", "minimum", "atan2", "logaddexp", "copysign", "less", "less_equal",
            "greater", "greater_equal", "equal", "not_equal", "hypot", "fmin", "fmax", "heaviside",
            "nextafter", "logaddexp2",
        )
    },
    **{
        name: (Call(WHOLE), _same(name))
        for name in (
            "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
            "bitwise_right_shift", "gcd", "lcm",
        )
    },
    **{
        name: (Call((f(2, 3) > 0.5, f(2, 3) < 0.4)), _same(name))
        for name in ("logical_and", "logical_or", "logical_xor")
    },
    "where": (Call((f(2, 3) > 0.5, f(2, 3), f(3))), np.where),
    "clip": (Call((f(2, 3), 0.3 * f(3), f(2, 1))), np.clip),
    "matmul": (Call((f(2, 3, 4), f(4, 5))), np.matmul),
    "vecdot": (Call((f(2, 3), f(2, 3))), np.vecdot),
    "outer": (Call((f(3), f(4))), _outer),
    "tensordot": (Call((f(2, 3, 4), f(3, 4, 5))), np.tensordot),
    "inner": (Call((f(2, 3), f(4, 3))), np.inner),
    "kron": (Call((f(2, 3), f(2, 2))), np.kron),
    "cdist": (Call((f(2, 3, 4), f(2, 5, 4))), _cdist),
    "cross": (Call((f(2, 3), f(2, 3))), lambda a, b: np.linalg.cross(a, b)),
    "einsum": (Call(("ij,jk->ik", f(2, 3), f(3, 4))), np.einsum),
    "take": (Call((f(4, 3), ints(2)), {"axis": 0}), np.take),
    "take_along_axis": (
        Call((f(4, 3), ints(2, 3)), {"axis": 0}),
        lambda x, i, axis: np.take_along_axis(x, i, axis),
    ),
    "scatter_add": (Call((f(4, 3), ints(2), f(2, 3))), _scatter_add),
    "isclose": (Call(TWO), np.isclose),
    "lerp": (Call((f(2, 3), f(2, 3), f(3))), lambda a, b, w: a + w * (b - a)),
}  # fmt: skip
