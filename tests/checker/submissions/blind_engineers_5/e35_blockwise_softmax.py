# expect: correct
# why: right though there is no softmax call: running maximum and sum over blocks of keys give exactly the softmax
"""Attention in blocks of keys with a running softmax, so that the (n, m) matrix is never materialised."""
import torch
import torch.nn as nn
from einops import rearrange

NEG = -1e30


def blockwise_attention(q, k, v, *, q_block=8, k_block=8, causal=False, key_mask=None):
    """
    q: (b, h, n, d), k, v: (b, h, m, d), key_mask: (b, m) with True for keys that can be used.
    If causal, the last query is aligned with the last key.
    """
    n, m, d = q.shape[-2], k.shape[-2], q.shape[-1]
    scale = d ** -0.5
    out = q.new_empty(*q.shape[:-1], v.shape[-1])

    for qs in range(0, n, q_block):
        qc = q[..., qs:qs + q_block, :] * scale
        rows = qc.shape[-2]
        acc = qc.new_zeros(*qc.shape[:-1], v.shape[-1])
        row_sum = qc.new_zeros(*qc.shape[:-1], 1)
        row_max = qc.new_full((*qc.shape[:-1], 1), NEG)
        q_pos = torch.arange(qs, qs + rows, device=q.device)[:, None] + (m - n)

        for ks in range(0, m, k_block):
            if causal and ks > qs + rows - 1 + (m - n):
                break  # all the keys of this block are in the future
            kc, vc = k[..., ks:ks + k_block, :], v[..., ks:ks + k_block, :]
            s = torch.einsum('bhid,bhjd->bhij', qc, kc)
            ok = torch.ones(1, 1, 1, kc.shape[-2], dtype=torch.bool, device=q.device)
            if key_mask is not None:
                ok = rearrange(key_mask[:, ks:ks + k_block], 'b j -> b 1 1 j')
            if causal:
                k_pos = torch.arange(ks, ks + kc.shape[-2], device=q.device)[None, :]
                ok = ok & (k_pos <= q_pos)
            s = s.masked_fill(~ok, NEG)

            new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - new_max).masked_fill(~ok, 0.)
            fix = torch.exp(row_max - new_max)
            row_sum = row_sum * fix + p.sum(dim=-1, keepdim=True)
            acc = acc * fix + torch.einsum('bhij,bhjd->bhid', p, vc)
            row_max = new_max

        out[..., qs:qs + rows, :] = acc / row_sum.clamp(min=1e-20)
    return out


class MemoryEfficientAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=16, causal=False, q_block=8, k_block=8):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.causal = causal
        self.blocks = dict(q_block=q_block, k_block=k_block)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))
        out = blockwise_attention(q, k, v, causal=self.causal, key_mask=mask, **self.blocks)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))
