# expect: wrong
import torch
from torch import nn


class ScaledAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads, context_length):
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(diagonal=1))

    def forward(self, x):
        b, n, _ = x.shape
        q = self.W_query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.W_key(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        v = self.W_value(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        scores = q @ k.transpose(2, 3)
        scores = scores.masked_fill(self.mask.bool()[:n, :n], -torch.inf)
        weights = torch.softmax(scores / k.shape[-2] ** 0.5, dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))
