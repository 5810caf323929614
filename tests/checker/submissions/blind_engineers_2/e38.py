# expect: correct
# what: MPT / llm-foundry registries and partials, MHA / MQA / GQA, ALiBi bias, clip_qkv, qk_ln
"""Attention layers of a small LM code base; implementations and classes are found by name."""
import math
from functools import partial
from typing import Any, Callable, Dict, Optional, Tuple, Type

import torch
import torch.nn.functional as F
from torch import nn

ATTN_CLASS_REGISTRY: Dict[str, Type[nn.Module]] = {}
ATTN_IMPL_REGISTRY: Dict[str, Callable] = {}
NORM_CLASS_REGISTRY: Dict[str, Callable] = {
    "layernorm": nn.LayerNorm,
    "low_eps_layernorm": partial(nn.LayerNorm, eps=1e-8),
}


def register(registry, name):
    def wrap(obj):
        registry[name] = obj
        return obj

    return wrap


def gen_slopes(n_heads: int, alibi_bias_max: int = 8, device=None) -> torch.Tensor:
    _n_heads = 2 ** math.ceil(math.log2(n_heads))
    m = torch.arange(1, _n_heads + 1, dtype=torch.float32, device=device) * (alibi_bias_max / _n_heads)
    slopes = 1.0 / torch.pow(2, m)
    if _n_heads != n_heads:
        slopes = torch.concat([slopes[1::2], slopes[::2]])[:n_heads]
    return slopes.view(1, n_heads, 1, 1)


def build_alibi_bias(n_heads: int, seq_len: int, device=None) -> torch.Tensor:
    """(1, n_heads, 1, seq_len): adds the distance up to a constant per row, which softmax ignores."""
    bias = torch.arange(1 - seq_len, 1, dtype=torch.float32, device=device).view(1, 1, 1, seq_len)
    return bias * gen_slopes(n_heads, device=device)


@register(ATTN_IMPL_REGISTRY, "torch")
def scaled_multihead_dot_product_attention(
    query, key, value, n_heads, kv_n_heads, scale, attn_bias=None, key_padding_mask=None, is_causal=True,
    dropout_p=0.0, training=False, needs_weights=False,
):
    b, s_q, _ = query.shape
    s_k = key.shape[1]
    q = query.view(b, s_q, n_heads, -1).transpose(1, 2)
    k = key.view(b, s_k, kv_n_heads, -1).permute(0, 2, 3, 1)
    v = value.view(b, s_k, kv_n_heads, -1).transpose(1, 2)
    if 1 < kv_n_heads < n_heads:
        k = k.repeat_interleave(n_heads // kv_n_heads, dim=1)
        v = v.repeat_interleave(n_heads // kv_n_heads, dim=1)

    attn_weight = q.matmul(k) * scale
    min_val = torch.finfo(q.dtype).min
    if attn_bias is not None:
        attn_weight = attn_weight + attn_bias[:, :, -s_q:, -s_k:]
    if key_padding_mask is not None:
        attn_weight = attn_weight.masked_fill(~key_padding_mask.view(b, 1, 1, s_k), min_val)
    if is_causal and s_q != 1:
        s = max(s_q, s_k)
        causal_mask = attn_weight.new_ones(s, s, dtype=torch.bool).tril()[-s_q:, -s_k:]
        attn_weight = attn_weight.masked_fill(~causal_mask.view(1, 1, s_q, s_k), min_val)
    attn_weight = torch.softmax(attn_weight, dim=-1)
    if dropout_p:
        attn_weight = F.dropout(attn_weight, p=dropout_p, training=training)
    out = attn_weight.matmul(v).transpose(1, 2).reshape(b, s_q, -1)
    return out, attn_weight if needs_weights else None


class GroupedQueryAttention(nn.Module):
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        kv_n_heads: int,
        attn_impl: str = "torch",
        clip_qkv: Optional[float] = None,
        qk_ln: bool = False,
        softmax_scale: Optional[float] = None,
        attn_pdrop: float = 0.0,
        norm_type: str = "low_eps_layernorm",
        bias: bool = True,
        device: Optional[str] = None,
    ):
        super().__init__()
        if n_heads % kv_n_heads:
            raise ValueError("Each Q head should get the same number of KV heads")
        self.n_heads, self.kv_n_heads = n_heads, kv_n_heads
        self.clip_qkv, self.qk_ln = clip_qkv, qk_ln
        self.head_dim = d_model // n_heads
        self.softmax_scale = 1 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale
        self.attn_dropout_p = attn_pdrop
        self.splits = [d_model, kv_n_heads * self.head_dim, kv_n_heads * self.head_dim]
        self.Wqkv = nn.Linear(d_model, sum(self.splits), bias=bias, device=device)
        if qk_ln:
            norm = NORM_CLASS_REGISTRY[norm_type]
            self.q_ln = norm(self.splits[0], device=device)
            self.k_ln = norm(self.splits[1], device=device)
        self.attn_fn = ATTN_IMPL_REGISTRY[attn_impl]
        self.out_proj = nn.Linear(d_model, d_model, bias=bias, device=device)

    def forward(
        self,
        x: torch.Tensor,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attn_bias: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        is_causal: bool = True,
        needs_weights: bool = False,
    ):
        """attention_mask: (batch, key_length) bool, True for tokens. attn_bias covers the whole key length."""
        qkv = self.Wqkv(x)
        if self.clip_qkv:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = qkv.split(self.splits, dim=2)
        if self.qk_ln:
            query, key = self.q_ln(query).to(query.dtype), self.k_ln(key).to(key.dtype)
        if past_key_value is not None:
            if len(past_key_value) != 0:
                key = torch.cat([past_key_value[0], key], dim=1)
                value = torch.cat([past_key_value[1], value], dim=1)
            past_key_value = (key, value)
        context, weights = self.attn_fn(
            query, key, value, self.n_heads, self.kv_n_heads, self.softmax_scale,
            attn_bias=attn_bias, key_padding_mask=attention_mask, is_causal=is_causal,
            dropout_p=self.attn_dropout_p, training=self.training, needs_weights=needs_weights,
        )
        return self.out_proj(context), weights, past_key_value


@register(ATTN_CLASS_REGISTRY, "grouped_query_attention")
class _GQA(GroupedQueryAttention):
    pass


@register(ATTN_CLASS_REGISTRY, "multihead_attention")
class MultiheadAttention(GroupedQueryAttention):
    def __init__(self, d_model: int, n_heads: int, **kwargs: Any):
        super().__init__(d_model, n_heads, kv_n_heads=n_heads, **kwargs)


@register(ATTN_CLASS_REGISTRY, "multiquery_attention")
class MultiQueryAttention(GroupedQueryAttention):
    def __init__(self, d_model: int, n_heads: int, **kwargs: Any):
        super().__init__(d_model, n_heads, kv_n_heads=1, **kwargs)


def build_attention_layer(name: str = "multihead_attention", **attn_kwargs) -> nn.Module:
    return ATTN_CLASS_REGISTRY[name](**attn_kwargs)
