# expect: correct
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class DecoderConfig:
    hidden_size: int = 256
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: Optional[int] = None
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    num_layers: int = 4

    def __post_init__(self):
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")


class KVStore:
    """Growing per-layer key/value store. Keys are stored already rotated."""

    def __init__(self, num_layers: int):
        self.keys = [None] * num_layers
        self.values = [None] * num_layers

    def length(self, layer: int) -> int:
        return 0 if self.keys[layer] is None else self.keys[layer].shape[1]

    def append(self, layer, k, v):
        if self.keys[layer] is not None:
            k = torch.cat((self.keys[layer], k), dim=1)
            v = torch.cat((self.values[layer], v), dim=1)
        self.keys[layer], self.values[layer] = k, v
        return k, v


def rope(x, positions, theta):
    # x: (B, T, heads, D); first half is paired with second half
    half = x.shape[-1] // 2
    freqs = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    ang = positions[:, None].float() * freqs                      # (T, D/2)
    cos, sin = ang.cos()[:, None, :], ang.sin()[:, None, :]
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class GroupedAttention(nn.Module):
    """Causal grouped-query self attention. (B, T, hidden) -> (B, T, hidden)"""

    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__()
        self.cfg = config
        self.layer_idx = layer_idx
        c = config
        self.groups = c.num_attention_heads // c.num_key_value_heads
        self.wq = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=c.attention_bias)
        self.wk = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=c.attention_bias)
        self.wv = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=c.attention_bias)
        self.wo = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor, store: Optional[KVStore] = None) -> torch.Tensor:
        c = self.cfg
        B, T, _ = hidden.shape
        past = store.length(self.layer_idx) if store is not None else 0
        pos = torch.arange(past, past + T, device=hidden.device)

        q = rope(self.wq(hidden).view(B, T, c.num_attention_heads, c.head_dim), pos, c.rope_theta)
        k = rope(self.wk(hidden).view(B, T, c.num_key_value_heads, c.head_dim), pos, c.rope_theta)
        v = self.wv(hidden).view(B, T, c.num_key_value_heads, c.head_dim)
        if store is not None:
            k, v = store.append(self.layer_idx, k, v)

        # no repeat of k/v, fold the group into the einsum instead
        q = q.view(B, T, c.num_key_value_heads, self.groups, c.head_dim)
        logits = torch.einsum("btkgd,bskd->bkgts", q, k) * c.head_dim ** -0.5
        hidden_future = torch.arange(k.shape[1], device=q.device)[None, :] > pos[:, None]
        logits = logits.masked_fill(hidden_future, torch.finfo(logits.dtype).min)
        w = logits.float().softmax(dim=-1).to(v.dtype)
        out = torch.einsum("bkgts,bskd->btkgd", w, v)
        return self.wo(out.reshape(B, T, -1))
