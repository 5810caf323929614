# expect: correct
# why: right though attention runs over the whole preallocated cache: unwritten slots are hidden by the causal mask rows of input_pos
"""Multi-query attention with a preallocated cache, written for torch.compile-friendly decoding."""
from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor


class StaticKVCache(nn.Module):
    def __init__(self, max_batch_size: int, max_seq_length: int, head_dim: int, dtype=torch.float32):
        super().__init__()
        shape = (max_batch_size, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype), persistent=False)

    def update(self, input_pos: Tensor, k_val: Tensor, v_val: Tensor):
        # input_pos: [S], k_val: [B, S, D]
        assert input_pos.shape[0] == k_val.shape[1]
        b = k_val.shape[0]
        self.k_cache[:b, input_pos] = k_val
        self.v_cache[:b, input_pos] = v_val
        return self.k_cache[:b], self.v_cache[:b]


class MultiQueryAttention(nn.Module):
    """One key/value head shared by all the query heads (Shazeer 2019)."""

    def __init__(self, dim: int, n_head: int):
        super().__init__()
        assert dim % n_head == 0
        self.n_head, self.head_dim = n_head, dim // n_head
        self.Wq = nn.Parameter(torch.randn(n_head, dim, self.head_dim) * dim ** -0.5)
        self.Wk = nn.Parameter(torch.randn(dim, self.head_dim) * dim ** -0.5)
        self.Wv = nn.Parameter(torch.randn(dim, self.head_dim) * dim ** -0.5)
        self.Wo = nn.Parameter(torch.randn(n_head, self.head_dim, dim) * dim ** -0.5)
        self.kv_cache: Optional[StaticKVCache] = None

    def forward(self, x: Tensor, mask: Tensor, input_pos: Optional[Tensor] = None) -> Tensor:
        q = torch.einsum("bnd,hdk->bhnk", x, self.Wq)
        k = torch.einsum("bmd,dk->bmk", x, self.Wk)
        v = torch.einsum("bmd,dv->bmv", x, self.Wv)
        if self.kv_cache is not None:
            k, v = self.kv_cache.update(input_pos, k, v)
        logits = torch.einsum("bhnk,bmk->bhnm", q, k) / self.head_dim ** 0.5
        logits = torch.where(mask, logits, torch.full_like(logits, float("-inf")))
        weights = torch.softmax(logits, dim=-1)
        o = torch.einsum("bhnm,bmv->bhnv", weights, v)
        return torch.einsum("bhnv,hvd->bnd", o, self.Wo)


class MQATransformer(nn.Module):
    def __init__(self, vocab_size: int = 70, block_size: int = 64, dim: int = 32, n_layer: int = 2, n_head: int = 4):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.pos_embeddings = nn.Embedding(block_size, dim)
        self.attention_norm = nn.ModuleList([nn.LayerNorm(dim) for _ in range(n_layer)])
        self.attention = nn.ModuleList([MultiQueryAttention(dim, n_head) for _ in range(n_layer)])
        self.feed_forward = nn.ModuleList([
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(n_layer)])
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.max_seq_length = -1
        self.register_buffer("causal_mask", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)),
                             persistent=False)

    def setup_caches(self, max_batch_size: int, max_seq_length: int):
        self.max_seq_length = max_seq_length
        for attn in self.attention:
            attn.kv_cache = StaticKVCache(max_batch_size, max_seq_length, attn.head_dim)

    def forward(self, idx: Tensor, input_pos: Optional[Tensor] = None) -> Tensor:
        """With caches set up, input_pos holds the absolute positions of the tokens in idx."""
        if input_pos is None:
            assert self.max_seq_length < 0, "input_pos is needed once the caches are set up"
            input_pos = torch.arange(idx.shape[1], device=idx.device)
        kv_len = self.max_seq_length if self.max_seq_length > 0 else idx.shape[1]
        # slots that were not written yet lie in the future, so the causal mask hides them
        mask = self.causal_mask[input_pos, :kv_len]
        x = self.tok_embeddings(idx) + self.pos_embeddings(input_pos)
        for norm, attn, ff in zip(self.attention_norm, self.attention, self.feed_forward):
            x = x + attn(norm(x), mask, input_pos)
            x = x + ff(x)
        return self.output(x)
