# expect: correct
import math
import torch
import torch.nn as nn


class AlibiMQA(nn.Module):
    """Multi-query attention (one shared K/V head) with ALiBi, causal. heads must be a power of two."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.dh = d_model // heads
        self.fused = nn.Linear(d_model, d_model + 2 * self.dh, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        m = torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])
        self.register_buffer("slopes", m)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.fused(x).split([D, self.dh, self.dh], dim=-1)
        q = q.view(B, N, self.heads, self.dh)
        logits = torch.einsum("bnhd,bmd->bhnm", q, k) / math.sqrt(self.dh)

        pos = torch.arange(N, device=x.device)
        dist = pos[None, :] - pos[:, None]          # key - query, <= 0 in the past
        logits = logits + self.slopes.view(1, -1, 1, 1) * dist
        logits = logits.masked_fill(dist > 0, -torch.inf)

        y = torch.einsum("bhnm,bmd->bnhd", logits.softmax(-1), v)
        return self.o(y.reshape(B, N, D))
