# expect: bias-ignores-distance
# why: relative_position is query minus key (line 51), but the bucket function expects memory minus query; with bidirectional=False every past key is clipped to bucket 0, so the relative bias is the same constant for all visible keys.
"""Decoder self-attention with T5 relative position buckets."""
import math

import torch
from torch import nn


def relative_position_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
    """Maps memory_position - query_position to a bucket id.

    With bidirectional=False only non-positive relative positions (the past) are
    meaningful; everything in the future collapses to bucket 0.
    """
    buckets = torch.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        buckets = buckets + (relative_position > 0).long() * num_buckets
        relative_position = relative_position.abs()
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    large = max_exact + (
        torch.log(relative_position.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact) * (num_buckets - max_exact)
    ).long()
    large = large.clamp(max=num_buckets - 1)
    return buckets + torch.where(is_small, relative_position, large)


class T5DecoderSelfAttention(nn.Module):
    def __init__(self, d_model=64, d_kv=16, n_heads=4, num_buckets=32, max_distance=128, dropout_rate=0.1):
        super().__init__()
        self.n_heads, self.d_kv = n_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = n_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)
        self.dropout = nn.Dropout(dropout_rate)
        # T5 folds 1/sqrt(d_kv) into the initialisation of q
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)

    def compute_bias(self, qlen, klen, device):
        context_position = torch.arange(qlen, device=device)[:, None]
        memory_position = torch.arange(klen, device=device)[None, :]
        relative_position = context_position - memory_position
        bucket = relative_position_bucket(relative_position, bidirectional=False,
                                          num_buckets=self.num_buckets, max_distance=self.max_distance)
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)   # 1, H, q, k

    def forward(self, hidden, mask=None):
        B, T, _ = hidden.shape

        def heads(x):
            return x.view(B, T, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = heads(self.q(hidden)), heads(self.k(hidden)), heads(self.v(hidden))
        scores = q @ k.transpose(3, 2)
        bias = self.compute_bias(T, T, hidden.device)
        causal = torch.full((T, T), torch.finfo(scores.dtype).min, device=hidden.device).triu(1)
        scores = scores + bias + causal
        if mask is not None:                    # (B, T), 1 = token
            scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        out = (weights @ v).transpose(1, 2).contiguous().view(B, T, -1)
        return self.o(out)


if __name__ == "__main__":
    layer = T5DecoderSelfAttention()
    print(layer(torch.randn(3, 20, 64)).shape)
