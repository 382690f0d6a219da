"""attorch's 41 layers and 21 activations by name, with what each is given: for tests, the page
docs/layers.md (`python scripts/layers.py`) and the benchmark.

Source: github.com/BobMcDear/attorch at 67c2772, its README, `act_layers.py`, `*_layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

Shape = tuple[int, ...]
BY_NUMBER = ("leaky_relu", "elu", "celu", "hardshrink", "softshrink")
"""Names of activations that end with a number."""
ACTIVATIONS = (
    "sigmoid", "logsigmoid", "tanh", "relu", "gelu", "geluapprox", "silu", "relu6", "hardsigmoid",
    "hardtanh", "hardswish", "selu", "mish", "softplus", "softsign", "tanhshrink", *BY_NUMBER,
)  # fmt: skip
DROPPING = (
    "ELU", "CELU", "SELU", "GELU", "ReLU", "ReLU6", "LeakyReLU", "SiLU", "Mish", "Sigmoid",
    "LogSigmoid", "Tanh", "Tanhshrink", "Softplus", "Softsign", "Softshrink", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh",
)  # fmt: skip
"""The layers of activations: all but `geluapprox`, which is ``GELU("tanh")``."""
OURS = ("act_func", "drop_p")
"""Arguments that PyTorch's layers do not have."""
LABELS = -1  # in place of an input's shape: a class for each row of the first input


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as attorch spells it; `theirs`: what PyTorch does of it in attorch's hot path."""

    name: str
    args: tuple[Any, ...] = ()
    how: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Shape | int, ...] = ((32, 64),)
    attorch: tuple[int, int] = (1, 1)  # its launches, forward and backward
    theirs: str = ""
    large: tuple[Shape | int, ...] = ((2048, 768),)  # the inputs of a benchmark, of its own grid
    wide: tuple[Any, ...] | None = None  # and its arguments there

    @property
    def text(self) -> str:
        """``Linear(40, 48, act_func="gelu")``"""
        given = [*map(_shown, self.args), *(f"{n}={_shown(v)}" for n, v in self.how.items())]
        return f"{self.name}({', '.join(given)})"

    def made(self, nn: Any, large: bool = False) -> Any:
        """The layer of pullback or, without what PyTorch has not, of PyTorch."""
        args = self.wide if large and self.wide is not None else self.args
        return getattr(nn, self.name)(*args, **self.how)

    def given(self, torch: Any, large: bool = False) -> list[Any]:
        """Random inputs."""
        shapes = self.large if large else self.inputs
        made: list[Any] = []
        for shape in shapes:
            if isinstance(shape, int):
                rows, classes = made[0].shape
                made.append(torch.randint(classes, (rows,)))
            else:
                made.append(torch.randn(shape))
        return made


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


IMAGE, SIGNAL, ROWS, LABELED = (4, 16, 9, 9), (4, 16, 50), (32, 64), ((32, 64), LABELS)
PAIR = (ROWS, ROWS)
LARGE, LARGE_PAIR = ((2048, 768),), ((2048, 768), (2048, 768))
WIDE_LABELED = ((2048, 768), LABELS)
CONV = "the backward: conv2d_input, conv2d_weight"
SUMS = "sums of partial weights"


def layers() -> Iterator[Layer]:
    """All 41."""
    images, signals = ((32, 64, 28, 28),), ((64, 128, 196),)
    half = {"padding": 1}
    yield Layer("Linear", (64, 48), {"act_func": "gelu"}, (ROWS,), (1, 1),
                "the backward: two matmul, a sum", LARGE, (768, 768))  # fmt: skip
    yield Layer("Conv1d", (16, 8, 3), half, (SIGNAL,), (1, 0), CONV, signals, (128, 128, 3))
    yield Layer("Conv2d", (16, 8, 3), half, (IMAGE,), (1, 0), CONV, images, (64, 64, 3))
    yield Layer("AvgPool1d", (3, 2, 1), {}, (SIGNAL,), (1, 0), CONV, signals)
    yield Layer("AvgPool2d", (3, 2, 1), {}, (IMAGE,), (1, 0), CONV, images)
    attended, larger = ((2, 12, 32),) * 3, ((8, 196, 192),) * 3
    yield Layer("MultiheadAttention", (32, 4), {"batch_first": True}, attended, (1, 3),
                "all projections, both ways", larger, (192, 6))  # fmt: skip
    norm = {"act_func": "relu"}
    yield Layer("BatchNorm1d", (16,), norm, (SIGNAL,) * 2, (1, 2), "", signals * 2, (128,))
    yield Layer("BatchNorm2d", (16,), norm, (IMAGE,) * 2, (1, 2), "", images * 2, (64,))
    yield Layer("LayerNorm", (64,), {}, (ROWS,), (1, 1), SUMS, LARGE, (768,))
    yield Layer("RMSNorm", (64,), {}, (ROWS,), (1, 1), SUMS, LARGE, (768,))
    for name in ("Softmax", "LogSoftmax", "Softmin"):
        yield Layer(name, (-1,))
    yield Layer("GLU", (-1,), {"act_func": "silu"}, (ROWS,), (1, 1), "the backward: a concat")
    yield Layer("Dropout", (0.3,))
    for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss"):
        yield Layer(name, (), {}, PAIR, (1, 1), "a sum of partial losses", LARGE_PAIR)
    for name in ("CrossEntropyLoss", "NLLLoss"):
        yield Layer(name, (), {}, LABELED, (1, 1), "sums of partial losses", WIDE_LABELED)
    for name in DROPPING:
        yield Layer(name, (), {"drop_p": 0.1})


