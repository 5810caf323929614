# expect: correct
# what: Music Transformer, skewing trick
"""Causal self attention with learned relative positions and the memory-efficient skewing trick."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativeGlobalAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, max_len: int = 64, dropout: float = 0.1):
        super().__init__()
        d_head, remainder = divmod(d_model, num_heads)
        if remainder:
            raise ValueError("incompatible `d_model` and `num_heads`")
        self.max_len = max_len
        self.d_model = d_model
        self.num_heads = num_heads
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.query = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        # row i stands for the relative distance i - (max_len - 1)
        self.Er = nn.Parameter(torch.randn(max_len, d_head) * 0.1)
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len))[None, None])

    def forward(self, x):
        batch_size, seq_len, _ = x.shape
        if seq_len > self.max_len:
            raise ValueError("sequence length exceeds model capacity")

        k_t = self.key(x).reshape(batch_size, seq_len, self.num_heads, -1).permute(0, 2, 3, 1)
        v = self.value(x).reshape(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        q = self.query(x).reshape(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)

        Er_t = self.Er[self.max_len - seq_len :, :].transpose(0, 1)
        QEr = torch.matmul(q, Er_t)
        Srel = self.skew(QEr)

        QK_t = torch.matmul(q, k_t)
        attn = (QK_t + Srel) / math.sqrt(q.size(-1))
        mask = self.mask[:, :, :seq_len, :seq_len]
        attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(attn, dim=-1)
        out = torch.matmul(attn, v)
        out = out.transpose(1, 2).reshape(batch_size, seq_len, -1)
        return self.dropout(out)

    def skew(self, QEr):
        padded = F.pad(QEr, (1, 0))
        batch_size, num_heads, num_rows, num_cols = padded.shape
        reshaped = padded.reshape(batch_size, num_heads, num_cols, num_rows)
        return reshaped[:, :, 1:, :]


class MusicTransformerLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff=None, **attn_kwargs):
        super().__init__()
        d_ff = d_ff or 2 * d_model
        self.rga = RelativeGlobalAttention(d_model, num_heads, **attn_kwargs)
        self.out = nn.Linear(d_model, d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x):
        x = self.norm1(x + self.out(self.rga(x)))
        return self.norm2(x + self.ffn(x))


class MusicTransformer(nn.Module):
    def __init__(self, n_token=64, d_model=32, num_heads=4, depth=2, max_len=64):
        super().__init__()
        self.embed = nn.Embedding(n_token, d_model)
        self.layers = nn.Sequential(*[MusicTransformerLayer(d_model, num_heads, max_len=max_len) for _ in range(depth)])
        self.head = nn.Linear(d_model, n_token)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))
