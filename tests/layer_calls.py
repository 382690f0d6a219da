"""Random calls of `nn.functional`, each a function of its source of chance.

A `Call` is written once, with `Slot`s for its tensors (slot 0 is what comes before), and runs on
pullback and on PyTorch alike: both have the function under one name with one order of arguments.
What needs several functions to make sense (`max_unpool` of what `max_pool` gives) is `composed` of
them. Losses are in `layer_losses`, modules with weights of their own in `layer_networks`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# Whose derivative is a choice at a point: ties of a maximum, kinks.
SHARP = {
    "max_pool", "adaptive_max_pool", "relu", "relu6", "leaky_relu", "elu", "hardtanh", "threshold",
    "hardswish", "hardsigmoid", "hardshrink", "softshrink", "prelu", "celu", "selu", "rrelu",
    "l1_loss", "smooth_l1_loss", "huber_loss", "margin", "triplet", "hinge", "lp_pool", "RNN",
    "pairwise_distance", "cosine", "softsign", "normalize", "multi", "poisson", "gaussian", "grid",
    "fractional", "pooled_and_back", "affine", "Transformer",
}  # fmt: skip
# Whose results jump: what rounds otherwise is another number altogether.
JUMPS = {"threshold", "hardshrink", "grid_sample", "max_unpool", "margin", "hinge",
         "fractional", "pooled_and_back", "affine"}  # fmt: skip


# Sums of products, and what is made of them: kernels of contractions do not look at products with
# what a guard makes zero, so that what is no number beside it is lost (docs/limits.md).
PRODUCTS = {
    "conv", "linear", "bilinear", "scaled", "Multihead", "Transformer", "RNN", "GRU", "LSTM",
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """The tensor of this number."""

    number: int

    def __repr__(self) -> str:
        return "x" if self.number == 0 else f"t{self.number}"


X = Slot(0)
STRANGE = (float("nan"), float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class Call:
    """A function, or a module's class with `made` of it and `cells` by name, and its arguments.

    `pick` is the way to the tensor that goes on, where the result is several.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    made: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    cells: dict[str, Slot] = field(default_factory=dict)
    damaged: bool = False
    pick: tuple[int, ...] = ()

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        built = f"{self.made[0]}" if self.made else ""
        picked = "".join(f"[{n}]" for n in self.pick)
        return f"{self.name}{built}({', '.join(given)}){picked}{' DAMAGED' * self.damaged}"

    def slots(self) -> list[int]:
        """The numbers of the tensors besides what comes before."""
        parts = [*self.args, *self.kwargs.values(), *self.cells.values()]
        flat = [p for part in parts for p in (part if isinstance(part, tuple) else (part,))]
        return [p.number for p in flat if isinstance(p, Slot) and p.number]

    def sharp(self) -> bool:
        return any(self.name.startswith(s) for s in SHARP)

    def products(self) -> bool:
        return any(self.name.startswith(s) for s in PRODUCTS)

    def jumps(self) -> bool:
        return any(self.name.startswith(s) for s in JUMPS)


class Chance:
    """Random sizes, settings and tensors; the tensors are kept, with what runs with the batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"layers {seed}")
        self.rng = np.random.default_rng(seed)
        self.tensors: list[Array] = []
        self.batched: list[bool] = []
        self.strange = self.maybe(0.06)  # some numbers are infinite, or none

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def maybe(self, share: float = 0.5) -> bool:
        return self.random.random() < share

    def size(self, most: int = 5) -> int:
        return 0 if self.maybe(0.03) else self.random.randint(1, most)

    def floats(self, *shape: int, batched: bool = False) -> Slot:
        array = self.rng.normal(size=shape).round(3)
        if self.strange and array.size and self.maybe(0.4):
            for _ in range(self.one(1, 1, 2)):
                array.flat[self.random.randrange(array.size)] = self.one(*STRANGE)
        return self.put(array, batched)

    def between(self, *shape: int, batched: bool = False) -> Slot:
        """Between 0.05 and 0.95."""
        return self.put(self.rng.uniform(0.05, 0.95, shape).round(3), batched)

    def whole(self, below: int, *shape: int, batched: bool = False) -> Slot:
        return self.put(self.rng.integers(0, max(below, 1), shape), batched)

    def put(self, array: Array, batched: bool = False) -> Slot:
        self.tensors.append(np.asarray(array))
        self.batched.append(batched)
        return Slot(len(self.tensors) - 1)

    def axes(self, count: int, low: int, high: int) -> Any:
        """One number for all axes, or one for each; the lowest more often."""
        if self.maybe(0.4):
            return tuple(self.pick(low, high) for _ in range(count))
        return self.pick(low, high)

    def pick(self, low: int, high: int) -> int:
        return low if self.maybe(0.4) else self.random.randint(low, high)

    def reduction(self) -> str:
        return str(self.one("mean", "sum", "none", "none"))


Maker = Callable[[Chance, Shape], Call | None]
MAKERS: list[Maker] = []


def makes(share: int) -> Callable[[Maker], Maker]:
    def enter(maker: Maker) -> Maker:
        MAKERS.extend([maker] * share)
        return maker

    return enter


Composed = Callable[..., Any]
COMPOSED: dict[str, Composed] = {}


def composed(function: Composed) -> Composed:
    """A function of a library's `nn.functional` and its arguments, under its own name."""
    COMPOSED[function.__name__] = function
    return function


