# expect: correct
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledCosineAttention(nn.Module):
    """Cosine attention; the learned log temperature is capped at log(100).
    The fused projection is stored as (value, key, query), that is how the old tf weights come."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.vkq = nn.Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.log_tau = nn.Parameter(torch.full((heads,), math.log(10.0)))
        self.proj = nn.Linear(width, width)

    def forward(self, z, keep=None):
        # keep: bool (b, n, n), True = pair is allowed
        b, n, c = z.shape
        bias = torch.cat([self.v_bias, torch.zeros_like(self.v_bias), self.q_bias])
        t = F.linear(z, self.vkq.weight, bias)
        v, k, q = t.view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        cos = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        tau = self.log_tau.clamp(max=math.log(100.0)).exp()
        cos = cos * tau[:, None, None]
        if keep is not None:
            cos = cos.masked_fill(~keep.unsqueeze(1), float("-inf"))
        y = cos.softmax(dim=-1) @ v
        return self.proj(y.permute(0, 2, 1, 3).reshape(b, n, c))
