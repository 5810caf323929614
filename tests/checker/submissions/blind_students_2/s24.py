# expect: correct
# what: KVCache class, mask from absolute positions, q and fused kv
from __future__ import annotations

import torch
import torch.nn as nn


class KVCache:
    """Keeps the keys and values of all earlier tokens."""

    def __init__(self):
        self.k: torch.Tensor | None = None
        self.v: torch.Tensor | None = None

    def __len__(self):
        return 0 if self.k is None else self.k.size(2)

    def update(self, k, v):
        if self.k is not None:
            k = torch.cat([self.k, k], dim=2)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        return k, v


class CachedAttention(nn.Module):
    def __init__(self, width: int, n_heads: int, p: float = 0.0):
        super().__init__()
        self.n_heads = n_heads
        self.head_width = width // n_heads
        self.wq = nn.Linear(width, width)
        self.wkv = nn.Linear(width, 2 * width)
        self.wo = nn.Linear(width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x, cache: KVCache | None = None):
        bsz, new, width = x.shape
        q = self.wq(x)
        k, v = self.wkv(x).split(width, -1)
        q, k, v = [t.view(bsz, new, self.n_heads, self.head_width).permute(0, 2, 1, 3) for t in (q, k, v)]

        old = 0
        if cache is not None:
            old = len(cache)
            k, v = cache.update(k, v)

        logits = torch.einsum('bhqd,bhkd->bhqk', q, k) / self.head_width ** 0.5
        # row r is really the token number old + r
        rows = torch.arange(old, old + new, device=x.device)
        cols = torch.arange(old + new, device=x.device)
        logits = logits.masked_fill(cols[None, :] > rows[:, None], float('-inf'))

        w = self.drop(torch.softmax(logits, -1))
        out = torch.einsum('bhqk,bhkd->bqhd', w, v).flatten(2)
        return self.wo(out)


@torch.no_grad()
def compare():
    layer = CachedAttention(24, 3).eval()
    x = torch.randn(2, 9, 24)
    ref = layer(x)
    c = KVCache()
    parts = [layer(x[:, :4], c), layer(x[:, 4:7], c), layer(x[:, 7:8], c), layer(x[:, 8:], c)]
    print('difference', (torch.cat(parts, 1) - ref).abs().max())


if __name__ == '__main__':
    compare()
