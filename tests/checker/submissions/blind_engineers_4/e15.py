# expect: wrong
# why: The column-attention result, laid out as (B*W, H, C), is viewed as (B, H, W, C) without swapping the axes back, so column features land on other pixels.
"""Axial attention for channel-first feature maps: one pass along rows, one along columns."""
import torch
import torch.nn as nn


class LineAttention(nn.Module):
    """Multi-head self attention over (lines, length, channels) with learned offsets bias."""

    def __init__(self, channels, heads, max_len):
        super().__init__()
        self.heads = heads
        self.dh = channels // heads
        self.max_len = max_len
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_kv = nn.Linear(channels, 2 * channels, bias=False)
        self.to_out = nn.Linear(channels, channels)
        self.rel = nn.Parameter(torch.randn(heads, 2 * max_len - 1) * 0.1)

    def split(self, t):
        return t.reshape(t.shape[0], t.shape[1], self.heads, self.dh).transpose(1, 2)

    def forward(self, x):
        n, length, c = x.shape
        q = self.split(self.to_q(x))
        k, v = map(self.split, self.to_kv(x).chunk(2, dim=-1))
        idx = torch.arange(length, device=x.device)
        bias = self.rel[:, idx[None, :] - idx[:, None] + self.max_len - 1]
        dots = torch.einsum("nhid,nhjd->nhij", q, k) * self.dh ** -0.5 + bias
        out = torch.einsum("nhij,nhjd->nhid", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(n, length, c))


class AxialAttention2d(nn.Module):
    """(B, C, H, W) -> (B, C, H, W); sum of attention within each row and within each column."""

    def __init__(self, channels, heads=4, max_size=64):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.row_attn = LineAttention(channels, heads, max_size)
        self.col_attn = LineAttention(channels, heads, max_size)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x)

        rows = y.permute(0, 2, 3, 1).reshape(b * h, w, c)
        rows = self.row_attn(rows).reshape(b, h, w, c)

        cols = y.permute(0, 3, 2, 1).reshape(b * w, h, c)
        cols = self.col_attn(cols).reshape(b, h, w, c)

        return x + (rows + cols).permute(0, 3, 1, 2)


class AxialStage(nn.Module):
    def __init__(self, c_in, c_out, depth=2, heads=4):
        super().__init__()
        self.down = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1)
        self.attn = nn.ModuleList(AxialAttention2d(c_out, heads) for _ in range(depth))
        self.conv = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(1, c_out), nn.Conv2d(c_out, 2 * c_out, 1), nn.GELU(),
                          nn.Conv2d(2 * c_out, c_out, 1))
            for _ in range(depth))

    def forward(self, x):
        x = self.down(x)
        for a, f in zip(self.attn, self.conv):
            x = a(x)
            x = x + f(x)
        return x


if __name__ == "__main__":
    net = AxialStage(3, 32)
    print(net(torch.randn(2, 3, 24, 40)).shape)
