# expect: correct
import torch
import torch.nn as nn


class CausalAttentionRenorm(nn.Module):
    """
    Single head, causal. I use the first variant from the text: softmax over everything,
    wipe out the upper triangle, divide each row by what is left of its sum.
    """

    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("simple_mask", torch.tril(torch.ones(context_length, context_length)))

    def forward(self, x):
        n = x.shape[-2]
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        scores = queries @ keys.transpose(-2, -1) / self.d_out ** 0.5
        weights = torch.softmax(scores, dim=-1) * self.simple_mask[:n, :n]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return self.dropout(weights) @ values


class MultiHead(nn.Module):
    """num_heads copies next to each other, output width is d_out * num_heads"""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.copies = nn.ModuleList()
        for _ in range(num_heads):
            self.copies.append(CausalAttentionRenorm(d_in, d_out, context_length, dropout, qkv_bias))

    def forward(self, x):
        return torch.cat([head(x) for head in self.copies], dim=-1)
