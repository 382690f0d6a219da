"""How PyTorch's optimizers update a parameter, on tensors that `torch.compile` traces.

What may change from step to step (rates, decays, bias corrections) are numbers given at the call,
a row for all parameters of a group that took the same number of steps; what shapes the formula
(`nesterov`, `amsgrad`, ..) is in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.bridge.programs import caller
from pullback.errors import UnsupportedError

Group = Mapping[str, Any]
Form = tuple[bool | str, ...]
"""What shapes the formula of a group; numbers as text, since PyTorch takes them for sizes."""
Counts = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: what its groups ask for, what it keeps of a parameter, how it updates one.

    `numbers(group, counts)`: the row of the step that follows these counts, which are what the
    optimizer keeps of a parameter as numbers (`counted` names them; the steps that it took come
    first). `update` gives the parameter and its states as they are afterwards. `first`: counts
    before the first step; `after`: those that a step leaves, but for the steps. `begins`: what a
    state is filled with before. `shaped`: its shape, of a parameter; None: it has none of it.
    """

    form: Callable[[Group], Form]
    states: Callable[[Group], tuple[str, ...]]
    numbers: Callable[[Group, Counts], tuple[float, ...]]
    update: Callable[[Any, Any, Sequence[Any], Sequence[Any], Form], tuple[Any, list[Any]]]
    counted: tuple[str, ...] = ("step",)
    first: Callable[[Group], Counts] = lambda group: (0.0,)
    after: Callable[[Group, Counts], Counts] = lambda group, counts: ()
    begins: Callable[[Group, str], float] = lambda group, name: 0.0
    shaped: Callable[[Any, str], Sequence[int] | None] = lambda p, name: p.shape

    def names(self, group: Group, p: Any) -> tuple[str, ...]:
        """The states of a parameter."""
        return tuple([n for n in self.states(group) if self.shaped(p, n) is not None])


def rule_of(optimizer: Any) -> Rule:
    """Raises: UnsupportedError for an optimizer that has no rule, or an option that it has not."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in RULES)
        what = f"pb.torch.step with {type(optimizer).__name__}: there is no rule of its update"
        help = f"one of torch.optim's {known}; others step after torch.compile(model)"
        raise UnsupportedError(what, origin=caller(), help=help, code="E392")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            what = "pb.torch.step with differentiable=True: nothing differentiates through a step"
            raise UnsupportedError(what, origin=caller(), help="differentiable=False", code="E392")
        whole = type(optimizer) in (torch.optim.Adafactor, torch.optim.Muon)
        if whole and any(p.is_complex() for p in group["params"]):
            what = f"pb.torch.step with {type(optimizer).__name__}: it takes rows of real numbers"
            help = "a complex parameter as torch.view_as_real(p), or another optimizer"
            raise UnsupportedError(what, origin=caller(), help=help, code="E392")
    return rule


def _sgd(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``b = keep b + fresh g;  p -= lr (g + momentum b  if nesterov else  b)``"""
    moving, nesterov, maximize, decays = form
    lr, momentum, keep, fresh, decay = row
    g = -g if maximize else g
    g = g + decay * p if decays else g
    if not moving:
        return p - lr * g, []
    buffer = keep * held[0] + fresh * g
    along = g + momentum * buffer if nesterov else buffer
    return p - lr * along, [buffer]


def _sgd_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    """The first buffer is the first gradient, undamped."""
    momentum = float(group["momentum"])
    keep, fresh = (momentum, 1.0 - float(group["dampening"])) if counts[0] else (0.0, 1.0)
    return float(group["lr"]), momentum, keep, fresh, float(group["weight_decay"])


