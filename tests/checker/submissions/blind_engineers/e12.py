# expect: correct
"""Attention layers."""
import math
import warnings
from typing import Optional

import torch
import torch.nn as nn
from einops import rearrange


def gen_slopes(n_heads: int, alibi_bias_max: int = 8, device: Optional[torch.device] = None) -> torch.Tensor:
    _n_heads = 2 ** math.ceil(math.log2(n_heads))
    m = torch.arange(1, _n_heads + 1, dtype=torch.float32, device=device)
    m = m.mul(alibi_bias_max / _n_heads)
    slopes = 1.0 / torch.pow(2, m)
    if _n_heads != n_heads:
        # not a power of two: every second slope first, then the ones in between
        slopes = torch.concat([slopes[1::2], slopes[::2]])[:n_heads]
    return slopes.view(1, n_heads, 1, 1)


def build_alibi_bias(n_heads: int, seq_len: int, full: bool = False, alibi_bias_max: int = 8,
                     device: Optional[torch.device] = None, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    alibi_bias = torch.arange(1 - seq_len, 1, dtype=torch.int32, device=device).view(1, 1, 1, seq_len)
    if full:
        # generate 1 x Heads x SeqLen x SeqLen alibi bias mask, otherwise 1 x Heads x 1 x SeqLen
        alibi_bias = alibi_bias - torch.arange(1 - seq_len, 1, dtype=torch.int32, device=device).view(1, 1, seq_len, 1)
        alibi_bias = alibi_bias.abs().mul(-1)
    slopes = gen_slopes(n_heads, alibi_bias_max, device=device)
    return (alibi_bias * slopes).to(dtype=dtype)


def scaled_multihead_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    n_heads: int,
    past_key_value=None,
    softmax_scale: Optional[float] = None,
    attn_bias: Optional[torch.Tensor] = None,
    key_padding_mask: Optional[torch.Tensor] = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    training: bool = False,
):
    q = rearrange(query, 'b s (h d) -> b h s d', h=n_heads)
    k = rearrange(key, 'b s (h d) -> b h d s', h=n_heads)
    v = rearrange(value, 'b s (h d) -> b h s d', h=n_heads)

    if past_key_value is not None:
        if len(past_key_value) != 0:
            k = torch.cat([past_key_value[0], k], dim=3)
            v = torch.cat([past_key_value[1], v], dim=2)
        past_key_value = (k, v)

    b, _, s_q, d = q.shape
    s_k = k.size(-1)
    if softmax_scale is None:
        softmax_scale = 1 / math.sqrt(d)
    attn_weight = q.matmul(k) * softmax_scale

    if attn_bias is not None:
        # clip to the keys present
        _s_q = max(0, attn_bias.size(2) - s_q)
        _s_k = max(0, attn_bias.size(3) - s_k)
        attn_bias = attn_bias[:, :, _s_q:, _s_k:]
        if (attn_bias.size(-1) != 1 and attn_bias.size(-1) != s_k) or (
                attn_bias.size(-2) != 1 and attn_bias.size(-2) != s_q):
            raise RuntimeError(f'attn_bias (shape: {attn_bias.shape}) is expected to broadcast to {attn_weight.shape}.')
        attn_weight = attn_weight + attn_bias

    min_val = torch.finfo(q.dtype).min
    if key_padding_mask is not None:
        if attn_bias is not None:
            warnings.warn('Propagating key_padding_mask to the attention module and applying it within it.')
        attn_weight = attn_weight.masked_fill(~key_padding_mask.view((b, 1, 1, s_k)), min_val)

    if is_causal and (not s_q == 1):
        s = max(s_q, s_k)
        causal_mask = attn_weight.new_ones(s, s, dtype=torch.float32).tril().to(torch.bool).logical_not()
        causal_mask = causal_mask[-s_q:, -s_k:]
        attn_weight = attn_weight.masked_fill(causal_mask.view(1, 1, s_q, s_k), min_val)

    attn_weight = torch.softmax(attn_weight, dim=-1)
    if dropout_p:
        attn_weight = torch.nn.functional.dropout(attn_weight, p=dropout_p, training=training)
    out = rearrange(attn_weight.matmul(v), 'b h s d -> b s (h d)')
    return out, past_key_value


class MultiheadAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, max_seq_len: int = 256, attn_pdrop: float = 0.0,
                 clip_qkv: Optional[float] = None, alibi_bias_max: int = 8, no_bias: bool = True):
        super().__init__()
        if d_model % n_heads:
            raise ValueError('d_model must be divisible by n_heads')
        self.d_model = d_model
        self.n_heads = n_heads
        self.clip_qkv = clip_qkv
        self.attn_dropout_p = attn_pdrop
        self.softmax_scale = 1 / math.sqrt(d_model / n_heads)
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=not no_bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=not no_bias)
        self.register_buffer('attn_bias', build_alibi_bias(n_heads, max_seq_len, alibi_bias_max=alibi_bias_max,
                                                           dtype=torch.float32), persistent=False)

    def forward(self, x, past_key_value=None, attention_mask=None, is_causal: bool = True):
        qkv = self.Wqkv(x)
        if self.clip_qkv:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        query, key, value = qkv.chunk(3, dim=2)
        context, past_key_value = scaled_multihead_dot_product_attention(
            query, key, value, self.n_heads,
            past_key_value=past_key_value,
            softmax_scale=self.softmax_scale,
            attn_bias=self.attn_bias.to(x.dtype),
            key_padding_mask=attention_mask,
            is_causal=is_causal,
            dropout_p=self.attn_dropout_p,
            training=self.training,
        )
        return self.out_proj(context), past_key_value
