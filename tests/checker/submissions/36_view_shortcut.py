# expect: split-without-transpose
import torch
from torch import nn


class FastSplit(nn.Module):
    def __init__(self, d_in, d_out, ctx, n_heads):
        super().__init__()
        self.n_heads, self.head_dim, self.d_out = n_heads, d_out // n_heads, d_out
        self.query_layer = nn.Linear(d_in, d_out)
        self.key_layer = nn.Linear(d_in, d_out)
        self.value_layer = nn.Linear(d_in, d_out)
        self.final = nn.Linear(d_out, d_out)
        self.register_buffer("mask", torch.triu(torch.ones(ctx, ctx), diagonal=1).bool())

    def forward(self, x):
        b, n, _ = x.shape
        # put the heads in front right away, saves three transposes
        q = self.query_layer(x).view(b, self.n_heads, n, self.head_dim)
        k = self.key_layer(x).view(b, self.n_heads, n, self.head_dim)
        v = self.value_layer(x).view(b, self.n_heads, n, self.head_dim)
        s = (q @ k.transpose(-1, -2)).masked_fill(self.mask[:n, :n], -torch.inf)
        a = (s / self.head_dim ** 0.5).softmax(dim=-1)
        return self.final((a @ v).transpose(1, 2).reshape(b, n, self.d_out))
