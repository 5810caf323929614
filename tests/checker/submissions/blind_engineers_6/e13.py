# expect: correct
# why: right though unusual: online softmax over chunks, causal aligned to the bottom right
"""Memory-efficient attention in plain PyTorch.

``chunked_attention`` walks over the keys in blocks and keeps a running maximum and normaliser, so
the (T, S) matrix never exists as a whole. Fallback on devices without a fused kernel.
"""
from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor


def _slice(t: Optional[Tensor], q0: int, q1: int, k0: int, k1: int) -> Optional[Tensor]:
    """Slice the last two dims of a broadcastable (.., T or 1, S or 1) tensor."""
    if t is None:
        return None
    if t.shape[-2] != 1:
        t = t[..., q0:q1, :]
    if t.shape[-1] != 1:
        t = t[..., k0:k1]
    return t


def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    causal: bool = False,
    scale: Optional[float] = None,
    q_chunk: int = 64,
    k_chunk: int = 128,
) -> Tensor:
    """softmax(q k^T * scale + bias) v without materialising the scores.

    Args:
        q: (B, H, T, D); k: (B, H, S, D); v: (B, H, S, Dv).
        bias: additive, broadcastable to (B, H, T, S).
        mask: bool, broadcastable to (B, H, T, S); True = may attend.
        causal: the last query is aligned with the last key (as in decoding with a cache).
        scale: defaults to D ** -0.5.

    Rows that may attend to nothing come out as zeros. The result has the dtype of ``v``;
    accumulation is in float32 (float64 for float64 inputs).
    """
    B, H, T, D = q.shape
    S = k.shape[2]
    scale = D ** -0.5 if scale is None else scale
    acc_t = torch.float64 if q.dtype == torch.float64 else torch.float32
    shift = S - T
    outs = []
    for q0 in range(0, T, q_chunk):
        q1 = min(q0 + q_chunk, T)
        qi = q[:, :, q0:q1].to(acc_t) * scale
        m = qi.new_full((B, H, q1 - q0, 1), float("-inf"))
        l = qi.new_zeros((B, H, q1 - q0, 1))
        o = qi.new_zeros((B, H, q1 - q0, v.shape[-1]))
        for k0 in range(0, S, k_chunk):
            k1 = min(k0 + k_chunk, S)
            if causal and k0 > q1 - 1 + shift:
                break
            s = qi @ k[:, :, k0:k1].to(acc_t).transpose(-1, -2)
            b = _slice(bias, q0, q1, k0, k1)
            if b is not None:
                s = s + b.to(acc_t)
            a = _slice(mask, q0, q1, k0, k1)
            if a is not None:
                s = s.masked_fill(~a, float("-inf"))
            if causal:
                qp = torch.arange(q0, q1, device=q.device)[:, None] + shift
                kp = torch.arange(k0, k1, device=q.device)[None, :]
                s = s.masked_fill(kp > qp, float("-inf"))

            m_new = torch.maximum(m, s.amax(-1, keepdim=True)).detach()
            ref = m_new.masked_fill(m_new == float("-inf"), 0.0)
            alpha = torch.exp(m - ref)
            p = torch.exp(s - ref)
            l = l * alpha + p.sum(-1, keepdim=True)
            o = o * alpha + p @ v[:, :, k0:k1].to(acc_t)
            m = m_new
        outs.append(o / l.masked_fill(l == 0, 1.0))
    return torch.cat(outs, dim=2).to(v.dtype)


class ChunkedSelfAttention(nn.Module):
    """Self-attention module on top of :func:`chunked_attention`.

    ``key_mask``: bool (B, T), True for real tokens.
    """

    def __init__(self, dim: int, heads: int, causal: bool = False, k_chunk: int = 128):
        super().__init__()
        self.heads, self.causal, self.k_chunk = heads, causal, k_chunk
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, key_mask: Optional[Tensor] = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        mask = None if key_mask is None else key_mask[:, None, None, :]
        y = chunked_attention(q, k, v, mask=mask, causal=self.causal, k_chunk=self.k_chunk)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))
