# expect: wrong
# why: the (b, hw, c) result is reshaped to (b, c, h, w) without a transpose, which mixes pixels and channels.
import torch
import torch.nn as nn
import torch.nn.functional as F


def Normalize(in_channels, num_groups=8):
    return nn.GroupNorm(num_groups=num_groups, num_channels=in_channels, eps=1e-6, affine=True)


class ResnetBlock(nn.Module):
    def __init__(self, *, in_channels, out_channels=None, dropout=0.0):
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        self.norm1 = Normalize(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=1, padding=1)
        self.norm2 = Normalize(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, stride=1, padding=1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return self.shortcut(x) + h


class AttnBlock(nn.Module):
    """Single-head spatial self-attention at the bottleneck of the autoencoder."""

    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.norm = Normalize(in_channels)
        self.q = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.k = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.v = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.proj_out = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)

    def forward(self, x):
        h_ = self.norm(x)
        q = self.q(h_)
        k = self.k(h_)
        v = self.v(h_)

        b, c, h, w = q.shape
        q = q.flatten(2).transpose(1, 2)        # b, hw, c
        k = k.flatten(2).transpose(1, 2)        # b, hw, c
        v = v.flatten(2).transpose(1, 2)        # b, hw, c
        h_ = F.scaled_dot_product_attention(q, k, v)
        h_ = h_.reshape(b, c, h, w)

        return x + self.proj_out(h_)


class MidBlock(nn.Module):
    def __init__(self, ch, dropout=0.0):
        super().__init__()
        self.block_1 = ResnetBlock(in_channels=ch, dropout=dropout)
        self.attn_1 = AttnBlock(ch)
        self.block_2 = ResnetBlock(in_channels=ch, dropout=dropout)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))
