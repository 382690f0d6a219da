"""Layers of PyTorch that take or hold more than a plain one: batch norms, GLU, attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import pullback as pb
from pullback.bridge.fused import FACTOR, RESIDUAL, Fused, activation
from pullback.nn import functional as F
from pullback.nn.norm.normalization import by_batch

CAUSAL = "causal"
Body = Callable[[Sequence[Any], dict[str, Any]], Any]


class BatchNorm(Fused):
    """``act((x - mean) / sqrt(var + eps) w + b + residual)``, running statistics in training."""

    eps: float
    momentum: float | None
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any
    _check_input_dim: Any

    def _pullback_told(self) -> dict[str, Any]:
        return {"eps": self.eps, "training": self.training, "tracked": self._tracked()}

    def _tracked(self) -> bool:
        return self.running_mean is not None

    def _pullback_inputs(self) -> int:
        return 1

    def _pullback_tensors(self) -> dict[str, Any]:
        """Statistics that a call is to change are kept for the backward, which does not read them:
        under another count of versions.
        """
        held = super()._pullback_tensors()
        held.pop("num_batches_tracked", None)
        if self.training:
            held |= {n: held[n].data for n in ("running_mean", "running_var") if n in held}
        return held

    def _pullback_body(self) -> Body:
        eps, own, tracked = self.eps, self.training or not self._tracked(), self._tracked()

        def run(inputs: Sequence[Any], held: dict[str, Any]) -> Any:
            x, w, b = inputs[0], held.get("weight"), held.get("bias")
            means, vars = held.get("running_mean"), held.get("running_var")
            new = []
            if own:
                y, mean, var = by_batch(x, w, b, eps)
                factor: Any = held.get(FACTOR)
                pairs = ((means, mean), (vars, var)) if tracked else ()
                new = [old * (1 - factor) + step * factor for old, step in pairs]
            else:
                y = F.batch_norm(x, means, vars, w, b, eps=eps)
            y = y + held[RESIDUAL] if RESIDUAL in held else y
            return (y, *new) if new else y

        return run

    def forward(self, input: Any, residual: Any = None, *, pre_act_add: Any = None) -> Any:
        """With a tensor to add before the activation, which attorch calls `pre_act_add`."""
        residual = pre_act_add if residual is None else residual
        if torch.compiler.is_compiling():
            return self._pullback_composed(input, residual)
        self._check_input_dim(input)
        updates = self.training and self._tracked()
        if self.training or not self._tracked():
            torch.nn.functional._verify_batch_size(input.size())
        more = ((RESIDUAL,) if residual is not None else ()) + ((FACTOR,) if updates else ())
        operator = self._pullback_operator(more, 3 if updates else 1)
        if isinstance(operator, str):
            return self._pullback_composed(input, residual)
        given = [] if residual is None else [residual]
        if not updates:
            return self._pullback_run(operator, (input,), *given)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        given.append(torch.tensor(factor, dtype=self.running_mean.dtype))
        y, means, vars = self._pullback_run(operator, (input,), *given)
        with torch.no_grad():
            self.running_mean.copy_(means)
            self.running_var.copy_(vars)
        return y

    def _pullback_composed(self, *inputs: Any, **named: Any) -> Any:
        x, residual = inputs
        y = super(Fused, self).forward(x)  # type: ignore[misc]  # of the layer
        return self._pullback_after(y if residual is None else y + residual)


class Gated(Fused):
    """``a act(b)`` of the halves of an axis."""

    dim: int

    @property
    def _pullback_follows(self) -> str | None:
        return None

    def _pullback_told(self) -> dict[str, Any]:
        return {"dim": self.dim, "gate": self.act_func}

    def _pullback_body(self) -> Body:
        dim = self.dim
        own, told = activation(self.act_func or "sigmoid")

        def run(inputs: Sequence[Any], held: dict[str, Any]) -> Any:
            del held
            x = inputs[0]
            before = (slice(None),) * (dim % x.ndim)
            half = x.shape[dim] // 2
            a, b = x[(*before, slice(0, half))], x[(*before, slice(half, None))]
            return a * getattr(F, own)(b, **told)

        return run

    def _pullback_composed(self, *inputs: Any, **named: Any) -> Any:
        own, told = activation(self.act_func or "sigmoid")
        a, b = inputs[0].chunk(2, self.dim)
        y = a * getattr(torch.nn.functional, own)(b, **told)
        return torch.nn.functional.dropout(y, self.drop_p, self.training)


class Dropped(Fused):
    """Dropout alone."""

    p: float

    def _pullback_share(self) -> float:
        return self.p

    def _pullback_told(self) -> dict[str, Any]:
        return {}

    def _pullback_body(self) -> Body:
        return lambda inputs, held: inputs[0]

    def _pullback_left(self) -> str | None:
        return super()._pullback_left() if self._pullback_draws() else "it draws nothing"


class Attention(Fused):
    """``softmax(q k^T / sqrt(d) + mask) v`` of projections, by heads."""

    num_heads: int
    dropout: float
    batch_first: bool
    bias_k: Any
    add_zero_attn: bool
    out_proj: Any
    _qkv_same_embed_dim: bool

    def _pullback_left(self) -> str | None:
        if self.dropout and self.training:
            return "it drops scores"
        if not self._qkv_same_embed_dim or self.bias_k is not None or self.add_zero_attn:
            return "kdim, vdim, add_bias_kv or add_zero_attn"
        return None

    def _pullback_inputs(self) -> int:
        return 3

    def _pullback_tensors(self) -> dict[str, Any]:
        out = self.out_proj
        own = {**super()._pullback_tensors(), "out_weight": out.weight, "out_bias": out.bias}
        return {n: held for n, held in own.items() if held is not None}

    def _pullback_told(self) -> dict[str, Any]:
        return {"heads": self.num_heads, "batch_first": self.batch_first}

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """As PyTorch's, weights too; samples one by one, and what is left, are PyTorch's."""
        causal = is_causal and not need_weights and key_padding_mask is None
        causal = causal and attn_mask is not None  # a hint beside the mask that it stands for
        masks = {"attn_mask": None if causal else attn_mask, "padding": key_padding_mask}
        given = {n: mask for n, mask in masks.items() if mask is not None}
        hidden = need_weights and not average_attn_weights
        operator: Any = ""
        whole = query.dim() == 3 and not hidden and not torch.compiler.is_compiling()
        if whole and self._pullback_left() is None:
            flags = (CAUSAL,) if causal else ()
            operator = self._pullback_operator(tuple(given), 1 + need_weights, flags)
        if isinstance(operator, str):
            return super(Fused, self).forward(  # type: ignore[misc]  # of the layer
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        answer = self._pullback_run(operator, (query, key, value), *given.values())
        return answer if need_weights else (answer, None)

    def _pullback_body(self) -> Body:
        heads, batched = self.num_heads, self.batch_first

        def run(inputs: Sequence[Any], held: dict[str, Any]) -> Any:
            q, k, v = _projected(inputs, held, heads, batched)
            n, length, size = q.shape[0], q.shape[2], heads * q.shape[3]
            masks = [_added(held.get("attn_mask")), _added(held.get("padding"))]
            if masks[0] is not None and masks[0].ndim == 3:
                masks[0] = pb.reshape(masks[0], (n, heads, length, k.shape[2]))
            if masks[1] is not None:
                masks[1] = pb.reshape(masks[1], (n, 1, 1, k.shape[2]))
            scores = (q * q.shape[-1] ** -0.5) @ pb.permute_dims(k, (0, 1, 3, 2))
            for mask in masks:
                scores = scores if mask is None else scores + mask.astype(scores.dtype)
            if CAUSAL in held:
                behind = pb.tril(pb.ones(length, k.shape[2], dtype="bool"))
                scores = pb.where(behind, scores, -float("inf"))
            weights = pb.softmax(scores, axis=-1)
            y = pb.reshape(pb.permute_dims(weights @ v, (0, 2, 1, 3)), (n, length, size))
            y = F.linear(y, held["out_weight"], held.get("out_bias"))
            return y if batched else pb.permute_dims(y, (1, 0, 2)), pb.mean(weights, axis=1)

        return run


def _projected(inputs: Sequence[Any], held: dict[str, Any], heads: int, batched: bool) -> list[Any]:
    """Queries, keys and values: samples, heads, places, size."""
    size = inputs[0].shape[-1]
    rows = []
    for n, x in enumerate(inputs):
        own = slice(n * size, (n + 1) * size)
        bias = held.get("in_proj_bias")
        y = F.linear(x, held["in_proj_weight"][own], None if bias is None else bias[own])
        shape = (*y.shape[:2], heads, size // heads)
        rows.append(
            pb.permute_dims(pb.reshape(y, shape), (0, 2, 1, 3) if batched else (1, 2, 0, 3))
        )
    return rows


def _added(mask: Any) -> Any:
    """A mask as what is added to scores; True: not to be looked at."""
    masks = mask is not None and mask.dtype == pb.bool_
    return pb.where(mask, -float("inf"), 0.0) if masks else mask
