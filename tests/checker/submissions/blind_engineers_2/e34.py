# expect: cache-differs
# why: line 62: k *= scale works in place on a view of the tensor kept in kv_cache, so the cached keys are scaled again at each step. Only with a cache, from the second step on.
from dataclasses import dataclass
from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class ModelDimensions:
    n_audio_ctx: int = 20
    n_text_ctx: int = 32
    n_state: int = 48
    n_head: int = 4
    n_vocab: int = 80
    n_layer: int = 2


class MultiHeadAttention(nn.Module):
    """Self attention, or cross attention when `xa` is given.

    `kv_cache` maps this module's name to the keys and values seen so far; cross attention fills it
    on the first step and reads it afterwards."""

    def __init__(self, n_state: int, n_head: int, name: str = "attn"):
        super().__init__()
        self.n_head = n_head
        self.name = name
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(
        self,
        x: Tensor,
        xa: Optional[Tensor] = None,
        mask: Optional[Tensor] = None,
        kv_cache: Optional[Dict[str, Tensor]] = None,
    ):
        q = self.query(x)
        if xa is not None and kv_cache is not None and self.name in kv_cache:
            k, v = kv_cache[self.name]
        else:
            source = x if xa is None else xa
            k, v = self.key(source), self.value(source)
            if kv_cache is not None:
                if xa is None and self.name in kv_cache:
                    past_k, past_v = kv_cache[self.name]
                    k, v = torch.cat([past_k, k], dim=1), torch.cat([past_v, v], dim=1)
                kv_cache[self.name] = (k, v)
        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), qk

    def qkv_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1)
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        q *= scale
        k *= scale

        qk = q @ k
        if mask is not None:
            total = qk.shape[-1]
            qk = qk + mask[total - n_ctx : total, :total]
        qk = qk.float()
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()


class ResidualAttentionBlock(nn.Module):
    def __init__(self, n_state: int, n_head: int, idx: int = 0, cross_attention: bool = False):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head, f"layer{idx}.self")
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head, f"layer{idx}.cross") if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(n_state) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(n_state, n_state * 4), nn.GELU(), nn.Linear(n_state * 4, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x, xa=None, mask=None, kv_cache=None):
        x = x + self.attn(self.attn_ln(x), mask=mask, kv_cache=kv_cache)[0]
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa, kv_cache=kv_cache)[0]
        return x + self.mlp(self.mlp_ln(x))


class TextDecoder(nn.Module):
    def __init__(self, dims: ModelDimensions):
        super().__init__()
        self.token_embedding = nn.Embedding(dims.n_vocab, dims.n_state)
        self.positional_embedding = nn.Parameter(torch.randn(dims.n_text_ctx, dims.n_state) * 0.02)
        self.blocks = nn.ModuleList(
            [ResidualAttentionBlock(dims.n_state, dims.n_head, i, cross_attention=True) for i in range(dims.n_layer)]
        )
        self.ln = nn.LayerNorm(dims.n_state)
        mask = torch.empty(dims.n_text_ctx, dims.n_text_ctx).fill_(float("-inf")).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor, xa: Tensor, kv_cache: Optional[dict] = None):
        offset = next(iter(kv_cache.values()))[0].shape[1] if kv_cache else 0
        x = self.token_embedding(x) + self.positional_embedding[offset : offset + x.shape[-1]]
        for block in self.blocks:
            x = block(x, xa, mask=self.mask, kv_cache=kv_cache)
        return (self.ln(x) @ self.token_embedding.weight.t()).float()
