# expect: correct
import math
import torch
import torch.nn as nn


class RelBucketAttention(nn.Module):
    """Encoder self-attention in T5 manner: no 1/sqrt(d) factor, no biases, bucketed relative bias
    (bidirectional). key_mask: (batch, seq), 1 = real token."""

    def __init__(self, d_model=32, d_kv=8, n_heads=4, n_buckets=16, max_dist=32):
        super().__init__()
        inner = n_heads * d_kv
        self.n_heads, self.d_kv = n_heads, d_kv
        self.n_buckets, self.max_dist = n_buckets, max_dist
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.rel = nn.Embedding(n_buckets, n_heads)
        # scale is folded into the initialisation
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def _bucket(self, delta):
        """delta = key position - query position"""
        half = self.n_buckets // 2
        out = (delta > 0).long() * half
        n = delta.abs()
        exact = half // 2
        ratio = torch.log(n.clamp(min=1).float() / exact) / math.log(self.max_dist / exact)
        large = exact + (ratio * (half - exact)).long()
        large = large.clamp(max=half - 1)
        return out + torch.where(n < exact, n, large)

    def forward(self, x, key_mask=None):
        b, n, _ = x.shape
        shape = (b, n, self.n_heads, self.d_kv)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        scores = q @ k.transpose(3, 2)

        pos = torch.arange(n, device=x.device)
        bias = self.rel(self._bucket(pos[None, :] - pos[:, None]))   # n, n, heads
        bias = bias.permute(2, 0, 1).unsqueeze(0)
        if key_mask is not None:
            bias = bias + (1.0 - key_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        w = torch.softmax(scores + bias, -1)
        return self.o((w @ v).transpose(1, 2).reshape(b, n, -1))
