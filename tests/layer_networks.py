"""Random modules with weights of their own (`layer_calls` says what a call is)."""

from __future__ import annotations

from typing import Any

import pullback as pb
from layer_calls import Call, Chance, Shape, Slot, X, makes

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@makes(3)
def cell(c: Chance, shape: Shape) -> Call | None:
    """A cell of rows, its weights tensors."""
    if len(shape) != 2 or not shape[-1]:
        return None
    kind, hidden = c.one(*GATES), c.one(1, 2, 3)
    settings: dict[str, Any] = {"bias": c.maybe()}
    if kind == "RNN":
        settings["nonlinearity"] = c.one("tanh", "relu")
    cells = weights(c, kind, "", shape[-1], hidden, 0, settings["bias"])
    args: tuple[Any, ...] = (X,)
    pick: tuple[int, ...] = ()
    if c.maybe():
        states = [c.floats(shape[0], hidden, batched=True) for _ in range(1 + (kind == "LSTM"))]
        args = (X, tuple(states) if kind == "LSTM" else states[0])
    if kind == "LSTM":
        pick = (c.one(0, 1),)
    return Call(f"{kind}Cell", args, {}, ((shape[-1], hidden), settings), cells, pick=pick)


def weights(
    c: Chance, kind: str, tail: str, into: int, hidden: int, projected: int, bias: bool
) -> dict[str, Slot]:
    rows = GATES[kind] * hidden
    sizes: dict[str, Shape] = {
        "weight_ih": (rows, into), "weight_hh": (rows, projected or hidden)
    }  # fmt: skip
    if bias:
        sizes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
    if projected:
        sizes["weight_hr"] = (projected, hidden)
    return {f"{n}{tail}": c.floats(*s) for n, s in sizes.items()}


@makes(5)
def network(c: Chance, shape: Shape) -> Call | None:
    """One to three layers over a sequence, in one direction or both, with a state or without."""
    if len(shape) not in (2, 3) or 0 in shape:
        return None
    kind, hidden, layers = c.one(*GATES), c.one(1, 2, 3), c.one(1, 1, 2, 3)
    both, first, bias = c.maybe(0.4), c.maybe(), c.maybe()
    projected = 1 if kind == "LSTM" and hidden > 1 and c.maybe(0.4) else 0
    settings: dict[str, Any] = {
        "bias": bias, "batch_first": first, "bidirectional": both, "num_layers": layers,
    }  # fmt: skip
    if kind == "RNN":
        settings["nonlinearity"] = c.one("tanh", "relu")
    if projected:
        settings["proj_size"] = projected
    cells: dict[str, Slot] = {}
    into = shape[-1]
    for layer in range(layers):
        for tail in (f"_l{layer}", f"_l{layer}_reverse")[: 1 + both]:
            cells |= weights(c, kind, tail, into, hidden, projected, bias)
        into = (projected or hidden) * (1 + both)
    args: tuple[Any, ...] = (X,)
    if c.maybe(0.4):
        batch = () if len(shape) == 2 else (shape[0 if first else 1],)
        widths = (projected or hidden, hidden)[: 1 + (kind == "LSTM")]
        states = [c.floats(layers * (1 + both), *batch, n) for n in widths]
        args = (X, tuple(states) if kind == "LSTM" else states[0])
    pick = c.one((0,), (0,), (1, c.one(0, 1)) if kind == "LSTM" else (1,))
    return Call(kind, args, {}, ((shape[-1], hidden), settings), cells, pick=pick)


def cells_of(c: Chance, module: Any) -> dict[str, Slot]:
    """A tensor for each weight of a module."""
    return {n: c.floats(*map(int, p.shape)) for n, p in module.named_parameters()}


def masks(c: Chance, batch: int | None, heads: int, t: int, s: int) -> tuple[Any, Any]:
    """Masks of positions and of keys, or None; every query looks at the first key at least."""
    mask = keys = None
    if c.maybe():
        lead = c.one((), () if batch is None else (batch * heads,))
        hidden = c.rng.random((*lead, t, s)) < 0.3
        hidden[..., :1] = False
        mask = c.put(hidden if c.maybe() else c.rng.normal(size=hidden.shape).round(3))
    if c.maybe(0.3):
        hidden = c.rng.random((s,) if batch is None else (batch, s)) < 0.3
        hidden[..., :1] = False
        keys = c.put(hidden, batch is not None)
    return mask, keys


@makes(5)
def multihead(c: Chance, shape: Shape) -> Call | None:
    """Of one tensor, or of others for keys and values, of widths of their own."""
    if len(shape) not in (2, 3) or 0 in shape:
        return None
    wide, first = shape[-1], c.maybe()
    heads = c.one(*[h for h in (1, 2, 3, 4) if wide % h == 0])
    settings: dict[str, Any] = {"bias": c.maybe(0.7), "batch_first": first}
    batch = None if len(shape) == 2 else shape[0 if first else 1]
    t = s = shape[1 if first and batch is not None else 0]
    args: tuple[Any, ...] = (X, X, X)
    if c.maybe():
        s, widths = c.random.randint(1, 4), c.one((wide, wide), (2, 3))
        if widths != (wide, wide):
            settings |= {"kdim": widths[0], "vdim": widths[1]}
        lead = (s,) if batch is None else (batch, s) if first else (s, batch)
        args = (X, *(c.floats(*lead, n, batched=first) for n in widths))
    mask, keys = masks(c, batch, heads, t, s)
    asked: dict[str, Any] = {"key_padding_mask": keys, "attn_mask": mask}
    kept = {name: slot for name, slot in asked.items() if slot is not None}
    module = pb.nn.MultiheadAttention(wide, heads, **settings)
    look = c.one((), (), (1,))
    options: dict[str, Any] = {"need_weights": c.maybe() or bool(look)}
    if options["need_weights"]:
        options["average_attn_weights"] = c.maybe()
    made = ((wide, heads), settings)
    return Call(
        "MultiheadAttention", args, {**kept, **options}, made, cells_of(c, module), pick=look
    )


@makes(2)
def transformer(c: Chance, shape: Shape) -> Call | None:
    """A layer of an encoder, or of a decoder that looks at what an encoder gave."""
    if len(shape) not in (2, 3) or 0 in shape:
        return None
    wide, first = shape[-1], c.maybe()
    heads = c.one(*[h for h in (1, 2, 3) if wide % h == 0])
    name = c.one("TransformerEncoderLayer", "TransformerDecoderLayer")
    settings: dict[str, Any] = {
        "dim_feedforward": c.one(1, 3), "dropout": 0.0, "activation": c.one("relu", "gelu"),
        "batch_first": first, "norm_first": c.maybe(), "bias": c.maybe(0.7),
    }  # fmt: skip
    batch = None if len(shape) == 2 else shape[0 if first else 1]
    t = shape[1 if first and batch is not None else 0]
    mask, keys = masks(c, batch, heads, t, t)
    head = "src" if "Encoder" in name else "tgt"
    asked = {f"{head}_mask": mask, f"{head}_key_padding_mask": keys}
    args: tuple[Any, ...] = (X,)
    if head == "tgt":
        s = c.random.randint(1, 3)
        lead = (s,) if batch is None else (batch, s) if first else (s, batch)
        args = (X, c.floats(*lead, wide, batched=first and batch is not None))
    module = getattr(pb.nn, name)(wide, heads, **settings)
    kept = {name: slot for name, slot in asked.items() if slot is not None}
    return Call(name, args, kept, ((wide, heads), settings), cells_of(c, module))
