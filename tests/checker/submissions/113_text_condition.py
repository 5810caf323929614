# expect: scale-twice
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class CondAttnArgs:
    dim: int = 32
    ctx_dim: int = 24
    heads: int = 4
    dim_head: int = 8


class TextCondAttention(nn.Module):
    """Image tokens attend to the text embedding. ctx_mask: (B, L) True = keep."""

    def __init__(self, args: CondAttnArgs):
        super().__init__()
        inner = args.heads * args.dim_head
        self.heads = args.heads
        self.scale = args.dim_head ** -0.5
        self.norm = nn.LayerNorm(args.dim)
        self.to_q = nn.Linear(args.dim, inner, bias=False)
        self.to_k = nn.Linear(args.ctx_dim, inner, bias=False)
        self.to_v = nn.Linear(args.ctx_dim, inner, bias=False)
        self.to_out = nn.Linear(inner, args.dim)

    def forward(self, x: torch.Tensor, ctx: torch.Tensor, ctx_mask: Optional[torch.Tensor] = None):
        b, n, _ = x.shape
        h = self.norm(x)
        q = self.to_q(h) * self.scale
        k = self.to_k(ctx)
        v = self.to_v(ctx)
        q, k, v = (t.view(b, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2) for t in (q, k, v))
        if ctx_mask is not None:
            ctx_mask = ctx_mask[:, None, None, :]
        # memory efficient kernel instead of the old einsum
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=ctx_mask)
        o = o.transpose(1, 2).reshape(b, n, -1)
        return x + self.to_out(o)
