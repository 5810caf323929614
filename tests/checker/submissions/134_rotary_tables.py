# expect: rotary-pairs-mixed
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    block_size: int = 64
    n_embd: int = 64
    n_head: int = 4
    dropout: float = 0.0
    bias: bool = False
    rope_base: float = 10000.0


def rope_table(length, dim, base):
    inv = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), inv)
    angles = angles.repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def swap_halves(t):
    lo, hi = t.chunk(2, dim=-1)
    return torch.cat((-hi, lo), dim=-1)


class RotarySelfAttention(nn.Module):
    """GPT block attention, causal, positions enter only through rotary embeddings."""

    def __init__(self, cfg: Config):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.cfg = cfg
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=cfg.bias)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.resid_dropout = nn.Dropout(cfg.dropout)
        cos, sin = rope_table(cfg.block_size, cfg.n_embd // cfg.n_head, cfg.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        nn.init.normal_(self.c_proj.weight, std=0.02 / math.sqrt(2))

    def rope(self, t):
        n = t.size(-2)
        return t * self.cos[:n] + swap_halves(t) * self.sin[:n]

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.cfg.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(
            self.rope(q), self.rope(k), v,
            dropout_p=self.cfg.dropout if self.training else 0, is_causal=True,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
