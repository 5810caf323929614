# expect: correct
# why: right: Transformer-XL relative attention with a memory, time first
"""Gated Transformer-XL core for recurrent RL agents (Parisotto et al. 2019).

Sequences are time-major: (T, B, D). Each layer keeps the last ``mem_len`` inputs as memory.
"""
import math
from typing import List, Optional

import torch
from torch import nn


def sinusoid(distances: torch.Tensor, dim: int) -> torch.Tensor:
    inv = 1.0 / (10000 ** (torch.arange(0.0, dim, 2.0, device=distances.device) / dim))
    ang = distances[:, None].float() * inv
    return torch.cat([ang.sin(), ang.cos()], dim=-1)


class GRUGate(nn.Module):
    def __init__(self, dim: int, bias: float = 2.0):
        super().__init__()
        self.wr, self.ur = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wz, self.uz = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.wg, self.ug = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        nn.init.constant_(self.wz.bias, -bias)

    def forward(self, x, y):
        r = torch.sigmoid(self.wr(y) + self.ur(x))
        z = torch.sigmoid(self.wz(y) + self.uz(x))
        h = torch.tanh(self.wg(y) + self.ug(r * x))
        return (1 - z) * x + z * h


class RelativeMemoryAttention(nn.Module):
    """Causal attention over [memory; inputs] with Transformer-XL relative positions.

    inputs: (T, B, D) current segment; memory: (M, B, D) or None, gets no gradient.
    Input t sees all of the memory and the inputs 0..t. The position term depends on the distance
    t + M - j >= 0 between query and key only.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        assert dim % heads == 0
        self.dim, self.heads, self.hd = dim, heads, dim // heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_r = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, self.hd))
        self.v = nn.Parameter(torch.zeros(heads, self.hd))

    @staticmethod
    def rel_shift(x: torch.Tensor) -> torch.Tensor:
        """x (B, H, T, S), column c belongs to distance S - 1 - c -> column j belongs to key j."""
        b, h, t, s = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).view(b, h, s + 1, t)
        return x[:, :, 1:].view(b, h, t, s)

    def forward(self, inputs: torch.Tensor, memory: Optional[torch.Tensor] = None) -> torch.Tensor:
        T, B, _ = inputs.shape
        full = inputs if memory is None else torch.cat([memory.detach(), inputs], dim=0)
        S = full.shape[0]
        M = S - T
        q = self.to_q(inputs).view(T, B, self.heads, self.hd)
        k, v = self.to_kv(full).view(S, B, 2, self.heads, self.hd).unbind(2)
        dist = torch.arange(S - 1, -1, -1, device=inputs.device)
        r = self.to_r(sinusoid(dist, self.dim).to(inputs.dtype)).view(S, self.heads, self.hd)

        content = torch.einsum("tbhd,sbhd->bhts", q + self.u, k)
        position = self.rel_shift(torch.einsum("tbhd,shd->bhts", q + self.v, r))
        scores = (content + position) / math.sqrt(self.hd)
        future = torch.ones(T, S, dtype=torch.bool, device=inputs.device).triu(M + 1)
        attn = scores.masked_fill(future, -float("inf")).softmax(dim=-1)
        y = torch.einsum("bhts,sbhd->tbhd", attn, v).reshape(T, B, self.dim)
        return self.out(y)


class GTrXLLayer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = RelativeMemoryAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.gate1, self.gate2 = GRUGate(dim), GRUGate(dim)

    def forward(self, x, memory=None):
        mem = None if memory is None else self.ln1(memory)
        x = self.gate1(x, torch.relu(self.attn(self.ln1(x), mem)))
        return self.gate2(x, torch.relu(self.mlp(self.ln2(x))))


class GTrXL(nn.Module):
    def __init__(self, obs_dim: int, dim: int = 64, heads: int = 4, layers: int = 2, mem_len: int = 16):
        super().__init__()
        self.embed = nn.Linear(obs_dim, dim)
        self.layers = nn.ModuleList(GTrXLLayer(dim, heads) for _ in range(layers))
        self.mem_len = mem_len

    def forward(self, obs: torch.Tensor, memory: Optional[List[torch.Tensor]] = None):
        x, new_memory = self.embed(obs), []
        for i, layer in enumerate(self.layers):
            mem = None if memory is None else memory[i]
            new_memory.append((x if mem is None else torch.cat([mem, x], 0))[-self.mem_len:].detach())
            x = layer(x, mem)
        return x, new_memory
