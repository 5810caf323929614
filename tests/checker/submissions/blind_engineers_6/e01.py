# expect: correct
# why: right though unusual: differential attention, one softmax is subtracted from another
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class HeadRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


class MultiheadDiffAttn(nn.Module):
    """Differential attention (arXiv:2410.05258).

    Every head computes two softmax maps and subtracts the second, weighted with a learned lambda,
    to cancel common-mode attention noise:

        head = (softmax(q1 k1^T / sqrt(d)) - lambda * softmax(q2 k2^T / sqrt(d))) v

    followed by a per-head RMSNorm and the constant factor ``1 - lambda_init``.
    ``d = embed_dim / (2 * num_heads)``, values have width ``2 d``. The number of heads is half the
    number a plain transformer of the same width would have.

    Args:
        depth: index of the layer, sets ``lambda_init``.
        causal: mask the future.
    """

    def __init__(self, embed_dim, depth, num_heads, causal=True):
        super().__init__()
        assert embed_dim % (2 * num_heads) == 0
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads // 2
        self.scaling = self.head_dim ** -0.5
        self.causal = causal

        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        self.lambda_init = lambda_init_fn(depth)
        self.lambda_q1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k1 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_q2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.lambda_k2 = nn.Parameter(torch.randn(self.head_dim) * 0.1)
        self.subln = HeadRMSNorm(2 * self.head_dim)

    def forward(self, x):
        bsz, n, embed_dim = x.size()
        h, d = self.num_heads, self.head_dim

        # (B, 2h, N, d): heads 2i and 2i+1 are the two maps of differential head i
        q = self.q_proj(x).view(bsz, n, 2 * h, d).transpose(1, 2) * self.scaling
        k = self.k_proj(x).view(bsz, n, 2 * h, d).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, h, 2 * d).transpose(1, 2)

        logits = torch.matmul(q, k.transpose(-1, -2))
        if self.causal:
            future = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
            logits = logits.masked_fill(future, float("-inf"))
        maps = F.softmax(logits, dim=-1, dtype=torch.float32).type_as(logits)

        lam1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1).float())
        lam2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2).float())
        lam = (lam1 - lam2 + self.lambda_init).type_as(q)

        maps = maps.view(bsz, h, 2, n, n)
        diff = maps[:, :, 0] - lam * maps[:, :, 1]

        out = self.subln(torch.matmul(diff, v)) * (1 - self.lambda_init)
        return self.out_proj(out.transpose(1, 2).reshape(bsz, n, embed_dim))


class DiffBlock(nn.Module):
    def __init__(self, dim, depth, num_heads):
        super().__init__()
        self.norm1 = nn.RMSNorm(dim)
        self.attn = MultiheadDiffAttn(dim, depth, num_heads)
        self.norm2 = nn.RMSNorm(dim)
        self.w12 = nn.Linear(dim, 2 * 3 * dim, bias=False)
        self.w3 = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        a, b = self.w12(self.norm2(x)).chunk(2, dim=-1)
        return x + self.w3(F.silu(a) * b)
