"""Everything that calls PyTorch's functions: a mode sees them, without changing what they compute.

    scaled_dot_product_attention     by any code except scripted code
    multi_head_attention_forward     `nn.MultiheadAttention`, also inside `nn.TransformerEncoder`

While a mode is active, these modules leave their native fast path for inference, so their output
differs by rounding. The queries and keys of `nn.MultiheadAttention` are projected once more for the
map, because the function does not show its own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.masks import Mask
from clearhead.watcher.interception import AttentionCall, intercept, is_active, running
from clearhead.watcher.snapshots import Inputs

_FUSED = {
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
}
_SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}


class AttentionMode(TorchFunctionMode):
    """Shows the attention calls of this thread to the handlers.

    Attributes:
        softmax_in: The modules that called a softmax outside attention calls, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.softmax_in: dict[nn.Module, None] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FUSED and is_active():
            return intercept(FusedCall(modules=running(), function=func, **_fused(*args, **kwargs)))
        if func is F.multi_head_attention_forward and is_active():
            bound = _multihead.bind(*args, **kwargs)
            bound.apply_defaults()
            return intercept(MultiheadCall(modules=running(), **bound.arguments))
        if func in _SOFTMAX and (modules := running()):
            self.softmax_in[modules[-1]] = None
        return func(*args, **kwargs)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """The arguments of `scaled_dot_product_attention`, by name."""
    return locals()


