"""Random calls of `nn.functional` and of recurrent cells, each a function of its source of chance.

A `Call` is written once, with `Slot`s for its tensors (slot 0 is what comes before), and runs on
pullback and on PyTorch alike: both have the function under one name with one order of arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
}  # fmt: skip
# Whose results jump: what rounds otherwise is another number altogether.
JUMPS = {"threshold", "hardshrink", "grid_sample", "max_unpool", "margin", "hinge"}


@dataclass(frozen=True)
class Slot:
    """The tensor of this number."""

    number: int

    def __repr__(self) -> str:
        return "x" if self.number == 0 else f"t{self.number}"


X = Slot(0)


@dataclass(frozen=True)
class Call:
    """A function, or a module's class with `made` of it and `cells` by name, and its arguments."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    made: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    cells: dict[str, Slot] = field(default_factory=dict)
    damaged: bool = False

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        built = f"{self.made[0]}" if self.made else ""
        return f"{self.name}{built}({', '.join(given)}){' DAMAGED' if self.damaged else ''}"

    def sharp(self) -> bool:
        return any(self.name.startswith(s) for s in SHARP)

    def jumps(self) -> bool:
        return any(self.name.startswith(s) for s in JUMPS)


class Chance:
    """Random sizes, settings and tensors; the tensors are kept, with what runs with the batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"layers {seed}")
        self.rng = np.random.default_rng(seed)
        self.tensors: list[Array] = []
        self.batched: list[bool] = []

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def maybe(self, share: float = 0.5) -> bool:
        return self.random.random() < share

    def size(self, most: int = 5) -> int:
        return 0 if self.maybe(0.03) else self.random.randint(1, most)

    def floats(self, *shape: int, batched: bool = False) -> Slot:
        return self.put(self.rng.normal(size=shape).round(3), batched)

    def between(self, *shape: int, batched: bool = False) -> Slot:
        """Between 0.05 and 0.95."""
        return self.put(self.rng.uniform(0.05, 0.95, shape).round(3), batched)

    def whole(self, below: int, *shape: int, batched: bool = False) -> Slot:
        return self.put(self.rng.integers(0, max(below, 1), shape), batched)

    def put(self, array: Array, batched: bool = False) -> Slot:
        self.tensors.append(array)
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
    stride, dilation = c.pick(1, 3), c.pick(1, 3)
    settings = {
        "stride": stride, "padding": c.axes(space, 0, 2), "dilation": dilation, "groups": groups,
        "output_padding": c.one(0, 0, max(stride, dilation) - 1),
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
    return Call(name, (X, *c.one(*ACTIVATIONS[name])))


@makes(1)
def prelu(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    return Call("prelu", (X, c.floats(c.one(1, shape[1]))))


@makes(1)
def dropout(c: Chance, shape: Shape) -> Call | None:
    name = c.one("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout2d")
    ranked = name in ("dropout", "alpha_dropout") or len(shape) == 4
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
    return Call("embedding_bag", (at, X), weights)


@makes(5)
def pairs(c: Chance, shape: Shape) -> Call | None:
    """Losses of two tensors of one shape, and distances."""
    if len(shape) < 2:
        return None
    name = c.one(
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div",
        "poisson_nll_loss", "gaussian_nll_loss", "binary_cross_entropy_with_logits",
        "multilabel_soft_margin_loss", "hinge_embedding_loss", "cosine_similarity",
        "pairwise_distance", "margin_ranking_loss", "triplet_margin_loss", "cosine_embedding_loss",
    )  # fmt: skip
    other = c.between(*shape, batched=True)
    if name in ("cosine_similarity", "pairwise_distance"):
        return Call(name, (X, other), {"dim": -1} if name[0] == "c" else {"p": c.one(1.0, 2.0)})
    reduced = {"reduction": c.reduction()}
    signs = c.one(-1.0, 1.0)
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        target = c.put(np.where(c.rng.random(shape) < 0.5, -1.0, 1.0), True)
        return Call(name, (X, target), reduced)
    if name == "gaussian_nll_loss":
        return Call(name, (X, other, c.between(*shape, batched=True)), reduced)
    if name in ("margin_ranking_loss", "triplet_margin_loss"):
        third = c.floats(*shape, batched=True) if name[0] == "t" else c.put(np.full(shape, signs))
        c.batched[third.number] = True
        return Call(name, (X, other, third), reduced)
    if name == "cosine_embedding_loss":
        target = c.put(np.where(c.rng.random(shape[0]) < 0.5, -1.0, 1.0), True)
        return Call(name, (X, other, target), {**reduced, "margin": 0.2})
    return Call(name, (X, other), reduced)


@makes(4)
def classes(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    n, count, *space = shape
    if not count:  # no target is one of no classes
        return None
    reduced: dict[str, Any] = {"reduction": c.reduction()}
    name = c.one("cross_entropy", "cross_entropy", "nll_loss", "multi_margin_loss")
    if name == "multi_margin_loss" and space:
        return None
    target = c.whole(count, n, *space, batched=True)
    if c.maybe(0.3):
        reduced["weight"] = c.between(count)
    if name == "cross_entropy" and c.maybe(0.3):
        target = c.between(*shape, batched=True)
    elif name != "multi_margin_loss" and c.maybe(0.3):
        reduced["ignore_index"] = c.one(0, 1, -100)
    if name == "cross_entropy" and c.maybe(0.3):
        reduced["label_smoothing"] = c.one(0.1, 0.5)
    return Call(name, (X, target), reduced)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@makes(4)
def recurrent(c: Chance, shape: Shape) -> Call | None:
    """A cell of rows, or a network over a sequence, its weights tensors."""
    if len(shape) not in (2, 3) or not shape[-1]:
        return None
    kind, cell, hidden = c.one(*GATES), len(shape) == 2, c.one(1, 2, 3)
    gates = GATES[kind] * hidden
    settings: dict[str, Any] = {"bias": c.maybe()}
    if not cell:
        settings |= {"batch_first": True, "bidirectional": c.maybe(0.3)}
    if kind == "RNN":
        settings["nonlinearity"] = c.one("tanh", "relu")
    sizes = {"weight_ih": (gates, shape[-1]), "weight_hh": (gates, hidden)}
    if settings["bias"]:
        sizes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
    tails = [""] if cell else ["_l0", "_l0_reverse"][: 1 + settings["bidirectional"]]
    cells = {f"{n}{t}": c.floats(*s) for n, s in sizes.items() for t in tails}
    name = f"{kind}Cell" if cell else kind
    args: Sequence[Any] = (X,)
    if cell and kind != "LSTM" and c.maybe():
        args = (X, c.floats(shape[0], hidden, batched=True))
    return Call(name, tuple(args), {}, ((shape[-1], hidden), settings), cells)


BAD: list[Any] = [0, -1, 2, 7, 1.5, float("nan"), "x", None, (), (1, 2, 3, 4)]


def damaged(c: Chance, call: Call) -> Call:
    """One size off, or one setting out of its limits."""
    slots = [s.number for s in (*call.args, *call.kwargs.values(), *call.cells.values())
             if isinstance(s, Slot) and s.number]  # fmt: skip
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
        return Call(call.name, call.args, call.kwargs, call.made, call.cells, True)
    names = [k for k, v in call.kwargs.items() if not isinstance(v, Slot | bool)]
    if not names:
        return call
    kwargs = {**call.kwargs, c.one(*names): c.one(*BAD)}
    return Call(call.name, call.args, kwargs, call.made, call.cells, True)
