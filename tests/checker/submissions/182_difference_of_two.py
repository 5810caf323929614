# expect: never-learns
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class HeadRMS(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.g


class DiffAttention(nn.Module):
    """Differential attention (causal): out = (softmax(q1 k1) - lam * softmax(q2 k2)) v

    lam = exp(<lq1, lk1>) - exp(<lq2, lk2>) + lambda_init, one scalar per layer.
    `num_heads` is the number of differential heads, each uses two q/k heads of size d and a
    value head of size 2d with d = embed_dim / num_heads / 2.
    """

    def __init__(self, embed_dim, num_heads, depth=0):
        super().__init__()
        self.nh = num_heads
        self.d = embed_dim // num_heads // 2
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.lq1 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lk1 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lq2 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.lk2 = nn.Parameter(torch.randn(self.d) * 0.1)
        self.subln = HeadRMS(2 * self.d)

    def lam(self):
        return math.exp(self.lq1 @ self.lk1) - math.exp(self.lq2 @ self.lk2) + self.lambda_init

    def forward(self, x):
        B, T, E = x.shape
        q = self.q_proj(x).view(B, T, self.nh, 2, self.d).permute(3, 0, 2, 1, 4)
        k = self.k_proj(x).view(B, T, self.nh, 2, self.d).permute(3, 0, 2, 1, 4)
        v = self.v_proj(x).view(B, T, self.nh, 2 * self.d).transpose(1, 2)

        s = q @ k.transpose(-1, -2) / math.sqrt(self.d)         # (2, B, nh, T, T)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        a1, a2 = F.softmax(s.masked_fill(future, float("-inf")), dim=-1).unbind(0)
        y = (a1 - self.lam() * a2) @ v
        y = self.subln(y) * (1 - self.lambda_init)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, E))
