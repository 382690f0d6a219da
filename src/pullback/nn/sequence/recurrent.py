"""RNN, LSTM and GRU under torch's names.

A cell maps what it is given and its state to the next state: ``gates`` does so one element at a
time, from ``gx = w_ih x + b_ih`` and ``gh = w_hh h + b_hh``. The part that needs no state, `gx`, is
one product over all steps. In a program the steps are a scan, outside of one (and for a GRU
always) they are written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir import expr as E
from pullback.nn import init
from pullback.nn.activation.dropout import dropout
from pullback.nn.base.build import written
from pullback.nn.base.module import Module
from pullback.nn.linear.linear import linear
from pullback.tensor.face.tensor import Tensor, check_device, value_of
from pullback.tensor.forms.control import scan
from pullback.tensor.library import maths as M
from pullback.tensor.library.ops import concat, flip, stack
from pullback.tensor.record.trace import current
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32

State = tuple[Tensor, ...]
Gates = Callable[[Tensor, Tensor, State], State]


@in_float32
def rnn_tanh(gx: Tensor, gh: Tensor, state: State) -> State:
    """``h = tanh(gx + gh)``"""
    return (written(gx.shape, lambda *i: M.tanh(gx[i] + gh[i]), "rnn"),)


@in_float32
def rnn_relu(gx: Tensor, gh: Tensor, state: State) -> State:
    """``h = max(0, gx + gh)``"""
    return (written(gx.shape, lambda *i: M.relu(gx[i] + gh[i]), "rnn"),)


@in_float32
def lstm(gx: Tensor, gh: Tensor, state: State) -> State:
    """``c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c)``; gates i, f, g, o."""
    before = state[1]
    size = E.upper(before.shape[-1])

    def gate(n: Any, j: Any, number: int) -> Any:
        at = (*n, number * size + j)
        return gx[at] + gh[at]

    def memory(*i: Any) -> Any:
        *n, j = i
        kept = M.sigmoid(gate(n, j, 1)) * before[i]
        return kept + M.sigmoid(gate(n, j, 0)) * M.tanh(gate(n, j, 2))

    c = written(before.shape, memory, "lstm_memory")

    def hidden(*i: Any) -> Any:
        *n, j = i
        return M.sigmoid(gate(n, j, 3)) * M.tanh(c[i])

    return written(before.shape, hidden, "lstm"), c


@in_float32
def gru(gx: Tensor, gh: Tensor, state: State) -> State:
    """``n = tanh(gx_n + sigmoid(r) gh_n), h = (1 - z) n + z h, z = sigmoid(z)``; gates r, z, n."""
    h = state[0]
    size = E.upper(h.shape[-1])
    two = (*h.shape[:-1], 2 * size)
    open = written(two, lambda *i: M.sigmoid(gx[i] + gh[i]), "gru_gates")

    def fresh(*i: Any) -> Any:
        last = (*i[:-1], 2 * size + i[-1])
        return M.tanh(gx[last] + open[i] * gh[last])

    new = written(h.shape, fresh, "gru_new")

    def hidden(*i: Any) -> Any:
        z = open[(*i[:-1], size + i[-1])]
        return new[i] + z * (h[i] - new[i])

    return (written(h.shape, hidden, "gru"),)


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """The weights of a cell, under torch's names; `hr` projects the hidden state."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None

    def given(self, x: Tensor) -> Tensor:
        """What the input gives to the gates."""
        return linear(x, self.ih, self.bias_ih)

    def step(self, gates: Gates, gx: Tensor, state: State) -> State:
        """The next state."""
        new = gates(gx, linear(state[0], self.hh, self.bias_hh), state)
        return new if self.hr is None else (linear(new[0], self.hr), *new[1:])

    def run(self, gates: Gates, x: Tensor, state: State, back: bool) -> tuple[Tensor, State]:
        """The hidden states of all steps of ``x[t]``, and the last state; `back`: from the end."""
        given = self.given(x)

        def body(carry: State, gx: Tensor) -> tuple[State, Tensor]:
            new = self.step(gates, gx, carry)
            return new, new[0]

        order = flip(given, axis=0) if back else given
        last, states = (scan if current() else _unrolled)(body, state, order)
        return (flip(states, axis=0) if back else states), last


