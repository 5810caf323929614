# expect: correct
import math

import torch
import torch.nn as nn


class MultiHeadSelfAttn(nn.Module):
    """Exercise 3, part d - causal multi-head attention in a single class.

    Accepts (batch, tokens, d_in) or just (tokens, d_in) and gives back the
    context vectors together with the attention weights.
    """

    def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out has to be a multiple of num_heads")
        self.h = num_heads
        self.d_h = d_out // num_heads
        self.to_q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.to_k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.to_v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.proj = nn.Linear(d_out, d_out)
        self.drop = nn.Dropout(dropout)
        allowed = torch.arange(context_length)[:, None] >= torch.arange(context_length)[None, :]
        self.register_buffer("allowed", allowed, persistent=False)

    def _heads(self, t):
        return t.unflatten(-1, (self.h, self.d_h)).transpose(-3, -2)

    def forward(self, x):
        lonely = x.dim() == 2
        if lonely:
            x = x.unsqueeze(0)
        n = x.size(1)

        q = self._heads(self.to_q(x))
        k = self._heads(self.to_k(x))
        v = self._heads(self.to_v(x))

        scores = (q / math.sqrt(self.d_h)) @ k.mT
        scores = torch.where(self.allowed[:n, :n], scores, float("-inf"))
        weights = self.drop(scores.softmax(dim=-1))

        ctx = (weights @ v).transpose(1, 2).flatten(2)
        out = self.proj(ctx)
        if lonely:
            return out.squeeze(0), weights.squeeze(0)
        return out, weights
