# expect: correct
"""Causal attention with linear biases (ALiBi), left padding and an append cache."""
import math
from typing import List, NamedTuple, Optional

import torch
from torch import nn


class KV(NamedTuple):
    k: torch.Tensor
    v: torch.Tensor


def alibi_slopes(n_heads: int) -> torch.Tensor:
    def geometric(n: int) -> List[float]:
        start = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]

    if math.log2(n_heads).is_integer():
        return torch.tensor(geometric(n_heads))
    lower = 2 ** math.floor(math.log2(n_heads))
    extra = geometric(2 * lower)[0::2][: n_heads - lower]
    return torch.tensor(geometric(lower) + extra)


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.inv_norm = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def _bias(self, attention_mask: torch.Tensor) -> torch.Tensor:
        # slope * key index. The "- slope * query index" half of the usual formula is the same number
        # for a whole row of scores and falls out of the softmax.
        pos = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return self.slopes.view(1, -1, 1, 1) * pos[:, None, None, :]

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                past: Optional[KV] = None):
        """attention_mask: (batch, past + new), 1 = real token, 0 = padding."""
        b, t, _ = x.shape
        fused = self.query_key_value(x).view(b, t, self.n_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        if past is not None:
            k = torch.cat((past.k, k), dim=2)
            v = torch.cat((past.v, v), dim=2)
        s = k.shape[2]
        if attention_mask is None:
            attention_mask = torch.ones(b, s, dtype=torch.long, device=x.device)

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.inv_norm
        scores = scores + self._bias(attention_mask).to(scores.dtype)

        row = torch.arange(s - t, s, device=x.device)[:, None]
        col = torch.arange(s, device=x.device)[None, :]
        blocked = (col > row)[None, None] | (attention_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        probs = scores.float().softmax(dim=-1).to(x.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(b, t, -1)
        return self.dense(out), KV(k, v)
