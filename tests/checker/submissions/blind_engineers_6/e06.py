# expect: correct
# why: right: multi-query attention with ALiBi and a KV cache; True in the mask means keep
"""Multi-query attention with ALiBi, as used by our code-completion server."""
import math
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class Past(NamedTuple):
    k: torch.Tensor  # (B, S, head_dim)
    v: torch.Tensor  # (B, S, head_dim)


def get_alibi_slopes(n_heads: int) -> torch.Tensor:
    """Slopes of the ALiBi paper, also for head counts that are not a power of two."""
    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n_heads).is_integer():
        return torch.tensor(pow2(n_heads))
    closest = 2 ** math.floor(math.log2(n_heads))
    extra = pow2(2 * closest)[0::2][: n_heads - closest]
    return torch.tensor(pow2(closest) + extra)


class ALiBiMultiQueryAttention(nn.Module):
    """
    One shared key/value head, ``n_heads`` query heads, linear position biases, causal.

    Parameters
    ----------
    x : (B, T, dim)
    past : Past or None, keys/values of the S previous tokens
    keep : bool (B, S + T) or None. ``True`` marks real tokens, ``False`` padding (either side).
        Outputs at padding positions are meaningless but finite.

    Returns ``(y, Past)``.
    """

    def __init__(self, dim: int, n_heads: int, resid_pdrop: float = 0.0):
        super().__init__()
        assert dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.c_attn = nn.Linear(dim, dim + 2 * self.head_dim)
        self.c_proj = nn.Linear(dim, dim)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        self.register_buffer("slopes", get_alibi_slopes(n_heads).view(1, n_heads, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor, past: Optional[Past] = None, keep: Optional[torch.Tensor] = None):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split([C, self.head_dim, self.head_dim], dim=-1)
        if past is not None:
            k = torch.cat([past.k, k], dim=1)
            v = torch.cat([past.v, v], dim=1)
        S = k.size(1)
        q = q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)

        scores = torch.einsum("bhtd,bsd->bhts", q, k) / math.sqrt(self.head_dim)
        q_pos = torch.arange(S - T, S, device=x.device)[:, None]
        k_pos = torch.arange(S, device=x.device)[None, :]
        scores = scores.float() - self.slopes.float() * (q_pos - k_pos)

        allowed = (k_pos <= q_pos)[None, None]
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

        p = F.softmax(scores, dim=-1).to(v.dtype)
        y = torch.einsum("bhts,bsd->bthd", p, v).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y)), Past(k, v)


class CompletionBlock(nn.Module):
    """Parallel attention + MLP block."""

    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.attn = ALiBiMultiQueryAttention(dim, n_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))

    def forward(self, x, past=None, keep=None):
        h = self.ln(x)
        a, past = self.attn(h, past, keep)
        return x + a + self.mlp(h), past
