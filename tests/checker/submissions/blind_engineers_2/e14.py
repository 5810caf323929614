# expect: norm-over-wrong-axis
# why: line 39 and the next one: F.normalize without dim uses dim=1, which in the (b h) n d layout is the token axis, so queries and keys are normalised over tokens instead of over the head channels (tokens leak into each other, padding too). Always.
import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


class CosineAttention(nn.Module):
    """Scaled cosine attention: queries and keys of unit length, learned temperature per head."""

    def __init__(
        self,
        dim,
        *,
        heads=4,
        dim_head=16,
        dropout=0.0,
        init_temperature=10.0,
        max_temperature=100.0,
    ):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(init_temperature)))
        self.max_log = math.log(max_temperature)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, mask=None):
        """x: (b, n, dim); mask: (b, n) bool, True = keep"""
        b, n, _ = x.shape
        h = self.heads
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = [rearrange(t, "b n (h d) -> (b h) n d", h=h) for t in (q, k, v)]

        q = F.normalize(q, p=2.0)
        k = F.normalize(k, p=2.0)

        sim = torch.bmm(q, k.transpose(1, 2))
        sim = rearrange(sim, "(b h) i j -> b h i j", h=h)
        sim = sim * self.logit_scale.clamp(max=self.max_log).exp()

        if mask is not None:
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)

        attn = self.dropout(sim.softmax(dim=-1))
        attn = rearrange(attn, "b h i j -> (b h) i j")
        out = torch.bmm(attn, v)
        out = rearrange(out, "(b h) n d -> b n (h d)", h=h)
        return self.to_out(out)


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * mult), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim * mult, dim)
        )

    def forward(self, x):
        return self.net(x)


class Encoder(nn.Module):
    def __init__(self, dim=64, depth=2, heads=4, dim_head=16, **kwargs):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleList([CosineAttention(dim, heads=heads, dim_head=dim_head, **kwargs), FeedForward(dim)]) for _ in range(depth)]
        )

    def forward(self, x, mask=None):
        for attn, ff in self.layers:
            x = attn(x, mask=mask) + x
            x = ff(x) + x
        return x
