# expect: keeps-its-graph
import math
from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F


class T5StyleSelfAttention(nn.Module):
    """
    Encoder self attention with a learned bucketed relative bias (one scalar per
    head and bucket). As in T5 there is no 1/sqrt(d) on the scores.

    x:     (batch, len, d_model)
    mask:  (batch, len), 1 = real token, 0 = pad
    """

    def __init__(self, d_model, d_kv, n_heads, n_buckets=32, max_distance=128, dropout=0.0):
        super().__init__()
        self.n_heads, self.d_kv = n_heads, d_kv
        self.n_buckets, self.max_distance = n_buckets, max_distance
        inner = n_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.rel_bias = nn.Embedding(n_buckets, n_heads)
        self.dropout = dropout
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    def bucket(self, rel):
        """rel = key_pos - query_pos; half of the buckets for each direction."""
        n = self.n_buckets // 2
        out = (rel > 0).long() * n
        dist = rel.abs()
        exact = n // 2
        far = exact + (
            torch.log(dist.clamp(min=1).float() / exact)
            / math.log(self.max_distance / exact)
            * (n - exact)
        ).long()
        far = far.clamp(max=n - 1)
        return out + torch.where(dist < exact, dist, far)

    # the table is the same for every batch of a given length, no need to redo it
    @lru_cache(maxsize=16)
    def position_bias(self, q_len, k_len, device):
        ctx = torch.arange(q_len, device=device)[:, None]
        mem = torch.arange(k_len, device=device)[None, :]
        b = self.rel_bias(self.bucket(mem - ctx))          # (q, k, heads)
        return b.permute(2, 0, 1).unsqueeze(0)             # (1, heads, q, k)

    def forward(self, x, mask=None):
        B, L, _ = x.shape

        def split(t):
            return t.view(B, L, self.n_heads, self.d_kv).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = q @ k.transpose(-1, -2)
        scores = scores + self.position_bias(L, L, x.device)
        if mask is not None:
            scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
        p = F.softmax(scores.float(), dim=-1).type_as(scores)
        p = F.dropout(p, p=self.dropout, training=self.training)
        out = (p @ v).transpose(1, 2).reshape(B, L, -1)
        return self.o(out)
