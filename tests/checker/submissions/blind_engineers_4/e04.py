# expect: wrong
# why: After shifted-window attention the map is rolled by (-shift, -shift) a second time instead of being rolled back by (+shift, +shift).
"""Shifted-window transformer block on (B, H, W, C) maps."""
from __future__ import annotations

import torch
import torch.nn as nn


def to_windows(x: torch.Tensor, ws: int) -> torch.Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // ws, ws, w // ws, ws, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, c)


def from_windows(win: torch.Tensor, ws: int, h: int, w: int) -> torch.Tensor:
    c = win.shape[-1]
    x = win.view(-1, h // ws, w // ws, ws, ws, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, c)


def shift_mask(h: int, w: int, ws: int, shift: int, device) -> torch.Tensor:
    """(num_windows, ws*ws, ws*ws), -100 where two cells come from different regions."""
    region = torch.zeros(1, h, w, 1, device=device)
    cuts = (slice(0, -ws), slice(-ws, -shift), slice(-shift, None))
    idx = 0
    for hs in cuts:
        for wsl in cuts:
            region[:, hs, wsl] = idx
            idx += 1
    ids = to_windows(region, ws).squeeze(-1)
    return (ids[:, None, :] != ids[:, :, None]).float() * -100.0


class WindowAttention(nn.Module):
    def __init__(self, dim: int, ws: int, heads: int):
        super().__init__()
        self.heads, self.ws = heads, ws
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.rel_table = nn.Parameter(torch.zeros((2 * ws - 1) ** 2, heads))
        nn.init.trunc_normal_(self.rel_table, std=0.02)

        yy, xx = torch.meshgrid(torch.arange(ws), torch.arange(ws), indexing="ij")
        pts = torch.stack([yy.flatten(), xx.flatten()])
        rel = pts[:, :, None] - pts[:, None, :] + (ws - 1)     # query minus key
        self.register_buffer("rel_index", rel[0] * (2 * ws - 1) + rel[1], persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        bw, n, c = x.shape
        q, k, v = self.qkv(x).view(bw, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT * self.scale
        bias = self.rel_table[self.rel_index.flatten()].view(n, n, -1).permute(2, 0, 1)
        logits = logits + bias
        if mask is not None:
            nw = mask.shape[0]
            logits = logits.view(bw // nw, nw, self.heads, n, n) + mask[None, :, None]
            logits = logits.view(bw, self.heads, n, n)
        out = (logits.softmax(-1) @ v).transpose(1, 2).reshape(bw, n, c)
        return self.proj(out)


class SwinBlock(nn.Module):
    def __init__(self, dim: int, heads: int, ws: int = 4, shifted: bool = False):
        super().__init__()
        self.ws = ws
        self.shift = ws // 2 if shifted else 0
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, ws, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, h, w, _ = x.shape
        if h % self.ws or w % self.ws:
            raise ValueError("pad the feature map to a multiple of the window size first")
        y, mask = self.norm1(x), None
        if self.shift:
            y = y.roll((-self.shift, -self.shift), dims=(1, 2))
            mask = shift_mask(h, w, self.ws, self.shift, x.device)
        y = self.attn(to_windows(y, self.ws), mask)
        y = from_windows(y, self.ws, h, w)
        if self.shift:
            y = y.roll((-self.shift, -self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


def swin_stage(dim: int, heads: int, depth: int, ws: int = 4) -> nn.Sequential:
    return nn.Sequential(*(SwinBlock(dim, heads, ws, shifted=bool(i % 2)) for i in range(depth)))
