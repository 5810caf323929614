# expect: missing-scale
import torch
import torch.nn as nn


class FastMultiHeadAttention(nn.Module):
    """Causal multi-head attention. Same thing as in the lecture but the mask is added
    inside the matrix product with baddbmm, so there is one kernel less."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.scale = 1.0 / self.head_dim ** 0.5
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        mask = torch.full((context_length, context_length), float("-inf"))
        self.register_buffer("mask", torch.triu(mask, diagonal=1))

    def fold(self, t, b, n):
        # (b, n, d_out) -> (b * heads, n, head_dim)
        t = t.reshape(b, n, self.num_heads, self.head_dim)
        return t.transpose(1, 2).reshape(b * self.num_heads, n, self.head_dim)

    def forward(self, x):
        b, n, _ = x.shape
        queries, keys, values = self.qkv(x).chunk(3, dim=-1)
        queries = self.fold(queries, b, n)
        keys = self.fold(keys, b, n)
        values = self.fold(values, b, n)

        scores = torch.baddbmm(self.mask[:n, :n], queries, keys.transpose(1, 2), beta=self.scale)
        weights = self.dropout(torch.softmax(scores, dim=-1))

        context = torch.bmm(weights, values)
        context = context.reshape(b, self.num_heads, n, self.head_dim)
        context = context.transpose(1, 2).reshape(b, n, -1)
        return self.out_proj(context)
