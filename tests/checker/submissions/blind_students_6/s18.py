# expect: correct
# why: right: True in the bool mask means attend, any number of leading batch axes
from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, in_features: int, out_features: int, device=None, dtype=None):
        super().__init__()
        std = math.sqrt(2 / (in_features + out_features))
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        nn.init.trunc_normal_(self.weight, mean=0.0, std=std, a=-3 * std, b=3 * std)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


def softmax(x: Tensor, dim: int) -> Tensor:
    x = x - x.max(dim=dim, keepdim=True).values
    e = x.exp()
    return e / e.sum(dim=dim, keepdim=True)


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    Q: (..., queries, d_k)   K: (..., keys, d_k)   V: (..., keys, d_v)
    mask: bool (..., queries, keys); True means the query attends to the key
    """
    d_k = Q.shape[-1]
    scores = torch.einsum("...qd,...kd->...qk", Q, K) / math.sqrt(d_k)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    return torch.einsum("...qk,...kd->...qd", softmax(scores, dim=-1), V)


class CausalMultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, device=None, dtype=None):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        kw = dict(device=device, dtype=dtype)
        self.q_proj = Linear(d_model, d_model, **kw)
        self.k_proj = Linear(d_model, d_model, **kw)
        self.v_proj = Linear(d_model, d_model, **kw)
        self.output_proj = Linear(d_model, d_model, **kw)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., seq, d_model), any number of leading batch dimensions"""
        *lead, seq, d_model = x.shape

        def heads(t: Tensor) -> Tensor:
            return t.reshape(*lead, seq, self.num_heads, -1).transpose(-3, -2)

        Q, K, V = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        pos = torch.arange(seq, device=x.device)
        causal = pos[:, None] >= pos[None, :]
        out = scaled_dot_product_attention(Q, K, V, causal)
        return self.output_proj(out.transpose(-3, -2).reshape(*lead, seq, d_model))
