# expect: breaks-with-length
# why: Line 34: the accumulated output is not multiplied by the correction factor when the running maximum changes. Shows only when there are more keys than block_size (default 32).
"""
Bonus exercise: memory efficient attention.
The keys are processed in blocks so that the T x T matrix never exists
(the idea of FlashAttention, but in plain pytorch).
"""
import torch
import torch.nn as nn


def blockwise_attention(q, k, v, block_size=32, causal=False):
    # q: (..., Tq, d)  k, v: (..., Tk, d)
    Tq, d = q.shape[-2:]
    Tk = k.shape[-2]
    scale = d ** -0.5

    row_max = torch.full((*q.shape[:-1], 1), float("-inf"), dtype=q.dtype, device=q.device)
    row_sum = torch.zeros_like(row_max)
    acc = torch.zeros_like(q)

    for start in range(0, Tk, block_size):
        kb = k[..., start:start + block_size, :]
        vb = v[..., start:start + block_size, :]
        s = q @ kb.transpose(-1, -2) * scale
        if causal:
            qi = torch.arange(Tq, device=q.device)[:, None]
            kj = torch.arange(start, start + kb.shape[-2], device=q.device)[None, :]
            s = s.masked_fill(kj > qi, float("-inf"))

        new_max = torch.maximum(row_max, s.amax(dim=-1, keepdim=True))
        p = torch.exp(s - new_max)
        correction = torch.exp(row_max - new_max)

        row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
        acc = acc + p @ vb
        row_max = new_max

    return acc / row_sum


class BlockwiseMHA(nn.Module):
    def __init__(self, dim, heads, block_size=32, causal=True):
        super().__init__()
        self.heads, self.block_size, self.causal = heads, block_size, causal
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        o = blockwise_attention(q, k, v, self.block_size, self.causal)
        return self.to_out(o.transpose(1, 2).reshape(b, t, c))


if __name__ == "__main__":
    m = BlockwiseMHA(64, 4)
    x = torch.randn(2, 20, 64)
    print(m(x).shape)
    q, k, v = torch.randn(3, 1, 4, 20, 16)
    ref = torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
    print(torch.allclose(blockwise_attention(q, k, v), ref, atol=1e-5))
