# expect: correct
"""Multi-head latent attention.

Keys and values are rebuilt from a small latent c_kv (kv_rank). Position goes through
a separate rotary part: per head for q, one shared head for k. The cache only holds
c_kv and the rotated shared key. When a cache is given the up-projections are absorbed
into q / the output so k and v are never materialised.
"""
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class MLAConfig:
    dim: int = 128
    n_heads: int = 4
    q_rank: int = 48
    kv_rank: int = 32
    qk_nope: int = 16
    qk_rope: int = 8
    v_dim: int = 12
    theta: float = 10000.0
    eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * self.weight


@dataclass
class LatentCache:
    c: torch.Tensor = None
    kr: torch.Tensor = None
    meta: dict = field(default_factory=dict)

    def __len__(self):
        return 0 if self.c is None else self.c.size(1)


class MLA(nn.Module):
    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.cfg = cfg
        self.wq_a = nn.Linear(cfg.dim, cfg.q_rank, bias=False)
        self.q_norm = RMSNorm(cfg.q_rank, cfg.eps)
        self.wq_b = nn.Linear(cfg.q_rank, cfg.n_heads * (cfg.qk_nope + cfg.qk_rope), bias=False)
        self.wkv_a = nn.Linear(cfg.dim, cfg.kv_rank + cfg.qk_rope, bias=False)
        self.kv_norm = RMSNorm(cfg.kv_rank, cfg.eps)
        self.wkv_b = nn.Linear(cfg.kv_rank, cfg.n_heads * (cfg.qk_nope + cfg.v_dim), bias=False)
        self.wo = nn.Linear(cfg.n_heads * cfg.v_dim, cfg.dim, bias=False)
        self.scale = (cfg.qk_nope + cfg.qk_rope) ** -0.5

    def rotary(self, x, start):
        # x: (B, T, H, R) with adjacent pairs
        B, T, H, R = x.shape
        f = self.cfg.theta ** (-torch.arange(0, R, 2, device=x.device).float() / R)
        ang = torch.outer(torch.arange(start, start + T, device=x.device).float(), f)
        z = torch.view_as_complex(x.float().reshape(B, T, H, R // 2, 2))
        z = z * torch.polar(torch.ones_like(ang), ang)[None, :, None, :]
        return torch.view_as_real(z).flatten(-2).to(x.dtype)

    def forward(self, x, cache: LatentCache = None):
        c = self.cfg
        B, T, _ = x.shape
        start = len(cache) if cache is not None else 0

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(B, T, c.n_heads, c.qk_nope + c.qk_rope)
        qn, qr = q.split([c.qk_nope, c.qk_rope], dim=-1)
        qr = self.rotary(qr, start)

        lat, kr = self.wkv_a(x).split([c.kv_rank, c.qk_rope], dim=-1)
        lat = self.kv_norm(lat)
        kr = self.rotary(kr.unsqueeze(2), start).squeeze(2)

        if cache is not None:
            if len(cache):
                lat = torch.cat([cache.c, lat], dim=1)
                kr = torch.cat([cache.kr, kr], dim=1)
            cache.c, cache.kr = lat, kr

        S = lat.size(1)
        up = self.wkv_b.weight.view(c.n_heads, c.qk_nope + c.v_dim, c.kv_rank)
        up_k, up_v = up[:, : c.qk_nope], up[:, c.qk_nope:]

        if cache is None:
            kv = self.wkv_b(lat).view(B, S, c.n_heads, c.qk_nope + c.v_dim)
            kn, v = kv.split([c.qk_nope, c.v_dim], dim=-1)
            scores = torch.einsum("bthd,bshd->bhts", qn, kn)
        else:
            q_lat = torch.einsum("bthd,hdr->bthr", qn, up_k)
            scores = torch.einsum("bthr,bsr->bhts", q_lat, lat)
        scores = (scores + torch.einsum("bthd,bsd->bhts", qr, kr)) * self.scale

        causal = torch.full((T, S), float("-inf"), device=x.device).triu(S - T + 1)
        p = (scores.float() + causal).softmax(-1).to(x.dtype)

        if cache is None:
            o = torch.einsum("bhts,bshd->bthd", p, v)
        else:
            o = torch.einsum("bhts,bsr->bthr", p, lat)
            o = torch.einsum("bthr,hdr->bthd", o, up_v)
        return self.wo(o.flatten(2))
