# expect: rotary-ignores-position
# why: Lines 20-22: apply_rotary takes the position axis from x.shape[1] but is called with (batch, heads, seq, head_dim): the rotation angle depends on the head number and not on the token position, so no position information gets in.
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope_cache(max_len: int, head_dim: int, base: float = 10_000.0):
    inv_freq = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(max_len).float()[:, None] * inv_freq[None, :]
    angles = torch.cat([angles, angles], dim=-1)      # (max_len, head_dim)
    return angles.cos(), angles.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary(x, cos, sin):
    """rotate every vector by an angle that depends on its position"""
    n = x.shape[1]
    cos = cos[:n].view(1, n, 1, -1)
    sin = sin[:n].view(1, n, 1, -1)
    return x * cos + rotate_half(x) * sin


class RotaryAttention(nn.Module):
    def __init__(self, dim, heads, max_len=512, attn_drop=0.0):
        super().__init__()
        assert dim % heads == 0 and (dim // heads) % 2 == 0
        self.heads = heads
        self.hd = dim // heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        cos, sin = build_rope_cache(max_len, self.hd)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.heads, self.hd).transpose(1, 2)
        k = self.to_k(x).view(b, n, self.heads, self.hd).transpose(1, 2)
        v = self.to_v(x).view(b, n, self.heads, self.hd).transpose(1, 2)

        q = apply_rotary(q, self.cos, self.sin)
        k = apply_rotary(k, self.cos, self.sin)

        att = q @ k.transpose(-1, -2) * self.hd ** -0.5
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        att = att.masked_fill(~causal, float("-inf"))
        att = self.attn_drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(b, n, -1)
        return self.to_out(y)


if __name__ == "__main__":
    m = RotaryAttention(64, 8)
    print(m(torch.randn(2, 20, 64)).shape)
