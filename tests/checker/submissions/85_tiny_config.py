# expect: correct
from dataclasses import dataclass
import math

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class TinyConfig:
    block_size: int = 32
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = True


class SelfAttn(nn.Module):
    """Causal self attention for the little char model."""

    def __init__(self, cfg: TinyConfig):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=cfg.bias)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd, bias=cfg.bias)
        self.att_drop = nn.Dropout(cfg.dropout)
        self.res_drop = nn.Dropout(cfg.dropout)
        tri = torch.ones(cfg.block_size, cfg.block_size).tril()
        self.register_buffer("tri", tri[None, None], persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        nh = self.cfg.n_head
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(B, T, nh, C // nh).permute(0, 2, 1, 3) for t in (q, k, v))
        w = q @ k.mT / math.sqrt(C // nh)
        w = w.masked_fill(self.tri[..., :T, :T] == 0, float("-inf"))
        w = self.att_drop(F.softmax(w, dim=-1))
        y = (w @ v).permute(0, 2, 1, 3).contiguous().view(B, T, C)
        return self.res_drop(self.proj(y))
