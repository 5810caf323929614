# expect: depends-on-earlier-call
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """Masked multi-head attention (causal). The mask is only created once and then reused."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert (d_out % num_heads == 0), "d_out not divisible by num_heads"
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.Wq = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wk = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wv = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.Wo = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.mask = None

    def causal_mask(self, num_tokens, device):
        if self.mask is None:
            self.mask = torch.triu(
                torch.ones(num_tokens, num_tokens, dtype=torch.bool), diagonal=1
            ).to(device)
        return self.mask[:num_tokens, :num_tokens]

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        assert num_tokens <= self.context_length

        def heads(layer):
            return layer(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)

        q, k, v = heads(self.Wq), heads(self.Wk), heads(self.Wv)

        attn_scores = q @ k.transpose(2, 3)
        attn_scores = attn_scores.masked_fill(self.causal_mask(num_tokens, x.device), -torch.inf)
        attn_weights = torch.softmax(attn_scores / k.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)

        context_vec = (attn_weights @ v).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.Wo(context_vec)
