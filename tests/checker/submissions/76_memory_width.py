# expect: correct
from typing import Optional
import math
import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    """
    Decoder side looks at encoder output.

    target:       (B, T, target_dim)
    memory:       (B, S, memory_dim)
    memory_pad:   (B, S) bool, True marks padding in memory
    """

    def __init__(self, target_dim: int, memory_dim: int, heads: int = 4, head_dim: int = 16, dropout: float = 0.1):
        super().__init__()
        inner = heads * head_dim
        self.heads, self.head_dim = heads, head_dim
        self.q = nn.Linear(target_dim, inner, bias=False)
        self.kv = nn.Linear(memory_dim, inner * 2, bias=False)
        self.o = nn.Linear(inner, target_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, target: torch.Tensor, memory: torch.Tensor, memory_pad: Optional[torch.Tensor] = None):
        B, T, _ = target.shape
        S = memory.shape[1]

        q = self.q(target).reshape(B, T, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(memory).reshape(B, S, 2, self.heads, self.head_dim).unbind(dim=2)
        k = k.permute(0, 2, 3, 1)  # B, h, d, S
        v = v.transpose(1, 2)      # B, h, S, d

        energy = torch.matmul(q, k) / math.sqrt(self.head_dim)
        if memory_pad is not None:
            energy = energy.masked_fill(memory_pad.view(B, 1, 1, S), torch.finfo(energy.dtype).min)
        alpha = self.dropout(torch.softmax(energy, dim=-1))

        z = torch.matmul(alpha, v).transpose(1, 2).reshape(B, T, -1)
        return self.o(z)
