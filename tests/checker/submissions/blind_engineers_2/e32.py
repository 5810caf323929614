# expect: wrong
# why: line 26 (relative_index): the row stride of the relative index is 2*fh-1 instead of 2*tw-1, so different offsets share entries of the bias table (for fh > tw the index runs out of the table and it crashes). Always with a non-square window (the default).
# why: line 66: windows come in (batch, windows) order but the scores are viewed as (windows, batch), so the shift mask of another window is applied. Only with a mask and batch size > 1.
"""Windowed attention over spectrogram patches (frequency x time)."""
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn as nn
from einops import rearrange


@dataclass
class AudioSwinConfig:
    dim: int = 32
    heads: int = 4
    grid: Tuple[int, int] = (4, 8)
    window: Tuple[int, int] = (2, 4)
    shift: Tuple[int, int] = (1, 2)
    drop: float = 0.0


def relative_index(window: Tuple[int, int]) -> torch.Tensor:
    fh, tw = window
    f, t = torch.meshgrid(torch.arange(fh), torch.arange(tw), indexing="ij")
    f, t = f.reshape(-1), t.reshape(-1)
    df = f[:, None] - f[None, :] + fh - 1
    dt = t[:, None] - t[None, :] + tw - 1
    return df * (2 * fh - 1) + dt


def shift_mask(grid, window, shift) -> Optional[torch.Tensor]:
    """(num_windows, tokens, tokens) additive mask for the rolled grid."""
    if shift == (0, 0):
        return None
    label = torch.zeros(grid)
    region = 0
    f_parts = [slice(0, -window[0]), slice(-window[0], -shift[0]), slice(-shift[0], None)]
    t_parts = [slice(0, -window[1]), slice(-window[1], -shift[1]), slice(-shift[1], None)]
    for fs in f_parts:
        for ts in t_parts:
            label[fs, ts] = region
            region += 1
    label = rearrange(label, "(a f) (b t) -> (a b) (f t)", f=window[0], t=window[1])
    different = label[:, :, None] != label[:, None, :]
    return torch.zeros(different.shape).masked_fill(different, -100.0)


class SpectrogramWindowAttention(nn.Module):
    def __init__(self, cfg: AudioSwinConfig):
        super().__init__()
        self.heads = cfg.heads
        self.scale = (cfg.dim // cfg.heads) ** -0.5
        fh, tw = cfg.window
        self.bias_table = nn.Parameter(torch.randn((2 * fh - 1) * (2 * tw - 1), cfg.heads) * 0.02)
        self.register_buffer("index", relative_index(cfg.window), persistent=False)
        self.qkv = nn.Linear(cfg.dim, cfg.dim * 3)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.drop = nn.Dropout(cfg.drop)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (batch * windows, tokens, dim); mask: (windows, tokens, tokens)"""
        total, n, _ = x.shape
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        attn = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        attn = attn + rearrange(self.bias_table[self.index], "i j h -> 1 h i j")
        if mask is not None:
            nw = mask.shape[0]
            attn = attn.view(nw, total // nw, self.heads, n, n) + mask[:, None, None]
            attn = attn.view(total, self.heads, n, n)
        attn = self.drop(attn.softmax(dim=-1))
        out = rearrange(torch.einsum("bhij,bhjd->bhid", attn, v), "b h n d -> b n (h d)")
        return self.proj(out)


class AudioSwinBlock(nn.Module):
    def __init__(self, cfg: AudioSwinConfig):
        super().__init__()
        self.cfg = cfg
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attn = SpectrogramWindowAttention(cfg)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))
        self.register_buffer("mask", shift_mask(cfg.grid, cfg.window, cfg.shift), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, freq, time, dim)"""
        (wf, wt), (sf, st) = self.cfg.window, self.cfg.shift
        _, F_, T_, _ = x.shape
        h = torch.roll(self.norm1(x), (-sf, -st), dims=(1, 2))
        h = rearrange(h, "b (i f) (j t) c -> (b i j) (f t) c", f=wf, t=wt)
        h = self.attn(h, self.mask)
        h = rearrange(h, "(b i j) (f t) c -> b (i f) (j t) c", i=F_ // wf, j=T_ // wt, f=wf, t=wt)
        x = x + torch.roll(h, (sf, st), dims=(1, 2))
        return x + self.mlp(self.norm2(x))
