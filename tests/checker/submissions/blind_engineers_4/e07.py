# expect: correct
"""Multi-head latent attention. Only the compressed latent and the shared rotary key are cached."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MLAConfig:
    hidden: int = 64
    heads: int = 4
    q_rank: int = 32
    kv_rank: int = 24
    nope_dim: int = 16
    rope_dim: int = 8
    v_dim: int = 12
    theta: float = 10000.0


class RMS(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.g = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.g, 1e-6)


def rope(x, pos, theta):
    """x: (..., T, d). Even and odd channels form the rotated pairs."""
    d = x.shape[-1]
    inv = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = pos.float()[:, None] * inv
    c, s = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)


class LatentCache:
    def __init__(self):
        self.latent = None      # (B, S, kv_rank), already normalised
        self.k_rope = None      # (B, S, rope_dim), already rotated

    def __len__(self):
        return 0 if self.latent is None else self.latent.shape[1]

    def append(self, latent, k_rope):
        if self.latent is not None:
            latent = torch.cat([self.latent, latent], dim=1)
            k_rope = torch.cat([self.k_rope, k_rope], dim=1)
        self.latent, self.k_rope = latent, k_rope
        return latent, k_rope


class MultiHeadLatentAttention(nn.Module):
    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.cfg = cfg
        self.q_down = nn.Linear(cfg.hidden, cfg.q_rank, bias=False)
        self.q_norm = RMS(cfg.q_rank)
        self.q_up = nn.Linear(cfg.q_rank, cfg.heads * (cfg.nope_dim + cfg.rope_dim), bias=False)
        self.kv_down = nn.Linear(cfg.hidden, cfg.kv_rank + cfg.rope_dim, bias=False)
        self.kv_norm = RMS(cfg.kv_rank)
        self.kv_up = nn.Linear(cfg.kv_rank, cfg.heads * (cfg.nope_dim + cfg.v_dim), bias=False)
        self.out = nn.Linear(cfg.heads * cfg.v_dim, cfg.hidden, bias=False)
        self.scale = (cfg.nope_dim + cfg.rope_dim) ** -0.5

    def forward(self, x, cache: LatentCache = None):
        cfg = self.cfg
        B, T, _ = x.shape
        past = 0 if cache is None else len(cache)
        pos = torch.arange(past, past + T, device=x.device)

        q = self.q_up(self.q_norm(self.q_down(x))).view(B, T, cfg.heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split([cfg.nope_dim, cfg.rope_dim], dim=-1)
        q_rope = rope(q_rope, pos, cfg.theta)

        latent, k_rope = self.kv_down(x).split([cfg.kv_rank, cfg.rope_dim], dim=-1)
        latent, k_rope = self.kv_norm(latent), rope(k_rope, pos, cfg.theta)
        if cache is not None:
            latent, k_rope = cache.append(latent, k_rope)

        S = latent.shape[1]
        kv = self.kv_up(latent).view(B, S, cfg.heads, -1).transpose(1, 2)
        k_nope, v = kv.split([cfg.nope_dim, cfg.v_dim], dim=-1)

        # the rotary key is one vector for all heads
        s = q_nope @ k_nope.mT + q_rope @ k_rope[:, None].mT
        hidden = torch.arange(S, device=x.device) > pos[:, None]
        s = (s * self.scale).masked_fill(hidden, float("-inf"))
        o = s.softmax(-1, dtype=torch.float32).to(v.dtype) @ v
        return self.out(o.transpose(1, 2).reshape(B, T, -1))


if __name__ == "__main__":
    m = MultiHeadLatentAttention(MLAConfig())
    c = LatentCache()
    x = torch.randn(2, 6, 64)
    y = torch.cat([m(x[:, :4], c), m(x[:, 4:5], c), m(x[:, 5:], c)], 1)
    print((y - m(x)).abs().max().item())
