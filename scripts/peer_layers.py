"""Random calls of layers through PyTorch, its core decompositions, Inductor, JAX and tinygrad.

`python scripts/peer_layers.py [--peer NAME].. [--kind TYPE] [--count N] [--start SEED]
[--together N]`

Each number is one program of `tests/random_layers.py`: one to three calls of layers of odd sizes
(convolutions, pools, norms, losses, attention, recurrences), run by a peer in a type. Truth: the
value by this library's float64, which PyTorch's float64 must give too, and central differences of
the latter at two steps. What some roundings of its inputs move is not compared.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from peers import FACTOR, STEPS, Count, native

import pullback as pb
from random_layers import THEIRS, Program, filled, ours, program, run
from random_programs import close

Array = np.ndarray[Any, Any]
# As torch.testing.assert_close has them, and some roundings of each type.
TOLERANCE = {"float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2}
NEAR = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
DOCUMENTED = ("pooled_and_back", "ctc_loss")  # as in peers.py: indices twice, log_softmax with it


@dataclass(frozen=True)
class Case:
    """A program, where it is taken, and the truth in float64."""

    made: Program
    kind: str
    tensors: list[Any]  # of PyTorch: the floats float64, rounded to the type
    slots: list[int]  # that are derived
    along: list[Any]
    value: Array
    slope: float
    smooth: bool
    conditioned: bool


def layered(made: Program, tensors: Sequence[Any]) -> Any:
    """The value in PyTorch, in the type of what is given."""
    kind = tensors[0].dtype

    def applied(module: Any, cells: dict[str, Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        return torch.func.functional_call(module.to(kind), cells, args, kwargs, strict=True)

    x = tensors[0]
    for call in made.calls:
        x = run(call, x, tensors, torch.nn, applied)
    return x


def total(made: Program, tensors: Sequence[Any]) -> Any:
    return (layered(made, tensors) * tensors[-1]).sum()


def derived(made: Program, tensors: Sequence[Any]) -> list[int]:
    """The slots that PyTorch derives by."""
    for slots in (list(made.floats()), [0]):
        own = [t.clone().requires_grad_(n in slots) for n, t in enumerate(tensors)]
        try:
            torch.autograd.grad(total(made, own), [own[n] for n in slots], allow_unused=True)
        except THEIRS:
            continue
        return slots
    return []


def rounded(array: Array, kind: str, rng: np.random.Generator) -> Any:
    """In float64, rounded to the type; moved towards 0, so that no two are equal."""
    tensor = torch.as_tensor(array)
    if not tensor.is_floating_point() or np.isin(array, (-1.0, 1.0)).all():
        return tensor
    apart = tensor * torch.as_tensor(rng.uniform(1.0 - 5e-4, 1.0, array.shape))
    return apart.to(getattr(torch, kind)).double()


def case(seed: int, kind: str) -> Case | None:
    """The program of this number; None where PyTorch takes it not, or not what lies beside it."""
    try:
        return case_of(program(seed), kind)
    except THEIRS:
        return None


def case_of(made: Program, kind: str) -> Case | None:
    """Raises: one of THEIRS."""
    seed = made.seed
    if not (made.calls and made.alike) or any(c.damaged for c in made.calls):
        return None
    if made.strange or any(c.name in DOCUMENTED or "padding_idx" in c.kwargs for c in made.calls):
        return None  # numbers that are none; PyTorch gives that row no gradient, as its page says
    rng = np.random.default_rng(seed + 1)
    tensors = [rounded(a, kind, rng) for a in made.tensors]
    slots = derived(made, tensors)
    along = [torch.as_tensor(rng.normal(size=tuple(tensors[n].shape))) for n in slots]
    value, one, two = truth(made, tensors, slots, along)
    own = pb.tensor(tensors[0].numpy())
    given = [pb.tensor(t.numpy()) for t in tensors]
    for call in made.calls:
        own = ours(call, own, given)
    if not np.allclose(own.numpy(), value, rtol=1e-6, atol=1e-6, equal_nan=True):
        print(f"truth: layers {seed}: float64 of this library and of PyTorch differ\n{made}")
    near = [
        t * (1 + NEAR[kind] * torch.as_tensor(rng.uniform(-1, 1, tuple(t.shape)))) if n in slots
        else t for n, t in enumerate(tensors)
    ]  # fmt: skip
    beside, other, _ = truth(made, near, slots, along)
    room = FACTOR * TOLERANCE[kind] / 4
    moved = float(np.max(abs(beside - value), initial=0)) / (
        1 + float(np.max(abs(value), initial=0))
    )
    calm = moved <= room and abs(one - other) <= room * (1 + abs(one))
    smooth = close(one, two, 1e-5) and (kind == "float32" or not any(c.sharp() for c in made.calls))
    calm &= kind == "float32" or not any(c.jumps() for c in made.calls)
    return Case(made, kind, tensors, slots, along, value, two, smooth, bool(calm))


def truth(made: Program, tensors: Any, slots: Any, along: Any) -> tuple[Array, float, float]:
    def moved(by: float) -> float:
        own = list(tensors)
        for n, v in zip(slots, along, strict=True):
            own[n] = own[n] + by * v
        return float(total(made, own))

    one, two = ((moved(s) - moved(-s)) / (2 * s) for s in STEPS)
    return layered(made, tensors).detach().numpy(), one, two


# --- PyTorch -------------------------------------------------------------------------------------

Results = list[tuple[Any, list[Any]]]


def lowered(c: Case) -> list[Any]:
    """The tensors in the type, those that are derived leaves."""
    kind = getattr(torch, c.kind)
    return [
        (t.to(kind) if t.is_floating_point() else t).clone().requires_grad_(n in c.slots)
        for n, t in enumerate(c.tensors)
    ]


def torch_results(cases: Sequence[Case], way: Callable[..., Any] | None) -> Results:
    given = [lowered(c) for c in cases]

    def whole(*given: Any) -> Any:
        return [layered(c.made, g) for c, g in zip(cases, given, strict=True)]

    values = (way(whole) if way else whole)(*given)
    results: Results = []
    for c, g, value in zip(cases, given, values, strict=True):
        leaves = [g[n] for n in c.slots]
        slopes: Sequence[Any] = [None] * len(leaves)
        if leaves and value.requires_grad:
            sum_ = (value * g[-1]).sum()
            slopes = torch.autograd.grad(sum_, leaves, allow_unused=True, retain_graph=True)
        results.append((plain(value), [None if s is None else plain(s) for s in slopes]))
    return results


def plain(value: Any) -> Array:
    array: Array = value.detach().double().numpy()
    return array


# --- JAX and tinygrad: the calls that they have --------------------------------------------------


class Absent(Exception):
    """The peer has no such call."""


def listed(value: Any, count: int) -> list[int]:
    return list(value) if isinstance(value, tuple | list) else [value] * count


def chained(table: dict[str, Callable[..., Any]], made: Program, tensors: Sequence[Any]) -> Any:
    x = tensors[0]
    for call in made.calls:
        if call.name not in table:
            raise Absent(call.name)
        x = table[call.name](
            *(filled(a, x, tensors) for a in call.args),
            **{k: filled(v, x, tensors) for k, v in call.kwargs.items()},
        )
    return x


def jax_table() -> dict[str, Callable[..., Any]]:
    jax: Any = import_module("jax")
    jnp, nn, lax = jax.numpy, jax.nn, jax.lax

    def convolved(x: Any, w: Any, b: Any, **settings: Any) -> Any:
        space = x.ndim - 2
        pads = settings["padding"]
        pads = pads.upper() if isinstance(pads, str) else [(p, p) for p in listed(pads, space)]
        y = lax.conv_general_dilated(
            x, w, listed(settings["stride"], space), pads, feature_group_count=settings["groups"],
            rhs_dilation=listed(settings["dilation"], space),
        )  # fmt: skip
        return y if b is None else y + b.reshape(-1, *[1] * space)

    def transposed(x: Any, w: Any, b: Any, **settings: Any) -> Any:
        space, groups = x.ndim - 2, settings["groups"]
        w = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)
        w = jnp.flip(w.reshape(-1, *w.shape[2:]), range(2, 2 + space))
        dilation = listed(settings["dilation"], space)
        reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        more = listed(settings["output_padding"], space)
        pads = [
            (r - p, r - p + m)
            for r, p, m in zip(reach, listed(settings["padding"], space), more, strict=True)
        ]
        y = lax.conv_general_dilated(
            x, w, [1] * space, pads, lhs_dilation=listed(settings["stride"], space),
            rhs_dilation=dilation, feature_group_count=groups,
        )  # fmt: skip
        return y if b is None else y + b.reshape(-1, *[1] * space)

    def pooled(x: Any, kernel: Any, start: Any, combine: Any, **settings: Any) -> Any:
        space = x.ndim - 2
        if settings.get("ceil_mode"):
            raise Absent("ceil_mode")
        kernel = listed(kernel, space)
        strides = listed(settings.get("stride", kernel), space)
        pads = [(p, p) for p in listed(settings["padding"], space)]
        return lax.reduce_window(
            x, start, combine, (1, 1, *kernel), (1, 1, *strides),
            [(0, 0), (0, 0), *pads],
            window_dilation=(1, 1, *listed(settings.get("dilation", 1), space)),
        )  # fmt: skip

    def averaged(x: Any, kernel: Any, **settings: Any) -> Any:
        count = settings.get("divisor_override") or int(np.prod(listed(kernel, x.ndim - 2)))
        added = partial(pooled, kernel=kernel, start=0.0, combine=lax.add, **settings)
        if settings["count_include_pad"] or settings.get("divisor_override"):
            return added(x) / count
        return added(x) / added(jnp.ones_like(x))

    def normed(x: Any, tail: Any, weight: Any, bias: Any = None) -> Any:
        y = nn.standardize(x, axis=tuple(range(x.ndim - len(tail), x.ndim)), epsilon=1e-5)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def attended(q: Any, k: Any, v: Any, attn_mask: Any = None, **settings: Any) -> Any:
        if q.ndim != 4:
            raise Absent("attention without heads")
        turned = [a.swapaxes(1, 2) for a in (q, k, v)]
        if attn_mask is not None:
            shape = (*q.shape[:3], k.shape[2])
            attn_mask = jnp.broadcast_to(attn_mask, shape)
            settings["mask" if attn_mask.dtype == bool else "bias"] = attn_mask
        return nn.dot_product_attention(*turned, **settings).swapaxes(1, 2)

    def padded(x: Any, widths: Any, mode: str, value: Any = None) -> Any:
        if min(widths) < 0:
            raise Absent("negative padding")
        pairs = [(0, 0)] * x.ndim
        for n in range(len(widths) // 2):
            pairs[x.ndim - 1 - n] = (widths[2 * n], widths[2 * n + 1])
        if mode == "constant":
            return jnp.pad(x, pairs, constant_values=value or 0)
        return jnp.pad(x, pairs, {"replicate": "edge", "circular": "wrap"}.get(mode, mode))

    def resized(x: Any, size: Any = None, mode: str = "", **settings: Any) -> Any:
        if size is None or mode not in ("linear", "bilinear", "trilinear"):
            raise Absent(mode)
        if settings["align_corners"]:
            raise Absent("align_corners")
        return jax.image.resize(
            x, (*x.shape[:2], *size), "linear", antialias=settings.get("antialias", False)
        )

    def patches(x: Any, kernel: Any, **settings: Any) -> Any:
        pads = [(p, p) for p in listed(settings["padding"], 2)]
        y = lax.conv_general_dilated_patches(
            x, listed(kernel, 2), listed(settings["stride"], 2), pads,
            rhs_dilation=listed(settings["dilation"], 2),
        )  # fmt: skip
        return y.reshape(*y.shape[:2], -1)

    table: dict[str, Callable[..., Any]] = {
        "celu": nn.celu, "elu": nn.elu, "gelu": partial(nn.gelu, approximate=False),
        "hardsigmoid": nn.hard_sigmoid, "hardswish": nn.hard_swish, "leaky_relu": nn.leaky_relu,
        "log_softmax": nn.log_softmax, "logsigmoid": nn.log_sigmoid, "mish": nn.mish,
        "relu": nn.relu, "relu6": nn.relu6, "selu": nn.selu, "sigmoid": nn.sigmoid,
        "silu": nn.silu, "softmax": nn.softmax, "softsign": nn.soft_sign, "tanh": jnp.tanh,
        "glu": nn.glu, "linear": lambda x, w, b: x @ w.T + (0 if b is None else b),
        "bilinear": lambda x, y, w, b: jnp.einsum("...i,oij,...j->...o", x, w, y) + (
            0 if b is None else b),
        "layer_norm": normed, "scaled_dot_product_attention": attended, "pad": padded,
        "interpolate": resized, "unfold": patches,
        "embedding": lambda i, x, padding_idx=None: jnp.take(x, i, axis=0),
    }  # fmt: skip
    for n in (1, 2, 3):
        table[f"conv{n}d"], table[f"conv_transpose{n}d"] = convolved, transposed
        table[f"max_pool{n}d"] = partial(pooled, start=-jnp.inf, combine=lax.max)
        table[f"avg_pool{n}d"] = averaged
    return table


def jax_results(cases: Sequence[Case]) -> Results:
    jax: Any = import_module("jax")
    table = jax_table()

    def one(c: Case) -> tuple[Any, list[Any]]:
        given = [t.to(getattr(torch, c.kind)) if t.is_floating_point() else t for t in c.tensors]
        arrays = [jax.numpy.asarray(t.float().numpy(), c.kind) if t.is_floating_point()
                  else t.numpy() for t in given]  # fmt: skip

        def both(*leaves: Any) -> Any:
            def value(*leaves: Any) -> Any:
                own = list(arrays)
                for n, leaf in zip(c.slots, leaves, strict=True):
                    own[n] = leaf
                return chained(table, c.made, own)

            result, back = jax.vjp(value, *leaves)
            return result, back(jax.numpy.broadcast_to(arrays[-1], result.shape))

        value, found = jax.jit(both)(*(arrays[n] for n in c.slots))
        return np.asarray(value, np.float64), [np.asarray(g, np.float64) for g in found]

    return [one(c) for c in cases]


def tinygrad_table() -> dict[str, Callable[..., Any]]:
    tensor: Any = import_module("tinygrad").Tensor

    def plainly(name: str) -> Callable[..., Any]:
        return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)

    def averaged(x: Any, kernel: Any, divisor_override: Any = None, **settings: Any) -> Any:
        if divisor_override:
            raise Absent("divisor_override")
        return x.avg_pool2d(kernel, **settings)

    def normed(x: Any, tail: Any, weight: Any, bias: Any = None) -> Any:
        y = x.layernorm(tuple(range(x.ndim - len(tail), x.ndim)))
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def padded(x: Any, widths: Any, mode: str, value: Any = None) -> Any:
        return x.pad(tuple(widths), mode=mode, value=value or 0.0)

    def attended(q: Any, k: Any, v: Any, **settings: Any) -> Any:
        if "scale" in settings:
            raise Absent("scale")
        return q.scaled_dot_product_attention(k, v, **settings)

    def resized(x: Any, size: Any = None, mode: str = "", align_corners: bool = False) -> Any:
        if size is None or mode in ("area", "bicubic"):
            raise Absent(mode)
        return x.interpolate(size, mode if "near" in mode else "linear", align_corners)

    def crossed(x: Any, target: Any, reduction: str, label_smoothing: float = 0.0) -> Any:
        return x.cross_entropy(target, reduction, label_smoothing)

    names = (
        "celu", "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_softmax",
        "logsigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus",
        "softsign", "tanh", "nll_loss",
    )  # fmt: skip
    table = {name: plainly(name) for name in names}
    for n in (1, 2, 3):
        table[f"conv{n}d"] = plainly("conv2d")
        table[f"conv_transpose{n}d"] = plainly("conv_transpose2d")
        table[f"max_pool{n}d"], table[f"avg_pool{n}d"] = plainly("max_pool2d"), averaged
    table["linear"] = lambda x, w, b: x.linear(w.T, b)
    table |= {
        "layer_norm": normed, "pad": padded, "scaled_dot_product_attention": attended,
        "interpolate": resized, "cross_entropy": crossed,
        "binary_cross_entropy_with_logits": lambda x, y, reduction: (
            x.binary_crossentropy_logits(y, reduction)),
        "embedding": lambda i, x, padding_idx=None: x[i],
    }  # fmt: skip
    assert tensor
    return table


def tinygrad_results(cases: Sequence[Case]) -> Results:
    tensor: Any = import_module("tinygrad").Tensor
    table = tinygrad_table()

    def one(c: Case) -> tuple[Any, list[Any]]:
        arrays = [t.to(getattr(torch, c.kind)).numpy() if t.is_floating_point()
                  else t.numpy() for t in c.tensors]  # fmt: skip
        given = [tensor(a.astype(np.int32) if a.dtype == np.int64 else a) for a in arrays]
        value = chained(table, c.made, given)
        sum_ = (value * given[-1]).sum()
        leaves = [given[n] for n in c.slots]
        reached = [x for x in leaves if x.uop in sum_.uop.toposort()]
        slopes = sum_.gradient(*reached) if reached else []
        tensor.realize(value, *slopes)
        found = dict(zip(map(id, reached), slopes, strict=True))
        return value.numpy(), [found[id(x)].numpy() if id(x) in found else None for x in leaves]

    return [one(c) for c in cases]


def core(function: Any) -> Any:
    return native(function, import_module("torch._decomp").core_aten_decompositions())


PEERS: dict[str, tuple[str, Callable[[Sequence[Case]], Results]]] = {
    "eager": ("torch", lambda cases: torch_results(cases, None)),
    "core": ("torch", lambda cases: torch_results(cases, core)),
    "inductor": ("torch", lambda cases: torch_results(cases, lambda f: native(f, None))),
    "jax": ("jax", jax_results),
    "tinygrad": ("tinygrad", tinygrad_results),
}


def wrong(c: Case, value: Any, found: list[Any]) -> list[str]:
    room = FACTOR * TOLERANCE[c.kind]
    value = np.asarray(value, np.float64)
    if value.shape != c.value.shape:
        return [f"shape {value.shape}, not {c.value.shape}"]
    texts = []
    finite = np.isfinite(c.value)
    scale = 1 + float(np.max(abs(c.value[finite]), initial=0))
    error = float(np.max(abs(value - c.value)[finite], initial=0))
    if not error <= room * scale or np.isfinite(value[~finite]).any():
        texts.append(f"value off by {error:.3g} of {scale:.3g}")
    pairs = [(g, a.numpy()) for g, a in zip(found, c.along, strict=True) if g is not None]
    terms = [np.asarray(g, np.float64) * a for g, a in pairs]
    slope = sum(float(t.sum()) for t in terms)
    size = 1 + sum(float(abs(t).sum()) for t in terms)
    known = c.smooth and np.isfinite(c.slope)
    if known and not abs(slope - c.slope) <= room * min(size, 1 + abs(c.slope) * 1e3):
        texts.append(f"slope {slope:.7g}, not {c.slope:.7g} (terms {size:.3g})")
    return texts


def check(peer: str, cases: Sequence[Case], count: Count) -> None:
    """Runs some programs as one, each alone where that fails; prints what is wrong."""
    try:
        results = PEERS[peer][1](cases)
    except Exception as error:  # what a peer has not, or refuses, is counted
        if len(cases) > 1:
            for c in cases:
                check(peer, [c], count)
            return
        text = f"{type(error).__name__}: {str(error)[:160]!r}"
        print(f"{peer}: layers {cases[0].made.seed} not run: {text}", flush=True)
        count.refused += 1
        return
    for c, (value, found) in zip(cases, results, strict=True):
        count.ran += 1
        count.compared += c.conditioned
        count.slopes += c.smooth and c.conditioned and bool(c.slots)
        for text in wrong(c, value, found) if c.conditioned else ():
            calls = "; ".join(map(str, c.made.calls))
            shapes = [tuple(t.shape) for t in c.tensors]
            print(
                f"{peer}: layers {c.made.seed} {c.kind}: {text}\n  {calls} of {shapes}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="append", choices=sorted(PEERS))
    parser.add_argument("--kind", choices=sorted(TOLERANCE), default="float32")
    parser.add_argument("--count", type=int, default=100, help="programs that PyTorch takes")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--together", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for peer in given.peer or PEERS:
        package, count, seed, group = PEERS[peer][0], Count(), given.start, []
        taken = 0
        while taken < given.count:
            made = case(seed, given.kind)
            seed += 1
            if made is None:
                continue
            taken += 1
            group.append(made)
            if len(group) == given.together or taken == given.count:
                check(peer, group, count)
                group = []
        last = f"numbers {given.start} to {seed - 1}"
        print(f"{peer} ({package} {version(package)}), {given.kind}: {count}; {last}", flush=True)


if __name__ == "__main__":
    main()
