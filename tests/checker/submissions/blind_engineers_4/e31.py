# expect: correct
"""Encoder-decoder layers on top of nn.MultiheadAttention, fed with HF-style masks (1 = token, 0 = pad)."""
from typing import Optional

import torch
from torch import Tensor, nn


def to_key_padding(attention_mask: Optional[Tensor]) -> Optional[Tensor]:
    """nn.MultiheadAttention wants True at the positions to ignore."""
    return None if attention_mask is None else attention_mask.eq(0)


class MHA(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.1, kv_dim: Optional[int] = None):
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, dropout=dropout, kdim=kv_dim, vdim=kv_dim, batch_first=True)

    def forward(self, x: Tensor, source: Optional[Tensor] = None, attention_mask: Optional[Tensor] = None,
                causal: bool = False) -> Tensor:
        source = x if source is None else source
        attn_mask = None
        if causal:
            n = x.size(1)
            attn_mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        out, _ = self.inner(x, source, source, key_padding_mask=to_key_padding(attention_mask),
                            attn_mask=attn_mask, need_weights=False)
        return out


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, hidden: int, dropout: float):
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim))


class Encoder(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = MHA(dim, heads, dropout)
        self.ff = FeedForward(dim, 4 * dim, dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        x = x + self.drop(self.attn(self.norm1(x), attention_mask=mask))
        return x + self.drop(self.ff(self.norm2(x)))


class Decoder(nn.Module):
    def __init__(self, dim: int, heads: int, memory_dim: int, dropout: float = 0.1):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn = MHA(dim, heads, dropout)
        self.cross_attn = MHA(dim, heads, dropout, kv_dim=memory_dim)
        self.ff = FeedForward(dim, 4 * dim, dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, y, memory, y_mask=None, memory_mask=None):
        y = y + self.drop(self.self_attn(self.norm1(y), attention_mask=y_mask, causal=True))
        y = y + self.drop(self.cross_attn(self.norm2(y), memory, memory_mask))
        return y + self.drop(self.ff(self.norm3(y)))


class Seq2Seq(nn.Module):
    """Right-padded batches on both sides."""

    def __init__(self, src_vocab=40, tgt_vocab=50, enc_dim=32, dec_dim=48, heads=4):
        super().__init__()
        self.src, self.tgt = nn.Embedding(src_vocab, enc_dim), nn.Embedding(tgt_vocab, dec_dim)
        self.encoder = Encoder(enc_dim, heads)
        self.decoder = Decoder(dec_dim, heads, enc_dim)
        self.lm_head = nn.Linear(dec_dim, tgt_vocab)

    def forward(self, src_ids, src_mask, tgt_ids, tgt_mask):
        memory = self.encoder(self.src(src_ids), src_mask)
        return self.lm_head(self.decoder(self.tgt(tgt_ids), memory, tgt_mask, src_mask))
