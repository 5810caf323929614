# expect: padding-inverted
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SetEncoderAttention(nn.Module):
    """Self-attention over a padded set of object embeddings.

    Args:
        x: (B, N, dim)
        pad_mask: (B, N) bool, True for padded (non existing) objects
    """

    def __init__(self, dim: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, pad_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, N, dim = x.shape
        q, k, v = (
            self.to_qkv(x).view(B, N, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        )
        attn_mask = None
        if pad_mask is not None:
            attn_mask = pad_mask.view(B, 1, 1, N).expand(-1, self.heads, N, -1)
        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=attn_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.to_out(out.transpose(1, 2).reshape(B, N, dim))
