# expect: correct
"""MSA row attention with pair bias and column attention, both gated."""
import math
from typing import Optional

import torch
from torch import nn

INF = 1e9


class GatedMHA(nn.Module):
    """Attention over the second-to-last axis of any (..., N, C) tensor."""

    def __init__(self, c_in: int, c_hidden: int, n_heads: int):
        super().__init__()
        self.c, self.h = c_hidden, n_heads
        self.linear_q = nn.Linear(c_in, c_hidden * n_heads, bias=False)
        self.linear_k = nn.Linear(c_in, c_hidden * n_heads, bias=False)
        self.linear_v = nn.Linear(c_in, c_hidden * n_heads, bias=False)
        self.linear_g = nn.Linear(c_in, c_hidden * n_heads)
        self.linear_o = nn.Linear(c_hidden * n_heads, c_in)

    def forward(self, x: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
        q = self.linear_q(x).unflatten(-1, (self.h, self.c)).transpose(-2, -3) / math.sqrt(self.c)
        k = self.linear_k(x).unflatten(-1, (self.h, self.c)).transpose(-2, -3)
        v = self.linear_v(x).unflatten(-1, (self.h, self.c)).transpose(-2, -3)
        a = q @ k.transpose(-1, -2)
        for bias in biases:
            a = a + bias
        o = a.softmax(dim=-1) @ v
        g = torch.sigmoid(self.linear_g(x))
        o = o.transpose(-2, -3).flatten(-2)
        return self.linear_o(o * g)


class MSARowAttentionWithPairBias(nn.Module):
    def __init__(self, c_m: int, c_z: int, c_hidden: int, n_heads: int):
        super().__init__()
        self.norm_m = nn.LayerNorm(c_m)
        self.norm_z = nn.LayerNorm(c_z)
        self.linear_z = nn.Linear(c_z, n_heads, bias=False)
        self.mha = GatedMHA(c_m, c_hidden, n_heads)

    def forward(self, m: torch.Tensor, z: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """m: (B, S, R, c_m), z: (B, R, R, c_z) with z[i, j] for query residue i and key residue j,
        mask: (B, S, R) with 1 for existing positions."""
        if mask is None:
            mask = m.new_ones(m.shape[:-1])
        mask_bias = INF * (mask - 1)[:, :, None, None, :]                      # B S 1 1 R
        pair_bias = self.linear_z(self.norm_z(z)).permute(0, 3, 1, 2)[:, None]  # B 1 H R R
        return self.mha(self.norm_m(m), mask_bias, pair_bias)


class MSAColumnAttention(nn.Module):
    def __init__(self, c_m: int, c_hidden: int, n_heads: int):
        super().__init__()
        self.norm_m = nn.LayerNorm(c_m)
        self.mha = GatedMHA(c_m, c_hidden, n_heads)

    def forward(self, m: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        if mask is None:
            mask = m.new_ones(m.shape[:-1])
        m, mask = m.transpose(1, 2), mask.transpose(1, 2)
        out = self.mha(self.norm_m(m), INF * (mask - 1)[:, :, None, None, :])
        return out.transpose(1, 2)


class Transition(nn.Module):
    def __init__(self, c: int, n: int = 2):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, n * c), nn.ReLU(), nn.Linear(n * c, c))

    def forward(self, x):
        return self.net(x)


class MSAStack(nn.Module):
    def __init__(self, c_m: int = 24, c_z: int = 12, c_hidden: int = 8, n_heads: int = 3):
        super().__init__()
        self.row = MSARowAttentionWithPairBias(c_m, c_z, c_hidden, n_heads)
        self.col = MSAColumnAttention(c_m, c_hidden, n_heads)
        self.transition = Transition(c_m)

    def forward(self, m, z, mask=None):
        m = m + self.row(m, z, mask)
        m = m + self.col(m, mask)
        return m + self.transition(m)