def _listed(kernel: Any, count: int) -> Shape:
    return tuple(kernel) if isinstance(kernel, tuple) else (kernel,) * count


@makes(6)
def conv(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4, 5):
        return None
    space, channels = len(shape) - 2, shape[1]
    groups = c.one(*[g for g in (1, 1, 2, 3, channels) if g and channels % g == 0] or [1])
    kernel = tuple(c.pick(1, 3) for _ in range(space))
    out = groups * c.one(1, 2)
    weight = c.floats(out, channels // groups, *kernel)
    settings: dict[str, Any] = {
        "stride": c.axes(space, 1, 3), "padding": c.axes(space, 0, 3),
        "dilation": c.axes(space, 1, 3), "groups": groups,
    }  # fmt: skip
    if c.maybe(0.1):
        settings |= {"padding": c.one("same", "valid"), "stride": 1}
    return Call(f"conv{space}d", (X, weight, c.floats(out) if c.maybe() else None), settings)


@makes(6)
def conv_transpose(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4, 5):
        return None
    space, channels = len(shape) - 2, shape[1]
    groups = c.one(*[g for g in (1, 1, 2, 3, channels) if g and channels % g == 0] or [1])
    kernel = tuple(c.pick(1, 3) for _ in range(space))
    out = c.one(1, 2)
    weight = c.floats(channels, out, *kernel)
    bias = c.floats(out * groups) if c.maybe() else None
    stride, dilation = c.axes(space, 1, 3), c.axes(space, 1, 3)
    pairs = zip(_listed(stride, space), _listed(dilation, space), strict=True)
    more = tuple(c.pick(0, max(pair) - 1) for pair in pairs)
    settings = {
        "stride": stride, "padding": c.axes(space, 0, 2), "dilation": dilation, "groups": groups,
        "output_padding": c.one(0, min(more), more),
    }  # fmt: skip
    return Call(f"conv_transpose{space}d", (X, weight, bias), settings)


@makes(7)
def pool(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4, 5):
        return None
    space, kernel = len(shape) - 2, c.axes(len(shape) - 2, 1, 3)
    settings: dict[str, Any] = {"ceil_mode": c.maybe()}
    if c.maybe(0.7):
        settings["stride"] = c.axes(space, 1, 4)
    kind = c.one("max", "avg", "lp")
    if kind == "lp":
        return Call(f"lp_pool{space}d", (X, c.one(1.0, 2.0, 3.0), kernel), settings)
    settings["padding"] = min(_listed(kernel, space)) // 2 if c.maybe() else c.axes(space, 0, 1)
    if kind == "max":
        settings["dilation"] = c.pick(1, 2)
        return Call(f"max_pool{space}d", (X, kernel), settings)
    settings["count_include_pad"] = c.maybe()
    if space > 1 and c.maybe(0.3):
        settings["divisor_override"] = c.one(2, 3)
    return Call(f"avg_pool{space}d", (X, kernel), settings)


@makes(3)
def adaptive(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4, 5):
        return None
    space = len(shape) - 2
    sizes = tuple(c.size(6) for _ in range(space))
    wanted = sizes if space == 1 or c.maybe() else tuple(c.one(s, None) for s in sizes)
    return Call(f"adaptive_{c.one('max', 'avg')}_pool{space}d", (X, wanted))


@composed
def pooled_and_back(F: Any, x: Any, kernel: Any, **settings: Any) -> Any:
    """The largest elements of windows, where they were."""
    space = len(x.shape) - 2
    y, places = getattr(F, f"max_pool{space}d")(x, kernel, return_indices=True, **settings)
    sizes = list(x.shape[2:])
    return getattr(F, f"max_unpool{space}d")(y, places, kernel, output_size=sizes, **settings)


@makes(3)
def unpool(c: Chance, shape: Shape) -> Call | None:
    """Elements at places of their own, those of a pool or any others."""
    if len(shape) not in (3, 4, 5):
        return None
    space, room = len(shape) - 2, shape[2:]
    kernel = c.axes(space, 1, 3)
    if c.maybe(0.4):
        half = min(_listed(kernel, space)) // 2
        settings: dict[str, Any] = {"padding": c.one(0, half)}
        if c.maybe():
            settings["stride"] = c.axes(space, 1, 3)
        return Call("pooled_and_back", (X, kernel), settings)
    steps = tuple(max(k, c.pick(1, 3)) for k in _listed(kernel, space))
    extents = [(n - 1) * s + k for n, s, k in zip(room, steps, _listed(kernel, space), strict=True)]
    count, of = math.prod(max(n, 0) for n in extents), math.prod(room)
    if count < of or not of:
        return None
    rows = [c.rng.permutation(count)[:of] for _ in range(math.prod(shape[:2]))]
    places = c.put(np.reshape(rows, shape).astype(np.int64), True)
    return Call(f"max_unpool{space}d", (X, places, kernel), {"stride": steps})


@makes(3)
def fractional(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (4, 5):
        return None
    space = len(shape) - 2
    kernel, drawn = c.axes(space, 1, 2), c.between(*shape[:2], space, batched=True)
    settings: dict[str, Any] = {"_random_samples": drawn}
    if c.maybe(0.7):
        settings["output_size"] = tuple(c.one(1, 2, 3) for _ in range(space))
    elif min(shape[2:]) > 1:
        settings["output_ratio"] = c.one(0.5, 0.7, (0.5,) * space)
    else:
        return None
    return Call(f"fractional_max_pool{space}d", (X, kernel), settings)


@makes(3)
def columns(c: Chance, shape: Shape) -> Call | None:
    settings = {
        "dilation": c.axes(2, 1, 2), "padding": c.axes(2, 0, 2), "stride": c.axes(2, 1, 3),
    }  # fmt: skip
    if len(shape) == 4:
        return Call("unfold", (X, c.axes(2, 1, 3)), settings)
    if len(shape) != 3:
        return None
    # A fold that fits: kernel of as many elements as divide the rows, one row of positions.
    height = c.one(*[k for k in (1, 2, 3) if shape[1] % k == 0])
    if shape[1] % 2 == 0 and c.maybe():
        return Call("fold", (X, (2, 1 + shape[2]), (2, c.one(1, 2))), {"padding": 0})
    return Call("fold", (X, (height, shape[2]), (height, 1)))


@makes(3)
def shuffles(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 3:
        return None
    if c.maybe(0.3):
        return Call("channel_shuffle", (X, c.one(1, 2, max(shape[1], 1))))
    return Call(c.one("pixel_shuffle", "pixel_unshuffle"), (X, c.one(1, 2, 3)))


@makes(4)
def interpolate(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4, 5):
        return None
    space = len(shape) - 2
    linear = {1: "linear", 2: c.one("bilinear", "bicubic"), 3: "trilinear"}[space]
    mode = c.one("nearest", "nearest-exact", "area", linear, linear, linear)
    settings: dict[str, Any] = {"mode": mode}
    if c.maybe():
        settings["size"] = tuple(c.size(6) for _ in range(space))
    else:
        settings["scale_factor"] = c.one(0.5, 1.0, 1.5, 2.0, 0.7)
        if c.maybe(0.3):
            settings["recompute_scale_factor"] = c.maybe()
    if mode == linear:
        settings["align_corners"] = c.maybe()
        if space == 2 and c.maybe(0.2):
            settings["antialias"] = True
    return Call("interpolate", (X,), settings)


@makes(3)
def grid_sample(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (4, 5):
        return None
    space = len(shape) - 2
    grid = c.floats(shape[0], *(c.size(3) for _ in range(space)), space, batched=True)
    settings = {
        "mode": c.one("bilinear", "nearest", "bicubic" if space == 2 else "bilinear"),
        "padding_mode": c.one("zeros", "border", "reflection"), "align_corners": c.maybe(),
    }  # fmt: skip
    return Call("grid_sample", (X, grid), settings)


@composed
def affine_sample(F: Any, x: Any, theta: Any, room: Any, align: bool, **settings: Any) -> Any:
    """An image through an affine map."""
    grid = F.affine_grid(theta, (*x.shape[:2], *room), align_corners=align)
    return F.grid_sample(x, grid, align_corners=align, **settings)


@makes(2)
def affine(c: Chance, shape: Shape) -> Call | None:
    """A grid of what came before, where it is maps; or an image sampled at one."""
    if shape[1:] in ((2, 3), (3, 4)):
        room = tuple(c.one(1, 2, 3) for _ in range(shape[1]))
        return Call("affine_grid", (X, (shape[0], 1, *room)), {"align_corners": c.maybe()})
    if len(shape) not in (4, 5):
        return None
    space = len(shape) - 2
    theta = c.floats(shape[0], space, space + 1, batched=True)
    settings = {
        "mode": c.one("bilinear", "nearest"), "padding_mode": c.one("zeros", "border", "reflection")
    }  # fmt: skip
    room = tuple(c.size(3) for _ in range(space))
    return Call("affine_sample", (X, theta, room, c.maybe()), settings)


@composed
def rotary_embedding(F: Any, x: Any, **settings: Any) -> Any:
    """PyTorch has none."""
    if not hasattr(F, "rotary_embedding"):
        raise NotImplementedError("rotary_embedding")
    return F.rotary_embedding(x, **settings)


@makes(1)
def rotary(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2 or shape[-1] % 2:
        return None
    settings = {"offset": c.one(0, 3), "base": c.one(10000.0, 100.0), "interleaved": c.maybe()}
    return Call("rotary_embedding", (X,), settings)


@makes(4)
def pad(c: Chance, shape: Shape) -> Call | None:
    if not shape:
        return None
    mode = c.one("constant", "reflect", "replicate", "circular")
    axes = max(len(shape) - 2, 1) if mode != "constant" else c.random.randint(1, len(shape))
    if axes == len(shape):
        axes -= 1  # the batch stays
    widths = [c.one(0, 1, 2, 3, -1, -1, -2) for _ in range(2 * axes)]
    settings = {"value": c.one(0.5, -1.0, 0, None)} if mode == "constant" else {}
    return Call("pad", (X, tuple(widths)), {"mode": mode, **settings})


@makes(5)
def norms(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    kind = c.one("layer", "rms", "group", "batch", "instance", "response", "normalize")
    channels = shape[1]
    scaled = c.maybe()
    if kind in ("layer", "rms"):
        tail = shape[c.random.randint(1, len(shape) - 1) :]
        weight = c.floats(*tail) if scaled else None
        if kind == "rms":
            return Call("rms_norm", (X, tail, weight), {"eps": c.one(1e-3, 1e-5)})
        return Call("layer_norm", (X, tail, weight, c.floats(*tail) if c.maybe() else None))
    pair = (c.floats(channels), c.floats(channels)) if scaled else (None, None)
    if kind == "group":
        return Call("group_norm", (X, c.one(1, 2, max(channels, 1)), *pair))
    if kind == "instance":
        return Call("instance_norm", (X, None, None, *pair), {"eps": c.one(1e-5, 0.1)})
    if kind == "batch":
        if c.maybe():
            return Call("batch_norm", (X, None, None, *pair), {"training": True})
        return Call("batch_norm", (X, c.floats(channels), c.between(channels), *pair))
    if kind == "response":
        return Call("local_response_norm", (X, c.one(1, 2, 3, 5)), {"alpha": 0.1, "k": 1.5})
    return Call("normalize", (X,), {"p": c.one(1.0, 2.0, 3.0), "dim": c.one(1, -1)})


@makes(6)
def attention(c: Chance, shape: Shape) -> Call | None:
    if len(shape) not in (3, 4):
        return None
    *batch, t, e = shape
    s, f = c.size(5), c.size(4)
    front = tuple(batch)
    kwargs: dict[str, Any] = {}
    if c.maybe(0.3):
        kwargs["is_causal"] = True
    elif c.maybe():
        around = c.one((), (1,) * len(front), front)
        sizes = (*around, c.one(t, t, 1), c.one(s, s, 1))
        free = bool(around) and around == front
        mask = c.rng.random(sizes) < 0.7
        chosen = mask if c.maybe() else c.rng.normal(size=sizes).round(3)
        kwargs["attn_mask"] = c.put(chosen, free)
    if c.maybe(0.2):
        kwargs["scale"] = c.one(0.5, 1.0)
    key = c.floats(*front, s, e, batched=True)
    value = c.floats(*front, s, f, batched=True)
    return Call("scaled_dot_product_attention", (X, key, value), kwargs)


ACTIVATIONS: dict[str, list[tuple[Any, ...]]] = {
    "celu": [(), (0.5,)], "elu": [(), (2.0,)], "gelu": [()], "hardshrink": [(), (0.2,)],
    "hardsigmoid": [()], "hardswish": [()], "hardtanh": [(), (-0.5, 0.3)], "leaky_relu": [(0.2,)],
    "log_softmax": [(-1,), (0,)], "logsigmoid": [()], "mish": [()], "relu": [()], "relu6": [()],
    "rrelu": [()], "selu": [()], "sigmoid": [()], "silu": [()], "softmax": [(-1,), (0,), (1,)],
    "softmin": [(-1,)], "softplus": [(), (2.0, 1.0)], "softshrink": [(), (0.1,)], "softsign": [()],
    "tanh": [()], "tanhshrink": [()], "threshold": [(0.1, 0.7)], "glu": [(-1,), (1,)],
}  # fmt: skip


@makes(6)
def activation(c: Chance, shape: Shape) -> Call | None:
    name = c.one(*ACTIVATIONS)
    if not shape and name in ("log_softmax", "softmax", "softmin", "glu"):
        return None
    settings = {"approximate": c.one("none", "tanh")} if name == "gelu" else {}
    return Call(name, (X, *c.one(*ACTIVATIONS[name])), settings)


@makes(1)
def prelu(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    return Call("prelu", (X, c.floats(c.one(1, shape[1]))))


@makes(1)
def dropout(c: Chance, shape: Shape) -> Call | None:
    ranks = {"dropout1d": 3, "feature_alpha_dropout": 4, "dropout2d": 4, "dropout3d": 5}
    name = c.one("dropout", "alpha_dropout", *ranks)
    ranked = ranks.get(name, len(shape)) == len(shape)
    return Call(name, (X,), {"p": c.one(0.0, 0.3, 1.0), "training": False}) if ranked else None


@makes(4)
def linear(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    out = c.size()
    if c.maybe(0.3):
        other = c.floats(*shape[:-1], c.size(3), batched=True)
        weight = c.floats(out, shape[-1], c.tensors[other.number].shape[-1])
        return Call("bilinear", (X, other, weight, c.floats(out) if c.maybe() else None))
    return Call("linear", (X, c.floats(out, shape[-1]), c.floats(out) if c.maybe() else None))


@makes(3)
def embeds(c: Chance, shape: Shape) -> Call | None:
    """Rows of a table; what came before is the table."""
    if len(shape) != 2 or not shape[0]:
        return None
    if c.maybe():
        kwargs = {"padding_idx": 0} if c.maybe(0.4) else {}
        return Call("embedding", (c.whole(shape[0], *c.one((3,), (2, 3), ())), X), kwargs)
    mode = c.one("sum", "mean", "max")
    at = c.whole(shape[0], c.size(3), c.size(3))
    weights: dict[str, Any] = {"mode": mode}
    if mode == "sum" and c.maybe():
        weights["per_sample_weights"] = c.floats(*c.tensors[at.number].shape)
    if c.maybe(0.3):
        weights["padding_idx"] = c.one(0, -1)
    if c.maybe(0.4):
        return _bags(c, shape[0], weights)
    return Call("embedding_bag", (at, X), weights)


def _bags(c: Chance, rows: int, settings: dict[str, Any]) -> Call:
    """Bags of any size, one after another in one row of indices."""
    sizes = [c.random.randint(0, 3) for _ in range(c.random.randint(1, 3))]
    count = sum(sizes)
    starts = np.cumsum([0, *sizes])
    if c.maybe(0.3):
        settings["include_last_offset"] = True
    else:
        starts = starts[:-1]
    at = c.whole(rows, count)
    if "per_sample_weights" in settings:
        settings["per_sample_weights"] = c.floats(count)
    return Call("embedding_bag", (at, X, c.put(starts.astype(np.int64))), settings)


BAD: list[Any] = [0, -1, 2, 7, 1.5, float("nan"), "x", None, (), (1, 2, 3, 4)]


def damaged(c: Chance, call: Call) -> Call:
    """One size off, or one setting out of its limits."""
    slots = call.slots()
    if slots and (not call.kwargs or c.maybe(0.6)):
        number = c.one(*slots)
        array, axis = c.tensors[number], c.random.randrange(max(c.tensors[number].ndim, 1))
        if not array.ndim or c.maybe(0.2):
            changed = np.stack([array, array])
        elif array.shape[axis] and c.maybe():
            changed = array.take(range(array.shape[axis] - 1), axis)
        else:
            changed = np.concatenate([array, array[(slice(None),) * axis + (slice(0, 1),)]], axis)
        c.tensors[number] = changed
        return replace(call, damaged=True)
    names = [k for k, v in call.kwargs.items() if not isinstance(v, Slot | bool)]
    if not names:
        return call
    kwargs = {**call.kwargs, c.one(*names): c.one(*BAD)}
    return replace(call, kwargs=kwargs, damaged=True)
