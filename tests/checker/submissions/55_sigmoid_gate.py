# expect: wrong
import torch
from torch import nn


class GateAttention(nn.Module):
    """softmax makes numbers between 0 and 1, sigmoid does that too and is faster"""

    def __init__(self, n_units, n_heads, window=64):
        super().__init__()
        self.n_heads, self.n_units = n_heads, n_units
        self.proj_q = nn.Linear(n_units, n_units)
        self.proj_k = nn.Linear(n_units, n_units)
        self.proj_v = nn.Linear(n_units, n_units)
        self.proj_o = nn.Linear(n_units, n_units)
        self.register_buffer("seen", torch.ones(window, window).tril())

    def forward(self, x):
        b, n, u = x.shape
        q, k, v = (p(x).reshape(b, n, self.n_heads, u // self.n_heads).movedim(2, 1)
                   for p in (self.proj_q, self.proj_k, self.proj_v))
        raw = q @ k.movedim(-1, -2) / (u // self.n_heads) ** 0.5
        raw = raw.masked_fill(self.seen[:n, :n] == 0, -torch.inf)
        return self.proj_o((torch.sigmoid(raw) @ v).movedim(1, 2).reshape(b, n, u))
