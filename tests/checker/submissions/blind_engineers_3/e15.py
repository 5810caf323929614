# expect: correct
import torch
from torch import einsum, nn


def FeedForward(dim, mult=4):
    inner = int(dim * mult)
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, inner, bias=False), nn.GELU(), nn.Linear(inner, dim, bias=False))


class PerceiverAttention(nn.Module):
    """Flamingo flavour: latents are the queries, keys/values see media tokens AND latents."""

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

    def forward(self, x, latents, media_mask=None):
        """
        x           b m n d     (m media, n tokens each)
        latents     b m l d
        media_mask  b m n       True where the token exists
        """
        x = self.norm_media(x)
        latents = self.norm_latents(latents)
        b, m, l, _ = latents.shape
        h = self.heads

        q = self.to_q(latents)
        kv_input = torch.cat((x, latents), dim=-2)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, m, t.shape[2], h, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v))    # b h m n d

        q = q * self.scale
        sim = einsum("... i d, ... j d -> ... i j", q, k)
        if media_mask is not None:
            latents_ok = media_mask.new_ones(b, m, l)
            keep = torch.cat((media_mask, latents_ok), dim=-1)
            sim = sim.masked_fill(~keep[:, None, :, None, :], -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum("... i j, ... j d -> ... i d", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, m, l, -1)
        return self.to_out(out)


class PerceiverResampler(nn.Module):
    def __init__(self, *, dim, depth=2, dim_head=64, heads=8, num_latents=64, max_num_media=4, ff_mult=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.media_pos_emb = nn.Parameter(torch.randn(max_num_media, 1, dim))
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([
                PerceiverAttention(dim=dim, dim_head=dim_head, heads=heads),
                FeedForward(dim=dim, mult=ff_mult),
            ]))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, media_mask=None):
        if x.ndim == 3:
            x = x.unsqueeze(1)
            media_mask = media_mask.unsqueeze(1) if media_mask is not None else None
        b, times = x.shape[:2]
        x = x + self.media_pos_emb[:times]
        latents = self.latents.expand(b, times, -1, -1)
        for attn, ff in self.layers:
            latents = attn(x, latents, media_mask) + latents
            latents = ff(latents) + latents
        return self.norm(latents)


if __name__ == "__main__":
    resampler = PerceiverResampler(dim=48, heads=3, dim_head=16, num_latents=8)
    print(resampler(torch.randn(2, 3, 20, 48)).shape)    # 2 3 8 48
