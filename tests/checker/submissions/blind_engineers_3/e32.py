# expect: correct
from typing import Tuple

import torch
import torch.nn as nn


def to_windows(x: torch.Tensor, ws: int) -> torch.Tensor:
    B, H, W, C = x.shape
    return x.view(B, H // ws, ws, W // ws, ws, C).transpose(2, 3).reshape(-1, ws * ws, C)


def from_windows(win: torch.Tensor, ws: int, H: int, W: int) -> torch.Tensor:
    C = win.shape[-1]
    return win.view(-1, H // ws, W // ws, ws, ws, C).transpose(2, 3).reshape(-1, H, W, C)


class WindowMSA(nn.Module):
    def __init__(self, dim: int, heads: int, ws: int):
        super().__init__()
        self.h, self.ws = heads, ws
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        span = 2 * ws - 1
        self.bias_table = nn.Parameter(torch.zeros(span, span, heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        ys, xs = torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")
        ys, xs = ys.flatten(), xs.flatten()
        self.register_buffer("dy", ys[:, None] - ys[None, :] + ws - 1, persistent=False)
        self.register_buffer("dx", xs[:, None] - xs[None, :] + ws - 1, persistent=False)

    def forward(self, x, mask=None):
        # x: (B * nW, N, C) with the windows of one image next to each other; mask: (nW, N, N) additive
        Bn, N, C = x.shape
        q, k, v = self.qkv(x).view(Bn, N, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn + self.bias_table[self.dy, self.dx].permute(2, 0, 1)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(Bn // nW, nW, self.h, N, N) + mask[None, :, None]
            attn = attn.view(Bn, self.h, N, N)
        out = attn.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(Bn, N, C))


class SwinBlock(nn.Module):
    def __init__(self, dim: int, resolution: Tuple[int, int], heads: int, ws: int = 4, shift: int = 0, mlp_ratio: float = 4.0):
        super().__init__()
        self.resolution, self.ws, self.shift = resolution, ws, shift
        if min(resolution) <= ws:       # a single window: nothing to shift
            self.shift, self.ws = 0, min(resolution)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowMSA(dim, heads, self.ws)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.register_buffer("attn_mask", self._shift_mask() if self.shift else None, persistent=False)

    def _shift_mask(self):
        """After the cyclic shift some windows mix far-apart regions; those pairs get -100."""
        H, W = self.resolution
        region = torch.zeros(1, H, W, 1)
        slices = (slice(0, -self.ws), slice(-self.ws, -self.shift), slice(-self.shift, None))
        cnt = 0
        for h in slices:
            for w in slices:
                region[:, h, w, :] = cnt
                cnt += 1
        win = to_windows(region, self.ws).squeeze(-1)
        diff = win.unsqueeze(1) - win.unsqueeze(2)
        return torch.zeros_like(diff).masked_fill(diff != 0, -100.0)

    def forward(self, x):
        H, W = self.resolution
        B, L, C = x.shape
        assert L == H * W, "input feature has wrong size"
        h = self.norm1(x).view(B, H, W, C)
        if self.shift:
            h = torch.roll(h, shifts=(-self.shift, -self.shift), dims=(1, 2))
        h = from_windows(self.attn(to_windows(h, self.ws), self.attn_mask), self.ws, H, W)
        if self.shift:
            h = torch.roll(h, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + h.reshape(B, L, C)
        return x + self.mlp(self.norm2(x))


class SwinStage(nn.Sequential):
    def __init__(self, dim, resolution, heads, depth=2, ws=4):
        super().__init__(*[SwinBlock(dim, resolution, heads, ws, 0 if i % 2 == 0 else ws // 2) for i in range(depth)])


if __name__ == "__main__":
    print(SwinStage(32, (8, 12), 4)(torch.randn(2, 96, 32)).shape)
