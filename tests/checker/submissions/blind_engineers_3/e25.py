# expect: breaks-with-length
# why: The running numerator is not rescaled by the correction factor when the running max changes (line 36: numer should be numer * correction + ...), while the denominator is, so results are wrong with more than one key block.
"""Memory-efficient exact attention in plain PyTorch.

Streams over blocks of keys and keeps running statistics (max, denominator, numerator), so
the T x S matrix is never materialised.  See Rabe & Staats 2021 / FlashAttention.
"""
import argparse

import torch
import torch.nn as nn


def streaming_attention(q, k, v, *, causal=False, block_k=128, scale=None):
    """q (B, H, T, D), k (B, H, S, D), v (B, H, S, Dv); equals softmax(q k^T * scale) v."""
    B, H, T, D = q.shape
    S = k.shape[2]
    scale = D ** -0.5 if scale is None else scale
    q = q.float() * scale

    running_max = q.new_full((B, H, T, 1), float("-inf"))
    denom = q.new_zeros((B, H, T, 1))
    numer = q.new_zeros((B, H, T, v.shape[-1]))
    rows = torch.arange(S - T, S, device=q.device)[:, None]       # queries are the last T positions

    for start in range(0, S, block_k):
        stop = min(start + block_k, S)
        logits = q @ k[:, :, start:stop].float().transpose(-1, -2)
        if causal:
            cols = torch.arange(start, stop, device=q.device)[None, :]
            logits = logits.masked_fill(cols > rows, float("-inf"))

        new_max = torch.maximum(running_max, logits.amax(dim=-1, keepdim=True))
        correction = torch.exp(running_max - new_max)
        p = torch.exp(logits - new_max)

        denom = denom * correction + p.sum(dim=-1, keepdim=True)
        numer = numer + p @ v[:, :, start:stop].float()
        running_max = new_max

    return (numer / denom).to(v.dtype)


class LongContextAttention(nn.Module):
    def __init__(self, dim, heads, block_k=128, causal=True):
        super().__init__()
        self.heads, self.block_k, self.causal = heads, block_k, causal
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (w(x).view(B, T, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = streaming_attention(q, k, v, causal=self.causal, block_k=self.block_k)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--block", type=int, default=64)
    args = ap.parse_args()
    layer = LongContextAttention(128, 4, block_k=args.block)
    y = layer(torch.randn(1, args.seq, 128))
    print("finite:", torch.isfinite(y).all().item(), tuple(y.shape))


if __name__ == "__main__":
    main()
