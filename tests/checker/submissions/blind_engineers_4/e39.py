# expect: breaks-with-size
# why: Positions and rotary frequencies are computed in the module's bfloat16 (arange in inv_freq.dtype), so positions above 256 collapse onto each other.
"""Long-context decoder attention that runs in bfloat16."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class LongConfig:
    dim: int = 64
    heads: int = 4
    kv_heads: int = 2
    max_positions: int = 8192
    theta: float = 1e6
    dtype: str = "bfloat16"


class Rotary(nn.Module):
    """Caches cos / sin and grows the cache when a longer sequence comes in."""

    def __init__(self, dim: int, theta: float):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / theta ** (torch.arange(0, dim, 2) / dim), persistent=False)
        self.cached_len = 0
        self.cos = self.sin = None

    def forward(self, seq_len: int, device, dtype):
        if seq_len > self.cached_len or self.cos.device != device:
            t = torch.arange(seq_len, device=device, dtype=self.inv_freq.dtype)
            freqs = torch.outer(t, self.inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            self.cos, self.sin = emb.cos(), emb.sin()
            self.cached_len = seq_len
        return self.cos[:seq_len].to(dtype), self.sin[:seq_len].to(dtype)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class LongAttention(nn.Module):
    def __init__(self, cfg: LongConfig):
        super().__init__()
        self.cfg = cfg
        self.head_dim = cfg.dim // cfg.heads
        self.wq = nn.Linear(cfg.dim, cfg.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(cfg.dim, cfg.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(cfg.dim, cfg.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(cfg.heads * self.head_dim, cfg.dim, bias=False)
        self.rotary = Rotary(self.head_dim, cfg.theta)
        self.to(DTYPES[cfg.dtype])

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor = None) -> torch.Tensor:
        """position_ids: (B, T) for sequences that do not start at position 0, else 0..T-1."""
        b, t, _ = x.shape
        x = x.to(self.wq.weight.dtype)
        q = self.wq(x).view(b, t, self.cfg.heads, self.head_dim)
        k = self.wk(x).view(b, t, self.cfg.kv_heads, self.head_dim)
        v = self.wv(x).view(b, t, self.cfg.kv_heads, self.head_dim)

        if position_ids is None:
            position_ids = torch.arange(t, device=x.device).expand(b, t)
        longest = int(position_ids.max()) + 1
        if longest > self.cfg.max_positions:
            raise ValueError(f"sequence of {longest} positions exceeds {self.cfg.max_positions}")
        cos, sin = self.rotary(longest, x.device, x.dtype)
        cos, sin = cos[position_ids].unsqueeze(2), sin[position_ids].unsqueeze(2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class LongBlock(nn.Module):
    def __init__(self, cfg: LongConfig):
        super().__init__()
        dtype = DTYPES[cfg.dtype]
        self.norm = nn.RMSNorm(cfg.dim, eps=1e-5, dtype=dtype)
        self.attn = LongAttention(cfg)

    def forward(self, x, position_ids=None):
        return x + self.attn(self.norm(x), position_ids)
