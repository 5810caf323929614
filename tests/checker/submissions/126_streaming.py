# expect: breaks-with-length
import torch
from torch import nn


def streaming_attention(q, k, v, scale, block):
    """Exact softmax(q k^T * scale) v, walking over the keys `block` at a time.

    q: (..., Tq, d)   k, v: (..., Tk, d).  Never holds more than Tq x block scores.
    """
    m = q.new_full(q.shape[:-1] + (1,), float("-inf"))
    denom = q.new_zeros(q.shape[:-1] + (1,))
    acc = torch.zeros_like(q)
    for lo in range(0, k.shape[-2], block):
        kb = k[..., lo:lo + block, :]
        vb = v[..., lo:lo + block, :]
        s = (q @ kb.transpose(-1, -2)) * scale
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp(s - m_new)
        fix = torch.exp(m - m_new)
        denom = denom + p.sum(-1, keepdim=True)
        acc = acc * fix + p @ vb
        m = m_new
    return acc / denom


class MemoryFriendlyAttention(nn.Module):
    """Bidirectional multi-head self-attention for long documents."""

    def __init__(self, dim, heads, block=128):
        super().__init__()
        self.heads, self.block = heads, block
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.to_qkv(x).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = streaming_attention(q, k, v, (c // self.heads) ** -0.5, self.block)
        return self.to_out(y.transpose(1, 2).reshape(b, t, c))