def _adam(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``m += (1 - b1) (g - m);  v = b2 v + (1 - b2) g g;  p -= size m / (sqrt(v) / root + eps)``"""
    decoupled, amsgrad, maximize, decays = form
    size, left1, beta2, left2, root, eps, decay, shrink = row
    g = -g if maximize else g
    if decays and decoupled:
        p = p * shrink
    elif decays:
        g = g + decay * p
    first = held[0] + left1 * (g - held[0])
    second = beta2 * held[1] + left2 * (g * g)
    kept = [first, second]
    if amsgrad:
        kept.append(torch.maximum(held[2], second))
    return p - size * (first / (kept[-1].sqrt() / root + eps)), kept


def _adam_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    (step,) = counts
    beta1, beta2 = map(float, group["betas"])
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    size = lr / (1.0 - beta1 ** (step + 1.0))
    root = (1.0 - beta2 ** (step + 1.0)) ** 0.5
    rates = 1.0 - beta1, beta2, 1.0 - beta2
    return size, *rates, root, float(group["eps"]), decay, 1.0 - lr * decay


_ADAM = Rule(
    form=lambda group: (
        bool(group["decoupled_weight_decay"]),
        bool(group["amsgrad"]),
        bool(group["maximize"]),
        float(group["weight_decay"]) != 0.0,
    ),
    states=lambda group: ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 2 + bool(group["amsgrad"])],
    numbers=_adam_numbers,
    update=_adam,
)
_SGD = Rule(
    form=lambda group: (
        float(group["momentum"]) != 0.0,
        bool(group["nesterov"]),
        bool(group["maximize"]),
        float(group["weight_decay"]) != 0.0,
    ),
    states=lambda group: ("momentum_buffer",) * (float(group["momentum"]) != 0.0),
    numbers=_sgd_numbers,
    update=_sgd,
    counted=(),
)


def _signed(p: Any, g: Any, form: Form, decay: Any) -> Any:
    """The gradient upwards or downwards, with coupled decay: the last two of a form."""
    maximize, decays = form[-2:]
    g = -g if maximize else g
    return g + decay * p if decays else g


def _form(group: Group, *first: str) -> Form:
    decays = float(group.get("weight_decay", 0.0)) != 0.0
    return (*(bool(group[name]) for name in first), bool(group["maximize"]), decays)


def _rmsprop(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``v = a v + (1 - a) g g;  p -= lr b,  b = keep b + g / (sqrt(v - mean^2) + eps)``"""
    moving, centered = form[:2]
    lr, keep, left, eps, momentum, decay = row
    g = _signed(p, g, form, decay)
    kept = [keep * held[0] + left * (g * g)]
    square = kept[0]
    mean = None
    if centered:
        mean = held[-1] + left * (g - held[-1])
        square = square - mean * mean
    along = g / (square.sqrt() + eps)
    if moving:
        along = momentum * held[1] + along
        kept.append(along)
    return p - lr * along, kept if mean is None else [*kept, mean]


def _rmsprop_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    keep = float(group["alpha"])
    rest = [float(group[name]) for name in ("eps", "momentum", "weight_decay")]
    return (float(group["lr"]), keep, 1.0 - keep, *rest)


def _rmsprop_states(group: Group) -> tuple[str, ...]:
    moving, centered = float(group["momentum"]) > 0.0, bool(group["centered"])
    return ("square_avg", *("momentum_buffer",) * moving, *("grad_avg",) * centered)


def _adagrad(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``s += g g;  p -= rate g / (sqrt(s) + eps)``"""
    rate, eps, decay = row
    g = _signed(p, g, form, decay)
    squares = held[0] + g * g
    return p - rate * (g / (squares.sqrt() + eps)), [squares]


def _adagrad_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    rate = float(group["lr"]) / (1.0 + counts[0] * float(group["lr_decay"]))
    return rate, float(group["eps"]), float(group["weight_decay"])


def _adadelta(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``v = r v + (1 - r) g g;  d = g sqrt(u + eps) / sqrt(v + eps);  u = r u + (1 - r) d d``"""
    lr, keep, left, eps, decay = row
    g = _signed(p, g, form, decay)
    square = keep * held[0] + left * (g * g)
    delta = (held[1] + eps).sqrt() / (square + eps).sqrt() * g
    return p - lr * delta, [square, keep * held[1] + left * (delta * delta)]


def _adadelta_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    keep = float(group["rho"])
    return float(group["lr"]), keep, 1.0 - keep, float(group["eps"]), float(group["weight_decay"])


def _adamax(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``m += (1 - b1) (g - m);  u = max(b2 u, |g| + eps);  p -= size m / u``"""
    size, left1, beta2, eps, decay = row
    g = _signed(p, g, form, decay)
    first = held[0] + left1 * (g - held[0])
    largest = torch.maximum(beta2 * held[1], g.abs() + eps)
    return p - size * (first / largest), [first, largest]


def _adamax_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    beta1, beta2 = map(float, group["betas"])
    size = float(group["lr"]) / (1.0 - beta1 ** (counts[0] + 1.0))
    return size, 1.0 - beta1, beta2, float(group["eps"]), float(group["weight_decay"])


def _radam(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """Adam's moments;  ``p -= m adaptive / (sqrt(v) + eps)``, or ``p -= m plain`` at first."""
    decoupled, maximize, decays = form
    plain, adaptive, left1, beta2, left2, eps, decay, shrink = row
    g = _signed(p, g, (maximize, decays and not decoupled), decay)
    p = p * shrink if decays and decoupled else p
    first = held[0] + left1 * (g - held[0])
    second = beta2 * held[1] + left2 * (g * g)
    size = torch.where(adaptive > 0, adaptive / (second.sqrt() + eps), plain)
    return p - first * size, [first, second]


def _radam_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    """Source: Liu et al. 2020, On the variance of the adaptive learning rate and beyond."""
    step = counts[0] + 1.0
    beta1, beta2 = map(float, group["betas"])
    lr, decay = float(group["lr"]), float(group["weight_decay"])
    plain = lr / (1.0 - beta1**step)
    unbiased = 1.0 - beta2**step
    most = 2.0 / (1.0 - beta2) - 1.0
    length = most - 2.0 * step * beta2**step / unbiased
    adaptive = 0.0
    if length > 5.0:  # of fewer terms the variance has no bound
        rectified = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        adaptive = plain * (rectified * unbiased) ** 0.5
    rates = 1.0 - beta1, beta2, 1.0 - beta2
    return plain, adaptive, *rates, float(group["eps"]), decay, 1.0 - lr * decay


def _nadam(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """Adam's moments;  ``p -= (now g + next m) / (sqrt(v / unbiased) + eps)``"""
    decoupled, maximize, decays = form
    now, after, left1, beta2, left2, unbiased, eps, decay, shrink = row
    g = _signed(p, g, (maximize, decays and not decoupled), decay)
    p = p * shrink if decays and decoupled else p
    first = held[0] + left1 * (g - held[0])
    second = beta2 * held[1] + left2 * (g * g)
    root = (second / unbiased).sqrt() + eps
    return p - (now * (g / root) + after * (first / root)), [first, second]


def _momentum(group: Group, step: float) -> float:
    power: float = 0.96 ** (step * float(group["momentum_decay"]))
    return float(group["betas"][0]) * (1.0 - 0.5 * power)


def _nadam_after(group: Group, counts: Counts) -> Counts:
    """The product of all momenta, as PyTorch rounds it."""
    step, product = counts
    return (float(torch.tensor(product, dtype=counts_type()).mul(_momentum(group, step + 1.0))),)


def _nadam_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    """Source: Dozat 2016, Incorporating Nesterov momentum into Adam."""
    beta1, beta2 = map(float, group["betas"])
    lr, decay, step = float(group["lr"]), float(group["weight_decay"]), counts[0] + 1.0
    (product,) = _nadam_after(group, counts)
    now, after = _momentum(group, step), _momentum(group, step + 1.0)
    sizes = lr * (1.0 - now) / (1.0 - product), lr * after / (1.0 - product * after)
    rates = 1.0 - beta1, beta2, 1.0 - beta2, 1.0 - beta2**step
    return *sizes, *rates, float(group["eps"]), decay, 1.0 - lr * decay


def _rprop(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """Steps grow where the sign of the gradient stays, shrink where it turns; then it rests."""
    shorter, longer, least, most = row
    g = _signed(p, g, form, 0.0)
    turned = (g * held[0]).sign()
    factor = torch.where(turned > 0, longer, torch.where(turned < 0, shorter, 1.0))
    size = torch.clamp(held[1] * factor, least, most)
    g = torch.where(turned < 0, 0.0, g)
    return p - g.sign() * size, [g, size]


def _asgd(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``p = p (1 - lambd eta) - eta g;  mean += mu (p - mean)``"""
    eta, mu, shrink, decay = row
    new = p * shrink - eta * _signed(p, g, form, decay)
    return new, [torch.where(mu == 1.0, new, held[0] + mu * (new - held[0]))]


def _asgd_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    _, eta, mu = counts
    return eta, mu, 1.0 - float(group["lambd"]) * eta, float(group["weight_decay"])


def _asgd_after(group: Group, counts: Counts) -> Counts:
    step, lr = counts[0] + 1.0, float(group["lr"])
    eta = lr / (1.0 + float(group["lambd"]) * lr * step) ** float(group["alpha"])
    return eta, 1.0 / max(1.0, step - float(group["t0"]))


def _adafactor(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``p -= alpha u / max(1, rms(u) / d),  u = g / sqrt(v)``; v: rows by columns by their mean"""
    maximize, tiny = form
    left, rate, eps1, eps2, d, shrink = row
    g = -g if maximize else g
    least = torch.finfo(p.dtype).eps if tiny else eps1
    alpha = torch.maximum(eps2, p.square().mean().sqrt()) * rate
    if g.dim() > 1:
        rows = held[0] + left * ((g * g).mean(-1, keepdim=True) - held[0])
        columns = held[1] + left * ((g * g).mean(-2, keepdim=True) - held[1])
        kept = [rows, columns]
        variance = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=least)
    else:
        kept = [held[0] + left * (g * g - held[0])]
        variance = kept[0]
    along = g * variance.clamp(min=least * least).rsqrt()
    share = (along.square().mean().sqrt() / d).clamp(min=1.0)
    return p * shrink - alpha / share * along, kept


def _adafactor_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    """Source: Shazeer and Stern 2018, Adafactor: adaptive learning rates with sublinear memory."""
    step, lr = counts[0] + 1.0, float(group["lr"])
    eps1, eps2 = group["eps"]
    sizes = step ** float(group["beta2_decay"]), min(lr, 1.0 / step**0.5)
    shrink = 1.0 - lr * float(group["weight_decay"])
    return *sizes, float(eps1 or 0.0), float(eps2), float(group["d"]), shrink


def _factored(p: Any, name: str) -> Sequence[int] | None:
    """Rows and columns of what has two axes and more, else one variance."""
    if name == "variance":
        return None if p.dim() > 1 else p.shape
    if p.dim() < 2:
        return None
    rows = name == "row_var"
    return (*p.shape[:-2], p.shape[-2] if rows else 1, 1 if rows else p.shape[-1])


def _muon(p: Any, g: Any, held: Sequence[Any], row: Sequence[Any], form: Form) -> Any:
    """``b += (1 - m) (g - b);  p -= rate orthogonal(g + m (b - g)  if nesterov else  b)``"""
    nesterov, steps, adjusted, *numbers = form
    a, b, c, eps = map(float, numbers)
    lr, momentum, left, shrink = row
    buffer = held[0] + left * (g - held[0])
    along = g + momentum * (buffer - g) if nesterov else buffer
    tall = p.shape[0] > p.shape[1]
    x = along.bfloat16().T if tall else along.bfloat16()
    x = x / x.norm().clamp(min=eps)
    for _ in range(int(steps)):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    ratio = {
        "original": max(1.0, p.shape[0] / p.shape[1]) ** 0.5,
        "match_rms_adamw": 0.2 * max(p.shape) ** 0.5,
    }[str(adjusted)]
    return p * shrink - lr * ratio * (x.T if tall else x).to(p.dtype), [buffer]


def _muon_numbers(group: Group, counts: Counts) -> tuple[float, ...]:
    """Source: Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks."""
    lr, momentum = float(group["lr"]), float(group["momentum"])
    return lr, momentum, 1.0 - momentum, 1.0 - lr * float(group["weight_decay"])


def counts_type() -> Any:
    """The type of counts of steps, as PyTorch's optimizers choose it."""
    wide = torch.get_default_dtype() == torch.float64
    return torch.float64 if wide else torch.float32


RULES: dict[type, Rule] = {
    torch.optim.SGD: _SGD,
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.RMSprop: Rule(
        form=lambda g: (float(g["momentum"]) > 0.0, *_form(g, "centered")),
        states=_rmsprop_states,
        numbers=_rmsprop_numbers,
        update=_rmsprop,
    ),
    torch.optim.Adagrad: Rule(
        form=_form,
        states=lambda group: ("sum",),
        numbers=_adagrad_numbers,
        update=_adagrad,
        begins=lambda group, name: float(group["initial_accumulator_value"]),
    ),
    torch.optim.Adadelta: Rule(
        form=_form,
        states=lambda group: ("square_avg", "acc_delta"),
        numbers=_adadelta_numbers,
        update=_adadelta,
    ),
    torch.optim.Adamax: Rule(
        form=_form,
        states=lambda group: ("exp_avg", "exp_inf"),
        numbers=_adamax_numbers,
        update=_adamax,
    ),
    torch.optim.RAdam: Rule(
        form=lambda group: _form(group, "decoupled_weight_decay"),
        states=lambda group: ("exp_avg", "exp_avg_sq"),
        numbers=_radam_numbers,
        update=_radam,
    ),
    torch.optim.NAdam: Rule(
        form=lambda group: _form(group, "decoupled_weight_decay"),
        states=lambda group: ("exp_avg", "exp_avg_sq"),
        numbers=_nadam_numbers,
        update=_nadam,
        counted=("step", "mu_product"),
        first=lambda group: (0.0, 1.0),
        after=_nadam_after,
    ),
    torch.optim.Rprop: Rule(
        form=_form,
        states=lambda group: ("prev", "step_size"),
        numbers=lambda group, counts: (
            *map(float, group["etas"]),
            *map(float, group["step_sizes"]),
        ),
        update=_rprop,
        begins=lambda group, name: float(group["lr"]) if name == "step_size" else 0.0,
    ),
    torch.optim.ASGD: Rule(
        form=_form,
        states=lambda group: ("ax",),
        numbers=_asgd_numbers,
        update=_asgd,
        counted=("step", "eta", "mu"),
        first=lambda group: (0.0, float(group["lr"]), 1.0),
        after=_asgd_after,
    ),
    torch.optim.Adafactor: Rule(
        form=lambda group: (bool(group["maximize"]), group["eps"][0] is None),
        states=lambda group: ("row_var", "col_var", "variance"),
        numbers=_adafactor_numbers,
        update=_adafactor,
        shaped=_factored,
    ),
}
if hasattr(torch.optim, "Muon"):  # from PyTorch 2.9 on
    RULES[torch.optim.Muon] = Rule(
        form=lambda group: (
            bool(group["nesterov"]),
            str(group["ns_steps"]),
            group["adjust_lr_fn"] or "original",
            *[repr(float(c)) for c in (*group["ns_coefficients"], group["eps"])],
        ),
        states=lambda group: ("momentum_buffer",),
        numbers=_muon_numbers,
        update=_muon,
        counted=(),
    )
