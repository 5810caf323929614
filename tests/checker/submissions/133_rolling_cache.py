# expect: correct
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class GQAConfig:
    hidden_size: int = 64
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    rope_theta: float = 10000.0


class RollingCache:
    """One layer's keys and values, appended along time."""

    def __init__(self):
        self.k = self.v = None

    def __len__(self):
        return 0 if self.k is None else self.k.shape[2]

    def append(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v


def rotate_pairs(x: torch.Tensor, pos: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding on neighbouring pairs (0,1), (2,3), ... x: (B, H, T, D), pos: (T,)"""
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    ang = pos.to(torch.float32)[:, None] * freq
    c, s = ang.cos(), ang.sin()
    a, b = x.float().unflatten(-1, (half, 2)).unbind(-1)
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2).to(x.dtype)


class GQAttention(nn.Module):
    """Causal grouped-query attention; query heads [g*r, (g+1)*r) share kv head g."""

    def __init__(self, cfg: GQAConfig):
        super().__init__()
        self.cfg = cfg
        self.hd = cfg.hidden_size // cfg.num_attention_heads
        kv = cfg.num_key_value_heads * self.hd
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.hidden_size, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(cfg.hidden_size, cfg.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, cache: RollingCache | None = None) -> torch.Tensor:
        B, T, _ = x.shape
        past = len(cache) if cache is not None else 0
        pos = torch.arange(past, past + T, device=x.device)

        q = self.q_proj(x).view(B, T, -1, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(B, T, -1, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(B, T, -1, self.hd).transpose(1, 2)
        q = rotate_pairs(q, pos, self.cfg.rope_theta)
        k = rotate_pairs(k, pos, self.cfg.rope_theta)
        if cache is not None:
            k, v = cache.append(k, v)

        G = self.cfg.num_key_value_heads
        q = q.reshape(B, G, -1, self.hd)              # fold (heads of the group, T) into one axis
        s = q @ k.transpose(-1, -2) / self.hd ** 0.5  # B G r*T S
        s = s.view(B, G, -1, T, past + T)
        hide = torch.arange(past + T, device=x.device)[None, :] > pos[:, None]
        w = s.masked_fill(hide, float("-inf")).softmax(-1, dtype=torch.float32).to(v.dtype)
        y = (w.flatten(2, 3) @ v).view(B, -1, T, self.hd)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))
