# expect: correct
# what: SDPA wrapper with GQA, preallocated cache, combined causal and padding mask, factory kwargs
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class SDPAConfig:
    width: int = 48
    heads: int = 4
    kv_heads: int = 2
    causal: bool = True
    attn_pdrop: float = 0.1
    bias: bool = False


class LayerCache:
    """Preallocated keys and values for one layer."""

    def __init__(self, batch, kv_heads, capacity, head_dim, device=None, dtype=None):
        self.k = torch.zeros(batch, kv_heads, capacity, head_dim, device=device, dtype=dtype)
        self.v = torch.zeros(batch, kv_heads, capacity, head_dim, device=device, dtype=dtype)
        self.length = 0

    def extend(self, k, v):
        n = k.shape[2]
        if self.length + n > self.k.shape[2]:
            raise RuntimeError("cache is full")
        self.k[:, :, self.length : self.length + n] = k.detach()
        self.v[:, :, self.length : self.length + n] = v.detach()
        self.length += n
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


def build_mask(q_len, k_len, causal, padding, device):
    """True where attention is allowed, or None when the fused kernel needs no mask."""
    mask = None
    if causal and q_len > 1:
        mask = torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(diagonal=k_len - q_len)[None, None]
    if padding is not None:
        keep = ~padding[:, None, None, :]
        mask = keep if mask is None else mask & keep
    return mask


class FusedAttention(nn.Module):
    def __init__(self, cfg: SDPAConfig, device=None, dtype=None):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.cfg = cfg
        self.head_dim = cfg.width // cfg.heads
        kv = cfg.kv_heads * self.head_dim
        self.splits = (cfg.width, kv, kv)
        self.qkv = nn.Linear(cfg.width, sum(self.splits), bias=cfg.bias, **factory)
        self.proj = nn.Linear(cfg.width, cfg.width, bias=cfg.bias, **factory)

    def forward(self, x, padding_mask=None, cache: LayerCache | None = None):
        """padding_mask: (batch, key_length) bool, True at padding; it covers the cached positions too."""
        B, N, _ = x.shape
        q, k, v = self.qkv(x).split(self.splits, dim=-1)
        q = q.unflatten(-1, (self.cfg.heads, self.head_dim)).transpose(1, 2)
        k = k.unflatten(-1, (self.cfg.kv_heads, self.head_dim)).transpose(1, 2)
        v = v.unflatten(-1, (self.cfg.kv_heads, self.head_dim)).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v)

        group = self.cfg.heads // self.cfg.kv_heads
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)

        plain = padding_mask is None and k.shape[2] == N
        mask = None if plain else build_mask(N, k.shape[2], self.cfg.causal, padding_mask, x.device)
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask,
            dropout_p=self.cfg.attn_pdrop if self.training else 0.0,
            is_causal=plain and self.cfg.causal,
        )
        return self.proj(y.transpose(1, 2).flatten(2))
