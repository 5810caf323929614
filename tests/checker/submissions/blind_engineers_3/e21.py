# expect: scale-twice, dropout-in-eval
# why: q is multiplied by dim_head**-0.5 (line 49) and SDPA scales by 1/sqrt(dim_head) again: logits are scaled twice (1/d), contradicting "standard scaled dot-product attention".
# why: dropout_p=self.dropout is passed to SDPA unconditionally (line 53), so attention dropout is also active in eval mode although the docstring says training only.
"""Text-conditioned cross attention for the audio latent diffusion model."""
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class GEGLU(nn.Module):
    def __init__(self, dim_in: int, dim_out: int):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


class CrossAttention(nn.Module):
    """Standard scaled dot-product attention of `x` over `context`.

    Args:
        query_dim: width of x
        context_dim: width of the text encoder output (None: self-attention)
        heads, dim_head: inner width is heads * dim_head
        dropout: dropout on the attention weights, training only
    """

    def __init__(self, query_dim: int, context_dim: Optional[int] = None, heads: int = 8, dim_head: int = 64, dropout: float = 0.0):
        super().__init__()
        inner_dim = heads * dim_head
        context_dim = context_dim if context_dim is not None else query_dim
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.dropout = dropout
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context=None, context_mask=None):
        b, n, _ = x.shape
        context = x if context is None else context
        m = context.shape[1]
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.to_k(context).view(b, m, self.heads, -1).transpose(1, 2)
        v = self.to_v(context).view(b, m, self.heads, -1).transpose(1, 2)

        q = q * self.scale
        attn_mask = None
        if context_mask is not None:                    # b m, True = text token
            attn_mask = context_mask.bool()[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=self.dropout)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)


class BasicTransformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int, dim_head: int, context_dim: int, dropout: float = 0.1):
        super().__init__()
        self.attn1 = CrossAttention(dim, heads=heads, dim_head=dim_head, dropout=dropout)
        self.attn2 = CrossAttention(dim, context_dim, heads=heads, dim_head=dim_head, dropout=dropout)
        self.ff = nn.Sequential(GEGLU(dim, dim * 4), nn.Dropout(dropout), nn.Linear(dim * 4, dim))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, context, context_mask=None):
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context, context_mask)
        return x + self.ff(self.norm3(x))


class SpatialTransformer(nn.Module):
    """(B, C, F, T) mel latents; flattened to a sequence for the transformer block."""

    def __init__(self, channels: int, heads: int, dim_head: int, context_dim: int):
        super().__init__()
        inner = heads * dim_head
        self.norm = nn.GroupNorm(16, channels, eps=1e-6)
        self.proj_in = nn.Conv2d(channels, inner, 1)
        self.block = BasicTransformerBlock(inner, heads, dim_head, context_dim)
        self.proj_out = nn.Conv2d(inner, channels, 1)

    def forward(self, x, context, context_mask=None):
        b, _, f, t = x.shape
        h = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        h = self.block(h, context, context_mask)
        h = h.transpose(1, 2).unflatten(2, (f, t))
        return x + self.proj_out(h)


if __name__ == "__main__":
    st = SpatialTransformer(32, heads=4, dim_head=16, context_dim=24).eval()
    y = st(torch.randn(2, 32, 8, 10), torch.randn(2, 7, 24), torch.ones(2, 7))
    print(y.shape)
