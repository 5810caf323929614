# expect: cached-mask-misaligned
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 512
    n_heads: int = 8
    n_kv_heads: Optional[int] = None
    max_batch_size: int = 4
    max_seq_len: int = 256
    rope_theta: float = 10000.0


def precompute_freqs_cis(dim: int, end: int, theta: float):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    ang = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(ang), ang)


def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    """
    Causal GQA attention with a preallocated KV cache.

    start_pos=None  training, no cache is touched
    start_pos=0     first (part of the) prompt
    start_pos=p     the next tokens, positions p, p+1, ...  One at a time when decoding, or a
                    whole chunk of a long prompt.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads = args.n_heads
        self.n_kv_heads = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, self.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.n_heads * self.head_dim, args.dim, bias=False)

        shape = (args.max_batch_size, args.max_seq_len, self.n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)
        self.register_buffer(
            "freqs_cis",
            precompute_freqs_cis(self.head_dim, args.max_seq_len, args.rope_theta),
            persistent=False,
        )

    def forward(self, x: torch.Tensor, start_pos: Optional[int] = None):
        bsz, seqlen, _ = x.shape
        p = start_pos or 0
        freqs = self.freqs_cis[p : p + seqlen]

        xq = apply_rotary_emb(self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim), freqs)
        xk = apply_rotary_emb(self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim), freqs)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)

        if start_pos is not None:
            self.cache_k[:bsz, p : p + seqlen] = xk.detach()
            self.cache_v[:bsz, p : p + seqlen] = xv.detach()
            keys, values = self.cache_k[:bsz, : p + seqlen], self.cache_v[:bsz, : p + seqlen]
        else:
            keys, values = xk, xv

        out = F.scaled_dot_product_attention(
            xq.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            is_causal=seqlen > 1,
            enable_gqa=True,
        )
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))
