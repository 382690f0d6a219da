"""Random functions of PyTorch's tensors through `torch.compile(backend="pullback")`, beside eager.

``draw(7) -> a function of a few tensors: twenty operators, views, writes in place``

A function is a row of operators on a pool of tensors that begins with the inputs; its result is all
of the pool that nothing read, and the inputs that it wrote. Values, gradients and what was written
are compared in float64, where rounding hides nothing; strides and types are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import pullback as pb

Tensor = torch.Tensor
Draw = np.random.Generator
Operator = Callable[[Sequence[Tensor]], Tensor]
TOLERANCE = 1e-8  # of float64, relative to the largest element; sums of a few thousand terms
STEPS = 4, 16  # operators of a function
MOST = 4096  # elements of a tensor


@dataclass
class Row:
    """What was drawn: inputs, operators with their names, what each reads."""

    inputs: list[Tensor]
    operators: list[Operator] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    read: set[int] = field(default_factory=set)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        pool = list(inputs)
        for operator in self.operators:
            pool.append(operator(pool))
        first = len(inputs)
        return [t for n, t in enumerate(pool) if n >= first and n not in self.read]

    def __str__(self) -> str:
        shapes = ", ".join(f"{tuple(t.shape)}{'*' * t.requires_grad}" for t in self.inputs)
        return f"{shapes} -> {'; '.join(self.names)}"


Make = Callable[[Draw, Sequence[Tensor], int], tuple[str, Operator] | None]
MAKES: list[Make] = []


def kind(make: Make) -> Make:
    """One more kind of operator: by the pool and the number of a tensor, a name and what to do."""
    MAKES.append(make)
    return make


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "erf": torch.erf,
    "sin": torch.sin,
    "exp": lambda x: torch.exp(x.clamp(max=3)),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x.square() + 0.5),
    "square": torch.square,
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": lambda x: x * torch.sign(x),
    "round": lambda x: x - torch.round(x.detach()),
    "clamp": lambda x: torch.clamp(x, -0.7, 0.9),
    "nan_to_num": torch.nan_to_num,
    "half": lambda x: x.to(torch.float32).to(x.dtype),
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous() + 1,
    "heaviside": lambda x: torch.where(x > 0, x, 0.5 * x),
    "masked": lambda x: x.masked_fill(x < -0.3, 0.25),
    "lerp": lambda x: torch.lerp(x, x.detach() * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.detach(), value=0.5),
    "atan2": lambda x: torch.atan2(x, x.detach().abs() + 1),
    "fmod": lambda x: torch.fmod(x, 0.77),
    "remainder": lambda x: torch.remainder(x, 0.77),
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "dropped": lambda x: F.dropout(x, 0.5, training=False),
}


@kind
def unary(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator]:
    """A function of each element."""
    name = str(draw.choice(list(UNARY)))
    function = UNARY[name]
    return f"{name}({n})", lambda pool: function(pool[n])


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "div": lambda x, y: x / (y.square() + 0.5),
    "where": lambda x, y: torch.where(x > y, x, y * 0.5),
    "hypot": lambda x, y: torch.hypot(x, y + 2),
    "pow": lambda x, y: torch.pow(x.abs() + 0.5, y.clamp(-2, 2)),
    "logaddexp": torch.logaddexp,
    "huber": lambda x, y: F.huber_loss(*torch.broadcast_tensors(x, y), reduction="none"),
}


@kind
def binary(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A function of two tensors that broadcast."""
    other = [m for m, t in enumerate(pool) if _broadcasts(t, pool[n])]
    m = int(draw.choice(other))
    name = str(draw.choice(list(BINARY)))
    function = BINARY[name]
    return f"{name}({n}, {m})", lambda pool: function(pool[n], pool[m])


def _broadcasts(one: Tensor, two: Tensor) -> bool:
    try:
        shape = torch.broadcast_shapes(one.shape, two.shape)
    except RuntimeError:
        return False
    return prod(shape) <= MOST


