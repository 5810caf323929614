# expect: correct
"""Transformer policy core for on-policy RL. Attention never crosses an episode boundary,
and a segment of earlier layer inputs can be carried over as memory."""
from typing import List, NamedTuple, Optional, Tuple

import torch
import torch.nn as nn


class Memory(NamedTuple):
    hiddens: List[torch.Tensor]   # per layer (B, M, D)
    dones: torch.Tensor           # (B, M) bool, done[t]: the episode ended after step t


def episode_index(dones: torch.Tensor) -> torch.Tensor:
    """Step t belongs to the episode with as many endings strictly before t."""
    d = dones.long()
    return d.cumsum(dim=1) - d


class EpisodeAttention(nn.Module):
    def __init__(self, dim: int, heads: int, max_age: int = 64):
        super().__init__()
        self.heads, self.max_age = heads, max_age
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.age = nn.Parameter(0.1 * torch.randn(heads, max_age))   # bias for "key is n steps old"

    def forward(self, x: torch.Tensor, ctx: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
        """x: the last T steps of ctx, ctx: (B, M + T, D), dones: (B, M + T)."""
        B, T, D = x.shape
        S = ctx.shape[1]
        q = self.wq(x).view(B, T, self.heads, -1)
        k, v = self.wkv(ctx).view(B, S, 2, self.heads, -1).unbind(dim=2)

        q_idx = torch.arange(S - T, S, device=x.device)
        k_idx = torch.arange(S, device=x.device)
        age = q_idx[:, None] - k_idx[None, :]
        episode = episode_index(dones)
        same = episode[:, S - T:, None] == episode[:, None, :]
        visible = same & (age >= 0) & (age < self.max_age)

        logits = torch.einsum("bthd,bshd->bhts", q, k) * (D // self.heads) ** -0.5
        logits = logits + self.age[:, age.clamp(0, self.max_age - 1)]
        logits = logits.masked_fill(~visible[:, None], float("-inf"))
        return self.wo(torch.einsum("bhts,bshd->bthd", logits.softmax(-1), v).reshape(B, T, D))


class GRUGate(nn.Module):
    def __init__(self, dim: int, bias: float = 2.0):
        super().__init__()
        self.x, self.y = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.u = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(torch.full((dim,), bias))

    def forward(self, skip, branch):
        br, bz, bh = self.x(branch).chunk(3, -1)
        sr, sz = self.y(skip).chunk(2, -1)
        r = torch.sigmoid(br + sr)
        z = torch.sigmoid(bz + sz - self.bias)
        h = torch.tanh(bh + self.u(r * skip))
        return (1 - z) * skip + z * h


class PolicyCore(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4, depth: int = 2, mem_len: int = 8):
        super().__init__()
        self.mem_len = mem_len
        self.norm1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.attn = nn.ModuleList(EpisodeAttention(dim, heads) for _ in range(depth))
        self.gate1 = nn.ModuleList(GRUGate(dim) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(),
                                              nn.Linear(2 * dim, dim)) for _ in range(depth))
        self.gate2 = nn.ModuleList(GRUGate(dim) for _ in range(depth))

    def forward(self, x: torch.Tensor, dones: torch.Tensor,
                memory: Optional[Memory] = None) -> Tuple[torch.Tensor, Memory]:
        all_dones = dones if memory is None else torch.cat([memory.dones, dones], dim=1)
        kept = []
        for i in range(len(self.attn)):
            ctx = x if memory is None else torch.cat([memory.hiddens[i], x], dim=1)
            kept.append(ctx[:, -self.mem_len:].detach())
            y = self.attn[i](self.norm1[i](x), self.norm1[i](ctx), all_dones)
            x = self.gate1[i](x, torch.relu(y))
            x = self.gate2[i](x, torch.relu(self.ff[i](x)))
        return x, Memory(kept, all_dones[:, -self.mem_len:])
