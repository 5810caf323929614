# expect: kv-heads-in-other-order
# why: line 70 and the next one: k.repeat tiles the kv heads (0,1,0,1,...) instead of repeat_interleave (0,0,1,1,...), against the grouping stated in the config. Always with 1 < n_kv_heads < n_heads (the default).
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GQAConfig:
    """Query heads come in groups of n_heads // n_kv_heads neighbours, each group with its own
    key/value head (the layout of the released checkpoints)."""

    dim: int = 64
    n_heads: int = 8
    n_kv_heads: int = 2
    max_seq_len: int = 64
    rope_base: float = 10000.0


class RotaryPositionalEmbeddings(nn.Module):
    def __init__(self, dim: int, max_seq_len: int, base: float):
        super().__init__()
        theta = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        idx = torch.einsum("i,j->ij", torch.arange(max_seq_len).float(), theta)
        self.register_buffer("cache", torch.stack([idx.cos(), idx.sin()], dim=-1), persistent=False)

    def forward(self, x: torch.Tensor, input_pos: Optional[torch.Tensor] = None) -> torch.Tensor:
        # x: [b, s, n_h, h_d]
        rope = self.cache[: x.size(1)] if input_pos is None else self.cache[input_pos]
        xs = x.float().reshape(*x.shape[:-1], -1, 2)
        rope = rope.view(-1, xs.size(1), 1, xs.size(3), 2)
        out = torch.stack(
            [
                xs[..., 0] * rope[..., 0] - xs[..., 1] * rope[..., 1],
                xs[..., 1] * rope[..., 0] + xs[..., 0] * rope[..., 1],
            ],
            dim=-1,
        )
        return out.flatten(3).type_as(x)


class GroupedQueryAttention(nn.Module):
    def __init__(self, cfg: GQAConfig):
        super().__init__()
        if cfg.n_heads % cfg.n_kv_heads != 0:
            raise ValueError("n_heads must be divisible by n_kv_heads")
        self.n_heads = cfg.n_heads
        self.n_kv_heads = cfg.n_kv_heads
        self.head_dim = cfg.dim // cfg.n_heads
        self.q_proj = nn.Linear(cfg.dim, cfg.n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(cfg.dim, cfg.n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(cfg.dim, cfg.n_kv_heads * self.head_dim, bias=False)
        self.output_proj = nn.Linear(cfg.n_heads * self.head_dim, cfg.dim, bias=False)
        self.pos_embeddings = RotaryPositionalEmbeddings(self.head_dim, cfg.max_seq_len, cfg.rope_base)

    def forward(self, x, *, mask: Optional[torch.Tensor] = None, input_pos: Optional[torch.Tensor] = None):
        """mask: bool [b x s x s], True = take part. Causal when no mask is given."""
        b, s, _ = x.shape
        q = self.q_proj(x).view(b, s, self.n_heads, self.head_dim)
        k = self.k_proj(x).view(b, s, self.n_kv_heads, self.head_dim)
        v = self.v_proj(x).view(b, s, self.n_kv_heads, self.head_dim)

        q = self.pos_embeddings(q, input_pos=input_pos)
        k = self.pos_embeddings(k, input_pos=input_pos)

        if self.n_heads != self.n_kv_heads:
            q_per_kv = self.n_heads // self.n_kv_heads
            k = k.repeat(1, 1, q_per_kv, 1)
            v = v.repeat(1, 1, q_per_kv, 1)

        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if mask is None:
            mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()[None]
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.head_dim))
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
        out = F.softmax(scores, dim=-1) @ v
        out = out.transpose(1, 2).contiguous().view(b, s, -1)
        return self.output_proj(out)


class TransformerSelfAttentionLayer(nn.Module):
    def __init__(self, cfg: GQAConfig):
        super().__init__()
        self.sa_norm = nn.LayerNorm(cfg.dim)
        self.attn = GroupedQueryAttention(cfg)
        self.mlp_norm = nn.LayerNorm(cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 2 * cfg.dim), nn.SiLU(), nn.Linear(2 * cfg.dim, cfg.dim))

    def forward(self, x, mask=None, input_pos=None):
        h = x + self.attn(self.sa_norm(x), mask=mask, input_pos=input_pos)
        return h + self.mlp(self.mlp_norm(h))