@kind
def reduced(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A reduction of one axis, of some, of all."""
    x = pool[n]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis, keep = int(draw.integers(-x.ndim, x.ndim)), bool(draw.integers(2))
    several = tuple(sorted({int(a) for a in draw.integers(0, x.ndim, size=2)}))
    spread = x.shape[axis] > 1
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda x: x.sum(several, keepdim=keep),
        "mean": lambda x: x.mean(several, keepdim=keep),
        "amax": lambda x: x.amax(several, keepdim=keep),
        "amin": lambda x: x.amin(axis, keepdim=keep),
        "max": lambda x: x.max(axis, keepdim=keep).values,
        "median": lambda x: x.median(axis, keepdim=keep).values,
        "prod": lambda x: (x * 0.5 + 1).prod(axis, keepdim=keep),
        "logsumexp": lambda x: x.logsumexp(several, keepdim=keep),
        "norm": lambda x: torch.linalg.vector_norm(x + 0.1, 2, axis, keepdim=keep),
        "norm1": lambda x: torch.linalg.vector_norm(x, 1, several, keepdim=keep),
        "argmax": lambda x: x.argmax(axis, keepdim=keep).to(x.dtype),
        "any": lambda x: (x > 0.5).any(axis, keepdim=keep).to(x.dtype),
        "count": lambda x: torch.count_nonzero(x > 0, axis).to(x.dtype),
    }
    if spread:
        choices["var"] = lambda x: x.var(axis, keepdim=keep)
        choices["std"] = lambda x: (x + 0.01).std(axis, correction=0, keepdim=keep) + x.mean()
    name = str(draw.choice(list(choices)))
    return f"{name}({n}, {axis}, {several}, {keep})", lambda pool: choices[name](pool[n])


@kind
def along(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """What goes along one axis and keeps the shape."""
    x = pool[n]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = int(draw.integers(-x.ndim, x.ndim))
    shift = int(draw.integers(-3, 4))
    width = x.shape[axis]
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda x: x.softmax(axis),
        "log_softmax": lambda x: x.log_softmax(axis),
        "cumsum": lambda x: x.cumsum(axis),
        "cumprod": lambda x: (x * 0.3 + 1).cumprod(axis),
        "cummax": lambda x: x.cummax(axis).values,
        "logcumsumexp": lambda x: x.logcumsumexp(axis),
        "flip": lambda x: x.flip(axis),
        "roll": lambda x: x.roll(shift, axis),
        "sort": lambda x: x.sort(axis, descending=shift > 0).values,
        "normalize": lambda x: F.normalize(x + 0.1, dim=axis),
        "topk": lambda x: x.topk(max(1, width // 2), axis).values,
        "layer_norm": lambda x: F.layer_norm(x, x.shape[axis % x.ndim :]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[axis % x.ndim :]),
        "glu": lambda x: F.glu(torch.cat([x, x * 2], axis), axis),
    }
    if width > 1:
        choices["diff"] = lambda x: x.diff(dim=axis)
    name = str(draw.choice(list(choices)))
    return f"{name}({n}, {axis}, {shift})", lambda pool: choices[name](pool[n])


@kind
def viewed(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A view, or what has another shape."""
    x = pool[n]
    if x.ndim == 0:
        return f"{n}[None]", lambda pool: pool[n][None]
    axis = int(draw.integers(0, x.ndim))
    order = tuple(int(a) for a in draw.permutation(x.ndim))
    width = x.shape[axis]
    start = int(draw.integers(0, max(1, width)))
    step = int(draw.integers(1, 3))
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "permute": lambda x: x.permute(order),
        "flatten": lambda x: x.flatten(0, axis),
        "unsqueeze": lambda x: x.unsqueeze(axis),
        "squeeze": lambda x: x.squeeze(axis),
        "slice": lambda x: x.narrow(axis, start, width - start) if width else x,
        "strided": lambda x: x[(slice(None),) * axis + (slice(start, None, step),)],
        "expand": lambda x: x.unsqueeze(axis).expand(*x.shape[:axis], 2, *x.shape[axis:]),
        "reshape": lambda x: x.transpose(0, -1).reshape(-1),
        "T": lambda x: x.transpose(0, axis),
        "pad": lambda x: F.pad(x, (step, start % 3)),
        "crop": lambda x: F.pad(x, (1, -(x.shape[-1] > 1))),
        "repeat": lambda x: x.repeat(*(2 if a == axis else 1 for a in range(x.ndim))),
        "interleave": lambda x: x.repeat_interleave(2, axis),
        "tril": lambda x: x.tril(start) if x.ndim > 1 else x,
        "movedim": lambda x: x.movedim(0, axis),
    }
    if width:
        choices["select"] = lambda x: x.select(axis, start)
        choices["unfold"] = lambda x: x.unfold(axis, 1 + width // 2, 1)
        choices["split"] = lambda x: x.split(1 + width // 2, axis)[-1]
        choices["chunk"] = lambda x: torch.cat(x.chunk(2, axis)[::-1], axis)
    if width % 2 == 0:
        choices["unflatten"] = lambda x: x.unflatten(axis, (2, -1)) if width else x
    if x.ndim > 1:
        choices["diagonal"] = lambda x: x.diagonal(0, 0, 1)
    name = str(draw.choice(list(choices)))
    return f"{name}({n}, {axis}, {start}, {step}, {order})", lambda pool: choices[name](pool[n])


@kind
def joined(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """Two tensors of one shape side by side, or one upon another."""
    x = pool[n]
    alike = [m for m, t in enumerate(pool) if t.shape == x.shape]
    m = int(draw.choice(alike))
    axis = int(draw.integers(0, x.ndim)) if x.ndim else 0
    if x.ndim == 0 or draw.integers(2):
        return f"stack({n}, {m}, {axis})", lambda pool: torch.stack([pool[n], pool[m]], axis)
    return f"cat({n}, {m}, {axis})", lambda pool: torch.cat([pool[n], pool[m], pool[n]], axis)


@kind
def multiplied(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A product of matrices, batched, by einsum, a bilinear one, attention."""
    x = pool[n]
    if x.ndim < 2 or 0 in x.shape:
        return None
    own = x.shape[-1] ** -0.5
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "gram": lambda x: x @ x.mT * own,
        "einsum": lambda x: torch.einsum("...ij,...ik->...jk", x, x) * own,
        "outer": lambda x: torch.einsum("...ij,...ik->...i", x, x) * own,
        "mv": lambda x: x @ x.sum(tuple(range(x.ndim - 1))) * own,
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "linear": lambda x: (
            F.linear(x, x.reshape(-1, x.shape[-1])[:3], x.flatten()[:3][: len(x)])
            if prod(x.shape[:-1]) >= 3 and x.numel() >= 3 and len(x) >= 3
            else x @ x.mT
        ),
        "cdist": lambda x: torch.cdist(x, x.flip(-2) + 2),
        "baddbmm": lambda x: torch.baddbmm(
            x.reshape(-1, *x.shape[-2:])[:, :, :1],
            *(x.reshape(-1, *x.shape[-2:]),) * 1,
            x.reshape(-1, *x.shape[-2:]).mT,
            beta=0.5,
            alpha=own,
        ),
    }
    if x.ndim >= 3:
        choices["causal"] = lambda x: F.scaled_dot_product_attention(x, x * 2, x, is_causal=True)
    name = str(draw.choice(list(choices)))
    if name != "mv" and x.shape[-2] ** 2 * prod(x.shape[:-2]) > MOST:
        return None
    return f"{name}({n})", lambda pool: choices[name](pool[n])


@kind
def spatial(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """Convolutions, pools, grids of what can be seen as pictures."""
    x = pool[n]
    if x.ndim not in (3, 4) or min(x.shape, default=0) < 2:
        return None
    axes = x.ndim - 2
    stride, padding, groups = int(draw.integers(1, 3)), int(draw.integers(0, 2)), 1
    kernel = min(3, *x.shape[2:])
    two = axes == 2
    conv, pool_ = (F.conv2d, F.max_pool2d) if two else (F.conv1d, F.max_pool1d)
    mean, turned = (F.avg_pool2d, F.conv_transpose2d) if two else (F.avg_pool1d, F.conv_transpose1d)

    def weight(x: Tensor, rows: int, columns: int) -> Tensor:
        count = rows * columns * kernel**axes
        flat = x.reshape(-1).repeat(1 + count // x.numel())[:count]
        return flat.reshape(rows, columns, *[kernel] * axes) * 0.3

    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "conv": lambda x: conv(x, weight(x, 3, x.shape[1]), None, stride, padding, 1, groups),
        "depthwise": lambda x: conv(
            x,
            weight(x, x.shape[1], 1),
            x[0, :, 0, 0] if two else x[0, :, 0],
            stride,
            padding,
            1,
            x.shape[1],
        ),
        "transposed": lambda x: turned(x, weight(x, x.shape[1], 2), None, stride, padding),
        "max_pool": lambda x: pool_(x, kernel, stride, min(padding, kernel // 2)),
        "avg_pool": lambda x: mean(x, kernel, stride, min(padding, kernel // 2)),
        "group_norm": lambda x: F.group_norm(x, 1),
        "instance_norm": lambda x: F.instance_norm(x) if x[0, 0].numel() > 1 else x,
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "adaptive": lambda x: (F.adaptive_avg_pool2d if two else F.adaptive_avg_pool1d)(x, 2),
        "upsampled": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "linear": lambda x: F.interpolate(
            x, size=[5] * axes, mode="bilinear" if two else "linear", align_corners=stride > 1
        ),
        "reflect": lambda x: F.pad(x, (1, 1), mode="reflect"),
        "circular": lambda x: F.pad(x, (1, 1), mode="circular"),
    }
    if two:
        choices["grid"] = lambda x: F.grid_sample(
            x, torch.tanh(x.mean(1)[..., None] + x.new_tensor([0.1, 0.3])), align_corners=False
        )
        choices["unfolded"] = lambda x: F.unfold(x, kernel, 1, padding)
        choices["bicubic"] = lambda x: F.interpolate(x, size=(4, 6), mode="bicubic")
        choices["channels_last"] = lambda x: x.contiguous(memory_format=torch.channels_last) * 2
    name = str(draw.choice(list(choices)))
    said = f"{name}({n}, kernel {kernel}, stride {stride}, padding {padding})"
    return said, lambda pool: choices[name](pool[n])


@kind
def indexed(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """Reads and writes at places that are data."""
    x = pool[n]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = int(draw.integers(0, x.ndim))
    width = x.shape[axis]
    count = int(draw.integers(1, 6))
    places = torch.from_numpy(draw.integers(0, width, size=count))
    everywhere = torch.from_numpy(draw.integers(0, width, size=tuple(x.shape)))
    ahead = (slice(None),) * axis

    def part(x: Tensor) -> Tensor:
        return x.index_select(axis, places) * 2

    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "index": lambda x: x[(*ahead, places)],
        "index_select": part,
        "gather": lambda x: x.gather(axis, everywhere),
        "take_along": lambda x: torch.take_along_dim(x, x.argsort(axis), axis),
        "scatter_add": lambda x: x.scatter_add(axis, everywhere, x * 0.5),
        "index_add": lambda x: x.index_add(axis, places, part(x)),
        "scatter_max": lambda x: x.scatter_reduce(axis, everywhere, x * 0.9, "amax"),
        "scatter_mean": lambda x: x.scatter_reduce(axis, everywhere, x * 0.9, "mean"),
        "index_put": lambda x: x.index_put((places % len(x),), x[:1] * 0.5, accumulate=True),
        "mask": lambda x: torch.where(everywhere > width // 2, x, x.mean()),
        "embedding": lambda x: F.embedding(places % len(x), x.reshape(len(x), -1)),
        "one_hot": lambda x: F.one_hot(everywhere, width).to(x.dtype) * x[..., None],
        "searchsorted": lambda x: (
            x + torch.searchsorted(x.sort().values.contiguous(), x.contiguous()).to(x.dtype)
        ),
        "bucketize": lambda x: x + torch.bucketize(x, x.new_tensor([-1.0, 0.0, 0.6])),
    }
    name = str(draw.choice(list(choices)))
    if name == "one_hot" and x.numel() * width > MOST:
        return None
    return f"{name}({n}, {axis}, {count})", lambda pool: choices[name](pool[n])


@kind
def written(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A copy that is written in parts, in place, through views."""
    x = pool[n]
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = int(draw.integers(0, x.ndim))
    row = int(draw.integers(0, x.shape[axis]))
    ahead = (slice(None),) * axis

    def add(x: Tensor) -> Tensor:
        own = x.clone()
        own[(*ahead, row)] += 0.5
        return own

    def turned(x: Tensor) -> Tensor:
        own = x.clone()
        own.transpose(0, -1).mul_(2).select(axis if axis == 0 else 0, 0).zero_()
        return own

    def copied(x: Tensor) -> Tensor:
        own = torch.zeros_like(x)
        own[(*ahead, slice(row, None))] = x[(*ahead, slice(row, None))].tanh()
        own.view(-1)[::2].add_(1)
        return own

    def masked(x: Tensor) -> Tensor:
        own = x * 1.0
        own[own > 0.4] = -0.5
        return own

    choices = {"add_": add, "turned_": turned, "copy_": copied, "masked_": masked}
    name = str(draw.choice(list(choices)))
    function = choices[name]
    return f"{name}({n}, {axis}, {row})", lambda pool: function(pool[n])


@kind
def lost(draw: Draw, pool: Sequence[Tensor], n: int) -> tuple[str, Operator] | None:
    """A loss of rows against targets."""
    x = pool[n]
    if x.ndim != 2 or 0 in x.shape:
        return None
    targets = torch.from_numpy(draw.integers(0, x.shape[1], size=x.shape[0]))
    choices: dict[str, Callable[[Tensor], Tensor]] = {
        "cross_entropy": lambda x: F.cross_entropy(x, targets, label_smoothing=0.1),
        "nll": lambda x: F.nll_loss(x.log_softmax(1), targets, reduction="none"),
        "mse": lambda x: F.mse_loss(x, x.detach() * 0.5),
        "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).to(x.dtype)),
        "kl": lambda x: F.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"),
        "cosine": lambda x: F.cosine_similarity(x, x.flip(0) + 1),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach().flip(0)),
        "multi_margin": lambda x: F.multi_margin_loss(x, targets),
    }
    name = str(draw.choice(list(choices)))
    return f"{name}({n})", lambda pool: choices[name](pool[n])


def drawn(seed: int) -> Row:
    """The function of a number: operators that PyTorch itself takes, of limited size."""
    draw = np.random.default_rng(seed)
    row = Row([_input(draw) for _ in range(draw.integers(1, 4))])
    pool: list[Tensor] = [t.detach().clone() for t in row.inputs]
    wanted = int(draw.integers(*STEPS))
    for _ in range(8 * wanted):
        if len(row.operators) == wanted:
            break
        late = draw.integers(2) and len(pool) > 2
        n = int(draw.integers(len(pool) - 2 if late else 0, len(pool)))
        made = MAKES[int(draw.integers(len(MAKES)))](draw, pool, n)
        if made is None:
            continue
        name, operator = made
        try:
            result = operator(pool)
        except (RuntimeError, IndexError, ValueError, NotImplementedError):
            continue  # what PyTorch refuses
        if result.numel() > MOST or result.ndim > 6 or not result.isfinite().all():
            continue
        if result.numel() and result.abs().max() > 1e4:
            continue
        row.operators.append(operator)
        row.names.append(f"{len(pool)} = {name}")
        row.read.add(n)
        pool.append(result.detach())
    return row


def _input(draw: Draw) -> Tensor:
    """Odd sizes, sometimes of one or none; sometimes turned; mostly with a gradient."""
    ndim = int(draw.choice([0, 1, 2, 2, 3, 3, 4, 4], p=[0.04, 0.1] + [0.86 / 6] * 6))
    sizes = [1, 2, 3, 4, 5, 7, 8] if ndim > 2 else [1, 2, 3, 5, 8, 17, 33]
    shape = [int(s) for s in draw.choice(sizes, size=ndim)]
    if ndim and draw.integers(30) == 0:
        shape[0] = 0
    values = torch.from_numpy(np.array(draw.normal(size=shape)))
    if ndim > 1 and draw.integers(4) == 0:
        values = values.mT.contiguous().mT
    return values.requires_grad_(bool(draw.integers(5)))


def results(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> list[Any]:
    """Results, and gradients of the sum of their weighted elements."""
    own = [t.detach().clone(memory_format=torch.preserve_format) for t in inputs]
    for mine, given in zip(own, inputs, strict=True):
        mine.requires_grad_(given.requires_grad)
    values = function(*own)
    heads = [v for v in values if v.requires_grad]
    if not heads:
        return [*values]
    weights = [torch.linspace(-1, 1, v.numel(), dtype=v.dtype).reshape(v.shape) for v in heads]
    wanted = [t for t in own if t.requires_grad]
    grads = torch.autograd.grad(heads, wanted, weights, allow_unused=True)
    return [*values, *grads]


def check_torch(seed: int, dynamic: bool = False) -> list[str]:
    """What differs between eager and compiled, of the function of a number.

    `dynamic`: all sizes are symbolic; what Dynamo itself cannot trace then is left out.
    """
    row = drawn(seed)
    torch._dynamo.reset()
    try:
        want = results(row, row.inputs)
    except (RuntimeError, NotImplementedError):
        return []  # no derivative in PyTorch
    try:
        compiled = torch.compile(row, backend=pb.torch.backend, dynamic=dynamic)
        got = results(compiled, row.inputs)
    except torch._dynamo.exc.TorchRuntimeError:
        return [] if dynamic else [f"{seed}: Dynamo traces no such row\n  {row}"]
    except Exception as problem:  # whatever it is, it is told
        return [f"{seed}: {type(problem).__name__}: {str(problem)[:300]}\n  {row}"]
    faults = compared(got, want)
    if faults and compared(results(row, [t * (1 + 1e-12) for t in row.inputs]), want):
        return []  # noise decides: the sign of what is zero but for rounding
    if faults and compared(results(_others(row, dynamic), row.inputs), want):
        return []  # PyTorch's graph is wrong already: gradients of results that overlap themselves
    return [f"{seed}: {fault}\n  {row}" for fault in faults]


def _others(row: Row, dynamic: bool) -> Callable[..., list[Tensor]]:
    compiled: Callable[..., list[Tensor]]
    compiled = torch.compile(row, backend="aot_eager", dynamic=dynamic)
    return compiled


def compared(got: Sequence[Any], want: Sequence[Any]) -> list[str]:
    """How results differ, by their places."""
    pairs = enumerate(zip(got, want, strict=True))
    said = [(place, different(one, two)) for place, (one, two) in pairs]
    return [f"result {place}: {fault}" for place, fault in said if fault]


def different(got: Tensor | None, want: Tensor | None) -> str:
    """How two results differ; empty: they do not."""
    if got is None or want is None:
        none = got is None and (want is None or not want.any())
        zero = want is None and got is not None and not got.any()
        return "" if none or zero else f"{got} instead of {want}"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{tuple(got.shape)} instead of {want.dtype}{tuple(want.shape)}"
    if got.numel() == 0:
        return ""
    both = got.isnan() & want.isnan()
    apart = torch.where(both | (got == want), 0.0, (got - want).abs().double())
    scale = want.nan_to_num(0, 0, 0).abs().max().double() + 1
    bad = ~(apart <= TOLERANCE * scale)
    if not bad.any():
        return ""
    first = tuple(int(i) for i in bad.nonzero()[0])
    return f"at {first} {got[first].item()!r} instead of {want[first].item()!r}"
