# expect: correct
# what: memory-efficient chunked attention (query and key chunks), checkpointing
"""Attention in O(sqrt(n)) memory: queries are split in chunks, and for each of them the keys are
summarised chunk by chunk. Gives the same result as full attention."""
import math
from functools import partial
from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class AttnChunk(NamedTuple):
    exp_values: torch.Tensor
    exp_weights_sum: torch.Tensor
    max_score: torch.Tensor


def _summarize_chunk(query, key, value, allowed: Optional[torch.Tensor], scale: float) -> AttnChunk:
    weights = torch.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if allowed is not None:
        weights = weights.masked_fill(~allowed, torch.finfo(weights.dtype).min)
    max_score = weights.amax(dim=-1, keepdim=True).detach()
    exp_weights = torch.exp(weights - max_score)
    if allowed is not None:
        exp_weights = exp_weights.masked_fill(~allowed, 0.0)
    exp_values = torch.einsum("bhqk,bkhd->bhqd", exp_weights, value)
    return AttnChunk(exp_values, exp_weights.sum(dim=-1, keepdim=True), max_score)


def _query_chunk_attention(query, key, value, allowed, scale, key_chunk_size, use_checkpoint):
    summarize = partial(_summarize_chunk, scale=scale)
    if use_checkpoint:
        summarize = partial(checkpoint, summarize, use_reentrant=False)
    chunks = []
    for start in range(0, key.shape[1], key_chunk_size):
        stop = start + key_chunk_size
        sub = allowed[..., start:stop] if allowed is not None else None
        chunks.append(summarize(query, key[:, start:stop], value[:, start:stop], sub))
    values, sums, maxes = (torch.stack(t) for t in zip(*chunks))
    global_max = maxes.amax(dim=0, keepdim=True)
    diff = torch.exp(maxes - global_max)
    values = (values * diff).sum(dim=0)
    sums = (sums * diff).sum(dim=0)
    return values / sums.clamp(min=torch.finfo(sums.dtype).tiny)


def efficient_dot_product_attention(
    query, key, value, mask=None, causal=False, query_chunk_size=4, key_chunk_size=3, use_checkpoint=False
):
    """query (b, q, h, d), key and value (b, k, h, d) -> (b, q, h, d).
    mask: bool, (b, k) or (b, 1 or h, q, k), True where attention is allowed."""
    n_q, n_k = query.shape[1], key.shape[1]
    scale = 1.0 / math.sqrt(query.shape[-1])
    if mask is not None and mask.dim() == 2:
        mask = mask[:, None, None, :]
    outs = []
    for start in range(0, n_q, query_chunk_size):
        q = query[:, start : start + query_chunk_size]
        allowed = None
        if mask is not None:
            allowed = mask if mask.shape[2] == 1 else mask[:, :, start : start + query_chunk_size]
            allowed = allowed.expand(-1, -1, q.shape[1], n_k)
        if causal:
            rows = torch.arange(start, start + q.shape[1], device=q.device)[:, None] + (n_k - n_q)
            tri = (torch.arange(n_k, device=q.device)[None, :] <= rows)[None, None]
            allowed = tri if allowed is None else allowed & tri
        outs.append(_query_chunk_attention(q, key, value, allowed, scale, key_chunk_size, use_checkpoint))
    return torch.cat(outs, dim=2).transpose(1, 2)


class MemEfficientAttention(nn.Module):
    def __init__(self, dim, *, heads=4, dim_head=16, causal=False, q_bucket_size=4, k_bucket_size=3, use_checkpoint=True):
        super().__init__()
        self.heads = heads
        inner_dim = heads * dim_head
        self.attn_fn = partial(
            efficient_dot_product_attention,
            causal=causal, query_chunk_size=q_bucket_size, key_chunk_size=k_bucket_size,
        )
        self.use_checkpoint = use_checkpoint
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_kv(context).chunk(2, dim=-1))
        out = self.attn_fn(q, k, v, mask=mask, use_checkpoint=self.use_checkpoint and self.training)
        return self.to_out(out.flatten(2))
