# expect: mask-fill-too-small
# why: The soft cap is applied after the -inf causal mask (line 78): tanh(-inf)*cap = -cap = -5, a finite logit, so future positions keep non-zero weight and causality is broken.
# Gemma-2 style attention for our 50M proxy models.
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class ProxyConfig:
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    query_pre_attn_scalar: float = 16.0
    attn_logit_softcapping: Optional[float] = 5.0
    rope_theta: float = 10_000.0
    attention_dropout: float = 0.0


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope(x, position_ids, theta):
    d = x.shape[-1]
    inv_freq = 1.0 / (theta ** (torch.arange(0, d, 2, device=x.device).float() / d))
    ang = position_ids[:, :, None].float() * inv_freq
    emb = torch.cat((ang, ang), dim=-1)[:, None]
    return (x * emb.cos() + rotate_half(x) * emb.sin()).type_as(x)


class ProxyAttention(nn.Module):
    """Causal grouped-query attention; logits are soft-capped to (-cap, cap)."""

    def __init__(self, config: ProxyConfig):
        super().__init__()
        self.config = config
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.query_pre_attn_scalar ** -0.5
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)

    def forward(self, hidden_states, position_ids=None):
        bsz, q_len, _ = hidden_states.shape
        if position_ids is None:
            position_ids = torch.arange(q_len, device=hidden_states.device).expand(bsz, -1)
        shape = (bsz, q_len, -1, self.config.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        q = rope(q, position_ids, self.config.rope_theta)
        k = rope(k, position_ids, self.config.rope_theta)
        k = k.repeat_interleave(self.groups, dim=1)
        v = v.repeat_interleave(self.groups, dim=1)

        # causal mask in additive form
        causal_mask = torch.full((q_len, q_len), float("-inf"), device=q.device).triu(1)

        attn = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        attn = attn + causal_mask
        if self.config.attn_logit_softcapping is not None:
            cap = self.config.attn_logit_softcapping
            attn = torch.tanh(attn / cap) * cap

        attn = torch.softmax(attn, dim=-1, dtype=torch.float32).to(q.dtype)
        attn = nn.functional.dropout(attn, p=self.config.attention_dropout, training=self.training)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out)


class ProxyLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.pre = RMSNorm(config.hidden_size)
        self.post = RMSNorm(config.hidden_size)
        self.self_attn = ProxyAttention(config)

    def forward(self, x):
        return x + self.post(self.self_attn(self.pre(x)))


if __name__ == "__main__":
    layer = ProxyLayer(ProxyConfig())
    print(layer(torch.randn(2, 12, 64)).shape)
