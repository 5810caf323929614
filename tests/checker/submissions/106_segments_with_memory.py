# expect: correct
import torch
import torch.nn as nn


class RelMemoryAttention(nn.Module):
    """Transformer-XL like attention for the RL agent.

    x    : (T, B, C)   current segment
    mem  : (M, B, C)   hidden states of the last segment (no gradient), may be None
    Causal; relative sinusoid position, content bias u and position bias w.
    """

    def __init__(self, d, nh):
        super().__init__()
        self.nh, self.dh = nh, d // nh
        self.to_q = nn.Linear(d, d, bias=False)
        self.to_kv = nn.Linear(d, 2 * d, bias=False)
        self.to_r = nn.Linear(d, d, bias=False)
        self.merge = nn.Linear(d, d, bias=False)
        self.u = nn.Parameter(torch.randn(nh, self.dh) * 0.1)
        self.w = nn.Parameter(torch.randn(nh, self.dh) * 0.1)
        self.d = d

    def sinusoid(self, dist):
        f = 10000 ** (-torch.arange(0, self.d, 2, device=dist.device).float() / self.d)
        a = dist.float()[:, None] * f
        return torch.cat([a.sin(), a.cos()], -1).to(self.to_r.weight.dtype)

    @staticmethod
    def shift(s):
        # (B, H, T, K): row i has to be moved to the left by T-1-i
        B, H, T, K = s.shape
        s = nn.functional.pad(s, (1, 0)).view(B, H, K + 1, T)
        return s[:, :, 1:].reshape(B, H, T, K)

    def forward(self, x, mem=None):
        T, B, C = x.shape
        ctx = x if mem is None else torch.cat([mem.detach(), x], 0)
        K = ctx.shape[0]
        q = self.to_q(x).view(T, B, self.nh, self.dh)
        k, v = self.to_kv(ctx).view(K, B, 2, self.nh, self.dh).unbind(2)
        # distances K-1, K-2, ..., 0
        r = self.to_r(self.sinusoid(torch.arange(K - 1, -1, -1, device=x.device)))
        r = r.view(K, self.nh, self.dh)

        content = torch.einsum("tbhd,kbhd->bhtk", q + self.u, k)
        position = torch.einsum("tbhd,khd->bhtk", q + self.w, r)
        s = (content + self.shift(position)) / self.dh ** 0.5

        hide = torch.ones(T, K, dtype=torch.bool, device=x.device).triu(K - T + 1)
        s = s.masked_fill(hide, float("-inf"))
        y = torch.einsum("bhtk,kbhd->tbhd", s.softmax(-1), v)
        return self.merge(y.reshape(T, B, C))
