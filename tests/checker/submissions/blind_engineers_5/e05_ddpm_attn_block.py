# expect: softmax-over-queries
# why: in a (b, query, key, head) score tensor softmax runs over the query axis instead of the key axis; shows at line 39: `attn = attn.softmax(dim=1)`
import torch
import torch.nn as nn
from typing import Optional


class AttentionBlock(nn.Module):
    """
    Attention block of the U-Net: each pixel of the feature map attends to all pixels.

    * `n_channels` is the number of channels in the input
    * `n_heads` is the number of heads in multi-head attention
    * `d_k` is the number of dimensions in each head
    * `n_groups` is the number of groups for group normalization
    """

    def __init__(self, n_channels: int, n_heads: int = 1, d_k: Optional[int] = None, n_groups: int = 8):
        super().__init__()
        if d_k is None:
            d_k = n_channels
        self.norm = nn.GroupNorm(n_groups, n_channels)
        self.projection = nn.Linear(n_channels, n_heads * d_k * 3)
        self.output = nn.Linear(n_heads * d_k, n_channels)
        self.scale = d_k ** -0.5
        self.n_heads = n_heads
        self.d_k = d_k

    def forward(self, x: torch.Tensor, t: Optional[torch.Tensor] = None):
        # `t` is not used, kept to match the signature of the residual block
        _ = t
        batch_size, n_channels, height, width = x.shape
        res = x
        x = self.norm(x)
        x = x.view(batch_size, n_channels, -1).permute(0, 2, 1)
        qkv = self.projection(x).view(batch_size, -1, self.n_heads, 3 * self.d_k)
        q, k, v = torch.chunk(qkv, 3, dim=-1)
        attn = torch.einsum('bihd,bjhd->bijh', q, k) * self.scale
        attn = attn.softmax(dim=1)
        out = torch.einsum('bijh,bjhd->bihd', attn, v)
        out = out.reshape(batch_size, -1, self.n_heads * self.d_k)
        out = self.output(out)
        out = out.permute(0, 2, 1).view(batch_size, n_channels, height, width)
        return out + res


class ResidualBlock(nn.Module):
    def __init__(self, in_channels, out_channels, time_channels, n_groups=8):
        super().__init__()
        self.norm1 = nn.GroupNorm(n_groups, in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(n_groups, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()
        self.time_emb = nn.Linear(time_channels, out_channels)
        self.act = nn.SiLU()

    def forward(self, x, t):
        h = self.conv1(self.act(self.norm1(x)))
        h = h + self.time_emb(self.act(t))[:, :, None, None]
        return self.conv2(self.act(self.norm2(h))) + self.shortcut(x)


class DownBlock(nn.Module):
    def __init__(self, in_channels, out_channels, time_channels, has_attn):
        super().__init__()
        self.res = ResidualBlock(in_channels, out_channels, time_channels)
        self.attn = AttentionBlock(out_channels, n_heads=2, d_k=out_channels // 2) if has_attn else nn.Identity()

    def forward(self, x, t):
        return self.attn(self.res(x, t))
