# expect: correct
import math
from typing import Optional

import torch
from torch import nn, Tensor


class T5RelativeBias(nn.Module):
    """Learned bias per (bucket of the distance, head)"""

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, rel: Tensor) -> Tensor:
        # rel = key position - query position
        n = self.buckets
        out = torch.zeros_like(rel)
        if self.bidirectional:
            n = n // 2
            out = out + (rel > 0).long() * n
            rel = rel.abs()
        else:
            rel = (-rel).clamp(min=0)
        exact = n // 2
        large = exact + (
            torch.log(rel.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (n - exact)
        ).long()
        large = large.clamp(max=n - 1)
        return out + torch.where(rel < exact, rel, large)

    def forward(self, q_len: int, k_len: int) -> Tensor:
        dev = self.table.weight.device
        rel = torch.arange(k_len, device=dev)[None, :] - torch.arange(q_len, device=dev)[:, None]
        return self.table(self.bucket(rel)).permute(2, 0, 1).unsqueeze(0)  # (1, heads, q, k)


class T5Attention(nn.Module):
    """
    Like the T5 paper/code: NO division by sqrt(d_kv), the factor is inside the
    initialisation of q instead. No biases in the linear layers.
    """

    def __init__(self, d_model: int, d_kv: int, heads: int, causal: bool = False, p: float = 0.1):
        super().__init__()
        self.h, self.d = heads, d_kv
        self.causal = causal
        inner = heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.bias = T5RelativeBias(heads, bidirectional=not causal)
        self.drop = nn.Dropout(p)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=inner ** -0.5)

    def forward(self, x: Tensor, pad_mask: Optional[Tensor] = None) -> Tensor:
        # pad_mask: (B, T), 1 = token, 0 = padding
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, self.h, self.d).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(3, 2)
        scores = scores + self.bias(T, T)
        neg = torch.finfo(scores.dtype).min
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :] == 0, neg)
        if self.causal:
            future = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, neg)
        w = self.drop(scores.softmax(dim=-1))
        return self.o((w @ v).transpose(1, 2).reshape(B, T, self.h * self.d))
