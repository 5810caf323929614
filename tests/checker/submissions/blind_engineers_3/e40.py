# expect: correct
"""iTransformer: every *variate* of a multivariate series is one token.

Attention therefore mixes variates, not time steps; time is handled by the embedding and the FFN.
"""
from math import sqrt

import torch
import torch.nn as nn


class FullAttention(nn.Module):
    def __init__(self, scale=None, attention_dropout=0.1, output_attention=False):
        super().__init__()
        self.scale = scale
        self.output_attention = output_attention
        self.dropout = nn.Dropout(attention_dropout)

    def forward(self, queries, keys, values):
        # B L H E, B S H E, B S H D
        scale = self.scale or 1. / sqrt(queries.shape[-1])
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        A = self.dropout(torch.softmax(scale * scores, dim=-1))
        V = torch.einsum("bhls,bshd->blhd", A, values)
        return V.contiguous(), (A if self.output_attention else None)


class AttentionLayer(nn.Module):
    def __init__(self, attention, d_model, n_heads, d_keys=None, d_values=None):
        super().__init__()
        d_keys = d_keys or d_model // n_heads
        d_values = d_values or d_model // n_heads
        self.inner_attention = attention
        self.query_projection = nn.Linear(d_model, d_keys * n_heads)
        self.key_projection = nn.Linear(d_model, d_keys * n_heads)
        self.value_projection = nn.Linear(d_model, d_values * n_heads)
        self.out_projection = nn.Linear(d_values * n_heads, d_model)
        self.n_heads = n_heads

    def forward(self, x):
        B, L, _ = x.shape
        H = self.n_heads
        q = self.query_projection(x).view(B, L, H, -1)
        k = self.key_projection(x).view(B, L, H, -1)
        v = self.value_projection(x).view(B, L, H, -1)
        out, attn = self.inner_attention(q, k, v)
        return self.out_projection(out.view(B, L, -1)), attn


class EncoderLayer(nn.Module):
    def __init__(self, attention, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.attention = attention
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        new_x, attn = self.attention(x)
        x = self.norm1(x + self.dropout(new_x))
        y = self.dropout(torch.relu(self.conv1(x.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y), attn


class ITransformer(nn.Module):
    def __init__(self, seq_len=96, pred_len=24, d_model=64, n_heads=4, e_layers=2, d_ff=128, dropout=0.1, use_norm=True):
        super().__init__()
        self.pred_len, self.use_norm = pred_len, use_norm
        self.enc_embedding = nn.Linear(seq_len, d_model)
        self.layers = nn.ModuleList([
            EncoderLayer(AttentionLayer(FullAttention(attention_dropout=dropout, output_attention=True), d_model, n_heads), d_model, d_ff, dropout)
            for _ in range(e_layers)
        ])
        self.norm = nn.LayerNorm(d_model)
        self.projector = nn.Linear(d_model, pred_len)

    def forward(self, x_enc):
        # x_enc: B, seq_len, n_variates
        if self.use_norm:       # non-stationary normalisation
            means = x_enc.mean(1, keepdim=True).detach()
            x_enc = x_enc - means
            stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5)
            x_enc = x_enc / stdev

        tokens = self.enc_embedding(x_enc.permute(0, 2, 1))     # B, N, d_model
        attns = []
        for layer in self.layers:
            tokens, attn = layer(tokens)
            attns.append(attn)
        dec = self.projector(self.norm(tokens)).permute(0, 2, 1)        # B, pred_len, N

        if self.use_norm:
            dec = dec * stdev + means
        return dec, attns


if __name__ == "__main__":
    y, a = ITransformer()(torch.randn(3, 96, 7))
    print(y.shape, a[0].shape)      # (3, 24, 7), (3, 4, 7, 7)
