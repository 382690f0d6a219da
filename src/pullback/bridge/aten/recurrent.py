"""Steps of LSTM, GRU and RNN: operators of our own, whole in a graph, and their rules as scans.

``pullback::recurrent(gx, w, b, h, c, kind, back) -> states, memories, last memory``: `gx` is what
the inputs give to the gates, ``[steps, rows, gates * size]``; an empty `c` where there is none. The
adjoint reads the states that the forward gave, so all products but those of the steps' adjoints are
one for all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import pullback as pb
from pullback.bridge.aten.table import rule
from pullback.nn.functional import linear
from pullback.nn.sequence import recurrent as own

Results = tuple[Any, ...]
Gates = Callable[[Any, Any, Results], Results]

GATES: dict[str, Gates] = {
    "lstm": own.lstm,
    "gru": own.gru,
    "rnn_tanh": own.rnn_tanh,
    "rnn_relu": own.rnn_relu,
}
COUNTS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

_LIBRARY = torch.library.Library("pullback", "FRAGMENT")
_LIBRARY.define(
    "recurrent(Tensor gx, Tensor w, Tensor? b, Tensor h, Tensor c, str kind, bool back)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "recurrent_backward(Tensor head, Tensor last, Tensor gx, Tensor gh, Tensor w, Tensor h,"
    " Tensor c, str kind, bool back) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
STEPS = torch.ops.pullback.recurrent.default
ADJOINT = torch.ops.pullback.recurrent_backward.default


# --- as PyTorch has them --------------------------------------------------------------------------


def _next(kind: str, gx: Any, gh: Any, state: Results) -> Results:
    """The state after a step, by PyTorch."""
    if kind == "lstm":
        i, f, g, o = (gx + gh).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if kind == "gru":
        (r, z, n), (hr, hz, hn) = gx.chunk(3, -1), gh.chunk(3, -1)
        new = (n + (r + hr).sigmoid() * hn).tanh()
        return (new + (z + hz).sigmoid() * (state[0] - new),)
    return ((gx + gh).tanh() if kind == "rnn_tanh" else (gx + gh).relu(),)


def _order(count: int, back: bool) -> list[int]:
    return list(range(count))[:: -1 if back else 1]


def _stacked(rows: dict[int, Any]) -> Any:
    return torch.stack([rows[t] for t in sorted(rows)])


def _steps(gx: Any, w: Any, b: Any, h: Any, c: Any, kind: str, back: bool) -> Results:
    state: Results = (h, c)[: 1 + (kind == "lstm")]
    rows: dict[int, Results] = {}
    for t in _order(gx.shape[0], back):
        rows[t] = state = _next(kind, gx[t], torch.nn.functional.linear(state[0], w, b), state)
    states = _stacked({t: row[0] for t, row in rows.items()})
    if kind != "lstm":
        return states, c.clone(), c.clone()
    return states, _stacked({t: row[1] for t, row in rows.items()}), state[1].clone()


def _adjoint(
    head: Any, last: Any, gx: Any, gh: Any, w: Any, h: Any, c: Any, kind: str, back: bool
) -> Results:
    def run(x: Any, g: Any, *s: Any) -> Any:
        return _next(kind, x, g, s)

    carry: Results = (torch.zeros_like(h[0]), last)[: 1 + (kind == "lstm")]
    rows: dict[int, Results] = {}
    for t in _order(gx.shape[0], not back):
        state = (h[t], c[t]) if kind == "lstm" else (h[t],)
        heads = (carry[0] + head[t], *carry[1:])
        dx, dg, *before = torch.func.vjp(run, gx[t], gh[t], *state)[1](heads)
        rows[t] = (dx, dg)
        carry = (before[0] + dg @ w, *before[1:])
    whole = [_stacked({t: row[n] for t, row in rows.items()}) for n in range(2)]
    return *whole, carry[0], carry[1] if kind == "lstm" else last.clone()


def _outline(gx: Any, w: Any, b: Any, h: Any, c: Any, kind: str, back: bool) -> Results:
    del w, b, back
    states = gx.new_empty((gx.shape[0], *h.shape))
    memories = gx.new_empty((gx.shape[0], *c.shape)) if kind == "lstm" else torch.empty_like(c)
    return states, memories, torch.empty_like(c)


def _adjoint_outline(head: Any, last: Any, gx: Any, gh: Any, *rest: Any) -> Results:
    del rest
    return (
        torch.empty_like(gx),
        torch.empty_like(gh),
        head.new_empty(head.shape[1:]),
        torch.empty_like(last),
    )


def _before(states: Any, first: Any, back: bool) -> Any:
    """What each step begins with: the state of the one before."""
    parts = [states[1:], first[None]] if back else [first[None], states[:-1]]
    return torch.cat(parts)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    gx, w, b, h, c, kind, back = inputs
    ctx.told = kind, back
    ctx.biased = b is not None
    given = (gx, w, h, c, *(() if b is None else (b,)))
    ctx.save_for_backward(*given, output[0], output[1])
    ctx.set_materialize_grads(True)


def _backward(ctx: Any, head: Any, unused: Any, last: Any) -> Results:
    """What no step needs is a product of all of them: the weights' adjoints among it."""
    del unused
    gx, w, h, c, *b, states, memories = ctx.saved_tensors
    kind, back = ctx.told
    before = _before(states, h, back)
    kept = _before(memories, c, back) if kind == "lstm" else c
    gh = torch.nn.functional.linear(before, w, b[0] if b else None)
    dx, dg, dh, dc = ADJOINT(head, last, gx, gh, w, before, kept, kind, back)
    rows = dg.flatten(0, 1)
    dw = rows.t() @ before.flatten(0, 1)
    return dx, dw, rows.sum(0) if b else None, dh, dc, None, None


