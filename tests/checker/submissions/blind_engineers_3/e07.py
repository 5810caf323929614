# expect: cached-mask-misaligned, cache-differs
# why: is_causal=True is always used (line 49); with a cache q_len < k_len and SDPA aligns the causal mask to the top-left corner, so a decoded token only sees key 0.
# why: Already rotated keys come out of the cache, and the whole concatenation is rotated again (line 45) and stored rotated, so cached keys are re-rotated at every step. (In one-token steps hidden behind the first mistake.)
"""Minimal llama-like decoder layer with an HF-ish `past_key_values` cache, SDPA backend."""
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

Cache = List[Optional[Tuple[torch.Tensor, torch.Tensor]]]


class Rotary(nn.Module):
    def __init__(self, dim: int, base: float = 500_000.0):
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x: torch.Tensor, offset: int = 0) -> torch.Tensor:
        t = torch.arange(offset, offset + x.shape[-2], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq)
        cos, sin = freqs.cos(), freqs.sin()
        x1, x2 = x.float().chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).type_as(x)


class SelfAttention(nn.Module):
    def __init__(self, hidden: int, n_heads: int, layer_idx: int):
        super().__init__()
        self.h, self.d, self.layer_idx = n_heads, hidden // n_heads, layer_idx
        self.qkv_proj = nn.Linear(hidden, 3 * hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.rotary = Rotary(self.d)

    def forward(self, x: torch.Tensor, cache: Optional[Cache] = None) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.h, self.d).transpose(1, 2) for z in self.qkv_proj(x).split(c, dim=-1))

        past_len = 0
        if cache is not None and cache[self.layer_idx] is not None:
            past_k, past_v = cache[self.layer_idx]
            past_len = past_k.shape[2]
            k = torch.cat([past_k, k], dim=2)
            v = torch.cat([past_v, v], dim=2)

        # keys cover positions 0 .. past_len + t - 1, queries only the last t of them
        q = self.rotary(q, offset=past_len)
        k = self.rotary(k)
        if cache is not None:
            cache[self.layer_idx] = (k, v)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    def __init__(self, hidden: int, n_heads: int, layer_idx: int):
        super().__init__()
        self.attn = SelfAttention(hidden, n_heads, layer_idx)
        self.mlp = SwiGLU(hidden, hidden * 8 // 3)
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)

    def forward(self, x, cache=None):
        x = x + self.attn(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab=128, hidden=48, n_heads=4, n_layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(DecoderLayer(hidden, n_heads, i) for i in range(n_layers))
        self.norm = nn.RMSNorm(hidden)

    def forward(self, ids, cache=None):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, cache)
        return self.norm(h) @ self.embed.weight.T

    @torch.no_grad()
    def generate(self, ids, n_new):
        cache: Cache = [None] * len(self.layers)
        logits = self(ids, cache)
        for _ in range(n_new):
            nxt = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], dim=1)
            logits = self(nxt, cache)
        return ids


if __name__ == "__main__":
    print(TinyLM().generate(torch.randint(0, 128, (1, 5)), 8))
