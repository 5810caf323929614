# expect: correct
"""Local (sliding window) self-attention for long genomic sequences, O(n * w) memory."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def _local_view(x: torch.Tensor, before: int, after: int, value: float = 0.0) -> torch.Tensor:
    """(..., n, d) -> (..., n, before + 1 + after, d), neighbours of each position, padded at the ends."""
    x = F.pad(x, (0, 0, before, after), value=value)
    return x.unfold(-2, before + 1 + after, 1).transpose(-1, -2)


class LocalSelfAttention(nn.Module):
    """Every position attends to ``window`` positions on either side (only the left ones if ``causal``) and itself.

    Parameters
    ----------
    dim : int
    num_heads : int
    window : int
        Number of neighbours per side.
    causal : bool
    rel_bias : bool
        Learned bias per head and offset.
    """

    def __init__(self, dim: int, num_heads: int, window: int, causal: bool = False, rel_bias: bool = True,
                 dropout: float = 0.0):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim {dim} not divisible by num_heads {num_heads}")
        if window < 1:
            raise ValueError("window must be positive")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.before, self.after = window, 0 if causal else window
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(num_heads, self.before + 1 + self.after)) if rel_bias else None
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if rel_bias:
            nn.init.normal_(self.bias, std=0.02)

    def forward(self, x: torch.Tensor, key_padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        x : (batch, n, dim)
        key_padding_mask : (batch, n) bool, True for padding
        """
        b, n, d = x.shape
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))

        k_loc = _local_view(k, self.before, self.after)
        v_loc = _local_view(v, self.before, self.after)
        scores = torch.einsum("bhnd,bhnwd->bhnw", q, k_loc) / math.sqrt(self.head_dim)
        if self.bias is not None:
            scores = scores + self.bias[None, :, None, :]

        offsets = torch.arange(-self.before, self.after + 1, device=x.device)
        index = torch.arange(n, device=x.device)[:, None] + offsets[None, :]
        outside = (index < 0) | (index >= n)
        invalid = outside[None]
        if key_padding_mask is not None:
            invalid = invalid | key_padding_mask[:, index.clamp(0, n - 1)]
        scores = scores.masked_fill(invalid[:, None], torch.finfo(scores.dtype).min)

        probs = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.einsum("bhnw,bhnwd->bhnd", probs, v_loc)
        out = out.transpose(1, 2).reshape(b, n, d)
        out = self.out_proj(out)
        if key_padding_mask is not None:
            out = out.masked_fill(key_padding_mask[..., None], 0.0)
        return out
