# expect: wrong
# why: the row stride of the bias index is 2*wf-1, not 2*wt-1: offsets share table entries
"""Window attention for audio tagging on log-mel spectrograms.

Windows are rectangular: ``window = (frequency bins, frames)``.
"""
from typing import Tuple

import torch
import torch.nn as nn
from einops import rearrange


class SpectrogramWindowAttention(nn.Module):
    """Self-attention inside non-overlapping (Wf, Wt) windows with a 2-D relative position bias.

    Every pair of cells of a window has the bias ``table[df, dt]`` per head, with
    ``df = f_query - f_key`` in [-(Wf - 1), Wf - 1] and ``dt = t_query - t_key`` in
    [-(Wt - 1), Wt - 1]: one table entry for each distinct offset.

    Args:
        dim: channels.
        window: (Wf, Wt) in patches.
        num_heads: heads.

    Input and output (B, F, T, dim), F and T multiples of the window.
    """

    def __init__(self, dim: int, window: Tuple[int, int] = (4, 8), num_heads: int = 4,
                 attn_drop: float = 0.0):
        super().__init__()
        self.window = wf, wt = window
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.bias_table = nn.Parameter(torch.zeros((2 * wf - 1) * (2 * wt - 1), num_heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        self.register_buffer("bias_index", self._make_index(wf, wt), persistent=False)

    @staticmethod
    def _make_index(wf: int, wt: int) -> torch.Tensor:
        f, t = torch.meshgrid(torch.arange(wf), torch.arange(wt), indexing="ij")
        f, t = f.flatten(), t.flatten()
        df = f[:, None] - f[None, :] + wf - 1
        dt = t[:, None] - t[None, :] + wt - 1
        return df * (2 * wf - 1) + dt

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wf, wt = self.window
        _, F_, T_, _ = x.shape
        if F_ % wf or T_ % wt:
            raise ValueError(f"map of {F_}x{T_} cells does not divide into {wf}x{wt} windows")
        x = rearrange(x, "b (nf wf) (nt wt) c -> (b nf nt) (wf wt) c", wf=wf, wt=wt)
        q, k, v = rearrange(self.qkv(x), "w n (three h d) -> three w h n d", three=3, h=self.num_heads)

        bias = rearrange(self.bias_table[self.bias_index], "i j h -> h i j")
        attn = (q @ k.transpose(-2, -1)) * self.scale + bias
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = self.proj(rearrange(attn @ v, "w h n d -> w n (h d)"))
        return rearrange(x, "(b nf nt) (wf wt) c -> b (nf wf) (nt wt) c",
                         nf=F_ // wf, nt=T_ // wt, wf=wf, wt=wt)


class GridAttention(SpectrogramWindowAttention):
    """Same, but a "window" is made of cells spread evenly over the map (MaxViT grid attention)."""

    def forward(self, x):
        wf, wt = self.window
        y = rearrange(x, "b (wf nf) (wt nt) c -> b (nf wf) (nt wt) c", wf=wf, wt=wt)
        y = super().forward(y)
        return rearrange(y, "b (nf wf) (nt wt) c -> b (wf nf) (wt nt) c", wf=wf, wt=wt)


class AudioTagger(nn.Module):
    def __init__(self, n_tags: int, dim: int = 48, window=(4, 8), depth: int = 2):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 4, stride=4)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            for cls in (SpectrogramWindowAttention, GridAttention):
                self.blocks.append(nn.ModuleList([
                    nn.LayerNorm(dim), cls(dim, window),
                    nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))]))
        self.head = nn.Linear(dim, n_tags)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: (B, 1, bins, frames) -> tag logits (B, n_tags)"""
        x = rearrange(self.patch(mel), "b c f t -> b f t c")
        for norm, attn, mlp in self.blocks:
            x = x + attn(norm(x))
            x = x + mlp(x)
        return self.head(x.mean(dim=(1, 2)))
