# expect: correct
"""DETR-style decoder layer. Sequence-first tensors (L, B, C) everywhere."""
from typing import Optional

import torch
from torch import Tensor, nn


def with_pos(x: Tensor, pos: Optional[Tensor]) -> Tensor:
    return x if pos is None else x + pos


class SeqFirstAttention(nn.Module):
    """Separate query / key / value inputs, because positions are added to q and k only."""

    def __init__(self, d_model: int, nhead: int, dropout: float = 0.0):
        super().__init__()
        self.nhead = nhead
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor,
                key_padding_mask: Optional[Tensor] = None) -> Tensor:
        L, B, C = query.shape
        S = key.shape[0]
        D = C // self.nhead
        q = self.q(query).reshape(L, B * self.nhead, D).transpose(0, 1)
        k = self.k(key).reshape(S, B * self.nhead, D).transpose(0, 1)
        v = self.v(value).reshape(S, B * self.nhead, D).transpose(0, 1)

        w = torch.bmm(q * D ** -0.5, k.transpose(1, 2))
        if key_padding_mask is not None:  # (B, S), True marks padded pixels
            pad = key_padding_mask[:, None, None, :].expand(B, self.nhead, 1, S)
            w = w.masked_fill(pad.reshape(B * self.nhead, 1, S), float("-inf"))
        w = self.drop(w.softmax(-1))
        out = torch.bmm(w, v).transpose(0, 1).reshape(L, B, C)
        return self.o(out)


class DecoderLayer(nn.Module):
    def __init__(self, d_model: int = 64, nhead: int = 4, dim_ff: int = 128, dropout: float = 0.1):
        super().__init__()
        self.self_attn = SeqFirstAttention(d_model, nhead, dropout)
        self.cross_attn = SeqFirstAttention(d_model, nhead, dropout)
        self.ffn = nn.Sequential(nn.Linear(d_model, dim_ff), nn.ReLU(), nn.Dropout(dropout),
                                 nn.Linear(dim_ff, d_model))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tgt: Tensor, memory: Tensor, query_pos: Optional[Tensor] = None,
                pos: Optional[Tensor] = None, memory_key_padding_mask: Optional[Tensor] = None) -> Tensor:
        qk = with_pos(tgt, query_pos)
        tgt = self.norm1(tgt + self.dropout(self.self_attn(qk, qk, tgt)))
        upd = self.cross_attn(with_pos(tgt, query_pos), with_pos(memory, pos), memory,
                              memory_key_padding_mask)
        tgt = self.norm2(tgt + self.dropout(upd))
        return self.norm3(tgt + self.dropout(self.ffn(tgt)))


class Decoder(nn.Module):
    def __init__(self, num_layers: int = 2, num_queries: int = 10, d_model: int = 64, nhead: int = 4):
        super().__init__()
        self.query_embed = nn.Embedding(num_queries, d_model)
        self.layers = nn.ModuleList(DecoderLayer(d_model, nhead) for _ in range(num_layers))

    def forward(self, memory: Tensor, pos: Tensor, mask: Tensor) -> Tensor:
        query_pos = self.query_embed.weight[:, None].expand(-1, memory.shape[1], -1)
        out = torch.zeros_like(query_pos)
        for layer in self.layers:
            out = layer(out, memory, query_pos, pos, mask)
        return out.transpose(0, 1)
