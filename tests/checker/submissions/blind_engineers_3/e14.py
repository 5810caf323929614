# expect: correct
"""Attention over packed (padding-free) batches.

All sequences of a batch are concatenated into one (total, dim) tensor; `cu_seqlens`
holds the cumulative lengths, e.g. lengths 3, 5, 2 -> [0, 3, 8, 10].  Same contract as
flash_attn_varlen_qkvpacked_func, but plain PyTorch so that it also runs on CPU.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def document_ids(cu_seqlens):
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    return torch.repeat_interleave(torch.arange(len(lengths), device=cu_seqlens.device), lengths)


def position_in_document(cu_seqlens):
    ids = document_ids(cu_seqlens)
    return torch.arange(len(ids), device=ids.device) - cu_seqlens[:-1][ids]


def packed_mask(cu_seqlens, causal, window=None):
    """(total, total) bool, True where query row may look at key column."""
    ids = document_ids(cu_seqlens)
    idx = torch.arange(len(ids), device=ids.device)
    mask = ids[:, None] == ids[None, :]
    if causal:
        mask = mask & (idx[:, None] >= idx[None, :])
    if window is not None:
        mask = mask & ((idx[:, None] - idx[None, :]).abs() < window)
    return mask


class PackedSelfAttention(nn.Module):
    def __init__(self, dim, n_heads, causal=True, window=None, rope_base=10000.0, dropout=0.0):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.causal, self.window, self.dropout = causal, window, dropout
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.Wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("inv_freq", rope_base ** -(torch.arange(0, self.head_dim, 2) / self.head_dim), persistent=False)

    def _rope(self, x, pos):
        ang = pos[:, None].float() * self.inv_freq
        cos, sin = ang.cos()[:, None], ang.sin()[:, None]         # total, 1, d/2
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).type_as(x)

    def forward(self, x, cu_seqlens):
        total, dim = x.shape
        q, k, v = self.Wqkv(x).view(total, 3, self.n_heads, self.head_dim).unbind(1)
        pos = position_in_document(cu_seqlens)
        q, k = self._rope(q, pos), self._rope(k, pos)
        mask = packed_mask(cu_seqlens, self.causal, self.window)
        # heads play the role of the batch: (1, H, total, D)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
            attn_mask=mask, dropout_p=self.dropout if self.training else 0.0,
        )
        return self.Wo(out[0].transpose(0, 1).reshape(total, dim))


def unpad(x, mask):
    """x (B, S, D), mask (B, S) bool -> packed x, cu_seqlens"""
    lengths = mask.sum(1)
    return x[mask], F.pad(lengths.cumsum(0), (1, 0))


if __name__ == "__main__":
    attn = PackedSelfAttention(32, 4).eval()
    x = torch.randn(2, 6, 32)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]).bool()
    packed, cu = unpad(x, mask)
    y = attn(packed, cu)
    alone = attn(x[1, :3], torch.tensor([0, 3]))
    print(torch.allclose(y[6:], alone, atol=1e-6))
