# expect: kv-heads-do-not-match
from typing import Optional

import torch
from torch import nn, Tensor


class GroupedAttention(nn.Module):
    """Grouped-query attention. Consecutive query heads share one key/value head."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv = n_kv_heads
        self.rep = n_heads // n_kv_heads
        self.hd = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, dim, bias=False)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x: (B, T, dim); mask: additive, broadcastable to (B, heads, T, T)."""
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)

        k = k.repeat_interleave(self.rep, dim=1)
        v = v.repeat(1, self.rep, 1, 1)

        att = torch.matmul(q, k.transpose(2, 3)) * self.hd ** -0.5
        if mask is not None:
            att = att + mask
        att = att.float().softmax(-1).type_as(q)
        o = torch.matmul(att, v)
        return self.wo(o.transpose(1, 2).reshape(b, t, -1))
