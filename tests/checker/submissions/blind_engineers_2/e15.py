# expect: correct
# what: gpt-oss like, learned sinks, alternating sliding window, GQA, dict cache
import math
from dataclasses import dataclass, field
from typing import List, Optional

import torch
from torch import nn


@dataclass
class SinkModelConfig:
    hidden_size: int = 64
    head_dim: int = 16
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    sliding_window: int = 4
    rope_theta: float = 150000.0
    layer_types: List[str] = field(default_factory=lambda: ["sliding", "full"])
    dtype: torch.dtype = torch.float32


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base: float):
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, x: torch.Tensor, offset: int = 0):
        # x: (batch, n, heads, d); halves are rotated against each other
        n = x.shape[1]
        inv = self.base ** -(torch.arange(0, self.head_dim, 2, device=x.device, dtype=torch.float32) / self.head_dim)
        t = torch.arange(offset, offset + n, device=x.device, dtype=torch.float32)
        ang = torch.einsum("i,j->ij", t, inv)
        cos, sin = ang.cos()[None, :, None].to(x.dtype), ang.sin()[None, :, None].to(x.dtype)
        x1, x2 = torch.chunk(x, 2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def sdpa(Q, K, V, S, sm_scale, sliding_window=0, offset=0):
    """Q: (b, q, kv, rep, d), K/V: (b, k, kv, d), S: (kv*rep,) one extra logit for each head."""
    b, n_q, n_kv, rep, d = Q.shape
    n_k = K.shape[1]
    S = S.reshape(1, n_kv, rep, 1, 1).expand(b, -1, -1, n_q, -1)
    rows = torch.arange(n_q, device=Q.device)[:, None] + offset
    cols = torch.arange(n_k, device=Q.device)[None, :]
    hidden = cols > rows
    if sliding_window > 0:
        hidden = hidden | (cols <= rows - sliding_window)
    QK = torch.einsum("bqhmd,bkhd->bhmqk", Q, K) * sm_scale
    QK = QK.masked_fill(hidden, -torch.inf)
    QK = torch.cat([QK, S.to(QK.dtype)], dim=-1)
    W = torch.softmax(QK, dim=-1)[..., :-1]
    attn = torch.einsum("bhmqk,bkhd->bqhmd", W, V)
    return attn.reshape(b, n_q, -1)


class AttentionBlock(nn.Module):
    def __init__(self, config: SinkModelConfig, layer_idx: int = 0, device: Optional[torch.device] = None):
        super().__init__()
        self.head_dim = config.head_dim
        self.num_attention_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        kind = config.layer_types[layer_idx % len(config.layer_types)]
        self.sliding_window = config.sliding_window if kind == "sliding" else 0
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads, device=device, dtype=config.dtype))
        self.norm = nn.LayerNorm(config.hidden_size, bias=False, device=device)
        qkv_dim = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
        self.qkv = nn.Linear(config.hidden_size, qkv_dim, device=device, dtype=config.dtype)
        self.out = nn.Linear(
            config.head_dim * config.num_attention_heads, config.hidden_size, device=device, dtype=config.dtype
        )
        self.sm_scale = 1 / math.sqrt(config.head_dim)
        self.rope = RotaryEmbedding(config.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor, cache: Optional[dict] = None) -> torch.Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(self.norm(x))
        nq, nkv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        q, k, v = qkv.split([nq, nkv, nkv], dim=-1)

        offset = 0 if cache is None or "k" not in cache else cache["k"].shape[1]
        q = self.rope(q.view(b, n, self.num_attention_heads, self.head_dim), offset)
        k = self.rope(k.view(b, n, self.num_key_value_heads, self.head_dim), offset)
        v = v.view(b, n, self.num_key_value_heads, self.head_dim)
        if cache is not None:
            if offset:
                k, v = torch.cat([cache["k"], k], dim=1), torch.cat([cache["v"], v], dim=1)
            cache["k"], cache["v"] = k, v

        q = q.view(b, n, self.num_key_value_heads, -1, self.head_dim)
        t = sdpa(q, k, v, self.sinks, self.sm_scale, self.sliding_window, offset)
        return x + self.out(t)
