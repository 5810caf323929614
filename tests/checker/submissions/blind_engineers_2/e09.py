# expect: correct
# what: Perceiver resampler, latents attend to input and latents
import torch
from einops import rearrange, repeat
from torch import einsum, nn


def exists(v):
    return v is not None


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, inner, bias=False), nn.GELU(), nn.Linear(inner, dim, bias=False))


class PerceiverAttention(nn.Module):
    """Latents read from the concatenation of the input and the latents themselves."""

    def __init__(self, *, dim, dim_head=16, heads=4):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner_dim = dim_head * heads

        self.norm_media = nn.LayerNorm(dim)
        self.norm_latents = nn.LayerNorm(dim)

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, latents, mask=None):
        """
        x:       (b, n, d) inputs
        latents: (b, m, d)
        mask:    (b, n) True where x is a real token
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, m, h = *latents.shape[:2], self.heads

        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=h) for t in (q, k, v))
        q = q * self.scale

        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        if exists(mask):
            latent_mask = torch.ones((b, m), dtype=torch.bool, device=mask.device)
            full = torch.cat((mask, latent_mask), dim=-1)
            sim = sim.masked_fill(~rearrange(full, "b j -> b 1 1 j"), -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class PerceiverResampler(nn.Module):
    def __init__(self, *, dim, depth=2, dim_head=16, heads=4, num_latents=8, max_frames=None, ff_mult=2):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.frame_embs = nn.Parameter(torch.randn(max_frames, dim)) if exists(max_frames) else None
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList([PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads), FeedForward(dim, ff_mult)])
            )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        if x.ndim == 4:
            f = x.shape[1]
            if exists(self.frame_embs):
                x = x + rearrange(self.frame_embs[:f], "f d -> f 1 d")
            x = rearrange(x, "b f n d -> b (f n) d")
        latents = repeat(self.latents, "n d -> b n d", b=x.shape[0])
        for attn, ff in self.layers:
            latents = attn(x, latents, mask=mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)
