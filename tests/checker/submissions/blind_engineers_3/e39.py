# expect: wrong
# why: The sink is prepended (column 0) but the last column is dropped (line 40), so the sink weight is applied to value 0 and every key weight to the value of the next position: token t reads the value of t+1 (causality broken).
"""Causal attention with a learnable sink per head ("softmax-off-by-one", but trainable).

The sink soaks up probability mass when a head has nothing useful to read; it contributes
to the denominator and carries no value vector.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinkAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, max_len: int = 1024, dropout: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)
        self.sink = nn.Parameter(torch.zeros(n_heads))
        self.drop = nn.Dropout(dropout)
        future = torch.ones(max_len, max_len, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x, return_weights: bool = False):
        B, T, C = x.shape
        q, k, v = self.wqkv(x).split(C, dim=-1)
        q = q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)

        logits = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        logits = logits.masked_fill(self.future[:T, :T], float("-inf"))

        # prepend the sink as a virtual key, normalise, then drop it again
        sink = self.sink.view(1, -1, 1, 1).expand(B, -1, T, 1)
        logits = torch.cat([sink, logits], dim=-1)              # B, H, T, 1 + T
        weights = F.softmax(logits.float(), dim=-1).type_as(v)
        weights = weights[..., :-1]                             # B, H, T, T

        out = self.drop(weights) @ v
        out = self.wo(out.transpose(1, 2).reshape(B, T, C))
        return (out, weights) if return_weights else out


class SinkBlock(nn.Module):
    def __init__(self, d_model, n_heads, **kw):
        super().__init__()
        self.ln_a, self.ln_f = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = SinkAttention(d_model, n_heads, **kw)
        self.ff = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(approximate="tanh"), nn.Linear(4 * d_model, d_model))

    def forward(self, x):
        x = x + self.attn(self.ln_a(x))
        return x + self.ff(self.ln_f(x))


@torch.no_grad()
def sink_mass(block, x):
    """Fraction of attention that went to the sink, per head (for the wandb panel)."""
    _, w = block.attn(block.ln_a(x), return_weights=True)
    return 1.0 - w.sum(-1).mean(dim=(0, 2))


if __name__ == "__main__":
    blk = SinkBlock(64, 4, max_len=128).eval()
    x = torch.randn(2, 32, 64)
    print(blk(x).shape, sink_mass(blk, x))
