# expect: correct
import torch
from torch import nn


def exists(val):
    return val is not None


class CrossOrSelf(nn.Module):
    """Self-attention, or cross-attention when a context is given."""

    def __init__(self, query_dim, context_dim=None, heads=6, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim if exists(context_dim) else query_dim, inner_dim * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def _fold(self, t):
        b, n, hd = t.shape
        return t.view(b, n, self.heads, hd // self.heads).transpose(1, 2).reshape(b * self.heads, n, -1)

    def forward(self, x, context=None):
        src = context if exists(context) else x
        k, v = map(self._fold, self.to_kv(src).chunk(2, dim=-1))
        q = self._fold(self.to_q(x))
        sim = torch.einsum('bid,bjd->bij', q, k) * self.scale
        out = torch.einsum('bij,bjd->bid', sim.softmax(dim=-1), v)
        bh, n, d = out.shape
        out = out.view(bh // self.heads, self.heads, n, d).transpose(1, 2).flatten(2)
        return self.to_out(out)
