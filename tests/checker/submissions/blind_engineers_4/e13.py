# expect: correct
"""Attention with learned per-head sink logits, alternating local and full layers."""
from dataclasses import dataclass

import torch


@dataclass
class ModelConfig:
    hidden: int = 64
    n_heads: int = 8
    n_kv: int = 2
    head_dim: int = 16
    window: int = 4
    rope_theta: float = 150000.0


def sdpa(Q, K, V, S, sm_scale, sliding_window=0):
    # Q: t, kv, group, d      K, V: t, kv, d      S: kv * group
    n, n_kv, mult, d = Q.shape
    K = K[:, :, None, :].expand(-1, -1, mult, -1)
    V = V[:, :, None, :].expand(-1, -1, mult, -1)
    S = S.reshape(n_kv, mult, 1, 1).expand(-1, -1, n, -1)
    mask = torch.triu(Q.new_full((n, n), -float("inf")), diagonal=1)
    if sliding_window > 0:
        mask = mask + torch.tril(mask.new_full((n, n), -float("inf")), diagonal=-sliding_window)
    QK = torch.einsum("qhmd,khmd->hmqk", Q, K) * sm_scale
    QK = QK + mask[None, None]
    # the sink is one more column that takes probability and carries no value
    W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", W, V).reshape(n, -1)


def apply_rotary(x, cos, sin):
    cos, sin = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class Rotary(torch.nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, *tensors):
        n = tensors[0].shape[0]
        inv = self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        ang = torch.arange(n, dtype=torch.float32)[:, None] * inv[None]
        cos, sin = ang.cos().to(tensors[0].device), ang.sin().to(tensors[0].device)
        return [apply_rotary(t, cos, sin) for t in tensors]


class SinkAttentionBlock(torch.nn.Module):
    """Pre-norm block on one packed sequence of shape (tokens, hidden)."""

    def __init__(self, cfg: ModelConfig, layer_idx: int):
        super().__init__()
        self.cfg = cfg
        self.sliding_window = cfg.window if layer_idx % 2 == 0 else 0
        self.sinks = torch.nn.Parameter(torch.randn(cfg.n_heads))
        self.norm = torch.nn.RMSNorm(cfg.hidden, eps=1e-5)
        width = cfg.head_dim * (cfg.n_heads + 2 * cfg.n_kv)
        self.qkv = torch.nn.Linear(cfg.hidden, width)
        self.out = torch.nn.Linear(cfg.head_dim * cfg.n_heads, cfg.hidden)
        self.rope = Rotary(cfg.head_dim, cfg.rope_theta)
        self.sm_scale = cfg.head_dim ** -0.5

    def forward(self, x):
        c = self.cfg
        h = self.qkv(self.norm(x))
        q, k, v = h.split([c.n_heads * c.head_dim, c.n_kv * c.head_dim, c.n_kv * c.head_dim], dim=-1)
        q = q.view(-1, c.n_heads, c.head_dim)
        k = k.view(-1, c.n_kv, c.head_dim)
        v = v.view(-1, c.n_kv, c.head_dim)
        q, k = self.rope(q, k)
        q = q.view(-1, c.n_kv, c.n_heads // c.n_kv, c.head_dim)
        return x + self.out(sdpa(q, k, v, self.sinks, self.sm_scale, self.sliding_window))
