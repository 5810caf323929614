# expect: correct
# attention for a small pixel-space diffusion U-Net: linear at high resolution, full at the bottleneck
import torch
from torch import nn, einsum
import torch.nn.functional as F


def exists(v):
    return v is not None


class ChanRMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.normalize(x, dim=1) * self.g * (x.shape[1] ** 0.5)


class LinearAttention(nn.Module):
    """
    q is softmaxed over its channels, k over the pixels, and k^T v is formed first,
    which makes the cost linear in the number of pixels.
    """

    def __init__(self, dim, heads=4, dim_head=16):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        hidden = dim_head * heads
        self.norm = ChanRMSNorm(dim)
        self.to_qkv = nn.Conv2d(dim, hidden * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(hidden, dim, 1), ChanRMSNorm(dim))

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in qkv)     # b heads d n
        q = q.softmax(dim=-2) * self.scale
        k = k.softmax(dim=-1)
        context = einsum("b h d n, b h e n -> b h d e", k, v)
        out = einsum("b h d e, b h d n -> b h e n", context, q)
        return self.to_out(out.reshape(b, -1, h, w))


class FullAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=16):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        hidden = dim_head * heads
        self.norm = ChanRMSNorm(dim)
        self.to_qkv = nn.Conv2d(dim, hidden * 3, 1, bias=False)
        self.to_out = nn.Conv2d(hidden, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=1)
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in qkv)
        sim = einsum("b h d i, b h d j -> b h i j", q * self.scale, k)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h d j -> b h d i", attn, v)
        return self.to_out(out.reshape(b, -1, h, w))


class ResBlock(nn.Module):
    def __init__(self, dim, time_dim=None):
        super().__init__()
        self.time = nn.Linear(time_dim, 2 * dim) if exists(time_dim) else None
        self.norm = ChanRMSNorm(dim)
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x, t=None):
        h = self.norm(self.conv1(x))
        if exists(self.time) and exists(t):
            scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
            h = h * (scale + 1) + shift
        return x + self.conv2(F.silu(h))


class MidStage(nn.Module):
    def __init__(self, dim, time_dim=None, full=True):
        super().__init__()
        attn = FullAttention if full else LinearAttention
        self.pre, self.post = ResBlock(dim, time_dim), ResBlock(dim, time_dim)
        self.attn = attn(dim)

    def forward(self, x, t=None):
        x = self.pre(x, t)
        x = x + self.attn(x)
        return self.post(x, t)
