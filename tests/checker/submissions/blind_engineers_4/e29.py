# expect: changes-its-input
# why: The scores are accumulated in place into the position bias that is computed once and shared by all layers, so every later layer also sees the scores of the earlier ones.
"""T5-like encoder with small cooperating modules. The relative bias belongs to the stack and
is handed to every layer."""
import math

import torch
from torch import nn


class RelativeBias(nn.Module):
    def __init__(self, heads: int, buckets: int = 16, max_distance: int = 32):
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, rel: torch.Tensor) -> torch.Tensor:
        """rel = key position - query position; half of the buckets for each direction."""
        half = self.buckets // 2
        out = (rel > 0).long() * half
        dist = rel.abs()
        exact = half // 2
        far = exact + (torch.log(dist.float().clamp(min=1) / exact)
                       / math.log(self.max_distance / exact) * (half - exact)).long()
        return out + torch.where(dist < exact, dist, far.clamp(max=half - 1))

    def forward(self, length: int) -> torch.Tensor:
        pos = torch.arange(length, device=self.table.weight.device)
        idx = self.bucket(pos[None, :] - pos[:, None])
        return self.table(idx).permute(2, 0, 1)      # heads, query, key


class HeadSplit(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        return self.proj(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)


class HeadMerge(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        return self.proj(x.transpose(1, 2).flatten(2))


class BiasedMix(nn.Module):
    """softmax(q k^T / sqrt(d) + bias) v"""

    def __init__(self, dropout: float):
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def forward(self, q, k, v, bias):
        logits = bias
        logits += torch.matmul(q / math.sqrt(q.size(-1)), k.transpose(-1, -2))
        return torch.matmul(self.drop(logits.softmax(-1)), v)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.q, self.k, self.v = HeadSplit(dim, heads), HeadSplit(dim, heads), HeadSplit(dim, heads)
        self.mix = BiasedMix(dropout)
        self.merge = HeadMerge(dim)

    def forward(self, x, bias):
        return self.merge(self.mix(self.q(x), self.k(x), self.v(x), bias))


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.norm_a, self.norm_f = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)
        self.attn = SelfAttention(dim, heads, dropout)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim, bias=False), nn.ReLU(), nn.Linear(4 * dim, dim, bias=False))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, bias):
        x = x + self.drop(self.attn(self.norm_a(x), bias))
        return x + self.drop(self.ff(self.norm_f(x)))


class EncoderStack(nn.Module):
    def __init__(self, vocab: int = 50, dim: int = 32, heads: int = 4, depth: int = 3, dropout: float = 0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rel = RelativeBias(heads)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, dropout) for _ in range(depth))
        self.final = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor = None) -> torch.Tensor:
        """keep: (B, T), 1 for tokens, 0 for padding."""
        b, t = ids.shape
        bias = self.rel(t)[None].repeat(b, 1, 1, 1)
        if keep is not None:
            bias = bias.masked_fill(keep[:, None, None, :] == 0, -1e9)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, bias)
        return self.final(x)
