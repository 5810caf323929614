# expect: padding-in-other-texts
import torch
from torch import nn


def default(val, d):
    return val if val is not None else d


class CrossAttention(nn.Module):
    """
    Attention for a UNet block. With context (text tokens) it is cross attention, without it
    is self attention over the pixels.

    x       : b n query_dim
    context : b m context_dim
    mask    : b m   (bool, True = keep the token)
    """

    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0, slice_size=None):
        super().__init__()
        inner = heads * dim_head
        context_dim = default(context_dim, query_dim)
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.slice_size = slice_size  # process the b*h axis in slices to save memory

        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(context_dim, inner, bias=False)
        self.to_v = nn.Linear(context_dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, query_dim), nn.Dropout(dropout))

    def heads_to_batch(self, t):
        b, n, c = t.shape
        t = t.reshape(b, n, self.heads, c // self.heads).permute(0, 2, 1, 3)
        return t.reshape(b * self.heads, n, c // self.heads)

    def batch_to_heads(self, t):
        bh, n, d = t.shape
        t = t.reshape(bh // self.heads, self.heads, n, d).permute(0, 2, 1, 3)
        return t.reshape(bh // self.heads, n, self.heads * d)

    def _attend(self, q, k, v, mask):
        sim = torch.baddbmm(
            torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device),
            q, k.transpose(1, 2), beta=0, alpha=self.scale,
        )
        if mask is not None:
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
        return torch.bmm(sim.softmax(dim=-1), v)

    def forward(self, x, context=None, mask=None):
        context = default(context, x)
        q = self.heads_to_batch(self.to_q(x))
        k = self.heads_to_batch(self.to_k(context))
        v = self.heads_to_batch(self.to_v(context))
        if mask is not None:
            mask = mask[:, None, :].repeat(self.heads, 1, 1)

        if self.slice_size is None:
            out = self._attend(q, k, v, mask)
        else:
            parts = []
            for s in range(0, q.shape[0], self.slice_size):
                e = s + self.slice_size
                parts.append(self._attend(q[s:e], k[s:e], v[s:e], None if mask is None else mask[s:e]))
            out = torch.cat(parts, dim=0)
        return self.to_out(self.batch_to_heads(out))
