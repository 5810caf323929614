# expect: arguments-crossed
"""Stacking several causal heads next to each other (the simple wrapper)."""
import torch
import torch.nn as nn


class CausalHead(nn.Module):
    """One causal attention head."""

    def __init__(self, d_in, d_out, context_length, dropout=0.0, qkv_bias=False):
        super().__init__()
        self.scale = d_out ** -0.5
        self.q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.v = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.drop = nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length), diagonal=1)
        )

    def forward(self, x):
        T = x.shape[1]
        scores = self.q(x) @ self.k(x).transpose(1, 2) * self.scale
        scores = scores.masked_fill(self.mask.bool()[:T, :T], float("-inf"))
        w = self.drop(scores.softmax(dim=-1))
        return w @ self.v(x)


class MultiHeadWrapper(nn.Module):
    """Runs num_heads causal heads and concatenates the results.

    output: (batch, tokens, num_heads * d_out)
    qkv_bias: use a bias in the three projections
    dropout:  dropout rate on the attention weights
    """

    def __init__(self, d_in, d_out, context_length, num_heads, qkv_bias=False, dropout=0.0):
        super().__init__()
        self.heads = nn.ModuleList(
            [CausalHead(d_in, d_out, context_length, qkv_bias, dropout) for _ in range(num_heads)]
        )

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)


if __name__ == "__main__":
    torch.manual_seed(123)
    batch = torch.rand(2, 6, 3)
    mha = MultiHeadWrapper(3, 2, context_length=6, num_heads=2)
    out = mha(batch)
    print(out)
    print(out.shape)
