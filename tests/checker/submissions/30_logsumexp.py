# expect: correct
import torch
import torch.nn as nn


class LogSpaceAttention(nn.Module):
    """weights = exp(score - logsumexp(scores)); rows visited in blocks to save memory"""

    def __init__(self, channels: int, groups: int, block: int = 3):
        super().__init__()
        self.groups, self.block = groups, block
        self.f = nn.Linear(channels, channels)  # query
        self.g = nn.Linear(channels, channels)  # key
        self.h = nn.Linear(channels, channels)  # value
        self.mix = nn.Linear(channels, channels)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.groups, -1)).swapaxes(1, 2) for t in (self.f(x), self.g(x), self.h(x)))
        outs = []
        for lo in range(0, n, self.block):
            hi = min(lo + self.block, n)
            s = q[:, :, lo:hi] @ k[:, :, :hi].swapaxes(-1, -2) / q.size(-1) ** 0.5
            rows, cols = torch.arange(lo, hi), torch.arange(hi)
            s = s + torch.where(cols[None] > rows[:, None], -torch.inf, 0.0).to(s)
            outs.append(torch.exp(s - s.logsumexp(-1, keepdim=True)) @ v[:, :, :hi])
        return self.mix(torch.cat(outs, dim=2).swapaxes(1, 2).flatten(2))