for _name, _run, _fake in (
    ("recurrent", _steps, _outline),
    ("recurrent_backward", _adjoint, _adjoint_outline),
):
    _LIBRARY.impl(_name, _run, "CPU")
    torch.library.register_fake(f"pullback::{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd(
    "pullback::recurrent", _backward, setup_context=_setup, lib=_LIBRARY
)


# --- as programs have them ------------------------------------------------------------------------


def _turned(x: Any, back: bool) -> Any:
    return pb.flip(x, axis=0) if back else x


@rule(STEPS)
def recurrent(gx: Any, w: Any, b: Any, h: Any, c: Any, kind: str, back: bool) -> Results:
    """A scan: the states of all steps, the memories where it is an LSTM, and the last one."""
    gates = GATES[kind]

    def body(state: Results, x: Any) -> tuple[Results, Results]:
        new = gates(x, linear(state[0], w, b), state)
        return new, new

    start = (h, c) if kind == "lstm" else (h,)
    last, rows = pb.scan(body, start, _turned(gx, back))
    states = _turned(rows[0], back)
    return (states, _turned(rows[1], back), last[1]) if kind == "lstm" else (states, c, c)


@rule(ADJOINT)
def recurrent_backward(
    head: Any, last: Any, gx: Any, gh: Any, w: Any, h: Any, c: Any, kind: str, back: bool
) -> Results:
    """A scan from the last step: adjoints of both sides of the gates, and of the first state."""
    gates = GATES[kind]
    long = kind == "lstm"

    def body(carry: Results, row: Results) -> tuple[Results, Results]:
        own, x, g, *state = row

        def run(x: Any, g: Any, *state: Any) -> Results:
            return gates(x, g, state)

        _, pull = pb.vjp(run, x, g, *state)
        heads = (carry[0] + own, *carry[1:])
        dx, dg, *before = pull(heads)
        return (before[0] + dg @ w, *before[1:]), (dx, dg)

    start = (pb.zeros(tuple(head.shape[1:]), dtype=head.dtype), *((last,) if long else ()))
    rows = [_turned(r, not back) for r in (head, gx, gh, h, *((c,) if long else ()))]
    ends, whole = pb.scan(body, start, tuple(rows))
    dx, dg = (_turned(r, not back) for r in whole)
    return dx, dg, ends[0], ends[1] if long else last
