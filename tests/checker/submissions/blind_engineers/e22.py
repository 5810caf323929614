# expect: correct
from dataclasses import dataclass
from typing import Literal, Optional

import torch
from torch import nn


@dataclass
class ModelArgs:
    max_batch_size: int = 4
    max_seq_len: int = 32
    dim: int = 64
    n_heads: int = 4
    q_lora_rank: int = 0
    kv_lora_rank: int = 24
    qk_nope_head_dim: int = 16
    qk_rope_head_dim: int = 8
    v_head_dim: int = 12
    rope_theta: float = 10000.0
    attn_impl: Literal["naive", "absorb"] = "absorb"


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(self.weight) * self.weight


def precompute_freqs_cis(args: ModelArgs) -> torch.Tensor:
    dim = args.qk_rope_head_dim
    freqs = 1.0 / (args.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    freqs = torch.outer(torch.arange(args.max_seq_len), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    dtype = x.dtype
    x = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, x.size(1), 1, x.size(-1))
    return torch.view_as_real(x * freqs_cis).flatten(3).to(dtype)


class MLA(nn.Module):
    """
    Multi-head latent attention. Keys and values are up-projections of one compressed vector per token; the
    position part of the key is shared by all heads. "absorb" keeps only the compressed vector in the cache and
    folds the up-projection into the query and the output.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.dim = args.dim
        self.n_heads = args.n_heads
        self.q_lora_rank = args.q_lora_rank
        self.kv_lora_rank = args.kv_lora_rank
        self.qk_nope_head_dim = args.qk_nope_head_dim
        self.qk_rope_head_dim = args.qk_rope_head_dim
        self.qk_head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim
        self.v_head_dim = args.v_head_dim
        self.attn_impl = args.attn_impl

        if self.q_lora_rank == 0:
            self.wq = nn.Linear(self.dim, self.n_heads * self.qk_head_dim, bias=False)
        else:
            self.wq_a = nn.Linear(self.dim, self.q_lora_rank, bias=False)
            self.q_norm = RMSNorm(self.q_lora_rank)
            self.wq_b = nn.Linear(self.q_lora_rank, self.n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(self.dim, self.kv_lora_rank + self.qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(self.kv_lora_rank)
        self.wkv_b = nn.Linear(self.kv_lora_rank, self.n_heads * (self.qk_nope_head_dim + self.v_head_dim), bias=False)
        self.wo = nn.Linear(self.n_heads * self.v_head_dim, self.dim, bias=False)
        self.softmax_scale = self.qk_head_dim ** -0.5

        bsz, slen = args.max_batch_size, args.max_seq_len
        if self.attn_impl == "naive":
            self.register_buffer("k_cache", torch.zeros(bsz, slen, self.n_heads, self.qk_head_dim), persistent=False)
            self.register_buffer("v_cache", torch.zeros(bsz, slen, self.n_heads, self.v_head_dim), persistent=False)
        else:
            self.register_buffer("kv_cache", torch.zeros(bsz, slen, self.kv_lora_rank), persistent=False)
            self.register_buffer("pe_cache", torch.zeros(bsz, slen, self.qk_rope_head_dim), persistent=False)

    @staticmethod
    def _append(cache: torch.Tensor, new: torch.Tensor, start_pos: int) -> torch.Tensor:
        bsz, seqlen = new.shape[:2]
        cache[:bsz, start_pos : start_pos + seqlen] = new.detach()
        return torch.cat([cache[:bsz, :start_pos].to(new), new], dim=1)

    def forward(self, x: torch.Tensor, start_pos: int, freqs_cis: torch.Tensor, mask: Optional[torch.Tensor]):
        bsz, seqlen, _ = x.size()
        q = self.wq(x) if self.q_lora_rank == 0 else self.wq_b(self.q_norm(self.wq_a(x)))
        q = q.view(bsz, seqlen, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary_emb(q_pe, freqs_cis)
        kv = self.wkv_a(x)
        kv, k_pe = torch.split(kv, [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis)

        if self.attn_impl == "naive":
            q = torch.cat([q_nope, q_pe], dim=-1)
            kv = self.wkv_b(self.kv_norm(kv))
            kv = kv.view(bsz, seqlen, self.n_heads, self.qk_nope_head_dim + self.v_head_dim)
            k_nope, v = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
            k = torch.cat([k_nope, k_pe.expand(-1, -1, self.n_heads, -1)], dim=-1)
            keys = self._append(self.k_cache, k, start_pos)
            values = self._append(self.v_cache, v, start_pos)
            scores = torch.einsum("bshd,bthd->bsht", q, keys) * self.softmax_scale
        else:
            wkv_b = self.wkv_b.weight.view(self.n_heads, -1, self.kv_lora_rank)
            q_nope = torch.einsum("bshd,hdc->bshc", q_nope, wkv_b[:, : self.qk_nope_head_dim])
            latents = self._append(self.kv_cache, self.kv_norm(kv), start_pos)
            pe = self._append(self.pe_cache, k_pe.squeeze(2), start_pos)
            scores = (
                torch.einsum("bshc,btc->bsht", q_nope, latents) + torch.einsum("bshr,btr->bsht", q_pe, pe)
            ) * self.softmax_scale

        if mask is not None:
            scores = scores + mask.unsqueeze(1)
        scores = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        if self.attn_impl == "naive":
            x = torch.einsum("bsht,bthd->bshd", scores, values)
        else:
            x = torch.einsum("bsht,btc->bshc", scores, latents)
            x = torch.einsum("bshc,hdc->bshd", x, wkv_b[:, -self.v_head_dim :])
        return self.wo(x.flatten(2))
