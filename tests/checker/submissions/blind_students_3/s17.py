# expect: breaks-with-length
# why: Line 38: in the online softmax the accumulator is not rescaled by exp(m - m_new) when the running maximum grows (the denominator on line 37 is), so the result is wrong as soon as there is more than one block; with one block it is exact.
"""
Project: memory-efficient attention ("flash attention" in plain pytorch)

We walk over the keys in blocks and never build the complete T x T matrix.
m = running max, l = running denominator, acc = running numerator
"""
import math
import time
import torch
import torch.nn as nn


def naive_attention(q, k, v, causal=False):
    s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    if causal:
        tq, tk = s.shape[-2:]
        s = s.masked_fill(torch.ones(tq, tk, device=s.device).triu(1).bool(), float("-inf"))
    return s.softmax(-1) @ v


def blockwise_attention(q, k, v, block=64, causal=False):
    B, H, T, D = q.shape
    S = k.size(2)
    m = torch.full((B, H, T, 1), float("-inf"), device=q.device, dtype=q.dtype)
    l = torch.zeros_like(m)
    acc = torch.zeros_like(q)
    rows = torch.arange(T, device=q.device)[:, None]
    for start in range(0, S, block):
        kb = k[:, :, start:start + block]
        vb = v[:, :, start:start + block]
        s = q @ kb.transpose(-1, -2) / math.sqrt(D)
        if causal:
            cols = torch.arange(start, start + kb.size(2), device=q.device)[None, :]
            s = s.masked_fill(cols > rows, float("-inf"))
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - m_new)
        l = l * torch.exp(m - m_new) + p.sum(dim=-1, keepdim=True)
        acc = acc + p @ vb
        m = m_new
    return acc / l


class FlashMHA(nn.Module):
    def __init__(self, d_model, n_heads, block=64, causal=True):
        super().__init__()
        self.h = n_heads
        self.block, self.causal = block, causal
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.h, c // self.h).transpose(1, 2)
                   for z in self.in_proj(x).split(c, dim=-1))
        o = blockwise_attention(q, k, v, self.block, self.causal)
        return self.out_proj(o.transpose(1, 2).reshape(b, t, c))


if __name__ == "__main__":
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 64, 16).unbind(0)
    t0 = time.time()
    diff = (blockwise_attention(q, k, v) - naive_attention(q, k, v)).abs().max()
    print("max diff to naive:", diff.item(), "time", time.time() - t0)
    print(FlashMHA(64, 4)(torch.randn(1, 300, 64)).shape)
