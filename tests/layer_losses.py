"""Random calls of losses and distances (`layer_calls` says what a call is)."""

from __future__ import annotations

from typing import Any

import numpy as np

from layer_calls import Call, Chance, Shape, Slot, X, composed, makes

# Settings besides the reduction, of losses of two tensors of one shape.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "mse_loss": [{}],
    "l1_loss": [{}],
    "smooth_l1_loss": [{}, {"beta": 0.3}, {"beta": 0.0}],
    "huber_loss": [{}, {"delta": 0.3}],
    "soft_margin_loss": [{}],
    "kl_div": [{}, {"log_target": True}],
    "poisson_nll_loss": [{}, {"full": True}, {"log_input": True, "full": True}],
    "gaussian_nll_loss": [{}, {"full": True}],
    "multilabel_soft_margin_loss": [{}],
    "hinge_embedding_loss": [{}, {"margin": 0.4}],
    "margin_ranking_loss": [{}, {"margin": 0.3}],
    "triplet_margin_loss": [{}, {"p": 1.0}, {"swap": True}, {"margin": 0.2, "p": 3.0}],
    "triplet_margin_with_distance_loss": [{}, {"swap": True, "margin": 0.3}],
    "cosine_embedding_loss": [{"margin": 0.2}, {}],
}
THREE = ("margin_ranking_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss")


def _signs(c: Chance, *shape: int) -> Slot:
    return c.put(np.where(c.rng.random(shape) < 0.5, -1.0, 1.0), True)


@makes(5)
def pairs(c: Chance, shape: Shape) -> Call | None:
    """Losses of two tensors of one shape."""
    if len(shape) < 2:
        return None
    name = c.one(*SETTINGS)
    settings = {**c.one(*SETTINGS[name]), "reduction": c.reduction()}
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        return Call(name, (X, _signs(c, *shape)), settings)
    other = c.between(*shape, batched=True)
    if name == "kl_div" and c.maybe(0.2):
        settings["reduction"] = "batchmean"
    if name == "gaussian_nll_loss":
        return Call(name, (X, other, c.between(*shape, batched=True)), settings)
    if name in THREE:
        ranks = name[0] == "m"
        third = _signs(c, *shape) if ranks else c.floats(*shape, batched=True)
        return Call(name, (X, other, third), settings)
    if name == "cosine_embedding_loss":
        return Call(name, (X, other, _signs(c, shape[0])), settings)
    if name == "multilabel_soft_margin_loss" and c.maybe(0.3):
        settings["weight"] = c.between(*shape[1:])
    return Call(name, (X, other), settings)


@makes(2)
def distances(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    other = c.floats(*shape, batched=True)
    if c.maybe():
        return Call("cosine_similarity", (X, other), {"dim": c.one(-1, 0, 1)})
    p = c.one(1.0, 2.0, 3.0, float("inf"))
    return Call("pairwise_distance", (X, other), {"p": p, "keepdim": c.maybe(0.3)})


@composed
def binary_cross_entropy(F: Any, x: Any, target: Any, **settings: Any) -> Any:
    """Of shares, as they come out of a sigmoid."""
    return F.binary_cross_entropy(F.sigmoid(x), target, **settings)


@makes(3)
def binary(c: Chance, shape: Shape) -> Call | None:
    """Targets between 0 and 1, both included; weights that broadcast."""
    if not shape:
        return None
    share = c.rng.uniform(-0.3, 1.3, shape).clip(0, 1).round(3)
    settings: dict[str, Any] = {"reduction": c.reduction()}
    if c.maybe(0.4):
        settings["weight"] = c.between(*shape[c.random.randrange(len(shape)) :])
    if c.maybe():
        return Call("binary_cross_entropy", (X, c.put(share, True)), settings)
    if c.maybe(0.4):
        settings["pos_weight"] = c.between(shape[-1])
    return Call("binary_cross_entropy_with_logits", (X, c.put(share, True)), settings)


@makes(4)
def classes(c: Chance, shape: Shape) -> Call | None:
    if len(shape) < 2:
        return None
    n, count, *space = shape
    if not count:  # no target is one of no classes
        return None
    reduced: dict[str, Any] = {"reduction": c.reduction()}
    name = c.one("cross_entropy", "cross_entropy", "nll_loss", "multi_margin_loss", "multilabel")
    if name == "multilabel":
        return None if space else _labels(c, n, count, reduced)
    if name == "multi_margin_loss":
        if space:
            return None
        reduced |= {"p": c.one(1, 2), "margin": c.one(1.0, 0.3)}
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


def _labels(c: Chance, rows: int, count: int, reduced: dict[str, Any]) -> Call:
    """The classes that each row has, then -1 to its end."""
    table = np.full((rows, count), -1)
    for row in table:
        some = c.random.randint(0, count)
        row[:some] = c.rng.permutation(count)[:some]
    return Call("multilabel_margin_loss", (X, c.put(table, True)), reduced)


@composed
def ctc_loss(F: Any, x: Any, *lengths: Any, **settings: Any) -> Any:
    """Of logarithms of probabilities, as they come out of a softmax: its slopes are PyTorch's."""
    return F.ctc_loss(F.log_softmax(x, -1), *lengths, **settings)


@makes(4)
def ctc(c: Chance, shape: Shape) -> Call | None:
    """Targets padded or one after another, lengths as numbers or as data, some of them 0."""
    if len(shape) not in (2, 3) or shape[-1] < 2 or 0 in shape:
        return None
    steps, count = shape[0], shape[-1]
    rows = 1 if len(shape) == 2 else shape[1]
    blank = c.one(0, 0, count - 1)
    labels = [k for k in range(count) if k != blank]
    sizes = [c.random.randint(0, 3) for _ in range(rows)]
    wide = c.one(max(*sizes, 1), 3)
    counts = [steps if c.maybe(0.6) else c.random.randint(1, steps) for _ in range(rows)]
    joined = len(shape) == 2 or c.maybe(0.3)
    sized = (sum(sizes),) if joined else (rows, wide)
    targets = c.put(np.array(labels)[c.rng.integers(0, len(labels), sized)])
    lengths = tuple(counts), tuple(sizes)
    if c.maybe():
        lengths = c.put(np.array(counts)), c.put(np.array(sizes))
    settings = {"blank": blank, "reduction": c.reduction(), "zero_infinity": c.maybe(0.6)}
    return Call("ctc_loss", (X, targets, *lengths), settings)
