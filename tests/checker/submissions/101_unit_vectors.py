# expect: norm-over-wrong-axis
import torch
import torch.nn as nn
import torch.nn.functional as F


class CosineAttention(nn.Module):
    """Cosine similarity attention: q and k vectors are unit length, one learned temperature per head."""

    def __init__(self, dim, num_heads=4, init_temp=10.0):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), init_temp))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)

        q = F.normalize(q)
        k = F.normalize(k)

        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)
