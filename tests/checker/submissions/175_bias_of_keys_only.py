# expect: correct
import math
from typing import Dict, Optional

import torch
import torch.nn as nn


def head_slopes(n: int):
    """Geometric slopes; for head counts that are no power of two fill up from the next finer set."""
    base = 2 ** math.floor(math.log2(n))
    s = [2.0 ** (-8.0 * (i + 1) / base) for i in range(base)]
    if base < n:
        extra = [2.0 ** (-4.0 * (i + 1) / base) for i in range(0, 2 * (n - base), 2)]
        s += extra
    return torch.tensor(s)


class AlibiMQA(nn.Module):
    """Causal multi-query attention (one k/v head) with ALiBi.

    cache: pass the same dict on every call, it is filled in place ("k", "v").
    pad:   bool (B, S) over all keys including cached ones, True = ignore (left padding is fine).
    """

    def __init__(self, n_head: int, d: int, p_drop: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.hd = d // n_head
        self.c_attn = nn.Linear(d, d + 2 * self.hd)
        self.c_proj = nn.Linear(d, d)
        self.p = nn.Dropout(p_drop)
        self.register_buffer("slopes", head_slopes(n_head).view(1, n_head, 1, 1), persistent=False)

    def forward(self, x, cache: Optional[Dict[str, torch.Tensor]] = None, pad=None):
        B, T, d = x.shape
        q, k, v = self.c_attn(x).split((d, self.hd, self.hd), dim=2)
        if cache is not None:
            if "k" in cache:
                k = torch.cat((cache["k"], k), 1)
                v = torch.cat((cache["v"], v), 1)
            cache["k"], cache["v"] = k, v
        S = k.size(1)

        # one k head for all q heads -> a single matmul over (T * heads) rows
        att = q.reshape(B, T * self.n_head, self.hd) @ k.transpose(1, 2) / math.sqrt(self.hd)
        att = att.view(B, T, self.n_head, S).transpose(1, 2).float()

        # -m * (i - j) differs from m * j only by a constant per row, which softmax ignores
        att = att + self.slopes * torch.arange(1 - S, 1, device=x.device)

        ban = torch.ones(T, S, dtype=torch.bool, device=x.device).triu(S - T + 1)
        if pad is not None:
            ban = ban | pad[:, None, None, :]
        att = att.masked_fill(ban, torch.finfo(att.dtype).min)
        att = self.p(att.softmax(-1).to(x.dtype))
        y = att.transpose(1, 2).reshape(B, T * self.n_head, S) @ v
        return self.c_proj(y.view(B, T, d))
