# expect: correct
# why: plain
"""Perceiver resampler: turns any number of visual features into a fixed number of tokens."""
import torch
import torch.nn as nn
from einops import rearrange, repeat


def exists(val):
    return val is not None


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias=False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head=64, heads=8):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, latents, mask=None):
        """
        x:       (b, n, d) media features
        latents: (b, m, d)
        mask:    (b, n), True for features that exist
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        h, m = self.heads, latents.shape[1]

        q = self.to_q(latents)
        # the latents are put next to the media as keys and values
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=h) for t in (q, k, v))
        q = q * self.scale

        sim = torch.einsum('... i d, ... j d -> ... i j', q, k)
        if exists(mask):
            mask = nn.functional.pad(mask, (0, m), value=True)
            sim = sim.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = torch.einsum('... i j, ... j d -> ... i d', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)', h=h)
        return self.to_out(out)


class PerceiverResampler(nn.Module):
    def __init__(self, *, dim, depth=2, dim_head=16, heads=4, num_latents=6, max_num_frames=None, ff_mult=2):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.frame_embs = nn.Parameter(torch.randn(max_num_frames, dim)) if exists(max_num_frames) else None
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([
                PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                FeedForward(dim=dim, mult=ff_mult),
            ]))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, frame_mask=None):
        """x: (b, frames, tokens, d), frame_mask: (b, frames)"""
        b, f, n, _ = x.shape
        if exists(self.frame_embs):
            x = x + rearrange(self.frame_embs[:f], 'f d -> 1 f 1 d')
        x = rearrange(x, 'b f n d -> b (f n) d')
        mask = repeat(frame_mask, 'b f -> b (f n)', n=n) if exists(frame_mask) else None

        latents = repeat(self.latents, 'm d -> b m d', b=b)
        for attn, ff in self.layers:
            latents = attn(x, latents, mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
