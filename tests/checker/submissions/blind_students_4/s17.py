# expect: correct
"""Grouped-query attention without copying the keys and values.

The query heads are reshaped to (kv_head, group) and einsum does the rest.
Query head number h uses key/value head h // group.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class GQAConfig:
    dim: int = 32
    n_q_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 6


class GroupedQueryAttention(nn.Module):
    def __init__(self, cfg: GQAConfig) -> None:
        super().__init__()
        assert cfg.n_q_heads % cfg.n_kv_heads == 0
        self.cfg = cfg
        self.group = cfg.n_q_heads // cfg.n_kv_heads
        self.wq = nn.Linear(cfg.dim, cfg.n_q_heads * cfg.head_dim, bias=False)
        self.wkv = nn.Linear(cfg.dim, 2 * cfg.n_kv_heads * cfg.head_dim, bias=False)
        self.wo = nn.Linear(cfg.n_q_heads * cfg.head_dim, cfg.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        c = self.cfg
        q = self.wq(x).view(b, t, c.n_kv_heads, self.group, c.head_dim)
        k, v = self.wkv(x).view(b, t, 2, c.n_kv_heads, c.head_dim).unbind(dim=2)

        logits = torch.einsum("bqngd,bknd->bngqk", q, k) * c.head_dim ** -0.5
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1)

        out = torch.einsum("bngqk,bknd->bqngd", weights, v)
        return self.wo(out.flatten(start_dim=2))


if __name__ == "__main__":
    cfg = GQAConfig()
    model = GroupedQueryAttention(cfg)
    y = model(torch.randn(2, 11, cfg.dim))
    print(y.shape)
