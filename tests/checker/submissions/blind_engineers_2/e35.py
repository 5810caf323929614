# expect: scale-twice
# why: line 48: sim is multiplied by the scale although q was already scaled, so scores are divided by dim_head instead of sqrt(dim_head). Always.
# why: line 55: media_time is repeated as (n j) while media tokens are flattened as (m n), so text is matched with latents of the wrong images. Only with media_locations, several images and several latents.
# why: line 60 (missing after it): rows of text before the first image are fully masked, become uniform, and are never set to zero, so such text attends to all (later) images, against the docstring. Only with media_locations and text before the first image.
import torch
from einops import rearrange, repeat
from torch import einsum, nn


def exists(val):
    return val is not None


def FeedForward(dim, mult=4):
    inner_dim = int(dim * mult)
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, inner_dim, bias=False), nn.GELU(), nn.Linear(inner_dim, dim, bias=False)
    )


class MaskedCrossAttention(nn.Module):
    """Text tokens attend to the latents of the image that comes last before them (or at them);
    text before the first image gets nothing from the media."""

    def __init__(self, *, dim, dim_media=None, dim_head=16, heads=4, only_attend_immediate_media=True):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim_media or dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)
        self.only_attend_immediate_media = only_attend_immediate_media

    def forward(self, x, media, media_locations=None):
        """
        x: (b, t, d) text
        media: (b, images, latents, d)
        media_locations: (b, t) bool, True where an <image> token stands
        """
        m, n = media.shape[1:3]
        h = self.heads

        x = self.norm(x)
        q = self.to_q(x)
        media = rearrange(media, "b m n d -> b (m n) d")
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=h) for t in (q, k, v))
        q = q * self.scale

        sim = einsum("... i d, ... j d -> ... i j", q, k) * self.scale

        if exists(media_locations):
            text_time = media_locations.cumsum(dim=-1)
            media_time = torch.arange(m, device=x.device) + 1
            mask_op = torch.eq if self.only_attend_immediate_media else torch.ge
            text_to_media_mask = mask_op(
                rearrange(text_time, "b i -> b 1 i 1"), repeat(media_time, "j -> 1 1 1 (n j)", n=n)
            )
            sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)

        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        out = einsum("... i j, ... j d -> ... i d", attn, v)
        out = rearrange(out, "b h n d -> b n (h d)")
        return self.to_out(out)


class GatedCrossAttentionBlock(nn.Module):
    def __init__(self, *, dim, dim_head=16, heads=4, ff_mult=4, only_attend_immediate_media=True):
        super().__init__()
        self.attn = MaskedCrossAttention(
            dim=dim, dim_head=dim_head, heads=heads, only_attend_immediate_media=only_attend_immediate_media
        )
        self.attn_gate = nn.Parameter(torch.tensor([0.0]))
        self.ff = FeedForward(dim, mult=ff_mult)
        self.ff_gate = nn.Parameter(torch.tensor([0.0]))

    def forward(self, x, media, media_locations=None):
        x = self.attn(x, media, media_locations=media_locations) * self.attn_gate.tanh() + x
        return self.ff(x) * self.ff_gate.tanh() + x
