# expect: cache-differs
# why: Between steps the cache keeps the last `window` keys instead of `window - 1`, so a decoded token attends to window + 1 keys while the full forward allows window.
"""Sliding-window self attention (Mistral style) with a bounded cache."""
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn, Tensor


@dataclass
class WindowCache:
    """Keys are stored after rotation, so trimming does not disturb their positions."""
    k: Optional[Tensor] = None
    v: Optional[Tensor] = None
    seen: int = 0


@dataclass
class SWAConfig:
    d_model: int = 48
    n_head: int = 6
    n_kv: int = 3
    window: int = 5
    rope_base: float = 10000.0
    extra: dict = field(default_factory=dict)


class SlidingWindowAttention(nn.Module):
    def __init__(self, cfg: SWAConfig):
        super().__init__()
        self.cfg = cfg
        self.hd = cfg.d_model // cfg.n_head
        self.q_proj = nn.Linear(cfg.d_model, cfg.n_head * self.hd, bias=False)
        self.k_proj = nn.Linear(cfg.d_model, cfg.n_kv * self.hd, bias=False)
        self.v_proj = nn.Linear(cfg.d_model, cfg.n_kv * self.hd, bias=False)
        self.o_proj = nn.Linear(cfg.n_head * self.hd, cfg.d_model, bias=False)

    def _rope(self, x: Tensor, pos: Tensor) -> Tensor:
        half = self.hd // 2
        inv = self.cfg.rope_base ** (-torch.arange(half, device=x.device) / half)
        ang = pos[:, None] * inv[None, :]
        cos, sin = ang.cos(), ang.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, x: Tensor, cache: Optional[WindowCache] = None) -> Tensor:
        """Token i sees itself and the ``window - 1`` tokens before it.

        With a cache, x may be one token or a longer prompt chunk."""
        B, T, _ = x.shape
        W = self.cfg.window
        start = 0 if cache is None else cache.seen
        pos = torch.arange(start, start + T, device=x.device)

        q = self._rope(self.q_proj(x).view(B, T, -1, self.hd).transpose(1, 2), pos)
        k = self._rope(self.k_proj(x).view(B, T, -1, self.hd).transpose(1, 2), pos)
        v = self.v_proj(x).view(B, T, -1, self.hd).transpose(1, 2)

        if cache is not None:
            if cache.k is not None:
                k = torch.cat([cache.k, k], dim=2)
                v = torch.cat([cache.v, v], dim=2)
            cache.k, cache.v = k[:, :, -W:], v[:, :, -W:]
            cache.seen += T

        mask = None
        if T > 1:
            k_pos = torch.arange(start + T - k.size(2), start + T, device=x.device)
            gap = pos[:, None] - k_pos[None, :]
            mask = (gap >= 0) & (gap < W)
        # a single new token may look at everything that is still in the cache
        rep = self.cfg.n_head // self.cfg.n_kv
        k = k.repeat_interleave(rep, dim=1)
        v = v.repeat_interleave(rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class SWABlock(nn.Module):
    def __init__(self, cfg: SWAConfig):
        super().__init__()
        self.ln1, self.ln2 = nn.RMSNorm(cfg.d_model), nn.RMSNorm(cfg.d_model)
        self.attn = SlidingWindowAttention(cfg)
        self.ff = nn.Sequential(nn.Linear(cfg.d_model, 4 * cfg.d_model), nn.SiLU(),
                                nn.Linear(4 * cfg.d_model, cfg.d_model))

    def forward(self, x, cache=None):
        x = x + self.attn(self.ln1(x), cache)
        return x + self.ff(self.ln2(x))
