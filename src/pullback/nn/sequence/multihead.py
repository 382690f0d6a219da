"""Multi-head attention under torch's names and in-projection layout."""

from __future__ import annotations

import math
from typing import Any

from pullback.errors import DTypeError, ShapeError, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Extent
from pullback.ir.graph import Value
from pullback.nn import init
from pullback.nn.base.build import at, make
from pullback.nn.base.module import Module
from pullback.nn.linear.layers import Linear
from pullback.nn.linear.linear import linear_rows
from pullback.nn.sequence.attention import Attended, Mask, Packed, attend
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import reduction, views
from pullback.tensor.values.elementwise import show


class MultiheadAttention(Module):
    """``softmax(q k^T / sqrt(E)) v`` of `num_heads` heads, between learned projections.

    Called with (query, key, value); the same tensor three times is self-attention. The returned
    weights are lazy: not looked at, they are not computed.

    Example:
        >>> x = pb.ones((5, 1, 8))
        >>> output, weights = nn.MultiheadAttention(8, 2)(x, x, x)
        >>> output.shape, weights.shape
        ((5, 1, 8), (1, 5, 5))
    """

    @shaped("", where="int(embed_dim) >= 1, int(num_heads) >= 1, 0 <= dropout <= 1")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ShapeError(
                f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}", code="E125"
            )
        if add_bias_kv or add_zero_attn:
            raise UnsupportedError("MultiheadAttention with add_bias_kv or add_zero_attn")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._make_projections(bias, dtype)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def _make_projections(self, bias: bool, dtype: Any) -> None:
        """One packed weight (3 E, E), or three where key or value have another width."""
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        for name in (*names, "in_proj_bias"):
            self.register_parameter(name, None)
        wide = self.embed_dim
        widths = (wide, self.kdim, self.vdim)
        if widths == (wide, wide, wide):
            bound = math.sqrt(6.0 / (wide + 3 * wide))
            self.in_proj_weight = init.new_uniform((3 * wide, wide), bound, dtype)
        else:
            for name, width in zip(names[1:], widths, strict=True):
                bound = math.sqrt(6.0 / (wide + width))
                setattr(self, name, init.new_uniform((wide, width), bound, dtype))
        if bias:
            self.in_proj_bias = init.new_full((3 * wide,), 0.0, dtype)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the weights (averaged over heads, or of each head)."""
        check = _batch_first if self.batch_first else _batch_second
        check(self, query, key, value, key_padding_mask, attn_mask)
        self._check_weights()
        swapped = not self.batch_first and len(query.shape) == 3
        if swapped:
            memo = {id(t): _swap(t) for t in (query, key, value)}
            query, key, value = (memo[id(t)] for t in (query, key, value))
        mask = self._mask(query, key_padding_mask, attn_mask, is_causal)
        attended = self._attend(query, key, value, mask)
        output = self.out_proj(attended.output)
        weights = None
        if need_weights:
            weights = attended.weights
            if average_attn_weights:
                weights = Tensor(reduction.mean(weights.value, len(query.shape) - 2, False))
        return (_swap(output) if swapped else output), weights

    def _check_weights(self) -> None:
        """Raises: ShapeError where weights that were put in place of the first ones do not fit."""
        wide = self.embed_dim
        wanted = {
            "in_proj_weight": (3 * wide, wide),
            "q_proj_weight": (wide, wide),
            "k_proj_weight": (wide, self.kdim),
            "v_proj_weight": (wide, self.vdim),
            "in_proj_bias": (3 * wide,),
        }
        for name, shape in wanted.items():
            cell = self._parameters[name]
            if cell is not None and tuple(cell.shape) != shape:
                raise ShapeError(
                    f"MultiheadAttention: `{name}` of {show(cell.value.shape)}",
                    help=f"embed_dim={wide}, kdim={self.kdim}, vdim={self.vdim} has {show(shape)}",
                    code="E175",
                )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Attended:
        wide = self.embed_dim
        packed = self.in_proj_weight is not None
        dropout = self.dropout if self.training else 0.0
        scale = 1.0 / math.sqrt(self.head_dim)
        if packed and query is key and key is value:
            all3 = linear_rows(query, self.in_proj_weight, self.in_proj_bias, 0, 3 * wide)
            q, k, v = (self._heads(all3, n * wide) for n in range(3))
            return attend(q, k, v, mask, scale, dropout)
        q = self._heads(self._project(query, 0), 0)
        if packed and key is value:
            both = linear_rows(key, self.in_proj_weight, self.in_proj_bias, wide, 2 * wide)
            k, v = self._heads(both, 0), self._heads(both, wide)
            return attend(q, k, v, mask, scale, dropout)
        k = self._heads(self._project(key, 1), 0)
        v = self._heads(self._project(value, 2), 0)
        return attend(q, k, v, mask, scale, dropout)

    def _heads(self, tensor: Tensor, start: int) -> Packed:
        return Packed(tensor.value, start, self.num_heads, self.head_dim, tensor.dtype)

    def _project(self, tensor: Tensor, part: int) -> Tensor:
        """Queries (part 0), keys (1) or values (2)."""
        wide = self.embed_dim
        if self.in_proj_weight is not None:
            weight, bias = self.in_proj_weight, self.in_proj_bias
            return linear_rows(tensor, weight, bias, part * wide, wide)
        weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[part]
        bias = self.in_proj_bias
        if bias is None:
            return linear_rows(tensor, weight, None, 0, wide)
        return linear_rows(tensor, weight, _part(bias, part * wide, wide), 0, wide)

    def _mask(
        self,
        query: Tensor,
        padding: Tensor | None,
        given: Tensor | None,
        causal: bool,
    ) -> Mask:
        """torch's masks, where true means: not to be looked at."""
        allowed = added = ignored = None
        if given is not None:
            batch = query.value.shape[0] if len(query.shape) == 3 else 1
            value = self._by_head(given.value, batch, len(query.shape) == 3)
            allowed, added = _split_mask(value)
            causal = False
        if padding is not None:
            if padding.dtype != D.bool_:
                raise DTypeError(f"key_padding_mask is bool, not {padding.dtype}", code="E147")
            ignored = padding.value
        return Mask(causal, allowed, added, ignored)

    def _by_head(self, mask: Value, batch: Extent, batched: bool) -> Value:
        """torch's (batch * heads, queries, keys) as (batch, heads, queries, keys).

        Raises: ShapeError for another number of masks.
        """
        if len(mask.shape) != 3:
            return mask
        heads = self.num_heads
        if E.upper(mask.shape[0]) != E.upper(batch) * heads:
            raise ShapeError(
                f"attn_mask of {show(mask.shape)}",
                help=f"(queries, keys), or ({batch} * {heads} heads, queries, keys)",
                code="E175",
            )
        shape = (E.upper(mask.shape[0]) // heads, heads, *mask.shape[1:])
        return views.reshape(mask, shape) if batched else mask


@shaped(
    "query[t, n..., self.embed_dim], key[s, n..., self.kdim], value[s, n..., self.vdim], "
    "key_padding_mask[n..., s], attn_mask[t, s] or [_, t, s]",
    name="MultiheadAttention",
)
def _batch_second(
    self: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> None:
    """What the layer takes where positions come first."""
    _one_batch_axis(query)


@shaped(
    "query[n..., t, self.embed_dim], key[n..., s, self.kdim], value[n..., s, self.vdim], "
    "key_padding_mask[n..., s], attn_mask[t, s] or [_, t, s]",
    name="MultiheadAttention",
)
def _batch_first(
    self: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> None:
    """What the layer takes where the batch comes first."""
    _one_batch_axis(query)


def _one_batch_axis(query: Tensor) -> None:
    """Raises: ShapeError for more than one axis of batch."""
    if len(query.shape) > 3:
        raise ShapeError(
            f"attention of {show(query.value.shape)}",
            help="(positions, features) or, with a batch, three axes",
            code="E111",
        )


def _split_mask(mask: Value) -> tuple[Value | None, Value | None]:
    """A mask as (allowed, added). Raises: DTypeError where it is neither bool nor float."""
    if mask.dtype.is_float:
        return None, mask
    if mask.dtype != D.bool_:
        raise DTypeError(f"attn_mask is bool or float, not {mask.dtype}", code="E147")
    allowed = make("allowed", mask.shape, lambda *i: E.logical_not(at(mask, *i)))
    return allowed.value, None


def _swap(tensor: Tensor) -> Tensor:
    """``y[b, t, e] = x[t, b, e]``"""
    return Tensor(views.permute(tensor.value, (1, 0, 2)))


def _part(bias: Tensor, start: int, size: int) -> Tensor:
    """``y[n] = b[start + n]``"""
    value = bias.value
    return make("part", (size,), lambda n: at(value, E.Add(n, E.index(start))))
