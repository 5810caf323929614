# expect: correct
"""Notes while reading "Attention is all you need" line by line."""
import copy
import math

import torch
import torch.nn as nn


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    "True where attention is allowed"
    full = torch.ones(1, size, size)
    return torch.tril(full) == 1


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super(MultiHeadedAttention, self).__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def split(self, t):
        # (batch, len, d_model) -> (batch, h, len, d_k)
        return t.view(t.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)    # same mask for all h heads

        q, k, v = [
            self.split(lin(x)) for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(q, k, v, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linears[-1](x)


if __name__ == "__main__":
    mha = MultiHeadedAttention(h=4, d_model=16)
    x = torch.randn(2, 5, 16)
    y = mha(x, x, x, subsequent_mask(5))
    print(y.size(), mha.attn[0, 0])
