# expect: correct
import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.cache_k = self.cache_v = None
        self.pos = 0

    def forward(self, x, use_cache=False):
        b, n, _ = x.shape
        keys = self.W_key(x).view(b, n, self.num_heads, self.head_dim)
        values = self.W_value(x).view(b, n, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, n, self.num_heads, self.head_dim)
        first = 0
        if use_cache:
            if self.cache_k is not None:
                keys = torch.cat([self.cache_k, keys], dim=1)
                values = torch.cat([self.cache_v, values], dim=1)
            self.cache_k, self.cache_v = keys, values
            first = keys.shape[1] - n
        q_pos = torch.arange(first, first + n, device=x.device)
        k_pos = torch.arange(keys.shape[1], device=x.device)
        scores = queries.transpose(1, 2) @ keys.permute(0, 2, 3, 1)
        scores.masked_fill_(q_pos[:, None] < k_pos[None, :], -torch.inf)
        weights = self.dropout(torch.softmax(scores * self.head_dim**-0.5, dim=-1))
        context = (weights @ values.transpose(1, 2)).transpose(1, 2)
        return self.out_proj(context.contiguous().view(b, n, self.d_out))
