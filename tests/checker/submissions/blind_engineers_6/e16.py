# expect: correct
# why: right: grouped queries with a preallocated KV cache and a boolean mask
"""Decoder-only attention for the Lumen text models.

Grouped-query attention with rotary position embeddings (half-rotation layout,
the one the HF checkpoints use) and a preallocated key/value cache.
"""
import math
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LumenConfig:
    dim: int = 256
    n_layers: int = 2
    n_heads: int = 8
    n_kv_heads: int = 2
    ffn_mult: int = 4
    vocab_size: int = 1024
    max_seq_len: int = 512
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    attn_dropout: float = 0.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.type_as(x) * self.weight


def rope_tables(head_dim: int, max_len: int, theta: float) -> Tuple[torch.Tensor, torch.Tensor]:
    inv_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(torch.arange(max_len).float(), inv_freq)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rope(x, cos, sin):
    """x: (B, H, T, D), cos/sin: (T, D)."""
    return (x * cos + rotate_half(x) * sin).type_as(x)


class KVCache:
    """Fixed-size cache, one per layer. ``write`` stores at [pos, pos + T)."""

    def __init__(self, batch: int, cfg: LumenConfig, dtype=torch.float32, device=None):
        shape = (batch, cfg.n_kv_heads, cfg.max_seq_len, cfg.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, pos: int, k: torch.Tensor, v: torch.Tensor):
        end = pos + k.shape[2]
        if end > self.k.shape[2]:
            raise ValueError(f"cache holds {self.k.shape[2]} positions, asked for {end}")
        self.k[:, :, pos:end] = k.detach()
        self.v[:, :, pos:end] = v.detach()
        return self.k[:, :, :end], self.v[:, :, :end]


class GroupedQueryAttention(nn.Module):
    """Causal GQA. Query head ``h`` reads key/value head ``h // (n_heads // n_kv_heads)``.

    Args (forward):
        x: (B, T, dim)
        start_pos: absolute position of ``x[:, 0]``
        cache: optional :class:`KVCache` that already holds positions ``[0, start_pos)``.
            Several tokens may be fed at once (chunked prefill).
    """

    def __init__(self, cfg: LumenConfig):
        super().__init__()
        assert cfg.n_heads % cfg.n_kv_heads == 0
        self.n_heads, self.n_kv_heads, self.head_dim = cfg.n_heads, cfg.n_kv_heads, cfg.head_dim
        self.n_rep = cfg.n_heads // cfg.n_kv_heads
        self.dropout = cfg.attn_dropout
        self.wq = nn.Linear(cfg.dim, cfg.n_heads * cfg.head_dim, bias=False)
        self.wk = nn.Linear(cfg.dim, cfg.n_kv_heads * cfg.head_dim, bias=False)
        self.wv = nn.Linear(cfg.dim, cfg.n_kv_heads * cfg.head_dim, bias=False)
        self.wo = nn.Linear(cfg.n_heads * cfg.head_dim, cfg.dim, bias=False)
        cos, sin = rope_tables(cfg.head_dim, cfg.max_seq_len, cfg.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _expand_kv(self, t):
        b, h, s, d = t.shape
        return t[:, :, None].expand(b, h, self.n_rep, s, d).reshape(b, h * self.n_rep, s, d)

    def forward(self, x, start_pos: int = 0, cache: Optional[KVCache] = None):
        b, t, _ = x.shape
        if start_pos + t > self.cos.shape[0]:
            raise ValueError(f"position {start_pos + t - 1} is beyond max_seq_len={self.cos.shape[0]}")
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)

        cos, sin = self.cos[start_pos:start_pos + t], self.sin[start_pos:start_pos + t]
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.write(start_pos, k, v)

        s = k.shape[2]
        mask = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=s - t)
        out = F.scaled_dot_product_attention(
            q, self._expand_kv(k), self._expand_kv(v), attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, cfg: LumenConfig):
        super().__init__()
        self.attn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.attn = GroupedQueryAttention(cfg)
        self.ffn_norm = RMSNorm(cfg.dim, cfg.norm_eps)
        self.up = nn.Linear(cfg.dim, 2 * cfg.ffn_mult * cfg.dim, bias=False)
        self.down = nn.Linear(cfg.ffn_mult * cfg.dim, cfg.dim, bias=False)
        nn.init.normal_(self.down.weight, std=0.02 / math.sqrt(2 * cfg.n_layers))

    def forward(self, x, start_pos=0, cache=None):
        x = x + self.attn(self.attn_norm(x), start_pos, cache)
        gate, up = self.up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)
