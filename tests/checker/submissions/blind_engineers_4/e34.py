# expect: correct
"""Memory-efficient attention by summarising key chunks and combining the summaries afterwards."""
from dataclasses import dataclass
from typing import List, Optional, Tuple

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

NEG = -1e30


@dataclass(frozen=True)
class ChunkConfig:
    query_chunk: int = 8
    key_chunk: int = 12
    use_checkpoint: bool = False


def _summarise(q, k, v, allowed) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unnormalised output, weight sum and maximum for one (query chunk, key chunk) pair.

    A row without any allowed key in this chunk keeps the maximum NEG and a weight sum of zero."""
    s = torch.einsum("bqhd,bkhd->bhqk", q, k)
    s = torch.where(allowed, s, NEG)
    peak = s.amax(-1, keepdim=True).detach()
    e = torch.exp(s - peak) * allowed
    return torch.einsum("bhqk,bkhd->bhqd", e, v), e.sum(-1, keepdim=True), peak


def chunked_attention(q, k, v, cfg: ChunkConfig, key_mask: Optional[torch.Tensor] = None, causal: bool = False):
    """q (B, T, H, D), k and v (B, S, H, D), key_mask (B, S) bool with True = visible.

    With causal and S > T the queries are the last T positions. Rows that see nothing give zero."""
    B, T, H, D = q.shape
    S = k.shape[1]
    if causal and S < T:
        raise ValueError("causal attention needs at least as many keys as queries")
    q = q / D ** 0.5
    if key_mask is None:
        key_mask = torch.ones(B, S, dtype=torch.bool, device=q.device)
    outs: List[torch.Tensor] = []
    for qs in range(0, T, cfg.query_chunk):
        qc = q[:, qs:qs + cfg.query_chunk]
        q_idx = torch.arange(qs, qs + qc.shape[1], device=q.device) + S - T
        parts = []
        for ks in range(0, S, cfg.key_chunk):
            if causal and ks > S - T + qs + qc.shape[1] - 1:
                continue
            kc, vc = k[:, ks:ks + cfg.key_chunk], v[:, ks:ks + cfg.key_chunk]
            k_idx = torch.arange(ks, ks + kc.shape[1], device=q.device)
            allowed = key_mask[:, None, None, ks:ks + cfg.key_chunk].expand(B, 1, qc.shape[1], kc.shape[1])
            if causal:
                allowed = allowed & (k_idx[None, :] <= q_idx[:, None])
            if cfg.use_checkpoint and torch.is_grad_enabled():
                parts.append(checkpoint(_summarise, qc, kc, vc, allowed, use_reentrant=False))
            else:
                parts.append(_summarise(qc, kc, vc, allowed))
        num, den, peak = (torch.stack(t) for t in zip(*parts))
        w = torch.exp(peak - peak.amax(0, keepdim=True))
        num, den = (num * w).sum(0), (den * w).sum(0)
        outs.append(num / den.clamp_min(1e-20))
    return torch.cat(outs, dim=2).transpose(1, 2)


class ChunkedMHA(nn.Module):
    def __init__(self, dim: int, heads: int, cfg: ChunkConfig = ChunkConfig(), causal: bool = False):
        super().__init__()
        self.heads, self.cfg, self.causal = heads, cfg, causal
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory=None, key_mask=None):
        memory = x if memory is None else memory
        split = lambda t: t.unflatten(-1, (self.heads, -1))
        y = chunked_attention(split(self.q(x)), split(self.k(memory)), split(self.v(memory)),
                              self.cfg, key_mask, self.causal)
        return self.o(y.flatten(2))
