# expect: correct
import torch
import torch.nn as nn


class StableAttention(nn.Module):
    def __init__(self, channels, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, channels * 3)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x):
        b, n, c = x.shape
        d = c // self.num_heads
        # each head owns a contiguous [q | k | v] slice of the projection
        qkv = self.qkv(self.norm(x)).view(b, n, self.num_heads, 3 * d)
        qkv = qkv.transpose(1, 2).reshape(b * self.num_heads, n, 3 * d)
        q, k, v = qkv.split(d, dim=-1)

        # half of the 1/sqrt(d) goes to either side, safer in half precision
        s = d ** -0.25
        w = torch.baddbmm(q.new_zeros(1, 1, 1), q * s, (k * s).transpose(1, 2), beta=0)
        w = torch.softmax(w.float(), dim=-1).to(v.dtype)

        h = torch.bmm(w, v)
        h = h.view(b, self.num_heads, n, d).transpose(1, 2).reshape(b, n, c)
        return x + self.proj(h)
