# expect: correct
import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import einsum, nn


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, inner_dim, bias=False),
        nn.GELU(),
        nn.Linear(inner_dim, dim, bias=False),
    )


class PerceiverAttention(nn.Module):
    def __init__(self, *, dim, dim_head=16, heads=4):
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
        einstein notation
        b - batch
        t - time
        n - media tokens
        m - latents
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        h = self.heads

        q = self.to_q(latents)

        # the keys / values of the latents are appended to those of the media
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b t n (h d) -> b h t n d', h=h) for t in (q, k, v))

        q = q * self.scale
        sim = einsum('... i d, ... j d  -> ... i j', q, k)
        if mask is not None:
            # mask covers the media tokens, latents are always visible
            mask = nn.functional.pad(mask, (0, latents.shape[-2]), value=True)
            sim = sim.masked_fill(~rearrange(mask, 'b t j -> b 1 t 1 j'), -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum('... i j, ... j d -> ... i d', attn, v)
        out = rearrange(out, 'b h t n d -> b t n (h d)', h=h)
        return self.to_out(out)


class PerceiverResampler(nn.Module):
    def __init__(self, *, dim, depth=2, dim_head=16, heads=4, num_latents=8, num_media_embeds=4, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.media_pos_emb = nn.Parameter(torch.randn(num_media_embeds, 1, dim))
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([
                PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                FeedForward(dim=dim, mult=ff_mult),
            ]))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        """x: (b, n, d) or (b, t, n, d); mask: (b, t, n) bool, True for tokens that exist."""
        if x.ndim == 3:
            x = rearrange(x, 'b n d -> b 1 n d')
        times = x.shape[1]
        x = x + self.media_pos_emb[:times]

        latents = repeat(self.latents, 'n d -> b m n d', b=x.shape[0], m=x.shape[1])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)


class MaskedCrossAttention(nn.Module):
    """Text tokens look at the resampled latents of all images of the sample."""

    def __init__(self, *, dim, dim_head=16, heads=4):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_kv = nn.Linear(dim, dim_head * heads * 2, bias=False)
        self.split = Rearrange('b n (h d) -> b h n d', h=heads)
        self.to_out = nn.Linear(dim_head * heads, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.]))

    def forward(self, x, media):
        q = self.split(self.to_q(self.norm(x))) * self.scale
        k, v = map(self.split, self.to_kv(rearrange(media, 'b t n d -> b (t n) d')).chunk(2, dim=-1))
        attn = einsum('b h i d, b h j d -> b h i j', q, k).softmax(dim=-1)
        out = rearrange(einsum('b h i j, b h j d -> b h i d', attn, v), 'b h n d -> b n (h d)')
        return x + self.attn_gate.tanh() * self.to_out(out)
