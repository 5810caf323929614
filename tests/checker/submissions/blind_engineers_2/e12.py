# expect: correct
# what: DeepSeek MLA, absorbed form, latent cache, interleaved RoPE
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MLAConfig:
    dim: int = 64
    n_heads: int = 4
    q_lora_rank: int = 24
    kv_lora_rank: int = 20
    qk_nope_head_dim: int = 12
    qk_rope_head_dim: int = 8
    v_head_dim: int = 10
    rope_theta: float = 10000.0
    max_seq_len: int = 128


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def precompute_freqs_cis(cfg: MLAConfig) -> torch.Tensor:
    d = cfg.qk_rope_head_dim
    freqs = 1.0 / (cfg.rope_theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    angles = torch.outer(torch.arange(cfg.max_seq_len).float(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary_emb(x, freqs_cis):
    # x: (b, s, h, d)
    xc = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    y = torch.view_as_real(xc * freqs_cis.view(1, xc.size(1), 1, xc.size(-1))).flatten(3)
    return y.to(x.dtype)


class LatentCache:
    """Holds the compressed kv latents and the shared rotary key."""

    def __init__(self):
        self.kv: Optional[torch.Tensor] = None
        self.pe: Optional[torch.Tensor] = None

    def __len__(self):
        return 0 if self.kv is None else self.kv.shape[1]

    def append(self, kv, pe):
        self.kv = kv if self.kv is None else torch.cat([self.kv, kv], dim=1)
        self.pe = pe if self.pe is None else torch.cat([self.pe, pe], dim=1)
        return self.kv, self.pe


class MLA(nn.Module):
    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.nope, self.rope, self.vdim = cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim
        self.qk_head_dim = self.nope + self.rope
        self.kv_lora_rank = cfg.kv_lora_rank

        self.wq_a = nn.Linear(cfg.dim, cfg.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(cfg.q_lora_rank)
        self.wq_b = nn.Linear(cfg.q_lora_rank, self.n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(cfg.dim, cfg.kv_lora_rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(cfg.kv_lora_rank)
        self.wkv_b = nn.Linear(cfg.kv_lora_rank, self.n_heads * (self.nope + self.vdim), bias=False)
        self.wo = nn.Linear(self.n_heads * self.vdim, cfg.dim, bias=False)
        self.softmax_scale = self.qk_head_dim**-0.5
        self.register_buffer("freqs_cis", precompute_freqs_cis(cfg), persistent=False)

    def forward(self, x, mask: Optional[torch.Tensor] = None, cache: Optional[LatentCache] = None):
        """Causal. `mask` is an optional (b, keys) bool tensor, True for real tokens."""
        b, s, _ = x.shape
        start = 0 if cache is None else len(cache)
        freqs = self.freqs_cis[start : start + s]

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, s, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        q_pe = apply_rotary_emb(q_pe, freqs)

        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), freqs).squeeze(2)
        kv = self.kv_norm(kv)
        if cache is not None:
            kv, k_pe = cache.append(kv, k_pe)

        # absorb the key up-projection into the query, so scores are taken in the latent space
        wkv_b = self.wkv_b.weight.view(self.n_heads, self.nope + self.vdim, self.kv_lora_rank)
        q_lat = torch.einsum("bshd,hdc->bshc", q_nope, wkv_b[:, : self.nope])
        scores = torch.einsum("bshc,btc->bsht", q_lat, kv) + torch.einsum("bshr,btr->bsht", q_pe, k_pe)
        scores = scores * self.softmax_scale

        t = kv.shape[1]
        hide = torch.ones(s, t, dtype=torch.bool, device=x.device).triu(t - s + 1)[None, :, None, :]
        if mask is not None:
            hide = hide | ~mask[:, None, None, :]
        scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)

        out = torch.einsum("bsht,btc->bshc", probs, kv)
        out = torch.einsum("bshc,hdc->bshd", out, wkv_b[:, self.nope :])
        return self.wo(out.flatten(2))


class Block(nn.Module):
    def __init__(self, cfg: MLAConfig):
        super().__init__()
        self.attn_norm, self.ffn_norm = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.attn = MLA(cfg)
        self.w1 = nn.Linear(cfg.dim, 2 * cfg.dim, bias=False)
        self.w2 = nn.Linear(2 * cfg.dim, cfg.dim, bias=False)

    def forward(self, x, mask=None, cache=None):
        x = x + self.attn(self.attn_norm(x), mask, cache)
        return x + self.w2(F.silu(self.w1(self.ffn_norm(x))))
