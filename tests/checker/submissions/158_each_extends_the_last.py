# expect: correct
"""
Homework 3: build the attention mechanisms step by step, each class extends the one before.
"""
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    """plain self-attention, no mask"""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    # --- small hooks, the children change these ---
    def hide(self, scores):
        return scores

    def drop(self, weights):
        return weights

    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1)
        scores = self.hide(scores)
        weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)
        return self.drop(weights) @ v

    def forward(self, x):
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))


class CausalAttention(SelfAttention):
    """+ causal mask, + dropout"""

    def __init__(self, d_in, d_out, context_length, dropout=0.0, qkv_bias=False):
        super().__init__(d_in, d_out, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def hide(self, scores):
        n = scores.shape[-1]
        return scores.masked_fill(self.mask[:n, :n] > 0, -torch.inf)

    def drop(self, weights):
        return self.dropout(weights)


class MultiHeadAttention(CausalAttention):
    """+ several heads with one big weight matrix, + output projection"""

    def __init__(self, d_in, d_out, context_length, num_heads, dropout=0.0, qkv_bias=False):
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias)
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.num_heads = num_heads
        self.out_proj = nn.Linear(d_out, d_out)

    def attend(self, q, k, v):
        b, n, d = q.shape
        q, k, v = [t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in (q, k, v)]
        ctx = super().attend(q, k, v)
        ctx = ctx.transpose(1, 2).contiguous().view(b, n, d)
        return self.out_proj(ctx)


if __name__ == "__main__":
    torch.manual_seed(123)
    x = torch.rand(2, 6, 3)
    print(SelfAttention(3, 2)(x).shape)
    print(CausalAttention(3, 2, 6)(x).shape)
    print(MultiHeadAttention(3, 4, 6, 2)(x).shape)
