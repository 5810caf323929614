# expect: norm-over-wrong-axis
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineAttention(nn.Module):
    """ViT attention with cosine similarity between every query and key vector and a
    learned temperature per head (keeps the logits bounded when training in low precision)."""

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = True, attn_drop: float = 0.0,
                 proj_drop: float = 0.0, max_scale: float = 100.0):
        super().__init__()
        assert dim % num_heads == 0, f"{dim=} not divisible by {num_heads=}"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_log_scale = math.log(max_scale)
        self.log_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)

        q, k = F.normalize(q), F.normalize(k)
        temperature = self.log_scale.clamp(max=self.max_log_scale).exp()
        attn = (q @ k.transpose(-2, -1)) * temperature
        attn = self.attn_drop(attn.softmax(dim=-1))

        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
