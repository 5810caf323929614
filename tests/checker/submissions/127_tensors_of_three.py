# expect: correct
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, d_in, d_head, context_length, p, bias):
        super().__init__()
        # plain matrices like SelfAttention version 1, all three in one tensor
        self.w = nn.Parameter(torch.randn(3, d_in, d_head) * d_in ** -0.5)
        self.b = nn.Parameter(torch.zeros(3, 1, d_head)) if bias else None
        self.p = p
        self.register_buffer("m", torch.triu(torch.full((context_length, context_length), -torch.inf), 1))

    def forward(self, x):
        # x (B, T, d_in) -> qkv (3, B, T, d_head)
        qkv = torch.einsum("btc,ncd->nbtd", x, self.w)
        if self.b is not None:
            qkv = qkv + self.b[:, None]
        q, k, v = qkv
        T = x.shape[1]
        s = torch.einsum("bid,bjd->bij", q, k) * k.size(-1) ** -0.5 + self.m[:T, :T]
        a = F.dropout(F.softmax(s, dim=-1), self.p, self.training)
        return a @ v


class MultiHeadAttentionWrapper(nn.Module):
    """several causal heads; d_out is the TOTAL width here, not the width per head"""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.heads = nn.ModuleList(
            Head(d_in, d_out // num_heads, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )
        self.mix = nn.Linear(d_out, d_out)

    def forward(self, x):
        ys = torch.stack([h(x) for h in self.heads], dim=-2)   # (B, T, heads, d_head)
        return self.mix(ys.flatten(-2))
