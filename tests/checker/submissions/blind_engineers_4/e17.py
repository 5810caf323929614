# expect: padding-in-other-texts
# why: The text mask is tiled with repeat(heads, 1) (head-major) while q/k/v are flattened batch-major, so for batch > 1 samples get each other's text mask.
import torch
from torch import nn
import torch.nn.functional as F


class GEGLU(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.proj = nn.Linear(dim, inner * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


class CrossAttention(nn.Module):
    """Self attention when ``context`` is None, otherwise attention from image tokens to text tokens."""

    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = query_dim if context_dim is None else context_dim
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def head_to_batch(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3).reshape(b * self.heads, n, -1)

    def batch_to_head(self, t):
        bh, n, d = t.shape
        return t.reshape(bh // self.heads, self.heads, n, d).permute(0, 2, 1, 3).reshape(-1, n, self.heads * d)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q = self.head_to_batch(self.to_q(x))
        k = self.head_to_batch(self.to_k(context))
        v = self.head_to_batch(self.to_v(context))

        sim = torch.baddbmm(
            torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device),
            q, k.transpose(1, 2), beta=0, alpha=self.scale)

        if mask is not None:
            # mask: (batch, text_len) bool, True = real token
            mask = mask.repeat(self.heads, 1)[:, None, :]
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim=-1)
        out = self.batch_to_head(torch.bmm(attn, v))
        return self.to_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, dim, heads, dim_head, context_dim):
        super().__init__()
        self.attn1 = CrossAttention(dim, None, heads, dim_head)
        self.attn2 = CrossAttention(dim, context_dim, heads, dim_head)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(GEGLU(dim, dim * 4), nn.Linear(dim * 4, dim))

    def forward(self, x, context, context_mask=None):
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context, context_mask) + x
        return self.ff(self.norm3(x)) + x


class SpatialTransformer(nn.Module):
    """Channel-first wrapper used inside the U-Net."""

    def __init__(self, channels, heads=4, dim_head=16, context_dim=40, depth=1):
        super().__init__()
        inner = heads * dim_head
        self.norm = nn.GroupNorm(8, channels)
        self.proj_in = nn.Conv2d(channels, inner, 1)
        self.blocks = nn.ModuleList(TransformerBlock(inner, heads, dim_head, context_dim) for _ in range(depth))
        self.proj_out = nn.Conv2d(inner, channels, 1)
        nn.init.zeros_(self.proj_out.weight)
        nn.init.zeros_(self.proj_out.bias)

    def forward(self, x, context, context_mask=None):
        b, c, h, w = x.shape
        y = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)
        for blk in self.blocks:
            y = blk(y, context, context_mask)
        y = y.transpose(1, 2).reshape(b, -1, h, w)
        return x + self.proj_out(y)
