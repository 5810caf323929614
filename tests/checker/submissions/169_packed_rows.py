# expect: wrong
"""Self attention over packed (unpadded) batches.

Documents are concatenated into one long row of tokens; `cu_seqlens` holds the
cumulative lengths, e.g. lengths 3, 4, 2 -> tensor([0, 3, 7, 9], dtype=int32).
A token never attends outside of its own document and RoPE restarts at 0 for
every document. Plain torch fallback for machines without flash-attn.
"""
import torch
from torch import nn
import torch.nn.functional as F


def apply_rotary(x, cos, sin):
    # x (total, H, D), interleaved pairs (x0, x1), (x2, x3) ...
    x1, x2 = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(-2)


class VarlenSelfAttention(nn.Module):
    def __init__(self, dim, num_heads, causal=True, rope_base=10000.0, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.Wo = nn.Linear(dim, dim, bias=bias)
        inv = 1.0 / (rope_base ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, x, cu_seqlens):
        """x: (total_tokens, dim), cu_seqlens: (n_docs + 1,)"""
        total = x.size(0)
        tok = torch.arange(total, device=x.device, dtype=cu_seqlens.dtype)
        doc = torch.searchsorted(cu_seqlens[1:].contiguous(), tok)
        pos = tok - cu_seqlens[doc]

        q, k, v = self.Wqkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        ang = torch.outer(pos.float(), self.inv_freq)
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)

        allowed = doc[:, None] == doc[None, :]
        if self.causal:
            allowed = allowed & (pos[:, None] >= pos[None, :])
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
            attn_mask=allowed,
        )
        return self.Wo(out[0].transpose(0, 1).reshape(total, -1))
