# expect: correct
"""Attention at the low resolutions of the diffusion U-Net."""
import math

import torch
from torch import nn


def nonlinearity(x):
    return x * torch.sigmoid(x)


def Normalize(channels, groups=32):
    return nn.GroupNorm(num_groups=min(groups, channels // 4), num_channels=channels, eps=1e-6)


class ResnetBlock(nn.Module):
    def __init__(self, in_ch, out_ch, temb_ch=0):
        super().__init__()
        self.norm1 = Normalize(in_ch)
        self.conv1 = nn.Conv2d(in_ch, out_ch, 3, padding=1)
        self.temb = nn.Linear(temb_ch, out_ch) if temb_ch else None
        self.norm2 = Normalize(out_ch)
        self.conv2 = nn.Conv2d(out_ch, out_ch, 3, padding=1)
        self.skip = nn.Conv2d(in_ch, out_ch, 1) if in_ch != out_ch else nn.Identity()

    def forward(self, x, temb=None):
        h = self.conv1(nonlinearity(self.norm1(x)))
        if self.temb is not None:
            h = h + self.temb(nonlinearity(temb))[:, :, None, None]
        h = self.conv2(nonlinearity(self.norm2(h)))
        return self.skip(x) + h


class SpatialSelfAttention(nn.Module):
    """Full self-attention over the pixels of a (B, C, H, W) map.

    GroupNorm -> 1x1 convs for q, k, v -> attention over H*W -> 1x1 conv -> residual.
    Softmax is taken in float32; q and k are each scaled by d^-1/4, which is more stable
    under fp16 than dividing the product.
    """

    def __init__(self, channels, num_heads=1):
        super().__init__()
        assert channels % num_heads == 0
        self.num_heads = num_heads
        self.norm = Normalize(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        d = c // self.num_heads
        n = self.norm(x)
        # channels are head-major: (B, heads * d, H, W) -> (B * heads, d, HW)
        q = self.q(n).reshape(b * self.num_heads, d, h * w)
        k = self.k(n).reshape(b * self.num_heads, d, h * w)
        v = self.v(n).reshape(b * self.num_heads, d, h * w)

        s = 1.0 / math.sqrt(math.sqrt(d))
        weight = torch.einsum("bct,bcs->bts", q * s, k * s)
        weight = torch.softmax(weight.float(), dim=-1).to(weight.dtype)
        out = torch.einsum("bts,bcs->bct", weight, v)
        return x + self.proj_out(out.reshape(b, c, h, w))


class MidBlock(nn.Module):
    def __init__(self, channels, temb_ch=0, num_heads=4):
        super().__init__()
        self.res1 = ResnetBlock(channels, channels, temb_ch)
        self.attn = SpatialSelfAttention(channels, num_heads)
        self.res2 = ResnetBlock(channels, channels, temb_ch)

    def forward(self, x, temb=None):
        return self.res2(self.attn(self.res1(x, temb)), temb)
