# expect: norm-over-wrong-axis
# why: F.normalize is called without dim, so q and k are normalised over the head axis (default dim=1) instead of over the channels of each head.
"""Scaled-cosine attention for an image encoder, with learned per-head temperature
and continuous position bias (MLP over log-spaced offsets)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ContinuousPositionBias(nn.Module):
    def __init__(self, heads: int, hidden: int = 32):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, heads, bias=False))

    def forward(self, h: int, w: int) -> torch.Tensor:
        device = self.mlp[0].weight.device
        ys, xs = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
        pts = torch.stack([ys.reshape(-1), xs.reshape(-1)], dim=-1).float()
        d = pts[:, None, :] - pts[None, :, :]
        d = torch.sign(d) * torch.log2(1.0 + d.abs())
        return 16 * torch.sigmoid(self.mlp(d)).permute(2, 0, 1)


class CosineAttention(nn.Module):
    """softmax(cos(q, k) / tau + bias) v, where cos is taken per head."""

    def __init__(self, dim: int, heads: int, qkv_bias: bool = True, max_scale: float = 100.0):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        if qkv_bias:
            # keys get no bias
            self.q_bias = nn.Parameter(torch.zeros(dim))
            self.v_bias = nn.Parameter(torch.zeros(dim))
        else:
            self.register_parameter("q_bias", None)
            self.register_parameter("v_bias", None)
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.max_log = math.log(max_scale)
        self.cpb = ContinuousPositionBias(heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, grid: tuple) -> torch.Tensor:
        b, n, c = x.shape
        bias = None
        if self.q_bias is not None:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(x, self.to_qkv.weight, bias)
        q, k, v = [t.view(b, n, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, dim=-1)]

        q, k = F.normalize(q), F.normalize(k)
        sim = q @ k.transpose(-2, -1)
        sim = sim * self.logit_scale.clamp(max=self.max_log).exp()
        sim = sim + self.cpb(*grid)
        y = sim.softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class PostNormBlock(nn.Module):
    """Residual-post-norm ordering: the branch output is normalised before it is added."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = CosineAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.n1 = nn.LayerNorm(dim)
        self.n2 = nn.LayerNorm(dim)

    def forward(self, x, grid):
        x = x + self.n1(self.attn(x, grid))
        return x + self.n2(self.mlp(x))


if __name__ == "__main__":
    blk = PostNormBlock(32, 4)
    print(blk(torch.randn(2, 12, 32), (3, 4)).shape)
