# expect: correct
# why: right: latent attention with a latent cache, two equivalent paths (naive and absorbed)
"""Multi-head latent attention.

Keys and values are compressed into a small latent (plus one rotary key shared by all the heads);
only this latent is cached. Two equivalent code paths:

* ``naive``:  decompress the latent into full per-head keys and values;
* ``absorb``: fold the up-projections into the query and the output, attend in latent space.
"""
from dataclasses import dataclass
from typing import Literal, Optional, Tuple

import torch
import torch.nn as nn


@dataclass
class MLAConfig:
    dim: int = 256
    n_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    rope_theta: float = 10000.0
    attn_impl: Literal["naive", "absorb"] = "absorb"


def rotary_phase(dim: int, pos: torch.Tensor, theta: float) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, device=pos.device, dtype=torch.float32) / dim))
    ang = pos.float()[:, None] * freqs
    return torch.polar(torch.ones_like(ang), ang)


def apply_rotary(x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """x: (B, T, H, D) with (even, odd) channel pairs; phase: (T, D/2)."""
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    out = torch.view_as_real(xc * phase[None, :, None, :]).flatten(-2)
    return out.to(x.dtype)


class LatentAttention(nn.Module):
    """Causal MLA.

    ``forward(x, cache)`` takes (B, T, dim) and an optional ``(latent, k_rope)`` pair of the S earlier
    tokens, returns ``(out, new_cache)``. Positions continue from the cache.
    """

    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.cfg = cfg
        h = cfg.n_heads
        self.qk_head_dim = cfg.qk_nope_head_dim + cfg.qk_rope_head_dim
        self.scale = self.qk_head_dim ** -0.5
        self.wq_a = nn.Linear(cfg.dim, cfg.q_lora_rank, bias=False)
        self.q_norm = nn.RMSNorm(cfg.q_lora_rank, eps=1e-6)
        self.wq_b = nn.Linear(cfg.q_lora_rank, h * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(cfg.dim, cfg.kv_lora_rank + cfg.qk_rope_head_dim, bias=False)
        self.kv_norm = nn.RMSNorm(cfg.kv_lora_rank, eps=1e-6)
        self.wkv_b = nn.Linear(cfg.kv_lora_rank, h * (cfg.qk_nope_head_dim + cfg.v_head_dim), bias=False)
        self.wo = nn.Linear(h * cfg.v_head_dim, cfg.dim, bias=False)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        cfg, (b, t, _) = self.cfg, x.shape
        past = 0 if cache is None else cache[0].shape[1]
        phase = rotary_phase(cfg.qk_rope_head_dim, torch.arange(past, past + t, device=x.device), cfg.rope_theta)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, t, cfg.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([cfg.qk_nope_head_dim, cfg.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary(q_pe, phase)

        latent, k_pe = self.wkv_a(x).split([cfg.kv_lora_rank, cfg.qk_rope_head_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = apply_rotary(k_pe.unsqueeze(2), phase).squeeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        s = past + t
        future = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(past + 1)

        if cfg.attn_impl == "naive":
            kv = self.wkv_b(latent).view(b, s, cfg.n_heads, -1)
            k_nope, v = kv.split([cfg.qk_nope_head_dim, cfg.v_head_dim], dim=-1)
            k = torch.cat([k_nope, k_pe.unsqueeze(2).expand(-1, -1, cfg.n_heads, -1)], dim=-1)
            scores = torch.einsum("bthd,bshd->bhts", torch.cat([q_nope, q_pe], dim=-1), k)
        else:
            w = self.wkv_b.weight.view(cfg.n_heads, -1, cfg.kv_lora_rank)
            q_lat = torch.einsum("bthd,hdc->bthc", q_nope, w[:, :cfg.qk_nope_head_dim])
            scores = torch.einsum("bthc,bsc->bhts", q_lat, latent)
            scores = scores + torch.einsum("bthr,bsr->bhts", q_pe, k_pe)

        probs = (scores * self.scale).masked_fill(future, float("-inf")).softmax(-1, dtype=torch.float32).to(x.dtype)

        if cfg.attn_impl == "naive":
            o = torch.einsum("bhts,bshd->bthd", probs, v)
        else:
            o = torch.einsum("bhts,bsc->bthc", probs, latent)
            o = torch.einsum("bthc,hdc->bthd", o, w[:, cfg.qk_nope_head_dim:])
        return self.wo(o.flatten(2)), (latent, k_pe)
