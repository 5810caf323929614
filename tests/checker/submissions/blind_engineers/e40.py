# expect: wrong
# why: the accumulator is not rescaled when the running maximum changes, so inputs longer than one key chunk come out wrong.
"""Blockwise attention: queries and keys are processed in chunks so that no (L, L) matrix is ever stored."""
import math
from typing import Optional

import torch
from torch import Tensor, nn


def _chunk_bounds(length: int, size: int):
    for start in range(0, length, size):
        yield start, min(start + size, length)


def blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    query_chunk_size: int = 16,
    key_chunk_size: int = 16,
    scale: Optional[float] = None,
) -> Tensor:
    """query: (B, H, Lq, D); key, value: (B, H, Lk, D). Running maximum m, running denominator l."""
    b, h, lq, d = query.shape
    lk = key.shape[2]
    scale = 1.0 / math.sqrt(d) if scale is None else scale
    offset = lk - lq
    out = torch.empty(b, h, lq, value.shape[-1], dtype=query.dtype, device=query.device)

    for q0, q1 in _chunk_bounds(lq, query_chunk_size):
        q = query[:, :, q0:q1] * scale
        m = torch.full((b, h, q1 - q0, 1), float("-inf"), dtype=q.dtype, device=q.device)
        l = torch.zeros_like(m)
        acc = torch.zeros(b, h, q1 - q0, value.shape[-1], dtype=q.dtype, device=q.device)
        for k0, k1 in _chunk_bounds(lk, key_chunk_size):
            if causal and k0 > q1 - 1 + offset:
                break
            s = q @ key[:, :, k0:k1].transpose(-1, -2)
            if causal:
                q_pos = torch.arange(q0, q1, device=q.device)[:, None] + offset
                k_pos = torch.arange(k0, k1, device=q.device)[None, :]
                s = s.masked_fill(k_pos > q_pos, float("-inf"))
            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - m_new)
            correction = torch.exp(m - m_new)
            l = l * correction + p.sum(dim=-1, keepdim=True)
            acc = acc + p @ value[:, :, k0:k1]
            m = m_new
        out[:, :, q0:q1] = acc / l
    return out


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, causal: bool = True, query_chunk_size: int = 16,
                 key_chunk_size: int = 16, bias: bool = False):
        super().__init__()
        assert embed_dim % num_heads == 0, "embed_dim must be divisible by num_heads"
        self.num_heads = num_heads
        self.causal = causal
        self.query_chunk_size = query_chunk_size
        self.key_chunk_size = key_chunk_size
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (
            proj(x).view(b, n, self.num_heads, c // self.num_heads).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = blockwise_attention(
            q, k, v,
            causal=self.causal,
            query_chunk_size=self.query_chunk_size,
            key_chunk_size=self.key_chunk_size,
        )
        return self.out_proj(out.transpose(1, 2).reshape(b, n, c))
