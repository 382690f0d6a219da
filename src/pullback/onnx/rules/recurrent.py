"""LSTM, GRU and RNN: a scan over the steps each way.

Activations are those of the definition; peepholes of LSTM, both forms of GRU's reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
from pullback.config import frozen
from pullback.onnx.rules.table import demand, rule

State = tuple[Any, ...]
Step = Callable[[Any, State], State]
_KNOWN: dict[str, Callable[[Any], Any]] = {
    "tanh": pb.tanh, "sigmoid": pb.sigmoid, "relu": pb.relu, "softplus": pb.softplus,
}  # fmt: skip


@frozen
class Layer:
    """What the three operators have in common."""

    direction: str
    layout: int
    activations: tuple[Callable[[Any], Any], ...]  # of each way, one after the other

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether each way is from the end."""
        ways = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        demand(self.direction in ways, f"direction={self.direction!r}")
        return ways[self.direction]


def layer(
    names: Sequence[str] | None, plain: Sequence[str], direction: str, layout: int,
    clip: float | None, alpha: Any, beta: Any,
) -> Layer:  # fmt: skip
    """Raises: Refused for clips, and activations that take numbers."""
    demand(clip is None, "clip")
    demand(not alpha and not beta, "activation_alpha and activation_beta")
    count = 2 if direction == "bidirectional" else 1
    own = list(names) if names and len(names) == count * len(plain) else list(plain) * count
    demand(not names or len(names) >= len(plain), f"activations={names}")
    for name in own:
        demand(name.lower() in _KNOWN, f"activation {name!r}")
    return Layer(direction, layout, tuple(_KNOWN[n.lower()] for n in own))


def run(
    own: Layer, x: Any, lengths: Any, states: Sequence[Any], size: int,
    step: Callable[[int], tuple[Step, Callable[[Any], Any]]],
) -> tuple[Any, ...]:  # fmt: skip
    """Outputs of all steps, and the last states. `step` gives a way's: a step and what the input
    gives to all steps at once. Behind a sample's length its state stays, and its output is 0.
    """
    x = pb.permute_dims(x, (1, 0, 2)) if own.layout else x
    steps, batch = x.shape[:2]
    rows, lasts = [], []
    for way, back in enumerate(own.ways):
        function, given = step(way)
        start = tuple([_start(s, way, own, batch, size, x.dtype) for s in states])
        gx, inside = given(x), _inside(lengths, steps)
        if back:
            gx = _turned(gx, lengths, steps)
        last, y = _scanned(function, start, gx, inside)
        rows.append(_turned(y, lengths, steps) if back else y)
        lasts.append(last)
    whole = pb.stack(rows, axis=1)
    ends = [pb.stack([last[n] for last in lasts], axis=0) for n in range(len(states))]
    if own.layout:
        whole = pb.permute_dims(whole, (2, 0, 1, 3))
        ends = [pb.permute_dims(e, (1, 0, 2)) for e in ends]
    return whole, *ends


def _start(given: Any, way: int, own: Layer, batch: int, size: int, kind: Any) -> Any:
    if given is None:
        return pb.zeros((batch, size), dtype=kind)
    return given[:, way] if own.layout else given[way]


def _inside(lengths: Any, steps: int) -> Any:
    """Whether a step is of a sample; None where all are."""
    if lengths is None:
        return None
    return pb.expand_dims(pb.arange(steps, dtype=lengths.dtype), axis=1) < lengths


def _turned(x: Any, lengths: Any, steps: int) -> Any:
    """Steps from the last of each sample to its first."""
    if lengths is None:
        return pb.flip(x, axis=0)
    time = pb.expand_dims(pb.arange(steps, dtype=pb.int64), axis=1)
    own = pb.expand_dims(pb.astype(lengths, pb.int64), axis=0)
    places = pb.expand_dims(pb.where(time < own, own - 1 - time, time), axis=2)
    return pb.take_along_axis(x, pb.broadcast_to(places, tuple(x.shape)), axis=0)


def _scanned(function: Step, start: State, gx: Any, inside: Any) -> tuple[State, Any]:
    def body(state: State, row: Any) -> Any:
        new = function(row if inside is None else row[0], state)
        if inside is None:
            return new, new[0]
        here = pb.expand_dims(row[1], axis=1)
        kept = tuple([pb.where(here, n, o) for n, o in zip(new, state, strict=True)])
        return kept, pb.where(here, new[0], 0)

    last, rows = pb.scan(body, start, gx if inside is None else (gx, inside))
    return last, rows


def _weights(w: Any, r: Any, b: Any, way: int) -> tuple[Any, Any, Any, Any]:
    """Of one way: for the input, for the state, transposed, and both biases."""
    both = (None, None) if b is None else pb.split(b[way], 2, axis=0)
    return pb.matrix_transpose(w[way]), pb.matrix_transpose(r[way]), *both


