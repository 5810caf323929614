# expect: rotary-pairs-mixed
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class RotaryAttention(nn.Module):
    """Causal attention with rotary position embedding."""

    def __init__(self, dim, n_heads, base=10000.0):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        inv = base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv, persistent=False)

    def _cos_sin(self, n, device, dtype):
        pos = torch.arange(n, device=device, dtype=torch.float32)
        ang = torch.outer(pos, self.inv_freq)
        ang = ang.repeat_interleave(2, dim=-1)
        return ang.cos().to(dtype), ang.sin().to(dtype)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv_proj(x).view(b, n, 3, self.n_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        cos, sin = self._cos_sin(n, x.device, x.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, c))
