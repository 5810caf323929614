# expect: correct
import math

import torch
import torch.nn.functional as F
from torch import nn


def lambda_init_fn(depth: int) -> float:
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class HeadRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class DiffAttention(nn.Module):
    """Differential attention: (softmax(q1 k1) - lambda * softmax(q2 k2)) v.

    Each head owns two query/key groups of width d and one value of width 2d. The two softmax
    maps are kept as an extra axis of length 2."""

    def __init__(self, d_model: int, n_heads: int, depth: int):
        super().__init__()
        self.n_heads = n_heads
        self.d = d_model // n_heads // 2
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q = nn.Parameter(torch.randn(2, self.d) * 0.1)
        self.lambda_k = nn.Parameter(torch.randn(2, self.d) * 0.1)
        self.subln = HeadRMSNorm(2 * self.d)

    def lam(self) -> torch.Tensor:
        e = torch.exp((self.lambda_q * self.lambda_k).sum(-1))
        return e[0] - e[1] + self.lambda_init

    def forward(self, x, attn_mask=None):
        """attn_mask: additive, broadcastable to (B, 1, 1, T, T); causal when not given."""
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, 2, self.d)
        k = self.k_proj(x).view(B, T, self.n_heads, 2, self.d)
        v = self.v_proj(x).view(B, T, self.n_heads, 2 * self.d)

        s = torch.einsum("bihgd,bjhgd->bhgij", q, k) / math.sqrt(self.d)
        if attn_mask is None:
            attn_mask = torch.full((T, T), float("-inf"), device=x.device).triu(1)
        p = F.softmax(s + attn_mask, dim=-1)
        p = p[:, :, 0] - self.lam() * p[:, :, 1]

        o = torch.einsum("bhij,bjhe->bihe", p, v)
        o = self.subln(o) * (1.0 - self.lambda_init)
        return self.o_proj(o.reshape(B, T, -1))


class DiffBlock(nn.Module):
    def __init__(self, d_model=64, n_heads=4, depth=0):
        super().__init__()
        self.n1, self.n2 = HeadRMSNorm(d_model), HeadRMSNorm(d_model)
        self.attn = DiffAttention(d_model, n_heads, depth)
        self.w1 = nn.Linear(d_model, 2 * d_model, bias=False)
        self.w2 = nn.Linear(d_model, 2 * d_model, bias=False)
        self.w3 = nn.Linear(2 * d_model, d_model, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y = self.n2(x)
        return x + self.w3(F.silu(self.w1(y)) * self.w2(y))


if __name__ == "__main__":
    net = nn.Sequential(*[DiffBlock(depth=i) for i in range(3)])
    x = torch.randn(2, 10, 64)
    x2 = x.clone()
    x2[:, 6:] = 0
    print((net(x)[:, :6] - net(x2)[:, :6]).abs().max().item())