def _unrolled(
    body: Callable[[State, Tensor], tuple[State, Tensor]], state: State, steps: Tensor
) -> tuple[State, Tensor]:
    """`scan` outside of a program: every step is a definition of its own."""
    outputs = []
    for x in steps:
        state, y = body(state, x)
        outputs.append(y)
    return state, stack(outputs)


class _Recurrent(Module):
    """What cells and layers share: which gates, how many, and their weights."""

    count: ClassVar[int]
    states: ClassVar[int] = 1
    hidden_size: int
    bias: bool

    def _gates(self) -> Gates:
        raise NotImplementedError

    def _draw(self, name: str, into: int, hidden: int, projected: int, dtype: Any) -> None:
        """Weights of one cell, their names ending in `name`."""
        bound = 1.0 / math.sqrt(hidden) if hidden else 0.0
        rows = self.count * hidden
        shapes: dict[str, tuple[int, ...]]
        shapes = {"weight_ih": (rows, into), "weight_hh": (rows, projected or hidden)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if projected:
            shapes["weight_hr"] = (projected, hidden)
        for first, shape in shapes.items():
            setattr(self, first + name, init.new_uniform(shape, bound, dtype))

    def _weights(self, name: str) -> Weights:
        cells = self._parameters
        first, second = cells[f"weight_ih{name}"], cells[f"weight_hh{name}"]
        assert first is not None and second is not None
        rows = self.count * self.hidden_size
        if first.shape[0] != rows or second.shape[0] != rows:
            raise ShapeError(
                f"{type(self).__name__}: weights of {first.shape[0]} and {second.shape[0]} rows",
                help=f"hidden_size={self.hidden_size} has {rows}",
                code="E175",
            )
        rest = (cells.get(n + name) for n in ("bias_ih", "bias_hh", "weight_hr"))
        return Weights(first, second, *rest)


class _Layers(_Recurrent):
    """Cells run over a sequence ``(L, N, I)``, layer upon layer, in one direction or both.

    Gives the hidden states of the last layer and the last state of every layer. Without N too.
    """

    @shaped(
        "",
        where="int(input_size) >= 0, int(hidden_size) >= 1, int(num_layers) >= 1, "
        "0 <= dropout <= 1, int(proj_size) >= 0, proj_size < hidden_size",
    )
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        if proj_size and self.states == 1:
            raise UnsupportedError("proj_size without an LSTM")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        into = input_size
        for layer in range(num_layers):
            for name in self._names(layer):
                self._draw(name, into, hidden_size, proj_size, dtype)
            into = (proj_size or hidden_size) * (1 + bidirectional)

    def _names(self, layer: int) -> list[str]:
        """How the names of weights end, for each direction."""
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    @shaped("input[_, _, self.input_size] or [_, self.input_size]")
    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        rank = len(input.shape)
        if 0 in input.shape:
            raise ShapeError(
                f"{type(self).__name__} of {show(input.value.shape)}",
                help="a sequence of no steps has no last state",
                code="E118",
            )
        turned = self.batch_first and rank == 3
        x = input.permute_dims(1, 0, 2) if turned else input
        starts = self._starts(x, hx)
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.training:
                x = dropout(x, self.dropout)
            directions = []
            for back, name in enumerate(self._names(layer)):
                start = starts[len(lasts)]
                y, last = self._weights(name).run(self._gates(), x, start, bool(back))
                directions.append(y)
                lasts.append(last)
            x = directions[0] if len(directions) == 1 else concat(directions, -1)
        ends = tuple(stack(parts) for parts in zip(*lasts, strict=True))
        y = x.permute_dims(1, 0, 2) if turned else x
        return y, ends if self.states > 1 else ends[0]

    def _starts(self, x: Tensor, hx: Any) -> list[State]:
        """The first state of each layer and direction; zeros where none is given."""
        cells = self.num_layers * (1 + self.bidirectional)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: self.states]
        lead = x.shape[1:-1]
        if hx is None:
            return [_zeros([(*lead, n) for n in sizes], x) for _ in range(cells)]
        given = _given(hx)
        wanted = [(cells, *lead, n) for n in sizes]
        if [h.shape for h in given] != wanted:
            raise ShapeError(f"hx must have the shapes {wanted}", code="E175")
        return [tuple(h[n] for h in given) for n in range(cells)]


