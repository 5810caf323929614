# expect: correct
# why: right: axial attention, rows then columns; positions are added to q and k only
"""Axial self-attention for dense prediction: attend along rows, then along columns."""
import torch
from torch import nn
from einops import rearrange
from einops.layers.torch import Rearrange


class AxisAttention(nn.Module):
    """Multi-head attention along the second-to-last axis, everything before is batch.

    x: (..., L, dim). A learned embedding of the position along the axis is added to queries and keys.
    """

    def __init__(self, dim, heads=4, dim_head=16, max_len=64):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.to_qk = nn.Linear(dim, 2 * inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        L = x.shape[-2]
        q, k = self.to_qk(x + self.pos[:L]).chunk(2, dim=-1)
        v = self.to_v(x)
        q, k, v = (rearrange(t, "... l (h d) -> ... h l d", h=self.heads) for t in (q, k, v))
        sim = torch.einsum("...id,...jd->...ij", q, k) * self.scale
        out = torch.einsum("...ij,...jd->...id", sim.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "... h l d -> ... l (h d)"))


class AxialAttention2d(nn.Module):
    """Row attention followed by column attention on a channels-first map.

    (B, C, H, W) -> (B, C, H, W). Both steps are residual with a channel LayerNorm in front, so a
    pixel reaches its whole row in the first step and the whole map after the second.

    Args:
        dim: channels
        heads, dim_head: attention geometry
        max_size: largest supported H or W
    """

    def __init__(self, dim, heads=4, dim_head=16, max_size=64):
        super().__init__()
        self.norm_row = nn.LayerNorm(dim)
        self.row = AxisAttention(dim, heads, dim_head, max_size)
        self.norm_col = nn.LayerNorm(dim)
        self.col = AxisAttention(dim, heads, dim_head, max_size)

    def forward(self, x):
        x = rearrange(x, "b c h w -> b h w c")
        x = x + self.row(self.norm_row(x))
        x = rearrange(x, "b h w c -> b w h c")
        x = x + self.col(self.norm_col(x))
        return rearrange(x, "b w h c -> b c h w")


class AxialSegmenter(nn.Module):
    """Small segmentation net: strided stem, axial blocks, per-pixel classifier."""

    def __init__(self, num_classes, dim=64, depth=2, patch=4):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, patch, stride=patch)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleList([
                AxialAttention2d(dim),
                nn.Sequential(nn.GroupNorm(1, dim), nn.Conv2d(dim, 4 * dim, 1), nn.GELU(), nn.Conv2d(4 * dim, dim, 1)),
            ]))
        self.head = nn.Sequential(
            nn.Conv2d(dim, num_classes * patch ** 2, 1),
            Rearrange("b (c p1 p2) h w -> b c (h p1) (w p2)", p1=patch, p2=patch))

    def forward(self, img):
        x = self.stem(img)
        for attn, ff in self.blocks:
            x = attn(x)
            x = x + ff(x)
        return self.head(x)
