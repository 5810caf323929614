# expect: wrong-scale
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    """scaled dot product self attention, no mask"""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def scores(self, x):
        queries, keys = self.W_query(x), self.W_key(x)
        # divide by the root of the key dimension
        return queries @ keys.transpose(-2, -1) / keys.shape[1] ** 0.5

    def weights(self, x):
        return torch.softmax(self.scores(x), dim=-1)

    def forward(self, x):
        return self.weights(x) @ self.W_value(x)


class CausalSelfAttention(SelfAttention):
    """the same + causal mask + dropout, x is (batch, tokens, d_in)"""

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__(d_in, d_out, qkv_bias)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), 1).bool())

    def weights(self, x):
        t = x.shape[1]
        s = self.scores(x).masked_fill(self.mask[:t, :t], -torch.inf)
        return self.drop(torch.softmax(s, dim=-1))


class MultiHeadWrapper(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.heads = nn.ModuleList(
            [CausalSelfAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)]
        )

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)
