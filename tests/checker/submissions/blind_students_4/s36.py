# expect: split-without-transpose, scale-twice
# why: two mistakes: the fused projection is reshaped straight to (3, B, heads, N, head_dim) without a permute, which scrambles q, k, v and tokens, on line 22, and q is scaled by hand although scaled_dot_product_attention scales again on line 25
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Attention for a small vision transformer (no mask)."""

    def __init__(self, dim, num_heads=8, qkv_bias=True, proj_drop=0.0):
        super().__init__()
        assert dim % num_heads == 0, 'dim should be divisible by num_heads'
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(3, B, self.num_heads, N, self.head_dim)
        q, k, v = qkv[0], qkv[1], qkv[2]

        q = q * self.scale
        x = F.scaled_dot_product_attention(q, k, v)

        x = x.transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        return self.proj_drop(x)


class PatchEmbed(nn.Module):
    def __init__(self, patch=4, channels=3, dim=48):
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)

    def forward(self, img):
        return self.conv(img).flatten(2).transpose(1, 2)


if __name__ == '__main__':
    images = torch.randn(2, 3, 32, 32)
    tokens = PatchEmbed()(images)
    attn = Attention(48, num_heads=6)
    print(tokens.shape, '->', attn(tokens).shape)
