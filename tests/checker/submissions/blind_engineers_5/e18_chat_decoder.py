# expect: cached-mask-misaligned
# why: is_causal is aligned to the upper left, so when several new tokens come on top of a filled cache they can not see most of the history; shows at line 69: `out = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)`
"""Decoder attention with a growing cache; prompts of a chat arrive turn by turn."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class DynamicCache:
    def __init__(self, n_layers):
        self.keys = [None] * n_layers
        self.values = [None] * n_layers

    def seen(self, idx=0):
        return 0 if self.keys[idx] is None else self.keys[idx].shape[-2]

    def update(self, idx, k, v):
        if self.keys[idx] is not None:
            k = torch.cat([self.keys[idx], k], dim=-2)
            v = torch.cat([self.values[idx], v], dim=-2)
        self.keys[idx], self.values[idx] = k, v
        return k, v


def rope(x, offset, base=10000.0):
    t, d = x.shape[-2], x.shape[-1]
    inv = base ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = torch.outer(torch.arange(offset, offset + t, device=x.device).float(), inv)
    cos, sin = torch.cat([ang, ang], -1).cos(), torch.cat([ang, ang], -1).sin()
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-x2, x1], dim=-1) * sin


class CausalAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, layer_idx):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.layer_idx = n_heads, n_kv_heads, layer_idx
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2)

        past = cache.seen(self.layer_idx) if cache is not None else 0
        q, k = rope(q, past), rope(k, past)
        if cache is not None:
            k, v = cache.update(self.layer_idx, k, v)

        groups = self.n_heads // self.n_kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        # a single new token may look at the whole cache
        out = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, layer_idx):
        super().__init__()
        self.n1, self.n2 = RMSNorm(dim), RMSNorm(dim)
        self.attn = CausalAttention(dim, n_heads, n_kv_heads, layer_idx)
        self.gate = nn.Linear(dim, 2 * dim, bias=False)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, cache=None):
        x = x + self.attn(self.n1(x), cache)
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ChatModel(nn.Module):
    def __init__(self, vocab=100, dim=32, n_layers=2, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([Block(dim, n_heads, n_kv_heads, i) for i in range(n_layers)])
        self.norm = RMSNorm(dim)
        self.n_layers = n_layers

    def new_cache(self):
        return DynamicCache(self.n_layers)

    def forward(self, ids, cache=None):
        x = self.embed(ids)
        for blk in self.blocks:
            x = blk(x, cache)
        return self.norm(x) @ self.embed.weight.t()
