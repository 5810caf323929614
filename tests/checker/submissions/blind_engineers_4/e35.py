# expect: cache-differs
# why: The streaming cache keeps the first `left_context` frames of (cache + chunk) instead of the last ones, so from the second step on the left context is stale.
"""Chunk-wise streaming attention for an online speech encoder."""
from typing import Optional, Tuple

import torch
import torch.nn as nn

Cache = Tuple[torch.Tensor, torch.Tensor]


class StreamingAttention(nn.Module):
    """Frames attend inside their chunk and to ``left_context`` frames before the chunk.

    forward() handles whole utterances for training, step() one chunk at a time for serving.
    """

    def __init__(self, dim: int, heads: int, chunk: int = 4, left_context: int = 6):
        super().__init__()
        self.heads = heads
        self.chunk = chunk
        self.left_context = left_context
        self.scaling = (dim // heads) ** -0.5
        self.in_q = nn.Linear(dim, dim)
        self.in_k = nn.Linear(dim, dim, bias=False)
        self.in_v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def _qkv(self, x):
        b, t, _ = x.shape
        shape = (b, t, self.heads, -1)
        return (self.in_q(x).view(shape).transpose(1, 2) * self.scaling,
                self.in_k(x).view(shape).transpose(1, 2),
                self.in_v(x).view(shape).transpose(1, 2))

    def _finish(self, q, k, v, blocked=None):
        w = q @ k.transpose(-1, -2)
        if blocked is not None:
            w = w.masked_fill(blocked, float("-inf"))
        y = w.softmax(dim=-1) @ v
        b, _, t, _ = y.shape
        return self.out(y.transpose(1, 2).reshape(b, t, -1))

    def chunk_mask(self, t: int, device) -> torch.Tensor:
        """(T, T), True = blocked."""
        idx = torch.arange(t, device=device)
        begin = idx // self.chunk * self.chunk
        lo, hi = begin - self.left_context, begin + self.chunk
        return (idx[None, :] < lo[:, None]) | (idx[None, :] >= hi[:, None])

    def forward(self, x: torch.Tensor, lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        t = x.size(1)
        blocked = self.chunk_mask(t, x.device)[None, None]
        if lengths is not None:
            pad = torch.arange(t, device=x.device)[None, :] >= lengths[:, None]
            # frames in the padding may look at themselves so that no row is empty
            own = torch.eye(t, dtype=torch.bool, device=x.device)
            blocked = (blocked | pad[:, None, None, :]) & ~own
        return self._finish(*self._qkv(x), blocked)

    @torch.no_grad()
    def step(self, x: torch.Tensor, cache: Optional[Cache] = None) -> Tuple[torch.Tensor, Cache]:
        """x: (B, chunk, dim), the next chunk of frames (the last one may be shorter)."""
        q, k, v = self._qkv(x)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        new_cache = (k[:, :, :self.left_context], v[:, :, :self.left_context])
        return self._finish(q, k, v), new_cache


class StreamingLayer(nn.Module):
    def __init__(self, dim=32, heads=4, chunk=4, left_context=6):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = StreamingAttention(dim, heads, chunk, left_context)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, x, lengths=None):
        x = x + self.attn(self.norm1(x), lengths)
        return x + self.ffn(self.norm2(x))

    def step(self, x, cache=None):
        y, cache = self.attn.step(self.norm1(x), cache)
        x = x + y
        return x + self.ffn(self.norm2(x)), cache


def stream(layer: StreamingLayer, x: torch.Tensor) -> torch.Tensor:
    outs, cache = [], None
    for piece in x.split(layer.attn.chunk, dim=1):
        y, cache = layer.step(piece, cache)
        outs.append(y)
    return torch.cat(outs, dim=1)