LAYERS = {layer.name: layer for layer in layers()}
GROUP_NORM = Layer("GroupNorm", (4, 16), {}, (IMAGE,))
"""Not one of attorch's; of the same composite."""


def programs(layer: Any, backward: bool = False) -> list[Any]:
    """Those of the operators that a layer of `pullback.torch.nn` has called; of an operator whose
    forward has kept something, those that write it and read it.
    """
    jits = []
    for operator in layer.__dict__["_pullback_operators"].values():
        own = [operator.pullback().programs.jit if backward else operator.programs.jit]
        more = operator.residuals
        if more is not None:
            kept = [p.jit for p in more._backwards.values()] if backward else [more.forward.jit]
            own = [j for j in kept if j.last is not None][-1:] or own
        jits += own
    return [j.program for j in jits if j.last is not None]


def launches(layer: Any) -> tuple[int, int]:
    """Of one call, forward and backward."""
    forward, backward = (programs(layer, b) for b in (False, True))
    return sum(p.launches for p in forward), sum(p.launches for p in backward)


def step(torch: Any, layer: Any, inputs: list[Any]) -> list[Any]:
    """A call and its backward: the result, and gradients by floating inputs and parameters."""
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    for p in layer.parameters():
        p.grad = None
    y = layer(*given)
    y = y[0] if isinstance(y, tuple) else y
    torch.manual_seed(1)
    y.backward(torch.randn(y.shape).to(y.dtype))
    return [y, *(t.grad for t in (*given, *layer.parameters()) if t.is_floating_point())]


def composed(torch: Any, layer: Layer, large: bool = False) -> Any:
    """The same of PyTorch's own layers and functions; what is drawn apart."""
    plain = replace(layer, how={n: v for n, v in layer.how.items() if n not in OURS})
    own, act = plain.made(torch.nn, large), layer.how.get("act_func")
    after = activation(torch, act) if act else lambda y: y
    if layer.name == "GLU":
        own.forward = lambda x: (lambda a, b: a * after(b))(*x.chunk(2, -1))
    elif act:
        inner = own.forward
        own.forward = lambda x, *more: after(sum(more, inner(x)))
    return own


def activation(torch: Any, name: str) -> Any:
    """PyTorch's function of a name of attorch's."""
    if name == "geluapprox":
        return lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    base, _, number = name.rpartition("_")
    function = getattr(torch.nn.functional, base if base in BY_NUMBER else name)
    return (lambda x: function(x, float(number))) if base in BY_NUMBER else function


# --- the page ------------------------------------------------------------------------------------

HEAD = """\
| layer, as attorch spells it | kernels forward, backward | attorch's | what PyTorch does there |
|---|---|---|---|
"""


def table(torch: Any, nn: Any) -> str:
    """A row for each layer, its kernels counted."""
    rows = []
    for layer in (*LAYERS.values(), GROUP_NORM):
        torch.manual_seed(0)
        own = layer.made(nn)
        step(torch, own, layer.given(torch))
        counted = ", ".join(map(str, launches(own)))
        other = "not there" if layer is GROUP_NORM else ", ".join(map(str, layer.attorch))
        rows.append(f"| `{layer.text}` | {counted} | {other} | {layer.theirs} |\n")
    return HEAD + "".join(rows)
