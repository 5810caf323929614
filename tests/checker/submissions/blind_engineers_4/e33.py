# expect: breaks-with-length
# why: When the running row maximum grows the output accumulator is rescaled but the running denominator is not.
"""Block-wise attention in plain PyTorch; keeps memory at O(block) and is used to check the kernels."""
import math

import torch
from torch import nn


def blockwise_attention(q, k, v, causal=False, block_q=16, block_k=16, scale=None):
    """q: (B, H, T, D); k, v: (B, H, S, D). Exact softmax attention, streamed over key blocks."""
    B, H, T, D = q.shape
    S = k.shape[2]
    scale = D ** -0.5 if scale is None else scale
    out = torch.empty_like(q)

    for i in range(0, T, block_q):
        qi = q[:, :, i:i + block_q] * scale
        rows = torch.arange(i, i + qi.shape[2], device=q.device) + (S - T)
        m = torch.full((B, H, qi.shape[2], 1), -math.inf, device=q.device, dtype=torch.float32)
        l = torch.zeros_like(m)
        acc = torch.zeros(B, H, qi.shape[2], D, device=q.device, dtype=torch.float32)

        for j in range(0, S, block_k):
            if causal and j > int(rows[-1]):
                break
            kj, vj = k[:, :, j:j + block_k], v[:, :, j:j + block_k]
            s = (qi @ kj.transpose(-1, -2)).float()
            if causal:
                cols = torch.arange(j, j + kj.shape[2], device=q.device)
                s = s.masked_fill(cols[None, :] > rows[:, None], -math.inf)

            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - m_new)
            alpha = torch.exp(m - m_new)
            l = l + p.sum(dim=-1, keepdim=True)
            acc = acc * alpha + p @ vj.float()
            m = m_new

        out[:, :, i:i + block_q] = (acc / l).to(q.dtype)
    return out


class BlockwiseSelfAttention(nn.Module):
    def __init__(self, dim, heads, causal=True, block=16):
        super().__init__()
        self.heads, self.causal, self.block = heads, causal, block
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.in_proj(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = blockwise_attention(q, k, v, self.causal, self.block, self.block)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c))


def main():
    torch.manual_seed(0)
    layer = BlockwiseSelfAttention(64, 4)
    x = torch.randn(2, 50, 64)
    y = layer(x)
    y.sum().backward()
    print(y.shape, layer.in_proj.weight.grad.norm())


if __name__ == "__main__":
    main()
