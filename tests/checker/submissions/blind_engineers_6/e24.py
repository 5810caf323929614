# expect: correct
# why: right: learned sinks in the softmax, sliding window in some layers, no batch axis
"""Attention with learned sinks and alternating sliding windows."""
import math
from dataclasses import dataclass

import torch


@dataclass
class ModelConfig:
    hidden_size: int = 192
    head_dim: int = 16
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    sliding_window: int = 8
    rope_theta: float = 150000.0


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, head_dim: int, base: float):
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, query: torch.Tensor, key: torch.Tensor):
        """Tokens on dim 0, head_dim last."""
        n = query.shape[0]
        inv = 1.0 / self.base ** (torch.arange(0, self.head_dim, 2, dtype=torch.float, device=query.device)
                                  / self.head_dim)
        ang = torch.arange(n, dtype=torch.float, device=query.device)[:, None] * inv
        return self._rotate(query, ang.cos(), ang.sin()), self._rotate(key, ang.cos(), ang.sin())

    @staticmethod
    def _rotate(x, cos, sin):
        shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (-1,)
        cos, sin = cos.view(shape).to(x.dtype), sin.view(shape).to(x.dtype)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def sdpa(Q, K, V, S, sm_scale, sliding_window=0):
    """Q: (n, kv_heads, q_mult, d); K, V: (n, kv_heads, d); S: one sink logit per query head.

    Causal. ``sliding_window > 0`` limits a query to itself and the ``sliding_window - 1`` tokens
    before it. The sink takes part in the softmax and carries no value.
    """
    n, n_heads, q_mult, d = Q.shape
    K = K[:, :, None, :].expand(-1, -1, q_mult, -1)
    V = V[:, :, None, :].expand(-1, -1, q_mult, -1)
    S = S.reshape(n_heads, q_mult, 1, 1).expand(-1, -1, n, -1)
    mask = torch.triu(Q.new_full((n, n), -float("inf")), diagonal=1)
    if sliding_window > 0:
        mask = mask + torch.tril(mask.new_full((n, n), -float("inf")), diagonal=-sliding_window)
    QK = torch.einsum("qhmd,khmd->hmqk", Q, K) * sm_scale + mask[None, None]
    W = torch.softmax(torch.cat([QK, S.to(QK.dtype)], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", W, V).reshape(n, -1)


class AttentionBlock(torch.nn.Module):
    """Pre-norm attention with residual on one sequence (n_tokens, hidden).

    Even layers use the sliding window, odd layers see the full past.
    """

    def __init__(self, config: ModelConfig, layer_idx: int = 0):
        super().__init__()
        self.head_dim = config.head_dim
        self.n_heads, self.n_kv = config.num_attention_heads, config.num_key_value_heads
        self.sliding_window = config.sliding_window if layer_idx % 2 == 0 else 0
        self.sinks = torch.nn.Parameter(torch.randn(self.n_heads))
        self.norm = torch.nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.qkv = torch.nn.Linear(config.hidden_size, self.head_dim * (self.n_heads + 2 * self.n_kv))
        self.out = torch.nn.Linear(self.head_dim * self.n_heads, config.hidden_size)
        self.sm_scale = 1 / math.sqrt(self.head_dim)
        self.rope = RotaryEmbedding(self.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        qkv = self.qkv(self.norm(x))
        q, k, v = qkv.split([self.n_heads * self.head_dim, self.n_kv * self.head_dim, self.n_kv * self.head_dim], -1)
        q = q.view(n, self.n_kv, self.n_heads // self.n_kv, self.head_dim)
        k = k.view(n, self.n_kv, self.head_dim)
        v = v.view(n, self.n_kv, self.head_dim)
        q, k = self.rope(q, k)
        t = sdpa(q, k, v, self.sinks, self.sm_scale, self.sliding_window)
        return x + self.out(t)
