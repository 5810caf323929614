# expect: wrong
# why: is_causal=True is aligned to the top left, so with a filled cache new tokens do not see the right keys.
from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class LayerCache:
    """Preallocated keys and values of one layer."""

    k: torch.Tensor
    v: torch.Tensor
    length: int = 0

    @classmethod
    def allocate(cls, batch: int, heads: int, max_len: int, head_dim: int, *, dtype=torch.float32, device="cpu"):
        shape = (batch, heads, max_len, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = k.shape[2]
        if self.length + n > self.k.shape[2]:
            raise RuntimeError(f"cache overflow: {self.length} + {n} > {self.k.shape[2]}")
        self.k[:, :, self.length : self.length + n] = k
        self.v[:, :, self.length : self.length + n] = v
        self.length += n
        return self.k[:, :, : self.length], self.v[:, :, : self.length]

    def reset(self) -> None:
        self.length = 0


class EngineAttention(nn.Module):
    """Causal attention used by the serving engine for prefill, chunked prefill and decode."""

    def __init__(self, d_model: int, n_heads: int, *, bias: bool = False, rope_base: float = 10_000.0,
                 max_len: int = 512) -> None:
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.wqkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.wo = nn.Linear(d_model, d_model, bias=bias)
        inv = rope_base ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        ang = torch.arange(max_len).float()[:, None] * inv[None]
        self.register_buffer("rope_cos", ang.cos(), persistent=False)
        self.register_buffer("rope_sin", ang.sin(), persistent=False)

    def _rope(self, x: torch.Tensor, start: int) -> torch.Tensor:
        n = x.shape[2]
        c = self.rope_cos[start : start + n].to(x.dtype)
        s = self.rope_sin[start : start + n].to(x.dtype)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, cache: LayerCache | None = None) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.wqkv(x).view(b, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        start = 0 if cache is None else cache.length
        q, k = self._rope(q, start), self._rope(k, start)
        if cache is not None:
            k, v = cache.append(k, v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, n, d))


@torch.no_grad()
def run_chunked(attn: EngineAttention, x: torch.Tensor, chunk: int, max_len: int = 512) -> torch.Tensor:
    """Feeds x through the layer in chunks, as the scheduler does under load."""
    cache = LayerCache.allocate(x.shape[0], attn.n_heads, max_len, attn.head_dim, dtype=x.dtype, device=x.device)
    return torch.cat([attn(part, cache) for part in x.split(chunk, dim=1)], dim=1)
