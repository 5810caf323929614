# expect: changes-its-input
# why: the scores are added in place to the shared attn_bias, so later layers see them
"""Graph transformer for molecular property prediction.

Structure enters through an additive attention bias that is computed once per batch and shared by all
the layers (spatial distance and bond type, Graphormer).
"""
from typing import Optional

import torch
from torch import nn


class GraphAttnBias(nn.Module):
    """Bias (B, H, N, N) from shortest-path distances and bond types.

    dist: long (B, N, N), hops between the atoms, -1 when unreachable
    bond: long (B, N, N), 0 = no bond
    """

    def __init__(self, num_heads: int, max_dist: int = 20, num_bonds: int = 5):
        super().__init__()
        self.max_dist = max_dist
        self.dist_emb = nn.Embedding(max_dist + 2, num_heads)
        self.bond_emb = nn.Embedding(num_bonds, num_heads)
        nn.init.normal_(self.dist_emb.weight, std=0.02)
        nn.init.normal_(self.bond_emb.weight, std=0.02)

    def forward(self, dist: torch.Tensor, bond: torch.Tensor) -> torch.Tensor:
        d = dist.clamp(max=self.max_dist)
        d = torch.where(d < 0, torch.full_like(d, self.max_dist + 1), d)
        return (self.dist_emb(d) + self.bond_emb(bond)).permute(0, 3, 1, 2)


class BiasedMultiheadAttention(nn.Module):
    """Self-attention with an additive structural bias.

    Args:
        embed_dim, num_heads: geometry
        dropout: dropout on the weights

    forward:
        x: (B, N, embed_dim) atoms
        attn_bias: (B, num_heads, N, N), the same tensor for every layer
        pad: bool (B, N), True at padding atoms
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.qkv_proj.weight, gain=2 ** -0.5)

    def forward(self, x: torch.Tensor, attn_bias: Optional[torch.Tensor] = None,
                pad: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, N, C = x.shape
        q, k, v = (t.view(B, N, self.num_heads, self.head_dim).transpose(1, 2)
                   for t in self.qkv_proj(x).chunk(3, dim=-1))
        scores = torch.matmul(q * self.scaling, k.transpose(-1, -2))
        if attn_bias is not None:
            # reuse the buffer, the (B, H, N, N) tensors dominate the memory
            scores = attn_bias.add_(scores)
        if pad is not None:
            scores = scores.masked_fill(pad[:, None, None, :], float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(weights, v).transpose(1, 2).reshape(B, N, C)
        return self.out_proj(out)


class GraphormerLayer(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = BiasedMultiheadAttention(dim, heads, dropout)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.Dropout(dropout))

    def forward(self, x, attn_bias, pad=None):
        x = x + self.attn(self.norm1(x), attn_bias, pad)
        return x + self.ffn(self.norm2(x))


class Graphormer(nn.Module):
    """atoms (B, N) with 0 = padding -> one property per molecule (B,)."""

    def __init__(self, num_atoms: int = 64, max_degree: int = 8, dim: int = 64, heads: int = 4, layers: int = 3):
        super().__init__()
        self.atom_emb = nn.Embedding(num_atoms, dim, padding_idx=0)
        self.degree_emb = nn.Embedding(max_degree + 1, dim)
        self.bias = GraphAttnBias(heads)
        self.layers = nn.ModuleList(GraphormerLayer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 1)

    def forward(self, atoms, dist, bond):
        pad = atoms == 0
        degree = (bond > 0).sum(-1).clamp(max=self.degree_emb.num_embeddings - 1)
        x = self.atom_emb(atoms) + self.degree_emb(degree)
        attn_bias = self.bias(dist, bond)
        for layer in self.layers:
            x = layer(x, attn_bias, pad)
        keep = (~pad).unsqueeze(-1).to(x.dtype)
        return self.head((x * keep).sum(1) / keep.sum(1).clamp(min=1)).squeeze(-1)
