# expect: rotary-ignores-position
# why: rotary takes axis -2 as length but q, k are (b, l, h, d): it rotates by the head index
"""Protein language model encoder: bidirectional attention with rotary position embeddings."""
from typing import Optional

import torch
import torch.nn as nn
from einops import rearrange


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotates channel ``i`` together with ``i + dim / 2``; tables are rebuilt when the length grows.

    ``forward(q, k)``: both (..., length, dim).
    """

    def __init__(self, dim: int):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim)))
        self._seq_len_cached = 0
        self._cos = self._sin = None

    def _update(self, x):
        n = x.shape[-2]
        if n > self._seq_len_cached or self._cos.device != x.device:
            self._seq_len_cached = n
            t = torch.arange(n, device=x.device).type_as(self.inv_freq)
            emb = torch.einsum("i,j->ij", t, self.inv_freq).repeat(1, 2)
            self._cos, self._sin = emb.cos(), emb.sin()
        return self._cos[:n].to(x.dtype), self._sin[:n].to(x.dtype)

    def forward(self, q, k):
        cos, sin = self._update(k)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class ResidueAttention(nn.Module):
    """Multi-head self-attention over the residues of a protein.

    Args:
        embed_dim: width
        num_heads: heads
        dropout: on the attention weights

    ``forward(x, padding_mask, need_head_weights)``
        x: (B, L, embed_dim)
        padding_mask: bool (B, L), True at padding tokens
        need_head_weights: also return (B, H, L, L) for contact prediction
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.rot_emb = RotaryEmbedding(self.head_dim)
        self.dropout = nn.Dropout(dropout)
        for lin in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(lin.weight, gain=2 ** -0.5)

    def forward(self, x: torch.Tensor, padding_mask: Optional[torch.Tensor] = None,
                need_head_weights: bool = False):
        q, k, v = (rearrange(p(x), "b l (h d) -> b l h d", h=self.num_heads)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rot_emb(q * self.scaling, k)

        logits = torch.einsum("blhd,bmhd->bhlm", q, k)
        if padding_mask is not None:
            logits = logits.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        weights = torch.softmax(logits.float(), dim=-1).type_as(logits)
        out = torch.einsum("bhlm,bmhd->blhd", self.dropout(weights), v)
        out = self.out_proj(rearrange(out, "b l h d -> b l (h d)"))
        return (out, weights) if need_head_weights else out


class EncoderLayer(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.attn = ResidueAttention(embed_dim, num_heads)
        self.ffn = nn.Sequential(nn.Linear(embed_dim, 4 * embed_dim), nn.GELU(), nn.Linear(4 * embed_dim, embed_dim))

    def forward(self, x, padding_mask=None):
        x = x + self.attn(self.norm1(x), padding_mask)
        return x + self.ffn(self.norm2(x))


class ProteinLM(nn.Module):
    """tokens (B, L) -> logits (B, L, vocab)"""

    def __init__(self, vocab=33, embed_dim=128, num_heads=4, layers=2, pad_idx=1):
        super().__init__()
        self.pad_idx = pad_idx
        self.embed = nn.Embedding(vocab, embed_dim, padding_idx=pad_idx)
        self.layers = nn.ModuleList(EncoderLayer(embed_dim, num_heads) for _ in range(layers))
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, tokens):
        pad = tokens == self.pad_idx
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, pad)
        return self.norm(x) @ self.embed.weight.t()
