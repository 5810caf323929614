# expect: correct
# why: right: the causal mask is shifted by the cached length (tril with diagonal s - t), so prefill in chunks equals one pass
# GQA attention + cache, supports prefill in chunks
from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class KVCache:
    def __init__(self):
        self.k: torch.Tensor | None = None
        self.v: torch.Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.size(2)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.k is None:
            self.k, self.v = k, v
        else:
            self.k = torch.cat((self.k, k), dim=2)
            self.v = torch.cat((self.v, v), dim=2)
        return self.k, self.v


class Rope(nn.Module):
    def __init__(self, head_dim: int, theta: float = 10_000.0, max_pos: int = 256):
        super().__init__()
        freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.arange(max_pos, dtype=torch.float32)[:, None] * freq[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        n = x.size(-2)
        cos, sin = self.cos[start:start + n], self.sin[start:start + n]
        lo, hi = x.chunk(2, dim=-1)
        return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1)


class GQA(nn.Module):
    def __init__(self, d: int, q_heads: int, kv_heads: int):
        super().__init__()
        self.hd = d // q_heads
        self.q_heads, self.kv_heads = q_heads, kv_heads
        self.wqkv = nn.Linear(d, (q_heads + 2 * kv_heads) * self.hd, bias=False)
        self.wo = nn.Linear(q_heads * self.hd, d, bias=False)
        self.rope = Rope(self.hd)

    def forward(self, x: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.wqkv(x).split(
            [self.q_heads * self.hd, self.kv_heads * self.hd, self.kv_heads * self.hd], dim=-1)
        q = q.reshape(b, t, self.q_heads, self.hd).transpose(1, 2)
        k = k.reshape(b, t, self.kv_heads, self.hd).transpose(1, 2)
        v = v.reshape(b, t, self.kv_heads, self.hd).transpose(1, 2)

        start = cache.length if cache is not None else 0
        q, k = self.rope(q, start), self.rope(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        s = k.size(2)

        rep = self.q_heads // self.kv_heads
        k = k[:, :, None].expand(b, self.kv_heads, rep, s, self.hd).reshape(b, self.q_heads, s, self.hd)
        v = v[:, :, None].expand(b, self.kv_heads, rep, s, self.hd).reshape(b, self.q_heads, s, self.hd)

        # new tokens sit at the end of the key axis
        mask = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=s - t)
        y = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, vocab: int = 90, d: int = 48, layers: int = 2, q_heads: int = 6, kv_heads: int = 2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.attn = nn.ModuleList(GQA(d, q_heads, kv_heads) for _ in range(layers))
        self.attn_norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d)) for _ in range(layers))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids: torch.Tensor, caches: list[KVCache] | None = None) -> torch.Tensor:
        h = self.tok(ids)
        for i, (norm, attn, mlp) in enumerate(zip(self.attn_norm, self.attn, self.mlp)):
            h = h + attn(norm(h), None if caches is None else caches[i])
            h = h + mlp(h)
        return self.out(h)
