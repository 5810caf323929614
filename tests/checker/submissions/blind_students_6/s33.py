# expect: rotary-pairs-mixed
# why: angles are interleaved while rotate_half pairs the two halves, so it is no rotation
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope(head_dim: int, max_len: int, base: float = 10000.0):
    """cos / sin tables of shape (max_len, head_dim)"""
    inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(torch.arange(max_len).float(), inv_freq)   # (max_len, head_dim/2)
    angles = torch.repeat_interleave(angles, 2, dim=-1)             # (max_len, head_dim)
    return angles.cos(), angles.sin()


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rope(x, cos, sin):
    # x: (B, H, T, head_dim)
    t = x.size(-2)
    return x * cos[:t] + rotate_half(x) * sin[:t]


class RotaryAttention(nn.Module):
    """Causal multi-head attention with rotary position embedding (RoFormer)."""

    def __init__(self, dim: int, n_heads: int, max_len: int = 256):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        cos, sin = build_rope(self.head_dim, max_len)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        q = apply_rope(q, self.cos, self.sin)
        k = apply_rope(k, self.cos, self.sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))
