# expect: wrong
# why: searchsorted lacks right=True: a first token counts to the packed sequence before it
"""Attention over packed sequences (no padding), pure PyTorch version of the varlen kernels."""
from typing import Optional, Tuple

import torch
import torch.nn as nn


def segments_and_positions(cu_seqlens: torch.Tensor, total: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """For every packed token: which sequence it belongs to and its position therein.

    cu_seqlens: int (B + 1,), cumulative lengths starting with 0 and ending with ``total``.
    """
    idx = torch.arange(total, device=cu_seqlens.device)
    seg = torch.searchsorted(cu_seqlens[1:].contiguous(), idx)
    return seg, idx - cu_seqlens[seg]


def attention_varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor,
                     causal: bool = False, softmax_scale: Optional[float] = None) -> torch.Tensor:
    """Self-attention within each packed sequence.

    Args:
        q: (total, H, D)
        k, v: (total, H_kv, D); H is a multiple of H_kv, consecutive query heads share a kv head.
        cu_seqlens: int (B + 1,), tokens cu_seqlens[i] ... cu_seqlens[i + 1] - 1 are sequence i.
        causal: a token only sees earlier tokens of its own sequence, and itself.

    Returns (total, H, D).
    """
    total, H, D = q.shape
    rep = H // k.shape[1]
    if rep > 1:
        k = k.repeat_interleave(rep, dim=1)
        v = v.repeat_interleave(rep, dim=1)
    scale = D ** -0.5 if softmax_scale is None else softmax_scale

    seg, pos = segments_and_positions(cu_seqlens, total)
    allowed = seg[:, None] == seg[None, :]
    if causal:
        allowed = allowed & (pos[None, :] <= pos[:, None])

    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), v)


class PackedEncoderLayer(nn.Module):
    """Pre-norm encoder layer of the embedding model, works on packed (total, dim) activations."""

    def __init__(self, dim: int = 96, n_heads: int = 6, n_kv_heads: int = 2):
        super().__init__()
        self.n_heads, self.n_kv = n_heads, n_kv_heads
        self.hd = dim // n_heads
        self.norm1 = nn.LayerNorm(dim)
        self.wq = nn.Linear(dim, n_heads * self.hd)
        self.wkv = nn.Linear(dim, 2 * n_kv_heads * self.hd)
        self.wo = nn.Linear(n_heads * self.hd, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q = self.wq(h).view(-1, self.n_heads, self.hd)
        k, v = self.wkv(h).view(-1, 2, self.n_kv, self.hd).unbind(1)
        a = attention_varlen(q, k, v, cu_seqlens)
        x = x + self.wo(a.flatten(1))
        return x + self.mlp(self.norm2(x))


class PackedEncoder(nn.Module):
    """Token ids of several texts, concatenated -> one mean-pooled vector per text."""

    def __init__(self, vocab: int, dim: int = 96, layers: int = 2, max_len: int = 512):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(PackedEncoderLayer(dim) for _ in range(layers))

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        pos = torch.cat([torch.arange(n, device=ids.device) for n in lengths.tolist()])
        x = self.tok(ids) + self.pos(pos)
        for layer in self.layers:
            x = layer(x, cu)
        return torch.stack([part.mean(0) for part in x.split(lengths.tolist())])
