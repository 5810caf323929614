# expect: correct
"""Dense graph transformer layer for small molecules (batched, padded)."""
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
from torch import Tensor


class GraphBatch(NamedTuple):
    h: Tensor                        # (B, N, node_dim)
    e: Tensor                        # (B, N, N, edge_dim)
    adj: Tensor                      # (B, N, N) bool, adj[b, i, j]: node i receives from node j
    node_mask: Tensor                # (B, N) bool
    spd: Optional[Tensor] = None     # (B, N, N) long, shortest path distance, -1 if unreachable


class EdgeBiasedAttention(nn.Module):
    def __init__(self, node_dim: int, edge_dim: int, num_heads: int, max_spd: int = 8, local: bool = False,
                 bias: bool = True):
        super().__init__()
        if node_dim % num_heads != 0:
            raise ValueError(f"node_dim={node_dim} is not divisible by num_heads={num_heads}")
        self.num_heads = num_heads
        self.head_dim = node_dim // num_heads
        self.local = local
        self.max_spd = max_spd
        self.Q = nn.Linear(node_dim, node_dim, bias=bias)
        self.K = nn.Linear(node_dim, node_dim, bias=bias)
        self.V = nn.Linear(node_dim, node_dim, bias=bias)
        self.E = nn.Linear(edge_dim, num_heads, bias=False)
        # 0 ... max_spd, one more entry for unreachable pairs
        self.spd_bias = nn.Embedding(max_spd + 2, num_heads)
        self.O = nn.Linear(node_dim, node_dim, bias=bias)

    def forward(self, g: GraphBatch) -> Tensor:
        B, N, _ = g.h.shape
        q = self.Q(g.h).view(B, N, self.num_heads, self.head_dim)
        k = self.K(g.h).view(B, N, self.num_heads, self.head_dim)
        v = self.V(g.h).view(B, N, self.num_heads, self.head_dim)

        logits = torch.einsum("bihd,bjhd->bijh", q, k) / self.head_dim ** 0.5
        logits = logits + self.E(g.e)
        if g.spd is not None:
            idx = torch.where(g.spd < 0, torch.full_like(g.spd, self.max_spd + 1), g.spd.clamp(max=self.max_spd))
            logits = logits + self.spd_bias(idx)

        allowed = g.node_mask[:, None, :].expand(B, N, N)
        if self.local:
            eye = torch.eye(N, dtype=torch.bool, device=g.h.device)
            allowed = allowed & (g.adj | eye)
        logits = logits.masked_fill(~allowed.unsqueeze(-1), torch.finfo(logits.dtype).min)

        # manual softmax over the senders j; rows without any sender give zero
        logits = logits - logits.amax(dim=2, keepdim=True).detach()
        w = logits.exp() * allowed.unsqueeze(-1)
        w = w / w.sum(dim=2, keepdim=True).clamp(min=1e-12)

        out = torch.einsum("bijh,bjhd->bihd", w, v).reshape(B, N, -1)
        return self.O(out) * g.node_mask.unsqueeze(-1)


class GraphTransformerLayer(nn.Module):
    def __init__(self, node_dim: int, edge_dim: int, num_heads: int, **attn_kwargs):
        super().__init__()
        self.norm1 = nn.LayerNorm(node_dim)
        self.attn = EdgeBiasedAttention(node_dim, edge_dim, num_heads, **attn_kwargs)
        self.norm2 = nn.LayerNorm(node_dim)
        self.ffn = nn.Sequential(nn.Linear(node_dim, 2 * node_dim), nn.SiLU(), nn.Linear(2 * node_dim, node_dim))

    def forward(self, g: GraphBatch) -> GraphBatch:
        h = g.h + self.attn(g._replace(h=self.norm1(g.h)))
        h = h + self.ffn(self.norm2(h)) * g.node_mask.unsqueeze(-1)
        return g._replace(h=h)