def _given(hx: Any) -> State:
    """A state as it is handed over: one tensor, or several. Raises: DTypeError."""
    return tuple(Tensor(value_of(h)) for h in (hx if isinstance(hx, list | tuple) else (hx,)))


def _zeros(shapes: Sequence[Any], like: Tensor) -> State:
    return tuple(Tensor(elementwise.full(s, 0, like.dtype)) for s in shapes)


class _Cell(_Recurrent):
    """One step: the state after `input`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self._draw("", input_size, hidden_size, 0, dtype)

    @shaped("input[n, self.input_size] or [self.input_size]")
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        shape = (*input.shape[:-1], self.hidden_size)
        state = _zeros([shape] * self.states, input) if hx is None else _given(hx)
        if [h.shape for h in state] != [shape] * self.states:
            raise ShapeError(f"hx must have the shapes {[shape] * self.states}", code="E175")
        weights = self._weights("")
        new = weights.step(self._gates(), weights.given(input), state)
        return new if self.states > 1 else new[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


class _Simple(_Recurrent):
    """``h = tanh(w_ih x + b_ih + w_hh h + b_hh)``, or relu."""

    count = 1
    nonlinearity: str

    def _gates(self) -> Gates:
        if self.nonlinearity not in ("tanh", "relu"):
            raise UnsupportedError(f"nonlinearity={self.nonlinearity!r}", code="E312")
        return rnn_tanh if self.nonlinearity == "tanh" else rnn_relu


class _Long(_Recurrent):
    """A state of two: what is shown, and a memory."""

    count = 4
    states = 2

    def _gates(self) -> Gates:
        return lstm


class _Gated(_Recurrent):
    """A state between the last one and a new one."""

    count = 3

    def _gates(self) -> Gates:
        return gru


class RNN(_Simple, _Layers):
    """``h = tanh(w_ih x + b_ih + w_hh h + b_hh)`` over a sequence, or relu.

    Example:
        >>> output, hidden = nn.RNN(2, 3)(pb.ones((5, 1, 2)))
        >>> output.shape, hidden.shape
        ((5, 1, 3), (1, 1, 3))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )
        self.nonlinearity = nonlinearity
        self._gates()


class LSTM(_Long, _Layers):
    """Long short-term memory over a sequence: gives ``y, (h, c)``.

    Example:
        >>> output, (hidden, cell) = nn.LSTM(2, 3)(pb.ones((5, 1, 2)))
        >>> output.shape, cell.shape
        ((5, 1, 3), (1, 1, 3))
    """


class GRU(_Gated, _Layers):
    """Gated recurrent units over a sequence: gives ``y, h``.

    Example:
        >>> output, hidden = nn.GRU(2, 3)(pb.ones((5, 1, 2)))
        >>> output.shape, hidden.shape
        ((5, 1, 3), (1, 1, 3))
    """


class RNNCell(_Simple, _Cell):
    """One step of an RNN.

    Example:
        >>> nn.RNNCell(2, 3)(pb.ones((1, 2))).shape
        (1, 3)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity
        self._gates()


class LSTMCell(_Long, _Cell):
    """One step of an LSTM: gives ``h, c``.

    Example:
        >>> hidden, cell = nn.LSTMCell(2, 3)(pb.ones((1, 2)))
        >>> hidden.shape, cell.shape
        ((1, 3), (1, 3))
    """


class GRUCell(_Gated, _Cell):
    """One step of a GRU.

    Example:
        >>> nn.GRUCell(2, 3)(pb.ones((1, 2))).shape
        (1, 3)
    """
