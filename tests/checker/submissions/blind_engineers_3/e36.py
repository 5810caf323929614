# expect: wrong
# why: The column pass reshapes (B,H,W,C) directly to (B*W,H,C) (line 58, and back the same way) without transposing H and W: the sequences are H consecutive tokens in row order, not columns.
"""Axial attention for 2-D feature maps: attend along every row, then along every column.

O(HW(H+W)) instead of O((HW)^2).
"""
import torch
import torch.nn as nn


class SeqAttention(nn.Module):
    """Plain multi-head self-attention over dim 1 of (N, L, C)."""

    def __init__(self, dim, heads, attn_drop=0.0):
        super().__init__()
        assert dim % heads == 0, f"dim {dim} should be divisible by heads {heads}"
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        N, L, C = x.shape
        q = self.q(x).reshape(N, L, self.heads, C // self.heads).permute(0, 2, 1, 3)
        k, v = self.kv(x).reshape(N, L, 2, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        out = (self.drop(attn) @ v).transpose(1, 2).reshape(N, L, C)
        return self.proj(out)


class AxialPositionEmbedding(nn.Module):
    def __init__(self, dim, max_h, max_w):
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, max_h, 1, dim) * 0.02)
        self.col = nn.Parameter(torch.randn(1, 1, max_w, dim) * 0.02)

    def forward(self, x):
        _, H, W, _ = x.shape
        return x + self.row[:, :H] + self.col[:, :, :W]


class AxialBlock(nn.Module):
    def __init__(self, dim, heads, mlp_ratio=2):
        super().__init__()
        self.norm_w, self.norm_h, self.norm_m = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn_w = SeqAttention(dim, heads)
        self.attn_h = SeqAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim))

    def forward(self, x):
        B, H, W, C = x.shape

        # along the width: every row is a sequence of W tokens
        y = self.norm_w(x).reshape(B * H, W, C)
        x = x + self.attn_w(y).reshape(B, H, W, C)

        # along the height: every column is a sequence of H tokens
        y = self.norm_h(x).reshape(B * W, H, C)
        x = x + self.attn_h(y).reshape(B, H, W, C)

        return x + self.mlp(self.norm_m(x))


class AxialSegmenter(nn.Module):
    def __init__(self, in_ch=3, n_classes=19, dim=48, heads=4, depth=2, patch=4, max_size=64):
        super().__init__()
        self.stem = nn.Conv2d(in_ch, dim, patch, stride=patch)
        self.pos = AxialPositionEmbedding(dim, max_size, max_size)
        self.blocks = nn.Sequential(*[AxialBlock(dim, heads) for _ in range(depth)])
        self.head = nn.Conv2d(dim, n_classes, 1)
        self.up = nn.Upsample(scale_factor=patch, mode="bilinear", align_corners=False)

    def forward(self, img):
        x = self.stem(img).permute(0, 2, 3, 1)      # B H W C
        x = self.blocks(self.pos(x))
        return self.up(self.head(x.permute(0, 3, 1, 2)))


if __name__ == "__main__":
    net = AxialSegmenter()
    print(net(torch.randn(2, 3, 32, 64)).shape)
