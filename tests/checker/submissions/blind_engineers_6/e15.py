# expect: correct
# why: right: the cache is a dict, self- or cross-attention, the logits are returned too
from typing import Dict, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(length: int, channels: int, max_timescale: float = 10000.0) -> Tensor:
    """Returns sinusoids for positional embedding."""
    assert channels % 2 == 0
    inc = np.log(max_timescale) / (channels // 2 - 1)
    inv = torch.exp(-inc * torch.arange(channels // 2))
    t = torch.arange(length)[:, None] * inv[None, :]
    return torch.cat([t.sin(), t.cos()], dim=1)


class MultiHeadAttention(nn.Module):
    """Self- and cross-attention of the speech recogniser.

    x:        (B, T, n_state)
    xa:       (B, S, n_state) encoder output, for cross-attention
    mask:     additive (n_ctx, n_ctx) causal mask over absolute positions, self-attention only
    kv_cache: dict for incremental decoding. Self-attention appends to it, cross-attention projects
              ``xa`` once and reuses it; start every utterance with a fresh dict.

    Returns ``(out, qk)`` where qk are the float32 logits before the softmax, (B, H, T, S), used for
    the word timestamps.
    """

    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, xa: Optional[Tensor] = None, mask: Optional[Tensor] = None,
                kv_cache: Optional[Dict[nn.Module, Tensor]] = None):
        q = self.query(x)
        if xa is not None and kv_cache is not None and self.key in kv_cache:
            k, v = kv_cache[self.key], kv_cache[self.value]
        else:
            src = x if xa is None else xa
            k, v = self.key(src), self.value(src)
            if kv_cache is not None:
                if xa is None and self.key in kv_cache:
                    k = torch.cat([kv_cache[self.key], k], dim=1)
                    v = torch.cat([kv_cache[self.value], v], dim=1)
                kv_cache[self.key], kv_cache[self.value] = k, v

        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), qk

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None):
        n_batch, n_ctx, n_state = q.shape
        s = k.shape[1]
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(n_batch, s, self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(n_batch, s, self.n_head, -1).permute(0, 2, 1, 3)

        qk = (q @ k).float()
        if mask is not None:
            qk = qk + mask[s - n_ctx:s, :s]
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int, cross_attention: bool = False):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head) if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(n_state) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x, xa=None, mask=None, kv_cache=None):
        x = x + self.attn(self.attn_ln(x), mask=mask, kv_cache=kv_cache)[0]
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=kv_cache)[0]
        return x + self.mlp(self.mlp_ln(x))


class TextDecoder(nn.Module):
    def __init__(self, n_vocab: int, n_ctx: int, n_state: int, n_head: int, n_layer: int):
        super().__init__()
        self.token_embedding = nn.Embedding(n_vocab, n_state)
        self.positional_embedding = nn.Parameter(torch.randn(n_ctx, n_state) * 0.01)
        self.blocks = nn.ModuleList(
            [ResidualAttentionBlock(n_state, n_head, cross_attention=True) for _ in range(n_layer)])
        self.ln = nn.LayerNorm(n_state)
        self.register_buffer("mask", torch.full((n_ctx, n_ctx), -np.inf).triu_(1), persistent=False)

    def forward(self, tokens: Tensor, xa: Tensor, kv_cache: Optional[dict] = None):
        offset = kv_cache[self.blocks[0].attn.key].shape[1] if kv_cache else 0
        x = self.token_embedding(tokens) + self.positional_embedding[offset:offset + tokens.shape[-1]]
        for block in self.blocks:
            x = block(x, xa, mask=self.mask, kv_cache=kv_cache)
        return self.ln(x) @ self.token_embedding.weight.t()
