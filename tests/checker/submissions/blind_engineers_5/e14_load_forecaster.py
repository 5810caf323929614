# expect: attends-across-batch
# why: nn.MultiheadAttention is built without batch_first=True while the input is (batch, time, d), so attention runs over the samples of the batch; shows at line 29: `self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)`
"""Electricity load forecasting with a transformer encoder over the history window."""
import math

import torch
import torch.nn as nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int = 512):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class TemporalEncoderLayer(nn.Module):
    """Pre-norm encoder layer; every time step looks at all the other time steps of its own series."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm1(x)
        h, _ = self.self_attn(h, h, h, need_weights=False)
        x = x + self.drop(h)
        return x + self.drop(self.ff(self.norm2(x)))


class LoadForecaster(nn.Module):
    """
    x:      (batch, history, n_features)
    return: (batch, horizon)
    """

    def __init__(self, n_features: int, horizon: int, d_model: int = 32, n_heads: int = 4, n_layers: int = 2,
                 dropout: float = 0.1):
        super().__init__()
        self.input_proj = nn.Linear(n_features, d_model)
        self.pos = PositionalEncoding(d_model)
        self.layers = nn.ModuleList(
            [TemporalEncoderLayer(d_model, n_heads, 4 * d_model, dropout) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, horizon)

    def forward(self, x):
        # normalise every window by its own statistics
        mean = x.mean(dim=1, keepdim=True)
        std = x.std(dim=1, keepdim=True) + 1e-5
        z = self.pos(self.input_proj((x - mean) / std))
        for layer in self.layers:
            z = layer(z)
        out = self.head(self.norm(z)[:, -1])
        return out * std[:, 0, :1] + mean[:, 0, :1]
