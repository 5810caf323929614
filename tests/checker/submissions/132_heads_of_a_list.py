# expect: heads-in-python-list
import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    """one head, with causal mask and dropout"""

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        n = x.shape[1]
        k = self.k(x)
        scores = self.q(x) @ k.transpose(1, 2)
        scores = scores.masked_fill(self.mask.bool()[:n, :n], -torch.inf)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return self.dropout(weights) @ self.v(x)


class MultiHeadAttention(nn.Module):
    """num_heads single heads, concatenated and mixed by a final linear layer (causal)"""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        head_dim = d_out // num_heads
        self.heads = [
            CausalAttention(d_in, head_dim, context_length, dropout, qkv_bias)
            for i in range(num_heads)
        ]
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        context = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.out_proj(context)
