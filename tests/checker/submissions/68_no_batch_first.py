# expect: attends-across-batch
import torch
from torch import nn


class SelfAttentionBlock(nn.Module):
    """Pre-norm self attention with a residual. Input and output are (batch, seq, dim)."""

    def __init__(self, dim: int = 64, n_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, n_heads, dropout=dropout)

    def forward(self, x):
        h = self.norm(x)
        h, _ = self.attn(h, h, h, need_weights=False)
        return x + h
