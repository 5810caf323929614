# expect: wrong
# why: the sign of the distance is not flipped before bucketing, so every past key gets bucket 0 and the relative bias carries no position.
"""Causal decoder with bucketed relative biases (summarisation model)."""
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class RelBiasSpec:
    num_buckets: int = 32
    max_distance: int = 128


@dataclass(frozen=True)
class DecoderSpec:
    width: int = 48
    heads: int = 4
    head_width: int = 12
    rel: RelBiasSpec = field(default_factory=RelBiasSpec)
    p_drop: float = 0.0


def causal_buckets(rel: Tensor, spec: RelBiasSpec) -> Tensor:
    """Bucket ids for rel = key position - query position in a left-to-right decoder.

    Half of the buckets hold exact distances, the other half grow logarithmically up to max_distance.
    Keys to the right of the query all land in bucket 0 (they are masked anyway).
    """
    n = rel.clamp(min=0)
    exact = spec.num_buckets // 2
    large = exact + (
        torch.log(n.clamp(min=1).float() / exact) / math.log(spec.max_distance / exact) * (spec.num_buckets - exact)
    ).long()
    large = large.clamp(max=spec.num_buckets - 1)
    return torch.where(n < exact, n, large)


class RelativeBias(nn.Module):
    def __init__(self, heads: int, spec: RelBiasSpec) -> None:
        super().__init__()
        self.spec = spec
        self.table = nn.Embedding(spec.num_buckets, heads)

    def forward(self, q_len: int, k_len: int) -> Tensor:
        dev = self.table.weight.device
        q_pos = torch.arange(k_len - q_len, k_len, device=dev)
        k_pos = torch.arange(k_len, device=dev)
        rel = k_pos[None, :] - q_pos[:, None]
        return self.table(causal_buckets(rel, self.spec)).permute(2, 0, 1)[None]


class CausalSelfAttention(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        inner = spec.heads * spec.head_width
        self.to_qkv = nn.Linear(spec.width, 3 * inner, bias=False)
        self.to_out = nn.Linear(inner, spec.width, bias=False)
        self.bias = RelativeBias(spec.heads, spec.rel)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            t.view(b, n, self.spec.heads, self.spec.head_width).transpose(1, 2)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        bias = self.bias(n, n)
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        bias = bias.masked_fill(future, float("-inf"))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.spec.p_drop if self.training else 0.0, scale=1.0
        )
        return self.to_out(out.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(spec.width)
        self.attn = CausalSelfAttention(spec)
        self.ln_2 = nn.LayerNorm(spec.width)
        self.ff = nn.Sequential(
            nn.Linear(spec.width, 4 * spec.width), nn.ReLU(), nn.Linear(4 * spec.width, spec.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.ff(self.ln_2(x))
