"""attorch's own grid of tests restated: its shapes, settings and tolerances, beside PyTorch.

Source: github.com/BobMcDear/attorch at 67c2772, `tests/`. Its device becomes the CPU; its test of
attention compares biases with themselves, here gradients are compared. Where autocast makes halves,
a result is also right within four units in the last place of the largest element there: PyTorch
rounds after each operation of what is one kernel here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attorch_layers import ACTIVATIONS, BY_NUMBER, DROPPING, activation
from pullback.torch import nn

theirs = torch.nn
Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = (
    (96,), (128,), (196,), (384,), (768,), (1024,), (3200,), (4800,), (8000,), (12288,),
    (1, 8000), (4, 2000), (8, 1024), (32, 1024), (128, 1024), (2048, 768), (6144, 256), (8096, 32),
    (12288, 1), (1, 1024, 3072), (8, 960, 196), (64, 768, 128), (128, 960, 196), (2048, 64, 16),
    (1, 3, 224, 224), (8, 3, 224, 224), (64, 64, 56, 56), (256, 128, 28, 28), (256, 2048, 7, 7),
)  # fmt: skip
SUBSET: tuple[Shape, ...] = (
    (96,), (768,), (4, 2000), (8, 1024), (8, 960, 196), (64, 768, 128), (64, 64, 56, 56),
    (256, 128, 28, 28),
)  # fmt: skip
NARROW: tuple[Shape, ...] = ((2048, 2), (2049, 2), (4097, 4))
"""Many rows of few columns, of norms alone."""
NUMBERS = {"leaky_relu": "0.01", "elu": "1", "celu": "1", "hardshrink": "0.5", "softshrink": "0.5"}
ACTS = [f"{n}_{NUMBERS[n]}" if n in BY_NUMBER else n for n in ACTIVATIONS]
OUT = (16, 96, 128, 196, 384, 512, 768, 1024)
LOSSES = ("SmoothL1Loss", "L1Loss", "MSELoss", "HuberLoss")
UNITS = 4  # in the last place of a half


@dataclass(frozen=True)
class Case:
    """A layer with its settings, the shapes of its inputs, and how near it has to be."""

    layer: str
    args: tuple[Any, ...]
    how: tuple[tuple[str, Any], ...]
    shapes: tuple[Shape, ...]
    amp: bool
    half: bool
    near: float | None  # attorch's rtol
    far: float | None  # and atol; None: those of torch.testing

    @property
    def told(self) -> dict[str, Any]:
        return dict(self.how)

    def __str__(self) -> str:
        kind = "half" if self.half else "float"
        return f"{self.layer}{self.args}{self.told} {self.shapes} {kind}{' amp' * self.amp}"


def kinds() -> list[tuple[bool, bool]]:
    """(amp, half): attorch leaves out halves without autocast."""
    return [(False, False), (True, False), (True, True)]


def cases(subset: bool = False, cut: int = 1 << 30) -> Iterator[Case]:
    """Every one, shape by shape; `cut`: the largest extent, of shapes and of what comes out."""

    def smaller(shapes: Any) -> list[Shape]:
        return list(dict.fromkeys(tuple([min(e, cut) for e in s]) for s in shapes))

    def shapes(least: int = 0, most: int = 4) -> list[Shape]:
        whole = smaller(SUBSET if subset else SHAPES)
        return [s for s in whole if least <= len(s) <= most]

    def each(
        layer: str, args: Any, own: Any, given: Any, near: float | None, far: float | None
    ) -> Iterator[Case]:
        for amp, half in kinds():
            yield Case(layer, tuple(args), tuple(own.items()), tuple(given), amp, half, near, far)

    for s in shapes():
        for name, p in itertools.product(DROPPING, (0.0, 0.5)):
            yield from each(name, (), {"drop_p": p}, [s], 1e-3, 1e-3)
        for name in ("Softmax", "LogSoftmax", "Softmin"):
            yield from each(name, (-1,), {}, [s], None, None)
        for name, r in itertools.product(LOSSES, ("none", "mean", "sum")):
            yield from each(name, (), {"reduction": r}, [s, s], 1e-3, 1e-3)
        for p in (0.0, 0.15, 0.3, 0.5, 0.75, 0.9, 1.0):
            yield Case("Dropout", (p,), (), (s,), False, False, None, None)
    for s in shapes(2):
        yield from _batch_norms(s, each)
        if len(s) == 2:
            for weighted in (False, True):
                yield from each("CrossEntropyLoss", (s[1],), {"weight": weighted}, [s], 1e-3, 1e-3)
        for r, weighted in itertools.product(("none", "mean", "sum"), (False, True)):
            own = {"reduction": r, "weight": weighted}
            yield from each("NLLLoss", (s[1],), own, [s], None, None)
    for s in shapes(2, 3):
        for out, bias, act in itertools.product(out_of(cut), (False, True), (None, *ACTS)):
            own = {"bias": bias, "act_func": act}
            yield from each("Linear", (s[-1], out), own, [s], 1e-3, 1e-3)
    for s in shapes(0, 3):
        for act in ACTS if s[-1] % 2 == 0 else ():
            yield from each("GLU", (-1,), {"act_func": act}, [s], 1e-3, 1e-3)
    for s in (*shapes(0, 3), *smaller(NARROW)):
        for eps, affine in itertools.product((1e-5, 1e-6), (False, True)):
            for bias in (False, True):
                own = {"elementwise_affine": affine, "bias": bias}
                yield from each("LayerNorm", (s[-1], eps), own, [s], 1e-3, 1e-3)
            yield from each("RMSNorm", (s[-1], eps, affine), {}, [s], 1e-3, 1e-3)
    for s in shapes(3):
        yield from _windows(s, each, out_of(cut))
    for s in shapes(3, 3):
        for alone, heads, bias, causal in itertools.product(
            (False, True), (1, 2, 4, 6, 8), (False, True), (False, True)
        ):
            if s[-1] % heads == 0:
                own = {"bias": bias, "batch_first": True, "causal": causal, "alone": alone}
                yield from each("MultiheadAttention", (s[-1], heads), own, [s], 1e-2, 1e-2)


def out_of(cut: int) -> list[int]:
    """The features and channels that come out."""
    return list(dict.fromkeys(min(n, cut) for n in OUT))


def _batch_norms(s: Shape, each: Any) -> Iterator[Case]:
    settings = itertools.product(
        (1e-5, 1e-6), (0.1, 0.2), (False, True), (False, True), (False, True), (None, *ACTS)
    )
    for eps, momentum, affine, tracked, added, act in settings if s[0] > 1 else ():
        name = "BatchNorm2d" if len(s) == 4 else "BatchNorm1d"
        own = {"affine": affine, "track_running_stats": tracked, "act_func": act}
        yield from each(name, (s[1], eps, momentum), own, [s] * (1 + added), 1e-2, 1e-3)


def _windows(s: Shape, each: Any, outs: Sequence[int]) -> Iterator[Case]:
    """Pools and convolutions."""
    flat = len(s) == 3
    for k, stride, padding in itertools.product((2, 3, 4), (None, 1, 2), (0, 1, -1)):
        name, pad = ("AvgPool1d" if flat else "AvgPool2d"), k // 2 if padding == -1 else padding
        yield from each(name, (k, stride, pad), {}, [s], 1e-3, 1e-2)
    settings = itertools.product(
        outs, (1, 2, 3, 4, 5, 7, (5, 3), (3, 5)), (1, 2, (1, 2), (2, 1)), (0, 1, 3, -1),
        (1, 2, 4, -1), (False, True),
    )  # fmt: skip
    for out, k, stride, padding, groups, bias in settings:
        pairs = isinstance(k, tuple), isinstance(stride, tuple)
        if (flat and any(pairs)) or (pairs[0] and padding == -1):
            continue
        pad = k // 2 if padding == -1 else padding
        least = min(e + 2 * pad for e in s[2:])
        if least < max(k if isinstance(k, tuple) else (k,)):
            continue  # a shape that was cut
        parts = s[1] if groups == -1 else groups
        parts = parts if s[1] % parts == 0 and out % parts == 0 else 1
        own = {"stride": stride, "padding": pad, "groups": parts, "bias": bias}
        name = "Conv1d" if flat else "Conv2d"
        yield from each(name, (s[1], out, k), own, [s], 1e-3, 1e-2)


# --- one case ------------------------------------------------------------------------------------


def check(case: Case) -> None:
    """Forward and backward beside PyTorch; AssertionError where they are apart."""
    torch.manual_seed(0)
    kind = torch.float16 if case.half else torch.float32
    inputs = [torch.randn(s, dtype=kind) for s in case.shapes]
    told = case.told
    weighted = told.pop("weight", None)
    how: dict[str, Any] = {}
    if weighted is not None:
        s, classes = case.shapes[0], case.args[0]
        inputs.append(torch.randint(classes, (s[0], *s[2:])))
        how = {"weight": torch.rand(classes) if weighted else None}
    if case.layer == "MultiheadAttention":
        _attention(case, inputs[0], told)
        return
    args = () if weighted is not None else case.args
    ours = getattr(nn, case.layer)(*args, **told, **how)
    act, p = told.pop("act_func", None), told.pop("drop_p", 0.0)
    other = getattr(theirs, case.layer)(*args, **told, **how)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=1 if "Norm" in case.layer else parameter.shape[-1] ** -0.5)
    other.load_state_dict(ours.state_dict())
    share = case.args[0] if case.layer == "Dropout" else p

    def plain(x: Any, *more: Any) -> Any:
        if case.layer == "Dropout":
            return x
        if case.layer == "GLU":
            a, b = x.chunk(2, -1)
            return a * activation(torch, act)(b)
        if "BatchNorm" in case.layer:
            y = sum(more, other(x))
        else:
            y = other(x, *more)
        return activation(torch, act)(y) if act else y

    beside(case, ours, plain, inputs, (ours, other), share)


def beside(
    case: Case, ours: Any, plain: Any, inputs: list[Any], pair: tuple[Any, Any], share: float
) -> None:
    """Results, gradients and buffers; of what is dropped the same mask."""
    sides, masks = [], []
    for function, layer in ((ours, pair[0]), (plain, pair[1])):
        given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        with torch.autocast("cpu", dtype=torch.float16, enabled=case.amp):
            y = function(*given)
            if share and function is ours:
                masks.append(y == 0)
            elif share:
                y = torch.where(masks[0], torch.zeros((), dtype=y.dtype), y / max(1 - share, 1e-9))
        torch.manual_seed(1)
        y.backward(torch.randn(y.shape).to(y.dtype))
        grads = [t.grad for t in (*given, *layer.parameters()) if t.is_floating_point()]
        sides.append([y.detach(), *grads, *layer.buffers()])
    if share and inputs[0].numel() > 1000:
        dropped = float(((sides[0][0] == 0) & (inputs[0] != 0)).float().mean())
        assert case.layer != "Dropout" or abs(dropped - share) < 0.05, dropped
    for a, b in zip(*sides, strict=True):
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        near(case, a, b)


def near(case: Case, a: Any, b: Any) -> None:
    """By attorch's tolerance; where halves are, also by units in the last place."""
    try:
        torch.testing.assert_close(a, b, rtol=case.near, atol=case.far)
    except AssertionError:
        rounds = case.amp and a.is_floating_point()
        slack = UNITS * torch.finfo(torch.float16).eps * float(b.abs().max())
        gap = (a.double() - b.double()).abs()
        share = float((gap > slack).double().mean())  # a bend may be met from either side
        if not rounds or share > 1e-3:
            raise


def _attention(case: Case, q: Any, told: dict[str, Any]) -> None:
    causal, alone = told.pop("causal"), told.pop("alone")
    ours = nn.MultiheadAttention(*case.args, **told)
    other = theirs.MultiheadAttention(*case.args, **told)
    other.load_state_dict(ours.state_dict())
    length = q.shape[1]
    mask = theirs.Transformer.generate_square_subsequent_mask(length) if causal else None
    how = {"attn_mask": mask, "is_causal": causal, "need_weights": False}
    inputs = [q] if alone else [q, torch.randn_like(q)]

    def of(layer: Any) -> Any:
        return lambda q, k=None: layer(q, *[q if k is None else k] * 2, **how)[0]

    beside(case, of(ours), of(other), inputs, (ours, other), 0.0)
