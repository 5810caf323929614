# expect: cache-differs
# why: The prefill path expands the kv heads with Tensor.repeat (0,1,0,1,..) while the decode path groups query heads contiguously (0,0,1,1,..), so the two paths pair query heads with different kv heads.
"""Llama-flavoured attention; prefill goes through SDPA, single tokens through a
grouped matmul that never materialises the expanded keys."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope(max_pos, dim, base=500000.0):
    freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    ang = torch.arange(max_pos, dtype=torch.float32)[:, None] * freq[None]
    ang = torch.cat((ang, ang), dim=-1)
    return ang.cos(), ang.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rope(x, cos, sin):
    return x * cos + rotate_half(x) * sin


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size=64, num_heads=8, num_kv_heads=2, max_pos=256):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.groups = num_heads // num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.scale = self.head_dim ** -0.5
        kv_size = num_kv_heads * self.head_dim
        self.split = [hidden_size, kv_size, kv_size]
        self.qkv_proj = nn.Linear(hidden_size, sum(self.split), bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        cos, sin = build_rope(max_pos, self.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _heads(self, t, n):
        return t.unflatten(-1, (n, self.head_dim)).transpose(1, 2)

    def forward(self, hidden_states, past=None, use_cache=False):
        """``past`` is a (key, value) pair of shape (batch, kv_heads, past_len, head_dim)."""
        bsz, q_len, _ = hidden_states.shape
        q, k, v = self.qkv_proj(hidden_states).split(self.split, dim=-1)
        q = self._heads(q, self.num_heads)
        k = self._heads(k, self.num_kv_heads)
        v = self._heads(v, self.num_kv_heads)

        start = 0 if past is None else past[0].size(2)
        cos, sin = self.cos[start:start + q_len], self.sin[start:start + q_len]
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)

        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v) if use_cache else None

        if q_len == 1:
            out = self._decode(q, k, v)
        else:
            out = self._prefill(q, k, v, start)
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), present

    def _prefill(self, q, k, v, start):
        k = k.repeat(1, self.groups, 1, 1)
        v = v.repeat(1, self.groups, 1, 1)
        q_pos = torch.arange(start, start + q.size(2), device=q.device)
        k_pos = torch.arange(k.size(2), device=q.device)
        mask = k_pos[None, :] <= q_pos[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)

    def _decode(self, q, k, v):
        # one new token: every cached key is visible, no mask needed
        b = q.size(0)
        q = q.reshape(b, self.num_kv_heads, self.groups, self.head_dim)
        w = torch.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        return (w @ v).reshape(b, self.num_heads, 1, self.head_dim)
