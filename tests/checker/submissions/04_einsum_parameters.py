# expect: correct
# Everything with einsum, weights kept per head as in the paper.
import torch
from torch import nn, einsum


class EinsumAttention(nn.Module):
    def __init__(self, dim, num_heads, head_dim=None):
        super().__init__()
        head_dim = head_dim or dim // num_heads
        self.wq = nn.Parameter(torch.randn(num_heads, dim, head_dim) * 0.1)
        self.wk = nn.Parameter(torch.randn(num_heads, dim, head_dim) * 0.1)
        self.wv = nn.Parameter(torch.randn(num_heads, dim, head_dim) * 0.1)
        self.wo = nn.Parameter(torch.randn(num_heads, head_dim, dim) * 0.1)

    def forward(self, x):
        q = einsum("b n d, h d k -> b h n k", x, self.wq)
        k = einsum("b m d, h d k -> b h m k", x, self.wk)
        v = einsum("b m d, h d k -> b h m k", x, self.wv)
        s = einsum("b h n k, b h m k -> b h n m", q, k) * q.shape[-1] ** -0.5
        return einsum("b h n m, b h m k, h k d -> b n d", s.softmax(dim=-1), v, self.wo)
