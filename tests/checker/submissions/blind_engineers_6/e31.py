# expect: correct
# why: right though unusual: heads are mixed before and after the softmax (talking heads)
"""Talking-heads attention (Shazeer et al. 2020)."""
from typing import Optional

import torch
import torch.nn as nn
from einops import rearrange


class TalkingHeadAttention(nn.Module):
    """Self-attention with learned mixing of the heads before and after the softmax.

    Logits of ``num_heads`` heads are mixed by ``proj_l``, masked, normalised, and the weights are
    mixed again by ``proj_w``. Both mixings start as the identity, i.e. plain multi-head attention.

    Args:
        dim: embedding width
        num_heads: number of heads
        causal: hide the future
        attn_drop, proj_drop: dropout rates

    Call with x (B, N, dim) and optionally ``keep`` (B, N) bool, True = valid key. Rows whose keys
    are all hidden get a zero context vector. ``need_weights=True`` additionally returns the mixed
    weights (B, num_heads, N, N) that multiply the values.
    """

    def __init__(self, dim: int, num_heads: int = 8, causal: bool = False, qkv_bias: bool = False,
                 attn_drop: float = 0.0, proj_drop: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj_l = nn.Parameter(torch.eye(num_heads))
        self.proj_w = nn.Parameter(torch.eye(num_heads))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor, keep: Optional[torch.Tensor] = None, need_weights: bool = False):
        n = x.shape[1]
        q, k, v = rearrange(self.qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.num_heads)

        logits = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        logits = torch.einsum("bhij,hg->bgij", logits, self.proj_l)

        hidden = None
        if self.causal:
            hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)[None, None]
        if keep is not None:
            pad = ~keep[:, None, None, :]
            hidden = pad if hidden is None else hidden | pad
        if hidden is not None:
            logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        attn = logits.softmax(dim=-1)
        if hidden is not None:
            attn = attn.masked_fill(hidden, 0.0)
        attn = torch.einsum("bhij,hg->bgij", attn, self.proj_w)

        out = torch.einsum("bhij,bhjd->bhid", self.attn_drop(attn), v)
        out = self.proj_drop(self.proj(rearrange(out, "b h n d -> b n (h d)")))
        return (out, attn) if need_weights else out


class LayerScaleBlock(nn.Module):
    """CaiT block: talking-heads attention and MLP, each with a learned per-channel scale."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float = 4.0, init_values: float = 1e-4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = TalkingHeadAttention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.gamma_1 = nn.Parameter(init_values * torch.ones(dim))
        self.gamma_2 = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))
