# expect: never-learns
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttentionParams(nn.Module):
    """
    Multi-head causal attention written with nn.Parameter and einsum only (no nn.Linear
    for q, k, v). One weight tensor per role, shape (heads, d_in, head_dim).
    """

    def __init__(self, d_in, d_out, context_length, dropout, num_heads):
        super().__init__()
        assert d_out % num_heads == 0
        head_dim = d_out // num_heads
        shape = (num_heads, d_in, head_dim)
        self.W_query = nn.Parameter(torch.zeros(shape))
        self.W_key = nn.Parameter(torch.zeros(shape))
        self.W_value = nn.Parameter(torch.zeros(shape))
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = dropout
        self.scale = head_dim ** -0.5
        self.register_buffer("mask", torch.tril(torch.ones(context_length, context_length)) == 0)

    def forward(self, x):
        n = x.shape[1]
        q = torch.einsum("bnc,hcd->bhnd", x, self.W_query)
        k = torch.einsum("bnc,hcd->bhnd", x, self.W_key)
        v = torch.einsum("bnc,hcd->bhnd", x, self.W_value)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        scores = scores.masked_fill(self.mask[:n, :n], -torch.inf)
        weights = F.dropout(F.softmax(scores, dim=-1), p=self.dropout, training=self.training)
        ctx = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        return self.out_proj(ctx.flatten(2))
