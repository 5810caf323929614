# expect: cache-differs
# why: line 41 and the next one (RollingBuffer.fill): after a prefill longer than the window the last tokens are written to slots 0..window-1 instead of position % window, so the next pushes overwrite a key that is not the oldest. Only with a cache, prefill longer than the window and not a multiple of it.
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class RollingArgs:
    dim: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    window: int = 4
    theta: float = 10000.0


def rotary(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    d = x.shape[-1]
    inv = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = positions.float()[:, None] * inv[None, :]
    rot = torch.polar(torch.ones_like(ang), ang)[None, :, None, :]
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], d // 2, 2))
    return torch.view_as_real(xc * rot).flatten(-2).type_as(x)


class RollingBuffer:
    """Keeps the keys and values of the `window` most recent positions. Keys are stored rotated,
    so the order of the slots plays no role."""

    def __init__(self, batch: int, args: RollingArgs, device=None, dtype=torch.float32):
        shape = (batch, args.window, args.n_kv_heads, args.dim // args.n_heads)
        self.window = args.window
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.seen = 0

    def fill(self, k: torch.Tensor, v: torch.Tensor) -> None:
        n = k.shape[1]
        keep = min(n, self.window)
        self.k[:, :keep] = k[:, n - keep :].detach()
        self.v[:, :keep] = v[:, n - keep :].detach()
        self.seen = n

    def push(self, k: torch.Tensor, v: torch.Tensor):
        slot = self.seen % self.window
        self.k[:, slot] = k[:, 0].detach()
        self.v[:, slot] = v[:, 0].detach()
        self.seen += 1
        n = min(self.seen, self.window)
        return self.k[:, :n], self.v[:, :n]


class RollingAttention(nn.Module):
    """Causal attention in which a token sees itself and the window - 1 tokens before it."""

    def __init__(self, args: RollingArgs):
        super().__init__()
        self.args = args
        self.head_dim = args.dim // args.n_heads
        self.repeats = args.n_heads // args.n_kv_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def _attend(self, q, k, v, mask):
        k = torch.repeat_interleave(k, self.repeats, dim=2)
        v = torch.repeat_interleave(v, self.repeats, dim=2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(out.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, cache: Optional[RollingBuffer] = None) -> torch.Tensor:
        b, n, _ = x.shape
        if cache is not None and cache.seen > 0 and n > 1:
            return torch.cat([self.forward(x[:, i : i + 1], cache) for i in range(n)], dim=1)

        start = cache.seen if cache is not None else 0
        pos = torch.arange(start, start + n, device=x.device)
        q = rotary(self.wq(x).view(b, n, self.args.n_heads, self.head_dim), pos, self.args.theta)
        k = rotary(self.wk(x).view(b, n, self.args.n_kv_heads, self.head_dim), pos, self.args.theta)
        v = self.wv(x).view(b, n, self.args.n_kv_heads, self.head_dim)

        if cache is not None and cache.seen > 0:
            k, v = cache.push(k, v)
            return self._attend(q, k, v, None)

        delta = pos[:, None] - pos[None, :]
        mask = (delta >= 0) & (delta < self.args.window)
        out = self._attend(q, k, v, mask)
        if cache is not None:
            cache.fill(k, v)
        return out