def _plus(x: Any, b: Any) -> Any:
    return x if b is None else x + b


def _columns(x: Any, parts: int) -> list[Any]:
    size = x.shape[-1] // parts
    return [x[..., n * size : (n + 1) * size] for n in range(parts)]


def lstm(
    x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, p: Any, own: Layer
) -> tuple[Any, ...]:
    """``c = f c + i g, h = o tanh(c)``; gates i, o, f, g, of which three see the memory by `p`."""

    def step(way: int) -> tuple[Step, Callable[[Any], Any]]:
        wx, wh, bx, bh = _weights(w, r, b, way)
        gate, cell, out = own.activations[3 * way : 3 * way + 3]
        peeps = _columns(p[way], 3) if p is not None else [0.0] * 3

        def one(gx: Any, state: State) -> State:
            before, memory = state
            i, o, f, g = _columns(gx + pb.matmul(before, wh), 4)
            kept = gate(f + peeps[2] * memory) * memory
            new = kept + gate(i + peeps[0] * memory) * cell(g)
            return gate(o + peeps[1] * new) * out(new), new

        return one, lambda x: _plus(_plus(pb.matmul(x, wx), bx), bh)

    return run(own, x, lengths, (h, c), r.shape[-1], step)


def gru(
    x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, own: Layer, linear: bool
) -> tuple[Any, ...]:
    """``h = (1 - z) n + z h``; the reset before the product with the state, or `linear`, after."""

    def step(way: int) -> tuple[Step, Callable[[Any], Any]]:
        wx, wh, bx, bh = _weights(w, r, b, way)
        gate, cell = own.activations[2 * way : 2 * way + 2]
        both, last = (wh[:, : 2 * r.shape[-1]], wh[:, 2 * r.shape[-1] :])
        biases = [0.0] * 3 if bh is None else _columns(bh, 3)

        def one(gx: Any, state: State) -> State:
            before = state[0]
            z, q, n = _columns(gx, 3)
            hz, hq = _columns(pb.matmul(before, both), 2)
            z, q = gate(z + hz + biases[0]), gate(q + hq + biases[1])
            if linear:
                n = cell(n + q * (pb.matmul(before, last) + biases[2]))
            else:
                n = cell(n + pb.matmul(q * before, last) + biases[2])
            return ((1.0 - z) * n + z * before,)

        return one, lambda x: _plus(pb.matmul(x, wx), bx)

    return run(own, x, lengths, (h,), r.shape[-1], step)


def rnn(x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, own: Layer) -> tuple[Any, ...]:
    """``h = tanh(x W + h R + b)``"""

    def step(way: int) -> tuple[Step, Callable[[Any], Any]]:
        wx, wh, bx, bh = _weights(w, r, b, way)
        cell = own.activations[way]

        def one(gx: Any, state: State) -> State:
            return (cell(gx + pb.matmul(state[0], wh)),)

        return one, lambda x: _plus(_plus(pb.matmul(x, wx), bx), bh)

    return run(own, x, lengths, (h,), r.shape[-1], step)


@rule("LSTM", 7, 14, 22)
def lstm_of(
    x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None,
    p: Any = None, *, activation_alpha: Any, activation_beta: Any, activations: Any,
    clip: float | None, direction: str, hidden_size: int | None, input_forget: int,
    layout: int = 0,
) -> Any:  # fmt: skip
    del hidden_size
    demand(not input_forget, "input_forget")
    plain = ("Sigmoid", "Tanh", "Tanh")
    own = layer(activations, plain, direction, layout, clip, activation_alpha, activation_beta)
    return lstm(x, w, r, b, lengths, h, c, p, own)


@rule("GRU", 7, 14, 22)
def gru_of(
    x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, *,
    activation_alpha: Any, activation_beta: Any, activations: Any, clip: float | None,
    direction: str, hidden_size: int | None, linear_before_reset: int, layout: int = 0,
) -> Any:  # fmt: skip
    del hidden_size
    plain = ("Sigmoid", "Tanh")
    own = layer(activations, plain, direction, layout, clip, activation_alpha, activation_beta)
    return gru(x, w, r, b, lengths, h, own, bool(linear_before_reset))


@rule("RNN", 7, 14, 22)
def rnn_of(
    x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, *,
    activation_alpha: Any, activation_beta: Any, activations: Any, clip: float | None,
    direction: str, hidden_size: int | None, layout: int = 0,
) -> Any:  # fmt: skip
    del hidden_size
    named = activations
    if named and direction != "bidirectional":
        named = list(named)[:1]
    own = layer(named, ("Tanh",), direction, layout, clip, activation_alpha, activation_beta)
    return rnn(x, w, r, b, lengths, h, own)