@dataclass(kw_only=True)
class FusedCall(AttentionCall):
    """A call of `scaled_dot_product_attention`; the attributes are its arguments."""

    function: Callable[..., Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        q, k, _, _ = self._four_axes()
        return (*q.shape[:3], k.shape[2])

    def inputs(self) -> Inputs:
        """What the weights are computed from."""
        if self.query.is_nested:  # `Keeper` refuses it; nested tensors have no shape
            return Inputs(self.query, self.key)
        q, k, v, mask = self._four_axes()
        is_bool = mask is not None and mask.dtype == torch.bool
        return Inputs(
            *(q, k, v, Mask.causal("start") if self.is_causal else None),
            visible=mask if is_bool else None,
            bias=None if is_bool else mask,
            scale=self.scale,
        )

    def run(self) -> Tensor:
        """Run the function, with edits and without blocked edges."""
        mask, is_causal = self.attn_mask, self.is_causal
        if self.blocked is not None:
            mask, is_causal = self._without(self.blocked), False
        context = self.function(
            *(self.query, self.key, self.value, mask, self.dropout_p, is_causal),
            scale=self.scale,
            enable_gqa=self.enable_gqa,
        )
        if not self.edits:
            return context
        heads = self.shape[1]
        if context.ndim < 4 and heads > 1:
            raise ValueError(
                "Heads can be changed where context vectors have the axes (batch, heads, queries, "
                f"value_dim), got {tuple(context.shape)}."
            )
        four = context if context.ndim == 4 else context.reshape(-1, heads, *context.shape[-2:])
        return self.edited(four.transpose(1, 2)).transpose(1, 2).reshape(context.shape)

    def _without(self, blocked: Tensor) -> Tensor:
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        mask = self.attn_mask
        keep = ~blocked.to(self.query.device)
        if self.query.ndim != 4:
            raise ValueError(
                "knockout: expected queries (batch, heads, queries, head_dim), got "
                f"{tuple(self.query.shape)}."
            )
        if self.is_causal:
            keep = keep & Mask.causal("start").dense(queries, keys, self.query.device)
        if mask is None or mask.dtype == torch.bool:
            return keep if mask is None else mask & keep
        return mask.masked_fill(~keep, -torch.inf)

    def _four_axes(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values and mask with four axes: batch, heads, tokens and the last one."""
        q, k, v, mask = self.query, self.key, self.value, self.attn_mask
        if q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and not q.shape[1] % k.shape[1]:
            return q, k, v, None if mask is None else mask[(None,) * (4 - mask.ndim)]
        axes = max(q.ndim, k.ndim)
        if mask is not None:
            mask = mask[(None,) * (axes - mask.ndim)]
        if axes == 3 and not self.enable_gqa:  # (batch, tokens, head_dim): one head
            q, k, v = (x.unsqueeze(-3) for x in (q, k, v))
            mask = None if mask is None else mask.unsqueeze(-3)
        q, k, v = (x[(None,) * (4 - x.ndim)] for x in (q, k, v))
        if mask is not None:
            mask = mask[(None,) * (4 - mask.ndim)]
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])  # type: ignore[no-untyped-call]  # torch's own
        heads = max(q.shape[-3], k.shape[-3])
        if q.shape[-3] % k.shape[-3]:
            k, v = (x.expand(*x.shape[:-3], heads, -1, -1) for x in (k, v))
        if q.shape[-3] < heads:
            q = q.expand(*q.shape[:-3], heads, -1, -1)
        q, k, v = (x.expand(*lead, -1, -1, -1) for x in (q, k, v))
        if q.ndim > 4:  # the windows of an image, for example: more axes of batch
            q, k, v = (x.flatten(0, -4) for x in (q, k, v))
            if mask is not None:
                alone = all(size == 1 for size in mask.shape[:-3])
                mask = (mask if alone else mask.expand(*lead, -1, -1, -1)).flatten(0, -4)
        return q, k, v, mask


_multihead = inspect.signature(F.multi_head_attention_forward)


@dataclass(kw_only=True)
class MultiheadCall(AttentionCall):
    """A call of `multi_head_attention_forward`; the attributes are its arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    embed_dim_to_check: int
    num_heads: int
    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    add_zero_attn: bool
    dropout_p: float
    out_proj_weight: Tensor
    out_proj_bias: Tensor | None
    training: bool
    key_padding_mask: Tensor | None
    need_weights: bool
    attn_mask: Tensor | None
    use_separate_proj_weight: bool
    q_proj_weight: Tensor | None
    k_proj_weight: Tensor | None
    v_proj_weight: Tensor | None
    static_k: Tensor | None
    static_v: Tensor | None
    average_attn_weights: bool
    is_causal: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)."""
        batch = self.query.shape[1] if self.query.ndim == 3 else 1
        keys = self.key.shape[0] if self.static_k is None else self.static_k.shape[1]
        keys += (self.bias_k is not None) + self.add_zero_attn
        return batch, self.num_heads, self.query.shape[0], keys

    def inputs(self) -> Inputs:
        """What the weights are computed from: the projections, computed again."""
        q, k, v = self._projected()
        return Inputs(q, k, v, bias=self._bias(q.dtype))

    def run(self) -> Any:
        """Run the function itself; with edits or blocked edges, its equal below."""
        if not self.edits and self.blocked is None:
            arguments = {name: getattr(self, name) for name in _multihead.parameters}
            return F.multi_head_attention_forward(**arguments)
        q, k, v = self._projected()
        bias = self._bias(q.dtype)
        if self.blocked is not None:
            bias = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias
            bias = bias.masked_fill(self.blocked.to(q.device), -torch.inf)
        dropout = self.dropout_p if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, bias, dropout)
        context = self.edited(context.transpose(1, 2))  # (batch, queries, heads, head_dim)
        output = F.linear(context.flatten(2), self.out_proj_weight, self.out_proj_bias)
        output = output.transpose(0, 1)
        weights = None
        if self.need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = (scores if bias is None else scores + bias).softmax(-1).nan_to_num(0.0)
            weights = weights.mean(1) if self.average_attn_weights else weights
        if self.query.ndim == 2:
            output, weights = output.squeeze(1), None if weights is None else weights.squeeze(0)
        return output, weights

    def _projected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, tokens, head_dim)."""
        biases: Sequence[Tensor | None] = (None,) * 3
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3)
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if not self.use_separate_proj_weight:
            assert self.in_proj_weight is not None
            weights = self.in_proj_weight.chunk(3)  # type: ignore[assignment]
        one = self.query.ndim == 2
        found: list[Tensor] = []
        for x, weight, bias, static, extra in zip(
            (self.query, self.key, self.value),
            weights,
            biases,
            (None, self.static_k, self.static_v),
            (None, self.bias_k, self.bias_v),
            strict=True,
        ):
            x = x.unsqueeze(1) if one else x
            batch = x.shape[1]
            if static is not None:
                y = static.reshape(batch, self.num_heads, *static.shape[1:])
            else:
                assert weight is not None
                y = F.linear(x, weight, bias)
                if extra is not None:
                    y = torch.cat([y, extra.expand(1, batch, -1)])
                y = y.reshape(*y.shape[:2], self.num_heads, -1).permute(1, 2, 0, 3)
            if self.add_zero_attn and found:
                y = F.pad(y, (0, 0, 0, 1))
            found.append(y)
        return found[0], found[1], found[2]

    def _bias(self, dtype: torch.dtype) -> Tensor | None:
        """Both masks as numbers that are added to the scores; None without masks."""
        batch, heads, _, keys = self.shape
        found: Tensor | None = None
        for mask in (self.attn_mask, self.key_padding_mask):
            if mask is None:
                continue
            is_padding = mask is self.key_padding_mask
            if mask.dtype == torch.bool:  # True = hidden
                mask = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
            mask = F.pad(mask, (0, keys - mask.shape[-1]))
            if is_padding:
                mask = mask.reshape(batch, 1, 1, keys)
            elif mask.ndim == 3:
                mask = mask.reshape(
                    *((batch, heads) if mask.shape[0] > 1 else (1, 1)), *mask.shape[1:]
                )
            else:
                mask = mask[None, None]
            found = mask if found is None else found + mask
        return found
