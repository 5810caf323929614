# expect: correct
"""Inverted transformer for multivariate forecasting: each variable is one token."""
import math
from typing import Optional

import torch
import torch.nn as nn


class RevIN(nn.Module):
    """Per-series normalisation that is undone on the forecast."""

    def __init__(self, n_vars: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.ones(n_vars))
        self.b = nn.Parameter(torch.zeros(n_vars))

    def stats(self, x):
        mu = x.mean(dim=1, keepdim=True)
        sd = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + self.eps)
        return mu, sd

    def norm(self, x, st):
        return (x - st[0]) / st[1] * self.w + self.b

    def denorm(self, y, st):
        return (y - self.b) / (self.w + self.eps) * st[1] + st[0]


class VariateAttention(nn.Module):
    """Attention between variables. No positions: the set of variables is unordered."""

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.1):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.merge = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, observed: Optional[torch.Tensor] = None, return_weights: bool = False):
        """observed: (B, N) bool, False for a variable with no data in this window."""
        B, N, D = tokens.shape
        H = self.n_heads
        q = self.query(tokens).view(B, N, H, -1)
        k = self.key(tokens).view(B, N, H, -1)
        v = self.value(tokens).view(B, N, H, -1)
        score = torch.einsum("bnhe,bmhe->bhnm", q, k) / math.sqrt(D // H)
        if observed is not None:
            score = score.masked_fill(~observed.view(B, 1, 1, N), -1e9)
        weight = self.dropout(torch.softmax(score, dim=-1))
        out = torch.einsum("bhnm,bmhe->bnhe", weight, v).reshape(B, N, D)
        out = self.merge(out)
        return (out, weight) if return_weights else out


class EncoderLayer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.attention = VariateAttention(d_model, n_heads, dropout)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, observed=None):
        x = self.norm1(x + self.dropout(self.attention(x, observed)))
        y = self.dropout(torch.relu(self.conv1(x.transpose(1, 2))))
        y = self.dropout(self.conv2(y).transpose(1, 2))
        return self.norm2(x + y)


class InvertedForecaster(nn.Module):
    def __init__(self, lookback: int = 24, horizon: int = 6, n_vars: int = 5, d_model: int = 32,
                 n_heads: int = 4, layers: int = 2):
        super().__init__()
        self.revin = RevIN(n_vars)
        self.embed = nn.Linear(lookback, d_model)
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, 2 * d_model) for _ in range(layers))
        self.head = nn.Linear(d_model, horizon)

    def forward(self, x: torch.Tensor, observed: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (B, lookback, N) -> (B, horizon, N)"""
        st = self.revin.stats(x)
        h = self.embed(self.revin.norm(x, st).transpose(1, 2))
        for layer in self.layers:
            h = layer(h, observed)
        return self.revin.denorm(self.head(h).transpose(1, 2), st)
