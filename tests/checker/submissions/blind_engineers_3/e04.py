# expect: correct
"""Multi-head latent attention (DeepSeek-V2), with the weight-absorbed path for decoding."""
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MLAConfig:
    dim: int = 64
    n_heads: int = 4
    q_lora_rank: int = 24
    kv_lora_rank: int = 16
    qk_nope_head_dim: int = 12
    qk_rope_head_dim: int = 8
    v_head_dim: int = 10
    rope_theta: float = 10000.0


@dataclass
class LatentCache:
    """Per layer we only keep the normed latent and the (already rotated) shared rope key."""
    latent: Optional[torch.Tensor] = field(default=None)   # B, S, R
    k_pe: Optional[torch.Tensor] = field(default=None)     # B, S, Dr

    def __len__(self):
        return 0 if self.latent is None else self.latent.shape[1]

    def append(self, latent, k_pe):
        if self.latent is not None:
            latent = torch.cat([self.latent, latent], dim=1)
            k_pe = torch.cat([self.k_pe, k_pe], dim=1)
        self.latent, self.k_pe = latent, k_pe
        return latent, k_pe


def rotate(x, positions, theta):
    # x: B, T, ..., D; neighbouring channels form the complex pairs
    d = x.shape[-1]
    freqs = theta ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = positions.float()[:, None] * freqs
    cis = torch.polar(torch.ones_like(angle), angle)
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], d // 2, 2))
    cis = cis.view(1, x.shape[1], *([1] * (x.dim() - 3)), d // 2)
    return torch.view_as_real(xc * cis).flatten(-2).type_as(x)


class MLA(nn.Module):
    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.cfg = cfg
        self.qk_head_dim = cfg.qk_nope_head_dim + cfg.qk_rope_head_dim
        self.wq_a = nn.Linear(cfg.dim, cfg.q_lora_rank, bias=False)
        self.q_norm = nn.RMSNorm(cfg.q_lora_rank)
        self.wq_b = nn.Linear(cfg.q_lora_rank, cfg.n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(cfg.dim, cfg.kv_lora_rank + cfg.qk_rope_head_dim, bias=False)
        self.kv_norm = nn.RMSNorm(cfg.kv_lora_rank)
        self.wkv_b = nn.Linear(cfg.kv_lora_rank, cfg.n_heads * (cfg.qk_nope_head_dim + cfg.v_head_dim), bias=False)
        self.wo = nn.Linear(cfg.n_heads * cfg.v_head_dim, cfg.dim, bias=False)
        self.softmax_scale = self.qk_head_dim ** -0.5

    def forward(self, x, cache: Optional[LatentCache] = None):
        c = self.cfg
        B, T, _ = x.shape
        start = 0 if cache is None else len(cache)
        pos = torch.arange(start, start + T, device=x.device)

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(B, T, c.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1)
        q_pe = rotate(q_pe, pos, c.rope_theta)

        latent, k_pe = self.wkv_a(x).split([c.kv_lora_rank, c.qk_rope_head_dim], dim=-1)
        latent, k_pe = self.kv_norm(latent), rotate(k_pe, pos, c.rope_theta)
        if cache is not None:
            latent, k_pe = cache.append(latent, k_pe)
        S = latent.shape[1]
        hidden = torch.arange(S, device=x.device)[None, :] > pos[:, None]      # T, S

        if start == 0:
            out = self._expanded(q_nope, q_pe, latent, k_pe, hidden)
        else:
            out = self._absorbed(q_nope, q_pe, latent, k_pe, hidden)
        return self.wo(out.flatten(2))

    def _expanded(self, q_nope, q_pe, latent, k_pe, hidden):
        c = self.cfg
        B, S, _ = latent.shape
        kv = self.wkv_b(latent).view(B, S, c.n_heads, -1)
        k_nope, v = kv.split([c.qk_nope_head_dim, c.v_head_dim], dim=-1)
        q = torch.cat([q_nope, q_pe], dim=-1)
        k = torch.cat([k_nope, k_pe[:, :, None].expand(-1, -1, c.n_heads, -1)], dim=-1)
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.softmax_scale
        probs = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1, dtype=torch.float32).type_as(v)
        return torch.einsum("bhts,bshd->bthd", probs, v)

    def _absorbed(self, q_nope, q_pe, latent, k_pe, hidden):
        # k_nope = W_uk c  =>  q.k_nope = (W_uk^T q).c ; same trick for the values
        c = self.cfg
        w = self.wkv_b.weight.view(c.n_heads, c.qk_nope_head_dim + c.v_head_dim, c.kv_lora_rank)
        w_uk, w_uv = w[:, : c.qk_nope_head_dim], w[:, c.qk_nope_head_dim :]
        q_lat = torch.einsum("bthd,hdr->bthr", q_nope, w_uk)
        scores = torch.einsum("bthr,bsr->bhts", q_lat, latent) + torch.einsum("bthd,bsd->bhts", q_pe, k_pe)
        scores = scores * self.softmax_scale
        probs = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1, dtype=torch.float32).type_as(latent)
        ctx = torch.einsum("bhts,bsr->bthr", probs, latent)
        return torch.einsum("bthr,hdr->bthd", ctx, w_uv)


if __name__ == "__main__":
    m, x = MLA(MLAConfig()).eval(), torch.randn(2, 9, 64)
    cache = LatentCache()
    steps = [m(x[:, :5], cache)] + [m(x[:, i : i + 1], cache) for i in range(5, 9)]
    print((torch.cat(steps, 1) - m(x)).abs().max().item())
